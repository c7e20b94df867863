//! Queries of the attributes of devices and ports.

use std::cmp::min;

use crate::abi::*;
use crate::handles::LIMIT;
use crate::process::Errno;
use crate::settings::NicCaps;

use super::cq::MAX_PERIOD;
use super::rss_qp::OUTER_HASH_FIELDS;
use super::wq::{STRIDE_BYTES_LOG, strides_log};
use super::{UverbsFile, UverbsRequest};

/// Bit of `IBV_QPT_RAW_PACKET` in a device attribute that is a mask of QP types.
const RAW_PACKET: u32 = 1 << IB_UVERBS_QPT_RAW_PACKET;
/// Vendor's part number of a ConnectX-5.
const PART: u32 = 4119;
const FIRMWARE: u64 = 16 << 32 | 35 << 16 | 4030;
/// Mellanox's OUI, which the driver reports as the device's vendor.
const VENDOR: u32 = 0x02c9;

fn device_attributes(file: &UverbsFile) -> ib_uverbs_query_device_resp {
    let settings = file.settings();
    let guid = file.node_guid().to_be();
    ib_uverbs_query_device_resp {
        fw_ver: FIRMWARE,
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: u64::MAX,
        page_size_cap: 0xffff_ffff_ffff_f000,
        vendor_id: VENDOR,
        vendor_part_id: PART,
        max_qp: LIMIT as u32,
        max_qp_wr: settings.caps.max_qp_wr,
        device_cap_flags: capability_flags(&settings.caps) as u32,
        max_sge: 30,
        max_sge_rd: 30,
        max_cq: LIMIT as u32,
        max_cqe: settings.caps.max_cqe,
        max_mr: LIMIT as u32,
        max_pd: LIMIT as u32,
        max_qp_rd_atom: 16,
        max_res_rd_atom: 1 << 20,
        max_qp_init_rd_atom: 16,
        atomic_cap: 1,
        max_mw: LIMIT as u32,
        max_raw_ethy_qp: LIMIT as u32,
        max_mcast_grp: 2_097_152,
        max_mcast_qp_attach: 240,
        max_total_mcast_qp_attach: 503_316_480,
        max_ah: LIMIT as u32,
        max_srq: min(settings.caps.max_srq, LIMIT as u32),
        max_srq_wr: settings.caps.max_srq_wr,
        max_srq_sge: settings.caps.max_srq_sge,
        max_pkeys: 128,
        local_ca_ack_delay: 16,
        phys_port_cnt: settings.ports.len() as u8,
        ..Default::default()
    }
}

fn capability_flags(caps: &NicCaps) -> u64 {
    let flag = |on: bool, flag: u64| if on { flag } else { 0 };
    IB_UVERBS_DEVICE_CHANGE_PHY_PORT
        | IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT
        | IB_UVERBS_DEVICE_SYS_IMAGE_GUID
        | IB_UVERBS_DEVICE_UD_IP_CSUM
        | IB_UVERBS_DEVICE_RAW_IP_CSUM
        | IB_UVERBS_DEVICE_MEM_WINDOW
        | IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING
        | flag(caps.scatter_fcs, IB_UVERBS_DEVICE_RAW_SCATTER_FCS)
        | flag(caps.end_padding, IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING)
}

pub fn device(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    request.reply(&device_attributes(file))
}

