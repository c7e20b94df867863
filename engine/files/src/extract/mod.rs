//! Extraction of the frames of a time range and a filter, out of a folder of finished files or out
//! of ranges of files that were selected elsewhere.
//!
//! ```text
//! indexes, or first records -> files that may overlap the times -> parts that may match
//!     -> merge, frame by frame
//! ```
//!
//! May import: [`crate::anonymize`], [`crate::index`], [`crate::merge`], [`crate::read`],
//! [`crate::folder`], and the filter of `wqcap-frame`.
//!
//! Invariants: indexes and first records only exclude parts that cannot match. Each remaining frame
//! is checked by its own stamp and by the filter, so that the result does not depend on indexes. No
//! capture file is changed.

mod select;
pub(crate) mod times;

pub use select::IndexUse;

use crate::{
    anonymize::{AnonymizeCounts, AnonymizeParams, Anonymizer},
    index::{FlowTerms, IndexFolder},
    link::{EthernetFrames, LoopbackFamilies, link_type_name},
    merge::{self, MergeError, MergePlan, MergeTarget, OutputLimits, PortLink, RecordSelection},
    read::{FileRanges, Packet, ReadMeter},
    sealed::SecretKey,
};
use select::{SelectionQuery, select};
use serde::Serialize;
use std::{
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
    time::Instant,
};
pub use times::SLACK_NS;
use times::is_in;
use wqcap_frame::{
    Headers,
    filter::{FileFilter, Filter, FilterError},
};

/// Query for frames in a folder of capture files.
#[derive(Clone, Debug)]
pub struct ExtractQuery {
    /// Folder of capture files in which the query searches, or a capture file.
    pub dir: PathBuf,
    /// Folder of the capture files' indexes; missing indexes are built there. `None`: files are
    /// selected by their first records only.
    pub index_dir: Option<PathBuf>,
    /// Key that opens the folder's sealed files; `None`: only plain files can be read.
    pub key: Option<SecretKey>,
    /// Files to search; `None`: all finished capture files of the folder, and missing indexes are
    /// built.
    pub files: Option<SearchedFiles>,
    /// Selection of frames by time, filter and flow, with the form of the output.
    pub frames: FrameQuery,
}

/// Files of a capture folder that a query searches. Their indexes are read and never built.
#[derive(Clone, Debug, Default)]
pub struct SearchedFiles {
    /// Paths and lengths in bytes of the finished capture files to search.
    pub finished: Vec<(PathBuf, u64)>,
    /// Paths, without `.part`, and present lengths in bytes of files that a capture still writes.
    pub open: Vec<(PathBuf, u64)>,
    /// Descriptions of frames that the query's times have and no file has yet, a line each.
    pub losses: Vec<String>,
}

/// Selection of frames in capture files, and form of the output.
#[derive(Clone, Debug)]
pub struct FrameQuery {
    /// Time range of the frames to select, in nanoseconds since 1970: start inclusive, end
    /// exclusive.
    pub times: Range<u64>,
    /// Filter that selected frames match.
    pub filter: FileFilter,
    /// Community ID of the flow to select, as [`Headers::community_id`] computes it of the
    /// innermost packet. `None`: any flow.
    pub community_id: Option<String>,
    /// Pairs of a time range, as `times`, and a filter; a selected frame also matches one of the
    /// pairs. Empty: `times` and `filter` suffice.
    pub alternatives: Vec<(Range<u64>, Filter)>,
    /// Necessary conditions that every selected frame meets, which the indexes test. `None`: the
    /// conditions that follow from `filter`.
    pub terms: Option<FlowTerms>,
    /// Limits on the number of frames and bytes of the extraction's output.
    pub limits: OutputLimits,
    /// Anonymization of the frames found and of the files' metadata. `None`: frames are copied
    /// unchanged.
    pub anonymize: Option<AnonymizeParams>,
    /// Path of the extraction's output; `-` is standard output.
    pub out: PathBuf,
}

