//! Certificate for TLS servers in tests.

use crate::{Dir, Program};
use std::path::PathBuf;

/// Writes a self-signed certificate and its key to `dir`. Returns the paths of both files.
///
/// # Panics
/// Panics if `openssl` fails.
#[must_use]
#[track_caller]
pub fn certificate(dir: &Dir) -> [PathBuf; 2] {
    let files = ["certificate", "key"].map(|it| dir.join(it));
    let request = "req -x509 -newkey rsa:2048 -nodes -days 9 -subj /CN=x";
    let _ = Program::new("openssl")
        .args(request.split(' '))
        .arg("-out")
        .arg(&files[0])
        .arg("-keyout")
        .arg(&files[1])
        .run()
        .expect(0);
    files
}
