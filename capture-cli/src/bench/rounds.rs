//! Rounds of drained rings: what a loop costs, with neither the wire nor the NIC in the figures.
//!
//! Rings are filled while their loops are held back, the rules are taken away, and then the loops are let go. The CPU
//! time of the loops' threads counts.

use crate::{
    args::{ConfigArgs, Setting},
    cmd::check::settle,
    failure::Failure,
};
use rustix::time::{ClockId, clock_gettime};
use std::{
    fs,
    sync::{
        Mutex,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::{Capture, Limits},
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    stats::NicCounters,
};

/// WRs of a ring; a striding ring has as much memory for frames, unless it is told otherwise.
pub const RING: u32 = 8192;
/// Frames a second that fill the rings: not so many that the wire is in the way of what is measured.
pub const FILLING: u64 = 1_000_000;
/// How long a ring may take to fill, and a loop to drain it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// How long a NIC without rules takes at most to end what it has begun. All loops, bare ones too, drain their rings after it.
pub const SETTLING: Duration = Duration::from_millis(5);

/// A plan of so many queues with nothing in their way, on this device or the only one.
pub fn plan(queues: u16, device: Option<&str>, more: &[(&str, String)]) -> Result<Plan, Failure> {
    let mut set = vec![
        ("capture.queues", queues.to_string()),
        ("capture.receive", "frame".into()),
        ("capture.ring", RING.to_string()),
        ("capture.idle", "spin".into()),
        ("output.format", "none".into()),
    ];
    set.extend(device.map(|it| ("device.name", it.to_owned())));
    set.extend(more.iter().cloned());
    let set: Vec<_> = set
        .into_iter()
        .map(|(key, value)| Setting {
            key: key.into(),
            value,
        })
        .collect();
    settle(&mut ConfigArgs { file: None, set }.load()?)
}

/// Frames of `len` bytes in a round. A ring takes a few more: when it is filled again, a batch may still be on its way back
/// to it, with the rest of a striding WR's buffer, and a batch is held back by whom it is to wait for.
fn round(plan: &Plan, len: u32) -> u64 {
    let held = plan.ring.frames(len);
    let slack = 256 + held / u64::from(plan.ring.wrs);
    held.saturating_sub(slack).max(1)
}

/// What frames of `len` bytes cost the queues' threads, in as many rounds as drain `rounds` rings of [`RING`] WRs, behind
/// one that warms up. One sink for each queue of the plan.
pub fn drain<C: Consumer + 'static>(
    plan: &Plan,
    len: u32,
    rounds: u32,
    sinks: Vec<C>,
) -> Result<Round, Failure> {
    let (told, results) = sync_channel(sinks.len());
    let (go, held): (Vec<_>, Vec<_>) = sinks.iter().map(|_| sync_channel(1)).unzip();
    let (round, full) = (round(plan, len), plan.ring.frames(len));
    let rounds = (u64::from(rounds) * u64::from(RING)).div_ceil(full);
    let measured = sinks.into_iter().zip(held).map(|(sink, held)| Held {
        sink,
        round,
        held,
        told: told.clone(),
        frames: 0,
        began: None,
    });
    let measured = Mutex::new(measured.collect::<Vec<_>>());
    let make = |_| ParserCpu(measured.lock().ok().and_then(|mut it| it.pop()));
    let mut capture = Capture::start_with(plan, Limits::default(), make)?;
    let mut sum = Round::default();
    let mut done = Ok(());
    for number in 0..=rounds {
        match drained(&mut capture, plan, full, number > 0, &go, &results) {
            Ok(round) if number > 0 => sum += round,
            Ok(_) => {}
            Err(e) => {
                done = Err(e);
                break;
            }
        }
    }
    // Before the capture ends, or its loops would be held for ever: what is on the rings is let through.
    drop(go);
    let _ = capture.finish();
    done.map(|()| sum)
}

/// What drained rings cost.
#[derive(Clone, Copy, Default)]
pub struct Round {
    /// Frames.
    pub frames: u64,
    /// Nanoseconds that threads ran for them.
    pub ns: u64,
}

impl Round {
    /// Nanoseconds of a frame.
    pub fn mean_ns(&self) -> f64 {
        self.ns as f64 / self.frames as f64
    }
}

