//! Wire that plays a capture file, or all capture files of a folder.
//!
//! The frames are read into memory when the wire is opened, and are borrowed from there.
//! Opening a file of several GB takes that much memory and the time to read it; playing it costs
//! almost nothing. The captured bytes (caplen) go over the wire, without the FCS if the file
//! declares one, because wires carry none.
//!
//! Invariant: frames are delivered in the order of the file, whatever their time stamps; a frame
//! stamped before its predecessor is due together with it.

mod index;
mod source;

use super::delivery::{Delivery, Receiver, WireDirection, WireState};
use super::error::WireError;
use super::pace::FramePace;
use super::spec::WireSpec;
use super::spec::pcap::{PcapPace, PcapSpec};
use index::PcapRecord;

/// Open `pcap` wire, which plays capture files.
pub(super) struct PcapWire {
    /// Bytes of the frames.
    data: Vec<u8>,
    records: Vec<PcapRecord>,
    /// Index of the next frame that the `pcap` wire plays.
    next: usize,
    /// Rounds of the capture file left, including the current one. `None`: forever; 0: ended.
    rounds: Option<u64>,
    pace: Playback,
    skipped: u64,
    notes: Vec<String>,
}

/// Pace at which the `pcap` wire plays its frames.
enum Playback {
    Unpaced,
    Pace(FramePace),
    /// Pace of the recorded times of the frames, counted from the start of this round.
    Recorded {
        start: Option<u64>,
    },
}

impl PcapWire {
    pub(super) fn open(wire: &WireSpec, spec: &PcapSpec) -> Result<PcapWire, WireError> {
        let mut index = source::read(wire, &spec.file)?;
        let pace = match spec.pace {
            PcapPace::Unpaced => Playback::Unpaced,
            PcapPace::Pps(pps) => Playback::Pace(FramePace::new(pps)),
            PcapPace::Speed(speed) => {
                index.divide_times(speed);
                Playback::Recorded { start: None }
            }
        };
        let rounds = match spec.rounds {
            // A wire without frames has ended.
            _ if index.records.is_empty() => Some(0),
            0 => None,
            rounds => Some(rounds),
        };
        Ok(PcapWire {
            records: index.records,
            next: 0,
            rounds,
            pace,
            skipped: index.skipped,
            notes: index.notes,
            data: index.data,
        })
    }

    pub(super) fn state(&self) -> WireState {
        if self.rounds == Some(0) {
            WireState::Ended
        } else {
            WireState::Up
        }
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped
    }

    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        if self.state() == WireState::Ended {
            return None;
        }
        match &self.pace {
            Playback::Unpaced => None,
            Playback::Pace(pace) => Some(pace.next_due_ns()),
            Playback::Recorded { start: None } => Some(0),
            Playback::Recorded { start: Some(start) } => {
                Some(start.saturating_add(self.records[self.next].due))
            }
        }
    }

    #[inline]
    pub(super) fn burst(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let limit = match &mut self.pace {
            Playback::Pace(pace) => pace.due(now_ns).min(budget as u64) as usize,
            Playback::Recorded { start } => {
                start.get_or_insert(now_ns);
                budget
            }
            Playback::Unpaced => budget,
        };
        let mut taken = 0;
        let mut held = false;
        while taken < limit && self.rounds != Some(0) {
            let record = self.records[self.next];
            if let Playback::Recorded { start: Some(start) } = self.pace
                && start.saturating_add(record.due) > now_ns
            {
                break;
            }
            let bytes = &self.data[record.at..][..record.len as usize];
            if receiver.deliver(bytes, WireDirection::Received) == Delivery::Wait {
                held = true;
                break;
            }
            taken += 1;
            self.next += 1;
            if self.next == self.records.len() {
                self.rewind(record.due);
            }
        }
        if let Playback::Pace(pace) = &mut self.pace {
            pace.count(taken);
        }
        if held {
            self.hold(now_ns);
        }
        taken
    }

    /// Starts the next round of the capture file at the due time of the last record.
    fn rewind(&mut self, last_due: u64) {
        self.next = 0;
        if let Some(rounds) = &mut self.rounds {
            *rounds -= 1;
        }
        if let Playback::Recorded { start: Some(start) } = &mut self.pace {
            *start = start.saturating_add(last_due);
        }
    }

    /// Makes the frame at the head of the `pcap` wire due at `now_ns`. The following frames keep
    /// their distances, as on a link that was paused.
    fn hold(&mut self, now_ns: u64) {
        match &mut self.pace {
            Playback::Unpaced => {}
            Playback::Pace(pace) => pace.hold(now_ns),
            Playback::Recorded { start } => {
                let due = self.records[self.next].due;
                *start = start.map(|start| start.max(now_ns.saturating_sub(due)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
