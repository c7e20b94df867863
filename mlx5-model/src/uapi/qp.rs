//! Queue pairs: RSS QPs, and RAW_PACKET QPs with queues of their own.

use std::mem::{offset_of, size_of};

use wqcap_rss::{HashFields, RssKey};

use crate::abi::*;
use crate::device::event::AsyncSource;
use crate::device::memory::bytes_of;
use crate::device::nic::Session;
use crate::device::rq::{Rq, RqLayout, RqOwner, RqState};
use crate::device::sq::{Sq, SqState};
use crate::device::state::{Qp, QpBody, QpCaps, QpState, State};
use crate::objects::{ContextId, Index, number};
use crate::process::Errno;
use crate::process::capabilities;
use crate::steering::Tir;

use super::wq::{features, lacks};
use super::{Request, read_u64};

/// What an RSS QP can hash without looking into tunnels: addresses and ports.
pub const OUTER_HASH_FIELDS: u64 = 0xff;
const IPV4: u64 = (MLX5_RX_HASH_SRC_IPV4 | MLX5_RX_HASH_DST_IPV4) as u64;
const IPV6: u64 = (MLX5_RX_HASH_SRC_IPV6 | MLX5_RX_HASH_DST_IPV6) as u64;
const TCP: u64 = (MLX5_RX_HASH_SRC_PORT_TCP | MLX5_RX_HASH_DST_PORT_TCP) as u64;
const UDP: u64 = (MLX5_RX_HASH_SRC_PORT_UDP | MLX5_RX_HASH_DST_PORT_UDP) as u64;
const SPI: u64 = MLX5_RX_HASH_IPSEC_SPI as u64;
const INNER: u64 = MLX5_RX_HASH_INNER as u64;

