//! Receiving queues of the selftest with their rules, and passes that send known frames to them.

use super::{
    frames::{FROM, MAC, TestFrame, udp},
    probe::{ipv4, ipv6, own, tcp, udp as to_udp},
    report::Outcome,
    run::SelftestRun,
};
use crate::{bench::wire::Generator, failure::Failure};
use serde_json::{Value, json};
use std::{
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    config::Config,
    device::DeviceFacts,
    plan::Plan,
    verbs::{
        CVLAN_STRIPPING, Context, Flow, FlowSpec, Inspected, InspectedAttr, InspectedQueue, Pd,
        RssQp, RwqTable, SCATTER_FCS, Striding, VerbsError,
    },
};
use wqcap_rss::{FrameClass, HashDepth, IndirectionTable, Profile, RssKey, Toeplitz, queue_of};

/// Number of receiving queues over which the test frames are spread.
const QUEUES: u16 = 4;
/// Number of entries in the RSS indirection table of the receiving queues.
const TABLE: u32 = 16;
/// Number of WQEs of a receiving queue of the selftest.
pub const WRS: u32 = 64;
/// Number of WQEs of a striding receiving queue of the selftest.
pub const STRIDING_WRS: u32 = 8;
/// Length of a receive buffer in bytes, enough for the longest test frame with an FCS.
pub const SLOT: u32 = 16 << 10;
/// Time after which a test frame that did not arrive counts as lost.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// Number of consecutive lost test frames after which the selftest ends.
const MISSED: u32 = 3;
/// Offset of the RSS hash in a CQE of 64 bytes (PRM, "CQE format").
pub const HASH_AT: usize = 12;
/// Offset of the type of the RSS hash in a CQE of 64 bytes.
const HASH_TYPE_AT: usize = 16;
/// Offset of the checksum results in a CQE of 64 bytes.
const CHECKS_AT: usize = 28;
/// Offset of the header types in a CQE of 64 bytes.
const HEADERS_AT: usize = 29;

/// Device and port that send the test frames of the selftest.
pub struct Sender {
    /// Verbs context of the device that sends the test frames.
    pub context: Context,
    /// Number of the port that sends the test frames.
    pub port: u8,
}

/// Receiving queues of a selftest pass, with the tables, QPs and rules that spread test frames over
/// them. The order of the fields is the order in which they are dropped.
pub struct Rig {
    _flows: Vec<Flow>,
    pub qps: Vec<RssQp>,
    /// RSS indirection table over all receiving queues, and that of the catch-all rule.
    pub tables: [RwqTable; 2],
    pub queues: Vec<InspectedQueue>,
    pub pd: Pd,
    /// Filler completions of striding queues that [`Rig::receive`] has skipped.
    pub fillers: Vec<Inspected>,
}

/// Returns the flow specs that match the frames of a hash profile; the first one is `first`.
fn specs(first: FlowSpec, profile: Profile) -> Vec<FlowSpec> {
    let (v4, v6, tcp, udp) = (ipv4(None), ipv6(None), tcp(0), to_udp(0));
    let rest: &[FlowSpec] = match profile {
        Profile::Ipv4Tcp => &[v4, tcp],
        Profile::Ipv4Udp => &[v4, udp],
        Profile::Ipv6Tcp => &[v6, tcp],
        Profile::Ipv6Udp => &[v6, udp],
        Profile::Ipv4 => &[v4],
        Profile::Ipv6 => &[v6],
        Profile::CatchAll => &[],
    };
    [&[first], rest].concat()
}

impl Rig {
    /// Creates the receiving queues of a selftest pass, and the flow rules of the seven hash
    /// profiles for its frames.
    fn make(run: &SelftestRun, pass: Pass<'_>) -> Result<Self, VerbsError> {
        let context = &run.context;
        let pd = Pd::alloc(context)?;
        let queue = |_| InspectedQueue::create(context, &pd, pass.queue);
        let queues: Vec<_> = (0..QUEUES).map(queue).collect::<Result<_, _>>()?;
        let entries = spread();
        let entries = entries.entries().iter();
        let table = RwqTable::create(context, entries.map(|q| queues[usize::from(*q)].handle()))?;
        let last = RwqTable::create(context, [queues[0].handle()])?;
        let (mut qps, mut flows) = (Vec::new(), Vec::new());
        let profiles = match pass.only {
            Some(_) => &[Profile::CatchAll],
            None => &Profile::ALL[..],
        };
        for &profile in profiles {
            let table = match profile {
                Profile::CatchAll => &last,
                _ => &table,
            };
            let qp = RssQp::create(&pd, table, &RssKey::SYMMETRIC, profile.hash_fields())?;
            let priority = 10 + u16::from(profile.priority_offset());
            let specs = match pass.only {
                Some(only) => only.to_vec(),
                None => specs(pass.first, profile),
            };
            flows.push(run.install(&qp, priority, specs)?);
            qps.push(qp);
        }
        Ok(Self {
            _flows: flows,
            qps,
            tables: [table, last],
            queues,
            pd,
            fillers: Vec::new(),
        })
    }

