//! Sampler of payloads with possible names, between the loop and the names thread.
//!
//! Most frames cost only a check of the first bytes of their payload. A payload with a possible
//! name is copied into reusable memory, since its slot may be reposted at any time. Once the
//! batch's frames are added to their flows, the copy is sent with the identity of its flow, unless
//! the flow's share is used up. A hello or message that continues in the next segment waits for it,
//! and so does the start of a message that is too short to be classified. Of a stream of DNS, whole
//! messages are sent, and the rest waits.

use super::{
    FlowsPlan,
    entry::FlowEntry,
    record::FlowRecord,
    seen::{MOST_SEEN, SeenFrame},
};
use crate::flow_table::{Key, Table};
use crossbeam_channel::{Receiver, Sender};
use std::time::Duration;
use wqcap_frame::{FiveTuple, Headers, protocol};
use wqcap_names::{MAX_PAYLOAD, PayloadKind};

/// Number of payload copies in transit for each flow meter.
pub(super) const COPIES: usize = FlowsPlan::COPIES_BYTES as usize / MAX_PAYLOAD;
/// Number of places for payload copies that wait for their next segment. The ends of a copy
/// determine its place.
const UNFINISHED: usize = 64;
/// Number of bytes before the next segment within which a segment counts as repeated.
const MOST_REPEATED: usize = 1 << 16;

/// Identity of a flow among all flows of a run, including earlier ones with the same addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowId {
    key: Key,
    first_ns: u64,
    queue: u16,
}

impl FlowId {
    /// Returns the identity of a flow record's flow; `None`: flows without IP have no names.
    pub(super) fn from_record(record: &FlowRecord) -> Option<Self> {
        let (ends, _) = record.tuple.ordered();
        (ends.version != 0).then(|| Self {
            key: Key::new(&ends, record.vlans, record.network),
            first_ns: record.first_ns(),
            queue: record.queue,
        })
    }

    /// Returns the addresses and ports of one of the flow's frames, in the frame's direction.
    pub(super) fn ends(&self, upward: bool) -> FiveTuple {
        let ends = self.key.ends();
        if upward { ends } else { ends.reversed() }
    }

    pub(super) fn queue(&self) -> u16 {
        self.queue
    }

    /// Returns the outermost VLAN identifier of the flow.
    pub(super) fn vlan(&self) -> u16 {
        self.key.vlans()[0]
    }
}

/// Copy of a payload with a possible name.
pub(super) struct Sample {
    pub(super) flow: FlowId,
    pub(super) kind: PayloadKind,
    /// Index of the payload's direction within its flow: 0 is the direction of the flow's first
    /// frame.
    pub(super) way: usize,
    /// `true` if the payload's frame went from the flow's lower end to its upper one.
    pub(super) upward: bool,
    /// Time at which the last frame of the payload copy was received, in nanoseconds since 1970.
    pub(super) ns: u64,
    pub(super) bytes: Vec<u8>,
}

/// Channels for payload copies to the names thread, and for their memory.
#[derive(Clone)]
pub(super) struct SampleChannels {
    pub(super) empty: Receiver<Vec<u8>>,
    /// Channel on which the memory of payload copies that are not sent returns.
    pub(super) unused: Sender<Vec<u8>>,
    pub(super) full: Sender<Sample>,
    /// `true` if the sampler waits for free memory instead of missing payloads: its frames can be
    /// delayed.
    pub(super) waits: bool,
}

impl SampleChannels {
    /// Longest wait for the memory of a payload copy, in case that all memory is in copies that wait
    /// for their next segments.
    const LONGEST_WAIT: Duration = Duration::from_secs(1);

    /// Takes free memory for a payload copy, or returns `None` if there is none.
    fn take_free(&self) -> Option<Vec<u8>> {
        match self.waits {
            true => self.empty.recv_timeout(Self::LONGEST_WAIT).ok(),
            false => self.empty.try_recv().ok(),
        }
    }
}

/// Payload copy whose frame is not yet added to its flow.
struct Waiting {
    /// Index of the payload's frame among the frames that wait for their flow.
    at: usize,
    kind: PayloadKind,
    bytes: Vec<u8>,
}

/// Payload copy whose message continues in the next TCP segment.
struct Unfinished {
    ends: FiveTuple,
    /// TCP sequence number of the segment that continues the payload copy.
    next: u32,
    /// Number of bytes of the stream received before the next segment, up to [`MOST_REPEATED`].
    received: usize,
    wanted: usize,
    kind: PayloadKind,
    bytes: Vec<u8>,
    /// Number of bytes of the next segments that are not copied: the end of a long DNS message.
    skip: usize,
}

