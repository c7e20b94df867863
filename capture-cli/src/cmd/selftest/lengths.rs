//! Lengths of frames: the longest that the port accepts, several scatter entries, and frames that
//! are longer than their buffers.

use super::{
    frames::{TestFrame, of_len},
    rig::{Pass, SLOT, Sender, frame_of_queue_0},
    run::SelftestRun,
};
use serde_json::Value;
use std::time::Duration;
use wqcap_engine::{
    device::{DeviceFacts, interface::NetInterface},
    verbs::Striding,
};

/// Subject of the selftest's findings on frame lengths.
const SUBJECT: &str = "lengths";
/// Subject of the selftest's findings on frames that are longer than their buffers.
const TOO_LONG: &str = "too_long";
/// Range of the lengths of test frames beyond the MTU: from an Ethernet header to more than two
/// VLAN tags and an FCS.
const BEYOND: std::ops::RangeInclusive<usize> = 14..=26;
/// Time after which a test frame of another length counts as lost.
const PATIENCE: Duration = Duration::from_millis(100);
/// Completion status `IBV_WC_LOC_LEN_ERR`: the frame is longer than its buffer.
const LOCAL_LENGTH: u32 = 1;
/// Length in bytes of a receive buffer that is too short for the longest test frame.
const SHORT_SLOT: u32 = 1024;
/// Number of scatter entries of a WQE in the test with several entries.
const SGES: u32 = 4;
/// Prefix of the IDs of findings on the longest accepted frames, from which a verdict is derived.
pub const LONGEST: &str = "length: longest beyond the MTU, ";
/// VLAN tags of the test frames whose longest accepted length is found.
pub const TAGS: [(&str, &[u16]); 3] = [
    ("untagged", &[]),
    ("tagged", &[0x8100]),
    ("double tagged", &[0x88a8, 0x8100]),
];
/// ID of the finding on the counter of frames that the port refused as too long.
pub const OVERSIZE: &str = "length: counted in rx_oversize_pkts_phy";
/// ID of the finding on the completion of a frame that is longer than its buffer.
pub const STATUS: &str = "too long: status";
/// Value of the finding [`STATUS`] for a frame that is counted and has no completion.
pub const ONLY_COUNTED: &str = "no completion, counted in rx_oversize_pkts_buffer";
/// ID of the finding on the number of strides that a too long frame consumes.
pub const CONSUMED: &str = "striding too long: strides";
/// Value of the finding [`CONSUMED`] for a too long frame that uses up the rest of its WQE.
pub const REST: &str = "the rest of the WQE";

/// Runs all tests of frame lengths.
pub fn lengths(
    run: &mut SelftestRun,
    sender: &Sender,
    device: &DeviceFacts,
    shape: Result<Striding, &'static str>,
    all: &[TestFrame],
) {
    let port = device.ports.iter().find(|it| it.number == run.port);
    let mtu = port.and_then(|it| it.mtu).unwrap_or(1500) as usize;
    let netdev = port.and_then(|it| it.netdev.as_deref());
    run.announce("sending frames of many lengths");
    longest(run, sender, mtu, netdev);
    several_entries(run, sender, all);
    match shape {
        Ok(shape) => too_long_in_strides(run, sender, shape, mtu, netdev),
        Err(reason) => run.record_not_asked(TOO_LONG, CONSUMED, reason),
    }
}

/// Returns the counter `name` of the port's network interface (`ethtool -S`), if it can be read.
fn counter(netdev: Option<&str>, name: &str) -> Option<u64> {
    let statistics = NetInterface::open(netdev?).ok()?.statistics().ok()?;
    statistics.get(name).copied()
}

/// Finds the longest test frames that the port accepts, without and with VLAN tags.
fn longest(run: &mut SelftestRun, sender: &Sender, mtu: usize, netdev: Option<&str>) {
    if mtu + BEYOND.end() + 4 > SLOT as usize {
        let reason = "the MTU is larger than a buffer of the selftest; set a smaller MTU";
        return run.record_not_asked(SUBJECT, "lengths", reason);
    }
    let name = "rx_oversize_pkts_phy";
    let before = counter(netdev, name);
    let mut lost = 0;
    for (tags, tpids) in TAGS {
        let frames: Vec<_> = BEYOND.map(|more| of_len(mtu + more, tpids)).collect();
        let id = format!("length, {tags}");
        let pass = Pass::new(&id, SUBJECT);
        let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
            return;
        };
        let mut most = None;
        for frame in &frames {
            let came = generator.send(1).ok();
            let came = came.and_then(|_| rig.receive_within(PATIENCE));
            match came {
                Some((_, it)) if it.bytes == *frame => most = Some(frame.len() - mtu),
                _ => lost += 1,
            }
            if run.is_over() {
                return;
            }
        }
        if run.is_lost() {
            return;
        }
        run.value(SUBJECT, &format!("{LONGEST}{tags}"), most);
    }
    let counted = before.zip(counter(netdev, name)).map(|(a, b)| b - a);
    let counted = match (lost, counted) {
        (0, _) => return,
        (_, None) => Value::Null,
        (_, Some(counted)) => (counted >= lost).into(),
    };
    run.value(SUBJECT, OVERSIZE, counted);
}

