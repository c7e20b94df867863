//! Flow records, read with DuckDB: every frame is in exactly one record, and all records are
//! correct.

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Finished, Wqcap,
    captures::Captures,
    files,
    frames::{self, Ends, Frame},
    ledger::number,
    machine::disks::Memory,
    need,
    oracles::duckdb::Duckdb,
    wqcap::wqcap,
};

/// Returns a run that writes flow records into its own folder.
fn run<'d>(dir: &'d Dir, name: &str, wire: &str) -> Wqcap<'d> {
    let records = dir.folder(&format!("{name}.flows"));
    Wqcap::run(dir, name)
        .model(wire)
        .queues(3)
        .set("capture.buffer=128KiB")
        .set("capture.ring=32")
        .set(&format!("flows.dir={}", records.display()))
}

/// Returns the wire that replays a file.
fn replay(file: &Path) -> String {
    format!("pcap:{}", file.display())
}

/// Returns the SQL table function that reads all record files of a run.
fn table(finished: &Finished) -> String {
    let files = finished.summary.json["flows"]["files"]
        .as_array()
        .unwrap_or_else(|| panic!("no flows: {}", finished.summary.json));
    let names: Vec<_> = files
        .iter()
        .map(|it| format!("'{}'", it.as_str().expect("a path")))
        .collect();
    format!("read_parquet([{}])", names.join(", "))
}

/// Asserts that records, frames and bytes in the files match the summary and the ledger.
fn assert_sums(duckdb: &Duckdb, finished: &Finished, frames: u64, bytes: u64) {
    let rows = duckdb.query(&format!(
        "SELECT count(*), sum(frames_fwd + frames_rev)::BIGINT, sum(bytes_fwd + bytes_rev)::BIGINT FROM {}",
        table(finished)
    ));
    let sums: Vec<_> = rows[0].iter().map(number).collect();
    let flows = &finished.summary.json["flows"];
    assert_eq!(sums[0], number(&flows["records"]));
    assert_eq!(sums[1], number(&flows["frames"]));
    assert_eq!(sums[2], number(&flows["bytes"]));
    let total = finished.summary.ledger.total;
    let missed = number(&flows["missed_frames"]);
    assert_eq!(sums[1] + missed, total.captured + total.dropped_storage);
    assert_eq!(sums[1] + missed, frames);
    assert_eq!(sums[2] + number(&flows["missed_bytes"]), bytes);
    assert_eq!(number(&flows["flows"]), 0);
    assert_eq!(number(&flows["unwritten"]), 0);
}

#[test]
fn every_real_frame_is_in_one_record() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let (file, frames) = Captures::find().everything(&dir);
    let bytes: usize = frames.iter().map(Vec::len).sum();
    for (name, slice) in [("whole", ""), ("cut", "l3")] {
        let finished = run(&dir, name, &replay(&file))
            .set(&format!("capture.slice={slice}"))
            .finish(0);
        assert_sums(&duckdb, &finished, frames.len() as u64, bytes as u64);
        // Untagged ICMP frames with minimal headers, found without the parser of the product.
        let plain = frames
            .iter()
            .filter(|it| it.len() >= 34 && it[12..15] == [0x08, 0x00, 0x45] && it[23] == 1)
            .count();
        let rows = duckdb.query(&format!(
            "SELECT sum(frames_fwd + frames_rev)::BIGINT FROM {} WHERE ip_version = 4 AND protocol = 1",
            table(&finished)
        ));
        assert!(number(&rows[0][0]) >= plain as u64, "{rows:?}, {plain}");
    }
}

