//! Cards that report frames differently from what the engine asks for: each test sets the software
//! NIC to behave as such a card, and judges the captured frames by their bytes and by their time.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};
use wqcap_tests::{
    Dir, Finished, Wqcap,
    compare::assert_numbers,
    files::{self, Record},
    frames::{Ends, Frame, IPV4, IPV6},
    wqcap::wqcap,
};

/// Returns a run on a wire with frames of many sizes, which fills buffers up to an end that is too
/// small for the next frame.
fn mixed<'d>(dir: &'d Dir, name: &str, count: u64, sets: &[&str]) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .model(&format!("synth:size=64-1500,flows=64,count={count}"))
        .queues(2)
        .sets(sets)
}

/// Returns the notes of the summary.
fn notes(finished: &Finished) -> Vec<String> {
    let notes = finished.summary.json["notes"].as_array();
    let notes = notes.expect("a list of notes").iter();
    let notes = notes.map(|it| it.as_str().expect("notes are text").to_owned());
    notes.collect()
}

#[track_caller]
fn assert_all_captured(finished: &Finished, count: u64) {
    let total = finished.summary.ledger.total;
    let counts = (total.received, total.captured, total.errors);
    assert_eq!(counts, (count, count, 0), "{}", finished.done);
    assert_numbers(&finished.numbers(), 0..count);
    assert_eq!(notes(finished), [""; 0]);
}

/// Linux and DPDK do not read `wqe_counter` of a filler.
#[test]
fn a_filler_may_name_any_stride() {
    let dir = Dir::new();
    for (name, stamps) in [("cqes", "hardware"), ("mini CQEs", "software")] {
        for receive in ["auto", "striding"] {
            let sets = [
                "model.filler_counter_zero=true",
                &format!("capture.timestamps={stamps}"),
                &format!("capture.receive={receive}"),
            ];
            let name = format!("{name}, {receive}");
            let finished = mixed(&dir, &name, 20_000, &sets).finish(0);
            assert_all_captured(&finished, 20_000);
        }
    }
}

/// Frames that are too long for a WQE's buffer fail. The frames behind them in the same buffer are
/// received.
#[test]
fn an_error_of_a_striding_wq_may_use_up_only_its_own_strides() {
    const JUMBO: usize = 40_000;
    let dir = Dir::new();
    let (short, long) = (short_frame, vec![0x5a; JUMBO]);
    let mut frames = Vec::new();
    for number in 0..3000_u64 {
        frames.push(short(number));
        if number % 50 == 7 {
            frames.push(long.clone());
        }
    }
    let errors = (frames.len() - 3000) as u64;
    let file = dir.join("frames.pcap");
    files::write(&file, 0, &frames);
    for own in [false, true] {
        for receive in ["auto", "striding"] {
            let finished = Wqcap::run(&dir, &format!("{own}-{receive}"))
                .replay(&file)
                .queues(1)
                .set(&format!("model.error_own_strides={own}"))
                .set(&format!("capture.receive={receive}"))
                // 32 KiB a WQE.
                .set("capture.strides=512")
                .set("capture.ring=512")
                .finish(0);
            let total = finished.summary.ledger.total;
            let counts = (total.received, total.captured, total.errors);
            assert_eq!(counts, (3000 + errors, 3000, errors), "{}", finished.done);
            let seen: BTreeSet<_> = finished.records().concat().iter().map(bytes).collect();
            let sent: BTreeSet<_> = (0..3000).map(short).collect();
            assert!(
                seen == sent,
                "own {own}, {receive}: frames have other bytes"
            );
            assert_eq!(notes(&finished), [""; 0]);
        }
    }
}

/// Returns a frame that no other number has, and whose every byte depends on the number.
fn short_frame(number: u64) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x88, 0xb5]);
    let len = 46 + number as usize * 37 % 900;
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    frame.extend(number.to_le_bytes());
    frame.extend(word.iter().cycle().take(len));
    frame
}

fn bytes(record: &Record) -> Vec<u8> {
    record.bytes.clone()
}

