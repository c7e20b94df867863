//! Plan of a merge: streams of files, ports of interfaces, and the format of the output.
//!
//! All input errors are found here: each file's header and first record are read, and the file is
//! closed again.

use super::{
    inputs::{FolderRemarks, files_and_folders, linked_twice},
    ports::{self, Ports},
    summary::{InputFacts, MergeError},
};
use crate::{
    format::{DistinctTexts, ETHERNET, FileFormat, Interface, secrets::Secrets},
    link::link_type_name,
    name::FileName,
    read::{Deletion, FileEnd, FileRanges, FileReader, MOST_INTERFACES, ReadError},
    sealed::{SecretKey, UnsealError},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};
use wqcap_frame::dedup::{DedupWindow, IgnoredFields};

/// Number of interfaces in a file of a folder above which the file gets the last places in the list
/// of ports.
const MANY_INTERFACES: usize = MOST_INTERFACES / 16;
/// Maximum number of unreadable inputs in the error for a merge without any readable input.
const MOST_LOSSES: usize = 3;

/// Limits on the output of a merge, which ends when it reaches one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimits {
    /// Maximum number of records in the merged file.
    pub frames: u64,
    /// Number of bytes of the merged file after which no further record is written.
    pub bytes: u64,
    /// Maximum number of input files that are open at a time, because they overlap in time. Each needs
    /// about 256 KiB of memory.
    pub open: usize,
}

impl Default for OutputLimits {
    /// Returns limits that no merge reaches.
    fn default() -> Self {
        Self {
            frames: u64::MAX,
            bytes: u64::MAX,
            open: usize::MAX,
        }
    }
}

/// Checked inputs of a merge, and the format of its output.
pub struct MergePlan {
    pub(super) streams: Vec<StreamPlan>,
    pub(super) ports: Ports,
    pub(super) format: FileFormat,
    /// Only link type whose frames the merged file can have; `None`: frames of all link types.
    pub(super) only: Option<u32>,
    /// Link type of the first record of all inputs, otherwise of the first interface.
    pub(super) link_type: u32,
    /// `true` if `link_type` is that of a record, not only of an interface.
    has_record: bool,
    /// Section comments of the inputs, each once.
    pub(super) comments: DistinctTexts,
    /// Snapshot length of the merged file in bytes; 0: no limit.
    pub(super) snaplen: u32,
    pub(super) inputs: Vec<InputFacts>,
    pub(super) notes: Vec<String>,
    /// `true` if the interface statistics of the input files apply to the records that are merged.
    pub(super) statistics: bool,
    /// Decryption secrets to be written to the merged file in addition to those of the inputs.
    pub(super) secrets: Vec<Secrets>,
    /// Detector of repeated records, which the merge leaves out.
    pub(super) repetitions: Option<DedupWindow>,
    /// `true` if the merged file omits texts written by people or machines.
    pub(super) anonymous: bool,
    /// Limits on the merged file, at which the merge ends.
    pub(super) limits: OutputLimits,
    /// Losses of frames that were known before the merge, one line each.
    pub(super) known_losses: Vec<String>,
    /// `true` if a pcapng output that lacks frames ends with a comment which states that.
    pub(super) has_closing_comment: bool,
    /// `true` if an input file is encrypted, and the key for it was not given.
    lacks_key: bool,
    identities: HashSet<(u64, u64)>,
    bytes: Option<u64>,
}

/// Planned stream of a merge: the input files of one queue in time order; some of them may overlap.
pub(super) struct StreamPlan {
    /// Queue whose frames the stream's files hold; `None`: unknown or several.
    pub(super) queue: Option<u16>,
    pub(super) files: VecDeque<FilePlan>,
}

pub(super) struct FilePlan {
    /// Index in [`MergePlan::inputs`] of the input file.
    pub(super) input: usize,
    pub(super) ranges: FileRanges,
    /// Timestamp of the input file's first record; 0: the file has none, or cannot be read up to
    /// it.
    pub(super) first_ns: u64,
    /// Queue whose frames the input file holds, if it is a single queue.
    queue: Option<QueueName>,
    /// Open reader of an input that cannot be read twice, such as a pipe, and the result of reading
    /// its first record; `None` for other inputs.
    pub(super) open: Option<(FileReader, Result<(), ReadError>)>,
}