/// `enum ib_qp_attr_mask`, as far as it concerns a RAW_PACKET QP; no uAPI header names it.
mod attr {
    pub const STATE: u32 = 1 << 0;
    pub const CURRENT_STATE: u32 = 1 << 1;
    pub const PORT: u32 = 1 << 5;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

/// WQ flags with the QP flags that mean the same.
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

/// The driver's own flags for a RAW_PACKET QP beside those of [`tir_flags`]. Scattering into CQEs is asked
/// for by libmlx5 unbidden, and concerns transports alone.
const RAW_VENDOR_FLAGS: u32 = MLX5_QP_FLAG_SIGNATURE
    | MLX5_QP_FLAG_SCATTER_CQE
    | MLX5_QP_FLAG_ALLOW_SCATTER_CQE
    | MLX5_QP_FLAG_BFREG_INDEX
    | MLX5_QP_FLAG_UAR_PAGE_INDEX;

/// CREATE_QP.
pub fn create(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
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
    let response = make(session, request, &extended)?;
    request.reply(&response)?;
    request.reply_driver(&mlx5_ib_create_qp_resp::default())
}

/// EX_CREATE_QP.
pub fn create_ex(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_create_qp = request.core()?;
    if command.comp_mask & !IB_UVERBS_CREATE_QP_SUP_COMP_MASK != 0 || command.reserved != 0 {
        return Err(libc::EINVAL);
    }
    let base = make(session, request, &command)?;
    request.reply(&ib_uverbs_ex_create_qp_resp {
        base,
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_create_qp_resp>(),
    })?;
    request.reply_driver(&mlx5_ib_create_qp_resp::default())
}

fn make(
    session: &Session,
    request: &Request<'_>,
    command: &ib_uverbs_ex_create_qp,
) -> Result<ib_uverbs_create_qp_resp, Errno> {
    let raw = u32::from(command.qp_type) == IB_UVERBS_QPT_RAW_PACKET;
    if raw && lacks(capabilities::NET_RAW) {
        return Err(libc::EPERM);
    }
    let rss = command.comp_mask & IB_UVERBS_CREATE_QP_MASK_IND_TABLE != 0;
    let (handle, qpn) = if rss {
        (make_rss(session, request, command)?, 0)
    } else if raw {
        let handle = make_raw(session, request, command)?;
        (handle, number(handle))
    } else {
        // Transports: the model carries frames only.
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

fn qp_caps(command: &ib_uverbs_ex_create_qp) -> QpCaps {
    QpCaps {
        max_send_wr: command.max_send_wr,
        max_recv_wr: command.max_recv_wr,
        max_send_sge: command.max_send_sge,
        max_recv_sge: command.max_recv_sge,
        max_inline_data: command.max_inline_data,
        signal_all: command.sq_sig_all != 0,
    }
}

fn make_rss(
    session: &Session,
    request: &Request<'_>,
    command: &ib_uverbs_ex_create_qp,
) -> Result<u32, Errno> {
    let driver: mlx5_ib_create_qp_rss = request.driver(size_of::<mlx5_ib_create_qp_rss>())?;
    let mut state = session.lock();
    let context = session.context();
    let table = state.tables.find(command.rwq_ind_tbl_handle, context)?;
    if command.max_recv_wr != 0 || command.max_recv_sge != 0 || command.is_srq != 0 {
        return Err(libc::EINVAL);
    }
    let pd = state.pds.find(command.pd_handle, context)?;
    if u32::from(command.qp_type) != IB_UVERBS_QPT_RAW_PACKET {
        return Err(libc::EOPNOTSUPP);
    }
    // Send WRs want a send CQ, and an RSS QP has none.
    if command.create_flags != 0 || command.max_send_wr != 0 || command.source_qpn != 0 {
        return Err(libc::EINVAL);
    }
    let rqs = state
        .tables
        .at(table)
        .map(|table| table.rqs.clone())
        .ok_or(libc::EINVAL)?;
    let tunnels = session.device().settings().caps.tunnel_offloads;
    let key = check_hash(&driver, rqs.len(), tunnels)?;
    let tir = Tir::new(
        state.toeplitz(&key),
        HashFields::from_bits(driver.rx_hash_fields_mask & !INNER),
        driver.rx_hash_fields_mask & INNER != 0,
        rqs,
    );
    let events = AsyncSource::new(&state.context(context)?.events, command.user_handle);
    let tir_handle = state.rings.tirs.insert(context, tir)?;
    let tir = state.rings.tirs.find(tir_handle, context)?;
    let qp = Qp {
        body: QpBody::Rss { tir, table },
        pd,
        state: QpState::Reset,
        port: 0,
        caps: qp_caps(command),
        events,
        flows: 0,
    };
    let handle = state.qps.insert(context, qp).inspect_err(|_| {
        state.rings.tirs.remove(tir);
    })?;
    state.use_pd(command.pd_handle, context)?;
    if let Some(table) = state.tables.at_mut(table) {
        table.users += 1;
    }
    Ok(handle)
}

/// The driver's own flags for what receives (`process_vendor_flags`): one that the device cannot do is
/// as wrong as one that does not exist.
fn tir_flags(tunnels: bool) -> u32 {
    let offloads = if tunnels {
        MLX5_QP_FLAG_TUNNEL_OFFLOADS
    } else {
        0
    };
    offloads | MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC | MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC
}

/// `create_rss_raw_qp_tir` of the driver.
fn check_hash(
    driver: &mlx5_ib_create_qp_rss,
    entries: usize,
    tunnels: bool,
) -> Result<RssKey, Errno> {
    let fields = driver.rx_hash_fields_mask;
    if driver.flags & !tir_flags(tunnels) != 0 {
        return Err(libc::EINVAL);
    }
    if driver.comp_mask != 0 || driver.reserved != [0; 6] {
        return Err(libc::EOPNOTSUPP);
    }
    let tunnelled = driver.flags & MLX5_QP_FLAG_TUNNEL_OFFLOADS != 0;
    if fields & INNER != 0 && !tunnelled {
        return Err(libc::EOPNOTSUPP);
    }
    if u32::from(driver.rx_hash_function) != MLX5_RX_HASH_FUNC_TOEPLITZ {
        return Err(libc::EOPNOTSUPP);
    }
    if usize::from(driver.rx_key_len) != RssKey::LEN {
        return Err(libc::EINVAL);
    }
    let transports = [TCP, UDP, SPI]
        .iter()
        .filter(|&&set| fields & set != 0)
        .count();
    let both_ips = fields & IPV4 != 0 && fields & IPV6 != 0;
    if both_ips || transports > 1 || fields & !INNER == 0 && entries > 1 {
        return Err(libc::EINVAL);
    }
    if fields & !(OUTER_HASH_FIELDS | INNER) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let key = driver
        .rx_hash_key
        .first_chunk::<{ RssKey::LEN }>()
        .ok_or(libc::EINVAL)?;
    Ok(RssKey::new(*key))
}

fn make_raw(
    session: &Session,
    request: &Request<'_>,
    command: &ib_uverbs_ex_create_qp,
) -> Result<u32, Errno> {
    let driver: mlx5_ib_create_qp = request.driver(offset_of!(mlx5_ib_create_qp, ece_options))?;
    let device = session.device().settings();
    if driver.flags & !(RAW_VENDOR_FLAGS | tir_flags(device.caps.tunnel_offloads)) != 0 {
        return Err(libc::EINVAL);
    }
    let known = FEATURE_FLAGS
        .iter()
        .fold(IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK, |sum, flag| {
            sum | flag.0
        });
    if command.create_flags & !known != 0 {
        return Err(libc::EINVAL);
    }
    let wq_flags = FEATURE_FLAGS
        .iter()
        .filter(|(qp, _)| command.create_flags & qp != 0)
        .fold(0, |sum, (_, wq)| sum | wq);
    let features = features(wq_flags, &device.caps)?;
    let mut state = session.lock();
    let context = session.context();
    let pd = state.pds.find(command.pd_handle, context)?;
    let send_cq = state.rings.cqs.find(command.send_cq_handle, context)?;
    let recv_cq = state.rings.cqs.find(command.recv_cq_handle, context)?;
    let srq = (command.is_srq != 0)
        .then(|| state.srqs.find(command.srq_handle, context))
        .transpose()?;
    let has_rq = srq.is_none() && driver.rq_wqe_count != 0;
    let has_sq = driver.sq_wqe_count != 0;
    if !has_rq && !has_sq || command.max_recv_wr > device.caps.max_recv_wr {
        return Err(libc::EINVAL);
    }
    let events = AsyncSource::new(&state.context(context)?.events, command.user_handle);
    let rq = has_rq
        .then(|| {
            let layout = RqLayout {
                ring: driver.buf_addr,
                record: driver.db_addr,
                count: driver.rq_wqe_count,
                shift: driver.rq_wqe_shift,
                signature: driver.flags & MLX5_QP_FLAG_SIGNATURE != 0,
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
            Ok::<_, Errno>(rq)
        })
        .transpose()?;
    let sq = has_sq
        .then(|| {
            let ring =
                read_u64(&bytes_of(&driver)[offset_of!(mlx5_ib_create_qp, __bindgen_anon_1)..]);
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
    let rq = rq
        .map(|rq| insert_rq(&mut state, context, rq))
        .transpose()?;
    let sq = match sq.map(|sq| insert_sq(&mut state, context, sq)).transpose() {
        Ok(sq) => sq,
        Err(errno) => {
            rq.map(|rq| state.rings.rqs.remove(rq));
            return Err(errno);
        }
    };
    let qp = Qp {
        body: QpBody::Raw {
            rq,
            sq,
            cqs: [recv_cq, send_cq],
            srq,
        },
        pd,
        state: QpState::Reset,
        port: 0,
        caps: qp_caps(command),
        events,
        flows: 0,
    };
    let handle = state.qps.insert(context, qp).inspect_err(|_| {
        rq.map(|rq| state.rings.rqs.remove(rq));
        sq.map(|sq| state.rings.sqs.remove(sq));
    })?;
    state.use_pd(command.pd_handle, context)?;
    state.use_cq(recv_cq, 1);
    state.use_cq(send_cq, 1);
    if let Some(srq) = srq.and_then(|srq| state.srqs.at_mut(srq)) {
        srq.users += 1;
    }
    if let Some(sq) = sq.and_then(|sq| state.rings.sqs.at_mut(sq)) {
        sq.qpn = number(handle);
    }
    Ok(handle)
}

fn insert_rq(state: &mut State, context: ContextId, rq: Rq) -> Result<Index, Errno> {
    let handle = state.rings.rqs.insert(context, rq)?;
    state.rings.rqs.find(handle, context)
}

fn insert_sq(state: &mut State, context: ContextId, sq: Sq) -> Result<Index, Errno> {
    let handle = state.rings.sqs.insert(context, sq)?;
    state.rings.sqs.find(handle, context)
}

/// MODIFY_QP.
pub fn modify(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_modify_qp = request.core()?;
    if command.attr_mask & attr::RATE_LIMIT != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    change(session, &command)
}

/// EX_MODIFY_QP, which can also set a rate limit. The model sends as fast as it can.
pub fn modify_ex(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_modify_qp = request.core()?;
    if command.base.attr_mask & attr::RATE_LIMIT != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    change(session, &command.base)?;
    request.reply(&ib_uverbs_ex_modify_qp_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_modify_qp_resp>(),
    })
}

fn state_of(number: u8) -> Result<QpState, Errno> {
    use QpState::*;
    [
        Reset,
        Init,
        ReadyToReceive,
        ReadyToSend,
        SendQueueDrained,
        SendQueueError,
        Error,
    ]
    .get(usize::from(number))
    .copied()
    .ok_or(libc::EINVAL)
}

/// `ib_modify_qp_is_ok` for a RAW_PACKET QP: whether the way exists, and whether what comes along is
/// what it takes.
fn is_allowed(from: QpState, to: QpState, mask: u32) -> bool {
    use QpState::*;
    let exists = match from {
        Reset => matches!(to, Reset | Init),
        Init => matches!(to, Reset | Error | Init | ReadyToReceive),
        ReadyToReceive => matches!(to, Reset | Error | ReadyToSend),
        ReadyToSend => matches!(to, Reset | Error | ReadyToSend | SendQueueDrained),
        SendQueueDrained => matches!(to, Reset | Error | ReadyToSend | SendQueueDrained),
        SendQueueError => matches!(to, Reset | Error | ReadyToSend),
        Error => matches!(to, Reset | Error),
    };
    let required = if (from, to) == (Reset, Init) {
        attr::PORT
    } else {
        0
    };
    // Only on these ways may the current state be told, and RAW_PACKET QPs take it on none.
    exists && mask & required == required && mask & !(required | attr::STATE) == 0
}

fn change(session: &Session, command: &ib_uverbs_modify_qp) -> Result<(), Errno> {
    let mask = command.attr_mask;
    let mut state = session.lock();
    let index = state.qps.find(command.qp_handle, session.context())?;
    if mask & attr::PORT != 0 {
        state.port_index(u32::from(command.port_num))?;
    }
    let (from, to, rq, sq) = {
        let qp = state.qps.at(index).ok_or(libc::EINVAL)?;
        // An RSS QP has no state to change.
        let QpBody::Raw { rq, sq, .. } = qp.body else {
            return Err(libc::EOPNOTSUPP);
        };
        let from = current_state(&state, qp);
        let told = if mask & attr::CURRENT_STATE != 0 {
            state_of(command.cur_qp_state)?
        } else {
            from
        };
        let to = if mask & attr::STATE != 0 {
            state_of(command.qp_state)?
        } else {
            told
        };
        if told != from || !is_allowed(from, to, mask & !attr::CURRENT_STATE) {
            return Err(libc::EINVAL);
        }
        (from, to, rq, sq)
    };
    if let Some(qp) = state.qps.at_mut(index) {
        qp.state = to;
        if mask & attr::PORT != 0 {
            qp.port = command.port_num;
        }
        if to == QpState::Reset {
            qp.port = 0;
        }
    }
    if let Some((rq, cq)) = rq.and_then(|rq| state.rings.receive_queue(rq)) {
        // The receive queue is ready from INIT on; libmlx5 withholds its doorbell until RTR.
        let next = match to {
            QpState::Reset => RqState::Reset,
            QpState::Error => RqState::Error,
            _ => RqState::Ready,
        };
        if next != rq.state() {
            rq.set_state(next, cq);
        }
    }
    if let Some((sq, cq)) = sq.and_then(|sq| state.rings.send_queue(sq)) {
        let next = match to {
            QpState::ReadyToSend => SqState::Ready,
            QpState::Error => SqState::Error,
            _ => SqState::Idle,
        };
        if mask & attr::PORT != 0 {
            sq.port = command.port_num;
        }
        sq.set_state(next, to == QpState::Reset || from == QpState::Reset, cq);
    }
    Ok(())
}

/// What the two queues' states together are (`sqrq_state_to_qp_state` of the driver).
fn current_state(state: &State, qp: &Qp) -> QpState {
    let QpBody::Raw { rq, sq, .. } = qp.body else {
        return qp.state;
    };
    let rq_failed = rq
        .and_then(|rq| state.rings.rqs.at(rq))
        .is_some_and(|rq| rq.state() == RqState::Error);
    let sq_failed = sq
        .and_then(|sq| state.rings.sqs.at(sq))
        .is_some_and(|sq| sq.state() == SqState::Error);
    match (rq_failed, sq_failed) {
        (true, _) => QpState::Error,
        (false, true) if rq.is_none() => QpState::Error,
        (false, true) => QpState::SendQueueError,
        (false, false) => qp.state,
    }
}

/// QUERY_QP.
pub fn query(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_query_qp = request.core()?;
    let state = session.lock();
    let qp = state.qps.get(command.qp_handle, session.context())?;
    if matches!(qp.body, QpBody::Rss { .. }) {
        return Err(libc::EOPNOTSUPP);
    }
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

/// DESTROY_QP.
pub fn destroy(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_qp = request.core()?;
    let mut state = session.lock();
    let index = state.qps.find(command.qp_handle, session.context())?;
    if state.qps.at(index).is_some_and(|qp| qp.flows > 0) {
        return Err(libc::EBUSY);
    }
    let events_reported = state.remove_qp(index);
    drop(state);
    request.reply(&ib_uverbs_destroy_qp_resp { events_reported })
}

/// ATTACH_MCAST: for UD QPs only, of which there are none.
pub fn attach_mcast(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_attach_mcast = request.core()?;
    session
        .lock()
        .qps
        .find(command.qp_handle, session.context())?;
    Err(libc::EINVAL)
}

/// DETACH_MCAST: as [`attach_mcast`].
pub fn detach_mcast(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    attach_mcast(session, request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rss(fields: u64) -> mlx5_ib_create_qp_rss {
        mlx5_ib_create_qp_rss {
            rx_hash_fields_mask: fields,
            rx_hash_function: MLX5_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_key_len: 40,
            reserved: [0; 6],
            rx_hash_key: [1; 128],
            comp_mask: 0,
            flags: 0,
        }
    }

    #[test]
    fn hashes_are_refused_as_the_driver_does() {
        let check = |driver, entries| check_hash(&driver, entries, true).map(drop);
        assert_eq!(check(rss(IPV4 | UDP), 8), Ok(()));
        assert_eq!(check(rss(0), 1), Ok(()));
        assert_eq!(check(rss(0), 2), Err(libc::EINVAL));
        for both in [IPV4 | IPV6, TCP | UDP, IPV4 | TCP | SPI, UDP | SPI] {
            assert_eq!(check(rss(both), 8), Err(libc::EINVAL));
        }
        assert_eq!(check(rss(INNER | IPV4), 8), Err(libc::EOPNOTSUPP));
        let tunnel = MLX5_QP_FLAG_TUNNEL_OFFLOADS;
        let inner = mlx5_ib_create_qp_rss {
            flags: tunnel,
            ..rss(INNER | IPV4)
        };
        assert_eq!(check(inner, 8), Ok(()));
        assert_eq!(check_hash(&inner, 8, false).map(drop), Err(libc::EINVAL));
        let credits = mlx5_ib_create_qp_rss {
            flags: MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE,
            ..rss(IPV4)
        };
        assert_eq!(check(credits, 8), Err(libc::EINVAL));
        let short = mlx5_ib_create_qp_rss {
            rx_key_len: 32,
            ..rss(IPV4)
        };
        assert_eq!(check(short, 8), Err(libc::EINVAL));
        let other = mlx5_ib_create_qp_rss {
            rx_hash_function: 2,
            ..rss(IPV4)
        };
        assert_eq!(check(other, 8), Err(libc::EOPNOTSUPP));
        let masked = mlx5_ib_create_qp_rss {
            comp_mask: 1,
            ..rss(IPV4)
        };
        assert_eq!(check(masked, 8), Err(libc::EOPNOTSUPP));
    }

    #[test]
    fn a_raw_qp_goes_the_ways_the_kernel_knows() {
        use QpState::*;
        assert!(is_allowed(Reset, Init, attr::STATE | attr::PORT));
        assert!(!is_allowed(Reset, Init, attr::STATE), "without a port");
        assert!(!is_allowed(Reset, ReadyToReceive, attr::STATE));
        assert!(!is_allowed(Reset, Error, attr::STATE));
        assert!(is_allowed(Init, ReadyToReceive, attr::STATE));
        assert!(!is_allowed(Init, ReadyToReceive, attr::STATE | attr::PORT));
        assert!(is_allowed(ReadyToReceive, ReadyToSend, attr::STATE));
        assert!(is_allowed(Error, Reset, attr::STATE));
        assert!(!is_allowed(Error, ReadyToSend, attr::STATE));
    }
}
