//! Reconstruction of a frame as the NIC would see it, if the capture file holds only its beginning.
//!
//! A file truncated to 40 bytes per frame holds addresses and ports, but only part of a TCP header.
//! The NIC would have seen the whole header. So missing bytes are replaced by zeros, as long as no
//! hashed byte is missing.

use crate::frame::{
    Ethernet,
    ethertype::{IPV4, IPV6},
};
use strum::VariantNames;
use wqcap_rss::{FrameClass, HashDepth, HashFields, L3, L4, Profile, Toeplitz};

/// Maximum bytes of a simulated frame that are parsed for headers.
const MOST: usize = 256;
/// IPv6 extension headers that precede an L4 header: hop-by-hop options, routing, authentication,
/// destination options, mobility, HIP, shim6.
const EXTENSIONS: [u8; 7] = [0, 43, 51, 60, 135, 139, 140];

/// Reason why the NIC leaves a frame to the catch-all rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum CatchAllReason {
    /// EtherType other than IPv4 and IPv6, so that the catch-all rule takes the frame.
    NotIp,
    /// Malformed IP header, so that the catch-all rule takes the frame.
    DamagedIp,
    /// Packet that ends within its L4 header, so that the catch-all rule takes the frame.
    TruncatedL4,
    /// Hashed bytes that are missing in the file, so that the frame is counted for the catch-all
    /// rule.
    CutInFile,
    /// Frame shorter than an Ethernet header, so that the catch-all rule takes it.
    TooShort,
}

/// Reason why the NIC hashes only a frame's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum HostsReason {
    /// IP fragment, which has no usable ports, so that only the addresses are hashed.
    Fragments,
    /// IP protocol other than TCP and UDP, so that only the addresses are hashed.
    OtherProtocols,
    /// IPv6 extension header in front of the L4 header, so that only the addresses are hashed.
    ExtensionHeaders,
    /// Configuration `rss.hash = "l3"`, so that only the addresses are hashed.
    HashL3,
}

/// Converter from a capture file's frames to the frames that the NIC would see, with a buffer that
/// completes truncated frames.
pub(super) struct NicView {
    /// Buffer for the headers of a truncated frame, completed with zeros.
    filled: [u8; MOST],
}

impl Default for NicView {
    fn default() -> Self {
        Self { filled: [0; MOST] }
    }
}

/// Simulated frame as the NIC would see it.
pub(super) struct NicFrame<'a> {
    /// Layers, offsets and flags of the headers of the simulated frame.
    pub(super) class: FrameClass,
    /// Bytes of the frame, completed with zeros if the file lacks some.
    pub(super) bytes: &'a [u8],
    /// `true` if bytes of the frame that decide the queue are missing in the file.
    cut: bool,
    /// Length of the simulated frame on the wire in bytes, as the file states it.
    len: u32,
}

impl NicView {
    /// Returns the NIC's view of a frame of `len` bytes on the wire, whose first bytes, `bytes`,
    /// are in the capture file.
    #[inline]
    pub(super) fn frame<'a>(&'a mut self, bytes: &'a [u8], len: u32) -> NicFrame<'a> {
        let class = FrameClass::from_frame(bytes);
        let whole = NicFrame {
            class,
            bytes,
            cut: false,
            len,
        };
        if bytes.len() >= len as usize || (class.l3 != L3::None && !class.truncated_l4) {
            return whole;
        }
        self.fill_up(bytes, len)
    }

    /// Completes a truncated frame with zeros, unless bytes are missing that select the queue.
    #[cold]
    fn fill_up<'a>(&'a mut self, bytes: &'a [u8], len: u32) -> NicFrame<'a> {
        let there = bytes.len().min(MOST);
        self.filled[..there].copy_from_slice(&bytes[..there]);
        self.filled[there..].fill(0);
        let filled = &self.filled[..MOST.min(len as usize).max(there)];
        let class = FrameClass::from_frame(filled);
        let l3 = usize::from(class.l3_offset);
        // End of the bytes that the class and the hash depend on.
        let needed = match (class.l4, class.l3) {
            (L4::Tcp | L4::Udp, _) => usize::from(class.l4_offset) + 4,
            (L4::None, L3::Ipv4) => l3 + 20,
            (L4::None, L3::Ipv6) => l3 + 40,
            (L4::None, L3::None) => match class.ethertype {
                IPV4 => l3 + 20,
                IPV6 => l3 + 40,
                _ => l3.max(Ethernet::LEN),
            },
        };
        let cut = needed > there;
        NicFrame {
            class: if cut { FrameClass::default() } else { class },
            bytes: filled,
            cut,
            len,
        }
    }
}

