//! Capture files of other tools: names, damage, link types, compression, versions, options, lengths.
//! The inputs are those of `../shared/cases` where they are present, otherwise generated ones of the
//! same form; further inputs of each kind are always generated.
//!
//! | test | shows |
//! |---|---|
//! | `files_of_a_folder_are_selected_by_content` | case 01 |
//! | `an_unreadable_file_does_not_stop_the_others` | case 02 |
//! | `several_link_types_are_kept_in_pcapng` | case 03 |
//! | `packets_without_an_ethernet_header_are_filtered_and_counted` | case 05 |
//! | `gzip_is_recognised_by_content` | case 06 |
//! | `long_records_of_many_open_files_have_a_limit` | memory of files that overlap in time |
//! | `old_versions_have_the_right_lengths` | cases 16, 18 |
//! | `options_of_interfaces_and_sections_are_kept` | case 17 |
//! | `ambiguous_local_times_are_refused` | case 19 |
//! | `lengths_do_not_count_the_fcs` | case 20 |
//! | `flow_records_of_stored_captures_have_their_times` | `wqcap flows`: times, order, link types, names |

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Program, Wqcap, binaries, need, oracles::duckdb::Duckdb, process::Done, skip, wqcap::wqcap,
};

/// Seconds since 1970 of the first frame of generated captures.
const START: u32 = 1_700_000_000;
const ETHERNET: u32 = 1;
const RAW: u32 = 101;
const COOKED_2: u32 = 276;

/// Form of a generated pcap file.
#[derive(Clone, Copy)]
struct Pcap {
    magic: u32,
    version: [u16; 2],
    big: bool,
    link: u32,
    /// Captured bytes of each frame.
    caplen: usize,
    /// Set if the original length is before the captured one.
    swapped: bool,
    /// Seconds of the first frame after `START`.
    at: u32,
    /// Microseconds between frames.
    step: u32,
}

const PCAP: Pcap = Pcap {
    magic: 0xa1b2_c3d4,
    version: [2, 4],
    big: false,
    link: ETHERNET,
    caplen: usize::MAX,
    swapped: false,
    at: 0,
    step: 1000,
};

impl Pcap {
    fn word(&self, n: u32) -> [u8; 4] {
        if self.big {
            n.to_be_bytes()
        } else {
            n.to_le_bytes()
        }
    }

    /// Returns a file with frames of these UDP source ports.
    fn file(&self, ports: &[u16]) -> Vec<u8> {
        let half = |n: u16| match self.big {
            true => n.to_be_bytes(),
            false => n.to_le_bytes(),
        };
        let mut file = self.word(self.magic).to_vec();
        file.extend(self.version.map(half).concat());
        file.extend([0, 0, 262_144, self.link].map(|it| self.word(it)).concat());
        for (i, port) in (0..).zip(ports) {
            let packet = packet(self.link, *port);
            let bytes = &packet[..packet.len().min(self.caplen)];
            let [caplen, len] =
                [bytes.len(), packet.len()].map(|it| u32::try_from(it).expect("short"));
            let lens = if self.swapped {
                [len, caplen]
            } else {
                [caplen, len]
            };
            file.extend(
                [START + self.at, i * self.step, lens[0], lens[1]]
                    .map(|it| self.word(it))
                    .concat(),
            );
            if self.magic == 0xa1b2_cd34 {
                file.extend([0; 8]);
            }
            file.extend(bytes);
        }
        file
    }
}

/// Returns a UDP packet with this source port and the header of a link type.
fn packet(link: u32, port: u16) -> Vec<u8> {
    let mut ip = vec![0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, 17, 0x4e, 0x85];
    ip.extend([192, 0, 2, 1, 198, 51, 100, 2]);
    ip.extend(port.to_be_bytes());
    ip.extend([0x07, 0xd0, 0, 28, 0, 0]);
    ip.extend([b'x'; 20]);
    [header(link), ip].concat()
}

/// Returns the header of an IPv4 packet in captures of a link type.
fn header(link: u32) -> Vec<u8> {
    match link & 0xffff {
        ETHERNET => vec![0, 0, 0x5e, 0, 0x53, 2, 0, 0, 0x5e, 0, 0x53, 1, 8, 0],
        RAW | 12 | 228 => vec![],
        0 => vec![2, 0, 0, 0],
        108 => vec![0, 0, 0, 2],
        9 | 50 => vec![0xff, 3, 0, 0x21],
        113 => vec![0, 0, 0, 1, 0, 6, 0, 0, 0x5e, 0, 0x53, 1, 0, 0, 8, 0],
        COOKED_2 => vec![
            8, 0, 0, 0, 0, 0, 0, 2, 0, 1, 0, 6, 0, 0, 0x5e, 0, 0x53, 1, 0, 0,
        ],
        other => panic!("link type {other}"),
    }
}

/// Returns a pcapng block in little-endian order.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut body = body.to_vec();
    body.resize(body.len().next_multiple_of(4), 0);
    let total = u32::try_from(body.len() + 12).expect("short").to_le_bytes();
    [&kind.to_le_bytes()[..], &total, &body, &total].concat()
}

