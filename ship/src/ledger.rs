//! The delivery ledger: what has become of the frames that one sensor's capture has in finished files.

use serde::{Deserialize, Serialize};
use wqcap_files::delivery::{Record, State};

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
    }
}
