//! What happens to files after they are finished: old ones go, hooks run, indexes are made. Nothing here is waited for while frames flow.

pub(super) mod gauge;
pub(super) mod hook;
mod indexer;
mod own_files;
mod pinned;
pub(super) mod retention;
pub(super) mod sealer;
mod unshipped;

use crate::{
    Files,
    post::{
        gauge::RetentionGauge,
        hook::{HookReport, HookSender},
        indexer::Indexer,
        retention::{DeletedFiles, FinishedBy, RetentionTrigger},
        sealer::{SealQueue, SealedFiles, Sealer},
    },
};
use crossbeam_channel::Sender;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};
use wqcap_core::error::ResourceError;
use wqcap_files::file_list::FileList;

/// The threads that look after finished files, as far as they are wanted.
pub(super) struct PostClose {
    keeper: Option<JoinHandle<DeletedFiles>>,
    gauge: Option<RetentionGauge>,
    hooks: Option<JoinHandle<HookReport>>,
    indexer: Option<Indexer>,
    /// Files that were not indexed, since too many waited.
    unindexed: Arc<AtomicU64>,
    sealer: Option<Sealer>,
}

/// What has become of finished files.
#[derive(Debug, Default)]
pub(super) struct Followed {
    pub(super) sealed: Option<SealedFiles>,
    pub(super) deleted: Option<DeletedFiles>,
    pub(super) hooks: Option<HookReport>,
}

/// Tells them of finished files; they end when it is gone.
pub(super) struct CloseNotifier {
    trigger: Option<RetentionTrigger>,
    hooks: Option<HookSender>,
    indexer: Option<Sender<PathBuf>>,
    unindexed: Arc<AtomicU64>,
    /// Tells all the others, when it has encrypted the file.
    sealer: Option<SealQueue>,
}

impl CloseNotifier {
    /// For the writer, to ask for room.
    pub(super) fn trigger(&self) -> Option<RetentionTrigger> {
        self.trigger.clone()
    }

    /// Whether files are encrypted first.
    pub(super) fn seals(&self) -> bool {
        self.sealer.is_some()
    }

    /// A file is finished.
    pub(super) fn publish(&self, file: &Path, by: FinishedBy) {
        // Their threads outlive these senders.
        if let Some(sealer) = &self.sealer {
            sealer.send(file);
            return;
        }
        if let Some(trigger) = &self.trigger {
            trigger.finished(file, by);
        }
        if let Some(hooks) = &self.hooks {
            hooks.send(file);
        }
        if let Some(indexer) = &self.indexer {
            // Whoever needs its index then builds it.
            if indexer.try_send(file.to_owned()).is_err() {
                self.unindexed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A list for the finished files, none of which is in it yet.
pub(super) fn list(files: &Files) -> FileList {
    let output = &files.output;
    // Hooks move files away, and what is not there any more is not worth a place.
    match output.retention.is_everything() && output.hook.is_none() {
        true => FileList::new(files.dir()),
        false => FileList::with_deletions(files.dir()),
    }
}

impl PostClose {
    pub(super) fn start(files: &Files) -> Result<(Self, CloseNotifier), ResourceError> {
        let (dir, output) = (files.dir(), &files.output);
        let keep = (!output.retention.is_everything())
            .then(|| retention::start(dir, output, &files.finish_times));
        let (keeper, trigger, gauge) = match keep.transpose()? {
            Some((keeper, trigger, gauge)) => (Some(keeper), Some(trigger), Some(gauge)),
            None => (None, None, None),
        };
        let hook = output.hook.as_ref();
        let hook = hook.map(|program| hook::start(program, files.hook_process.clone()));
        let (hooks, hook_files) = hook.transpose()?.unzip();
        let index = output.index_dir.as_ref();
        let index = index.map(|folder| Indexer::start(folder, dir));
        let (indexer, index_files) = index.transpose()?.unzip();
        let unindexed = Arc::<AtomicU64>::default();
        let mut notifier = CloseNotifier {
            trigger: trigger.clone(),
            hooks: hook_files,
            indexer: index_files,
            unindexed: Arc::clone(&unindexed),
            sealer: None,
        };
        let mut sealer = None;
        if let Some(key) = &files.at_rest {
            let (running, plain) =
                Sealer::start(Arc::clone(key), dir, output, notifier, list(files))?;
            sealer = Some(running);
            notifier = CloseNotifier {
                trigger,
                hooks: None,
                indexer: None,
                unindexed: Arc::clone(&unindexed),
                sealer: Some(plain),
            };
        }
        let it = Self {
            keeper,
            gauge,
            hooks,
            indexer,
            unindexed,
            sealer,
        };
        Ok((it, notifier))
    }

    /// What retention finds; `None`: nothing is ever deleted.
    pub(super) fn gauge(&self) -> Option<RetentionGauge> {
        self.gauge.clone()
    }

    /// Waits until the last file is encrypted, for the last look, the last hooks and the last indexes, but for retention not
    /// for ever. The notifier must be gone.
    pub(super) fn finish(self) -> Followed {
        // The others hear of files from it.
        let sealed = self.sealer.map(Sealer::finish);
        if let Some(indexer) = self.indexer {
            indexer.finish(self.unindexed.load(Ordering::Relaxed));
        }
        Followed {
            sealed,
            deleted: self.keeper.map(|it| it.join().unwrap_or_default()),
            hooks: self.hooks.map(|it| it.join().unwrap_or_default()),
        }
    }
}
