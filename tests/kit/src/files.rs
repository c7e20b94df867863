//! Reader and writer of capture files as plain records.
//!
//! Files that the product writes are read strictly with crate `pcap-file`. Files that are replayed
//! into the product are read by a lenient reader in this module: in some of them, records
//! contradict the header (a length above the snapshot length, a link type with FCS bits, more than
//! a million microseconds), and a strict reader refuses them.

use pcap_file::{
    TsResolution,
    pcap::PcapReader,
    pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::InterfaceStatisticsOption,
            section_header::SectionHeaderOption,
        },
    },
};
use std::{fmt, fs, path::Path, process::Command};

/// Record of a capture file.
#[derive(Clone, PartialEq, Eq)]
pub struct Record {
    /// Time stamp in nanoseconds since 1970.
    pub ts: u64,
    /// Number of bytes in the file.
    pub caplen: u32,
    /// Number of bytes on the wire, as recorded in the file.
    pub len: u32,
    /// Bytes of the frame in the file.
    pub bytes: Vec<u8>,
}

/// Prints the first 32 bytes only, because a failure may print many records.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            ts,
            caplen,
            len,
            bytes,
        } = self;
        let first = &bytes[..bytes.len().min(32)];
        write!(f, "{caplen} of {len} bytes at {ts}: {first:02x?}")
    }
}

impl Record {
    /// Returns the number of bytes on the wire: at least `caplen`, because some captures record
    /// less than they hold.
    #[must_use]
    pub fn wire_len(&self) -> u32 {
        self.len.max(self.caplen)
    }

    /// Returns the sequence number that a `synth:` wire puts at the end of each frame.
    ///
    /// # Panics
    /// Panics if the record is shorter than 8 bytes.
    #[must_use]
    #[track_caller]
    pub fn number(&self) -> u64 {
        let tail = self
            .bytes
            .last_chunk()
            .expect("frames end with an 8-byte number");
        u64::from_le_bytes(*tail)
    }
}

/// Reads a pcap or pcapng file that the product wrote.
///
/// # Panics
/// Panics if the file is incomplete or a record contradicts the file header.
#[must_use]
#[track_caller]
pub fn read(path: &Path) -> Vec<Record> {
    records(path, &unpacked(path))
}

/// Reads a pcap or pcapng file whose content is already [`unpacked`].
///
/// # Panics
/// Panics under the same conditions as [`read`].
#[must_use]
#[track_caller]
pub fn records(path: &Path, unpacked: &[u8]) -> Vec<Record> {
    let records = match unpacked.get(..4) {
        Some([0x0a, 0x0d, 0x0d, 0x0a]) => read_pcapng(unpacked),
        _ => read_pcap(unpacked),
    };
    records.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the content of a file, decompressed with `zstd` or `lz4` if its extension is `.zst` or
/// `.lz4`.
///
/// # Panics
/// Panics if the file cannot be read, or the tool reports damage.
#[must_use]
#[track_caller]
pub fn unpacked(path: &Path) -> Vec<u8> {
    let tool = match path.extension().and_then(|e| e.to_str()) {
        Some("zst") => "zstd",
        Some("lz4") => "lz4",
        _ => return fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())),
    };
    let out = Command::new(tool)
        .args(["-q", "-dc"])
        .arg(path)
        .output()
        .unwrap_or_else(|e| panic!("{tool}: {e}; scripts/packages test installs it"));
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success(),
        "{tool} -dc {}: {said}",
        path.display()
    );
    out.stdout
}

/// Returns the frames received and dropped from the statistics block at the end of a pcapng file.
///
/// # Panics
/// Panics if the file is incomplete, or its last block is not the statistics of interface 0.
#[must_use]
#[track_caller]
pub fn statistics(path: &Path) -> (u64, u64) {
    statistics_of(path, &unpacked(path))
}

/// Returns the frames received and dropped from the statistics block at the end of a pcapng file
/// whose content is already [`unpacked`].
///
/// # Panics
/// Panics under the same conditions as [`statistics`].
#[must_use]
#[track_caller]
pub fn statistics_of(path: &Path, unpacked: &[u8]) -> (u64, u64) {
    let shown = path.display();
    let mut reader = PcapNgReader::new(unpacked).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let mut last = None;
    while let Some(block) = reader.next_block() {
        last = match block.unwrap_or_else(|e| panic!("{shown}: {e}")) {
            Block::InterfaceStatistics(block) => Some(block.into_owned()),
            _ => None,
        };
    }
    let last = last.unwrap_or_else(|| panic!("{shown}: no statistics at its end"));
    assert_eq!(last.interface_id, 0, "{shown}");
    let find = |of: fn(&InterfaceStatisticsOption<'_>) -> Option<u64>| {
        last.options
            .iter()
            .find_map(of)
            .unwrap_or_else(|| panic!("{shown}: {last:?}"))
    };
    (
        find(|option| match option {
            InterfaceStatisticsOption::IsbIfRecv(n) => Some(*n),
            _ => None,
        }),
        find(|option| match option {
            InterfaceStatisticsOption::IsbIfDrop(n) => Some(*n),
            _ => None,
        }),
    )
}

