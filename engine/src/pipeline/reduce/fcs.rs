//! Check of the Ethernet frame check sequence.
//!
//! Source: IEEE 802.3, 3.2.9: the CRC-32 that zlib uses too, the least significant byte first on the wire.

use super::FcsReport;
use crate::pipeline::Frame;

impl FcsReport {
    /// Checks and counts a frame's FCS, if it has one, and marks the frame if the FCS is bad.
    #[inline]
    pub(super) fn verify(&mut self, frame: &mut Frame<'_>) {
        if let Some(fcs) = &mut frame.fcs {
            fcs.bad = crc32fast::hash(frame.bytes).to_le_bytes() != fcs.bytes;
            self.checked += 1;
            self.bad += u64::from(fcs.bad);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Fcs;

    #[test]
    fn a_damaged_frame_is_found_and_marked() {
        // Check value of CRC-32/ISO-HDLC.
        let without = Frame::new(b"123456789", 9, 0);
        let frame = |bytes: [u8; 4]| {
            let mut frame = without;
            frame.fcs = Some(Fcs { bytes, bad: false });
            frame
        };
        let mut report = FcsReport::default();
        let mut good = frame(0xcbf4_3926u32.to_le_bytes());
        let mut bad = frame(0xcbf4_3927u32.to_le_bytes());
        report.verify(&mut good);
        report.verify(&mut bad);
        report.verify(&mut { without });
        assert_eq!(
            [good, bad].map(|frame| frame.fcs.is_some_and(|fcs| fcs.bad)),
            [false, true]
        );
        assert_eq!(report, FcsReport { checked: 2, bad: 1 });
    }
}