/// Queue number of an input file, with the names of its machine and of its port, if it states them.
#[derive(Clone, PartialEq, Eq, Hash)]
struct QueueName {
    host: Option<String>,
    port: Option<String>,
    queue: u16,
}

/// Returns the queue of a capture file from its interface description, else from its file name;
/// `None`: it states no queue.
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

/// Returns the capture file format that the extension of the output's name selects; `None`: it
/// selects none.
fn format_of(out: &Path) -> Result<Option<FileFormat>, MergeError> {
    let ending = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "pcap" | "cap" | "dmp" => Ok(Some(FileFormat::Pcap)),
        "pcapng" | "ntar" => Ok(Some(FileFormat::Pcapng)),
        "zst" | "lz4" | "gz" | "xz" => Err(MergeError::Refused(format!(
            "{}: wqcap cannot write compressed output; write to stdout (-) and pipe it through the compressor",
            out.display()
        ))),
        _ => Ok(None),
    }
}

impl MergePlan {
    /// Reads the beginning of each input of a merge. A folder stands for the capture files in it.
    /// `key` opens sealed inputs.
    ///
    /// # Errors
    /// An input is missing, not a capture file, given twice, or incompatible with the others.
    pub fn new(
        inputs: &[PathBuf],
        key: Option<&SecretKey>,
        out: &Path,
    ) -> Result<Self, MergeError> {
        let mut remarks = FolderRemarks::default();
        let files = files_and_folders(inputs, key, Some(out), &mut remarks)?;
        let plan = Self::from_ranges(files, remarks.notes, out, true)?;
        Ok(Self {
            known_losses: remarks.losses,
            ..plan
        })
    }

    /// Plans the reading of capture files in time order for [`super::visit`], without an output. A
    /// folder stands for the capture files in it. `key` opens sealed inputs.
    ///
    /// # Errors
    /// An input is missing, not a capture file, or given twice.
    pub fn for_reading(inputs: &[PathBuf], key: Option<&SecretKey>) -> Result<Self, MergeError> {
        // pcapng has all link types.
        Self::new(inputs, key, Path::new("none.pcapng"))
    }

    /// Returns the names of the capture ports that are known before the inputs are read.
    pub fn port_names(&self) -> impl Iterator<Item = &str> {
        self.ports.list.iter().map(|port| port.name.as_str())
    }

    /// Plans a merge of ranges of capture files, of which at least one must be readable. `notes` are
    /// notes for the user that are known already. `statistics` is `true` if the files' own interface
    /// statistics apply to the ranges.
    pub(crate) fn from_ranges(
        files: Vec<FileRanges>,
        notes: Vec<String>,
        out: &Path,
        statistics: bool,
    ) -> Result<Self, MergeError> {
        let has_inputs = !files.is_empty();
        let plan = Self::from_found(files, notes, out, statistics)?;
        match plan.streams.is_empty() && has_inputs {
            true => Err(plan.without_streams()),
            false => Ok(plan),
        }
    }

