//! Time span of a file's frames, derived from its first records, from the first records of the file
//! after it, and from the time of the last write.
//!
//! Invariant: a span is narrowed only when that is certain. Two files are consecutive if both are
//! from a capture of wqcap, with equal headers and names that differ in digits only, or if both
//! have the default name of one queue. Even then two captures, two sensors or a clock that was set
//! back may have files that overlap in time, so a file ends a minute after its last write if that
//! was after the next file began, or if files that begin within a minute of the next one overlap. A file that was written before one of its first records was
//! received has no known span: its stamps or its time of writing are wrong. The records of a file
//! of another program may be in any order, so such a file begins at any time.

use crate::{
    folder::written_ns,
    name::FileName,
    read::{Decompressor, FileRanges, ReadError, origin::is_capture_section},
};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    io::Read,
    ops::{Range, RangeInclusive},
    path::Path,
};

/// Tolerance in nanoseconds by which time stamps in a capture file may lie before its first one,
/// and after the first one of the next file: a clock that follows another one may step back a
/// little.
pub const SLACK_NS: u64 = 1_000_000_000;
/// Maximum time in nanoseconds by which the stamps of a capture may be ahead of the file system's
/// clock: TAI is 37 s ahead of UTC.
const AHEAD_NS: u64 = 60_000_000_000;
/// Maximum number of bytes that are read in front of the first record of a capture file.
const MOST_HEAD: u64 = 64 << 10;
/// Number of bytes of a capture file within which its "first records" begin, which are at least
/// two: a single timestamp may be wrong. They fit into the window of a reader that peeks, so that
/// most files are read once.
const FIRST_RECORDS: u64 = 1 << 10;

/// Timestamps of a capture file's first records, and a chain key shared by consecutive files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// Earliest and latest timestamp of the file's first records, in nanoseconds since 1970;
    /// `None`: the file has no record, or cannot be read up to it.
    first_ns: Option<(u64, u64)>,
    /// Chain key that the files of one queue of one capture share; `None`: the following file is
    /// unknown.
    chain: Option<u64>,
    /// Time of the last write to the capture file, in nanoseconds since 1970; `None`: unknown.
    written_ns: Option<u64>,
}

impl Beginning {
    /// Reads the header and the first records of a capture file.
    pub(crate) fn read(file: &FileRanges) -> Result<Self, ReadError> {
        let mut reader = file.peek()?;
        // Damage is reported by the code that reads the whole file.
        if !reader.advance().unwrap_or(false) {
            return Ok(Self::default());
        }
        let Some(packet) = reader.packet() else {
            return Ok(Self::default());
        };
        let head = packet.offset;
        let (mut earliest, mut latest) = (packet.ns, packet.ns);
        while reader.advance().unwrap_or(false)
            && let Some(packet) = reader.packet()
        {
            earliest = earliest.min(packet.ns);
            latest = latest.max(packet.ns);
            if packet.offset.saturating_sub(head) >= FIRST_RECORDS {
                break;
            }
        }
        Ok(Self {
            first_ns: Some((earliest, latest)),
            chain: chain(file, head)?,
            written_ns: written_ns(&file.path),
        })
    }
}

/// Returns the chain key that a capture file shares with its successors. The first record is at
/// byte `head`.
fn chain(file: &FileRanges, head: u64) -> Result<Option<u64>, ReadError> {
    let named = FileName::parse(&file.path).map(|it| it.queue);
    let mut bytes = Vec::new();
    if head <= MOST_HEAD {
        let content = Decompressor::new(file.source()?)?;
        content.take(head).read_to_end(&mut bytes)?;
    }
    if named.is_none() && !is_capture_section(&bytes) {
        return Ok(None);
    }
    let mut hasher = DefaultHasher::new();
    (named, bytes, shape(&file.path)).hash(&mut hasher);
    Ok(Some(hasher.finish()))
}

/// Returns the path of a capture file without its digits, which is equal for files of one capture.
fn shape(path: &Path) -> Vec<u8> {
    let mut path = path.as_os_str().as_encoded_bytes().to_vec();
    path.retain(|byte| !byte.is_ascii_digit());
    path
}

/// Start of a capture file among the files of its chain.
struct ChainStart {
    /// Earliest timestamp of the file's first records, in nanoseconds since 1970.
    ns: u64,
    /// Time of the last write to the file, in nanoseconds since 1970; `None`: unknown.
    written_ns: Option<u64>,
    /// Earliest start, from this one on, of a file that was written after the next file of the
    /// chain began; `None`: there is no such file.
    overlap: Option<u64>,
}

impl ChainStart {
    /// Returns `true` if this file, or one that begins up to [`AHEAD_NS`] later, overlaps with its
    /// successor. Two captures then share the chain, and this file may be of the other capture than
    /// the file before it.
    fn is_near_overlap(&self) -> bool {
        let most = self.ns.saturating_add(AHEAD_NS);
        self.overlap.is_some_and(|ns| ns <= most)
    }
}

