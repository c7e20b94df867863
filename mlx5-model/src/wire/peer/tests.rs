//! Two ends in one process: the socket and the lock do not know the difference.

use super::super::{Take, Wire, WireSpec};

fn open(path: &std::path::Path) -> Wire {
    Wire::open(
        &format!("peer:{}", path.display())
            .parse::<WireSpec>()
            .unwrap(),
    )
    .unwrap()
}

/// A clock that always allows the next look.
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
            Take::Taken
        }) > 0
        {}
    }
    frames
}

fn frame(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at + i) as u8).collect()
}

#[test]
fn both_ways_in_order_and_whole() {
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
    assert_eq!(b.each(later(), 9, |_| Take::Wait), 0);
    assert_eq!(drain(&mut b), sent);
    assert_eq!(drain(&mut a), sent);
    assert_eq!((a.dropped(), b.dropped()), (0, 0));
    assert!(a.send(&[0; 65_537]).is_err());
    assert!(a.wait_fd().is_some() && b.wait_fd().is_some());
}

#[test]
fn either_end_may_go_and_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let (mut a, mut b) = (open(&path), open(&path));
    for round in 0..6 {
        a.send(&frame(round, 60)).unwrap();
        b.send(&frame(round, 61)).unwrap();
        assert_eq!(drain(&mut a), [frame(round, 61)], "round {round}");
        assert_eq!(drain(&mut b), [frame(round, 60)], "round {round}");
        // The last words of an end that goes are still heard; what is sent to it then is lost.
        let (gone, left) = if round % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        gone.send(&frame(9, 99)).unwrap();
        *gone = open(&dir.path().join("elsewhere"));
        let before = left.dropped();
        left.send(&frame(1, 60)).unwrap();
        assert_eq!(left.dropped(), before + 1);
        assert_eq!(drain(left), [frame(9, 99)]);
        left.send(&frame(1, 60)).unwrap();
        assert_eq!(left.dropped(), before + 2);
        *gone = open(&path);
        drain(gone);
        drain(left);
    }
}

#[test]
fn a_socket_left_behind_stops_nobody_but_a_file_does() {
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
fn what_nobody_takes_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cable");
    let mut a = open(&path);
    a.send(&frame(0, 60)).unwrap();
    assert_eq!(a.dropped(), 1);
    let mut b = open(&path);
    for i in 0..100_000 {
        a.send(&frame(i, 60)).unwrap();
    }
    let got = drain(&mut b).len() as u64;
    assert!(a.dropped() > 1, "no socket buffer holds that much");
    assert_eq!(got + a.dropped(), 100_001);
}
