//! Compressed completions (mini CQEs) in both formats, in bursts and over the end of the ring.

use super::{
    frames::numbered,
    rig::{Pass, Sender},
    run::SelftestRun,
};
use wqcap_engine::{
    device::DeviceFacts,
    verbs::{Inspected, MiniFormat, Striding},
};

/// Subject of the selftest's findings on compressed completions.
const SUBJECT: &str = "cqe_compression";
/// Number of test frames that are sent at once, which a queue holds without being polled.
const BURST: u32 = 48;
/// Number of times that the completions of the test fill the ring of the CQ.
const LAPS: u32 = 3;
/// Number of WQEs of the test's striding queue; it is small, so that the queue's CQ has few
/// entries.
const WRS: u32 = 2;

/// Tests compressed completions: with the hash on queues with a WQE for each frame, and with the
/// index of the stride on striding queues.
pub fn compressed(
    run: &mut SelftestRun,
    sender: &Sender,
    device: &DeviceFacts,
    shape: Result<Striding, &'static str>,
) {
    let hash = Pass::new("compressed, hash", SUBJECT);
    format(run, sender, device, hash, MiniFormat::Hash);
    let strides = Pass::new("compressed, stride index", SUBJECT);
    match shape {
        Ok(shape) => {
            let mut pass = strides.striding(shape);
            pass.queue.wrs = WRS;
            format(run, sender, device, pass, MiniFormat::ChecksumStride);
        }
        Err(reason) => run.record_not_asked(SUBJECT, strides.id, reason),
    }
}

/// Tests completions that are compressed in the format `format`.
fn format(
    run: &mut SelftestRun,
    sender: &Sender,
    device: &DeviceFacts,
    mut pass: Pass<'_>,
    format: MiniFormat,
) {
    if !device.caps.mini_cqes.contains(&format) {
        return run.record_not_asked(SUBJECT, pass.id, "the device lacks this format");
    }
    pass.queue.compression = Some(format);
    run.announce(&format!("sending bursts: {}", pass.id));
    // Frames of one flow and of different lengths: a session needs the same hash.
    let frames: Vec<_> = (0..BURST)
        .map(|n| numbered(1, 18 + n as usize * 7 % 64, n))
        .collect();
    let entries = pass.queue.wrs * pass.queue.striding.map_or(1, |it| it.strides);
    let bursts = (LAPS * entries).div_ceil(BURST);
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let (mut right, mut in_sessions) = (0, 0);
    let mut wrong = None;
    'bursts: for _ in 0..bursts {
        let mut sent = 0;
        while sent < BURST {
            match generator.send((BURST - sent) as usize) {
                Ok(n) => sent += n as u32,
                Err(_) => break 'bursts,
            }
        }
        for frame in &frames {
            let Some((_, it)) = rig.receive() else {
                break 'bursts;
            };
            in_sessions += u32::from(it.is_compressed());
            let is_right = it.bytes == *frame && is_placed(&it);
            right += u32::from(is_right);
            if !is_right {
                wrong.get_or_insert(it.raw);
            }
        }
        if run.is_over() {
            return;
        }
    }
    if run.is_lost() {
        return;
    }
    let id = format!("{}: frames in order", pass.id);
    run.expect(SUBJECT, &id, bursts * BURST, right, wrong.as_ref());
    // The device decides when it compresses.
    let id = format!("{}: in sessions", pass.id);
    let share = f64::from(in_sessions) * 100.0 / f64::from(bursts * BURST);
    run.measured(SUBJECT, &id, share, "%", None);
}

/// Returns `true` if the strides of a completion follow those of the completion before it. Mini
/// CQEs do not have the number of their WQE.
fn is_placed(it: &Inspected) -> bool {
    let strides = it.strides.as_ref();
    strides.is_none_or(|at| at.reported.first == at.counted_first)
}
