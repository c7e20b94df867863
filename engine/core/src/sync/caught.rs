//! Panics of other crates that become errors.
//!
//! Some decoders trust lengths in a file and panic if they are wrong. [`caught`] turns such a panic
//! into an error, which the caller reports. A panic hook asks [`is_caught`], and prints nothing then.

use std::{
    cell::Cell,
    panic::{UnwindSafe, catch_unwind},
};

thread_local! {
    /// Number of calls of [`caught`] in progress on this thread.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// Returns the result of `work`, or `None` if it panicked.
pub fn caught<T>(work: impl FnOnce() -> T + UnwindSafe) -> Option<T> {
    DEPTH.set(DEPTH.get() + 1);
    let outcome = catch_unwind(work);
    DEPTH.set(DEPTH.get() - 1);
    outcome.ok()
}

/// Returns `true` if this thread runs inside [`caught`], whose caller reports a panic as an error.
#[must_use]
pub fn is_caught() -> bool {
    DEPTH.get() > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_panics_within_the_call_are_caught() {
        assert!(!is_caught());
        assert_eq!(caught(|| caught(is_caught)), Some(Some(true)));
        let panicked: Option<()> = caught(|| panic!("a test's panic"));
        assert!(panicked.is_none() && !is_caught());
    }
}
