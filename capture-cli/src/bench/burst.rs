//! `wqcap bench burst`: how many short frames a queue takes while its loop is held back, until the first is lost.
//!
//! Modes of `capture.receive` are compared in the same memory, buffers and CQ together. The wire numbers its frames, so
//! that every one that the NIC has accepted is known, and missed if it is not captured afterwards.

use super::{
    report::{BenchReport, Row, compared},
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

/// Bytes of a frame, and of a stride.
const FRAME: u32 = 64;
/// The most WRs that `capture.ring` can be, and bytes of the buffer that each has by default.
const MOST_WRS: u32 = 32768;
const BUFFER: u64 = 2048;
/// Frames that may come before all rules are there.
const EARLY: u64 = FILLING / 10;

/// What a queue survives.
#[derive(Debug, Serialize)]
struct Survived {
    /// `burst/MODE/SIZE`.
    name: String,
    /// Up to the first that is lost.
    frames: u64,
    /// What they take at the link's rate.
    line_ms: f64,
    /// WRs, and bytes of their buffers.
    wrs: u32,
    buffer_bytes: u64,
    cq_bytes: u64,
    /// What it is compared with.
    baseline: &'static str,
    /// `frames` by the baseline's: the median over the repeats.
    ratio: f64,
    /// The least and the most ratio of any repeat.
    spread: [f64; 2],
    repeats: u32,
    /// How long the loop is held back, and the highest rate that is survived for so long.
    hold_ms: f64,
    hold_frames_per_s: f64,
    /// The burst that was asked about.
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<Burst>,
}

/// A burst as long as the loop is held back.
#[derive(Clone, Copy, Debug, Serialize)]
struct Burst {
    frames_per_s: u64,
    frames: u64,
    lost: u64,
}

impl Row for Survived {
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

/// Overwhelms a ring of each mode in turn, and prints what it took.
pub fn burst(args: &BenchBurstArgs) -> Result<(), Failure> {
    // No frame takes less than a stride, so these are more than any ring has room for.
    let frames = (args.memory.0 / u64::from(FRAME)).min(u64::from(MOST_WRS) * BUFFER / 64) + EARLY;
    let wire = format!("synth:size={FRAME},flows=256,pps={FILLING},count={frames},lossy");
    enter_model(Some(&wire), &[])?;
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
                let why = e.messages.join("; ");
                Failure::failed(format!("capture.receive = \"{receive}\": {why}"))
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
    report.results.iter().try_for_each(told)
}

/// What was asked about the burst.
fn told(it: &Survived) -> Result<(), Failure> {
    let Some(burst) = it.burst else { return Ok(()) };
    output::print(&format!(
        "{}: of {} within {} {}\n",
        it.name,
        counted(burst.frames, "frame"),
        span((it.hold_ms * 1e6) as u64),
        match burst.lost {
            0 => "none is lost".into(),
            1 => "one is lost".into(),
            lost => format!("{} are lost", thousands(lost)),
        }
    ))
}

/// One mode's frames in pairs with the baseline's.
fn result(args: &BenchBurstArgs, receive: Receive, plan: &Plan, pairs: &[(f64, f64)]) -> Survived {
    let (ratio, spread) = compared(pairs);
    let least = pairs
        .iter()
        .map(|(it, _)| *it)
        .fold(f64::INFINITY, f64::min);
    let (frames, hold) = (least as u64, args.hold.as_secs_f64());
    let burst = args.rate.map(|frames_per_s| {
        let all = (frames_per_s as f64 * hold) as u64;
        Burst {
            frames_per_s,
            frames: all,
            lost: all.saturating_sub(frames),
        }
    });
    Survived {
        name: format!("burst/{receive}/{FRAME}B"),
        frames,
        line_ms: least / line_rate(plan, FRAME.into()) * 1e3,
        wrs: plan.ring.wrs,
        buffer_bytes: plan.ring.registered(),
        cq_bytes: plan.ring.cq(),
        baseline: Receive::Frame.into(),
        ratio,
        spread,
        repeats: args.common.repeats,
        hold_ms: hold * 1e3,
        hold_frames_per_s: least / hold,
        burst,
    }
}

/// Bytes of a queue's buffers and CQ.
fn taken(plan: &Plan) -> u64 {
    plan.ring.registered() + plan.ring.cq()
}

/// The plan with the largest ring of a mode in so much memory.
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
            // A device may not make as large a ring as this.
            Ok(_) | Err(_) if wrs > 1 => wrs /= 2,
            Err(e) => return Err(e),
            Ok(plan) => {
                // Rounding down to a ring of WRs takes less than half away.
                let enough = Size(2 * taken(&plan));
                return Err(Failure::refused(format!(
                    "--memory {}: the smallest ring of capture.receive = \"{receive}\" takes {}; give --memory {enough}",
                    args.memory,
                    bytes(taken(&plan)),
                )));
            }
        }
    }
}

