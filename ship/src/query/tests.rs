//! Tests of plans, requests and extractions, over stores in folders.

use super::{
    FetchProgress, ObjectChoice, PlanError, RangeList, StoreExtracted, StoreQuery, StoreQueryError,
    extract,
    fetch::Fetcher,
    plan::{ObjectParts, StorePlan, plan},
};
use crate::{
    ShipPlan, ShipSelection,
    blocks::{self, ObjectInfo},
    key::{self, CaptureKey},
    shipper::{self, Mode, fixtures},
    store::{Folder, KeyFilter, KeyList, Listing, ReadStore, StoreError},
};
use async_trait::async_trait;
use bytes::Bytes;
use std::{
    cell::Cell,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use wqcap_files::{
    extract::FrameQuery,
    index::FlowTerms,
    merge::{self, MergePlan, MergeTarget},
    name::FileName,
    read::{self, FileRanges},
};
use wqcap_frame::filter::FileFilter;

const SECOND: u64 = 1_000_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// First day of [`synthetic`] stores, in nanoseconds since 1970.
const FIRST_DAY: u64 = 20_000 * DAY;

/// Store in a folder that records the calls of a test.
#[derive(Debug)]
struct Noting {
    inner: Folder,
    calls: Mutex<Vec<String>>,
    /// Error that the store returns for reads of objects.
    says: Option<StoreError>,
    /// Folder that the store refuses to list.
    hides: Option<&'static str>,
    /// Maximum number of keys of a list.
    most_keys: Option<usize>,
}

impl Noting {
    fn new(root: &Path, says: Option<StoreError>) -> Arc<Self> {
        Arc::new(Self {
            inner: Folder::open(root).expect("there"),
            calls: Mutex::default(),
            says,
            hides: None,
            most_keys: None,
        })
    }

    fn note(&self, call: &str, of: &str) {
        let mut calls = self.calls.lock().expect("no panic");
        calls.push(format!("{call} {of}"));
    }

    /// Returns the number of recorded calls that begin with `call`.
    fn count(&self, call: &str) -> usize {
        let calls = self.calls.lock().expect("no panic");
        calls.iter().filter(|it| it.starts_with(call)).count()
    }
}

#[async_trait]
impl ReadStore for Noting {
    async fn list(&self, folder: &str) -> Result<Listing, StoreError> {
        self.note("folders", folder);
        if self.hides == Some(folder) {
            return Err(StoreError::Refused("403".into()));
        }
        self.inner.list(folder).await
    }

    async fn keys(&self, folder: &str, keep: KeyFilter) -> Result<KeyList, StoreError> {
        self.note("keys", folder);
        if let Some(most) = self.most_keys {
            let listed = self.inner.keys(folder, |_| true).await?;
            if listed.keys.len() > most {
                return Err(StoreError::Unusable("too many keys".into()));
            }
        }
        self.inner.keys(folder, keep).await
    }

    async fn read(&self, key: &str, part: Range<u64>) -> Result<(Bytes, u64), StoreError> {
        self.note("read", key);
        match &self.says {
            Some(e) => Err(e.clone()),
            None => self.inner.read(key, part).await,
        }
    }

    async fn length(&self, key: &str) -> Result<u64, StoreError> {
        self.note("length", key);
        match &self.says {
            Some(e) => Err(e.clone()),
            None => self.inner.length(key).await,
        }
    }
}

fn runtime() -> Runtime {
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
}

fn of_times(sensors: &[&str], lookback_ns: u64) -> ObjectChoice {
    ObjectChoice::OfTimes {
        sensors: sensors.iter().map(|it| (*it).to_owned()).collect(),
        lookback_ns,
    }
}

fn planned(
    store: &dyn ReadStore,
    choice: &ObjectChoice,
    times: &Range<u64>,
) -> Result<StorePlan, PlanError> {
    runtime().block_on(plan(store, choice, times, &FlowTerms::default()))
}

/// Writes a store with tables only: one file per 20 minutes, for `days` days and `sensors` sensors.
/// Returns the number of files.
fn synthetic(root: &Path, days: u64, sensors: u64) -> u64 {
    let dir = tempfile::tempdir().expect("dir");
    let sample = fixtures::capture(dir.path(), 0, 7, 10);
    let index = wqcap_files::index::build(&sample, None, || true);
    let mut index = index.expect("reads").expect("made");
    let step = 20 * MINUTE;
    for n in 0..days * (DAY / step) {
        let start_ns = FIRST_DAY + n * step;
        (index.blocks[0].first_ns, index.blocks[0].last_ns) = (start_ns, start_ns + step - 1);
        for sensor in 0..sensors {
            let sensor = format!("tap{sensor}");
            let name = FileName {
                queue: Some(0),
                start_ns,
                ending: "pcap",
                sealed: false,
            };
            let object = key::packets(&name, &sensor);
            let of = ObjectInfo {
                key: Some(&object),
                bytes: 10_000,
                queue: Some(0),
            };
            let table = blocks::write(&index, of).expect("written");
            let path = root.join(key::blocks(&name, &sensor));
            fs::create_dir_all(path.parent().expect("a partition")).expect("made");
            fs::write(&path, table).expect("written");
            // The sensor sends a file when it is complete.
            let sent = UNIX_EPOCH + Duration::from_nanos(start_ns + step);
            let file = fs::File::options().append(true).open(path).expect("there");
            file.set_modified(sent).expect("the time is set");
        }
    }
    days * (DAY / step) * sensors
}

/// Plans some minutes of the last day, of a store of [`synthetic`].
fn assert_planned_in_time(days: u64, sensors: u64) {
    let dir = tempfile::tempdir().expect("dir");
    let files = synthetic(dir.path(), days, sensors);
    let store = Noting::new(dir.path(), None);
    let noon = FIRST_DAY + (days - 1) * DAY + 12 * HOUR;
    // The clock of the store may be five minutes behind.
    let times = noon + 6 * MINUTE..noon + 15 * MINUTE;
    let begun = Instant::now();
    let found = planned(&*store, &of_times(&[], DAY), &times).expect("planned");
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(5), "{files} files: {took:?}");
    // One file per sensor, found in the listings of a day and an hour.
    assert_eq!(found.objects.len() as u64, sensors);
    assert!(found.objects.iter().all(|it| it.first_ns == noon));
    assert_eq!(found.tables.total, (DAY + HOUR) / (20 * MINUTE) * sensors);
    assert_eq!(found.tables.read, sensors);
    assert_eq!(store.count("folders"), 2);
    assert_eq!(store.count("keys blocks/"), 25);
    assert_eq!(store.count("read blocks/") as u64, sensors);
    assert_eq!(
        store.calls.lock().expect("no panic").len() as u64,
        27 + sensors
    );

    // With sensors given, only their partitions are listed.
    let store = Noting::new(dir.path(), None);
    let some = planned(&*store, &of_times(&["tap1", "tap0"], HOUR), &times);
    let some = some.expect("planned");
    let sensors: Vec<_> = some.objects.iter().map(|it| &*it.key.sensor).collect();
    assert_eq!(sensors, ["tap0", "tap1"]);
    assert_eq!((store.count("keys"), some.partitions), (4, 4));
}

