//! Lease of a sensor's name: the status in the store, `status/sensor=NAME.json`, names the owner.
//!
//! ```text
//! read -> status of another instance, younger than HELD -> refused
//!      -> no status, own status, or an old one          -> write if the object is unchanged
//! ```
//!
//! A status is young by the clock of its machine, or by the clock of the store: the clocks of two
//! machines may differ. The present time of the store is that of an object just written.
//!
//! A journal that was copied has the same instance as the original. The journal names the processes
//! that used it; if a status of its instance is from another process, the journal is a copy, and
//! gets an instance of its own.
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
    "ship.sensor = {sensor:?}: host {:?} ships under this name (last status {}, instance {}){}; set another \
     ship.sensor and another ship.journal here; if that host is gone, the name is free {} s after its last status",
    .by.host, .by.time, .by.instance, .clocks.text(), HELD.as_secs()
)]
pub struct LeaseTaken {
    sensor: String,
    by: Instance,
    clocks: Clocks,
}

/// Reason why this instance may not ship at present.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseRefusal {
    /// Another instance ships under the sensor's name.
    #[error(transparent)]
    Taken(#[from] LeaseTaken),
    /// The directory of the store does not have the sensor status that was written to it.
    #[error(
        "ship.store: the directory has no {status}, which was written to it before: it is another directory, or its file \
         system is not mounted; no files are sent to it. If the store was emptied on purpose, set a new ship.journal"
    )]
    OtherDirectory {
        /// Object key of the sensor's status.
        status: String,
    },
}

/// Comparison of the clocks of two machines that use one sensor name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    /// The clocks differ by less than [`HELD`], as far as their times show.
    Agree,
    /// By the store's clock, the other machine's status is younger than its own time says.
    Differ,
}

impl Clocks {
    const fn text(self) -> &'static str {
        match self {
            Self::Agree => "",
            Self::Differ => "; the clocks of the two hosts differ",
        }
    }
}

/// Reason why the sensor status was not written to the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum PutError {
    Refused(LeaseRefusal),
    Store(#[from] StoreError),
}

/// Instance of `wqcap ship` that ships a sensor's files, as named in the sensor's status.
pub(super) struct LeaseHolder<'a> {
    pub(super) sensor: &'a str,
    pub(super) host: &'a str,
    /// Identifier of the delivery journal that the instance uses.
    pub(super) instance: &'a str,
    /// Identifiers of the processes that used the delivery journal, that of this process last.
    pub(super) runs: &'a [String],
    /// How certain it is that the store has a status of the sensor.
    pub(super) kept: KeptStatus,
}

/// Knowledge of the status that earlier processes have written to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeptStatus {
    /// The store may have no status: it is a bucket, where anyone may have deleted it, or no process
    /// with this journal has written one.
    Unsure,
    /// The store is a directory to which this process has not written a status yet.
    NoneYet,
    /// The store is a directory to which a process with this journal has written the status.
    InDirectory,
}

/// Object that the store has under the key of the sensor's status.
struct StoredStatus {
    status: Option<SensorStatus>,
    /// Precondition for a write: the status object is unchanged. `None`: the store has no ETags.
    only: Option<PutIf>,
    /// Error of a store that refuses to read the status object. A bucket may refuse to read a
    /// missing object if the client may not list it.
    hidden: Option<String>,
    /// Time at which the store wrote the object, by the clock of the store, in nanoseconds since
    /// 1970; `None`: unknown.
    written_ns: Option<u64>,
    /// Set when the store has no object under the key.
    is_absent: bool,
}

