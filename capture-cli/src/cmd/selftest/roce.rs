//! RoCEv2 packets: whether they arrive like other UDP datagrams, or go to the device's RDMA part.

use super::{
    frames::{FOREIGN, MAC, ROCE, V4, datagram, roce as roce_packet},
    probe::{to_mac, udp},
    report::Outcome,
    rig::{Pass, Sender},
    run::{HasErrno, SelftestRun},
};
use std::{fs, time::Duration};
use wqcap_engine::{
    capture::Membership,
    device::DeviceFacts,
    verbs::{FlowSpec, Masked},
};

/// Subject of the selftest's findings on RoCE packets.
pub const SUBJECT: &str = "roce";
/// ID of the selftest's finding on whether RoCE is enabled on the device's port.
pub const ENABLED: &str = "device/enable_roce";
/// ID of the selftest's finding on whether RoCE packets to the MAC address of the port arrive.
pub const TO_PORT: &str = "roce: packets to the port's address arrive";
/// ID of the selftest's finding on whether RoCE packets to a foreign MAC address arrive.
pub const TO_FOREIGN: &str = "roce: packets to a foreign address arrive";
/// Time after which a test packet counts as lost.
const PATIENCE: Duration = Duration::from_millis(300);

/// Sends RoCEv2 packets to the MAC address of the test, to that of the port, and to a foreign one,
/// and records which arrive.
pub fn roce(run: &mut SelftestRun, sender: &Sender, device: &DeviceFacts) {
    let to_test = Pass::new("roce to the test's address", SUBJECT);
    let id = "roce: packets to the test's address arrive";
    arrives(run, sender, to_test, id, &roce_packet(MAC));
    let port = device.ports.iter().find(|it| it.number == run.port);
    let netdev = port.and_then(|it| it.netdev.as_deref());
    match netdev.and_then(address) {
        None => run.record_not_asked(SUBJECT, TO_PORT, "the port's address is unknown"),
        Some(address) => {
            let mut pass = Pass::new("roce to the port's address", SUBJECT);
            // Frames of this test only: the address also has the host's traffic.
            let addresses = FlowSpec::Ipv4 {
                src: Masked::exact(u32::from_be_bytes(V4.0)),
                dst: Masked::exact(u32::from_be_bytes(V4.1)),
                proto: Masked::default(),
            };
            pass.only = Some([to_mac(address), addresses, udp(ROCE)]);
            arrives(run, sender, pass, TO_PORT, &roce_packet(address));
        }
    }
    foreign(run, sender, netdev);
}

/// Sends a RoCEv2 packet and an ordinary datagram to a MAC address that only promiscuous mode
/// accepts.
fn foreign(run: &mut SelftestRun, sender: &Sender, netdev: Option<&str>) {
    let reason = match netdev {
        _ if !run.report.disruptive => Some("requires --disruptive, for promiscuous mode"),
        None => Some("the network interface of the port is unknown"),
        Some(_) => None,
    };
    let (Some(netdev), None) = (netdev, reason) else {
        let reason = reason.unwrap_or_default();
        return run.record_not_asked(SUBJECT, TO_FOREIGN, reason);
    };
    let _promiscuous = match Membership::join(netdev) {
        Ok(joined) => joined,
        Err(e) => return run.note(SUBJECT, TO_FOREIGN, 0, Outcome::refused(e.errno())),
    };
    let mut pass = Pass::new("roce to a foreign address", SUBJECT);
    pass.first = to_mac(FOREIGN);
    arrives(run, sender, pass, TO_FOREIGN, &roce_packet(FOREIGN));
    pass.id = "datagram to a foreign address";
    let id = "roce: other datagrams to a foreign address arrive";
    let other = datagram(FOREIGN, (49152, ROCE + 1), &[0x77; 40]);
    arrives(run, sender, pass, id, &other);
}

/// Sends a test packet, and records as the finding `id` whether it arrives.
fn arrives(run: &mut SelftestRun, sender: &Sender, pass: Pass<'_>, id: &str, packet: &[u8]) {
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[packet.to_vec()]) else {
        return;
    };
    let came = generator.send(1).ok();
    let came = came.and_then(|_| rig.receive_within(PATIENCE));
    let arrived = came.is_some_and(|(_, it)| it.bytes == packet);
    if !run.is_lost() {
        run.value(SUBJECT, id, arrived);
    }
}

/// Returns the MAC address of the network interface `netdev` from sysfs; `None`: it is unknown.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
fn address(netdev: &str) -> Option<[u8; 6]> {
    let text = fs::read_to_string(format!("/sys/class/net/{netdev}/address")).ok()?;
    let mut bytes = [0; 6];
    let mut digits = text.trim().split(':');
    for byte in &mut bytes {
        *byte = u8::from_str_radix(digits.next()?, 16).ok()?;
    }
    Some(bytes)
}
