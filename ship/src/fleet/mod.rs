//! Survey of a store: statuses of all sensors, sensors without a status, and findings on missing
//! data.
//!
//! May import: `store`, `ledger` and `key`.
//!
//! Invariant: statuses are checked and never trusted, because they may have any content.

#[cfg(test)]
pub(crate) mod fixtures;
mod status;

pub(crate) use status::{HELD, MOST_PROBLEMS, VERSION};
pub use status::{Instance, LastObject, SensorStatus, SensorStatusError};

use crate::{
    key,
    ledger::DeliveryLedger,
    limits::{MOST_FAILED, SMALL, STATUSES},
    store::{self, ReadStore, StoreError, StoreOpenError, UnusableKeys},
    threads,
};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::{runtime::Builder, task::JoinSet};

/// Maximum number of sensor statuses that a survey reads from the store concurrently.
const AT_A_TIME: usize = 16;
/// Number of newest hours with packets, up to now and also of the future, in which a survey searches
/// the store for sensors without a status.
const HOURS: usize = 3;
/// Maximum number of days up to now whose hours a survey lists, if these have no packets.
const DAYS: usize = 1000;

/// Time for which a survey reports that a sensor name has a new owner.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Accepted difference in seconds between the clocks of a sensor and of the survey.
const CLOCKS_S: f64 = 300.0;

/// Reason why an object store cannot be surveyed for its sensors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The object store to survey cannot be opened.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The object store refuses a request of the survey or does not answer.
    #[error("{from} = {url:?}: {problem}")]
    Asked {
        /// Name of the option or configuration key that holds the store's URL.
        from: String,
        /// URL of the object store.
        url: String,
        /// Error that the object store returned to the survey.
        problem: StoreError,
    },
    /// The threads that send the survey's requests cannot be started.
    #[error("cannot start the threads that send store requests: {0}")]
    Threads(#[from] std::io::Error),
}

/// Result of a survey: statuses of all sensors of a store, and findings on them.
#[derive(Clone, Debug, Serialize)]
pub struct Fleet {
    /// Time at which the sensors were surveyed.
    pub time: Timestamp,
    /// Sensors with their statuses, sorted by name; each is followed by machines that were refused
    /// under its name.
    pub sensors: Vec<SensorFacts>,
    /// Sum of the delivery ledgers of all sensors in the store.
    pub total: DeliveryLedger,
    /// Findings of the survey: missing data, and events that need attention.
    pub findings: Vec<SurveyFinding>,
}

/// Status of a sensor, and the survey's conclusions from it.
#[derive(Clone, Debug, Serialize)]
pub struct SensorFacts {
    /// Status that the sensor has written to the store.
    #[serde(flatten)]
    pub status: SensorStatus,
    /// Age of the sensor's status at the time of the survey, in seconds.
    pub age_s: f64,
    /// Set when the sensor's status is older than the age limit of the survey.
    pub stale: bool,
    /// Set when the lines of the sensor's delivery ledger sum up to the frames that it captured.
    pub adds_up: bool,
}

/// Finding of a survey of sensors: something is missing or needs attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SurveyFinding {
    /// The store has no status of any sensor.
    Nobody,
    /// The status of a sensor is older than the age limit of the survey.
    Stale {
        /// Name of the sensor whose status is too old.
        sensor: String,
        /// Age of the sensor's status in seconds.
        age_s: f64,
    },
    /// The status of a sensor is from the future, so that its age is unknown.
    Ahead {
        /// Name of the sensor whose status is from the future.
        sensor: String,
        /// Time in seconds by which the status is ahead of the clock of the survey.
        ahead_s: f64,
    },
    /// Files of a sensor were deleted before they were shipped.
    Expired {
        /// Name of the sensor whose files were deleted unshipped.
        sensor: String,
        /// Number of frames in the sensor's files that were deleted unshipped.
        frames: u64,
        /// Number of the sensor's capture files that were deleted unshipped.
        files: u64,
        /// Number of the sensor's deleted capture files whose frames were not counted.
        uncounted_files: u64,
        /// Number of the sensor's files of flow records, DNS and DHCP that were deleted unshipped.
        flow_files: u64,
    },
    /// The lines of a sensor's delivery ledger do not sum up to its captured frames.
    DoesNotAddUp {
        /// Name of the sensor whose delivery ledger is inconsistent.
        sensor: String,
    },
    /// A machine does not ship, because another machine ships under its sensor name.
    Refused {
        /// Name of the sensor that both machines use.
        sensor: String,
        /// Name of the machine that may not ship.
        host: String,
        /// Instance of `wqcap ship` that owns the sensor name.
        by: Instance,
    },
    /// The name of a sensor has moved to another machine or journal within a day.
    TakenOver {
        /// Name of the sensor that has moved.
        sensor: String,
        /// Machine that owns the sensor name now.
        host: String,
        /// Previous owner of the sensor name.
        from: Instance,
    },
    /// The status of a sensor reports a problem.
    Problem {
        /// Name of the sensor that reports the problem.
        sensor: String,
        /// Description of the problem that the sensor reports.
        problem: String,
    },
    /// The store has recent packets of a sensor that has no status.
    NoStatus {
        /// Name of the sensor that has no status.
        sensor: String,
        /// Partition of `blocks/` with the sensor's newest packets.
        partition: String,
    },
    /// An object in the folder of sensor statuses is not a valid status.
    Unreadable {
        /// Key of the object that is not a valid sensor status.
        object: String,
        /// Reason why the object is not a valid sensor status.
        problem: String,
    },
}

