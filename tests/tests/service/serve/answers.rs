//! Answers equal `wqcap extract` and tcpdump; files that are being written; what is incomplete;
//! frames that wait for a full disk.

use super::{Answer, FRAMES, Service, Stored, serve};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    os::unix::fs::{FileExt, PermissionsExt},
};
use wqcap_tests::{
    Dir, Program, Wqcap,
    compare::assert_bytes,
    files, frames,
    machine::{
        disks::Memory,
        privileges::{self, ForAll, as_nobody},
    },
    need,
    process::is_root,
    skip,
    wqcap::wqcap,
};

fn encoded(text: &str) -> String {
    let plain = |it: u8| it.is_ascii_alphanumeric() || b"-._~".contains(&it);
    text.bytes()
        .map(|it| {
            if plain(it) {
                char::from(it).to_string()
            } else {
                format!("%{it:02X}")
            }
        })
        .collect()
}

/// Returns the first and last time of the stored frames, as seconds with nanoseconds.
fn times(stored: &Stored) -> (u64, u64) {
    let mut stamps = Vec::new();
    for entry in fs::read_dir(stored.cap()).expect("the folder").flatten() {
        if entry.path().is_file() {
            stamps.extend(files::read(&entry.path()).iter().map(|it| it.ts));
        }
    }
    (
        *stamps.iter().min().expect("frames"),
        *stamps.iter().max().expect("frames"),
    )
}

fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

#[test]
fn answers_equal_the_output_of_extract() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let (first, last) = times(stored);
    let part = |n: u64| first + (last - first) * n / 10;
    let filters = [
        "",
        "udp",
        "tcp and ip6",
        "host 10.0.0.6",
        "host 10.0.0.6 and tcp",
        "port 5001 and host 198.18.0.2",
        "len > 1000",
        "ether[20] & 1 != 0",
        "ip6 and udp port 5001",
        "arp",
        // Names that libpcap looks up in lists of the system.
        r"ip proto \udp",
        "port domain or tcp",
    ];
    let ranges = [
        None,
        Some((part(2), part(3))),
        Some((part(5), part(9))),
        Some((last + 1, last + 2)),
    ];
    let (mut asked, mut with_frames) = (0, 0);
    for filter in filters {
        for range in ranges {
            for ending in ["pcapng", "pcap"]
                .iter()
                .take(if filter.len() % 2 == 0 { 2 } else { 1 })
            {
                let mut path =
                    format!("/api/v1/packets?format={ending}&filter={}", encoded(filter));
                let mut args = Vec::new();
                if !filter.is_empty() {
                    args.extend(["--filter".to_owned(), filter.to_owned()]);
                }
                if let Some((from, to)) = range {
                    path += &format!("&from={}&to={}", seconds(from), seconds(to));
                    args.extend(["--from".into(), seconds(from), "--to".into(), seconds(to)]);
                }
                let args: Vec<_> = args.iter().map(String::as_str).collect();
                asked += 1;
                let wanted = stored.extracted(&args, ending);
                let answer = service.ask(&path, &[]);
                assert_eq!(answer.curl, 0, "{path}");
                match wanted {
                    Some(wanted) => {
                        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
                        assert_bytes(&path, &answer.body, &wanted);
                        with_frames += 1;
                    }
                    None => assert_eq!(answer.status, 204, "{path}"),
                }
                assert_eq!(
                    answer.header("wqcap-complete"),
                    Some("true"),
                    "{path}: {}",
                    answer.head
                );
            }
        }
    }
    assert!(asked >= 40 && with_frames >= 20, "{with_frames} of {asked}");
    let _ = service.stop();
}

#[test]
fn answers_have_the_frames_that_tcpdump_selects() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let all = stored.dir.join("all.pcapng");
    fs::write(&all, service.ask("/api/v1/packets", &[]).body).expect("written");
    assert_eq!(files::read(&all).len() as u64, FRAMES);
    for filter in [
        "tcp",
        "udp and host 10.0.0.7",
        "ip6",
        "len < 100",
        "not udp",
    ] {
        let count = |done: wqcap_tests::Done| done.stdout.lines().count();
        let wanted = Program::new("tcpdump")
            .args(["-nr"])
            .arg(&all)
            .arg(filter)
            .run()
            .expect(0);
        let answer = service.ask(&format!("/api/v1/packets?filter={}", encoded(filter)), &[]);
        let found = answer.header("wqcap-frames").map(str::to_owned);
        assert_eq!(
            found,
            Some(count(wanted).to_string()),
            "{filter}: {}",
            answer.head
        );
    }
    let _ = service.stop();
}