    /// Plans a merge as [`MergePlan::from_ranges`] does, also if none of the files can be read.
    pub(crate) fn from_found(
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
            only: None,
            link_type: ETHERNET,
            has_record: false,
            comments: DistinctTexts::default(),
            snaplen: 1,
            inputs: Vec::new(),
            notes,
            statistics,
            secrets: Vec::new(),
            repetitions: None,
            anonymous: false,
            limits: OutputLimits::default(),
            known_losses: Vec::new(),
            has_closing_comment: false,
            lacks_key: false,
            identities: HashSet::new(),
            bytes: Some(0),
        };
        let here = files.iter().filter(|it| !it.is_remote());
        let folders: HashSet<_> = here.filter_map(|it| it.found_in.clone()).collect();
        let has_inputs = !files.is_empty();
        let mut streams: HashMap<(PathBuf, QueueName), usize> = HashMap::new();
        for ranges in files {
            let Some(file) = plan.add_file(ranges)? else {
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
        for stream in &mut plan.streams {
            let by_time = |a: &FilePlan, b: &FilePlan| {
                let paths = || a.ranges.path.cmp(&b.ranges.path);
                a.first_ns.cmp(&b.first_ns).then_with(paths)
            };
            stream.files.make_contiguous().sort_by(by_time);
        }
        let inputs_are = plan.format;
        // Only pcapng can have several link types.
        let own = if has_inputs && plan.has_one_link_type() {
            inputs_are
        } else {
            FileFormat::Pcapng
        };
        plan.format = wanted.unwrap_or(own);
        if plan.format == FileFormat::Pcap {
            plan.settle_pcap(inputs_are)?;
            plan.notes.extend(pcap_within(out, &folders));
        }
        Ok(plan)
    }

    /// Adds decryption secrets to the merged file, where they precede all records.
    ///
    /// # Errors
    /// The output format is pcap.
    pub fn inject(&mut self, secrets: Vec<Secrets>) -> Result<(), MergeError> {
        if self.format == FileFormat::Pcap {
            return Err(MergeError::Refused(
                "pcap cannot hold decryption secrets; name an output that ends in .pcapng".into(),
            ));
        }
        self.secrets.extend(secrets);
        Ok(())
    }

    /// Adds a note for the user to the summary of the merge.
    pub fn add_note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Makes the merge leave out repetitions: records with the same bytes as a written record whose
    /// timestamp is less than `window_ns` earlier. Bytes in `ignored` fields are not compared.
    ///
    /// # Errors
    /// No input has the link type Ethernet.
    pub fn leave_out_repetitions(
        &mut self,
        window_ns: u64,
        ignored: IgnoredFields,
    ) -> Result<(), MergeError> {
        if !self.has_ethernet() {
            return Err(MergeError::Refused(format!(
                "cannot detect repeated frames: the inputs have link type {}, and only Ethernet is supported",
                self.link_type
            )));
        }
        if !self.has_one_link_type() {
            self.notes
                .push("repetitions are only detected among Ethernet frames".into());
        }
        self.repetitions = Some(DedupWindow::new(window_ns, ignored));
        Ok(())
    }

    /// Sets the limits of the merged file and the losses of the inputs that are known already.
    pub(crate) fn limit(&mut self, limits: OutputLimits, known_losses: Vec<String>) {
        self.limits = limits;
        self.known_losses = known_losses;
    }

    /// Makes the merge end a pcapng output that lacks frames with a comment which states that.
    pub(crate) fn add_closing_comment(&mut self) {
        self.has_closing_comment = true;
    }

    /// Makes the merge leave out names, descriptions, comments, secrets and all options that may
    /// identify persons or places, and all frames of other link types than Ethernet.
    pub(crate) fn make_anonymous(&mut self) {
        self.anonymous = true;
        self.only = Some(ETHERNET);
        self.link_type = ETHERNET;
        self.ports.keep_only(ETHERNET);
    }

    /// Returns `true` if an interface of the inputs has the link type Ethernet.
    pub(crate) fn has_ethernet(&self) -> bool {
        let mut ports = self.ports.list.iter();
        ports.any(|port| port.link.link_type == ETHERNET)
    }

    fn has_one_link_type(&self) -> bool {
        let mut ports = self.ports.list.iter();
        ports.all(|port| port.link.link_type == self.link_type)
    }

    /// Returns the number of bytes of all inputs of the merge, or `None` if not all of them are
    /// files.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// Returns the link type (LINKTYPE_ value) of the first record of the merge, otherwise of the
    /// first interface.
    pub(crate) fn link_type(&self) -> u32 {
        self.link_type
    }

    /// Returns `true` if the file with this metadata is one of the inputs of the merge.
    pub(super) fn reads(&self, metadata: &fs::Metadata) -> bool {
        self.identities.contains(&(metadata.dev(), metadata.ino()))
    }

    /// Reads header and first record of an input file of the merge. Returns `None` if nothing can
    /// be read of the file, which does not prevent the merge of the others.
    fn add_file(&mut self, ranges: FileRanges) -> Result<Option<FilePlan>, MergeError> {
        let path = &ranges.path;
        let shown = ranges.shown();
        let refused = |problem: String| Err(MergeError::Refused(format!("{shown}: {problem}")));
        let mut regular = ranges.is_remote();
        if ranges.is_remote() {
            // Remote ranges always have an end.
            self.bytes = self.bytes.map(|n| n.saturating_add(ranges.bytes(u64::MAX)));
        } else if path.as_os_str() != "-" {
            let metadata = match ranges.with_present_path(|path| fs::metadata(path)) {
                Ok(metadata) => metadata,
                Err(e) => return self.unreadable(&ranges, e.into()),
            };
            regular = metadata.is_file();
            if !self.identities.insert((metadata.dev(), metadata.ino())) {
                if ranges.found_in.is_some() {
                    self.notes.push(linked_twice(&shown));
                    return Ok(None);
                }
                return refused("the file is given twice; name it once".into());
            }
            self.bytes = self
                .bytes
                .filter(|_| regular)
                .map(|n| n.saturating_add(ranges.bytes(metadata.len())));
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
        // Damage is reported when the file is merged, so that the records before it are kept.
        let begun = reader.advance().map(drop);
        let first_ns = reader.packet().map(|packet| packet.ns);
        if reader.interfaces().is_empty() {
            let problem = match begun {
                Err(e) => e.to_string(),
                Ok(_) => match reader.end() {
                    Some(end @ FileEnd::Torn { .. }) => end.to_string(),
                    _ if ranges.least_frames > 0 => format!(
                        "the file describes no interface and has no frames, but the store or the sensor states {} frames",
                        ranges.least_frames
                    ),
                    _ => {
                        self.notes.push(format!(
                            "{shown}: the file describes no interface and has no frames"
                        ));
                        self.inputs.push(InputFacts {
                            path: shown,
                            ..InputFacts::default()
                        });
                        return Ok(None);
                    }
                },
            };
            // The header of an open file is not on the disk yet.
            return match ranges.is_being_written() {
                true => Ok(None),
                false => self.exclude(&ranges, &problem),
            };
        }
        if let Err(e @ ReadError::TooManyInterfaces { .. }) = &begun {
            return self.exclude(&ranges, &e.to_string());
        }
        if reader.format() == FileFormat::Pcapng {
            self.format = FileFormat::Pcapng;
        }
        if !self.has_record {
            let first = reader.packet().map_or(0, |packet| packet.interface);
            self.has_record = first_ns.is_some();
            if self.has_record || self.ports.list.is_empty() {
                self.link_type = reader.interfaces()[first].link_type;
            }
        }
        for comment in reader.section_comments() {
            if !self.comments.has(comment) {
                self.comments.add(comment.clone());
            }
        }
        // With very many interfaces, a damaged file of a folder would take the places of the others.
        // The merge adds them when it reads the file.
        let is_last = ranges.may_be_lost() && reader.interfaces().len() > MANY_INTERFACES;
        for interface in reader.interfaces().iter().filter(|_| !is_last) {
            self.snaplen = match (self.snaplen, interface.snaplen) {
                (0, _) | (_, 0) => 0,
                (a, b) => a.max(b),
            };
            if self.ports.number(&ranges, interface).is_none() {
                if ranges.may_be_lost() {
                    // The merge reports the frames that are left out.
                    break;
                }
                return refused(format!(
                    "with the interfaces of this file the output would have more than {MOST_INTERFACES}, which readers refuse; merge \
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
            // Pipes have no names, and their writers run at the same time.
            queue: queue_of(path, reader.interfaces()).filter(|_| regular),
            open: (!regular).then_some((reader, begun)),
            ranges,
        }))
    }

    /// Handles an input file that cannot be opened. A deleted file is noted; an unreadable file of a
    /// folder or a store is recorded as lost; a file that the user named is an error.
    fn unreadable(
        &mut self,
        ranges: &FileRanges,
        e: ReadError,
    ) -> Result<Option<FilePlan>, MergeError> {
        match ranges.deletion(&e) {
            Some(Deletion::Note(note)) => {
                self.notes.push(note);
                return Ok(None);
            }
            Some(Deletion::Loss(loss)) => {
                self.lose(ranges, loss);
                return Ok(None);
            }
            // The header of an open file is not on the disk yet.
            None if ranges.is_being_written() => return Ok(None),
            None => {}
        }
        let problem = match e {
            ReadError::Io { source, .. } => {
                let cause = source.get_ref();
                self.lacks_key |= cause.is_some_and(|it| it.is::<UnsealError>());
                source.to_string()
            }
            e => e.to_string(),
        };
        self.exclude(ranges, &problem)
    }

    /// Handles an input file from which nothing can be read, for the reason `problem`. A file of a
    /// folder or a store is recorded as lost; a file that the user named is an error.
    fn exclude(
        &mut self,
        ranges: &FileRanges,
        problem: &str,
    ) -> Result<Option<FilePlan>, MergeError> {
        if !ranges.may_be_lost() {
            let shown = ranges.shown();
            return Err(MergeError::Refused(format!("{shown}: {problem}")));
        }
        self.lose(ranges, format!("the file cannot be read: {problem}"));
        Ok(None)
    }

    /// Records an input file whose frames the output lacks, for the reason `loss`.
    fn lose(&mut self, ranges: &FileRanges, loss: String) {
        self.inputs.push(InputFacts {
            path: ranges.shown(),
            loss: Some(loss),
            ..InputFacts::default()
        });
    }

    /// Returns the error for a merge without any readable input.
    fn without_streams(&self) -> MergeError {
        let lost = self.inputs.iter();
        let lost = lost.filter_map(|it| Some(format!("{}: {}", it.path, it.loss.as_ref()?)));
        let lost: Vec<_> = lost.take(MOST_LOSSES).collect();
        match self.inputs.len().saturating_sub(lost.len()) {
            0 if lost.is_empty() => {
                MergeError::Refused("all input files were deleted before they could be read".into())
            }
            _ if lost.is_empty() => {
                MergeError::Refused("the inputs describe no interface and have no frames".into())
            }
            _ if self.lacks_key => MergeError::Refused(lost.join("; ")),
            0 => MergeError::Failed(lost.join("; ")),
            more => MergeError::Failed(format!("{}; {more} more", lost.join("; "))),
        }
    }

    /// Checks that the inputs of the merge fit into a pcap file, which has one interface and no
    /// options.
    fn settle_pcap(&mut self, inputs_are: FileFormat) -> Result<(), MergeError> {
        if !self.has_one_link_type() {
            self.notes.push(format!(
                "a pcap file has one link type: only frames of {} are written; write pcapng to keep all frames",
                link_type_name(self.link_type)
            ));
        }
        self.only = Some(self.link_type);
        self.ports.keep_only(self.link_type);
        let fcs = self.ports.list.iter();
        let mut fcs = fcs.map(|port| port.link.fcs_len.unwrap_or(0));
        let one = fcs.next().unwrap_or(0);
        if fcs.any(|other| other != one) {
            return Err(MergeError::Refused(
                "some inputs have frame check sequences and some have none, which pcap cannot distinguish; write pcapng"
                    .into(),
            ));
        }
        if self.ports.list.len() > 1 {
            self.notes.push(format!(
                "a pcap file describes no interfaces: the frames of {} ports cannot be distinguished; write pcapng to keep the ports",
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

/// Returns a note if a pcap output lies in an input folder, where the next merge would read it as a
/// capture.
fn pcap_within(out: &Path, folders: &HashSet<PathBuf>) -> Option<String> {
    let absolute = |path: &Path| fs::canonicalize(path).ok();
    let parent = out.parent().filter(|it| !it.as_os_str().is_empty());
    let place = absolute(parent.unwrap_or(Path::new(".")))?;
    let holds = |it: &&PathBuf| absolute(it).is_some_and(|it| place.starts_with(it));
    let folder = folders.iter().find(holds)?;
    Some(format!(
        "a pcap file does not name its program: the output {} is taken for a capture file when the directory {} is read again; write it elsewhere, or write pcapng",
        out.display(),
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_select_the_format() {
        let of = |name: &str| format_of(Path::new(name));
        assert!(matches!(of("a.PCAP"), Ok(Some(FileFormat::Pcap))));
        assert!(matches!(of("a.b.pcapng"), Ok(Some(FileFormat::Pcapng))));
        assert!(matches!(of("-"), Ok(None)));
        assert!(of("a.pcapng.zst").is_err());
    }
}
