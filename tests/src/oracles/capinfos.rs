//! Wireshark's capinfos: what another reader finds in a capture file.

use crate::Program;
use std::path::Path;

/// Frames in a file, which capinfos reads to its end.
///
/// # Panics
/// capinfos is not there, or finds the file damaged.
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
    count.unwrap_or_else(|| panic!("no count: {done}"))
}
