//! Lease of a sensor's name: the status in the store, `status/sensor=NAME.json`, names the owner.
//!
//! ```text
//! read -> status of another instance, younger than HELD -> refused
//!      -> no status, own status, or an old one          -> write if the object is unchanged
//! ```
//!
//! If a store does not support conditional writes, two instances that begin at the same time both
//! ship until the next status of one of them, which then reads the other's status. A failed write
//! of a status is logged once, and files are still sent.
//!
//! Invariant: a status that another instance has written within [`HELD`] is not overwritten.

use super::ShipStatus;
use crate::{
    fleet::{HELD, Instance, MOST_PROBLEMS, SensorStatus, VERSION},
    journal::{JournalError, random_name},
    key,
    store::{PutIf, PutOutcome, Store, StoreError},
};
use bytes::Bytes;
use jiff::Timestamp;
use std::{
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

/// Longest time between two writes of the sensor status to the store, a fraction of [`HELD`].
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);
/// Shortest time between two writes of the sensor status to the store.
const AT_MOST_EVERY: Duration = Duration::from_secs(10);
/// Interval at which `wqcap ship` checks whether a sensor status is due.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of attempts to write the sensor status, if another instance writes it between
/// read and write.
const TRIES: usize = 3;

/// Error: another instance of `wqcap ship` ships under the sensor's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "ship.sensor = {sensor:?}: host {:?} ships under this name (last status {}, instance {}); set another \
     ship.sensor and another ship.journal here; if that host is gone, the name is free {} s after that time",
    .by.host, .by.time, .by.instance, HELD.as_secs()
)]
pub struct LeaseTaken {
    sensor: String,
    by: Instance,
}

/// Reason why the sensor status was not written to the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum PutError {
    Taken(LeaseTaken),
    Store(#[from] StoreError),
}

/// Instance of `wqcap ship` that ships a sensor's files, as named in the sensor's status.
pub(super) struct LeaseHolder<'a> {
    pub(super) sensor: &'a str,
    pub(super) host: &'a str,
    /// Identifier of the delivery journal that the instance uses.
    pub(super) instance: &'a str,
}

/// Object that the store has under the key of the sensor's status.
struct StoredStatus {
    status: Option<SensorStatus>,
    /// Precondition for a write: the status object is unchanged. `None`: the store has no ETags.
    only: Option<PutIf>,
    /// Error of a store that refuses to read the status object. A bucket may refuse to read a
    /// missing object if the client may not list it.
    hidden: Option<String>,
}

/// Writer of a sensor's status to the store, as long as no other instance ships under the sensor's
/// name.
pub(super) struct Lease {
    store: Arc<dyn Store>,
    status: Arc<Mutex<ShipStatus>>,
    sensor: String,
    host: String,
    instance: String,
    run: String,
    /// Cleared when the store turns out not to support conditional writes.
    compares: bool,
    /// Set when this process has written a sensor status to the store.
    held: bool,
    taken_over: Option<Instance>,
    /// Sensor status that was last written to the store; `None`: the last write failed, or none was
    /// tried.
    last: Option<SensorStatus>,
    tried: Instant,
    /// Set when a failed write of the sensor status has been logged.
    warned: bool,
}

impl Lease {
    pub(super) fn new(
        holder: &LeaseHolder<'_>,
        store: Arc<dyn Store>,
        status: Arc<Mutex<ShipStatus>>,
    ) -> Result<Self, JournalError> {
        Ok(Self {
            store,
            status,
            sensor: holder.sensor.into(),
            host: holder.host.into(),
            instance: holder.instance.into(),
            run: random_name()?,
            compares: true,
            held: false,
            taken_over: None,
            last: None,
            tried: Instant::now(),
            warned: false,
        })
    }

    /// Writes the present sensor status to the store. A failure of the store is logged and is not
    /// an error.
    ///
    /// # Errors
    /// Another instance ships under the sensor's name.
    pub(super) async fn claim(&mut self) -> Result<(), LeaseTaken> {
        self.tried = Instant::now();
        self.last = None;
        match self.put().await {
            Ok(status) => {
                self.last = Some(status);
                if mem::take(&mut self.warned) {
                    tracing::warn!(
                        "{}: the store works again, and the sensor status is written again",
                        key::status(&self.sensor)
                    );
                }
                Ok(())
            }
            Err(PutError::Taken(taken)) => Err(taken),
            Err(PutError::Store(e)) => {
                if !mem::replace(&mut self.warned, true) {
                    let key = key::status(&self.sensor);
                    tracing::warn!(
                        "{key}: {e}; the sensor status is written later, and files are sent meanwhile"
                    );
                }
                Ok(())
            }
        }
    }

