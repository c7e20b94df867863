//! Commands for RSS QPs.

use wqcap_rss::{HashFields, RssKey};

use crate::abi::*;
use crate::device::object::{QpBody, QpCaps, QpObject, QpState};
use crate::handles::index_of;
use crate::process::{Errno, refuse_if};
use crate::steering::Tir;

use super::{UverbsFile, UverbsRequest};

/// Header fields of outer headers that an RSS QP can hash: addresses and ports.
pub const OUTER_HASH_FIELDS: u64 = 0xff;
const IPV4: u64 = (MLX5_RX_HASH_SRC_IPV4 | MLX5_RX_HASH_DST_IPV4) as u64;
const IPV6: u64 = (MLX5_RX_HASH_SRC_IPV6 | MLX5_RX_HASH_DST_IPV6) as u64;
const TCP: u64 = (MLX5_RX_HASH_SRC_PORT_TCP | MLX5_RX_HASH_DST_PORT_TCP) as u64;
const UDP: u64 = (MLX5_RX_HASH_SRC_PORT_UDP | MLX5_RX_HASH_DST_PORT_UDP) as u64;
const SPI: u64 = MLX5_RX_HASH_IPSEC_SPI as u64;
const INNER: u64 = MLX5_RX_HASH_INNER as u64;

/// Creates an RSS QP: a hash and an indirection table, without its own queues. Returns the QP's
/// handle.
pub fn create(
    file: &UverbsFile,
    request: &UverbsRequest<'_>,
    command: &ib_uverbs_ex_create_qp,
    caps: QpCaps,
) -> Result<u32, Errno> {
    let driver: mlx5_ib_create_qp_rss = request.driver(size_of::<mlx5_ib_create_qp_rss>())?;
    let mut state = file.lock();
    let context = file.context();
    let table = state.tables.find(command.rwq_ind_tbl_handle, context)?;
    if command.max_recv_wr != 0 || command.max_recv_sge != 0 || command.is_srq != 0 {
        return Err(libc::EINVAL);
    }
    let pd = state.pds.find(command.pd_handle, context)?;
    if u32::from(command.qp_type) != IB_UVERBS_QPT_RAW_PACKET {
        return Err(libc::EOPNOTSUPP);
    }
    // Send WRs need a send CQ, and an RSS QP has none.
    if command.create_flags != 0 || command.max_send_wr != 0 || command.source_qpn != 0 {
        return Err(libc::EINVAL);
    }
    let rqs = state
        .tables
        .at(table)
        .map(|table| table.rqs.clone())
        .ok_or(libc::EINVAL)?;
    let tunnels = file.caps().tunnel_offloads;
    let key = check_hash(&driver, rqs.len(), tunnels)?;
    let tir = Tir::new(
        state.toeplitz(&key),
        HashFields::from_bits_retain(driver.rx_hash_fields_mask & !INNER),
        driver.rx_hash_fields_mask & INNER != 0,
        rqs,
    );
    let events = state.event_source(context, command.user_handle)?;
    let tir = index_of(state.queues.tirs.insert(context, tir)?);
    let qp = QpObject {
        body: QpBody::Rss { tir, table },
        pd,
        state: QpState::Reset,
        port: 0,
        caps,
        events,
    };
    let handle = state.qps.insert(context, qp).inspect_err(|_| {
        state.queues.tirs.remove(tir);
    })?;
    state.pds.add_user(pd);
    state.tables.add_user(table);
    Ok(handle)
}

/// Returns the flags of the driver that CREATE_QP accepts for receiving QPs
/// (`process_vendor_flags`). A flag that the device lacks is refused like an unknown one.
pub fn tir_flags(tunnels: bool) -> u32 {
    let offloads = if tunnels {
        MLX5_QP_FLAG_TUNNEL_OFFLOADS
    } else {
        0
    };
    offloads | MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC | MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC
}

/// Checks the RSS hash of CREATE_QP as `create_rss_raw_qp_tir` of the driver does. Returns the RSS
/// key.
fn check_hash(
    driver: &mlx5_ib_create_qp_rss,
    entries: usize,
    tunnels: bool,
) -> Result<RssKey, Errno> {
    let fields = driver.rx_hash_fields_mask;
    refuse_if(driver.flags & !tir_flags(tunnels) != 0, libc::EINVAL)?;
    if driver.comp_mask != 0 || driver.reserved != [0; 6] {
        return Err(libc::EOPNOTSUPP);
    }
    let tunnelled = driver.flags & MLX5_QP_FLAG_TUNNEL_OFFLOADS != 0;
    refuse_if(fields & INNER != 0 && !tunnelled, libc::EOPNOTSUPP)?;
    if u32::from(driver.rx_hash_function) != MLX5_RX_HASH_FUNC_TOEPLITZ {
        return Err(libc::EOPNOTSUPP);
    }
    refuse_if(usize::from(driver.rx_key_len) != RssKey::LEN, libc::EINVAL)?;
    let transports = [TCP, UDP, SPI]
        .iter()
        .filter(|&&set| fields & set != 0)
        .count();
    let both_ips = fields & IPV4 != 0 && fields & IPV6 != 0;
    if both_ips || transports > 1 || fields & !INNER == 0 && entries > 1 {
        return Err(libc::EINVAL);
    }
    refuse_if(fields & !(OUTER_HASH_FIELDS | INNER) != 0, libc::EOPNOTSUPP)?;
    let key = driver
        .rx_hash_key
        .first_chunk::<{ RssKey::LEN }>()
        .ok_or(libc::EINVAL)?;
    Ok(RssKey::new(*key))
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
}
