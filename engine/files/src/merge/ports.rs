//! Capture ports: mapping from the interfaces of the inputs to interfaces of the output.

use crate::{
    format::{
        Interface,
        pcapng::{
            TextBudget,
            code::{IF_DESCRIPTION, IF_FILTER},
        },
    },
    name::FileName,
    read::{FileRanges, MOST_INTERFACES},
};
use std::{
    collections::{HashMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
};

/// Link type of the frames of a capture port, and length of their frame check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PortLink {
    /// Link type of the capture port's frames (LINKTYPE_ value).
    pub(crate) link_type: u32,
    /// Length in bytes of the frame check sequence at the end of each frame, if it is declared.
    pub(crate) fcs_len: Option<u8>,
}

impl PortLink {
    pub(super) fn new(interface: &Interface) -> Self {
        Self {
            link_type: interface.link_type,
            fcs_len: interface.fcs_len,
        }
    }
}

/// Capture port of the inputs, which is an interface of the merged file.
#[derive(Clone, Debug)]
pub(super) struct OutputPort {
    pub(super) name: String,
    /// Options of the port's interface description, without the name.
    pub(super) options: Vec<(u16, Vec<u8>)>,
    pub(super) link: PortLink,
}

/// Key that identifies a capture port: folder, machine, name, and form of the frames.
type PortKey = (PathBuf, Option<String>, Option<String>, PortLink);

/// Capture ports (interfaces) found so far in the inputs of a merge.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) list: Vec<OutputPort>,
    numbers: HashMap<PortKey, usize>,
    names: HashSet<String>,
    /// Memory budget for the interface options of all capture ports.
    pub(super) texts: TextBudget,
    /// Hashes of the capture filters of interfaces that differ from that of their port.
    pub(super) other_filters: HashSet<u64>,
    /// `true` if the inputs have more interfaces than capture ports are allowed.
    pub(super) overfull: bool,
}

impl Ports {
    /// Removes the capture ports whose link type is not `link_type`.
    pub(super) fn keep_only(&mut self, link_type: u32) {
        let is_kept = |port: &OutputPort| port.link.link_type == link_type;
        let numbers = self.list.iter().scan(0, |next, port| {
            let number = *next;
            *next += usize::from(is_kept(port));
            Some(number)
        });
        let numbers: Vec<_> = numbers.collect();
        self.numbers.retain(|key, number| {
            *number = numbers[*number];
            key.3.link_type == link_type
        });
        self.list.retain(is_kept);
    }

    /// Returns the capture port of a file's interface. Interfaces with the same name, machine and
    /// link type in a folder and its subfolders are one port: the queues of one capture. Without an
    /// interface name, files of queues in the same folder are one port, and any other file is a
    /// separate port. Returns `None` if the maximum number of interfaces is reached.
    pub(super) fn number(&mut self, file: &FileRanges, interface: &Interface) -> Option<usize> {
        let path = &file.path;
        let folder = path.parent().unwrap_or(Path::new(""));
        let name = interface.name.as_deref().map(without_queue);
        let (place, fallback) = match (name, FileName::parse(path).and_then(|name| name.queue)) {
            (Some(_), _) => (file.folder(), None),
            (None, Some(_)) => (folder, folder.file_name()),
            (None, None) => (path.as_path(), path.file_stem()),
        };
        let host = interface.host.clone();
        let link = PortLink::new(interface);
        let key = (
            place.to_owned(),
            host.clone(),
            name.map(str::to_owned),
            link,
        );
        if let Some(&number) = self.numbers.get(&key) {
            let filter = |of: &[(u16, Vec<u8>)]| of.iter().find(|it| it.0 == IF_FILTER).cloned();
            let (kept, other) = (&self.list[number].options, &interface.options);
            let other = filter(other);
            if other.is_some() && other != filter(kept) {
                let mut hasher = DefaultHasher::new();
                (number, other).hash(&mut hasher);
                self.other_filters.insert(hasher.finish());
            }
            return Some(number);
        }
        if self.list.len() == MOST_INTERFACES {
            self.overfull = true;
            return None;
        }
        let mut shown = match (name, fallback) {
            (Some(name), _) => name.to_owned(),
            (None, Some(name)) => name.to_string_lossy().into_owned(),
            (None, None) => "port".into(),
        };
        if !self.texts.take(&shown) {
            shown = "port".into();
        }
        let mut options = interface.options.clone();
        options.retain(|(_, value)| self.texts.take(value));
        let taken = !self.names.insert(shown.clone());
        if taken && !options.iter().any(|(code, _)| *code == IF_DESCRIPTION) {
            let host = host.map(|it| format!("{it}: ")).unwrap_or_default();
            let description = format!("{host}{}", place.display());
            options.push((IF_DESCRIPTION, description.into_bytes()));
        }
        self.list.push(OutputPort {
            name: shown,
            options,
            link,
        });
        let number = self.list.len() - 1;
        self.numbers.insert(key, number);
        Some(number)
    }
}

