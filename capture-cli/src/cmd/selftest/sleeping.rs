//! Completion events that wake a sleeping loop: armed CQs with frames, and their moderation.

use super::{
    rig::{Pass, Rig, Sender, frame_of_queue_0},
    run::SelftestRun,
};
use crate::bench::wire::Generator;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{device::DeviceFacts, verbs::Moderation, verbs::Striding};

/// Subject of the selftest's findings on completion events.
const SUBJECT: &str = "cq";
/// Subject of the selftest's findings on moderated completion events.
const MODERATED: &str = "cq_moderation";
/// Time limit for a completion event.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time in which an armed CQ without a completion must raise no event.
const SILENCE: Duration = Duration::from_millis(30);
/// Number of frames of the test. Each frame must wake a sleeping thread.
const ROUNDS: u32 = 64;
/// Number of completions after which a moderated CQ raises its event.
const COUNT: u16 = 8;
/// Longest period of CQ moderation that is tested, in microseconds.
const PERIOD: u16 = 4000;
/// Number of measurements of a moderated completion event; the fastest one counts.
const TRIES: u32 = 5;
/// ID of the finding that names the start of the moderation period, from which a verdict is
/// derived.
pub const STARTS: &str = "moderation: the period starts at";
/// Value of the finding [`STARTS`] if the moderation period begins with the first completion.
pub const AT_COMPLETION: &str = "the completion";

/// Tests completion events of armed CQs on the queues that a capture has by default.
pub fn sleeping(
    run: &mut SelftestRun,
    sender: &Sender,
    device: &DeviceFacts,
    shape: Result<Striding, &'static str>,
) {
    let mut pass = Pass::new("sleep", SUBJECT);
    if let Ok(shape) = shape {
        pass = pass.striding(shape);
    }
    pass.queue.channel = true;
    unmoderated(run, sender, pass);
    let period_us = device.caps.max_cq_period.min(PERIOD);
    if period_us == 0 {
        return run.record_not_asked(MODERATED, STARTS, "the device does not moderate events");
    }
    pass.queue.moderation = Some(Moderation {
        count: COUNT,
        period_us,
    });
    let pass = Pass {
        id: "moderation",
        subject: MODERATED,
        ..pass
    };
    moderated(run, sender, pass, Duration::from_micros(period_us.into()));
}

/// Receive queue on whose completion events the test sleeps, and the sender of the test's frames.
struct Sleeper {
    rig: Rig,
    generator: Generator,
}

impl Sleeper {
    fn open(run: &mut SelftestRun, sender: &Sender, pass: Pass<'_>) -> Option<Self> {
        let (rig, generator) = pass.open(run, sender, &[frame_of_queue_0(40)])?;
        Some(Self { rig, generator })
    }

    /// Takes all completions of the queue's CQ, and returns their number.
    fn drain(&mut self) -> u32 {
        std::iter::from_fn(|| self.rig.queues[0].take())
            .map(|_| 1)
            .sum()
    }

    fn arm(&mut self) {
        self.rig.queues[0].arm();
    }

    /// Waits for a completion event for at most `time`. Returns the time until the event; `None`:
    /// no event.
    fn wakes(&mut self, time: Duration) -> Option<Duration> {
        let queue = &mut self.rig.queues[0];
        let began = Instant::now();
        loop {
            let left = time.checked_sub(began.elapsed())?;
            let timeout = Timespec::try_from(left).ok()?;
            let fd = queue.event_fd()?;
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)],
                Some(&timeout),
            );
            if queue.take_event() {
                return Some(began.elapsed());
            }
        }
    }
}

/// Tests that an armed CQ raises one event for its next completion, and no event without a
/// completion.
fn unmoderated(run: &mut SelftestRun, sender: &Sender, pass: Pass<'_>) {
    let Some(mut it) = Sleeper::open(run, sender, pass) else {
        return;
    };
    it.drain();
    it.arm();
    let early = it.wakes(SILENCE).is_some();
    run.expect(
        SUBJECT,
        "sleep: an event without a frame",
        false,
        early,
        None,
    );
    if early {
        it.arm();
    }
    let mut woken = 0;
    for _ in 0..ROUNDS {
        if it.generator.send(1).is_err() || it.wakes(PATIENCE).is_none() || run.is_over() {
            break;
        }
        woken += 1;
        it.drain();
        it.arm();
        // A completion that arrived before the CQ was armed raises its event at once.
    }
    if run.is_lost() {
        return;
    }
    run.expect(SUBJECT, "sleep: events of frames", ROUNDS, woken, None);
    // The CQ is armed with a completion in it: a loop arms before it looks for the last time.
    if it.generator.send(1).is_ok() && it.wakes(PATIENCE).is_some() {
        it.arm();
        let at_once = it.wakes(PATIENCE).is_some();
        let id = "sleep: armed with a completion";
        run.expect(SUBJECT, id, true, at_once, None);
    }
}

/// Tests that a moderated CQ raises its event after the set number of completions, and after the
/// period.
fn moderated(run: &mut SelftestRun, sender: &Sender, pass: Pass<'_>, period: Duration) {
    let Some(mut it) = Sleeper::open(run, sender, pass) else {
        return;
    };
    let mut at_count = 0;
    let mut alone = Vec::new();
    for _ in 0..TRIES {
        it.drain();
        it.arm();
        if it.generator.send(COUNT.into()).is_ok() && it.wakes(PATIENCE).is_some() {
            at_count += 1;
        }
        it.drain();
        it.arm();
        // The event before is longer ago than the period.
        thread::sleep(2 * period);
        // From before the frame is sent: a thread that does not run meanwhile makes the time longer, and the shortest counts.
        let start = Instant::now();
        if it.generator.send(1).is_ok() && it.wakes(PATIENCE).is_some() {
            alone.push(start.elapsed());
        }
    }
    if run.is_lost() {
        return;
    }
    run.expect(
        MODERATED,
        "moderation: events at the count",
        TRIES,
        at_count,
        None,
    );
    let id = "moderation: events after the period";
    run.expect(MODERATED, id, TRIES, alone.len(), None);
    if let Some(fastest) = alone.into_iter().min() {
        let start = match fastest < period / 2 {
            true => "the event before",
            false => AT_COMPLETION,
        };
        run.value(MODERATED, STARTS, start);
        let us = fastest.as_secs_f64() * 1e6;
        run.measured(MODERATED, "moderation: event after", us, "us", None);
    }
}
