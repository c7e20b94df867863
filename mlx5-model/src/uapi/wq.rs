//! Work queues and the tables over them.

use std::mem::{offset_of, size_of};

use crate::abi::*;
use crate::device::event::AsyncSource;
use crate::device::nic::Session;
use crate::device::rq::{Rq, RqFeatures, RqLayout, RqOwner, RqState};
use crate::device::state::{State, Table};
use crate::objects::{Index, number};
use crate::process::Errno;
use crate::process::capabilities;
use crate::settings::{DeviceCaps, Settings};

use super::Request;

/// `IB_WQ_STATE`, `IB_WQ_CUR_STATE`, `IB_WQ_FLAGS`: attributes of MODIFY_WQ, which no uAPI header names.
const ATTR_STATE: u32 = 1 << 0;
const ATTR_CURRENT_STATE: u32 = 1 << 1;
const ATTR_FLAGS: u32 = 1 << 2;
/// `IB_WQS_*`.
const STATES: [RqState; 3] = [RqState::Reset, RqState::Ready, RqState::Error];
/// `MLX5_WQ_FLAG_SIGNATURE`.
const SIGNATURE: u32 = 1 << 0;

/// Whether a right is missing that the command needs.
pub fn lacks(capability: u32) -> bool {
    Settings::global().enforce_caps && !capabilities::has(capability)
}

/// What WQ or QP flags ask for, if the device can do it.
pub fn features(flags: u32, caps: &DeviceCaps) -> Result<RqFeatures, Errno> {
    let supported = [
        (IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING, caps.cvlan_stripping),
        (IB_UVERBS_WQ_FLAGS_SCATTER_FCS, caps.scatter_fcs),
        (IB_UVERBS_WQ_FLAGS_DELAY_DROP, caps.delay_drop),
        (IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING, caps.end_padding),
    ];
    let able = supported
        .iter()
        .filter(|(_, able)| *able)
        .fold(0, |sum, (flag, _)| sum | flag);
    if flags & !able != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(RqFeatures {
        strip_cvlan: flags & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0,
        scatter_fcs: flags & IB_UVERBS_WQ_FLAGS_SCATTER_FCS != 0,
        delay_drop: flags & IB_UVERBS_WQ_FLAGS_DELAY_DROP != 0,
    })
}

/// EX_CREATE_WQ.
pub fn create(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_create_wq = request.core()?;
    let driver: mlx5_ib_create_wq = request.driver(offset_of!(
        mlx5_ib_create_wq,
        single_stride_log_num_of_bytes
    ))?;
    let settings = &session.device().settings().caps;
    let features = check(&command, &driver, settings)?;
    let layout = RqLayout {
        ring: driver.buf_addr,
        record: driver.db_addr,
        count: driver.rq_wqe_count,
        shift: driver.rq_wqe_shift,
        signature: driver.flags & SIGNATURE != 0,
    };
    let mut state = session.lock();
    let context = session.context();
    let cq = state.rings.cqs.find(command.cq_handle, context)?;
    let pd = state.pds.find(command.pd_handle, context)?;
    let events = AsyncSource::new(&state.context(context)?.events, command.user_handle);
    let mut rq = Rq::new(&layout, cq, pd, driver.user_index, RqOwner::Wq, events)?;
    rq.features = features;
    if features.delay_drop {
        state.rings.delay_drop.count_queue();
    }
    rq.serial = state.wqs_created;
    let wq_handle = state.rings.rqs.insert(context, rq)?;
    state.wqs_created = state.wqs_created.wrapping_add(1);
    state.use_pd(command.pd_handle, context)?;
    state.use_cq(cq, 1);
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
    command: &ib_uverbs_ex_create_wq,
    driver: &mlx5_ib_create_wq,
    caps: &DeviceCaps,
) -> Result<RqFeatures, Errno> {
    if command.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if command.wq_type != IB_UVERBS_WQT_RQ {
        return Err(libc::EINVAL);
    }
    // `prepare_user_rq`: no striding RQ on this device, and nothing beside it is known.
    if driver.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if driver.rq_wqe_count == 0 || driver.rq_wqe_count > caps.max_recv_wr.next_power_of_two() {
        return Err(libc::EINVAL);
    }
    if command.max_wr > caps.max_recv_wr {
        return Err(libc::EINVAL);
    }
    if command.create_flags & IB_UVERBS_WQ_FLAGS_DELAY_DROP != 0 && lacks(capabilities::SYS_RAWIO) {
        return Err(libc::EPERM);
    }
    features(command.create_flags, caps)
}

