//! One flow as it is kept while it lasts.

use super::seen::SeenFrame;
use crate::{
    analysis::flow_table::{Entry, Key},
    frame::{FiveTuple, protocol},
};
use wqcap_names::{Kind, Names};

/// Payloads of a flow that are read for names, each way: who keeps a connection asks for many things.
const SHARE: u8 = 4;

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Frames.
    pub frames: u64,
    /// Their bytes on the wire, without FCS.
    pub bytes: u64,
    /// Stamp of the first, in nanoseconds since 1970; 0 where there are no frames.
    pub first_ns: u64,
    /// Stamp of the last.
    pub last_ns: u64,
}

impl Direction {
    #[inline]
    fn count(&mut self, len: u32, ns: u64) {
        if self.frames == 0 {
            self.first_ns = ns;
        }
        self.frames += 1;
        self.bytes += u64::from(len);
        self.last_ns = ns;
    }
}

/// A flow, as far as its frames touch it: two cache lines, and both of one pair, which some processors fetch together.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct FlowEntry {
    key: Key,
    hash: u32,
    /// Whether its first frame went from the lower end to the other.
    upward: bool,
    /// Bits of [`marks`].
    marks: u8,
    flags: [u8; 2],
    /// Ethertype of the first frame's innermost packet.
    ethertype: u16,
    /// Type and code of the first frame's ICMP message.
    icmp: [u8; 2],
    /// Payloads that were read for names, by way.
    read: [u8; 2],
    /// Which limit of a cutoff it has, where limits are followed.
    limit: u16,
    /// As the first frame went, and the other way.
    ways: [Direction; 2],
}

/// What is so of a flow or not.
mod marks {
    /// Its first frame came in a tunnel.
    pub(super) const TUNNEL: u8 = 1;
    /// Its first frame was a message of ICMP.
    pub(super) const ICMP: u8 = 1 << 1;
    /// It has no frames: its record has ended, and its limit goes on.
    pub(super) const BLANK: u8 = 1 << 2;
    /// Its connection has ended, as far as its limit goes.
    pub(super) const ENDED: u8 = 1 << 3;
    /// Its counters began at another time than its limit.
    pub(super) const SHIFTED: u8 = 1 << 4;
    /// Frames of it were cut off.
    pub(super) const CUT: u8 = 1 << 5;
    /// What goes to the lower end has reached the limit; the next bit: what comes from it has.
    pub(super) const OVER: u8 = 1 << 6;

    /// Those of its first frame.
    pub(super) const OF_FIRST: u8 = TUNNEL | ICMP;

    /// A mark, if something is so.
    #[inline]
    pub(super) fn of(mark: u8, is_so: bool) -> u8 {
        if is_so { mark } else { 0 }
    }
}

impl Entry for FlowEntry {
    #[inline]
    fn key(&self) -> &Key {
        &self.key
    }

    #[inline]
    fn hash(&self) -> u32 {
        self.hash
    }
}

impl FlowEntry {
    /// A flow without any frame yet, not even this first one.
    pub(super) fn begin(first: &SeenFrame) -> Self {
        let tunnel = marks::of(marks::TUNNEL, first.tunnel);
        let icmp = marks::of(marks::ICMP, first.icmp.is_some());
        Self {
            key: first.key,
            hash: first.hash,
            upward: first.upward,
            marks: tunnel | icmp,
            flags: [0; 2],
            ethertype: first.ethertype,
            icmp: first.icmp.unwrap_or_default(),
            read: [0; 2],
            limit: 0,
            ways: [Direction::default(); 2],
        }
    }

    /// Counts a frame of `len` bytes on the wire, received at `ns`, that went from the lower end to the other, or back.
    #[inline]
    pub(super) fn count(&mut self, upward: bool, tcp_flags: u8, len: u32, ns: u64) {
        let way = usize::from(upward != self.upward);
        self.flags[way] |= tcp_flags;
        self.ways[way].count(len, ns);
    }

    /// What went from the lower end to the other, or back.
    #[inline]
    pub(super) fn way(&self, upward: bool) -> &Direction {
        &self.ways[usize::from(upward != self.upward)]
    }

    /// The way of a payload that may tell a name, if it is to be read; `None`: the flow has had its share. Each message of DNS
    /// and of DHCP is read.
    pub(super) fn share(&mut self, upward: bool, kind: Kind) -> Option<usize> {
        let way = usize::from(upward != self.upward);
        if !matches!(kind, Kind::Dns | Kind::Dhcp | Kind::Dhcpv6) {
            if self.read[way] == SHARE {
                return None;
            }
            self.read[way] += 1;
        }
        Some(way)
    }

    /// Stamp of its first frame.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Stamp of its last frame.
    #[inline]
    pub(super) fn last_ns(&self) -> u64 {
        self.ways[0].last_ns.max(self.ways[1].last_ns)
    }

