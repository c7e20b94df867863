//! Ledger of frames: every received frame ends in exactly one line.

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
pub use ends::VerdictCounts;
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

/// Upper bounds, in frames, of the classes in which [`RingState::found`] counts polls of a
/// completion queue. The last bound is the default batch size of a receive loop.
pub const FOUND: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// State of a queue's ring and its receive loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RingState {
    /// Number of receive WRs that are posted to the NIC; the slots of the others are in the
    /// pipeline.
    pub posted: u64,
    /// Number of iterations of the receive loop, including idle ones. A loop whose count does not
    /// change for seconds is stuck.
    pub beats: u64,
    /// Number of times that the queue's WQ was recovered from an error.
    pub recoveries: u64,
    /// Number of polls of the CQ that found frames, by the number of frames: class `i` ends at
    /// `FOUND[i]`.
    pub found: [u64; FOUND.len()],
}

/// Published counters of one receive queue, stored once per batch. Every thread may read them.
///
/// At most three threads store here, each on separate cache lines: the receive loop, the thread
/// that decides on frames (the loop or a parser), and the file writer.
#[derive(Debug, Default)]
pub struct QueueCounters {
    /// Counters that the receive loop stores.
    looped: Aligned<LoopCounters>,
    /// Counters of the thread that decides on frames: the receive loop or a parser.
    ended: Aligned<EndCounters>,
    /// Counters that the file writer stores.
    written: Aligned<WriterCounters>,
}

/// Value on cache lines that no other value shares.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Aligned<T>(T);

/// Counters of one queue that its receive loop stores.
#[derive(Debug, Default)]
struct LoopCounters {
    /// Number of frames that the receive loop received.
    received: AtomicU64,
    /// Number of frames dropped because a parser's channel was full.
    dropped_pipeline: AtomicU64,
    /// Number of receives that completed in error.
    errors: AtomicU64,
    /// Number of times that the queue's WQ was recovered from an error.
    recoveries: AtomicU64,
    /// Number of iterations of the receive loop.
    beats: AtomicU64,
    /// Time just before the poll that last found the receive queue empty; `None` before the first
    /// such poll. The lock is taken several times per second.
    idle_at: Mutex<Option<Instant>>,
    /// Number of receive WRs that are posted to the NIC.
    posted: AtomicU64,
    /// Numbers of polls of the CQ, by the number of frames that a poll found.
    found: [AtomicU64; FOUND.len()],
}

/// Defines `EndCounters`, the form of [`VerdictCounts`] that threads share, with these fields.
macro_rules! end_counters {
    ($($field:ident)+) => {
        /// Numbers of frames by their consumer's verdict, in a form that other threads can read.
        #[derive(Debug, Default)]
        struct EndCounters { $($field: AtomicU64,)+ }

        impl EndCounters {
            /// Stores all numbers of frames by verdict.
            #[inline]
            fn store(&self, ends: &VerdictCounts) {
                $(self.$field.store(ends.$field, Ordering::Relaxed);)+
            }

            /// Loads all numbers of frames by verdict.
            fn load(&self) -> VerdictCounts {
                VerdictCounts { $($field: self.$field.load(Ordering::Relaxed),)+ }
            }
        }
    };
}

end_counters! { captured filtered sampled_out deduplicated cut_off dropped_storage bytes }

/// Counters of the later outcomes of frames that a loop or parser has already counted as captured.
#[derive(Debug, Default)]
struct WriterCounters {
    /// Counter of captured frames that could not be written.
    lost: SharedVolume,
    /// Counter of captured frames that are in a file in time order behind a frame with a later stamp.
    out_of_order: AtomicU64,
    /// Counter of captured frames that repeat another queue's frame.
    repeated: SharedVolume,
    /// Counter of captured frames that were sampled out after the merge in time order.
    sampled_out: SharedVolume,
    /// Counter of captured frames that were cut off after the merge in time order.
    cut_off: SharedVolume,
    /// Counter of captured frames that are in finished capture files.
    kept: SharedVolume,
}

/// Counter of frames and of their bytes that several threads share.
#[derive(Debug, Default)]
struct SharedVolume {
    /// Number of counted frames.
    frames: AtomicU64,
    /// Number of bytes of the counted frames.
    bytes: AtomicU64,
}

impl SharedVolume {
    /// Adds frames and their bytes to the counter.
    fn add(&self, frames: u64, bytes: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of counted frames and the number of their bytes.
    fn load(&self) -> (u64, u64) {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        (load(&self.frames), load(&self.bytes))
    }
}

/// Numbers of frames that a receive loop has received so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedCounts {
    /// Number of received frames, including those that were dropped or completed in error.
    pub frames: u64,
    /// Number of frames dropped because a parser's channel was full.
    pub dropped_pipeline: u64,
    /// Number of receives that completed in error.
    pub errors: u64,
}

