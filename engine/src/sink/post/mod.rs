//! What happens to files after they are finished: old ones go, hooks run, indexes are made. Nothing here is waited for while frames flow.

pub(super) mod hook;
mod indexer;
pub(super) mod retention;

use crate::Error;
use crate::sink::{
    Files,
    post::{
        hook::{HookReport, Hooks},
        indexer::Indexer,
        retention::{DeletedFiles, RetentionThread, RetentionTrigger},
    },
};
use crossbeam_channel::Sender;
use std::path::{Path, PathBuf};

/// The threads that look after finished files, as far as they are wanted.
pub(super) struct PostClose {
    keeper: Option<RetentionThread>,
    hooks: Option<Hooks>,
    indexer: Option<Indexer>,
}

/// Tells them of finished files; they end when it is gone.
pub(super) struct CloseNotifier {
    trigger: Option<RetentionTrigger>,
    hooks: Option<Sender<PathBuf>>,
    indexer: Option<Sender<PathBuf>>,
}

impl CloseNotifier {
    /// For the writer, to ask for room.
    pub(super) fn trigger(&self) -> Option<RetentionTrigger> {
        self.trigger.clone()
    }

    pub(super) fn tell(&self, file: &Path) {
        if let Some(trigger) = &self.trigger {
            trigger.ring();
        }
        // Their threads outlive these senders.
        for sender in [&self.hooks, &self.indexer].into_iter().flatten() {
            let _ = sender.send(file.to_owned());
        }
    }
}

impl PostClose {
    pub(super) fn start(files: &Files) -> Result<(Self, CloseNotifier), Error> {
        let (keeper, trigger) = match files.output.retention.is_everything() {
            true => (None, None),
            false => {
                RetentionThread::start(files.dir(), files.output.retention, files.output.buffer)
                    .map(|(a, b)| (Some(a), Some(b)))?
            }
        };
        let (hooks, sender) = match &files.output.hook {
            None => (None, None),
            Some(program) => {
                let process = files.hook_process.clone();
                Hooks::start(program, process).map(|(a, b)| (Some(a), Some(b)))?
            }
        };
        let (indexer, indexing) = match &files.output.index_dir {
            None => (None, None),
            Some(folder) => Indexer::start(folder, files.dir()).map(|(a, b)| (Some(a), Some(b)))?,
        };
        let notifier = CloseNotifier {
            trigger,
            hooks: sender,
            indexer: indexing,
        };
        let it = Self {
            keeper,
            hooks,
            indexer,
        };
        Ok((it, notifier))
    }

    /// Waits for the last look, the last hooks and the last indexes, the latter two not for long. The news must have ended.
    pub(super) fn finish(self) -> (Option<DeletedFiles>, Option<HookReport>) {
        if let Some(indexer) = self.indexer {
            indexer.finish();
        }
        (
            self.keeper.map(RetentionThread::finish),
            self.hooks.map(Hooks::finish),
        )
    }
}
