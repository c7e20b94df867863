//! Tests with valid files, damaged files, and the public test captures.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, Endianness, TsResolution};

use super::super::spec::WireKind;
use super::super::{Delivery, Wire, WireError, WireSpec, WireState};
use super::PcapWire;
use super::index::{FrameChunk, FrameReader, IndexError, PcapRecord};
use super::source::Limits;

/// All frames of a capture file, and the notes on it.
struct FileIndex {
    records: Vec<PcapRecord>,
    skipped: u64,
    notes: Vec<String>,
}

impl FileIndex {
    fn read(source: &[u8]) -> Result<Self, IndexError> {
        let mut reader = FrameReader::new(source)?;
        let mut frames = FrameChunk::default();
        while reader.append_next(&mut frames) {}
        let noted = reader.finish()?;
        Ok(Self {
            records: frames.records,
            skipped: noted.skipped,
            notes: noted.notes,
        })
    }
}

/// Opens a wire that keeps at most `resident` bytes of its input in memory.
fn open_small(path: &Path, options: &str, resident: usize) -> Result<PcapWire, WireError> {
    let wire = format!("pcap:{}{options}", path.display());
    let wire = wire.parse::<WireSpec>().unwrap();
    let WireKind::Pcap(spec) = &wire.kind else {
        panic!("{wire:?}");
    };
    let chunk = resident / 4;
    PcapWire::open_within(&wire, spec, Limits { resident, chunk })
}

/// Frame of a wire and the time in nanoseconds at which it was delivered.
type TimedFrame = (u64, Vec<u8>);

/// Returns the frames of a wire with their times, in bursts of 7 at the times at which they are due.
fn play_timed(mut wire: PcapWire) -> (Vec<TimedFrame>, u64, Vec<String>) {
    let (mut frames, mut now) = (vec![], 0);
    while wire.state() == WireState::Up {
        now = wire.next_due_ns().unwrap_or(now).max(now);
        let mut receive = super::super::delivery::Each(|frame: super::super::WireFrame<'_>| {
            frames.push((now, frame.bytes.to_vec()));
            Delivery::Taken
        });
        wire.burst(now, 7, &mut receive);
    }
    (frames, wire.skipped(), wire.notes().to_vec())
}

/// Inputs that do not fit the limit are read in chunks while they are played. Frames, times, order,
/// numbers and notes are the same as from memory.
#[test]
fn large_inputs_are_played_in_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("folder");
    fs::create_dir(&folder).unwrap();
    let bytes = [5; 300];
    let of = |start: u32, n: u32| {
        let stamps = (0..n).map(|it| (start + it / 3, it % 3 * 100));
        let records = stamps.map(|(s, us)| (s, us, 20 + s % 200, 300, &bytes[..]));
        let records: Vec<_> = records
            .map(|(s, us, len, wire, data)| (s, us, len, wire, &data[..len as usize]))
            .chain([(start, 0, 5, 5, &bytes[..5])])
            .collect();
        file(1, &records)
    };
    fs::write(folder.join("a.pcap"), of(100, 300)).unwrap();
    fs::write(folder.join("b.pcap.zst"), zstd(&of(100, 200))).unwrap();
    fs::write(folder.join("c.pcap"), of(150, 100)).unwrap();
    let mut torn = of(90, 50);
    torn.truncate(torn.len() - 3);
    fs::write(folder.join("d.pcap"), torn).unwrap();
    fs::write(folder.join("e.pcap"), of(400, 100)).unwrap();
    fs::write(folder.join("text"), "text").unwrap();
    for input in [
        "folder",
        "folder/a.pcap",
        "folder/b.pcap.zst",
        "folder/d.pcap",
    ] {
        for options in ["", ",loop=3", ",speed=2", ",speed=0.5,loop=2"] {
            let path = dir.path().join(input);
            let whole = play_timed(open_small(&path, options, 1 << 20).unwrap());
            let chunks = play_timed(open_small(&path, options, 2048).unwrap());
            assert!(whole.0.len() >= 50);
            assert_eq!(whole.0, chunks.0, "{input} {options}");
            assert_eq!(whole.1, chunks.1, "{input} {options}");
            let sorted = |mut it: Vec<String>| {
                it.sort();
                it
            };
            assert_eq!(sorted(whole.2), sorted(chunks.2), "{input} {options}");
        }
    }
}

