//! Is anything missing? What all sensors of a store tell of themselves, and what the store has of sensors that tell nothing.
//!
//! May import: [`crate::store`], [`crate::ledger`] and [`crate::key`].
//!
//! Invariant: what a sensor has written is judged, and never believed: it may be of any content.

#[cfg(test)]
pub(crate) mod fixtures;
mod status;

pub use status::{HELD, Instance, LastObject, SensorStatus};
pub(crate) use status::{MOST_PROBLEMS, VERSION};

use crate::{
    key,
    ledger::DeliveryLedger,
    store::{self, ReadStore, SMALL, StoreError},
};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tokio::{runtime::Builder, task::JoinSet};

/// Statuses that are read at a time.
const AT_A_TIME: usize = 16;
/// Hours of the newest packets in which sensors are looked for that have no status.
const HOURS: usize = 3;

/// For how long it is worth a look that a name has another owner.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Why a store cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// There is no such store.
    #[error(transparent)]
    Open(StoreError),
    /// It does not answer, or refuses.
    #[error("{from} = {url:?}: {problem}")]
    Asked {
        /// Where the URL is from.
        from: String,
        /// The store.
        url: String,
        /// What it says.
        problem: StoreError,
    },
    /// The threads that ask cannot be started.
    #[error("cannot start threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// All sensors of a store.
#[derive(Clone, Debug, Serialize)]
pub struct Fleet {
    /// When they were looked at.
    #[serde(with = "status::rfc3339")]
    pub time: Timestamp,
    /// A sensor, and another one that ships under its name, in the order of their names.
    pub sensors: Vec<SensorFacts>,
    /// The sum of their ledgers.
    pub total: DeliveryLedger,
    /// What is missing, or worth a look.
    pub findings: Vec<Finding>,
}

/// What is known of a sensor.
#[derive(Clone, Debug, Serialize)]
pub struct SensorFacts {
    /// What it tells.
    #[serde(flatten)]
    pub status: SensorStatus,
    /// How long ago it told that, in seconds.
    pub age_s: f64,
    /// It has not been heard of for too long.
    pub stale: bool,
    /// Whether each captured frame is in one other line.
    pub adds_up: bool,
}

/// Something that is missing, or worth a look.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Finding {
    /// No sensor has put a status.
    Nobody,
    /// A sensor has not been heard of for too long.
    Stale {
        /// Which.
        sensor: String,
        /// For how long, in seconds.
        age_s: f64,
    },
    /// Files were deleted before they were shipped.
    Expired {
        /// Of which sensor.
        sensor: String,
        /// Frames.
        frames: u64,
        /// Files of frames.
        files: u64,
        /// Those of them whose frames nobody had counted.
        uncounted_files: u64,
        /// Files of flow records, DNS and DHCP.
        flow_files: u64,
    },
    /// Captured frames are in no other line of a ledger, or in several.
    DoesNotAddUp {
        /// Which sensor's.
        sensor: String,
    },
    /// A machine does not ship, since another one does under its sensor's name.
    Refused {
        /// The name.
        sensor: String,
        /// The machine.
        host: String,
        /// Who has the name.
        by: Instance,
    },
    /// A sensor's name has gone from one machine, or one journal, to another within a day.
    TakenOver {
        /// The name.
        sensor: String,
        /// The machine that has it.
        host: String,
        /// Who had it.
        from: Instance,
    },
    /// A sensor tells that it cannot do something.
    Problem {
        /// Which.
        sensor: String,
        /// What.
        problem: String,
    },
    /// The store has packets of a sensor, and no status.
    NoStatus {
        /// Which sensor.
        sensor: String,
        /// Where they are.
        partition: String,
    },
    /// An object where statuses are is none.
    Unreadable {
        /// Its key.
        object: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl Finding {
    /// Whether it is more than worth a look.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        !matches!(self, Self::TakenOver { .. })
    }
}

