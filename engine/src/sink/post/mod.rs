//! What happens to files after they are finished: old ones go, hooks run, indexes are made. Nothing here is waited for while frames flow.

pub(super) mod gauge;
pub(super) mod hook;
mod indexer;
mod own_files;
mod pinned;
pub(super) mod retention;

use crate::Error;
use crate::sink::{
    Files,
    post::{
        gauge::RetentionGauge,
        hook::HookReport,
        indexer::Indexer,
        retention::{DeletedFiles, RetentionTrigger},
    },
};
use crossbeam_channel::Sender;
use std::{
    path::{Path, PathBuf},
    thread::JoinHandle,
};

/// The threads that look after finished files, as far as they are wanted.
pub(super) struct PostClose {
    keeper: Option<JoinHandle<DeletedFiles>>,
    gauge: Option<RetentionGauge>,
    hooks: Option<JoinHandle<HookReport>>,
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
            trigger.finished(file);
        }
        // Their threads outlive these senders.
        for sender in [&self.hooks, &self.indexer].into_iter().flatten() {
            let _ = sender.send(file.to_owned());
        }
    }
}

impl PostClose {
    pub(super) fn start(files: &Files) -> Result<(Self, CloseNotifier), Error> {
        let (dir, output) = (files.dir(), &files.output);
        let keep = (!output.retention.is_everything()).then(|| retention::start(dir, output));
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
        let notifier = CloseNotifier {
            trigger,
            hooks: hook_files,
            indexer: index_files,
        };
        let it = Self {
            keeper,
            gauge,
            hooks,
            indexer,
        };
        Ok((it, notifier))
    }

    /// What retention finds; `None`: nothing is ever deleted.
    pub(super) fn gauge(&self) -> Option<RetentionGauge> {
        self.gauge.clone()
    }

    /// Waits for the last look, the last hooks and the last indexes, the latter two not for long. The notifier must be gone.
    pub(super) fn finish(self) -> (Option<DeletedFiles>, Option<HookReport>) {
        if let Some(indexer) = self.indexer {
            indexer.finish();
        }
        (
            self.keeper.map(|it| it.join().unwrap_or_default()),
            self.hooks.map(|it| it.join().unwrap_or_default()),
        )
    }
}