#[test]
fn ten_minutes_of_two_thousand_files_list_only_their_partitions() {
    assert_planned_in_time(2, 14);
}

/// 20 sensors for 90 days.
#[test]
#[ignore = "takes a minute to make the store; scripts/soak runs it"]
fn ten_minutes_of_a_hundred_thousand_files() {
    assert_planned_in_time(90, 20);
}

#[test]
fn a_long_file_is_found_within_the_look_back() {
    let dir = tempfile::tempdir().expect("dir");
    let sample = fixtures::capture(dir.path(), 0, 7, 10);
    let index = wqcap_files::index::build(&sample, None, || true);
    let mut index = index.expect("reads").expect("made");
    // A file of 30 hours that begins one minute before midnight.
    let start_ns = FIRST_DAY - MINUTE;
    (index.blocks[0].first_ns, index.blocks[0].last_ns) = (start_ns, start_ns + 30 * HOUR);
    let name = FileName {
        queue: None,
        start_ns,
        ending: "pcapng.zst",
        sealed: false,
    };
    let object = key::packets(&name, "tap");
    let of = ObjectInfo {
        key: Some(&object),
        bytes: 10_000,
        queue: None,
    };
    let path = dir.path().join(key::blocks(&name, "tap"));
    fs::create_dir_all(path.parent().expect("a partition")).expect("made");
    fs::write(path, blocks::write(&index, of).expect("written")).expect("written");
    let store = Noting::new(dir.path(), None);
    let found = |hours: u64, lookback| {
        let from = start_ns + hours * HOUR;
        planned(&*store, &of_times(&[], lookback), &(from..from + SECOND))
    };
    assert_eq!(found(23, DAY).expect("found").objects.len(), 1);
    assert_eq!(found(29, 30 * HOUR).expect("found").objects.len(), 1);
    assert_eq!(found(0, 0).expect("found").objects.len(), 1);
    let said = found(29, DAY).expect_err("not looked for").to_string();
    assert!(
        said.contains("has no capture files for these times; --lookback"),
        "{said}"
    );
    // The file has no frames of these times, so only its beginning is planned.
    let empty = found(31, 40 * HOUR).expect("its beginning");
    assert_eq!(empty.objects.len(), 1);
    assert_eq!(empty.objects[0].ranges.len(), 1);
    assert_eq!(empty.objects[0].ranges[0], 0..index.head);

    let absent = tempfile::tempdir().expect("dir");
    let store = Noting::new(absent.path(), None);
    let said = planned(&*store, &of_times(&[], DAY), &(0..1)).expect_err("no store");
    assert!(said.to_string().contains("has no blocks/"), "{said}");
}

