//! Cost of operations on finished files: anonymizing a frame, compared with copying it, and encrypting a
//! file, compared with copying it in the same directory.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::{fs, hint::black_box, path::Path};
use wqcap_engine::{
    anonymize::{AnonymizeParams, Anonymizer},
    config::Slice,
    files::sealed::{SecretKey, seal},
};

const FILE_BYTES: usize = 16 << 20;

fn key() -> SecretKey {
    SecretKey::new(&[7; 32])
}

fn anonymize(c: &mut Criterion) {
    let mut group = c.benchmark_group("files/anonymize");
    for (kind, frame) in wqcap_benches::kinds() {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let (key, slice) = (key(), Slice::Whole);
        let mut anonymizer = Anonymizer::new(&AnonymizeParams { key, slice });
        group.bench_function(kind, |b| {
            b.iter(|| anonymizer.frame(black_box(&frame), len).len());
        });
    }
    let frame = wqcap_benches::kinds().swap_remove(0).1;
    let mut copy = Vec::new();
    group.bench_function("copy", |b| {
        b.iter(|| {
            copy.clear();
            copy.extend_from_slice(black_box(&frame));
            black_box(copy.len())
        });
    });
    group.finish();
}

fn sealing(c: &mut Criterion) {
    let dir = tempfile::tempdir().expect("scratch space");
    let path = dir.path().join("16MiB.pcap");
    let fresh = || fs::write(&path, vec![0x55; FILE_BYTES]).expect("scratch space");
    let mut group = c.benchmark_group("files/seal");
    group.sample_size(10);
    group.throughput(Throughput::Bytes(FILE_BYTES as u64));
    group.bench_function("copy", |b| {
        b.iter_batched(fresh, |()| copied(&path), BatchSize::PerIteration);
    });
    group.bench_function("seal", |b| {
        b.iter_batched(fresh, |()| sealed(&path), BatchSize::PerIteration);
    });
    group.finish();
}

fn copied(path: &Path) {
    let to = path.with_extension("copy");
    fs::copy(path, &to).expect("scratch space");
    let synced = fs::File::open(&to).and_then(|it| it.sync_all());
    synced.expect("scratch space");
    fs::remove_file(to).expect("the copy exists");
}

fn sealed(path: &Path) {
    let sealed =
        seal(path.parent().expect("a folder"), path, &key(), || true).expect("scratch space");
    let sealed = sealed.expect("sealing is not stopped");
    fs::remove_file(sealed.path).expect("the sealed file exists");
}

criterion_group!(benches, anonymize, sealing);
criterion_main!(benches);
