//! Permits of requests, which bound how many are answered at the same time, with the capture files
//! that they read.
//!
//! A named caller cannot use up all permits, or all files: a quarter of them, and at least one permit
//! if there are several, is left to others. Callers without a name are all on this machine, and share
//! all of them.

pub mod held;

use crate::{error::ApiError, identity::Caller};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Maximum number of capture files that the requests of all callers read. A request has about 2 KiB of
/// memory for each of its files until its answer is sent.
const MOST_FILES: usize = 256 * 1024;

/// Requests that read capture files at present.
#[derive(Debug, Default)]
struct Reading {
    all: ReadingCounts,
    /// Counts of each named caller that has any request.
    of_callers: HashMap<String, ReadingCounts>,
}

/// Counts of the requests of one caller or of all callers.
#[derive(Debug, Default)]
struct ReadingCounts {
    requests: usize,
    /// Number of the capture files that the requests read.
    files: usize,
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
    files: AtomicUsize,
}

impl ReadPermit {
    /// Counts `files` capture files that the request is going to read.
    ///
    /// # Errors
    /// All requests, or those of this caller, would read more files than they may.
    pub fn add_files(&self, files: usize) -> Result<(), ApiError> {
        let mut reading = self.permits.lock();
        let Reading { all, of_callers } = &mut *reading;
        let of_caller = self.caller.as_ref().and_then(|it| of_callers.get_mut(it));
        let fits = |counts: &ReadingCounts, limit| match counts.files + files > limit {
            true => Err(ApiError::ManyFiles { files, limit }),
            false => Ok(()),
        };
        fits(all, MOST_FILES)?;
        if let Some(of_caller) = of_caller {
            fits(of_caller, MOST_FILES / 4 * 3)?;
            of_caller.files += files;
        }
        all.files += files;
        self.files.fetch_add(files, Ordering::Relaxed);
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
        let mut reading = self.lock();
        if reading.all.requests >= most {
            return Err(ApiError::Busy(most));
        }
        if let Some(name) = &caller.name {
            let left = if most > 1 { (most / 4).max(1) } else { 0 };
            let of_caller = reading.of_callers.entry(name.clone()).or_default();
            if of_caller.requests >= most - left {
                return Err(ApiError::CallerBusy(most - left));
            }
            of_caller.requests += 1;
        }
        reading.all.requests += 1;
        Ok(ReadPermit {
            permits: self.clone(),
            caller: caller.name.clone(),
            files: AtomicUsize::new(0),
        })
    }

    /// Returns `true` if a request reads capture files at present.
    #[must_use]
    pub fn is_any_taken(&self) -> bool {
        self.lock().all.requests > 0
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let files = *self.files.get_mut();
        let mut reading = self.permits.lock();
        reading.all.requests -= 1;
        reading.all.files -= files;
        if let Some(name) = &self.caller
            && let Some(counts) = reading.of_callers.get_mut(name)
        {
            counts.requests -= 1;
            counts.files -= files;
            if counts.requests == 0 {
                reading.of_callers.remove(name);
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::identity::CallerRole;

    fn caller(name: Option<&str>) -> Caller {
        Caller {
            name: name.map(str::to_owned),
            role: CallerRole::Read,
            address: ([127, 0, 0, 1], 1).into(),
        }
    }

    /// Returns new permits, and the only one of them that is taken.
    pub fn with_one_taken() -> (ReadPermits, Arc<ReadPermit>) {
        let permits = ReadPermits::default();
        let permit = permits.take(&caller(None), 1).expect("the first");
        (permits, permit.into())
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
        let [first, second] = [1, 2].map(|_| permits.take(&caller(None), 2).expect("one"));
        first.add_files(MOST_FILES - 1).expect("fits");
        second.add_files(1).expect("fits");
        let refused = second.add_files(1).expect_err("too many");
        assert_eq!(refused.status(), 429);
        drop((first, second));
        let named = permits.take(&caller(Some("a")), 2).expect("one");
        let other = permits.take(&caller(Some("b")), 2).expect("one");
        named.add_files(MOST_FILES / 4 * 3).expect("its share");
        assert!(named.add_files(1).is_err());
        other.add_files(MOST_FILES / 4).expect("the rest");
    }
}