/// Sensors of a test with shipped files, and their store.
struct TestBench {
    root: TempDir,
    url: String,
}

impl TestBench {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("dir");
        fs::create_dir(root.path().join("store")).expect("made");
        let url = format!("file://{}", root.path().join("store").display());
        Self { root, url }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Creates the folder for the files of the sensor `name`.
    fn sensor(&self, name: &str) -> PathBuf {
        let dir = self.at(name);
        fs::create_dir_all(&dir).expect("made");
        dir
    }

    fn ship(&self, sensor: &str, packets: ShipSelection) {
        let plan = ShipPlan {
            host: "here".into(),
            dir: self.sensor(sensor),
            index_dir: None,
            flows_dir: None,
            store: self.url.clone(),
            sensor: sensor.into(),
            packets,
            part_bytes: 1 << 20,
            concurrency: 2,
            bandwidth: None,
            anonymize: None,
            journal: self.at(&format!("{sensor}.journal")),
        };
        let status = shipper::run(&plan, Mode::Once, |_| true).expect("shipped");
        assert_eq!(status.pending_files, 0);
    }

    fn query(&self, choice: ObjectChoice, times: Range<u64>) -> StoreQuery {
        StoreQuery {
            store: self.url.clone(),
            choice,
            frames: FrameQuery::new(times, FileFilter::default(), self.at("found.pcap")),
        }
    }

    fn extract(
        &self,
        choice: ObjectChoice,
        times: Range<u64>,
    ) -> Result<StoreExtracted, StoreQueryError> {
        extract(&self.query(choice, times), &Arc::default(), |_| {})
    }

    /// Returns the result of `wqcap merge` for the folders of `sensors`.
    fn merged(&self, sensors: &[&str]) -> Vec<u8> {
        let inputs: Vec<_> = sensors.iter().map(|it| self.at(it)).collect();
        let out = self.at("merged.pcap");
        let plan = MergePlan::new(&inputs, None, &out).expect("a plan");
        let target = MergeTarget::new(&out, &plan).expect("a target");
        merge::run(plan, target, |_| true).expect("merged");
        fs::read(out).expect("there")
    }

