//! Truncation of frames after a header (`capture.slice`).

use crate::frame::Headers;
use wqcap_frame::Slice;

/// Returns the number of bytes of a frame that slicing keeps.
///
/// `headers` are those of the innermost packet. A frame without the header in question is kept
/// whole: a frame that is not IP, has an L4 header of unknown length (OSPF, for example), or ends
/// before the header. Later fragments have no L4 header, so they are cut after the L3 header.
#[inline]
pub(super) fn keep(slice: Slice, headers: &Headers, len: usize) -> usize {
    let behind_l4 = || {
        if headers.fragment.is_later() {
            headers.l4()
        } else {
            headers.payload()
        }
    };
    let at = match slice {
        Slice::Whole => None,
        Slice::L3 => headers.l4(),
        Slice::L4 => behind_l4(),
        Slice::Payload(more) => behind_l4().map(|at| at.saturating_add(more as usize)),
    };
    at.map_or(len, |at| at.min(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an IPv4 frame with 4 bytes of options, protocol `protocol`, and 100 bytes after the
    /// IPv4 header.
    fn frame(protocol: u8, fragment: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend_from_slice(&[8, 0, 0x46, 0, 0, 124, 0, 0]);
        frame.extend_from_slice(&fragment.to_be_bytes());
        frame.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 1, 1, 1, 1]);
        frame.extend_from_slice(&[0x50; 100]);
        frame
    }

    /// Returns the number of bytes that a slice keeps of a frame.
    fn kept(slice: Slice, frame: &[u8]) -> usize {
        keep(slice, &Headers::innermost(frame), frame.len())
    }

    #[test]
    fn frames_are_cut_after_each_header() {
        for (protocol, l4) in [(6, 20), (17, 8), (1, 8), (132, 12), (50, 8)] {
            let frame = frame(protocol, 0);
            assert_eq!(kept(Slice::Whole, &frame), 138);
            assert_eq!(kept(Slice::L3, &frame), 38);
            assert_eq!(kept(Slice::L4, &frame), 38 + l4, "protocol {protocol}");
            assert_eq!(kept(Slice::Payload(10), &frame), 48 + l4);
            assert_eq!(kept(Slice::Payload(u32::MAX), &frame), 138);
        }
    }

    #[test]
    fn without_the_header_frames_stay_whole() {
        assert_eq!(kept(Slice::L4, &frame(89, 0)), 138);
        assert_eq!(kept(Slice::L3, &frame(89, 0)), 38);
        let mut arp = frame(6, 0);
        arp[13] = 6;
        assert_eq!(kept(Slice::L3, &arp), 138);
        assert_eq!(kept(Slice::L4, &frame(6, 0)[..50]), 50);
        assert_eq!(kept(Slice::L4, &[]), 0);
    }

    #[test]
    fn later_fragments_are_cut_after_l3() {
        assert_eq!(kept(Slice::L4, &frame(17, 0x2000)), 46);
        assert_eq!(kept(Slice::L4, &frame(17, 0x0010)), 38);
        assert_eq!(kept(Slice::Payload(4), &frame(17, 0x0010)), 42);
    }

    #[test]
    fn tunnels_are_followed() {
        // IPv4 in IPv4: the inner header begins where the outer's options end.
        let mut tunnel = frame(4, 0);
        let inner = frame(17, 0);
        tunnel.splice(38.., inner[14..].iter().copied());
        tunnel[17] = 0;
        assert_eq!(kept(Slice::L3, &tunnel), 62);
        assert_eq!(kept(Slice::L4, &tunnel), 70);
    }
}
