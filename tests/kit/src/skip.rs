//! Reported skips of tests that cannot run.
//!
//! The test harness hides the output of a passing test. The skip line is therefore written directly
//! to standard error. If `WQCAP_SKIP_LOG` names a file, the line is also appended to that file, so
//! that `scripts/test` can list all skips at its end.

use std::{
    fs::OpenOptions,
    io::{self, Write},
};

/// Reports that the enclosing test cannot run, with the reason, and returns from it.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        fn here() {}
        $crate::skip::note(std::any::type_name_of_val(&here), &format!($($reason)*));
        return;
    }};
}

/// Unwraps a `Result`, or skips the enclosing test with the error as the reason.
#[macro_export]
macro_rules! need {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(reason) => $crate::skip!("{reason}"),
        }
    };
}

/// Records a skip; `place` is the path of an item inside the test. Use [`skip!`] instead.
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

/// Prints a line that the test harness does not hide, such as the results of a long test.
pub fn say(line: &str) {
    // One write, so that lines of concurrent tests do not mix. A closed terminal is not a failure.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
