//! Cost of a frame in the flow table, by number of flows. The order of the flows is random, so caches
//! cannot predict it. The benches are:
//!
//! - `parse`: parsing of the headers only, which `count` includes
//! - `count`: counting in the flow table
//! - `names`: `count` with a search for names, which no frame has
//! - `count_dns` and `names_dns`: one frame of 16 is a DNS question, which has a name. The cost of a name
//!   is 16 times the difference of the two, less the difference of `names` and `count`
//! - `count_ipv6`: `count` with IPv6 flows, whose addresses are stored separately
//! - `stage`: the reduction stage of a queue with flow records and no reduction; `cutoff`: the same with
//!   a limit per flow. Both take a batch of frames at a time, as a receive loop does

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::{hint::black_box, sync::Arc, time::Duration};
use wqcap_engine::{
    analysis::{
        flows::{FlowWriter, FlowsPlan, Meter, PortLabels},
        observer::Observer,
    },
    config::{CaptureConfig, Config, CutoffConfig, Size},
    filter::FilterCell,
    frame::Headers,
    pipeline::{Consumer, Frame, reduce::Stage},
    plan,
    sink::Count,
};

const COUNTS: [u32; 3] = [1_000, 1_000_000, 10_000_000];
/// Number of flows when the benches are only tested, which needs no large tables.
const TRIAL_COUNTS: [u32; 1] = [1_000];
/// Number of frames in a batch.
const BATCH: usize = 64;
const NS: u64 = 1_700_000_000_000_000_000;

/// Generator of frames whose source address and port are set to those of a flow.
struct Frames {
    batch: Vec<Vec<u8>>,
    /// Offset of the last four bytes of the source address.
    address: usize,
    /// Offset of the lower byte of the source port.
    port: usize,
    /// State of the pseudorandom generator.
    state: u64,
    flows: u64,
}

impl Frames {
    fn new(flows: u32) -> Self {
        Self {
            batch: vec![wqcap_benches::kinds().swap_remove(0).1; BATCH],
            address: 26,
            port: 35,
            state: 1,
            flows: flows.into(),
        }
    }

    fn ipv6(flows: u32) -> Self {
        Self {
            batch: vec![wqcap_benches::kinds().swap_remove(2).1; BATCH],
            address: 34,
            port: 55,
            ..Self::new(flows)
        }
    }

    /// Creates frames of which one in 16 is a DNS question.
    fn with_questions(flows: u32) -> Self {
        let mut frame = vec![2; 12];
        frame.extend_from_slice(&[8, 0, 0x45, 0, 0, 61, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2, 4, 1, 0, 53, 0, 41, 0, 0]);
        frame.extend_from_slice(&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        frame.extend_from_slice(b"\x03www\x07example\x03org\x00\x00\x01\x00\x01");
        let mut frames = Self::new(flows);
        for it in frames.batch.iter_mut().step_by(16) {
            it.clone_from(&frame);
        }
        frames
    }

    /// Returns frame `at` of the batch as a frame of flow `flow`.
    fn frame_of(&mut self, at: usize, flow: u32) -> &[u8] {
        let frame = &mut self.batch[at];
        frame[self.address..][..4].copy_from_slice(&flow.to_be_bytes());
        frame[self.port] = flow.to_le_bytes()[0];
        frame
    }

    /// Returns frame `at` of the batch as a frame of a random flow, from the upper bits of a linear
    /// congruential generator.
    fn random(&mut self, at: usize) -> &[u8] {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        let flow = ((self.state >> 32) * self.flows) >> 32;
        self.frame_of(at, u32::try_from(flow).unwrap_or(0))
    }

    /// Returns a batch of frames of random flows.
    fn random_batch(&mut self) -> &[Vec<u8>] {
        for at in 0..BATCH {
            self.random(at);
        }
        &self.batch
    }
}

fn count(meter: &mut Meter, frame: &[u8]) {
    let outer = Headers::parse(frame);
    let inner = outer.descend(frame);
    let inner = inner.as_ref().unwrap_or(&outer);
    let len = u32::try_from(frame.len()).unwrap_or(0);
    meter.count(&Frame::new(frame, len, NS), &outer, inner);
}

fn limit() -> CutoffConfig {
    CutoffConfig {
        bytes: Some(Size(100_000)),
        ..CutoffConfig::default()
    }
}

/// Returns the reduction stage of a queue with flow records.
fn staged(meter: Meter, cutoff: Vec<CutoffConfig>, flows: u32) -> Stage<Count> {
    let config = Config {
        capture: CaptureConfig {
            cutoff_memory: Size(u64::from(flows) * 128),
            ..CaptureConfig::default()
        },
        cutoff,
        ..Config::default()
    };
    let reduction = plan::reduction(&config).expect("the filter compiles");
    let observer = Observer {
        flows: Some(meter),
        ..Observer::default()
    };
    let cell = Arc::new(FilterCell::default());
    Stage::new(Count, &reduction, cell, Arc::default(), observer)
}

fn pass<'a>(stage: &mut Stage<Count>, batch: impl Iterator<Item = &'a [u8]> + Clone) {
    stage.begin_batch();
    stage.prefetch(batch.clone());
    for bytes in batch {
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        black_box(stage.frame(&Frame::new(bytes, len, NS)));
    }
    stage.end_batch();
}