    /// Returns the next completion of a test frame, or of an error, with the number of its queue;
    /// `None`: none came within [`PATIENCE`].
    pub fn receive(&mut self) -> Option<(u16, Inspected)> {
        self.receive_within(PATIENCE)
    }

    /// Returns the next completion of a test frame, or of an error, within `time`, with the number
    /// of its queue.
    pub fn receive_within(&mut self, time: Duration) -> Option<(u16, Inspected)> {
        let began = Instant::now();
        loop {
            for (at, queue) in (0..).zip(&mut self.queues) {
                while let Some(it) = queue.take() {
                    if it.is_filler() {
                        self.fillers.push(it);
                    } else if it.cqe.status != 0 || it.bytes.get(6..12) == Some(&FROM) {
                        return Some((at, it));
                    }
                }
            }
            if began.elapsed() >= time {
                return None;
            }
            thread::yield_now();
        }
    }
}

/// Returns the RSS indirection table that spreads test frames over the receiving queues.
pub fn spread() -> IndirectionTable {
    IndirectionTable::new(TABLE, QUEUES, &[]).unwrap_or_else(|_| IndirectionTable::catch_all())
}

/// Returns `true` if the selftest report has the finding `id` as accepted.
pub fn accepted(run: &SelftestRun, id: &str) -> bool {
    let mut findings = run.report.findings.iter();
    findings.any(|it| it.id == id && it.outcome == Outcome::Accepted)
}

/// Returns a test frame of a flow that RSS assigns to queue 0.
pub fn frame_of_queue_0(payload: usize) -> Vec<u8> {
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let on_0 = |frame: &Vec<u8>| queue_of(frame, HashDepth::L4, &toeplitz, &spread()).2 == 0;
    let mut frames = (0..1024).map(|flow| udp(flow, payload));
    frames.find(on_0).unwrap_or_default()
}

/// Sends one test frame through a flow rule, and returns `true` if it arrives. Otherwise further
/// tests with frames are useless.
pub fn is_connected(run: &mut SelftestRun, sender: &Sender, which: &str) -> bool {
    let pass = Pass::new(which, "frames");
    let Some((mut rig, mut generator)) = pass.open(run, sender, &[udp(0, 40)]) else {
        return false;
    };
    let arrived = generator.send(1).is_ok() && rig.receive().is_some();
    run.expect("frames", &format!("{which}/arrives"), true, arrived, None);
    arrived
}

/// Parameters of a selftest pass, which sends and receives test frames.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// Prefix of the IDs of the pass's findings.
    pub id: &'a str,
    /// Subject of the pass's findings.
    pub subject: &'a str,
    /// First flow spec of each flow rule of the pass.
    pub first: FlowSpec,
    /// Flow specs of the only flow rule of the pass; `None`: the pass has a rule for each hash
    /// profile.
    pub only: Option<[FlowSpec; 3]>,
    /// Attributes of the pass's receiving queues.
    pub queue: InspectedAttr,
}

impl<'a> Pass<'a> {
    /// Creates a selftest pass for frames to the test's MAC address, without creation flags and
    /// time stamps.
    pub fn new(id: &'a str, subject: &'a str) -> Self {
        Self {
            id,
            subject,
            first: own(),
            only: None,
            queue: InspectedAttr {
                wrs: WRS,
                buffer: SLOT,
                ..InspectedAttr::default()
            },
        }
    }

    /// Returns the selftest pass with striding receiving queues of the shape `shape`.
    pub fn striding(self, shape: Striding) -> Self {
        let queue = InspectedAttr {
            wrs: STRIDING_WRS,
            buffer: shape.buffer(),
            striding: Some(shape),
            ..self.queue
        };
        Self { queue, ..self }
    }

    /// Returns the selftest pass with the creation flags `flags` of its receiving WQs.
    pub fn with_flags(self, flags: u32) -> Self {
        let queue = InspectedAttr {
            flags,
            ..self.queue
        };
        Self { queue, ..self }
    }

    /// Opens the receiving queues of the selftest pass, and a sender of `frames`.
    pub fn open(
        self,
        run: &mut SelftestRun,
        sender: &Sender,
        frames: &[Vec<u8>],
    ) -> Option<(Rig, Generator)> {
        let Self { id, subject, .. } = self;
        let rig = run.request(subject, format!("{id}: receiver"), |run| {
            Rig::make(run, self)
        })?;
        let generator = run.request(subject, format!("{id}: sender"), |_| {
            Generator::make(&sender.context, sender.port, 64, frames)
        })?;
        Some((rig, generator))
    }