/// A device whose `rq_ts_format` is real time only stamps every CQ in UTC.
#[test]
fn stamps_in_utc_instead_of_ticks_are_converted() {
    /// Lead of the card's UTC in nanoseconds: an hour. No machine is late by a tenth of that.
    const AHEAD: i64 = 3_600_000_000_000;
    let dir = Dir::new();
    let system_ns = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        i64::try_from(since.expect("after 1970").as_nanos()).expect("fits")
    };
    for clock in ["system", "nic"] {
        for way in ["capture.receive=auto", "capture.access=verbs"] {
            let sets = [
                "model.utc_stamps=true",
                &format!("model.utc_offset={AHEAD}"),
                &format!("capture.clock={clock}"),
                way,
            ];
            let began = system_ns();
            let finished = mixed(&dir, &format!("{clock}-{way}"), 2000, &sets).finish(0);
            let time = began - AHEAD / 10..system_ns() + AHEAD / 10;
            for records in finished.records() {
                assert!(records.is_sorted_by_key(|it| it.ts));
                for record in records {
                    let ns = record.ts.cast_signed() - AHEAD;
                    assert!(
                        time.contains(&ns),
                        "{clock}, {way}: {ns} is not in {time:?}"
                    );
                }
            }
            assert_numbers(&finished.numbers(), 0..2000);
            let notes = notes(&finished);
            let [note] = &notes[..] else {
                panic!("{notes:?}");
            };
            assert!(note.contains("the NIC stamps frames in UTC"), "{note}");
        }
    }
}

/// A card that decapsulates tunnels may deliver frames without the FCS that was requested.
#[test]
fn a_run_stops_if_the_requested_fcs_is_missing() {
    let dir = Dir::new();
    for way in [
        "capture.receive=striding",
        "capture.receive=frame",
        "capture.access=verbs",
    ] {
        for ignored in [false, true] {
            let sets = [
                "wq.scatter_fcs=true",
                &format!("model.scatter_fcs_ignored={ignored}"),
                way,
            ];
            let run = mixed(&dir, &format!("{way}-{ignored}"), 2000, &sets);
            if ignored {
                let finished = run.finish(1);
                finished
                    .done
                    .says(&["error: ", "are not their FCS", "wq.scatter_fcs = false"]);
                let total = finished.summary.ledger.total;
                assert_eq!(total.received, total.captured);
            } else {
                let finished = run.finish(0);
                assert_eq!(finished.summary.ledger.total.captured, 2000);
            }
        }
    }
}

/// Frames of a striding queue whose completions do not fit are received with a WQE per frame.
#[test]
fn a_striding_queue_that_does_not_fit_falls_back_to_a_wqe_per_frame() {
    const COUNT: u64 = 50_000;
    let dir = Dir::new();
    let idle = ["capture.idle=spin", "capture.idle=sleep"];
    let fields = ["wqe_counter", "strides", "wqe_id", "byte_count"];
    for (field, idle) in fields.iter().flat_map(|it| idle.map(|idle| (it, idle))) {
        for mode in ["inline", "fanout"] {
            let sets = [
                &format!("model.wrong_striding_cqe={field}"),
                &format!("pipeline.mode={mode}"),
                idle,
            ];
            let finished = Wqcap::run(&dir, &format!("{field}-{mode}-{idle}"))
                .model(&format!(
                    "synth:size=64-1500,flows=64,pps=100000,count={COUNT}"
                ))
                .queues(2)
                .sets(&sets)
                .finish(0);
            assert_fell_back(&finished, COUNT, field);
        }
    }
}

/// Asserts that each of two queues fell back, and that the frames since then were captured.
#[track_caller]
fn assert_fell_back(finished: &Finished, count: u64, field: &str) {
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, total.captured, "{}", finished.done);
    let seen = finished.numbers();
    assert_eq!(seen.len() as u64, total.captured);
    // The wire runs for half a second. Frames are lost until the rules lead to the new WQs.
    assert!(
        total.captured > count / 2,
        "{field}: {} of {count}",
        total.captured
    );
    assert!(seen.range(count - 1000..).count() > 900, "the last frames");
    let notes = notes(finished);
    for queue in 0..2 {
        let begin = format!("queue {queue}: ");
        let of_queue: Vec<_> = notes.iter().filter(|it| it.starts_with(&begin)).collect();
        assert_eq!(of_queue.len(), 1, "{field}: {notes:?}");
        assert!(
            of_queue[0].contains("receives with a WQE per frame"),
            "{notes:?}"
        );
    }
}

/// With `capture.receive = "striding"` a queue does not fall back.
#[test]
fn a_requested_striding_queue_that_does_not_fit_ends_the_run() {
    let dir = Dir::new();
    let sets = [
        "model.wrong_striding_cqe=wqe_counter",
        "capture.receive=striding",
    ];
    let finished = mixed(&dir, "striding", 20_000, &sets).finish(1);
    finished.done.says(&["error: ", "strides from stride"]);
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, total.captured);
}

