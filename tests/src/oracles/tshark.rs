//! tshark, as a judge of which frames a filter takes.

use crate::Program;
use std::path::Path;

/// Stamps of the frames in a file that a filter takes, each with a field that tells frames of one stamp apart, in the order of
/// time.
///
/// # Panics
/// It cannot read the file, or does not know the filter.
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
