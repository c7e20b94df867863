//! Wire that generates traffic: UDP and TCP flows over IPv4 and IPv6, as fast as memory allows.
//!
//! Frames are prepared when the wire is opened, one template for each flow and size, and borrowed
//! from there. Per frame only the sequence number is stored.
//!
//! The last 8 bytes of the payload are a little-endian sequence number over all flows, from 0.
//! Tests check loss and order with it. The 8 bytes before the number are its complement, so that
//! the checksum over both never changes. If the payload is too short for the complement, the
//! checksum is stored as well. A payload shorter than 8 bytes has no number, but its frame counts
//! in the sequence. Checksums (IPv4, UDP, TCP) are valid in every frame.
//!
//! Invariant: after opening, templates keep their size and place, and only the sequence number, its
//! complement and the checksum change.

use super::delivery::{Delivery, Receiver, WireDirection, WireFrame, WireState};
use super::pace::FramePace;
use super::spec::synth::{ETHERNET, LINE, SynthSpec, VLAN};
use crate::frame::checksum;

/// Number of frames by which a `synth` wire stores sequence numbers ahead of delivery. A NIC that
/// copies a frame that was just stored would wait for every earlier store, including those into
/// other cores' cache lines.
const AHEAD: u64 = 12;

const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
const TCP: u8 = 6;
/// Locally administered MAC addresses of the two ends of a generated flow.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// UDP and TCP port of iperf for generated frames, which no dissector decodes as another protocol.
const PORT: u16 = 5001;

/// Open `synth` wire, which generates frames.
pub(super) struct SynthWire {
    /// Bytes of the frames of all templates of the `synth` wire.
    bytes: Vec<u8>,
    templates: Vec<Template>,
    /// Index of the template of the next generated frame.
    next: usize,
    /// Number of frames taken from the `synth` wire, which is the next frame's sequence number.
    sent: u64,
    /// Number of generated frames whose sequence number has been stored.
    numbered: u64,
    /// Index of the frame template that gets the next sequence number.
    next_numbered: usize,
    /// Number of frames by which this `synth` wire stores sequence numbers ahead of delivery. A
    /// template can be numbered again only once its frame is taken.
    ahead: u64,
    /// Number of frames after which the `synth` wire ends.
    count: u64,
    pace: Option<FramePace>,
}

/// Prepared frame of one flow and size of the `synth` wire.
#[derive(Clone, Copy, Debug)]
struct Template {
    /// Offset of the prepared frame in the bytes of all templates.
    at: usize,
    len: u32,
    /// Offset of the sequence number in the generated frame; 0 if the payload is too short for one.
    sequence_at: u32,
    /// Offset, in the bytes of all templates, of the sequence number's complement, which precedes
    /// the number; 0 if the payload is too short for it.
    complement_at: u32,
    /// Offset of the UDP or TCP checksum in the generated frame.
    checksum_at: u32,
    /// Running sum over the bytes that the generated frame's UDP or TCP checksum covers, folded to
    /// 16 bits, with checksum, sequence number and complement at zero.
    sum: u16,
    /// Set when the generated frame's sequence number is at an odd offset of the bytes under the
    /// checksum.
    odd: bool,
    udp: bool,
}

impl SynthWire {
    pub(super) fn new(spec: &SynthSpec) -> SynthWire {
        let layout = spec.layout();
        let mut wire = SynthWire {
            bytes: Vec::with_capacity(layout.bytes as usize),
            templates: Vec::with_capacity(layout.templates),
            next: 0,
            sent: 0,
            numbered: 0,
            next_numbered: 0,
            ahead: AHEAD.min(layout.templates as u64 - 1),
            count: spec.count.unwrap_or(u64::MAX),
            pace: spec.pps.map(FramePace::new),
        };
        for i in 0..layout.templates {
            wire.build(spec, i as u32, layout.sizes[i % layout.sizes.len()]);
        }
        for _ in 0..wire.ahead {
            wire.number();
        }
        wire
    }

    pub(super) fn state(&self) -> WireState {
        if self.sent == self.count {
            WireState::Ended
        } else {
            WireState::Up
        }
    }

    pub(super) fn next_due_ns(&self) -> Option<u64> {
        match self.state() {
            WireState::Up => self.pace.as_ref().map(FramePace::next_due_ns),
            _ => None,
        }
    }