fn options(options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut out = Vec::new();
    for (code, value) in options {
        out.extend(code.to_le_bytes());
        out.extend(u16::try_from(value.len()).expect("short").to_le_bytes());
        out.extend(*value);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out
}

fn section(of: &[(u16, &[u8])]) -> Vec<u8> {
    let fixed = [
        &0x1a2b_3c4d_u32.to_le_bytes()[..],
        &[1, 0, 0, 0],
        &[0xff; 8],
        &options(of),
    ];
    block(0x0a0d_0d0a, &fixed.concat())
}

fn interface(link: u32, of: &[(u16, &[u8])]) -> Vec<u8> {
    let link = u16::try_from(link).expect("a link type").to_le_bytes();
    block(1, &[&link[..], &[0; 6], &options(of)].concat())
}

/// Returns an enhanced packet block; `us` are microseconds after `START`.
fn enhanced(interface: u32, us: u64, bytes: &[u8]) -> Vec<u8> {
    let stamp = u64::from(START) * 1_000_000 + us;
    let len = u32::try_from(bytes.len()).expect("short");
    let words = [interface, (stamp >> 32) as u32, stamp as u32, len, len];
    block(
        6,
        &[&words.map(u32::to_le_bytes).concat()[..], bytes].concat(),
    )
}

fn gzip(dir: &Dir, bytes: &[u8]) -> Vec<u8> {
    let plain = dir.write("plain", bytes);
    let packed = dir.join("packed");
    let command = format!("gzip -c {} > {}", plain.display(), packed.display());
    drop(Program::new("sh").args(["-c", &command]).run().expect(0));
    let bytes = fs::read(&packed).expect("it was written");
    for file in [plain, packed] {
        fs::remove_file(file).expect("it is removed");
    }
    bytes
}

/// Returns the folder of a case in `../shared/cases`; without it, a folder with generated files.
fn case(dir: &Dir, number: &str, files: &[(&str, Vec<u8>)]) -> PathBuf {
    let shared = binaries::root()
        .join("../shared/cases")
        .join(format!("case-{number}"));
    if shared.is_dir() {
        return shared;
    }
    let own = dir.folder(&format!("case-{number}"));
    write_all(&own, files);
    own
}

fn write_all(folder: &Path, files: &[(&str, Vec<u8>)]) {
    for (name, bytes) in files {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("it is created");
        fs::write(path, bytes).expect("it is written");
    }
}

/// Frame of an output: link type, captured length, length, UDP source port.
type Row = (u32, u32, u32, u16);

/// Reads a capture file that wqcap has written, without wqcap's code.
fn rows(path: &Path) -> Vec<Row> {
    let file = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().expect("a word"));
    let row = |link: u32, at: usize, caplen: u32, len: u32| {
        let port = at + header(link).len() + 20;
        let port = u16::from_be_bytes(*file[port..].first_chunk().expect("a port"));
        (link, caplen, len, port)
    };
    let (mut rows, mut at) = (Vec::new(), 0);
    if word(0) != 0x0a0d_0d0a {
        at = 24;
        while at < file.len() {
            let caplen = word(at + 8);
            rows.push(row(word(20) & 0xffff, at + 16, caplen, word(at + 12)));
            at += 16 + caplen as usize;
        }
        return rows;
    }
    let mut links = Vec::new();
    while at < file.len() {
        match word(at) {
            1 => links.push(word(at + 8) & 0xffff),
            3 => rows.push(row(links[0], at + 12, word(at + 8), word(at + 8))),
            6 => rows.push(row(
                links[word(at + 8) as usize],
                at + 28,
                word(at + 20),
                word(at + 24),
            )),
            _ => {}
        }
        at += word(at + 4) as usize;
    }
    rows
}

fn ports(path: &Path) -> Vec<u16> {
    rows(path).iter().map(|it| it.3).collect()
}

fn to_file(command: &str, input: &Path, out: &Path, more: &[&str]) -> Done {
    wqcap([command])
        .arg(input)
        .arg("-o")
        .arg(out)
        .args(more)
        .run()
}

/// Runs `merge` and `extract`, with and without an index, and checks the frames of the output and
/// the messages.
fn assert_frames(dir: &Dir, input: &Path, status: i32, want: &[Row], said: &[&str]) {
    let out = dir.join("out.pcapng");
    let index = dir.join("index").display().to_string();
    for (command, more) in [
        ("merge", &[][..]),
        ("extract", &[]),
        ("extract", &["--index", &index]),
        ("extract", &["--index", &index, "--filter", "udp"]),
    ] {
        let done = to_file(command, input, &out, more).expect(status);
        done.says(said);
        assert_eq!(rows(&out), want, "{command} {more:?} {}", input.display());
        fs::remove_file(&out).expect("it is removed");
    }
    let _ = fs::remove_dir_all(&index);
}

/// Runs `rss` and checks the numbers of frames and bytes.
fn assert_rss(input: &Path, status: i32, frames: u64, bytes: u64) {
    let done = wqcap(["rss", "--json"]).arg(input).run().expect(status);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(
        (report["frames"].as_u64(), report["bytes"].as_u64()),
        (Some(frames), Some(bytes)),
        "{}",
        input.display()
    );
}

/// Captures the frames of an input on the software NIC and returns their source ports.
fn captured(dir: &Dir, input: &Path, said: &[&str]) -> Vec<u16> {
    let run = Wqcap::run(dir, "run").replay(input).queues(1);
    let finished = run.finish(0);
    finished.done.says(said);
    let files = finished.files();
    let ports = files.iter().flat_map(|(_, it)| ports(it)).collect();
    fs::remove_dir_all(run.out_path()).expect("it is removed");
    ports
}

/// Returns Ethernet frames of these ports, as rows.
fn ethernet(of: &[u16]) -> Vec<Row> {
    of.iter().map(|port| (ETHERNET, 62, 62, *port)).collect()
}

