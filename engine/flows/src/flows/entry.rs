//! Entry of an open flow in the flow table: one cache line that each frame of the flow touches, and
//! a cold part.

use super::{
    record::{Direction, FlowEndReason, FlowRecord},
    seen::SeenFrame,
};
use crate::{
    flow_table::{Entry, Key, ShortKey},
    limits::{FlowVolume, opens},
};
use std::sync::Arc;
use wqcap_frame::{FiveTuple, Tcp, protocol};

/// Maximum number of payloads of a flow that are read for names in each direction: a persistent
/// connection carries many requests.
const SHARE: u8 = 4;

/// Counters of one direction of a flow that each frame updates. Their sums wrap around: see
/// [`FlowApart::carried`].
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct DirectionCounters {
    last_ns: u64,
    bytes: u32,
    frames: u32,
}

/// Flow table entry with the data that each frame of the flow accesses: one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct FlowEntry {
    key: ShortKey,
    /// Index of the flow's cutoff limit, if the flow table applies limits of a cutoff.
    limit: u16,
    /// Counters in the direction of the flow's first frame, and in the opposite direction.
    ways: [DirectionCounters; 2],
    /// Time stamp of the flow's first frame in units of [`coarse`].
    begun: u32,
    /// TCP control bits of the flow's frames so far, by direction.
    flags: [u8; 2],
    /// `true` if the flow's first frame went from the lower end (address and port) to the upper
    /// one.
    upward: bool,
    /// State flags of the flow, the sum of values of [`marks`].
    marks: u8,
}

/// Cold part of a flow, used at the flow's beginning and end, or for few flows or frames. The
/// fields that identify an IPv6 flow come first, on one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct FlowApart {
    /// Addresses of the flow's ends, as in [`Key::addresses`].
    addresses: [[u64; 2]; 2],
    /// Time stamps of the flow's first frame in each direction, in nanoseconds since 1970.
    first_ns: [u64; 2],
    /// Number of times that the flow entry's sums of frames and bytes have wrapped around, by
    /// direction.
    carried: [Carried; 2],
    hash: u32,
    /// Initial sequence numbers of the flow's TCP connection, by direction.
    initial: [u32; 2],
    /// Ethertype of the innermost packet of the flow's first frame.
    ethertype: u16,
    /// Type and code of the ICMP message in the flow's first frame.
    icmp: Option<[u8; 2]>,
    /// Number of the flow's payloads that were read for names, by direction.
    read: [u8; 2],
    /// Index of the captured port that received the flow's first frame in each direction.
    ports: [u8; 2],
    /// Bit mask of the directions whose initial sequence number is known.
    is_initial_known: u8,
    /// Outermost packet of the flow's first frame, if the frame came in a tunnel.
    outer: Option<FiveTuple>,
}

/// Number of times that a flow entry's sums of frames and bytes have wrapped around.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    frames: u32,
    bytes: u32,
}

/// Flags for the state of a flow entry.
mod marks {
    /// Flag of a flow entry without frames: its record has ended, and its cutoff limit still
    /// applies.
    pub(super) const BLANK: u8 = 1;
    /// Flag of a flow entry whose TCP connection has ended, as observed for the cutoff limit.
    pub(super) const ENDED: u8 = 1 << 1;
    /// Flag of a flow entry whose counters started at another time than its cutoff limit.
    pub(super) const SHIFTED: u8 = 1 << 2;
    /// Flag of a flow entry from which the cutoff has left out frames.
    pub(super) const CUT: u8 = 1 << 3;
    /// Flag of a flow entry whose sums of frames or bytes have wrapped around.
    pub(super) const CARRIED: u8 = 1 << 4;
    /// Flag of a flow entry whose frames to the lower end have reached the cutoff limit. The next
    /// bit: frames from the lower end have.
    pub(super) const OVER: u8 = 1 << 5;

    /// Flags of a flow entry that belong to the flow's record, not to its cutoff limit.
    pub(super) const OF_RECORD: u8 = BLANK | CARRIED;

