//! What is to be merged: which files make a stream, which interfaces a port, and what the output will be.
//!
//! Everything that can be refused is refused here: each file's header and first record are read, and the file is closed
//! again.

use super::{
    inputs::in_folder,
    ports::{self, Ports},
    summary::{InputFacts, MergeError},
};
use crate::{
    format::{ETHERNET, FileFormat, Interface, secrets::Secrets},
    name::FileName,
    read::{FileRanges, FileReader, MOST_INTERFACES, ReadError, ReadMeter},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use wqcap_frame::dedup::{DedupWindow, Ignored};

/// Losses that are told when nothing is left.
const MOST_LOSSES: usize = 3;

/// A merge that can begin.
pub struct MergePlan {
    pub(super) streams: Vec<StreamPlan>,
    pub(super) ports: Ports,
    pub(super) format: FileFormat,
    pub(super) link_type: u32,
    /// 0: no limit.
    pub(super) snaplen: u32,
    pub(super) inputs: Vec<InputFacts>,
    pub(super) notes: Vec<String>,
    /// The files' own statistics hold for what is taken of them.
    pub(super) statistics: bool,
    /// Decryption secrets to be written beside those of the inputs.
    pub(super) secrets: Vec<Secrets>,
    /// What repeats an earlier record is left out.
    pub(super) repetitions: Option<DedupWindow>,
    /// Nothing is written that people or machines have said of the frames and of themselves.
    pub(super) anonymous: bool,
    identities: HashSet<(u64, u64)>,
    bytes: Option<u64>,
}

/// Files that follow each other, as far as is known: some may overlap.
pub(super) struct StreamPlan {
    /// The queue they are of.
    pub(super) queue: Option<u16>,
    pub(super) files: VecDeque<FilePlan>,
}

pub(super) struct FilePlan {
    /// Index into [`MergePlan::inputs`].
    pub(super) input: usize,
    pub(super) ranges: FileRanges,
    /// Stamp of its first record; 0: it has none, or cannot be read so far.
    pub(super) first_ns: u64,
    /// The queue whose frames are in it, if it is one's.
    queue: Option<QueueName>,
    /// An input that cannot be read twice stays open, at its first record.
    pub(super) open: Option<FileReader>,
}

/// A queue, and the machine and the port that it is of if they have names.
#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueName {
    host: Option<String>,
    port: Option<String>,
    queue: u16,
}

/// The queue of a capture file: by what it says of itself, else by its name.
fn queue_of(path: &Path, interfaces: &[Interface]) -> Option<QueueName> {
    let [only] = interfaces else {
        return None;
    };
    let host = only.host.clone();
    match only.name.as_deref().and_then(ports::queue_of) {
        Some((port, queue)) => Some(QueueName {
            host,
            port: Some(port.to_owned()),
            queue,
        }),
        None => Some(QueueName {
            host,
            port: None,
            queue: FileName::parse(path)?.queue?,
        }),
    }
}

/// The format that a file's ending names.
fn format_of(out: &Path) -> Result<Option<FileFormat>, MergeError> {
    let ending = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "pcap" | "cap" | "dmp" => Ok(Some(FileFormat::Pcap)),
        "pcapng" | "ntar" => Ok(Some(FileFormat::Pcapng)),
        "zst" | "lz4" | "gz" | "xz" => Err(MergeError::Refused(format!(
            "{}: cannot write compressed output; write to - and pipe it through the compressor",
            out.display()
        ))),
        _ => Ok(None),
    }
}

impl MergePlan {
    /// Reads the beginning of each input; a folder stands for the capture files in it.
    ///
    /// # Errors
    /// An input is missing, not a capture file, given twice, or not like the others.
    pub fn new(inputs: &[PathBuf], out: &Path) -> Result<Self, MergeError> {
        let mut notes = Vec::new();
        let files = expanded(inputs, &mut notes)?;
        Self::from_ranges(files, notes, out, true)
    }

