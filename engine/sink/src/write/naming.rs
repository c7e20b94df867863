//! Names of the writer's files: the intended name of each file, and alternatives if it is taken.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use wqcap_files::name::NameTemplate;

/// Number of successive names that are tried for a capture file. If all are taken, as after a restart
/// under a template with coarse time fields, the steps between further names double.
const SUCCESSIVE: u32 = 1000;
/// Number of further names that are tried for a capture file: the last one is a thousand million names
/// away.
const FURTHER: u32 = 30;
/// Maximum number of attempts to create a capture file in a subdirectory that disappears before the
/// file is created: retention deletes empty subdirectories.
const FOLDER_TRIES: usize = 10;

/// Directory and naming scheme of a writer's capture files.
#[derive(Debug)]
pub(super) struct Naming {
    /// Output directory of the capture files.
    pub(super) dir: PathBuf,
    pub(super) template: NameTemplate,
    /// File name extension of the capture files: `pcap`, `pcap.zst` and so on.
    pub(super) ending: String,
    /// Intended name of each queue's latest file, and the number of the attempt whose name the file
    /// got.
    latest: Mutex<HashMap<Option<u16>, (String, u64)>>,
}

impl Naming {
    pub(super) fn new(dir: PathBuf, template: NameTemplate, ending: String) -> Self {
        Self {
            dir,
            template,
            ending,
            latest: Mutex::default(),
        }
    }

    /// Returns the number of the first naming attempt for a file with the intended name `first`. If
    /// the queue's latest file had the same intended name, attempts continue behind the name that
    /// it got: a name that is free again, because its file was deleted, would sort before those of
    /// earlier files.
    fn first_attempt(&self, queue: Option<u16>, first: &str) -> u64 {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match latest.get(&queue) {
            Some((name, attempt)) if name == first => attempt + 1,
            _ => 0,
        }
    }

    /// Creates the subdirectories of the capture file name `path`. Adds each new directory and its
    /// parent to `changed`.
    fn make_folders(&self, path: &Path, changed: &mut Vec<PathBuf>) -> io::Result<()> {
        let place = path.strip_prefix(&self.dir).unwrap_or(path);
        let mut folder = self.dir.clone();
        for name in place.parent().into_iter().flat_map(Path::components) {
            let parent = folder.clone();
            folder.push(name);
            match fs::create_dir(&folder) {
                Ok(()) => changed.extend([folder.clone(), parent]),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Calls `open` for the capture file name `path`, after creating the subdirectories. Repeats
    /// both if a subdirectory has disappeared.
    pub(super) fn open<T>(
        &self,
        path: &Path,
        changed: &mut Vec<PathBuf>,
        mut open: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let tries = if self.template.folder_depth() > 0 {
            FOLDER_TRIES
        } else {
            1
        };
        let mut opened = Err(io::ErrorKind::NotFound.into());
        for _ in 0..tries {
            opened = self.make_folders(path, changed).and_then(|()| open());
            if !matches!(&opened, Err(e) if e.kind() == io::ErrorKind::NotFound) {
                break;
            }
        }
        opened
    }
}

/// Iterator over the possible names of a capture file, the intended name first.
#[derive(Clone, Debug)]
pub(super) struct NameCandidates {
    naming: Arc<Naming>,
    queue: Option<u16>,
    /// Time stamp of the capture file's first record.
    ns: u64,
    /// Intended name of the capture file, which is tried first.
    first: String,
    /// Number of the naming attempt whose name the iterator returns next.
    attempt: u64,
    /// Number of the naming attempt whose name the iterator returned last.
    given: u64,
    /// Number of names that the iterator has returned.
    tried: u32,
}

impl NameCandidates {
    /// Creates the possible names of a capture file of `queue`, or of all queues if `None`, whose
    /// first record is stamped `ns`.
    pub(super) fn new(naming: &Arc<Naming>, queue: Option<u16>, ns: u64) -> Self {
        let first = naming.template.name(queue, ns, &naming.ending, 0);
        let attempt = naming.first_attempt(queue, &first);
        Self {
            naming: Arc::clone(naming),
            queue,
            ns,
            first,
            attempt,
            given: attempt,
            tried: 0,
        }
    }

    /// Records that the capture file got the name that the iterator returned last.
    pub(super) fn record_taken(&self) {
        let latest = &self.naming.latest;
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.insert(self.queue, (self.first.clone(), self.given));
    }
}

impl Iterator for NameCandidates {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        let Naming {
            dir,
            template,
            ending,
            ..
        } = &*self.naming;
        let further = self.tried.saturating_sub(SUCCESSIVE);
        if further == FURTHER {
            return None;
        }
        self.given = self.attempt;
        self.tried += 1;
        self.attempt += 1 << further;
        let name = template.name(self.queue, self.ns, ending, self.given);
        Some(dir.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, fs::File};

    #[test]
    fn a_name_that_is_free_again_is_not_given_to_a_later_file() {
        let naming = Naming::new("/x".into(), "%H".parse().expect("reads"), "pcap".into());
        let naming = Arc::new(naming);
        let next = |ns: u64, skip: usize| {
            let mut names = NameCandidates::new(&naming, None, ns);
            let name = names.nth(skip).expect("a name");
            names.record_taken();
            name.to_str().expect("text").to_owned()
        };
        assert_eq!(next(1, 0), "/x/00.pcap");
        assert_eq!(next(2, 2), "/x/00_003.pcap");
        assert_eq!(next(3, 0), "/x/00_004.pcap");
        assert_eq!(next(3_600_000_000_000, 0), "/x/01.pcap");
        assert_eq!(next(3_600_000_000_001, 0), "/x/01_001.pcap");
    }

    #[test]
    fn behind_many_files_of_one_name_the_next_free_name_is_found() {
        let naming = Naming::new("/x".into(), "%H".parse().expect("reads"), "pcap".into());
        let names = NameCandidates::new(&Arc::new(naming), None, 1);
        let taken = 50_000;
        let taken: HashSet<_> = names
            .clone()
            .take(1)
            .chain((1..taken).map(|it| {
                let name = names.naming.template.name(None, 1, "pcap", it);
                Path::new("/x").join(name)
            }))
            .collect();
        let tried: Vec<_> = names.take_while(|it| taken.contains(it)).collect();
        assert!(tried.len() < 1020, "{}", tried.len());
    }

    #[test]
    fn a_subdirectory_deleted_before_its_file_is_created_is_created_again() {
        let dir = tempfile::tempdir().expect("dir");
        let template = "%Y/%j/q{queue}".parse().expect("reads");
        let naming = Naming::new(dir.path().to_owned(), template, "pcap".into());
        let other = dir.path().join("1971/001/q03.pcap");
        let (mut changed, mut deleted) = (Vec::new(), 0);
        let opened = naming.open(&other, &mut changed, || {
            if deleted < 3 {
                deleted += 1;
                fs::remove_dir_all(dir.path().join("1971"))?;
            }
            File::create_new(&other)
        });
        assert!(opened.is_ok() && other.exists());
        // The number of attempts is limited.
        let gone = naming.open(&other, &mut changed, || {
            Err::<(), _>(io::ErrorKind::NotFound.into())
        });
        assert_eq!(gone.expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