#[test]
fn more_than_64_files_of_the_same_time_are_not_merged() {
    let dir = tempfile::tempdir().unwrap();
    let data = [1; 100];
    for name in 0..66 {
        let records = [
            (1, name, 100, 100, &data[..]),
            (2, name, 100, 100, &data[..]),
        ];
        fs::write(dir.path().join(format!("{name}.pcap")), file(1, &records)).unwrap();
    }
    let (frames, _, notes) = play_timed(open_small(dir.path(), "", 1000).unwrap());
    assert_eq!((frames.len(), notes.len()), (128, 2), "{notes:?}");
    assert!(notes[0].contains("64 other files"), "{notes:?}");
}

fn open(path: &Path, options: &str) -> Result<Wire, WireError> {
    Wire::open(
        &format!("pcap:{}{options}", path.display())
            .parse::<WireSpec>()
            .unwrap(),
    )
}

fn play(wire: &mut Wire) -> Vec<Vec<u8>> {
    let mut frames = vec![];
    while wire.state() == WireState::Up {
        wire.each(u64::MAX / 2, 7, |frame| {
            frames.push(frame.bytes.to_vec());
            Delivery::Taken
        });
    }
    frames
}

fn frame(i: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at + i) as u8).collect()
}

/// Builds a little-endian pcap file with microseconds, byte by byte.
fn file(link: u32, records: &[(u32, u32, u32, u32, &[u8])]) -> Vec<u8> {
    let mut out = vec![];
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 64, link] {
        out.extend(u32::to_le_bytes(word));
    }
    for (sec, frac, caplen, len, data) in records {
        for word in [sec, frac, caplen, len] {
            out.extend(word.to_le_bytes());
        }
        out.extend(*data);
    }
    out
}

#[test]
fn pcap_in_both_resolutions_and_byte_orders() {
    let dir = tempfile::tempdir().unwrap();
    for (endianness, ts_resolution) in [
        (Endianness::Big, TsResolution::MicroSecond),
        (Endianness::Big, TsResolution::NanoSecond),
        (Endianness::Little, TsResolution::MicroSecond),
        (Endianness::Little, TsResolution::NanoSecond),
    ] {
        let path = dir.path().join("a.pcap");
        let header = PcapHeader {
            endianness,
            ts_resolution,
            snaplen: 300_000,
            ..PcapHeader::default()
        };
        let mut writer = PcapWriter::with_header(File::create(&path).unwrap(), header).unwrap();
        let sent: Vec<_> = [14, 60, 1514, 65_535, 262_144]
            .iter()
            .map(|len| frame(3, *len))
            .collect();
        for (i, frame) in sent.iter().enumerate() {
            let stamp = Duration::from_micros(5_000_000 + 10 * i as u64);
            writer
                .write_packet(&PcapPacket::new(stamp, frame.len() as u32, frame))
                .unwrap();
        }
        drop(writer);
        let mut wire = open(&path, "").unwrap();
        assert_eq!(play(&mut wire), sent);
        assert!(wire.notes().is_empty());

        let index = FileIndex::read(&fs::read(&path).unwrap()[..]).unwrap();
        let due: Vec<_> = index.records.iter().map(|it| it.due).collect();
        assert_eq!(due, [0, 10_000, 20_000, 30_000, 40_000]);
    }
}