impl NicFrame<'_> {
    /// Returns the RSS profile of the frame: its flow rule and hashed fields.
    #[inline]
    pub(super) fn profile(&self, depth: HashDepth) -> Profile {
        self.class.profile(depth)
    }

    /// Returns the RSS hash of the frame over the header fields `fields`, or `None` if it is not
    /// hashed.
    #[inline]
    pub(super) fn hash(&self, fields: HashFields, toeplitz: &Toeplitz) -> Option<u32> {
        self.class.hash(self.bytes, fields, toeplitz)
    }

    /// Returns the number of the frame's bytes on the wire that are neither in the file nor
    /// replaced by zeros.
    pub(super) fn missing(&self) -> u32 {
        let here = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.len.saturating_sub(here)
    }

    /// Returns the reason why the catch-all rule takes the simulated frame.
    pub(super) fn catch_all_reason(&self) -> CatchAllReason {
        if (self.len as usize) < Ethernet::LEN {
            CatchAllReason::TooShort
        } else if self.cut {
            CatchAllReason::CutInFile
        } else if self.class.truncated_l4 {
            CatchAllReason::TruncatedL4
        } else if matches!(self.class.ethertype, IPV4 | IPV6) {
            CatchAllReason::DamagedIp
        } else {
            CatchAllReason::NotIp
        }
    }

    /// Returns the reason why only the simulated frame's addresses are hashed.
    pub(super) fn hosts_reason(&self) -> HostsReason {
        if self.class.fragment {
            HostsReason::Fragments
        } else if self.class.l4 != L4::None {
            HostsReason::HashL3
        } else if self.class.l3 == L3::Ipv6 && EXTENSIONS.contains(&self.class.ip_protocol) {
            HostsReason::ExtensionHeaders
        } else {
            HostsReason::OtherProtocols
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a TCP frame over IPv4 of 74 bytes.
    fn tcp4() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1f, 0x90, 0, 80]);
        frame.extend([0; 36]);
        frame
    }

    #[test]
    fn a_truncated_frame_is_classified_as_by_the_nic() {
        let whole = tcp4();
        let len = u32::try_from(whole.len()).expect("short frame");
        let toeplitz = Toeplitz::new(&wqcap_rss::RssKey::MICROSOFT);
        let (mut view, mut other) = (NicView::default(), NicView::default());
        let want = other.frame(&whole, len);
        let fields = Profile::Ipv4Tcp.hash_fields();
        for cut in 0..whole.len() {
            let seen = view.frame(&whole[..cut], len);
            if cut >= 38 {
                assert_eq!(seen.profile(HashDepth::L4), Profile::Ipv4Tcp, "{cut}");
                assert_eq!(seen.hash(fields, &toeplitz), want.hash(fields, &toeplitz));
            } else {
                assert_eq!(seen.profile(HashDepth::L4), Profile::CatchAll, "{cut}");
                assert_eq!(seen.catch_all_reason(), CatchAllReason::CutInFile, "{cut}");
            }
        }
    }

    #[test]
    fn reasons_of_frames_are_distinguished() {
        let mut view = NicView::default();
        let mut frame = tcp4();
        assert_eq!(
            view.frame(&frame[..40], 40).catch_all_reason(),
            CatchAllReason::TruncatedL4
        );
        assert_eq!(
            view.frame(&frame[..13], 13).catch_all_reason(),
            CatchAllReason::TooShort
        );
        frame[14] = 0x75;
        assert_eq!(
            view.frame(&frame, 74).catch_all_reason(),
            CatchAllReason::DamagedIp
        );
        frame[13] = 6;
        assert_eq!(
            view.frame(&frame, 74).catch_all_reason(),
            CatchAllReason::NotIp
        );
        // Truncation does not change the class of a frame that is not IP.
        assert_eq!(
            view.frame(&frame[..16], 74).catch_all_reason(),
            CatchAllReason::NotIp
        );
        let mut frame = tcp4();
        assert_eq!(view.frame(&frame, 74).hosts_reason(), HostsReason::HashL3);
        frame[20] = 0x20;
        assert_eq!(
            view.frame(&frame, 74).hosts_reason(),
            HostsReason::Fragments
        );
        frame[20] = 0;
        frame[23] = 1;
        assert_eq!(
            view.frame(&frame, 74).hosts_reason(),
            HostsReason::OtherProtocols
        );
    }
}
