//! What is to be merged: which files make a stream, which interfaces a port, and what the output will be.
//!
//! Everything that can be refused is refused here: each file's header and first record are looked at, and the file is
//! closed again.

use super::{InputFacts, MergeError};
use crate::{
    name::FileName,
    reader::{Interface, Kind, Parts, ReadError, Reader, Source},
};
use std::{
    collections::{HashMap, HashSet, VecDeque},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// A merge that can begin.
pub struct Plan {
    pub(super) streams: Vec<StreamPlan>,
    pub(super) ports: Ports,
    pub(super) kind: Kind,
    pub(super) link_type: u32,
    /// 0: no limit.
    pub(super) snaplen: u32,
    pub(super) inputs: Vec<InputFacts>,
    pub(super) notes: Vec<String>,
    /// The files' own statistics hold for what is taken of them.
    pub(super) statistics: bool,
    identities: HashSet<(u64, u64)>,
    bytes: Option<u64>,
}

/// Files that follow each other.
pub(super) struct StreamPlan {
    /// The queue they are of, by their names.
    pub(super) queue: Option<u16>,
    pub(super) files: VecDeque<FilePlan>,
}

pub(super) struct FilePlan {
    /// Index into [`Plan::inputs`].
    pub(super) input: usize,
    pub(super) parts: Parts,
    /// Stamp of its first record; 0: it has none, or cannot be read so far.
    pub(super) first_ns: u64,
    /// What cannot be read twice stays open, at its first record.
    pub(super) kept: Option<Reader<Source>>,
}

/// A capture port: in the output, an interface.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) texts: Vec<(u16, String)>,
    pub(super) fcs_len: Option<u8>,
}

/// The ports met so far.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) list: Vec<Port>,
    numbers: HashMap<(PathBuf, Option<String>), usize>,
}

/// Option code of a description.
const IF_DESCRIPTION: u16 = 3;

impl Ports {
    /// The port of a file's interface. Interfaces of one name in one folder are one port: the queues of one capture.
    /// Without a name, files of queues in one folder are; any other file is a port of its own.
    pub(super) fn number(&mut self, path: &Path, interface: &Interface) -> usize {
        let folder = path.parent().unwrap_or(Path::new(""));
        let name = interface.name.as_deref().map(without_queue);
        let (place, fallback) = match (name, queue_of(path)) {
            (Some(_), _) => (folder, None),
            (None, Some(_)) => (folder, folder.file_name()),
            (None, None) => (path, path.file_stem()),
        };
        let key = (place.to_owned(), name.map(str::to_owned));
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        let shown = match (name, fallback) {
            (Some(name), _) => name.to_owned(),
            (None, Some(name)) => name.to_string_lossy().into_owned(),
            (None, None) => "port".into(),
        };
        let mut texts = interface.texts.clone();
        let taken = self.list.iter().any(|port| port.name == shown);
        if taken && !texts.iter().any(|(code, _)| *code == IF_DESCRIPTION) {
            texts.push((IF_DESCRIPTION, place.display().to_string()));
        }
        self.list.push(Port {
            name: shown,
            texts,
            fcs_len: interface.fcs_len,
        });
        self.numbers.insert(key, self.list.len() - 1);
        self.list.len() - 1
    }
}

/// `mlx5_0 queue 3` is a queue of port `mlx5_0`.
fn without_queue(name: &str) -> &str {
    match name.rsplit_once(" queue ") {
        Some((port, queue)) if queue.bytes().all(|b| b.is_ascii_digit()) => port,
        _ => name,
    }
}

/// Queue and start of a capture file, by its name.
fn queue_of(path: &Path) -> Option<(u16, u64)> {
    let name = FileName::of(path)?;
    Some((name.queue?, name.start_ns))
}

/// Whether a folder means this file, by its name.
fn is_capture(path: &Path) -> bool {
    let name = path
        .file_name()
        .and_then(|n| n.to_str())
        .unwrap_or_default();
    FileName::ENDINGS.iter().any(|ending| {
        name.strip_suffix(ending)
            .is_some_and(|stem| stem.ends_with('.'))
    })
}

