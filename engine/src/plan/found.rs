//! Collection of the errors that prevent a plan.

use crate::Error;

/// Errors found while planning a run, in the order of discovery.
#[derive(Debug, Default)]
pub(super) struct PlanErrors(Vec<Error>);

impl PlanErrors {
    /// Returns the value of a planning step's `outcome`, or collects its error.
    ///
    /// A second error for the same key and value is not collected.
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
            if !self.0.iter().any(|it| is_same_setting(it, &error)) {
                self.0.push(error);
            }
        }
        None
    }

    /// Adds the errors found while planning one port. `port` is its number in the list of
    /// `[[port]]`, if there is one: errors about a key of `[device]` then name the key of that
    /// port.
    pub(super) fn absorb(&mut self, errors: Self, port: Option<usize>) {
        for mut error in errors.0 {
            if let (Error::Config(problem), Some(number)) = (&mut error, port)
                && let Some(key) = problem.key.strip_prefix("device.")
            {
                let key = match key {
                    "name" => "device",
                    "netdev" => "interface",
                    other => other,
                };
                problem.key = format!("port {number}: {key}");
            }
            self.keep::<()>(Err(error));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Returns `true` if both errors are about the same configuration key and value.
fn is_same_setting(a: &Error, b: &Error) -> bool {
    match (a, b) {
        (Error::Config(a), Error::Config(b)) => (&a.key, &a.value) == (&b.key, &b.value),
        _ => false,
    }
}

impl From<PlanErrors> for Error {
    fn from(PlanErrors(mut all): PlanErrors) -> Self {
        match all.pop() {
            Some(one) if all.is_empty() => one,
            last => {
                all.extend(last);
                Self::Several(all)
            }
        }
    }
}
