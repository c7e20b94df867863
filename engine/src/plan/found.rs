//! All that stands in the way of a plan, in the order in which it is found.

use crate::Error;

/// What has been found.
#[derive(Debug, Default)]
pub(super) struct Found(Vec<Error>);

impl Found {
    /// The outcome, and its error among the others. What a key has been refused for comes once.
    pub(super) fn keep<T>(&mut self, outcome: Result<T, Error>) -> Option<T> {
        let error = match outcome {
            Ok(it) => return Some(it),
            Err(error) => error,
        };
        let errors = match error {
            Error::Several(all) => all,
            one => vec![one],
        };
        for error in errors {
            if !self.0.iter().any(|it| same(it, &error)) {
                self.0.push(error);
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn same(a: &Error, b: &Error) -> bool {
    match (a, b) {
        (Error::Config(a), Error::Config(b)) => (&a.key, &a.value) == (&b.key, &b.value),
        _ => false,
    }
}

impl From<Found> for Error {
    fn from(Found(mut all): Found) -> Self {
        match all.pop() {
            Some(one) if all.is_empty() => one,
            last => {
                all.extend(last);
                Self::Several(all)
            }
        }
    }
}