    /// Returns the flow entry flag `mark` if the condition holds, otherwise 0.
    #[inline]
    pub(super) fn flag_if(mark: u8, condition: bool) -> u8 {
        if condition { mark } else { 0 }
    }
}

/// Binary logarithm of the time unit of [`coarse`], which is 2^24 ns.
const COARSE: u32 = 24;

/// Reduces a time stamp to the 32 bits that a flow entry has for it: units of 17 ms, which repeat
/// after two years.
#[inline]
fn coarse(ns: u64) -> u32 {
    (ns >> COARSE) as u32
}

/// Maximum duration of one flow record, after which the next record of the flow starts.
#[derive(Clone, Copy)]
pub(super) struct Lifetime {
    ns: u64,
    /// Maximum duration of a flow record in whole units of [`coarse`], clamped to `u32`. It is
    /// rounded down, so that no expired flow is missed.
    units: u32,
}

impl Lifetime {
    pub(super) fn from_ns(ns: u64) -> Self {
        let units = u32::try_from(ns >> COARSE).unwrap_or(u32::MAX);
        Self { ns, units }
    }

    /// Returns the maximum duration of a flow record in nanoseconds.
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
    /// Creates a flow table entry for the flow's first frame, which is not counted yet. `outer` is
    /// the outermost packet, if the frame came in a tunnel; `numbers` are the TCP numbers of a
    /// segment with SYN.
    pub(super) fn begin(
        first: &SeenFrame,
        outer: Option<FiveTuple>,
        numbers: Option<[u32; 2]>,
    ) -> (Self, FlowApart) {
        let entry = Self {
            key: first.key.short(),
            limit: 0,
            ways: Default::default(),
            begun: coarse(first.ns),
            flags: [0; 2],
            upward: first.upward,
            marks: 0,
        };
        let mut apart = FlowApart {
            addresses: first.key.addresses(),
            first_ns: [0; 2],
            carried: Default::default(),
            hash: first.hash,
            initial: [0; 2],
            ethertype: first.ethertype,
            icmp: first.icmp,
            read: [0; 2],
            ports: [0; 2],
            is_initial_known: 0,
            outer,
        };
        if let Some(numbers) = numbers {
            entry.note_syn(&mut apart, first, numbers);
        }
        (entry, apart)
    }

    /// Returns `true` if a TCP segment with SYN opens another connection than the flow's.
    ///
    /// Decides as tshark does (`dissect_tcp` in packet-tcp.c): the sequence number differs from the
    /// direction's initial one. A repeated SYN has the same number, even after a FIN or RST. A
    /// direction whose start was not observed does not send a SYN later. The SYN of a connection
    /// that only the other end has begun so far belongs to that connection.
    pub(super) fn is_reused_by(
        &self,
        apart: &FlowApart,
        segment: &SeenFrame,
        [sequence, _]: [u32; 2],
    ) -> bool {
        if !opens(segment.flags) {
            return false;
        }
        let way = self.way_of(segment.upward);
        if apart.is_initial_known & 1 << way != 0 {
            return apart.initial[way] != sequence;
        }
        self.ways[way].frames > 0 || self.flags[way ^ 1] & Tcp::ACK != 0
    }

    /// Stores the initial TCP sequence numbers that a segment with SYN shows.
    pub(super) fn note_syn(
        &self,
        apart: &mut FlowApart,
        segment: &SeenFrame,
        [sequence, acknowledged]: [u32; 2],
    ) {
        let way = self.way_of(segment.upward);
        let has_frames = |way: usize| self.ways[way].frames > 0;
        if !has_frames(way) {
            apart.note_initial(way, sequence);
        }
        let is_first_ack = segment.flags & !self.flags[way] & Tcp::ACK != 0;
        if is_first_ack && !has_frames(way ^ 1) {
            // The SYN that this segment answers was lost, or is stamped later.
            apart.note_initial(way ^ 1, acknowledged.wrapping_sub(1));
        }
    }

