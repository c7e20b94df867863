//! Capture file of a block sink: closed, open, or open with notes for its next record. All transitions
//! between these states are here; [`super::block`] carries them out.

use super::write_block::Block;
use crate::{Rotation, Totals, requests::PendingNotes};
use wqcap_files::extract::SLACK_NS;

/// Capture file of a sink, in one of three states. The representation has a byte for the state: each
/// frame compares it, and unused values of a field, which take its place otherwise, are 64 bits long.
#[repr(u8)]
pub(super) enum SinkFile {
    /// The sink has no capture file; its next frame record begins one.
    Closed {
        /// Number of frames lost since the last file ended. The next file's statistics include
        /// them.
        lost: u64,
        /// `true` if the next file is already counted towards the write limit.
        is_counted: bool,
        /// Notes for the first record of the next file.
        notes: PendingNotes,
    },
    /// A capture file is open. The only state in which frame records take the fast path.
    Open(OpenSinkFile),
    /// A capture file is open, and its next record carries notes.
    Noted {
        file: OpenSinkFile,
        notes: PendingNotes,
    },
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
            lost: 0,
            is_counted: false,
            notes: PendingNotes::default(),
        }
    }
}

impl SinkFile {
    /// Returns the open file, if there is one.
    #[inline]
    pub(super) fn open(&self) -> Option<&OpenSinkFile> {
        match self {
            Self::Closed { .. } => None,
            Self::Open(file) | Self::Noted { file, .. } => Some(file),
        }
    }

    /// Returns the open file for changes, if there is one.
    pub(super) fn open_mut(&mut self) -> Option<&mut OpenSinkFile> {
        match self {
            Self::Closed { .. } => None,
            Self::Open(file) | Self::Noted { file, .. } => Some(file),
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
        let Self::Closed { lost, notes, .. } = self else {
            return;
        };
        let file = OpenSinkFile {
            block,
            limits: FileLimits {
                frames: limits.frames.saturating_add(*lost),
                ..limits
            },
            totals: Totals {
                first_ns: ns,
                received: *lost,
                dropped: *lost,
                ..Totals::default()
            },
            since_ns: ns,
            peak_ns: 0,
            published: 0,
        };
        let notes = std::mem::take(notes);
        *self = match notes.is_empty() {
            true => Self::Open(file),
            false => Self::Noted { file, notes },
        };
    }

    /// Ends the open file and returns it. `is_counted` is set if the next file is already counted
    /// towards the write limit. Pending notes go to the first record of the next file.
    pub(super) fn end(&mut self, is_counted: bool) -> Option<OpenSinkFile> {
        let closed = |notes| Self::Closed {
            lost: 0,
            is_counted,
            notes,
        };
        match std::mem::take(self) {
            still @ Self::Closed { .. } => {
                *self = still;
                None
            }
            Self::Open(file) => {
                *self = closed(PendingNotes::default());
                Some(file)
            }
            Self::Noted { file, notes } => {
                *self = closed(notes);
                Some(file)
            }
        }
    }

    /// Adds notes for the next frame record with `add`. An open file then leaves the fast path.
    pub(super) fn add_notes(&mut self, add: impl FnOnce(&mut PendingNotes)) {
        match self {
            Self::Closed { notes, .. } | Self::Noted { notes, .. } => add(notes),
            Self::Open(_) => {
                if let Self::Open(file) = std::mem::take(self) {
                    let mut notes = PendingNotes::default();
                    add(&mut notes);
                    *self = Self::Noted { file, notes };
                }
            }
        }
    }

    /// Removes the notes that the last frame record carried. Without further notes the file returns
    /// to the fast path.
    pub(super) fn remove_written_notes(&mut self) {
        if let Self::Noted { notes, .. } = self
            && !notes.remove_written()
            && let Self::Noted { file, .. } = std::mem::take(self)
        {
            *self = Self::Open(file);
        }
    }

    /// Counts `n` frames that no file holds: as received and dropped by the open file, or by the
    /// next one.
    pub(super) fn count_missed(&mut self, n: u64) {
        match self {
            Self::Closed { lost, .. } => *lost += n,
            Self::Open(file) | Self::Noted { file, .. } => {
                file.totals.received += n;
                file.totals.dropped += n;
                file.limits.frames = file.limits.frames.saturating_add(n);
            }
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
    fn frames_lost_between_files_count_in_the_next_file() {
        let mut file = SinkFile::default();
        file.count_missed(3);
        let open = begun(&mut file, 250);
        assert_eq!((open.totals.received, open.totals.dropped), (3, 3));
        assert_eq!(open.limits.frames, 10, "lost frames do not end the file");
        file.count_missed(2);
        let open = file.end(true).expect("open");
        assert_eq!((open.totals.received, open.limits.frames), (5, 12));
        assert!(file.is_counted() && file.end(false).is_none() && file.is_counted());
        assert_eq!(begun(&mut file, 251).totals.received, 0);
        assert!(!file.is_counted());
    }

    #[test]
    fn notes_stay_pending_across_files_until_records_have_carried_them() {
        let mut file = SinkFile::default();
        file.add_notes(|it| it.set_filter("udp"));
        begun(&mut file, 250);
        file.add_notes(|it| it.add_marks((0..5).map(|i| i.to_string().into()).collect()));
        assert!(file.end(false).is_some());
        begun(&mut file, 300);
        file.remove_written_notes();
        assert!(matches!(file, SinkFile::Noted { .. }), "a mark is left");
        file.remove_written_notes();
        assert!(matches!(file, SinkFile::Open(_)));
    }
}