/// A queue that fell back recovers from errors as other queues do.
#[test]
fn a_queue_that_fell_back_is_recovered() {
    let dir = Dir::new();
    let sets = [
        "model.wrong_striding_cqe=strides",
        "model.fault=wq_fatal:queue=0@ms=400;wq_fatal:queue=2@ms=600",
    ];
    let finished = Wqcap::run(&dir, "recovered")
        .model("synth:size=64-1500,flows=64,pps=100000,count=100000")
        .queues(2)
        .sets(&sets)
        .finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, total.captured, "{}", finished.done);
    assert!(finished.numbers().range(99_000..).count() > 900);
}

/// Number of frames on the wire of [`roce_wire`], every third of which is RoCE.
const ROCE_WIRE: u64 = 9000;

/// Writes frames of RoCE v1, of RoCE v2 over IPv4 and IPv6 with and without a tag, and twice as many
/// others between them into a file. Returns the file and its RoCE frames.
fn roce_wire(dir: &Dir) -> (PathBuf, Vec<Vec<u8>>) {
    const RDMA: u16 = 4791;
    let (mut frames, mut roce) = (Vec::new(), Vec::new());
    for number in 0..ROCE_WIRE {
        let is_roce = number % 3 == 0;
        let tags: &[_] = if number % 2 == 0 { &[] } else { &[(0x8100, 7)] };
        let ends = Ends {
            from: 1 + number as u16 % 50,
            to: 2,
            sport: 50_000,
            dport: if is_roce { RDMA } else { RDMA - 1 },
        };
        let start = match number / 3 % 3 {
            0 => Frame::ethernet(tags, if is_roce { 0x8915 } else { 0x88b5 }),
            1 => Frame::ethernet(tags, IPV4).ipv4(ends, 17, 0).udp(ends),
            _ => Frame::ethernet(tags, IPV6).ipv6(ends, 17).udp(ends),
        };
        let mut frame = start.payload(40 + number as usize * 37 % 1300).done();
        let end = frame.len() - 8;
        frame[end..].copy_from_slice(&number.to_be_bytes());
        if is_roce {
            roce.push(frame.clone());
        }
        frames.push(frame);
    }
    let file = dir.join("roce.pcap");
    files::write(&file, 1_700_000_000, &frames);
    (file, roce)
}

/// Returns a run in mode `sniffer` on a device like bnxt_re: no WQs, plain QPs, one sniffer rule.
fn sniff<'d>(dir: &'d Dir, name: &str, wire: &Path, sets: &[&str]) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .replay(wire)
        .set("capture.mode=sniffer")
        .set("model.rwq=false")
        .sets(sets)
}

/// Asserts that a run captured the RoCE frames of [`roce_wire`], each once and in order.
#[track_caller]
fn assert_sniffed(finished: &Finished, roce: &[Vec<u8>]) {
    let total = finished.summary.ledger.total;
    let count = roce.len() as u64;
    let counts = (total.received, total.captured, total.errors);
    assert_eq!(counts, (count, count, 0), "{}", finished.done);
    let seen: Vec<_> = finished.records().concat().iter().map(bytes).collect();
    assert!(seen == roce, "{} frames have other bytes", seen.len());
}

#[test]
fn a_device_without_wqs_captures_its_roce_frames_in_mode_sniffer() {
    let dir = Dir::new();
    let (wire, roce) = roce_wire(&dir);
    let began = SystemTime::now().duration_since(UNIX_EPOCH);
    let began = began.expect("after 1970").as_nanos() as u64;
    for (name, sets) in [
        ("default", &[][..]),
        ("asleep", &["capture.idle=sleep"]),
        // The ring wraps many times.
        ("small", &["capture.ring=16"]),
        ("scattered", &["capture.buffer=256", "capture.max_sge=8"]),
        ("fanout", &["pipeline.mode=fanout"]),
    ] {
        let finished = sniff(&dir, name, &wire, sets).finish(0);
        assert_sniffed(&finished, &roce);
        assert_eq!(notes(&finished), [""; 0], "{name}");
        // The times are the host's, although the software NIC's clock has another epoch.
        let records = finished.records().concat();
        assert!(records.is_sorted_by_key(|it| it.ts), "{name}");
        assert!(records.iter().all(|it| it.ts > began), "{name}");
    }
}

/// A QP in error is recovered as a WQ is, and frames that wait for it are received afterwards.
#[test]
fn a_qp_in_error_is_recovered_and_no_frame_is_lost() {
    let dir = Dir::new();
    let (wire, roce) = roce_wire(&dir);
    for idle in ["spin", "sleep"] {
        let fault = [100, 4000, 4300].map(|it| format!("wq_fatal:queue=0@frames={it}"));
        let sets = [
            &format!("capture.idle={idle}"),
            &format!("model.fault={}", fault.join(";")),
        ];
        let finished = sniff(&dir, idle, &wire, &sets.map(|it| it.as_str())).finish(0);
        assert_sniffed(&finished, &roce);
        let notes = notes(&finished);
        assert_eq!(notes.len(), 3, "{notes:?}");
        for note in notes {
            assert!(note.starts_with("queue 0: "), "{note}");
            assert!(note.contains("recovered; frames between"), "{note}");
        }
    }
}

