//! Commands for RAW_PACKET QPs.

use std::mem::offset_of;

use crate::abi::*;
use crate::device::object::{QpBody, QpCaps, QpObject, QpState};
use crate::device::rq::{Rq, RqOwner};
use crate::device::scatter::RqLayout;
use crate::device::sq::Sq;
use crate::device::state::BFREGS_OF_UAR;
use crate::handles::{index_of, number};
use crate::process::{Errno, refuse_if};

use super::rss_qp::tir_flags;
use super::wq::features;
use super::{UverbsFile, UverbsRequest};

/// Pairs of a QP flag and the WQ flag with the same meaning.
const FEATURE_FLAGS: [(u32, u32); 3] = [
    (
        IB_UVERBS_QP_CREATE_CVLAN_STRIPPING,
        IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING,
    ),
    (
        IB_UVERBS_QP_CREATE_SCATTER_FCS,
        IB_UVERBS_WQ_FLAGS_SCATTER_FCS,
    ),
    (
        IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING,
        IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING,
    ),
];

/// Flags of the driver that CREATE_QP accepts for a RAW_PACKET QP in addition to those of
/// [`tir_flags`]. libmlx5 requests scattering into CQEs by default; the flags affect transports
/// only.
const RAW_VENDOR_FLAGS: u32 = MLX5_QP_FLAG_SIGNATURE
    | MLX5_QP_FLAG_SCATTER_CQE
    | MLX5_QP_FLAG_ALLOW_SCATTER_CQE
    | MLX5_QP_FLAG_BFREG_INDEX
    | MLX5_QP_FLAG_UAR_PAGE_INDEX;

/// Creates a RAW_PACKET QP with its own queues. Returns its handle.
pub fn create(
    file: &UverbsFile,
    request: &UverbsRequest<'_>,
    command: &ib_uverbs_ex_create_qp,
    caps: QpCaps,
) -> Result<u32, Errno> {
    let driver: mlx5_ib_create_qp = request.driver(offset_of!(mlx5_ib_create_qp, ece_options))?;
    let device = file.settings();
    if driver.flags & !(RAW_VENDOR_FLAGS | tir_flags(device.caps.tunnel_offloads)) != 0 {
        return Err(libc::EINVAL);
    }
    let known = FEATURE_FLAGS
        .iter()
        .fold(IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK, |sum, flag| {
            sum | flag.0
        });
    refuse_if(command.create_flags & !known != 0, libc::EINVAL)?;
    let wq_flags = FEATURE_FLAGS
        .iter()
        .filter(|(qp, _)| command.create_flags & qp != 0)
        .fold(0, |sum, (_, wq)| sum | wq);
    let features = features(wq_flags, &device.caps)?;
    let mut state = file.lock();
    let context = file.context();
    // As `bfregn_to_uar_index`: the register must be in a page that the program has allocated.
    if driver.flags & MLX5_QP_FLAG_BFREG_INDEX != 0 {
        let open = state.contexts.get(&context).ok_or(libc::EINVAL)?;
        if !open.uars.contains(&(driver.bfreg_index / BFREGS_OF_UAR)) {
            return Err(libc::EINVAL);
        }
    }
    let pd = state.pds.find(command.pd_handle, context)?;
    let send_cq = state.queues.cqs.find(command.send_cq_handle, context)?;
    let recv_cq = state.queues.cqs.find(command.recv_cq_handle, context)?;
    let srq = (command.is_srq != 0)
        .then(|| state.srqs.find(command.srq_handle, context))
        .transpose()?;
    let has_rq = srq.is_none() && driver.rq_wqe_count != 0;
    let has_sq = driver.sq_wqe_count != 0;
    if !has_rq && !has_sq || command.max_recv_wr > device.caps.max_recv_wr {
        return Err(libc::EINVAL);
    }
    let events = state.event_source(context, command.user_handle)?;
    // Faults name the receive queues of QPs on a device without WQs.
    let serial = (has_rq && !device.caps.rwq).then(|| state.number_rq());
    let rq = has_rq
        .then(|| {
            let layout = RqLayout {
                ring: driver.buf_addr,
                record: driver.db_addr,
                count: driver.rq_wqe_count,
                shift: driver.rq_wqe_shift,
                signature: driver.flags & MLX5_QP_FLAG_SIGNATURE != 0,
                strides: None,
            };
            let mut rq = Rq::new(
                &layout,
                recv_cq,
                pd,
                driver.uidx,
                RqOwner::Qp,
                events.clone(),
            )?;
            rq.features = features;
            rq.drops_too_long = device.caps.drop_too_long;
            rq.serial = serial;
            Ok::<_, Errno>(rq)
        })
        .transpose()?;
    let sq = has_sq
        .then(|| {
            let address = offset_of!(mlx5_ib_create_qp, __bindgen_anon_1);
            let ring = read_prefix::<u64>(&bytes_of(&driver)[address..]);
            let mut sq = Sq::new(
                ring,
                driver.db_addr,
                driver.sq_wqe_count,
                send_cq,
                pd,
                driver.uidx,
                events.clone(),
            )?;
            sq.signal_all = command.sq_sig_all != 0;
            Ok::<_, Errno>(sq)
        })
        .transpose()?;
    let insert_rq = |rq| state.queues.rqs.insert(context, rq).map(index_of);
    let rq = rq.map(insert_rq).transpose()?;
    let insert_sq = |sq| state.queues.sqs.insert(context, sq).map(index_of);
    let sq = sq.map(insert_sq).transpose().inspect_err(|_| {
        rq.map(|rq| state.queues.rqs.remove(rq));
    })?;
    let qp = QpObject {
        body: QpBody::Raw {
            rq,
            sq,
            cqs: [recv_cq, send_cq],
            srq,
        },
        pd,
        state: QpState::Reset,
        port: 0,
        caps,
        events,
    };
    let handle = state.qps.insert(context, qp).inspect_err(|_| {
        rq.map(|rq| state.queues.rqs.remove(rq));
        sq.map(|sq| state.queues.sqs.remove(sq));
    })?;
    state.pds.add_user(pd);
    state.queues.cqs.add_user(recv_cq);
    state.queues.cqs.add_user(send_cq);
    state.srqs.add_user(srq);
    if let Some(sq) = sq.and_then(|sq| state.queues.sqs.at_mut(sq)) {
        sq.qpn = number(handle);
    }
    Ok(handle)
}
