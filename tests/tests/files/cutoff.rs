//! Flow cutoff: the files hold exactly the beginning of each flow, and the ledger counts the other
//! frames.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
};
use wqcap_tests::{
    Dir, Finished, Program, Wqcap,
    captures::Captures,
    compare::assert_frames,
    files,
    frames::{self, Ends, Frame},
    oracles::capinfos,
};

/// Replays `file` on one queue, so that the output has the order of the wire.
fn run(dir: &Dir, name: &str, file: &Path, config: &str, sets: &[&str]) -> Finished {
    let run = Wqcap::run(dir, name).config(config).replay(file).queues(1);
    run.set("capture.buffer=128KiB").sets(sets).finish(0)
}

fn kept(finished: &Finished) -> Vec<Vec<u8>> {
    let records = finished.records().into_iter().flatten();
    records.map(|it| it.bytes).collect()
}

/// Packets and bytes sent so far, by IP version (`true`: IPv6) and direction of a flow.
type Sent = HashMap<(bool, Ends), (u64, u64)>;

#[test]
fn the_beginning_of_every_flow_is_kept_in_both_modes() {
    const PACKETS: u64 = 10;
    const BYTES: u64 = 4000;
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    let mut all = Vec::new();
    let mut wanted = Vec::new();
    let mut sent = Sent::new();
    for i in 0..6000_u16 {
        let ends = Ends {
            from: 1 + i % 5,
            to: 50,
            sport: 3000 + i % 4,
            dport: 443,
        };
        let ends = if i % 3 == 0 { ends.back() } else { ends };
        let (six, tcp) = (i % 2 == 1, ends.sport.max(ends.dport) % 2 == 1);
        let protocol = if tcp { 6 } else { 17 };
        let frame = if six {
            Frame::ethernet(&[(0x8100, 5)], frames::IPV6).ipv6(ends, protocol)
        } else {
            Frame::ethernet(&[], frames::IPV4).ipv4(ends, protocol, 0)
        };
        let frame = if tcp {
            frame.tcp(ends)
        } else {
            frame.udp(ends)
        };
        let frame = frame.payload(usize::from(i % 400)).done();
        let (packets, bytes) = sent.entry((six, ends)).or_default();
        // TCP has no packet limit, and IPv6 has no limit.
        if six || *bytes < BYTES && (tcp || *packets < PACKETS) {
            wanted.push(frame.clone());
        }
        *packets += 1;
        *bytes += frame.len() as u64;
        all.push(frame);
    }
    files::write(&file, 1_600_000_000, &all);
    let config = format!(
        "[[cutoff]]\nfilter = \"vlan and ip6\"\n\
         [[cutoff]]\nfilter = \"tcp\"\nbytes = {BYTES}\n\
         [[cutoff]]\nbytes = {BYTES}\npackets = {PACKETS}\n\
         [flows]\ndir = \"{}\"\n",
        dir.folder("flows").display()
    );
    let fanout = ["pipeline.mode=fanout", "pipeline.parsers_per_queue=3"];
    for (name, sets) in [("inline", &[][..]), ("fanout", &fanout)] {
        let finished = run(&dir, name, &file, &config, sets);
        assert_frames(name, &kept(&finished), &wanted);
        let (total, json) = (finished.summary.ledger.total, &finished.summary.json);
        assert_eq!(
            (total.received, total.captured),
            (6000, wanted.len() as u64)
        );
        assert_eq!(total.cut_off, 6000 - total.captured);
        assert!(total.cut_off > 1000, "{total:?}");
        let bytes = |of: &[Vec<u8>]| of.iter().map(Vec::len).sum::<usize>() as u64;
        assert_eq!(json["cutoff"]["bytes"], bytes(&all) - bytes(&wanted));
        assert_eq!(json["cutoff"]["untracked_frames"], 0);
        // Flow records count all frames, also those that were cut off.
        assert_eq!(json["flows"]["frames"], 6000);
        assert_eq!(json["flows"]["bytes"], bytes(&all));
    }
}

