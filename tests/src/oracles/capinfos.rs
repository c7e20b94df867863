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
    counts(&[path])[0]
}

/// Returns the number of frames in each file, as counted by capinfos. capinfos decompresses files
/// itself.
///
/// # Panics
/// Panics if capinfos is missing or reports damage.
#[must_use]
#[track_caller]
pub fn counts<P: AsRef<Path>>(paths: &[P]) -> Vec<u64> {
    let mut counts = Vec::new();
    // A command line has a limit.
    for paths in paths.chunks(200) {
        let done = Program::new("capinfos")
            .args(["-T", "-m", "-r", "-M", "-c"])
            .args(paths.iter().map(AsRef::as_ref))
            .run()
            .expect(0);
        let before = counts.len();
        counts.extend(done.stdout.lines().map(|line| {
            let count = line.rsplit(',').next();
            let count = count.and_then(|it| it.trim_matches('"').parse::<u64>().ok());
            count.unwrap_or_else(|| panic!("no frame count in {line}: {done}"))
        }));
        assert_eq!(counts.len() - before, paths.len(), "{done}");
    }
    counts
}
