//! Rounds of filling and draining rings: measures the cost of a loop without the wire and the NIC.
//!
//! Rings are filled while their loops are held. Then the rules are removed, and the loops continue.
//! The CPU time of the loops' threads counts.

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
    filter::FilterCompiler,
    pipeline::{Consumer, Frame, Verdict},
    plan::Plan,
    stats::NicCounters,
};

/// Number of WRs of a benchmark's receive ring. By default a striding ring has as much memory for
/// frames.
pub const RING: u32 = 8192;
/// Rate in frames per second at which the software NIC's traffic source fills the rings; it is so
/// low that the source does not affect the measurement.
pub const FILLING: u64 = 1_000_000;
/// Time limit for filling a receive ring, and for a loop to drain it.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum time until a NIC without flow rules has finished its last frames. All receive loops,
/// including the bare ones, start to drain after it.
pub const SETTLING: Duration = Duration::from_millis(5);

/// Makes a plan of `queues` queues that only receives and counts, on `device` or on the only
/// device.
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
    settle(
        &mut ConfigArgs { file: None, set }.load()?,
        &FilterCompiler::default(),
    )
}

/// Returns the number of frames of `len` bytes in a measured round of a ring. It is lower than the
/// number that the ring holds: when the ring is filled again, a batch and the rest of a striding
/// WR's buffer may not be reposted yet, and the consumer holds a batch while it waits.
fn round(plan: &Plan, len: u32) -> u64 {
    let held = plan.port.ring.frames(len);
    let slack = 256 + held / u64::from(plan.port.ring.wrs);
    held.saturating_sub(slack).max(1)
}

/// Measures the CPU time of the queues' threads for frames of `len` bytes. `rounds` is the number
/// of rings of [`RING`] WRs that the frames would fill; an additional first round warms up. `sinks`
/// has one sink for each queue of the plan.
pub fn drain<C: Consumer + 'static>(
    plan: &Plan,
    len: u32,
    rounds: u32,
    sinks: Vec<C>,
) -> Result<Round, Failure> {
    let (sender, results) = sync_channel(sinks.len());
    let (go, held): (Vec<_>, Vec<_>) = sinks.iter().map(|_| sync_channel(1)).unzip();
    let (round, full) = (round(plan, len), plan.port.ring.frames(len));
    let rounds = (u64::from(rounds) * u64::from(RING)).div_ceil(full);
    let measured = sinks
        .into_iter()
        .zip(held)
        .map(|(sink, held)| FullRingConsumer {
            sink,
            round,
            held,
            sender: sender.clone(),
            frames: 0,
            began: None,
        });
    let measured = Mutex::new(measured.collect::<Vec<_>>());
    let make = |_| QueueConsumer(measured.lock().ok().and_then(|mut it| it.pop()));
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
    // The loops must continue before the capture ends, or they would be held forever. The frames
    // left on the rings then pass.
    drop(go);
    let _ = capture.finish();
    done.map(|()| sum)
}

/// CPU time of the frames that one or more rounds drained from full receive rings.
#[derive(Clone, Copy, Default)]
pub struct Round {
    /// Number of frames that were drained from full rings.
    pub frames: u64,
    /// CPU time of the queues' threads for the drained frames, in nanoseconds.
    pub ns: u64,
}

impl Round {
    /// Returns the mean CPU time per drained frame in nanoseconds.
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

/// Fills the receive rings, each with `full` frames, removes the flow rules, and lets the loops
/// drain the rings.
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
    let pause = |capture: &mut Capture| {
        let _ = capture.wait(Instant::now() + Duration::from_millis(1));
    };
    fill(capture, go.len(), full, lost, pause)?;
    capture.pause();
    thread::sleep(SETTLING);
    let stuck = || {
        Failure::failed(format!(
            "a receive loop of the benchmark did not empty its ring within {PATIENCE:?}"
        ))
    };
    for go in go {
        go.send(()).map_err(|_| stuck())?;
    }
    let mut sum = Round::default();
    for _ in go {
        sum += results.recv_timeout(PATIENCE).map_err(|_| stuck())?;
    }
    Ok(sum)
}

