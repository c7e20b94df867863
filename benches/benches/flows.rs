//! What a frame costs in the flow table, by how many flows there are. Frames come in an order that no cache foresees;
//! `parse` is the same frames with their headers parsed and nothing else, which `count` includes; `names` is `count`
//! with a look for names, which none of them has. `stage` is the stage of a queue with flow records and nothing to leave
//! out, `cutoff` the same with a limit to each flow.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
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
    plan::Reduction,
    sink::Count,
};

const COUNTS: [u32; 3] = [1_000, 1_000_000, 10_000_000];
const NS: u64 = 1_700_000_000_000_000_000;

/// A TCP frame that becomes that of any flow by its source address and port.
struct Frames {
    frame: Vec<u8>,
    state: u64,
    flows: u64,
}

impl Frames {
    fn new(flows: u32) -> Self {
        Self {
            frame: wqcap_benches::kinds().swap_remove(0).1,
            state: 1,
            flows: flows.into(),
        }
    }

    fn of(&mut self, flow: u32) -> &[u8] {
        self.frame[26..30].copy_from_slice(&flow.to_be_bytes());
        self.frame[35] = flow.to_le_bytes()[0];
        &self.frame
    }

    /// Any of them: a multiplicative generator's upper bits.
    fn any(&mut self) -> &[u8] {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        let flow = ((self.state >> 32) * self.flows) >> 32;
        self.of(u32::try_from(flow).unwrap_or(0))
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
    let reduction = Reduction::of(&config).expect("it compiles");
    let observer = Observer {
        flows: Some(meter),
        ..Observer::default()
    };
    let cell = Arc::new(FilterCell::default());
    Stage::new(Count, &reduction, cell, Arc::default(), observer)
}

fn pass(stage: &mut Stage<Count>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).unwrap_or(0);
    let frame = Frame {
        bytes,
        len,
        fcs: None,
        ns: NS,
    };
    black_box(stage.frame(&frame));
}

fn flows(c: &mut Criterion) {
    let mut group = c.benchmark_group("flows");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));
    for flows in COUNTS {
        let mut frames = Frames::new(flows);
        group.bench_function(BenchmarkId::new("parse", flows), |b| {
            b.iter(|| {
                let frame = frames.any();
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
        let names = FlowWriter::start(&names, 1).expect("scratch space");
        let writer = FlowWriter::start(&plan, 3).expect("scratch space");
        let meter = |at: usize| writer.meter(at, 0).expect("a queue")();
        let stages =
            [Vec::new(), vec![limit()]].map(|cutoff| staged(meter(cutoff.len()), cutoff, flows));
        for (name, mut stage) in ["stage", "cutoff"].into_iter().zip(stages) {
            for flow in 0..flows {
                pass(&mut stage, frames.of(flow));
            }
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| pass(&mut stage, black_box(frames.any())));
            });
            // What is still in the table is not worth a file.
            std::mem::forget(stage);
        }
        let named = names.meter(0, 0).expect("a queue")();
        for (name, mut meter) in [("count", meter(2)), ("names", named)] {
            for flow in 0..flows {
                count(&mut meter, frames.of(flow));
            }
            group.bench_function(BenchmarkId::new(name, flows), |b| {
                b.iter(|| count(&mut meter, black_box(frames.any())));
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
