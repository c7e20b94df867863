//! What happens to files after they are finished: old ones go, hooks run. Nothing here is waited for while frames flow.

use super::{
    Files,
    hook::{HookReport, Hooks},
    keep::{Bell, Deleted, Keeper},
};
use crate::Error;
use crossbeam_channel::Sender;
use std::path::{Path, PathBuf};

/// The threads that look after finished files, as far as they are wanted.
pub(super) struct Aftercare {
    keeper: Option<Keeper>,
    hooks: Option<Hooks>,
}

/// Tells them of finished files; they end when it is gone.
pub(super) struct News {
    bell: Option<Bell>,
    hooks: Option<Sender<PathBuf>>,
}

impl News {
    pub(super) fn tell(&self, file: &Path) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
        if let Some(hooks) = &self.hooks {
            // The hooks' thread outlives this sender.
            let _ = hooks.send(file.to_owned());
        }
    }
}

impl Aftercare {
    pub(super) fn start(files: &Files) -> Result<(Self, News), Error> {
        let (keeper, bell) = match files.keep.is_everything() {
            true => (None, None),
            false => Keeper::start(&files.dir, files.keep).map(|(a, b)| (Some(a), Some(b)))?,
        };
        let (hooks, sender) = match &files.hook {
            None => (None, None),
            Some(program) => Hooks::start(program).map(|(a, b)| (Some(a), Some(b)))?,
        };
        let news = News {
            bell,
            hooks: sender,
        };
        Ok((Self { keeper, hooks }, news))
    }

    /// Waits for the last look and the last hooks, the latter not for long. The news must have ended.
    pub(super) fn finish(self) -> (Option<Deleted>, Option<HookReport>) {
        (
            self.keeper.map(Keeper::finish),
            self.hooks.map(Hooks::finish),
        )
    }
}
