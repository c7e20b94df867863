//! Checks of the configuration against the device: each key against the capability or limit that it
//! needs.

use crate::{
    Error,
    config::{self, Config},
    device::{DeviceCaps, DeviceFacts},
    verbs::{CVLAN_STRIPPING, DELAY_DROP, PCI_WRITE_END_PADDING, RingCaps, SCATTER_FCS},
};

/// Configured receive buffers of a ring with one WR for each frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveBuffers {
    /// Number of WRs of the receive ring.
    pub wrs: u32,
    /// Size of a receive buffer (scatter entry) in bytes.
    pub bytes: u32,
    /// Number of receive buffers (scatter entries) of a WR.
    pub max_sge: u32,
}

/// Returns the configured receive buffers, after a check of their size and of the number of scatter
/// entries. `QueueMemory::new` checks the number of WRs, whose limit depends on the kind of ring.
pub(super) fn buffers(config: &Config, device: &DeviceFacts) -> Result<ReceiveBuffers, Error> {
    let caps = &device.caps;
    let (ring, buffer, max_sge) = (
        config.capture.ring,
        config.capture.buffer,
        config.capture.max_sge,
    );
    if max_sge == 0 || max_sge > caps.max_sge {
        return Err(Error::config(
            "capture.max_sge",
            max_sge,
            format!(
                "the device supports 1 to {} scatter entries per WR",
                caps.max_sge
            ),
        ));
    }
    let bytes = buffer.to_u32();
    if bytes < 64 {
        return Err(Error::config(
            "capture.buffer",
            buffer,
            "the shortest frame has 64 bytes",
        ));
    }
    Ok(ReceiveBuffers {
        wrs: ring,
        bytes,
        max_sge,
    })
}

/// Returns the creation flags of the receive WQs (`ibv_wq_flags`), each checked against the
/// device's capability.
pub(super) fn wq_flags(config: &Config, device: &DeviceFacts) -> Result<u32, Error> {
    let (wq, caps) = (&config.wq, &device.caps);
    let flags = [
        (
            "wq.cvlan_stripping",
            wq.cvlan_stripping,
            caps.cvlan_stripping,
            "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING",
            CVLAN_STRIPPING,
        ),
        (
            "wq.scatter_fcs",
            wq.scatter_fcs,
            caps.scatter_fcs,
            "IBV_RAW_PACKET_CAP_SCATTER_FCS",
            SCATTER_FCS,
        ),
        (
            "wq.delay_drop",
            wq.delay_drop,
            caps.delay_drop,
            "IBV_RAW_PACKET_CAP_DELAY_DROP",
            DELAY_DROP,
        ),
        (
            "wq.pci_write_end_padding",
            wq.pci_write_end_padding,
            caps.end_padding,
            "IBV_DEVICE_PCI_WRITE_END_PADDING",
            PCI_WRITE_END_PADDING,
        ),
    ];
    let mut bits = 0;
    for (key, _, has, capability, bit) in flags.into_iter().filter(|f| f.1) {
        if !has {
            return Err(Error::config(
                key,
                true,
                format!(
                    "the device {} lacks {capability}; set {key} = false",
                    device.name
                ),
            ));
        }
        bits |= bit;
    }
    Ok(bits)
}

/// Checks that the device can hash the inner headers of tunnels if `rss.inner` is set.
pub(super) fn tunnels(config: &Config, device: &DeviceFacts) -> Result<(), Error> {
    let has = device.caps.tunnels;
    let missing = match (has.vxlan, has.gre) {
        _ if !config.rss.inner => return Ok(()),
        (true, true) => return Ok(()),
        (false, _) => "MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN",
        (_, false) => "MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE",
    };
    Err(Error::config(
        "rss.inner",
        true,
        format!(
            "the device {} lacks {missing}; set rss.inner = false",
            device.name
        ),
    ))
}

/// Checks that `rss.respread`, which rebalances the queues, is used with several queues and without
/// `rss.inner`.
pub(super) fn respreadable(config: &Config, queues: usize) -> Result<(), Error> {
    let (problem, other) = if !config.rss.respread {
        return Ok(());
    } else if config.rss.inner {
        (
            "with rss.inner the load of inner flows on each queue is unknown; set rss.respread = false or rss.inner = false",
            "rss.inner",
        )
    } else if queues < 2 {
        (
            "there is only one queue; set capture.queues = 2 or more",
            "capture.queues",
        )
    } else {
        return Ok(());
    };
    Err(Error::config("rss.respread", true, problem).involving(&[other]))
}

/// Checks that frames have their FCS, and every byte that it covers, when `capture.verify_fcs`
/// checks them.
pub(super) fn verifiable(config: &Config) -> Result<(), Error> {
    if !config.capture.verify_fcs {
        return Ok(());
    }
    if !config.wq.scatter_fcs {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the NIC does not deliver the FCS; set wq.scatter_fcs = true",
        )
        .involving(&["wq.scatter_fcs"]));
    }
    if config.wq.cvlan_stripping && config.output.vlan == config::Vlan::Lost {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the FCS belongs to the frame with its VLAN tag; set output.vlan = \"restore\", or wq.cvlan_stripping = false",
        )
        .involving(&["output.vlan", "wq.cvlan_stripping"]));
    }
    Ok(())
}

/// Returns `true` if VLAN tags that the NIC strips are put back into the frames.
///
/// Stripping may be turned on while the capture runs, so the room for the tags is reserved from the
/// start.
pub(super) fn restores_vlan(
    config: &Config,
    caps: &DeviceCaps,
    rings: RingCaps,
    notes: &mut Vec<String>,
) -> Result<bool, Error> {
    if config.output.vlan == config::Vlan::Lost {
        if config.wq.cvlan_stripping {
            notes.push(
                "output.vlan = \"lost\": the files do not contain the outer VLAN tags (TPID 0x8100)"
                    .into(),
            );
        }
        return Ok(false);
    }
    if config.wq.cvlan_stripping && !rings.stripped_tags {
        return Err(Error::config(
            "wq.cvlan_stripping",
            true,
            "the verbs do not report which frames lost a tag, so the tag cannot be restored; set \
             wq.cvlan_stripping = false, output.vlan = \"lost\", or capture.access = \"auto\" on a device with direct verbs",
        )
        .involving(&["output.vlan", "capture.access"]));
    }
    Ok(rings.stripped_tags && caps.cvlan_stripping)
}
