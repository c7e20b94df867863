//! Listing of the finished files of a capture.
//!
//! Invariant: a file that is still open is never listed.

use crate::key;
use std::{
    collections::BTreeMap,
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};
use wqcap_files::{
    folder::{
        CaptureFolder, FileStamp,
        delivery::{ContentKind, DeliveryRecord, DeliveryState, FileId, VERSION},
    },
    name::FileName,
};

/// Finished capture file, or finished file of flow records, DNS or DHCP, that was found in its
/// folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundCapture {
    pub(crate) kind: ContentKind,
    /// Name of the finished file in its folder, without the path.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) stamp: FileStamp,
    /// Start time of the capture file, or time of the last write to a file of flow records, DNS or
    /// DHCP, in nanoseconds since 1970.
    pub(crate) ns: u64,
}

impl FoundCapture {
    /// Returns the key of the file's delivery record in the journal.
    pub(crate) fn id(&self) -> FileId {
        (self.kind, self.name.clone())
    }

    /// Makes a delivery record for a file that is not in the store and whose frames are not counted
    /// yet.
    pub(crate) fn record(&self, key: String) -> DeliveryRecord {
        DeliveryRecord {
            version: VERSION,
            kind: self.kind,
            file: self.name.clone(),
            stamp: self.stamp,
            ns: self.ns,
            key,
            blocks_key: None,
            frames: 0,
            selected: true,
            copy: None,
            copy_params: None,
            state: DeliveryState::Seen,
        }
    }
}

/// Finished files that were found in a folder.
#[derive(Debug, Default)]
pub(crate) struct FoundFiles {
    /// Files whose length and time were read, in the order of shipping.
    pub(crate) files: Vec<FoundCapture>,
    /// Files that exist, but cannot be shipped, with the reason.
    pub(crate) unread: Vec<UnreadFile>,
}

/// Finished file whose length and time of modification cannot be read, or whose object is that of
/// another file.
#[derive(Debug)]
pub(crate) struct UnreadFile {
    /// Key of the file's delivery record in the journal.
    pub(crate) id: FileId,
    pub(crate) path: PathBuf,
    pub(crate) error: io::Error,
}

impl FoundFiles {
    /// Adds a finished file by its path, unless the file was deleted or is not a regular file.
    fn add(&mut self, kind: ContentKind, path: PathBuf, ns: u64) {
        let Some(name) = path.file_name().and_then(|it| it.to_str()) else {
            return;
        };
        let name = name.to_owned();
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => self.files.push(FoundCapture {
                kind,
                name,
                stamp: FileStamp::from_metadata(&metadata),
                path,
                ns,
            }),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let id = (kind, name);
                self.unread.push(UnreadFile { id, path, error });
            }
            _ => {}
        }
    }

    /// Adds a capture file that cannot be shipped, with the reason.
    fn refuse(&mut self, path: PathBuf, why: impl Into<Box<dyn Error + Send + Sync>>) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let id = (ContentKind::Packets, name.into_owned());
        let error = io::Error::other(why);
        self.unread.push(UnreadFile { id, path, error });
    }

    /// Adds the files of another folder after the files of this one.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.files.append(&mut other.files);
        self.unread.append(&mut other.unread);
    }

    fn sort(mut self) -> Self {
        let order = |a: &FoundCapture, b: &FoundCapture| (a.ns, &a.name).cmp(&(b.ns, &b.name));
        self.files.sort_by(order);
        self
    }
}

/// Lists the finished capture files of a folder, oldest first. Files whose names have another form
/// are left out. Encrypted files, of an earlier run without `[ship]`, cannot be shipped.
pub(crate) fn packets(dir: &Path) -> io::Result<FoundFiles> {
    let mut found = FoundFiles::default();
    // Files whose names have other leading zeros than wqcap's, by the name that wqcap would use.
    let mut renamed = BTreeMap::new();
    for (path, _) in CaptureFolder::list_to(dir, 0)?.finished {
        let Some(name) = FileName::parse(&path) else {
            continue;
        };
        if name.sealed {
            found.refuse(
                path,
                "encrypted files are not sent; move the file to another directory",
            );
            continue;
        }
        let (ns, usual) = (name.start_ns, path.with_file_name(name.to_string()));
        let twin = match usual == path {
            true => None,
            false if usual.exists() => Some(usual),
            false => renamed.insert(usual, path.clone()),
        };
        match twin {
            Some(twin) => {
                let twin = twin.display();
                let why = format!(
                    "the file would replace {twin} in the store, because their names have the same numbers; rename one of them"
                );
                found.refuse(path, why);
            }
            None => found.add(ContentKind::Packets, path, ns),
        }
    }
    Ok(found.sort())
}

