//! spead2's `mcdump`, unmodified, on the model: it captures multicast datagrams through a striding
//! WQ, an indirection table of one entry and `ibv_start_poll`.
//!
//! `mcdump` is not packaged by Debian. The test runs the one of `PATH`, and is skipped without it.
//! It is built from <https://github.com/ska-sa/spead2> with meson (`-Dtools=enabled`).

use std::{fs, time::Duration};
use wqcap_testkit::{
    Dir, Program, binaries,
    compare::assert_frames,
    files,
    frames::{Ends, Frame},
    model::{granted, preloaded},
    process::clients::{Build, ours},
    skip,
};

/// Number of datagrams to the group.
const WANTED: usize = 5000;
/// Multicast group and port that `mcdump` captures.
const GROUP: [u8; 4] = [239, 2, 3, 4];
const PORT: u16 = 7148;

/// Returns datagram number `n` to the group `group`, of changing length.
fn datagram(n: usize, group: [u8; 4]) -> Vec<u8> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 1000 + (n % 100) as u16,
        dport: PORT,
    };
    let payload: Vec<u8> = (0..18 + n * 37 % 1400).map(|at| (at + n) as u8).collect();
    let frame = Frame::ethernet(&[], 0x0800)
        .ipv4(ends, 17, 0)
        .udp(ends)
        .bytes(&payload);
    let mut frame = frame.done();
    // The address of an IPv4 group (RFC 1112, 6.4).
    let mac = [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]];
    frame[..6].copy_from_slice(&mac);
    frame[30..34].copy_from_slice(&group);
    frame
}

#[test]
fn mcdump_captures_every_datagram_of_its_group() {
    let found = Program::new("sh").args(["-c", "command -v mcdump"]).run();
    if !found.status.success() {
        skip!("mcdump of spead2 is not in PATH");
    }
    let dir = Dir::new();
    let object = ours("mlx5-model/tests/clients/bound_id.c", Build::Library);
    let libraries = dir.folder("libraries");
    fs::copy(object, libraries.join("librdmacm.so.1")).expect("the library can be copied");
    let wanted: Vec<_> = (0..WANTED).map(|n| datagram(n, GROUP)).collect();
    let other = [239, 2, 3, 5];
    let sent: Vec<_> = wanted
        .iter()
        .enumerate()
        .flat_map(|(n, it)| match n % 3 {
            0 => vec![datagram(n, other), it.clone()],
            _ => vec![it.clone()],
        })
        .collect();
    let (wire, file) = (dir.join("sent.pcap"), dir.join("captured.pcap"));
    files::write(&wire, 1_600_000_000, &sent);
    let wire = format!("pcap:{}", wire.display());
    let endpoint = format!("{}.{}.{}.{}:{PORT}", GROUP[0], GROUP[1], GROUP[2], GROUP[3]);
    // It joins the group on the loopback interface, which the model does not use.
    // It asks for send WQEs of several packets before it uses a striding WQ.
    let sets = [granted(), &["debug=true", "multi_packet_sends=true"]].concat();
    let done = preloaded(binaries::model(), &[&wire], &sets)
        .args([format!("LD_LIBRARY_PATH={}", libraries.display())])
        .args(["mcdump", "--interface", "127.0.0.1", "--quiet"])
        .args(["--count", &WANTED.to_string()])
        .arg(&file)
        .arg(endpoint)
        .timeout(Duration::from_secs(60))
        .run()
        .expect(0);
    assert!(done.stdout.contains("5000 packets captured"), "{done}");
    assert!(done.stdout.contains("0 errors"), "{done}");
    // It received by a WQ, and not by its fallback, the receive queue of a QP.
    assert!(done.stderr.contains("CREATE_WQ"), "{done}");
    let captured: Vec<_> = files::read(&file).into_iter().map(|it| it.bytes).collect();
    assert_frames("mcdump", &captured, &wanted);
}
