//! The ledger: every received frame ends in exactly one line of it.

mod budget;
mod clock_report;
mod ends;
mod ledger;
pub mod outage;
mod outlook;
mod snapshot;
pub mod traffic;

pub use budget::Budget;
pub use clock_report::ClockReport;
pub use ends::Ends;
pub use ledger::{
    Counter, LINES, LOSSES, NicCounters, QueueLedger, Total, Unbalanced, Unreadable, nic_sum,
};
pub use outlook::Outlook;
pub use snapshot::{LedgerSnapshot, Stats, WriteBuffers};

use serde::Serialize;
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Bounds of [`RingState::found`]: a loop takes no more at once.
pub const FOUND: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// How a queue's ring and its loop are doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RingState {
    /// WRs that the NIC has; the others are on their way through the pipeline.
    pub posted: u64,
    /// Rounds of the loop, also with nothing to do. A loop whose count stands still for seconds is stuck.
    pub beats: u64,
    /// Times that the WQ was brought back from an error.
    pub recoveries: u64,
    /// Rounds that found frames, by how many: up to each of [`FOUND`], and more than the one before.
    pub found: [u64; FOUND.len()],
}

/// One queue's published counters, stored once a batch; anyone may read them.
///
/// Three threads at most store here, each on cache lines of its own: the loop, whoever ends frames (the loop itself,
/// or in its place a parser), and the writer.
#[derive(Debug, Default)]
pub struct QueueCounters {
    looped: Aligned<LoopCounters>,
    ended: Aligned<EndCounters>,
    written: Aligned<WriterCounters>,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned<T>(T);

#[derive(Debug, Default)]
struct LoopCounters {
    received: AtomicU64,
    dropped_pipeline: AtomicU64,
    errors: AtomicU64,
    recoveries: AtomicU64,
    beats: AtomicU64,
    /// After when the queue was last found empty. Locked some times a second.
    idle_at: Mutex<Option<Instant>>,
    /// WRs that the NIC has.
    posted: AtomicU64,
    /// Rounds by the frames they found.
    found: [AtomicU64; FOUND.len()],
}

/// The same counters for whoever writes and whoever reads them.
macro_rules! end_counters {
    ($($field:ident)+) => {
        #[derive(Debug, Default)]
        struct EndCounters { $($field: AtomicU64,)+ }

        impl EndCounters {
            #[inline]
            fn store(&self, ends: &Ends) {
                $(self.$field.store(ends.$field, Ordering::Relaxed);)+
            }

            fn load(&self) -> Ends {
                Ends { $($field: self.$field.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

end_counters! { captured filtered sampled_out deduplicated cut_off dropped_storage bytes }

#[derive(Debug, Default)]
struct WriterCounters {
    lost: SharedVolume,
    late: SharedVolume,
    repeated: SharedVolume,
    sampled_out: SharedVolume,
    cut_off: SharedVolume,
    kept: SharedVolume,
}

/// Frames and their bytes.
#[derive(Debug, Default)]
struct SharedVolume {
    frames: AtomicU64,
    bytes: AtomicU64,
}

impl SharedVolume {
    fn add(&self, frames: u64, bytes: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn load(&self) -> (u64, u64) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        (load(&self.frames), load(&self.bytes))
    }
}

/// What a loop has received so far, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Frames that the NIC delivered.
    pub frames: u64,
    /// Frames lost because every parser was busy.
    pub dropped_pipeline: u64,
    /// Completions with an error.
    pub errors: u64,
}

impl QueueCounters {
    /// The loop's round of stores.
    #[inline]
    pub fn publish_received(&self, received: &Received) {
        let c = &self.looped.0;
        // One writer: a load and a store will do.
        let new = received.frames - c.received.load(Ordering::Relaxed);
        if new > 0 {
            let bin = &c.found[bin(new)];
            bin.store(bin.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        c.received.store(received.frames, Ordering::Relaxed);
        c.dropped_pipeline
            .store(received.dropped_pipeline, Ordering::Relaxed);
        c.errors.store(received.errors, Ordering::Relaxed);
    }

    /// The same for how frames ended.
    #[inline]
    pub fn publish_ends(&self, ends: &Ends) {
        self.ended.0.store(ends);
    }

    /// The loop has come round: once a batch, and some times a second while its queue is empty.
    #[inline]
    pub fn beat(&self) {
        let beats = &self.looped.0.beats;
        // One writer: a load and a store will do.
        beats.store(beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A beat of a loop that has found its queue empty after `since`, and has sent on all it held back.
    pub fn idle(&self, since: Instant) {
        let mut idle_at = self.looped.0.idle_at.lock();
        if let Ok(at) = &mut idle_at {
            **at = Some(since);
        }
        drop(idle_at);
        self.beat();
    }

    /// When the queue was last known to be empty, if every frame that the loop has received is at its end.
    pub fn settled_at(&self) -> Option<Instant> {
        let at = *self.looped.0.idle_at.lock().ok()?;
        self.ledger(0).is_balanced().then_some(at?)
    }

    /// The NIC has so many WRs now.
    #[inline]
    pub fn posted(&self, wrs: u32) {
        self.looped.0.posted.store(wrs.into(), Ordering::Relaxed);
    }

    /// How the ring and its loop are doing.
    #[must_use]
    pub fn ring(&self) -> RingState {
        let c = &self.looped.0;
        RingState {
            posted: c.posted.load(Ordering::Relaxed),
            beats: c.beats.load(Ordering::Relaxed),
            recoveries: c.recoveries.load(Ordering::Relaxed),
            found: c.found.each_ref().map(|it| it.load(Ordering::Relaxed)),
        }
    }

    /// The WQ was brought back once more.
    pub fn recovered(&self) {
        self.looped.0.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    /// The writer could not write a block: frames that were counted as captured are lost after all.
    pub fn lost(&self, frames: u64, bytes: u64) {
        self.written.0.lost.add(frames, bytes);
    }

    /// Frames the loop had counted as captured came too late for the order of time.
    pub fn late(&self, frames: u64, bytes: u64) {
        self.written.0.late.add(frames, bytes);
    }

    /// Frames the loop had counted as captured repeat another queue's.
    pub fn repeated(&self, frames: u64, bytes: u64) {
        self.written.0.repeated.add(frames, bytes);
    }

    /// A frame of `bytes` bytes that the loop had counted as captured was sampled out once it was in order.
    pub fn sampled_out_in_order(&self, bytes: u64) {
        self.written.0.sampled_out.add(1, bytes);
    }

    /// A frame of `bytes` bytes that the loop had counted as captured was cut off once it was in order.
    pub fn cut_off_in_order(&self, bytes: u64) {
        self.written.0.cut_off.add(1, bytes);
    }

    /// Frames that were counted as captured are in a finished file.
    pub fn kept(&self, frames: u64, bytes: u64) {
        self.written.0.kept.add(frames, bytes);
    }

    /// Everything is at its end: what is counted as captured and in no finished file is lost.
    pub fn lose_unkept(&self) {
        let (ledger, (frames, bytes)) = (self.ledger(0), self.written.0.kept.load());
        if ledger.captured > frames {
            let unkept = ledger.captured - frames;
            self.lost(unkept, ledger.bytes.saturating_sub(bytes));
        }
    }

    /// The queue's lines as they stand.
    #[must_use]
    pub fn ledger(&self, queue: u16) -> QueueLedger {
        let (c, w) = (&self.looped.0, &self.written.0);
        let [lost, late, repeated, sampled_out, cut_off] =
            [&w.lost, &w.late, &w.repeated, &w.sampled_out, &w.cut_off].map(SharedVolume::load);
        let gone = [lost, late, repeated, sampled_out, cut_off];
        let received = c.received.load(Ordering::Relaxed);
        let e = self.ended.0.load();
        QueueLedger {
            queue,
            received,
            captured: (e.captured).saturating_sub(gone.iter().map(|it| it.0).sum()),
            filtered: e.filtered,
            sampled_out: e.sampled_out + sampled_out.0,
            deduplicated: e.deduplicated + repeated.0,
            cut_off: e.cut_off + cut_off.0,
            dropped_pipeline: c.dropped_pipeline.load(Ordering::Relaxed),
            dropped_storage: e.dropped_storage + lost.0,
            late: late.0,
            errors: c.errors.load(Ordering::Relaxed),
            bytes: e.bytes.saturating_sub(gone.iter().map(|it| it.1).sum()),
        }
    }
}

/// Which of [`FOUND`] so many frames belong to.
#[inline]
fn bin(frames: u64) -> usize {
    let bits = u64::BITS - frames.saturating_sub(1).leading_zeros();
    (bits as usize).min(FOUND.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_told_by_what_they_found() {
        let counters = QueueCounters::default();
        let mut received = Received::default();
        for found in [1, 2, 3, 4, 5, 64, 0, 33, 32, 900] {
            received.frames += found;
            counters.publish_received(&received);
        }
        assert_eq!(counters.ring().found, [1, 1, 2, 1, 0, 1, 3]);
        for (i, bound) in FOUND.into_iter().enumerate() {
            assert_eq!(bin(bound), i);
        }
    }

    #[test]
    fn a_lost_block_moves_from_captured_to_dropped() {
        let counters = QueueCounters::default();
        counters.publish_received(&Received {
            frames: 22,
            dropped_pipeline: 2,
            errors: 1,
        });
        counters.publish_ends(&Ends {
            captured: 8,
            filtered: 1,
            sampled_out: 2,
            deduplicated: 3,
            cut_off: 4,
            dropped_storage: 1,
            bytes: 800,
        });
        counters.lost(3, 300);
        let ledger = counters.ledger(2);
        ledger.check().unwrap();
        assert_eq!((ledger.queue, ledger.received, ledger.captured), (2, 22, 5));
        assert_eq!((ledger.dropped_storage, ledger.bytes), (4, 500));
        assert_eq!(
            LINES.map(|(_, of)| of(&ledger)),
            [5, 1, 2, 3, 4, 2, 4, 0, 1]
        );
    }

    #[test]
    fn a_budget_is_never_exceeded_and_always_reached() {
        let budget = Budget::new(1_000);
        let taken: u64 = std::thread::scope(|scope| {
            let loops: Vec<_> = (0..4)
                .map(|i| {
                    let budget = &budget;
                    scope.spawn(move || {
                        let mut taken = 0;
                        while !budget.is_used_up() {
                            let grant = budget.claim(64);
                            // A poll that finds less than was granted.
                            let captured = grant as u64 / (i + 1);
                            let captured = if grant > 0 && captured == 0 {
                                1
                            } else {
                                captured
                            };
                            budget.settle(grant, captured);
                            taken += captured;
                        }
                        taken
                    })
                })
                .collect();
            loops.into_iter().map(|l| l.join().expect("no panic")).sum()
        });
        assert_eq!(taken, 1_000);
    }
}