/// Frames that are cut off are not lost, so the files must not report them as drops.
#[test]
fn pcapng_files_report_no_loss_for_cut_off_frames() {
    const SENT: u64 = 1600;
    let dir = Dir::new();
    let file = dir.join("flows.pcap");
    let sent = frames::udp_flows(u16::try_from(SENT).expect("a small count"), 400);
    files::write(&file, 1_600_000_000, &sent);
    // Three of the 100 frames of each of the 16 flows are kept.
    let config = "[[cutoff]]\npackets = 3\n";
    let finished = run(&dir, "ng", &file, config, &["output.format=pcapng"]);
    let total = finished.summary.ledger.total;
    assert_eq!((total.captured, total.cut_off), (48, SENT - 48));
    let all = finished.files();
    assert_eq!(all.len(), 1);
    let path = &all[0].1;
    assert_eq!(capinfos::frames(path), 48);
    // The statistics count only frames intended for the file, as with a filter.
    assert_eq!(files::statistics(path), (48, 0));
    assert_eq!(files::lost_before(path), 0);
}

#[test]
fn flows_beyond_the_memory_are_kept_whole_and_counted() {
    let dir = Dir::new();
    let file = dir.join("many.pcap");
    let frame = |i: u16| {
        let ends = Ends {
            from: i,
            to: 60_000,
            sport: 1,
            dport: 2,
        };
        let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
        frame.udp(ends).payload(20).done()
    };
    // One frame of each flow, then a second frame of each flow.
    let all: Vec<_> = (0..5000).chain(0..5000).map(frame).collect();
    files::write(&file, 1_600_000_000, &all);
    let config = "[[cutoff]]\npackets = 1\n";
    let finished = run(&dir, "few", &file, config, &["capture.cutoff_memory=64KiB"]);
    let total = finished.summary.ledger.total;
    let untracked = finished.summary.json["cutoff"]["untracked_frames"].as_u64();
    let untracked = untracked.expect("a number");
    // Each flow has either its second frame cut off, or both frames counted as untracked.
    assert_eq!(total.cut_off + untracked / 2, 5000, "{total:?}");
    assert!(total.cut_off > 400 && untracked > 8000, "{total:?}");
    assert_eq!(total.captured, 10_000 - total.cut_off);
    finished.done.says(&["kept beyond capture.cutoff_memory"]);
}

/// Datagram or segment, according to tshark, that is neither tunnelled nor fragmented.
struct Told {
    /// Flow and VLANs, and source address with port.
    from: ((String, String), String),
    /// Set if the segment begins or ends a connection (SYN, FIN, RST).
    control: bool,
}

