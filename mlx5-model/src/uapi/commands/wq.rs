//! Commands for work queues and RWQ indirection tables.

use std::mem::{offset_of, size_of};
use std::ops::RangeInclusive;

use rustix::thread::CapabilitySet;

use crate::abi::*;
use crate::device::object::TableObject;
use crate::device::rq::{Rq, RqFeatures, RqOwner, RqState};
use crate::device::scatter::RqLayout;
use crate::device::state::DeviceState;
use crate::device::strides::{StrideLayout, StridingCqes};
use crate::handles::{Index, number};
use crate::process::{Errno, refuse_if};
use crate::settings::NicCaps;

use super::{UverbsFile, UverbsRequest};

/// `IB_WQ_STATE`, `IB_WQ_CUR_STATE`, `IB_WQ_FLAGS`: attributes of MODIFY_WQ, which no uAPI header
/// defines.
const ATTR_STATE: u32 = 1 << 0;
const ATTR_CURRENT_STATE: u32 = 1 << 1;
const ATTR_FLAGS: u32 = 1 << 2;
/// Receive queue states by their number in `IB_WQS_*`.
const STATES: [RqState; 3] = [RqState::Reset, RqState::Ready, RqState::Error];
/// WQ flag `MLX5_WQ_FLAG_SIGNATURE`: each WQE begins with a signature.
const SIGNATURE: u32 = 1 << 0;

/// Allowed base-2 logarithms of a striding WQ's stride size in bytes:
/// `MLX5_{MIN,MAX}_SINGLE_STRIDE_LOG_NUM_BYTES`.
pub const STRIDE_BYTES_LOG: RangeInclusive<u32> = 6..=13;
/// Allowed base-2 logarithms of the number of strides in a striding WQ's WQE:
/// `MLX5_{MIN,MAX}_SINGLE_WQE_LOG_NUM_STRIDES`.
const STRIDES_LOG: RangeInclusive<u32> = 9..=16;
/// Smallest base-2 logarithm of the number of strides in a WQE with the capability
/// `ext_stride_num_range`: `MLX5_EXT_MIN_SINGLE_WQE_LOG_NUM_STRIDES`.
const EXTENDED_MIN_STRIDES_LOG: u32 = 3;

/// Returns the allowed base-2 logarithms of the number of strides in a WQE of this device
/// (`log_of_strides_valid`).
pub fn strides_log(caps: &NicCaps) -> RangeInclusive<u32> {
    if caps.ext_stride_num_range {
        EXTENDED_MIN_STRIDES_LOG..=*STRIDES_LOG.end()
    } else {
        STRIDES_LOG
    }
}

/// Decodes WQ flags into receive queue features. Fails with `EOPNOTSUPP` if the device lacks one.
pub fn features(flags: u32, caps: &NicCaps) -> Result<RqFeatures, Errno> {
    let supported = [
        (IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING, caps.cvlan_stripping),
        (IB_UVERBS_WQ_FLAGS_SCATTER_FCS, caps.scatter_fcs),
        (IB_UVERBS_WQ_FLAGS_DELAY_DROP, caps.delay_drop),
        (IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING, caps.end_padding),
    ];
    let known = supported
        .iter()
        .filter(|(_, supported)| *supported)
        .fold(0, |sum, (flag, _)| sum | flag);
    refuse_if(flags & !known != 0, libc::EOPNOTSUPP)?;
    Ok(RqFeatures {
        strip_cvlan: flags & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0,
        scatter_fcs: flags & IB_UVERBS_WQ_FLAGS_SCATTER_FCS != 0 && !caps.scatter_fcs_ignored,
        delay_drop: flags & IB_UVERBS_WQ_FLAGS_DELAY_DROP != 0,
    })
}

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    // As for a driver without the operation (`UAPI_DEF_OBJ_NEEDS_FN`).
    refuse_if(!file.caps().rwq, libc::EOPNOTSUPP)?;
    let command: ib_uverbs_ex_create_wq = request.core()?;
    let driver: mlx5_ib_create_wq = request.driver(offset_of!(
        mlx5_ib_create_wq,
        single_stride_log_num_of_bytes
    ))?;
    let (features, strides) = check(file, &command, &driver)?;
    let layout = RqLayout {
        ring: driver.buf_addr,
        record: driver.db_addr,
        count: driver.rq_wqe_count,
        shift: driver.rq_wqe_shift,
        signature: driver.flags & SIGNATURE != 0,
        strides,
    };
    let mut state = file.lock();
    let context = file.context();
    let cq = state.queues.cqs.find(command.cq_handle, context)?;
    let pd = state.pds.find(command.pd_handle, context)?;
    let events = state.event_source(context, command.user_handle)?;
    let mut rq = Rq::new(&layout, cq, pd, driver.user_index, RqOwner::Wq, events)?;
    rq.features = features;
    rq.unflushed = file.caps().unflushed_wrs;
    rq.flushes_at_reset = file.caps().flush_at_reset;
    rq.striding_cqes = StridingCqes::new(file.caps());
    rq.drops_too_long = file.caps().drop_too_long;
    rq.serial = Some(state.number_rq());
    let wq_handle = state.queues.rqs.insert(context, rq)?;
    // As `create_rq`, which calls `set_delay_drop` once the firmware has created the queue.
    if features.delay_drop {
        state.queues.delay_drop.count_queue();
    }
    state.pds.add_user(pd);
    state.queues.cqs.add_user(cq);
    drop(state);
    request.reply(&ib_uverbs_ex_create_wq_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_create_wq_resp>(),
        wq_handle,
        max_wr: command.max_wr,
        max_sge: command.max_sge,
        wqn: number(wq_handle),
    })?;
    request.reply_driver(&mlx5_ib_create_wq_resp {
        response_length: request.driver_room::<mlx5_ib_create_wq_resp>(),
        reserved: 0,
    })
}

