//! Frame check sequence: stored and declared in the file, verified if configured, and never treated
//! as payload.

use std::path::Path;
use wqcap_tests::{
    Dir, Finished, Program, Wqcap,
    compare::assert_bytes,
    files::{self, Record},
    frames::{self, Ends, Frame},
};

const FCS: &str = "wq.scatter_fcs=true";
const VERIFY: &str = "capture.verify_fcs=true";

/// Returns the Ethernet CRC computed bit by bit (IEEE 802.3, 3.2.9), in wire order.
fn fcs(frame: &[u8]) -> [u8; 4] {
    let crc = frame.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    });
    (!crc).to_le_bytes()
}

fn with_fcs(frame: &[u8]) -> Vec<u8> {
    [frame, &fcs(frame)].concat()
}

/// Replays `frames` on one queue, so that they keep their order.
fn replay(dir: &Dir, name: &str, frames: &[Vec<u8>], settings: &[&str]) -> Finished {
    let file = dir.join(format!("{name}.pcap"));
    files::write(&file, 0, frames);
    let run = Wqcap::run(dir, name)
        .replay(&file)
        .queues(1)
        .set("capture.buffer=16KiB")
        .set("capture.ring=64")
        .set(FCS);
    run.sets(settings).finish(0)
}

fn records(finished: &Finished) -> Vec<Record> {
    finished.records().swap_remove(0)
}

/// Returns the values of `fields` that tshark prints for each packet, separated by tabs.
fn tshark(file: &Path, fields: &[&str]) -> Vec<String> {
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    let done = Program::new("tshark")
        .args(["-n", "-o", "eth.check_fcs:TRUE", "-T", "fields"])
        .args(fields)
        .arg("-r")
        .arg(file)
        .run()
        .expect(0);
    done.stdout.lines().map(str::to_owned).collect()
}

/// Returns frames of UDP over IPv4 and ARP, from the shortest that the model carries to jumbo
/// frames.
fn sizes() -> Vec<Vec<u8>> {
    let ends = Ends {
        from: 1,
        to: 2,
        sport: 3,
        dport: 4,
    };
    let mut all: Vec<_> = [0, 1, 2, 3, 18, 500, 1472, 9000]
        .map(|n| {
            let frame = Frame::ethernet(&[], frames::IPV4).ipv4(ends, 17, 0);
            frame.udp(ends).payload(n).done()
        })
        .into();
    all.push(vec![0x11; 14]);
    all.push(
        Frame::ethernet(&[(0x8100, 5)], frames::ARP)
            .payload(46)
            .done(),
    );
    all
}

#[test]
fn files_hold_the_fcs_and_declare_it() {
    let dir = Dir::new();
    let input = sizes();
    for format in ["pcap", "pcapng"] {
        for access in ["auto", "verbs"] {
            let settings = [
                &format!("output.format={format}"),
                &format!("capture.access={access}"),
                VERIFY,
            ];
            let settings: Vec<&str> = settings.iter().map(|it| it.as_ref()).collect();
            let finished = replay(&dir, &format!("{format}-{access}"), &input, &settings);
            let records = records(&finished);
            assert_eq!(records.len(), input.len());
            for (record, frame) in records.iter().zip(&input) {
                assert_bytes(format, &record.bytes, &with_fcs(frame));
                assert_eq!(record.len as usize, frame.len() + 4);
            }
            let json = &finished.summary.json;
            assert_eq!(json["fcs"]["checked"], input.len());
            assert_eq!(json["fcs"]["bad"], 0);
            // The ledger counts the bytes of frames without the FCS.
            let bytes: usize = input.iter().map(Vec::len).sum();
            assert_eq!(json["ledger"]["total"]["bytes"], bytes);

            if access == "verbs" {
                continue;
            }
            // Status 1 means good. tshark must not guess whether a packet has an FCS: it would find
            // none in the frame of 14 bytes.
            let file = &finished.files()[0].1;
            let shown: Vec<_> = input
                .iter()
                .map(|frame| format!("1\t0x{:08x}", u32::from_be_bytes(fcs(frame))))
                .collect();
            assert_eq!(tshark(file, &["eth.fcs.status", "eth.fcs"]), shown);
        }
    }
}

