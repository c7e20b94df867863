//! Splitting of super-frames into the frames of a wire.
//!
//! A kernel passes on frames that only a NIC would finish: with checksums left to the hardware
//! (CHECKSUM_PARTIAL) and with many segments in one frame (GSO, GRO, "BIG TCP"). A packet socket
//! describes this in a `struct virtio_net_hdr` before the frame. This module finishes such frames
//! as a NIC's TSO and checksum offload would, also behind VLAN tags, PPPoE and tunnels.
//!
//! Imports `frame::checksum` and `frame::crc`. Works in place: the header of a segment is written
//! directly before its payload, over the end of the previous segment. So segments must be used in
//! order, and no payload is copied.
//!
//! Invariants: the segments' payloads, one after the other, are the super-frame's payload; nothing
//! is written outside the frame; a frame that cannot be parsed is left whole.

use std::ops::Range;

use crate::frame::{checksum, crc};

/// Header in front of a packet socket's frame: `struct virtio_net_hdr` (linux/virtio_net.h), in the
/// machine's byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct VirtioHeader {
    flags: u8,
    gso_type: u8,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// Flag of a frame with an incomplete checksum, VIRTIO_NET_HDR_F_NEEDS_CSUM.
const NEEDS_CSUM: u8 = 1;
// Types of super-frames, VIRTIO_NET_HDR_GSO_*.
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in an SCTP header, which is a CRC (RFC 9260 section 3.1). No other
/// protocol has this offset.
const SCTP_CSUM_OFFSET: u16 = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
/// TCP flags FIN and PSH, which belong to the last segment of a super-frame (RFC 9293 section 3.1).
const TCP_LAST_ONLY: u8 = 0x09;
/// TCP flag CWR, which belongs to the first segment of a super-frame (RFC 3168 section 6.1.2).
const TCP_FIRST_ONLY: u8 = 0x80;

/// Longest headers of a super-frame that is split, in bytes. Several tunnels fit.
const MAX_HEADER_LEN: usize = 512;

impl VirtioHeader {
    /// Bytes of the virtio header, `sizeof(struct virtio_net_hdr)`.
    pub(super) const LEN: usize = 10;

    pub(super) fn read(bytes: &[u8; Self::LEN]) -> VirtioHeader {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        VirtioHeader {
            flags: bytes[0],
            gso_type: bytes[1],
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
        }
    }

    /// Returns `true` if the virtio header describes a complete frame: a single frame with its
    /// checksum.
    pub(super) fn is_plain(&self) -> bool {
        self.flags & NEEDS_CSUM == 0 && self.gso_type & !GSO_ECN == GSO_NONE
    }

    /// Moves the checksum's start in the virtio header by `bytes` that were inserted before it.
    pub(super) fn shift(&mut self, bytes: u16) {
        self.csum_start = self.csum_start.saturating_add(bytes);
    }

    fn csum_start(&self) -> Option<usize> {
        (self.flags & NEEDS_CSUM != 0).then_some(usize::from(self.csum_start))
    }
}

/// Result of [`SegmentSplit::start`] for a frame of a packet socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GsoOutcome {
    /// Outcome for a single frame, whose checksum is complete now.
    Whole,
    /// Outcome for a super-frame that is split: [`SegmentSplit::next`] returns its segments.
    Split,
    /// Outcome for a super-frame that cannot be split.
    Unsplit,
}

/// Header of a super-frame that is updated in each segment, because it depends on the segment's
/// length or on other headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    kind: HeaderKind,
    at: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderKind {
    Pppoe,
    Ipv4,
    Ipv6,
    /// UDP header of a tunnel in a super-frame, or the UDP header whose payload is split.
    Udp,
    Gre,
    Tcp,
}

/// Super-frame that is split segment by segment.
#[derive(Default)]
pub(super) struct SegmentSplit {
    /// Bytes of the super-frame before its payload.
    header: Vec<u8>,
    /// Headers of the super-frame, from the outside inwards.
    headers: Vec<Header>,
    /// Range of the super-frame's payload that is not in a segment yet.
    payload: Range<usize>,
    /// Payload of a segment of the super-frame in bytes.
    gso_size: usize,
    /// Number of the super-frame's next segment, from 0.
    next: u32,
    /// Set when the super-frame's innermost UDP header has a checksum.
    checksummed: bool,
}