/// Lists the finished files of flow records, of DNS and of DHCP below the folder of flow records,
/// each kind oldest first.
pub(crate) fn tables(flows_dir: &Path) -> io::Result<FoundFiles> {
    let mut all = FoundFiles::default();
    for kind in [ContentKind::Flows, ContentKind::Dns, ContentKind::Dhcp] {
        let entries = match fs::read_dir(table_dir(kind, flows_dir)) {
            // Tables of DNS and DHCP are optional.
            Err(e) if kind != ContentKind::Flows && e.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        let mut files = FoundFiles::default();
        for entry in entries {
            let path = entry?.path();
            if let Some(ns) = key::table_ns(kind, &path) {
                files.add(kind, path, ns);
            }
        }
        all.append(files.sort());
    }
    Ok(all)
}

/// Returns the folder that holds flow records, DNS or DHCP files.
pub(crate) fn table_dir(kind: ContentKind, flows_dir: &Path) -> PathBuf {
    match kind {
        ContentKind::Dns | ContentKind::Dhcp => flows_dir.join(kind.folder()),
        ContentKind::Flows | ContentKind::Packets => flows_dir.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_files_are_listed_oldest_first() {
        let dir = tempfile::tempdir().expect("dir");
        for name in [
            "wqcap-q01-5.pcap",
            "wqcap-q00-10.pcapng.zst",
            "wqcap-q00-5.pcap",
            "wqcap-q00-7.pcap.part",
            "wqcap-q00-8.pcap.enc",
            "mine.pcap",
            "wqcap-flows-9.parquet",
            "wqcap-flows-10.parquet",
            "wqcap-flows-11.parquet.part",
        ] {
            fs::write(dir.path().join(name), name).expect("written");
        }
        fs::create_dir(dir.path().join("wqcap-q02-1.pcap")).expect("made");
        let names = |found: FoundFiles| {
            let names = found.files.into_iter().map(|it| it.name);
            names.collect::<Vec<_>>()
        };
        let found = packets(dir.path()).expect("lists");
        let unread: Vec<_> = found.unread.iter().map(|it| it.id.1.as_str()).collect();
        assert_eq!(unread, ["wqcap-q00-8.pcap.enc"]);
        assert_eq!(
            names(found),
            [
                "wqcap-q00-5.pcap",
                "wqcap-q01-5.pcap",
                "wqcap-q00-10.pcapng.zst"
            ]
        );
        assert_eq!(
            names(tables(dir.path()).expect("lists")),
            ["wqcap-flows-9.parquet", "wqcap-flows-10.parquet"]
        );
        fs::create_dir(dir.path().join("dns")).expect("made");
        fs::write(dir.path().join("dns/wqcap-dns-3.parquet"), "").expect("written");
        let last = tables(dir.path())
            .expect("lists")
            .files
            .pop()
            .expect("some");
        assert_eq!((last.kind, last.ns), (ContentKind::Dns, 3));
        assert!(packets(&dir.path().join("absent")).is_err());
    }

    #[test]
    fn files_whose_names_have_the_same_numbers_do_not_replace_each_other() {
        let dir = tempfile::tempdir().expect("dir");
        for name in ["q02-5", "q002-5", "q002-6", "q002-07", "q002-7"] {
            let path = dir.path().join(format!("wqcap-{name}.pcap"));
            fs::write(path, name).expect("written");
        }
        let found = packets(dir.path()).expect("lists");
        assert_eq!((found.files.len(), found.unread.len()), (3, 2));
        let of = |ns| found.files.iter().filter(|it| it.ns == ns).count();
        assert_eq!([of(5), of(6), of(7)], [1; 3]);
        let usual = found.files.iter().find(|it| it.ns == 5).expect("one");
        assert_eq!(usual.name, "wqcap-q02-5.pcap");
    }

    #[test]
    fn a_file_whose_stamp_cannot_be_read_is_no_deleted_file() {
        let dir = tempfile::tempdir().expect("dir");
        let path = |name: &str| dir.path().join(name);
        fs::write(path("wqcap-q00-5.pcap"), "").expect("written");
        // Links to themselves: stat(2) fails with ELOOP, also for root.
        std::os::unix::fs::symlink("wqcap-q01-5.pcap", path("wqcap-q01-5.pcap")).expect("linked");
        std::os::unix::fs::symlink("absent", path("wqcap-q02-5.pcap")).expect("linked");
        let mut found = FoundFiles::default();
        for (i, ns) in [(0, 5), (1, 5), (2, 5), (3, 5)] {
            found.add(
                ContentKind::Packets,
                path(&format!("wqcap-q0{i}-{ns}.pcap")),
                ns,
            );
        }
        assert_eq!(found.files.len(), 1);
        let unread: Vec<_> = found.unread.iter().map(|it| it.id.1.as_str()).collect();
        assert_eq!(unread, ["wqcap-q01-5.pcap"]);
    }
}
