//! Running a program as another user.

use crate::Program;
use std::{fs, path::Path};

/// `setpriv` arguments for no capability: an ordinary user.
pub const NONE: &[&str] = &[];
/// `setpriv` arguments for CAP_NET_RAW only. The capability is ambient, because the dynamic linker
/// ignores LD_PRELOAD for a file with capabilities.
pub const NET_RAW: &[&str] = &["--inh-caps", "+net_raw", "--ambient-caps", "+net_raw"];

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
