//! A frame inside the NIC: the result of its parser, and its checksums.
//!
//! May import `rss` and `abi`. Invariant: no function panics, whatever the bytes.

pub mod checksum;

use wqcap_rss::{FrameClass, L3, L4};

use crate::abi;

/// Properties of a frame that a flow rule can match in one comparison.
pub mod kind {
    pub const IPV4: u32 = 1 << 0;
    pub const IPV6: u32 = 1 << 1;
    pub const TCP: u32 = 1 << 2;
    pub const UDP: u32 = 1 << 3;
    /// Frame kind: it has a C-VLAN tag behind the MAC addresses.
    pub const CVLAN: u32 = 1 << 4;
    /// Frame kind: the destination MAC address is a group address.
    pub const MULTICAST: u32 = 1 << 5;
    /// Frame kind: the destination MAC address is a single station's.
    pub const UNICAST: u32 = 1 << 6;
}

/// EtherType of an IEEE 802.1Q customer tag (C-VLAN tag).
const TPID_CVLAN: [u8; 2] = [0x81, 0x00];
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;

/// A frame with the result of the NIC's parser.
pub struct ParsedFrame<'f> {
    /// Bytes of the frame from the destination MAC to the last byte before the FCS.
    pub bytes: &'f [u8],
    /// Parsed headers of the frame. Borrowed: a copy of fields that were just stored one by one
    /// would wait for every store before it, including those into other cores' cache lines.
    pub class: &'f FrameClass,
    /// Properties of the frame: bits of [`kind`].
    pub kinds: u32,
    /// Time stamp of the frame by the NIC's clock, in nanoseconds.
    pub now_ns: u64,
}

impl<'f> ParsedFrame<'f> {
    /// Combines a frame with its headers, which [`FrameClass::of`] has parsed.
    #[inline(always)]
    pub fn new(bytes: &'f [u8], class: &'f FrameClass, now_ns: u64) -> Self {
        let kinds = kinds_of(bytes, class);
        Self {
            bytes,
            class,
            kinds,
            now_ns,
        }
    }

    /// Returns the tag control information of the frame's C-VLAN tag behind the MAC addresses, the
    /// only tag that is stripped.
    #[inline]
    pub fn cvlan(&self) -> Option<u16> {
        if self.kinds & kind::CVLAN != 0 {
            self.class.vlan
        } else {
            None
        }
    }

    /// Returns the frame check sequence (FCS) that belongs to the frame's bytes, in the order on a
    /// cable.
    pub fn fcs(&self) -> [u8; 4] {
        crc32fast::hash(self.bytes).to_le_bytes()
    }

    /// Returns `l4_hdr_type_etc` of the frame's CQE without `cv`: bits 6:4 transport, bits 3:2
    /// network layer.
    #[inline]
    pub fn header_types(&self) -> u8 {
        let l3 = match self.class.l3 {
            L3::None => abi::MLX5_CQE_L3_HDR_TYPE_NONE,
            L3::Ipv4 => abi::MLX5_CQE_L3_HDR_TYPE_IPV4,
            L3::Ipv6 => abi::MLX5_CQE_L3_HDR_TYPE_IPV6,
        };
        // PRM "CQE format", l4_hdr_type: 1 TCP without ACK, 2 UDP, 3 TCP with ACK and no data,
        // 4 TCP with ACK and data.
        let l4 = match self.class.l4 {
            L4::None => 0,
            L4::Udp => 2,
            L4::Tcp => {
                let header = self
                    .bytes
                    .get(usize::from(self.class.l4_offset)..)
                    .unwrap_or(&[]);
                let header_len = usize::from(header.get(12).copied().unwrap_or(0) >> 4) * 4;
                let ack = header.get(13).copied().unwrap_or(0) & 0x10 != 0;
                match (ack, header.len() > header_len) {
                    (false, _) => 1,
                    (true, false) => 3,
                    (true, true) => 4,
                }
            }
        };
        (l4 << 4 | l3 << 2) as u8
    }

    /// Returns `hds_ip_ext` of the frame's CQE: a bit for each layer whose checksum is valid.
    pub fn checks(&self) -> u8 {
        let mut checks = abi::MLX5_CQE_L2_OK;
        let network = self
            .bytes
            .get(usize::from(self.class.l3_offset)..)
            .unwrap_or(&[]);
        match self.class.l3 {
            L3::None => return checks as u8,
            L3::Ipv6 => checks |= abi::MLX5_CQE_L3_OK,
            L3::Ipv4 => {
                let header = usize::from(self.class.l4_offset - self.class.l3_offset);
                if checksum::is_valid(checksum::add(0, network.get(..header).unwrap_or(&[]))) {
                    checks |= abi::MLX5_CQE_L3_OK;
                }
            }
        }
        if self.class.l4 != L4::None
            && let Some(segment) = transport(network, self.class)
            && checksum::is_valid(transport_sum(network, self.class, segment))
        {
            checks |= abi::MLX5_CQE_L4_OK;
        }
        checks as u8
    }
}

#[inline(always)]
fn kinds_of(bytes: &[u8], class: &FrameClass) -> u32 {
    let mut kinds = 0;
    // The parser rejects a frame that ends within its transport header: only rules without a layer
    // match it.
    if !class.truncated_l4 {
        kinds |= match class.l3 {
            L3::None => 0,
            L3::Ipv4 => kind::IPV4,
            L3::Ipv6 => kind::IPV6,
        } | match class.l4 {
            L4::None => 0,
            L4::Tcp => kind::TCP,
            L4::Udp => kind::UDP,
        };
    }
    if class.vlan_tags > 0 && bytes.get(12..14) == Some(&TPID_CVLAN) {
        kinds |= kind::CVLAN;
    }
    let group = bytes.first().is_some_and(|byte| byte & 1 != 0);
    kinds
        | if group {
            kind::MULTICAST
        } else {
            kind::UNICAST
        }
}