    /// Returns the frame of the `synth` wire's template `index`. Its headers do not depend on the
    /// sequence number.
    #[inline(always)]
    fn frame(&self, index: usize) -> WireFrame<'_> {
        let template = &self.templates[index];
        WireFrame {
            came_ns: 0,
            bytes: &self.bytes[template.at..][..template.len as usize],
            direction: WireDirection::Received,
        }
    }

    #[inline]
    pub(super) fn burst<R: Receiver>(
        &mut self,
        now_ns: u64,
        budget: usize,
        receiver: &mut R,
    ) -> usize {
        let mut limit = (self.count - self.sent).min(budget as u64);
        if let Some(pace) = &mut self.pace {
            limit = limit.min(pace.due(now_ns));
        }
        if limit == 0 {
            return 0;
        }
        // The two are used alternately and never copied. A load of a whole value that was stored
        // field by field would have to wait.
        let mut parsed = [receiver.parse(&self.frame(self.next)), R::Parsed::default()];
        let mut current = 0;
        let mut taken = 0;
        let mut held = false;
        while taken < limit {
            if self.numbered - (self.sent + taken) <= self.ahead {
                self.number();
            }
            let after = match self.next + 1 {
                after if after == self.templates.len() => 0,
                after => after,
            };
            parsed[current ^ 1] = receiver.parse(&self.frame(after));
            if receiver.receive(self.frame(self.next), &parsed[current]) == Delivery::Wait {
                held = true;
                break;
            }
            current ^= 1;
            self.next = after;
            taken += 1;
        }
        self.sent += taken;
        if let Some(pace) = &mut self.pace {
            pace.count(taken as usize);
            if held {
                pace.hold(now_ns);
            }
        }
        taken as usize
    }

    /// Stores the next sequence number in the frame template that is numbered next.
    #[inline(always)]
    fn number(&mut self) {
        let template = &self.templates[self.next_numbered];
        if template.complement_at != 0 {
            let both = u128::from(self.numbered) << 64 | u128::from(!self.numbered);
            let at = template.complement_at as usize;
            self.bytes[at..at + 16].copy_from_slice(&both.to_le_bytes());
        } else {
            let bytes = &mut self.bytes[template.at..][..template.len as usize];
            template.number(bytes, self.numbered);
        }
        self.numbered += 1;
        self.next_numbered += 1;
        if self.next_numbered == self.templates.len() {
            self.next_numbered = 0;
        }
    }

    fn build(&mut self, spec: &SynthSpec, index: u32, size: u32) {
        let (flow, reverse) = match spec.both {
            true => (index / 2 % spec.flows, index % 2 == 1),
            false => (index % spec.flows, false),
        };
        let ipv6 = spec.ip.is_second(flow);
        // The protocol alternates at half the rate of the IP version, so that all four kinds occur.
        let tcp = spec.proto.is_second(flow / 2);
        let at = self.bytes.len().next_multiple_of(LINE);
        self.bytes.resize(at + size as usize, 0);
        let frame = &mut self.bytes[at..];
        let ends = |a: usize| a ^ usize::from(reverse);

        frame[0..6].copy_from_slice(&MACS[ends(1)]);
        frame[6..12].copy_from_slice(&MACS[ends(0)]);
        let mut ip_at = ETHERNET;
        if let Some(vlan) = spec.vlan {
            frame[12..14].copy_from_slice(&ETHERTYPE_VLAN);
            frame[14..16].copy_from_slice(&vlan.to_be_bytes());
            ip_at += VLAN;
        }
        let ethertype = if ipv6 { ETHERTYPE_IPV6 } else { ETHERTYPE_IPV4 };
        frame[ip_at - 2..ip_at].copy_from_slice(&ethertype);

        let protocol = if tcp { TCP } else { UDP };
        let (l4_at, addresses_at) = match ipv6 {
            false => (ip_at + 20, ip_at + 12),
            true => (ip_at + 40, ip_at + 8),
        };
        let l4_length = size as usize - l4_at;
        match ipv6 {
            false => ipv4(&mut frame[ip_at..l4_at], protocol, l4_length, flow, ends),
            true => ipv6_header(&mut frame[ip_at..l4_at], protocol, l4_length, flow, ends),
        }

        let mut ports = [1024 + (flow % 60_000) as u16, PORT];
        if reverse {
            ports.reverse();
        }
        let l4 = &mut frame[l4_at..];
        l4[0..2].copy_from_slice(&ports[0].to_be_bytes());
        l4[2..4].copy_from_slice(&ports[1].to_be_bytes());
        let (header, checksum_at) = match tcp {
            false => {
                l4[4..6].copy_from_slice(&(l4_length as u16).to_be_bytes());
                (8, 6)
            }
            true => {
                // Sequence and acknowledgement 1, 5 words of header, PSH and ACK, a full window
                // (RFC 9293 section 3.1).
                l4[4..12].copy_from_slice(&[0, 0, 0, 1, 0, 0, 0, 1]);
                l4[12..16].copy_from_slice(&[5 << 4, 0x18, 0xff, 0xff]);
                (20, 16)
            }
        };
        let payload = &mut l4[header..];
        let numbered = payload.len().checked_sub(8);
        let complemented = numbered.and_then(|it| it.checked_sub(8));
        let filled = complemented.or(numbered).unwrap_or(payload.len());
        for (i, byte) in payload[..filled].iter_mut().enumerate() {
            *byte = i as u8;
        }
        let sum = checksum::pseudo(&frame[addresses_at..l4_at], protocol, l4_length);
        let sum = checksum::add(sum, &frame[l4_at..]);
        let template = Template {
            at,
            len: size,
            sequence_at: numbered.map_or(0, |it| (l4_at + header + it) as u32),
            complement_at: complemented.map_or(0, |it| (at + l4_at + header + it) as u32),
            checksum_at: (l4_at + checksum_at) as u32,
            sum: checksum::fold(sum),
            odd: numbered.is_some_and(|it| it % 2 == 1),
            udp: !tcp,
        };
        template.checksum(frame, 0);
        self.templates.push(template);
    }
}

