//! Cost of the reduction stage per frame, in front of a sink that only counts. Costs that depend on the
//! number of flows are measured in `flows`.

use criterion::{Criterion, criterion_group, criterion_main};
use std::{hint::black_box, sync::Arc, time::Duration};
use wqcap_engine::{
    analysis::observer::Observer,
    config::{CaptureConfig, Config, SampleBy, Slice, Span},
    filter::FilterCell,
    frame::dedup::MayDiffer,
    pipeline::{
        Consumer, Frame,
        reduce::{Reduction, Stage},
    },
    plan,
    sink::Count,
};

/// Returns frames of `size` bytes, each of a different TCP flow.
fn frames(size: usize) -> Vec<Vec<u8>> {
    let template = wqcap_benches::kinds().swap_remove(0).1;
    (0..4096_u16)
        .map(|flow| {
            let mut frame = template.clone();
            frame.resize(size, 0x55);
            frame[34..36].copy_from_slice(&flow.to_be_bytes());
            frame
        })
        .collect()
}

fn reduction(filter: &str, dedup_ms: u64, sample: u32, by: SampleBy, slice: Slice) -> Reduction {
    let capture = CaptureConfig {
        filter: filter.into(),
        dedup: Span(Duration::from_millis(dedup_ms)),
        sample,
        sample_by: by,
        slice,
        ..CaptureConfig::default()
    };
    let config = Config {
        capture,
        ..Config::default()
    };
    plan::reduction(&config).expect("the filter compiles")
}

fn run<C: Consumer>(c: &mut Criterion, name: &str, frames: &[Vec<u8>], mut consumer: C) {
    let mut turn = frames.iter().cycle();
    let mut ns = 1_700_000_000_000_000_000;
    c.bench_function(&format!("reduce/{name}"), |b| {
        b.iter(|| {
            ns += 100;
            turn.next().map(|bytes| {
                let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                consumer.frame(black_box(&Frame::new(bytes, len, ns)))
            })
        });
    });
}

fn reduce(c: &mut Criterion) {
    let small = frames(128);
    run(c, "no_stage", &small, Count);
    let stage = |reduction: &Reduction| {
        let cell = Arc::new(FilterCell::new(reduction.filter.clone()));
        Stage::new(Count, reduction, cell, Arc::default(), Observer::default())
    };
    let (whole, frame, flow) = (Slice::Whole, SampleBy::Frame, SampleBy::Flow);
    for (name, reduction) in [
        ("nothing", reduction("", 0, 1, frame, whole)),
        ("filter", reduction("tcp port 443", 0, 1, frame, whole)),
        ("sample_frames", reduction("", 0, 10, frame, whole)),
        ("sample_flows", reduction("", 0, 10, flow, whole)),
        ("slice_l4", reduction("", 0, 1, frame, Slice::L4)),
    ] {
        run(c, name, &small, stage(&reduction));
    }
    let dedup = reduction("", 5, 1, frame, whole);
    for size in [64, 128, 512, 1518] {
        run(c, &format!("dedup_{size}B"), &frames(size), stage(&dedup));
    }
    let ignored = Reduction {
        dedup_ignore: vec![
            MayDiffer::Mac,
            MayDiffer::Vlan,
            MayDiffer::Ttl,
            MayDiffer::Checksum,
        ],
        ..dedup
    };
    for size in [64, 128, 512, 1518] {
        let name = format!("dedup_ignoring_all_{size}B");
        run(c, &name, &frames(size), stage(&ignored));
    }
}

criterion_group!(benches, reduce);
criterion_main!(benches);
