//! Capture file of a block sink: closed, open, or open with notes or drops that wait for its next
//! record. All transitions between these states are here; [`super::block`] carries them out.

use super::write_block::Block;
use crate::{Note, Rotation, Totals, requests::PendingNotes};
use wqcap_files::extract::SLACK_NS;

/// Capture file of a sink, in one of three states. The representation has a byte for the state: each
/// frame compares it, and unused values of a field, which take its place otherwise, are 64 bits long.
#[repr(u8)]
pub(super) enum SinkFile {
    /// The sink has no capture file; its next frame record begins one.
    Closed {
        /// `true` if the next file is already counted towards the write limit.
        is_counted: bool,
        /// Notes and drops that wait for the first record of the next file.
        pending: Pending,
    },
    /// A capture file is open. The only state in which frame records take the fast path.
    Open(OpenSinkFile),
    /// A capture file is open, and notes or drops wait for its next record.
    Waiting {
        file: OpenSinkFile,
        pending: Pending,
    },
}

/// Notes and drops that wait for the next frame record of a sink, in this file or the next one.
#[derive(Default)]
pub(super) struct Pending {
    /// Notes that the record carries.
    notes: PendingNotes,
    /// Number of frames that were dropped since the last frame record, by the index of their
    /// interface. The statistics of the record's file include them.
    missed: Vec<u64>,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.notes.is_empty() && self.missed.is_empty()
    }
}

/// Capture file that a sink has begun and not ended.
pub(super) struct OpenSinkFile {
    /// Write block that the sink fills with the file's records.
    pub(super) block: Block,
    pub(super) limits: FileLimits,
    /// Frame statistics of the capture file, written at its end.
    pub(super) totals: Totals,
    /// Lower bound of the frame time stamps in `block`, in nanoseconds since 1970.
    pub(super) since_ns: u64,
    /// Latest time stamp of the file's frame records up to the last call of
    /// [`OpenSinkFile::keep_peak`], in nanoseconds since 1970; 0: there was none.
    peak_ns: u64,
    /// Number of the file's bytes that were added to the write limit's count.
    pub(super) published: u64,
}

/// Limits of an open capture file: a frame record beyond one of them begins the next file. The
/// value `u64::MAX` stands for no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileLimits {
    /// Least time stamp of a frame in the file, in nanoseconds since 1970: a clock that is set back
    /// begins the next file.
    since_ns: u64,
    /// Time from `since_ns`, in nanoseconds, at which the next file begins.
    span_ns: u64,
    /// Value of [`Totals::received`] at which the next file begins.
    pub(super) frames: u64,
    /// Maximum length of the file in bytes without its trailer.
    pub(super) len: u64,
}

impl FileLimits {
    /// No limits: the file takes all further frame records.
    const NONE: Self = Self {
        since_ns: 0,
        span_ns: u64::MAX,
        frames: u64::MAX,
        len: u64::MAX,
    };

    /// Returns the limits of a file whose first record is stamped `ns` and whose trailer has
    /// `trailer` bytes. The file also ends at `next_header_ns`.
    pub(super) fn new(rotation: Rotation, ns: u64, trailer: u64, next_header_ns: u64) -> Self {
        let limit = |value, limit| if value == 0 { u64::MAX } else { limit };
        let Rotation {
            size,
            period_ns: period,
            frames,
        } = rotation;
        let end_ns = ns
            .checked_div(period)
            .map_or(u64::MAX, |periods| (periods + 1).saturating_mul(period));
        let since_ns = match rotation == Rotation::default() {
            true => 0,
            false => ns.saturating_sub(SLACK_NS),
        };
        Self {
            since_ns,
            span_ns: end_ns.min(next_header_ns).saturating_sub(since_ns),
            frames: limit(frames, frames),
            len: limit(size, size.saturating_sub(trailer)),
        }
    }

    /// Returns `true` if a frame stamped `ns` belongs to the file, by its time.
    #[inline]
    pub(super) fn takes_time(&self, ns: u64) -> bool {
        ns.wrapping_sub(self.since_ns) < self.span_ns
    }
}

impl Default for SinkFile {
    fn default() -> Self {
        Self::Closed {
            is_counted: false,
            pending: Pending::default(),
        }
    }
}

impl SinkFile {
    /// Returns the open file, if there is one.
    #[inline]
    pub(super) fn open(&self) -> Option<&OpenSinkFile> {
        match self {
            Self::Closed { .. } => None,
            Self::Open(file) | Self::Waiting { file, .. } => Some(file),
        }
    }

    /// Returns the open file for changes, if there is one.
    pub(super) fn open_mut(&mut self) -> Option<&mut OpenSinkFile> {
        match self {
            Self::Closed { .. } => None,
            Self::Open(file) | Self::Waiting { file, .. } => Some(file),
        }
    }

    /// Returns `true` if the next file is already counted towards the write limit.
    pub(super) fn is_counted(&self) -> bool {
        matches!(
            self,
            Self::Closed {
                is_counted: true,
                ..
            }
        )
    }