#[test]
fn files_of_a_folder_are_selected_by_content() {
    let dir = Dir::new();
    let at = |at: u32, port: u16| Pcap { at, ..PCAP }.file(&[port]);
    let files = [
        ("ring/trace.pcap", at(0, 1000)),
        ("ring/trace.pcap1", at(100, 1001)),
        ("ring/trace.pcap2", at(200, 1002)),
        ("ring/trace.pcap10", at(300, 1003)),
        ("names/a.pcap", at(0, 1000)),
        ("names/log.pcap.1700000000", at(100, 1001)),
        ("names/trace.cap", at(200, 1002)),
        ("names/TRACE.PCAP", at(400, 1000)),
        ("names/trace", at(500, 1001)),
        ("mixed/trace.pcap", at(0, 1000)),
        ("mixed/trace.pcap1", at(100, 1001)),
        ("mixed/notes.txt", b"not a capture".to_vec()),
    ];
    let place = case(&dir, "01", &files);
    for (folder, want, said) in [
        ("ring", &[1000, 1001, 1002, 1003][..], &[][..]),
        ("names", &[1000, 1001, 1002, 1000, 1001], &[]),
        ("mixed", &[1000, 1001], &["1 file is left out", "notes.txt"]),
    ] {
        let folder = place.join(folder);
        assert_frames(&dir, &folder, 0, &ethernet(want), said);
        assert_rss(&folder, 0, want.len() as u64, 62 * want.len() as u64);
        let said: &[&str] = if said.is_empty() { &[] } else { &["notes.txt"] };
        assert_eq!(captured(&dir, &folder, said), want);
    }
    // Frames of equal times are in the natural order of the names.
    let ring = dir.folder("same");
    for (name, port) in [("t.pcap", 1000), ("t.pcap2", 1001), ("t.pcap10", 1002)] {
        fs::write(ring.join(name), at(0, port)).expect("it is written");
    }
    assert_frames(&dir, &ring, 0, &ethernet(&[1000, 1001, 1002]), &[]);
    assert_eq!(captured(&dir, &ring, &[]), [1000, 1001, 1002]);
    // A second name of a file, an output of merge, a hidden file, an index, a link, and a compressed text.
    let odd = dir.folder("odd");
    fs::write(odd.join("a"), at(0, 1000)).expect("it is written");
    fs::hard_link(odd.join("a"), odd.join("b")).expect("it is linked");
    drop(to_file("merge", &odd.join("a"), &odd.join("merged.pcapng"), &[]).expect(0));
    fs::rename(odd.join("merged.pcapng"), odd.join("merged")).expect("it is renamed");
    fs::write(odd.join(".hidden"), "text").expect("it is written");
    fs::write(odd.join("a.pcap.cbor"), "an index").expect("it is written");
    std::os::unix::fs::symlink(odd.join("a"), odd.join("link.pcap")).expect("it is linked");
    fs::write(odd.join("text.gz"), gzip(&dir, b"text")).expect("it is written");
    let said = [
        "is read only once",
        "merge or extract has written",
        "text.gz",
        "a.pcap.cbor",
        "1 link is left out",
    ];
    assert_frames(&dir, &odd, 0, &ethernet(&[1000]), &said);
    assert_rss(&odd, 0, 1, 62);
    // Every one of them can be pinned.
    let args = [
        "--from",
        "2023-11-01",
        "--to",
        "2023-12-01",
        "--reason",
        "test",
        "--json",
    ];
    let pin = wqcap(["pin", "--dir"])
        .arg(&ring)
        .args(args)
        .run()
        .expect(0);
    let pin: Value = serde_json::from_str(&pin.stdout).expect("JSON");
    assert_eq!(pin["files"], 3);
}

#[test]
fn an_unreadable_file_does_not_stop_the_others() {
    let dir = Dir::new();
    let good = PCAP.file(&[1000, 1001, 1002, 1003]);
    let files = [
        ("zero/a.pcap", good.clone()),
        ("zero/z.pcap", vec![]),
        ("cut/a.pcap", good.clone()),
        ("cut/z.pcap", good[..12].to_vec()),
        ("shb/a.pcap", good.clone()),
        ("shb/z.pcapng", section(&[])),
        ("header/a.pcap", good.clone()),
        ("header/z.pcap", good[..24].to_vec()),
        ("text/a.pcap", good.clone()),
        ("text/z.pcapng", b"This is not a capture.".to_vec()),
    ];
    let place = case(&dir, "02", &files);
    let own = dir.folder("own");
    let damaged = [&good[..24], &[0xff; 40]].concat();
    let packed = gzip(&dir, &good);
    let files = [
        // A second file before the good one, and with the name that other tools use.
        ("first/0.pcap3", vec![]),
        ("first/a.pcap", good.clone()),
        ("damaged/a.pcap", good.clone()),
        ("damaged/z.pcap", damaged),
        ("gzip/a.pcap", good.clone()),
        ("gzip/z.pcap.gz", packed[..30].to_vec()),
        ("xz/a.pcap", good.clone()),
        ("xz/z.pcap.xz", b"\xfd7zXZ\0\0\0".to_vec()),
    ];
    write_all(&own, &files);
    let want = ethernet(&[1000, 1001, 1002, 1003]);
    for (folder, status, said) in [
        (place.join("zero"), 1, &["z.pcap", "empty"][..]),
        (place.join("cut"), 1, &["z.pcap", "within its header"]),
        (place.join("shb"), 0, &[]),
        (place.join("header"), 0, &[]),
        (place.join("text"), 1, &["z.pcapng", "not a pcap or pcapng"]),
        (own.join("first"), 1, &["0.pcap3", "empty"]),
        (own.join("damaged"), 1, &["z.pcap", "too long"]),
        (own.join("gzip"), 1, &["z.pcap.gz", "ends within"]),
        (own.join("xz"), 1, &["z.pcap.xz", "xz -dc"]),
    ] {
        assert_frames(&dir, &folder, status, &want, said);
        assert_rss(&folder, status, 4, 248);
        let name: &[&str] = if status == 0 { &[] } else { &said[..1] };
        assert_eq!(captured(&dir, &folder, name), [1000, 1001, 1002, 1003]);
    }
    // Times that exclude the good file leave an output without frames.
    let out = dir.join("none.pcapng");
    let zero = place.join("zero");
    let done = to_file("extract", &zero, &out, &["--from", "2024-01-01"]).expect(1);
    done.says(&["z.pcap", "empty"]);
    assert_eq!(rows(&out), []);
    // Nothing is left to write.
    let bad = dir.folder("bad");
    fs::write(bad.join("z.pcap"), "").expect("it is written");
    for command in ["merge", "extract"] {
        to_file(command, &bad, &dir.join("bad.pcapng"), &[])
            .expect(1)
            .says(&["z.pcap", "empty"]);
        assert!(!dir.join("bad.pcapng").exists());
    }
}