#[test]
fn pcapng_with_interfaces_of_different_resolutions_and_link_types() {
    let dir = tempfile::tempdir().unwrap();
    for endianness in [Endianness::Big, Endianness::Little] {
        let path = dir.path().join("a.pcapng");
        let mut writer =
            PcapNgWriter::with_endianness(File::create(&path).unwrap(), endianness).unwrap();
        let interface = |link, resolution| InterfaceDescriptionBlock {
            linktype: link,
            snaplen: 0,
            options: vec![InterfaceDescriptionOption::IfTsResol(resolution)],
        };
        writer
            .write_pcapng_block(interface(DataLink::ETHERNET, 9))
            .unwrap();
        writer
            .write_pcapng_block(interface(DataLink::IEEE802_11, 6))
            .unwrap();
        writer
            .write_pcapng_block(interface(DataLink::ETHERNET, 0x80 | 10))
            .unwrap();
        for (interface_id, ticks, len) in [
            (0, 2_000_000_000, 60),
            (1, 0, 61),
            (2, 1024 * 3, 62),
            (0, 3, 13),
        ] {
            let data = frame(0, len);
            let block = EnhancedPacketBlock {
                interface_id,
                timestamp: Duration::from_nanos(ticks),
                original_len: len as u32,
                data: data.into(),
                options: vec![],
            };
            writer.write_pcapng_block(block).unwrap();
        }
        drop(writer);
        let mut wire = open(&path, "").unwrap();
        assert_eq!(play(&mut wire), [frame(0, 60), frame(0, 62)]);
        assert_eq!(wire.skipped(), 2);
        assert_eq!(wire.notes().len(), 2);
        let index = FileIndex::read(&fs::read(&path).unwrap()[..]).unwrap();
        assert_eq!(index.records[1].due, 1_000_000_000);

        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            // A file that is cut anywhere ends early or is refused; parsing never panics.
            if let Ok(index) = FileIndex::read(&whole[..len]) {
                assert!(index.records.len() <= 2);
            }
        }
    }
}

#[test]
fn a_damaged_end_is_reported_in_a_note() {
    let whole = file(1, &[(1, 0, 20, 20, &[7; 20]), (2, 0, 20, 20, &[8; 20])]);
    for cut in [1, 19, 20, 25, 35] {
        let index = FileIndex::read(&whole[..whole.len() - cut]).unwrap();
        assert_eq!(index.records.len(), 1, "cut by {cut}");
        assert_eq!(index.notes.len(), 1);
        assert!(
            index.notes[0].contains("after 1 records"),
            "{}",
            index.notes[0]
        );
    }
    let absurd = file(
        1,
        &[(1, 0, 20, 20, &[7; 20]), (2, 0, 0xffff_fff0, 60, &[8; 60])],
    );
    let index = FileIndex::read(&absurd[..]).unwrap();
    assert_eq!((index.records.len(), index.notes.len()), (1, 1));
    let large = file(1, &[(2, 0, 300_000, 60, &vec![8; 300_000])]);
    let index = FileIndex::read(&large[..]).unwrap();
    assert!(index.records.is_empty() && index.notes[0].contains("300000"));
}

/// A hole of zeros, which a power cut leaves in a file, is damage and not records of 1970.
#[test]
fn a_hole_of_zeros_ends_the_file_with_a_note() {
    let data = [7; 1000];
    let records: Vec<_> = (0..10)
        .map(|i| (1000 + i, 0, 1000, 1000, &data[..]))
        .collect();
    let whole = file(1, &records);
    for (hole, played) in [(3000..7096, 3), (24..8216, 0)] {
        let mut holed = whole.clone();
        holed[hole].fill(0);
        let index = FileIndex::read(&holed).unwrap();
        assert_eq!((index.records.len(), index.skipped), (played, 0));
        let [note] = &index.notes[..] else {
            panic!("{:?}", index.notes);
        };
        let words = format!("truncated after {played} records");
        assert!(
            note.contains(&words) && note.contains("zero bytes"),
            "{note}"
        );
    }
}

#[test]
fn records_that_checked_readers_refuse_are_played() {
    let whole = file(
        1,
        &[
            (1, 2_000_000_000, 20, 10, &[1; 20]), // Fraction over a second, caplen above len.
            (0, 0, 100, 100, &[2; 100]),          // Above the header's snaplen, and back in time.
            (9, 0, 13, 13, &[3; 13]),             // Too short for Ethernet.
            (9, 0, 0, 60, &[]),
        ],
    );
    let index = FileIndex::read(&whole[..]).unwrap();
    let lens: Vec<_> = index.records.iter().map(|it| it.len).collect();
    assert_eq!((lens, index.skipped), (vec![20, 100], 2));
}

#[test]
fn an_fcs_is_left_off() {
    let link = 1 | 1 << 26 | 2 << 28;
    let records: &[(u32, u32, u32, u32, &[u8])] = &[
        (1, 0, 64, 64, &[1; 64]),
        (1, 0, 62, 64, &[1; 62]),
        (1, 0, 50, 64, &[1; 50]),
    ];
    let index = FileIndex::read(&file(link, records)[..]).unwrap();
    let lens: Vec<_> = index.records.iter().map(|it| it.len).collect();
    assert_eq!(lens, [60, 60, 50]);
}