/// The format that a file's ending names.
fn kind_of(out: &Path) -> Result<Option<Kind>, MergeError> {
    let ending = out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    match ending.to_ascii_lowercase().as_str() {
        "pcap" | "cap" | "dmp" => Ok(Some(Kind::Pcap)),
        "pcapng" | "ntar" => Ok(Some(Kind::Pcapng)),
        "zst" | "lz4" | "gz" | "xz" => Err(MergeError::Refused(format!(
            "{}: the output is not compressed; write to - and let a pipe do it",
            out.display()
        ))),
        _ => Ok(None),
    }
}

impl Plan {
    /// Looks at each input; a folder stands for the capture files in it.
    ///
    /// # Errors
    /// An input is missing, no capture, given twice, or not like the others.
    pub fn new(inputs: &[PathBuf], out: &Path) -> Result<Self, MergeError> {
        let mut notes = Vec::new();
        let files = expanded(inputs, &mut notes)?.into_iter().map(Parts::whole);
        Self::of_parts(files.collect(), notes, out)
    }

    /// The same for parts of files.
    pub(crate) fn of_parts(
        files: Vec<Parts>,
        notes: Vec<String>,
        out: &Path,
    ) -> Result<Self, MergeError> {
        let wanted = kind_of(out)?;
        let mut plan = Self {
            streams: Vec::new(),
            ports: Ports::default(),
            kind: Kind::Pcap,
            link_type: 0,
            snaplen: 1,
            inputs: Vec::new(),
            notes,
            statistics: true,
            identities: HashSet::new(),
            bytes: Some(0),
        };
        let mut first = None;
        let mut streams: HashMap<(PathBuf, u16), usize> = HashMap::new();
        for parts in files {
            let file = plan.look(parts, &mut first)?;
            let path = file.parts.path();
            let queue = queue_of(path).map(|(queue, _)| queue);
            let stream = queue.map(|queue| {
                let folder = path.parent().unwrap_or(Path::new(""));
                let next = plan.streams.len();
                *streams.entry((folder.to_owned(), queue)).or_insert(next)
            });
            match stream.and_then(|stream| plan.streams.get_mut(stream)) {
                Some(stream) => stream.files.push_back(file),
                None => plan.streams.push(StreamPlan {
                    queue,
                    files: [file].into(),
                }),
            }
        }
        for stream in &mut plan.streams {
            stream.files.make_contiguous().sort_by_key(|file| {
                let path = file.parts.path();
                (queue_of(path), path.to_owned())
            });
        }
        let inputs_are = plan.kind;
        plan.kind = wanted.unwrap_or(inputs_are);
        if plan.kind == Kind::Pcap {
            plan.settle_pcap(inputs_are)?;
        }
        Ok(plan)
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

    fn look(
        &mut self,
        parts: Parts,
        first: &mut Option<(PathBuf, u32)>,
    ) -> Result<FilePlan, MergeError> {
        let path = parts.path();
        let shown = path.display();
        let refused = |problem: String| Err(MergeError::Refused(format!("{shown}: {problem}")));
        let mut regular = false;
        if path.as_os_str() != "-" {
            let metadata = match fs::metadata(path) {
                Ok(metadata) => metadata,
                Err(e) => return refused(e.to_string()),
            };
            regular = metadata.is_file();
            if !self.identities.insert((metadata.dev(), metadata.ino())) {
                return refused("is given twice".into());
            }
            self.bytes = self
                .bytes
                .filter(|_| regular)
                .map(|n| n + parts.bytes(metadata.len()));
        } else {
            self.bytes = None;
        }
        let opened = if regular { parts.peek() } else { parts.open() };
        let mut reader = match opened {
            Ok(reader) => reader,
            Err(ReadError::Io { source, .. }) => return refused(source.to_string()),
            Err(e) => return refused(e.to_string()),
        };
        // Damage here is told when the file's turn comes: what stands before it is worth having.
        let begun = reader.advance();
        let first_ns = reader.packet().map(|packet| packet.ns);
        if reader.interfaces().is_empty() {
            return refused(match begun {
                Err(e) => e.to_string(),
                Ok(_) => "describes no interface".into(),
            });
        }
        if reader.kind() == Kind::Pcapng {
            self.kind = Kind::Pcapng;
        }
        for interface in reader.interfaces() {
            let (other, link_type) =
                first.get_or_insert_with(|| (path.to_owned(), interface.link_type));
            if *link_type != interface.link_type {
                return refused(format!(
                    "has link type {}, and {} has {link_type}: readers refuse a file with both; merge them apart",
                    interface.link_type,
                    other.display()
                ));
            }
            self.link_type = interface.link_type;
            self.snaplen = match (self.snaplen, interface.snaplen) {
                (0, _) | (_, 0) => 0,
                (a, b) => a.max(b),
            };
            self.ports.number(path, interface);
        }
        self.inputs.push(InputFacts {
            path: shown.to_string(),
            first_ns,
            ..InputFacts::default()
        });
        Ok(FilePlan {
            input: self.inputs.len() - 1,
            first_ns: first_ns.unwrap_or(0),
            kept: (!regular).then_some(reader),
            parts,
        })
    }

    /// pcap knows one interface and no options.
    fn settle_pcap(&mut self, inputs_are: Kind) -> Result<(), MergeError> {
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
                "pcap knows no interfaces: the frames of {} ports cannot be told apart; pcapng can",
                self.ports.list.len()
            ));
        }
        if inputs_are == Kind::Pcapng {
            self.notes.push(
                "pcap holds no options: queue numbers, drop counts and comments are left out"
                    .into(),
            );
        }
        Ok(())
    }
}