#[test]
fn several_link_types_are_kept_in_pcapng() {
    let dir = Dir::new();
    let names = [&[(2, &b"eth0"[..])][..], &[(2, &b"tun0"[..])]];
    let [eth, tun] = [interface(ETHERNET, names[0]), interface(RAW, names[1])];
    let frames = [(0, 0, 1000), (1, 1, 1001), (0, 2, 1002), (1, 3, 1003)].map(|(i, us, port)| {
        let link = if i == 0 { ETHERNET } else { RAW };
        enhanced(i, us, &packet(link, port))
    });
    let [a, b, c, d] = &frames;
    let shb = section(&[]);
    let file = |blocks: &[&Vec<u8>]| {
        blocks
            .iter()
            .copied()
            .flatten()
            .copied()
            .collect::<Vec<_>>()
    };
    let four = [1000, 1001, 1002, 1003];
    let files = [
        ("two.pcapng", file(&[&shb, &eth, &tun, a, b, c, d])),
        ("late.pcapng", file(&[&shb, &eth, a, &tun, b, c, d])),
        ("unused.pcapng", file(&[&shb, &eth, &tun, a, c])),
        ("folder/a.pcap", PCAP.file(&four)),
        (
            "folder/b.pcap",
            Pcap {
                link: COOKED_2,
                ..PCAP
            }
            .file(&four),
        ),
    ];
    let place = case(&dir, "03", &files);
    let both = [
        (ETHERNET, 62, 62, 1000),
        (RAW, 48, 48, 1001),
        (ETHERNET, 62, 62, 1002),
        (RAW, 48, 48, 1003),
    ];
    let some = ethernet(&[1000, 1002]);
    let pcap = dir.join("out.pcap");
    for (name, want, status) in [
        ("two", &both[..], 1),
        ("late", &both, 1),
        ("unused", &some, 0),
    ] {
        let file = place.join(format!("{name}.pcapng"));
        assert_frames(&dir, &file, 0, want, &[]);
        // pcap has one link type.
        let done = to_file("merge", &file, &pcap, &[]).expect(status);
        if status == 1 {
            done.says(&["does not include 2 frames", "another link type"]);
        }
        assert_eq!(rows(&pcap), some);
        let ports: Vec<_> = want.iter().map(|it| it.3).collect();
        assert_eq!(captured(&dir, &file, &[]), ports);
    }
    let cooked = four.map(|port| (COOKED_2, 68, 68, port));
    let all = ethernet(&four)
        .into_iter()
        .zip(cooked)
        .flat_map(|(a, b)| [a, b]);
    let all: Vec<_> = all.collect();
    assert_frames(&dir, &place.join("folder"), 0, &all, &[]);
    // Without an extension, the inputs' format is not enough.
    let out = dir.join("out");
    drop(to_file("merge", &place.join("folder"), &out, &[]).expect(0));
    assert_eq!(rows(&out), all);
    // The first link type is that of the first frame.
    let raw_first = dir.write("raw.pcapng", file(&[&shb, &eth, &tun, b, d]));
    drop(to_file("merge", &raw_first, &pcap, &[]).expect(0));
    assert_eq!(rows(&pcap), [(RAW, 48, 48, 1001), (RAW, 48, 48, 1003)]);
    // Frames that a filter cannot judge are counted, and the others are extracted.
    let usb = interface(189, &[]);
    let usb = dir.write("usb.pcapng", file(&[&shb, &eth, &usb, a, b, c]));
    let done = to_file(
        "extract",
        &usb,
        &dir.join("usb-out.pcapng"),
        &["--filter", "udp port 1000"],
    );
    done.expect(1)
        .says(&["1 frames of link type 189", "filter"]);
}

/// Loopback captures of other systems: macOS, FreeBSD, NetBSD, OpenBSD, and a machine with big-endian
/// byte order. tcpdump reading the same file is the judge.
#[test]
fn filters_match_the_address_families_of_all_systems() {
    let dir = Dir::new();
    let six = [
        &[0x60, 0, 0, 0, 0, 8, 17, 64][..],
        &[1; 32],
        &[0, 7, 0, 9, 0, 8, 0, 0],
    ]
    .concat();
    let four = packet(RAW, 1000);
    for (name, magic_big, link, families) in [
        ("macos", false, 0_u32, [[2, 0, 0, 0], [30, 0, 0, 0]]),
        ("freebsd", false, 0, [[2, 0, 0, 0], [28, 0, 0, 0]]),
        ("netbsd", false, 0, [[2, 0, 0, 0], [24, 0, 0, 0]]),
        ("big", true, 0, [[0, 0, 0, 2], [0, 0, 0, 24]]),
        ("openbsd", false, 108, [[0, 0, 0, 2], [0, 0, 0, 24]]),
    ] {
        let word = |it: u32| match magic_big {
            true => it.to_be_bytes(),
            false => it.to_le_bytes(),
        };
        let half = |it: u16| match magic_big {
            true => it.to_be_bytes(),
            false => it.to_le_bytes(),
        };
        let head = [0xa1b2_c3d4].map(word).concat();
        let version = [2, 4].map(half).concat();
        let mut file = [head, version, [0, 0, 65_535, link].map(word).concat()].concat();
        for (family, body) in families.iter().zip([&four, &six]) {
            let len = u32::try_from(4 + body.len()).expect("short");
            file.extend([START, 0, len, len].map(word).concat());
            file.extend(family);
            file.extend(body);
        }
        let file = dir.write(&format!("{name}.pcap"), file);
        let out = dir.join("out.pcap");
        for filter in ["ip", "ip6", "udp", "udp port 9", "not ip"] {
            let done = to_file("extract", &file, &out, &["--filter", filter, "--json"]);
            let report: Value = serde_json::from_str(&done.expect(0).stdout).expect("JSON");
            let judge = Program::new("tcpdump").arg("-nr").arg(&file).arg(filter);
            let judged = judge.run().expect(0).stdout.lines().count() as u64;
            assert_eq!(report["frames"].as_u64(), Some(judged), "{name}: {filter}");
        }
    }
}

/// Expressions that libpcap refuses for Ethernet, and accepts for the link type of the file. tcpdump
/// reading the same file is the judge.
#[test]
fn filters_need_not_be_defined_for_ethernet() {
    let dir = Dir::new();
    let out = dir.join("out.pcap");
    for (name, link, filter, heads) in [
        ("wlan", 105, "type data", [[0x08, 0], [0x80, 0]]),
        ("cooked", 113, "inbound", [[0, 0], [0, 4]]),
        ("cooked2", 276, "ifindex 7", [[0, 0], [0, 0]]),
        ("sunatm", 123, "vpi 7", [[0, 7], [0, 9]]),
        ("pflog", 117, "inbound", [[0, 0], [0, 0]]),
    ] {
        let mut file = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, link]
            .map(u32::to_le_bytes)
            .concat();
        for (at, head) in (0u8..).zip(heads) {
            let mut frame = [&head[..], &[0; 98]].concat();
            // Interface index of Linux cooked v2, and direction of PFLOG.
            (frame[7], frame[60]) = (7 + at, 1 + at);
            file.extend([START, 0, 100, 100].map(u32::to_le_bytes).concat());
            file.extend(frame);
        }
        let file = dir.write(&format!("{name}.pcap"), file);
        let judge = Program::new("tcpdump").args(["--count", "-r"]);
        let judged = judge.arg(&file).arg(filter).run().expect(0).stdout;
        assert_eq!(judged.trim(), "1 packet", "{name}");
        let done = to_file("extract", &file, &out, &["--filter", filter, "--json"]);
        let report: Value = serde_json::from_str(&done.expect(0).stdout).expect("JSON");
        assert_eq!(report["frames"], 1, "{name}");
    }
    let wired = dir.write("wired.pcap", PCAP.file(&[1000, 1001]));
    to_file("extract", &wired, &out, &["--filter", "type data"])
        .expect(1)
        .says(&[
            "2 frames of link type 1 (Ethernet)",
            "supported only on 802.11",
        ]);
    to_file("extract", &wired, &out, &["--filter", "type"]).expect(2);
}

