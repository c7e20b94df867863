//! Storage of the indexes of capture files in a folder.

use super::{
    build::build,
    flow::IndexFlow,
    layout::{CaptureIndex, IndexBlock, IndexSelection, IndexSummary, VERSION, select},
    packed::{pack, unpack},
    terms::FlowTerms,
};
use crate::{
    folder::open::{MOST_INDEX, open_regular, read_regular},
    folder::{FileStamp, FolderTree, held::remove_below, remove_emptied},
    name::FileName,
    read::ReadError,
    sealed::SecretKey,
};
use ciborium::Value;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io::{self, BufReader, Read},
    ops::Range,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_64;

/// Suffix of an index's file name, after the complete name of its capture file.
pub const ENDING: &str = ".cbor";

/// Item of an index file: its content, and the checksum of these bytes (XXH3, 64 bits). The checksum
/// detects an index torn by a power cut, because indexes are not synced.
#[derive(Serialize, Deserialize)]
struct ChecksummedItem {
    xxh3: u64,
    index: Value,
}

/// Rest of an index file after its summary has been read.
type Rest = BufReader<io::Take<File>>;

/// Folder of the indexes of a capture folder. An index has the same relative path as its capture
/// file.
#[derive(Clone, Copy, Debug)]
pub struct IndexFolder<'a> {
    /// Folder with the indexes of the capture files.
    pub folder: &'a Path,
    /// Folder with the indexed capture files.
    pub dir: &'a Path,
}

impl IndexFolder<'_> {
    /// Returns the path of a capture file's index.
    #[must_use]
    pub fn path_of(&self, file: &Path) -> PathBuf {
        let name = || file.file_name().map(Path::new).unwrap_or(file);
        let place = file.strip_prefix(self.dir).unwrap_or_else(|_| name());
        let mut path = OsString::from(self.folder.join(place));
        path.push(ENDING);
        path.into()
    }

    /// Loads the index of a capture file. Returns `None` if the index is missing, damaged, or does
    /// not match the present file.
    #[must_use]
    pub fn load(&self, file: &Path) -> Option<CaptureIndex> {
        let (summary, mut rest) = self.open(file)?;
        let flows = next_flows(&mut rest)?;
        let blocks = next_blocks(&mut rest, &summary)?;
        Some(summary.with(flows, blocks))
    }

    /// Loads the summary of a capture file's index, which has no flows. Returns `None` in the cases
    /// of [`IndexFolder::load`].
    #[must_use]
    pub fn load_summary(&self, file: &Path) -> Option<IndexSummary> {
        self.open(file).map(|(summary, _)| summary)
    }

    /// Selects parts of a capture file as [`CaptureIndex::select`] does, and returns them with the
    /// number of bytes read of the index: no more than it needs. Returns `None` in the cases of
    /// [`IndexFolder::load`].
    #[must_use]
    pub fn select(
        &self,
        file: &Path,
        times: &Range<u64>,
        terms: &FlowTerms,
    ) -> Option<(IndexSelection, u64)> {
        let (summary, mut rest) = self.open(file)?;
        let mut ranges = Vec::new();
        if summary.reaches(times) {
            let flows = next_flows(&mut rest)?;
            let wanted: Vec<bool> = flows.iter().map(|flow| terms.allows(flow)).collect();
            if summary.others || wanted.contains(&true) {
                let blocks = next_blocks(&mut rest, &summary)?;
                ranges = select(&blocks, summary.head, times, &wanted);
            }
        }
        let selection = IndexSelection {
            ranges,
            apart: summary.apart,
            end: summary.end,
        };
        Some((selection, MOST_INDEX - rest.get_ref().limit()))
    }

    fn open(&self, file: &Path) -> Option<(IndexSummary, Rest)> {
        let index = open_regular(&self.path_of(file)).ok()?;
        let mut rest = BufReader::new(index.take(MOST_INDEX));
        let summary: IndexSummary = ciborium::from_reader(&next_item(&mut rest)?[..]).ok()?;
        let fresh = summary.version == VERSION
            && summary.is_sound()
            && FileStamp::read(file).is_ok_and(|now| now == summary.stamp);
        fresh.then_some((summary, rest))
    }

    /// Builds the index of a capture file, which `key` opens if it is sealed, and writes it into
    /// the folder with an atomic rename. Returns `None` if `may_continue` returned `false`, or the
    /// file changed in the meantime.
    ///
    /// # Errors
    /// The file cannot be read to its end, or the index cannot be written.
    pub fn build(
        &self,
        file: &Path,
        key: Option<&SecretKey>,
        may_continue: impl Fn() -> bool,
    ) -> Result<Option<CaptureIndex>, ReadError> {
        let Some(index) = build(file, key, may_continue)? else {
            return Ok(None);
        };
        write(&self.path_of(file), &index).map_err(|e| match e.kind() {
            // `NotFound` means a missing capture file to the caller, so a missing index folder is
            // mapped to another kind.
            io::ErrorKind::NotFound => io::Error::other(e.to_string()),
            _ => e,
        })?;
        Ok(Some(index))
    }

    /// Removes the indexes of capture files that no longer exist.
    ///
    /// # Errors
    /// The folder cannot be read, or an index cannot be removed.
    pub fn sweep(&self) -> io::Result<()> {
        let tree = FolderTree::list(self.folder, usize::MAX)?;
        let mut failure: Option<io::Error> = None;
        for path in tree.paths {
            let place = path.strip_prefix(self.folder).ok().and_then(Path::to_str);
            let Some(file) = place.and_then(|name| name.strip_suffix(ENDING)) else {
                continue;
            };
            let file = Path::new(file);
            if !FileName::has_capture_ending(file) || self.dir.join(file).exists() {
                continue;
            }
            // A name made by a template is not specific enough: the content must be that of an
            // index.
            let is_index = || {
                read_regular(&path, MOST_INDEX).is_ok_and(|bytes| next_item(&bytes[..]).is_some())
            };
            if FileName::parse(file).is_some() || is_index() {
                match remove_below(self.folder, &path) {
                    Ok(()) => remove_emptied(&path, self.folder),
                    Err(e) => {
                        let text = format!("{}: {e}", path.display());
                        failure.get_or_insert_with(|| io::Error::new(e.kind(), text));
                    }
                }
            }
        }
        let unread = tree.unread.into_iter().map(|(_, e)| e);
        failure.into_iter().chain(unread).next().map_or(Ok(()), Err)
    }
}