#[test]
fn files_that_cannot_be_played_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcap");
    for (bytes, reason) in [
        (vec![], "empty"),
        (vec![1; 40], "not a pcap or pcapng"),
        (file(1, &[])[..20].to_vec(), "within its header"),
        (file(105, &[]), "link type 105"),
        (vec![0x1f, 0x8b, 8, 0], "compressed"),
        (vec![0x0a, 0x0d, 0x0d, 0x0a, 0, 0], "torn"),
        (vec![0xfd, 0x37, 0x7a, 0x58, 0x5a, 0, 0], "xz -dc"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = open(&path, "").unwrap_err().to_string();
        assert!(
            error.contains(reason) && error.contains("a.pcap"),
            "{error}"
        );
    }
    let error = open(&path, ",paced=3").unwrap_err().to_string();
    assert!(error.contains("`,paced=3`"), "{error}");
}

fn lz4(raw: &[u8]) -> Vec<u8> {
    let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
    encoder.write_all(raw).unwrap();
    encoder.finish().unwrap()
}

fn zstd(raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0; zstd_safe::compress_bound(raw.len())];
    let len = zstd_safe::compress(&mut out[..], raw, 3).unwrap();
    out.truncate(len);
    out
}

/// Checks files of several compressed frames with a skippable frame in between, as flushing writers
/// produce them.
#[test]
fn compressed_files_are_played_up_to_an_incomplete_frame() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcap.packed");
    let raw = file(1, &[(1, 0, 20, 20, &[1; 20]), (1, 5, 30, 30, &[2; 30])]);
    for pack in [lz4 as fn(&[u8]) -> Vec<u8>, zstd] {
        let (head, tail) = raw.split_at(60);
        let skippable = [
            &0x184d_2a50_u32.to_le_bytes()[..],
            &4_u32.to_le_bytes(),
            &[9; 4],
        ]
        .concat();
        let whole = [pack(head), skippable, pack(tail)].concat();
        fs::write(&path, &whole).unwrap();
        let mut wire = open(&path, "").unwrap();
        assert_eq!(wire.notes(), [] as [String; 0]);
        assert_eq!(play(&mut wire), [vec![1; 20], vec![2; 30]]);
        fs::write(&path, &whole[..whole.len() - 9]).unwrap();
        let mut wire = open(&path, "").unwrap();
        assert_eq!(play(&mut wire), [vec![1; 20]]);
        assert!(!wire.notes().is_empty());
    }
}

#[test]
fn a_folder_is_played_in_the_order_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: Vec<u8>| fs::write(dir.path().join(name), bytes).unwrap();
    write(
        "b.pcap",
        file(1, &[(5, 0, 20, 20, &[1; 20]), (7, 0, 20, 20, &[3; 20])]),
    );
    write("a.pcap.zst", zstd(&file(1, &[(6, 0, 20, 20, &[2; 20])])));
    write("c.pcap.part", vec![0; 7]);
    write("notes.txt", vec![0; 7]);
    let mut wire = open(dir.path(), "").unwrap();
    assert_eq!(play(&mut wire), [[1; 20], [2; 20], [3; 20]]);
    let empty = tempfile::tempdir().unwrap();
    let error = open(empty.path(), "").unwrap_err().to_string();
    assert!(error.contains("no .pcap"), "{error}");
}

#[test]
fn a_looped_file_is_played_the_given_number_of_times() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcap");
    fs::write(
        &path,
        file(1, &[(1, 0, 20, 20, &[1; 20]), (1, 5, 30, 30, &[2; 30])]),
    )
    .unwrap();
    let lens = |wire: &mut Wire| play(wire).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(
        lens(&mut open(&path, ",loop=3").unwrap()),
        [20, 30, 20, 30, 20, 30]
    );
    let mut wire = open(&path, ",loop=0").unwrap();
    assert_eq!(wire.each(0, 1001, |_| Delivery::Taken), 1001);
    assert_eq!(wire.state(), WireState::Up);

    fs::write(&path, file(1, &[])).unwrap();
    assert_eq!(open(&path, ",loop=0").unwrap().state(), WireState::Ended);
    assert_eq!(open(&path, "").unwrap().state(), WireState::Ended);
}

