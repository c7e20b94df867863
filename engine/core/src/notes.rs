//! Notes of a run: a bounded number of lines, each of a bounded length, whatever those who may change
//! the capture do.

use crate::text::{counted, shortened};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// Maximum number of notes that a run keeps; further notes are only counted here and are in the
/// log.
const MOST: usize = 1000;
/// Maximum length in bytes of a run's note; a longer note is shortened.
const LONGEST: usize = 1024;

/// Notes of a run: events that matter to readers of its capture files, one line each, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunNotes {
    lines: Vec<String>,
    /// Number of notes that were not kept because there were too many.
    left_out: u64,
}

impl RunNotes {
    /// Adds a note of the run. A note of more than 1 KiB is shortened, and notes after the first
    /// 1000 are only counted.
    pub fn push(&mut self, note: &str) {
        if self.lines.len() < MOST {
            self.lines.push(shortened(note, LONGEST).into_owned());
        } else {
            self.left_out += 1;
        }
    }

    /// Adds the notes of a later capture of the same run.
    pub fn absorb(&mut self, later: Self) {
        later.lines.iter().for_each(|it| self.push(it));
        self.left_out += later.left_out;
    }

    /// Returns the notes of the run, and behind them a line with the number of notes that were left
    /// out.
    pub fn lines(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let count = counted(self.left_out, "further note");
        let rest =
            (self.left_out > 0).then(|| Cow::Owned(format!("{count} can be read in the log")));
        self.lines.iter().map(|it| it.as_str().into()).chain(rest)
    }
}

impl Extend<String> for RunNotes {
    fn extend<T: IntoIterator<Item = String>>(&mut self, notes: T) {
        notes.into_iter().for_each(|it| self.push(&it));
    }
}

impl FromIterator<String> for RunNotes {
    fn from_iter<T: IntoIterator<Item = String>>(notes: T) -> Self {
        let mut all = Self::default();
        all.extend(notes);
        all
    }
}

impl Serialize for RunNotes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.lines())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_long_notes_takes_little_memory() {
        let mut notes = RunNotes::default();
        for n in 0..MOST + 7 {
            notes.push(&format!("{n} {}", "x".repeat(118_000)));
        }
        notes.absorb([String::from("later")].into_iter().collect());
        let lines: Vec<_> = notes.lines().collect();
        assert_eq!(lines.len(), MOST + 1);
        assert!(lines[MOST - 1].starts_with("999 "));
        assert_eq!(lines[MOST], "8 further notes can be read in the log");
        assert!(lines.iter().all(|it| it.len() < LONGEST + 40));
    }
}
