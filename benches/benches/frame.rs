//! Cost of parsing a frame's 5-tuple for each kind of frame: the outermost and the innermost headers,
//! compared with `etherparse`.

use criterion::{Criterion, criterion_group, criterion_main};
use etherparse::LaxSlicedPacket;
use std::hint::black_box;
use wqcap_benches::kinds;
use wqcap_engine::frame::{FlowKey, Headers};

fn outermost(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame/outermost");
    for (kind, frame) in kinds() {
        group.bench_function(kind, |b| b.iter(|| Headers::parse(black_box(&frame))));
    }
    // All kinds in turn, so that branches differ from frame to frame.
    let all = kinds();
    let mut turn = all.iter().cycle();
    group.bench_function("in_turn", |b| {
        b.iter(|| {
            turn.next()
                .map(|(_, frame)| Headers::parse(black_box(frame)))
        });
    });
    group.finish();
}

fn innermost(c: &mut Criterion) {
    let mut group = c.benchmark_group("frame/innermost");
    for (kind, frame) in kinds() {
        group.bench_function(kind, |b| b.iter(|| Headers::innermost(black_box(&frame))));
    }
    group.finish();
}

fn others(c: &mut Criterion) {
    let frame = &kinds()[0].1;
    let mut group = c.benchmark_group("frame/ipv4_tcp");
    group.bench_function("etherparse", |b| {
        b.iter(|| LaxSlicedPacket::from_ethernet(black_box(frame)).is_ok());
    });
    let headers = Headers::parse(frame);
    group.bench_function("flow_key", |b| {
        b.iter(|| FlowKey::from_headers(black_box(frame), black_box(&headers)));
    });
    group.bench_function("community_id", |b| {
        b.iter(|| black_box(&headers).community_id(black_box(frame)));
    });
    group.bench_function("flow_hash", |b| {
        b.iter(|| FlowKey::spread(black_box(frame), black_box(&headers)));
    });
    group.finish();
}

criterion_group!(benches, outermost, innermost, others);
criterion_main!(benches);
