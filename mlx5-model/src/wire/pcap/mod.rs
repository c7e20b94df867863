//! Wire that plays a capture file, or all capture files of a folder.
//!
//! The frames are read into memory when the wire is opened, and are borrowed from there: playing
//! them costs almost nothing. Of an input with more than 256 MiB of frames only a part is in memory:
//! it is read, and decompressed, while it is played. The captured bytes (caplen) go over the wire, without the FCS if the file
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
use index::FrameChunk;
use source::{Limits, Source};

/// Open `pcap` wire, which plays capture files.
pub(super) struct PcapWire {
    /// Frames that the `pcap` wire plays until it reads further ones.
    frames: FrameChunk,
    source: Source,
    /// Index of the next frame that the `pcap` wire plays.
    next: usize,
    /// Rounds of the capture file left, including the current one. `None`: forever; 0: ended.
    rounds: Option<u64>,
    pace: Playback,
    /// Multiple of the recorded pace at which the `pcap` wire plays its frames.
    speed: f64,
}

/// Pace at which the `pcap` wire plays its frames.
enum Playback {
    Unpaced,
    Pace(FramePace),
    /// Pace of the recorded times of the frames, counted from the `start` of this round of the
    /// input.
    Recorded {
        start: Option<u64>,
    },
}

impl PcapWire {
    pub(super) fn open(wire: &WireSpec, spec: &PcapSpec) -> Result<PcapWire, WireError> {
        Self::open_within(wire, spec, Limits::USUAL)
    }

    /// Opens a `pcap` wire whose frames take at most the memory of `limits`.
    fn open_within(
        wire: &WireSpec,
        spec: &PcapSpec,
        limits: Limits,
    ) -> Result<PcapWire, WireError> {
        let (source, mut frames) = Source::open(wire, spec, limits)?;
        let (pace, speed) = match spec.pace {
            PcapPace::Unpaced => (Playback::Unpaced, 1.0),
            PcapPace::Pps(pps) => (Playback::Pace(FramePace::new(pps)), 1.0),
            PcapPace::Speed(speed) => (Playback::Recorded { start: None }, speed),
        };
        frames.divide_times(speed);
        let rounds = match spec.rounds {
            // A wire without frames has ended.
            _ if frames.records.is_empty() => Some(0),
            0 => None,
            rounds => Some(rounds),
        };
        Ok(PcapWire {
            frames,
            source,
            next: 0,
            rounds,
            pace,
            speed,
        })
    }

    /// Returns `true` if the input of the `pcap` wire can be read only once, such as a pipe.
    pub(super) fn is_stream(&self) -> bool {
        self.source.is_stream()
    }

    pub(super) fn state(&self) -> WireState {
        if self.rounds == Some(0) {
            WireState::Ended
        } else {
            WireState::Up
        }
    }

    pub(super) fn skipped(&self) -> u64 {
        self.source.skipped()
    }

    pub(super) fn notes(&self) -> &[String] {
        self.source.notes()
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
                Some(start.saturating_add(self.frames.records[self.next].due))
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
            let record = self.frames.records[self.next];
            if let Playback::Recorded { start: Some(start) } = self.pace
                && start.saturating_add(record.due) > now_ns
            {
                break;
            }
            let bytes = &self.frames.data[record.at..][..record.len as usize];
            if receiver.deliver(bytes, WireDirection::Received) == Delivery::Wait {
                held = true;
                break;
            }
            taken += 1;
            self.next += 1;
            if self.next == self.frames.records.len() {
                self.read_on(record.due);
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

    /// Continues after the last frame in memory, due at `last_due`: with further frames of the
    /// `pcap` wire's input, or with the next round of the input, which starts at the due time of
    /// its last frame.
    #[cold]
    fn read_on(&mut self, last_due: u64) {
        self.next = 0;
        if self.source.refill(&mut self.frames) {
            self.frames.divide_times(self.speed);
            return;
        }
        if let Some(rounds) = &mut self.rounds {
            *rounds -= 1;
        }
        if let Playback::Recorded { start: Some(start) } = &mut self.pace {
            *start = start.saturating_add(last_due);
        }
        if self.rounds == Some(0) || self.source.is_resident() {
            return;
        }
        if self.source.restart(&mut self.frames) {
            self.frames.divide_times(self.speed);
        } else {
            self.rounds = Some(0);
        }
    }

    /// Makes the frame at the head of the `pcap` wire due at `now_ns`. The following frames keep
    /// their distances, as on a link that was paused.
    fn hold(&mut self, now_ns: u64) {
        match &mut self.pace {
            Playback::Unpaced => {}
            Playback::Pace(pace) => pace.hold(now_ns),
            Playback::Recorded { start } => {
                let due = self.frames.records[self.next].due;
                *start = start.map(|start| start.max(now_ns.saturating_sub(due)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