/// Looks at all sensors of a store. Those not heard of for longer than `stale` are told; `from` says in errors where the URL
/// is from.
///
/// # Errors
/// The store cannot be asked.
pub fn survey(from: &str, url: &str, stale: Duration) -> Result<Fleet, FleetError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let named = format!("{from} = {url:?}");
        let store = store::open_to_read(&named, url).map_err(FleetError::Open)?;
        let looked = look(&store, Timestamp::now(), stale).await;
        looked.map_err(|problem| FleetError::Asked {
            from: from.into(),
            url: url.into(),
            problem,
        })
    })
}

/// What an object where statuses are says; `Err`: why it is none.
type Read = Result<SensorStatus, String>;

async fn look(
    store: &Arc<dyn ReadStore>,
    now: Timestamp,
    stale: Duration,
) -> Result<Fleet, StoreError> {
    let read = statuses(store).await?;
    let seen = newest(store.as_ref()).await?;
    Ok(judge(read, seen, now, stale))
}

/// Reads all there is.
async fn statuses(store: &Arc<dyn ReadStore>) -> Result<BTreeMap<String, Read>, StoreError> {
    let listed = store.list(key::STATUS).await?;
    let mut names = listed.objects.into_iter();
    let mut reading: JoinSet<Option<(String, Read)>> = JoinSet::new();
    let mut all = BTreeMap::new();
    loop {
        while reading.len() < AT_A_TIME
            && let Some(name) = names.next()
        {
            reading.spawn(read(Arc::clone(store), format!("{}/{name}", key::STATUS)));
        }
        match reading.join_next().await {
            None => break,
            Some(Ok(done)) => all.extend(done),
            Some(Err(e)) => return Err(StoreError::Failed(e.to_string())),
        }
    }
    Ok(all)
}

/// `None`: it has been deleted just now.
async fn read(store: Arc<dyn ReadStore>, key: String) -> Option<(String, Read)> {
    let status = match store.read(&key, Some(0..SMALL)).await {
        Ok((_, len)) if len > SMALL => Err(format!("has {len} bytes, more than {SMALL}")),
        Ok((bytes, _)) => SensorStatus::parse(&bytes).and_then(|it| under_its_key(it, &key)),
        Err(StoreError::NotFound(_)) => return None,
        Err(e) => Err(status::plain(&e.to_string())),
    };
    Some((key, status))
}

/// Anybody may have put it there.
fn under_its_key(it: SensorStatus, key: &str) -> Result<SensorStatus, String> {
    let own = match it.refused_by {
        Some(_) => key::refused(&it.sensor, &it.by.instance),
        None => key::status(&it.sensor),
    };
    match own == key {
        true => Ok(it),
        false => Err(format!("is the status of {own}")),
    }
}

/// The sensors that have packets in the newest hours of the store, and the newest partition of each.
async fn newest(store: &dyn ReadStore) -> Result<BTreeMap<String, String>, StoreError> {
    let mut hours = Vec::new();
    for day in latest_first(store.list(key::BLOCKS).await?.folders) {
        let day = format!("{}/{day}", key::BLOCKS);
        let of_day = latest_first(store.list(&day).await?.folders);
        hours.extend(of_day.into_iter().map(|hour| format!("{day}/{hour}")));
        if hours.len() >= HOURS {
            break;
        }
    }
    let mut seen = BTreeMap::new();
    for hour in hours.into_iter().take(HOURS) {
        for folder in store.list(&hour).await?.folders {
            if let Some(sensor) = folder.strip_prefix("sensor=") {
                let partition = status::plain(&format!("{hour}/{folder}"));
                seen.entry(status::plain(sensor)).or_insert(partition);
            }
        }
    }
    Ok(seen)
}

/// Days and hours are in the order of their names.
fn latest_first(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.reverse();
    names
}