impl SegmentSplit {
    /// Completes a single frame, or prepares to split a super-frame.
    pub(super) fn start(&mut self, frame: &mut [u8], virtio: &VirtioHeader) -> GsoOutcome {
        let kind = virtio.gso_type & !GSO_ECN;
        if kind == GSO_NONE {
            complete_checksum(frame, virtio);
            return GsoOutcome::Whole;
        }
        if self.prepare(frame, virtio, kind).is_some() {
            return GsoOutcome::Split;
        }
        self.payload = 0..0;
        complete_checksum(frame, virtio);
        GsoOutcome::Unsplit
    }

    fn prepare(&mut self, frame: &[u8], virtio: &VirtioHeader, kind: u8) -> Option<()> {
        let l4 = match kind {
            GSO_TCPV4 | GSO_TCPV6 => TCP,
            GSO_UDP_L4 => UDP,
            _ => return None,
        };
        // Headers are not parsed beyond the length that can be split.
        let mut walk = HeaderWalk {
            frame: &frame[..frame.len().min(MAX_HEADER_LEN)],
            target: virtio.csum_start(),
            l4,
            headers: &mut self.headers,
            jumbo: None,
        };
        walk.headers.clear();
        let l4_at = walk.ethernet(12)?;
        let jumbo = walk.jumbo;
        let payload_at = l4_at
            + match l4 {
                TCP => match usize::from(frame.get(l4_at + 12)? >> 4) * 4 {
                    0..20 => return None,
                    length => length,
                },
                _ => 8,
            };
        let checksum = frame.get(l4_at + 6..l4_at + 8)?;
        self.checksummed = virtio.csum_start().is_some() || checksum != [0, 0];
        if virtio.gso_size == 0 || payload_at >= frame.len() || payload_at > MAX_HEADER_LEN {
            return None;
        }
        self.header.clear();
        self.header.extend_from_slice(&frame[..payload_at]);
        if let Some(at) = jumbo {
            self.remove_jumbo(at);
        }
        self.payload = payload_at..frame.len();
        self.gso_size = usize::from(virtio.gso_size);
        self.next = 0;
        Some(())
    }

    /// Removes the IPv6 hop-by-hop header at `at`. It has the length of the super-frame (RFC 2675)
    /// and never leaves the host.
    fn remove_jumbo(&mut self, at: usize) {
        let ip_at = at - 40;
        self.header[ip_at + 6] = self.header[at];
        self.header.drain(at..at + 8);
        for header in &mut self.headers {
            if header.at > at {
                header.at -= 8;
            }
        }
    }

    /// Builds the super-frame's next segment and returns its range in `frame`, which must be the
    /// prepared frame. Overwrites earlier segments.
    pub(super) fn next(&mut self, frame: &mut [u8]) -> Option<Range<usize>> {
        if self.payload.is_empty() {
            return None;
        }
        let start = self.payload.start - self.header.len();
        let len = self.payload.len().min(self.gso_size);
        self.payload.start += len;
        let range = start..self.payload.start;
        let segment = &mut frame[range.clone()];
        segment[..self.header.len()].copy_from_slice(&self.header);
        for i in (0..self.headers.len()).rev() {
            self.update_header(segment, i);
        }
        self.next += 1;
        Some(range)
    }

