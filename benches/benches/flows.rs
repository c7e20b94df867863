//! What a frame costs in the flow table, by how many flows there are. Frames come in an order that no cache foresees;
//! `parse` is the same frames with their headers parsed and nothing else, which `count` includes; `names` is `count`
//! with a look for names, which none of them has. In `count_dns` and `names_dns` one frame of
//! 16 is a question of DNS, which has a name: sixteen times their difference, less that of the others, is what a name costs.
//! `count_ipv6` is `count` with flows of IPv6, whose addresses lie apart.
//! `stage` is the stage of a queue with flow records and nothing to leave out, `cutoff` the same with a limit to each flow;
//! these two take a batch of frames at a time, as a loop does.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::{hint::black_box, sync::Arc, time::Duration};
use wqcap_engine::{
    analysis::{
        flows::{FlowWriter, FlowsPlan, Meter},
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
/// The same for a mere trial of the benches, which need not wait until most of these are entered.
const TRIAL_COUNTS: [u32; 1] = [1_000];
/// Frames of a batch.
const BATCH: usize = 64;
const NS: u64 = 1_700_000_000_000_000_000;

/// TCP frames that become those of any flow by their source address and port.
struct Frames {
    batch: Vec<Vec<u8>>,
    /// Where the address's last four bytes are, and the port's lower one.
    address: usize,
    port: usize,
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

    fn of_ipv6(flows: u32) -> Self {
        Self {
            batch: vec![wqcap_benches::kinds().swap_remove(2).1; BATCH],
            address: 34,
            port: 55,
            ..Self::new(flows)
        }
    }

    /// One of 16 is a question of DNS.
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

    fn of(&mut self, at: usize, flow: u32) -> &[u8] {
        let frame = &mut self.batch[at];
        frame[self.address..][..4].copy_from_slice(&flow.to_be_bytes());
        frame[self.port] = flow.to_le_bytes()[0];
        frame
    }

    /// Any of them: a multiplicative generator's upper bits.
    fn any(&mut self, at: usize) -> &[u8] {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        let flow = ((self.state >> 32) * self.flows) >> 32;
        self.of(at, u32::try_from(flow).unwrap_or(0))
    }

    /// A batch of any.
    fn any_batch(&mut self) -> &[Vec<u8>] {
        for at in 0..BATCH {
            self.any(at);
        }
        &self.batch
    }
}

fn count(meter: &mut Meter, frame: &[u8]) {
    let outer = Headers::parse(frame);
    let inner = outer.descend(frame);
    let inner = inner.as_ref().unwrap_or(&outer);
    let len = u32::try_from(frame.len()).unwrap_or(0);
    meter.count(frame, len, NS, &outer, inner);
}

fn limit() -> CutoffConfig {
    CutoffConfig {
        bytes: Some(Size(100_000)),
        ..CutoffConfig::default()
    }
}

/// The stage of a queue with flow records.
fn staged(meter: Meter, cutoff: Vec<CutoffConfig>, flows: u32) -> Stage<Count> {
    let config = Config {
        capture: CaptureConfig {
            cutoff_memory: Size(u64::from(flows) * 128),
            ..CaptureConfig::default()
        },
        cutoff,
        ..Config::default()
    };
    let reduction = plan::reduction(&config).expect("it compiles");
    let observer = Observer {
        flows: Some(meter),
        ..Observer::default()
    };
    let cell = Arc::new(FilterCell::default());
    Stage::new(Count, &reduction, cell, Arc::default(), observer)
}

fn pass<'a>(stage: &mut Stage<Count>, batch: impl Iterator<Item = &'a [u8]> + Clone) {
    stage.batch();
    stage.ahead(batch.clone());
    for bytes in batch {
        let len = u32::try_from(bytes.len()).unwrap_or(0);
        let frame = Frame {
            bytes,
            len,
            fcs: None,
            ns: NS,
        };
        black_box(stage.frame(&frame));
    }
    stage.handled();
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
                let frame = frames.any(0);
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
        let meter = |at: usize| writer.meter(at, 0).expect("a queue")();
        let stages =
            [Vec::new(), vec![limit()]].map(|cutoff| staged(meter(cutoff.len()), cutoff, flows));
        for (name, mut stage) in ["stage", "cutoff"].into_iter().zip(stages) {
            for flow in 0..flows {
                pass(&mut stage, std::iter::once(frames.of(0, flow)));
            }
            group.throughput(Throughput::Elements(BATCH as u64));
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| {
                    let batch = black_box(frames.any_batch());
                    pass(&mut stage, batch.iter().map(Vec::as_slice));
                });
            });
            // What is still in the table is not worth a file.
            std::mem::forget(stage);
        }
        group.throughput(Throughput::Elements(1));
        let [named, asked] = [0, 1].map(|at| names.meter(at, 0).expect("a queue")());
        let plain = || Frames::new(flows);
        for (name, mut meter, mut frames) in [
            ("count", meter(2), plain()),
            ("count_ipv6", meter(4), Frames::of_ipv6(flows)),
            ("names", named, plain()),
            ("count_dns", meter(3), Frames::with_questions(flows)),
            ("names_dns", asked, Frames::with_questions(flows)),
        ] {
            for flow in 0..flows {
                count(&mut meter, frames.of(0, flow));
            }
            let mut turn = (0..BATCH).cycle();
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| {
                    let at = turn.next().unwrap_or(0);
                    count(&mut meter, black_box(frames.any(at)));
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