    fn found(&self) -> Vec<u8> {
        fs::read(self.at("found.pcap")).expect("there")
    }

    /// Returns the path of a sensor's object in the folder store.
    fn object(&self, sensor: &str, name: &str) -> PathBuf {
        let key = format!("store/packets/dt=1970-01-01/hour=00/sensor={sensor}/{name}");
        self.at(&key)
    }
}

#[test]
fn extracted_frames_equal_a_merge_by_time() {
    let place = TestBench::new();
    for (sensor, queue, second) in [("b", 0, 10), ("a", 0, 10), ("a", 1, 10), ("a", 0, 12)] {
        fixtures::capture(&place.sensor(sensor), queue, second, 1500);
    }
    for sensor in ["a", "b"] {
        place.ship(sensor, ShipSelection::All);
    }
    let seen = Cell::new(FetchProgress::default());
    let query = place.query(of_times(&[], DAY), 0..u64::MAX);
    let done = extract(&query, &Arc::default(), |it| seen.set(*it)).expect("extracted");
    assert_eq!(done.written.frames, 6000);
    assert_eq!(done.written.losses, [""; 0]);
    assert!(place.found() == place.merged(&["a", "b"]));
    assert_eq!((done.objects.read, done.objects.total), (4, 4));
    assert_eq!(done.fetched.bytes, done.fetched.wanted_bytes);
    let seen = seen.get();
    assert_eq!((seen.objects, seen.of_objects), (4, 4));
    assert_eq!(seen.bytes, seen.of_bytes);

    // One second of one sensor.
    let times = 12 * SECOND..13 * SECOND;
    let done = place
        .extract(of_times(&["a"], DAY), times)
        .expect("extracted");
    assert_eq!((done.written.frames, done.objects.read), (1000, 1));
    let none = place.extract(of_times(&["c"], DAY), 0..u64::MAX);
    let none = none.expect_err("no such sensor").to_string();
    assert!(
        none.contains("has no capture files of c for these times"),
        "{none}"
    );
}

#[test]
fn the_objects_of_a_sensor_that_are_read_at_the_same_time_are_limited() {
    let place = TestBench::new();
    for queue in 0..260 {
        fixtures::capture(&place.sensor("many"), queue, 10, 3);
    }
    fixtures::capture(&place.sensor("one"), 0, 10, 3);
    for sensor in ["many", "one"] {
        place.ship(sensor, ShipSelection::All);
    }
    let done = place.extract(of_times(&[], DAY), 0..u64::MAX);
    let written = done.expect("extracted").written;
    assert_eq!(written.frames, 256 * 3 + 3);
    assert_eq!(written.losses.len(), 4);
    for loss in &written.losses {
        assert!(loss.contains("sensor=many/"), "{loss}");
        assert!(
            loss.contains("more than 256 objects of this sensor overlap"),
            "{loss}"
        );
    }
}

#[test]
fn a_sensor_with_too_many_keys_does_not_hide_the_others() {
    let place = TestBench::new();
    for sensor in ["many", "one"] {
        fixtures::capture(&place.sensor(sensor), 0, 10, 3);
        place.ship(sensor, ShipSelection::All);
    }
    let folder = place.object("many", "");
    for n in 0..10 {
        fs::write(folder.join(format!("{n}.tmp")), "").expect("written");
    }
    let store = Arc::into_inner(Noting::new(&place.at("store"), None)).expect("one");
    let store = Noting {
        most_keys: Some(5),
        ..store
    };
    for (sensors, losses) in [(&[][..], 1), (&["one"], 0)] {
        let found = planned(&store, &of_times(sensors, DAY), &(0..u64::MAX)).expect("planned");
        let of: Vec<_> = found.objects.iter().map(|it| &*it.key.sensor).collect();
        assert_eq!(found.losses.len(), losses, "{:?}", found.losses);
        assert!(of.contains(&"one"), "{of:?}");
        for loss in &found.losses {
            let named = loss.contains("hour=00/sensor=many/: too many keys");
            assert!(named, "{loss}");
        }
    }
}

