//! Permits of requests to read capture files, which bound how many do so at the same time.
//!
//! A named caller cannot use up all permits: a quarter of them, and at least one if there are
//! several, is left to others. Callers without a name are all on this machine, and share all
//! permits.

use crate::{error::ApiError, identity::Caller};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Maximum number of capture files that the requests of all callers read. A request has about 2 KiB of
/// memory for each of its files until its answer is sent.
const MOST_FILES: usize = 256 * 1024;

/// Requests that read capture files at present.
#[derive(Debug, Default)]
struct Reading {
    /// Number of the requests of all callers.
    all: usize,
    /// Number of the capture files that all requests read.
    files: usize,
    /// Number of the requests of each named caller that has any.
    of_callers: HashMap<String, usize>,
}

/// Permits of the requests that read capture files at present.
#[derive(Clone, Debug, Default)]
pub struct ReadPermits(Arc<Mutex<Reading>>);

/// Permit of one request to read capture files, which ends when it is dropped.
#[derive(Debug)]
pub struct ReadPermit {
    permits: ReadPermits,
    caller: Option<String>,
    /// Number of the capture files that the request reads.
    files: usize,
}

impl ReadPermit {
    /// Counts `files` capture files that the request is going to read.
    ///
    /// # Errors
    /// All requests together would read more than [`MOST_FILES`].
    pub fn add_files(&mut self, files: usize) -> Result<(), ApiError> {
        let mut reading = self
            .permits
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if reading.files + files > MOST_FILES {
            return Err(ApiError::ManyFiles {
                files,
                others: reading.files,
                limit: MOST_FILES,
            });
        }
        reading.files += files;
        self.files += files;
        Ok(())
    }
}

impl ReadPermits {
    /// Returns a permit to read capture files for a request of `caller`, if at most `most` requests
    /// read them at the same time.
    ///
    /// # Errors
    /// As many requests as allowed read files, in total or of this caller.
    pub fn take(&self, caller: &Caller, most: usize) -> Result<ReadPermit, ApiError> {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reading.all >= most {
            return Err(ApiError::Busy(most));
        }
        if let Some(name) = &caller.name {
            let left = if most > 1 { (most / 4).max(1) } else { 0 };
            let of_caller = reading.of_callers.entry(name.clone()).or_default();
            if *of_caller >= most - left {
                return Err(ApiError::CallerBusy(most - left));
            }
            *of_caller += 1;
        }
        reading.all += 1;
        Ok(ReadPermit {
            permits: self.clone(),
            caller: caller.name.clone(),
            files: 0,
        })
    }

    /// Returns `true` if a request reads capture files at present.
    #[must_use]
    pub fn is_any_taken(&self) -> bool {
        let reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        reading.all > 0
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let mut reading = self
            .permits
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        reading.all -= 1;
        reading.files -= self.files;
        if let Some(name) = &self.caller
            && let Some(count) = reading.of_callers.get_mut(name)
        {
            *count -= 1;
            if *count == 0 {
                reading.of_callers.remove(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::CallerRole;

    fn caller(name: Option<&str>) -> Caller {
        Caller {
            name: name.map(str::to_owned),
            role: CallerRole::Read,
            address: ([127, 0, 0, 1], 1).into(),
        }
    }

    #[test]
    fn a_named_caller_leaves_permits_to_others() {
        for (most, of_one) in [(1, 1), (2, 1), (3, 2), (4, 3), (8, 6), (256, 192)] {
            let permits = ReadPermits::default();
            let taken = |name| {
                let take = || permits.take(&caller(name), most).ok();
                std::iter::from_fn(take).collect::<Vec<_>>()
            };
            let of_a = taken(Some("a"));
            assert_eq!(of_a.len(), of_one, "of {most}");
            let refused = permits
                .take(&caller(Some("a")), most)
                .expect_err("too many");
            assert!(matches!(
                refused,
                ApiError::CallerBusy(_) | ApiError::Busy(1)
            ));
            let others = taken(None);
            assert_eq!(others.len(), most - of_one);
            drop((of_a, others));
            assert_eq!(taken(None).len(), most);
            assert!(permits.0.lock().expect("no panic").of_callers.is_empty());
        }
    }

    #[test]
    fn files_of_all_requests_are_limited() {
        let permits = ReadPermits::default();
        let [mut first, mut second] = [1, 2].map(|_| permits.take(&caller(None), 2).expect("one"));
        first.add_files(MOST_FILES - 1).expect("fits");
        second.add_files(1).expect("fits");
        let refused = second.add_files(1).expect_err("too many");
        assert_eq!(refused.status(), 429);
        drop(first);
        second.add_files(1).expect("fits again");
    }
}