/// The place of a WQ, which a QP's receive queue is not.
fn find(state: &State, handle: u32, context: u32) -> Result<Index, Errno> {
    let index = state.rings.rqs.find(handle, context)?;
    let rq = state.rings.rqs.at(index).ok_or(libc::EINVAL)?;
    if rq.owner == RqOwner::Wq {
        Ok(index)
    } else {
        Err(libc::EINVAL)
    }
}

/// EX_MODIFY_WQ.
pub fn modify(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_modify_wq = request.core()?;
    let mask = command.attr_mask;
    if mask == 0 || mask & !(ATTR_STATE | ATTR_CURRENT_STATE | ATTR_FLAGS) != 0 {
        return Err(libc::EINVAL);
    }
    let driver: mlx5_ib_modify_wq = request.driver(0)?;
    if driver.comp_mask != 0 || driver.reserved != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = session.lock();
    let index = find(&state, command.wq_handle, session.context())?;
    let (rq, cq) = state.rings.receive_queue(index).ok_or(libc::EINVAL)?;
    let given = |number: u32| STATES.get(number as usize).copied().ok_or(libc::EINVAL);
    let current = if mask & ATTR_CURRENT_STATE != 0 {
        given(command.curr_wq_state)?
    } else {
        rq.state()
    };
    let next = if mask & ATTR_STATE != 0 {
        given(command.wq_state)?
    } else {
        current
    };
    // The firmware knows the state better than the program, and no way from error to ready.
    if current != rq.state() || current == RqState::Error && next == RqState::Ready {
        return Err(libc::EINVAL);
    }
    if mask & ATTR_FLAGS != 0 {
        modify_flags(rq, &command, &session.device().settings().caps)?;
    }
    if mask & ATTR_STATE != 0 && next != current {
        rq.set_state(next, cq);
    }
    Ok(())
}

fn modify_flags(
    rq: &mut Rq,
    command: &ib_uverbs_ex_modify_wq,
    caps: &DeviceCaps,
) -> Result<(), Errno> {
    if command.flags_mask & IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if command.flags_mask & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0 {
        if !caps.cvlan_stripping {
            return Err(libc::EOPNOTSUPP);
        }
        rq.features.strip_cvlan = command.flags & IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING != 0;
    }
    Ok(())
}

/// EX_DESTROY_WQ.
pub fn destroy(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_destroy_wq = request.core()?;
    if command.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = session.lock();
    let index = find(&state, command.wq_handle, session.context())?;
    if state.rings.rqs.at(index).is_some_and(|rq| rq.users > 0) {
        return Err(libc::EBUSY);
    }
    let events_reported = state.remove_rq(index);
    drop(state);
    request.reply(&ib_uverbs_ex_destroy_wq_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_destroy_wq_resp>(),
        events_reported,
        reserved: 0,
    })
}

/// EX_CREATE_RWQ_IND_TBL.
pub fn create_table(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let (command, rest) = request.core_and_rest::<ib_uverbs_ex_create_rwq_ind_table>()?;
    let log = command.log_ind_tbl_size;
    if command.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if log > IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE {
        return Err(libc::EINVAL);
    }
    let (handles, tail) = rest
        .split_at_checked(size_of::<u32>() << log)
        .ok_or(libc::ENOSPC)?;
    if tail.iter().any(|&byte| byte != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = session.lock();
    let context = session.context();
    let rqs = handles
        .chunks_exact(size_of::<u32>())
        .map(|bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
        .map(|handle| find(&state, handle, context))
        .collect::<Result<Box<[Index]>, Errno>>()?;
    if log > session.device().settings().caps.max_ind_table_log {
        return Err(libc::EINVAL);
    }
    let handle = state.tables.insert(
        context,
        Table {
            rqs: rqs.clone(),
            users: 0,
        },
    )?;
    for rq in rqs {
        if let Some(rq) = state.rings.rqs.at_mut(rq) {
            rq.users += 1;
        }
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

/// EX_DESTROY_RWQ_IND_TBL.
pub fn destroy_table(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_destroy_rwq_ind_table = request.core()?;
    if command.comp_mask != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = session.lock();
    let index = state
        .tables
        .find(command.ind_tbl_handle, session.context())?;
    if state.tables.at(index).is_some_and(|table| table.users > 0) {
        return Err(libc::EBUSY);
    }
    state.remove_table(index);
    Ok(())
}
