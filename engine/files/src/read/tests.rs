//! Tests of the reader with generated capture files: every byte order and resolution, truncated and
//! damaged.

use super::*;
use crate::{
    fixtures::{Blocks, pcap_file, written},
    format::{
        ByteOrder, FileFormat, InterfaceStatistics, SECOND,
        pcapng::{interface_description, interface_statistics, section_header},
    },
};

/// Result of reading a capture file: (interface, ns, len, bytes) of all records, and the end of the
/// file or the error message.
type Read1 = (Vec<(usize, u64, u32, Vec<u8>)>, Result<FileEnd, String>);

/// Reads a capture file to its end.
fn read(file: &[u8]) -> Read1 {
    let mut reader = match PacketReader::with_window(file, 16) {
        Ok(reader) => reader,
        Err(e) => return (Vec::new(), Err(e.to_string())),
    };
    let mut all = Vec::new();
    let end = loop {
        match reader.next() {
            Ok(Some(p)) => all.push((p.interface, p.ns, p.len, p.bytes.to_vec())),
            Ok(None) => break Ok(reader.end().expect("it has ended")),
            Err(e) => break Err(e.to_string()),
        }
    };
    assert!(reader.next().expect("no second error").is_none());
    assert_eq!(reader.packets(), all.len() as u64);
    (all, end)
}

#[test]
fn pcap_in_every_order_and_resolution() {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for (magic, unit) in [(0xa1b2_c3d4, 1000), (0xa1b2_3c4d, 1), (0xa1b2_cd34, 1000)] {
            let file = pcap_file(
                order,
                magic,
                &[
                    (1, 999_999, &[1, 2, 3], 3),
                    (u32::MAX, 5, &[], 1500),
                    (0, 0, &[9; 100], 10),
                ],
            );
            let (all, end) = read(&file);
            assert_eq!(end, Ok(FileEnd::Clean));
            let want = [
                (0, SECOND + 999_999 * unit, 3, vec![1, 2, 3]),
                (0, u64::from(u32::MAX) * SECOND + 5 * unit, 1500, vec![]),
                // More bytes than the frame's length and than the snapshot length.
                (0, 0, 100, vec![9; 100]),
            ];
            assert_eq!(all, want);
        }
    }
}

#[test]
fn contradictions_are_tolerated_and_counted() {
    let file = pcap_file(
        ByteOrder::Big,
        0xa1b2_c3d4,
        &[
            (1, 0, &[7; 61], 61),
            (1, 0, &[7; 8], 7),
            (1, 1_000_000, &[], 0),
        ],
    );
    let mut reader = PacketReader::new(&file[..]).expect("header");
    while reader.advance().expect("reads") {}
    let mut want = Anomalies::default();
    want.longer_than_frame = 1;
    want.above_snaplen = 1;
    want.fraction_above_second = 1;
    assert_eq!(reader.anomalies(), want);
}

#[test]
fn a_header_declares_the_fcs_length() {
    let mut file = pcap_file(ByteOrder::Little, 0xa1b2_3c4d, &[]);
    file[20..24].copy_from_slice(&0x2400_0001u32.to_le_bytes());
    let reader = PacketReader::new(&file[..]).expect("header");
    let interface = &reader.interfaces()[0];
    assert_eq!((interface.link_type, interface.fcs_len), (1, Some(4)));
}