/// Returns the frame's transport segment without the padding behind it; `None` if the frame is too
/// short for its headers.
fn transport<'f>(network: &'f [u8], class: &FrameClass) -> Option<&'f [u8]> {
    let start = usize::from(class.l4_offset - class.l3_offset);
    let end = match class.l3 {
        L3::None => return None,
        L3::Ipv4 => usize::from(u16::from_be_bytes([*network.get(2)?, *network.get(3)?])),
        L3::Ipv6 => start + usize::from(u16::from_be_bytes([*network.get(4)?, *network.get(5)?])),
    };
    network.get(start..end)
}

/// Returns the checksum's running sum over a transport segment and its pseudo header.
fn transport_sum(network: &[u8], class: &FrameClass, segment: &[u8]) -> u64 {
    let addresses = match class.l3 {
        L3::Ipv4 => network.get(12..20),
        _ => network.get(8..40),
    };
    let addresses = addresses.unwrap_or(&[]);
    let pseudo = checksum::pseudo(addresses, class.ip_protocol, segment.len());
    checksum::add(pseudo, segment)
}

/// Stores the IP and transport checksums in a frame to send, as its send WQE requests
/// (`MLX5_ETH_WQE_L3_CSUM`, `_L4_CSUM`).
pub fn fill_checksums(frame: &mut [u8], l3: bool, l4: bool) {
    let class = FrameClass::from_frame(frame);
    let Some(network) = frame.get_mut(usize::from(class.l3_offset)..) else {
        return;
    };
    if class.l3 == L3::None {
        return;
    }
    let header = usize::from(class.l4_offset - class.l3_offset);
    if l3
        && class.l3 == L3::Ipv4
        && let Some(bytes) = network.get_mut(..header)
    {
        checksum::store(bytes, 10, |bytes| checksum::finish(checksum::add(0, bytes)));
    }
    let at = match class.ip_protocol {
        PROTOCOL_TCP => 16,
        PROTOCOL_UDP => 6,
        _ => return,
    };
    if !l4 || class.l4 == L4::None {
        return;
    }
    let Some(len) = transport(network, &class).map(<[u8]>::len) else {
        return;
    };
    if len < at + 2 {
        return;
    }
    checksum::store(network, header + at, |network| {
        let sum = transport_sum(network, &class, &network[header..header + len]);
        match class.ip_protocol {
            PROTOCOL_UDP => checksum::finish_udp(sum),
            _ => checksum::finish(sum),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(frame: &[u8]) -> u8 {
        ParsedFrame::new(frame, &FrameClass::from_frame(frame), 0).checks()
    }

    fn seen(frame: &[u8]) -> (u32, u8, Option<u16>) {
        let class = FrameClass::from_frame(frame);
        let arrival = ParsedFrame::new(frame, &class, 0);
        (arrival.kinds, arrival.header_types(), arrival.cvlan())
    }

    fn udp(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x02, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend([
            0x45,
            0,
            0,
            (28 + payload.len()) as u8,
            0,
            0,
            0,
            0,
            64,
            17,
            0,
            0,
        ]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x04, 0, 0x13, 0x89, 0, (8 + payload.len()) as u8, 0, 0]);
        frame.extend(payload);
        frame
    }

    #[test]
    fn filled_checksums_are_valid() {
        for payload in [&b"even"[..], b"odd", b""] {
            let mut frame = udp(payload);
            assert_eq!(checks(&frame), 1);
            fill_checksums(&mut frame, true, true);
            // Padding behind the datagram is not summed.
            frame.extend([0xff; 5]);
            assert_eq!(checks(&frame), 7);
            frame[14] ^= 0x01;
        }
    }

    #[test]
    fn kinds_and_header_types() {
        let frame = udp(b"x");
        let ipv4_udp = kind::IPV4 | kind::UDP;
        assert_eq!(
            seen(&frame),
            (ipv4_udp | kind::UNICAST, 2 << 4 | 2 << 2, None)
        );
        assert_eq!(
            seen(&frame[..38]).0,
            kind::UNICAST,
            "ends within its UDP header"
        );
        let mut tagged = frame[..12].to_vec();
        tagged.extend([0x81, 0, 0x20, 100]);
        tagged.extend(&frame[12..]);
        tagged[0] = 1;
        let kinds = ipv4_udp | kind::CVLAN | kind::MULTICAST;
        assert_eq!(seen(&tagged), (kinds, 2 << 4 | 2 << 2, Some(0x2064)));
        tagged[12] = 0x88;
        tagged[13] = 0xa8;
        assert_eq!(seen(&tagged).2, None);
    }

    #[test]
    fn no_bytes_panic() {
        let mut frame = udp(b"payload");
        for len in 0..frame.len() {
            let class = FrameClass::from_frame(&frame[..len]);
            let arrival = ParsedFrame::new(&frame[..len], &class, 0);
            let _ = (arrival.checks(), arrival.header_types(), arrival.fcs());
            fill_checksums(&mut frame.clone()[..len], true, true);
        }
        for at in 12..frame.len() {
            frame[at] = 0xff;
            let _ = checks(&frame);
            fill_checksums(&mut frame.clone(), true, true);
        }
    }
}