/// Sends every test frame to WQEs with several scatter entries.
fn several_entries(run: &mut SelftestRun, sender: &Sender, all: &[TestFrame]) {
    let longest = all.iter().map(|it| it.bytes.len()).max().unwrap_or(0);
    let mut pass = Pass::new("frame in several entries", "max_sge");
    pass.queue.max_sge = SGES;
    // The longest frame reaches into the last entry.
    pass.queue.buffer = (longest as u32).div_ceil(SGES).next_multiple_of(64);
    pass.send(run, sender, all, false);
}

/// Tests the completion of a frame that is longer than its receive buffer.
pub fn too_long(run: &mut SelftestRun, sender: &Sender, all: &[TestFrame], netdev: Option<&str>) {
    let Some(longest) = all.iter().find(|it| it.name == "longest") else {
        return;
    };
    let mut pass = Pass::new("too long", "frames");
    pass.queue.buffer = SHORT_SLOT.min(longest.bytes.len() as u32 / 2);
    let frames = [longest.bytes.clone()];
    let counted = || counter(netdev, "rx_oversize_pkts_buffer").unwrap_or(0);
    let before = counted();
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let found = generator.send(1).ok().and_then(|_| rig.receive());
    if found.is_none() && counted() > before {
        return run.value("frames", STATUS, ONLY_COUNTED);
    }
    let status = found.as_ref().map(|(_, it)| it.cqe.status);
    let raw = found.as_ref().map(|(_, it)| &it.raw);
    run.expect("frames", STATUS, LOCAL_LENGTH, status, raw);
}

/// Tests how many strides a frame consumes that is longer than the buffer of a striding WQE, and
/// where the next frame arrives. The buffer is shorter than all strides of the WQE.
fn too_long_in_strides(
    run: &mut SelftestRun,
    sender: &Sender,
    shape: Striding,
    mtu: usize,
    netdev: Option<&str>,
) {
    let long = frame_of_queue_0(mtu.clamp(68, 9000) - 28);
    let short = frame_of_queue_0(18);
    let mut pass = Pass::new("striding too long", TOO_LONG).striding(shape);
    // The short frame fits, the long one does not.
    let buffer = (long.len() as u32 / 2).next_multiple_of(64);
    pass.queue.buffer = buffer;
    if (buffer as usize) < short.len() || buffer as usize >= long.len() || buffer >= shape.buffer()
    {
        let reason = "no frame is longer than a buffer for which the short frame is short enough";
        return run.record_not_asked(TOO_LONG, CONSUMED, reason);
    }
    let counted = || counter(netdev, "rx_oversize_pkts_buffer").unwrap_or(0);
    let before = counted();
    let frames = [vec![long], vec![short.clone(); shape.strides as usize]].concat();
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let found = generator.send(1).ok().and_then(|_| rig.receive());
    let Some((_, it)) = found else {
        if !run.is_lost() {
            let reason = match counted() > before {
                true => "the frame has no completion, and is counted",
                false => "the frame has no completion",
            };
            run.record_not_asked(TOO_LONG, CONSUMED, reason);
        }
        return;
    };
    let id = "striding too long: status";
    run.expect(TOO_LONG, id, LOCAL_LENGTH, it.cqe.status, Some(&it.raw));
    let count = it.strides.map_or(0, |it| it.reported.count);
    let consumed = match it.is_last {
        true => REST.to_owned(),
        false => format!("{count} of {}", shape.strides),
    };
    run.value(TOO_LONG, CONSUMED, consumed);
    // Frames beyond the buffer's end fail, too, until the WQE is used up.
    let mut arrived = None;
    for _ in 0..shape.strides {
        match generator.send(1).ok().and_then(|_| rig.receive()) {
            Some((_, it)) if it.cqe.status == LOCAL_LENGTH => {}
            other => {
                arrived = other;
                break;
            }
        }
        if run.is_over() {
            return;
        }
    }
    if run.is_lost() {
        return;
    }
    let is_right = arrived.as_ref().map(|(_, it)| {
        let counted = it.strides.is_some_and(|at| at.is_counted());
        it.bytes == short && counted
    });
    let raw = arrived.as_ref().map(|(_, it)| &it.raw);
    let id = "striding too long: the next frame";
    run.expect(TOO_LONG, id, true, is_right, raw);
}