fn judge(
    read: BTreeMap<String, Read>,
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
                    owners.insert((status.sensor.clone(), status.run.clone()));
                }
                fleet.sensors.push(facts(status, now, stale));
            }
            Err(problem) => {
                let object = status::plain(&object);
                fleet.findings.push(Finding::Unreadable { object, problem });
            }
        }
    }
    // Who was refused and is not heard of any more has another name by now, or is gone; or it has got the name.
    fleet.sensors.retain(|it| {
        let owner = (it.status.sensor.clone(), it.status.run.clone());
        it.status.refused_by.is_none() || !it.stale && !owners.contains(&owner)
    });
    let order = |it: &SensorFacts| (it.status.sensor.clone(), it.status.refused_by.is_some());
    fleet.sensors.sort_by_key(order);
    if fleet.sensors.is_empty() && fleet.findings.is_empty() {
        fleet.findings.push(Finding::Nobody);
    }
    for it in &fleet.sensors {
        fleet.total = fleet.total.plus(&it.status.ledger);
        fleet.findings.extend(findings(it, now));
        seen.remove(&it.status.sensor);
    }
    let without = seen.into_iter();
    let without = without.map(|(sensor, partition)| Finding::NoStatus { sensor, partition });
    fleet.findings.extend(without);
    fleet
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

fn findings(it: &SensorFacts, now: Timestamp) -> Vec<Finding> {
    let SensorFacts { status, age_s, .. } = it;
    let sensor = || status.sensor.clone();
    let host = || status.by.host.clone();
    let mut found = Vec::new();
    if it.stale {
        found.push(Finding::Stale {
            sensor: sensor(),
            age_s: *age_s,
        });
    }
    if let Some(by) = status.refused_by.clone() {
        found.push(Finding::Refused {
            sensor: sensor(),
            host: host(),
            by,
        });
    }
    let frames = status.ledger.expired_unshipped;
    let (files, flow_files) = (status.expired_files, status.expired_flow_files);
    if (frames, files, flow_files) != (0, 0, 0) {
        found.push(Finding::Expired {
            sensor: sensor(),
            frames,
            files,
            uncounted_files: status.expired_uncounted_files,
            flow_files,
        });
    }
    if !it.adds_up {
        found.push(Finding::DoesNotAddUp { sensor: sensor() });
    }
    let recent = |it: &&Instance| now.duration_since(it.time).unsigned_abs() < DAY;
    if let Some(from) = status.taken_over.as_ref().filter(recent) {
        found.push(Finding::TakenOver {
            sensor: sensor(),
            host: host(),
            from: from.clone(),
        });
    }
    found.extend(status.problems.iter().map(|it| Finding::Problem {
        sensor: sensor(),
        problem: it.clone(),
    }));
    found
}

#[cfg(test)]
mod tests {
    use super::{fixtures::status, *};
    use crate::{
        ledger::Fate,
        store::{Remote, Store},
    };
    use jiff::SignedDuration;
    use object_store::memory::InMemory;

    const STALE: Duration = Duration::from_secs(300);

