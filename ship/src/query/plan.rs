//! Plan of a query: the ranges of each object to be fetched, from the tables of parts or from a
//! list.

use super::{
    partitions,
    ranges::{ListedRanges, RangeList},
    table::{ObjectPart, PartTable, PartTableError},
};
use crate::{
    key,
    key::CaptureKey,
    limits::{KEYS, MOST_FAILED, PLANNED_RANGES, SMALL, TABLE},
    store::{KeyList, ReadStore, StoreError, UnusableKeys},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    ops::{Range, RangeInclusive},
};
use wqcap_files::{
    extract::ReadCount,
    index::{FlowTerms, IndexKey},
};

/// Maximum number of requests of a query that the store handles concurrently.
pub(super) const REQUESTS: usize = 32;

/// Maximum number of lists of keys that a query receives concurrently: each has up to [`KEYS`] keys.
const LISTS: usize = 8;

/// Time in nanoseconds after which an object has its table, which is written after it.
const TABLE_FOLLOWS_NS: u64 = 300_000_000_000;
/// Number of objects without a table that a query names.
const NAMED: usize = 16;

/// Selection of the stored objects that may hold frames of a query.
#[derive(Clone, Debug)]
pub enum ObjectChoice {
    /// Objects of the sensors that may have frames of the query's time range, according to the
    /// tables of the objects' parts.
    OfTimes {
        /// Names of the sensors to query; empty: all sensors.
        sensors: Vec<String>,
        /// Look back in nanoseconds: time before the query's time range in which capture files may
        /// begin.
        lookback_ns: u64,
    },
    /// Objects and byte ranges of a list that the user made.
    Of(RangeList),
}

/// Byte ranges of an object that a query fetches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectParts {
    /// Parsed key of the stored object from which the query fetches.
    pub key: CaptureKey,
    /// Length of the whole stored object in bytes.
    pub bytes: u64,
    /// Byte ranges of the stored object to fetch, in ascending order, including the object's
    /// beginning.
    pub ranges: Vec<Range<u64>>,
    /// Time stamp of the object's earliest selected frame if it is known, else of the file's start
    /// or 0, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Number of frames in the ranges according to the object's table; 0 if it is unknown. The
    /// object's beginning may have more.
    pub frames: u64,
}

/// Numbers of matching parts and frames that were not sent to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unsent {
    /// Number of matching parts of capture files that are not in the store.
    pub parts: u64,
    /// Number of frames in the matching parts that are not in the store; 0 for a user's list of
    /// ranges, which has no numbers of frames.
    pub frames: u64,
}

/// Plan of a query: byte ranges of objects to be fetched, and a summary of missing packets.
#[derive(Clone, Debug, Default)]
pub struct StorePlan {
    /// Stored objects to fetch from, in the order of sensors, and of the names of a sensor's files.
    pub objects: Vec<ObjectParts>,
    /// Number of stored objects whose parts the query checked, or that the user listed.
    pub known: u64,
    /// Number of partition folders of `blocks/` that were listed.
    pub partitions: u64,
    /// Numbers of tables of parts in `blocks/`: those that were found, and those that were read.
    pub tables: ReadCount,
    /// Counts of the matching frames that were not sent to the store.
    pub unsent: Unsent,
    /// Notes of the query plan, a line each, that are shown to the user.
    pub notes: Vec<String>,
    /// Descriptions of stored objects and tables that cannot be read, a line each.
    pub losses: Vec<String>,
}

/// Reason why a query of a store cannot be planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A request of the query to the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store has no tables of parts in `blocks/`.
    #[error(
        "the store has no blocks/: it does not have the layout of wqcap, or nothing has been shipped to it yet"
    )]
    NoTables,
    /// The store has no packets of the query's time range and sensors.
    #[error("{}", .0.nothing_found(.1))]
    NothingFound(Box<StorePlan>, Vec<String>),
    /// The list of ranges has an object that is not a capture file's packets.
    #[error(
        "column object: {0:?} is not the key of a packets object, such as packets/dt=2026-11-21/hour=03/sensor=NAME/START-q00.pcapng"
    )]
    OtherObject(String),
    /// No object of the user's list can be read. The text describes the first of them.
    #[error("{0}")]
    UnusableList(String),
    /// All ranges of the user's list are in capture files that were not sent to the store.
    #[error(
        "all {0} byte ranges of the list are in capture files that were not sent to the store, because ship.packets excludes them"
    )]
    UnsentList(u64),
    /// The user's list of ranges is empty.
    #[error("the list has no ranges")]
    EmptyList,
    /// The query covers more objects or parts than the limit.
    #[error(
        "the query covers more than {0} {1}, which is the limit; name a shorter time range or a --sensor"
    )]
    Limit(usize, &'static str),
}

