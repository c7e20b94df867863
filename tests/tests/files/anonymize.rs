//! `wqcap extract --anonymize`, checked with independent tools: tshark lists the addresses and the
//! state of the checksums, capinfos reads every file, and the output is searched for the addresses.

use std::{
    collections::HashSet,
    fs,
    net::{Ipv4Addr, Ipv6Addr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Program, Wqcap,
    captures::Captures,
    files::{self, Record},
    frames,
    oracles::capinfos,
    skip,
    wqcap::wqcap,
};

/// Writes a key file in the format of `openssl rand -hex 32`.
fn key(dir: &Dir) -> PathBuf {
    let digits = "00112233445566778899aabbccddeeff".repeat(2);
    let path = dir.write("key", format!("{digits}\n"));
    restrict_to_owner(&path);
    path
}

fn restrict_to_owner(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the mode can be set");
}

fn extract(from: &Path, out: &Path, args: &[&str]) -> Program {
    wqcap(["extract"]).arg(from).arg("-o").arg(out).args(args)
}

fn anonymize(from: &Path, key: &Path, out: &Path, args: &[&str]) -> Program {
    extract(from, out, args).arg("--anonymize").arg(key)
}

/// Writes records with their wire lengths to a pcap file, one second apart.
fn write(path: &Path, records: &[Record]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 1 << 18, 1] {
        file.extend(u32::to_le_bytes(word));
    }
    for (i, record) in (0..).zip(records) {
        for word in [i, 0, record.caplen, record.wire_len()] {
            file.extend(u32::to_le_bytes(word));
        }
        file.extend(&record.bytes);
    }
    fs::write(path, file).expect("written");
}

/// Writes the frames of all captures to one file. Returns its folder and the end index of each
/// capture. Each generated frame counts as its own capture, because damaged generated frames turn
/// bytes that all frames share into addresses.
fn everything(captures: &Captures, dir: &Dir) -> (PathBuf, Vec<usize>) {
    let (mut all, mut ends) = (Vec::new(), Vec::new());
    for file in &captures.files {
        let start = all.len();
        all.extend(files::read_as_it_stands(file));
        if !captures.real {
            ends.extend(start + 1..all.len());
        }
        ends.push(all.len());
    }
    let folder = dir.folder("everything");
    write(&folder.join("everything.pcap"), &all);
    (folder, ends)
}

/// Returns the values of `fields` that tshark prints, for each frame and field.
fn tshark_fields(file: &Path, fields: &[&str]) -> Vec<Vec<Vec<String>>> {
    let mut program = Program::new("tshark").args(["-n", "-T", "fields", "-E", "separator=|"]);
    for preference in [
        "ip.defragment:FALSE",
        "ipv6.defragment:FALSE",
        "tcp.desegment_tcp_streams:FALSE",
        "ip.check_checksum:TRUE",
        "tcp.check_checksum:TRUE",
        "udp.check_checksum:TRUE",
    ] {
        program = program.args(["-o", preference]);
    }
    for field in fields {
        program = program.args(["-e", field]);
    }
    let done = program.arg("-r").arg(file).run().expect(0);
    let values = |field: &str| -> Vec<String> {
        let values = field.split(',').filter(|it| !it.is_empty());
        values.map(str::to_owned).collect()
    };
    let lines = done.stdout.lines();
    lines
        .map(|line| line.split('|').map(values).collect())
        .collect()
}

#[test]
fn every_capture_keeps_its_frames_times_and_lengths() {
    let dir = Dir::new();
    let key = key(&dir);
    Captures::find().each(|file| {
        let dir = Dir::new();
        let folder = dir.folder("in");
        fs::copy(file, folder.join("in.pcap")).expect("copied");
        let plain = dir.join("plain.pcap");
        // Some captures are truncated; extract then exits with another status.
        let done = extract(&folder, &plain, &[]).run();
        let status = done.status.code().expect("a status");
        let was = files::read(&plain);
        let (mut written, mut wanted) = (Vec::new(), Vec::new());
        for (slice, name) in [
            (&[][..], "all.pcapng"),
            (&["--slice", "l4"], "l4.pcap"),
            (&["--slice", "l3"], "l3.pcap"),
            (&["--slice", "payload:100000"], "payload.pcap"),
        ] {
            let out = dir.join(name);
            let _ = anonymize(&folder, &key, &out, slice).run().expect(status);
            let is = files::read(&out);
            assert_eq!(is.len(), was.len(), "{}", file.display());
            for (is, was) in is.iter().zip(&was) {
                assert_eq!((is.ts, is.len), (was.ts, was.len), "{}", file.display());
                assert!(is.caplen <= was.caplen);
            }
            if !is.is_empty() {
                written.push(out);
                wanted.push(is.len() as u64);
            }
        }
        assert_eq!(capinfos::counts(&written), wanted, "{}", file.display());
    });
}

