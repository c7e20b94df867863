//! Problems of paths that the configuration names.

use std::{io, path::Path};
use wqcap_engine::config::Problem;

/// Returns the text of an I/O error without the error number.
pub(super) fn without_errno(e: &io::Error) -> String {
    let text = e.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

/// Returns the problem of a path that the configuration key `key` names.
pub(super) fn unusable(key: &str, path: &Path, problem: &str) -> Problem {
    Problem::new(key, format!("\"{}\"", path.display()), problem)
}
