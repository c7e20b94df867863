//! Where files are, and the names that they get: of each file, the one it is to have and the others if that is taken.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};
use wqcap_files::name::NameTemplate;

/// Names that are tried for a file.
pub(super) const NAMES: u64 = 1000;
/// How often a sub folder is made that is gone when its first file is to be created: retention deletes emptied ones.
const FOLDER_TRIES: usize = 10;

/// Where files are, and how they are named.
#[derive(Debug)]
pub(super) struct Naming {
    pub(super) dir: PathBuf,
    pub(super) template: NameTemplate,
    /// `pcap`, `pcap.zst` and so on.
    pub(super) ending: String,
    /// The latest file of each queue: the name that it was to have, and which of the names for that it got.
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

    /// Returns the first attempt for a file that is to have the name `first`: behind that of the latest file, if that was to
    /// have the same name. A name that is free again, since its file was deleted, would sort before those of earlier files.
    fn first_attempt(&self, queue: Option<u16>, first: &str) -> u64 {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        match latest.get(&queue) {
            Some((name, attempt)) if name == first => attempt + 1,
            _ => 0,
        }
    }

    /// Makes the sub folders that a file of this name is in. Those whose names changed are added to `changed`: each new
    /// folder and the one that it is in.
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

    /// Opens a file of this name in its sub folder.
    pub(super) fn open<T>(
        &self,
        path: &Path,
        changed: &mut Vec<PathBuf>,
        mut open: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let tries = if self.template.folders() > 0 {
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

/// The names that a file may get, the one it is to have first.
#[derive(Clone, Debug)]
pub(super) struct Names {
    naming: Arc<Naming>,
    queue: Option<u16>,
    /// Stamp of its first record.
    ns: u64,
    /// The name that it is to have.
    first: String,
    attempt: u64,
    /// The attempt at which all names were tried.
    end: u64,
}

impl Names {
    /// For a file of a queue, or of all, whose first record is stamped `ns`.
    pub(super) fn new(naming: &Arc<Naming>, queue: Option<u16>, ns: u64) -> Self {
        let first = naming.template.name(queue, ns, &naming.ending, 0);
        let attempt = naming.first_attempt(queue, &first);
        Self {
            naming: Arc::clone(naming),
            queue,
            ns,
            first,
            attempt,
            end: attempt + NAMES,
        }
    }

    /// Notes that the file has the name which was returned last.
    pub(super) fn taken(&self) {
        let latest = &self.naming.latest;
        let mut latest = latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest.insert(self.queue, (self.first.clone(), self.attempt - 1));
    }
}

impl Iterator for Names {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        let Naming {
            dir,
            template,
            ending,
            ..
        } = &*self.naming;
        if self.attempt == self.end {
            return None;
        }
        let name = template.name(self.queue, self.ns, ending, self.attempt);
        self.attempt += 1;
        Some(dir.join(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_name_that_is_free_again_is_not_given_to_a_later_file() {
        let naming = Naming::new("/x".into(), "%H".parse().expect("reads"), "pcap".into());
        let naming = Arc::new(naming);
        let next = |ns: u64, skip: usize| {
            let mut names = Names::new(&naming, None, ns);
            let name = names.nth(skip).expect("a name");
            names.taken();
            name.to_str().expect("text").to_owned()
        };
        assert_eq!(next(1, 0), "/x/00.pcap");
        assert_eq!(next(2, 2), "/x/00_003.pcap");
        assert_eq!(next(3, 0), "/x/00_004.pcap");
        assert_eq!(next(3_600_000_000_000, 0), "/x/01.pcap");
        assert_eq!(next(3_600_000_000_001, 0), "/x/01_001.pcap");
    }

    #[test]
    fn a_folder_that_goes_at_the_very_moment_is_made_again() {
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
        // Not for ever.
        let gone = naming.open(&other, &mut changed, || {
            Err::<(), _>(io::ErrorKind::NotFound.into())
        });
        assert_eq!(gone.expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}
