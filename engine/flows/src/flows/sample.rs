//! The few payloads that may tell a name, on their way from the loop to the thread that reads them.
//!
//! Most frames cost a look at the first bytes of their payload. What looks like a name is copied, since nobody knows how long
//! a slot will hold it, into memory that comes back; and once the batch's frames are in their flows, it goes on with what tells
//! its flow, unless that has had its share. A hello or message that goes on in the next segment waits for it.

use super::{
    FlowsPlan,
    entry::FlowEntry,
    record::FlowRecord,
    seen::{MOST_SEEN, SeenFrame},
};
use crate::flow_table::{Key, Table};
use crossbeam_channel::{Receiver, Sender};
use wqcap_frame::{FiveTuple, Headers, protocol};
use wqcap_names::{Kind, MOST};

/// Copies that are on their way at a time, for each meter.
pub(super) const COPIES: usize = FlowsPlan::COPIES_BYTES as usize / MOST;
/// Copies that may wait for their next segment. One place each, by what that segment will be.
const UNFINISHED: usize = 64;

/// What tells a flow from all others of a run, also from one that had its addresses before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    key: Key,
    first_ns: u64,
    queue: u16,
}

impl FlowId {
    /// Of a record; `None`: without IP nothing has a name.
    pub(super) fn of(record: &FlowRecord) -> Option<Self> {
        let (ends, _) = record.tuple.ordered();
        (ends.version != 0).then(|| Self {
            key: Key::new(&ends, record.vlans, record.network),
            first_ns: record.first_ns(),
            queue: record.queue,
        })
    }

    /// The ends of one of its frames as it went.
    pub(super) fn ends(&self, upward: bool) -> FiveTuple {
        let ends = self.key.ends();
        if upward { ends } else { ends.reversed() }
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// The outermost VLAN.
    pub(super) fn vlan(&self) -> u16 {
        self.key.vlans()[0]
    }
}

/// A copy of what a payload may tell.
pub(super) struct Sample {
    pub(super) flow: FlowId,
    pub(super) kind: Kind,
    /// Of the flow: 0 as its first frame went, 1 the other.
    pub(super) way: usize,
    /// Whether its frame went from the lower end to the other.
    pub(super) upward: bool,
    /// When its frame, the last one, was received.
    pub(super) ns: u64,
    pub(super) bytes: Vec<u8>,
}

/// Where the memory of copies comes from and goes to.
#[derive(Clone)]
pub(super) struct SampleChannels {
    pub(super) empty: Receiver<Vec<u8>>,
    /// For copies that are of no use after all.
    pub(super) unused: Sender<Vec<u8>>,
    pub(super) full: Sender<Sample>,
}

/// A copy whose frame is not in its flow yet.
struct Waiting {
    /// Which of the frames that wait with it.
    at: usize,
    kind: Kind,
    bytes: Vec<u8>,
}

/// A copy that goes on in the next segment.
struct Unfinished {
    ends: FiveTuple,
    /// Sequence number of that segment.
    next: u32,
    wanted: usize,
    kind: Kind,
    bytes: Vec<u8>,
}

/// A meter's own part.
pub(super) struct Sampler {
    channels: SampleChannels,
    waiting: Vec<Waiting>,
    unfinished: Box<[Option<Unfinished>]>,
    /// How many of these there are.
    begun: usize,
    /// One that is empty, since most that are of no use come one after the other.
    spare: Option<Vec<u8>>,
    missed: u64,
}

impl Sampler {
    pub(super) fn new(channels: SampleChannels) -> Self {
        Self {
            channels,
            waiting: Vec::with_capacity(MOST_SEEN),
            unfinished: (0..UNFINISHED).map(|_| None).collect(),
            begun: 0,
            spare: None,
            missed: 0,
        }
    }

    /// Payloads that were not read since there was no memory, or since they did not go on.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// Looks at a frame, the one at `at` among those that wait. Whether it is now a copy's, which asks for it later.
    #[inline]
    pub(super) fn look(&mut self, frame: &[u8], inner: &Headers, at: usize) -> bool {
        let Some(payload) = inner.payload().and_then(|it| frame.get(it..inner.end())) else {
            return false;
        };
        let ports = [inner.tuple.src_port, inner.tuple.dst_port];
        let kind = match inner.tuple.protocol {
            protocol::TCP => {
                if self.begun > 0 && self.go_on(frame, inner, payload, at) {
                    return true;
                }
                Kind::of_tcp(payload, ports)
            }
            protocol::UDP => Kind::of_udp(payload, ports),
            _ => None,
        };
        if let Some(kind) = kind {
            self.begin(kind, frame, inner, payload, at);
        }
        kind.is_some()
    }