impl Template {
    /// Stores a sequence number in the generated frame, and the checksum that includes it.
    #[cold]
    fn number(&self, frame: &mut [u8], sequence: u64) {
        let at = self.sequence_at as usize;
        if at != 0 {
            let bytes = sequence.to_le_bytes();
            frame[at..at + 8].copy_from_slice(&bytes);
            // Words that straddle two words of the sum count with their bytes swapped (RFC 1071
            // section 2(B)). A rotation of all of them by one byte has the same effect.
            let words = u64::from_ne_bytes(bytes).rotate_left(if self.odd { 8 } else { 0 });
            self.checksum(frame, (words >> 32) + (words & 0xffff_ffff));
        }
    }

    /// Stores the UDP or TCP checksum of the generated frame. `more` is the running sum over the
    /// sequence number.
    #[inline]
    fn checksum(&self, frame: &mut [u8], more: u64) {
        let sum = u64::from(self.sum) + more;
        let sum = match self.udp {
            true => checksum::finish_udp(sum),
            false => checksum::finish(sum),
        };
        let at = self.checksum_at as usize;
        frame[at..at + 2].copy_from_slice(&sum);
    }
}

/// Writes the IPv4 header of a generated frame (RFC 791 section 3.1). Flow `n` goes from 10.x.y.z,
/// with `n` in x.y.z, to 198.18.y.z.
fn ipv4(ip: &mut [u8], protocol: u8, l4: usize, flow: u32, ends: impl Fn(usize) -> usize) {
    let number = flow.to_be_bytes();
    let addresses = [
        [10, number[1], number[2], number[3]],
        [198, 18, number[2], number[3]],
    ];
    ip[0] = 0x45;
    let total = (ip.len() + l4) as u16;
    ip[2..4].copy_from_slice(&total.to_be_bytes());
    ip[6] = 0x40; // Don't fragment, as from any stack that discovers its path's MTU.
    ip[8] = 64;
    ip[9] = protocol;
    ip[12..16].copy_from_slice(&addresses[ends(0)]);
    ip[16..20].copy_from_slice(&addresses[ends(1)]);
    let sum = checksum::finish(checksum::add(0, ip));
    ip[10..12].copy_from_slice(&sum);
}

/// Writes the IPv6 header of a generated frame (RFC 8200 section 3). Flow `n` goes from 2001:db8::n
/// to 2001:db8:1::n.
fn ipv6_header(ip: &mut [u8], protocol: u8, l4: usize, flow: u32, ends: impl Fn(usize) -> usize) {
    let address = |end: u8| {
        let mut address = [0x20, 1, 0x0d, 0xb8, 0, end, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        address[12..].copy_from_slice(&flow.to_be_bytes());
        address
    };
    ip[0] = 0x60;
    ip[4..6].copy_from_slice(&(l4 as u16).to_be_bytes());
    ip[6] = protocol;
    ip[7] = 64;
    ip[8..24].copy_from_slice(&address(ends(0) as u8));
    ip[24..40].copy_from_slice(&address(ends(1) as u8));
}

#[cfg(test)]
mod tests;
