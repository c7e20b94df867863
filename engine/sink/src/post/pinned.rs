//! What retention finds pinned, read anew at each look: notes are told once, and figures are there for whoever looks on.
//!
//! Invariant: what cannot be told is held ([`wqcap_files::pin`]).

use super::gauge::{PinnedFiles, RetentionGauge};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use wqcap_core::text::counted;
use wqcap_files::{
    index::IndexFolder,
    pin::{Holder, PinFolder},
};

/// What is known of pins.
#[derive(Default)]
pub(super) struct Pinned {
    index_dir: Option<PathBuf>,
    holder: RefCell<Holder>,
    /// Lines that were told, and are true still.
    told: RefCell<BTreeSet<String>>,
    /// What is pinned keeps the rest from being within the limits, and that was told.
    in_the_way: Cell<bool>,
    gauge: RetentionGauge,
}

impl Pinned {
    /// Of files whose indexes, if there are any, are here.
    pub(super) fn new(index_dir: Option<&Path>) -> Self {
        Self {
            index_dir: index_dir.map(Path::to_owned),
            ..Self::default()
        }
    }

    pub(super) fn gauge(&self) -> RetentionGauge {
        self.gauge.clone()
    }

    /// For each of a folder's finished files and its length, whether it is held.
    pub(super) fn held(&self, dir: &Path, files: &[(&Path, u64)]) -> Vec<bool> {
        let pins = PinFolder { dir }.read();
        let unsound = pins.unsound.iter().map(|it| {
            format!(
                "{:?}: {}; nothing is deleted while it is there",
                it.path.display(),
                it.problem
            )
        });
        self.tell(unsound.chain(pins.notes.iter().cloned()).collect());
        let paths: Vec<_> = files.iter().map(|(path, _)| *path).collect();
        let indexes = self.index_dir.as_deref();
        let indexes = indexes.map(|folder| IndexFolder { folder, dir });
        let held = self.holder.borrow_mut().held(&paths, &pins, indexes);
        let held: Vec<_> = held.iter().map(|it| it.is_held()).collect();
        let mut found = PinnedFiles::default();
        for (_, (_, len)) in held.iter().zip(files).filter(|(held, _)| **held) {
            found.files += 1;
            found.bytes += len;
        }
        self.gauge.set_pinned(found);
        held
    }

    /// Tells each line once, until it was not true in between.
    fn tell(&self, lines: BTreeSet<String>) {
        for line in lines.difference(&self.told.borrow()) {
            tracing::warn!("pins: {line}");
        }
        self.told.replace(lines);
    }

    /// Tells, once, that limits cannot be kept for what is pinned, if it was `too_much` that stayed.
    pub(super) fn tell_in_the_way(&self, dir: &Path, too_much: bool) {
        let pinned = self.gauge.pinned();
        let in_the_way = too_much && pinned.files > 0;
        if in_the_way && !self.in_the_way.get() {
            tracing::warn!(
                "{} of {} are pinned and stay, though {} holds more than output.keep, keep_files or keep_free allow; \
                 `wqcap pin list` shows the pins, and `wqcap pin release` ends them",
                counted(pinned.files, "file"),
                counted(pinned.bytes, "byte"),
                dir.display()
            );
        }
        self.in_the_way.set(in_the_way);
    }
}