    /// Sends each test frame of the pass, and compares its arrival with the expected one. With
    /// `facts`, also records its completion.
    pub fn send(self, run: &mut SelftestRun, sender: &Sender, all: &[TestFrame], facts: bool) {
        run.announce(&format!("sending frames: {}", self.id));
        let bytes: Vec<_> = all.iter().map(|it| it.bytes.clone()).collect();
        let Some((mut rig, mut generator)) = self.open(run, sender, &bytes) else {
            return;
        };
        let mut missed = 0;
        for frame in all {
            if run.is_over() {
                return;
            }
            if missed == MISSED {
                // Striding queues may be the only ones that fail.
                if self.queue.striding.is_none() {
                    run.end(format!(
                        "{MISSED} sent frames in a row have not arrived at the receiving queue"
                    ));
                }
                return;
            }
            let began = Instant::now();
            let sent = generator.send(1);
            let received = rig.receive();
            if run.is_lost() {
                return;
            }
            missed = if received.is_some() { 0 } else { missed + 1 };
            let us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let id = format!("{}: {}", self.id, frame.name);
            let expected = self.expected(&frame.bytes);
            let found = match (&sent, &received) {
                (Err(e), _) => json!({ "not sent": e.to_string() }),
                (_, None) => json!("nothing"),
                (Ok(_), Some((queue, it))) => seen(*queue, it),
            };
            let raw = received.as_ref().map(|(_, it)| &it.raw);
            run.expect(self.subject, &id, expected, found, raw);
            if let Some(last) = run.report.findings.last_mut() {
                last.us = us;
            }
            if let (true, Some((_, it))) = (facts, &received) {
                completion(run, frame, it);
            }
        }
    }

    /// Returns the expected arrival of a test frame: queue, status, length, VLAN tag and bytes.
    fn expected(self, frame: &[u8]) -> Value {
        let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
        let (_, _, queue) = queue_of(frame, HashDepth::L4, &toeplitz, &spread());
        let mut bytes = frame.to_vec();
        let mut tag = None;
        if self.queue.flags & CVLAN_STRIPPING != 0 && frame[12..14] == [0x81, 0] {
            tag = FrameClass::from_frame(frame).vlan;
            bytes.drain(12..16);
        }
        if self.queue.flags & SCATTER_FCS != 0 {
            // The FCS covers the frame as it was on the wire (IEEE 802.3, 3.2.9).
            bytes.extend(crc32fast::hash(frame).to_le_bytes());
        }
        described(queue, 0, bytes.len(), tag, crc32fast::hash(&bytes))
    }
}

/// Describes the arrival of a test frame as a value that can be compared with the expected one.
fn seen(queue: u16, it: &Inspected) -> Value {
    let (cqe, len) = (&it.cqe, it.len as usize);
    let mut seen = described(
        queue,
        cqe.status,
        len,
        cqe.stripped,
        crc32fast::hash(&it.bytes),
    );
    if let Some(strides) = it.strides.filter(|it| !it.is_counted()) {
        seen["strides"] = json!({
            "wqe_id": strides.wqe_id, "first": strides.reported.first,
            "counted wqe_id": strides.counted_wqe, "counted first": strides.counted_first,
        });
    }
    seen
}

/// Describes the arrival of a test frame by its parts, as a value that can be compared.
fn described(queue: u16, status: u32, len: usize, tag: Option<u16>, crc: u32) -> Value {
    let bytes = format!("crc32 {crc:08x}");
    json!({ "queue": queue, "status": status, "len": len, "stripped tag": tag, "bytes": bytes })
}

/// Records the checksum results, header types and hash in a test frame's completion, with which
/// devices are compared.
fn completion(run: &mut SelftestRun, frame: &TestFrame, it: &Inspected) {
    let toeplitz = Toeplitz::new(&RssKey::SYMMETRIC);
    let (_, hash, _) = queue_of(&frame.bytes, HashDepth::L4, &toeplitz, &spread());
    let in_cqe = u32::from_be_bytes([0, 1, 2, 3].map(|at| it.raw[HASH_AT + at]));
    let hash = match hash {
        Some(hash) if hash == in_cqe => "as computed",
        Some(_) => "another",
        None if in_cqe == 0 => "none",
        None => "unexpected",
    };
    let kind = format!("{:#04x}", it.raw[HASH_TYPE_AT]);
    run.value("completions", &format!("hash type: {}", frame.name), kind);
    let (checks, headers) = (it.raw[CHECKS_AT], it.raw[HEADERS_AT]);
    let value = format!("checks {checks:#04x}, headers {headers:#04x}, hash {hash}");
    run.value("completions", &format!("completion: {}", frame.name), value);
}

/// Returns the plan of a capture that receives the test frames.
///
/// # Errors
/// The device cannot capture with `queues` queues.
pub fn plan(device: &DeviceFacts, port: u8, queues: u16) -> Result<Plan, Failure> {
    let mac = MAC.map(|it| format!("{it:02x}")).join(":");
    let text = format!(
        "[device]\nname = \"{}\"\nport = {port}\n[capture]\nmode = \"filtered\"\nqueues = {queues}\n\
         promiscuous = false\n[output]\nformat = \"none\"\n[[rule]]\ndst_mac = \"{mac}\"\n",
        device.name
    );
    Ok(Plan::new(
        &Config::parse(&text)?,
        std::slice::from_ref(device),
    )?)
}
