//! Running the product as another user.

use crate::{Dir, binaries};
use std::path::PathBuf;
pub use wqcap_testkit::machine::privileges::*;

/// Copy of the binaries in a folder that every user can access.
pub struct ForAll {
    dir: Dir,
}

impl ForAll {
    /// Copies the binaries to a new folder.
    ///
    /// # Panics
    /// Panics if the binaries cannot be copied.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a constructor with a side effect is not a default"
    )]
    pub fn new() -> Self {
        let dir = Dir::for_all();
        for name in ["wqcap", binaries::MODEL] {
            dir.bring(&binaries::dir().join(name));
        }
        Self { dir }
    }

    /// Returns the folder, which is writable for every user.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Returns the path of the copied binary `wqcap`.
    #[must_use]
    pub fn wqcap(&self) -> PathBuf {
        self.dir.join("wqcap")
    }
}