/// Files, those of folders among them.
fn expanded(inputs: &[PathBuf], notes: &mut Vec<String>) -> Result<Vec<PathBuf>, MergeError> {
    let mut files = Vec::new();
    for path in inputs {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let refused =
            |e: &dyn std::fmt::Display| MergeError::Refused(format!("{}: {e}", path.display()));
        let (mut found, mut unfinished) = (Vec::new(), 0);
        for entry in fs::read_dir(path).map_err(|e| refused(&e))? {
            let file = entry.map_err(|e| refused(&e))?.path();
            let ending = file.extension().and_then(|e| e.to_str());
            unfinished += u64::from(ending == Some("part"));
            if is_capture(&file) && file.is_file() {
                found.push(file);
            }
        }
        if found.is_empty() {
            return Err(refused(&"has no .pcap or .pcapng files"));
        }
        if unfinished > 0 {
            notes.push(format!(
                "{}: {unfinished} files are open still, or were left so by a crash (wqcap recover); they are left out",
                path.display()
            ));
        }
        found.sort();
        files.append(&mut found);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_a_port() {
        assert_eq!(without_queue("mlx5_0 queue 12"), "mlx5_0");
        assert_eq!(without_queue("eth0"), "eth0");
        assert_eq!(without_queue("my queue here"), "my queue here");
    }

    #[test]
    fn names_of_capture_files() {
        let of = |name: &str| queue_of(Path::new(name));
        assert_eq!(of("/cap/wqcap-q03-17.pcapng"), Some((3, 17)));
        assert_eq!(
            of("wqcap-q100-1700000000000000000.pcap.zst"),
            Some((100, 1_700_000_000_000_000_000))
        );
        for other in [
            "eth0.pcap",
            "wqcap-q1.pcap",
            "wqcap-qx-1.pcap",
            "wqcap-q1-1",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn endings_name_the_format() {
        let of = |name: &str| kind_of(Path::new(name));
        assert!(matches!(of("a.PCAP"), Ok(Some(Kind::Pcap))));
        assert!(matches!(of("a.b.pcapng"), Ok(Some(Kind::Pcapng))));
        assert!(matches!(of("-"), Ok(None)));
        assert!(of("a.pcapng.zst").is_err());
    }

    #[test]
    fn ports_are_told_apart_by_folder_and_name() {
        let named = |name: &str| Interface {
            name: Some(name.into()),
            ..Interface::default()
        };
        let mut ports = Ports::default();
        let mut number =
            |path: &str, interface: &Interface| ports.number(Path::new(path), interface);
        assert_eq!(number("/a/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 0);
        assert_eq!(number("/a/wqcap-q01-1.pcapng", &named("mlx5_0 queue 1")), 0);
        assert_eq!(number("/b/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 1);
        assert_eq!(number("/a/wqcap-q00-1.pcap", &Interface::default()), 2);
        assert_eq!(number("/a/wqcap-q01-2.pcap", &Interface::default()), 2);
        assert_eq!(number("/a/left.pcap", &Interface::default()), 3);
        assert_eq!(number("/a/right.pcap", &Interface::default()), 4);
        let names: Vec<_> = ports.list.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_0", "a", "left", "right"]);
        assert_eq!(ports.list[1].texts, [(3, "/b".to_owned())]);
    }
}