/// Payload sampler of one flow meter: copies payloads with possible names.
pub(super) struct PayloadSampler {
    channels: SampleChannels,
    waiting: Vec<Waiting>,
    unfinished: Box<[Option<Unfinished>]>,
    /// Number of payload copies that wait for a further TCP segment.
    begun: usize,
    /// Memory of a payload copy that was not sent, for reuse: most of such copies follow one
    /// another.
    spare: Option<Vec<u8>>,
    missed: u64,
}

impl PayloadSampler {
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

    /// Returns the number of payloads that were not read for names because no memory was free, or
    /// because their next segment did not arrive.
    pub(super) fn missed(&self) -> u64 {
        self.missed
    }

    /// Checks the payload of a frame, which is number `at` of the frames that wait for their flow,
    /// for a possible name. Returns `true` if the payload was copied, for which the frame must be
    /// kept.
    #[inline]
    pub(super) fn sample_frame(&mut self, frame: &[u8], inner: &Headers, at: usize) -> bool {
        let Some(payload) = inner.payload().and_then(|it| frame.get(it..inner.end())) else {
            return false;
        };
        let ports = [inner.tuple.src_port, inner.tuple.dst_port];
        let kind = match inner.tuple.protocol {
            protocol::TCP => {
                if self.begun > 0 && self.continue_copy(frame, inner, payload, at) {
                    return true;
                }
                PayloadKind::classify_tcp(payload, ports)
            }
            protocol::UDP => PayloadKind::classify_udp(payload, ports),
            _ => None,
        };
        if let Some(kind) = kind {
            self.begin(kind, frame, inner, payload, at);
        }
        kind.is_some()
    }

    /// Starts the copy of a payload with a possible name, or of the first part of a message.
    #[cold]
    #[inline(never)]
    fn begin(
        &mut self,
        kind: PayloadKind,
        frame: &[u8],
        inner: &Headers,
        payload: &[u8],
        at: usize,
    ) {
        let Some(bytes) = self.buffer() else {
            return;
        };
        let is_stream = inner.tuple.protocol == protocol::TCP;
        let begun = Unfinished {
            ends: inner.tuple,
            next: sequence(frame, inner),
            received: 0,
            wanted: if is_stream {
                kind.wanted(payload)
            } else {
                payload.len().min(MAX_PAYLOAD)
            },
            kind,
            bytes,
            skip: 0,
        };
        self.extend(begun, payload, at);
    }

    /// Returns free memory for a payload copy; if there is none, counts the payload as missed.
    fn buffer(&mut self) -> Option<Vec<u8>> {
        let spare = self.spare.take();
        let buffer = spare.or_else(|| self.channels.take_free());
        self.missed += u64::from(buffer.is_none());
        buffer
    }

    /// Adds a payload to the payload copy that waits for this segment; returns `true` if there is
    /// one. Bytes that the copy already has are left out.
    #[inline(never)]
    fn continue_copy(&mut self, frame: &[u8], inner: &Headers, payload: &[u8], at: usize) -> bool {
        if payload.is_empty() {
            return false;
        }
        let place = &mut self.unfinished[place(&inner.tuple)];
        let Some(begun) = place.as_ref().filter(|it| it.ends == inner.tuple) else {
            return false;
        };
        let known = begun.next.wrapping_sub(sequence(frame, inner)) as usize;
        let Some(new) = payload.get(known..).filter(|it| !it.is_empty()) else {
            return known <= begun.received;
        };
        if let Some(begun) = place.take() {
            self.begun -= 1;
            self.extend(begun, new, at);
        }
        true
    }