#[test]
fn missing_and_changed_objects_are_named_and_the_others_extracted() {
    let place = TestBench::new();
    for second in [10, 20, 30, 40] {
        fixtures::capture(&place.sensor("a"), 0, second, 100);
    }
    place.ship("a", ShipSelection::All);
    let object = |second: u64| place.object("a", &format!("{second}000000000-q00.pcap"));
    fs::remove_file(object(10)).expect("there");
    let bytes = fs::read(object(20)).expect("there");
    fs::write(object(20), &bytes[..bytes.len() - 1]).expect("written");
    fs::write(object(30), "").expect("written");
    let done = place.extract(of_times(&[], DAY), 0..u64::MAX);
    let done = done.expect("the rest");
    assert_eq!(done.written.frames, 100);
    let losses = &done.written.losses;
    assert_eq!(losses.len(), 3, "{losses:?}");
    for (loss, parts) in losses.iter().zip([
        ["10000000000-q00.pcap", "is not in the store"],
        ["20000000000-q00.pcap", "the object has changed"],
        ["30000000000-q00.pcap", "has 0 bytes"],
    ]) {
        assert!(parts.iter().all(|it| loss.contains(it)), "{loss}");
    }
    // Without any readable object the query fails.
    fs::remove_file(object(40)).expect("there");
    fs::remove_file(place.at("found.pcap")).expect("there");
    let none = place.extract(of_times(&[], DAY), 0..u64::MAX);
    let none = none.expect_err("nothing").to_string();
    assert!(none.contains("is not in the store"), "{none}");
    assert!(!place.at("found.pcap").exists());
}

#[test]
fn a_filter_on_a_flow_fetches_little_more_than_its_frames() {
    let place = TestBench::new();
    // Each part has 50 flows; another flow is in between, in separate parts.
    let frames = |of: Range<u32>| {
        (0..12_000).map(move |i| match of.contains(&i) {
            true => fixtures::udp(77),
            false => fixtures::udp((i % 50) as u8),
        })
    };
    fixtures::capture_of(&place.sensor("a"), 0, 10, frames(3000..8000));
    fixtures::capture_of(&place.sensor("b"), 0, 10, frames(0..0));
    for sensor in ["a", "b"] {
        place.ship(sensor, ShipSelection::All);
    }
    let extracted = |filter: &str| {
        let mut query = place.query(of_times(&[], DAY), 0..u64::MAX);
        query.frames.filter = FileFilter::compile(filter).expect("compiles");
        let done = extract(&query, &Arc::default(), |_| {}).expect("extracted");
        (done, place.found())
    };
    // The expression yields no flow terms.
    let (all, expected) = extracted("src port 1077 or dst port 1077");
    assert_eq!((all.written.frames, all.objects.read), (5000, 2));
    for filter in [
        "host 10.1.0.77",
        "udp port 1077",
        "host 10.0.0.77 and port 53",
        "src host 10.0.0.77 and dst host 10.1.0.77 and udp src port 1077 and dst port 53",
    ] {
        let (done, found) = extracted(filter);
        assert!(found == expected, "{filter}");
        assert_eq!((done.objects.read, done.objects.total), (1, 2), "{filter}");
        let (came, wanted) = (done.fetched.bytes, done.written.bytes);
        assert!(came * 2 <= wanted * 3, "{filter}: {came} for {wanted}");
    }
    // Both properties exist, but not in one flow.
    for filter in [
        "host 10.0.0.77 and port 1001",
        "host 10.0.0.1 and host 10.1.0.2",
        "arp",
    ] {
        let (done, _) = extracted(filter);
        assert_eq!(
            (done.written.frames, done.fetched.bytes),
            (0, 24),
            "{filter}"
        );
    }
}