    /// Counts a frame of `len` bytes on the wire (without FCS), received at `ns` on the captured
    /// port `port`, in its flow. `upward` is `true` if the frame went from the lower end to the
    /// upper one.
    #[inline]
    pub(super) fn count(
        &mut self,
        apart: &mut FlowApart,
        upward: bool,
        tcp_flags: u8,
        len: u32,
        ns: u64,
        port: u8,
    ) {
        let at = self.way_of(upward);
        self.flags[at] |= tcp_flags;
        let way = &mut self.ways[at];
        let (bytes, wraps) = way.bytes.overflowing_add(len);
        let frames = way.frames.wrapping_add(1);
        *way = DirectionCounters {
            last_ns: ns,
            bytes,
            frames,
        };
        if wraps || frames <= 1 {
            self.count_rare(apart, at, wraps, port);
        }
    }

    /// Updates the flow's cold part for the first frame of a direction, or when a sum wraps around.
    #[cold]
    #[inline(never)]
    fn count_rare(&mut self, apart: &mut FlowApart, at: usize, bytes_wrap: bool, port: u8) {
        let DirectionCounters {
            frames, last_ns, ..
        } = self.ways[at];
        let carried = &mut apart.carried[at];
        if frames == 1 && carried.frames == 0 {
            (apart.first_ns[at], apart.ports[at]) = (last_ns, port);
        }
        // After a frame, a sum of frames is 0 only if it has just wrapped around.
        carried.frames += u32::from(frames == 0);
        carried.bytes += u32::from(bytes_wrap);
        self.marks |= marks::flag_if(marks::CARRIED, frames == 0 || bytes_wrap);
    }

    /// Returns the index in `ways` of a direction of the flow; `upward` is the direction from the
    /// lower end to the upper one.
    #[inline]
    fn way_of(&self, upward: bool) -> usize {
        usize::from(upward != self.upward)
    }

    /// Returns the number of frames and bytes in one direction of the flow.
    #[inline]
    pub(super) fn volume(&self, apart: &FlowApart, upward: bool) -> FlowVolume {
        self.volume_at(apart, self.way_of(upward))
    }

    #[inline]
    fn volume_at(&self, apart: &FlowApart, at: usize) -> FlowVolume {
        let way = self.ways[at];
        let volume = FlowVolume {
            bytes: way.bytes.into(),
            packets: way.frames.into(),
        };
        if self.marks & marks::CARRIED == 0 {
            return volume;
        }
        apart.with_carried(volume, at)
    }

    /// Counts a payload with a possible name. Returns the index of the payload's direction if the
    /// payload should be read; `None`: enough payloads of this flow were read in this direction. A
    /// payload that is not `is_shared` is always read.
    pub(super) fn share(
        &self,
        apart: &mut FlowApart,
        upward: bool,
        is_shared: bool,
    ) -> Option<usize> {
        let way = self.way_of(upward);
        if is_shared {
            if apart.read[way] == SHARE {
                return None;
            }
            apart.read[way] += 1;
        }
        Some(way)
    }

    /// Returns `true` if the flow's record has lasted at least for `time` when it is `ns`. The cold
    /// part is rarely accessed.
    #[inline]
    pub(super) fn has_lasted<'a>(
        &self,
        time: Lifetime,
        ns: u64,
        apart: impl FnOnce() -> &'a FlowApart,
    ) -> bool {
        coarse(ns).wrapping_sub(self.begun) >= time.units && apart().has_lasted(time, ns)
    }

    /// Returns the time stamp of the flow's last frame, in nanoseconds since 1970.
    #[inline]
    pub(super) fn last_ns(&self) -> u64 {
        self.ways[0].last_ns.max(self.ways[1].last_ns)
    }

    /// Creates the flow record from the counters of the flow entry. `labels` are the names of the
    /// captured ports.
    pub(super) fn record(
        &self,
        apart: &FlowApart,
        queue: u16,
        labels: &[Arc<str>],
        end: FlowEndReason,
    ) -> FlowRecord {
        let key = Key::with_addresses(self.key, apart.addresses);
        let ends = key.ends();
        let ways = [0, 1].map(|at| {
            let FlowVolume { bytes, packets } = self.volume_at(apart, at);
            Direction {
                frames: packets,
                bytes,
                first_ns: apart.first_ns[at],
                last_ns: self.ways[at].last_ns,
            }
        });
        let port = |at: usize| labels.get(usize::from(apart.ports[at])).cloned();
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
            ports: [0, 1].map(|at| port(at).filter(|_| ways[at].frames > 0)),
            end,
            names: None,
        }
    }
}