/// Returns `true` for addresses with a defined meaning, which anonymization keeps.
fn is_special(address: &[u8]) -> bool {
    match *address {
        [a, b, c, d] => {
            let it = Ipv4Addr::new(a, b, c, d);
            it.is_unspecified()
                || it.is_loopback()
                || it.is_broadcast()
                || matches!([a, b, c], [224, 0, 0 | 1])
        }
        [0x01, 0x80, 0xc2, ..] | [0x01, 0x1b, 0x19, ..] | [0x01, 0x00, 0x0c, ..] => true,
        [0x01, 0x00, 0x5e, 0, 0 | 1, _] | [0x33, 0x33, 0, ..] => true,
        [_, _, _, _, _, _] => address == [0; 6] || address == [0xff; 6],
        _ => {
            let bytes = <[u8; 16]>::try_from(address).expect("an address");
            let it = Ipv6Addr::from(bytes);
            let derived = bytes[11] == 1 && bytes[12] == 0xff;
            it.is_unspecified()
                || it.is_loopback()
                || bytes[0] == 0xff && bytes[1] < 0x10 && !derived
        }
    }
}

/// Returns `true` if an address has more than two different bytes. Other addresses also match
/// unrelated bytes: some captures hold frames of zeros.
fn is_distinctive(address: &[u8]) -> bool {
    address.iter().collect::<HashSet<_>>().len() > 2
}

/// Returns the bytes of an address in tshark's notation.
fn address(text: &str) -> Vec<u8> {
    let mac = |text: &str| {
        let bytes = text.split(':').map(|it| u8::from_str_radix(it, 16));
        bytes
            .collect::<Result<Vec<u8>, _>>()
            .ok()
            .filter(|it| it.len() == 6)
    };
    let v4 = |text: &str| Some(text.parse::<Ipv4Addr>().ok()?.octets().to_vec());
    let v6 = |text: &str| Some(text.parse::<Ipv6Addr>().ok()?.octets().to_vec());
    let found = v4(text).or_else(|| mac(text)).or_else(|| v6(text));
    found.unwrap_or_else(|| panic!("{text:?} is not an address"))
}

