//! Running the product as another user.

use crate::{Dir, Program, binaries};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// `setpriv` arguments for no capability: an ordinary user.
pub const NONE: &[&str] = &[];
/// `setpriv` arguments for CAP_NET_RAW only. The capability is ambient, because the dynamic linker
/// ignores LD_PRELOAD for a file with capabilities.
pub const NET_RAW: &[&str] = &["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw"];

/// Copy of the binaries in a folder that every user can access. The repository itself may be
/// unreadable for other users.
pub struct ForAll {
    dir: Dir,
}

impl ForAll {
    /// Copies the binaries to a new folder.
    ///
    /// # Panics
    /// Panics if the file cannot be copied.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a constructor with a side effect is not a default"
    )]
    pub fn new() -> Self {
        let dir = Dir::new();
        // The mode of /tmp: a user cannot replace the files of another user.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777))
            .expect("the mode of the new folder can be set");
        let place = Self { dir };
        for name in ["wqcap", "libmlx5_model.so"] {
            place.bring(&binaries::dir().join(name));
        }
        place
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

    /// Copies a file with its permissions to the folder, and returns the path of the copy.
    ///
    /// # Panics
    /// Panics if the file cannot be copied.
    pub fn bring(&self, file: &Path) -> PathBuf {
        let copy = self.dir.join(file.file_name().expect("a file has a name"));
        copy_program(file, &copy);
        copy
    }
}

/// Copies a program with its permissions, by a hard link or in a separate process. A copy by this
/// process could not be executed at first (ETXTBSY): a child of another test that is just being
/// started inherits the writing descriptor until it calls exec.
///
/// # Panics
/// Panics if the file cannot be copied.
pub fn copy_program(file: &Path, copy: &Path) {
    if fs::hard_link(file, copy).is_err() {
        let _ = Program::new("cp").arg(file).arg(copy).run().expect(0);
    }
}

/// Wraps a program so that it runs as user `nobody` with `capabilities`: [`NONE`] or [`NET_RAW`].
/// Requires root.
#[must_use]
pub fn as_nobody(program: Program, capabilities: &[&str]) -> Program {
    let nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
    ];
    program.wrapped(nobody.iter().chain(capabilities))
}