#[test]
fn frames_of_open_files_are_found_a_second_after_they_arrived() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "live")
        .model("synth:size=200,flows=16,pps=2000")
        .gated()
        .queues(2)
        .set("output.format=pcapng")
        .control();
    let mut running = run.start();
    let _ = run.ctl().until_counted(&mut running, "captured", 6000);
    let control = format!("control.unix={}", run.ctl().socket().display());
    let service = Service::start(&serve(run.out_path(), [control]));
    let before = run.ctl().capture()["ledger"]["captured"]
        .as_u64()
        .expect("a count");
    let asked = std::time::Instant::now();
    // Everything that was captured 1.5 s before the answer is in it.
    let answer = loop {
        let answer = service.ask("/api/v1/packets", &[]);
        assert_eq!((answer.status, answer.curl), (200, 0), "{}", answer.text());
        let frames: u64 = answer
            .header("wqcap-frames")
            .and_then(|it| it.parse().ok())
            .unwrap_or(0);
        if frames >= before {
            break answer;
        }
        assert!(
            asked.elapsed().as_secs_f64() < 1.5,
            "{frames} of {before} frames"
        );
    };
    assert_eq!(
        answer.header("wqcap-complete"),
        Some("true"),
        "{}",
        answer.head
    );
    let file = dir.join("answer.pcapng");
    fs::write(&file, &answer.body).expect("written");
    let numbers: BTreeSet<u64> = files::read(&file)
        .iter()
        .map(files::Record::number)
        .collect();
    assert!(
        numbers.contains(&0) && numbers.len() as u64 >= before,
        "{}",
        numbers.len()
    );
    // The state is that of the running capture.
    let status = service.json("/api/v1/status");
    assert_eq!(status["capture"]["state"], "running", "{status}");
    assert_eq!(
        status["capture"]["queues"].as_array().map(Vec::len),
        Some(2),
        "{status}"
    );
    assert_eq!(status["store"]["open_files"], 2, "{status}");
    let _ = service.stop();
    let _ = run.ctl().run(&["shutdown"]).expect(0);
    let _ = run.finished(running.wait(), 0);
}

#[test]
fn an_answer_without_frames_that_wait_for_a_full_disk_is_incomplete() {
    let dir = Dir::new();
    let disk = need!(Memory::new(&dir, 8));
    let run = Wqcap::run(&dir, "full")
        .model("synth:size=1000,flows=16,pps=10000")
        .out(disk.path())
        .set("output.format=pcapng")
        .control();
    let mut running = run.start();
    running.until("the disk is full", |it| {
        it.stderr().contains("waiting for room")
    });
    // The capture says that it waits; or it cannot be asked.
    for (socket, reason) in [
        (
            run.ctl().socket().to_owned(),
            "the capture waits for its disk",
        ),
        (
            dir.join("absent"),
            "it is unknown whether the capture waits",
        ),
    ] {
        let control = format!("control.unix={}", socket.display());
        let service = Service::start(&serve(disk.path(), [control]));
        running.until(reason, |_| {
            let answer = service.ask("/api/v1/packets?from=-1s", &[]);
            let lacks = answer.header("wqcap-lacks").unwrap_or_default();
            lacks.contains(reason) && answer.header("wqcap-complete") == Some("false")
        });
        // Frames of the distant past do not wait.
        let past = service.ask("/api/v1/packets?from=1000&to=2000", &[]);
        assert_eq!(past.header("wqcap-complete"), Some("true"), "{}", past.head);
        let _ = service.stop();
    }
    running.signal(Signal::TERM);
    let _ = running.wait();
}

#[test]
fn an_answer_without_the_frames_of_an_unreadable_folder_is_incomplete() {
    if !is_root() {
        skip!("changing the user requires root");
    }
    let place = ForAll::new();
    let cap = place.dir().folder("cap");
    let hidden = place.dir().folder("cap/hidden");
    for folder in [&cap, &hidden] {
        files::write(&folder.join("a.pcap"), 1_600_000_000, &frames::assortment());
    }
    for (mode, complete) in [(0o755, "true"), (0o744, "false"), (0, "false")] {
        fs::set_permissions(&hidden, Permissions::from_mode(mode)).expect("rights");
        let dir = format!("output.dir={}", cap.display());
        let program = Program::new(place.wqcap())
            .args(["serve", "--set", &dir])
            .args(["--set", "serve.listen=127.0.0.1:0"]);
        let service = Service::start(&as_nobody(program, privileges::NONE));
        let answer = service.ask("/api/v1/packets", &[]);
        let head = &answer.head;
        assert_eq!(answer.header("wqcap-complete"), Some(complete), "{head}");
        let notes = service.json("/api/v1/timeline")["notes"].to_string();
        for text in [answer.header("wqcap-lacks").unwrap_or_default(), &notes] {
            assert_eq!(text.contains("hidden"), complete == "false", "{text}");
        }
        let _ = service.stop();
    }
}

