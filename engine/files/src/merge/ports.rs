//! Capture ports: mapping from the interfaces of the inputs to interfaces of the output.

use crate::{
    format::{
        Interface,
        pcapng::{TextBudget, code::IF_DESCRIPTION},
    },
    name::FileName,
    read::{FileRanges, MOST_INTERFACES},
};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

/// Capture port: an interface of the output.
#[derive(Clone, Debug)]
pub(super) struct OutputPort {
    pub(super) name: String,
    pub(super) texts: Vec<(u16, String)>,
    pub(super) fcs_len: Option<u8>,
}

/// Key of a capture port: folder, machine and name.
type PortKey = (PathBuf, Option<String>, Option<String>);

/// Capture ports found so far in the inputs of a merge.
#[derive(Default)]
pub(super) struct Ports {
    pub(super) list: Vec<OutputPort>,
    numbers: HashMap<PortKey, usize>,
    names: HashSet<String>,
    /// Memory budget for the interface texts of all capture ports.
    pub(super) texts: TextBudget,
    /// Set when the inputs have more interfaces than the maximum number of capture ports.
    pub(super) overfull: bool,
}

impl Ports {
    /// Returns the capture port of a file's interface. Interfaces with the same name and machine in
    /// a folder and its subfolders are one port: the queues of one capture. Without a name, files
    /// of queues in the same folder are one port, and any other file is a separate port. `None`:
    /// the maximum number of interfaces is reached.
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
        let key = (place.to_owned(), host.clone(), name.map(str::to_owned));
        if let Some(number) = self.numbers.get(&key) {
            return Some(*number);
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
        let mut texts = interface.texts.clone();
        texts.retain(|(_, text)| self.texts.take(text));
        let taken = !self.names.insert(shown.clone());
        if taken && !texts.iter().any(|(code, _)| *code == IF_DESCRIPTION) {
            let host = host.map(|it| format!("{it}: ")).unwrap_or_default();
            texts.push((IF_DESCRIPTION, format!("{host}{}", place.display())));
        }
        self.list.push(OutputPort {
            name: shown,
            texts,
            fcs_len: interface.fcs_len,
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
        let named = |name: &str| Interface {
            name: Some(name.into()),
            ..Interface::default()
        };
        let mut ports = Ports::default();
        let mut number = |path: &str, it: &Interface| {
            let file = FileRanges::whole(path.into());
            ports.number(&file, it).expect("room")
        };
        assert_eq!(number("/a/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 0);
        assert_eq!(number("/a/wqcap-q01-1.pcapng", &named("mlx5_0 queue 1")), 0);
        assert_eq!(number("/b/wqcap-q00-1.pcapng", &named("mlx5_0 queue 0")), 1);
        let other = Interface {
            host: Some("tap2".into()),
            ..named("mlx5_0 queue 0")
        };
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
        assert_eq!(ports.list[1].texts, [(3, "/b".to_owned())]);
        assert_eq!(ports.list[5].texts, [(3, "tap2: /a".to_owned())]);
    }
}
