//! Commands for completion queues.

use std::sync::Arc;

use crate::abi::*;
use crate::device::cq::{CompletionEvents, CqModeration, CqObject};
use crate::device::event::{AsyncSource, Reported};
use crate::device::session::{MiniCqeFormat, Session};
use crate::handles::number;
use crate::process::{Errno, refuse_if};
use crate::settings::NicCaps;

use super::context::COMP_VECTORS;
use super::{UverbsFile, UverbsRequest};

/// `IB_CQ_MODERATE` of EX_MODIFY_CQ, which no uAPI header defines.
const ATTR_MODERATE: u32 = 1 << 0;
/// Maximum moderation period of a CQ in microseconds: `MLX5_MAX_CQ_PERIOD`.
pub const MAX_PERIOD: u16 = 4095;

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_create_cq = request.core()?;
    let extended = ib_uverbs_ex_create_cq {
        user_handle: command.user_handle,
        cqe: command.cqe,
        comp_vector: command.comp_vector,
        comp_channel: command.comp_channel,
        ..Default::default()
    };
    let (cq_handle, cqe, cqn) = create_cq(file, &extended, &driver_part(request)?)?;
    request.reply(&ib_uverbs_create_cq_resp {
        cq_handle,
        cqe,
        ..Default::default()
    })?;
    request.reply_driver(&mlx5_ib_create_cq_resp { cqn, reserved: 0 })
}

pub fn create_ex(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_create_cq = request.core()?;
    if command.comp_mask != 0 || command.reserved != 0 {
        return Err(libc::EINVAL);
    }
    let (cq_handle, cqe, cqn) = create_cq(file, &command, &driver_part(request)?)?;
    request.reply(&ib_uverbs_ex_create_cq_resp {
        base: ib_uverbs_create_cq_resp {
            cq_handle,
            cqe,
            ..Default::default()
        },
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_create_cq_resp>(),
    })?;
    request.reply_driver(&mlx5_ib_create_cq_resp { cqn, reserved: 0 })
}

fn driver_part(request: &UverbsRequest<'_>) -> Result<mlx5_ib_create_cq, Errno> {
    // Older programs do not send the flags.
    request.driver(std::mem::offset_of!(mlx5_ib_create_cq, flags))
}

/// Returns the base-2 logarithm of the number of CQEs in a CQ that the program requests with `cqe`
/// CQEs: the driver's `roundup_pow_of_two(entries + 1)`.
fn log_entries(cqe: u32, max: u32) -> Result<u32, Errno> {
    refuse_if(cqe == 0 || cqe > max, libc::EINVAL)?;
    Ok((cqe + 1).next_power_of_two().trailing_zeros())
}