#[test]
fn a_flow_is_extracted_by_the_community_id_of_its_records() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let (file, _) = Captures::find().everything(&dir);
    let folder = dir.folder("captures");
    fs::copy(&file, folder.join("wqcap-q00-1600000000000000000.pcap")).expect("copied");
    let finished = run(&dir, "named", &replay(&file)).finish(0);
    let records = table(&finished);
    let unnamed = duckdb.query(&format!(
        "SELECT count(*) FROM {records} WHERE (community_id IS NULL) <> (ip_version IS NULL)
            AND protocol IN (6, 17) AND src_port + dst_port > 0"
    ));
    assert_eq!(number(&unnamed[0][0]), 0);
    let heaviest = duckdb.query(&format!(
        "SELECT community_id, sum(frames_fwd + frames_rev)::BIGINT AS frames FROM {records}
            WHERE protocol IN (6, 17) AND community_id IS NOT NULL GROUP BY community_id ORDER BY frames DESC, community_id LIMIT 3"
    ));
    assert_eq!(heaviest.len(), 3);
    for row in heaviest {
        let id = row[0].as_str().expect("a text");
        let out = dir.join("flow.pcap");
        let done = wqcap(["extract", "--json", "--community-id", id, "-o"])
            .arg(&out)
            .arg(&folder)
            .run()
            .expect(0);
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(number(&report["frames"]), number(&row[1]), "{id}");
        fs::remove_file(&out).expect("the file exists");
    }
    let refused = wqcap(["extract", "--community-id", "1:short", "-o"])
        .arg(dir.join("none.pcap"))
        .arg(&folder)
        .run()
        .expect(2);
    refused.says(&["28 characters of Base64"]);
}

#[test]
fn flows_are_counted_in_both_directions() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    let mut sent = Vec::new();
    // Frames and bytes in both directions, by IP version and client.
    let mut exact: BTreeMap<(u64, u64), [u64; 4]> = BTreeMap::new();
    for i in 0..600_u16 {
        let ends = Ends {
            from: 1 + i % 7,
            to: 50,
            sport: 3000 + i % 30,
            dport: 443,
        };
        let back = i % 90 >= 60;
        let ends = if back { ends.back() } else { ends };
        let six = i % 2 == 1;
        let frame = if six {
            Frame::ethernet(&[(0x8100, 5)], frames::IPV6).ipv6(ends, 6)
        } else {
            Frame::ethernet(&[], frames::IPV4).ipv4(ends, 6, 0)
        };
        let frame = frame.tcp(ends).payload(usize::from(i)).done();
        let client = if back { ends.dport } else { ends.sport };
        // The client's host number varies and is part of the flow.
        let host = if back { ends.to } else { ends.from };
        let flow = (
            if six { 6 } else { 4 },
            u64::from(client) * 100 + u64::from(host),
        );
        let sums = exact.entry(flow).or_default();
        let way = usize::from(back);
        sums[way] += 1;
        sums[2 + way] += frame.len() as u64;
        sent.push(frame);
    }
    files::write(&file, 1_600_000_000, &sent);
    let finished = run(&dir, "ways", &replay(&file)).queues(1).finish(0);
    let bytes = sent.iter().map(Vec::len).sum::<usize>() as u64;
    assert_sums(&duckdb, &finished, 600, bytes);
    // Counted from the client's side, regardless of the first sender.
    let rows = duckdb.query(&format!(
        "SELECT ip_version,
            (CASE dst_port WHEN 443 THEN src_port ELSE dst_port END)::BIGINT * 100
                + regexp_extract(CASE dst_port WHEN 443 THEN src ELSE dst END, '[.:]([0-9a-f]+)$', 1)::BIGINT,
            CASE dst_port WHEN 443 THEN frames_fwd ELSE frames_rev END,
            CASE dst_port WHEN 443 THEN frames_rev ELSE frames_fwd END,
            CASE dst_port WHEN 443 THEN bytes_fwd ELSE bytes_rev END,
            CASE dst_port WHEN 443 THEN bytes_rev ELSE bytes_fwd END,
            protocol, tcp_flags_fwd, vlan, first_fwd <= last_fwd, (first_rev IS NULL) = (frames_rev = 0), ended_by
        FROM {}",
        table(&finished)
    ));
    assert_eq!(rows.len(), exact.len());
    for row in rows {
        let sums = exact
            .remove(&(number(&row[0]), number(&row[1])))
            .unwrap_or_else(|| panic!("no such flow: {row:?}"));
        let found: Vec<_> = row[2..6].iter().map(number).collect();
        assert_eq!(found, sums, "{row:?}");
        assert_eq!((number(&row[6]), number(&row[7])), (6, 0x10), "{row:?}");
        assert_eq!(row[8].as_u64(), (row[0] == 6).then_some(5), "{row:?}");
        assert_eq!((&row[9], &row[10]), (&true.into(), &true.into()), "{row:?}");
        assert_eq!(row[11], "stopped");
    }
}