    /// The same for ranges of files. `notes` are what is known of them already; `statistics`: the files' own statistics
    /// hold for what is taken of them.
    pub(crate) fn from_ranges(
        files: Vec<FileRanges>,
        notes: Vec<String>,
        out: &Path,
        statistics: bool,
    ) -> Result<Self, MergeError> {
        let wanted = format_of(out)?;
        let mut plan = Self {
            streams: Vec::new(),
            ports: Ports::default(),
            format: FileFormat::Pcap,
            link_type: 0,
            snaplen: 1,
            inputs: Vec::new(),
            notes,
            statistics,
            secrets: Vec::new(),
            repetitions: None,
            anonymous: false,
            identities: HashSet::new(),
            bytes: Some(0),
        };
        let here = files.iter().filter(|it| !it.is_remote());
        let folders: HashSet<_> = here.filter_map(|it| it.found_in.clone()).collect();
        let mut first = None;
        let mut streams: HashMap<(PathBuf, QueueName), usize> = HashMap::new();
        for ranges in files {
            let Some(file) = plan.add_file(ranges, &mut first)? else {
                continue;
            };
            let stream = file.queue.clone().map(|queue| {
                let own = file.ranges.path.parent();
                let folder = match queue.port {
                    Some(_) => file.ranges.folder(),
                    None => own.unwrap_or(Path::new("")),
                };
                let next = plan.streams.len();
                *streams.entry((folder.to_owned(), queue)).or_insert(next)
            });
            match stream.and_then(|stream| plan.streams.get_mut(stream)) {
                Some(stream) => stream.files.push_back(file),
                None => plan.streams.push(StreamPlan {
                    queue: file.queue.as_ref().map(|it| it.queue),
                    files: [file].into(),
                }),
            }
        }
        if plan.streams.is_empty() {
            return Err(plan.without_streams());
        }
        for stream in &mut plan.streams {
            let by_time = |a: &FilePlan, b: &FilePlan| {
                let paths = || a.ranges.path.cmp(&b.ranges.path);
                a.first_ns.cmp(&b.first_ns).then_with(paths)
            };
            stream.files.make_contiguous().sort_by(by_time);
        }
        let inputs_are = plan.format;
        plan.format = wanted.unwrap_or(inputs_are);
        if plan.format == FileFormat::Pcap {
            plan.settle_pcap(inputs_are)?;
            plan.notes.extend(pcap_within(out, &folders));
        }
        Ok(plan)
    }

    /// Has decryption secrets written in front of all records.
    ///
    /// # Errors
    /// The output is no pcapng.
    pub fn inject(&mut self, secrets: Vec<Secrets>) -> Result<(), MergeError> {
        if self.format == FileFormat::Pcap {
            return Err(MergeError::Refused(
                "pcap has no place for decryption secrets: name an output that ends in .pcapng"
                    .into(),
            ));
        }
        self.secrets.extend(secrets);
        Ok(())
    }

    /// Leaves out records whose bytes, but for those that are ignored, are those of one that was written, with a stamp
    /// less than `window_ns` before.
    ///
    /// # Errors
    /// The frames are no Ethernet.
    pub fn leave_out_repetitions(
        &mut self,
        window_ns: u64,
        ignored: Ignored,
    ) -> Result<(), MergeError> {
        if self.link_type != ETHERNET {
            return Err(MergeError::Refused(format!(
                "repetitions are told of Ethernet frames only, and the inputs have link type {}",
                self.link_type
            )));
        }
        self.repetitions = Some(DedupWindow::new(window_ns, ignored));
        Ok(())
    }

    /// Has names, descriptions, comments, secrets and all options left out that may tell who or where.
    pub(crate) fn make_anonymous(&mut self) {
        self.anonymous = true;
    }

    /// Bytes of all inputs, if they are files.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// LINKTYPE of all inputs.
    pub(crate) fn link_type(&self) -> u32 {
        self.link_type
    }

