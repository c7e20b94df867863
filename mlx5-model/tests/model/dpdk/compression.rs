//! DPDK's driver with compressed completions, its default, on ordinary and striding queues.

use super::testpmd::{Counted, Setup, Testpmd};
use super::{ROOM, capture, flows};
use std::collections::BTreeMap;
use wqcap_testkit::captures::Captures;
use wqcap_testkit::compare::assert_frames;
use wqcap_testkit::{Dir, files, need, skip};

/// Driver arguments and model settings: compression sessions of maximum length, short sessions, and
/// sessions that cross the end of the ring, which the vectorised reader does not support.
const WAYS: [(&str, &[&str]); 8] = [
    ("rx_vec_en=1", &[]),
    ("rx_vec_en=0", &[]),
    ("rx_vec_en=1", &["cqe_compression_max=3"]),
    ("rx_vec_en=0", &["cqe_compression_wraps=true"]),
    (STRIDES_VECTOR, &[]),
    (STRIDES_SCALAR, &[]),
    (STRIDES_VECTOR, &["cqe_compression_max=11"]),
    (STRIDES_SCALAR, &["cqe_compression_wraps=true"]),
];
const STRIDES_VECTOR: &str =
    "rx_vec_en=1,mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_size=7,mprq_log_stride_num=9";
const STRIDES_SCALAR: &str =
    "rx_vec_en=0,mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_size=8,mprq_log_stride_num=9";

#[test]
fn every_capture_passes_through_compressed_completions_unchanged() {
    let dir = Dir::new();
    let (_, frames) = Captures::find().everything(&dir);
    let frames: Vec<_> = frames.into_iter().filter(|it| it.len() <= ROOM).collect();
    let wire = capture(&dir, "all.pcap", &frames);
    for (way, settings) in WAYS {
        let out = dir.join("out.pcap");
        let setup = Setup {
            out: Some(&out),
            device: &format!("rxq_cqe_comp_en=1,{way}"),
            settings,
            options: &["--mbuf-size=9856", "--rxd=2048"],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        testpmd.open_wire();
        let counted = testpmd.counted(frames.len());
        drop(testpmd.quit());
        let expected = Counted {
            received: frames.len(),
            errors: 0,
            missed: 0,
        };
        assert_eq!(counted, expected, "{way} {settings:?}");
        skip::say(&format!("NOTE {way} {settings:?}: {} frames", frames.len()));
        let written: Vec<_> = files::read(&out).into_iter().map(|it| it.bytes).collect();
        assert_frames(format!("{way} {settings:?}"), &written, &frames);
    }
}

#[test]
fn compressed_completions_do_not_change_the_queue_of_a_frame() {
    let dir = Dir::new();
    // Sorted by kind, because a session compresses frames of one kind.
    let all = flows(256);
    let of_kind = |kind| all.iter().skip(kind).step_by(4);
    let frames: Vec<_> = (0..4).flat_map(of_kind).cloned().collect();
    let wire = capture(&dir, "flows.pcap", &frames);
    let mut plain = None;
    for (way, settings) in [("rxq_cqe_comp_en=0", &[][..])].into_iter().chain(WAYS) {
        let compressed = if plain.is_none() {
            way.to_owned()
        } else {
            format!("rxq_cqe_comp_en=1,{way}")
        };
        let setup = Setup {
            queues: 4,
            device: &compressed,
            settings,
            options: &["--rxd=1024"],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        testpmd.open_wire();
        let found: BTreeMap<_, _> = testpmd
            .received(frames.len())
            .into_iter()
            .map(|it| (it.source, ((it.queue, it.length), it.hash)))
            .collect();
        drop(testpmd.quit());
        let Some(plain) = &plain else {
            plain = Some(found);
            continue;
        };
        assert_eq!(found.len(), plain.len(), "{way}");
        let mut without_hash = 0;
        for (source, (place, hash)) in &found {
            let (expected_place, expected_hash) = &plain[source];
            assert_eq!(place, expected_place, "{way} {settings:?}: {source}");
            // Mini completions of strides carry no hash. The vectorised reader then reports none,
            // the scalar reader that of the title CQE (`rxq_cq_to_mbuf`).
            if hash != expected_hash && way.contains("mprq_en=1") {
                without_hash += 1;
            } else {
                assert_eq!(hash, expected_hash, "{way} {settings:?}: {source}");
            }
        }
        assert_eq!(
            without_hash > frames.len() / 4,
            way.contains("mprq_en=1"),
            "{way} {settings:?}: {without_hash}"
        );
    }
}