#[test]
fn frames_are_due_at_the_recorded_pace() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.pcap");
    let data = [0; 20];
    let stamps = [(10, 0), (10, 100), (9, 0), (10, 300)];
    let records: Vec<_> = stamps
        .iter()
        .map(|(s, us)| (*s, *us, 20, 20, &data[..]))
        .collect();
    fs::write(&path, file(1, &records)).unwrap();

    let mut wire = open(&path, ",speed=1,loop=2").unwrap();
    assert_eq!(wire.next_due_ns(), Some(0));
    let burst = |wire: &mut Wire, now| wire.each(now, 9, |_| Delivery::Taken);
    assert_eq!(burst(&mut wire, 1_000_000), 1);
    assert_eq!(wire.next_due_ns(), Some(1_100_000));
    assert_eq!(burst(&mut wire, 1_099_999), 0);
    assert_eq!(
        burst(&mut wire, 1_100_000),
        2,
        "a frame stamped before its predecessor is due at once"
    );
    // The wire is held for 700 us: later frames are shifted, and the second round begins at the end
    // of the first.
    assert_eq!(wire.each(2_000_000, 9, |_| Delivery::Wait), 0);
    assert_eq!(burst(&mut wire, 2_000_000), 2);
    assert_eq!(wire.next_due_ns(), Some(2_100_000));
    assert_eq!(burst(&mut wire, 3_000_000), 3);
    assert_eq!((wire.state(), wire.next_due_ns()), (WireState::Ended, None));

    let mut wire = open(&path, ",speed=10").unwrap();
    assert_eq!(burst(&mut wire, 0), 1);
    assert_eq!(burst(&mut wire, 29_999), 2);
    assert_eq!(burst(&mut wire, 30_000), 1);

    let mut wire = open(&path, ",pps=10").unwrap();
    assert_eq!(burst(&mut wire, 0), 1);
    assert_eq!(burst(&mut wire, 100_000_000), 1);
}

/// Returns the frames of a complete pcap file with valid records and its number of short records,
/// without using the reader under test.
fn walk(data: &[u8]) -> (Vec<&[u8]>, u64) {
    let big = data.starts_with(&[0xa1, 0xb2]);
    let (mut frames, mut short, mut at) = (vec![], 0, 24);
    // Zeros at the end are padding, also if they could be empty records.
    while data[at..].iter().any(|it| *it != 0) {
        let caplen = *data[at + 8..].first_chunk().unwrap();
        let caplen = if big {
            u32::from_be_bytes(caplen)
        } else {
            u32::from_le_bytes(caplen)
        };
        let frame = &data[at + 16..][..caplen as usize];
        match frame.len() {
            ..14 => short += 1,
            _ => frames.push(frame),
        }
        at += 16 + frame.len();
    }
    (frames, short)
}

/// Checks that every public capture goes over the wire frame by frame, byte by byte. A capture that
/// is cut or damaged anywhere is refused or ends early, without a panic.
#[test]
fn the_public_captures_are_played() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps");
    let Ok(entries) = fs::read_dir(&dir) else {
        println!("skipped: no captures at {}", dir.display());
        return;
    };
    let (mut files, mut frames, mut skipped) = (0, 0, 0);
    for entry in entries {
        let path = entry.unwrap().path();
        if path.ends_with(wqcap_testkit::captures::DAMAGED) {
            continue;
        }
        let mut data = fs::read(&path).unwrap();
        let mut wire = open(&path, "").unwrap();
        let (expected, short) = walk(&data);
        assert_eq!(play(&mut wire), expected, "{}", path.display());
        assert_eq!(wire.skipped(), short, "{}", path.display());
        files += 1;
        frames += expected.len();
        skipped += short;

        let step = data.len() / 40 + 1;
        for at in (0..data.len()).step_by(step) {
            let _ = FileIndex::read(&data[..at]);
            data[at] ^= 0xff;
            let _ = FileIndex::read(&data[..]);
        }
    }
    println!("{files} files: {frames} frames, {skipped} records too short for Ethernet");
    assert!(files > 0 && frames > 0);
}