    /// As it is written, with its first frame's outermost packet.
    pub(super) fn record(&self, outer: FiveTuple, queue: u16, end: FlowEndReason) -> FlowRecord {
        let ends = self.key.ends();
        FlowRecord {
            tuple: if self.upward { ends } else { ends.reversed() },
            vlans: self.key.vlans(),
            network: self.key.network(),
            ethertype: self.ethertype,
            icmp: (self.marks & marks::ICMP != 0).then_some(self.icmp),
            outer: (self.marks & marks::TUNNEL != 0).then_some(outer),
            ways: self.ways,
            tcp_flags: (ends.version != 0 && ends.protocol == protocol::TCP).then_some(self.flags),
            queue,
            end,
            names: None,
        }
    }
}

/// How far it has come with its limit, where limits are followed.
impl FlowEntry {
    pub(super) fn limit(&self) -> u16 {
        self.limit
    }

    /// Whether it has no frames, since its record has ended. The stamp of the last one stays.
    #[inline]
    pub(super) fn is_blank(&self) -> bool {
        self.marks & marks::BLANK != 0
    }

    /// Whether its connection has ended.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.marks & marks::ENDED != 0
    }

    /// Whether what it counts is not all, or more than all, that has come since it began.
    #[inline]
    pub(super) fn is_shifted(&self) -> bool {
        self.marks & marks::SHIFTED != 0
    }

    /// Whether what one side sends has reached the limit; 1: the lower end.
    #[inline]
    pub(super) fn is_over(&self, side: usize) -> bool {
        self.marks & marks::OVER << side != 0
    }

    /// Remembers what a frame of one side tells.
    #[inline]
    pub(super) fn note(&mut self, side: usize, is_over: bool, ends: bool) {
        self.marks |= marks::of(marks::OVER << side, is_over) | marks::of(marks::ENDED, ends);
    }

    /// A frame of it is cut off; whether none was before.
    #[inline]
    pub(super) fn is_first_cut(&mut self) -> bool {
        let first = self.marks & marks::CUT == 0;
        self.marks |= marks::CUT;
        first
    }

    /// Its record has ended.
    pub(super) fn make_blank(&mut self) {
        let last_ns = self.last_ns();
        self.ways = Default::default();
        self.ways[0].last_ns = last_ns;
        self.marks |= marks::BLANK | marks::SHIFTED;
    }

    /// A record of it begins with this frame, which is not counted yet.
    pub(super) fn begin_again(&mut self, first: &SeenFrame) {
        let kept = self.marks & !(marks::OF_FIRST | marks::BLANK);
        let begun = Self::begin(first);
        *self = Self {
            marks: begun.marks | kept,
            limit: self.limit,
            ..begun
        };
    }

    /// It begins anew with this limit, while what it counts goes on.
    pub(super) fn begin_anew(&mut self, limit: u16) {
        self.limit = limit;
        let has_frames = self.ways.iter().any(|it| it.frames > 0);
        self.marks &= marks::OF_FIRST | marks::BLANK;
        self.marks |= marks::of(marks::SHIFTED, has_frames);
    }
}

/// Why a record was written: a word of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum FlowEndReason {
    /// Nothing came for `flows.idle`.
    Idle,
    /// It lasted for `flows.active`; what comes goes into another record.
    Active,
    /// Another flow needed its place.
    Evicted,
    /// The capture ended.
    Stopped,
}

/// One line of the flow records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The innermost packet's ends as the first frame went. Without IP: MAC addresses in the first six bytes.
    pub tuple: FiveTuple,
    /// VLAN identifiers of the two outermost tags; [`crate::frame::FlowKey::UNTAGGED`] where there is none.
    pub vlans: [u16; 2],
    /// VXLAN or Geneve network identifier.
    pub network: Option<u32>,
    /// Ethertype of the first frame's innermost packet.
    pub ethertype: u16,
    /// Type and code of the first frame's ICMP message; `None` of other protocols.
    pub icmp: Option<[u8; 2]>,
    /// The first frame's outermost packet, if that is another than the innermost.
    pub outer: Option<FiveTuple>,
    /// As the first frame went, and the other way.
    pub ways: [Direction; 2],
    /// All control bits that were seen, by way; of TCP alone.
    pub tcp_flags: Option<[u8; 2]>,
    /// The queue that it came on.
    pub queue: u16,
    /// Why it ended here.
    pub end: FlowEndReason,
    /// What its first bytes told; `None`: nothing, or nobody asked.
    pub names: Option<Box<Names>>,
}

impl FlowRecord {
    /// Stamp of its first frame.
    pub(super) fn first_ns(&self) -> u64 {
        self.ways[0].first_ns
    }

    /// Frames both ways.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.ways[0].frames + self.ways[1].frames
    }

    /// Bytes both ways.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.ways[0].bytes + self.ways[1].bytes
    }
}
