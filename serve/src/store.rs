//! Files of the capture: their list, and the times of the frames in them.
//!
//! ```text
//! folder -> list of files -> index of each finished file -> FileFacts, kept while the file exists
//! times -> the files that may have frames of them
//! ```
//!
//! A separate thread reads the indexes; a request never waits for them.
//!
//! Invariants: a list of files is at most [`FRESH`] old. A file without facts may have frames of any
//! time. The facts of a file have a bounded size, whatever its index has.

use crate::query::times;
use std::{
    cmp::Reverse,
    collections::HashMap,
    fs, io, mem,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use wqcap_files::{
    extract::SearchedFiles,
    folder::{CaptureFolder, FileStamp, device_and_inode},
    index::{IndexFolder, IndexPart, IndexSummary},
    merge::kind_in_folder,
    name::{PART, natural_order},
    read::{FileRanges, origin::FileKind},
    sealed::SecretKey,
};

/// Age after which the list of capture files is read again.
const FRESH: Duration = Duration::from_millis(500);

/// Time after which the index of a capture file that had none is looked for again. A capture writes
/// an index shortly after it has finished the file, and `wqcap extract --index` at any time.
const INDEX_RETRY: Duration = Duration::from_secs(5);

/// Times of the frames in a finished capture file, with its parts and marks.
#[derive(Clone, Debug, Default)]
pub struct StoredFileFacts {
    /// Time of the first frame in nanoseconds since 1970; 0 if it is not known.
    pub first_ns: u64,
    /// Time of the last frame in nanoseconds since 1970; `u64::MAX` if it is not known.
    pub last_ns: u64,
    /// Indexed parts of the capture file, in file order; empty without an index.
    pub parts: Vec<IndexPart>,
    /// Marks of operators in the capture file: time in nanoseconds since 1970, and text.
    pub marks: Vec<(u64, String)>,
    /// Set when the facts were read from an index of the capture file.
    pub is_indexed: bool,
}

/// Capture file with the facts that were read of it.
#[derive(Clone, Debug)]
pub struct KnownFile {
    /// Path of the capture file; for an open file without `.part`.
    pub path: PathBuf,
    /// Length of the capture file in bytes.
    pub len: u64,
    /// Facts of a finished capture file; `None`: they have not been read.
    pub facts: Option<Arc<StoredFileFacts>>,
}

/// List of the files in a capture folder at one time.
#[derive(Clone, Debug, Default)]
pub struct StoreView {
    /// Finished capture files.
    pub finished: Vec<KnownFile>,
    /// Capture files that are being written, with their present lengths.
    pub open: Vec<KnownFile>,
    /// Messages on folders and files that cannot be read and may have frames.
    pub losses: Vec<String>,
    /// Time at which the first of the open files was created, in nanoseconds since 1970; 0: its file
    /// system does not know it; `None`: no file is open.
    pub open_since_ns: Option<u64>,
}

impl StoreView {
    /// Returns `true` if the folder has no capture file.
    pub fn is_empty(&self) -> bool {
        self.finished.is_empty() && self.open.is_empty()
    }

    /// Returns the facts of those finished capture files whose facts were read.
    pub fn facts(&self) -> impl Iterator<Item = &StoredFileFacts> {
        self.finished.iter().filter_map(|it| it.facts.as_deref())
    }

    /// Returns the time range of the frames in finished capture files, as far as facts were read;
    /// nanoseconds since 1970, the end exclusive.
    pub fn span(&self) -> Option<Range<u64>> {
        let parts = || self.facts().flat_map(|it| &it.parts);
        let start = parts().map(|it| it.first_ns).min()?;
        let end = parts().map(|it| it.last_ns).max()?;
        Some(start..end.saturating_add(1))
    }

    /// Returns the capture files that may have frames of the time range `times`.
    pub fn files_of(&self, times: &Range<u64>) -> SearchedFiles {
        let may_hold = |it: &&KnownFile| {
            let facts = it.facts.as_ref();
            facts.is_none_or(|it| it.first_ns < times.end && it.last_ns >= times.start)
        };
        let of = |it: &KnownFile| (it.path.clone(), it.len);
        SearchedFiles {
            finished: self.finished.iter().filter(may_hold).map(of).collect(),
            open: self.open.iter().map(of).collect(),
            losses: self.losses.clone(),
        }
    }
}

/// Capture folder with a cache of the facts that were read of its files.
pub struct CaptureStore {
    dir: PathBuf,
    index_dir: Option<PathBuf>,
    /// Key that opens encrypted capture files.
    key: Option<SecretKey>,
    /// Device and inode of the folder at the start; `None`: it could not be read.
    identity: Option<(u64, u64)>,
    known: Mutex<Known>,
}

/// Facts that were read of a capture file.
#[derive(Clone)]
struct StampedFacts {
    /// Length and time that the file had when its facts were read.
    stamp: FileStamp,
    facts: Arc<StoredFileFacts>,
    /// Time at which the index of the file was last looked for.
    looked: Instant,
}

#[derive(Default)]
struct Known {
    facts: HashMap<PathBuf, StampedFacts>,
    /// Files without the name of a capture file, and whether each is one by its content.
    others: HashMap<PathBuf, (FileStamp, bool)>,
    view: Arc<StoreView>,
    /// Times at which the last reading of the folder began and ended.
    listed: Option<(Instant, Instant)>,
}

impl CaptureStore {
    /// Creates the store of the capture files in a folder; `key` opens those that are encrypted.
    /// Nothing is read yet.
    pub fn new(dir: PathBuf, index_dir: Option<PathBuf>, key: Option<SecretKey>) -> Self {
        Self {
            identity: device_and_inode(&dir),
            dir,
            index_dir,
            key,
            known: Mutex::default(),
        }
    }

    /// Returns the present list of capture files with the facts that were read of them. Concurrent
    /// calls wait for one reading of the folder.
    ///
    /// # Errors
    /// The capture folder cannot be read.
    pub fn view(&self) -> io::Result<Arc<StoreView>> {
        self.view_since(None)
    }

    /// Returns the list of capture files, from a reading of the folder that began at the time `since`
    /// or later; otherwise as [`CaptureStore::view`].
    ///
    /// # Errors
    /// The capture folder cannot be read.
    pub fn view_since(&self, since: Option<Instant>) -> io::Result<Arc<StoreView>> {
        let mut known = self.known();
        let is_usable =
            |(begun, ended): (Instant, Instant)| ended.elapsed() < FRESH && Some(begun) >= since;
        if known.listed.is_some_and(is_usable) {
            return Ok(Arc::clone(&known.view));
        }
        let begun = Instant::now();
        let folder = CaptureFolder::search(&self.dir).map_err(|e| {
            // The service's sandbox has a right to the first folder only, not to a file system that
            // is mounted in its place.
            if self.is_replaced() {
                let text = format!("{e}; replaced or mounted since the start: restart the service");
                return io::Error::new(e.kind(), text);
            }
            e
        })?;
        let losses = folder.losses().collect();
        let mut finished = folder.finished;
        let others = mem::take(&mut known.others);
        for (path, len) in folder.others {
            let Ok(stamp) = FileStamp::read(&path) else {
                continue;
            };
            let old = others.get(&path).filter(|it| it.0 == stamp);
            let is_capture = old.map_or_else(|| self.has_capture(&path), |it| it.1);
            known.others.insert(path.clone(), (stamp, is_capture));
            if is_capture {
                finished.push((path, len));
            }
        }
        finished.sort_by(|(a, _), (b, _)| natural_order(a, b));
        let before = mem::take(&mut known.facts);
        let mut view = StoreView {
            losses,
            ..StoreView::default()
        };
        for (path, len) in finished {
            let facts = known_facts(&before, &path);
            if let Some(it) = &facts {
                known.facts.insert(path.clone(), it.clone());
            }
            let facts = facts.map(|it| it.facts);
            view.finished.push(KnownFile { path, len, facts });
        }
        for part in folder.unfinished {
            let metadata = part.metadata().ok();
            let len = metadata.as_ref().map_or(0, fs::Metadata::len);
            let path = without_part(&part);
            if let Some(path) = path.filter(|_| len > 0) {
                let created = metadata.and_then(|it| it.created().ok());
                let created_ns = created.map_or(0, times::since_1970);
                let before = view.open_since_ns.unwrap_or(u64::MAX);
                view.open_since_ns = Some(created_ns.min(before));
                let facts = None;
                view.open.push(KnownFile { path, len, facts });
            }
        }
        if view.is_empty() && self.is_replaced() {
            let dir = self.dir.display();
            view.losses.push(format!(
                "{dir}: this is another directory than at the start of the service, and has no capture file: is its disk mounted?"
            ));
        }
        known.view = Arc::new(view);
        known.listed = Some((begun, Instant::now()));
        Ok(Arc::clone(&known.view))
    }

    /// Returns `true` if another folder is in the place of the one at the start.
    fn is_replaced(&self) -> bool {
        let now = device_and_inode(&self.dir);
        now.is_some() && self.identity.is_some() && now != self.identity
    }

    /// Reads the facts of finished capture files that have none yet, or had no index
    /// [`INDEX_RETRY`] ago, while `may_continue` returns `true`. Later views include these facts.
    pub fn learn(&self, may_continue: impl Fn() -> bool) {
        let Ok(view) = self.view() else { return };
        let mut unknown: Vec<_> = {
            let known = self.known();
            let is_due = |it: &&KnownFile| match known.facts.get(&it.path) {
                None => true,
                Some(it) => {
                    let may_be_indexed = self.index_dir.is_some() && !it.facts.is_indexed;
                    may_be_indexed && it.looked.elapsed() >= INDEX_RETRY
                }
            };
            view.finished.iter().filter(is_due).collect()
        };
        // Most requests are for recent frames.
        unknown.sort_by_cached_key(|it| {
            let modified = it.path.metadata().and_then(|it| it.modified());
            Reverse(modified.ok())
        });
        let mut has_learned = false;
        for file in unknown.into_iter().take_while(|_| may_continue()) {
            if let Some(read) = self.read_facts(&file.path) {
                let old = file.facts.as_ref();
                has_learned |= old.is_none_or(|it| !Arc::ptr_eq(it, &read.facts));
                self.known().facts.insert(file.path.clone(), read);
            }
        }
        if has_learned {
            self.known().listed = None;
        }
    }

    /// Returns `true` if a file is a capture file by its content, as for `wqcap extract`.
    fn has_capture(&self, path: &Path) -> bool {
        let file = FileRanges::whole(path.to_owned());
        matches!(kind_in_folder(&file), FileKind::Capture)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_facts(&self, path: &Path) -> Option<StampedFacts> {
        let (stamp, looked) = (FileStamp::read(path).ok()?, Instant::now());
        let index = self.index_dir.as_deref().and_then(|folder| {
            let dir = &self.dir;
            IndexFolder { folder, dir }.load_summary(path)
        });
        let known = self.known();
        let old = known.facts.get(path).filter(|it| it.stamp == stamp);
        let old = old.map(|it| Arc::clone(&it.facts));
        drop(known);
        let facts = match (index, old) {
            (Some(index), _) => Arc::new(StoredFileFacts::of_index(index)),
            (None, Some(old)) => old,
            (None, None) => {
                let facts = StoredFileFacts::without_index(path, &stamp, self.key.clone())?;
                Arc::new(facts)
            }
        };
        Some(StampedFacts {
            stamp,
            facts,
            looked,
        })
    }
}

/// Returns the cached facts of a capture file, unless the file has changed since they were read.
fn known_facts(known: &HashMap<PathBuf, StampedFacts>, path: &Path) -> Option<StampedFacts> {
    let facts = known.get(path)?;
    let is_same = FileStamp::read(path).is_ok_and(|it| it == facts.stamp);
    is_same.then(|| facts.clone())
}

/// Returns the path that an open capture file, named `….part`, gets when it is finished.
fn without_part(part: &Path) -> Option<PathBuf> {
    let name = part.file_name()?.to_str()?;
    Some(part.with_file_name(name.strip_suffix(PART)?))
}

impl StoredFileFacts {
    fn of_index(index: IndexSummary) -> Self {
        let IndexSummary { parts, marks, .. } = index;
        Self {
            // A file without frames has frames of no time.
            first_ns: parts.iter().map(|it| it.first_ns).min().unwrap_or(u64::MAX),
            last_ns: parts.iter().map(|it| it.last_ns).max().unwrap_or(0),
            parts,
            marks: marks.into_iter().map(|it| (it.ns, it.text)).collect(),
            is_indexed: true,
        }
    }

    /// Returns the facts of a file without an index. Its last frame is not later than its last
    /// write, unless a clock was set; so the end is not taken as certain.
    fn without_index(path: &Path, stamp: &FileStamp, key: Option<SecretKey>) -> Option<Self> {
        let file = FileRanges::whole(path.to_owned()).with_key(key);
        let mut reader = file.peek().ok()?;
        let is_there = reader.advance().ok()?;
        let packet = reader.packet().filter(|_| is_there)?;
        let written = stamp
            .modified()
            .duration_since(std::time::UNIX_EPOCH)
            .ok()?;
        let written = u64::try_from(written.as_nanos()).ok()?;
        let part = IndexPart {
            first_ns: packet.ns,
            last_ns: written.max(packet.ns),
            frames: 0,
            bytes: stamp.len,
            lost: 0,
        };
        Some(Self {
            first_ns: 0,
            last_ns: u64::MAX,
            parts: vec![part],
            marks: Vec::new(),
            is_indexed: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};
    use wqcap_files::{
        format::{
            ETHERNET,
            pcap::{encode_header, encode_record_header},
        },
        sealed::seal,
    };

    fn file(dir: &Path, name: &str, seconds: &[u64]) -> PathBuf {
        let mut bytes = encode_header(0, ETHERNET, None).to_vec();
        for second in seconds {
            bytes.extend(encode_record_header(second * 1_000_000_000, 60, 60));
            bytes.extend([7; 60]);
        }
        let path = dir.join(name);
        fs::write(&path, bytes).expect("written");
        path
    }

    #[test]
    fn files_are_selected_by_the_times_of_their_indexes() {
        let (dir, indexes) = (
            tempfile::tempdir().expect("dir"),
            tempfile::tempdir().expect("dir"),
        );
        let one = file(dir.path(), "wqcap-q00-1.pcap", &[10, 20]);
        let two = file(dir.path(), "wqcap-q00-2.pcap", &[30, 40]);
        let open = file(dir.path(), "wqcap-q00-3.pcap.part", &[50]);
        fs::write(dir.path().join("wqcap-q01-3.pcap.part"), "").expect("written");
        let folder = IndexFolder {
            folder: indexes.path(),
            dir: dir.path(),
        };
        folder
            .build(&one, None, || true)
            .expect("built")
            .expect("built");
        let store = CaptureStore::new(dir.path().to_owned(), Some(indexes.path().to_owned()), None);
        let second = 1_000_000_000;
        store.learn(|| true);
        let view = store.view().expect("view");
        let paths = |times| {
            let files = view.files_of(&times);
            let names =
                |all: Vec<(PathBuf, u64)>| all.into_iter().map(|it| it.0).collect::<Vec<_>>();
            (names(files.finished), names(files.open))
        };
        let open_as = vec![without_part(&open).expect("a part")];
        assert_eq!(
            paths(0..u64::MAX),
            (vec![one.clone(), two.clone()], open_as.clone())
        );
        assert_eq!(paths(20 * second..21 * second).0, [one, two.clone()]);
        // Without an index the end of a file is not known.
        assert_eq!(paths(21 * second..22 * second), (vec![two], open_as));
        let facts = view.finished[0].facts.clone().expect("facts");
        assert_eq!(
            (
                facts.parts.iter().map(|it| it.frames).sum::<u64>(),
                facts.is_indexed
            ),
            (2, true)
        );
    }

    #[test]
    fn an_index_that_is_written_later_is_read() {
        let [dir, indexes] = [(); 2].map(|()| tempfile::tempdir().expect("dir"));
        let path = file(dir.path(), "wqcap-q00-1.pcap", &[10, 20]);
        let store = CaptureStore::new(dir.path().to_owned(), Some(indexes.path().to_owned()), None);
        let learned = || {
            store.learn(|| true);
            let view = store.view().expect("view");
            view.finished[0].facts.clone().expect("facts").is_indexed
        };
        assert!(!learned());
        let folder = IndexFolder {
            folder: indexes.path(),
            dir: dir.path(),
        };
        let built = folder.build(&path, None, || true).expect("built");
        assert!(built.is_some() && !learned());
        let mut known = store.known();
        let facts = known.facts.get_mut(&path).expect("facts");
        facts.looked = facts.looked.checked_sub(INDEX_RETRY).expect("earlier");
        drop(known);
        assert!(learned());
    }

    #[test]
    fn an_empty_folder_in_place_of_the_first_one_is_a_loss() {
        let dir = tempfile::tempdir().expect("dir");
        let [cap, away] = ["cap", "away"].map(|it| dir.path().join(it));
        fs::create_dir(&cap).expect("made");
        let store = CaptureStore::new(cap.clone(), None, None);
        let losses = || {
            store.known().listed = None;
            store.view().expect("view").losses.len()
        };
        assert_eq!(losses(), 0, "no file yet");
        fs::rename(&cap, &away).expect("renamed");
        fs::create_dir(&cap).expect("made");
        assert_eq!(losses(), 1);
        let _ = file(&cap, "wqcap-q00-1.pcap", &[10]);
        assert_eq!(losses(), 0, "a new folder of the capture");
        fs::remove_dir_all(&cap).expect("removed");
        fs::write(&cap, "").expect("written");
        store.known().listed = None;
        let error = store.view().expect_err("not a folder").to_string();
        assert!(error.contains("restart the service"), "{error}");
    }

    #[test]
    fn the_key_shows_the_times_of_encrypted_files() {
        let dir = tempfile::tempdir().expect("dir");
        let key = SecretKey::new(&[7; 32]);
        let plain = file(dir.path(), "wqcap-q00-1.pcap", &[10, 20]);
        let sealed = seal(dir.path(), &plain, &key, || true).expect("sealed");
        assert!(sealed.is_some());
        for (key, files_with_facts) in [(Some(key), 1), (None, 0)] {
            let store = CaptureStore::new(dir.path().to_owned(), None, key);
            store.learn(|| true);
            let view = store.view().expect("view");
            assert_eq!(view.finished.len(), 1);
            let starts: Vec<_> = view.facts().map(|it| it.parts[0].first_ns).collect();
            assert_eq!(starts, [10_000_000_000].repeat(files_with_facts));
        }
    }

    #[test]
    fn files_of_any_name_are_captures_by_their_content() {
        let dir = tempfile::tempdir().expect("dir");
        let not_text = OsStr::from_bytes(b"caf\xe9.pcap");
        let names = ["trace", "wqcap-q00-1.pcap", "x.CAP"].map(OsStr::new);
        let mut captures = Vec::new();
        for name in [not_text].into_iter().chain(names) {
            let path = dir.path().join(name);
            fs::rename(file(dir.path(), "new", &[10]), &path).expect("renamed");
            captures.push(path);
        }
        for (name, content) in [("notes.txt", "text"), (".hidden", "text"), ("empty", "")] {
            fs::write(dir.path().join(name), content).expect("written");
        }
        let store = CaptureStore::new(dir.path().to_owned(), None, None);
        let listed = || {
            store.known().listed = None;
            let view = store.view().expect("view");
            let mut paths: Vec<_> = view.finished.iter().map(|it| it.path.clone()).collect();
            paths.sort();
            paths
        };
        captures.sort();
        assert_eq!(listed(), captures);
        // The kind of a file is read again after it has changed.
        captures.push(file(dir.path(), "notes.txt", &[10]));
        captures.sort();
        assert_eq!(listed(), captures);
    }
}