    /// Whether a file is among the inputs.
    pub(super) fn reads(&self, metadata: &fs::Metadata) -> bool {
        self.identities.contains(&(metadata.dev(), metadata.ino()))
    }

    /// Reads a file's header and first record; `None`: it was deleted since it was listed.
    fn add_file(
        &mut self,
        ranges: FileRanges,
        first: &mut Option<(String, u32)>,
    ) -> Result<Option<FilePlan>, MergeError> {
        let path = &ranges.path;
        let shown = ranges.shown();
        let refused = |problem: String| Err(MergeError::Refused(format!("{shown}: {problem}")));
        let mut regular = ranges.is_remote();
        if ranges.is_remote() {
            // Its ranges have ends.
            self.bytes = self.bytes.map(|n| n + ranges.bytes(u64::MAX));
        } else if path.as_os_str() != "-" {
            let metadata = match fs::metadata(path) {
                Ok(metadata) => metadata,
                Err(e) => return self.unreadable(&ranges, e.into()),
            };
            regular = metadata.is_file();
            if !self.identities.insert((metadata.dev(), metadata.ino())) {
                return refused("is given twice".into());
            }
            self.bytes = self
                .bytes
                .filter(|_| regular)
                .map(|n| n + ranges.bytes(metadata.len()));
        } else {
            self.bytes = None;
        }
        let opened = if regular {
            ranges.peek()
        } else {
            ranges.open()
        };
        let mut reader = match opened {
            Ok(reader) => reader.with_secrets(),
            Err(e) => return self.unreadable(&ranges, e),
        };
        // Damage here is reported when the file's turn comes: the records before it are worth having.
        let begun = reader.advance();
        let first_ns = reader.packet().map(|packet| packet.ns);
        if let Err(e @ ReadError::TooManyInterfaces { .. }) = begun {
            return refused(e.to_string());
        }
        if reader.interfaces().is_empty() {
            let problem = match begun {
                Err(e) => e.to_string(),
                Ok(_) => "describes no interface".into(),
            };
            return match ranges.is_remote() {
                true => Ok(self.lose(&ranges, &problem)),
                false => refused(problem),
            };
        }
        if reader.format() == FileFormat::Pcapng {
            self.format = FileFormat::Pcapng;
        }
        for interface in reader.interfaces() {
            let (other, link_type) =
                first.get_or_insert_with(|| (shown.clone(), interface.link_type));
            if *link_type != interface.link_type {
                return refused(format!(
                    "has link type {}, and {other} has {link_type}: readers refuse a file with both; merge them apart",
                    interface.link_type
                ));
            }
            self.link_type = interface.link_type;
            self.snaplen = match (self.snaplen, interface.snaplen) {
                (0, _) | (_, 0) => 0,
                (a, b) => a.max(b),
            };
            if self.ports.number(&ranges, interface).is_none() {
                return refused(format!(
                    "with its interfaces the output would have more than {MOST_INTERFACES}, which readers refuse; merge \
                     fewer files"
                ));
            }
        }
        self.inputs.push(InputFacts {
            path: shown,
            first_ns,
            ..InputFacts::default()
        });
        Ok(Some(FilePlan {
            input: self.inputs.len() - 1,
            first_ns: first_ns.unwrap_or(0),
            // Pipes have no names, and whatever feeds them runs at once.
            queue: queue_of(path, reader.interfaces()).filter(|_| regular),
            open: (!regular).then_some(reader),
            ranges,
        }))
    }

    /// A file that cannot be opened is refused, unless it was deleted since it was listed; what is elsewhere is lost, and the
    /// others are taken.
    fn unreadable(
        &mut self,
        ranges: &FileRanges,
        e: ReadError,
    ) -> Result<Option<FilePlan>, MergeError> {
        if let Some(note) = ranges.note_if_deleted(&e) {
            self.notes.push(note);
            return Ok(None);
        }
        let shown = ranges.shown();
        if ranges.is_remote() {
            return Ok(self.lose(ranges, &e.to_string()));
        }
        Err(MergeError::Refused(match e {
            ReadError::Io { source, .. } => format!("{shown}: {source}"),
            e => format!("{shown}: {e}"),
        }))
    }

