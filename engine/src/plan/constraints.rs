//! What the device must be able to do for a configuration: each key held to the device's capability or limit.

use crate::{
    Error,
    config::{self, Config},
    device::{DeviceCaps, DeviceFacts},
    verbs::{CVLAN_STRIPPING, DELAY_DROP, PCI_WRITE_END_PADDING, SCATTER_FCS},
};

/// A WR for each frame, as configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub wrs: u32,
    /// Bytes of a scatter entry.
    pub bytes: u32,
    pub max_sge: u32,
}

/// WRs, bytes and scatter entries. How many WRs a WQ may have depends on what the ring becomes (`QueueMemory::new`).
pub(super) fn buffers(config: &Config, device: &DeviceFacts) -> Result<Buffers, Error> {
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
            format!("the device supports 1 to {}", caps.max_sge),
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
    Ok(Buffers {
        wrs: ring,
        bytes,
        max_sge,
    })
}

/// The WQs' creation flags, each held to what the device can do.
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
                format!("{} lacks {capability}; leave the flag off", device.name),
            ));
        }
        bits |= bit;
    }
    Ok(bits)
}

/// Hashing what is in tunnels takes a device that can.
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
        format!("{} lacks {missing}; leave it off", device.name),
    ))
}

/// Re-spreading needs something to spread over.
pub(super) fn respreadable(config: &Config, queues: usize) -> Result<(), Error> {
    let problem = if !config.rss.respread {
        return Ok(());
    } else if config.rss.inner {
        "with rss.inner the load of inner flows on each queue is unknown; turn one of the two off"
    } else if queues < 2 {
        "there is one queue; set capture.queues"
    } else {
        return Ok(());
    };
    Err(Error::config("rss.respread", true, problem))
}

/// An FCS can be checked where it is delivered, with the frame that it belongs to.
pub(super) fn verifiable(config: &Config) -> Result<(), Error> {
    if !config.capture.verify_fcs {
        return Ok(());
    }
    if !config.wq.scatter_fcs {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the NIC does not deliver the FCS; set wq.scatter_fcs = true",
        ));
    }
    if config.wq.cvlan_stripping && config.output.vlan == config::Vlan::Lost {
        return Err(Error::config(
            "capture.verify_fcs",
            true,
            "the FCS belongs to the frame with its VLAN tag; set output.vlan = \"restore\", or wq.cvlan_stripping = false",
        ));
    }
    Ok(())
}

/// Whether tags that the NIC takes off are put back. Stripping may be turned on later: the room for that must be there
/// from the start.
pub(super) fn restores_vlan(
    config: &Config,
    caps: &DeviceCaps,
    direct: bool,
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
    if config.wq.cvlan_stripping && !direct {
        return Err(Error::config(
            "wq.cvlan_stripping",
            true,
            "the verbs do not report which frames lost a tag, so it cannot be restored; turn the flag off, set \
             output.vlan = \"lost\", or capture.access = \"auto\" on a device with direct verbs",
        ));
    }
    Ok(direct && caps.cvlan_stripping)
}