#[test]
fn packets_without_an_ethernet_header_are_filtered_and_counted() {
    let dir = Dir::new();
    let of = |link| Pcap { link, ..PCAP }.file(&[1000, 1001, 1002, 1003]);
    let files = [
        ("sll2/a.pcap", of(COOKED_2)),
        ("raw/a.pcap", of(RAW)),
        ("null/a.pcap", of(0)),
    ];
    let place = case(&dir, "05", &files);
    let own = dir.folder("own");
    let kinds = [
        ("sll", 113),
        ("ppp", 9),
        ("hdlc", 50),
        ("loop", 108),
        ("raw4", 228),
        ("old", 12),
    ];
    for (name, link) in kinds {
        write_all(&own, &[(&format!("{name}/a.pcap"), of(link))]);
    }
    let shared =
        [("sll2", COOKED_2), ("raw", RAW), ("null", 0)].map(|(it, link)| (place.join(it), link));
    let own = kinds.map(|(it, link)| (own.join(it), link));
    let out = dir.join("out.pcapng");
    let index = dir.join("index").display().to_string();
    let id = "1:Lx2z2zTwm9F6JGgXNAcZo9m3ZiU=";
    for (folder, link) in shared.into_iter().chain(own) {
        let len = u32::try_from(header(link).len() + 48).expect("short");
        let row = |port| (link, len, len, port);
        for select in [&["--filter", "udp port 1002"][..], &["--community-id", id]] {
            for more in [&[][..], &["--index", &index]] {
                drop(to_file("extract", &folder, &out, &[select, more].concat()).expect(0));
                assert_eq!(rows(&out), [row(1002)], "{link} {select:?} {more:?}");
            }
        }
        fs::remove_dir_all(&index).expect("it is removed");
        let none = ["--filter", "tcp"];
        drop(to_file("extract", &folder, &out, &none).expect(0));
        assert_eq!(rows(&out), []);
        drop(to_file("merge", &folder, &out, &[]).expect(0));
        assert_eq!(rows(&out), [1000, 1001, 1002, 1003].map(row));
        // With an Ethernet header in place of the packet's own header.
        assert_rss(&folder, 0, 4, 248);
        assert_eq!(
            captured(&dir, &folder, &["link type"]),
            [1000, 1001, 1002, 1003]
        );
        let flows = dir.folder("flows");
        let run = Wqcap::run(&dir, "flows-run")
            .replay(&folder)
            .queues(1)
            .set("output.format=none")
            .set(&format!("flows.dir={}", flows.display()));
        let finished = run.finish(0);
        assert_eq!(finished.summary.json["flows"]["records"], 4, "{link}");
        fs::remove_dir_all(&flows).expect("it is removed");
    }
}

