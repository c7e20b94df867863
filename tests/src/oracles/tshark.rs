//! tshark as a reference for the frames that a filter matches.

use crate::Program;
use std::path::Path;

/// Returns the time stamps of the frames in a file that a display filter matches, in time order.
/// Each is followed by the value of `field`, which distinguishes frames with equal stamps.
///
/// # Panics
/// Panics if tshark cannot read the file or rejects the filter.
#[must_use]
#[track_caller]
pub fn frames(field: &str, file: &Path, filter: &str) -> Vec<String> {
    let done = Program::new("tshark")
        .args(["-n", "-Y", filter])
        .args(["-T", "fields", "-e", "frame.time_epoch", "-e", field])
        .arg("-r")
        .arg(file)
        .run()
        .expect(0);
    let mut lines: Vec<_> = done.stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}
