//! Running the product as somebody else.

use crate::{Dir, Program, binaries};
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// No capability at all: an ordinary user.
pub const NONE: &[&str] = &[];
/// CAP_NET_RAW and no other, in words of setpriv: ambient, since a file that carried it would be run without a preload.
pub const NET_RAW: &[&str] = &["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw"];

/// A copy of the binaries, in a folder that any user can get at: the repository may be nobody else's to see.
pub struct ForAll {
    dir: Dir,
}

impl ForAll {
    /// The copy.
    ///
    /// # Panics
    /// When there is no room for it.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "copying binaries is not a default value"
    )]
    pub fn new() -> Self {
        let dir = Dir::new();
        // As /tmp: what one user makes there is not another's to replace.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("an own folder");
        let place = Self { dir };
        for name in ["wqcap", "libmlx5_model.so"] {
            place.bring(&binaries::dir().join(name));
        }
        place
    }

    /// The folder, in which every user may write.
    #[must_use]
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The binary `wqcap` there.
    #[must_use]
    pub fn wqcap(&self) -> PathBuf {
        self.dir.join("wqcap")
    }

    /// Copies a file there, with its permissions, and gives the copy's path.
    ///
    /// # Panics
    /// When there is no room for it.
    pub fn bring(&self, file: &Path) -> PathBuf {
        let copy = self.dir.join(file.file_name().expect("a file has a name"));
        copy_program(file, &copy);
        copy
    }
}

/// Copies a program, with its permissions: by another name for the same file, or in a process of its own. A child of
/// another test that is just being started has for a moment all descriptors of this process, and what is open for
/// writing anywhere cannot be executed (ETXTBSY).
///
/// # Panics
/// When there is no room for it.
pub fn copy_program(file: &Path, copy: &Path) {
    if fs::hard_link(file, copy).is_err() {
        let _ = Program::new("cp").arg(file).arg(copy).run().expect(0);
    }
}

/// Lets a program run as user nobody with `capabilities`: [`NONE`] or [`NET_RAW`]. Only root can.
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