/// Some kilobytes of gzip hold a block of nearly 16 MiB, the limit. Files that overlap are open
/// together.
#[test]
fn long_records_of_many_open_files_have_a_limit() {
    const FILES: u64 = 40;
    let dir = Dir::new();
    let head = [
        section(&[]),
        interface(ETHERNET, &[]),
        enhanced(0, 0, &packet(ETHERNET, 1000)),
    ];
    let comments = options(&vec![(1, &[b'c'; 65_532][..]); 255]);
    let mut commented = packet(ETHERNET, 1001);
    let words = [0, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
    let len = u32::try_from(commented.len()).expect("short").to_le_bytes();
    commented.resize(commented.len().next_multiple_of(4), 0);
    let mut body = [&words[..], &commented, &comments].concat();
    let stamp = u64::from(START) * 1_000_000 + 1000;
    body[4..8].copy_from_slice(&((stamp >> 32) as u32).to_le_bytes());
    body[8..12].copy_from_slice(&(stamp as u32).to_le_bytes());
    body[12..16].copy_from_slice(&len);
    body[16..20].copy_from_slice(&len);
    let unknown = block(0xbad, &vec![0; (16 << 20) - 12]);
    let next = enhanced(0, 1000, &packet(ETHERNET, 1001));
    for (name, rest, status) in [
        ("skipped", [unknown, next].concat(), 0),
        ("held", block(6, &body), 1),
    ] {
        let folder = dir.folder(name);
        let file = gzip(&dir, &[head.concat(), rest].concat());
        for i in 0..FILES {
            fs::write(folder.join(format!("{i}.pcapng.gz")), &file).expect("written");
        }
        let out = dir.join(format!("{name}.pcapng"));
        let done = to_file("merge", &folder, &out, &[]).expect(status);
        let frames = ports(&out).len() as u64;
        match status {
            0 => assert_eq!(frames, 2 * FILES),
            _ => {
                // 416 MiB hold the records of 25 files.
                assert_eq!(frames, FILES + 25);
                done.says(&["the record needs 16 MiB of memory"]);
            }
        }
    }
}

#[test]
fn gzip_is_recognised_by_content() {
    let dir = Dir::new();
    let four = [1000, 1001, 1002, 1003];
    let pcap = PCAP.file(&four);
    let frames = four.map(|port| enhanced(0, u64::from(port), &packet(ETHERNET, port)));
    let pcapng = [section(&[]), interface(ETHERNET, &[]), frames.concat()].concat();
    let late = Pcap { at: 100, ..PCAP };
    let files = [
        ("a.pcap.gz", gzip(&dir, &pcap)),
        ("b.pcapng.gz", gzip(&dir, &pcapng)),
        ("folder/a.pcap", PCAP.file(&four[..2])),
        ("folder/b.pcap.gz", gzip(&dir, &late.file(&four[2..]))),
    ];
    let place = case(&dir, "06", &files);
    // Another name, several members that cut a record, and zeros at the end.
    let members = [
        gzip(&dir, &pcap[..100]),
        gzip(&dir, &[]),
        gzip(&dir, &pcap[100..]),
    ]
    .concat();
    let own = [
        ("plain.pcap", gzip(&dir, &pcap)),
        ("members", members.clone()),
        ("zeros.gz", [members, vec![0; 1000]].concat()),
    ];
    let own = own.map(|(name, bytes)| dir.write(name, bytes));
    let shared = ["a.pcap.gz", "b.pcapng.gz", "folder"].map(|it| place.join(it));
    for input in shared.iter().chain(&own) {
        assert_frames(&dir, input, 0, &ethernet(&four), &[]);
        assert_rss(input, 0, 4, 248);
        assert_eq!(captured(&dir, input, &[]), four);
    }
    // A torn file keeps the frames before its end.
    let many: Vec<u16> = (1000..3000).collect();
    let torn = gzip(&dir, &PCAP.file(&many));
    let torn = dir.write("torn.pcap.gz", &torn[..torn.len() / 2]);
    let out = dir.join("torn.pcapng");
    to_file("merge", &torn, &out, &[])
        .expect(1)
        .says(&["torn.pcap.gz", "ends within the frame"]);
    let kept = ports(&out);
    assert!(
        kept.len() > 500 && many.starts_with(&kept),
        "{}",
        kept.len()
    );
}

#[test]
fn old_versions_have_the_right_lengths() {
    let dir = Dir::new();
    let four = [1000, 1001, 1002, 1003];
    let cut = Pcap {
        caplen: 40,
        step: 1,
        ..PCAP
    };
    let of = |version, swapped| {
        Pcap {
            version,
            swapped,
            ..cut
        }
        .file(&four)
    };
    let files = [
        ("v22.pcap", of([2, 2], true)),
        ("v23.pcap", of([2, 3], true)),
        ("v543.pcap", of([543, 0], true)),
    ];
    let place = case(&dir, "16", &files);
    let want = four.map(|port| (ETHERNET, 40, 62, port));
    let mut inputs: Vec<_> = ["v22.pcap", "v23.pcap", "v543.pcap"]
        .map(|it| place.join(it))
        .into();
    let own = [
        ("plain23", [2, 3], false, false),
        ("plain24", [2, 4], false, false),
        ("big20", [2, 0], true, true),
        ("big23", [2, 3], true, true),
        ("big543", [543, 0], true, true),
    ];
    for (name, version, swapped, big) in own {
        inputs.push(
            dir.write(
                name,
                Pcap {
                    version,
                    swapped,
                    big,
                    ..cut
                }
                .file(&four),
            ),
        );
    }
    for input in inputs {
        assert_frames(&dir, &input, 0, &want, &[]);
        assert_rss(&input, 0, 4, 248);
        // A wire has the captured bytes.
        assert_eq!(captured(&dir, &input, &[]), four);
    }
    for (version, said) in [([1, 2], "1.2"), ([3, 0], "3.0"), ([543, 1], "543.1")] {
        let input = dir.write("unknown.pcap", Pcap { version, ..PCAP }.file(&four));
        for command in ["merge", "extract"] {
            let out = dir.join("unknown-out.pcapng");
            to_file(command, &input, &out, &[])
                .expect(2)
                .says(&["version", said]);
            assert!(!out.exists());
        }
        let run = Wqcap::run(&dir, "refused").replay(&input).queues(1);
        run.done().expect(2).says(&["version", said]);
    }

    let long = |big| {
        Pcap {
            magic: 0xa1b2_cd34,
            big,
            ..PCAP
        }
        .file(&four)
    };
    let place = case(&dir, "18", &[("a.pcap", long(false))]);
    for input in [place.join("a.pcap"), dir.write("big", long(true))] {
        assert_frames(&dir, &input, 0, &ethernet(&four), &[]);
        assert_rss(&input, 0, 4, 248);
        assert_eq!(captured(&dir, &input, &[]), four);
    }
}

/// Returns the options of the first section or interface block (`kind`) of a pcapng file.
fn options_of(path: &Path, kind: u32) -> Vec<(u16, Vec<u8>)> {
    let file = fs::read(path).expect("it is readable");
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().expect("a word"));
    let half = |at: usize| u16::from_le_bytes(*file[at..].first_chunk().expect("a half word"));
    let mut at = 0;
    while word(at) != kind {
        at += word(at + 4) as usize;
    }
    let (mut here, end) = (
        at + if kind == 1 { 16 } else { 24 },
        at + word(at + 4) as usize - 4,
    );
    let mut options = Vec::new();
    while here < end && half(here) != 0 {
        let len = usize::from(half(here + 2));
        options.push((half(here), file[here + 4..here + 4 + len].to_vec()));
        here += 4 + len.next_multiple_of(4);
    }
    options
}

