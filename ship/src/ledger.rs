//! Delivery ledger: frames in the finished files of a sensor's capture, by delivery state.

use serde::{Deserialize, Serialize};
use wqcap_files::folder::delivery::{DeliveryRecord, DeliveryState};

/// Number of captured frames by delivery state: `captured` is the sum of the other lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeliveryLedger {
    /// Number of frames in the finished capture files that `wqcap ship` found.
    pub captured: u64,
    /// Number of frames that are in the store, verified and listed in `blocks/`.
    pub shipped: u64,
    /// Number of frames in capture files that are not sent yet, or sent in part.
    pub pending: u64,
    /// Number of frames in capture files that `ship.packets` does not select; of these only the
    /// tables of blocks are sent.
    pub not_selected: u64,
    /// Number of frames in capture files that were deleted before they were sent to the store.
    pub expired_unshipped: u64,
}

/// Delivery state of captured frames, which selects a line of the delivery ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameState {
    /// Frames that are in the store, verified and listed in `blocks/`: [`DeliveryLedger::shipped`].
    Shipped,
    /// Frames in capture files that are not sent yet, or sent in part: [`DeliveryLedger::pending`].
    Pending,
    /// Frames in capture files that `ship.packets` does not select:
    /// [`DeliveryLedger::not_selected`].
    NotSelected,
    /// Frames in capture files deleted before they were sent:
    /// [`DeliveryLedger::expired_unshipped`].
    Expired,
}

impl FrameState {
    /// Returns the delivery state of the frames of a capture file that was not deleted.
    pub(crate) fn from_record(record: &DeliveryRecord) -> Self {
        match (&record.state, record.selected) {
            (_, false) => Self::NotSelected,
            (DeliveryState::Shipped, true) => Self::Shipped,
            _ => Self::Pending,
        }
    }
}

impl DeliveryLedger {
    /// Adds `frames` captured frames with the delivery state `fate` to the ledger.
    pub fn add_frames(&mut self, fate: FrameState, frames: u64) {
        self.captured = self.captured.saturating_add(frames);
        let line = match fate {
            FrameState::Shipped => &mut self.shipped,
            FrameState::Pending => &mut self.pending,
            FrameState::NotSelected => &mut self.not_selected,
            FrameState::Expired => &mut self.expired_unshipped,
        };
        *line = line.saturating_add(frames);
    }

    /// Returns the lines of the delivery ledger with their names, `captured` first.
    #[must_use]
    pub fn lines(&self) -> [(&'static str, u64); 5] {
        [
            ("captured", self.captured),
            ("shipped", self.shipped),
            ("pending", self.pending),
            ("not_selected", self.not_selected),
            ("expired_unshipped", self.expired_unshipped),
        ]
    }

    /// Returns `true` if `captured` is the sum of the delivery ledger's other lines. Ledgers of
    /// other sensors may be inconsistent.
    #[must_use]
    pub fn adds_up(&self) -> bool {
        let [(_, captured), others @ ..] = self.lines();
        let mut others = others.into_iter().map(|(_, frames)| frames);
        others.try_fold(0, u64::checked_add) == Some(captured)
    }

    /// Returns the sum of two delivery ledgers.
    #[must_use]
    pub fn sum_with(&self, other: &Self) -> Self {
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
    fn each_frame_is_in_captured_and_one_other_line() {
        let mut it = DeliveryLedger::default();
        let fates = [
            FrameState::Shipped,
            FrameState::Pending,
            FrameState::NotSelected,
            FrameState::Expired,
        ];
        for (fate, frames) in fates.into_iter().zip([1, 10, 100, 1000]) {
            it.add_frames(fate, frames);
        }
        let expected = DeliveryLedger {
            captured: 1111,
            shipped: 1,
            pending: 10,
            not_selected: 100,
            expired_unshipped: 1000,
        };
        assert_eq!(it, expected);
        assert!(it.adds_up() && it.sum_with(&it).adds_up());
        it.captured += 1;
        assert!(!it.adds_up());
        it.shipped = u64::MAX;
        assert!(!it.adds_up() && !it.sum_with(&it).adds_up());
    }
}
