//! Commands for shared receive queues. They are objects only, for programs that create one in
//! addition to other queues: on mlx5, RAW_PACKET QPs do not receive from an SRQ.

use std::mem::offset_of;

use crate::abi::*;
use crate::device::event::NicEvent;
use crate::device::memory::DoorbellRecord;
use crate::device::object::SrqObject;
use crate::handles::number;
use crate::process::memory::fault_in;
use crate::process::{Errno, refuse_if};

use super::{UverbsFile, UverbsRequest};

/// `IB_SRQ_MAX_WR` and `IB_SRQ_LIMIT` of MODIFY_SRQ, which no uAPI header defines.
const ATTR_MAX_WR: u32 = 1 << 0;
const ATTR_LIMIT: u32 = 1 << 1;
/// Index of the word with the number of WRs posted in an SRQ's doorbell record.
const POSTED: usize = MLX5_RCV_DBR as usize;

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_create_srq = request.core()?;
    let driver: mlx5_ib_create_srq = request.driver(offset_of!(mlx5_ib_create_srq, uidx))?;
    let caps = file.caps();
    if command.max_wr > caps.max_srq_wr || command.max_sge > caps.max_srq_sge {
        return Err(libc::EINVAL);
    }
    let max_wr = (command.max_wr + 1).next_power_of_two() - 1;
    // A WQE is the link to the next one (`mlx5_wqe_srq_next_seg`) and the scatter list. Its size is
    // a power of two, at least 32 bytes.
    let segments = (1 + u64::from(command.max_sge)) * size_of::<mlx5_wqe_data_seg>() as u64;
    fault_in(
        driver.buf_addr,
        segments.next_power_of_two().max(32) * u64::from(max_wr + 1),
        true,
    )?;
    let record = DoorbellRecord::new(driver.db_addr)?;
    let mut state = file.lock();
    let events = state.event_source(file.context(), command.user_handle)?;
    let pd = state.pds.find(command.pd_handle, file.context())?;
    let srq = SrqObject {
        pd,
        max_wr,
        max_sge: command.max_sge,
        // The driver sets no limit in a new SRQ.
        limit: 0,
        record,
        events,
    };
    let srq_handle = state.srqs.insert(file.context(), srq)?;
    state.pds.add_user(pd);
    drop(state);
    let srqn = number(srq_handle);
    request.reply(&ib_uverbs_create_srq_resp {
        srq_handle,
        max_wr,
        max_sge: command.max_sge,
        srqn,
        ..Default::default()
    })?;
    request.reply_driver(&mlx5_ib_create_srq_resp { srqn, reserved: 0 })
}

pub fn modify(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_modify_srq = request.core()?;
    let mut state = file.lock();
    let srq = state.srqs.get_mut(command.srq_handle, file.context())?;
    // mlx5 cannot resize SRQs.
    refuse_if(command.attr_mask & ATTR_MAX_WR != 0, libc::EINVAL)?;
    if command.attr_mask & ATTR_LIMIT != 0 {
        refuse_if(command.srq_limit > srq.max_wr, libc::EINVAL)?;
        arm(srq, command.srq_limit);
    }
    Ok(())
}

/// Sets the limit of an SRQ. The limit event is raised when fewer WRs are posted, and then the
/// limit is cleared (PRM "ARM_RQ"). Nothing consumes the SRQ's WRs, so the event comes either now
/// or never. That it comes at once is inferred.
fn arm(srq: &mut SrqObject, limit: u32) {
    let posted = srq.record.load(POSTED) & 0xffff;
    srq.limit = if posted < limit { 0 } else { limit };
    if posted < limit {
        srq.events.raise(NicEvent::SrqLimitReached);
    }
}

pub fn query(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_query_srq = request.core()?;
    let state = file.lock();
    let srq = state.srqs.get(command.srq_handle, file.context())?;
    request.reply(&ib_uverbs_query_srq_resp {
        max_wr: srq.max_wr,
        max_sge: srq.max_sge,
        srq_limit: srq.limit,
        reserved: 0,
    })
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_srq = request.core()?;
    let mut state = file.lock();
    let index = state.srqs.find_unused(command.srq_handle, file.context())?;
    let events_reported = state.remove_srq(index);
    drop(state);
    request.reply(&ib_uverbs_destroy_srq_resp { events_reported })
}
