//! The files that a run has finished: in memory while they are few, then on the disk. A run of a year with a file a second
//! has 31 million of them.
//!
//! ```text
//! push -> buffer, at most RUN bytes -> sorted, behind the others in a file without a name -> merged when they are read
//! ```
//!
//! Invariants: memory is bounded by a constant, and while the list is read by `PIECE` bytes for each `RUN` bytes of names.
//! Nothing of a list is left on the disk when the process has ended.

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

/// Bytes of names in memory before they go to the disk.
const RUN: usize = 1 << 20;
/// Bytes of names in memory while the disk takes none; further names are lost.
const MOST_BUFFERED: usize = 32 << 20;
/// Bytes that are read at once of each run.
const PIECE: usize = 4096;
/// Files that are listed before those that are gone are looked for.
const MANY: u64 = 1 << 16;

/// Paths of finished files, below one folder.
#[derive(Default)]
pub struct FileList {
    dir: PathBuf,
    /// Names that are not on the disk yet, each with a NUL behind it.
    buffer: Vec<u8>,
    /// Length of the buffer at which it is next written.
    full_at: usize,
    /// Sorted names on the disk.
    runs: Vec<Run>,
    /// Where this list writes runs, and how far; `None`: it has not written any.
    spool: Option<(Arc<File>, u64)>,
    /// Files in the list.
    len: u64,
    /// Length of the list at which files that are gone are next left out; `None`: never.
    swept_at: Option<u64>,
    /// Only files that are still there are read from the list.
    only_existing: bool,
    /// Files that are not in the list, since the disk took no names.
    lost: u64,
}

/// Names in their order, in a part of a file.
#[derive(Clone)]
struct Run {
    file: Arc<File>,
    start: u64,
    end: u64,
}

impl FileList {
    /// A list of files below `dir`, where its own file without a name is made if it becomes long.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
            full_at: RUN,
            ..Self::default()
        }
    }

    /// A list like [`FileList::new`], of files that may be deleted while the list grows: it does not grow with those.
    #[must_use]
    pub fn with_deletions(dir: &Path) -> Self {
        Self {
            swept_at: Some(MANY),
            ..Self::new(dir)
        }
    }

    /// Adds a file.
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
                        "{}: cannot note names of finished files: {e}; they stay in memory, up to {} MiB of them, until that \
                         works again",
                        self.dir.display(),
                        MOST_BUFFERED >> 20
                    );
                    self.full_at = self.buffer.len() + RUN;
                }
            }
        }
    }

    /// Files in the list, with those that are gone.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no file is in the list.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Files that are missing in the list, since the disk took no names.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Leaves out files that are gone when the list is read.
    pub fn keep_existing(&mut self) {
        self.only_existing = true;
    }

    /// Adds another list's files.
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

    /// The files in the order of their paths.
    pub fn iter(&self) -> impl Iterator<Item = PathBuf> + use<> {
        let only_existing = self.only_existing;
        self.merged()
            .filter(move |path| !only_existing || is_there(path))
    }

    fn merged(&self) -> Merged {
        let mut sources: Vec<Source> = self.runs.iter().map(Source::of_run).collect();
        sources.push(Source {
            run: None,
            piece: sorted(&self.buffer),
            at: 0,
        });
        let mut merged = Merged {
            dir: self.dir.clone(),
            next: BinaryHeap::new(),
            sources,
        };
        for source in 0..merged.sources.len() {
            merged.advance(source);
        }
        merged
    }

    /// Writes the buffer behind what is on the disk.
    fn spill(&mut self) -> io::Result<()> {
        let (file, start) = match self.spool.take() {
            Some(spool) => spool,
            None => (Arc::new(tempfile::tempfile_in(&self.dir)?), 0),
        };
        let names = sorted(&self.buffer);
        let written = file.write_all_at(&names, start);
        // What a full disk has taken of it is written over.
        let end = start
            + if written.is_ok() {
                names.len() as u64
            } else {
                0
            };
        self.spool = Some((Arc::clone(&file), end));
        written?;
        self.buffer = Vec::new();
        self.runs.push(Run { file, start, end });
        Ok(())
    }

    /// Replaces the list by one of the files that still exist, on the disk in another file.
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

/// The names in a buffer.
fn names(buffer: &[u8]) -> impl Iterator<Item = &[u8]> {
    buffer
        .split_inclusive(|it| *it == 0)
        .map(|it| &it[..it.len() - 1])
}

/// A buffer with its names in order.
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

/// One sorted row of names.
struct Source {
    /// Names that have not been read from the disk.
    run: Option<Run>,
    piece: Vec<u8>,
    at: usize,
}

impl Source {
    fn of_run(run: &Run) -> Self {
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

/// Merges sorted rows of names.
struct Merged {
    dir: PathBuf,
    /// Each source's next name.
    next: BinaryHeap<Reverse<(PathBuf, usize)>>,
    sources: Vec<Source>,
}

impl Merged {
    fn advance(&mut self, source: usize) {
        match self.sources[source].next() {
            Ok(Some(name)) => self.next.push(Reverse((name, source))),
            Ok(None) => {}
            Err(e) => tracing::error!("names of finished files are missing: cannot read them: {e}"),
        }
    }
}

impl Iterator for Merged {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        let Reverse((name, source)) = self.next.pop()?;
        self.advance(source);
        Some(self.dir.join(name))
    }
}

/// The copy spills later names into another file.
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

/// A sequence of paths, which are read one after the other.
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
    fn a_million_files_take_a_bounded_memory_and_stay_in_order() {
        let dir = tempfile::tempdir().expect("dir");
        let mut list = FileList::new(dir.path());
        // As four queues finish them: not in the order of names.
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
        // 900,000 names are 30 MB and more; other tests of the process may take some memory meanwhile.
        println!(
            "resident: {early} KiB with a tenth, {late} KiB with all, {end} KiB after reading"
        );
    }

    #[test]
    fn files_that_are_deleted_meanwhile_do_not_lengthen_the_list() {
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
        // As paths are in order: 199999 before 5.
        let left: Vec<_> = list.iter().collect();
        assert_eq!(left, [at(199_999), at(5), at(70_000)]);
    }

    #[test]
    fn a_disk_that_takes_nothing_costs_a_bounded_memory() {
        let mut list = FileList::new(Path::new("/nonexistent/folder"));
        let name = |i: u64| PathBuf::from(format!("/nonexistent/folder/wqcap-q00-{i:0100}.pcapng"));
        let files = 400_000;
        (0..files).for_each(|i| list.push(&name(i)));
        assert!(list.buffer.len() <= MOST_BUFFERED && list.lost() > 0);
        assert_eq!(list.len() + list.lost(), files);
        assert_eq!(list.iter().count() as u64, list.len());
    }
}