/// Returns a VXLAN frame with the network identifier `vni`, which carries UDP over IPv6.
fn vxlan(vni: u8) -> Vec<u8> {
    let ends = |from, to, dport| Ends {
        from,
        to,
        sport: 4660,
        dport,
    };
    let outer = Frame::ethernet(&[(0x8100, 7)], frames::IPV4);
    let inner = Frame::ethernet(&[], frames::IPV6).ipv6(ends(3, 4, 53), 17);
    let inner = inner.udp(ends(3, 4, 53)).payload(20).done();
    outer
        .ipv4(ends(1, 2, 4789), 17, 0)
        .udp(ends(1, 2, 4789))
        .bytes(&[8, 0, 0, 0, 0, 0, vni, 0])
        .bytes(&inner)
        .done()
}

#[test]
fn records_cover_tunnels_and_frames_without_ip() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("tunnels.pcap");
    let arp = Frame::ethernet(&[], frames::ARP).payload(46).done();
    let sent = [vxlan(5), vxlan(5), vxlan(6), arp];
    files::write(&file, 1_600_000_000, &sent);
    let finished = run(&dir, "tunnels", &replay(&file)).finish(0);
    let rows = duckdb.query(&format!(
        "SELECT vni, ip_version, src, dst, src_port, dst_port, vlan, outer_src, outer_dst, outer_protocol,
            outer_dst_port, frames_fwd, ethertype
        FROM {} ORDER BY vni NULLS LAST",
        table(&finished)
    ));
    let expected = [
        r#"[5,6,"fd00::3","fd00::4",4660,53,7,"10.0.0.1","10.0.0.2",17,4789,2,34525]"#,
        r#"[6,6,"fd00::3","fd00::4",4660,53,7,"10.0.0.1","10.0.0.2",17,4789,1,34525]"#,
        r#"[null,null,"02:00:00:00:00:01","ff:ff:ff:ff:ff:ff",null,null,null,null,null,null,null,1,2054]"#,
    ];
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| Value::from(row).to_string())
        .collect();
    assert_eq!(rows, expected);
}

#[test]
fn timeouts_and_intervals_end_records() {
    const ACTIVE_NS: u64 = 400_000_000;
    const IDLE_NS: u64 = 300_000_000;
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let file = dir.join("slow.pcap");
    let of = |port| {
        let ends = Ends {
            from: 1,
            to: 2,
            sport: port,
            dport: 80,
        };
        let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
        frame.udp(ends).payload(30).done()
    };
    // One flow lasts two seconds; another has a single frame.
    let sent: Vec<_> = (0..100).map(|i| of(if i == 3 { 1 } else { 2 })).collect();
    files::write(&file, 1_600_000_000, &sent);
    let finished = run(&dir, "slow", &format!("{},pps=50", replay(&file)))
        .queues(1)
        .set("flows.interval=1s")
        .set(&format!("flows.active={}ms", ACTIVE_NS / 1_000_000))
        .set(&format!("flows.idle={}ms", IDLE_NS / 1_000_000))
        .finish(0);
    assert_sums(&duckdb, &finished, 100, 100 * 72);
    let rows = duckdb.query(&format!(
        "SELECT first_fwd_ns, last_fwd_ns, ended_by FROM {} WHERE src_port = 2 ORDER BY 1",
        table(&finished)
    ));
    // The checks use the stamps of the frames, so that delays do not matter.
    assert!(rows.len() >= 3, "{rows:?}");
    let times: Vec<_> = rows
        .iter()
        .map(|it| (number(&it[0]), number(&it[1])))
        .collect();
    for pair in times.windows(2) {
        let ((first, last), (next, _)) = (pair[0], pair[1]);
        assert!(last - first < ACTIVE_NS, "{rows:?}");
        assert!(
            next - first >= ACTIVE_NS || next - last >= IDLE_NS,
            "{rows:?}"
        );
    }
    assert!(rows.iter().any(|it| it[2] == "active"), "{rows:?}");
    let silent = duckdb.query(&format!(
        "SELECT ended_by, frames_fwd FROM {} WHERE src_port = 1",
        table(&finished)
    ));
    assert_eq!(silent, [[Value::from("idle"), Value::from(1)]]);
    // Two seconds cover at least one complete interval, and the end adds another file.
    let files = finished.summary.json["flows"]["files"]
        .as_array()
        .expect("files");
    assert!(files.len() >= 2, "{files:?}");
    for path in files {
        let path = path.as_str().expect("a path");
        let groups = duckdb.query(&format!(
            "SELECT num_row_groups FROM parquet_file_metadata('{path}')"
        ));
        assert_eq!(number(&groups[0][0]), 1);
    }
}

