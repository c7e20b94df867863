//! List of the files that a run has finished, in memory while the list is short, then on disk. A
//! run of a year with one file per second has 31 million files.
//!
//! ```text
//! push -> buffer, at most RUN bytes -> sorted, appended to an unnamed file -> merged on reading
//! ```
//!
//! Invariants: memory is bounded by a constant; reading the list adds `PIECE` bytes for each `RUN`
//! bytes of names. Nothing of a list remains on disk when the process has ended.

use serde::{Serialize, Serializer};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ffi::OsString,
    fmt,
    fs::{self, File},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes of file names in memory at which they are written to disk.
const RUN: usize = 1 << 20;
/// Maximum bytes of file names in memory while writes to disk fail; further names are lost.
const MOST_BUFFERED: usize = 32 << 20;
/// Bytes of one sorted run of file names that are read at once.
const PIECE: usize = 4096;
/// Number of files in a file list at which deleted files are first searched for.
const MANY: u64 = 1 << 16;

/// Paths of finished capture files below one directory.
#[derive(Default)]
pub struct FileList {
    dir: PathBuf,
    /// File names that are not on disk yet, each terminated by NUL.
    buffer: Vec<u8>,
    /// Length in bytes of the name buffer at which it is written to disk.
    full_at: usize,
    /// Sorted runs of file names on disk.
    runs: Vec<NameRun>,
    /// Disk file that the list writes runs of names to, and its length; `None` before the first
    /// run.
    spool: Option<(Arc<File>, u64)>,
    /// Number of files in the list, including deleted ones.
    len: u64,
    /// Number of files in the list at which deleted files are next removed from it; `None`: never.
    swept_at: Option<u64>,
    /// `true` if iteration over the list skips files that no longer exist.
    only_existing: bool,
    /// Number of files missing from the list because names could not be written to disk.
    lost: u64,
}

/// Sorted run of file names: a byte range of a file on disk.
#[derive(Clone)]
struct NameRun {
    file: Arc<File>,
    start: u64,
    end: u64,
}

impl FileList {
    /// Creates a list of files below `dir`. A long list is stored in an unnamed file in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            full_at: RUN,
            ..Self::default()
        }
    }

    /// Creates a list like [`FileList::new`] for files that may be deleted while the list grows:
    /// deleted files are removed from it.
    #[must_use]
    pub fn with_deletions(dir: &Path) -> Self {
        Self {
            swept_at: Some(MANY),
            ..Self::new(dir)
        }
    }

    /// Adds the finished file at `path` to the list.
    pub fn push(&mut self, path: &Path) {
        self.add(path);
        if self.swept_at.is_some_and(|at| self.len >= at) {
            self.sweep();
        }
    }

    fn add(&mut self, path: &Path) {
        let name = path.strip_prefix(&self.dir).unwrap_or(path);
        let name = name.as_os_str().as_bytes();
        if self.buffer.len() + name.len() >= MOST_BUFFERED {
            self.lost += 1;
            return;
        }
        self.buffer.extend_from_slice(name);
        self.buffer.push(0);
        self.len += 1;
        if self.buffer.len() >= self.full_at.max(RUN) {
            match self.spill() {
                Ok(()) => self.full_at = RUN,
                Err(e) => {
                    tracing::warn!(
                        "{}: cannot write the names of finished files to disk: {e}; they stay in memory, up to {} MiB, until a \
                         write succeeds",
                        self.dir.display(),
                        MOST_BUFFERED >> 20
                    );
                    self.full_at = self.buffer.len() + RUN;
                }
            }
        }
    }

    /// Returns the number of files in the list, including deleted ones.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if the list contains no files.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of files missing from the list because names could not be written to
    /// disk.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Makes iteration over the list skip files that no longer exist.
    pub fn keep_existing(&mut self) {
        self.only_existing = true;
    }

    /// Adds the files of another list to this one.
    pub fn absorb(&mut self, other: Self) {
        if self.is_empty() && self.lost == 0 {
            *self = other;
            return;
        }
        let same_dir = self.dir == other.dir;
        if same_dir {
            self.runs.extend(other.runs);
            self.len += other.len;
            for name in names(&other.buffer) {
                self.len -= 1;
                self.add(Path::new(std::ffi::OsStr::from_bytes(name)));
            }
        } else {
            for path in other.iter() {
                self.add(&path);
            }
        }
        self.lost += other.lost;
        self.only_existing |= other.only_existing;
    }

    /// Iterates over the listed files in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let only_existing = self.only_existing;
        self.merged()
            .filter(move |path| !only_existing || is_there(path))
    }

    fn merged(&self) -> MergedNames {
        let mut sources: Vec<NameSource> = self.runs.iter().map(NameSource::from_run).collect();
        sources.push(NameSource {
            run: None,
            piece: sorted(&self.buffer),
            at: 0,
        });
        let mut merged = MergedNames {
            dir: self.dir.clone(),
            next: BinaryHeap::new(),
            sources,
        };
        for source in 0..merged.sources.len() {
            merged.advance(source);
        }
        merged
    }

    /// Sorts the buffer of file names and appends it to the disk file of the list.
    fn spill(&mut self) -> io::Result<()> {
        let (file, start) = match self.spool.take() {
            Some(spool) => spool,
            None => (Arc::new(tempfile::tempfile_in(&self.dir)?), 0),
        };
        let names = sorted(&self.buffer);
        let written = file.write_all_at(&names, start);
        // A partial write to a full disk is overwritten by the next one.
        let end = start
            + if written.is_ok() {
                names.len() as u64
            } else {
                0
            };
        self.spool = Some((Arc::clone(&file), end));
        written?;
        self.buffer = Vec::new();
        self.runs.push(NameRun { file, start, end });
        Ok(())
    }

    /// Replaces the file list with one of the files that still exist, stored in another disk file.
    fn sweep(&mut self) {
        let mut left = Self::new(&self.dir);
        for path in self.merged().filter(|path| is_there(path)) {
            left.add(&path);
        }
        let swept_at = 2 * left.len + MANY;
        if left.lost == 0 {
            left.lost = self.lost;
            left.only_existing = self.only_existing;
            *self = left;
        }
        self.swept_at = Some(swept_at.max(self.len + MANY));
    }
}

fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Iterates over the NUL-terminated file names in a buffer.
fn names(buffer: &[u8]) -> impl Iterator<Item = &[u8]> {
    buffer
        .split_inclusive(|it| *it == 0)
        .map(|it| &it[..it.len() - 1])
}

/// Returns the file names of `buffer` in sorted order, each terminated by NUL.
fn sorted(buffer: &[u8]) -> Vec<u8> {
    let mut all: Vec<_> = names(buffer).map(std::ffi::OsStr::from_bytes).collect();
    all.sort_unstable_by(|a, b| Path::new(a).cmp(Path::new(b)));
    let mut sorted = Vec::with_capacity(buffer.len());
    for name in all {
        sorted.extend_from_slice(name.as_bytes());
        sorted.push(0);
    }
    sorted
}

/// Reader of one sorted sequence of file names, from disk in pieces of [`PIECE`] bytes.
struct NameSource {
    /// Part of the run of file names that has not been read from disk yet.
    run: Option<NameRun>,
    piece: Vec<u8>,
    at: usize,
}

impl NameSource {
    fn from_run(run: &NameRun) -> Self {
        Self {
            run: Some(run.clone()),
            piece: Vec::new(),
            at: 0,
        }
    }

    fn next(&mut self) -> io::Result<Option<PathBuf>> {
        let mut name = Vec::new();
        loop {
            let rest = &self.piece[self.at..];
            match rest.iter().position(|it| *it == 0) {
                Some(end) => {
                    name.extend_from_slice(&rest[..end]);
                    self.at += end + 1;
                    return Ok(Some(OsString::from_vec(name).into()));
                }
                None => name.extend_from_slice(rest),
            }
            let Some(run) = self.run.as_mut().filter(|it| it.start < it.end) else {
                return Ok(None);
            };
            let left = usize::try_from(run.end - run.start).unwrap_or(usize::MAX);
            self.piece.resize(left.min(PIECE), 0);
            self.at = 0;
            run.file.read_exact_at(&mut self.piece, run.start)?;
            run.start += self.piece.len() as u64;
        }
    }
}

/// Iterator that merges sorted sequences of file names.
struct MergedNames {
    dir: PathBuf,
    /// Next file name of each sorted sequence, with the sequence's index.
    next: BinaryHeap<Reverse<(PathBuf, usize)>>,
    sources: Vec<NameSource>,
}

impl MergedNames {
    fn advance(&mut self, source: usize) {
        match self.sources[source].next() {
            Ok(Some(name)) => self.next.push(Reverse((name, source))),
            Ok(None) => {}
            Err(e) => tracing::error!(
                "cannot read the names of finished capture files: {e}; the list of files in the summary is incomplete"
            ),
        }
    }
}

impl Iterator for MergedNames {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        let Reverse((name, source)) = self.next.pop()?;
        self.advance(source);
        Some(self.dir.join(name))
    }
}