/// Methods of the cold part of a flow, for few frames. They are out of line: otherwise the compiler
/// reads the cold cache line for each frame, before the decision.
impl FlowApart {
    /// Stores the initial TCP sequence number of a direction of the flow, if it is not known yet.
    fn note_initial(&mut self, way: usize, number: u32) {
        if self.is_initial_known & 1 << way == 0 {
            self.initial[way] = number;
            self.is_initial_known |= 1 << way;
        }
    }

    /// Returns exactly what [`FlowEntry::has_lasted`] estimates: `true` if the flow's record has
    /// lasted at least for `time` when it is `ns`.
    #[cold]
    #[inline(never)]
    fn has_lasted(&self, time: Lifetime, ns: u64) -> bool {
        ns.saturating_sub(self.first_ns()) >= time.ns
    }

    /// Adds the parts of a flow's sums that wrapped around to `volume`, which has the rest.
    #[cold]
    #[inline(never)]
    fn with_carried(&self, volume: FlowVolume, at: usize) -> FlowVolume {
        let carried = self.carried[at];
        FlowVolume {
            bytes: volume.bytes + (u64::from(carried.bytes) << 32),
            packets: volume.packets + (u64::from(carried.frames) << 32),
        }
    }

    /// Returns the time stamp of the flow's first frame, in nanoseconds since 1970.
    #[inline]
    pub(super) fn first_ns(&self) -> u64 {
        self.first_ns[0]
    }
}

/// Progress of a flow towards its cutoff limit, if limits are followed.
impl FlowEntry {
    pub(super) fn limit(&self) -> u16 {
        self.limit
    }

    /// Returns `true` if the flow entry has no frames because its record has ended. The time stamp
    /// of the last frame stays.
    #[inline]
    pub(super) fn is_blank(&self) -> bool {
        self.marks & marks::BLANK != 0
    }

    /// Returns `true` if the flow's TCP connection has ended, as observed for the cutoff limit.
    #[inline]
    pub(super) fn has_ended(&self) -> bool {
        self.marks & marks::ENDED != 0
    }

    /// Returns `true` if the flow's counters do not cover exactly the time since its cutoff limit
    /// started.
    #[inline]
    pub(super) fn is_shifted(&self) -> bool {
        self.marks & marks::SHIFTED != 0
    }

    /// Returns `true` if the flow's frames from one side have reached the cutoff limit. Side 1 is
    /// the lower end.
    #[inline]
    pub(super) fn is_over(&self, side: usize) -> bool {
        self.marks & marks::OVER << side != 0
    }

    /// Updates the flow's flags for the cutoff limit, for a frame sent by one side. `is_over`: the
    /// frame reaches the limit; `ends`: it ends the TCP connection.
    #[inline]
    pub(super) fn note(&mut self, side: usize, is_over: bool, ends: bool) {
        self.marks |=
            marks::flag_if(marks::OVER << side, is_over) | marks::flag_if(marks::ENDED, ends);
    }

    /// Marks the flow as one from which the cutoff left out frames; returns `true` if it left out
    /// none before.
    #[inline]
    pub(super) fn is_first_cut(&mut self) -> bool {
        let first = self.marks & marks::CUT == 0;
        self.marks |= marks::CUT;
        first
    }

    /// Clears the flow's counters after its record has ended, while its cutoff limit still applies.
    pub(super) fn make_blank(&mut self, apart: &mut FlowApart) {
        let last_ns = self.last_ns();
        self.ways = Default::default();
        self.ways[0].last_ns = last_ns;
        (apart.first_ns, apart.carried) = Default::default();
        self.marks &= !marks::CARRIED;
        self.marks |= marks::BLANK | marks::SHIFTED;
    }