fn check(
    file: &UverbsFile,
    command: &ib_uverbs_ex_create_wq,
    driver: &mlx5_ib_create_wq,
) -> Result<(RqFeatures, Option<StrideLayout>), Errno> {
    let caps = file.caps();
    refuse_if(command.comp_mask != 0, libc::EOPNOTSUPP)?;
    refuse_if(command.wq_type != IB_UVERBS_WQT_RQ, libc::EINVAL)?;
    let strides = strides(driver, caps)?;
    if driver.rq_wqe_count == 0 || driver.rq_wqe_count > caps.max_recv_wr.next_power_of_two() {
        return Err(libc::EINVAL);
    }
    refuse_if(command.max_wr > caps.max_recv_wr, libc::EINVAL)?;
    if command.create_flags & IB_UVERBS_WQ_FLAGS_DELAY_DROP != 0 {
        file.require(CapabilitySet::SYS_RAWIO)?;
    }
    Ok((features(command.create_flags, caps)?, strides))
}

/// Returns the stride layout of a striding WQ, checked as in `prepare_user_rq`; `None` for other
/// WQs.
fn strides(driver: &mlx5_ib_create_wq, caps: &NicCaps) -> Result<Option<StrideLayout>, Errno> {
    let striding = driver.comp_mask & MLX5_IB_CREATE_WQ_STRIDING_RQ != 0;
    if driver.comp_mask & !MLX5_IB_CREATE_WQ_STRIDING_RQ != 0 || striding && !caps.striding_rq {
        return Err(libc::EOPNOTSUPP);
    }
    if !striding {
        return Ok(None);
    }
    let layout = StrideLayout {
        log_bytes: driver.single_stride_log_num_of_bytes,
        log_strides: driver.single_wqe_log_num_of_strides,
        two_byte_shift: driver.two_byte_shift_en != 0,
    };
    let valid = STRIDE_BYTES_LOG.contains(&layout.log_bytes)
        && strides_log(caps).contains(&layout.log_strides);
    valid.then_some(Some(layout)).ok_or(libc::EINVAL)
}

/// Returns the index of the receive queue of the WQ with this handle. Fails with `EINVAL` for a
/// QP's receive queue.
fn find(state: &DeviceState, handle: u32, context: u32) -> Result<Index, Errno> {
    let index = state.queues.rqs.find(handle, context)?;
    let rq = state.queues.rqs.at(index).ok_or(libc::EINVAL)?;
    if rq.owner == RqOwner::Wq {
        Ok(index)
    } else {
        Err(libc::EINVAL)
    }
}