#[test]
fn no_address_of_a_capture_is_in_the_output() {
    // Fields of headers, control messages, and payloads that describe a network.
    const FIELDS: [&str; 29] = [
        "eth.addr",
        "arp.src.hw_mac",
        "arp.dst.hw_mac",
        "arp.src.proto_ipv4",
        "arp.dst.proto_ipv4",
        "ip.addr",
        "ip.rec_rt",
        "ip.src_rt",
        "ipv6.addr",
        "ipv6.src_slaac_mac",
        "ipv6.dst_slaac_mac",
        "icmp.redir_gw",
        "icmp.router_address",
        "icmpv6.nd.ns.target_address",
        "icmpv6.nd.na.target_address",
        "icmpv6.nd.rd.target_address",
        "icmpv6.rd.na.destination_address",
        "icmpv6.opt.prefix",
        "icmpv6.opt.rdnss",
        "icmpv6.opt.src_linkaddr",
        "icmpv6.opt.target_linkaddr",
        "icmpv6.mld.multicast_address",
        "icmpv6.mldr.mar.multicast_address",
        "dhcp.ip.your",
        "dhcp.hw.mac_addr",
        "dns.a",
        "dns.aaaa",
        "igmp.maddr",
        "ospf.srcrouter",
    ];
    let dir = Dir::new();
    let (folder, ends) = everything(&Captures::find(), &dir);
    let addresses = tshark_fields(&folder.join("everything.pcap"), &FIELDS);
    let key = key(&dir);
    for slice in ["l4", ""] {
        let out = dir.join("out.pcap");
        let args = ["--slice", slice];
        let _ = anonymize(&folder, &key, &out, &args).run().expect(0);
        let records = files::read(&out);
        assert_eq!(records.len(), addresses.len());
        let (mut start, mut searched, mut skipped, mut left) = (0, 0, 0, Vec::new());
        for end in &ends {
            let capture = start..*end;
            let all = addresses[capture.clone()].iter().flatten().flatten();
            let all: HashSet<Vec<u8>> = all.map(|it| address(it)).collect();
            let all = all.into_iter().filter(|it| !is_special(it));
            let (all, others): (HashSet<_>, HashSet<_>) = all.partition(|it| is_distinctive(it));
            skipped += others.len();
            searched += all.len();
            for at in capture {
                let bytes = &records[at].bytes;
                let windows = [4, 6, 16].into_iter().flat_map(|len| bytes.windows(len));
                let found = windows.filter(|it| all.contains(*it));
                left.extend(found.map(|it| format!("frame {}: {it:02x?}", at + 1)));
            }
            start = *end;
        }
        skip::say(&format!(
            "slice {slice:?}: searched for {searched} addresses, skipped {skipped} with at most two different bytes"
        ));
        assert!(left.is_empty(), "{} of {searched}: {left:#?}", left.len());
        assert!(searched > 10);
    }
}

#[test]
fn good_checksums_stay_good_and_bad_checksums_stay_bad() {
    const FIELDS: [&str; 5] = [
        "ip.checksum.status",
        "tcp.checksum.status",
        "udp.checksum.status",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
    ];
    const BAD: &str = "0";
    const GOOD: &str = "1";
    let (dir, captures) = (Dir::new(), Captures::find());
    let (folder, _) = everything(&captures, &dir);
    let was = tshark_fields(&folder.join("everything.pcap"), &FIELDS);
    let key = key(&dir);
    for slice in ["payload:262144", "l4", ""] {
        let out = dir.join("out.pcap");
        let args = ["--slice", slice];
        let _ = anonymize(&folder, &key, &out, &args).run().expect(0);
        let is = tshark_fields(&out, &FIELDS);
        assert_eq!(is.len(), was.len());
        let (mut good, mut bad, mut wrong) = (0, 0, Vec::new());
        for (at, (is, was)) in (1..).zip(is.iter().zip(&was)) {
            for (field, (is, was)) in FIELDS.iter().zip(is.iter().zip(was)) {
                // Cut frames lack the innermost layers only.
                for (is, was) in is.iter().zip(was) {
                    match (was.as_str(), is.as_str()) {
                        (GOOD, GOOD) => good += 1,
                        (BAD, BAD) => bad += 1,
                        (GOOD, BAD) | (BAD, GOOD) => {
                            wrong.push(format!("frame {at}: {field} was {was}, is {is}"));
                        }
                        _ => {}
                    }
                }
            }
        }
        skip::say(&format!(
            "slice {slice:?}: {good} checksums stayed good and {bad} stayed bad"
        ));
        assert!(wrong.is_empty(), "{}: {wrong:#?}", wrong.len());
        // Generated frames have no good checksums.
        assert!(if captures.real { good > 0 } else { bad > 0 });
    }
}