    /// Starts the next record of the flow with this frame, which is not counted yet.
    pub(super) fn restart_record(
        &mut self,
        apart: &mut FlowApart,
        first: &SeenFrame,
        outer: Option<FiveTuple>,
        numbers: Option<[u32; 2]>,
    ) {
        let (limit, of_limit) = (self.limit, self.marks & !marks::OF_RECORD);
        (*self, *apart) = Self::begin(first, outer, numbers);
        (self.limit, self.marks) = (limit, of_limit);
    }

    /// Starts the cutoff limit of the flow again, while the flow's counters continue.
    pub(super) fn restart_limit(&mut self, limit: u16) {
        self.limit = limit;
        self.marks &= marks::OF_RECORD;
        let has_frames =
            self.marks & marks::CARRIED != 0 || self.ways.iter().any(|it| it.frames > 0);
        self.marks |= marks::flag_if(marks::SHIFTED, has_frames);
    }
}

#[cfg(test)]
mod tests {
    use super::{super::seen::SeenDetails, *};
    use wqcap_core::consumer::Frame;
    use wqcap_frame::Headers;

    /// Returns the entry of a flow created for a frame at `ns` that is not counted.
    fn flow(ns: u64) -> (FlowEntry, FlowApart) {
        let headers = Headers::default();
        let first = SeenFrame::new(
            &Frame::new(&[0; 14], 60, ns),
            &headers,
            &headers,
            None,
            0,
            &mut SeenDetails::new(),
        );
        FlowEntry::begin(&first, None, None)
    }

    fn record((flow, apart): &(FlowEntry, FlowApart)) -> FlowRecord {
        flow.record(apart, 0, &[], FlowEndReason::Stopped)
    }

    #[test]
    fn sums_continue_when_counters_wrap_around() {
        const LONG: u32 = 3_000_000_000;
        let (mut entry, mut apart) = flow(7);
        let upward = entry.upward;
        for i in 0..5 {
            entry.count(&mut apart, upward, 0, LONG, 7 + i, 0);
        }
        entry.count(&mut apart, !upward, 0, 60, 20, 0);
        // As if 2^32 - 7 more frames had been counted.
        entry.ways[0].frames += u32::MAX - 6;
        for i in 0..4 {
            entry.count(&mut apart, upward, 0, 100, 30 + i, 0);
        }
        let volume = entry.volume(&apart, upward);
        let frames = u64::from(u32::MAX) - 1 + 4;
        assert_eq!((volume.packets, volume.bytes), (frames, 15_000_000_400));
        let record = record(&(entry, apart));
        let forward = Direction {
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
        assert_eq!(record.ways, [forward, back]);
    }

    #[test]
    fn an_ended_record_leaves_only_its_last_stamp_to_the_next() {
        let (mut entry, mut apart) = flow(7);
        for ns in [7, 8] {
            entry.count(&mut apart, entry.upward, 0, u32::MAX, ns, 0);
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
    fn duration_of_a_flow_is_exact_to_the_nanosecond() {
        const UNIT: u64 = 1 << COARSE;
        // The last value is where the units of the stamps wrap around.
        for begun in [1, UNIT - 1, UNIT, 1_700_000_000_000_000_000, (1 << 56) - 1] {
            let (mut entry, mut apart) = flow(begun);
            entry.count(&mut apart, entry.upward, 0, 60, begun, 0);
            let lasted = |time, ns| entry.has_lasted(Lifetime::from_ns(time), ns, || &apart);
            for time in [1, UNIT - 1, UNIT, 10 * UNIT + 3, 86_400_000_000_000] {
                for late in [0, 1, UNIT] {
                    assert!(lasted(time, begun + time + late), "{time} from {begun}");
                }
                assert!(!lasted(time, begun + time - 1), "{time} from {begun}");
                assert!(
                    !lasted(time, begun - 1),
                    "time stamp before the first frame"
                );
            }
            assert!(!lasted(u64::MAX, begun + UNIT));
        }
    }

    #[test]
    fn addresses_are_at_the_start_of_the_cold_part() {
        assert_eq!(std::mem::offset_of!(FlowApart, addresses), 0);
    }
}