impl QueueCounters {
    /// Publishes the receive loop's counts of received frames.
    #[inline]
    pub fn publish_received(&self, received: &ReceivedCounts) {
        let c = &self.looped.0;
        // There is one writer, so a load and a store suffice.
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

    /// Publishes the numbers of frames by their consumer's verdict.
    #[inline]
    pub fn publish_ends(&self, ends: &VerdictCounts) {
        self.ended.0.store(ends);
    }

    /// Counts an iteration of the receive loop: once per batch, and several times per second while
    /// the queue is empty.
    #[inline]
    pub fn beat(&self) {
        let beats = &self.looped.0.beats;
        // There is one writer, so a load and a store suffice.
        beats.store(beats.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts an idle iteration of a receive loop that found its queue empty after `since` and has
    /// flushed all frames.
    pub fn idle(&self, since: Instant) {
        let mut idle_at = self.looped.0.idle_at.lock();
        if let Ok(at) = &mut idle_at {
            **at = Some(since);
        }
        drop(idle_at);
        self.beat();
    }

    /// Returns the last time at which the queue was known to be empty, if every received frame is
    /// in a ledger line.
    pub fn settled_at(&self) -> Option<Instant> {
        let at = *self.looped.0.idle_at.lock().ok()?;
        self.ledger(0).is_balanced().then_some(at?)
    }

    /// Publishes the number of WRs that are posted to the NIC.
    #[inline]
    pub fn publish_posted(&self, wrs: u32) {
        self.looped.0.posted.store(wrs.into(), Ordering::Relaxed);
    }

    /// Returns the state of the queue's ring and its receive loop.
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

    /// Counts a recovery of the WQ from an error.
    pub fn add_recovery(&self) {
        self.looped.0.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts frames, previously counted as captured, that the file writer could not write.
    pub fn add_lost(&self, frames: u64, bytes: u64) {
        self.written.0.lost.add(frames, bytes);
    }

    /// Counts a captured frame that is written to a file in time order behind a frame with a later
    /// time stamp.
    pub fn add_out_of_order(&self) {
        self.written.0.out_of_order.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of captured frames that are in a file in time order behind a frame with a
    /// later time stamp.
    #[must_use]
    pub fn out_of_order(&self) -> u64 {
        self.written.0.out_of_order.load(Ordering::Relaxed)
    }

    /// Counts frames, previously counted as captured, that repeat another queue's frames.
    pub fn add_repeated(&self, frames: u64, bytes: u64) {
        self.written.0.repeated.add(frames, bytes);
    }

    /// Counts a frame of `bytes` bytes, previously counted as captured, that was sampled out after
    /// the merge in time order.
    pub fn sampled_out_in_order(&self, bytes: u64) {
        self.written.0.sampled_out.add(1, bytes);
    }

    /// Counts a frame of `bytes` bytes, previously counted as captured, that was cut off after the
    /// merge in time order.
    pub fn cut_off_in_order(&self, bytes: u64) {
        self.written.0.cut_off.add(1, bytes);
    }

    /// Counts captured frames that are in a finished capture file.
    pub fn add_kept(&self, frames: u64, bytes: u64) {
        self.written.0.kept.add(frames, bytes);
    }

    /// Counts captured frames that are in no finished capture file as lost. Called when all writing
    /// has ended.
    pub fn count_unkept_as_lost(&self) {
        let (ledger, (frames, bytes)) = (self.ledger(0), self.written.0.kept.load());
        if ledger.captured > frames {
            let unkept = ledger.captured - frames;
            self.add_lost(unkept, ledger.bytes.saturating_sub(bytes));
        }
    }

    /// Returns the number of received frames that the receive loop passed to no consumer:
    /// `dropped_pipeline` and `errors` of the ledger.
    #[must_use]
    #[inline]
    pub fn lost_in_loop(&self) -> u64 {
        let c = &self.looped.0;
        c.dropped_pipeline.load(Ordering::Relaxed) + c.errors.load(Ordering::Relaxed)
    }

    /// Returns the current ledger of the queue, whose number is `queue`.
    #[must_use]
    pub fn ledger(&self, queue: u16) -> QueueLedger {
        let (c, w) = (&self.looped.0, &self.written.0);
        let [lost, repeated, sampled_out, cut_off] =
            [&w.lost, &w.repeated, &w.sampled_out, &w.cut_off].map(SharedVolume::load);
        let gone = [lost, repeated, sampled_out, cut_off];
        let received = c.received.load(Ordering::Relaxed);
        let e = self.ended.0.load();
        QueueLedger {
            queue,
            port: 0,
            received,
            captured: (e.captured).saturating_sub(gone.iter().map(|it| it.0).sum()),
            filtered: e.filtered,
            sampled_out: e.sampled_out + sampled_out.0,
            deduplicated: e.deduplicated + repeated.0,
            cut_off: e.cut_off + cut_off.0,
            dropped_pipeline: c.dropped_pipeline.load(Ordering::Relaxed),
            dropped_storage: e.dropped_storage + lost.0,
            late: 0,
            errors: c.errors.load(Ordering::Relaxed),
            bytes: e.bytes.saturating_sub(gone.iter().map(|it| it.1).sum()),
        }
    }
}

/// Returns the index of the class in [`FOUND`] that contains a number of frames.
#[inline]
fn bin(frames: u64) -> usize {
    let bits = u64::BITS - frames.saturating_sub(1).leading_zeros();
    (bits as usize).min(FOUND.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polls_are_counted_by_the_number_of_frames() {
        let counters = QueueCounters::default();
        let mut received = ReceivedCounts::default();
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
        counters.publish_received(&ReceivedCounts {
            frames: 22,
            dropped_pipeline: 2,
            errors: 1,
        });
        counters.publish_ends(&VerdictCounts {
            captured: 8,
            filtered: 1,
            sampled_out: 2,
            deduplicated: 3,
            cut_off: 4,
            dropped_storage: 1,
            bytes: 800,
        });
        counters.add_lost(3, 300);
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
                            // A poll that finds fewer frames than granted.
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
