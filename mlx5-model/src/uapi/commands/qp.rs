//! Commands for queue pairs.

use rustix::thread::CapabilitySet;

use crate::abi::*;
use crate::device::object::{QpBody, QpCaps};
use crate::handles::number;
use crate::process::{Errno, refuse_if};

use super::modify_qp::current_state;
use super::{UverbsFile, UverbsRequest};
use super::{raw_qp, rss_qp};

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_create_qp = request.core()?;
    let extended = ib_uverbs_ex_create_qp {
        user_handle: command.user_handle,
        pd_handle: command.pd_handle,
        send_cq_handle: command.send_cq_handle,
        recv_cq_handle: command.recv_cq_handle,
        srq_handle: command.srq_handle,
        max_send_wr: command.max_send_wr,
        max_recv_wr: command.max_recv_wr,
        max_send_sge: command.max_send_sge,
        max_recv_sge: command.max_recv_sge,
        max_inline_data: command.max_inline_data,
        sq_sig_all: command.sq_sig_all,
        qp_type: command.qp_type,
        is_srq: command.is_srq,
        ..Default::default()
    };
    let response = create_any(file, request, &extended)?;
    request.reply(&response)?;
    request.reply_driver(&mlx5_ib_create_qp_resp::default())
}

pub fn create_ex(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_create_qp = request.core()?;
    if command.comp_mask & !IB_UVERBS_CREATE_QP_SUP_COMP_MASK != 0 || command.reserved != 0 {
        return Err(libc::EINVAL);
    }
    let base = create_any(file, request, &command)?;
    request.reply(&ib_uverbs_ex_create_qp_resp {
        base,
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_create_qp_resp>(),
    })?;
    request.reply_driver(&mlx5_ib_create_qp_resp::default())
}

/// Creates a RAW_PACKET QP or an RSS QP and returns its response.
fn create_any(
    file: &UverbsFile,
    request: &UverbsRequest<'_>,
    command: &ib_uverbs_ex_create_qp,
) -> Result<ib_uverbs_create_qp_resp, Errno> {
    let is_raw = u32::from(command.qp_type) == IB_UVERBS_QPT_RAW_PACKET;
    if is_raw {
        file.require(CapabilitySet::NET_RAW)?;
    }
    let caps = QpCaps {
        max_send_wr: command.max_send_wr,
        max_recv_wr: command.max_recv_wr,
        max_send_sge: command.max_send_sge,
        max_recv_sge: command.max_recv_sge,
        max_inline_data: command.max_inline_data,
        signal_all: command.sq_sig_all != 0,
    };
    let (handle, qpn) = if command.comp_mask & IB_UVERBS_CREATE_QP_MASK_IND_TABLE != 0 {
        refuse_if(!file.caps().rwq, libc::EOPNOTSUPP)?;
        (rss_qp::create(file, request, command, caps)?, 0)
    } else if is_raw {
        let handle = raw_qp::create(file, request, command, caps)?;
        (handle, number(handle))
    } else {
        // The model has no transports.
        return Err(libc::EOPNOTSUPP);
    };
    Ok(ib_uverbs_create_qp_resp {
        qp_handle: handle,
        qpn,
        max_send_wr: command.max_send_wr,
        max_recv_wr: command.max_recv_wr,
        max_send_sge: command.max_send_sge,
        max_recv_sge: command.max_recv_sge,
        max_inline_data: command.max_inline_data,
        ..Default::default()
    })
}

pub fn query(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_query_qp = request.core()?;
    let state = file.lock();
    let qp = state.qps.get(command.qp_handle, file.context())?;
    refuse_if(matches!(qp.body, QpBody::Rss { .. }), libc::EOPNOTSUPP)?;
    let current = current_state(&state, qp) as u8;
    request.reply(&ib_uverbs_query_qp_resp {
        max_send_wr: qp.caps.max_send_wr,
        max_recv_wr: qp.caps.max_recv_wr,
        max_send_sge: qp.caps.max_send_sge,
        max_recv_sge: qp.caps.max_recv_sge,
        max_inline_data: qp.caps.max_inline_data,
        qp_state: current,
        cur_qp_state: current,
        port_num: qp.port,
        sq_sig_all: u8::from(qp.caps.signal_all),
        ..Default::default()
    })
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_qp = request.core()?;
    let mut state = file.lock();
    let index = state.qps.find_unused(command.qp_handle, file.context())?;
    let events_reported = state.remove_qp(index);
    drop(state);
    request.reply(&ib_uverbs_destroy_qp_resp { events_reported })
}

/// ATTACH_MCAST: always fails, because it is for UD QPs, which the model does not have.
pub fn attach_mcast(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_attach_mcast = request.core()?;
    file.lock().qps.find(command.qp_handle, file.context())?;
    Err(libc::EINVAL)
}

/// DETACH_MCAST: always fails, like [`attach_mcast`].
pub fn detach_mcast(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    attach_mcast(file, request)
}