/// Clones the list; the clone writes its later file names into another file.
impl Clone for FileList {
    fn clone(&self) -> Self {
        Self {
            dir: self.dir.clone(),
            buffer: self.buffer.clone(),
            full_at: self.full_at,
            runs: self.runs.clone(),
            spool: None,
            ..*self
        }
    }
}

impl fmt::Debug for FileList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileList of {} below {:?}", self.len, self.dir)
    }
}

/// Serializes the list as a sequence of paths, which are read one by one.
impl Serialize for FileList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<P: AsRef<Path>> FromIterator<P> for FileList {
    fn from_iter<I: IntoIterator<Item = P>>(paths: I) -> Self {
        let mut list = Self::new(Path::new(""));
        for path in paths {
            list.push(path.as_ref());
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_kib() -> u64 {
        let status = fs::read_to_string("/proc/self/status").expect("proc");
        let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
        let number = line.and_then(|it| it.trim().strip_suffix(" kB"));
        number
            .and_then(|it| it.trim().parse().ok())
            .expect("a number")
    }

    #[test]
    fn few_files_are_in_order_and_in_memory() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let mut list = FileList::new(dir.path());
        for name in ["b", "sub/a", "a", "c"] {
            list.push(&at(name));
        }
        let elsewhere = Path::new("/elsewhere/x");
        list.push(elsewhere);
        let all = [at("a"), at("b"), at("c"), at("sub/a"), elsewhere.to_owned()];
        let mut seen: Vec<_> = list.iter().collect();
        seen.sort();
        let mut sorted = all.to_vec();
        sorted.sort();
        assert_eq!(seen, sorted);
        fs::write(at("b"), "").expect("written");
        let mut other = FileList::new(dir.path());
        other.push(&at("z"));
        other.absorb(list.clone());
        assert_eq!(other.len(), 6);
        other.keep_existing();
        assert_eq!(other.iter().collect::<Vec<_>>(), [at("b")]);
        assert_eq!(
            serde_json::to_value(&other).expect("JSON"),
            serde_json::json!([at("b")])
        );
    }

    #[test]
    fn a_million_files_use_bounded_memory_and_stay_in_order() {
        let dir = tempfile::tempdir().expect("dir");
        let mut list = FileList::new(dir.path());
        // Finished by four queues in turn, so not in the order of names.
        let name = |i: u64| format!("wqcap-q{:02}-{}.pcapng", i % 4, 1_795_000_000 + i);
        let files = 1_000_000;
        let early = {
            (0..files / 10).for_each(|i| list.push(&dir.path().join(name(i))));
            resident_kib()
        };
        (files / 10..files).for_each(|i| list.push(&dir.path().join(name(i))));
        let late = resident_kib();
        assert_eq!(list.len(), files);
        assert!(list.runs.len() > 20, "{}", list.runs.len());
        assert!(list.buffer.capacity() <= 2 * RUN);
        let mut before = PathBuf::new();
        let mut count = 0;
        for path in list.iter() {
            assert!(path > before, "{path:?} after {before:?}");
            before = path;
            count += 1;
        }
        assert_eq!(count, files);
        let end = resident_kib();
        // 900,000 names are more than 30 MB. Other tests of the process may allocate memory
        // meanwhile.
        println!(
            "resident: {early} KiB with a tenth, {late} KiB with all, {end} KiB after reading"
        );
    }

    #[test]
    fn deleted_files_do_not_lengthen_the_list() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |i: u64| dir.path().join(format!("wqcap-q00-{i}.pcapng"));
        let mut list = FileList::with_deletions(dir.path());
        let stay = [5, 70_000, 199_999];
        for i in 0..200_000 {
            if stay.contains(&i) {
                fs::write(at(i), "").expect("written");
            }
            list.push(&at(i));
        }
        assert!(list.len() < 2 * MANY, "{}", list.len());
        list.keep_existing();
        // Paths sort as text: 199999 comes before 5.
        let left: Vec<_> = list.iter().collect();
        assert_eq!(left, [at(199_999), at(5), at(70_000)]);
    }

    #[test]
    fn memory_is_bounded_while_writes_to_disk_fail() {
        let mut list = FileList::new(Path::new("/nonexistent/folder"));
        let name = |i: u64| PathBuf::from(format!("/nonexistent/folder/wqcap-q00-{i:0100}.pcapng"));
        let files = 400_000;
        (0..files).for_each(|i| list.push(&name(i)));
        assert!(list.buffer.len() <= MOST_BUFFERED && list.lost() > 0);
        assert_eq!(list.len() + list.lost(), files);
        assert_eq!(list.iter().count() as u64, list.len());
    }
}