/// Lets the wire bring all of its frames while the loop is held back, and then the loop go on: how many frames the NIC
/// has accepted.
fn overwhelm(plan: &Plan, wire: u64) -> Result<u64, Failure> {
    let received = || {
        number(plan, "counters/port_rcv_packets")
            .ok_or_else(|| Failure::refused("port_rcv_packets cannot be read"))
    };
    let before = received()?;
    let (gate, seen) = <(Arc<Mutex<()>>, Arc<Mutex<Numbers>>)>::default();
    let shut = gate.lock();
    let mut capture = Capture::start_with(plan, Limits::default(), |_| Held {
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
    // Before the capture ends, or its loop would be held for ever.
    drop(shut);
    let report = capture.finish();
    if let End::Failed(why) | End::DeviceLost(why) = report.end {
        return Err(Failure::failed(why));
    }
    let brought = brought?;
    if brought < wire {
        return Err(Failure::failed(format!(
            "the wire has brought {brought} of its {wire} frames within {PATIENCE:?}"
        )));
    }
    let lost = out_of_buffer(&report.nic).ok_or_else(|| {
        Failure::refused("out_of_buffer cannot be read: nobody can tell what is lost")
    })?;
    let captured = report.queues.iter().map(|it| it.captured).sum();
    let seen = seen.lock().map_or_else(|_| Numbers::default(), |it| *it);
    account(wire, lost, captured, seen).map_err(Failure::failed)
}

/// The numbers of a run's frames.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    first: Option<u64>,
    next: u64,
    /// Some are missing in between.
    has_gaps: bool,
}

impl Numbers {
    fn note(&mut self, number: u64) {
        self.has_gaps |= self.first.is_some() && number != self.next;
        self.first.get_or_insert(number);
        self.next = number + 1;
    }
}

/// How many of the wire's frames the NIC has accepted: all but those that came before the rules, and those that found no
/// WR. As many must be captured, and they are the first ones.
fn account(wire: u64, lost: u64, captured: u64, seen: Numbers) -> Result<u64, String> {
    let Some(first) = seen.first else {
        return Err("no frame has come".into());
    };
    let accepted = wire.saturating_sub(first + lost);
    if captured != accepted || seen.has_gaps {
        let gaps = if seen.has_gaps { ", with gaps," } else { "" };
        return Err(format!(
            "{captured} frames were captured{gaps} of {accepted} that the NIC has accepted; this is a fault in wqcap: please report it"
        ));
    }
    if lost == 0 {
        return Err(format!(
            "the ring has taken all {accepted} frames of the wire: nobody can tell how many it takes; give less --memory"
        ));
    }
    Ok(accepted)
}

/// A consumer that holds its loop back as long as somebody has the gate's lock.
struct Held {
    gate: Arc<Mutex<()>>,
    numbers: Numbers,
    /// Told at the end.
    seen: Arc<Mutex<Numbers>>,
}

impl Consumer for Held {
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        // The wire's number is at the end of each frame.
        if let Some(number) = frame.bytes.last_chunk() {
            self.numbers.note(u64::from_le_bytes(*number));
        }
        Verdict::Captured
    }

    fn batch(&mut self) {
        drop(self.gate.lock());
    }
}

impl Drop for Held {
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
    fn every_accepted_frame_is_missed() {
        let seen = |numbers: &[u64]| {
            let mut seen = Numbers::default();
            for number in numbers {
                seen.note(*number);
            }
            seen
        };
        let of_ten = |lost, numbers: &[u64]| account(10, lost, numbers.len() as u64, seen(numbers));
        assert_eq!(of_ten(6, &[0, 1, 2, 3]), Ok(4));
        assert_eq!(of_ten(6, &[1, 2, 3]), Ok(3), "one came before the rules");
        for (lost, numbers, words) in [
            (6, &[0, 1, 2][..], "3 frames were captured of 4"),
            (6, &[0, 1, 3, 4], "captured, with gaps, of 4"),
            (5, &[0, 1, 2, 3], "4 frames were captured of 5"),
            (6, &[0, 1, 2, 3, 4], "5 frames were captured of 4"),
            (6, &[], "no frame has come"),
            (0, &[0, 1, 2, 3], "4 frames were captured of 10"),
            (0, &[7, 8, 9], "all 3 frames"),
        ] {
            let message = of_ten(lost, numbers).expect_err("not whole");
            assert!(message.contains(words), "{message}");
        }
    }
}