    /// An input that nothing is read of.
    fn lose(&mut self, ranges: &FileRanges, problem: &str) -> Option<FilePlan> {
        self.inputs.push(InputFacts {
            path: ranges.shown(),
            loss: Some(format!("cannot be read: {problem}")),
            ..InputFacts::default()
        });
        None
    }

    /// Why there is nothing to be merged.
    fn without_streams(&self) -> MergeError {
        let lost = self.inputs.iter();
        let lost = lost.filter_map(|it| Some(format!("{}: {}", it.path, it.loss.as_ref()?)));
        let lost: Vec<_> = lost.take(MOST_LOSSES).collect();
        match self.inputs.len().saturating_sub(lost.len()) {
            _ if lost.is_empty() => {
                MergeError::Refused("all input files were deleted before they could be read".into())
            }
            0 => MergeError::Failed(lost.join("; ")),
            more => MergeError::Failed(format!("{}; {more} more", lost.join("; "))),
        }
    }

    /// pcap knows one interface and no options.
    fn settle_pcap(&mut self, inputs_are: FileFormat) -> Result<(), MergeError> {
        let mut fcs = self.ports.list.iter().map(|port| port.fcs_len.unwrap_or(0));
        let one = fcs.next().unwrap_or(0);
        if fcs.any(|other| other != one) {
            return Err(MergeError::Refused(
                "some inputs have frame check sequences and some have none, which pcap cannot tell apart; write pcapng"
                    .into(),
            ));
        }
        if self.ports.list.len() > 1 {
            self.notes.push(format!(
                "pcap has no interfaces: the frames of {} ports cannot be told apart; write pcapng to keep them apart",
                self.ports.list.len()
            ));
        }
        if inputs_are == FileFormat::Pcapng {
            self.notes.push(
                "pcap has no options: queue numbers, drop counts and comments are left out".into(),
            );
        }
        Ok(())
    }
}

/// A note if a pcap output goes where it will be taken for a capture.
fn pcap_within(out: &Path, folders: &HashSet<PathBuf>) -> Option<String> {
    let absolute = |path: &Path| fs::canonicalize(path).ok();
    let parent = out.parent().filter(|it| !it.as_os_str().is_empty());
    let place = absolute(parent.unwrap_or(Path::new(".")))?;
    let holds = |it: &&PathBuf| absolute(it).is_some_and(|it| place.starts_with(it));
    let folder = folders.iter().find(holds)?;
    Some(format!(
        "a pcap file does not say who wrote it: {} counts as a capture when {} is read again; write it elsewhere, or write pcapng",
        out.display(),
        folder.display()
    ))
}

/// The files named, and those in the folders named.
fn expanded(inputs: &[PathBuf], notes: &mut Vec<String>) -> Result<Vec<FileRanges>, MergeError> {
    let mut files = Vec::new();
    for path in inputs {
        if !path.is_dir() {
            files.push(FileRanges::named(path.clone()));
            continue;
        }
        let found = in_folder(path, &ReadMeter::default(), notes)?;
        if found.is_empty() {
            let shown = path.display();
            return Err(MergeError::Refused(format!(
                "{shown}: has no .pcap or .pcapng files"
            )));
        }
        files.extend(found.into_iter().map(|(file, _)| file));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_name_the_format() {
        let of = |name: &str| format_of(Path::new(name));
        assert!(matches!(of("a.PCAP"), Ok(Some(FileFormat::Pcap))));
        assert!(matches!(of("a.b.pcapng"), Ok(Some(FileFormat::Pcapng))));
        assert!(matches!(of("-"), Ok(None)));
        assert!(of("a.pcapng.zst").is_err());
    }
}