#[test]
fn an_answer_of_unreadable_files_only_is_incomplete_without_frames() {
    let dir = Dir::new();
    let cap = dir.folder("cap");
    for name in ["wqcap-q00-1.pcapng", "wqcap-q01-1.pcap"] {
        dir.write(&format!("cap/{name}"), "junk, which is no capture file");
    }
    let dir = format!("output.dir={}", cap.display());
    let serve = wqcap(["serve", "--set", &dir]).args(["--set", "serve.listen=127.0.0.1:0"]);
    let service = Service::start(&serve);
    for format in ["pcapng", "pcap"] {
        let answer = service.ask(&format!("/api/v1/packets?format={format}"), &[]);
        let head = &answer.head;
        assert!(head.starts_with("http/1.1 204"), "{head}");
        assert_eq!(answer.header("wqcap-complete"), Some("false"), "{head}");
        let lacks = answer.header("wqcap-lacks").unwrap_or_default();
        assert!(lacks.contains("wqcap-q00-1.pcapng"), "{lacks}");
    }
    let _ = service.stop();
}

#[test]
fn an_answer_that_lacks_frames_says_so() {
    let stored = Stored::new();
    let service = Service::start(&stored.serve(&[]));
    let whole = service.ask("/api/v1/packets", &[]);
    assert_eq!(
        whole.header("wqcap-frames"),
        Some(&*FRAMES.to_string()),
        "{}",
        whole.head
    );
    let closing = |answer: &Answer| {
        let file = stored.dir.join("closing.pcapng");
        fs::write(&file, &answer.body).expect("written");
        let _ = Program::new("tshark").arg("-nr").arg(&file).run().expect(0);
        answer.text().contains("incomplete: ")
    };
    assert!(!closing(&whole));
    // Limits of the request.
    for (limit, frames) in [("limit_packets=7", Some("7")), ("limit_bytes=100000", None)] {
        let answer = service.ask(&format!("/api/v1/packets?{limit}"), &[]);
        assert_eq!((answer.status, answer.curl), (200, 0), "{limit}");
        assert_eq!(
            answer.header("wqcap-complete"),
            Some("false"),
            "{}",
            answer.head
        );
        assert!(
            answer
                .header("wqcap-lacks")
                .is_some_and(|it| it.contains("limit")),
            "{}",
            answer.head
        );
        if frames.is_some() {
            assert_eq!(answer.header("wqcap-frames"), frames);
        }
        assert!(closing(&answer), "{limit}");
    }
    let pcap_file = stored.dir.join("answer.pcap");
    let curl = |te: &str, path: &str| {
        let done = Program::new("curl")
            .args(["--silent", "-H", te, "--output"])
            .arg(&pcap_file)
            .arg(format!("{}{path}", service.url))
            .run();
        (
            done.status.code(),
            files::read_as_it_stands(&pcap_file).len(),
        )
    };
    let pcap = "/api/v1/packets?format=pcap";
    let limited = format!("{pcap}&limit_packets=5000");
    assert_eq!(curl("X-None: 1", &limited), (Some(0), 5000));
    // A file that is damaged in the middle.
    let mut all: Vec<_> = fs::read_dir(stored.cap())
        .expect("the folder")
        .flatten()
        .map(|it| it.path())
        .collect();
    all.retain(|it| it.is_file());
    all.sort();
    let file = fs::File::options()
        .write(true)
        .open(&all[0])
        .expect("opens");
    file.write_all_at(&[0xff; 4096], 50_000).expect("written");
    let answer = service.ask("/api/v1/packets", &[]);
    assert_eq!((answer.status, answer.curl), (200, 0));
    assert_eq!(
        answer.header("wqcap-complete"),
        Some("false"),
        "{}",
        answer.head
    );
    assert!(closing(&answer));
    // A pcap has no place for it: without trailers the answer breaks off.
    let (code, frames) = curl("TE: trailers", pcap);
    assert_eq!(code, Some(0));
    assert_eq!(curl("X-None: 1", pcap), (Some(18), frames));
    let audit = service.audit();
    let said = |part: &str| {
        audit
            .iter()
            .any(|it| it.contains("incomplete") && it.contains(part))
    };
    assert!(said("limit") && said("before that place"), "{audit:#?}");
    // A file of flow records that cannot be read.
    let unread = || service.json("/api/v1/flows")["unread"].as_u64();
    assert_eq!(unread(), Some(0));
    let flows = stored.dir.join("flows/wqcap-flows-1.parquet");
    fs::write(flows, "none").expect("written");
    assert_eq!(unread(), Some(1));
    let _ = service.stop();
}

