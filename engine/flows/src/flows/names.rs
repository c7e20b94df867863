//! Names thread: reads payloads, adds the names of flows to their records, and produces rows of DNS
//! and DHCP.
//!
//! A flow's names are kept until its record arrives, which follows every payload of the flow. A
//! name is therefore in the record that was open when it was sent, and in no other record of the
//! same flow. The memory for names is bounded; further flows get no names and are counted.

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
use wqcap_names::{
    DhcpMessage, DnsMessage, FlowNames, MAX_PAYLOAD, PayloadError, PayloadKind, Protocol,
};

/// Number of DNS and DHCP rows that are sent to the writer together.
const ROWS: usize = 256;
/// Maximum number of DNS and DHCP rows that wait while the writer is delayed.
pub(super) const MOST_WAITING: usize = 16 * 1024;
/// Bytes of a flow in the names thread in addition to its names: a slot of a map that may be half
/// empty.
const PLACE: usize = 2 * size_of::<(FlowId, FlowNames)>() - size_of::<FlowNames>();
/// Maximum time that DNS and DHCP rows wait for more rows before they are sent to the writer.
const LINGER: Duration = Duration::from_millis(200);
/// Interval at which the names thread polls for payloads. If the thread waited for them, waking it
/// would cost a receive loop more than the rest of the work on a payload.
const NAP: Duration = Duration::from_millis(1);
/// Time without a payload after which the names thread waits for the next one instead of polling.
const AWAKE: Duration = Duration::from_secs(1);
/// Maximum number of batches of DNS and DHCP rows in transit to the writer.
const BATCHES: usize = 64;

/// Counters of the names thread, which reads names from payloads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NamesCounters {
    /// Number of flow records that got a name.
    pub(super) flows: u64,
    /// Number of rows added to the DNS table.
    pub(super) dns: u64,
    /// Number of rows added to the DHCP table.
    pub(super) dhcp: u64,
    /// Number of payloads that could not be parsed as the protocol that they resembled.
    pub(super) unreadable: u64,
    /// Number of payloads not read for names, and of DNS and DHCP rows not kept, because of the
    /// memory limit.
    pub(super) missed: u64,
}

/// Rows of the DNS and DHCP tables, on their way from the names thread to the writer.
#[derive(Default)]
pub(super) struct NameRows {
    pub(super) dns: Vec<DnsRow>,
    pub(super) dhcp: Vec<DhcpRow>,
}

impl NameRows {
    fn count(&self) -> usize {
        self.dns.len() + self.dhcp.len()
    }
}

/// Names thread, which reads names from payloads, with the other threads' ends of its channels.
pub(super) struct NamesThread {
    pub(super) thread: JoinHandle<NamesCounters>,
    pub(super) samples: SampleChannels,
    /// Channel of flow records to which the names of their flows were added.
    pub(super) named: Receiver<Vec<FlowRecord>>,
    pub(super) messages: Receiver<NameRows>,
}

/// Starts the names thread for `meters` flow meters. It receives flow records from `records`, of
/// which at most `batches` batches are in transit, and keeps at most `most` bytes of names.
///
/// # Errors
/// The thread cannot be started.
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
        // The channel's capacity is the number of copies.
        let _ = empty_in.send(Vec::with_capacity(MAX_PAYLOAD));
    }
    let (named_in, named) = bounded(batches);
    let (messages_in, messages) = bounded(BATCHES);
    let work = NamesWorker {
        empty: empty_in.clone(),
        samples,
        named: named_in,
        messages: messages_in,
        flows: HashMap::new(),
        held: 0,
        most,
        rows: NameRows::default(),
        passed: Instant::now(),
        found: NamesCounters::default(),
    };
    let thread = spawn("wqcap-names", move || work.run(&records))?;
    Ok(NamesThread {
        thread,
        samples: SampleChannels {
            empty,
            unused: empty_in,
            full,
            waits: false,
        },
        named,
        messages,
    })
}

/// State of the names thread: its channels, and the names of open flows.
struct NamesWorker {
    empty: Sender<Vec<u8>>,
    samples: Receiver<Sample>,
    named: Sender<Vec<FlowRecord>>,
    messages: Sender<NameRows>,
    flows: HashMap<FlowId, FlowNames>,
    /// Number of bytes that the names of open flows use.
    held: usize,
    most: usize,
    /// DNS and DHCP rows that wait to be sent to the writer.
    rows: NameRows,
    /// Time at which DNS and DHCP rows were last sent to the writer.
    passed: Instant,
    found: NamesCounters,
}

impl NamesWorker {
    fn run(mut self, records: &Receiver<Vec<FlowRecord>>) -> NamesCounters {
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
                    // The meters have ended; their last records may still arrive.
                    Err(_) => match records.recv() {
                        Ok(batch) => self.attach(batch),
                        Err(_) => break,
                    },
                },
            }
        }
        self.read_all();
        if self.rows.count() > 0 {
            // At the end, the thread may wait for the writer.
            let _ = self.messages.send(self.rows);
        }
        self.found
    }

    /// Reads all payload copies in the channel for names, and returns their number.
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

    /// Adds the names of the flows to a batch of flow records, and sends it to the writer.
    fn attach(&mut self, mut batch: Vec<FlowRecord>) {
        // The payloads of a flow were sent before its record.
        self.read_all();
        for record in &mut batch {
            if self.flows.is_empty() {
                break;
            }
            let flow = FlowId::from_record(record).and_then(|id| self.flows.remove(&id));
            if let Some(flow) = flow {
                self.held = self.held.saturating_sub(PLACE + flow.bytes());
                record.names = flow.into_names().map(Box::new);
                self.found.flows += u64::from(record.names.is_some());
            }
        }
        // The channel has room for every existing batch, and the writer outlives this thread.
        let _ = self.named.send(batch);
    }

    fn read(&mut self, mut sample: Sample) {
        match sample.kind {
            PayloadKind::Beginning(protocol) => self.read_names(protocol, &sample),
            PayloadKind::Dns => match DnsMessage::read(&sample.bytes) {
                Ok(message) => self.dns(&sample, message),
                Err(_) => self.found.unreadable += 1,
            },
            PayloadKind::Dhcp => self.dhcp(&sample, DhcpMessage::read(&sample.bytes)),
            PayloadKind::Dhcpv6 => self.dhcp(&sample, DhcpMessage::read_v6(&sample.bytes)),
            PayloadKind::DnsOverTcp => {
                let (messages, ended) = DnsMessage::read_all(&sample.bytes);
                for message in messages {
                    self.dns(&sample, message);
                }
                self.found.unreadable += u64::from(ended.is_err());
            }
            // The start of a message, longer than what is read.
            PayloadKind::Undecided => self.found.unreadable += 1,
        }
        sample.bytes.clear();
        // The channel has room for every existing copy.
        let _ = self.empty.try_send(sample.bytes);
    }

    fn read_names(&mut self, protocol: Protocol, sample: &Sample) {
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

    fn dhcp(&mut self, sample: &Sample, message: Result<DhcpMessage, PayloadError>) {
        let Ok(message) = message else {
            self.found.unreadable += 1;
            return;
        };
        self.found.unreadable += u64::from(message.is_damaged);
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

    /// Returns `true` if there is room for one more DNS or DHCP row; otherwise counts a missed row.
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

    /// Sends the waiting DNS and DHCP rows to the writer, unless its channel is full.
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