    /// Of a store with these objects.
    fn fleet(objects: &[(String, Vec<u8>)]) -> Fleet {
        let store = Arc::new(Remote::of(InMemory::new()));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for (key, bytes) in objects {
                let bytes = bytes.clone().into();
                Store::put(&*store, key, bytes).await.expect("put");
            }
            let store: Arc<dyn ReadStore> = store;
            look(&store, Timestamp::now(), STALE).await.expect("looked")
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
    fn sensors_that_are_well_are_told_and_summed() {
        let mut all = Vec::new();
        // More than are read at a time.
        for i in 0..40 {
            let mut it = status(&format!("tap-{i:02}"));
            it.ledger.enter(Fate::Shipped, 10);
            it.ledger.enter(Fate::Pending, 1);
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
    fn what_is_missing_is_found() {
        let stale = ago(status("a"), 301);
        let mut expired = status("b");
        expired.ledger.enter(Fate::Expired, 7);
        expired.expired_files = 1;
        let mut wrong = status("c");
        wrong.ledger.captured = 1;
        let mut troubled = status("d");
        troubled.problems.push("the disk is gone".into());
        let mut taken = status("e");
        taken.taken_over = Some(ago(status("e"), 400).by);
        let found = fleet(&[&stale, &expired, &wrong, &troubled, &taken].map(object)).findings;
        let kinds: Vec<_> = found.iter().map(|it| it.is_missing()).collect();
        assert_eq!(kinds, [true, true, true, true, false], "{found:?}");
        assert!(
            matches!(&found[0], Finding::Stale { sensor, age_s } if sensor == "a" && *age_s > 300.0)
        );
        let expected = Finding::Expired {
            sensor: "b".into(),
            frames: 7,
            files: 1,
            uncounted_files: 0,
            flow_files: 0,
        };
        assert_eq!(found[1], expected);
        assert_eq!(found[2], Finding::DoesNotAddUp { sensor: "c".into() });
        assert!(
            matches!(&found[3], Finding::Problem { problem, .. } if problem == "the disk is gone")
        );
        assert!(
            matches!(&found[4], Finding::TakenOver { from, .. } if Some(from) == taken.taken_over.as_ref())
        );
        // Long ago.
        taken.taken_over = Some(ago(status("e"), 100_000).by);
        assert_eq!(fleet(&[object(&taken)]).findings, []);
    }

    #[test]
    fn a_machine_that_is_refused_is_found_as_long_as_it_is() {
        let owner = status("a");
        let mut refused = status("a");
        refused.by.instance = "second".into();
        refused.by.host = "there".into();
        refused.run = "second".into();
        refused.refused_by = Some(owner.by.clone());
        let all = fleet(&[object(&owner), object(&refused)]);
        assert_eq!(all.sensors.len(), 2);
        let expected = Finding::Refused {
            sensor: "a".into(),
            host: "there".into(),
            by: owner.by.clone(),
        };
        assert_eq!(all.findings, [expected]);
        // It has another name by now.
        let before = ago(refused.clone(), 301);
        let all = fleet(&[object(&owner), object(&before)]);
        assert_eq!((all.sensors.len(), all.findings), (1, Vec::new()));
        // It has got the name.
        let now = SensorStatus {
            refused_by: None,
            ..refused.clone()
        };
        let all = fleet(&[object(&now), object(&refused)]);
        assert_eq!((all.sensors.len(), all.findings), (1, Vec::new()));
    }

    #[test]
    fn what_is_there_without_a_status_is_found() {
        let blocks = |day, hour, sensor| {
            let key = format!("blocks/dt=2026-01-0{day}/hour=0{hour}/sensor={sensor}/1.parquet");
            (key, Vec::new())
        };
        let all = fleet(&[
            object(&status("a")),
            blocks(1, 1, "old"),
            blocks(1, 9, "b"),
            blocks(2, 0, "a"),
            blocks(2, 1, "a"),
            blocks(2, 1, "b"),
        ]);
        let expected = Finding::NoStatus {
            sensor: "b".into(),
            partition: "blocks/dt=2026-01-02/hour=01/sensor=b".into(),
        };
        assert_eq!(all.findings, [expected]);
        let none = fleet(&[]);
        assert_eq!(none.findings, [Finding::Nobody]);
    }

    #[test]
    fn objects_that_are_no_statuses_are_named_and_the_others_read() {
        let (_, text) = object(&status("a"));
        let all = fleet(&[
            object(&status("a")),
            ("status/sensor=b.json".into(), text),
            ("status/sensor=c.json".into(), b"{".to_vec()),
            ("status/x".into(), vec![0; 2 << 20]),
        ]);
        assert_eq!(all.sensors.len(), 1);
        let unread = all.findings.iter().map(|it| match it {
            Finding::Unreadable { object, .. } => object.as_str(),
            other => panic!("{other:?}"),
        });
        let unread: Vec<_> = unread.collect();
        assert_eq!(
            unread,
            ["status/sensor=b.json", "status/sensor=c.json", "status/x"]
        );
    }
}
