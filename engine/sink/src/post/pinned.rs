//! Capture files that pins protect from deletion, as retention finds them. Pins are read at each
//! check, notes on them are logged once, and the numbers are published in the gauge.
//!
//! Invariant: a file is held if it cannot be decided whether a pin holds it ([`wqcap_files::pin`]).

use super::gauge::{PinnedFiles, RetentionGauge};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    path::{Path, PathBuf},
};
use wqcap_core::text::counted;
use wqcap_files::{
    index::IndexFolder,
    pin::{PinEvaluator, PinFolder},
    sealed::SecretKey,
};

/// Evaluation of the pins, which protect capture files of a time range from deletion.
#[derive(Default)]
pub(super) struct Pinned {
    index_dir: Option<PathBuf>,
    holder: RefCell<PinEvaluator>,
    /// Notes on pins of the last retention check, which were already logged.
    logged: RefCell<BTreeSet<String>>,
    /// Set while pinned files exceed the retention limits, which was already logged.
    is_over_limit: Cell<bool>,
    gauge: RetentionGauge,
}

impl Pinned {
    /// Creates the evaluation of pins. `index_dir` is the directory of the capture files'
    /// indexes; `key` opens encrypted capture files.
    pub(super) fn new(index_dir: Option<&Path>, key: Option<SecretKey>) -> Self {
        Self {
            index_dir: index_dir.map(Path::to_owned),
            holder: RefCell::new(PinEvaluator::new(key)),
            ..Self::default()
        }
    }

    pub(super) fn gauge(&self) -> RetentionGauge {
        self.gauge.clone()
    }

    /// Returns for each finished capture file of `dir`, given with its length, whether a pin
    /// protects the file from deletion.
    pub(super) fn held(&self, dir: &Path, files: &[(&Path, u64)]) -> Vec<bool> {
        let pins = PinFolder { dir }.read();
        let unsound = pins.unsound.iter().map(|it| {
            format!(
                "pins: {:?} cannot be used: {}; no capture file is deleted until this is corrected",
                it.path.display(),
                it.problem
            )
        });
        self.log_new(unsound.chain(pins.notes.iter().cloned()).collect());
        let paths: Vec<_> = files.iter().map(|(path, _)| *path).collect();
        let indexes = self.index_dir.as_deref();
        let indexes = indexes.map(|folder| IndexFolder { folder, dir });
        let held = self.holder.borrow_mut().evaluate(&paths, &pins, indexes);
        let held: Vec<_> = held.iter().map(|it| it.is_held()).collect();
        let mut found = PinnedFiles::default();
        for (_, (_, len)) in held.iter().zip(files).filter(|(held, _)| **held) {
            found.files += 1;
            found.bytes += len;
        }
        self.gauge.set_pinned(found);
        held
    }

    /// Logs the lines about pins that the previous retention check did not have.
    fn log_new(&self, lines: BTreeSet<String>) {
        for line in lines.difference(&self.logged.borrow()) {
            tracing::warn!("pins: {line}");
        }
        self.logged.replace(lines);
    }

    /// Logs once that pinned files keep the retention limits exceeded. `too_much` is set if the
    /// files left exceed the limits.
    pub(super) fn log_over_limit(&self, dir: &Path, too_much: bool) {
        let pinned = self.gauge.pinned();
        let is_over_limit = too_much && pinned.files > 0;
        if is_over_limit && !self.is_over_limit.get() {
            tracing::warn!(
                "{} of {} are pinned and stay, although {} holds more than output.keep, keep_files or keep_free allow; \
                 `wqcap pin list` shows the pins, and `wqcap pin release` ends them",
                counted(pinned.files, "file"),
                counted(pinned.bytes, "byte"),
                dir.display()
            );
        }
        self.is_over_limit.set(is_over_limit);
    }
}
