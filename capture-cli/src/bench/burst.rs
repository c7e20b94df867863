//! `wqcap bench burst`: counts the short frames that a queue absorbs while its loop is held, until
//! the first frame is lost.
//!
//! Modes of `capture.receive` are compared with the same memory for buffers and CQ together. The
//! wire numbers its frames, so every frame that the NIC accepted is known, and the bench detects if
//! it is not captured afterwards.

use super::{
    report::{BenchReport, ResultRow, compared},
    rounds::{FILLING, PATIENCE, number, out_of_buffer, plan},
    wire::line_rate,
};
use crate::{
    args::BenchBurstArgs,
    cmd::check::enter_model,
    failure::Failure,
    term::{
        output,
        table::{bytes, counted, scaled, span, thousands},
    },
};
use serde::Serialize;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, End, Limits},
    config::{Receive, Size},
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
};

/// Length in bytes of a frame, and of a stride, in the burst benchmark.
const FRAME: u32 = 64;
/// Maximum of the configuration key `capture.ring`, in WRs.
const MOST_WRS: u32 = 32768;
/// Default length of the buffer of a receive WR in bytes.
const BUFFER: u64 = 2048;
/// Maximum number of frames that may arrive before all flow rules are installed.
const EARLY: u64 = FILLING / 10;

/// Result of the burst benchmark for one receive mode.
#[derive(Debug, Serialize)]
struct Survived {
    /// Name of the burst result: `burst/MODE/SIZE`.
    name: String,
    /// Number of frames that the queue absorbed before the first lost one.
    frames: u64,
    /// Time that the absorbed frames take at the link's rate, in milliseconds.
    line_ms: f64,
    /// Number of receive WRs of the ring that the burst benchmark measures.
    wrs: u32,
    /// Total length in bytes of the receive buffers of the measured ring.
    buffer_bytes: u64,
    /// Length in bytes of the completion queue (CQ) of the measured ring.
    cq_bytes: u64,
    /// Name of the baseline with which the burst result is compared.
    baseline: &'static str,
    /// Ratio of the absorbed frames to those of the baseline: the median over the repeats.
    ratio: f64,
    /// Lowest and highest ratio to the baseline among the repeats.
    spread: [f64; 2],
    /// Number of times that the burst benchmark repeats the measurement.
    repeats: u32,
    /// Time for which the receive loop is held, in milliseconds.
    hold_ms: f64,
    /// Highest rate in frames per second that loses no frame while the receive loop is held.
    hold_frames_per_s: f64,
    /// Result for a burst at the rate of the option `--rate`; absent without the option.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<FrameBurst>,
}

/// Burst of frames that the bench sends while it keeps the receive loop from polling.
#[derive(Clone, Copy, Debug, Serialize)]
struct FrameBurst {
    /// Rate of the burst in frames per second.
    frames_per_s: u64,
    /// Number of frames in the burst.
    frames: u64,
    /// Number of frames of the burst that the ring would lose.
    lost: u64,
}

impl ResultRow for Survived {
    const HEAD: &'static [&'static str] = &[
        "result", "frames", "at link", "buffers", "CQ", "hold", "frames/s", "ratio", "spread",
        "against",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            thousands(self.frames),
            format!("{:.2} ms", self.line_ms),
            bytes(self.buffer_bytes),
            bytes(self.cq_bytes),
            span((self.hold_ms * 1e6) as u64),
            scaled(self.hold_frames_per_s),
            format!("{:.2}", self.ratio),
            format!("{:.2} to {:.2}", self.spread[0], self.spread[1]),
            self.baseline.to_owned(),
        ]
    }
}

/// Runs `wqcap bench burst`: overflows a ring of each receive mode in turn, and prints the number
/// of frames that the ring absorbed.
pub fn burst(args: &BenchBurstArgs) -> Result<(), Failure> {
    // Each frame takes at least a stride, so these are more frames than any ring holds.
    let frames = (args.memory.0 / u64::from(FRAME)).min(u64::from(MOST_WRS) * BUFFER / 64) + EARLY;
    let wire = format!("synth:size={FRAME},flows=256,pps={FILLING},count={frames},lossy");
    enter_model(std::slice::from_ref(&wire), &[])?;
    let baseline = largest(Receive::Frame, args.memory.0, args)?;
    let memory = taken(&baseline);
    let mut modes = vec![(Receive::Frame, baseline)];
    for receive in args.receive.iter().filter(|it| **it != Receive::Frame) {
        modes.push((*receive, largest(*receive, memory, args)?));
    }
    let mut survived = vec![Vec::new(); modes.len()];
    for _ in 0..args.common.repeats {
        for ((receive, plan), survived) in modes.iter().zip(&mut survived) {
            let took = overwhelm(plan, frames).map_err(|e| {
                let reason = e.messages.join("; ");
                Failure::failed(format!("capture.receive = \"{receive}\": {reason}"))
            })?;
            survived.push(took);
        }
    }
    let results = modes.iter().zip(&survived);
    let results = results.map(|((receive, plan), took)| {
        let pairs = took.iter().zip(&survived[0]);
        let pairs: Vec<_> = pairs.map(|(a, b)| (*a as f64, *b as f64)).collect();
        result(args, *receive, plan, &pairs)
    });
    let report = BenchReport::new(results.collect());
    report.print(args.common.json)?;
    if args.common.json {
        return Ok(());
    }
    report.results.iter().try_for_each(print_burst)
}