#[test]
fn frames_that_were_not_sent_are_counted() {
    let place = TestBench::new();
    fixtures::capture(&place.sensor("a"), 0, 10, 100);
    fixtures::capture(&place.sensor("thin"), 0, 10, 70);
    place.ship("a", ShipSelection::All);
    place.ship("thin", ShipSelection::None);
    let done = place
        .extract(of_times(&[], DAY), 0..u64::MAX)
        .expect("the rest");
    assert_eq!(done.written.frames, 100);
    assert_eq!((done.unsent.parts, done.unsent.frames), (1, 70));
    let none = place.extract(of_times(&["thin"], DAY), 0..u64::MAX);
    let none = none.expect_err("nothing").to_string();
    assert!(
        none.contains("70 matching frames are in capture files that were not sent"),
        "{none}"
    );
}

#[test]
fn fewer_frames_than_the_table_states_are_a_loss() {
    let place = TestBench::new();
    fixtures::capture(&place.sensor("a"), 0, 10, 100);
    place.ship("a", ShipSelection::All);
    let key = "packets/dt=1970-01-01/hour=00/sensor=a/10000000000-q00.pcap";
    let object = place.at("store").join(key);
    let mut bytes = fs::read(&object).expect("shipped");
    // After a header of 24 bytes, records have 76 bytes. The second one swallows the third.
    let lengths = 24 + 76 + 8;
    for at in [lengths, lengths + 4] {
        bytes[at..at + 4].copy_from_slice(&(60u32 + 76).to_le_bytes());
    }
    fs::write(&object, bytes).expect("written");
    let done = place.extract(of_times(&[], 0), 0..u64::MAX);
    let done = done.expect("extracted");
    assert_eq!(done.written.frames, 99);
    let lost = done.written.losses.join("; ");
    let said = "99 frames were read, but the store or the sensor states 100 frames";
    assert!(lost.contains(said), "{lost}");
    // A section of pcapng without interfaces, as long as the object was.
    let len = fs::metadata(&object).expect("there").len();
    let head = [0x0A0D_0D0A, 28, 0x1A2B_3C4D, 1, u32::MAX, u32::MAX, 28];
    let rest = u32::try_from(len).expect("short") - 28;
    let mut bytes: Vec<u8> = head.iter().flat_map(|it| it.to_le_bytes()).collect();
    // One block of a local type.
    bytes.extend(
        [0x8000_0BAD, rest]
            .iter()
            .flat_map(|it: &u32| it.to_le_bytes()),
    );
    bytes.resize(usize::try_from(len).expect("fits") - 4, 0);
    bytes.extend(rest.to_le_bytes());
    fs::write(&object, bytes).expect("written");
    let failed = place.extract(of_times(&[], 0), 0..u64::MAX);
    let failed = failed.expect_err("no frames").to_string();
    assert!(failed.contains("states 100 frames"), "{failed}");
}

#[test]
fn objects_without_a_table_are_losses_unless_they_are_new() {
    let place = TestBench::new();
    for second in [10, 20, 30] {
        fixtures::capture(&place.sensor("a"), 0, second, 100);
    }
    place.ship("a", ShipSelection::All);
    let table = |second: u64| {
        let partition = "store/blocks/dt=1970-01-01/hour=00/sensor=a";
        place.at(&format!("{partition}/{second}000000000-q00.pcap.parquet"))
    };
    fs::remove_file(table(20)).expect("there");
    let extracted = |from: u64| {
        let done = place.extract(of_times(&[], DAY), from * SECOND..u64::MAX);
        done.expect("the rest").written
    };
    let new = extracted(0);
    assert_eq!((new.frames, &new.losses[..]), (200, &[][..]));
    assert!(
        new.notes
            .iter()
            .any(|it| it.contains("tables are not in the store yet: 1;")),
        "{:?}",
        new.notes
    );
    let object = place.object("a", "20000000000-q00.pcap");
    let file = fs::File::options().append(true).open(object);
    let earlier = SystemTime::now() - Duration::from_secs(1000);
    let set = file.expect("there").set_modified(earlier);
    set.expect("the time is set");
    let old = extracted(0);
    assert_eq!((old.frames, old.losses.len()), (200, 1));
    assert!(
        old.losses[0].contains("20000000000-q00.pcap: the store has no table of this object"),
        "{:?}",
        old.losses
    );
    // The store wrote the file after its last frame, and before these times.
    let after = SystemTime::now().duration_since(UNIX_EPOCH);
    let after = after.expect("after 1970").as_secs() - 100;
    let others = place.extract(of_times(&[], 100 * 365 * DAY), after * SECOND..u64::MAX);
    assert_eq!(others.expect("its beginning").written.losses, [""; 0]);
}