    /// Updates the super-frame's header `i` for the segment, after all headers inside it.
    fn update_header(&self, segment: &mut [u8], i: usize) {
        let Header { kind, at } = self.headers[i];
        let length = segment.len() - at;
        let whole = |bytes: &[u8]| checksum::finish(checksum::add(0, bytes));
        match kind {
            HeaderKind::Pppoe => write_half(segment, at + 4, length - 6),
            HeaderKind::Ipv4 => {
                let id = u16::from_be_bytes([segment[at + 4], segment[at + 5]]);
                write_half(segment, at + 2, length);
                let id = id.wrapping_add(self.next as u16);
                write_half(segment, at + 4, id.into());
                let end = at + usize::from(segment[at] & 0xf) * 4;
                checksum::store(&mut segment[at..end], 10, whole);
            }
            HeaderKind::Ipv6 => write_half(segment, at + 4, length - 40),
            HeaderKind::Udp => {
                write_half(segment, at + 4, length);
                let innermost = i + 1 == self.headers.len();
                let wanted = match innermost {
                    true => self.checksummed,
                    false => segment[at + 6..at + 8] != [0, 0],
                };
                if wanted {
                    checksum::store(segment, at + 6, |segment| {
                        checksum::finish_udp(self.sum(segment, i, UDP))
                    });
                }
            }
            HeaderKind::Gre => {
                // RFC 2784 section 2.1: the C bit, and a checksum over header and payload.
                if segment[at] & 0x80 != 0 {
                    checksum::store(&mut segment[at..], 4, whole);
                }
            }
            HeaderKind::Tcp => {
                let field = &mut segment[at + 4..at + 8];
                let sequence = field
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | u32::from(*byte));
                let before = self.next.wrapping_mul(self.gso_size as u32);
                field.copy_from_slice(&sequence.wrapping_add(before).to_be_bytes());
                if !self.payload.is_empty() {
                    segment[at + 13] &= !TCP_LAST_ONLY;
                }
                if self.next > 0 {
                    segment[at + 13] &= !TCP_FIRST_ONLY;
                }
                checksum::store(segment, at + 16, |segment| {
                    checksum::finish(self.sum(segment, i, TCP))
                });
            }
        }
    }

    /// Returns the sum, for a checksum, over header `i` of a segment and all bytes behind it, and
    /// over the pseudo header of the IP header around it.
    fn sum(&self, segment: &[u8], i: usize, protocol: u8) -> u64 {
        let at = self.headers[i].at;
        let around = self.headers[i - 1];
        let addresses = match around.kind {
            HeaderKind::Ipv4 => around.at + 12..around.at + 20,
            _ => around.at + 8..around.at + 40,
        };
        let sum = checksum::pseudo(&segment[addresses], protocol, segment.len() - at);
        checksum::add(sum, &segment[at..])
    }
}

/// Writes a 16-bit header field of a segment in network byte order.
fn write_half(segment: &mut [u8], at: usize, value: usize) {
    segment[at..at + 2].copy_from_slice(&(value as u16).to_be_bytes());
}

/// Completes the checksum of a single frame. Its field already has the sum of the pseudo header.
fn complete_checksum(frame: &mut [u8], virtio: &VirtioHeader) {
    let Some(start) = virtio.csum_start() else {
        return;
    };
    let at = start + usize::from(virtio.csum_offset);
    if virtio.csum_offset == SCTP_CSUM_OFFSET {
        if at + 4 <= frame.len() {
            frame[at..at + 4].fill(0);
            let crc = crc::crc32c(&frame[start..]);
            frame[at..at + 4].copy_from_slice(&crc);
        }
    } else if at + 2 <= frame.len() {
        let sum = checksum::finish_udp(checksum::add(0, &frame[start..]));
        frame[at..at + 2].copy_from_slice(&sum);
    }
}

/// Walk over the headers of a super-frame, from Ethernet to the L4 header whose payload is split.
struct HeaderWalk<'a> {
    frame: &'a [u8],
    /// Offset of the super-frame's L4 header, if known from the checksum. It need not be the first
    /// L4 header of its kind.
    target: Option<usize>,
    /// IP protocol of the super-frame's L4 header.
    l4: u8,
    headers: &'a mut Vec<Header>,
    /// Offset of the super-frame's jumbo payload header, which must not go over the wire.
    jumbo: Option<usize>,
}