/// Prints the result for the burst at the rate of the option `--rate`.
fn print_burst(it: &Survived) -> Result<(), Failure> {
    let Some(burst) = it.burst else { return Ok(()) };
    output::print(&format!(
        "{}: of {} within {} {}\n",
        it.name,
        counted(burst.frames, "frame"),
        span((it.hold_ms * 1e6) as u64),
        match burst.lost {
            0 => "none is lost".into(),
            1 => "1 is lost".into(),
            lost => format!("{} are lost", thousands(lost)),
        }
    ))
}

/// Computes the result of one receive mode from pairs of the numbers of absorbed frames: that of
/// the mode and that of the baseline.
fn result(args: &BenchBurstArgs, receive: Receive, plan: &Plan, pairs: &[(f64, f64)]) -> Survived {
    let (ratio, spread) = compared(pairs);
    let least = pairs
        .iter()
        .map(|(it, _)| *it)
        .fold(f64::INFINITY, f64::min);
    let (frames, hold) = (least as u64, args.hold.as_secs_f64());
    let burst = args.rate.map(|frames_per_s| {
        let all = (frames_per_s as f64 * hold) as u64;
        FrameBurst {
            frames_per_s,
            frames: all,
            lost: all.saturating_sub(frames),
        }
    });
    Survived {
        name: format!("burst/{receive}/{FRAME}B"),
        frames,
        line_ms: least / line_rate(plan, FRAME.into()) * 1e3,
        wrs: plan.port.ring.wrs,
        buffer_bytes: plan.port.ring.registered(),
        cq_bytes: plan.port.ring.cq(),
        baseline: Receive::Frame.into(),
        ratio,
        spread,
        repeats: args.common.repeats,
        hold_ms: hold * 1e3,
        hold_frames_per_s: least / hold,
        burst,
    }
}

/// Returns the total length of a ring's buffers and CQ in bytes.
fn taken(plan: &Plan) -> u64 {
    plan.port.ring.registered() + plan.port.ring.cq()
}

/// Returns a plan with the largest ring of the receive mode `receive` whose memory is at most
/// `memory` bytes.
fn largest(receive: Receive, memory: u64, args: &BenchBurstArgs) -> Result<Plan, Failure> {
    let mut wrs = MOST_WRS;
    loop {
        let more = [
            ("capture.receive", receive.to_string()),
            ("capture.ring", wrs.to_string()),
            ("capture.stride", FRAME.to_string()),
        ];
        match plan(1, None, &more) {
            Ok(plan) if taken(&plan) <= memory => return Ok(plan),
            // The device may not support a ring of this size.
            Ok(_) | Err(_) if wrs > 1 => wrs /= 2,
            Err(e) => return Err(e),
            Ok(plan) => {
                // Rounding down to a whole ring removes less than half of the memory.
                let enough = Size(2 * taken(&plan));
                return Err(Failure::refused(format!(
                    "--memory {}: the smallest ring of capture.receive = \"{receive}\" takes {}; write --memory {enough}",
                    args.memory,
                    bytes(taken(&plan)),
                )));
            }
        }
    }
}

/// Lets the software NIC's traffic source deliver all its frames while the receive loop is held,
/// and then lets the loop continue. Returns the number of frames that the NIC accepted.
fn overwhelm(plan: &Plan, wire: u64) -> Result<u64, Failure> {
    let received = || {
        number(plan, "counters/port_rcv_packets").ok_or_else(|| {
            Failure::refused(
                "cannot read the port's counter port_rcv_packets, which has the delivered frames",
            )
        })
    };
    let before = received()?;
    let (gate, seen) = <(Arc<Mutex<()>>, Arc<Mutex<Numbers>>)>::default();
    let shut = gate.lock();
    let mut capture = Capture::start_with(plan, Limits::default(), |_| GatedConsumer {
        gate: Arc::clone(&gate),
        numbers: Numbers::default(),
        seen: Arc::clone(&seen),
    })?;
    let deadline = Instant::now() + PATIENCE;
    let brought = loop {
        match received() {
            Ok(now) if now - before < wire && Instant::now() < deadline => {
                let _ = capture.wait(Instant::now() + Duration::from_millis(1));
            }
            brought => break brought.map(|now| now - before),
        }
    };
    // The gate must open before the capture ends, or the loop would be held forever.
    drop(shut);
    let report = capture.finish();
    if let End::Failed(cause) | End::DeviceLost(cause) = report.end {
        return Err(Failure::failed(cause));
    }
    let brought = brought?;
    if brought < wire {
        return Err(Failure::failed(format!(
            "the software NIC delivered only {brought} of {wire} frames of the benchmark within the limit of {PATIENCE:?}"
        )));
    }
    let lost = out_of_buffer(&report.nic).ok_or_else(|| {
        Failure::refused(
            "cannot read the NIC's counter out_of_buffer, which has the number of lost frames",
        )
    })?;
    let captured = report.queues.iter().map(|it| it.captured).sum();
    let seen = seen.lock().map_or_else(|_| Numbers::default(), |it| *it);
    account(wire, lost, captured, seen).map_err(Failure::failed)
}

