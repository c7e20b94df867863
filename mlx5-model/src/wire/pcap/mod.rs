//! A wire that plays a capture file.
//!
//! The file is read into memory when the wire is opened, and its frames are lent from there: opening a
//! file of some GB takes that much memory and the time to read it, playing it costs next to nothing.
//! What was captured (caplen bytes) is what goes over the wire, except that an FCS that the file says it
//! has is left off, since wires carry none.
//!
//! May import: `index`, `pace`, `spec`. Invariant: frames come in the order of the file, whatever their
//! time stamps; a stamp before its predecessor's is due together with it.

mod index;

use std::fs;
use std::io;

use super::pace::Pace;
use super::spec::{PcapPace, PcapSpec};
use super::{Direction, Take, Taker, WireError, WireSpec, WireState};
use index::{Index, Record};

/// The player.
pub(super) struct PcapWire {
    data: Vec<u8>,
    records: Vec<Record>,
    next: usize,
    /// Rounds still to be played, this one included; `None` is for ever, 0 is the end.
    rounds: Option<u64>,
    schedule: Schedule,
    skipped: u64,
    notes: Vec<String>,
}

enum Schedule {
    Eager,
    Pace(Pace),
    /// At the records' own times, counted from when this round began.
    Recorded {
        start: Option<u64>,
    },
}

impl PcapWire {
    pub(super) fn open(wire: &WireSpec, spec: &PcapSpec) -> Result<PcapWire, WireError> {
        let data = fs::read(&spec.file).map_err(|e| {
            let advice = match spec.file.rsplit_once(',') {
                Some((_, word)) if e.kind() == io::ErrorKind::NotFound => format!(
                    "`,{word}` was taken for a part of the file's name: a pcap wire's options are \
                     loop=N, pps=N, speed=X and lossy"
                ),
                _ => String::new(),
            };
            WireError::new(wire, format!("read {}", spec.file), e, advice)
        })?;
        let mut index = Index::of(&data).map_err(|problem| {
            let source = io::Error::new(io::ErrorKind::InvalidData, problem.what);
            WireError::new(
                wire,
                format!("understand {}", spec.file),
                source,
                problem.advice,
            )
        })?;
        let schedule = match spec.pace {
            PcapPace::Eager => Schedule::Eager,
            PcapPace::Pps(pps) => Schedule::Pace(Pace::new(pps)),
            PcapPace::Speed(speed) => {
                index.hasten(speed);
                Schedule::Recorded { start: None }
            }
        };
        let rounds = match spec.rounds {
            // Nothing for ever is nothing.
            _ if index.records.is_empty() => Some(0),
            0 => None,
            rounds => Some(rounds),
        };
        Ok(PcapWire {
            records: index.records,
            next: 0,
            rounds,
            schedule,
            skipped: index.skipped,
            notes: index.notes,
            data,
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
        match &self.schedule {
            Schedule::Eager => None,
            Schedule::Pace(pace) => Some(pace.next_due_ns()),
            Schedule::Recorded { start: None } => Some(0),
            Schedule::Recorded { start: Some(start) } => {
                Some(start.saturating_add(self.records[self.next].due))
            }
        }
    }

    #[inline]
    pub(super) fn burst(&mut self, now_ns: u64, budget: usize, taker: &mut impl Taker) -> usize {
        let limit = match &mut self.schedule {
            Schedule::Pace(pace) => pace.due(now_ns).min(budget as u64) as usize,
            Schedule::Recorded { start } => {
                start.get_or_insert(now_ns);
                budget
            }
            Schedule::Eager => budget,
        };
        let mut taken = 0;
        let mut held = false;
        while taken < limit && self.rounds != Some(0) {
            let record = self.records[self.next];
            if let Schedule::Recorded { start: Some(start) } = self.schedule
                && start.saturating_add(record.due) > now_ns
            {
                break;
            }
            let bytes = &self.data[record.at..][..record.len as usize];
            if taker.hand(bytes, Direction::Received) == Take::Wait {
                held = true;
                break;
            }
            taken += 1;
            self.next += 1;
            if self.next == self.records.len() {
                self.rewind(record.due);
            }
        }
        if let Schedule::Pace(pace) = &mut self.schedule {
            pace.took(taken);
        }
        if held {
            self.hold(now_ns);
        }
        taken
    }

    fn rewind(&mut self, last_due: u64) {
        self.next = 0;
        if let Some(rounds) = &mut self.rounds {
            *rounds -= 1;
        }
        if let Schedule::Recorded { start: Some(start) } = &mut self.schedule {
            *start = start.saturating_add(last_due);
        }
    }

    /// The head is due now, and what follows keeps its distance, as on a link that was paused.
    fn hold(&mut self, now_ns: u64) {
        match &mut self.schedule {
            Schedule::Eager => {}
            Schedule::Pace(pace) => pace.hold(now_ns),
            Schedule::Recorded { start } => {
                let due = self.records[self.next].due;
                *start = start.map(|start| start.max(now_ns.saturating_sub(due)));
            }
        }
    }
}

#[cfg(test)]
mod tests;