impl SurveyFinding {
    /// Returns `true` if the finding reports that something is missing; `false` if it only needs
    /// attention.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        !matches!(self, Self::TakenOver { .. })
    }
}

/// Surveys all sensors of an object store. Statuses older than `stale` are reported. `from` names
/// the origin of the store's URL in errors.
///
/// # Errors
/// The store cannot be opened or read.
pub fn survey(from: &str, url: &str, stale: Duration) -> Result<Fleet, FleetError> {
    threads::start()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = store::open_to_read(format!("{from} = {url:?}"), url)?;
        let surveyed = survey_store(&store, Timestamp::now(), stale).await;
        surveyed.map_err(|problem| FleetError::Asked {
            from: from.into(),
            url: url.into(),
            problem,
        })
    })
}

/// Reason why an object in the folder of sensor statuses is not a status.
#[derive(Debug, thiserror::Error)]
enum UnreadableStatus {
    #[error(transparent)]
    Content(#[from] SensorStatusError),
    #[error("the status object has {0} bytes; the limit is {SMALL}")]
    TooLong(u64),
    #[error("the sensor status has the wrong key in the store; its key must be {0}")]
    WrongKey(String),
    #[error("{}", status::plain(&.0.to_string()))]
    Store(StoreError),
}

/// Result of reading an object in the folder of sensor statuses.
type StatusResult = Result<SensorStatus, UnreadableStatus>;

async fn survey_store(
    store: &Arc<dyn ReadStore>,
    now: Timestamp,
    stale: Duration,
) -> Result<Fleet, StoreError> {
    let mut unusable = UnusableKeys::default();
    let Statuses {
        read,
        more,
        unasked,
    } = statuses(store, &mut unusable).await?;
    let seen = newest(store.as_ref(), now, &mut unusable).await?;
    let mut fleet = judge(read, seen, now, stale);
    let others = unusable.count - unusable.named.len() as u64;
    let problem = "the key cannot be used, and its object is left out";
    let named = unusable.named.iter().map(|it| (status::plain(it), problem));
    let others = (others > 0).then(|| (format!("{others} more objects"), problem));
    let left_out = named.chain(others);
    fleet.findings.extend(left_out.map(|(object, problem)| {
        let problem = problem.into();
        SurveyFinding::Unreadable { object, problem }
    }));
    let not_read = [
        (
            more,
            format!("{STATUSES} objects are read at most, of all sensors in turn"),
        ),
        (
            unasked,
            format!("they were not read, because {MOST_FAILED} requests in a row failed"),
        ),
    ];
    for (count, problem) in not_read {
        if count > 0 {
            let object = format!("{count} more objects below {}/", key::STATUS);
            let finding = SurveyFinding::Unreadable { object, problem };
            fleet.findings.push(finding);
        }
    }
    Ok(fleet)
}

/// Returns at most `most` names of status objects, and the number of the others. The sensors, by their
/// names up to the first dot, take turns, the shortest object name first, so that a sensor with very
/// many objects does not keep out the others.
fn in_turn(mut names: Vec<String>, most: usize) -> (Vec<String>, usize) {
    names.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    let mut turns = HashMap::<String, usize>::new();
    let mut numbered: Vec<_> = names
        .into_iter()
        .map(|it| {
            let sensor = it.split('.').next().unwrap_or_default().to_owned();
            let turn = turns.entry(sensor).or_default();
            *turn += 1;
            (*turn, it)
        })
        .collect();
    numbered.sort();
    let more = numbered.len().saturating_sub(most);
    numbered.truncate(most);
    (numbered.into_iter().map(|(_, it)| it).collect(), more)
}

/// Sensor statuses of a store, as far as they were read.
struct Statuses {
    /// Results of reading the status objects, by key.
    read: BTreeMap<String, StatusResult>,
    /// Number of status objects beyond [`STATUSES`].
    more: usize,
    /// Number of status objects that were not read, because the store did not answer for
    /// [`MOST_FAILED`] others in a row.
    unasked: usize,
}

/// Reads the objects in the folder of sensor statuses from the store.
async fn statuses(
    store: &Arc<dyn ReadStore>,
    unusable: &mut UnusableKeys,
) -> Result<Statuses, StoreError> {
    let listed = store.list(key::STATUS).await?;
    unusable.append(listed.unusable);
    let (names, more) = in_turn(listed.objects.into_iter().collect(), STATUSES);
    let mut names = names.into_iter();
    let mut reading: JoinSet<Option<(String, StatusResult)>> = JoinSet::new();
    let mut all = BTreeMap::new();
    let mut failed_in_row = 0;
    while failed_in_row < MOST_FAILED {
        while reading.len() < AT_A_TIME
            && let Some(name) = names.next()
        {
            reading.spawn(read(Arc::clone(store), format!("{}/{name}", key::STATUS)));
        }
        let done = match reading.join_next().await {
            None => break,
            Some(Ok(done)) => done,
            Some(Err(e)) => return Err(StoreError::Failed(e.to_string())),
        };
        match &done {
            Some((_, Err(UnreadableStatus::Store(e)))) if e.is_temporary() => failed_in_row += 1,
            _ => failed_in_row = 0,
        }
        all.extend(done);
    }
    Ok(Statuses {
        read: all,
        more,
        unasked: reading.len() + names.len(),
    })
}

/// Reads an object in the folder of sensor statuses. `None`: it was deleted after it was listed.
async fn read(store: Arc<dyn ReadStore>, key: String) -> Option<(String, StatusResult)> {
    let status = match store.read(&key, 0..SMALL).await {
        Ok((_, len)) if len > SMALL => Err(UnreadableStatus::TooLong(len)),
        Ok((bytes, _)) => {
            let status = SensorStatus::parse(&bytes).map_err(UnreadableStatus::from);
            status.and_then(|it| under_its_key(it, &key))
        }
        Err(StoreError::NotFound(_)) => return None,
        Err(e) => Err(UnreadableStatus::Store(e)),
    };
    Some((key, status))
}

/// Checks that a status is stored under the key of its sensor, because any writer of the store may
/// have written it.
fn under_its_key(it: SensorStatus, key: &str) -> StatusResult {
    let own = match it.refused_by {
        Some(_) => key::refused(&it.sensor, &it.by.instance),
        None => key::status(&it.sensor),
    };
    match own == key {
        true => Ok(it),
        false => Err(UnreadableStatus::WrongKey(own)),
    }
}

/// Returns the sensors that have packets in the newest hours of the store, with the newest
/// partition of each. Hours of the future do not take the places of hours up to `now`: one clock
/// that is ahead would hide the other sensors. Folders that are not partitions are unusable keys.
async fn newest(
    store: &dyn ReadStore,
    now: Timestamp,
    unusable: &mut UnusableKeys,
) -> Result<BTreeMap<String, String>, StoreError> {
    let hour_of_now = format!("{}/{}", key::BLOCKS, key::hour(now));
    let mut future = PartitionsLeft {
        days: HOURS,
        hours: HOURS,
    };
    let mut past = PartitionsLeft {
        days: DAYS,
        hours: HOURS,
    };
    let mut seen = BTreeMap::new();
    for day in latest_first(store, key::BLOCKS, key::is_day, unusable).await? {
        let left = match day > hour_of_now {
            true => &mut future,
            false => &mut past,
        };
        if left.days == 0 {
            continue;
        }
        left.days -= 1;
        for hour in latest_first(store, &day, key::is_hour, unusable).await? {
            let left = match hour > hour_of_now {
                true => &mut future,
                false => &mut past,
            };
            if left.hours == 0 {
                continue;
            }
            let folders = folders(store, &hour, unusable).await?;
            let sensors = folders.iter().filter_map(|it| it.strip_prefix("sensor="));
            let mut sensors = sensors.peekable();
            left.hours -= usize::from(sensors.peek().is_some());
            for sensor in sensors {
                let partition = status::plain(&format!("{hour}/sensor={sensor}"));
                seen.entry(status::plain(sensor)).or_insert(partition);
            }
        }
        if past.hours == 0 {
            break;
        }
    }
    Ok(seen)
}

/// Partitions that a survey may still list, of the future or up to now.
struct PartitionsLeft {
    /// Number of days whose hours may still be listed.
    days: usize,
    /// Number of hours with packets that may still be searched.
    hours: usize,
}

/// Returns the names of the folders in a folder of the store.
async fn folders(
    store: &dyn ReadStore,
    folder: &str,
    unusable: &mut UnusableKeys,
) -> Result<Vec<String>, StoreError> {
    let listed = store.list(folder).await?;
    unusable.append(listed.unusable);
    Ok(listed.folders)
}

/// Returns the keys of the folders in `folder` whose names `is_valid` accepts, latest first. The
/// others are unusable keys.
async fn latest_first(
    store: &dyn ReadStore,
    folder: &str,
    is_valid: fn(&str) -> bool,
    unusable: &mut UnusableKeys,
) -> Result<Vec<String>, StoreError> {
    let names = folders(store, folder, unusable).await?;
    let (valid, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|it| is_valid(it));
    for name in others {
        unusable.add(&format!("{folder}/{name}"));
    }
    let mut keys: Vec<_> = valid.iter().map(|it| format!("{folder}/{it}")).collect();
    keys.sort();
    keys.reverse();
    Ok(keys)
}

fn judge(
    read: BTreeMap<String, StatusResult>,
    mut seen: BTreeMap<String, String>,
    now: Timestamp,
    stale: Duration,
) -> Fleet {
    let mut fleet = Fleet {
        time: now,
        sensors: Vec::new(),
        total: DeliveryLedger::default(),
        findings: Vec::new(),
    };
    let mut owners = BTreeSet::new();
    for (object, status) in read {
        match status {
            Ok(status) => {
                if status.refused_by.is_none() {
                    owners.insert(machine(&status));
                }
                fleet.sensors.push(facts(status, now, stale));
            }
            Err(e) => fleet.findings.push(SurveyFinding::Unreadable {
                object: status::plain(&object),
                problem: e.to_string(),
            }),
        }
    }
    // Drops refused machines that are stale, which have another name or are gone, and those that
    // now own the name.
    fleet.sensors.retain(|it| {
        it.status.refused_by.is_none() || !it.stale && !owners.contains(&machine(&it.status))
    });
    let order = |it: &SensorFacts| (it.status.sensor.clone(), it.status.refused_by.is_some());
    fleet.sensors.sort_by_key(order);
    if fleet.sensors.is_empty() && fleet.findings.is_empty() {
        fleet.findings.push(SurveyFinding::Nobody);
    }
    for it in &fleet.sensors {
        fleet.total = fleet.total.sum_with(&it.status.ledger);
        fleet.findings.extend(findings(it, now));
        seen.remove(&it.status.sensor);
    }
    let without = seen.into_iter();
    let without = without.map(|(sensor, partition)| SurveyFinding::NoStatus { sensor, partition });
    fleet.findings.extend(without);
    fleet
}

/// Returns what identifies the machine that ships, or was refused, under a sensor's name.
fn machine(it: &SensorStatus) -> [String; 3] {
    [&it.sensor, &it.by.instance, &it.by.host].map(Clone::clone)
}

fn facts(status: SensorStatus, now: Timestamp, stale: Duration) -> SensorFacts {
    let age_s = now.duration_since(status.by.time).as_secs_f64().max(0.0);
    SensorFacts {
        age_s,
        stale: age_s > stale.as_secs_f64(),
        adds_up: status.ledger.adds_up(),
        status,
    }
}

fn findings(it: &SensorFacts, now: Timestamp) -> Vec<SurveyFinding> {
    let SensorFacts { status, age_s, .. } = it;
    let sensor = || status.sensor.clone();
    let host = || status.by.host.clone();
    let mut found = Vec::new();
    if it.stale {
        found.push(SurveyFinding::Stale {
            sensor: sensor(),
            age_s: *age_s,
        });
    }
    let ahead_s = status.by.time.duration_since(now).as_secs_f64();
    if ahead_s > CLOCKS_S {
        found.push(SurveyFinding::Ahead {
            sensor: sensor(),
            ahead_s,
        });
    }
    if let Some(by) = status.refused_by.clone() {
        found.push(SurveyFinding::Refused {
            sensor: sensor(),
            host: host(),
            by,
        });
    }
    let frames = status.ledger.expired_unshipped;
    let (files, flow_files) = (status.expired_files, status.expired_flow_files);
    if (frames, files, flow_files) != (0, 0, 0) {
        found.push(SurveyFinding::Expired {
            sensor: sensor(),
            frames,
            files,
            uncounted_files: status.expired_uncounted_files,
            flow_files,
        });
    }
    if !it.adds_up {
        found.push(SurveyFinding::DoesNotAddUp { sensor: sensor() });
    }
    let recent = |it: &&Instance| now.duration_since(it.time).unsigned_abs() < DAY;
    if let Some(from) = status.taken_over.as_ref().filter(recent) {
        found.push(SurveyFinding::TakenOver {
            sensor: sensor(),
            host: host(),
            from: from.clone(),
        });
    }
    found.extend(status.problems.iter().map(|it| SurveyFinding::Problem {
        sensor: sensor(),
        problem: it.clone(),
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::{fixtures::status, *};
    use crate::{
        ledger::FrameState,
        store::{KeyFilter, KeyList, Listing, Remote, Store},
    };
    use bytes::Bytes;
    use jiff::SignedDuration;
    use object_store::memory::InMemory;
    use std::{
        ops::Range,
        sync::atomic::{AtomicUsize, Ordering},
    };

    const STALE: Duration = Duration::from_secs(300);

    #[test]
    fn a_sensor_with_very_many_status_objects_does_not_keep_out_others() {
        let names = [
            "a.json",
            "b.1.json",
            "b.10.json",
            "b.2.json",
            "b.json",
            "c.json",
            "c.1.json",
        ];
        let names = names.map(|it| format!("sensor={it}")).to_vec();
        let (chosen, more) = in_turn(names.clone(), 4);
        let wanted = ["a.json", "b.json", "c.json", "b.1.json"];
        assert_eq!(chosen, wanted.map(|it| format!("sensor={it}")));
        assert_eq!(more, 3);
        assert_eq!(in_turn(names, 9).1, 0);
    }

    /// Store with 100 status objects that answers each request for one with a temporary error.
    #[derive(Debug, Default)]
    struct Failing {
        reads: AtomicUsize,
    }

    #[async_trait::async_trait]
    impl ReadStore for Failing {
        async fn list(&self, folder: &str) -> Result<Listing, StoreError> {
            let mut listing = Listing::default();
            if folder == key::STATUS {
                listing.objects = (0..100).map(|i| format!("tap-{i}.json")).collect();
            }
            Ok(listing)
        }

        async fn keys(&self, _folder: &str, _keep: KeyFilter) -> Result<KeyList, StoreError> {
            Ok(KeyList::default())
        }

        async fn read(&self, _key: &str, _part: Range<u64>) -> Result<(Bytes, u64), StoreError> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Err(StoreError::Failed("503".into()))
        }

        async fn length(&self, _key: &str) -> Result<u64, StoreError> {
            Err(StoreError::Failed("503".into()))
        }
    }

    #[test]
    fn a_store_that_does_not_answer_is_not_asked_for_every_status() {
        let failing = Arc::<Failing>::default();
        let store: Arc<dyn ReadStore> = Arc::clone(&failing) as _;
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let surveyed = runtime.block_on(survey_store(&store, Timestamp::now(), STALE));
        let found = surveyed.expect("surveyed").findings;
        let asked = failing.reads.load(Ordering::Relaxed);
        assert!(asked <= AT_A_TIME + 8, "{asked} requests");
        assert_eq!(found.len(), 8 + 1, "{found:?}");
        let expected = |it: &SurveyFinding| matches!(it, SurveyFinding::Unreadable { object, .. } if object == "92 more objects below status/");
        assert!(found.last().is_some_and(expected), "{found:?}");
        assert!(found.iter().all(SurveyFinding::is_missing));
    }

    /// Surveys a store that has these objects, and returns the fleet.
    fn fleet(objects: &[(String, Vec<u8>)]) -> Fleet {
        let store = Arc::new(Remote::with_client(InMemory::new()));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for (key, bytes) in objects {
                let bytes = bytes.clone().into();
                Store::put(&*store, key, bytes).await.expect("put");
            }
            let store: Arc<dyn ReadStore> = store;
            let surveyed = survey_store(&store, Timestamp::now(), STALE).await;
            surveyed.expect("surveyed")
        })
    }

    fn object(it: &SensorStatus) -> (String, Vec<u8>) {
        let key = match it.refused_by {
            Some(_) => key::refused(&it.sensor, &it.by.instance),
            None => key::status(&it.sensor),
        };
        (key, serde_json::to_vec(it).expect("JSON"))
    }

    fn ago(status: SensorStatus, seconds: i64) -> SensorStatus {
        let time = Timestamp::now() - SignedDuration::from_secs(seconds);
        SensorStatus {
            by: Instance { time, ..status.by },
            ..status
        }
    }

    #[test]
    fn sound_sensors_are_listed_and_summed() {
        let mut all = Vec::new();
        // More statuses than are read at a time.
        for i in 0..40 {
            let mut it = status(&format!("tap-{i:02}"));
            it.ledger.add_frames(FrameState::Shipped, 10);
            it.ledger.add_frames(FrameState::Pending, 1);
            all.push(object(&it));
        }
        let fleet = fleet(&all);
        assert_eq!(fleet.findings, []);
        let names: Vec<_> = fleet.sensors.iter().map(|it| &it.status.sensor).collect();
        assert_eq!((names.len(), names[7].as_str()), (40, "tap-07"));
        let total = fleet.total;
        assert_eq!(
            (total.captured, total.shipped, total.pending),
            (440, 400, 40)
        );
        let json = serde_json::to_value(&fleet).expect("JSON");
        assert_eq!(json["sensors"][0]["sensor"], "tap-00");
        assert_eq!(json["sensors"][0]["stale"], false);
    }

    #[test]
    fn missing_frames_and_problems_are_found() {
        let stale = ago(status("a"), 301);
        let mut expired = status("b");
        expired.ledger.add_frames(FrameState::Expired, 7);
        expired.expired_files = 1;
        let mut wrong = status("c");
        wrong.ledger.captured = 1;
        let mut troubled = status("d");
        troubled.problems.push("the disk is gone".into());
        let mut taken = status("e");
        taken.taken_over = Some(ago(status("e"), 400).by);
        let ahead = fleet(&[
            object(&ago(status("f"), -310)),
            object(&ago(status("g"), -60)),
        ]);
        let expected = |it: &SurveyFinding| matches!(it, SurveyFinding::Ahead { sensor, ahead_s } if sensor == "f" && *ahead_s > 300.0);
        assert!(matches!(&ahead.findings[..], [it] if expected(it) && it.is_missing()));
        let found = fleet(&[&stale, &expired, &wrong, &troubled, &taken].map(object)).findings;
        let kinds: Vec<_> = found.iter().map(|it| it.is_missing()).collect();
        assert_eq!(kinds, [true, true, true, true, false], "{found:?}");
        assert!(
            matches!(&found[0], SurveyFinding::Stale { sensor, age_s } if sensor == "a" && *age_s > 300.0)
        );
        let expected = SurveyFinding::Expired {
            sensor: "b".into(),
            frames: 7,
            files: 1,
            uncounted_files: 0,
            flow_files: 0,
        };
        assert_eq!(found[1], expected);
        assert_eq!(found[2], SurveyFinding::DoesNotAddUp { sensor: "c".into() });
        assert!(
            matches!(&found[3], SurveyFinding::Problem { problem, .. } if problem == "the disk is gone")
        );
        assert!(
            matches!(&found[4], SurveyFinding::TakenOver { from, .. } if Some(from) == taken.taken_over.as_ref())
        );
        // The takeover was long ago.
        taken.taken_over = Some(ago(status("e"), 100_000).by);
        assert_eq!(fleet(&[object(&taken)]).findings, []);
    }

    #[test]
    fn a_refused_machine_is_found_while_it_is_refused() {
        let owner = status("a");
        let mut refused = status("a");
        refused.by.instance = "second".into();
        refused.by.host = "there".into();
        refused.run = "second".into();
        refused.refused_by = Some(owner.by.clone());
        let all = fleet(&[object(&owner), object(&refused)]);
        assert_eq!(all.sensors.len(), 2);
        let expected = SurveyFinding::Refused {
            sensor: "a".into(),
            host: "there".into(),
            by: owner.by.clone(),
        };
        assert_eq!(all.findings, [expected]);
        // The machine ships under another name now.
        let before = ago(refused.clone(), 301);
        let all = fleet(&[object(&owner), object(&before)]);
        assert_eq!((all.sensors.len(), all.findings), (1, Vec::new()));
        // The machine owns the name now.
        let now = SensorStatus {
            refused_by: None,
            ..refused.clone()
        };
        let all = fleet(&[object(&now), object(&refused)]);
        assert_eq!((all.sensors.len(), all.findings), (1, Vec::new()));
    }

    #[test]
    fn packets_without_a_status_are_found() {
        let blocks = |day: &str, hour: u8, sensor: &str| {
            let key = format!("blocks/dt={day}/hour=0{hour}/sensor={sensor}/1.parquet");
            (key, Vec::new())
        };
        let mut objects = vec![
            object(&status("a")),
            blocks("2026-01-01", 1, "old"),
            blocks("2026-01-01", 9, "b"),
            blocks("2026-01-02", 0, "a"),
            blocks("2026-01-02", 1, "a"),
            blocks("2026-01-02", 1, "b"),
        ];
        let without = |sensor: &str, place: &str| SurveyFinding::NoStatus {
            sensor: sensor.into(),
            partition: format!("blocks/{place}/sensor={sensor}"),
        };
        let expected = without("b", "dt=2026-01-02/hour=01");
        assert_eq!(fleet(&objects).findings, std::slice::from_ref(&expected));
        // A clock was ahead.
        objects.push(blocks("2999-01-09", 9, "c"));
        for day in 1..9 {
            let day = format!("2999-01-0{day}");
            for hour in [1, 2, 3] {
                objects.push(blocks(&day, hour, "a"));
            }
        }
        let ahead = without("c", "dt=2999-01-09/hour=09");
        assert_eq!(fleet(&objects).findings, [expected.clone(), ahead.clone()]);
        // Folders that are not hours, and hours without a sensor.
        let odd = ["tmp/x", "dt=2026-01-02/hour=1x", "dt=2026-01-02/hour=zz"];
        objects.extend(odd.map(|it| (format!("blocks/{it}/sensor=a/1"), Vec::new())));
        let empty = [4, 5, 6].map(|hour| format!("blocks/dt=2026-01-02/hour=0{hour}/x/1"));
        objects.extend(empty.map(|key| (key, Vec::new())));
        let findings = fleet(&objects).findings;
        assert_eq!(findings[..2], [expected, ahead]);
        let named = findings[2..].iter().map(|it| match it {
            SurveyFinding::Unreadable { object, .. } => object.as_str(),
            other => panic!("{other:?}"),
        });
        let named: BTreeSet<_> = named.collect();
        let odd = ["tmp", "dt=2026-01-02/hour=1x", "dt=2026-01-02/hour=zz"];
        assert_eq!(
            named,
            odd.map(|it| format!("blocks/{it}"))
                .iter()
                .map(String::as_str)
                .collect()
        );
        let none = fleet(&[]);
        assert_eq!(none.findings, [SurveyFinding::Nobody]);
    }

    #[test]
    fn invalid_statuses_are_named_and_the_others_read() {
        let (_, text) = object(&status("a"));
        let all = fleet(&[
            object(&status("a")),
            ("status/sensor=b.json".into(), text),
            ("status/sensor=c.json".into(), b"{".to_vec()),
            ("status/x".into(), vec![0; 2 << 20]),
        ]);
        assert_eq!(all.sensors.len(), 1);
        let unread = all.findings.iter().map(|it| match it {
            SurveyFinding::Unreadable { object, .. } => object.as_str(),
            other => panic!("{other:?}"),
        });
        let unread: Vec<_> = unread.collect();
        assert_eq!(
            unread,
            ["status/sensor=b.json", "status/sensor=c.json", "status/x"]
        );
    }
}
