//! `output.encrypt_key`: the thread that encrypts files as they are finished, behind everything else. Whoever follows
//! finished files (retention, hooks, indexes) hears of a file when it is encrypted.
//!
//! Invariants: a file that cannot be encrypted stays as it is, is told as a failure, and goes on to the others. What an
//! earlier run has left plain in the folder is encrypted first.

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
use wqcap_core::{error::ResourceError, sync::thread::Follower, text::counted};
use wqcap_files::{
    file_list::FileList,
    folder::CaptureFolder,
    name::{FileName, is_sealed},
    sealed::{Content, SecretKey, seal, sealed_name, sweep},
};

/// How long the end of a run waits for files that are still to be encrypted.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes compared at once.
const PIECE: usize = 1 << 20;

/// What became of finished files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, AddAssign)]
pub struct EncryptionReport {
    /// Files that were encrypted, of this run or left by an earlier one.
    pub files: u64,
    /// Bytes of their content.
    pub bytes: u64,
    /// Files that could not be encrypted, and stay as they are.
    pub failed: u64,
    /// Files for which there was no time at the end; the next run encrypts them.
    pub left: u64,
}

/// What the thread leaves.
#[derive(Debug, Default)]
pub(crate) struct SealedFiles {
    pub(crate) report: EncryptionReport,
    /// Files of this run, by the names that they have now.
    pub(crate) listed: FileList,
    pub(crate) failures: Vec<String>,
}

/// Finished files that wait to be encrypted at most; the folder is listed again for others.
const WAITING: usize = 4096;

/// Sends finished files to the thread.
pub(super) struct SealQueue {
    files: Sender<PathBuf>,
    /// Files found no room, and are in the folder alone.
    missed: Arc<AtomicBool>,
}

impl SealQueue {
    pub(super) fn send(&self, file: &Path) {
        if self.files.try_send(file.to_owned()).is_err() {
            self.missed.store(true, Ordering::Release);
        }
    }
}

/// The running thread.
pub(super) struct Sealer(Follower<SealedFiles>);

impl Sealer {
    /// Starts the thread for the files of a folder. Finished ones are sent to the channel that comes with it, and told of to
    /// `next` when they are encrypted; the thread ends when the channel's sender is gone.
    pub(super) fn start(
        key: Arc<SecretKey>,
        dir: &Path,
        output: &OutputPlan,
        next: CloseNotifier,
        listed: FileList,
    ) -> Result<(Self, SealQueue), ResourceError> {
        let (files, waiting) = crossbeam_channel::bounded(WAITING);
        let missed = Arc::<AtomicBool>::default();
        let work = Work {
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
        let follower = Follower::start("wqcap-seal", move |ended| work.run(&waiting, ended))?;
        Ok((Self(follower), SealQueue { files, missed }))
    }

    /// Waits for what is still to be done, but not for ever. The sender must be gone.
    pub(super) fn finish(self) -> SealedFiles {
        let sealed = self.0.finish(PATIENCE).unwrap_or_default();
        if sealed.report.left > 0 {
            tracing::warn!(
                "{} not encrypted yet: the disk did not keep up; the next run of this configuration encrypts them",
                counted(sealed.report.left, "file")
            );
        }
        sealed
    }
}

struct Work {
    key: Arc<SecretKey>,
    dir: PathBuf,
    output: OutputPlan,
    missed: Arc<AtomicBool>,
    next: CloseNotifier,
    sealed: SealedFiles,
}

impl Work {
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

    /// Encrypts what is plain in the folder.
    fn seal_plain(&mut self, by: FinishedBy, ended: &AtomicBool) {
        match self.left_behind() {
            Ok(plain) => plain
                .into_iter()
                .for_each(|path| self.seal(path, by, ended)),
            Err(e) => {
                let shown = self.dir.display();
                tracing::warn!("{shown}: what was left unencrypted stays so: {e}");
            }
        }
    }

    /// Finished files that an earlier run has left plain. What it was about to encrypt is removed.
    fn left_behind(&self) -> io::Result<Vec<PathBuf>> {
        let name = &self.output.name;
        sweep(&self.dir, name.folders())?;
        let own: Vec<_> = if name.is_default() {
            let files = CaptureFolder::list_to(&self.dir, 0)?.finished.into_iter();
            let files = files.map(|(path, _)| path);
            files.filter(|it| FileName::parse(it).is_some()).collect()
        } else {
            let files = OwnFiles::new(name.clone()).list(&self.dir)?.into_iter();
            files.map(|it| it.path).collect()
        };
        Ok(own.into_iter().filter(|it| !is_sealed(it)).collect())
    }

    fn seal(&mut self, path: PathBuf, by: FinishedBy, ended: &AtomicBool) {
        let done = seal(&path, &self.key, || !ended.load(Ordering::Relaxed));
        let report = &mut self.sealed.report;
        match done {
            Ok(Some(sealed)) => {
                report.files += 1;
                report.bytes += sealed.bytes;
                self.publish(&sealed.path, by);
            }
            Ok(None) => {
                report.left += 1;
                self.list(&path, by);
            }
            // Retention was faster, or who finishes the files that a killed run left.
            Err(_) if !path.exists() => {}
            // A crash came between the encrypted file's new name and the deletion of the plain one.
            Err(e) if e.kind() == ErrorKind::AlreadyExists && is_whole(&path) => {
                drop(std::fs::remove_file(&path));
                self.publish(&sealed_name(&path), by);
            }
            Err(e) => {
                report.failed += 1;
                let failure = format!("cannot encrypt {}: {e}; it stays as it is", path.display());
                tracing::error!("{failure}");
                self.sealed.failures.push(failure);
                self.publish(&path, by);
            }
        }
    }

    fn publish(&mut self, path: &Path, by: FinishedBy) {
        self.next.publish(path, by);
        self.list(path, by);
    }

    fn list(&mut self, path: &Path, by: FinishedBy) {
        if matches!(by, FinishedBy::ThisRun { .. }) {
            self.sealed.listed.push(path);
        }
    }
}

/// Whether a plain file's content is in the encrypted one beside it.
fn is_whole(plain: &Path) -> bool {
    let both = || {
        let [mut one, mut other] = [plain, &sealed_name(plain)].map(Content::open);
        let (one, other) = (one.as_mut(), other.as_mut());
        let (Ok(one), Ok(other)) = (one, other) else {
            return Ok(false);
        };
        loop {
            let [mut a, mut b] = [(); 2].map(|()| Vec::with_capacity(PIECE));
            one.take(PIECE as u64).read_to_end(&mut a)?;
            other.take(PIECE as u64).read_to_end(&mut b)?;
            if a != b || a.is_empty() {
                return Ok::<_, io::Error>(a == b);
            }
        }
    };
    both().unwrap_or(false)
}
