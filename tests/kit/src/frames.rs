//! Builder of frames for tests.

pub mod encapsulated;
pub mod filters;

/// Builder of one frame: each method appends a header or a payload.
#[derive(Clone, Debug)]
pub struct Frame {
    bytes: Vec<u8>,
    /// Length fields to fill in: offset of the field, and offset from which the length is counted
    /// to the end of the frame.
    lengths: Vec<(usize, usize)>,
}

/// Endpoints of a flow over IPv4 or IPv6. Hosts are offsets from 10.0.0.0 and from fd00::.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Source host number.
    pub from: u16,
    /// Destination host number.
    pub to: u16,
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
}

impl Ends {
    /// Returns the endpoints of the opposite direction.
    #[must_use]
    pub fn back(self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            sport: self.dport,
            dport: self.sport,
        }
    }
}

impl Frame {
    /// Starts a frame with a broadcast Ethernet header, `tags` (TPID and TCI each) and `ethertype`.
    #[must_use]
    pub fn ethernet(tags: &[(u16, u16)], ethertype: u16) -> Self {
        let mut bytes = vec![0xff; 6];
        bytes.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
        for (tpid, tci) in tags {
            bytes.extend_from_slice(&tpid.to_be_bytes());
            bytes.extend_from_slice(&tci.to_be_bytes());
        }
        bytes.extend_from_slice(&ethertype.to_be_bytes());
        let lengths = Vec::new();
        Self { bytes, lengths }
    }

    /// Appends an IPv4 header with `protocol`; `fragment` is the raw flags-and-offset field.
    #[must_use]
    pub fn ipv4(mut self, ends: Ends, protocol: u8, fragment: u16) -> Self {
        let start = self.bytes.len();
        self.lengths.push((start + 2, start));
        self.bytes.extend_from_slice(&[0x45, 0, 0, 0, 0, 1]);
        self.bytes.extend_from_slice(&fragment.to_be_bytes());
        self.bytes.extend_from_slice(&[64, protocol, 0, 0]);
        for host in [ends.from, ends.to] {
            self.bytes.extend_from_slice(&[10, 0]);
            self.bytes.extend_from_slice(&host.to_be_bytes());
        }
        self
    }

    /// Appends an IPv6 header with `next` as its next header.
    #[must_use]
    pub fn ipv6(mut self, ends: Ends, next: u8) -> Self {
        let start = self.bytes.len();
        self.lengths.push((start + 4, start + 40));
        self.bytes
            .extend_from_slice(&[0x60, 0, 0, 0, 0, 0, next, 64]);
        for host in [ends.from, ends.to] {
            self.bytes.extend_from_slice(&[0xfd; 1]);
            self.bytes.extend_from_slice(&[0; 13]);
            self.bytes.extend_from_slice(&host.to_be_bytes());
        }
        self
    }

    /// Appends a UDP header.
    #[must_use]
    pub fn udp(mut self, ends: Ends) -> Self {
        let start = self.bytes.len();
        self.lengths.push((start + 4, start));
        self.ports(ends);
        self.bytes.extend_from_slice(&[0; 4]);
        self
    }

    /// Appends a TCP header without options.
    #[must_use]
    pub fn tcp(mut self, ends: Ends) -> Self {
        self.ports(ends);
        self.bytes
            .extend_from_slice(&[0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        self
    }

    /// Appends a payload of `n` bytes.
    #[must_use]
    pub fn payload(mut self, n: usize) -> Self {
        self.bytes.extend((0..n).map(|i| i as u8));
        self
    }

    /// Appends `bytes`.
    #[must_use]
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Returns the bytes of the frame, with the length fields of the headers filled in.
    ///
    /// # Panics
    /// Panics if a length exceeds 65535 bytes.
    #[must_use]
    pub fn done(mut self) -> Vec<u8> {
        for (field, start) in self.lengths {
            let length = u16::try_from(self.bytes.len() - start).expect("less than 64 KiB");
            self.bytes[field..field + 2].copy_from_slice(&length.to_be_bytes());
        }
        self.bytes
    }

    fn ports(&mut self, ends: Ends) {
        self.bytes.extend_from_slice(&ends.sport.to_be_bytes());
        self.bytes.extend_from_slice(&ends.dport.to_be_bytes());
    }
}

/// IPv4 EtherType.
pub const IPV4: u16 = 0x0800;
/// IPv6 EtherType.
pub const IPV6: u16 = 0x86dd;
/// ARP EtherType.
pub const ARP: u16 = 0x0806;

/// Returns `count` UDP frames over IPv4 of `size` bytes each, in 16 flows.
#[must_use]
pub fn udp_flows(count: u16, size: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let ends = Ends {
                from: 1 + i % 16,
                to: 100,
                sport: 1024 + i % 16,
                dport: 53,
            };
            let frame = Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0).udp(ends);
            let filled = frame.bytes.len();
            let mut bytes = frame.payload(size - filled).done();
            // Frames differ in their last two bytes, so that a duplicate in a file is detected.
            bytes[size - 2..].copy_from_slice(&i.to_be_bytes());
            bytes
        })
        .collect()
}

/// Returns frames of each kind that steering distinguishes: both directions of flows over IPv4 and
/// IPv6 with TCP, UDP and other protocols, tags, fragments, truncated and damaged headers, frames
/// of 14 bytes, and one frame of 9014 bytes.
#[must_use]
pub fn assortment() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for i in 0..32 {
        let there = Ends {
            from: 1 + i % 5,
            to: 40 + i % 3,
            sport: 2000 + i,
            dport: 443,
        };
        for ends in [there, there.back()] {
            for tags in [
                &[][..],
                &[(0x8100, 100)],
                &[(0x88a8, 7), (0x8100, 100)],
                &[(0x8100, 1); 3],
            ] {
                let v4 = Frame::ethernet(tags, IPV4);
                let v6 = Frame::ethernet(tags, IPV6);
                let n = usize::from(i);
                frames.push(v4.clone().ipv4(ends, 6, 0x4000).tcp(ends).payload(n).done());
                frames.push(v4.clone().ipv4(ends, 17, 0).udp(ends).payload(n).done());
                frames.push(
                    v4.clone()
                        .ipv4(ends, 17, 0x2000)
                        .udp(ends)
                        .payload(n + 8)
                        .done(),
                );
                frames.push(v4.clone().ipv4(ends, 17, 0x0003).payload(n + 8).done());
                frames.push(v4.clone().ipv4(ends, 1, 0).payload(n + 8).done());
                frames.push(v6.clone().ipv6(ends, 6).tcp(ends).payload(n).done());
                frames.push(v6.clone().ipv6(ends, 17).udp(ends).payload(n).done());
                frames.push(v6.clone().ipv6(ends, 44).payload(n + 16).done());
                frames.push(v6.clone().ipv6(ends, 58).payload(n + 8).done());
                // Hop-by-hop options, four bytes of padding, and no next header.
                let options = v6.ipv6(ends, 0).bytes(&[59, 0, 1, 4, 0, 0, 0, 0]);
                frames.push(options.payload(n + 8).done());
            }
        }
    }
    let whole = frames[0].clone();
    for cut in 14..whole.len() {
        frames.push(whole[..cut].to_vec());
    }
    for first in [0x35, 0x44, 0x4f, 0x65] {
        let mut damaged = whole.clone();
        damaged[14] = first;
        frames.push(damaged);
    }
    frames.push(Frame::ethernet(&[], ARP).payload(46).done());
    frames.push(Frame::ethernet(&[], 0x0026).payload(38).done());
    frames.push(Frame::ethernet(&[], IPV4).payload(9000).done());
    frames
}