#[test]
fn metadata_of_a_file_is_left_out_and_reported() {
    const SECRET: &str = "CLIENT_RANDOM 00112233 44556677";
    let dir = Dir::new();
    let frames = dir.join("frames.pcap");
    files::write(&frames, 1_600_000_000, &frames::udp_flows(8, 100));
    let run = Wqcap::run(&dir, "captured")
        .replay(&frames)
        .queues(1)
        .sets(&["output.format=pcapng", "output.comment=of-the-operator"]);
    let run = run.finish(0);
    let captured = &run.files()[0].1;
    let secrets = dir.write("secrets.log", format!("{SECRET}\n"));
    let folder = dir.folder("in");
    let commented = folder.join("in.pcapng");
    let editcap = Program::new("editcap")
        .args(["-F", "pcapng", "-a", "3:of-an-analyst", "--inject-secrets"])
        .arg(format!("tls,{}", secrets.display()));
    let _ = editcap.arg(captured).arg(&commented).run().expect(0);

    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("reads");
    let metadata = [
        "of-the-operator",
        "of-an-analyst",
        "mlx5_0",
        "00112233 44556677",
        host.trim(),
    ];
    let holds = |file: &Path, text: &str| {
        let bytes = fs::read(file).expect("reads");
        bytes.windows(text.len()).any(|it| it == text.as_bytes())
    };
    for text in metadata {
        assert!(holds(captured, text) || holds(&commented, text), "{text}");
    }
    let (key, out) = (key(&dir), dir.join("out.pcapng"));
    let done = anonymize(&folder, &key, &out, &[]).run().expect(0);
    done.says(&[
        "anonymized: 8 frames cut",
        "options of section headers are left out",
        "1 options of records, such as comments, are left out",
        "names of interfaces or files, descriptions and comments are left out",
        "1 blocks of decryption secrets are left out",
    ]);
    for text in metadata {
        assert!(!holds(&out, text), "{text}");
    }
    let is = files::read(&out);
    assert_eq!(is.len(), 8);
    assert!(is.iter().all(|it| it.caplen == 42 && it.len == 100));

    // A pcap file has no place for this metadata.
    let out = dir.join("out.pcap");
    let done = anonymize(&folder, &key, &out, &["--slice", "payload:8"]);
    let done = done.run().expect(0);
    done.says(&["8 frames with unchanged payload"]);
    assert!(files::read(&out).iter().all(|it| it.caplen == 50));
}

/// Creates a folder with a capture of frames of all kinds.
fn assortment(dir: &Dir) -> PathBuf {
    let folder = dir.folder("in");
    let file = folder.join("in.pcap");
    files::write(&file, 1_600_000_000, &frames::assortment());
    folder
}

#[test]
fn the_same_key_gives_the_same_file_and_another_key_a_different_file() {
    let dir = Dir::new();
    let folder = assortment(&dir);
    let key = key(&dir);
    let raw: Vec<u8> = [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77]
        .into_iter()
        .chain([0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff])
        .collect();
    let raw = dir.write("raw", raw.repeat(2));
    restrict_to_owner(&raw);
    let other = dir.write("other", [9; 32]);
    restrict_to_owner(&other);
    let [a, b, c] = [(&key, "a.pcap"), (&raw, "b.pcap"), (&other, "c.pcap")].map(|(key, name)| {
        let out = dir.join(name);
        let _ = anonymize(&folder, key, &out, &[]).run().expect(0);
        fs::read(out).expect("reads")
    });
    assert!(a == b && a != c);
}

#[test]
fn an_invalid_key_is_refused() {
    let dir = Dir::new();
    let folder = assortment(&dir);
    let out = dir.join("out.pcap");
    let refused = |key: &Path, parts: &[&str]| {
        let done = anonymize(&folder, key, &out, &[]).run().expect(2);
        done.says(&["--anonymize"]);
        done.says(parts);
        assert!(!out.exists());
    };
    refused(&dir.join("missing"), &["missing", "No such file"]);
    for (bytes, message) in [(31, "31 bytes"), (33, "33 bytes"), (1000, "more than 66")] {
        let path = dir.write("wrong", vec![7; bytes]);
        restrict_to_owner(&path);
        refused(
            &path,
            &[message, "32 bytes", "64 hex digits", "openssl rand"],
        );
    }
    let path = dir.write("wrong", "z".repeat(64));
    refused(&path, &["not all hex digits"]);
    let open = dir.write("open", [7; 32]);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    refused(&open, &["0644", "chmod o-rwx"]);

    let done = extract(&folder, &out, &["--slice", "l4"]).run().expect(2);
    done.says(&["--anonymize"]);
    let key = key(&dir);
    let done = anonymize(&folder, &key, &out, &["--slice", "l5"]).run();
    done.expect(2).says(&["\"l5\" is not a slice", "payload:N"]);
}
