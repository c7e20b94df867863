//! One flow as it is kept while it lasts: what each of its frames touches, on one cache line, and the rest apart.

use super::{
    record::{Direction, FlowEndReason, FlowRecord},
    seen::SeenFrame,
};
use crate::{
    flow_table::{Entry, Key, ShortKey},
    limits::Volume,
};
use wqcap_frame::{FiveTuple, protocol};
use wqcap_names::Kind;

/// Payloads of a flow that are read for names, each way: who keeps a connection asks for many things.
const SHARE: u8 = 4;

/// What went one way, as far as each frame touches it. Sums wrap around: see [`FlowApart::carried`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Way {
    last_ns: u64,
    bytes: u32,
    frames: u32,
}

/// A flow, as far as its frames touch it: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct FlowEntry {
    key: ShortKey,
    /// Which limit of a cutoff it has, where limits are followed.
    limit: u16,
    /// As the first frame went, and the other way.
    ways: [Way; 2],
    /// Stamp of its first frame, by [`coarse`].
    begun: u32,
    /// Control bits of TCP that were seen, by way.
    flags: [u8; 2],
    /// Whether its first frame went from the lower end to the other.
    upward: bool,
    /// Bits of [`marks`].
    marks: u8,
}

/// What is of use at a flow's beginning and end, or for few flows or frames. What finds a flow of IPv6 comes first, on a line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct FlowApart {
    /// [`Key::addresses`].
    addresses: [[u64; 2]; 2],
    /// Stamps of the first frames, by way.
    first_ns: [u64; 2],
    /// By way: how often the entry's sums of frames and of bytes have wrapped around.
    carried: [Carried; 2],
    hash: u32,
    /// Ethertype of the first frame's innermost packet.
    ethertype: u16,
    /// Type and code of the first frame's ICMP message.
    icmp: Option<[u8; 2]>,
    /// Payloads that were read for names, by way.
    read: [u8; 2],
    /// The first frame's outermost packet, if it came in a tunnel.
    outer: Option<FiveTuple>,
}

/// How often sums have wrapped around.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    frames: u32,
    bytes: u32,
}

/// What is so of a flow or not.
mod marks {
    /// It has no frames: its record has ended, and its limit goes on.
    pub(super) const BLANK: u8 = 1;
    /// Its connection has ended, as far as its limit goes.
    pub(super) const ENDED: u8 = 1 << 1;
    /// Its counters began at another time than its limit.
    pub(super) const SHIFTED: u8 = 1 << 2;
    /// Frames of it were cut off.
    pub(super) const CUT: u8 = 1 << 3;
    /// Its counters have wrapped around.
    pub(super) const CARRIED: u8 = 1 << 4;
    /// What goes to the lower end has reached the limit; the next bit: what comes from it has.
    pub(super) const OVER: u8 = 1 << 5;

    /// Those of its record, not of its limit.
    pub(super) const OF_RECORD: u8 = BLANK | CARRIED;

    /// A mark, if something is so.
    #[inline]
    pub(super) fn of(mark: u8, is_so: bool) -> u8 {
        if is_so { mark } else { 0 }
    }
}

/// The binary logarithm of [`coarse`]'s unit, in nanoseconds.
const COARSE: u32 = 24;

/// A stamp in so few bits that an entry has room for it: in units of 17 ms, which come again after two years.
#[inline]
fn coarse(ns: u64) -> u32 {
    (ns >> COARSE) as u32
}

/// How long a flow may last as one record.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    ns: u64,
    /// Whole units of [`coarse`] in it, at most as many as that tells apart: none that has lasted is missed.
    units: u32,
}

impl Lifetime {
    pub(super) fn of(ns: u64) -> Self {
        let units = u32::try_from(ns >> COARSE).unwrap_or(u32::MAX);
        Self { ns, units }
    }

    /// In nanoseconds.
    pub(super) fn ns(self) -> u64 {
        self.ns
    }
}

impl Entry for FlowEntry {
    type Apart = FlowApart;

    #[inline]
    fn is_of<'a>(&self, key: &Key, apart: impl FnOnce() -> &'a FlowApart) -> bool {
        self.key == key.short() && (key.is_short() || apart().addresses == key.addresses())
    }

    #[inline]
    fn hash(&self, apart: &FlowApart) -> u32 {
        apart.hash
    }

    #[inline]
    fn needs_apart(key: &Key) -> bool {
        !key.is_short()
    }
}

impl FlowEntry {
    /// A flow without any frame yet, not even this first one, with its outermost packet if it came in a tunnel.
    pub(super) fn begin(first: &SeenFrame, outer: Option<FiveTuple>) -> (Self, FlowApart) {
        let entry = Self {
            key: first.key.short(),
            limit: 0,
            ways: Default::default(),
            begun: coarse(first.ns),
            flags: [0; 2],
            upward: first.upward,
            marks: 0,
        };
        let apart = FlowApart {
            addresses: first.key.addresses(),
            first_ns: [0; 2],
            carried: Default::default(),
            hash: first.hash,
            ethertype: first.ethertype,
            icmp: first.icmp,
            read: [0; 2],
            outer,
        };
        (entry, apart)
    }