#[test]
fn timeline_flows_and_status_describe_the_store() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let sum = |it: &Value, field: &str| -> u64 {
        let buckets = it["buckets"].as_array().expect("buckets");
        buckets
            .iter()
            .map(|it| it[field].as_u64().expect("a number"))
            .sum()
    };
    for buckets in [1, 7, 300, 2000] {
        let it = service.json(&format!("/api/v1/timeline?buckets={buckets}"));
        assert_eq!(
            it["buckets"].as_array().map(Vec::len),
            Some(buckets),
            "{buckets}"
        );
        assert_eq!(
            (sum(&it, "frames"), sum(&it, "lost")),
            (FRAMES, 0),
            "{buckets}"
        );
        assert_eq!(it["unindexed_files"], 0, "{it}");
    }
    let flows = service.json("/api/v1/flows?limit=10000");
    let rows = flows["flows"].as_array().expect("flows");
    assert_eq!(
        flows["matched"].as_u64(),
        Some(rows.len() as u64),
        "{flows}"
    );
    let frames = |it: &Value| {
        it["frames_fwd"].as_u64().unwrap_or(0) + it["frames_rev"].as_u64().unwrap_or(0)
    };
    assert_eq!(rows.iter().map(frames).sum::<u64>(), FRAMES);
    let bytes =
        |it: &Value| it["bytes_fwd"].as_u64().unwrap_or(0) + it["bytes_rev"].as_u64().unwrap_or(0);
    assert!(
        rows.windows(2).all(|it| bytes(&it[0]) >= bytes(&it[1])),
        "sorted by bytes"
    );
    // The frames of a record are those of its filter.
    let row = rows
        .iter()
        .find(|it| it["protocol"] == 6)
        .expect("a flow of TCP");
    let filter = format!(
        "host {} and host {} and tcp port {} and tcp port {}",
        row["src"].as_str().expect("src"),
        row["dst"].as_str().expect("dst"),
        row["src_port"],
        row["dst_port"]
    );
    let some = service.json(&format!("/api/v1/flows?filter={}", encoded(&filter)));
    assert_eq!(
        (some["matched"].as_u64(), some["exact"].as_bool()),
        (Some(1), Some(true)),
        "{some}"
    );
    let answer = service.ask(&format!("/api/v1/packets?filter={}", encoded(&filter)), &[]);
    assert_eq!(
        answer.header("wqcap-frames"),
        Some(&*frames(row).to_string())
    );
    let ids = rows.iter().filter_map(|it| it["community_id"].as_str());
    let raw = ids
        .clone()
        .find(|it| it.contains('+'))
        .expect("one with a +");
    for id in [encoded(raw), raw.to_owned()] {
        for path in ["packets", "flows"] {
            let answer = service.ask(&format!("/api/v1/{path}?community_id={id}"), &[]);
            assert_eq!(answer.status, 200, "{path}");
        }
        let flows = service.json(&format!("/api/v1/flows?community_id={id}"));
        assert_eq!(flows["matched"], 1, "{flows}");
    }
    let status = service.json("/api/v1/status");
    assert_eq!(status["capture"], Value::Null);
    assert!(
        status["capture_problem"]
            .as_str()
            .is_some_and(|it| it.contains("[control]")),
        "{status}"
    );
    assert_eq!(status["role"], "read");
    // Values that are refused, each with its name.
    for (path, part) in [
        ("packets?filter=hos", "filter"),
        ("packets?from=soon", "from"),
        ("packets?from=-1m&to=-2m", "to"),
        ("packets?limit_packets=0", "limit_packets"),
        ("packets?format=csv", "format"),
        ("packets?form=pcap", "form"),
        ("packets?community_id=1:abc=", "community_id"),
        ("flows?community_id=garbage", "community_id"),
        ("flows?sort=size", "sort"),
        ("flows?limit=10001", "limit"),
        ("flows?filter=hos", "filter"),
        ("timeline?buckets=0", "buckets"),
    ] {
        let answer = service.ask(&format!("/api/v1/{path}"), &[]);
        assert_eq!(answer.status, 400, "{path}");
        let detail = answer.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(detail.contains(part), "{path}: {detail}");
    }
    let _ = service
        .ask("/api/v1/packets?mark=none", &[])
        .assert_error(404, "no_such_mark");
    let _ = service
        .ask("/etc/passwd", &[])
        .assert_error(404, "no_such_path");
    let _ = service
        .ask("/api/v1/status", &["-X", "PUT"])
        .assert_error(405, "no_such_method");
    let _ = service.stop();
}
