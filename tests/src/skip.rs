//! Leaving a test out, aloud.
//!
//! The harness hides what a passing test prints, so the line goes around it, straight to standard error; and where
//! `WQCAP_SKIP_LOG` names a file, into that too, so that `scripts/test` can list every skip at its end.

use std::{
    fs::OpenOptions,
    io::{self, Write},
};

/// Says that the test around it cannot run, and why, and returns from it.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        fn here() {}
        $crate::skip::note(std::any::type_name_of_val(&here), &format!($($reason)*));
        return;
    }};
}

/// Unwraps, or skips the test around it with the error as the reason.
#[macro_export]
macro_rules! need {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

/// Records one skip; `place` is the path of an item inside the test. Use [`skip!`].
pub fn note(place: &str, reason: &str) {
    let test = place.strip_suffix("::here").unwrap_or(place);
    say(&format!("SKIP {test}: {reason}"));
    if let Some(log) = std::env::var_os("WQCAP_SKIP_LOG") {
        let written = OpenOptions::new()
            .append(true)
            .create(true)
            .open(&log)
            .and_then(|mut file| writeln!(file, "SKIP {test}: {reason}"));
        assert!(
            written.is_ok(),
            "{}: {}",
            log.display(),
            written.unwrap_err()
        );
    }
}

/// A line that the harness does not hide: figures of a long test, say.
pub fn say(line: &str) {
    // One write, so that lines of tests that run side by side do not mix. A closed terminal is no failure.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