/// Splits an interface name into capture port and queue: `mlx5_0 queue 3` is queue 3 of port
/// `mlx5_0`.
pub(super) fn queue_of(name: &str) -> Option<(&str, u16)> {
    let (port, queue) = name.rsplit_once(" queue ")?;
    let is_number = queue.bytes().all(|b| b.is_ascii_digit());
    Some((port, queue.parse().ok().filter(|_| is_number)?))
}

fn without_queue(name: &str) -> &str {
    queue_of(name).map_or(name, |(port, _)| port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_a_port() {
        assert_eq!(without_queue("mlx5_0 queue 12"), "mlx5_0");
        assert_eq!(without_queue("eth0"), "eth0");
        assert_eq!(without_queue("my queue here"), "my queue here");
        assert_eq!(queue_of("my queue 1 queue 12"), Some(("my queue 1", 12)));
        for other in [
            "mlx5_0",
            "mlx5_0 queue ",
            "mlx5_0 queue +1",
            "mlx5_0 queue 70000",
        ] {
            assert_eq!(queue_of(other), None, "{other}");
        }
    }

    #[test]
    fn ports_differ_by_folder_and_name() {
        let named = |name: &str| {
            let mut it = Interface::default();
            it.name = Some(name.into());
            it
        };
        let mut ports = Ports::default();
        let mut number = |path: &str, it: &Interface| {
            let file = FileRanges::whole(path.into());
            ports.number(&file, it).expect("room")
        };
        assert_eq!(number("/a/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 0);
        assert_eq!(number("/a/wqcap-q01-1.pcapng", &named("mlx5_0 queue 1")), 0);
        assert_eq!(number("/b/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 1);
        let mut other = named("mlx5_0 queue 0");
        other.host = Some("tap2".into());
        assert_eq!(number("/a/wqcap-q00-1.pcap", &Interface::default()), 2);
        assert_eq!(number("/a/wqcap-q01-2.pcap", &Interface::default()), 2);
        assert_eq!(number("/a/left.pcap", &Interface::default()), 3);
        assert_eq!(number("/a/right.pcap", &Interface::default()), 4);
        assert_eq!(number("/a/x.pcapng", &other), 5);
        // Subfolders of one input folder belong to the same port.
        for (path, want) in [("/a/15/x.pcapng", 0), ("/a/16/x.pcapng", 0)] {
            let file = FileRanges {
                found_in: Some("/a".into()),
                ..FileRanges::whole(path.into())
            };
            let found = ports.number(&file, &named("mlx5_0 queue 0"));
            assert_eq!(found, Some(want), "{path}");
        }
        let names: Vec<_> = ports.list.iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["mlx5_0", "mlx5_0", "a", "left", "right", "mlx5_0"]);
        assert_eq!(ports.list[1].options, [(3, b"/b".to_vec())]);
        assert_eq!(ports.list[5].options, [(3, b"tap2: /a".to_vec())]);
        // A file with another link type, or with an FCS, has another port.
        for (link_type, fcs_len, want) in [(0, None, 0), (101, None, 6), (0, Some(4), 7)] {
            let mut other = named("mlx5_0 queue 1");
            (other.link_type, other.fcs_len) = (link_type, fcs_len);
            let file = FileRanges::whole("/a/wqcap-q01-1.pcapng".into());
            assert_eq!(ports.number(&file, &other), Some(want));
        }
    }
}