impl ObjectParts {
    /// Plans to fetch the byte ranges `parts` of an object, and the object's first `head` bytes.
    fn new(key: CaptureKey, bytes: u64, head: u64, parts: Vec<Range<u64>>, first_ns: u64) -> Self {
        let mut ranges = joined(parts);
        match ranges.first_mut() {
            Some(first) if first.start > 0 && first.start < head => first.start = 0,
            Some(first) if first.start == 0 => {}
            // The parts are after the beginning, or there are none.
            _ if head > 0 => ranges.insert(0, 0..head),
            _ => {}
        }
        Self {
            key,
            bytes,
            ranges,
            first_ns,
            frames: 0,
        }
    }
}

/// Sorts byte ranges, and joins adjacent and overlapping ones.
fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|it| (it.start, it.end));
    let mut all: Vec<Range<u64>> = Vec::new();
    for it in ranges {
        match all.last_mut() {
            Some(last) if last.end >= it.start => last.end = last.end.max(it.end),
            _ => all.push(it),
        }
    }
    all
}

/// Plans the byte ranges of objects to fetch for frames of the time range `times` and of flows that
/// `terms` allow. A user's list of ranges is used unchanged.
///
/// # Errors
/// The store does not answer, has no tables of parts, or has no files of the time range.
pub async fn plan(
    store: &dyn ReadStore,
    choice: &ObjectChoice,
    times: &Range<u64>,
    terms: &FlowTerms,
) -> Result<StorePlan, PlanError> {
    match choice {
        ObjectChoice::OfTimes {
            sensors,
            lookback_ns,
        } => of_times(store, sensors, *lookback_ns, times, &terms.keys()).await,
        ObjectChoice::Of(list) => of_list(store, list).await,
    }
}

/// Table of an object's parts, or the reason why the query leaves the table out.
type ReadTable = Result<Option<PartTable>, OmittedTable>;

/// Reason why a query leaves out the table that lists the parts of a stored capture file.
enum OmittedTable {
    /// The table of parts was deleted after it was listed.
    Gone,
    /// The table of parts cannot be used; the text has the key and the reason.
    Unusable(String),
}

/// Reads tables of parts, and passes them to `take` in the order of `keys`. The beginnings of the
/// tables are requested concurrently, and they are decoded one at a time.
async fn tables(
    store: &dyn ReadStore,
    keys: Vec<CaptureKey>,
    demanded: &[IndexKey],
    mut take: impl FnMut(CaptureKey, ReadTable) -> Result<(), PlanError>,
) -> Result<(), PlanError> {
    let begin = |key: CaptureKey| async move {
        let begun = store.read(&key.blocks(), 0..SMALL).await;
        (key, begun)
    };
    let unread =
        |key: &CaptureKey, e: &StoreError| OmittedTable::Unusable(format!("{}: {e}", key.blocks()));
    let mut begun = stream::iter(keys).map(begin).buffered(REQUESTS);
    let is_broken = |failed: &[(CaptureKey, StoreError)]| {
        let unanswered = failed.iter().filter(|(_, e)| e.is_temporary());
        unanswered.count() as u64 >= MOST_FAILED
    };
    let (mut is_store_sound, mut failed) = (false, Vec::new());
    while let Some((key, begun)) = begun.next().await {
        let unusable = |e: PartTableError| {
            let key = key.blocks();
            OmittedTable::Unusable(format!("{key}: {e}"))
        };
        let table = match whole(store, &key.blocks(), begun).await {
            Ok(bytes) => PartTable::read(bytes, demanded).map_err(unusable),
            Err(StoreError::NotFound(_)) => Err(OmittedTable::Gone),
            Err(StoreError::Unusable(e)) => Err(OmittedTable::Unusable(e)),
            Err(e) => {
                failed.push((key, e));
                if is_broken(&failed) {
                    break;
                }
                continue;
            }
        };
        is_store_sound = true;
        // The store failed for single objects only.
        for (key, e) in failed.drain(..) {
            let table = Err(unread(&key, &e));
            take(key, table)?;
        }
        take(key, table)?;
    }
    if let Some((_, e)) = failed.first()
        && (!is_store_sound || is_broken(&failed))
    {
        return Err(e.clone().into());
    }
    for (key, e) in failed {
        let table = Err(unread(&key, &e));
        take(key, table)?;
    }
    Ok(())
}