    /// Begins a file with the first block `block`, whose first record is stamped `ns`. Without
    /// effect if a file is open.
    pub(super) fn begin(&mut self, block: Block, ns: u64, limits: FileLimits) {
        let Self::Closed { pending, .. } = self else {
            return;
        };
        let file = OpenSinkFile {
            block,
            limits,
            totals: Totals {
                first_ns: ns,
                ..Totals::default()
            },
            since_ns: ns,
            peak_ns: 0,
            published: 0,
        };
        let pending = std::mem::take(pending);
        *self = Self::with_pending(file, pending);
    }

    /// Ends the open file and returns it. `is_counted` is set if the next file is already counted
    /// towards the write limit. Pending notes and drops go to the first record of the next file.
    pub(super) fn end(&mut self, is_counted: bool) -> Option<OpenSinkFile> {
        let (file, pending) = match std::mem::take(self) {
            still @ Self::Closed { .. } => {
                *self = still;
                return None;
            }
            Self::Open(file) => (file, Pending::default()),
            Self::Waiting { file, pending } => (file, pending),
        };
        *self = Self::Closed {
            is_counted,
            pending,
        };
        Some(file)
    }

    /// Returns the state of an open file with these notes and drops for its next record.
    fn with_pending(file: OpenSinkFile, pending: Pending) -> Self {
        match pending.is_empty() {
            true => Self::Open(file),
            false => Self::Waiting { file, pending },
        }
    }

    /// Changes the notes and drops for the next frame record with `change`. An open file that has any
    /// leaves the fast path.
    fn change_pending(&mut self, change: impl FnOnce(&mut Pending)) {
        match self {
            Self::Closed { pending, .. } | Self::Waiting { pending, .. } => change(pending),
            Self::Open(_) => {
                if let Self::Open(file) = std::mem::take(self) {
                    let mut pending = Pending::default();
                    change(&mut pending);
                    *self = Self::with_pending(file, pending);
                }
            }
        }
    }

    /// Adds notes for the next frame record with `add`.
    pub(super) fn add_notes(&mut self, add: impl FnOnce(&mut PendingNotes)) {
        self.change_pending(|it| add(&mut it.notes));
    }

    /// Counts `n` frames of the interface with this index that no file holds: as received and
    /// dropped by the file of the next frame record.
    pub(super) fn count_missed(&mut self, interface: u32, n: u64) {
        let index = interface as usize;
        self.change_pending(|Pending { missed, .. }| {
            if n > 0 {
                missed.resize(missed.len().max(index + 1), 0);
                missed[index] += n;
            }
        });
    }

    /// Returns the notes that the next frame record carries.
    pub(super) fn notes(&self) -> Vec<Note> {
        match self {
            Self::Open(_) => Vec::new(),
            Self::Closed { pending, .. } | Self::Waiting { pending, .. } => pending.notes.notes(),
        }
    }

    /// Counts the pending drops in the open file, if there is one.
    pub(super) fn settle_missed(&mut self) {
        if let Self::Waiting { file, pending } = self {
            file.count_missed(&std::mem::take(&mut pending.missed));
        }
    }

    /// Counts the drops before the last frame record in its file, and removes the notes that it
    /// carried. Without further notes the file returns to the fast path.
    pub(super) fn settle(&mut self) {
        self.settle_missed();
        if let Self::Waiting { pending, .. } = self
            && !pending.notes.remove_written()
            && let Self::Waiting { file, .. } = std::mem::take(self)
        {
            *self = Self::Open(file);
        }
    }
}

impl OpenSinkFile {
    /// Returns the length of the file in bytes so far.
    pub(super) fn len(&self) -> u64 {
        self.block.offset + self.block.len as u64
    }

    /// Returns `true` if a frame record of `need` bytes stamped `ns` belongs to the next file. A
    /// record longer than the maximum length gets a separate file.
    pub(super) fn is_due(&self, ns: u64, need: usize) -> bool {
        let is_full = self.len() + need as u64 > self.limits.len;
        !self.limits.takes_time(ns)
            || self.totals.received >= self.limits.frames
            || (is_full && self.totals.received > self.totals.dropped)
    }

    /// Returns `true` if the clock was not set back by more than [`SLACK_NS`] between the file's last
    /// frame record and one stamped `ns`.
    #[inline]
    pub(super) fn follows(&self, ns: u64) -> bool {
        ns.saturating_add(SLACK_NS) >= self.totals.last_ns
    }

    /// Keeps the latest time stamp of the file's frame records, because that of the next one may be
    /// earlier.
    pub(super) fn keep_peak(&mut self) {
        self.peak_ns = self.latest_ns();
    }

    /// Returns the latest time stamp of a frame in the file, except for frames that are at most
    /// [`SLACK_NS`] later than their successor.
    pub(super) fn latest_ns(&self) -> u64 {
        self.peak_ns.max(self.totals.last_ns)
    }

    /// Counts frames that no file holds, by the index of their interface, as received and dropped.
    /// They do not bring the file closer to its limit.
    fn count_missed(&mut self, missed: &[u64]) {
        for (interface, n) in (0..).zip(missed) {
            self.totals.received += n;
            self.totals.dropped += n;
            self.totals.count_of(interface, *n, *n);
            self.limits.frames = self.limits.frames.saturating_add(*n);
        }
    }