#[test]
fn a_store_that_refuses_to_list_objects_is_queried_by_its_tables() {
    let place = TestBench::new();
    fixtures::capture(&place.sensor("a"), 0, 10, 100);
    place.ship("a", ShipSelection::All);
    let mut store = Noting::new(&place.at("store"), None);
    let ours = Arc::get_mut(&mut store).expect("ours alone");
    ours.hides = Some("packets");
    let plan = planned(&*store, &of_times(&[], DAY), &(0..u64::MAX)).expect("planned");
    assert_eq!((plan.objects.len(), plan.losses.len()), (1, 0));
    assert!(plan.notes[0].contains("packets/ cannot be listed"));
}

/// Makes a user's list of byte ranges with all columns.
fn listed(rows: &[(&str, u64, u64)], more: &str) -> ObjectChoice {
    let mut text = String::from("object,byte_start,byte_end,head_bytes,object_bytes\n");
    for (object, start, end) in rows {
        text += &format!("{object},{start},{end},{more}\n");
    }
    ObjectChoice::Of(RangeList::read(text.into()).expect("a list"))
}

#[test]
fn listed_ranges_are_fetched() {
    let place = TestBench::new();
    for sensor in ["a", "b"] {
        fixtures::capture(&place.sensor(sensor), 0, 10, 100);
        place.ship(sensor, ShipSelection::All);
    }
    let [a, b] = ["a", "b"].map(|sensor| {
        format!("packets/dt=1970-01-01/hour=00/sensor={sensor}/10000000000-q00.pcap")
    });
    // After a header of 24 bytes, records have 76 bytes: the third of b, the first two of a.
    let rows = [(&*b, 176, 252), (&*a, 24, 100), (&*a, 100, 176), ("", 1, 2)];
    // Values that are not listed are read from the tables.
    for more in ["24,7624", ","] {
        let done = place.extract(listed(&rows, more), 0..u64::MAX);
        let done = done.expect("extracted");
        assert_eq!((done.written.frames, done.unsent.parts), (3, 1));
        assert_eq!(done.written.losses, [""; 0]);
        assert_eq!(done.written.first_ns, Some(10 * SECOND));
        assert_eq!(done.written.last_ns, Some(10 * SECOND + 2_000_000));
        assert_eq!(done.fetched.wanted_bytes, 2 * 24 + 3 * 76);
        assert_eq!(done.tables.read, if more == "," { 2 } else { 0 });
    }
    // Times still apply to the frames.
    let done = place.extract(listed(&rows, ","), 10 * SECOND + 1..u64::MAX);
    assert_eq!(done.expect("extracted").written.frames, 2);

    let gone = a.replace("10000000000", "10000000001");
    let rows = [(&*gone, 24, 100), (&*b, 24, 100)];
    let done = place.extract(listed(&rows, ","), 0..u64::MAX);
    let done = done.expect("the rest");
    assert_eq!((done.written.frames, done.written.losses.len()), (1, 1));
    assert!(done.written.losses[0].contains("has no table in blocks/"));
    for (rows, more, part) in [
        (
            &[("packets/../x.pcap", 24, 100)][..],
            ",",
            "is not the key of a packets object",
        ),
        (
            &[(&*a, 24, 7625)][..],
            ",",
            "the list asks for bytes up to 7625 of the object, but the object has only 7624",
        ),
        (
            &[("NULL", 24, 100)][..],
            ",",
            "all 1 byte ranges of the list are in capture files that were not sent",
        ),
        (&[][..], "", "the list has no ranges"),
    ] {
        let none = place.extract(listed(rows, more), 0..u64::MAX);
        let none = none.expect_err(part).to_string();
        assert!(none.contains(part), "{none}");
    }
}