impl HeaderWalk<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.frame.get(at).copied()
    }

    fn half(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes(*self.frame.get(at..)?.first_chunk()?))
    }

    fn push(&mut self, kind: HeaderKind, at: usize) {
        self.headers.push(Header { kind, at });
    }

    /// Walks a super-frame's headers from the EtherType at `at` inwards, and returns the offset of
    /// the L4 header.
    fn ethernet(&mut self, at: usize) -> Option<usize> {
        match self.half(at)? {
            // 802.1Q, 802.1ad, and the old QinQ one.
            0x8100 | 0x88a8 | 0x9100 => self.ethernet(at + 4),
            0x0800 => self.ipv4(at + 2),
            0x86dd => self.ipv6(at + 2),
            0x8847 | 0x8848 => self.mpls(at + 2),
            // RFC 2516 section 4: six bytes, the last two a length; then PPP's protocol.
            0x8864 => {
                self.push(HeaderKind::Pppoe, at + 2);
                match self.half(at + 8)? {
                    0x0021 => self.ipv4(at + 10),
                    0x0057 => self.ipv6(at + 10),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Walks a super-frame's stack of MPLS labels (RFC 3032 section 2.1). A label has four bytes;
    /// the low bit of the third byte marks the last label.
    fn mpls(&mut self, at: usize) -> Option<usize> {
        match (self.byte(at + 2)? & 1, self.byte(at + 4)? >> 4) {
            (0, _) => self.mpls(at + 4),
            (_, 4) => self.ipv4(at + 4),
            (_, 6) => self.ipv6(at + 4),
            _ => None,
        }
    }

    fn ipv4(&mut self, at: usize) -> Option<usize> {
        let first = self.byte(at)?;
        let header = usize::from(first & 0xf) * 4;
        if first >> 4 != 4 || header < 20 {
            return None;
        }
        self.push(HeaderKind::Ipv4, at);
        self.ip_payload(self.byte(at + 9)?, at + header)
    }

    fn ipv6(&mut self, at: usize) -> Option<usize> {
        if self.byte(at)? >> 4 != 6 {
            return None;
        }
        self.push(HeaderKind::Ipv6, at);
        let (mut next, first) = (self.byte(at + 6)?, at + 40);
        let mut at = first;
        // Hop-by-hop, routing, destination options (RFC 8200 section 4).
        while let 0 | 43 | 60 = next {
            let (kind, length) = (self.byte(at)?, self.byte(at + 1)?);
            // RFC 2675 section 2: option 0xc2 of 4 bytes, in a separate header.
            let option = self.frame.get(at + 2..at + 4)?;
            if next == 0 && at == first && length == 0 && option == [0xc2, 4] {
                self.jumbo.get_or_insert(at);
            }
            next = kind;
            at += 8 + usize::from(length) * 8;
        }
        self.ip_payload(next, at)
    }

    fn ip_payload(&mut self, protocol: u8, at: usize) -> Option<usize> {
        if protocol == self.l4 && self.target.is_none_or(|it| it == at) {
            self.push(
                if protocol == TCP {
                    HeaderKind::Tcp
                } else {
                    HeaderKind::Udp
                },
                at,
            );
            return Some(at);
        }
        match protocol {
            4 => self.ipv4(at),
            41 => self.ipv6(at),
            47 => self.gre(at),
            // A tunnel. Its header depends on the meaning of the port, so the inner IP header is
            // searched from its end.
            UDP => {
                self.push(HeaderKind::Udp, at);
                self.inner(at + 8)
            }
            _ => None,
        }
    }

    /// Walks a super-frame's GRE header (RFC 2784 and 2890): flags, protocol, and four bytes each
    /// for checksum, key and sequence number.
    fn gre(&mut self, at: usize) -> Option<usize> {
        let flags = self.byte(at)?;
        let options = [0x80, 0x20, 0x10]
            .iter()
            .filter(|it| flags & **it != 0)
            .count();
        self.push(HeaderKind::Gre, at);
        let payload = at + 4 + options * 4;
        match self.half(at + 2)? {
            0x0800 => self.ipv4(payload),
            0x86dd => self.ipv6(payload),
            0x8847 => self.mpls(payload),
            // Transparent Ethernet bridging.
            0x6558 => self.ethernet(payload + 12),
            _ => None,
        }
    }

    /// Finds the IP header whose payload begins at the super-frame's known L4 header, and walks on
    /// from it. The header must not begin before `from`.
    fn inner(&mut self, from: usize) -> Option<usize> {
        let target = self.target?;
        let room = target.checked_sub(from)?;
        for words in 5..=15 {
            let length = words * 4;
            if length <= room {
                let at = target - length;
                let valid = self.byte(at)? == 0x40 | words as u8
                    && self.byte(at + 9)? == self.l4
                    && checksum::is_valid(checksum::add(0, self.frame.get(at..target)?));
                if valid {
                    return self.ipv4(at);
                }
            }
        }
        let at = target.checked_sub(40).filter(|at| *at >= from)?;
        (self.byte(at)? >> 4 == 6 && self.byte(at + 6)? == self.l4)
            .then(|| self.ipv6(at))
            .flatten()
    }
}

#[cfg(test)]
pub(super) mod tests;