#[test]
fn pcapng_with_sections_of_both_orders_and_packets_of_three_kinds() {
    let mut blocks = Blocks::new(ByteOrder::Big);
    blocks.interface(4, &[(2, b"tap-a"), (9, &[9]), (3, b"left")]);
    blocks
        .block(0xbad, b"whatever")
        .packet(0, 77, &[1; 5], 60, &[]);
    blocks.section(ByteOrder::Little);
    blocks.interface(4, &[]).interface(0, &[(9, &[3])]);
    blocks.packet(1, 2, &[2; 3], 3, &blocks.option(6, &[3, 0, 0, 0]));
    // A simple packet block: the original length, then bytes up to the snapshot length.
    blocks.block(3, &[9, 0, 0, 0, 8, 8, 8, 8]);
    let obsolete = [&[0, 0, 255, 255][..], &[0; 4], &[5, 0, 0, 0]].concat();
    blocks.block(2, &[&obsolete[..], &[1, 0, 0, 0, 1, 0, 0, 0, 6]].concat());
    let (all, end) = read(&blocks.1);
    assert_eq!(end, Ok(FileEnd::Clean));
    let want = [
        (0, 77, 60, vec![1; 5]),
        (2, 2_000_000, 3, vec![2; 3]),
        (1, 2_000_000, 9, vec![8; 4]),
        (1, 5000, 1, vec![6]),
    ];
    assert_eq!(all, want);

    let mut reader = PacketReader::new(&blocks.1[..]).expect("section");
    let mut options = Vec::new();
    while let Some(packet) = reader.next().expect("reads") {
        options.push((packet.order, packet.options.to_vec()));
    }
    assert_eq!(
        options[1],
        (ByteOrder::Little, vec![6, 0, 4, 0, 3, 0, 0, 0])
    );
    let first = &reader.interfaces()[0];
    assert_eq!(first.name.as_deref(), Some("tap-a"));
    assert_eq!(first.options, [(3, b"left".to_vec())]);
    assert_eq!(
        (
            reader.anomalies().unstamped,
            reader.anomalies().other_blocks
        ),
        (1, 1)
    );
}

#[test]
fn the_last_statistics_of_an_interface_are_kept() {
    let mut file = Vec::new();
    section_header(&mut file, |_| {});
    interface_description(&mut file, 1, 0, Some(4), |_| {});
    let mut want = InterfaceStatistics {
        received: Some(5),
        dropped: Some(2),
        start_ns: Some(1 << 33),
        end_ns: Some(1 << 34),
    };
    interface_statistics(&mut file, 0, &want, |_| {});
    want.received = Some(9);
    interface_statistics(&mut file, 0, &want, |_| {});
    let mut reader = PacketReader::new(&file[..]).expect("section");
    assert!(reader.next().expect("reads").is_none());
    let interface = &reader.interfaces()[0];
    assert_eq!((interface.statistics, interface.fcs_len), (want, Some(4)));
}

#[test]
fn a_truncated_file_returns_its_complete_records_and_their_end() {
    fn check(format: FileFormat) {
        let (file, starts) = written(format, 6);
        for cut in starts[0]..=file.len() {
            for zeros in [0, 5, 600, 5000] {
                let torn = [&file[..cut], &vec![0; zeros]].concat();
                let whole = starts.iter().filter(|at| **at <= cut).count() - 1;
                // Zeros after a truncated record are taken as its missing bytes. The engine pads
                // only after complete records.
                if zeros > 0 && cut != starts[whole] {
                    continue;
                }
                let mut reader = PacketReader::with_window(&torn[..], 16).expect("header");
                let mut seen = 0;
                while let Ok(true) = reader.advance() {
                    seen += 1;
                    assert_eq!(reader.sound_end(), starts[seen.min(6)] as u64);
                }
                if zeros == 0 {
                    assert_eq!((seen, reader.sound_end()), (whole, starts[whole] as u64));
                    let rest = (cut - starts[whole]) as u64;
                    let end = reader.end().expect("no damage");
                    let (offset, bytes) = match end {
                        FileEnd::Clean => (cut as u64, 0),
                        FileEnd::Torn { offset, bytes } | FileEnd::Padding { offset, bytes } => {
                            (offset, bytes)
                        }
                    };
                    assert_eq!((offset, bytes), (starts[whole] as u64, rest), "{end:?}");
                } else {
                    let padding = FileEnd::Padding {
                        offset: cut as u64,
                        bytes: zeros as u64,
                    };
                    assert_eq!((seen, reader.end()), (whole, Some(padding)));
                }
            }
        }
    }
    check(FileFormat::Pcap);
    check(FileFormat::Pcapng);
}

#[test]
fn zeros_within_a_file_are_reported_with_their_offset() {
    let (file, starts) = written(FileFormat::Pcap, 4);
    let holed = [&file[..starts[2]], &[0; 4096], &file[starts[2]..]].concat();
    let (all, end) = read(&holed);
    assert_eq!(all.len(), 2);
    let message = end.unwrap_err();
    assert!(
        message.contains(&format!(
            "at byte {}: the file has 4096 zero bytes",
            starts[2]
        )),
        "{message}"
    );
}