#[test]
fn temporary_errors_end_all_requests_and_refusals_do_not() {
    let place = TestBench::new();
    let file = fixtures::capture(&place.sensor("a"), 0, 10, 100);
    let bytes = fs::metadata(file).expect("there").len();
    let objects: Vec<_> = (0..1000)
        .map(|i| ObjectParts {
            key: CaptureKey::parse(&format!(
                "packets/dt=1970-01-01/hour=00/sensor=a/{i}-q00.pcap"
            ))
            .expect("ours"),
            bytes,
            ranges: std::iter::once(0..bytes).collect(),
            first_ns: i,
            frames: 0,
        })
        .collect();
    // The first requests are those that make the store count as failed, and those that were in progress
    // then. A refusal may concern an archived object alone.
    for (error, ends, requests) in [
        (StoreError::Failed("503".into()), true, 8..=40),
        (StoreError::Refused("403".into()), false, 1000..=1000),
    ] {
        let store = Noting::new(&place.at("store"), Some(error.clone()));
        let runtime = runtime();
        let asked = Arc::clone(&store) as Arc<dyn ReadStore>;
        let stop = Arc::new(AtomicBool::new(false));
        let fetcher = Fetcher::new(asked, runtime.handle().clone(), &objects, Arc::clone(&stop));
        let files = fetcher.files(&objects);
        let said = |file: &FileRanges| file.peek().err().expect("an error").to_string();
        let text = error.to_string();
        assert!(files.iter().all(|it| said(it).contains(&text)));
        assert_eq!(fetcher.failure(), ends.then_some(&error));
        let count = store.count("read");
        assert!(requests.contains(&count), "{count}");
        stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn pieces_yield_the_content_of_the_file() {
    let place = TestBench::new();
    let file = fixtures::capture(&place.sensor("a"), 0, 10, 40_000);
    place.ship("a", ShipSelection::All);
    let bytes = fs::metadata(&file).expect("there").len();
    let frame = |n: u64| 24 + n * 76;
    let ranges = vec![
        0..24,
        frame(100)..frame(101),
        frame(500)..frame(9000),
        frame(39_999)..bytes,
    ];
    let key = "packets/dt=1970-01-01/hour=00/sensor=a/10000000000-q00.pcap";
    let objects = [ObjectParts {
        key: CaptureKey::parse(key).expect("ours"),
        bytes,
        ranges: ranges.clone(),
        first_ns: 0,
        frames: 0,
    }];
    let store = Noting::new(&place.at("store"), None);
    let runtime = runtime();
    let asked = Arc::clone(&store) as Arc<dyn ReadStore>;
    let fetcher = Fetcher::new(asked, runtime.handle().clone(), &objects, Arc::default());
    let files = fetcher.files(&objects);
    let stamps = |file: &FileRanges| {
        let mut reader = file.open().expect("opens");
        let mut stamps = Vec::new();
        while let Some(packet) = reader.next().expect("reads") {
            stamps.push(packet.ns);
        }
        stamps
    };
    let found = stamps(&files[0]);
    assert_eq!(found.len(), 1 + 8500 + 1);
    assert_eq!(found, stamps(&FileRanges::new(file.clone(), ranges)));
    let mut first = read::open(&file).expect("opens");
    assert_ne!(first.next().expect("reads").map(|it| it.ns), Some(found[0]));
    assert_eq!(fetcher.progress().objects, 1);
}