impl FrameQuery {
    /// Creates a query for the frames of `times` that match `filter`, unlimited and unchanged.
    #[must_use]
    pub fn new(times: Range<u64>, filter: impl Into<FileFilter>, out: PathBuf) -> Self {
        Self {
            times,
            filter: filter.into(),
            community_id: None,
            alternatives: Vec::new(),
            terms: None,
            limits: OutputLimits::default(),
            anonymize: None,
            out,
        }
    }
}

/// Result of an extraction: counts of the frames found, and the output that was written.
#[derive(Clone, Debug, Serialize)]
pub struct FramesWritten {
    /// Path of the extraction's output; `-` is standard output.
    pub out: String,
    /// Format of the extraction's output: `pcap` or `pcapng`.
    pub format: &'static str,
    /// Number of frames that the query found.
    pub frames: u64,
    /// Length of the extraction's output in bytes.
    pub bytes: u64,
    /// Timestamp of the first frame found, in nanoseconds since 1970.
    pub first_ns: Option<u64>,
    /// Timestamp of the last frame found, in nanoseconds since 1970.
    pub last_ns: Option<u64>,
    /// Counts of the anonymizer, if frames were anonymized.
    pub anonymized: Option<AnonymizeCounts>,
    /// Notes on the extraction for the user.
    pub notes: Vec<String>,
    /// Losses of frames due to torn or damaged capture files, one line each.
    pub losses: Vec<String>,
    /// `true` if the output ends at its limit of frames or bytes.
    #[serde(skip)]
    pub at_limit: bool,
}

/// Result of an extraction from a folder, in the layout that `wqcap extract --json` prints.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Extracted {
    /// Counts of the frames found, and the output that was written.
    #[serde(flatten)]
    pub written: FramesWritten,
    /// Number of finished capture files that were read, and their total number in the folder.
    pub files: ReadCount,
    /// Number of bytes that were read of the finished capture files, each counted once, and the
    /// total length of these files.
    pub file_bytes: ReadCount,
    /// Use of capture file indexes in this extraction.
    pub index: IndexUse,
    /// Duration of the extraction in seconds.
    pub seconds: f64,
}

/// Number of files or bytes read, out of a total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadCount {
    /// Number of files or bytes that the extraction read.
    pub read: u64,
    /// Total number of files or bytes that the extraction could read.
    pub total: u64,
}

/// Selection of the records that match a query, with the anonymizer if one is configured.
struct FrameSelection<'q> {
    query: &'q FrameQuery,
    /// Filters of the query for each link type, compiled at their first frames.
    filters: Vec<LinkFilter>,
    ethernet: EthernetFrames,
    families: LoopbackFamilies,
    anonymizer: Option<Anonymizer>,
}

/// Filter of a query for the frames of one link type.
struct LinkFilter {
    link_type: u32,
    filter: Result<Filter, FilterError>,
    /// Number of frames that were left out because the filter is not defined for their link type.
    left_out: u64,
}

impl FrameSelection<'_> {
    #[inline]
    fn matches(&mut self, packet: &Packet<'_>, link: PortLink) -> bool {
        let query = self.query;
        if !is_in(&query.times, packet.ns) {
            return false;
        }
        let (bytes, len) = packet.without_fcs(link.fcs_len);
        self.accepts(link.link_type, bytes, len)
            && (query.alternatives.is_empty()
                || self
                    .ethernet
                    .convert(link.link_type, bytes, len)
                    .is_some_and(|(bytes, len)| {
                        query.alternatives.iter().any(|(times, filter)| {
                            is_in(times, packet.ns) && filter.accepts(bytes, len)
                        })
                    }))
            && query.community_id.as_ref().is_none_or(|id| {
                let frame = self.ethernet.convert(link.link_type, bytes, len);
                let found = frame.and_then(|(it, _)| Headers::innermost(it).community_id(it));
                found.as_ref() == Some(id)
            })
    }

    /// Returns `true` if the filter of the query accepts a frame of a link type.
    #[inline]
    fn accepts(&mut self, link_type: u32, bytes: &[u8], len: u32) -> bool {
        if self.query.filter.accepts_all() {
            return true;
        }
        let known = self.filters.iter().position(|it| it.link_type == link_type);
        let at = known.unwrap_or_else(|| {
            self.filters.push(LinkFilter {
                link_type,
                filter: self.query.filter.for_link_type(link_type),
                left_out: 0,
            });
            self.filters.len() - 1
        });
        let it = &mut self.filters[at];
        match &it.filter {
            Ok(filter) => filter.accepts(self.families.convert(link_type, bytes), len),
            Err(_) => {
                it.left_out += 1;
                false
            }
        }
    }
}