    /// Counts a frame of `len` bytes on the wire, received at `ns`, that went from the lower end to the other, or back.
    #[inline]
    pub(super) fn count(
        &mut self,
        apart: &mut FlowApart,
        upward: bool,
        tcp_flags: u8,
        len: u32,
        ns: u64,
    ) {
        let at = self.way_of(upward);
        self.flags[at] |= tcp_flags;
        let way = &mut self.ways[at];
        let (bytes, wraps) = way.bytes.overflowing_add(len);
        let frames = way.frames.wrapping_add(1);
        *way = Way {
            last_ns: ns,
            bytes,
            frames,
        };
        if wraps || frames <= 1 {
            self.count_rare(apart, at, wraps);
        }
    }

    /// What a frame changes besides that is the first of its way, or makes a sum wrap around.
    #[cold]
    #[inline(never)]
    fn count_rare(&mut self, apart: &mut FlowApart, at: usize, bytes_wrap: bool) {
        let Way {
            frames, last_ns, ..
        } = self.ways[at];
        let carried = &mut apart.carried[at];
        if frames == 1 && carried.frames == 0 {
            apart.first_ns[at] = last_ns;
        }
        // Behind a frame, a sum of frames is 0 only where it has just wrapped around.
        carried.frames += u32::from(frames == 0);
        carried.bytes += u32::from(bytes_wrap);
        self.marks |= marks::of(marks::CARRIED, frames == 0 || bytes_wrap);
    }

    /// Which way it is from the lower end to the other, or back.
    #[inline]
    fn way_of(&self, upward: bool) -> usize {
        usize::from(upward != self.upward)
    }

    /// What went from the lower end to the other, or back.
    #[inline]
    pub(super) fn volume(&self, apart: &FlowApart, upward: bool) -> Volume {
        self.volume_at(apart, self.way_of(upward))
    }

    #[inline]
    fn volume_at(&self, apart: &FlowApart, at: usize) -> Volume {
        let way = self.ways[at];
        let volume = Volume {
            bytes: way.bytes.into(),
            packets: way.frames.into(),
        };
        if self.marks & marks::CARRIED == 0 {
            return volume;
        }
        apart.with_carried(volume, at)
    }

    /// The way of a payload that may tell a name, if it is to be read; `None`: the flow has had its share. Each message of DNS
    /// and of DHCP is read.
    pub(super) fn share(&self, apart: &mut FlowApart, upward: bool, kind: Kind) -> Option<usize> {
        let way = self.way_of(upward);
        if !matches!(kind, Kind::Dns | Kind::Dhcp | Kind::Dhcpv6) {
            if apart.read[way] == SHARE {
                return None;
            }
            apart.read[way] += 1;
        }
        Some(way)
    }

    /// Whether it has lasted for such a time at `ns`. What is apart is seldom asked for.
    #[inline]
    pub(super) fn has_lasted<'a>(
        &self,
        time: Lifetime,
        ns: u64,
        apart: impl FnOnce() -> &'a FlowApart,
    ) -> bool {
        coarse(ns).wrapping_sub(self.begun) >= time.units && apart().has_lasted(time, ns)
    }

    /// Stamp of its last frame.
    #[inline]
    pub(super) fn last_ns(&self) -> u64 {
        self.ways[0].last_ns.max(self.ways[1].last_ns)
    }

    /// As it is written.
    pub(super) fn record(&self, apart: &FlowApart, queue: u16, end: FlowEndReason) -> FlowRecord {
        let key = Key::with_addresses(self.key, apart.addresses);
        let ends = key.ends();
        let ways = [0, 1].map(|at| {
            let Volume { bytes, packets } = self.volume_at(apart, at);
            Direction {
                frames: packets,
                bytes,
                first_ns: apart.first_ns[at],
                last_ns: self.ways[at].last_ns,
            }
        });
        FlowRecord {
            tuple: if self.upward { ends } else { ends.reversed() },
            vlans: key.vlans(),
            network: key.network(),
            ethertype: apart.ethertype,
            icmp: apart.icmp,
            outer: apart.outer,
            ways,
            tcp_flags: (ends.version != 0 && ends.protocol == protocol::TCP).then_some(self.flags),
            queue,
            end,
            names: None,
        }
    }
}

/// What few frames ask for is out of line: otherwise its cache line, which is seldom in the caches, is read for each frame, ahead
/// of the decision.
impl FlowApart {
    /// The rest of [`FlowEntry::has_lasted`].
    #[cold]
    #[inline(never)]
    fn has_lasted(&self, time: Lifetime, ns: u64) -> bool {
        ns.saturating_sub(self.first_ns()) >= time.ns
    }

