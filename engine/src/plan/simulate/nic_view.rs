//! What the NIC would see of a frame, of which the file may have kept only the beginning.
//!
//! A file cut to 40 bytes a frame holds addresses and ports but no whole TCP header. The NIC would have seen that
//! header: what the file lacks is taken as zeros, as long as nothing that is hashed is among it.

use crate::frame::{
    Ethernet,
    ethertype::{IPV4, IPV6},
};
use strum::VariantNames;
use wqcap_rss::{FrameClass, HashDepth, HashFields, L3, L4, Profile, Toeplitz};

/// Headers are parsed up to here.
const MOST: usize = 256;
/// IPv6 extension headers: hop-by-hop options, routing, authentication, destination options, mobility, HIP, shim6.
const EXTENSIONS: [u8; 7] = [0, 43, 51, 60, 135, 139, 140];

/// Why a frame is left to the catch-all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum CatchAllReason {
    NotIp,
    DamagedIp,
    TruncatedL4,
    CutInFile,
    TooShort,
}

/// Why a frame is hashed by its addresses alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantNames)]
#[strum(serialize_all = "snake_case")]
pub(super) enum HostsReason {
    Fragments,
    OtherProtocols,
    ExtensionHeaders,
    HashL3,
}

/// Shows frames as the NIC would see them; holds the room to fill one up.
pub(super) struct NicView {
    filled: [u8; MOST],
}

impl Default for NicView {
    fn default() -> Self {
        Self { filled: [0; MOST] }
    }
}

/// A frame as the NIC would see it.
pub(super) struct SeenFrame<'a> {
    pub(super) class: FrameClass,
    pub(super) bytes: &'a [u8],
    /// What decides the queue is not in the file.
    cut: bool,
    len: u32,
}

impl NicView {
    #[inline]
    pub(super) fn frame<'a>(&'a mut self, bytes: &'a [u8], len: u32) -> SeenFrame<'a> {
        let class = FrameClass::of(bytes);
        let whole = SeenFrame {
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

    #[cold]
    fn fill_up<'a>(&'a mut self, bytes: &'a [u8], len: u32) -> SeenFrame<'a> {
        let there = bytes.len().min(MOST);
        self.filled[..there].copy_from_slice(&bytes[..there]);
        self.filled[there..].fill(0);
        let filled = &self.filled[..MOST.min(len as usize).max(there)];
        let class = FrameClass::of(filled);
        let l3 = usize::from(class.l3_offset);
        // The bytes that class and hash depend on end here.
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
        SeenFrame {
            class: if cut { FrameClass::default() } else { class },
            bytes: filled,
            cut,
            len,
        }
    }
}

impl SeenFrame<'_> {
    #[inline]
    pub(super) fn profile(&self, depth: HashDepth) -> Profile {
        self.class.profile(depth)
    }

    #[inline]
    pub(super) fn hash(&self, fields: HashFields, toeplitz: &Toeplitz) -> Option<u32> {
        self.class.hash(self.bytes, fields, toeplitz)
    }

    /// Bytes of the frame that are not here.
    pub(super) fn missing(&self) -> u32 {
        let here = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.len.saturating_sub(here)
    }

    /// Why the catch-all takes it.
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

    /// Why only its addresses are hashed.
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

    fn tcp4() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1f, 0x90, 0, 80]);
        frame.extend([0; 36]);
        frame
    }

    #[test]
    fn a_frame_the_file_has_cut_is_seen_as_the_nic_would() {
        let whole = tcp4();
        let len = u32::try_from(whole.len()).expect("short");
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
    fn reasons() {
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
        // Cut, and no matter: ARP is ARP.
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