pub fn device_ex(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_query_device = request.core()?;
    if command.comp_mask != 0 || command.reserved != 0 {
        return Err(libc::EINVAL);
    }
    let caps = file.caps();
    let flag = |on: bool, flag: u32| if on { flag } else { 0 };
    request.reply(&ib_uverbs_ex_query_device_resp {
        base: device_attributes(file),
        response_length: request.room::<ib_uverbs_ex_query_device_resp>(),
        timestamp_mask: caps.timestamp_mask,
        hca_core_clock: if caps.timestamp_mask == 0 {
            0
        } else {
            caps.clock_khz
        },
        device_cap_flags_ex: capability_flags(caps),
        rss_caps: match caps.rwq {
            true => ib_uverbs_rss_caps {
                supported_qpts: RAW_PACKET,
                max_rwq_indirection_tables: LIMIT as u32,
                max_rwq_indirection_table_size: 1 << caps.max_ind_table_log,
                reserved: 0,
            },
            false => ib_uverbs_rss_caps::default(),
        },
        max_wq_type_rq: flag(caps.rwq, min(caps.max_wq, LIMIT as u32)),
        raw_packet_caps: IB_UVERBS_RAW_PACKET_CAP_IP_CSUM
            | flag(
                caps.cvlan_stripping,
                IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING,
            )
            | flag(caps.scatter_fcs, IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS)
            | flag(caps.delay_drop, IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP),
        cq_moderation_caps: match caps.cq_moderation {
            true => ib_uverbs_cq_moderation_caps {
                max_cq_moderation_count: u16::MAX,
                max_cq_moderation_period: MAX_PERIOD,
                reserved: 0,
            },
            false => ib_uverbs_cq_moderation_caps::default(),
        },
        ..Default::default()
    })?;
    let tunnels = MLX5_IB_TUNNELED_OFFLOADS_VXLAN | MLX5_IB_TUNNELED_OFFLOADS_GRE;
    let hashed = OUTER_HASH_FIELDS
        | if caps.tunnel_offloads {
            u64::from(MLX5_RX_HASH_INNER)
        } else {
            0
        };
    request.reply_driver(&mlx5_ib_query_device_resp {
        response_length: request.driver_room::<mlx5_ib_query_device_resp>(),
        rss_caps: match caps.rwq {
            true => mlx5_ib_rss_caps {
                rx_hash_fields_mask: hashed,
                rx_hash_function: MLX5_RX_HASH_FUNC_TOEPLITZ as u8,
                reserved: [0; 7],
            },
            false => mlx5_ib_rss_caps::default(),
        },
        cqe_comp_caps: if caps.cqe_compression {
            mlx5_ib_cqe_comp_caps {
                max_num: caps.cqe_compression_max,
                supported_format: MLX5_IB_CQE_RES_FORMAT_HASH
                    | MLX5_IB_CQE_RES_FORMAT_CSUM
                    | flag(
                        caps.mini_cqe_stride_index,
                        MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX,
                    ),
            }
        } else {
            mlx5_ib_cqe_comp_caps::default()
        },
        // As `mlx5_ib_query_device` for `multi_pkt_send_wqe`.
        mlx5_ib_support_multi_pkt_send_wqes: flag(caps.multi_packet_sends, MLX5_IB_ALLOW_MPW),
        striding_rq_caps: if caps.striding_rq && caps.rwq {
            mlx5_ib_striding_rq_caps {
                min_single_stride_log_num_of_bytes: *STRIDE_BYTES_LOG.start(),
                max_single_stride_log_num_of_bytes: *STRIDE_BYTES_LOG.end(),
                min_single_wqe_log_num_of_strides: *strides_log(caps).start(),
                max_single_wqe_log_num_of_strides: *strides_log(caps).end(),
                supported_qpts: RAW_PACKET,
                reserved: 0,
            }
        } else {
            mlx5_ib_striding_rq_caps::default()
        },
        tunnel_offloads_caps: flag(caps.tunnel_offloads, tunnels),
        ..Default::default()
    })
}

pub fn port(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_query_port = request.core()?;
    let state = file.lock();
    let port = state
        .ports
        .get(state.port_index(u32::from(command.port_num))?)
        .ok_or(libc::EINVAL)?;
    let (state, physical) = if port.is_up() { (4, 5) } else { (1, 3) };
    let (_, width, speed, _) = port.settings().rate();
    // IB_PORT_CM_SUP and IB_PORT_IP_BASED_GIDS, only if there are GIDs (mlx5_query_port_roce).
    let gid_tbl_len = file.settings().gids() as u32;
    let port_cap_flags = if gid_tbl_len > 0 { 0x0401_0000 } else { 0 };
    request.reply(&ib_uverbs_query_port_resp {
        port_cap_flags,
        max_msg_sz: 1 << 30,
        gid_tbl_len,
        pkey_tbl_len: 1,
        state,
        max_mtu: 5,
        active_mtu: verbs_mtu(port.settings().mtu),
        active_width: width,
        active_speed: speed,
        phys_state: physical,
        // IB_LINK_LAYER_ETHERNET.
        link_layer: 2,
        ..Default::default()
    })
}

/// Returns the `enum ib_mtu` for a netdev's MTU, less RoCE's headers.
fn verbs_mtu(mtu: u32) -> u8 {
    match mtu.saturating_sub(76) {
        4096.. => 5,
        2048.. => 4,
        1024.. => 3,
        512.. => 2,
        _ => 1,
    }
}