/// Returns the sum of the drop counts (`epb_dropcount`) of a pcapng file's records.
///
/// # Panics
/// Panics if the file is incomplete.
#[must_use]
#[track_caller]
pub fn lost_before(path: &Path) -> u64 {
    let counts = |option: &EnhancedPacketOption<'_>| match option {
        EnhancedPacketOption::DropCount(n) => Some(*n),
        _ => None,
    };
    options(path, counts).into_iter().map(|(_, n)| n).sum()
}

/// Returns the comments in the section header of a pcapng file.
///
/// # Panics
/// Panics if the file is incomplete.
#[must_use]
#[track_caller]
pub fn section_comments(path: &Path) -> Vec<String> {
    let file = unpacked(path);
    let shown = path.display();
    let reader = PcapNgReader::new(&file[..]).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let options = reader.section().options.iter();
    let comments = options.filter_map(|option| match option {
        SectionHeaderOption::Comment(text) => Some(text.to_string()),
        _ => None,
    });
    comments.collect()
}

/// Returns the comments of a pcapng file's records, each with the index of its record.
///
/// # Panics
/// Panics if the file is incomplete.
#[must_use]
#[track_caller]
pub fn comments(path: &Path) -> Vec<(usize, String)> {
    options(path, |option| match option {
        EnhancedPacketOption::Comment(text) => Some(text.to_string()),
        _ => None,
    })
}

/// Returns the record options of a pcapng file that `wanted` selects, each with the index of its
/// record.
#[track_caller]
fn options<T>(
    path: &Path,
    wanted: impl Fn(&EnhancedPacketOption<'_>) -> Option<T>,
) -> Vec<(usize, T)> {
    let file = unpacked(path);
    let shown = path.display();
    let mut reader = PcapNgReader::new(&file[..]).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let (mut found, mut record) = (Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap_or_else(|e| panic!("{shown}: {e}")) {
            found.extend(
                packet
                    .options
                    .iter()
                    .filter_map(&wanted)
                    .map(|it| (record, it)),
            );
            record += 1;
        }
    }
    found
}

fn read_pcap(file: &[u8]) -> Result<Vec<Record>, String> {
    let mut reader = PcapReader::new(file).map_err(|e| e.to_string())?;
    let header = reader.header();
    if header.ts_resolution != TsResolution::NanoSecond {
        return Err("timestamps are not in nanoseconds".to_owned());
    }
    // The bits above the link type declare an FCS.
    if u32::from(header.datalink) & 0x03ff_ffff != 1 {
        return Err(format!("link type {:?} is not Ethernet", header.datalink));
    }
    let mut records = Vec::new();
    while let Some(packet) = reader.next_raw_packet() {
        let packet = packet.map_err(|e| format!("record {}: {e}", records.len()))?;
        // The check of the crate refuses a frame that was longer on the wire than the snapshot
        // length. Such a frame is valid.
        let fits = packet.incl_len <= header.snaplen && packet.incl_len <= packet.orig_len;
        if !fits || packet.ts_frac >= 1_000_000_000 {
            return Err(format!(
                "record {}: {packet:?} contradicts {header:?}",
                records.len()
            ));
        }
        let ts = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac);
        records.push(record(ts, packet.orig_len, &packet.data));
    }
    Ok(records)
}

fn read_pcapng(file: &[u8]) -> Result<Vec<Record>, String> {
    let mut reader = PcapNgReader::new(file).map_err(|e| e.to_string())?;
    let mut ticks = Vec::new();
    let mut records = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.map_err(|e| format!("record {}: {e}", records.len()))? {
            Block::InterfaceDescription(interface) => ticks.push(nanoseconds_per_tick(&interface)?),
            Block::EnhancedPacket(packet) => {
                let tick = ticks
                    .get(packet.interface_id as usize)
                    .ok_or("packet of an interface without a description")?;
                // `pcap-file` returns ticks as nanoseconds and ignores the interface's resolution.
                records.push(record(
                    nanoseconds(packet.timestamp) * tick,
                    packet.original_len,
                    &packet.data,
                ));
            }
            Block::SectionHeader(_) => ticks.clear(),
            _ => {}
        }
    }
    Ok(records)
}