#[test]
fn a_damaged_frame_is_counted_marked_and_kept() {
    let dir = Dir::new();
    let input = frames::udp_flows(50, 100);
    let faults = "model.fault=bad_fcs@frames=10;bad_fcs@frames=20;bad_fcs@frames=21";
    for format in ["pcap", "pcapng"] {
        let settings = [
            &format!("output.format={format}"),
            VERIFY,
            faults,
            "model.rx_all=true",
        ];
        let finished = replay(&dir, format, &input, &settings);
        let records = records(&finished);
        let bad: Vec<_> = (0..records.len())
            .filter(|i| records[*i].bytes != with_fcs(&input[*i]))
            .collect();
        assert_eq!(bad, [10, 20, 21]);
        for (record, frame) in records.iter().zip(&input) {
            assert_bytes(format, &record.bytes[..frame.len()], frame);
        }
        let json = &finished.summary.json;
        assert_eq!(
            (&json["fcs"]["checked"], &json["fcs"]["bad"]),
            (&50.into(), &3.into())
        );
        assert_eq!(finished.summary.ledger.total.captured, 50);
        let file = &finished.files()[0].1;
        let shown = tshark(file, &["eth.fcs.status", "frame.packet_flags_crc_error"]);
        for (i, shown) in shown.iter().enumerate() {
            let (status, marked) = shown.split_once('\t').expect("two fields");
            assert_eq!(status == "0", bad.contains(&i), "packet {i}: {shown}");
            // Classic pcap cannot store the mark.
            let can_be = format == "pcapng";
            assert_eq!(
                marked == "1",
                can_be && bad.contains(&i),
                "packet {i}: {shown}"
            );
        }
    }
}

/// Without `rx-all`, the port drops damaged frames before any rule, and only the statistics of its
/// interface count them.
#[test]
fn a_damaged_frame_that_the_port_drops_is_counted_by_the_nic() {
    let dir = Dir::new();
    let input = frames::udp_flows(50, 100);
    let faults = "model.fault=bad_fcs@frames=10;bad_fcs@frames=20;bad_fcs@frames=21";
    let finished = replay(&dir, "dropped", &input, &[VERIFY, faults]);
    let dropped = [10, 20, 21];
    let kept: Vec<_> = (0..50).filter(|i| !dropped.contains(i)).collect();
    let records = records(&finished);
    assert_eq!(records.len(), kept.len());
    for (record, i) in records.iter().zip(kept) {
        assert_bytes("dropped", &record.bytes, &with_fcs(&input[i]));
    }
    let json = &finished.summary.json;
    assert_eq!(
        (&json["fcs"]["checked"], &json["fcs"]["bad"]),
        (&47.into(), &0.into())
    );
    assert_eq!(finished.summary.nic("rx_crc_errors_phy"), 3);
    assert_eq!(finished.summary.nic("rx_in_range_len_errors_phy"), 0);
}

#[test]
fn cut_frames_lose_the_fcs_and_the_length_includes_it() {
    let dir = Dir::new();
    let input = frames::udp_flows(20, 200);
    for (name, setting, kept) in [
        ("l4", "capture.slice=l4", 42),
        ("snaplen", "capture.snaplen=100", 100),
        // The frame fits, but its FCS does not.
        ("edge", "capture.snaplen=203", 200),
        ("fits", "capture.snaplen=204", 204),
    ] {
        for format in ["pcap", "pcapng"] {
            let name = format!("{name}-{format}");
            let format = format!("output.format={format}");
            let finished = replay(&dir, &name, &input, &[setting, &format]);
            for (record, frame) in records(&finished).iter().zip(&input) {
                assert_bytes(&name, &record.bytes, &with_fcs(frame)[..kept]);
                assert_eq!(record.len, 204);
            }
        }
    }
}

#[test]
fn the_fcs_is_not_visible_to_the_filter() {
    let dir = Dir::new();
    let input: Vec<_> = (60..80).map(|n| vec![0x88; n]).collect();
    for (name, filter, wanted) in [("len", "len <= 69", 10), ("bytes", "ether[69] = 0x88", 10)] {
        let filter = format!("capture.filter={filter}");
        let finished = replay(&dir, name, &input, &[&filter, VERIFY]);
        assert_eq!(finished.summary.ledger.total.captured, wanted, "{name}");
        assert_eq!(finished.summary.json["fcs"]["checked"], input.len());
    }
}

#[test]
fn the_fcs_is_checked_with_the_stripped_tag_restored() {
    let dir = Dir::new();
    let input: Vec<_> = [&[(0x8100, 5)][..], &[], &[(0x88a8, 3), (0x8100, 5)]]
        .map(|tags| Frame::ethernet(tags, frames::ARP).payload(46).done())
        .into();
    let stripping = "wq.cvlan_stripping=true";
    let finished = replay(&dir, "restored", &input, &[stripping, VERIFY]);
    for (record, frame) in records(&finished).iter().zip(&input) {
        assert_bytes("restored", &record.bytes, &with_fcs(frame));
    }
    assert_eq!(finished.summary.json["fcs"]["bad"], 0);

    let file = dir.join("restored.pcap");
    for (name, settings, message) in [
        ("alone", &[][..], "wq.scatter_fcs"),
        ("lost", &[FCS, stripping, "output.vlan=lost"], "output.vlan"),
    ] {
        let run = Wqcap::run(&dir, name).replay(&file).set(VERIFY);
        let run = run.sets(settings);
        run.done().expect(2).says(&["capture.verify_fcs", message]);
    }
}