/// Creates a CQ. Returns its handle, capacity and CQN.
fn create_cq(
    file: &UverbsFile,
    command: &ib_uverbs_ex_create_cq,
    driver: &mlx5_ib_create_cq,
) -> Result<(u32, u32, u32), Errno> {
    let caps = file.caps();
    let known = IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION | IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
    refuse_if(command.comp_vector >= COMP_VECTORS, libc::EINVAL)?;
    refuse_if(command.flags & !known != 0, libc::EOPNOTSUPP)?;
    let log = log_entries(command.cqe, caps.max_cqe)?;
    if driver.cqe_size != 64 && driver.cqe_size != 128 {
        return Err(libc::EINVAL);
    }
    let flags = u32::from(driver.flags);
    let padding = flags & MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD != 0;
    let real_time = flags & MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS != 0;
    let session = session(driver, caps)?;
    if padding || real_time && !caps.realtime_clock {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = file.lock();
    let context = state.context(file.context())?;
    let completions = match command.comp_channel {
        ..0 => None,
        fd => {
            let known = context
                .channels
                .iter()
                .find(|channel| channel.fd() == fd && !channel.is_closed());
            Some(CompletionEvents {
                channel: Arc::clone(known.ok_or(libc::EBADF)?),
                element: command.user_handle,
                reported: Reported::default(),
            })
        }
    };
    let events = AsyncSource::new(&context.events, command.user_handle);
    let ignore_overrun = command.flags & IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN != 0;
    let mut cq = CqObject::new(
        driver.buf_addr,
        driver.db_addr,
        log,
        driver.cqe_size,
        ignore_overrun,
        events,
    )?;
    cq.completions = completions;
    cq.real_time = real_time || caps.utc_stamps;
    if let Some(session) = session {
        cq.compress(session);
    }
    let handle = state.queues.cqs.insert(file.context(), cq)?;
    if let Ok(cq) = state.queues.cqs.get_mut(handle, file.context()) {
        cq.number = number(handle);
    }
    Ok((handle, (1 << log) - 1, number(handle)))
}

/// Returns the CQE compression session that CREATE_CQ requests, checked as in `create_cq_user` and
/// `mini_cqe_res_format_to_hw`. 128-byte CQEs cannot be compressed (the capability
/// `cqe_compression_128`).
fn session(driver: &mlx5_ib_create_cq, caps: &NicCaps) -> Result<Option<Session>, Errno> {
    if driver.cqe_comp_en != 1 {
        return Ok(None);
    }
    if driver.cqe_size != 64 || !caps.cqe_compression {
        return Err(libc::EOPNOTSUPP);
    }
    let format = MiniCqeFormat::from_bit(driver.cqe_comp_res_format.into()).ok_or(libc::EINVAL)?;
    if format == MiniCqeFormat::ChecksumStride && !caps.mini_cqe_stride_index {
        return Err(libc::EOPNOTSUPP);
    }
    let session = Session::new(format, caps.cqe_compression_max, caps.cqe_compression_wraps);
    Ok(Some(session))
}

/// EX_MODIFY_CQ: sets the event moderation of a CQ.
pub fn modify_ex(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_modify_cq = request.core()?;
    if command.attr_mask == 0 || command.reserved != 0 {
        return Err(libc::EINVAL);
    }
    if command.attr_mask & !ATTR_MODERATE != 0 || !file.caps().cq_moderation {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = file.lock();
    let cq = state
        .queues
        .cqs
        .get_mut(command.cq_handle, file.context())?;
    refuse_if(command.attr.cq_period > MAX_PERIOD, libc::EINVAL)?;
    cq.moderation = CqModeration {
        count: command.attr.cq_count,
        period: command.attr.cq_period,
    };
    Ok(())
}

pub fn resize(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_resize_cq = request.core()?;
    let driver: mlx5_ib_resize_cq = request.driver(size_of::<mlx5_ib_resize_cq>())?;
    let log = log_entries(command.cqe, file.caps().max_cqe)?;
    let mut state = file.lock();
    let cq = state
        .queues
        .cqs
        .get_mut(command.cq_handle, file.context())?;
    refuse_if(driver.reserved0 != 0 || driver.reserved1 != 0, libc::EINVAL)?;
    // At an unchanged size the program passes no new ring.
    if 1 << log != cq.entries() {
        let size = match driver.cqe_size {
            64 | 128 => u32::from(driver.cqe_size),
            _ => return Err(libc::EINVAL),
        };
        cq.resize(driver.buf_addr, log, size)?;
    }
    drop(state);
    request.reply(&ib_uverbs_resize_cq_resp {
        cqe: (1 << log) - 1,
        ..Default::default()
    })
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_cq = request.core()?;
    let mut state = file.lock();
    let cqs = &state.queues.cqs;
    let index = cqs.find_unused(command.cq_handle, file.context())?;
    let (comp_events_reported, async_events_reported) = state.remove_cq(index);
    drop(state);
    request.reply(&ib_uverbs_destroy_cq_resp {
        comp_events_reported,
        async_events_reported,
    })
}