/// Sorts the starts of a chain's files, and sets their overlaps.
fn find_overlaps(chain: &mut [ChainStart]) {
    chain.sort_unstable_by_key(|it| it.ns);
    let mut after: Option<(u64, Option<u64>)> = None;
    for it in chain.iter_mut().rev() {
        it.overlap = after.and_then(|(next, overlap)| {
            let end = next.saturating_add(SLACK_NS);
            match it.written_ns.is_some_and(|written| written > end) {
                true => Some(it.ns),
                false => overlap,
            }
        });
        after = Some((it.ns, it.overlap));
    }
}

/// Returns for each capture file the earliest and the latest time of frames that it may hold, in
/// nanoseconds since 1970.
pub(crate) fn reaches(files: &[Beginning]) -> Vec<RangeInclusive<u64>> {
    let mut chains: HashMap<u64, Vec<ChainStart>> = HashMap::new();
    for it in files {
        if let (Some(chain), Some((ns, _))) = (it.chain, it.first_ns) {
            let start = ChainStart {
                ns,
                written_ns: it.written_ns,
                overlap: None,
            };
            chains.entry(chain).or_default().push(start);
        }
    }
    chains.values_mut().for_each(|all| find_overlaps(all));
    let next = |it: &Beginning, latest: u64| {
        let all = chains.get(&it.chain?)?;
        all.get(all.partition_point(|start| start.ns <= latest))
    };
    let reach = |it: &Beginning| {
        let Some((earliest, latest)) = it.first_ns else {
            return 0..=u64::MAX;
        };
        let is_before = |written: u64| written.saturating_add(SLACK_NS) < latest;
        if it.written_ns.is_some_and(is_before) {
            return 0..=u64::MAX;
        }
        let end = next(it, latest).zip(it.written_ns);
        let end = end.map(|(next, written)| {
            let end = next.ns.saturating_add(SLACK_NS);
            match written <= end && !next.is_near_overlap() {
                true => end,
                false => end.max(written.saturating_add(AHEAD_NS)),
            }
        });
        let start = it.chain.map_or(0, |_| earliest.saturating_sub(SLACK_NS));
        start..=end.unwrap_or(u64::MAX)
    };
    files.iter().map(reach).collect()
}

/// Returns `true` if the time `ns` is in `times`, whose end is exclusive, except that `u64::MAX` is
/// no end.
pub(crate) fn is_in(times: &Range<u64>, ns: u64) -> bool {
    times.start <= ns && (ns < times.end || times.end == u64::MAX)
}