impl std::ops::AddAssign for Round {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.ns += other.ns;
    }
}

/// Fills the rings, each of so many frames, takes the rules away, and lets the loops go.
fn drained(
    capture: &mut Capture,
    plan: &Plan,
    full: u64,
    again: bool,
    go: &[SyncSender<()>],
    results: &Receiver<Round>,
) -> Result<Round, Failure> {
    if again {
        capture.resume(plan)?;
    }
    let lost = |capture: &Capture| out_of_buffer(&capture.snapshot().nic);
    let rest = |capture: &mut Capture| {
        let _ = capture.wait(Instant::now() + Duration::from_millis(1));
    };
    fill(capture, go.len(), full, lost, rest)?;
    capture.pause();
    thread::sleep(SETTLING);
    let stuck = || Failure::failed("a queue's loop has not drained its ring");
    for go in go {
        go.send(()).map_err(|_| stuck())?;
    }
    let mut sum = Round::default();
    for _ in go {
        sum += results.recv_timeout(PATIENCE).map_err(|_| stuck())?;
    }
    Ok(sum)
}

/// One of the counters of the plan's port, if it can be read.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
pub fn number(plan: &Plan, counter: &str) -> Option<u64> {
    let (device, port) = (&plan.device.name, plan.port);
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{counter}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Frames that the NIC found no WR for, if it tells.
pub fn out_of_buffer(nic: &NicCounters) -> Option<u64> {
    nic.get("out_of_buffer")?.value()
}

/// Waits until the NIC finds no WR any more on any of so many rings that hold so many frames, which is when it has `lost`
/// many frames; `rest` lets a moment pass.
pub fn fill<T: ?Sized>(
    it: &mut T,
    rings: usize,
    held: u64,
    lost: impl Fn(&T) -> Option<u64>,
    rest: impl Fn(&mut T),
) -> Result<(), Failure> {
    let Some(before) = lost(it) else {
        return Err(Failure::refused(
            "out_of_buffer cannot be read: nobody can tell when a ring is full",
        ));
    };
    // One of them may get a third of its share. A single ring waits as long: frames that came a moment ago are in a cache.
    let enough = 2 * rings as u64 * held;
    // The wire's own time on top, twice where the machine is busy.
    let takes = Duration::from_secs(2 * (enough + rings as u64 * held) / FILLING);
    let patience = PATIENCE + takes;
    let deadline = Instant::now() + patience;
    while lost(it).is_none_or(|now| now < before + enough) {
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!(
                "{rings} rings of {held} frames are not full after {patience:?}: is there traffic on the port?"
            )));
        }
        rest(it);
    }
    Ok(())
}

/// A consumer that holds its loop back until the rings are full, and takes the time of the rest.
struct Held<C> {
    sink: C,
    /// Frames of a round.
    round: u64,
    held: Receiver<()>,
    told: SyncSender<Round>,
    /// Frames of this round so far.
    frames: u64,
    /// The thread's CPU time at its beginning; `None`: it is to be waited for.
    began: Option<u64>,
}

/// A queue's consumer; there are as many as queues.
struct ParserCpu<C>(Option<Held<C>>);

/// Nanoseconds that this thread has run.
pub fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl<C: Consumer> Consumer for ParserCpu<C> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let Some(it) = &mut self.0 else {
            return Verdict::Captured;
        };
        it.frames += 1;
        it.sink.frame(frame)
    }

    #[inline]
    fn batch(&mut self) {
        let Some(it) = &mut self.0 else { return };
        // When nobody is there to say so, there are no more rounds.
        if it.began.is_none() && it.held.recv().is_ok() {
            it.frames = 0;
            it.began = Some(cpu_ns());
        }
        it.sink.batch();
    }

    #[inline]
    fn handled(&mut self) {
        let Some(it) = &mut self.0 else { return };
        it.sink.handled();
        if it.frames >= it.round
            && let Some(began) = it.began.take()
        {
            let round = Round {
                frames: it.frames,
                ns: cpu_ns() - began,
            };
            let _ = it.told.send(round);
        }
    }

    fn idle(&mut self) {
        if let Some(it) = &mut self.0 {
            it.sink.idle();
        }
    }
}
