//! Recorder of live statistics of one queue: counts each frame, and publishes a copy of the
//! counters at intervals.

use super::{
    Volume,
    mix::TrafficMix,
    talkers::{Talkers, WINDOW_NS},
};
use hdrhistogram::Histogram;
use std::{
    hash::BuildHasher,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use wqcap_core::time::nanos;
use wqcap_frame::Headers;

/// Interval in nanoseconds at which a recorder publishes the live statistics of its queue.
const EVERY_NS: u64 = 100_000_000;
/// Minimum time span in nanoseconds over which the rate of a queue is computed.
const RATE_NS: u64 = 1_000_000_000;
/// Longest inter-arrival or hold time of frames that is recorded, in nanoseconds: one minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// Number of significant decimal digits of the recorded inter-arrival and hold times of frames.
const DIGITS: u8 = 2;

/// Counters of a live statistics recorder since its start.
#[derive(Clone, Debug)]
pub(super) struct RecorderSums {
    pub(super) mix: TrafficMix,
    pub(super) inter_arrival: Histogram<u64>,
    pub(super) hold: Histogram<u64>,
}

impl Default for RecorderSums {
    fn default() -> Self {
        Self {
            mix: TrafficMix::default(),
            inter_arrival: times(),
            hold: times(),
        }
    }
}

impl RecorderSums {
    /// Copies the counters of `other` without allocating.
    fn copy_from(&mut self, other: &Self) {
        self.mix.clone_from(&other.mix);
        for (mine, theirs) in [
            (&mut self.inter_arrival, &other.inter_arrival),
            (&mut self.hold, &other.hold),
        ] {
            mine.reset();
            // Cannot fail: the bounds are the same.
            let _ = mine.add(theirs);
        }
    }
}

#[allow(clippy::expect_used, reason = "the bounds are valid constants")]
fn times() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, DIGITS).expect("valid bounds")
}

/// Frame and bit rate of a queue over the last one to two seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    pub(super) frames_per_s: f64,
    pub(super) bits_per_s: f64,
}

/// Published live statistics of a recorder, which readers copy.
#[derive(Clone, Debug, Default)]
pub(super) struct Published {
    pub(super) sums: RecorderSums,
    pub(super) rate: Rate,
    /// Heaviest senders of the last complete time window; during the first window, those so far.
    pub(super) talkers: Talkers,
}

/// Published live statistics of a recorder, shared by the receive loop and readers.
#[derive(Debug, Default)]
pub(super) struct PublishedCell(Mutex<Box<Published>>);

impl PublishedCell {
    /// Calls `read` with the recorder's published live statistics. The receive loop does not wait
    /// meanwhile: it skips publications.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Published) -> T) -> Option<T> {
        self.0.lock().ok().map(|it| read(&it))
    }
}

/// Live statistics shared by all recorders and readers.
#[derive(Debug)]
pub(super) struct SharedTotals {
    /// Published live statistics of each recorder; the recorders of one queue are adjacent.
    pub(super) slots: Box<[PublishedCell]>,
    /// Time stamp of the first frame of all queues, where the first talker window starts; 0: no
    /// frame yet.
    pub(super) begun_ns: AtomicU64,
}

/// Frame and byte totals of a recorder at one moment, for computing rates.
#[derive(Clone, Copy, Debug, Default)]
struct RateMark {
    ns: u64,
    total: Volume,
}

/// Live statistics recorder of one queue, which counts its frames. Its memory is private; readers
/// get copies.
pub struct Recorder {
    shared: Arc<SharedTotals>,
    /// Index of this recorder's published statistics among those of all recorders.
    number: usize,
    /// Buffer for the next copy of the live statistics, swapped with the published copy.
    next: Box<Published>,
    sums: RecorderSums,
    talkers: Talkers,
    /// Heaviest senders of the last complete time window.
    before: Talkers,
    marks: [RateMark; 2],
    /// `true` if frame time stamps are system time, so that the system clock can be compared with
    /// them.
    system_time: bool,
    seed: u64,
    first_ns: u64,
    last_ns: u64,
    publish_at: u64,
    /// Time stamp of the first frame of the present batch; 0: the batch has no frame yet.
    oldest_ns: u64,
    idle_since: Option<Instant>,
}

impl Recorder {
    pub(super) fn new(shared: Arc<SharedTotals>, number: usize, system_time: bool) -> Self {
        Self {
            shared,
            number,
            next: Box::default(),
            sums: RecorderSums::default(),
            talkers: Talkers::default(),
            before: Talkers::default(),
            marks: [RateMark::default(); 2],
            system_time,
            seed: std::hash::RandomState::new().hash_one(0),
            first_ns: 0,
            last_ns: 0,
            publish_at: 0,
            oldest_ns: 0,
            idle_since: None,
        }
    }