#[test]
fn options_of_interfaces_and_sections_are_kept() {
    let dir = Dir::new();
    let speed = 10_000_000_000_u64.to_le_bytes();
    let kept: [(u16, &[u8]); 4] = [
        (4, &[192, 0, 2, 1, 255, 255, 255, 0]),
        (6, &[0, 0, 0x5e, 0, 0x53, 1]),
        (8, &speed),
        (11, b"\0udp port 1001"),
    ];
    let own = [&[(2, &b"eth0"[..])][..], &kept].concat();
    let frame = enhanced(0, 0, &packet(ETHERNET, 1001));
    let comment: &[(u16, &[u8])] = &[(1, b"exhibit 7")];
    let file = [section(comment), interface(ETHERNET, &own), frame.clone()].concat();
    let place = case(&dir, "17", &[("a.pcapng", file)]);
    let out = dir.join("out.pcapng");
    for (command, input) in [
        ("merge", place.join("a.pcapng")),
        ("merge", place.clone()),
        ("extract", place.clone()),
        ("extract", place.join("a.pcapng")),
    ] {
        drop(to_file(command, &input, &out, &[]).expect(0));
        let options = options_of(&out, 1);
        for (code, value) in kept {
            assert!(
                options.contains(&(code, value.to_vec())),
                "{command}: {code} {options:?}"
            );
        }
        assert!(options_of(&out, 0x0a0d_0d0a).contains(&(1, b"exhibit 7".to_vec())));
    }
    // A second file with another comment and filter, the same comment again, and unknown options.
    let other: &[(u16, &[u8])] = &[(2, b"eth0"), (11, b"\0tcp"), (99, b"?"), (6, b"short")];
    let comments: &[(u16, &[u8])] = &[(1, b"exhibit 7"), (1, b"exhibit 9")];
    let file = [section(comments), interface(ETHERNET, other), frame].concat();
    let both = dir.folder("both");
    fs::copy(place.join("a.pcapng"), both.join("a.pcapng")).expect("it is copied");
    fs::write(both.join("b.pcapng"), file).expect("it is written");
    let done = to_file("merge", &both, &out, &[]).expect(0);
    done.says(&[
        "1 capture filters of interfaces are left out",
        "2 options of interfaces",
    ]);
    let comments = options_of(&out, 0x0a0d_0d0a)
        .into_iter()
        .filter(|it| it.0 == 1);
    let comments: Vec<_> = comments.map(|it| it.1).collect();
    assert_eq!(comments, [&b"exhibit 7"[..], b"exhibit 9"]);
    // Anonymized output has none of them.
    let key = dir.write("key", [7; 32]);
    let key = key.display().to_string();
    drop(Program::new("chmod").arg("600").arg(&key).run().expect(0));
    drop(to_file("extract", &place, &out, &["--anonymize", &key]).expect(0));
    let has = |kind, code| options_of(&out, kind).iter().any(|it| it.0 == code);
    assert!(![1, 4, 6, 11].into_iter().any(|code| has(1, code)));
    assert!(!has(0x0a0d_0d0a, 1));

    // The filter and the comment of a capture.
    let run = Wqcap::run(&dir, "run")
        .replay(&place.join("a.pcapng"))
        .queues(1)
        .set("capture.filter=udp")
        .set("output.format=pcapng")
        .set("output.comment=exhibit 8");
    drop(run.done().expect(0));
    drop(to_file("merge", run.out_path(), &out, &[]).expect(0));
    assert!(options_of(&out, 1).contains(&(11, b"\0udp".to_vec())));
    assert!(options_of(&out, 0x0a0d_0d0a).contains(&(1, b"exhibit 8".to_vec())));
}

/// Simple packets have neither a time nor an interface.
#[test]
fn simple_packets_stay_simple_on_the_first_interface() {
    let dir = Dir::new();
    let simple = |port| {
        let packet = packet(ETHERNET, port);
        block(3, &[&62_u32.to_le_bytes()[..], &packet].concat())
    };
    let file = |name: &[u8], at, first| {
        let blocks = [
            section(&[]),
            interface(ETHERNET, &[(2, name)]),
            enhanced(0, at, &packet(ETHERNET, first)),
            simple(first + 1),
        ];
        blocks.concat()
    };
    let both = dir.folder("both");
    fs::write(both.join("a.pcapng"), file(b"eth0", 0, 1000)).expect("it is written");
    fs::write(both.join("b.pcapng"), file(b"eth1", 10, 1002)).expect("it is written");
    let out = dir.join("out.pcapng");
    let done = to_file("merge", &both, &out, &[]).expect(0);
    done.says(&["note: 1 records without a stamp are written with the stamp"]);
    assert_eq!(rows(&out), ethernet(&[1000, 1001, 1002, 1003]));
    let bytes = fs::read(&out).expect("it is readable");
    let (mut kinds, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().expect("a word"));
        kinds.push(word(at));
        at += word(at + 4) as usize;
    }
    assert_eq!(kinds, [0x0a0d_0d0a, 1, 1, 6, 3, 6, 6]);
}

#[test]
fn ambiguous_local_times_are_refused() {
    if !Path::new("/usr/share/zoneinfo/Europe/Berlin").exists() {
        skip!("this machine has no time zones");
    }
    let dir = Dir::new();
    let at = |seconds: &[u32]| {
        let files = seconds.iter().zip(1000..).map(|(at, port)| {
            let file = Pcap {
                at: at - START,
                ..PCAP
            }
            .file(&[port]);
            file[24..].to_vec()
        });
        [PCAP.file(&[]), files.collect::<Vec<_>>().concat()].concat()
    };
    let files = [
        (
            "berlin.pcap",
            at(&[1_729_989_000, 1_729_989_600, 1_729_992_600, 1_729_993_200]),
        ),
        (
            "spring.pcap",
            at(&[1_711_846_200, 1_711_847_400, 1_711_848_000, 1_711_849_200]),
        ),
    ];
    let place = case(&dir, "19", &files);
    let out = dir.join("out.pcapng");
    let extract = |file: &str, from: &str, to: &str| {
        let program = wqcap(["extract", "--from", from, "--to", to, "-o"]);
        program
            .arg(&out)
            .arg(place.join(file))
            .env("TZ", "Europe/Berlin")
            .run()
    };
    for (file, from, to) in [
        ("berlin.pcap", "2024-10-27 02:25:00", "2024-10-27 02:45:00"),
        ("berlin.pcap", "2024-10-27 02:35:00", "2024-10-27 02:20:00"),
    ] {
        extract(file, from, to)
            .expect(2)
            .says(&["twice", "+02:00", "+01:00"]);
        assert!(!out.exists());
    }
    for from in ["2024-03-31 02:10:00", "2024-03-31 02:30:00"] {
        let done = extract("spring.pcap", from, "2024-03-31 04:00:00").expect(2);
        done.says(&["no such local time", "+02:00", "+01:00"]);
    }
    for (file, from, to, want) in [
        (
            "berlin.pcap",
            "2024-10-27T02:25:00+02:00",
            "2024-10-27T02:45:00+01:00",
            4,
        ),
        (
            "spring.pcap",
            "2024-03-31 01:30:00",
            "2024-03-31 03:30:00",
            3,
        ),
    ] {
        drop(extract(file, from, to).expect(0));
        assert_eq!(rows(&out).len(), want);
    }
    let args = [
        "pin",
        "--reason",
        "x",
        "--to",
        "now",
        "--from",
        "2024-10-27 02:25:00",
        "--dir",
    ];
    let pin = wqcap(args).arg(dir.path()).env("TZ", "Europe/Berlin").run();
    pin.expect(2).says(&["twice", "+02:00", "+01:00"]);
}