    /// Writes the sensor status to the store whenever it is due. Returns when another instance
    /// ships under the sensor's name.
    pub(super) async fn keep(&mut self) -> LeaseTaken {
        loop {
            sleep(TICK).await;
            if self.is_due()
                && let Err(taken) = self.claim().await
            {
                return taken;
            }
        }
    }

    /// Returns `true` if the sensor status is due to be written: after 60 s, or after 10 s if no
    /// file is being shipped and the status has changed.
    fn is_due(&self) -> bool {
        let since = self.tried.elapsed();
        let has_news = || {
            let now = self.snapshot();
            self.last.as_ref().is_none_or(|it| now.has_news_since(it))
        };
        let is_between = || self.seen_status().now.is_none();
        since >= AT_LEAST_EVERY || since >= AT_MOST_EVERY && is_between() && has_news()
    }

    async fn put(&mut self) -> Result<SensorStatus, PutError> {
        let key = key::status(&self.sensor);
        for _ in 0..TRIES {
            let seen = self.read_status(&key).await?;
            let mut before = None;
            match &seen.status {
                Some(it) if self.is_own(it) => self.continue_from(it),
                Some(it) if it.holds(Timestamp::now()) => {
                    return Err(PutError::Taken(self.refused_by(it).await));
                }
                Some(it) => before = Some(it.by.clone()),
                None => {}
            }
            let mut status = self.snapshot();
            if before.is_some() {
                status.taken_over.clone_from(&before);
            }
            if !self.put_if_unchanged(&key, &status, seen).await? {
                continue;
            }
            if let Some(it) = before {
                tracing::warn!(
                    "ship.sensor = {:?}: host {:?} shipped under this name until {} (instance {}); this host ships under it now",
                    self.sensor,
                    it.host,
                    it.time,
                    it.instance
                );
                self.taken_over = Some(it);
            }
            self.held = true;
            return Ok(status);
        }
        let why = "other instances write the sensor status at the same time";
        Err(StoreError::Failed(why.into()).into())
    }

    async fn read_status(&self, key: &str) -> Result<StoredStatus, StoreError> {
        let absent = |hidden| StoredStatus {
            status: None,
            only: Some(PutIf::Absent),
            hidden,
        };
        let object = match self.store.read_small(key).await {
            Ok(object) => object,
            Err(StoreError::NotFound(_)) => return Ok(absent(None)),
            Err(StoreError::Refused(why)) if !self.held => return Ok(absent(Some(why))),
            Err(e) => return Err(e),
        };
        let status = SensorStatus::parse(&object.bytes);
        let status = status.inspect_err(|e| {
            tracing::warn!("{key}: {e}; the object is replaced with this sensor's status")
        });
        Ok(StoredStatus {
            status: status.ok(),
            only: object.etag.map(PutIf::Etag),
            hidden: None,
        })
    }

    /// Writes a sensor status if the status object in the store is unchanged. Returns `false` if
    /// the object has changed.
    async fn put_if_unchanged(
        &mut self,
        key: &str,
        status: &SensorStatus,
        seen: StoredStatus,
    ) -> Result<bool, StoreError> {
        let text = serde_json::to_vec_pretty(status);
        let bytes = Bytes::from(text.map_err(|e| StoreError::Failed(e.to_string()))?);
        let unread =
            |why: String| StoreError::Refused(format!("the sensor status cannot be read: {why}"));
        if let Some(only) = seen.only.filter(|_| self.compares) {
            match self.store.put_if(key, bytes.clone(), only).await? {
                PutOutcome::Put => return Ok(true),
                PutOutcome::Changed => return seen.hidden.map_or(Ok(false), |it| Err(unread(it))),
                PutOutcome::Unsupported => self.compares = false,
            }
        }
        // Whether there is an object is unknown.
        if let Some(why) = seen.hidden {
            return Err(unread(why));
        }
        self.store.put(key, bytes).await?;
        Ok(true)
    }

    /// Returns `true` if this instance has written the sensor status. A new process inherits the
    /// sensor name with the journal; once it has written a status, only statuses of its own run
    /// count.
    fn is_own(&self, it: &SensorStatus) -> bool {
        it.run == self.run || !self.held && it.by.instance == self.instance
    }