/// Reads the counter `counter` of the plan's port from sysfs.
#[expect(clippy::disallowed_methods, reason = "a file of sysfs")]
pub fn number(plan: &Plan, counter: &str) -> Option<u64> {
    let (device, port) = (&plan.port.device.name, plan.port.number);
    let path = format!("/sys/class/infiniband/{device}/ports/{port}/{counter}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the NIC's number of frames that found no receive WR; `None`: the NIC does not have this
/// counter.
pub fn out_of_buffer(nic: &NicCounters) -> Option<u64> {
    nic.get("out_of_buffer")?.value()
}

/// Waits until all `rings` receive rings, which hold `held` frames each, are full, which is so when
/// the NIC has lost enough frames according to `lost`. `pause` waits for a moment.
pub fn fill<T: ?Sized>(
    it: &mut T,
    rings: usize,
    held: u64,
    lost: impl Fn(&T) -> Option<u64>,
    pause: impl Fn(&mut T),
) -> Result<(), Failure> {
    let Some(before) = lost(it) else {
        return Err(Failure::refused(
            "cannot read the NIC's counter out_of_buffer, which shows when a ring is full",
        ));
    };
    // A ring may get only a third of its share. A single ring waits as long, because the last
    // frames are still in a cache.
    let enough = 2 * rings as u64 * held;
    // The time of the wire is added, twice because the machine may be busy.
    let takes = Duration::from_secs(2 * (enough + rings as u64 * held) / FILLING);
    let patience = PATIENCE + takes;
    let deadline = Instant::now() + patience;
    while lost(it).is_none_or(|now| now < before + enough) {
        if Instant::now() >= deadline {
            return Err(Failure::failed(format!(
                "the {rings} receive rings of the benchmark, with {held} frames each, did not fill up within {patience:?}; check that the port has traffic"
            )));
        }
        pause(it);
    }
    Ok(())
}

/// Frame consumer that holds its receive loop until the rings are full, and then measures the
/// loop's CPU time.
struct FullRingConsumer<C> {
    /// Frame consumer whose work is measured.
    sink: C,
    /// Number of frames in a measured round of the benchmark.
    round: u64,
    /// Receiver of the signal that the held loop may continue.
    held: Receiver<()>,
    /// Channel on which the receive loop sends the result of each measured round.
    sender: SyncSender<Round>,
    /// Number of frames that the current round has drained so far.
    frames: u64,
    /// CPU time of the thread at the start of the round; `None`: the loop is held.
    began: Option<u64>,
}

/// Frame consumer of one queue of the plan; `None`: the queue has no consumer.
struct QueueConsumer<C>(Option<FullRingConsumer<C>>);

/// Returns the CPU time of this thread in nanoseconds.
pub fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl<C: Consumer> Consumer for QueueConsumer<C> {
    #[inline(always)]
    fn frame(&mut self, frame: &Frame<'_>) -> Verdict {
        let Some(it) = &mut self.0 else {
            return Verdict::Captured;
        };
        it.frames += 1;
        it.sink.frame(frame)
    }

    #[inline]
    fn begin_batch(&mut self) {
        let Some(it) = &mut self.0 else { return };
        // If the sender is gone, there are no more rounds.
        if it.began.is_none() && it.held.recv().is_ok() {
            it.frames = 0;
            it.began = Some(cpu_ns());
        }
        it.sink.begin_batch();
    }

    #[inline]
    fn prefetch<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        if let Some(it) = &mut self.0 {
            it.sink.prefetch(frames);
        }
    }

    #[inline]
    fn end_batch(&mut self) {
        let Some(it) = &mut self.0 else { return };
        it.sink.end_batch();
        if it.frames >= it.round
            && let Some(began) = it.began.take()
        {
            let round = Round {
                frames: it.frames,
                ns: cpu_ns() - began,
            };
            let _ = it.sender.send(round);
        }
    }

    fn idle(&mut self) {
        if let Some(it) = &mut self.0 {
            it.sink.idle();
        }
    }
}
