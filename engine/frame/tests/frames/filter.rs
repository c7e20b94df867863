//! Comparison of filters with tcpdump and libpcap, on every frame of the test captures. Each
//! expression must select exactly the frames that `tcpdump -r FILE EXPR -w -` selects, and the
//! interpreter must agree with libpcap's.

use std::{collections::HashSet, fs, path::Path, process::Command, thread};
use wqcap_frame::filter::Filter;
use wqcap_testkit::{
    Dir,
    captures::Captures,
    files::{self, Record},
    frames::filters::EXPRESSIONS,
    skip,
};

/// Writes records to a pcap file; the timestamp of each is its number in seconds.
fn write(path: &Path, records: &[Record]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 1 << 18, 1] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for (i, record) in (0u32..).zip(records) {
        for word in [i, 0, record.caplen, record.wire_len()] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(&record.bytes);
    }
    fs::write(path, file).expect("the folder is writable");
}

/// Returns the numbers of the frames that tcpdump selects.
fn selected(file: &Path, expression: &str, out: &Path) -> Result<HashSet<u64>, String> {
    let mut command = Command::new("tcpdump");
    command
        .arg("-n")
        .arg("-r")
        .arg(file)
        .arg("-w")
        .arg(out)
        .arg(expression);
    let done = command.output();
    let done = done.map_err(|e| format!("cannot run tcpdump: {e}"))?;
    assert!(
        done.status.success(),
        "{expression}: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    let records = files::read_as_it_stands(out);
    Ok(records.iter().map(|it| it.ts / 1_000_000_000).collect())
}

#[test]
fn filters_select_the_frames_that_tcpdump_selects() {
    let records = Captures::find().records();
    let dir = Dir::new();
    let file = dir.join("all.pcap");
    write(&file, &records);
    if let Err(reason) = selected(&file, "ip", &dir.join("probe.pcap")) {
        skip!("{reason}");
    }
    let halves = EXPRESSIONS.split_at(EXPRESSIONS.len() / 2);
    thread::scope(|scope| {
        for expressions in [halves.0, halves.1] {
            let (dir, file, records) = (&dir, &file, &records);
            scope.spawn(move || {
                for expression in expressions {
                    compare_with_tcpdump(expression, dir, file, records);
                }
            });
        }
    });
    skip::say(&format!(
        "filter: {} expressions select the same frames as tcpdump, of {}",
        EXPRESSIONS.len(),
        records.len()
    ));
}

/// Asserts that a filter and tcpdump select the same frames.
fn compare_with_tcpdump(expression: &str, dir: &Dir, file: &Path, records: &[Record]) {
    let out = dir.join(format!("{:?}.pcap", thread::current().id()));
    let theirs = selected(file, expression, &out).expect("tcpdump ran before");
    let filter = Filter::compile(expression).expect(expression);
    for (i, record) in (0u64..).zip(records) {
        let ours = filter.accepts(&record.bytes, record.wire_len());
        assert_eq!(
            ours,
            theirs.contains(&i),
            "{expression}: frame {i}, {:02x?}",
            record.bytes
        );
    }
    let real = Captures::find().real;
    assert!(
        !real || !theirs.is_empty() || ["vlan and vlan"].contains(&expression),
        "{expression} selects no frame, so the comparison proves nothing"
    );
}

#[test]
fn the_interpreter_agrees_with_libpcap() {
    let records = Captures::find().records();
    for expression in EXPRESSIONS {
        let ours = Filter::compile(expression).expect(expression);
        let theirs = pcap::Capture::dead(pcap::Linktype::ETHERNET).expect("libpcap has memory");
        let theirs = theirs.compile(expression, true).expect(expression);
        for record in &records {
            assert_eq!(
                ours.accepts(&record.bytes, record.caplen),
                theirs.filter(&record.bytes),
                "{expression}: {:02x?}",
                record.bytes
            );
        }
    }
}
