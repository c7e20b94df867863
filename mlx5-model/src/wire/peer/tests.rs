//! Tests with both ends in one process. The socket and the lock behave as in two processes.

use super::super::{Delivery, Wire, WireBackend, WireSpec};
use super::{Link, PeerWire};
use std::os::fd::OwnedFd;

fn open(path: &std::path::Path) -> Wire {
    Wire::open(
        &format!("peer:{}", path.display())
            .parse::<WireSpec>()
            .unwrap(),
    )
    .unwrap()
}

/// Returns a time at which the next retry is due, later with each call.
fn later() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1_000_000_000, Ordering::Relaxed)
}

fn drain(wire: &mut Wire) -> Vec<Vec<u8>> {
    let mut frames = vec![];
    for _ in 0..3 {
        while wire.each(later(), 7, |frame| {
            frames.push(frame.bytes.to_vec());
            Delivery::Taken
        }) > 0
        {}
    }
    frames
}

fn frame(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at + i) as u8).collect()
}

#[test]
fn frames_arrive_both_ways_in_order_and_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let (mut a, mut b) = (open(&path), open(&path));
    let sent: Vec<_> = (0..100)
        .map(|i| frame(i, 14 + i * 37))
        .chain([frame(5, 65_536)])
        .collect();
    for frame in &sent {
        a.send(frame).unwrap();
        b.send(frame).unwrap();
    }
    assert_eq!(b.each(later(), 9, |_| Delivery::Wait), 0);
    assert_eq!(drain(&mut b), sent);
    assert_eq!(drain(&mut a), sent);
    assert_eq!((a.drops().total(), b.drops().total()), (0, 0));
    assert!(a.send(&[0; 65_537]).is_err());
    assert!(a.wait_fd().is_some() && b.wait_fd().is_some());
}

#[test]
fn either_end_may_leave_and_return() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let (mut a, mut b) = (open(&path), open(&path));
    for round in 0..6 {
        a.send(&frame(round, 60)).unwrap();
        b.send(&frame(round, 61)).unwrap();
        assert_eq!(drain(&mut a), [frame(round, 61)], "round {round}");
        assert_eq!(drain(&mut b), [frame(round, 60)], "round {round}");
        // The last frames of an end that leaves are still received. Frames sent to it afterwards
        // are lost.
        let (gone, left) = if round % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        gone.send(&frame(9, 99)).unwrap();
        *gone = open(&dir.path().join("elsewhere"));
        let before = left.drops().total();
        left.send(&frame(1, 60)).unwrap();
        assert_eq!(left.drops().total(), before + 1);
        assert_eq!(drain(left), [frame(9, 99)]);
        left.send(&frame(1, 60)).unwrap();
        assert_eq!(left.drops().total(), before + 2);
        *gone = open(&path);
        drain(gone);
        drain(left);
    }
}

/// Duplicates the descriptors that a child forked now would keep open after this end has left.
fn inherited(wire: &Wire) -> Vec<OwnedFd> {
    let WireBackend::Peer(wire) = &wire.0 else {
        unreachable!()
    };
    let PeerWire { lock, link, .. } = &**wire;
    let mut files = vec![OwnedFd::from(lock.try_clone().unwrap())];
    match link {
        Link::Disconnected => {}
        Link::Listening { listener, other } => {
            files.push(listener.copy());
            files.extend(other.iter().map(|it| it.copy()));
        }
        Link::Connected { other } => files.push(other.copy()),
    }
    files
}

#[test]
fn an_end_leaves_even_if_a_forked_child_has_its_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let (mut a, mut b) = (open(&path), open(&path));
    let mut children = vec![];
    for round in 0..4 {
        a.send(&frame(round, 60)).unwrap();
        assert_eq!(drain(&mut b), [frame(round, 60)], "round {round}");
        let (gone, left) = if round % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        children.extend(inherited(gone));
        *gone = open(&dir.path().join("elsewhere"));
        drain(left);
        *gone = open(&path);
        drain(gone);
        drain(left);
    }
    // An end that has connected, but was not accepted yet when the other end left.
    children.extend(inherited(&a));
    children.extend(inherited(&b));
    drop((a, b));
    let (a, mut b) = (open(&path), open(&path));
    children.extend(inherited(&a));
    drop(a);
    let mut a = open(&path);
    drain(&mut b);
    a.send(&frame(7, 60)).unwrap();
    assert_eq!(drain(&mut b), [frame(7, 60)]);
}

#[test]
fn debug_output_of_a_wire_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let wire = open(&dir.path().join("cable"));
    assert_eq!(format!("{wire:?}"), "Wire(peer)");
}

#[test]
fn a_leftover_socket_is_replaced_but_a_file_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let (mut a, mut b) = (open(&path), open(&path));
    a.send(&frame(0, 60)).unwrap();
    assert_eq!(drain(&mut b), [frame(0, 60)]);
    drop((a, b));
    assert!(!path.exists());

    std::fs::write(&path, "precious").unwrap();
    let spec: WireSpec = format!("peer:{}", path.display()).parse().unwrap();
    let error = Wire::open(&spec).unwrap_err().to_string();
    assert!(error.contains("cable") && error.contains("free"), "{error}");
    let spec: WireSpec = format!("peer:{}/{}", dir.path().display(), "x".repeat(120))
        .parse()
        .unwrap();
    assert!(Wire::open(&spec).unwrap_err().to_string().contains("107"));
}

#[test]
fn frames_that_no_end_takes_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let mut a = open(&path);
    a.send(&frame(0, 60)).unwrap();
    assert_eq!(a.drops().total(), 1);
    let mut b = open(&path);
    for i in 0..100_000 {
        a.send(&frame(i, 60)).unwrap();
    }
    let got = drain(&mut b).len() as u64;
    assert!(a.drops().total() > 1, "no socket buffer holds that much");
    assert_eq!(got + a.drops().total(), 100_001);
}