/// Reads the rest of a Parquet table of the parts of a capture file, whose beginning was read, and
/// returns the whole table.
async fn whole(
    store: &dyn ReadStore,
    key: &str,
    begun: Result<(Bytes, u64), StoreError>,
) -> Result<Bytes, StoreError> {
    let (beginning, len) = match begun {
        // Stores refuse to read a range of an empty object.
        Err(StoreError::Failed(e)) => {
            return match store.length(key).await {
                Ok(0) => Ok(Bytes::new()),
                _ => Err(StoreError::Failed(e)),
            };
        }
        begun => begun?,
    };
    match len {
        ..=SMALL => Ok(beginning),
        len if len <= TABLE => Ok(store.read(key, 0..len).await?.0),
        _ => Err(StoreError::too_long(key, len, TABLE)),
    }
}

/// Capture files or tables that the folders of a query's hours have.
#[derive(Default)]
struct ListedFiles {
    /// Number of days in the store.
    days: usize,
    /// Number of partition folders that were listed.
    partitions: u64,
    /// Keys of the files, with the times at which the store wrote them, in nanoseconds since 1970.
    files: Vec<(CaptureKey, Option<u64>)>,
    unusable: UnusableKeys,
    /// Folders and sensors that are left out because of a limit, a line each.
    losses: Vec<String>,
}

/// Lists the files of `sensors` that the partition folders of `hours` have in the store's folder
/// `root`.
async fn list_files(
    store: &dyn ReadStore,
    root: &str,
    hours: &RangeInclusive<u64>,
    sensors: &[String],
) -> Result<ListedFiles, PlanError> {
    let listed = store.list(root).await?;
    let folders = partitions::folders(root, &listed.folders, hours, sensors);
    let mut found = ListedFiles {
        days: listed.folders.len(),
        partitions: folders.len() as u64,
        unusable: listed.unusable,
        ..ListedFiles::default()
    };
    let mut files = FilesOfSensors::default();
    let mut lists = stream::iter(folders)
        .map(|folder| list_partition(store, folder, sensors))
        .buffered(LISTS);
    while let Some(list) = lists.next().await {
        let (list, losses) = list?;
        found.unusable.append(list.unusable);
        found.losses.extend(losses);
        for it in list.keys {
            if let Some(key) = CaptureKey::parse(&it.key)
                && (sensors.is_empty() || sensors.contains(&key.sensor))
            {
                files.add(key, it.written_ns);
            }
        }
    }
    for sensor in &files.excluded {
        found.losses.push(format!(
            "{root}/: the store has more than {KEYS} files of the query's hours, which is the limit, and those of the sensor {sensor:?} are left out, which has the most; name a shorter time range or a --sensor"
        ));
    }
    found.files = files.of.into_values().flatten().collect();
    Ok(found)
}

