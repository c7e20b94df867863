//! Where files are, and the names that they get: of each file, the one it is to have and the others if that is taken.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
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
}

impl Naming {
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
    attempt: u64,
}

impl Names {
    /// For a file of a queue, or of all, whose first record is stamped `ns`.
    pub(super) fn new(naming: &Arc<Naming>, queue: Option<u16>, ns: u64) -> Self {
        Self {
            naming: Arc::clone(naming),
            queue,
            ns,
            attempt: 0,
        }
    }
}

impl Iterator for Names {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        let Naming {
            dir,
            template,
            ending,
        } = &*self.naming;
        let attempt = self.attempt;
        self.attempt += 1;
        let name = |()| template.name(self.queue, self.ns, ending, attempt);
        (attempt < NAMES)
            .then_some(())
            .map(name)
            .map(|it| dir.join(it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_folder_that_goes_at_the_very_moment_is_made_again() {
        let dir = tempfile::tempdir().expect("dir");
        let naming = Naming {
            dir: dir.path().to_owned(),
            template: "%Y/%j/q{queue}".parse().expect("reads"),
            ending: "pcap".into(),
        };
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
