//! Wireshark's capinfos, an independent reader of capture files.

use crate::Program;
use std::path::Path;

/// Returns the number of frames in a file, as counted by capinfos.
///
/// # Panics
/// Panics if capinfos is missing or reports damage.
#[must_use]
#[track_caller]
pub fn frames(path: &Path) -> u64 {
    let done = Program::new("capinfos")
        .args(["-T", "-m", "-r", "-M", "-c"])
        .arg(path)
        .run()
        .expect(0);
    let count = done.stdout.trim_end().rsplit(',').next();
    let count = count.and_then(|it| it.trim_matches('"').parse().ok());
    count.unwrap_or_else(|| panic!("no frame count in the output: {done}"))
}