/// Lists the keys of capture files or tables below a partition folder. If a list has more keys than
/// its limit, the folders in it are listed one by one, so that the keys of one sensor do not hide
/// those of the others. Also returns a line for each folder that is left out.
async fn list_partition(
    store: &dyn ReadStore,
    partition: String,
    sensors: &[String],
) -> Result<(KeyList, Vec<String>), StoreError> {
    let is_capture = |key: &str| CaptureKey::parse(key).is_some();
    let (mut all, mut losses) = (KeyList::default(), Vec::new());
    let mut folders = vec![partition];
    while let Some(folder) = folders.pop() {
        let of_sensor = folder
            .rsplit_once('/')
            .and_then(|(_, name)| name.strip_prefix("sensor="));
        if of_sensor.is_some_and(|it| !sensors.is_empty() && !sensors.iter().any(|one| one == it)) {
            continue;
        }
        let listed = match store.keys(&folder, is_capture).await {
            Err(StoreError::Unusable(_)) if of_sensor.is_none() => store.list(&folder).await,
            Ok(list) => {
                all.keys.extend(list.keys);
                all.unusable.append(list.unusable);
                continue;
            }
            Err(e) => Err(e),
        };
        match listed {
            Ok(listed) => {
                all.unusable.append(listed.unusable);
                let names = listed.folders.iter();
                folders.extend(names.map(|name| format!("{folder}/{name}")));
            }
            Err(StoreError::Unusable(e)) => {
                losses.push(format!("{folder}/: {e}, and the folder is left out"));
            }
            Err(e) => return Err(e),
        }
    }
    Ok((all, losses))
}

/// Files of the sensors of a query, in all at most [`KEYS`]: those of the sensor with the most files
/// are left out before there are more.
#[derive(Default)]
struct FilesOfSensors {
    of: BTreeMap<String, Vec<(CaptureKey, Option<u64>)>>,
    count: usize,
    /// Names of the sensors whose files are left out.
    excluded: BTreeSet<String>,
}

impl FilesOfSensors {
    fn add(&mut self, key: CaptureKey, written_ns: Option<u64>) {
        if self.excluded.contains(&key.sensor) {
            return;
        }
        if self.count == KEYS {
            let most = self.of.iter().max_by_key(|(_, files)| files.len());
            let Some(most) = most.map(|(sensor, _)| sensor.clone()) else {
                return;
            };
            self.count -= self.of.remove(&most).map_or(0, |files| files.len());
            self.excluded.insert(most);
            return self.add(key, written_ns);
        }
        self.count += 1;
        let files = self.of.entry(key.sensor.clone()).or_default();
        files.push((key, written_ns));
    }
}

async fn of_times(
    store: &dyn ReadStore,
    sensors: &[String],
    lookback_ns: u64,
    times: &Range<u64>,
    demanded: &[IndexKey],
) -> Result<StorePlan, PlanError> {
    let hours = partitions::hours(times, lookback_ns);
    let mut plan = StorePlan::default();
    // The objects are listed before the tables, because a table is written after its object.
    let objects = match list_files(store, key::PACKETS, &hours, sensors).await {
        Ok(objects) => objects,
        Err(PlanError::Store(StoreError::Refused(e))) => {
            plan.notes.push(format!(
                "{}/ cannot be listed, so that objects without a table are not named: {e}",
                key::PACKETS
            ));
            ListedFiles::default()
        }
        Err(e) => return Err(e),
    };
    let tables_listed = list_files(store, key::BLOCKS, &hours, sensors).await?;
    if tables_listed.days == 0 {
        return Err(PlanError::NoTables);
    }
    plan.partitions = tables_listed.partitions;
    let mut unusable = tables_listed.unusable;
    unusable.append(objects.unusable);
    plan.losses.extend(unusable.lines());
    plan.losses.extend(objects.losses);
    plan.losses.extend(tables_listed.losses);
    plan.tables.total = tables_listed.files.len() as u64;
    let with_table: HashSet<_> = tables_listed.files.iter().map(|(key, _)| key).collect();
    let without_table = objects.files.into_iter();
    let without_table = without_table.filter(|(key, _)| !with_table.contains(key));
    let without_table: HashMap<_, _> = without_table.collect();
    let mut files = tables_listed.files;
    files.extend(without_table.iter().map(|(key, ns)| (key.clone(), *ns)));
    let mut reaching = partitions::reaching(files, times);
    reaching.sort();
    let is_without = |key: &mut CaptureKey| without_table.contains_key(key);
    let unread: Vec<_> = reaching.extract_if(.., is_without).collect();
    plan.add_unread(unread.iter().map(|key| (key, without_table[key])));
    plan.tables.read = reaching.len() as u64;
    let mut beginning = None;
    let mut ranges = 0;
    tables(store, reaching, demanded, |key, table| {
        match table {
            Ok(Some(table)) => {
                let before = plan.objects.len();
                plan.add_object(key, &table, times, &mut beginning);
                let added = plan.objects[before..].iter();
                ranges += added.map(|it| it.ranges.len()).sum::<usize>();
            }
            Ok(None) => {}
            Err(OmittedTable::Gone) => plan.losses.push(format!(
                "{}: the table was deleted before it could be read, and its file is left out",
                key.blocks()
            )),
            Err(OmittedTable::Unusable(e)) => plan.losses.push(e),
        }
        match ranges > PLANNED_RANGES {
            true => Err(PlanError::Limit(PLANNED_RANGES, "ranges of objects")),
            false => Ok(()),
        }
    })
    .await?;
    // An output without frames still needs an object's header for its link type.
    if plan.objects.is_empty() {
        plan.objects.extend(beginning);
    }
    if plan.objects.is_empty() {
        return Err(PlanError::NothingFound(plan.into(), sensors.into()));
    }
    Ok(plan)
}