/// Sequence numbers that the frames of a burst run carry.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    /// Sequence number of the first frame that the capture received; `None`: no frame yet.
    first: Option<u64>,
    /// Sequence number that the next received frame must have, if no frame is missing.
    next: u64,
    /// Set if sequence numbers are missing between the first and the last received frame.
    has_gaps: bool,
}

impl Numbers {
    /// Records the sequence number in a received frame, and detects gaps.
    fn note(&mut self, number: u64) {
        self.has_gaps |= self.first.is_some() && number != self.next;
        self.first.get_or_insert(number);
        self.next = number + 1;
    }
}

/// Reason why the frames of a burst run cannot be accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum BurstError {
    #[error("the receive queue of the benchmark received none of the sent frames")]
    NoFrame,
    #[error(
        "the NIC accepted {accepted} frames, but {captured} frames were captured{}; this is a bug in wqcap, please report it",
        if *.has_gaps { " with gaps" } else { "" }
    )]
    Mismatch {
        accepted: u64,
        captured: u64,
        has_gaps: bool,
    },
    #[error(
        "the capacity of the receive ring was not reached, because the ring held all {0} sent frames; give a smaller --memory"
    )]
    NoLoss(u64),
}

/// Returns the number of frames of the traffic source that the NIC accepted: all except those
/// before the flow rules and those that found no WR. Exactly these frames must be captured, and
/// they are the first ones.
fn account(wire: u64, lost: u64, captured: u64, seen: Numbers) -> Result<u64, BurstError> {
    let first = seen.first.ok_or(BurstError::NoFrame)?;
    let accepted = wire.saturating_sub(first + lost);
    let has_gaps = seen.has_gaps;
    if captured != accepted || has_gaps {
        return Err(BurstError::Mismatch {
            accepted,
            captured,
            has_gaps,
        });
    }
    match lost {
        0 => Err(BurstError::NoLoss(accepted)),
        _ => Ok(accepted),
    }
}

/// Frame consumer that holds its receive loop while another thread has locked the gate.
struct GatedConsumer {
    /// Lock that holds the receive loop while another thread has it.
    gate: Arc<Mutex<()>>,
    /// Sequence numbers of the frames that the consumer has received so far.
    numbers: Numbers,
    /// Place for the sequence numbers at the end of the run, which the benchmark reads.
    seen: Arc<Mutex<Numbers>>,
}

impl Consumer for GatedConsumer {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        // Each frame ends with its number.
        if let Some(number) = frame.bytes.last_chunk() {
            self.numbers.note(u64::from_le_bytes(*number));
        }
        Verdict::Captured
    }

    fn begin_batch(&mut self) {
        drop(self.gate.lock());
    }
}

impl Drop for GatedConsumer {
    fn drop(&mut self) {
        if let Ok(mut seen) = self.seen.lock() {
            *seen = self.numbers;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_missing_frame_is_detected() {
        let seen = |numbers: &[u64]| {
            let mut seen = Numbers::default();
            for number in numbers {
                seen.note(*number);
            }
            seen
        };
        let of_ten = |lost, numbers: &[u64]| account(10, lost, numbers.len() as u64, seen(numbers));
        assert_eq!(of_ten(6, &[0, 1, 2, 3]), Ok(4));
        assert_eq!(
            of_ten(6, &[1, 2, 3]),
            Ok(3),
            "one frame arrived before the rules"
        );
        for (lost, numbers, words) in [
            (
                6,
                &[0, 1, 2][..],
                "accepted 4 frames, but 3 frames were captured;",
            ),
            (
                6,
                &[0, 1, 3, 4],
                "accepted 4 frames, but 4 frames were captured with gaps",
            ),
            (
                5,
                &[0, 1, 2, 3],
                "accepted 5 frames, but 4 frames were captured;",
            ),
            (
                6,
                &[0, 1, 2, 3, 4],
                "accepted 4 frames, but 5 frames were captured;",
            ),
            (6, &[], "received none of the sent frames"),
            (
                0,
                &[0, 1, 2, 3],
                "accepted 10 frames, but 4 frames were captured;",
            ),
            (0, &[7, 8, 9], "all 3 sent frames"),
        ] {
            let message = of_ten(lost, numbers).expect_err("not whole").to_string();
            assert!(message.contains(words), "{message}");
        }
    }
}
