//! Listing of the finished files of a capture.
//!
//! Invariant: a file that is still open is never listed.

use crate::key;
use std::{
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

/// Finished capture file, or file of flow records, DNS or DHCP, that was found in its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundCapture {
    pub(crate) kind: ContentKind,
    /// Name of the finished file in its folder.
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
            state: DeliveryState::Seen,
        }
    }
}

/// Lists the finished capture files of a folder, oldest first. Files whose names have another form
/// are left out, and so are encrypted files, because encryption and `[ship]` exclude each other.
pub(crate) fn packets(dir: &Path) -> io::Result<Vec<FoundCapture>> {
    let folder = CaptureFolder::list_to(dir, 0)?;
    let files = folder.finished.into_iter().filter_map(|(path, _)| {
        let name = FileName::parse(&path).filter(|it| !it.sealed)?;
        let ns = name.start_ns;
        found(ContentKind::Packets, path, ns)
    });
    Ok(sorted(files.collect()))
}

/// Lists the finished files of flow records, of DNS and of DHCP below the folder of flow records,
/// each kind oldest first.
pub(crate) fn tables(flows_dir: &Path) -> io::Result<Vec<FoundCapture>> {
    let mut all = Vec::new();
    for kind in [ContentKind::Flows, ContentKind::Dns, ContentKind::Dhcp] {
        let entries = match fs::read_dir(table_dir(kind, flows_dir)) {
            // Tables of DNS and DHCP are optional.
            Err(e) if kind != ContentKind::Flows && e.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if let Some(ns) = key::table_ns(kind, &path) {
                files.extend(found(kind, path, ns));
            }
        }
        all.extend(sorted(files));
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

/// Reads the stamp of a listed finished file. `None`: it was deleted, or is not a regular file.
fn found(kind: ContentKind, path: PathBuf, ns: u64) -> Option<FoundCapture> {
    let metadata = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
    Some(FoundCapture {
        kind,
        name: path.file_name()?.to_str()?.to_owned(),
        stamp: FileStamp::from_metadata(&metadata),
        path,
        ns,
    })
}

fn sorted(mut files: Vec<FoundCapture>) -> Vec<FoundCapture> {
    files.sort_by(|a, b| (a.ns, &a.name).cmp(&(b.ns, &b.name)));
    files
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
        let names =
            |found: Vec<FoundCapture>| found.into_iter().map(|it| it.name).collect::<Vec<_>>();
        assert_eq!(
            names(packets(dir.path()).expect("lists")),
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
        let last = tables(dir.path()).expect("lists").pop().expect("some");
        assert_eq!((last.kind, last.ns), (ContentKind::Dns, 3));
        assert!(packets(&dir.path().join("absent")).is_err());
    }
}
