//! Cost of a filter per frame: wqcap's interpreter compared with libpcap's, on frames of all kinds in
//! turn.

use criterion::{Criterion, criterion_group, criterion_main};
use pcap::{Capture, Linktype};
use std::hint::black_box;
use wqcap_benches::kinds;
use wqcap_engine::filter::Filter;

const EXPRESSIONS: [(&str, &str); 5] = [
    ("ip", "ip"),
    ("tcp_port", "tcp port 443"),
    ("vlan", "vlan and tcp port 443"),
    ("host_or_net", "host 10.0.0.9 or net 192.168.0.0/16 or ip6"),
    (
        "long",
        "(tcp port 80 or udp port 53 or tcp port 8080) and (net 10.0.0.0/8 or net 172.16.0.0/12) and not host 10.0.0.7",
    ),
];

fn filter(c: &mut Criterion) {
    let frames: Vec<_> = kinds().into_iter().map(|(_, frame)| frame).collect();
    let len = |frame: &[u8]| u32::try_from(frame.len()).unwrap_or(u32::MAX);
    for (name, expression) in EXPRESSIONS {
        let ours = Filter::compile(expression).expect("the filter compiles");
        let theirs = Capture::dead(Linktype::ETHERNET).expect("memory");
        let theirs = theirs
            .compile(expression, true)
            .expect("the filter compiles");
        let mut group = c.benchmark_group(format!("filter/{name}"));
        let mut turn = frames.iter().cycle();
        group.bench_function("wqcap", |b| {
            b.iter(|| turn.next().map(|it| ours.accepts(black_box(it), len(it))));
        });
        let mut turn = frames.iter().cycle();
        group.bench_function("libpcap", |b| {
            b.iter(|| turn.next().map(|it| theirs.filter(black_box(it))));
        });
        let frame = &frames[0];
        group.bench_function("wqcap_same_frame", |b| {
            b.iter(|| ours.accepts(black_box(frame), len(frame)));
        });
        group.bench_function("libpcap_same_frame", |b| {
            b.iter(|| theirs.filter(black_box(frame)));
        });
        group.finish();
    }
}

criterion_group!(benches, filter);
criterion_main!(benches);