/// A frame that exceeds its WR's buffer is an error of that frame only.
#[test]
fn a_qp_reports_frames_that_are_too_long() {
    let dir = Dir::new();
    let (wire, roce) = roce_wire(&dir);
    let finished = sniff(&dir, "long", &wire, &["capture.buffer=512"]).finish(0);
    let fit: Vec<_> = roce.iter().filter(|it| it.len() <= 512).cloned().collect();
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, roce.len() as u64, "{}", finished.done);
    assert_eq!(total.errors, (roce.len() - fit.len()) as u64);
    let seen: Vec<_> = finished.records().concat().iter().map(bytes).collect();
    assert!(seen == fit, "{} frames have other bytes", seen.len());
}

/// The loss of such a device ends a run, or the run continues when the device is back.
#[test]
fn a_device_without_wqs_may_be_lost() {
    let dir = Dir::new();
    let (wire, roce) = roce_wire(&dir);
    let lost = "model.fault=device_fatal:for=100@frames=4000";
    let sets = [lost, "device.on_loss=retry"];
    let finished = sniff(&dir, "retry", &wire, &sets).finish(0);
    assert_sniffed(&finished, &roce);
    assert!(notes(&finished).iter().any(|it| it.contains("was lost")));
    let finished = sniff(
        &dir,
        "stop",
        &wire,
        &["model.fault=device_fatal@frames=4000"],
    )
    .finish(1);
    let total = finished.summary.ledger.total;
    assert_eq!(total.received, total.captured, "{}", finished.done);
    finished.done.says(&["the device was lost"]);
}

#[test]
fn a_device_without_wqs_refuses_what_it_cannot_do_with_a_reason() {
    let dir = Dir::new();
    let lacks = "it lacks ibv_create_wq";
    let instead = "set capture.mode = \"sniffer\" to capture its RoCE frames";
    for (sets, words) in [
        (&["capture.mode=steal"][..], &[lacks, instead][..]),
        (
            &["capture.mode=filtered", "capture.filter=tcp"],
            &[lacks, instead],
        ),
        (
            &["capture.mode=sniffer", "capture.queues=2"],
            &["capture.queues", "mlx5_0 supports 1 to 1"],
        ),
        (
            &[
                "capture.mode=sniffer",
                "capture.ring=32768",
                "model.max_qp_wr=16384",
            ],
            &["a QP of the device mlx5_0 has at most 16384 WRs"],
        ),
        (
            &["capture.mode=sniffer", "wq.scatter_fcs=true"],
            &["lacks IBV_RAW_PACKET_CAP_SCATTER_FCS"],
        ),
        (
            &["capture.mode=sniffer", "capture.receive=striding"],
            &["capture.receive", "striding"],
        ),
        (
            &["capture.mode=sniffer", "device.backend=mlx5"],
            &[
                "does not support the direct verbs",
                "set device.backend = \"verbs\"",
            ],
        ),
    ] {
        let of_device = ["--set", "model.rwq=false"].map(str::to_owned);
        let sets = sets
            .iter()
            .flat_map(|it| ["--set".into(), (*it).to_owned()]);
        let sets: Vec<_> = of_device.into_iter().chain(sets).collect();
        let out = dir.join("out").display().to_string();
        for command in [&["check"][..], &["run", "-o", &out]] {
            let program = wqcap(command.iter().copied().chain(["--model", "loopback"]));
            program.args(&sets).run().expect(2).says(words);
        }
    }
}

#[test]
fn the_plan_says_what_a_device_without_wqs_sees() {
    let check = wqcap(["check", "--model", "loopback"]);
    let sets = [
        "model.rwq=false",
        "capture.mode=sniffer",
        "output.format=none",
    ];
    let sets = sets.iter().flat_map(|it| ["--set", it]);
    let done = check.args(sets).run().expect(0);
    for words in [
        "uses 1 RAW_PACKET QP of",
        "mirrors RoCE frames only",
        "EBUSY",
        "does not time stamp completions",
    ] {
        assert!(done.stdout.contains(words), "{words}: {done}");
    }
    assert!(!done.stdout.contains("including RoCE"), "{done}");
}