#[test]
fn a_hole_of_one_header_or_less_is_damage_and_not_a_frame_of_1970() {
    let of_1970 = |len| {
        pcap_file(
            ByteOrder::Little,
            0xa1b2_c3d4,
            &[(0, 0, &[], len), (1, 0, &[1], 1)],
        )
    };
    for (file, zeros) in [(of_1970(0), 16), (of_1970(60), 12)] {
        let (all, end) = read(&file);
        let message = end.unwrap_err();
        assert!(
            all.is_empty() && message.contains(&format!("has {zeros} zero bytes")),
            "{message}"
        );
    }
}

#[test]
fn frames_of_1970_and_empty_records_are_records() {
    let file = pcap_file(
        ByteOrder::Little,
        0xa1b2_c3d4,
        &[(0, 0, &[1], 1), (1, 0, &[], 0)],
    );
    let (all, end) = read(&file);
    assert_eq!((all.len(), end), (2, Ok(FileEnd::Clean)));
}

#[test]
fn other_files_are_rejected_with_their_kind() {
    for (start, said) in [
        (&b""[..], "empty"),
        (b"\xd4", "begins with the bytes d4"),
        (b"#!/bin/sh", "begins with the bytes 23 21 2f 62"),
        (b"\x28\xb5\x2f\xfd....", "zstd -dc"),
        (b"\x1f\x8b\x08\x00....", "gzip -dc"),
        (b"\xd4\xc3\xb2\xa1\x02\x00\x04\x00", "within its header"),
        (
            b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x1a\x2b\x3c\x4e....",
            "byte-order magic",
        ),
    ] {
        let (all, end) = read(start);
        let message = end.expect_err("no capture");
        assert!(all.is_empty() && message.contains(said), "{message}");
    }
    let mut old = pcap_file(ByteOrder::Little, 0xa1b2_c3d4, &[]);
    old[4] = 1;
    assert!(read(&old).1.unwrap_err().contains("version 1.4"));
}

#[test]
fn invalid_lengths_are_reported() {
    let file = pcap_file(ByteOrder::Little, 0xa1b2_c3d4, &[(0, 1, &[], 0)]);
    let mut long = file.clone();
    long[32..36].copy_from_slice(&(MAX_FRAME + 1).to_le_bytes());
    assert!(
        read(&long)
            .1
            .unwrap_err()
            .contains("at byte 24: a record of 1048577")
    );

    let mut blocks = Blocks::new(ByteOrder::Little);
    blocks.interface(0, &[]);
    let at = blocks.1.len();
    for (place, value, said) in [
        (4, 33, "multiple of 4"),
        (4, 8, "from 12"),
        (4, MAX_BLOCK + 4, "to 16777216"),
        (8, 1, "does not describe"),
        (20, 5, "a packet of 5 bytes"),
        (32, 40, "ends with the length 40"),
    ] {
        let mut file = Blocks(ByteOrder::Little, blocks.1.clone());
        file.packet(0, 1, &[1; 4], 4, &[]);
        file.1[at + place..at + place + 4].copy_from_slice(&u32::to_le_bytes(value));
        let message = read(&file.1).1.unwrap_err();
        assert!(
            message.starts_with(&format!("at byte {at}: ")) && message.contains(said),
            "{message}"
        );
    }
}

#[test]
fn damaged_files_cause_no_panic() {
    let mut seed = 88_172_645_463_325_252u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as usize
    };
    for format in [FileFormat::Pcap, FileFormat::Pcapng] {
        let (file, _) = written(format, 5);
        for _ in 0..20_000 {
            let mut file = file.clone();
            for _ in 0..=random() % 3 {
                let at = random() % file.len();
                file[at] = random() as u8;
            }
            let (all, _) = read(&file);
            assert!(
                all.iter()
                    .all(|(_, _, len, bytes)| *len as usize >= bytes.len())
            );
        }
    }
}
