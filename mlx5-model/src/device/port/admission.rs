//! Frames that a port or the e-switch behind it keeps from the flow rules.
//!
//! Imports `burst`, the steering and the settings. Invariant: a port without such a setting has no admission, and
//! its frames pay nothing for it.

use crate::settings::{DeviceSettings, PortSettings};
use crate::steering::is_roce;
use crate::wire::{Delivery, Receiver, WireDirection, WireFrame};

use super::burst::{Burst, Classified};

/// Number of bytes by which a frame without FCS may exceed the MTU: an Ethernet header and one VLAN
/// tag. The driver sets the port's MTU with 4 bytes for the FCS (`mlx5e_set_mtu` and
/// `MLX5E_ETH_HARD_MTU` of drivers/net/ethernet/mellanox/mlx5/core/en.h).
const HEADER: usize = 18;
/// Group addresses that every interface joins: broadcast, and all nodes over IPv4 and IPv6.
const EVERYONE: [[u8; 6]; 3] = [
    [0xff; 6],
    [0x01, 0x00, 0x5e, 0, 0, 1],
    [0x33, 0x33, 0, 0, 0, 1],
];

/// Rules by which a port admits received frames to its flow rules: its MTU, its own addresses, and
/// RoCE.
pub struct PortAdmission {
    mac: [u8; 6],
    longest: usize,
    /// Set when only frames to the port's own MAC and to groups of all nodes arrive: the PF's
    /// e-switch keeps a virtual function that is not trusted out of promiscuous mode
    /// (`esw_update_vport_rx_mode` of mlx5/core/esw/legacy.c).
    own_only: bool,
    /// Set when RoCE frames to the port's MAC go to the NIC's transport.
    diverts_roce: bool,
}

/// Decision of a port's admission about a received frame.
#[derive(Debug, PartialEq, Eq)]
enum AdmissionVerdict {
    Admitted,
    /// Admission verdict: the received frame is longer than the port's MTU allows.
    TooLong,
    /// Admission verdict: the received frame is for another PCI function or host.
    Foreign,
    /// Admission verdict: the received RoCE frame is for the NIC's transport.
    Roce,
}

impl PortAdmission {
    /// Returns the admission of a device's port; `None` if the port admits every frame.
    pub fn new(device: &DeviceSettings, port: &PortSettings) -> Option<Self> {
        let topology = &device.topology;
        let admission = Self {
            mac: port.mac,
            longest: if port.enforces_mtu {
                port.mtu as usize + HEADER
            } else {
                usize::MAX
            },
            own_only: topology.is_vf && !topology.is_trusted,
            diverts_roce: device.caps.diverts_roce && device.gids() > 0,
        };
        let is_needed = port.enforces_mtu || admission.own_only || admission.diverts_roce;
        is_needed.then_some(admission)
    }

    fn verdict(&self, frame: &[u8]) -> AdmissionVerdict {
        let to = frame.first_chunk::<6>();
        if frame.len() > self.longest {
            AdmissionVerdict::TooLong
        } else if self.own_only && !to.is_some_and(|to| *to == self.mac || EVERYONE.contains(to)) {
            AdmissionVerdict::Foreign
        } else if self.diverts_roce && to == Some(&self.mac) && is_roce(frame) {
            AdmissionVerdict::Roce
        } else {
            AdmissionVerdict::Admitted
        }
    }
}

/// Receiver of a burst of frames that applies a port's admission rules before the flow rules.
pub struct Admitting<'a, 'p> {
    pub admission: &'a PortAdmission,
    pub burst: &'a mut Burst<'p>,
    /// Number of frames of the burst that were longer than the port's MTU allows.
    pub too_long: u64,
    /// Number of frames of the burst that are for another PCI function or host and do not count as
    /// received.
    pub foreign: u64,
}

impl Receiver for Admitting<'_, '_> {
    type Parsed = Classified;

    fn parse(&self, frame: &WireFrame<'_>) -> Classified {
        self.burst.parse(frame)
    }

    fn receive(&mut self, frame: WireFrame<'_>, parsed: &Classified) -> Delivery {
        let verdict = match frame.direction {
            WireDirection::Received => self.admission.verdict(frame.bytes),
            WireDirection::Transmitted => AdmissionVerdict::Admitted,
        };
        match verdict {
            AdmissionVerdict::Admitted => return self.burst.receive(frame, parsed),
            AdmissionVerdict::TooLong => self.too_long += 1,
            AdmissionVerdict::Foreign => self.foreign += 1,
            AdmissionVerdict::Roce => return self.burst.divert(&frame, parsed),
        }
        Delivery::Taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    /// Returns the admission of a port with the model's settings `set`.
    fn admission(set: &str) -> Option<PortAdmission> {
        let settings = Settings::parse("loopback", set).expect("valid settings");
        let device = &settings.devices[0];
        PortAdmission::new(device, &device.ports[0])
    }

    const OWN: [u8; 6] = [0x0c, 0x42, 0xa1, 0, 0, 1];

    fn frame(to: [u8; 6], rest: &[u8], len: usize) -> Vec<u8> {
        let mut frame = [&to[..], &[2; 6], rest].concat();
        frame.resize(len, 0);
        frame
    }

    #[test]
    fn a_port_admits_every_frame_by_default() {
        assert!(admission("").is_none());
        assert!(admission("vf=true\nvf_trusted=true").is_none());
        assert!(admission("diverts_roce=true\nenable_roce=false").is_none());
    }

    #[test]
    fn the_mtu_leaves_room_for_one_tag() {
        let port = admission("port_mtu=true\nmtu=1500").expect("an admission");
        for (len, verdict) in [
            (1518, AdmissionVerdict::Admitted),
            (1519, AdmissionVerdict::TooLong),
        ] {
            assert_eq!(port.verdict(&frame(OWN, &[8, 0], len)), verdict, "{len}");
        }
    }

    #[test]
    fn a_virtual_function_sees_its_own_frames_only() {
        let port = admission("vf=true").expect("an admission");
        for (to, verdict) in [
            (OWN, AdmissionVerdict::Admitted),
            ([0xff; 6], AdmissionVerdict::Admitted),
            ([2; 6], AdmissionVerdict::Foreign),
            ([1, 0, 0x5e, 0, 0, 9], AdmissionVerdict::Foreign),
        ] {
            assert_eq!(port.verdict(&frame(to, &[8, 0], 64)), verdict, "{to:?}");
        }
    }

    #[test]
    fn roce_to_the_port_goes_to_the_transport() {
        let port = admission("diverts_roce=true").expect("an admission");
        let mut v4 = vec![8, 0, 0x45];
        v4.resize(2 + 20, 0);
        v4[2 + 9] = 17;
        v4.extend([0, 1, 0x12, 0xb7]);
        let mut v6 = vec![0x81, 0, 0, 5, 0x86, 0xdd, 0x60];
        v6.resize(6 + 40, 0);
        v6[6 + 6] = 17;
        v6.extend([0, 1, 0x12, 0xb7]);
        for roce in [&v4[..], &v6, &[0x89, 0x15]] {
            let verdict = port.verdict(&frame(OWN, roce, 90));
            assert_eq!(verdict, AdmissionVerdict::Roce, "{roce:x?}");
            let verdict = port.verdict(&frame([2; 6], roce, 90));
            assert_eq!(verdict, AdmissionVerdict::Admitted, "foreign: {roce:x?}");
        }
        v4[2 + 7] = 1;
        let fragment = port.verdict(&frame(OWN, &v4, 90));
        assert_eq!(fragment, AdmissionVerdict::Admitted);
    }
}