    /// Counts a frame record, stamped `ns`, that was appended to the file.
    #[inline]
    pub(super) fn count_record(&mut self, ns: u64) {
        self.totals.received += 1;
        self.totals.last_ns = ns;
    }

    /// Removes all limits: no further file is allowed, and the file takes all further records.
    pub(super) fn lift_limits(&mut self) {
        self.limits = FileLimits::NONE;
        self.block.lift_limit();
    }

    /// Returns the span of the frame time stamps in the current block, in nanoseconds.
    #[inline]
    pub(super) fn held_ns(&self) -> u64 {
        self.totals.last_ns.saturating_sub(self.since_ns)
    }

    /// Continues the capture file in the empty block `next` and returns the current block. The new
    /// block repeats the last `repeated` bytes of the current one, because direct I/O writes whole
    /// sectors, followed by `rest`, the part of a record that did not fit.
    pub(super) fn continue_in(&mut self, mut next: Block, repeated: usize, rest: &[u8]) -> Block {
        let block = &self.block;
        let offset = self.len() - repeated as u64;
        next.begin_within(self.limits.len, block.file, offset, block.first_ns);
        next.append(&block.memory.as_slice(block.len)[block.len - repeated..]);
        next.append(rest);
        next.whole = next.len;
        self.since_ns = self.totals.last_ns;
        std::mem::replace(&mut self.block, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_memory::Region;

    const PERIOD: Rotation = Rotation {
        size: 1000,
        period_ns: 100,
        frames: 7,
    };

    fn begun(file: &mut SinkFile, ns: u64) -> &mut OpenSinkFile {
        let block = Block::new(Region::allocate(4096, None).expect("memory"));
        file.begin(block, ns, FileLimits::new(PERIOD, ns, 10, u64::MAX));
        file.open_mut().expect("begun")
    }

    #[test]
    fn limits_are_the_end_of_the_period_the_frames_and_the_length_without_trailer() {
        let all = |it: FileLimits| (it.since_ns + it.span_ns, it.frames, it.len);
        let limits = |rotation, next| all(FileLimits::new(rotation, 250, 10, next));
        assert_eq!(limits(PERIOD, u64::MAX), (300, 7, 990));
        assert_eq!(limits(PERIOD, 260), (260, 7, 990));
        assert_eq!(limits(Rotation::default(), u64::MAX), all(FileLimits::NONE));
    }

    #[test]
    fn a_clock_that_is_set_back_begins_the_next_file() {
        let at = 10 * SLACK_NS;
        let limits = FileLimits::new(PERIOD, at, 10, u64::MAX);
        let taken = [at - SLACK_NS - 1, at - SLACK_NS, at, at + 99, at + 100];
        let taken = taken.map(|ns| limits.takes_time(ns));
        assert_eq!(taken, [false, true, true, true, false]);
        assert!(!limits.takes_time(0) && !limits.takes_time(u64::MAX));
        // Without rotation there is one file.
        let limits = FileLimits::new(Rotation::default(), at, 10, u64::MAX);
        assert!(limits.takes_time(0) && limits.takes_time(u64::MAX - 1));
    }

    #[test]
    fn missed_frames_count_in_the_file_of_the_next_record() {
        let counts = |it: &OpenSinkFile| (it.totals.received, it.totals.dropped);
        let mut file = SinkFile::default();
        file.count_missed(0, 3);
        file.count_missed(2, 1);
        assert_eq!(counts(begun(&mut file, 250)), (0, 0));
        file.settle();
        assert!(matches!(file, SinkFile::Open(_)));
        let open = file.open().expect("open");
        assert_eq!(counts(open), (4, 4));
        let of = open.totals.interfaces.iter().map(|it| it.dropped);
        assert_eq!(of.collect::<Vec<_>>(), [3, 0, 1]);
        assert_eq!(open.limits.frames, 11, "missed frames do not end the file");
        // Behind the last record of a file, they go to the next file.
        file.count_missed(0, 2);
        assert_eq!(counts(&file.end(true).expect("open")), (4, 4));
        assert!(file.is_counted() && file.end(false).is_none() && file.is_counted());
        begun(&mut file, 251);
        assert!(!file.is_counted());
        file.settle();
        // Behind the last record of the run, they go to the last file.
        file.count_missed(0, 5);
        file.settle_missed();
        assert_eq!(counts(&file.end(false).expect("open")), (7, 7));
        begun(&mut file, 252);
        assert!(matches!(file, SinkFile::Open(_)), "each is counted once");
    }

    #[test]
    fn notes_stay_pending_across_files_until_records_have_carried_them() {
        let mut file = SinkFile::default();
        file.add_notes(|it| it.set_filter("udp"));
        begun(&mut file, 250);
        file.add_notes(|it| it.add_marks((0..5).map(|i| i.to_string().into()).collect()));
        assert!(file.end(false).is_some());
        begun(&mut file, 300);
        file.settle();
        assert!(matches!(file, SinkFile::Waiting { .. }), "a mark is left");
        file.settle();
        assert!(matches!(file, SinkFile::Open(_)));
    }
}