pub fn modify(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_modify_wq = request.core()?;
    let mask = command.attr_mask;
    if mask == 0 || mask & !(ATTR_STATE | ATTR_CURRENT_STATE | ATTR_FLAGS) != 0 {
        return Err(libc::EINVAL);
    }
    let driver: mlx5_ib_modify_wq = request.driver(0)?;
    if driver.comp_mask != 0 || driver.reserved != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = file.lock();
    let index = find(&state, command.wq_handle, file.context())?;
    let (rq, cq) = state.queues.receive_queue(index).ok_or(libc::EINVAL)?;
    let state_of = |number: u32| STATES.get(number as usize).copied().ok_or(libc::EINVAL);
    let current = if mask & ATTR_CURRENT_STATE != 0 {
        state_of(command.curr_wq_state)?
    } else {
        rq.recorded
    };
    let next = if mask & ATTR_STATE != 0 {
        state_of(command.wq_state)?
    } else {
        current
    };
    // The firmware checks the current state, as far as is known, and refuses the change from error
    // to ready. It is not known whether it checks the state of a queue that it has put in error by
    // itself: DPDK passes the true state there (`mlx5_devx_modify_rq`, MLX5_RXQ_MOD_ERR2RST).
    let stale = current == RqState::Ready && rq.state() == RqState::Error;
    let known = current == rq.state() || stale && !file.caps().refuse_stale_state;
    let revives = rq.state() == RqState::Error && mask & ATTR_STATE != 0 && next == RqState::Ready;
    refuse_if(!known || revives, libc::EINVAL)?;
    if mask & ATTR_FLAGS != 0 {
        modify_flags(rq, &command, file.caps())?;
    }
    if mask & ATTR_STATE != 0 && next != rq.state() {
        rq.set_state(next, cq);
    }
    rq.recorded = next;
    Ok(())
}

fn modify_flags(
    rq: &mut Rq,
    command: &ib_uverbs_ex_modify_wq,
    caps: &NicCaps,
) -> Result<(), Errno> {
    if command.flags_mask & IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if command.flags_mask & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0 {
        refuse_if(!caps.cvlan_stripping, libc::EOPNOTSUPP)?;
        rq.features.strip_cvlan = command.flags & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0;
    }
    Ok(())
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_destroy_wq = request.core()?;
    refuse_if(command.comp_mask != 0, libc::EOPNOTSUPP)?;
    let mut state = file.lock();
    let index = find(&state, command.wq_handle, file.context())?;
    refuse_if(state.queues.rqs.users(index) > 0, libc::EBUSY)?;
    let events_reported = state.remove_rq(index);
    drop(state);
    request.reply(&ib_uverbs_ex_destroy_wq_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_destroy_wq_resp>(),
        events_reported,
        reserved: 0,
    })
}

pub fn create_table(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    refuse_if(!file.caps().rwq, libc::EOPNOTSUPP)?;
    let (command, rest) = request.core_and_rest::<ib_uverbs_ex_create_rwq_ind_table>()?;
    let log = command.log_ind_tbl_size;
    refuse_if(command.comp_mask != 0, libc::EOPNOTSUPP)?;
    refuse_if(log > IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE, libc::EINVAL)?;
    let (handles, tail) = rest
        .split_at_checked(size_of::<u32>() << log)
        .ok_or(libc::ENOSPC)?;
    refuse_if(tail.iter().any(|&byte| byte != 0), libc::EOPNOTSUPP)?;
    let mut state = file.lock();
    let context = file.context();
    let rqs = handles
        .chunks_exact(size_of::<u32>())
        .map(read_prefix::<u32>)
        .map(|handle| find(&state, handle, context))
        .collect::<Result<Box<[Index]>, Errno>>()?;
    refuse_if(log > file.caps().max_ind_table_log, libc::EINVAL)?;
    let table = TableObject { rqs: rqs.clone() };
    let handle = state.tables.insert(context, table)?;
    for rq in rqs {
        state.queues.rqs.add_user(rq);
    }
    drop(state);
    request.reply(&ib_uverbs_ex_create_rwq_ind_table_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_create_rwq_ind_table_resp>(),
        ind_tbl_handle: handle,
        ind_tbl_num: number(handle),
    })?;
    request.reply_driver(&mlx5_ib_create_rwq_ind_tbl_resp {
        response_length: request.driver_room::<mlx5_ib_create_rwq_ind_tbl_resp>(),
        reserved: 0,
    })
}

pub fn destroy_table(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_destroy_rwq_ind_table = request.core()?;
    refuse_if(command.comp_mask != 0, libc::EOPNOTSUPP)?;
    let mut state = file.lock();
    let index = state
        .tables
        .find_unused(command.ind_tbl_handle, file.context())?;
    state.remove_table(index);
    Ok(())
}