    /// Adds what an entry had no room for.
    #[cold]
    #[inline(never)]
    fn with_carried(&self, volume: Volume, at: usize) -> Volume {
        let carried = self.carried[at];
        Volume {
            bytes: volume.bytes + (u64::from(carried.bytes) << 32),
            packets: volume.packets + (u64::from(carried.frames) << 32),
        }
    }

    /// Stamp of the first frame.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.first_ns[0]
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
    pub(super) fn make_blank(&mut self, apart: &mut FlowApart) {
        let last_ns = self.last_ns();
        self.ways = Default::default();
        self.ways[0].last_ns = last_ns;
        (apart.first_ns, apart.carried) = Default::default();
        self.marks &= !marks::CARRIED;
        self.marks |= marks::BLANK | marks::SHIFTED;
    }

    /// A record of it begins with this frame, which is not counted yet.
    pub(super) fn begin_again(
        &mut self,
        apart: &mut FlowApart,
        first: &SeenFrame,
        outer: Option<FiveTuple>,
    ) {
        let (limit, of_limit) = (self.limit, self.marks & !marks::OF_RECORD);
        (*self, *apart) = Self::begin(first, outer);
        (self.limit, self.marks) = (limit, of_limit);
    }

    /// It begins anew with this limit, while what it counts goes on.
    pub(super) fn begin_anew(&mut self, limit: u16) {
        self.limit = limit;
        self.marks &= marks::OF_RECORD;
        let has_frames =
            self.marks & marks::CARRIED != 0 || self.ways.iter().any(|it| it.frames > 0);
        self.marks |= marks::of(marks::SHIFTED, has_frames);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wqcap_frame::Headers;

    /// Entered with a frame, which is not counted.
    fn flow(ns: u64) -> (FlowEntry, FlowApart) {
        let headers = Headers::default();
        let first = SeenFrame::new(&[0; 14], 60, ns, &headers, &headers, None, &mut Vec::new());
        FlowEntry::begin(&first, None)
    }

    fn record((flow, apart): &(FlowEntry, FlowApart)) -> FlowRecord {
        flow.record(apart, 0, FlowEndReason::Stopped)
    }

    #[test]
    fn sums_go_on_where_an_entry_has_no_room_for_them() {
        const LONG: u32 = 3_000_000_000;
        let (mut entry, mut apart) = flow(7);
        let upward = entry.upward;
        for i in 0..5 {
            entry.count(&mut apart, upward, 0, LONG, 7 + i);
        }
        entry.count(&mut apart, !upward, 0, 60, 20);
        // As if so many more had come.
        entry.ways[0].frames += u32::MAX - 6;
        for i in 0..4 {
            entry.count(&mut apart, upward, 0, 100, 30 + i);
        }
        let volume = entry.volume(&apart, upward);
        let frames = u64::from(u32::MAX) - 1 + 4;
        assert_eq!((volume.packets, volume.bytes), (frames, 15_000_000_400));
        let record = record(&(entry, apart));
        let forth = Direction {
            frames,
            bytes: 15_000_000_400,
            first_ns: 7,
            last_ns: 33,
        };
        let back = Direction {
            frames: 1,
            bytes: 60,
            first_ns: 20,
            last_ns: 20,
        };
        assert_eq!(record.ways, [forth, back]);
    }

    #[test]
    fn a_record_that_has_ended_leaves_nothing_to_the_next_but_its_last_stamp() {
        let (mut entry, mut apart) = flow(7);
        for ns in [7, 8] {
            entry.count(&mut apart, entry.upward, 0, u32::MAX, ns);
        }
        entry.make_blank(&mut apart);
        assert_eq!((entry.last_ns(), entry.is_blank()), (8, true));
        let ended = Direction {
            last_ns: 8,
            ..Direction::default()
        };
        assert_eq!(record(&(entry, apart)).ways, [ended, Direction::default()]);
    }

    #[test]
    fn a_flow_has_lasted_to_the_nanosecond() {
        const UNIT: u64 = 1 << COARSE;
        // The last one: where the stamps' units begin again.
        for begun in [1, UNIT - 1, UNIT, 1_700_000_000_000_000_000, (1 << 56) - 1] {
            let (mut entry, mut apart) = flow(begun);
            entry.count(&mut apart, entry.upward, 0, 60, begun);
            let lasted = |time, ns| entry.has_lasted(Lifetime::of(time), ns, || &apart);
            for time in [1, UNIT - 1, UNIT, 10 * UNIT + 3, 86_400_000_000_000] {
                for late in [0, 1, UNIT] {
                    assert!(lasted(time, begun + time + late), "{time} from {begun}");
                }
                assert!(!lasted(time, begun + time - 1), "{time} from {begun}");
                assert!(!lasted(time, begun - 1), "a stamp before its first");
            }
            assert!(!lasted(u64::MAX, begun + UNIT));
        }
    }

    #[test]
    fn what_finds_a_flow_is_at_its_start() {
        assert_eq!(std::mem::offset_of!(FlowApart, addresses), 0);
    }
}