    /// Copies a payload, or its first part.
    #[cold]
    #[inline(never)]
    fn begin(&mut self, kind: Kind, frame: &[u8], inner: &Headers, payload: &[u8], at: usize) {
        let spare = self.spare.take();
        let Some(bytes) = spare.or_else(|| self.channels.empty.try_recv().ok()) else {
            self.missed += 1;
            return;
        };
        let begun = Unfinished {
            ends: inner.tuple,
            next: sequence(frame, inner),
            wanted: kind.wanted(payload),
            kind,
            bytes,
        };
        self.extend(begun, payload, at);
    }

    /// Whether the payload is the next part of a copy.
    #[inline(never)]
    fn go_on(&mut self, frame: &[u8], inner: &Headers, payload: &[u8], at: usize) -> bool {
        if payload.is_empty() {
            return false;
        }
        let next = sequence(frame, inner);
        let place = &mut self.unfinished[place(&inner.tuple, next)];
        let begun = place.take_if(|it| it.next == next && it.ends == inner.tuple);
        let Some(begun) = begun else {
            return false;
        };
        self.begun -= 1;
        self.extend(begun, payload, at);
        true
    }

    /// Adds the next part, which is the last one or not.
    fn extend(&mut self, mut copy: Unfinished, payload: &[u8], at: usize) {
        let left = copy.wanted.saturating_sub(copy.bytes.len());
        // Within the capacity that it was made with.
        copy.bytes
            .extend_from_slice(payload.get(..left).unwrap_or(payload));
        if copy.bytes.len() < copy.wanted {
            // What has come may be enough.
            copy.wanted = copy.kind.wanted(&copy.bytes);
        }
        if copy.bytes.len() >= copy.wanted {
            self.waiting.push(Waiting {
                at,
                kind: copy.kind,
                bytes: copy.bytes,
            });
            return;
        }
        copy.next = copy.next.wrapping_add(payload.len() as u32);
        let place = &mut self.unfinished[place(&copy.ends, copy.next)];
        if let Some(displaced) = place.replace(copy) {
            self.missed += 1;
            self.release(displaced.bytes);
        } else {
            self.begun += 1;
        }
    }

    /// Sends on what waits, once its frames are in their flows.
    #[inline]
    pub(super) fn hand_over(
        &mut self,
        seen: &[SeenFrame],
        table: &mut Table<FlowEntry>,
        queue: u16,
    ) {
        if !self.waiting.is_empty() {
            self.send(seen, table, queue);
        }
    }

    #[cold]
    fn send(&mut self, seen: &[SeenFrame], table: &mut Table<FlowEntry>, queue: u16) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for Waiting { at, kind, bytes } in waiting.drain(..) {
            let frame = &seen[at];
            let Some(place) = table.search(frame.hash, &frame.key) else {
                // It is in no record, or in one that has ended since.
                self.missed += 1;
                self.release(bytes);
                continue;
            };
            let (flow, apart) = table.both_mut(place);
            let Some(way) = flow.share(apart, frame.upward, kind) else {
                self.release(bytes);
                continue;
            };
            let flow = FlowId {
                key: frame.key,
                first_ns: apart.first_ns(),
                queue,
            };
            // The channel has room for every copy there is, and its reader outlives the meters.
            let _ = self.channels.full.send(Sample {
                flow,
                kind,
                way,
                upward: frame.upward,
                ns: frame.ns,
                bytes,
            });
        }
        self.waiting = waiting;
    }

    /// Nothing comes any more.
    pub(super) fn end(&mut self) {
        self.missed += self.begun as u64;
        self.begun = 0;
        self.unfinished.fill_with(|| None);
    }

    fn release(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if let Some(bytes) = self.spare.replace(bytes) {
            // The channel has room for every copy there is.
            let _ = self.channels.unused.try_send(bytes);
        }
    }
}

/// The sequence number of a TCP segment; of others nothing that matters.
fn sequence(frame: &[u8], inner: &Headers) -> u32 {
    let header = inner.l4().and_then(|at| frame.get(at + 4..));
    let number = header.and_then(<[u8]>::first_chunk);
    number.map_or(0, |it| u32::from_be_bytes(*it))
}

/// Where a copy waits for a segment: that of another one has most probably another place.
fn place(ends: &FiveTuple, next: u32) -> usize {
    let ports = u32::from(ends.src_port) << 16 | u32::from(ends.dst_port);
    let mixed = (next ^ ports).wrapping_mul(0x9e37_79b1);
    (mixed >> (32 - UNFINISHED.ilog2())) as usize
}