fn nanoseconds_per_tick(interface: &InterfaceDescriptionBlock<'_>) -> Result<u64, String> {
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(value) => Some(*value),
        _ => None,
    });
    match resolution.unwrap_or(6) {
        power @ 0..=9 => Ok(10u64.pow(9 - u32::from(power))),
        other => Err(format!(
            "if_tsresol = {other:#x} is finer than a nanosecond, or not a power of ten"
        )),
    }
}

fn record(ts: u64, len: u32, bytes: &[u8]) -> Record {
    Record {
        ts,
        caplen: u32::try_from(bytes.len()).expect("checked by the reader"),
        len,
        bytes: bytes.to_vec(),
    }
}

fn nanoseconds(since_1970: std::time::Duration) -> u64 {
    u64::try_from(since_1970.as_nanos()).expect("before the year 2554")
}

/// Reads a classic pcap file without checking the records against the file header.
///
/// # Panics
/// Panics if the file ends within a record.
#[must_use]
#[track_caller]
pub fn read_as_it_stands(path: &Path) -> Vec<Record> {
    let file = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let word = |at: usize, little: bool| {
        let bytes = file[at..at + 4].try_into().expect("four bytes");
        if little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        }
    };
    let (little, fraction) = match word(0, true) {
        0xa1b2_c3d4 => (true, 1000),
        0xa1b2_3c4d => (true, 1),
        0xd4c3_b2a1 => (false, 1000),
        0x4d3c_b2a1 => (false, 1),
        other => panic!("{}: magic {other:#x}", path.display()),
    };
    let mut records = Vec::new();
    let mut at = 24;
    // Zeros up to the end of a file are padding.
    while file[at..].iter().any(|byte| *byte != 0) {
        let caplen = word(at + 8, little);
        records.push(Record {
            ts: u64::from(word(at, little)) * 1_000_000_000
                + u64::from(word(at + 4, little)) * fraction,
            caplen,
            len: word(at + 12, little),
            bytes: file[at + 16..at + 16 + caplen as usize].to_vec(),
        });
        at += 16 + caplen as usize;
    }
    records
}

/// Writes frames to a classic pcap file with microsecond stamps: the first at `start` (seconds
/// since 1970), the others one microsecond apart.
///
/// # Panics
/// Panics if the file cannot be written.
pub fn write(path: &Path, start: u32, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 262_144, 1] {
        file.extend_from_slice(&u32::to_le_bytes(word));
    }
    for (i, frame) in (0u32..).zip(frames) {
        let length = u32::try_from(frame.len()).expect("frames are short");
        for word in [start + i / 1_000_000, i % 1_000_000, length, length] {
            file.extend_from_slice(&word.to_le_bytes());
        }
        file.extend_from_slice(frame);
    }
    fs::write(path, file).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// Returns the queue in the name of a capture file: `wqcap-q<QQ>-<start ns>.<format>`, with `.zst`
/// or `.lz4` if compressed.
///
/// # Panics
/// Panics if the name does not have that form.
#[must_use]
#[track_caller]
pub fn queue_of(path: &Path) -> usize {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let parse = || {
        let (queue, rest) = name.strip_prefix("wqcap-q")?.split_once('-')?;
        let (start, format) = rest.split_once('.')?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let known = matches!(
            format.trim_end_matches(".zst").trim_end_matches(".lz4"),
            "pcap" | "pcapng"
        );
        if queue.len() >= 2 && digits(queue) && digits(start) && known {
            queue.parse().ok()
        } else {
            None
        }
    };
    parse().unwrap_or_else(|| {
        panic!(
            "{} is not named wqcap-q<QQ>-<start ns>.pcap[ng]",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dir;

    #[test]
    fn a_written_file_is_read_back() {
        let dir = Dir::new();
        let path = dir.join("a.pcap");
        write(&path, 5, &[vec![1; 60], vec![]]);
        let records = read_as_it_stands(&path);
        assert_eq!(records.len(), 2);
        assert_eq!(
            records[0],
            Record {
                ts: 5_000_000_000,
                caplen: 60,
                len: 60,
                bytes: vec![1; 60]
            }
        );
        assert_eq!(
            records[1],
            Record {
                ts: 5_000_001_000,
                caplen: 0,
                len: 0,
                bytes: vec![]
            }
        );
    }

    #[test]
    fn the_queue_is_read_from_the_file_name() {
        assert_eq!(queue_of(Path::new("/x/wqcap-q03-17.pcap")), 3);
        assert_eq!(
            queue_of(Path::new("wqcap-q12-1795233110453271320.pcapng")),
            12
        );
    }

    #[test]
    #[should_panic = "is not named"]
    fn the_name_of_an_open_file_is_refused() {
        let _ = queue_of(Path::new("wqcap-q03-17.pcap.part"));
    }
}
