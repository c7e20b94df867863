//! Processing of finished files: retention, hooks, encryption and indexing. The capture does not wait
//! for it while frames flow.

pub(super) mod gauge;
pub(super) mod hook;
mod indexer;
mod own_files;
mod pinned;
pub(super) mod retention;
pub(super) mod sealer;
mod unshipped;

use crate::{
    Retention, WriterConfig,
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
use wqcap_files::folder::file_list::FileList;

/// Handles of the configured threads that process finished capture files.
pub(super) struct PostClose {
    keeper: JoinHandle<Option<DeletedFiles>>,
    trigger: RetentionTrigger,
    gauge: RetentionGauge,
    hooks: Option<JoinHandle<HookReport>>,
    indexer: Option<Indexer>,
    /// Number of finished files not passed to the indexing thread because too many were waiting.
    unindexed: Arc<AtomicU64>,
    sealer: Option<Sealer>,
}

/// Results of the threads that processed finished capture files.
#[derive(Debug, Default)]
pub(super) struct PostCloseReport {
    pub(super) sealed: Option<SealedFiles>,
    pub(super) deleted: Option<DeletedFiles>,
    pub(super) hooks: Option<HookReport>,
}

/// Sender of finished capture files to the threads that process them. The threads end when it is
/// dropped.
pub(super) struct CloseNotifier {
    trigger: RetentionTrigger,
    hooks: Option<HookSender>,
    indexer: Option<Sender<PathBuf>>,
    unindexed: Arc<AtomicU64>,
    /// Queue of the encryption thread, which notifies the other threads after it encrypted a file.
    sealer: Option<SealQueue>,
}

impl CloseNotifier {
    /// Returns the trigger of the retention thread by which the writer requests space on a full
    /// disk.
    pub(super) fn trigger(&self) -> RetentionTrigger {
        self.trigger.clone()
    }

    /// Returns `true` if finished capture files are encrypted before other threads process them.
    pub(super) fn seals(&self) -> bool {
        self.sealer.is_some()
    }

    /// Sends a finished capture file to the threads that process it.
    pub(super) fn publish(&self, file: &Path, by: FinishedBy) {
        // The threads outlive these senders.
        if let Some(sealer) = &self.sealer {
            sealer.send(file);
            return;
        }
        self.trigger.record_finished(file, by);
        if let Some(hooks) = &self.hooks {
            hooks.send(file);
        }
        if let Some(indexer) = &self.indexer {
            // The first command that needs the index builds it.
            if indexer.try_send(file.to_owned()).is_err() {
                self.unindexed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Creates an empty list for the finished capture files of a run.
pub(super) fn list(files: &WriterConfig) -> FileList {
    let output = &files.output;
    // Retention and hooks may remove files, and the list drops files that do not exist any more.
    match output.retention.is_everything() && output.hook.is_none() {
        true => FileList::new(files.dir()),
        false => FileList::with_deletions(files.dir()),
    }
}

impl PostClose {
    pub(super) fn start(files: &WriterConfig) -> Result<(Self, CloseNotifier), ResourceError> {
        let (dir, output) = (files.dir(), &files.output);
        let key = files.at_rest.as_ref();
        let (keeper, trigger, gauge) = retention::start(dir, output, &files.finish_times, key)?;
        let hook = output.hook.as_ref();
        let hook = hook.map(|program| hook::start(program, files.hook_process.clone()));
        let (hooks, hook_files) = hook.transpose()?.unzip();
        let index = output.index_dir.as_ref();
        let index = index.map(|folder| Indexer::start(folder, dir, files.at_rest.clone()));
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
            let (running, plain) = Sealer::start(key.clone(), dir, output, notifier, list(files))?;
            sealer = Some(running);
            notifier = CloseNotifier {
                trigger: trigger.clone(),
                hooks: None,
                indexer: None,
                unindexed: Arc::clone(&unindexed),
                sealer: Some(plain),
            };
        }
        let it = Self {
            keeper,
            trigger,
            gauge,
            hooks,
            indexer,
            unindexed,
            sealer,
        };
        Ok((it, notifier))
    }

    /// Returns the gauge of the retention thread.
    pub(super) fn gauge(&self) -> RetentionGauge {
        self.gauge.clone()
    }

    /// Returns the present retention limits on finished capture files.
    pub(super) fn retention(&self) -> Retention {
        self.trigger.limits()
    }

    /// Replaces the retention limits on finished capture files. The retention thread applies them
    /// at once.
    pub(super) fn set_retention(&self, limits: Retention) {
        self.trigger.set_limits(limits);
    }

    /// Waits for the threads to process the last finished files. The waits for encryption, hooks
    /// and indexes are limited; the wait for retention is not. The notifier must be dropped before.
    pub(super) fn finish(self) -> PostCloseReport {
        // First, because the encryption thread notifies the other threads.
        let sealed = self.sealer.map(Sealer::finish);
        if let Some(indexer) = self.indexer {
            indexer.finish(self.unindexed.load(Ordering::Relaxed));
        }
        // The retention thread ends with the last trigger.
        drop(self.trigger);
        PostCloseReport {
            sealed,
            deleted: self.keeper.join().unwrap_or_default(),
            hooks: self.hooks.map(|it| it.join().unwrap_or_default()),
        }
    }
}
