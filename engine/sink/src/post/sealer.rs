//! Thread that encrypts finished files (`output.encrypt_key`), at low priority. The other threads for
//! finished files (retention, hooks, indexing) get a file after it is encrypted.
//!
//! Invariants: a file that cannot be encrypted stays as it is, is reported as a failure, and is passed
//! to the other threads. Files that an earlier run left unencrypted in the directory are encrypted
//! first.

use super::{CloseNotifier, own_files::OwnFiles, retention::FinishedBy};
use crate::OutputPlan;
use crossbeam_channel::{Receiver, Sender};
use derive_more::AddAssign;
use serde::Serialize;
use std::{
    io::{self, ErrorKind, Read},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use wqcap_core::{error::ResourceError, sync::thread::BoundedThread, text::counted};
use wqcap_files::{
    folder::CaptureFolder,
    folder::{file_list::FileList, held::remove_below},
    name::{FileName, is_sealed},
    sealed::{Content, SecretKey, seal, sealed_name, sweep},
};

/// Longest wait at the end of a run for finished files that are still to be encrypted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of bytes that are compared at a time between a plain file and its encrypted file.
const PIECE: usize = 1 << 20;

/// Numbers of capture files encrypted and not encrypted in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
#[non_exhaustive]
pub struct EncryptionReport {
    /// Number of encrypted capture files, of this run or left by an earlier one.
    pub files: u64,
    /// Number of bytes of the encrypted capture files before their encryption.
    pub bytes: u64,
    /// Number of capture files that could not be encrypted and stay as they are.
    pub failed: u64,
    /// Number of capture files not encrypted before the end of the run. The next run encrypts them.
    pub left: u64,
}

/// Result of the encryption thread: its report, its files and its failures.
#[derive(Debug, Default)]
pub(crate) struct SealedFiles {
    pub(crate) report: EncryptionReport,
    /// Finished files of this run under their current names.
    pub(crate) listed: FileList,
    pub(crate) failures: Vec<String>,
}

/// Maximum number of finished files that wait to be encrypted. Further files are found by listing
/// the output directory again.
const WAITING: usize = 4096;

/// Queue of finished files for the encryption thread.
pub(super) struct SealQueue {
    files: Sender<PathBuf>,
    /// Set when the queue of files to encrypt was full, so that the output directory must be listed
    /// again.
    missed: Arc<AtomicBool>,
}

impl SealQueue {
    pub(super) fn send(&self, file: &Path) {
        if self.files.try_send(file.to_owned()).is_err() {
            self.missed.store(true, Ordering::Release);
        }
    }
}

/// Handle of the encryption thread.
pub(super) struct Sealer(BoundedThread<SealedFiles>);

impl Sealer {
    /// Starts the encryption thread for the files of directory `dir`. Finished files are sent to
    /// the returned queue and published to `next` when they are encrypted. The thread ends when the
    /// queue is dropped.
    pub(super) fn start(
        key: SecretKey,
        dir: &Path,
        output: &OutputPlan,
        next: CloseNotifier,
        listed: FileList,
    ) -> Result<(Self, SealQueue), ResourceError> {
        let (files, waiting) = crossbeam_channel::bounded(WAITING);
        let missed = Arc::<AtomicBool>::default();
        let work = SealerThread {
            key,
            dir: dir.to_owned(),
            output: output.clone(),
            missed: Arc::clone(&missed),
            next,
            sealed: SealedFiles {
                listed,
                ..SealedFiles::default()
            },
        };
        let follower = BoundedThread::start("wqcap-seal", move |ended| work.run(&waiting, ended))?;
        Ok((Self(follower), SealQueue { files, missed }))
    }

    /// Waits for the encryption thread to encrypt the remaining files, for at most [`PATIENCE`].
    /// The queue must be dropped before.
    pub(super) fn finish(self) -> SealedFiles {
        let sealed = self.0.finish(PATIENCE).unwrap_or_default();
        if sealed.report.left > 0 {
            tracing::warn!(
                "{} not encrypted at the end of the run: the disk did not keep up; the next run with this \
                 configuration encrypts them",
                counted(sealed.report.left, "file")
            );
        }
        sealed
    }
}

struct SealerThread {
    key: SecretKey,
    dir: PathBuf,
    output: OutputPlan,
    missed: Arc<AtomicBool>,
    next: CloseNotifier,
    sealed: SealedFiles,
}

impl SealerThread {
    fn run(mut self, files: &Receiver<PathBuf>, ended: &AtomicBool) -> SealedFiles {
        self.seal_plain(FinishedBy::AnEarlierRun, ended);
        let by = FinishedBy::ThisRun { frames: None };
        for file in files {
            self.seal(file, by, ended);
            if files.is_empty() && self.missed.swap(false, Ordering::AcqRel) {
                self.seal_plain(by, ended);
            }
        }
        if self.missed.swap(false, Ordering::AcqRel) {
            self.seal_plain(by, ended);
        }
        self.sealed
    }

    /// Encrypts the plain capture files in the output directory.
    fn seal_plain(&mut self, by: FinishedBy, ended: &AtomicBool) {
        match self.left_behind() {
            Ok(plain) => plain
                .into_iter()
                .for_each(|path| self.seal(path, by, ended)),
            Err(e) => {
                let shown = self.dir.display();
                tracing::warn!(
                    "{shown}: cannot list the capture files that are not encrypted yet: {e}; these files stay unencrypted"
                );
            }
        }
    }

    /// Returns the finished capture files that an earlier run left plain. Removes that run's
    /// incomplete encrypted files.
    fn left_behind(&self) -> io::Result<Vec<PathBuf>> {
        let name = &self.output.name;
        sweep(&self.dir, name.folder_depth())?;
        let own: Vec<_> = if name.is_default() {
            let files = CaptureFolder::list_to(&self.dir, 0)?.finished.into_iter();
            let files = files.map(|(path, _)| path);
            files.filter(|it| FileName::parse(it).is_some()).collect()
        } else {
            let files = OwnFiles::new(name.clone(), Some(self.key.clone()));
            let files = files.list(&self.dir)?.into_iter();
            files.map(|it| it.path).collect()
        };
        Ok(own.into_iter().filter(|it| !is_sealed(it)).collect())
    }

    fn seal(&mut self, path: PathBuf, by: FinishedBy, ended: &AtomicBool) {
        let done = seal(&self.dir, &path, &self.key, || {
            !ended.load(Ordering::Relaxed)
        });
        match done {
            Ok(Some(sealed)) => {
                self.sealed.report.files += 1;
                self.sealed.report.bytes += sealed.bytes;
                self.publish(&sealed.path, by);
            }
            Ok(None) => {
                self.sealed.report.left += 1;
                self.add_to_list(&path, by);
            }
            // A crash happened between the renaming of the encrypted file and the deletion of the plain one.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && self.is_whole(&path) => {
                drop(remove_below(&self.dir, &path));
                self.publish(&sealed_name(&path), by);
            }
            // The file was deleted by retention, renamed by a recovery, or encrypted by another capture
            // meanwhile.
            Err(_) if !path.exists() => {}
            Err(e) => {
                self.sealed.report.failed += 1;
                let failure = format!(
                    "cannot encrypt {}: {e}; the file stays unencrypted",
                    path.display()
                );
                tracing::error!("{failure}");
                self.sealed.failures.push(failure);
                self.publish(&path, by);
            }
        }
    }

    fn publish(&mut self, path: &Path, by: FinishedBy) {
        self.next.publish(path, by);
        self.add_to_list(path, by);
    }

    fn add_to_list(&mut self, path: &Path, by: FinishedBy) {
        if matches!(by, FinishedBy::ThisRun { .. }) {
            self.sealed.listed.push(path);
        }
    }

    /// Returns `true` if the encrypted file of a plain capture file exists with the same content.
    fn is_whole(&self, plain: &Path) -> bool {
        let same = || {
            let mut one = Content::open(plain, None)?;
            let mut other = Content::open(&sealed_name(plain), Some(&self.key))?;
            loop {
                let [mut a, mut b] = [(); 2].map(|()| Vec::with_capacity(PIECE));
                one.by_ref().take(PIECE as u64).read_to_end(&mut a)?;
                other.by_ref().take(PIECE as u64).read_to_end(&mut b)?;
                if a != b || a.is_empty() {
                    return Ok::<_, io::Error>(a == b);
                }
            }
        };
        same().unwrap_or(false)
    }
}