impl RecordSelection for FrameSelection<'_> {
    fn select<'a>(
        &'a mut self,
        packet: Packet<'a>,
        link: PortLink,
        _: usize,
    ) -> Option<Packet<'a>> {
        if !self.matches(&packet, link) {
            return None;
        }
        Some(match &mut self.anonymizer {
            Some(anonymizer) => packet.with_bytes(anonymizer.frame(packet.bytes, packet.len)),
            None => packet,
        })
    }

    /// Returns a message for each link type with frames that the filter cannot judge.
    fn losses(&self) -> Vec<String> {
        let lost = self.filters.iter().filter_map(|it| {
            let e = it.filter.as_ref().err()?;
            Some(format!(
                "the output does not include {} frames of {}, because the filter cannot be applied to them: {e}",
                it.left_out,
                link_type_name(it.link_type)
            ))
        });
        lost.collect()
    }
}

/// Returns the folder that a query searches: `path`, or the folder of the capture file `path`.
#[must_use]
pub fn folder_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|_| path.is_file());
    let parent = parent.map(|it| {
        if it.as_os_str().is_empty() {
            Path::new(".")
        } else {
            it
        }
    });
    parent.unwrap_or(path)
}

/// Runs an extraction query. `watch` is called repeatedly with the number of bytes read and the
/// number of bytes to read; it may return `false` to stop.
///
/// # Errors
/// The folder has no capture files, the files cannot be combined into one, the output cannot be
/// written, or `watch` stopped the query. Problems of single files are part of the result.
pub fn extract(
    query: &ExtractQuery,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<Extracted, MergeError> {
    extract_to(query, None, watch)
}

/// Runs an extraction query as [`extract`] does, and passes the output to `writer` while frames are
/// found. The extension of [`FrameQuery::out`] selects the format of the output. A pcapng output
/// that lacks frames ends with a comment that begins with `incomplete:`.
///
/// # Errors
/// See [`extract`].
pub fn extract_into(
    query: &ExtractQuery,
    writer: Box<dyn Write + Send>,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<Extracted, MergeError> {
    extract_to(query, Some(writer), watch)
}

fn extract_to(
    query: &ExtractQuery,
    writer: Option<Box<dyn Write + Send>>,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<Extracted, MergeError> {
    let begun = Instant::now();
    let meter = ReadMeter::default();
    let wanted = SelectionQuery {
        dir: &query.dir,
        indexes: query.index_dir.as_deref().map(|folder| IndexFolder {
            folder,
            dir: folder_of(&query.dir),
        }),
        key: query.key.as_ref(),
        out: Some(query.frames.out.as_path()).filter(|_| writer.is_none()),
        files: query.files.as_ref(),
        times: &query.frames.times,
        terms: match &query.frames.terms {
            Some(terms) => terms.clone(),
            None => FlowTerms::parse(query.frames.filter.expression()),
        },
    };
    let selection = select(&wanted, &meter, &|| watch(0, 0))?;
    let read = selection.files.len() as u64;
    let (files, index) = (selection.files, selection.index);
    // If other files were searched by their indexes, or the output is a stream with its own list of
    // losses, an output without frames is a result also if no file can be read.
    let plan = match writer.is_some() || read < selection.finished {
        true => MergePlan::from_found,
        false => MergePlan::from_ranges,
    };
    let mut plan = plan(files, selection.notes, &query.frames.out, false)?;
    let searched = query.files.iter();
    let mut losses: Vec<_> = searched.flat_map(|it| it.losses.iter().cloned()).collect();
    losses.extend(selection.losses);
    plan.limit(query.frames.limits, losses);
    let written = write_frames(plan, &query.frames, writer, watch)?;
    Ok(Extracted {
        written,
        files: ReadCount {
            read,
            total: selection.finished,
        },
        file_bytes: ReadCount {
            read: meter.bytes(),
            total: selection.finished_bytes,
        },
        index,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Extracts frames from ranges of capture files that may hold matching frames. `notes` are notes
/// for the user that are known already. Without files the output has no frames.
///
/// # Errors
/// The files cannot be combined into one, the output cannot be written, or `watch` stopped the
/// query.
pub fn extract_ranges(
    files: Vec<FileRanges>,
    notes: Vec<String>,
    query: &FrameQuery,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<FramesWritten, MergeError> {
    let mut plan = MergePlan::from_ranges(files, notes, &query.out, false)?;
    plan.limit(query.limits, Vec::new());
    write_frames(plan, query, None, watch)
}

/// Writes the frames of a merge plan that match the query, to `writer` or to the output of the
/// query.
fn write_frames(
    mut plan: MergePlan,
    query: &FrameQuery,
    writer: Option<Box<dyn Write + Send>>,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<FramesWritten, MergeError> {
    if query.anonymize.is_some() {
        make_anonymous(&mut plan)?;
    }
    let target = match writer {
        Some(writer) => {
            plan.add_closing_comment();
            MergeTarget::to_writer(writer)
        }
        None => MergeTarget::new(&query.out, &plan)?,
    };
    let to_read = plan.bytes().unwrap_or(0);
    let mut frames = FrameSelection {
        query,
        filters: Vec::new(),
        ethernet: EthernetFrames::default(),
        families: LoopbackFamilies::default(),
        anonymizer: query.anonymize.as_ref().map(Anonymizer::new),
    };
    let merged = merge::run_selected(plan, target, &mut frames, |bytes| watch(bytes, to_read))?;
    Ok(FramesWritten {
        out: merged.out,
        format: merged.format,
        frames: merged.frames,
        bytes: merged.bytes,
        first_ns: merged.first_ns,
        last_ns: merged.last_ns,
        losses: merged.losses,
        at_limit: merged.at_limit,
        anonymized: frames.anonymizer.map(|it| it.done()),
        notes: merged.notes,
    })
}

fn make_anonymous(plan: &mut MergePlan) -> Result<(), MergeError> {
    if plan.has_ethernet() {
        plan.make_anonymous();
        return Ok(());
    }
    Err(MergeError::Refused(format!(
        "the capture files have link type {}; only Ethernet frames can be anonymized",
        plan.link_type()
    )))
}

/// Record selection of an anonymization: all records of a capture file, with anonymized bytes.
struct Anonymous(Anonymizer);

impl RecordSelection for Anonymous {
    fn select<'a>(&'a mut self, packet: Packet<'a>, _: PortLink, _: usize) -> Option<Packet<'a>> {
        Some(packet.with_bytes(self.0.frame(packet.bytes, packet.len)))
    }
}

/// Writes an anonymized copy of a capture file: the same frames in the same order, up to damage if
/// there is any. Equal keys yield equal bytes.
///
/// # Errors
/// The file cannot be read, its link type is not Ethernet, or `out` cannot be written.
pub fn anonymize_file(path: &Path, query: &AnonymizeParams, out: &Path) -> Result<(), MergeError> {
    let file = FileRanges::whole(path.to_owned());
    let mut plan = MergePlan::from_ranges(vec![file], Vec::new(), out, false)?;
    make_anonymous(&mut plan)?;
    let target = MergeTarget::new(out, &plan)?;
    let mut frames = Anonymous(Anonymizer::new(query));
    merge::run_selected(plan, target, &mut frames, |_| true).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixtures::{Blocks, written},
        format::{ByteOrder, FileFormat},
        read::MOST_INTERFACES,
    };
    use std::{cell::Cell, fs};

    fn query(dir: &tempfile::TempDir, index: Option<&tempfile::TempDir>) -> ExtractQuery {
        ExtractQuery {
            dir: dir.path().to_owned(),
            index_dir: index.map(|it| it.path().to_owned()),
            key: None,
            files: None,
            frames: FrameQuery::new(0..u64::MAX, Filter::default(), dir.path().join("out")),
        }
    }

    #[test]
    fn a_torn_file_is_reported_with_and_without_an_index() {
        let indexes = tempfile::tempdir().expect("dir");
        for (format, name) in [
            (FileFormat::Pcap, "wqcap-q00-1.pcap"),
            (FileFormat::Pcapng, "wqcap-q00-1.pcapng"),
        ] {
            let dir = tempfile::tempdir().expect("dir");
            let (bytes, starts) = written(format, 3);
            let torn = &bytes[..bytes.len() - 1];
            fs::write(dir.path().join(name), torn).expect("written");
            for times in [0..u64::MAX, 0..1] {
                let run = |index| {
                    let mut query = query(&dir, index);
                    query.frames.times = times.clone();
                    let done = extract(&query, |_, _| true).expect("done").written;
                    (done.frames, done.losses)
                };
                let plain = run(None);
                let said = format!("at byte {}: the last record is torn", starts[2]);
                assert!(
                    plain.1.len() == 1 && plain.1[0].contains(&said),
                    "{plain:?}"
                );
                // With an index that is built now, and with an existing one.
                assert_eq!(run(Some(&indexes)), plain);
                assert_eq!(run(Some(&indexes)), plain);
            }
        }
    }

    #[test]
    fn files_that_are_swapped_after_their_selection_are_read_whole() {
        let (dir, indexes) = (tempfile::tempdir(), tempfile::tempdir());
        let (dir, indexes) = (dir.expect("dir"), indexes.expect("dir"));
        let path = |name: &str| dir.path().join(format!("wqcap-q00-{name}.pcap"));
        for (name, frames) in [("1", 2000u64), ("2", 70)] {
            let mut bytes = written(FileFormat::Pcap, 0).0;
            for ns in 0..frames {
                bytes.extend(crate::format::pcap::encode_record_header(ns, 1, 60));
                bytes.push(7);
            }
            fs::write(path(name), bytes).expect("written");
        }
        let mut query = query(&dir, Some(&indexes));
        query.frames.times = 0..u64::MAX - 1;
        let built = extract(&query, |_, _| true).expect("done");
        assert_eq!((built.written.frames, built.index.made), (2070, 2));
        let calls = Cell::new(0);
        let swap = |_, _| {
            calls.set(calls.get() + 1);
            // Both indexes are read, and no file is open yet.
            if calls.get() == 3 {
                for (from, to) in [("1", "x"), ("2", "1"), ("x", "2")] {
                    fs::rename(path(from), path(to)).expect("renamed");
                }
            }
            true
        };
        let after = extract(&query, swap).expect("done");
        assert_eq!((after.index.files, after.index.made), (2, 0));
        assert_eq!(after.written.frames, 2070, "{:?}", after.written);
    }

    #[test]
    fn a_file_deleted_during_extraction_is_noted() {
        let indexes = tempfile::tempdir().expect("dir");
        let n = 20_000;
        // Number of the call of `watch` at which the second file is deleted: before its index is
        // read, before its first record is read, and before it is merged.
        for (index, at) in [(None, 1), (Some(&indexes), 1), (None, 2), (None, 3)] {
            let dir = tempfile::tempdir().expect("dir");
            let path = |i: u64| dir.path().join(format!("wqcap-q00-{i}.pcap"));
            let mut many = written(FileFormat::Pcap, 0).0;
            for i in 0..n {
                many.extend(crate::format::pcap::encode_record_header(i, 1, 60));
                many.push(7);
            }
            fs::write(path(1), &many).expect("written");
            fs::write(path(2), written(FileFormat::Pcap, 3).0).expect("written");
            let calls = Cell::new(0);
            let watch = |_, _| {
                calls.set(calls.get() + 1);
                if calls.get() == at {
                    fs::remove_file(path(2)).expect("there");
                }
                true
            };
            let done = extract(&query(&dir, index), watch).expect("done").written;
            assert!(calls.get() >= at);
            assert_eq!((done.frames, &done.losses[..]), (n, &[][..]));
            let notes = done.notes.join("; ");
            assert!(
                notes.contains("2.pcap: the file was deleted before it could be read"),
                "{notes}"
            );
            assert!(!notes.contains("cannot build the index"), "{notes}");
        }
    }

    #[test]
    fn damage_of_an_open_file_is_a_loss_unless_a_capture_writes_it() {
        let dir = tempfile::tempdir().expect("dir");
        let (bytes, offsets) = written(FileFormat::Pcap, 3);
        let second = offsets[1];
        let mut wrong_length = bytes.clone();
        wrong_length[second + 8..second + 12].fill(0xff);
        let mut wrong_header = bytes.clone();
        wrong_header[4] = 99;
        let torn = bytes[..bytes.len() - 1].to_vec();
        fs::write(dir.path().join("wqcap-q01-1.pcap"), &bytes).expect("written");
        let part = dir.path().join("wqcap-q00-1.pcap.part");
        for (content, frames, is_lost) in [
            (torn, 2, false),
            (wrong_length, 1, true),
            (wrong_header, 0, true),
        ] {
            fs::write(&part, &content).expect("written");
            for is_written in [false, true] {
                let writer = fs::File::open(&part).expect("there");
                if is_written {
                    writer.lock().expect("locked");
                }
                let path = |name: &str| (dir.path().join(name), content.len() as u64);
                let mut query = query(&dir, None);
                query.files = Some(SearchedFiles {
                    finished: vec![path("wqcap-q01-1.pcap")],
                    open: vec![path("wqcap-q00-1.pcap")],
                    losses: Vec::new(),
                });
                for times in [0..u64::MAX, 0..u64::MAX - 1] {
                    query.frames.times = times;
                    let done = extract(&query, |_, _| true).expect("done").written;
                    assert_eq!(done.frames, 3 + frames);
                    let has_loss = !done.losses.is_empty();
                    assert_eq!(has_loss, is_lost && !is_written, "{:?}", done.losses);
                }
            }
        }
    }

    #[test]
    fn a_deleted_file_that_the_query_names_is_a_loss() {
        let dir = tempfile::tempdir().expect("dir");
        let path = |i: u64| dir.path().join(format!("wqcap-q00-{i}.pcap"));
        let bytes = written(FileFormat::Pcap, 3).0;
        fs::write(path(1), &bytes).expect("written");
        let named = |numbers: &[u64]| {
            let files = numbers.iter().map(|i| (path(*i), bytes.len() as u64));
            let mut query = query(&dir, None);
            query.files = Some(SearchedFiles {
                finished: files.collect(),
                open: Vec::new(),
                losses: Vec::new(),
            });
            extract(&query, |_, _| true).map(|it| it.written)
        };
        let done = named(&[1, 2]).expect("done");
        assert_eq!((done.frames, done.losses.len()), (3, 1));
        let said = "wqcap-q00-2.pcap: the file was deleted before it could be read";
        assert!(done.losses[0].ends_with(said), "{:?}", done.losses);
        // As an open file that its capture has finished and deleted since.
        let mut query = query(&dir, None);
        query.files = Some(SearchedFiles {
            finished: vec![(path(1), bytes.len() as u64)],
            open: vec![(path(2), 100)],
            losses: Vec::new(),
        });
        let done = extract(&query, |_, _| true).expect("done").written;
        assert_eq!((done.frames, done.losses.len()), (3, 1));
        assert!(matches!(named(&[2]), Err(MergeError::Failed(_))));
        // An open file that cannot be read for another reason than its missing header.
        let mut blocks = Blocks::new(ByteOrder::Little);
        for _ in 0..=MOST_INTERFACES {
            blocks.interface(0, &[]);
        }
        fs::write(dir.path().join("wqcap-q00-2.pcap.part"), &blocks.1).expect("written");
        for times in [0..u64::MAX, 0..u64::MAX - 1] {
            query.frames.times = times;
            query.files = Some(SearchedFiles {
                finished: vec![(path(1), bytes.len() as u64)],
                open: vec![(path(2), blocks.1.len() as u64)],
                losses: Vec::new(),
            });
            let done = extract(&query, |_, _| true).expect("done").written;
            assert_eq!((done.frames, done.losses.len()), (3, 1));
            let loss = &done.losses[0];
            assert!(loss.contains("more than 65536 interfaces"), "{loss}");
        }
    }
}
