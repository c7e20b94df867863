//! The thread that reads names: payloads in; records that have the names of their flows, and rows of DNS and DHCP, out.
//!
//! A flow's names wait here for its record, which comes behind every payload of the flow. So a name is in the record during
//! which it was told, and in no other one of the same flow. What waits is bounded: beyond that, flows stay without names, and
//! are counted.

use super::{
    dhcp::DhcpRow,
    dns::DnsRow,
    record::FlowRecord,
    sample::{COPIES, FlowId, Sample, SampleChannels},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError, bounded, select};
use std::{
    collections::{HashMap, hash_map::Entry},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use wqcap_core::{error::ResourceError, sync::thread::spawn};
use wqcap_names::{DhcpMessage, DnsMessage, FlowNames, Kind, MOST, Protocol, Unreadable};

/// Rows that go on together, where there are so many.
const ROWS: usize = 256;
/// Rows that wait for a writer that is held up, at most.
pub(super) const MOST_WAITING: usize = 16 * 1024;
/// Bytes that a flow takes beside its names: a place in a map that may be half empty.
const PLACE: usize = 2 * size_of::<(FlowId, FlowNames)>() - size_of::<FlowNames>();
/// How long rows wait to be that many.
const LINGER: Duration = Duration::from_millis(200);
/// Payloads are looked for so often, and not waited for: who sends one would have to wake the thread, which costs a loop more
/// than all else about it. Only when none has come for a while does the first one wake it.
const NAP: Duration = Duration::from_millis(1);
const AWAKE: Duration = Duration::from_secs(1);
/// Batches of rows that are on their way, at most.
const BATCHES: usize = 64;

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Found {
    /// Flows with names.
    pub(super) flows: u64,
    /// Rows of DNS.
    pub(super) dns: u64,
    /// Rows of DHCP.
    pub(super) dhcp: u64,
    /// Payloads that were not what they seemed to be.
    pub(super) unreadable: u64,
    /// Payloads that were not read, and rows that were not kept, for lack of memory.
    pub(super) missed: u64,
}

/// Rows of messages.
#[derive(Default)]
pub(super) struct Messages {
    pub(super) dns: Vec<DnsRow>,
    pub(super) dhcp: Vec<DhcpRow>,
}

impl Messages {
    fn count(&self) -> usize {
        self.dns.len() + self.dhcp.len()
    }
}

/// The thread, and its channels' other ends.
pub(super) struct NamesThread {
    pub(super) thread: JoinHandle<Found>,
    pub(super) samples: SampleChannels,
    /// Records with their names.
    pub(super) named: Receiver<Vec<FlowRecord>>,
    pub(super) messages: Receiver<Messages>,
}

/// Starts the thread, for so many meters. It takes `records`, of which there are never more than `batches` on their way, and
/// keeps as many bytes of names as `most`.
///
/// # Errors
/// There is no thread to be had.
pub(super) fn start(
    records: Receiver<Vec<FlowRecord>>,
    batches: usize,
    meters: usize,
    most: usize,
) -> Result<NamesThread, ResourceError> {
    let copies = meters.max(1) * COPIES;
    let (empty_in, empty) = bounded(copies);
    let (full, samples) = bounded(copies);
    for _ in 0..copies {
        // Bounded by the very number of copies: there is room.
        let _ = empty_in.send(Vec::with_capacity(MOST));
    }
    let (named_in, named) = bounded(batches);
    let (messages_in, messages) = bounded(BATCHES);
    let work = Work {
        empty: empty_in.clone(),
        samples,
        named: named_in,
        messages: messages_in,
        flows: HashMap::new(),
        held: 0,
        most,
        rows: Messages::default(),
        passed: Instant::now(),
        found: Found::default(),
    };
    let thread = spawn("wqcap-names", move || work.run(&records))?;
    Ok(NamesThread {
        thread,
        samples: SampleChannels {
            empty,
            unused: empty_in,
            full,
        },
        named,
        messages,
    })
}

/// The thread's own.
struct Work {
    empty: Sender<Vec<u8>>,
    samples: Receiver<Sample>,
    named: Sender<Vec<FlowRecord>>,
    messages: Sender<Messages>,
    flows: HashMap<FlowId, FlowNames>,
    /// Bytes that they take.
    held: usize,
    most: usize,
    /// Rows on their way to the writer.
    rows: Messages,
    /// When rows were passed on.
    passed: Instant,
    found: Found,
}

impl Work {
    fn run(mut self, records: &Receiver<Vec<FlowRecord>>) -> Found {
        let samples = self.samples.clone();
        let mut busy = Instant::now();
        loop {
            if self.read_all() > 0 {
                busy = Instant::now();
            }
            if busy.elapsed() < AWAKE {
                match records.recv_timeout(NAP) {
                    Ok(batch) => self.attach(batch),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                continue;
            }
            self.pass_on();
            select! {
                recv(records) -> batch => match batch {
                    Ok(batch) => self.attach(batch),
                    Err(_) => break,
                },
                recv(samples) -> sample => match sample {
                    Ok(sample) => {
                        self.read(sample);
                        busy = Instant::now();
                    }
                    // The meters are gone; their last records may not be here yet.
                    Err(_) => match records.recv() {
                        Ok(batch) => self.attach(batch),
                        Err(_) => break,
                    },
                },
            }
        }
        self.read_all();
        if self.rows.count() > 0 {
            // Nothing is in a hurry any more.
            let _ = self.messages.send(self.rows);
        }
        self.found
    }

    /// Reads what is there; how many there were.
    fn read_all(&mut self) -> usize {
        let count = self.samples.len();
        for _ in 0..count {
            if let Ok(sample) = self.samples.try_recv() {
                self.read(sample);
            }
            if self.rows.count() >= ROWS {
                self.pass_on();
            }
        }
        if self.rows.count() > 0 && self.passed.elapsed() >= LINGER {
            self.pass_on();
        }
        count
    }

    /// Gives records the names of their flows.
    fn attach(&mut self, mut batch: Vec<FlowRecord>) {
        // What a flow told was sent before its record.
        self.read_all();
        for record in &mut batch {
            if self.flows.is_empty() {
                break;
            }
            let flow = FlowId::of(record).and_then(|id| self.flows.remove(&id));
            if let Some(flow) = flow {
                self.held = self.held.saturating_sub(PLACE + flow.bytes());
                record.names = flow.into_names().map(Box::new);
                self.found.flows += u64::from(record.names.is_some());
            }
        }
        // The channel has room for every batch there is, and the writer outlives this thread.
        let _ = self.named.send(batch);
    }

    fn read(&mut self, mut sample: Sample) {
        match sample.kind {
            Kind::Beginning(protocol) => self.learn(protocol, &sample),
            Kind::Dns => match DnsMessage::read(&sample.bytes) {
                Ok(message) => self.dns(&sample, message),
                Err(_) => self.found.unreadable += 1,
            },
            Kind::Dhcp => self.dhcp(&sample, DhcpMessage::read(&sample.bytes)),
            Kind::Dhcpv6 => self.dhcp(&sample, DhcpMessage::read_v6(&sample.bytes)),
            Kind::DnsOverTcp => {
                let (messages, ended) = DnsMessage::read_all(&sample.bytes);
                for message in messages {
                    self.dns(&sample, message);
                }
                self.found.unreadable += u64::from(ended.is_err());
            }
        }
        sample.bytes.clear();
        // The channel has room for every copy there is.
        let _ = self.empty.try_send(sample.bytes);
    }

    fn learn(&mut self, protocol: Protocol, sample: &Sample) {
        let (flow, before) = match self.flows.entry(sample.flow) {
            Entry::Occupied(flow) => {
                let flow = flow.into_mut();
                let before = PLACE + flow.bytes();
                (flow, before)
            }
            Entry::Vacant(_) if self.held >= self.most => {
                self.found.missed += 1;
                return;
            }
            Entry::Vacant(place) => (place.insert(FlowNames::default()), 0),
        };
        let read = flow.read(protocol, sample.way, &sample.bytes);
        self.found.unreadable += u64::from(read.is_err());
        self.held = (self.held + PLACE + flow.bytes()).saturating_sub(before);
    }

    fn dhcp(&mut self, sample: &Sample, message: Result<DhcpMessage, Unreadable>) {
        let Ok(message) = message else {
            self.found.unreadable += 1;
            return;
        };
        if !self.has_room() {
            return;
        }
        self.found.dhcp += 1;
        self.rows.dhcp.push(DhcpRow {
            ns: sample.ns,
            ends: sample.flow.ends(sample.upward),
            vlan: sample.flow.vlan(),
            queue: sample.flow.queue(),
            message,
        });
    }

    /// Whether there is room for one more row.
    fn has_room(&mut self) -> bool {
        let has_room = self.rows.count() < MOST_WAITING;
        self.found.missed += u64::from(!has_room);
        has_room
    }

    fn dns(&mut self, sample: &Sample, message: DnsMessage) {
        let DnsMessage {
            id,
            rcode,
            answers,
            questions,
        } = message;
        let row = |question| DnsRow {
            ns: sample.ns,
            ends: sample.flow.ends(sample.upward),
            queue: sample.flow.queue(),
            id,
            question,
            rcode: rcode.clone(),
            answers,
        };
        let questions: Vec<_> = if questions.is_empty() {
            vec![None]
        } else {
            questions.into_iter().map(Some).collect()
        };
        for question in questions {
            if self.has_room() {
                self.rows.dns.push(row(question));
                self.found.dns += 1;
            }
        }
    }

    /// Passes rows on to the writer, unless it is behind.
    fn pass_on(&mut self) {
        if self.rows.count() == 0 {
            return;
        }
        self.passed = Instant::now();
        let rows = std::mem::take(&mut self.rows);
        if let Err(TrySendError::Full(rows)) = self.messages.try_send(rows) {
            self.rows = rows;
        }
    }
}

#[cfg(test)]
mod tests;