fn flows(c: &mut Criterion) {
    let mut group = c.benchmark_group("flows");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));
    let measures = std::env::args().any(|it| it == "--bench");
    let counts: &[u32] = if measures { &COUNTS } else { &TRIAL_COUNTS };
    for &flows in counts {
        let mut frames = Frames::new(flows);
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::new("parse", flows), |b| {
            b.iter(|| {
                let frame = frames.random(0);
                black_box(Headers::innermost(black_box(frame)));
            });
        });
        let dir = tempfile::tempdir().expect("scratch space");
        let plan = FlowsPlan {
            dir: dir.path().to_owned(),
            interval_ns: u64::MAX,
            active_ns: u64::MAX,
            idle_ns: u64::MAX,
            capacity: flows as usize,
            names: false,
        };
        let names = FlowsPlan {
            names: true,
            ..plan.clone()
        };
        let names = FlowWriter::start(&names, 2).expect("scratch space");
        let writer = FlowWriter::start(&plan, 5).expect("scratch space");
        let meter = |at: usize| writer.meter(at, 0, PortLabels::default()).expect("a queue")();
        let stages =
            [Vec::new(), vec![limit()]].map(|cutoff| staged(meter(cutoff.len()), cutoff, flows));
        for (name, mut stage) in ["stage", "cutoff"].into_iter().zip(stages) {
            for flow in 0..flows {
                pass(&mut stage, std::iter::once(frames.frame_of(0, flow)));
            }
            group.throughput(Throughput::Elements(BATCH as u64));
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| {
                    let batch = black_box(frames.random_batch());
                    pass(&mut stage, batch.iter().map(Vec::as_slice));
                });
            });
            // Dropping the stage would write the flows in the table to a file.
            std::mem::forget(stage);
        }
        group.throughput(Throughput::Elements(1));
        let [named, asked] =
            [0, 1].map(|at| names.meter(at, 0, PortLabels::default()).expect("a queue")());
        let plain = || Frames::new(flows);
        for (name, mut meter, mut frames) in [
            ("count", meter(2), plain()),
            ("count_ipv6", meter(4), Frames::ipv6(flows)),
            ("names", named, plain()),
            ("count_dns", meter(3), Frames::with_questions(flows)),
            ("names_dns", asked, Frames::with_questions(flows)),
        ] {
            for flow in 0..flows {
                count(&mut meter, frames.frame_of(0, flow));
            }
            let mut turn = (0..BATCH).cycle();
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| {
                    let at = turn.next().unwrap_or(0);
                    count(&mut meter, black_box(frames.random(at)));
                });
            });
            std::mem::forget(meter);
        }
        std::mem::forget(names);
        std::mem::forget(writer);
    }
    group.finish();
}

criterion_group!(benches, flows);
criterion_main!(benches);
