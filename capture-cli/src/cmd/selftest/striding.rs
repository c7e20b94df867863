//! Frames on striding queues, which a capture uses by default where the device has them.

use super::{
    frames::{TestFrame, numbered},
    probe::FLAGS,
    recovery::recovery,
    rig::{Pass, STRIDING_WRS, Sender, accepted, plan},
    run::SelftestRun,
};
use wqcap_engine::{
    device::DeviceFacts,
    verbs::{Inspected, InspectedStrides, Striding},
};

/// Subject of the selftest's findings on striding queues.
pub const SUBJECT: &str = "striding_rq";
/// Prefix of the IDs of findings on frames on striding queues.
pub const FRAMES: &str = "striding frame";
/// Number of filler completions that the test of fillers causes.
const FILLERS: u32 = 3;
/// ID of the finding on the counter in a filler completion, from which a verdict is derived.
pub const FILLER_COUNTER: &str = "striding fillers: counter";
/// Value of the finding [`FILLER_COUNTER`] for a filler whose counter is the index of its first
/// stride.
pub const FIRST_STRIDE: &str = "its first stride";
/// Bytes of a CQE that depend on the program and the moment: the program's index of the WQ
/// (`srqn_uidx`), the time stamp, the signature and the owner.
const CHANGING: [std::ops::Range<usize>; 3] = [32..36, 48..56, 62..64];

/// Returns the shape (strides per WQE) of a striding queue that a capture of this device has by
/// default.
///
/// # Errors
/// Returns the reason why the selftest does not test such a queue.
pub fn default_shape(run: &SelftestRun, device: &DeviceFacts) -> Result<Striding, &'static str> {
    if device.caps.striding.is_none() {
        return Err("the device has no striding WQs for raw packets");
    }
    let plan = plan(device, run.port, 1)
        .map_err(|_| "the device cannot hold the queues of a default capture")?;
    let shape = plan.port.ring.striding;
    let shape = shape.ok_or("a default capture of this device has a WQE for each frame")?;
    match shape.strides.checked_mul(STRIDING_WRS) {
        Some(cqes) if cqes <= device.caps.max_cqe => Ok(shape),
        _ => Err("a CQ of the device is too small for a striding queue of the selftest"),
    }
}

/// Runs the frame passes on striding queues: every frame with each flag of a WQ, fillers, and the
/// recovery of a queue in error.
pub fn striding(run: &mut SelftestRun, sender: &Sender, shape: Striding, all: &[TestFrame]) {
    let plain = Pass::new(FRAMES, SUBJECT).striding(shape);
    plain.send(run, sender, all, false);
    for (name, subject, flag) in FLAGS {
        let id = &format!("striding frame with {name}");
        if accepted(run, &format!("wq/flag/{name}")) {
            let pass = Pass {
                id,
                subject,
                ..plain
            };
            pass.with_flags(flag).send(run, sender, all, false);
        } else {
            run.record_not_asked(subject, id, "the device refused the flag");
        }
    }
    fillers(run, sender, shape);
    recovery(
        run,
        sender,
        Pass::new("striding recovery", "recovery").striding(shape),
    );
}

/// Returns a number of strides per frame, at most `most`, that does not divide the strides of a
/// WQE, so that a rest remains.
fn strides_with_rest(shape: Striding, most: u32) -> Option<u32> {
    (2..=most.min(24))
        .rev()
        .find(|count| !shape.strides.is_multiple_of(*count))
}

/// Tests the filler completions at the end of WQEs into which the next frame does not fit, and the
/// positions of the frames before and after them.
fn fillers(run: &mut SelftestRun, sender: &Sender, shape: Striding) {
    let longest = 1514 / shape.stride;
    let Some(count) = strides_with_rest(shape, longest) else {
        let reason = "every test frame takes a divisor of a WQE's strides, so no WQE has a rest";
        return run.record_not_asked(SUBJECT, FILLER_COUNTER, reason);
    };
    let sent = FILLERS * (shape.strides / count) + 2;
    // 42 bytes of headers, and a few bytes less than all strides.
    let payload = (count * shape.stride) as usize - 42 - 6;
    let frames: Vec<_> = (0..sent).map(|n| numbered(1, payload, n)).collect();
    let pass = Pass::new("striding fillers", SUBJECT).striding(shape);
    let Some((mut rig, mut generator)) = pass.open(run, sender, &frames) else {
        return;
    };
    let (mut right, mut counted) = (0, 0);
    let mut wrong = None;
    for frame in &frames {
        let came = generator.send(1).ok().and_then(|_| rig.receive());
        let Some((_, it)) = came else { break };
        let is_counted = it
            .strides
            .as_ref()
            .is_some_and(InspectedStrides::is_counted);
        right += u32::from(it.bytes == *frame);
        counted += u32::from(is_counted);
        if !is_counted || it.bytes != *frame {
            wrong.get_or_insert(it.raw);
        }
    }
    if run.is_lost() {
        return;
    }
    let raw = wrong.as_ref();
    run.expect(SUBJECT, "striding fillers: frames", sent, right, raw);
    let id = "striding fillers: wqe_id and first stride of frames";
    run.expect(SUBJECT, id, sent, counted, raw);
    let first = rig.fillers.first();
    let raw = first.map(|it| &it.raw);
    let id = "striding fillers: number";
    run.expect(SUBJECT, id, FILLERS, rig.fillers.len(), raw);
    if let Some((it, strides)) = first.and_then(|it| Some((it, it.strides?))) {
        describe_filler(run, it, strides);
    }
}

/// Records the fields of a filler completion, which drivers use differently.
fn describe_filler(run: &mut SelftestRun, it: &Inspected, strides: InspectedStrides) {
    let counter = match strides.reported.first {
        first if first == strides.counted_first => FIRST_STRIDE.to_owned(),
        other => other.to_string(),
    };
    run.value(SUBJECT, FILLER_COUNTER, counter);
    let own = strides.wqe_id == strides.counted_wqe;
    run.value(SUBJECT, "striding fillers: wqe_id is its own", own);
    let mut raw = it.raw;
    CHANGING.into_iter().for_each(|at| raw[at].fill(0));
    let words = raw.chunks(4).zip((0..).step_by(4));
    let words = words.filter(|(word, _)| word.iter().any(|it| *it != 0));
    let words = words.map(|(word, at)| {
        let hex: String = word.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("byte {at}: {hex}")
    });
    let text = words.collect::<Vec<_>>().join(", ");
    run.value(SUBJECT, "striding fillers: CQE", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_leave_a_rest_of_a_wqe_or_none_is_possible() {
        let shape = |strides| Striding {
            stride: 64,
            strides,
        };
        for (strides, most, expected) in [
            (1024, 23, Some(23)),
            (8, 2, None),
            (8, 3, Some(3)),
            (512, 0, None),
        ] {
            assert_eq!(strides_with_rest(shape(strides), most), expected);
        }
    }
}