impl StorePlan {
    /// Adds the objects that have no table, with the times at which the store wrote them, to the
    /// losses. The tables of objects that were just written may follow.
    fn add_unread<'k>(&mut self, objects: impl Iterator<Item = (&'k CaptureKey, Option<u64>)>) {
        let now = u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0);
        let is_new = |ns: Option<u64>| ns.is_some_and(|ns| now.abs_diff(ns) < TABLE_FOLLOWS_NS);
        let (new, old): (Vec<_>, Vec<_>) = objects.partition(|(_, ns)| is_new(*ns));
        if !new.is_empty() {
            self.notes.push(format!(
                "new objects whose tables are not in the store yet: {}; their frames are not read",
                new.len()
            ));
        }
        self.losses.extend(old.iter().take(NAMED).map(|(key, _)| {
            format!(
                "{}: the store has no table of this object ({}), so that its frames are not read",
                key.packets(),
                key.blocks()
            )
        }));
        if old.len() > NAMED {
            let others = old.len() - NAMED;
            self.losses
                .push(format!("{others} more objects have no table"));
        }
    }

    /// Adds the matching parts of an object to the plan. Sets `beginning` to the beginning of the
    /// first object that has no matching parts.
    fn add_object(
        &mut self,
        key: CaptureKey,
        table: &PartTable,
        times: &Range<u64>,
        beginning: &mut Option<ObjectParts>,
    ) {
        let parts: Vec<&ObjectPart> = table.parts_in(times).collect();
        let Some(object) = &table.object else {
            self.unsent.parts += parts.len() as u64;
            self.unsent.frames += parts
                .iter()
                .map(|it| it.frames)
                .fold(0, u64::saturating_add);
            return;
        };
        if *object != key.packets() {
            self.losses.push(format!(
                "{}: the table describes {object:?} instead of the object that its key names",
                key.blocks()
            ));
            return;
        }
        self.known += 1;
        let first_ns = parts.iter().map(|it| it.first_ns).min();
        let ranges = parts.iter().map(|it| it.bytes.clone()).collect();
        let object = |key, ranges| {
            let (bytes, head) = (table.object_bytes, table.head_bytes);
            ObjectParts {
                frames: parts
                    .iter()
                    .map(|it| it.frames)
                    .fold(0, u64::saturating_add),
                ..ObjectParts::new(key, bytes, head, ranges, first_ns.unwrap_or(0))
            }
        };
        if !parts.is_empty() {
            self.objects.push(object(key, ranges));
        } else if table.head_bytes > 0 && beginning.is_none() {
            *beginning = Some(object(key, ranges));
        }
    }

    /// Returns the text for the user on why the query has nothing to fetch.
    fn nothing_found(&self, sensors: &[String]) -> String {
        let of = match sensors {
            [] => String::new(),
            some => format!(" of {}", some.join(", ")),
        };
        let mut text = match self.tables.read {
            0 => format!(
                "the store has no capture files{of} for these times; --lookback sets how long before --from a file may begin"
            ),
            _ => format!("the store has no packets{of} for these times"),
        };
        if self.unsent.parts > 0 {
            let frames = self.unsent.frames;
            text += &format!(
                ": {frames} matching frames are in capture files that were not sent to the store, because ship.packets excludes them"
            );
        }
        for loss in self.losses.iter().take(3) {
            text += &format!("; {loss}");
        }
        text
    }
}