#[test]
fn lengths_do_not_count_the_fcs() {
    let dir = Dir::new();
    let four = [1000, 1001, 1002, 1003];
    let with_fcs = |port| [packet(ETHERNET, port), vec![1, 2, 3, 4]].concat();
    let frames = |flags: &[(u16, &[u8])]| {
        let each = four.map(|port| {
            let mut frame = enhanced(0, u64::from(port), &with_fcs(port));
            let end = options(flags);
            frame.truncate(frame.len() - 4);
            frame.extend(end);
            let total = u32::try_from(frame.len() + 4).expect("short").to_le_bytes();
            frame[4..8].copy_from_slice(&total);
            [&frame[..], &total].concat()
        });
        each.concat()
    };
    let file = |of: &[(u16, &[u8])], flags: &[(u16, &[u8])]| {
        [section(&[]), interface(ETHERNET, of), frames(flags)].concat()
    };
    let place = case(&dir, "20", &[("g.pcapng", file(&[(13, &[4])], &[]))]);
    // In bits, in the flags of the packets, and in a pcap header.
    let bits = file(&[(13, &[32])], &[]);
    let flags = file(&[], &[(2, &(4_u32 << 5).to_le_bytes())]);
    let mut pcap = Pcap {
        link: ETHERNET | 1 << 26 | 2 << 28,
        ..PCAP
    }
    .file(&[]);
    for port in four {
        let frame = with_fcs(port);
        pcap.extend(
            [START, u32::from(port), 66, 66]
                .map(u32::to_le_bytes)
                .concat(),
        );
        pcap.extend(frame);
    }
    let own = [
        ("bits.pcapng", bits),
        ("flags.pcapng", flags),
        ("g.pcap", pcap),
    ];
    let own = own.map(|(name, bytes)| dir.write(name, bytes));
    let out = dir.join("out.pcapng");
    for input in [place.join("g.pcapng")].iter().chain(&own) {
        for (filter, want) in [("udp", 4), ("len = 62", 4), ("len = 66", 0)] {
            drop(to_file("extract", input, &out, &["--filter", filter]).expect(0));
            assert_eq!(rows(&out).len(), want, "{filter}");
        }
        drop(to_file("extract", input, &out, &[]).expect(0));
        assert_eq!(
            rows(&out),
            four.map(|port| (ETHERNET, 66, 66, port)),
            "the FCS is kept"
        );
        assert_rss(input, 0, 4, 248);
        let flows = dir.join("flows");
        let done = wqcap(["flows", "--json", "-o"])
            .arg(&flows)
            .arg(input)
            .run()
            .expect(0);
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(
            (&report["records"], &report["bytes"]),
            (&4.into(), &248.into())
        );
        fs::remove_dir_all(&flows).expect("it is removed");
        if input.ends_with("flags.pcapng") {
            continue;
        }
        let finished = Wqcap::run(&dir, "run")
            .replay(input)
            .queues(1)
            .set("output.format=none")
            .set("capture.filter=len = 62")
            .set(&format!("flows.dir={}", dir.folder("flows").display()))
            .finish(0);
        assert_eq!(finished.summary.json["flows"]["bytes"], 248);
        fs::remove_dir_all(&flows).expect("it is removed");
    }
}

#[test]
fn flow_records_of_stored_captures_have_their_times() {
    let dir = Dir::new();
    let input = dir.folder("in");
    let late = Pcap {
        at: 100,
        step: 500,
        ..PCAP
    };
    let cooked = Pcap {
        link: COOKED_2,
        at: 50,
        ..PCAP
    };
    // The later file is first by its name.
    fs::write(input.join("a.pcap"), late.file(&[1003, 1000])).expect("it is written");
    fs::write(input.join("b"), gzip(&dir, &PCAP.file(&[1000, 1001]))).expect("it is written");
    fs::write(input.join("c.pcap"), cooked.file(&[1002])).expect("it is written");
    fs::write(input.join("z.pcap"), "").expect("it is written");
    let flows = dir.join("new");
    let command = || wqcap(["flows", "--json", "-o"]).arg(&flows).arg(&input);
    let done = command().run().expect(1);
    done.says(&["z.pcap", "empty"]);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let number = |name: &str| report[name].as_u64();
    // The flow of port 1000 was idle for more than 30 seconds.
    assert_eq!(number("records"), Some(5));
    assert_eq!((number("frames"), number("bytes")), (Some(5), Some(310)));
    assert_eq!(
        (number("frames_read"), number("missed_frames")),
        (Some(5), Some(0))
    );
    assert_eq!(report["files"].as_array().map(Vec::len), Some(1));
    let none = dir.folder("none");
    let refused = wqcap(["flows", "-o"]).arg(&flows).arg(&none).run();
    refused.expect(2).says(&["no .pcap or .pcapng"]);
    let refused = wqcap(["flows", "-o"])
        .arg(dir.join("no/where"))
        .arg(&input)
        .run();
    refused.expect(2).says(&["no/where"]);

    let duckdb = need!(Duckdb::install());
    let of = |folder: &Path| format!("'{}/*.parquet'", folder.display());
    let rows = duckdb.query(&format!(
        "SELECT src_port, first_fwd_ns, src, dst, frames_fwd, ended_by FROM {}",
        of(&flows)
    ));
    let second = 1_000_000_000;
    let at = |s: u64, ns: u64| (u64::from(START) + s) * second + ns;
    let want = [
        (1000, at(0, 0), "idle"),
        (1001, at(0, 1_000_000), "stopped"),
        (1002, at(50, 0), "stopped"),
        (1003, at(100, 0), "stopped"),
        (1000, at(100, 500_000), "stopped"),
    ];
    let want = want.map(|(port, ns, end)| {
        let row = serde_json::json!([port, ns, "192.0.2.1", "198.51.100.2", 1, end]);
        row.as_array().expect("a row").clone()
    });
    let seen: Vec<_> = rows
        .into_iter()
        .map(|mut row| {
            // A sweep may have ended the flow of port 1001.
            if row[5] == "idle" && row[0] != 1000 {
                row[5] = "stopped".into();
            }
            row
        })
        .collect();
    assert_eq!(seen, want);
    // The columns are those of a run.
    let folder = dir.folder("run-flows");
    let run = Wqcap::run(&dir, "run")
        .replay(&input)
        .queues(1)
        .set("output.format=none")
        .set(&format!("flows.dir={}", folder.display()));
    drop(run.done().expect(0));
    let columns = |folder: &Path| duckdb.query(&format!("DESCRIBE SELECT * FROM {}", of(folder)));
    assert_eq!(columns(&flows), columns(&folder));
}