    /// Takes over facts from a sensor status that an earlier process of this instance has written.
    fn continue_from(&mut self, it: &SensorStatus) {
        if self.taken_over.is_none() {
            self.taken_over.clone_from(&it.taken_over);
        }
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        if status.last_object.is_none() {
            status.last_object.clone_from(&it.last_object);
        }
    }

    /// Writes a status which reports that this instance may not ship, because no other status has
    /// the frames of this instance.
    async fn refused_by(&self, owner: &SensorStatus) -> LeaseTaken {
        let by = owner.by.clone();
        let status = SensorStatus {
            refused_by: Some(by.clone()),
            taken_over: None,
            problems: Vec::new(),
            ..self.snapshot()
        };
        let key = key::refused(&self.sensor, &self.instance);
        if let Ok(text) = serde_json::to_vec_pretty(&status)
            && let Err(e) = self.store.put(&key, text.into()).await
        {
            tracing::debug!("{key}: {e}");
        }
        let sensor = self.sensor.clone();
        LeaseTaken { sensor, by }
    }

    fn seen_status(&self) -> ShipStatus {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.clone()
    }

    /// Returns the present status of the sensor, as it is written to the store.
    fn snapshot(&self) -> SensorStatus {
        let now = self.seen_status();
        SensorStatus {
            version: VERSION,
            sensor: self.sensor.clone(),
            by: Instance {
                instance: self.instance.clone(),
                host: self.host.clone(),
                time: Timestamp::now(),
            },
            run: self.run.clone(),
            wqcap: env!("CARGO_PKG_VERSION").into(),
            ledger: now.ledger,
            uncounted_files: now.uncounted_files,
            expired_files: now.expired_files,
            expired_flow_files: now.expired_flow_files,
            expired_uncounted_files: now.expired_uncounted_files,
            pending_files: now.pending_files,
            pending_bytes: now.pending_bytes,
            lag_s: now.lag_s,
            last_object: now.last_object,
            problems: now.problems.into_iter().take(MOST_PROBLEMS).collect(),
            taken_over: self.taken_over.clone(),
            refused_by: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fleet::LastObject,
        store::{Folder, Remote},
    };
    use jiff::SignedDuration;
    use object_store::memory::InMemory;
    use tempfile::TempDir;
    use tokio::runtime::Builder;

    /// Returns a store that supports conditional puts, and one that does not.
    fn stores() -> (TempDir, [Arc<dyn Store>; 2]) {
        let dir = tempfile::tempdir().expect("dir");
        let folder = Folder::open(dir.path()).expect("there");
        (
            dir,
            [
                Arc::new(Remote::with_client(InMemory::new())),
                Arc::new(folder),
            ],
        )
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn lease(store: &Arc<dyn Store>, instance: &str) -> Lease {
        let holder = LeaseHolder {
            sensor: "tap",
            host: instance,
            instance,
        };
        Lease::new(&holder, Arc::clone(store), Arc::default()).expect("random bytes")
    }

    /// Returns the host that owns the sensor name.
    fn holder(result: Result<(), LeaseTaken>) -> Option<String> {
        result.err().map(|it| it.by.host)
    }

    async fn there(store: &Arc<dyn Store>, key: &str) -> SensorStatus {
        let object = store.read_small(key).await.expect("there");
        SensorStatus::parse(&object.bytes).expect("a status")
    }

    /// Makes the stored sensor status older than the lease.
    async fn grow_old(store: &Arc<dyn Store>) {
        set_clock(store, -240).await;
    }

    /// Shifts the time of the stored sensor status, as if the clock had been `seconds` ahead when
    /// it was put.
    async fn set_clock(store: &Arc<dyn Store>, seconds: i64) {
        let key = key::status("tap");
        let mut it = there(store, &key).await;
        it.by.time += SignedDuration::from_secs(seconds);
        let text = serde_json::to_vec(&it).expect("JSON");
        store.put(&key, text.into()).await.expect("put");
    }

    #[test]
    fn a_name_belongs_to_one_instance_until_its_status_is_old() {
        let (_dir, stores) = stores();
        for store in &stores {
            run(async {
                let (mut first, mut second) = (lease(store, "first"), lease(store, "second"));
                assert_eq!(holder(first.claim().await), None);
                let taken = second.claim().await.expect_err("taken");
                let text = taken.to_string();
                for part in ["ship.sensor = \"tap\"", "host \"first\"", "180 s"] {
                    assert!(text.contains(part), "{text}");
                }
                let refused = there(store, "status/sensor=tap.second.json").await;
                assert_eq!(refused.refused_by, Some(taken.by));
                assert_eq!(holder(first.claim().await), None);

                grow_old(store).await;
                assert_eq!(holder(second.claim().await), None);
                let now = there(store, "status/sensor=tap.json").await;
                assert_eq!(now.by.host, "second");
                assert_eq!(now.taken_over.expect("reported").host, "first");
                // The first instance was only interrupted.
                assert_eq!(holder(first.claim().await).as_deref(), Some("second"));
                assert_eq!(holder(second.claim().await), None);
            });
        }
    }

    #[test]
    fn a_process_with_the_same_journal_inherits_name_and_status() {
        let (_dir, stores) = stores();
        for store in &stores {
            run(async {
                let mut before = lease(store, "first");
                let object = LastObject::now("packets/x.pcap");
                let status = Arc::clone(&before.status);
                status.lock().expect("sound").last_object = Some(object.clone());
                assert_eq!(holder(before.claim().await), None);
                let mut after = lease(store, "first");
                assert_eq!(holder(after.claim().await), None);
                let now = there(store, "status/sensor=tap.json").await;
                assert_eq!(now.last_object, Some(object));
                // Two processes with copies of the same journal: the last one owns the name.
                assert_eq!(holder(before.claim().await).as_deref(), Some("first"));
                assert_eq!(holder(after.claim().await), None);
            });
        }
    }

    #[test]
    fn of_two_concurrent_instances_one_is_refused() {
        let (_dir, stores) = stores();
        for (store, compares) in stores.iter().zip([true, false]) {
            run(async {
                let (mut first, mut second) = (lease(store, "first"), lease(store, "second"));
                let key = key::status("tap");
                let seen = first.read_status(&key).await.expect("nothing");
                assert_eq!(holder(second.claim().await), None);
                let status = first.snapshot();
                let put = first.put_if_unchanged(&key, &status, seen).await;
                assert_eq!(put, Ok(!compares));
                first.held = !compares;
                let by = [holder(first.claim().await), holder(second.claim().await)];
                let expected = match compares {
                    true => [Some("second"), None],
                    false => [None, Some("first")],
                };
                assert_eq!(by.each_ref().map(Option::as_deref), expected);
            });
        }
    }

    #[test]
    fn a_clock_that_jumps_does_not_release_a_name() {
        const DAY: i64 = 24 * 3600;
        let (_dir, stores) = stores();
        for (store, seconds) in stores.iter().flat_map(|it| {
            [-20 * 365 * DAY, -DAY, -240, 240, DAY, 20 * 365 * DAY].map(|seconds| (it, seconds))
        }) {
            run(async {
                let mut before = lease(store, "first");
                assert_eq!(holder(before.claim().await), None);
                // While the instance ships, and between two processes.
                set_clock(store, seconds).await;
                assert_eq!(holder(before.claim().await), None, "{seconds}");
                set_clock(store, seconds).await;
                let mut after = lease(store, "first");
                assert_eq!(holder(after.claim().await), None, "{seconds}");
                assert_eq!(there(store, &key::status("tap")).await.taken_over, None);
                // The status is now recent by the present clock.
                let other = lease(store, "other").claim().await;
                assert_eq!(holder(other).as_deref(), Some("first"), "{seconds}");
                // A clock within the lease time holds the name.
                set_clock(store, 120).await;
                let other = lease(store, "other").claim().await;
                assert_eq!(holder(other).as_deref(), Some("first"), "{seconds}");
            });
        }
    }

    #[test]
    fn an_invalid_status_is_replaced() {
        let (_dir, stores) = stores();
        for store in &stores {
            run(async {
                let key = key::status("tap");
                store.put(&key, "{".into()).await.expect("put");
                assert_eq!(holder(lease(store, "first").claim().await), None);
                assert_eq!(there(store, &key).await.by.host, "first");
            });
        }
    }

    #[test]
    fn a_status_is_due_with_news_and_otherwise_after_a_minute() {
        let (_dir, [store, _]) = stores();
        run(async {
            let mut it = lease(&store, "first");
            let ago = |it: &mut Lease, s| it.tried = Instant::now() - Duration::from_secs(s);
            it.claim().await.expect("free");
            assert!(!it.is_due());
            ago(&mut it, 11);
            assert!(!it.is_due(), "no news");
            ago(&mut it, 61);
            assert!(it.is_due());
            ago(&mut it, 11);
            let status = Arc::clone(&it.status);
            status.lock().expect("sound").pending_files = 1;
            assert!(it.is_due());
            status.lock().expect("sound").now = Some("a file".into());
            assert!(!it.is_due(), "in the middle of a pass");
        });
    }
}