    /// Adds the next segment to a payload copy, which then waits for its flow or for a further
    /// segment.
    fn extend(&mut self, mut copy: Unfinished, payload: &[u8], at: usize) {
        copy.next = copy.next.wrapping_add(payload.len() as u32);
        copy.received = (copy.received + payload.len()).min(MOST_REPEATED);
        if copy.kind == PayloadKind::DnsOverTcp {
            return self.extend_stream(copy, payload, at);
        }
        let left = copy.wanted.saturating_sub(copy.bytes.len());
        // Within the capacity of the buffer.
        copy.bytes
            .extend_from_slice(payload.get(..left).unwrap_or(payload));
        if copy.kind == PayloadKind::Undecided {
            match reclassify(&mut copy, payload) {
                Some(kind) => copy.kind = kind,
                None => return self.release(copy.bytes),
            }
        }
        if copy.bytes.len() < copy.wanted {
            // The received part may already be enough.
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
        self.wait(copy);
    }

    /// Adds the next segment to a copy of a DNS stream. Its whole messages then wait for their
    /// flow, and the rest for a further segment.
    fn extend_stream(&mut self, mut copy: Unfinished, mut payload: &[u8], at: usize) {
        loop {
            let (skipped, rest) = payload.split_at(copy.skip.min(payload.len()));
            copy.skip -= skipped.len();
            if rest.is_empty() {
                break;
            }
            if copy.bytes.capacity() == 0 {
                let Some(bytes) = self.buffer() else { return };
                copy.bytes = bytes;
            }
            let room = MAX_PAYLOAD - copy.bytes.len();
            let (part, rest) = rest.split_at(rest.len().min(room));
            copy.bytes.extend_from_slice(part);
            payload = rest;
            // A full buffer is never kept whole.
            let (ready, skip) = PayloadKind::split(&copy.bytes);
            if ready == 0 {
                break;
            }
            copy.skip = skip;
            let mut rest = Some(Vec::new());
            if ready < copy.bytes.len() {
                rest = self.buffer();
            }
            if let Some(rest) = &mut rest {
                rest.extend_from_slice(&copy.bytes[ready..]);
            }
            copy.bytes.truncate(ready);
            self.waiting.push(Waiting {
                at,
                kind: copy.kind,
                bytes: copy.bytes,
            });
            let Some(rest) = rest else { return };
            copy.bytes = rest;
        }
        if copy.skip > 0 || !copy.bytes.is_empty() {
            self.wait(copy);
        }
    }

    /// Keeps a payload copy until its next TCP segment. Another copy at the same place is
    /// discarded.
    fn wait(&mut self, copy: Unfinished) {
        let place = &mut self.unfinished[place(&copy.ends)];
        if let Some(displaced) = place.replace(copy) {
            self.missed += u64::from(!displaced.bytes.is_empty());
            self.release(displaced.bytes);
        } else {
            self.begun += 1;
        }
    }

    /// Sends the waiting payload copies of the frames `seen` to the names thread, once the frames
    /// are added to their flows.
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
        let ready = waiting.partition_point(|it| it.at < seen.len());
        for Waiting { at, kind, bytes } in waiting.drain(..ready) {
            let frame = &seen[at];
            let Some(place) = table.search(frame.hash, &frame.key) else {
                // The frame is in no record, or its record has ended since.
                self.missed += 1;
                self.release(bytes);
                continue;
            };
            let (flow, apart) = table.both_mut(place);
            let is_shared = !kind.is_always_parsed(&bytes);
            let Some(way) = flow.share(apart, frame.upward, is_shared) else {
                self.release(bytes);
                continue;
            };
            let flow = FlowId {
                key: frame.key,
                first_ns: apart.first_ns(),
                queue,
            };
            // The channel has room for every existing copy, and its reader outlives the meters.
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

    /// Discards unfinished payload copies when the meter ends.
    pub(super) fn end(&mut self) {
        let begun = self.unfinished.iter().flatten();
        self.missed += begun.filter(|it| !it.bytes.is_empty()).count() as u64;
        self.begun = 0;
        self.unfinished.fill_with(|| None);
    }

    fn release(&mut self, mut bytes: Vec<u8>) {
        if bytes.capacity() == 0 {
            return;
        }
        bytes.clear();
        if let Some(bytes) = self.spare.replace(bytes) {
            // The channel has room for every existing copy.
            let _ = self.channels.unused.try_send(bytes);
        }
    }
}

/// Returns the sequence number of a TCP segment; an arbitrary value for other protocols.
fn sequence(frame: &[u8], inner: &Headers) -> u32 {
    let header = inner.l4().and_then(|at| frame.get(at + 4..));
    let number = header.and_then(<[u8]>::first_chunk);
    number.map_or(0, |it| u32::from_be_bytes(*it))
}

/// Determines the kind of a payload copy again, after `payload` was added to it. If the copy is of
/// no kind, its bytes before the payload were another message, and the payload is classified alone.
fn reclassify(copy: &mut Unfinished, payload: &[u8]) -> Option<PayloadKind> {
    let ports = [copy.ends.src_port, copy.ends.dst_port];
    PayloadKind::classify_tcp(&copy.bytes, ports).or_else(|| {
        let kind = PayloadKind::classify_tcp(payload, ports)?;
        copy.bytes.clear();
        copy.bytes
            .extend_from_slice(payload.get(..MAX_PAYLOAD).unwrap_or(payload));
        Some(kind)
    })
}

/// Returns the place where a payload copy of a flow's direction waits for a segment. Different flows
/// have different places with high probability.
fn place(ends: &FiveTuple) -> usize {
    let [src, dst] = [ends.src_bytes(), ends.dst_bytes()].map(u128::from_be_bytes);
    let addresses = src ^ dst.rotate_left(8);
    let addresses = (addresses ^ addresses >> 64) as u64;
    let ports = u64::from(ends.src_port) << 16 | u64::from(ends.dst_port);
    let mixed = (addresses ^ ports).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (64 - UNFINISHED.ilog2())) as usize
}
