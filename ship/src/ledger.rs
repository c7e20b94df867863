//! The delivery ledger: what has become of the frames that one sensor's capture has in finished files.

use serde::{Deserialize, Serialize};
use wqcap_files::folder::delivery::{Record, State};

/// Frames, each of them in one line: `captured` is the sum of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryLedger {
    /// In the finished files that were found.
    pub captured: u64,
    /// In the store, verified, and to be found there.
    pub shipped: u64,
    /// In files that are still to be sent, or sent in part.
    pub pending: u64,
    /// In files that are not sent (`ship.packets`); what is in them is.
    pub not_selected: u64,
    /// In files that were deleted before they were sent.
    pub expired_unshipped: u64,
}

/// A line of the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// [`DeliveryLedger::shipped`]
    Shipped,
    /// [`DeliveryLedger::pending`]
    Pending,
    /// [`DeliveryLedger::not_selected`]
    NotSelected,
    /// [`DeliveryLedger::expired_unshipped`]
    Expired,
}

impl Fate {
    /// Of a file that is there.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        match (&record.state, record.selected) {
            (_, false) => Self::NotSelected,
            (State::Shipped, true) => Self::Shipped,
            _ => Self::Pending,
        }
    }
}

impl DeliveryLedger {
    /// So many captured frames have this fate.
    pub fn enter(&mut self, fate: Fate, frames: u64) {
        self.captured += frames;
        *match fate {
            Fate::Shipped => &mut self.shipped,
            Fate::Pending => &mut self.pending,
            Fate::NotSelected => &mut self.not_selected,
            Fate::Expired => &mut self.expired_unshipped,
        } += frames;
    }

    /// Whether `captured` is the sum of the others, as it is to be; a ledger may come from elsewhere.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        let others = [
            self.shipped,
            self.pending,
            self.not_selected,
            self.expired_unshipped,
        ];
        let sum = others.into_iter().try_fold(0, u64::checked_add);
        sum == Some(self.captured)
    }

    /// The same of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            captured: self.captured.saturating_add(other.captured),
            shipped: self.shipped.saturating_add(other.shipped),
            pending: self.pending.saturating_add(other.pending),
            not_selected: self.not_selected.saturating_add(other.not_selected),
            expired_unshipped: self
                .expired_unshipped
                .saturating_add(other.expired_unshipped),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_captured_and_in_one_other_line() {
        let mut it = DeliveryLedger::default();
        let fates = [
            Fate::Shipped,
            Fate::Pending,
            Fate::NotSelected,
            Fate::Expired,
        ];
        for (fate, frames) in fates.into_iter().zip([1, 10, 100, 1000]) {
            it.enter(fate, frames);
        }
        let expected = DeliveryLedger {
            captured: 1111,
            shipped: 1,
            pending: 10,
            not_selected: 100,
            expired_unshipped: 1000,
        };
        assert_eq!(it, expected);
        assert!(it.adds_up() && it.plus(&it).adds_up());
        it.captured += 1;
        assert!(!it.adds_up());
        it.shipped = u64::MAX;
        assert!(!it.adds_up() && !it.plus(&it).adds_up());
    }
}