    /// Counts a frame of `len` bytes on the wire (without FCS), received at `ns`, with its
    /// outermost and innermost headers, in the live statistics.
    #[inline]
    pub fn count(&mut self, frame: &[u8], len: u32, ns: u64, outer: &Headers, inner: &Headers) {
        if ns >= self.publish_at {
            self.due(ns);
        }
        self.sums.mix.count(outer, inner, len);
        if self.last_ns != 0 {
            let gap = ns.saturating_sub(self.last_ns);
            self.sums.inter_arrival.saturating_record(gap);
        }
        self.last_ns = ns;
        if self.oldest_ns == 0 {
            self.oldest_ns = ns;
        }
        self.talkers.count(frame, inner, len, self.seed);
    }

    /// Ends a batch of frames: they have been processed, and their buffers are reposted, at the
    /// system time `now_ns`.
    #[inline]
    pub fn handled(&mut self, now_ns: impl FnOnce() -> u64) {
        if self.system_time && self.oldest_ns != 0 {
            let held = now_ns().saturating_sub(self.oldest_ns);
            self.sums.hold.saturating_record(held);
        }
        self.oldest_ns = 0;
        self.idle_since = None;
    }

    /// Advances the recorder's time while no frame arrives, so that rates decrease to zero.
    pub fn idle(&mut self) {
        if self.last_ns == 0 {
            return;
        }
        let since = *self.idle_since.get_or_insert_with(Instant::now);
        let silent = nanos(since.elapsed());
        self.due(self.last_ns.saturating_add(silent));
    }

    /// Publishes the live statistics if their interval is over, and starts the next talker window
    /// if its time has come.
    #[cold]
    fn due(&mut self, ns: u64) {
        if self.first_ns == 0 {
            self.first_ns = ns;
            // Another queue may have received its first frame earlier.
            let begun = &self.shared.begun_ns;
            let _ = begun.compare_exchange(0, ns, Ordering::Relaxed, Ordering::Relaxed);
            self.talkers.window = self.window(ns);
            self.marks = [self.mark(ns); 2];
        }
        self.publish_at = ns.saturating_add(EVERY_NS);
        self.advance_window(ns);
        self.publish(ns);
    }

    /// Returns the time stamp of the first frame of all queues.
    fn begun_ns(&self) -> u64 {
        self.shared.begun_ns.load(Ordering::Relaxed)
    }

    fn window(&self, ns: u64) -> u64 {
        ns.saturating_sub(self.begun_ns()) / WINDOW_NS
    }

    fn advance_window(&mut self, ns: u64) {
        let window = self.window(ns);
        let begins = self.begun_ns() + self.talkers.window * WINDOW_NS;
        self.talkers.over_ns = ns
            .saturating_sub(self.first_ns.max(begins))
            .clamp(1, WINDOW_NS);
        if window <= self.talkers.window {
            return;
        }
        std::mem::swap(&mut self.before, &mut self.talkers);
        if self.before.window + 1 < window {
            // No frame was counted in the window that has just ended.
            self.before.restart(window - 1);
            self.before.over_ns = WINDOW_NS;
        }
        self.talkers.restart(window);
    }

    fn mark(&self, ns: u64) -> RateMark {
        RateMark {
            ns,
            total: self.sums.mix.total,
        }
    }

    fn rate(&mut self, ns: u64) -> Rate {
        let now = self.mark(ns);
        if now.ns.saturating_sub(self.marks[1].ns) >= RATE_NS {
            self.marks = [self.marks[1], now];
        }
        let from = self.marks[0];
        let seconds = now.ns.saturating_sub(from.ns).max(EVERY_NS) as f64 / 1e9;
        Rate {
            frames_per_s: (now.total.frames - from.total.frames) as f64 / seconds,
            bits_per_s: (now.total.bytes - from.total.bytes) as f64 * 8.0 / seconds,
        }
    }

    /// Publishes a copy of the live statistics, unless a reader holds the published copy.
    fn publish(&mut self, ns: u64) {
        self.copy(ns);
        if let Ok(mut seen) = self.shared.slots[self.number].0.try_lock() {
            std::mem::swap(&mut *seen, &mut self.next);
        }
    }

    fn copy(&mut self, ns: u64) {
        self.next.rate = self.rate(ns);
        self.next.sums.copy_from(&self.sums);
        let whole = self.before.over_ns > 0;
        self.next
            .talkers
            .copy_from(if whole { &self.before } else { &self.talkers });
    }
}

impl Drop for Recorder {
    /// Publishes the recorder's counters since the last publication.
    fn drop(&mut self) {
        if self.last_ns == 0 {
            return;
        }
        self.advance_window(self.last_ns);
        self.copy(self.last_ns);
        if let Ok(mut seen) = self.shared.slots[self.number].0.lock() {
            std::mem::swap(&mut *seen, &mut self.next);
        }
    }
}
