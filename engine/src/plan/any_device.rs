//! Fictitious device with every capability: a configuration that it refuses is refused on every
//! device.

use crate::{
    config::Config,
    device::{DeviceCaps, DeviceFacts, PortFacts, port_topology::PortTopology},
    verbs::{MiniFormat, RingAccess, StridingCaps, TunnelOffloads},
};

/// Returns an RDMA device with every capability, under the name and with the port that `config`
/// gives.
pub(super) fn capable_of_all(config: &Config) -> DeviceFacts {
    let port = PortFacts {
        number: config.device.port,
        state: "ACTIVE".into(),
        ethernet: true,
        rate_gbps: 0.0,
        netdev: config.device.netdev.clone(),
        mtu: None,
        place: PortTopology::default(),
    };
    DeviceFacts {
        name: config.device.name.clone().unwrap_or_default(),
        node_guid: String::new(),
        firmware: String::new(),
        vendor_part: (0, 0),
        numa_node: None,
        caps: caps(),
        delay_drop: None,
        ports: vec![port],
        access: RingAccess::Mlx5,
        // This machine is not reached over its port.
        software: true,
        missing: Vec::new(),
        kernel: None,
    }
}

/// Returns the largest capabilities of any RDMA device.
pub(super) fn caps() -> DeviceCaps {
    DeviceCaps {
        max_wq: u32::MAX,
        max_wq_wr: None,
        max_qp_wr: u32::MAX,
        max_sge: u32::MAX,
        max_table: u32::MAX,
        max_cqe: u32::MAX,
        max_cq_period: u16::MAX,
        rss_toeplitz: true,
        rss_fields: u64::MAX,
        cvlan_stripping: true,
        scatter_fcs: true,
        delay_drop: true,
        end_padding: true,
        tunnels: TunnelOffloads {
            vxlan: true,
            gre: true,
        },
        // The widest ranges that fit mlx5's fields.
        striding: Some(StridingCaps {
            stride_log: 6..=13,
            strides_log: 3..=16,
        }),
        mini_cqes: vec![MiniFormat::Hash, MiniFormat::ChecksumStride],
        clock_khz: 1_000_000,
        timestamp_mask: u64::MAX,
        real_time: true,
    }
}
