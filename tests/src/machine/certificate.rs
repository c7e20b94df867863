//! A certificate for servers of TLS in tests.

use crate::{Dir, Program};
use std::path::PathBuf;

/// A certificate that its own key has signed, and the key, in files of a folder.
///
/// # Panics
/// `openssl` cannot make one.
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
