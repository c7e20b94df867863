//! Fictitious device with every capability: a configuration that cannot run on it cannot run on any
//! device.

use crate::{
    config::{Backend, Config},
    device::{
        DeviceCaps, DeviceFacts, PortFacts, kernel::KernelFacts, port_topology::PortTopology,
    },
    verbs::{MiniFormat, RingAccess, StridingCaps, TunnelOffloads},
};

/// Returns the facts of a fictitious device with every capability, under the name and with the port
/// that `config` gives: an ordinary interface if the backend is one for interfaces, otherwise an
/// RDMA device.
pub(super) fn capable_of_all(config: &Config) -> DeviceFacts {
    let port = PortFacts {
        number: config.device.port,
        state: "ACTIVE".into(),
        ethernet: true,
        rate_gbps: 0.0,
        netdev: config.device.netdev.clone(),
        mtu: None,
        roce: None,
        place: PortTopology::default(),
    };
    let is_interface = matches!(config.device.backend, Backend::AfPacket | Backend::AfXdp);
    let interface = config.device.netdev.clone().filter(|_| is_interface);
    let kernel = interface.as_ref().map(|_| KernelFacts {
        driver: None,
        mac: None,
        hardware_type: libc::ARPHRD_ETHER,
        rx_queues: config.capture.queues.map_or(1, u32::from),
        lower: Vec::new(),
    });
    let name = config.device.name.clone().or(interface);
    DeviceFacts {
        name: name.unwrap_or_default(),
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
        raw_qp_only: false,
        kernel,
    }
}

/// Returns capabilities and limits as large as those of any RDMA device.
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