/// Reads the content of the next item of an index file. Returns `None` if there is no item, or its
/// checksum is wrong.
fn next_item(from: impl Read) -> Option<Vec<u8>> {
    let sealed: ChecksummedItem = ciborium::from_reader(from).ok()?;
    let body = sealed.index.into_bytes().ok()?;
    (xxh3_64(&body) == sealed.xxh3).then_some(body)
}

fn next_flows(rest: &mut Rest) -> Option<Vec<IndexFlow>> {
    unpack(&next_item(rest)?)
}

/// Reads the blocks of an index file. Returns `None` if they are not those of `summary`.
fn next_blocks(rest: &mut Rest, summary: &IndexSummary) -> Option<Vec<IndexBlock>> {
    let blocks: Vec<IndexBlock> = ciborium::from_reader(&next_item(rest)?[..]).ok()?;
    summary.describes(&blocks).then_some(blocks)
}

fn encode(content: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    ciborium::into_writer(content, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn write(path: &Path, index: &CaptureIndex) -> io::Result<()> {
    let contents = [
        encode(&IndexSummary::of(index))?,
        pack(&index.flows),
        encode(&index.blocks)?,
    ];
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Indexes get the mode of any new file, like capture files.
    let temporary = tempfile::Builder::new()
        .prefix(".wqcap-index-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    let mut out = io::BufWriter::new(&temporary);
    for content in contents {
        let item = ChecksummedItem {
            xxh3: xxh3_64(&content),
            index: Value::Bytes(content),
        };
        ciborium::into_writer(&item, &mut out).map_err(io::Error::other)?;
    }
    io::Write::flush(&mut out)?;
    drop(out);
    temporary.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::written, format::FileFormat, index::FlowTerms};

    #[test]
    fn an_index_is_valid_while_its_file_is_unchanged() {
        let dir = tempfile::tempdir().expect("dir");
        let indexes = tempfile::tempdir().expect("dir");
        let folder = IndexFolder {
            folder: indexes.path(),
            dir: dir.path(),
        };
        let (bytes, starts) = written(FileFormat::Pcapng, 3);
        let file = dir.path().join("wqcap-q00-1.pcapng");
        fs::write(&file, &bytes).expect("written");
        assert!(folder.load(&file).is_none());
        let index = folder
            .build(&file, None, || true)
            .expect("reads")
            .expect("made");
        assert_eq!((index.frames, index.head), (3, starts[0] as u64));
        let again = folder.load(&file).expect("there");
        assert_eq!(again, index);
        let path = folder.path_of(&file);
        let mode = |path| fs::metadata(path).expect("there").permissions().mode();
        assert_eq!(mode(&path), mode(&file), "the mode of a new file");
        let summary = folder.load_summary(&file).expect("there");
        assert_eq!(summary, IndexSummary::of(&again));
        assert_eq!(summary.parts.iter().map(|it| it.frames).sum::<u64>(), 3);
        let size = fs::metadata(&path).expect("there").len();
        for (times, terms) in [
            (0..u64::MAX, FlowTerms::default()),
            (0..u64::MAX, FlowTerms::parse("host 192.0.2.1")),
            (0..0, FlowTerms::default()),
        ] {
            let (selection, read) = folder.select(&file, &times, &terms).expect("there");
            assert_eq!(selection.ranges, again.select(&times, &terms));
            assert!(read <= size, "{read} of {size}");
        }
        let parts = again.select(&(0..u64::MAX), &FlowTerms::default());
        let head = 0..starts[0] as u64;
        let all = starts[0] as u64..*starts.last().expect("some") as u64;
        assert_eq!(parts, [head, all]);
        assert!(again.select(&(0..0), &FlowTerms::default()).is_empty());

        // Flip one bit, or tear the end.
        let sound = fs::read(&path).expect("there");
        for at in [sound.len() / 2, sound.len() - 1] {
            let mut damaged = sound.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).expect("written");
            assert!(folder.load(&file).is_none());
            fs::write(&path, &sound[..at]).expect("written");
            assert!(folder.load(&file).is_none());
        }
        fs::write(&path, &sound).expect("written");
        assert!(folder.load(&file).is_some());
        fs::write(&file, &bytes[..starts[2]]).expect("written");
        assert!(folder.load(&file).is_none());
        folder.sweep().expect("swept");
        assert!(path.exists());
        fs::write(indexes.path().join("mine.cbor"), "mine").expect("written");
        fs::rename(&file, dir.path().join("elsewhere.pcapng")).expect("moved");
        folder.sweep().expect("swept");
        assert!(!path.exists() && indexes.path().join("mine.cbor").exists());
        fs::rename(dir.path().join("elsewhere.pcapng"), &file).expect("moved");

        // An index of a file with another name is recognised by its content.
        let tap = dir.path().join("tap-1.pcapng");
        fs::rename(&file, &tap).expect("moved");
        let made = folder.build(&tap, None, || true);
        assert!(made.expect("reads").is_some());
        let mine = indexes.path().join("mine.pcapng.cbor");
        fs::write(&mine, "mine").expect("written");
        folder.sweep().expect("swept");
        assert!(folder.path_of(&tap).exists());
        fs::rename(&tap, &file).expect("moved");
        folder.sweep().expect("swept");
        assert!(mine.exists() && !folder.path_of(&tap).exists());
        assert!(
            folder
                .build(&file, None, || false)
                .expect("reads")
                .is_none()
        );

        // In a subfolder an index has the relative path of its file.
        let deep = dir.path().join("20261122/15/tap.pcapng");
        fs::create_dir_all(deep.parent().expect("inside")).expect("made");
        fs::rename(&file, &deep).expect("moved");
        let made = folder.build(&deep, None, || true);
        assert!(made.expect("reads").is_some());
        assert_eq!(
            folder.path_of(&deep),
            indexes.path().join("20261122/15/tap.pcapng.cbor")
        );
        assert!(folder.load(&deep).is_some());
        folder.sweep().expect("swept");
        assert!(folder.load(&deep).is_some());
        fs::rename(&deep, &file).expect("moved");
        folder.sweep().expect("swept");
        assert!(!indexes.path().join("20261122").exists());
    }

    #[test]
    fn a_folder_in_place_of_an_index_does_not_keep_the_others() {
        let [dir, indexes] = [(), ()].map(|()| tempfile::tempdir().expect("dir"));
        let folder = IndexFolder {
            folder: indexes.path(),
            dir: dir.path(),
        };
        let [first, odd, last] = [1, 2, 3].map(|n| {
            let name = format!("wqcap-q00-{n}.pcapng");
            folder.path_of(&dir.path().join(name))
        });
        fs::write(&first, "an index").expect("written");
        fs::create_dir(&odd).expect("made");
        fs::write(&last, "an index").expect("written");
        let error = folder.sweep().expect_err("a folder").to_string();
        assert!(error.contains("wqcap-q00-2.pcapng"), "{error}");
        assert!(!first.exists() && odd.exists() && !last.exists());
    }

    #[test]
    fn an_index_whose_blocks_contradict_it_is_damaged() {
        let dir = tempfile::tempdir().expect("dir");
        let folder = IndexFolder {
            folder: &dir.path().join("index"),
            dir: dir.path(),
        };
        let (bytes, _) = written(FileFormat::Pcapng, 3);
        let file = dir.path().join("wqcap-q00-1.pcapng");
        fs::write(&file, &bytes).expect("written");
        let made = folder.build(&file, None, || true).expect("reads");
        let sound = made.expect("made");
        let loads = |change: &dyn Fn(&mut CaptureIndex)| {
            let mut index = sound.clone();
            change(&mut index);
            write(&folder.path_of(&file), &index).expect("written");
            let times = 0..u64::MAX;
            let selected = folder.select(&file, &times, &FlowTerms::default());
            assert_eq!(selected.is_some(), folder.load(&file).is_some());
            selected.is_some()
        };
        assert!(loads(&|_| {}));
        assert!(!loads(&|it| it.blocks.clear()));
        assert!(!loads(&|it| it.blocks.extend_from_within(..)));
        assert!(!loads(&|it| it.frames = u64::MAX));
        assert!(!loads(&|it| it.head = u64::MAX));
        for change in [
            |it: &mut IndexBlock| (it.start, it.end) = (it.end, it.start),
            |it: &mut IndexBlock| it.end = u64::MAX,
            |it: &mut IndexBlock| it.frames = u64::MAX,
            |it: &mut IndexBlock| it.first_ns = u64::MAX,
        ] {
            assert!(!loads(&|it| it.blocks.iter_mut().for_each(change)));
        }
    }
}