/// Writer of a sensor's status to the store, as long as no other instance ships under the sensor's
/// name.
pub(super) struct Lease {
    store: Arc<dyn Store>,
    status: Arc<Mutex<ShipStatus>>,
    sensor: String,
    host: String,
    instance: String,
    /// Identifier that replaces `instance` if the journal turns out to be a copy.
    spare_instance: String,
    run: String,
    /// Identifiers of earlier processes that used the journal.
    earlier_runs: Vec<String>,
    /// Cleared when the store turns out not to support conditional writes.
    compares: bool,
    /// Set when this process has written a sensor status to the store.
    held: bool,
    kept: KeptStatus,
    taken_over: Option<Instance>,
    /// Problem that another instance and this one take the sensor's name from each other.
    in_turn: Option<String>,
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
        let (run, earlier_runs) = match holder.runs {
            [earlier @ .., run] => (run.clone(), earlier.to_vec()),
            [] => (random_name()?, Vec::new()),
        };
        Ok(Self {
            store,
            status,
            sensor: holder.sensor.into(),
            host: holder.host.into(),
            instance: holder.instance.into(),
            spare_instance: random_name()?,
            run,
            earlier_runs,
            compares: true,
            held: false,
            kept: holder.kept,
            taken_over: None,
            in_turn: None,
            last: None,
            tried: Instant::now(),
            warned: false,
        })
    }

    /// Returns the identifier of the instance under which this process ships.
    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    /// Returns `true` if this process has written a sensor status to the store.
    pub(super) fn is_held(&self) -> bool {
        self.held
    }

    /// Writes the present sensor status to the store. A failure of the store is logged and is not
    /// an error.
    ///
    /// # Errors
    /// Another instance ships under the sensor's name, or the store is another directory.
    pub(super) async fn claim(&mut self) -> Result<(), LeaseRefusal> {
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
            Err(PutError::Refused(refusal)) => Err(refusal),
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

    /// Writes the sensor status to the store whenever it is due. Returns when this instance may no
    /// longer ship.
    pub(super) async fn keep(&mut self) -> LeaseRefusal {
        loop {
            sleep(TICK).await;
            if self.is_due()
                && let Err(refusal) = self.claim().await
            {
                return refusal;
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
            let (mut before, mut in_turn) = (None, false);
            match &seen.status {
                Some(it) if self.is_own(it) => self.continue_from(it),
                Some(it) => {
                    self.leave_copied_journal(it);
                    if let Some(taken) = self.refused_by(it, seen.written_ns).await {
                        return Err(PutError::Refused(taken.into()));
                    }
                    let names_this = |it: &Instance| it.instance == self.instance;
                    in_turn = it.taken_over.as_ref().is_some_and(names_this);
                    before = Some(it.by.clone());
                }
                None if self.kept == KeptStatus::InDirectory && seen.is_absent => {
                    let status = key::status(&self.sensor);
                    return Err(PutError::Refused(LeaseRefusal::OtherDirectory { status }));
                }
                None => {}
            }
            if let Some(it) = before.as_ref().filter(|_| in_turn) {
                self.in_turn = Some(format!(
                    "ship.sensor = {:?}: this host and host {:?} ship under this name in turn; set another ship.sensor and another ship.journal on one of them",
                    self.sensor, it.host
                ));
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
            if let Some(problem) = self.in_turn.as_ref().filter(|_| in_turn) {
                tracing::error!("{problem}");
            }
            self.held = true;
            if self.kept == KeptStatus::NoneYet {
                self.kept = KeptStatus::InDirectory;
            }
            return Ok(status);
        }
        let why = "other instances write the sensor status at the same time";
        Err(StoreError::Failed(why.into()).into())
    }

    async fn read_status(&self, key: &str) -> Result<StoredStatus, StoreError> {
        let absent = |hidden: Option<String>| StoredStatus {
            status: None,
            only: Some(PutIf::Absent),
            is_absent: hidden.is_none(),
            hidden,
            written_ns: None,
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
            written_ns: object.written_ns,
            is_absent: false,
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

    /// Returns `true` if this process, or an earlier one with its journal, has written the sensor
    /// status. Once this process has written a status, only its own count.
    fn is_own(&self, it: &SensorStatus) -> bool {
        // Journals of earlier versions name no processes.
        let is_earlier = match self.earlier_runs.as_slice() {
            [] => it.by.instance == self.instance,
            runs => runs.contains(&it.run),
        };
        it.run == self.run || !self.held && is_earlier
    }

    /// Takes an instance of its own if a process with another copy of the journal has written the
    /// sensor status.
    fn leave_copied_journal(&mut self, it: &SensorStatus) {
        if !self.held && it.by.instance == self.instance {
            tracing::warn!(
                "ship.journal: this journal is a copy or an earlier state of the journal that host {:?} used at {}; `wqcap ship` continues as instance {}",
                it.by.host,
                it.by.time,
                self.spare_instance
            );
            self.instance.clone_from(&self.spare_instance);
        }
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

    /// Returns the error if the instance `owner` still has the sensor's name: its status, which the
    /// store wrote at `written_ns`, is younger than [`HELD`] by its own time or by the store's clock.
    /// Writes a status which reports that this instance may not ship, because no other status has
    /// the frames of this instance; its time is the present one of the store.
    async fn refused_by(
        &self,
        owner: &SensorStatus,
        written_ns: Option<u64>,
    ) -> Option<LeaseTaken> {
        let by = owner.by.clone();
        let status = SensorStatus {
            refused_by: Some(by.clone()),
            taken_over: None,
            problems: Vec::new(),
            ..self.snapshot()
        };
        let key = key::refused(&self.sensor, &self.instance);
        let text = serde_json::to_vec_pretty(&status).ok()?;
        let put = self.store.put(&key, text.into()).await;
        if let Err(e) = &put {
            tracing::debug!("{key}: {e}");
        }
        let clocks = match owner.holds(Timestamp::now()) {
            true => Clocks::Agree,
            false => {
                put.ok()?;
                let present = self.store.read_small(&key).await.ok()?.written_ns?;
                let age = Duration::from_nanos(present.abs_diff(written_ns?));
                (age < HELD).then_some(Clocks::Differ)?
            }
        };
        let sensor = self.sensor.clone();
        Some(LeaseTaken { sensor, by, clocks })
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
            problems: {
                let problems = self.in_turn.iter().cloned().chain(now.problems);
                problems.take(MOST_PROBLEMS).collect()
            },
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
        shipper::tests::RecordingStore,
        store::{Folder, Remote},
    };
    use jiff::SignedDuration;
    use object_store::memory::InMemory;
    use tempfile::TempDir;
    use tokio::runtime::Builder;

    /// Returns a store that supports conditional puts, and one that does not.
    fn stores() -> (TempDir, [Arc<RecordingStore>; 2]) {
        let dir = tempfile::tempdir().expect("dir");
        let folder = Folder::open(dir.path()).expect("there");
        (
            dir,
            [
                RecordingStore::new(Remote::with_client(InMemory::new()), None),
                RecordingStore::new(folder, None),
            ],
        )
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(work)
    }

    fn lease(store: &Arc<RecordingStore>, instance: &str) -> Lease {
        lease_of(store, instance, &[])
    }

    /// Returns the lease of a process whose journal names the processes `runs`.
    fn lease_of(store: &Arc<RecordingStore>, instance: &str, runs: &[String]) -> Lease {
        let holder = LeaseHolder {
            sensor: "tap",
            host: instance,
            instance,
            runs,
            kept: KeptStatus::Unsure,
        };
        let store = Arc::clone(store) as Arc<dyn Store>;
        Lease::new(&holder, store, Arc::default()).expect("random bytes")
    }

    /// Returns the host that owns the sensor name.
    fn holder(result: Result<(), LeaseRefusal>) -> Option<String> {
        result.err().map(|it| by(it).host)
    }

    /// Returns the instance that owns the sensor name.
    fn by(refusal: LeaseRefusal) -> Instance {
        match refusal {
            LeaseRefusal::Taken(taken) => taken.by,
            other => panic!("{other}"),
        }
    }

    async fn there(store: &Arc<RecordingStore>, key: &str) -> SensorStatus {
        let object = store.read_small(key).await.expect("there");
        SensorStatus::parse(&object.bytes).expect("a status")
    }

    /// Makes the stored sensor status older than the lease, until the next call of [`set_clock`].
    async fn grow_old(store: &Arc<RecordingStore>) {
        set_clock(store, -240).await;
        set_age(store, 240);
    }

    fn set_age(store: &RecordingStore, seconds: u64) {
        *store.status_age_ns.lock().expect("no panic") = seconds * 1_000_000_000;
    }

    /// Shifts the time of the stored sensor status, as if the clock had been `seconds` ahead when
    /// it was put.
    async fn set_clock(store: &Arc<RecordingStore>, seconds: i64) {
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
                assert_eq!(refused.refused_by, Some(by(taken)));
                assert_eq!(holder(first.claim().await), None);

                grow_old(store).await;
                assert_eq!(holder(second.claim().await), None);
                let now = there(store, "status/sensor=tap.json").await;
                assert_eq!(now.by.host, "second");
                assert_eq!(now.taken_over.expect("reported").host, "first");
                set_age(store, 0);
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
    fn a_status_is_young_by_its_own_clock_or_by_that_of_the_store() {
        let (_dir, stores) = stores();
        for store in &stores {
            run(async {
                let (mut first, mut second) = (lease(store, "first"), lease(store, "second"));
                for (seconds, age, is_taken) in [
                    (-3600, 0, true),
                    (3600, 170, true),
                    (-100, 3600, true),
                    (-3600, 190, false),
                ] {
                    assert_eq!(holder(first.claim().await), None);
                    set_clock(store, seconds).await;
                    set_age(store, age);
                    let taken = second.claim().await;
                    assert_eq!(taken.is_err(), is_taken, "{seconds}, {age}");
                    let differ = |it: LeaseRefusal| it.to_string().contains("the clocks");
                    assert_eq!(
                        taken.err().is_some_and(differ),
                        is_taken && age < 180,
                        "{seconds}, {age}"
                    );
                }
            });
        }
    }

    #[test]
    fn two_machines_that_ship_in_turn_are_a_problem() {
        let (_dir, stores) = stores();
        for store in &stores {
            run(async {
                let status = async || there(store, &key::status("tap")).await;
                for (n, name) in ["first", "second", "first", "second"]
                    .into_iter()
                    .enumerate()
                {
                    assert_eq!(holder(lease(store, name).claim().await), None, "{n}");
                    let problems = status().await.problems;
                    assert_eq!(problems.len(), usize::from(n > 1), "{problems:?}");
                    assert!(problems.iter().all(|it| it.contains("in turn")));
                    grow_old(store).await;
                }
            });
        }
    }

    #[test]
    fn a_copied_journal_is_another_instance() {
        let (_dir, stores) = stores();
        let runs = ["1", "2", "3", "4"].map(str::to_owned);
        for store in &stores {
            run(async {
                let mut before = lease_of(store, "tap0", &runs[..1]);
                assert_eq!(holder(before.claim().await), None);
                // The next process of the original, and one of a copy.
                let mut after = lease_of(store, "tap0", &runs[..2]);
                assert_eq!(holder(after.claim().await), None);
                let copied = [runs[0].clone(), runs[2].clone()];
                let mut copy = lease_of(store, "tap0", &copied);
                assert_eq!(holder(copy.claim().await).as_deref(), Some("tap0"));
                assert_ne!(copy.instance(), "tap0");
                let refused = key::refused("tap", copy.instance());
                assert!(there(store, &refused).await.refused_by.is_some());
                // The original continues.
                assert_eq!(holder(after.claim().await), None);
                let mut next = lease_of(store, "tap0", &[runs[1].clone(), runs[3].clone()]);
                assert_eq!(holder(next.claim().await), None);
                assert_eq!(next.instance(), "tap0");
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
