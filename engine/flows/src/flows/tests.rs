use super::{
    dhcp::DhcpRow,
    dns::DnsRow,
    entry::{FlowApart, FlowEntry},
    meter::{MeterChannels, RECORDS},
    row::{ParquetRow, Values},
    *,
};
use crate::{
    flow_table::{FlowPlace, Table, hash_seed},
    limits::{CutoffPlan, FlowLimit},
};
use crossbeam_channel::{Receiver, Sender};
use parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::RowAccessor,
};
use proptest::prelude::*;
use std::{
    collections::{BTreeSet, HashMap},
    fs,
    sync::Arc,
};
use wqcap_core::consumer::Frame;
use wqcap_frame::{Headers, Tcp, filter::Filter};

const START: u64 = 1_700_000_000_000_000_000;

/// Returns a frame between 10.0.0.1 and 10.0.1.`flow`: TCP for even flows, UDP for odd ones. `back`
/// reverses the direction.
fn frame(flow: u8, back: bool, flags: u8) -> Vec<u8> {
    let protocol = if flow.is_multiple_of(2) { 6 } else { 17 };
    let mut frame = vec![2; 12];
    frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
    let mut ends = [([10, 0, 0, 1], [0x80, flow]), ([10, 0, 1, flow], [0, 80])];
    if back {
        ends.reverse();
    }
    for (address, _) in ends {
        frame.extend_from_slice(&address);
    }
    for (_, port) in ends {
        frame.extend_from_slice(&port);
    }
    frame.extend_from_slice(&[0, 20, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    frame
}

/// Returns a frame as [`frame`] does, with sequence and acknowledgement number if it is TCP.
fn segment(flow: u8, back: bool, flags: u8, numbers: [u32; 2]) -> Vec<u8> {
    let mut frame = frame(flow, back, flags);
    if flow.is_multiple_of(2) {
        frame[38..42].copy_from_slice(&numbers[0].to_be_bytes());
        frame[42..46].copy_from_slice(&numbers[1].to_be_bytes());
    }
    frame
}

fn ports(labels: &[&str]) -> PortLabels {
    labels.iter().copied().map(Arc::from).collect()
}

/// Flow meter under test, whose records are collected.
struct Bench {
    meter: Option<Meter>,
    full: Receiver<Vec<FlowRecord>>,
    empty: Sender<Vec<FlowRecord>>,
    published: Arc<std::sync::Mutex<FlowTotals>>,
    records: Vec<FlowRecord>,
    seen: (u64, u64),
}

impl Bench {
    fn new(capacity: usize, batches: usize, idle_ns: u64, active_ns: u64) -> Self {
        let plan = FlowsPlan {
            dir: PathBuf::new(),
            interval_ns: 1,
            active_ns,
            idle_ns,
            capacity,
            names: false,
        };
        let (full_in, full) = crossbeam_channel::unbounded();
        let (empty_in, empty) = crossbeam_channel::unbounded();
        for _ in 0..batches {
            empty_in.send(Vec::with_capacity(RECORDS)).unwrap();
        }
        let exchange = MeterChannels {
            empty,
            full: full_in,
            samples: None,
            waits: false,
        };
        let published = Arc::default();
        let ports = ports(&["tap0", "tap1"]);
        let meter = Meter::new(3, ports, &plan, exchange, Arc::clone(&published));
        Self {
            meter: Some(meter),
            full,
            empty: empty_in,
            published,
            records: Vec::new(),
            seen: (0, 0),
        }
    }

    /// Passes a batch of one frame to the flow meter.
    fn give(&mut self, frame: &[u8], len: u32, ns: u64) {
        self.meter().batch();
        self.count(frame, len, ns);
        self.meter().handled();
    }

    fn count(&mut self, frame: &[u8], len: u32, ns: u64) {
        self.count_frame(&Frame::new(frame, len, ns));
    }

    fn count_frame(&mut self, frame: &Frame<'_>) {
        let outer = Headers::parse(frame.bytes);
        let inner = outer.descend(frame.bytes);
        let inner = inner.as_ref().unwrap_or(&outer);
        self.meter().count(frame, &outer, inner);
        self.seen = (self.seen.0 + 1, self.seen.1 + u64::from(frame.len));
    }

    /// Makes the flow meter apply cutoff limits of `packets` and `bytes` for each direction, which
    /// start again after `idle_ns`.
    fn follow(mut self, packets: Option<u64>, bytes: Option<u64>, idle_ns: u64) -> Self {
        let limit = FlowLimit {
            filter: Filter::default(),
            bytes,
            packets,
        };
        self.meter().follow(&CutoffPlan {
            limits: vec![limit],
            idle_ns,
            capacity: 1,
        });
        self
    }

    /// Passes a batch of one frame to a flow meter with cutoff limits, and returns `true` if the
    /// frame is beyond them.
    fn cuts(&mut self, frame: &[u8], len: u32, ns: u64) -> bool {
        self.cuts_frame(&Frame::new(frame, len, ns))
    }

    fn cuts_frame(&mut self, frame: &Frame<'_>) -> bool {
        let outer = Headers::parse(frame.bytes);
        let inner = outer.descend(frame.bytes);
        let inner = inner.as_ref().unwrap_or(&outer);
        let mut place = FlowPlace::default();
        place.set(frame.bytes, &outer, inner, hash_seed());
        self.meter().batch();
        let guess = self.meter().table().guess(place.hash, &place.key);
        let is_cut = self.meter().cuts(frame, [&outer, inner], &place, guess);
        self.meter().handled();
        self.seen = (self.seen.0 + 1, self.seen.1 + u64::from(frame.len));
        is_cut
    }

    fn meter(&mut self) -> &mut Meter {
        self.meter.as_mut().unwrap()
    }

    /// Collects finished flow records, and returns their memory to the meter.
    fn drain(&mut self) {
        while let Ok(batch) = self.full.try_recv() {
            self.take(batch);
        }
    }

    fn take(&mut self, mut batch: Vec<FlowRecord>) {
        self.records.append(&mut batch);
        // At the end, no thread receives it.
        let _ = self.empty.send(batch);
    }

    /// Ends the capture, and checks that the totals of the flow meter add up.
    fn end(&mut self) -> FlowTotals {
        self.drain();
        let meter = self.meter.take();
        let ending = std::thread::spawn(move || drop(meter));
        while let Ok(batch) = self.full.recv() {
            self.take(batch);
        }
        ending.join().unwrap();
        let totals = *self.published.lock().unwrap();
        assert_eq!(totals.records, self.records.len() as u64);
        let sum = |of: fn(&FlowRecord) -> u64| self.records.iter().map(of).sum::<u64>();
        assert_eq!(totals.frames, sum(FlowRecord::frames));
        assert_eq!(totals.bytes, sum(FlowRecord::bytes));
        assert_eq!(totals.frames + totals.missed_frames, self.seen.0);
        assert_eq!(totals.bytes + totals.missed_bytes, self.seen.1);
        assert_eq!(totals.flows, 0);
        totals
    }
}

/// Flow record without the reason for its end, which depends on the time of the sweep.
type Facts = (String, [Direction; 2], Option<[u8; 2]>);

fn facts(record: &FlowRecord) -> Facts {
    (format!("{:?}", record.tuple), record.ways, record.tcp_flags)
}

/// Reference implementation of flow records: a map, and a list of ended records.
#[derive(Default)]
struct Naive {
    open: HashMap<u8, (bool, Facts)>,
    ended: Vec<Facts>,
    /// Initial TCP sequence number of each end of the open flows; `None`: the start was not seen.
    initial: HashMap<(u8, bool), Option<u32>>,
}

impl Naive {
    fn give(&mut self, step: &Step, ns: u64, idle: u64, active: u64) {
        let over = self.open.get(&step.flow).is_some_and(|(_, (_, ways, _))| {
            let last = ways[0].last_ns.max(ways[1].last_ns);
            ns - last >= idle || ns - ways[0].first_ns >= active
        });
        let is_tcp = step.flow.is_multiple_of(2);
        let has = |bits: u8| is_tcp && step.flags & bits == bits;
        let initial = self.initial.get(&(step.flow, step.back));
        let is_reused = has(Tcp::SYN)
            && !has(Tcp::ACK)
            && initial.is_some_and(|it| *it != Some(step.numbers[0]));
        if (over || is_reused)
            && let Some((_, facts)) = self.open.remove(&step.flow)
        {
            self.ended.push(facts);
            self.initial.retain(|(flow, _), _| *flow != step.flow);
        }
        let own = has(Tcp::SYN).then_some(step.numbers[0]);
        let is_first = self.open.get(&step.flow).is_none_or(|it| {
            let way = usize::from(step.back != it.0);
            it.1.1[way].frames == 0
        });
        let initial = self.initial.entry((step.flow, step.back)).or_insert(own);
        if is_first {
            // Until then, only acknowledged by the other end.
            *initial = initial.or(own);
        }
        if has(Tcp::ACK) {
            let other = has(Tcp::SYN).then_some(step.numbers[1].wrapping_sub(1));
            self.initial.entry((step.flow, !step.back)).or_insert(other);
        }
        let (began_back, (_, ways, flags)) = self.open.entry(step.flow).or_insert_with(|| {
            let bytes = frame(step.flow, step.back, 0);
            let tcp = step.flow.is_multiple_of(2).then_some([0; 2]);
            let tuple = Headers::parse(&bytes).tuple;
            (
                step.back,
                (format!("{tuple:?}"), [Direction::default(); 2], tcp),
            )
        });
        let way = usize::from(step.back != *began_back);
        if ways[way].frames == 0 {
            ways[way].first_ns = ns;
        }
        ways[way].frames += 1;
        ways[way].bytes += u64::from(step.len);
        ways[way].last_ns = ns;
        if let Some(flags) = flags {
            flags[way] |= step.flags;
        }
    }

    fn end(self) -> Vec<Facts> {
        let open = self.open.into_values().map(|(_, facts)| facts);
        self.ended.into_iter().chain(open).collect()
    }
}

fn in_order(mut facts: Vec<Facts>) -> Vec<Facts> {
    // A record may begin in the nanosecond in which the one before it began.
    facts.sort_by_cached_key(|it| (it.0.clone(), it.1[0].first_ns, format!("{it:?}")));
    facts
}

/// Reference implementation of cutoff limits, with a map of flows.
#[derive(Default)]
struct NaiveLimits {
    flows: HashMap<u8, NaiveLimit>,
}

#[derive(Default)]
struct NaiveLimit {
    last_ns: u64,
    has_ended: bool,
    /// Number of packets and bytes of each direction of a flow so far.
    come: [(u64, u64); 2],
}

impl NaiveLimits {
    fn cuts(&mut self, step: &Step, ns: u64, most: (Option<u64>, Option<u64>), idle: u64) -> bool {
        let is_tcp = step.flow.is_multiple_of(2);
        let has = |bits: u8| is_tcp && step.flags & bits != 0;
        let flow = self.flows.entry(step.flow).or_default();
        let makes = has(Tcp::SYN) && !has(Tcp::ACK);
        if ns - flow.last_ns >= idle || flow.has_ended && makes {
            *flow = NaiveLimit::default();
        }
        flow.last_ns = ns;
        flow.has_ended |= has(Tcp::FIN | Tcp::RST);
        let (packets, bytes) = &mut flow.come[usize::from(step.back)];
        let over = most.0.is_some_and(|it| *packets >= it) || most.1.is_some_and(|it| *bytes >= it);
        *packets += 1;
        *bytes += u64::from(step.len);
        over && !has(Tcp::SYN | Tcp::FIN | Tcp::RST)
    }
}

#[derive(Clone, Debug)]
struct Step {
    flow: u8,
    back: bool,
    flags: u8,
    numbers: [u32; 2],
    len: u32,
    after_ns: u64,
}

impl Step {
    fn frame(&self) -> Vec<u8> {
        segment(self.flow, self.back, self.flags, self.numbers)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let after = prop_oneof![
        4 => 0_u64..1_000_000,
        2 => 0_u64..500_000_000,
        1 => 0_u64..20_000_000_000,
    ];
    // Large lengths stand for many frames: a few of them exceed an entry's counters.
    let len = prop_oneof![4 => 60_u32..9000, 1 => any::<u32>()];
    let numbers = [0_u32..3, 0_u32..3];
    (0_u8..12, any::<bool>(), any::<u8>(), numbers, len, after).prop_map(
        |(flow, back, flags, numbers, len, after_ns)| Step {
            flow,
            back,
            flags,
            numbers,
            len,
            after_ns,
        },
    )
}

proptest! {
    #[test]
    fn records_are_those_of_a_naive_map(
        steps in prop::collection::vec(step(), 0..300),
        idle in 1_u64..10_000_000_000,
        active in 1_u64..30_000_000_000,
    ) {
        let mut bench = Bench::new(64, 4, idle, active);
        let mut naive = Naive::default();
        let mut ns = START;
        for step in &steps {
            ns += step.after_ns;
            bench.give(&step.frame(), step.len, ns);
            bench.drain();
            naive.give(step, ns, idle, active);
        }
        let totals = bench.end();
        prop_assert_eq!((totals.evicted, totals.missed_frames), (0, 0));
        let ours = bench.records.iter().map(facts).collect();
        prop_assert_eq!(in_order(ours), in_order(naive.end()));
    }

    /// The end of a flow record and the restart of a cutoff limit do not depend on each other.
    #[test]
    fn limits_that_records_follow_are_those_of_a_naive_map(
        steps in prop::collection::vec(step(), 0..300),
        idle in 1_u64..10_000_000_000,
        active in 1_u64..30_000_000_000,
        limit_idle in 1_u64..30_000_000_000,
        packets in prop::option::of(0_u64..8),
        bytes in prop::option::of(prop_oneof![0_u64..30_000, 0_u64..20_000_000_000]),
    ) {
        let mut bench = Bench::new(64, 4, idle, active).follow(packets, bytes, limit_idle);
        let (mut naive, mut limits) = (Naive::default(), NaiveLimits::default());
        let mut ns = START;
        let mut cut = 0;
        for step in &steps {
            ns += step.after_ns;
            let is_cut = bench.cuts(&step.frame(), step.len, ns);
            bench.drain();
            naive.give(step, ns, idle, active);
            prop_assert_eq!(is_cut, limits.cuts(step, ns, (packets, bytes), limit_idle));
            cut += u64::from(is_cut) * u64::from(step.len);
        }
        let report = bench.meter().cutoff();
        prop_assert_eq!((report.bytes, report.untracked_frames), (cut, 0));
        let totals = bench.end();
        prop_assert_eq!((totals.evicted, totals.missed_frames), (0, 0));
        let ours = bench.records.iter().map(facts).collect();
        prop_assert_eq!(in_order(ours), in_order(naive.end()));
    }

    #[test]
    fn records_do_not_depend_on_how_many_frames_wait(
        batches in prop::collection::vec(prop::collection::vec(step(), 0..100), 0..8),
        drains in prop::collection::vec(any::<bool>(), 8),
        capacity in 1_usize..14,
        room in 0_usize..3,
        idle in 1_u64..10_000_000_000,
        active in 1_u64..30_000_000_000,
    ) {
        let outcomes = [false, true].map(|wait| {
            let mut bench = Bench::new(capacity, room, idle, active);
            let mut ns = START;
            for (batch, drain) in batches.iter().zip(&drains) {
                bench.meter().batch();
                for step in batch {
                    ns += step.after_ns;
                    bench.count(&step.frame(), step.len, ns);
                    if !wait {
                        bench.meter().handled();
                    }
                }
                bench.meter().handled();
                if *drain {
                    bench.drain();
                }
            }
            bench.empty.send(Vec::with_capacity(RECORDS)).unwrap();
            let totals = bench.end();
            (bench.records, totals)
        });
        prop_assert_eq!(&outcomes[0], &outcomes[1]);
    }

    #[test]
    fn sums_close_when_memory_and_room_run_out(
        steps in prop::collection::vec((step(), any::<bool>()), 0..300),
        capacity in 1_usize..12,
        batches in 0_usize..3,
        limit_idle in prop::option::of(1_u64..30_000_000_000),
    ) {
        let mut bench = Bench::new(capacity, batches, 1_000_000_000, 5_000_000_000);
        if let Some(limit_idle) = limit_idle {
            bench = bench.follow(Some(2), None, limit_idle);
        }
        let mut ns = START;
        for (step, drain) in &steps {
            ns += step.after_ns;
            let frame = step.frame();
            if limit_idle.is_some() {
                bench.cuts(&frame, step.len, ns);
            } else {
                bench.give(&frame, step.len, ns);
            }
            if *drain {
                bench.drain();
            }
        }
        let untracked = bench.meter().cutoff().untracked_frames;
        // Lets the writer return a batch at the end.
        bench.empty.send(Vec::with_capacity(RECORDS)).unwrap();
        let totals = bench.end();
        if limit_idle.is_some() {
            prop_assert_eq!(untracked, totals.missed_frames);
        }
    }
}

/// Segments of one flow that begin further records, as tshark 4.0 counts streams: direction,
/// flags, sequence and acknowledgement number, and whether a record begins.
#[test]
fn a_syn_with_another_sequence_number_begins_a_record() {
    const S: u8 = Tcp::SYN;
    const SA: u8 = Tcp::SYN | Tcp::ACK;
    const A: u8 = Tcp::ACK;
    const FA: u8 = Tcp::FIN | Tcp::ACK;
    const R: u8 = Tcp::RST;
    type Segment = (bool, u8, u32, u32, bool);
    let cases: &[(&str, &[Segment])] = &[
        (
            "after FIN, from either end",
            &[
                (false, S, 100, 0, true),
                (true, SA, 9, 101, false),
                (false, FA, 101, 10, false),
                (true, FA, 10, 102, false),
                (false, A, 102, 11, false),
                (false, S, 500, 0, true),
                (true, SA, 9, 501, false),
                (false, FA, 501, 10, false),
                (true, S, 700, 0, true),
                (false, SA, 9, 701, false),
            ],
        ),
        (
            "after RST",
            &[
                (false, S, 100, 0, true),
                (true, R | A, 0, 101, false),
                (false, S, 200, 0, true),
                (true, R | A, 0, 201, false),
            ],
        ),
        (
            "scans without an answer, and a half-open connection",
            &[
                (false, S, 100, 0, true),
                (false, S, 200, 0, true),
                (true, SA, 9, 201, false),
                (false, A, 201, 10, false),
                (true, S, 7000, 0, true),
                (false, SA, 300, 7001, false),
            ],
        ),
        (
            "repeated segments, even after the end",
            &[
                (false, S, 100, 0, true),
                (false, S, 100, 0, false),
                (true, SA, 9, 101, false),
                (true, SA, 9, 101, false),
                (false, FA, 101, 10, false),
                (true, R, 10, 0, false),
                (false, S, 100, 0, false),
                // Other answers to the repeated SYN.
                (true, SA, 5000, 101, false),
            ],
        ),
        (
            "the start was not captured",
            &[
                (false, A, 100, 5, true),
                (false, S, 777, 0, true),
                (true, A, 5, 778, false),
                (true, A, 6, 778, false),
            ],
        ),
        (
            "only the other direction was captured",
            &[(true, A, 5, 110, true), (false, S, 777, 0, true)],
        ),
        (
            "the answer is stamped before the SYN",
            &[
                (true, SA, 9, 101, true),
                (false, S, 100, 0, false),
                (false, S, 5100, 0, true),
            ],
        ),
        (
            "both ends open the connection",
            &[
                (false, S, 100, 0, true),
                (true, S, 200, 0, false),
                (false, SA, 100, 201, false),
                (true, SA, 200, 101, false),
            ],
        ),
    ];
    for (name, segments) in cases {
        for has_limits in [false, true] {
            let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
            if has_limits {
                bench = bench.follow(Some(1), None, u64::MAX);
            }
            for (ns, &(back, flags, sequence, acknowledged, _)) in (START..).zip(*segments) {
                let bytes = segment(2, back, flags, [sequence, acknowledged]);
                if has_limits {
                    bench.cuts(&bytes, 60, ns);
                } else {
                    // All frames wait together.
                    bench.count(&bytes, 60, ns);
                }
            }
            bench.end();
            bench.records.sort_by_key(FlowRecord::first_ns);
            let began: Vec<_> = (START..)
                .zip(*segments)
                .filter(|(_, it)| it.4)
                .map(|(ns, it)| (ns, it.0))
                .collect();
            let records = bench.records.iter();
            let found: Vec<_> = records
                .map(|it| (it.first_ns(), it.tuple.src_port == 80))
                .collect();
            assert_eq!(found, began, "{name}, limits {has_limits}");
            let (last, reused) = bench.records.split_last().unwrap();
            assert_eq!(last.end, FlowEndReason::Stopped);
            assert!(reused.iter().all(|it| it.end == FlowEndReason::Reused));
        }
    }
}

#[test]
fn records_name_the_ports_that_received_the_first_frames() {
    for has_limits in [false, true] {
        let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
        if has_limits {
            bench = bench.follow(Some(1), None, u64::MAX);
        }
        // A further frame on the other port, as after a change of routes, changes nothing.
        for (at, (flow, back, port)) in [
            (1, false, 1),
            (1, true, 0),
            (1, false, 0),
            (1, true, 1),
            (2, true, 1),
            (3, false, 0),
            (3, true, 0),
        ]
        .into_iter()
        .enumerate()
        {
            let bytes = frame(flow, back, 0);
            let mut frame = Frame::new(&bytes, 60, START + at as u64);
            frame.port = port;
            if has_limits {
                bench.cuts_frame(&frame);
            } else {
                bench.count_frame(&frame);
            }
        }
        bench.end();
        bench.records.sort_by_key(FlowRecord::first_ns);
        let ports = bench.records.iter().map(|it| it.ports.each_ref());
        let ports: Vec<_> = ports.map(|it| it.map(Option::as_deref)).collect();
        let expected = [
            [Some("tap1"), Some("tap0")],
            [Some("tap1"), None],
            [Some("tap0"), Some("tap0")],
        ];
        assert_eq!(ports, expected);
    }
}

#[test]
fn a_full_table_evicts_old_flows() {
    let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
    for flow in 0..100 {
        bench.give(&frame(flow, false, 2), 60, START + u64::from(flow));
        bench.drain();
    }
    let totals = bench.end();
    assert_eq!((totals.records, totals.evicted), (100, 84));
    assert_eq!(totals.missed_frames, 0);
    let by_eviction = bench
        .records
        .iter()
        .filter(|it| it.end == FlowEndReason::Evicted);
    assert_eq!(by_eviction.count(), 84);
}

#[test]
fn without_room_frames_of_new_flows_are_missed_and_counted() {
    let mut bench = Bench::new(16, 0, 1, 1);
    for flow in 0..100 {
        bench.give(&frame(flow, false, 2), 60, START + u64::from(flow) * 1000);
    }
    bench.empty.send(Vec::with_capacity(RECORDS)).unwrap();
    let totals = bench.end();
    assert_eq!((totals.records, totals.missed_frames), (16, 84));
    assert_eq!(totals.missed_bytes, 84 * 60);
}

#[test]
fn the_sweep_ends_silent_flows() {
    let mut bench = Bench::new(5000, 64, 1_000_000_000, u64::MAX);
    for flow in 0..100 {
        bench.give(&frame(flow, false, 2), 60, START);
    }
    // Another flow continues with a frame every 10 ms.
    for i in 0..200 {
        bench.give(&frame(200, false, 2), 60, START + i * 10_000_000);
    }
    bench.drain();
    let ended = bench
        .records
        .iter()
        .filter(|it| it.end == FlowEndReason::Idle);
    assert_eq!(ended.count(), 100);
    assert_eq!(bench.end().records, 101);
}

#[test]
fn memory_that_the_system_refuses_is_an_error() {
    assert!(flow_table::check_memory(2, 1000, FlowsPlan::FLOW_BYTES).is_ok());
    let refused = flow_table::check_memory(2, usize::MAX / 4, FlowsPlan::FLOW_BYTES);
    let text = refused.expect_err("more than an address space").to_string();
    assert!(text.contains("for 2 flow tables"), "{text}");
}

#[test]
fn a_frame_touches_one_cache_line_of_its_flow() {
    assert_eq!((size_of::<FlowEntry>(), align_of::<FlowEntry>()), (64, 64));
    assert_eq!((size_of::<FlowApart>(), align_of::<FlowApart>()), (128, 64));
    assert_eq!(Table::<FlowEntry>::FLOW_BYTES as u64, FlowsPlan::FLOW_BYTES);
    assert!(FlowsPlan::capacity_of(256 << 20, None) > 1_000_000);
    // The cutoff's memory holds more flows than its own data of them needs.
    assert!(FlowsPlan::capacity_of(256 << 20, Some(256 << 20)) > 2_000_000);
    assert_eq!(FlowsPlan::capacity_of(0, None), 1);
}

/// Uses many more flows than a cache holds; each one must be found again in the table.
#[test]
fn many_flows_are_all_kept() {
    const FLOWS: u32 = 300_000;
    let mut bench = Bench::new(FLOWS as usize, 64, u64::MAX, u64::MAX);
    let mut bytes = frame(0, false, 0);
    for round in 0..3_u64 {
        for flow in 0..FLOWS {
            bytes[26..30].copy_from_slice(&flow.to_be_bytes());
            bench.give(&bytes, 60, START + round);
        }
    }
    let totals = bench.end();
    assert_eq!(totals.records, u64::from(FLOWS));
    assert_eq!((totals.evicted, totals.missed_frames), (0, 0));
    assert!(bench.records.iter().all(|it| it.frames() == 3));
}

/// IPv6 flows whose mixed addresses are equal, some of them on the same lines of the index.
#[test]
fn ipv6_flows_with_equal_short_keys_are_distinct() {
    const FLOWS: u64 = 20_000;
    let mut bench = Bench::new(FLOWS as usize, 200, u64::MAX, u64::MAX);
    for round in 0..2 {
        for flow in 0..FLOWS {
            let mut frame = vec![2; 12];
            frame.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
            for end in [0x2001_0db8_u64 << 32, 0x2001_0db9 << 32] {
                frame.extend_from_slice(&(end ^ flow).to_be_bytes());
                frame.extend_from_slice(&flow.to_be_bytes());
            }
            frame.extend_from_slice(&[0, 1, 0, 2, 0, 8, 0, 0]);
            bench.count(&frame, 62, START + round);
        }
    }
    let totals = bench.end();
    assert_eq!(totals.records, FLOWS);
    assert!(bench.records.iter().all(|it| it.frames() == 2));
    let sources: BTreeSet<_> = bench.records.iter().map(|it| it.tuple.src()).collect();
    assert_eq!(sources.len() as u64, FLOWS);
}

/// Returns an IPv4 packet with `payload`.
fn ipv4(from: u8, to: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x45, 0];
    let len = u16::try_from(20 + payload.len()).unwrap();
    packet.extend_from_slice(&len.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&[10, 0, 0, from, 10, 0, 0, to]);
    packet.extend_from_slice(payload);
    packet
}

fn udp(to: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = vec![0x12, 0x34];
    datagram.extend_from_slice(&to.to_be_bytes());
    let len = u16::try_from(8 + payload.len()).unwrap();
    datagram.extend_from_slice(&len.to_be_bytes());
    datagram.extend_from_slice(&[0, 0]);
    datagram.extend_from_slice(payload);
    datagram
}

/// Returns a VXLAN frame in VLAN 7 between hosts 1 and 2. It contains a DNS query of host 3 to host
/// 4.
fn vxlan(vni: u8, back: bool) -> Vec<u8> {
    let (a, b) = if back { (2, 1) } else { (1, 2) };
    let query = ipv4(3, 4, 17, &udp(53, b"query"));
    let mut inside = vec![8, 0, 0, 0, 0, 0, vni, 0];
    inside.extend_from_slice(&[4; 12]);
    inside.extend_from_slice(&[8, 0]);
    inside.extend_from_slice(&query);
    let mut frame = vec![2; 12];
    frame.extend_from_slice(&[0x81, 0, 0, 7, 8, 0]);
    frame.extend_from_slice(&ipv4(a, b, 17, &udp(4789, &inside)));
    frame
}

#[test]
fn tunnels_with_different_networks_are_distinct_flows() {
    let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
    for (vni, back) in [(5, false), (5, true), (6, false)] {
        bench.give(&vxlan(vni, back), 100, START);
    }
    bench.end();
    let mut records = bench.records;
    records.sort_by_key(|it| it.network);
    let [five, six] = &records[..] else {
        panic!("two flows: {records:?}")
    };
    assert_eq!((five.frames(), six.frames()), (2, 1));
    assert_eq!((five.network, six.network), (Some(5), Some(6)));
    assert_eq!(
        format!("{:?}", five.tuple),
        "10.0.0.3:4660 > 10.0.0.4:53 proto 17"
    );
    assert_eq!(five.vlans, [7, 0xffff]);
    let outer = five.outer.unwrap();
    assert_eq!(
        format!("{outer:?}"),
        "10.0.0.1:4660 > 10.0.0.2:4789 proto 17"
    );
    assert_eq!((five.tcp_flags, five.queue), (None, 3));
}

#[test]
fn frames_without_ip_are_in_records_too() {
    let arp = |from: u8, to: u8| {
        let mut frame = vec![to; 6];
        frame.extend_from_slice(&[from; 6]);
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.resize(60, 0);
        frame
    };
    let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
    for (from, to) in [(9, 2), (2, 9), (9, 2)] {
        bench.give(&arp(from, to), 60, START);
    }
    bench.give(&[], 1, START);
    bench.end();
    let mut records = bench.records;
    records.sort_by_key(FlowRecord::frames);
    assert_eq!(records.len(), 2);
    let arps = &records[1];
    assert_eq!((arps.ways[0].frames, arps.ways[1].frames), (2, 1));
    assert_eq!((arps.ethertype, arps.tuple.version), (0x0806, 0));
    assert_eq!(arps.tuple.src_bytes()[..6], [9; 6]);
}

/// Two pairs of MAC addresses whose mixed values are equal.
#[test]
fn flows_without_ip_with_equal_short_keys_are_distinct() {
    let mut bench = Bench::new(16, 4, u64::MAX, u64::MAX);
    for [from, to] in [
        [[1, 0, 0, 0, 0, 1], [9, 0, 0, 0, 0, 2]],
        [[3, 0, 0, 0, 0, 1], [9, 0, 0, 0, 2, 2]],
    ] {
        let mut frame = [to, from].concat();
        frame.extend_from_slice(&[0x88, 0xcc]);
        frame.resize(60, 0);
        bench.give(&frame, 60, START);
    }
    assert_eq!(bench.end().records, 2);
}

#[test]
fn files_hold_what_the_meters_saw() {
    let dir = tempfile::tempdir().unwrap();
    let plan = FlowsPlan {
        dir: dir.path().to_owned(),
        interval_ns: 3_600_000_000_000,
        active_ns: u64::MAX,
        idle_ns: u64::MAX,
        capacity: 64,
        names: false,
    };
    let writer = FlowWriter::start(&plan, 2).unwrap();
    for queue in 0..2 {
        let ports = ports(&[["eth0", "eth1"][queue]]);
        let mut meter = writer.meter(queue, queue, ports).unwrap()();
        for flow in 0..50 {
            let bytes = frame(flow, false, 0x12);
            let headers = Headers::parse(&bytes);
            meter.count(
                &Frame::new(&bytes, 54, START + u64::from(flow)),
                &headers,
                &headers,
            );
        }
    }
    let report = writer.finish();
    assert_eq!(report.totals.records, 100);
    assert_eq!((report.unwritten, report.failures.len()), (0, 0));
    // Two files if an hour ends during the test.
    let mut names: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    assert_eq!(names, report.files.iter().collect::<Vec<_>>());
    let mut ports = BTreeSet::new();
    for path in &report.files.iter().collect::<Vec<_>>() {
        assert!(path.extension().is_some_and(|it| it == "parquet"));
        let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let column = |name: &str| {
                let at = row.get_column_iter().position(|it| it.0 == name);
                at.unwrap_or_else(|| panic!("no column {name}"))
            };
            assert_eq!(row.get_string(column("src")).unwrap(), "10.0.0.1");
            assert_eq!(row.get_long(column("bytes_fwd")).unwrap(), 54);
            let queue = row.get_int(column("queue")).unwrap();
            let port = row.get_string(column("port_fwd")).unwrap();
            assert_eq!(*port, format!("eth{queue}"));
            assert!(row.get_string(column("port_rev")).is_err());
            ports.insert((queue, row.get_int(column("src_port")).unwrap()));
        }
    }
    assert_eq!(ports.len(), 100);
}

#[test]
fn a_missing_directory_is_reported_at_the_start() {
    let plan = FlowsPlan {
        dir: "/nonexistent/flows".into(),
        interval_ns: 1_000_000_000,
        active_ns: 1,
        idle_ns: 1,
        capacity: 1,
        names: false,
    };
    let Err(error) = FlowWriter::start(&plan, 1) else {
        panic!("the directory does not exist")
    };
    let text = error.to_string();
    assert!(text.contains("flows.dir /nonexistent/flows"), "{text}");
}

#[test]
fn every_column_is_documented_and_nothing_else() {
    assert_documented::<FlowRecord>("flows.md", "Columns");
    assert_documented::<DnsRow>("names.md", "The table of DNS");
    assert_documented::<DhcpRow>("names.md", "The table of DHCP");
}

/// Checks that the table below a heading of a page lists exactly the columns of `R`.
fn assert_documented<R: ParquetRow>(page: &str, heading: &str) {
    let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = fs::read_to_string(docs.join(page)).unwrap();
    let (_, below) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = below.split("\n## ").next().unwrap();
    let documented: Vec<_> = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(name, rest)| (name, rest.split(" | ").next().unwrap()))
        .collect();
    let columns: Vec<_> = R::COLUMNS
        .iter()
        .map(|it| {
            let kind = match it.values {
                Values::Int(_) => "int32",
                Values::Long(_) => "int64",
                Values::Time(_) => "timestamp, µs, UTC",
                Values::Text(_) | Values::Name(_) => "string",
            };
            (it.name, kind)
        })
        .collect();
    assert_eq!(documented, columns);
    let version = format!(
        "`wqcap.{}.schema_version`: `{}`",
        R::TABLE,
        R::SCHEMA_VERSION
    );
    assert!(text.contains(&version), "{version}");
}