/// Returns tshark's view of each frame of a file; `None` if the frame is not of this protocol, or
/// if its flow contains a frame that cannot be classified.
fn tshark_frames(file: &Path, protocol: &str) -> Vec<Option<Told>> {
    let of = |field: &str| format!("{protocol}.{field}");
    let fields = [
        &of("stream"),
        "vlan.id",
        "ieee8021ad.id",
        "ip.src",
        "ipv6.src",
        "ip.dst",
        "ipv6.dst",
        &of("srcport"),
        &of("dstport"),
        "tcp.flags",
        "ip.flags.mf",
        "ip.frag_offset",
        "ipv6.fraghdr.nxt",
        "icmp.type",
        "icmpv6.type",
    ];
    let mut tshark = Program::new("tshark").args([
        "-o",
        "ip.defragment:FALSE",
        "-o",
        "ipv6.defragment:FALSE",
        "-T",
        "fields",
        "-E",
        "separator=|",
    ]);
    for field in fields {
        tshark = tshark.args(["-e", field]);
    }
    let done = tshark.arg("-r").arg(file).run().expect(0);
    let mut unclassified = HashSet::new();
    // Endpoints used again: tshark decides by sequence numbers whether this is a new flow.
    // Both streams are excluded.
    let mut streams: HashMap<_, String> = HashMap::new();
    let mut line = |line: &str| {
        let it: Vec<_> = line.split('|').collect();
        let [
            stream,
            vlans,
            services,
            four,
            six,
            to_four,
            to_six,
            port,
            to,
            flags,
            more,
            offset,
            rest @ ..,
        ] = &it[..]
        else {
            panic!("too few fields: {line}");
        };
        let several = [stream, four, six, flags].iter().any(|it| it.contains(','));
        let mut ends = [
            format!("{four}{six}:{port}"),
            format!("{to_four}{to_six}:{to}"),
        ];
        ends.sort();
        let first = streams.entry(ends).or_insert_with(|| (*stream).to_owned());
        if first != stream {
            unclassified.extend([first.clone(), (*stream).to_owned()]);
        }
        let whole = ["", "0", "False"].contains(more) && ["", "0"].contains(offset);
        // Linux's default port of VXLAN, which tshark does not dissect.
        let whole = whole && *to != "8472";
        let alone = rest.iter().all(|it| it.is_empty()) && four.is_empty() != six.is_empty();
        let found = !stream.is_empty() && !several && whole && alone;
        if !found {
            unclassified.extend(stream.split(',').map(str::to_owned));
        }
        let flow = ((*stream).to_owned(), format!("{services}/{vlans}"));
        let flags = flags.strip_prefix("0x");
        let flags = flags.and_then(|it| u16::from_str_radix(it, 16).ok());
        // FIN, SYN, RST.
        let control = flags.is_some_and(|it| it & 7 != 0);
        let from = (flow, format!("{four}{six}:{port}"));
        found.then_some(Told { from, control })
    };
    let frames: Vec<_> = done.stdout.lines().map(&mut line).collect();
    let plain = |it: &Told| !unclassified.contains(&it.from.0.0);
    frames.into_iter().map(|it| it.filter(plain)).collect()
}

/// Packet limit of each direction of a flow.
const PACKETS: u64 = 3;

#[test]
fn the_kept_frames_match_the_flows_that_tshark_finds() {
    let dir = Dir::new();
    let (file, all) = Captures::find().everything(&dir);
    let by_tshark =
        [("udp", 20), ("tcp", 500)].map(|(it, least)| (it, least, tshark_frames(&file, it)));
    let limit = format!("[[cutoff]]\npackets = {PACKETS}\n");
    // With records that end while the limits still apply.
    let records = format!(
        "{limit}[flows]\ndir = \"{}\"\nactive = \"1s\"\nidle = \"1s\"\n",
        dir.folder("flows").display()
    );
    for (name, config) in [("alone", limit), ("with-records", records)] {
        let finished = run(&dir, name, &file, &config, &["capture.cutoff_idle=1d"]);
        let kept = kept(&finished);
        for (protocol, least, frames) in &by_tshark {
            assert_eq!(frames.len(), all.len());
            assert_beginnings(&format!("{name}, {protocol}"), frames, &all, &kept, *least);
        }
    }
}

/// Asserts that exactly the first packets of each flow found by tshark are kept.
fn assert_beginnings(
    name: &str,
    by_tshark: &[Option<Told>],
    all: &[Vec<u8>],
    kept: &[Vec<u8>],
    least: usize,
) {
    let mut sent: HashMap<_, u64> = HashMap::new();
    let mut beginning = |it: &Told| {
        let packets = sent.entry(it.from.clone()).or_default();
        *packets += 1;
        *packets <= PACKETS || it.control
    };
    // The file holds some of the frames in their order; of equal frames of a flow it holds the
    // first.
    let mut kept = kept.iter().peekable();
    let mut cut = 0;
    for (n, (view, frame)) in (1..).zip(by_tshark.iter().zip(all)) {
        let is_kept = kept.next_if_eq(&frame).is_some();
        if let Some(view) = view {
            let wanted = beginning(view);
            assert_eq!(is_kept, wanted, "frame {n}, {name}, {:?}", view.from);
            cut += usize::from(!wanted);
        }
    }
    assert_eq!(kept.next(), None);
    assert!(cut > least, "{name}: only {cut} frames are cut off");
}