/// Returns `true` if a capture file with frames of the time span `reach` may hold frames of
/// `times`.
pub(crate) fn may_hold(reach: &RangeInclusive<u64>, times: &Range<u64>) -> bool {
    is_in(&(0..times.end), *reach.start()) && *reach.end() >= times.start
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        format::{
            ETHERNET,
            pcap::{self, encode_record_header},
            pcapng::{code, enhanced_packet, interface_description, option, section_header},
        },
        read::origin::PROGRAM,
    };
    use std::fs;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn first_stamps_exclude_files_outside_the_times() {
        let file = |chain: u64, second: u64| Beginning {
            first_ns: Some((second * SECOND, second * SECOND)),
            chain: Some(chain),
            written_ns: Some((second + 100) * SECOND),
        };
        let alone = |first_ns: Option<u64>| Beginning {
            first_ns: first_ns.map(|it| (it, it)),
            ..Beginning::default()
        };
        let files = [
            file(0, 100),
            file(0, 300),
            file(0, 200),
            file(1, 150),
            alone(Some(120 * SECOND)),
            alone(None),
        ];
        let reaches = reaches(&files);
        let held = |from: u64, to: u64| {
            let times = from * SECOND..to * SECOND;
            let held = reaches.iter().map(|it| may_hold(it, &times));
            held.collect::<Vec<_>>()
        };
        assert_eq!(held(0, 50), [false, false, false, false, true, true]);
        assert_eq!(held(110, 115), [true, false, false, false, true, true]);
        assert_eq!(held(210, 220), [false, false, true, true, true, true]);
        assert_eq!(held(195, 205), [true, false, true, true, true, true]);
        assert_eq!(held(400, 500), [false, true, false, true, true, true]);
        // A stamp near the first one may be before or after it.
        assert_eq!(held(201, 202), [true, false, true, true, true, true]);
        assert_eq!(held(0, 100), [true, false, false, false, true, true]);
    }

    #[test]
    fn files_that_overlap_reach_to_their_last_writes() {
        let file = |second: u64, written: Option<u64>| Beginning {
            first_ns: Some((second * SECOND, second * SECOND)),
            chain: Some(0),
            written_ns: written.map(|it| it * SECOND),
        };
        // The second file begins while the first one is written.
        let files = [
            file(100, Some(700)),
            file(101, Some(102)),
            file(300, None),
            file(900, Some(950)),
        ];
        let ends = |files: &[Beginning]| -> Vec<_> {
            reaches(files).iter().map(|it| it.end() / SECOND).collect()
        };
        let (late, last) = (AHEAD_NS / SECOND, u64::MAX / SECOND);
        assert_eq!(ends(&files), [700 + late, 301, last, last]);
        // A capture with stamps 37 s ahead, and one whose file began 10 s after a last write.
        let files = [
            file(100, Some(143)),
            file(153, Some(233)),
            file(180, Some(223)),
            file(260, Some(303)),
        ];
        assert_eq!(ends(&files), [143 + late, 233 + late, 261, last]);
        // One capture with stamps 37 s ahead.
        let files = [file(100, Some(143)), file(180, Some(223)), file(260, None)];
        assert_eq!(ends(&files), [181, 261, last]);
    }

    #[test]
    fn a_wrong_stamp_among_the_first_records_hides_no_frame() {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("a.pcapng");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs();
        let reach = |program: &str, seconds: &[u64]| {
            let mut bytes = Vec::new();
            section_header(&mut bytes, |out| {
                option(out, code::SHB_USERAPPL, program.as_bytes());
            });
            interface_description(&mut bytes, 1, 0, None, |_| {});
            for second in seconds {
                enhanced_packet(&mut bytes, 0, second * SECOND, &[7; 60], 60, |_| {});
            }
            fs::write(&path, bytes).expect("written");
            let it = Beginning::read(&FileRanges::whole(path.clone())).expect("reads");
            reaches(&[it]).remove(0)
        };
        let past = now - 1_000_000;
        assert_eq!(
            *reach(PROGRAM, &[past, past + 1]).start(),
            (past - 1) * SECOND
        );
        // The clock was ahead at the beginning, and was set back.
        assert_eq!(
            *reach(PROGRAM, &[past + 10, past]).start(),
            (past - 1) * SECOND
        );
        // The records of other programs are in any order.
        assert_eq!(*reach("mergecap", &[past, past + 1]).start(), 0);
        // A stamp after the last write: nothing is known.
        assert_eq!(reach(PROGRAM, &[now + 100_000_000, past]), 0..=u64::MAX);
        assert_eq!(reach(PROGRAM, &[past, now + 100_000_000]), 0..=u64::MAX);
    }

    #[test]
    fn files_of_one_queue_of_one_capture_follow_each_other() {
        let dir = tempfile::tempdir().expect("dir");
        let pcapng = |program: &str, interface: &str| {
            let mut file = Vec::new();
            section_header(&mut file, |out| {
                option(out, code::SHB_USERAPPL, program.as_bytes());
            });
            interface_description(&mut file, 1, 0, None, |out| {
                option(out, code::IF_NAME, interface.as_bytes());
            });
            enhanced_packet(&mut file, 0, 5, &[7; 20], 20, |_| {});
            file
        };
        let mut pcap = pcap::encode_header(0, ETHERNET, None).to_vec();
        pcap.extend(encode_record_header(5, 0, 20));
        let beginning = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, bytes).expect("written");
            let it = Beginning::read(&FileRanges::whole(path)).expect("reads");
            assert_eq!(it.first_ns, Some((5, 5)));
            it.chain
        };
        let q0 = pcapng(PROGRAM, "eth0 queue 0");
        let one = beginning("tap-q00-15.pcapng", &q0);
        assert!(one.is_some());
        assert_eq!(beginning("tap-q00-16.pcapng", &q0), one);
        let mut packed = vec![0; zstd_safe::compress_bound(q0.len())];
        let len = zstd_safe::compress(&mut packed[..], &q0, 3).expect("packs");
        let zst = beginning("tap-q00-17.pcapng.zst", &packed[..len]);
        assert!(zst.is_some());
        for (name, bytes) in [
            ("tap-q01-15.pcapng", &pcapng(PROGRAM, "eth0 queue 1")),
            ("web-q00-15.pcapng", &q0),
        ] {
            let other = beginning(name, bytes);
            assert!(other.is_some() && other != one && other != zst, "{name}");
        }
        // Files whose successors are unknown.
        for (name, bytes) in [
            ("run1.pcapng", &pcapng("Dumpcap 4.0", "eth0")),
            ("all.pcapng", &pcapng(&format!("{PROGRAM} merge"), "eth0")),
            ("tap-q00-15.pcap", &pcap),
        ] {
            assert_eq!(beginning(name, bytes), None, "{name}");
        }
        let q0 = beginning("wqcap-q00-15.pcap", &pcap);
        assert_eq!(beginning("wqcap-q00-16.pcap", &pcap), q0);
        assert_ne!(beginning("wqcap-q01-15.pcap", &pcap), q0);
    }
}