#[test]
fn flows_beyond_the_memory_are_evicted_and_recorded() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let finished = run(&dir, "many", "synth:size=64,flows=50000,count=200000")
        .queues(2)
        .set("output.format=none")
        .set("flows.memory=1MiB")
        .finish(0);
    assert_sums(&duckdb, &finished, 200_000, 200_000 * 64);
    let flows = &finished.summary.json["flows"];
    assert!(number(&flows["evicted"]) > 10_000, "{flows}");
    let rows = duckdb.query(&format!(
        "SELECT count(*) FROM {} WHERE ended_by = 'evicted'",
        table(&finished)
    ));
    assert_eq!(rows[0][0], flows["evicted"]);
}

/// The disk of the records is full, while that of the frames has space.
#[test]
fn a_full_disk_loses_records_and_no_frame() {
    let dir = Dir::new();
    let disk = need!(Memory::new(&dir, 1));
    fs::write(disk.path().join("ballast"), vec![0; 900 << 10]).expect("the ballast fits");
    let run = Wqcap::run(&dir, "full")
        .model("synth:size=64,flows=20000,count=60000,pps=40000")
        .queues(1)
        .set("flows.interval=1s")
        .set("flows.idle=100ms")
        .set(&format!("flows.dir={}", disk.path().display()));
    let finished = run.finish(1);
    let total = finished.summary.ledger.total;
    assert_eq!((total.received, total.captured), (60_000, 60_000));
    let flows = &finished.summary.json["flows"];
    let lost = number(&flows["unwritten"]);
    assert!(lost > 20_000, "{flows}");
    assert!(number(&flows["records"]) >= lost, "{flows}");
    assert_eq!(number(&flows["frames"]), 60_000, "{flows}");
    assert_eq!(finished.summary.json["end"], "storage");
    for text in [
        finished.summary.json["error"].as_str().expect("an error"),
        &finished.done.stderr,
    ] {
        assert!(text.contains("No space left on device"), "{text}");
        assert!(text.contains("flows.dir"), "{text}");
    }
    // No incomplete file is left.
    let left = fs::read_dir(disk.path()).expect("a folder").count();
    let files = flows["files"].as_array().expect("files").len();
    assert_eq!(left, 1 + files);
}

#[test]
fn invalid_record_folders_are_refused() {
    let dir = Dir::new();
    let check = |out: &Path, flows: &Path| {
        wqcap(["check", "--model", "synth:count=10"])
            .arg("--set")
            .arg(format!("output.dir={}", out.display()))
            .arg("--set")
            .arg(format!("flows.dir={}", flows.display()))
            .run()
    };
    let out = dir.folder("out");
    let same: PathBuf = out.join("../out");
    let refused = check(&out, &same).expect(2);
    assert!(refused.stderr.contains("flows.dir"), "{refused}");
    assert!(refused.stderr.contains("output.dir"), "{refused}");
    let done = check(&out, &dir.folder("flows")).expect(0);
    assert!(done.stdout.contains("flows"), "{done}");

    let finished = Wqcap::run(&dir, "missing")
        .model("synth:count=10")
        .set(&format!("flows.dir={}", dir.join("nowhere").display()))
        .done();
    assert!(finished.stderr.contains("flows.dir"), "{finished}");
    assert!(!finished.status.success(), "{finished}");
}

#[test]
fn without_the_section_there_are_no_records() {
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    files::write(&file, 1_600_000_000, &frames::udp_flows(40, 100));
    let finished = Wqcap::run(&dir, "none").replay(&file).finish(0);
    assert!(finished.summary.json["flows"].is_null());
}