async fn of_list(store: &dyn ReadStore, list: &RangeList) -> Result<StorePlan, PlanError> {
    let mut plan = StorePlan {
        unsent: Unsent {
            parts: list.unsent,
            frames: 0,
        },
        known: list.objects.len() as u64,
        ..StorePlan::default()
    };
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for (object, listed) in &list.objects {
        let Some(key) = CaptureKey::parse(object).filter(|it| it.packets() == *object) else {
            return Err(PlanError::OtherObject(object.clone()));
        };
        match (listed.object_bytes, listed.head_bytes) {
            (Some(bytes), Some(head)) => known.push((key, listed, bytes, head)),
            _ => unknown.push((key, listed)),
        }
    }
    plan.tables.total = unknown.len() as u64;
    let keys = unknown.iter().map(|(key, _)| key.clone()).collect();
    let mut unknown = unknown.into_iter();
    tables(store, keys, &[], |_, table| {
        plan.tables.read += 1;
        let Some((key, listed)) = unknown.next() else {
            return Ok(());
        };
        match table {
            Ok(Some(table)) => {
                let bytes = listed.object_bytes.unwrap_or(table.object_bytes);
                let head = listed.head_bytes.unwrap_or(table.head_bytes);
                known.push((key, listed, bytes, head));
            }
            Ok(None) | Err(OmittedTable::Gone) => plan.losses.push(format!(
                "{}: the object has no table in blocks/; add head_bytes and object_bytes to the list",
                key.packets()
            )),
            Err(OmittedTable::Unusable(e)) => plan.losses.push(e),
        }
        Ok(())
    })
    .await?;
    for (key, listed, bytes, head) in known {
        match unfit(listed, bytes, head) {
            Some(e) => plan.losses.push(format!("{}: {e}", key.packets())),
            None => {
                let (ranges, start) = (listed.ranges.clone(), key.start_ns);
                let object = ObjectParts::new(key, bytes, head, ranges, start);
                plan.objects.push(object);
            }
        }
    }
    plan.objects.sort_by(|a, b| a.key.cmp(&b.key));
    if plan.objects.is_empty() {
        return Err(match plan.losses.first() {
            Some(loss) => PlanError::UnusableList(loss.clone()),
            None if list.unsent > 0 => PlanError::UnsentList(list.unsent),
            None => PlanError::EmptyList,
        });
    }
    Ok(plan)
}

/// Returns the error for a user's ranges that exceed their object; `None`: the ranges fit.
fn unfit(listed: &ListedRanges, bytes: u64, head: u64) -> Option<String> {
    let end = listed.ranges.iter().map(|it| it.end).max().unwrap_or(0);
    let end = end.max(head);
    (end > bytes).then(|| {
        format!(
            "the list asks for bytes up to {end} of the object, but the object has only {bytes} bytes"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_preceded_by_the_objects_beginning() {
        let key = "packets/dt=1970-01-01/hour=00/sensor=x/5-q00.pcap";
        let key = CaptureKey::parse(key).expect("ours");
        let of = |head, parts: &[(u64, u64)]| {
            let parts = parts.iter().map(|(start, end)| *start..*end);
            let it = ObjectParts::new(key.clone(), 1000, head, parts.collect(), 0);
            let ranges = it.ranges.into_iter().map(|it| (it.start, it.end));
            ranges.collect::<Vec<_>>()
        };
        assert_eq!(
            of(24, &[(300, 400), (24, 100), (100, 200)]),
            [(0, 24), (24, 200), (300, 400)]
        );
        assert_eq!(of(24, &[(300, 400)]), [(0, 24), (300, 400)]);
        // The first frame of a compressed file contains its beginning and packets.
        assert_eq!(of(50, &[(0, 50), (50, 90)]), [(0, 90)]);
        assert_eq!(of(50, &[(20, 90)]), [(0, 90)]);
        assert_eq!(of(0, &[(5, 9), (7, 12), (12, 13)]), [(5, 13)]);
        assert_eq!(of(24, &[]), [(0, 24)]);
    }
}
