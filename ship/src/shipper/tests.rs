//! Tests of passes that are interrupted at any step and continued by another pass.

use super::{
    Mode, PassError, ShipError, ShipStatus, Shipper, dry_run, fixtures,
    lease::{KeptStatus, Lease, LeaseHolder},
    run,
};
use crate::{
    ShipPlan, ShipSelection,
    fleet::SensorStatus,
    journal::{DeliveryState, Journal},
    key,
    ledger::DeliveryLedger,
    store::{
        Digest, ObjectFacts, PartPosition, PutIf, PutOutcome, Remote, SmallObject, Store,
        StoreError,
    },
};
use async_trait::async_trait;
use bytes::Bytes;
use object_store::{
    Attribute, GetOptions, ObjectStore, memory::InMemory, path::Path as ObjectPath,
};
use std::{
    collections::BTreeMap,
    fs,
    io::Write,
    mem,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;
use tokio::runtime::Builder;
use wqcap_files::{
    anonymize::AnonymizeParams,
    extract::anonymize_file,
    folder::{
        FileStamp,
        expired::{ExpiredFile, ExpiredList, ListPosition},
    },
    sealed::SecretKey,
};
use wqcap_frame::Slice;

/// Length of a part in bytes; a file of [`Place::new`] has four parts.
const PART: u64 = 500;

/// Number of the call at which the store's caller dies, and whether the call is still carried out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Death {
    at: usize,
    after: bool,
}

/// In-memory store that records its calls and simulates the death of its caller.
#[derive(Debug)]
pub(super) struct RecordingStore {
    inner: Arc<dyn Store>,
    calls: Mutex<Vec<String>>,
    death: Option<Death>,
    /// Length that `head` returns instead of the true one; `None`: the true one.
    wrong: Mutex<Option<u64>>,
    /// Part of the keys for which the store has this error; empty: all keys.
    refuses: Option<(&'static str, StoreError)>,
    /// Set when reads of missing objects are refused, as by a bucket whose client may not list it.
    hides: bool,
    /// Time in nanoseconds for which statuses have been in the store, besides their true age.
    pub(super) status_age_ns: Mutex<u64>,
    /// Set when the first upload is lost at its completion, which is reported as a refusal.
    loses: Mutex<bool>,
}

impl RecordingStore {
    pub(super) fn new(inner: impl Store + 'static, death: Option<Death>) -> Arc<Self> {
        Arc::new(Self {
            inner: Arc::new(inner),
            calls: Mutex::default(),
            death,
            wrong: Mutex::default(),
            refuses: None,
            hides: false,
            status_age_ns: Mutex::default(),
            loses: Mutex::new(false),
        })
    }

    fn calls(&self) -> MutexGuard<'_, Vec<String>> {
        self.calls.lock().expect("no panic")
    }

    /// Records a call and returns its number. `Err`: the caller is dead.
    fn call(&self, name: &str, key: &str) -> Result<usize, StoreError> {
        let folder = key.split('/').next().unwrap_or_default();
        let mut calls = self.calls();
        calls.push(format!("{name} {folder}"));
        let n = calls.len() - 1;
        if let Some((part, e)) = &self.refuses
            && key.contains(part)
        {
            return Err(e.clone());
        }
        let is_dead = |it: Death| n > it.at || (n == it.at && !it.after);
        match self.death.is_some_and(is_dead) {
            true => Err(StoreError::Failed("dead".into())),
            false => Ok(n),
        }
    }

    /// Returns the result of a call as the caller receives it.
    fn answer<T>(&self, n: usize, said: Result<T, StoreError>) -> Result<T, StoreError> {
        if self.death.is_some_and(|it| n >= it.at) {
            return Err(StoreError::Failed("dead".into()));
        }
        said.map_err(|e| match e {
            // As buckets report it.
            StoreError::Failed(why) if why.contains("MultipartUpload not found") => {
                StoreError::NotFound(why)
            }
            e => e,
        })
    }
}

#[async_trait]
impl Store for RecordingStore {
    async fn begin(&self, key: &str, digest: &Digest) -> Result<String, StoreError> {
        let n = self.call("begin", key)?;
        let said = self.inner.begin(key, digest).await;
        self.answer(n, said)
    }

    async fn part(
        &self,
        key: &str,
        upload: &str,
        place: PartPosition,
        bytes: Bytes,
    ) -> Result<String, StoreError> {
        let n = self.call("part", key)?;
        let said = self.inner.part(key, upload, place, bytes).await;
        self.answer(n, said)
    }

    async fn complete(
        &self,
        key: &str,
        upload: &str,
        parts: Vec<String>,
    ) -> Result<Option<String>, StoreError> {
        let n = self.call("complete", key)?;
        if mem::take(&mut *self.loses.lock().expect("no panic")) {
            self.inner.abort(key, upload).await?;
            return Err(StoreError::Refused("403".into()));
        }
        let said = self.inner.complete(key, upload, parts).await;
        self.answer(n, said)
    }

    async fn abort(&self, key: &str, upload: &str) -> Result<(), StoreError> {
        let n = self.call("abort", key)?;
        let said = self.inner.abort(key, upload).await;
        match self.answer(n, said) {
            // As for buckets: the upload has ended.
            Err(StoreError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    async fn put(&self, key: &str, bytes: Bytes) -> Result<Option<String>, StoreError> {
        let n = self.call("put", key)?;
        let said = self.inner.put(key, bytes).await;
        self.answer(n, said)
    }

    async fn head(&self, key: &str) -> Result<ObjectFacts, StoreError> {
        let n = self.call("head", key)?;
        let mut said = self.inner.head(key).await;
        if let (Ok(facts), Some(wrong)) = (&mut said, self.wrong.lock().expect("sound").take()) {
            facts.bytes = wrong;
        }
        self.answer(n, said)
    }

    async fn read_small(&self, key: &str) -> Result<SmallObject, StoreError> {
        let n = self.call("read", key)?;
        let said = match self.inner.read_small(key).await {
            Err(StoreError::NotFound(_)) if self.hides => Err(StoreError::Refused("403".into())),
            said => said,
        };
        let age_ns = match key == key::status("tap") {
            true => *self.status_age_ns.lock().expect("no panic"),
            false => 0,
        };
        let aged = said.map(|it| SmallObject {
            written_ns: it.written_ns.map(|ns| ns.saturating_sub(age_ns)),
            ..it
        });
        self.answer(n, aged)
    }

    async fn put_if(&self, key: &str, bytes: Bytes, only: PutIf) -> Result<PutOutcome, StoreError> {
        let n = self.call("put_if", key)?;
        let said = self.inner.put_if(key, bytes, only).await;
        self.answer(n, said)
    }
}

/// Folders of a test's sensor with files in them.
struct Place {
    root: TempDir,
    store: InMemory,
    anonymize: Option<AnonymizeParams>,
}

impl Place {
    /// Creates flow records, a file of several parts, and one that is put at once.
    fn new() -> Self {
        let it = Self {
            root: tempfile::tempdir().expect("dir"),
            store: InMemory::new(),
            anonymize: None,
        };
        for folder in ["out", "flows", "store"] {
            fs::create_dir(it.at(folder)).expect("made");
        }
        fs::write(it.at("flows/wqcap-flows-9.parquet"), "flows").expect("written");
        fixtures::capture(&it.at("out"), 0, 10, 25);
        fixtures::capture(&it.at("out"), 1, 10, 3);
        it
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn plan(&self, packets: bool) -> ShipPlan {
        ShipPlan {
            dir: self.at("out"),
            index_dir: None,
            flows_dir: Some(self.at("flows")),
            store: format!("file://{}", self.at("store").display()),
            sensor: "tap".into(),
            host: "here".into(),
            packets: match packets {
                true => ShipSelection::All,
                false => ShipSelection::None,
            },
            part_bytes: PART,
            concurrency: 2,
            bandwidth: None,
            anonymize: self.anonymize.clone(),
            journal: self.at("journal"),
        }
    }

    /// Runs a pass of shipping as a new process would.
    fn pass(
        &self,
        store: &Arc<RecordingStore>,
        packets: bool,
    ) -> (Result<(), PassError>, DeliveryLedger) {
        let plan = self.plan(packets);
        let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store).expect("opens");
        let store = Arc::clone(store) as Arc<dyn Store>;
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let (done, ledger) = runtime.block_on(async {
            let mut shipper = Shipper::new(plan, store, journal, false);
            (shipper.pass().await, shipper.journal.ledger())
        });
        (done, ledger)
    }

    /// Runs a pass of shipping with a store that carries out every call.
    fn whole_pass(&self, packets: bool) -> (DeliveryLedger, Vec<String>) {
        let store = self.noting(None);
        let (done, ledger) = self.pass(&store, packets);
        done.expect("shipped");
        let calls = store.calls().clone();
        (ledger, calls)
    }

    /// Runs a pass of shipping of a process that dies.
    fn dying_pass(&self, death: Death) -> DeliveryLedger {
        let (done, ledger) = self.pass(&self.noting(Some(death)), true);
        assert!(done.is_err(), "{death:?}");
        ledger
    }

    fn noting(&self, death: Option<Death>) -> Arc<RecordingStore> {
        // Clones share the content.
        RecordingStore::new(Remote::with_client(self.store.clone()), death)
    }

    /// Returns an object's bytes, after a check against the digest in its metadata.
    fn object(&self, key: &str) -> Option<Vec<u8>> {
        let path = ObjectPath::from(format!("some/where/{key}"));
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let got = self.store.get_opts(&path, GetOptions::default()).await;
            let got = got.ok()?;
            let stated = got.attributes.get(&Attribute::Metadata("sha256".into()));
            let stated = stated.map(|it| it.to_string());
            let bytes = got.bytes().await.expect("in memory").to_vec();
            assert_eq!(
                stated,
                Some(Digest::from_bytes(&bytes).to_string()),
                "{key}"
            );
            Some(bytes)
        })
    }

    /// Asserts that all files of the capture are in the store and can be found.
    fn assert_shipped(&self) {
        let objects = [
            ("out/wqcap-q00-10000000000.pcap", "10000000000-q00.pcap"),
            ("out/wqcap-q01-10000000000.pcap", "10000000000-q01.pcap"),
        ];
        let place = "dt=1970-01-01/hour=00/sensor=tap";
        for (file, object) in objects {
            let bytes = match &self.anonymize {
                Some(query) => {
                    let copy = self.at("copy.pcap");
                    anonymize_file(&self.at(file), query, &copy).expect("Ethernet");
                    fs::read(copy).expect("there")
                }
                None => fs::read(self.at(file)).expect("there"),
            };
            let packets = self.object(&format!("packets/{place}/{object}"));
            assert!(packets.is_some_and(|it| it == bytes), "{object}");
            let blocks = self.object(&format!("blocks/{place}/{object}.parquet"));
            assert!(blocks.is_some_and(|it| it.starts_with(b"PAR1")));
        }
        let flows = self.object(&format!("flows/{place}/9.parquet"));
        assert_eq!(flows.as_deref(), Some(&b"flows"[..]));
    }
}

fn query() -> AnonymizeParams {
    AnonymizeParams {
        key: SecretKey::new(&[7; 32]),
        slice: Slice::Whole,
    }
}

const ALL: DeliveryLedger = DeliveryLedger {
    captured: 28,
    shipped: 28,
    pending: 0,
    not_selected: 0,
    expired_unshipped: 0,
};

#[test]
fn flows_are_sent_first_and_blocks_after_their_frames() {
    let place = Place::new();
    let (ledger, calls) = place.whole_pass(true);
    assert_eq!(ledger, ALL);
    let expected = [
        "put flows",
        "head flows",
        "begin packets",
        "part packets",
        "part packets",
        "part packets",
        "part packets",
        "complete packets",
        "head packets",
        "put blocks",
        "head blocks",
        "put packets",
        "head packets",
        "put blocks",
        "head blocks",
    ];
    assert_eq!(calls, expected);
    place.assert_shipped();
    // A second pass sends no requests.
    assert_eq!(place.whole_pass(true), (ALL, Vec::new()));
}

#[test]
fn a_pass_continues_after_a_death_at_any_step() {
    let all = Place::new().whole_pass(true).1.len();
    for at in 0..all {
        for after in [false, true] {
            let death = Death { at, after };
            let place = Place::new();
            let before = place.dying_pass(death);
            assert_eq!(
                before.captured,
                before.shipped + before.pending,
                "{death:?}"
            );
            let (ledger, calls) = place.whole_pass(true);
            assert_eq!(ledger, ALL, "{death:?}");
            place.assert_shipped();
            // Recorded parts are in the store; only those in transit are sent again.
            let resent = calls.len() + at;
            assert!(resent <= all + 10, "{death:?}: {calls:?}");
            assert_eq!(place.whole_pass(true), (ALL, Vec::new()), "{death:?}");
        }
    }
}

#[test]
fn a_lost_copy_is_made_again_and_its_upload_continues() {
    let anonymous = || Place {
        anonymize: Some(query()),
        ..Place::new()
    };
    let all = anonymous().whole_pass(true).1;
    assert!(all.iter().any(|it| it == "part packets"), "{all:?}");
    for at in 0..all.len() {
        for (after, lost) in [(false, false), (false, true), (true, false), (true, true)] {
            let death = Death { at, after };
            let place = anonymous();
            place.dying_pass(death);
            let copies = place.at("journal/copies");
            if lost && copies.exists() {
                fs::remove_dir_all(&copies).expect("an own folder");
            }
            fs::create_dir_all(&copies).expect("an own folder");
            for left in [".wqcap-merge-x", "wqcap-q00-7.pcap"] {
                fs::write(copies.join(left), "left by a crash").expect("written");
            }
            let (ledger, calls) = place.whole_pass(true);
            assert_eq!(ledger, ALL, "{death:?}");
            place.assert_shipped();
            assert!(calls.len() + at <= all.len() + 10, "{death:?}: {calls:?}");
            let left = || fs::read_dir(&copies).map_or(0, Iterator::count);
            assert_eq!(left(), 0, "{death:?}");
            // A kill before the copy of a shipped file is deleted.
            for capture in fs::read_dir(place.at("out")).expect("a folder") {
                let name = capture.expect("a capture").file_name();
                fs::write(copies.join(name), "a copy").expect("written");
            }
            let _ = place.whole_pass(true);
            assert_eq!(left(), 0, "{death:?}");
        }
    }
}

#[test]
fn a_plain_upload_does_not_continue_with_anonymize() {
    let mut place = Place::new();
    // Death while the first file's parts are sent.
    let death = Death { at: 5, after: true };
    place.dying_pass(death);
    place.anonymize = Some(query());
    let (ledger, calls) = place.whole_pass(true);
    assert_eq!(ledger, ALL);
    assert!(calls.contains(&"abort packets".to_owned()), "{calls:?}");
    place.assert_shipped();
}

#[test]
fn a_copy_that_was_made_with_other_parameters_is_not_sent() {
    for death in [4, 5].map(|at| Death { at, after: true }) {
        let mut place = Place {
            anonymize: Some(query()),
            ..Place::new()
        };
        place.dying_pass(death);
        let copies = fs::read_dir(place.at("journal/copies")).expect("a folder");
        assert_eq!(copies.count(), 1, "{death:?}");
        // The copy with this key has the same length.
        place.anonymize = Some(AnonymizeParams {
            key: SecretKey::new(&[8; 32]),
            ..query()
        });
        let (ledger, calls) = place.whole_pass(true);
        assert_eq!(ledger, ALL);
        assert!(calls.contains(&"abort packets".to_owned()), "{calls:?}");
        place.assert_shipped();
    }
}

#[test]
fn message_tables_are_sent_with_flow_records() {
    let place = Place::new();
    for table in ["dns", "dhcp"] {
        let folder = place.at(&format!("flows/{table}"));
        fs::create_dir(&folder).expect("made");
        let file = folder.join(format!("wqcap-{table}-7.parquet"));
        fs::write(file, table).expect("written");
    }
    let (ledger, calls) = place.whole_pass(true);
    assert_eq!(ledger, ALL);
    let first = ["put flows", "head flows", "put dns", "head dns", "put dhcp"];
    assert_eq!(calls[..5], first);
    for table in ["dns", "dhcp"] {
        let key = format!("{table}/dt=1970-01-01/hour=00/sensor=tap/7.parquet");
        let object = place.object(&key);
        assert_eq!(object.as_deref(), Some(table.as_bytes()));
    }
    place.assert_shipped();
}

#[test]
fn without_packets_blocks_and_flows_are_sent() {
    let place = Place::new();
    let (ledger, calls) = place.whole_pass(false);
    let none = DeliveryLedger {
        shipped: 0,
        not_selected: 28,
        ..ALL
    };
    assert_eq!(ledger, none);
    let expected = [
        "put flows",
        "head flows",
        "put blocks",
        "head blocks",
        "put blocks",
        "head blocks",
    ];
    assert_eq!(calls, expected);
    // The selection is changed to all files.
    assert_eq!(place.whole_pass(true).0, ALL);
    place.assert_shipped();
    // Objects stay in the store if the selection is changed back.
    assert_eq!(place.whole_pass(false), (ALL, Vec::new()));
}

#[test]
fn files_deleted_before_they_were_sent_are_counted() {
    let place = Place::new();
    // The second part of the first file never arrives.
    let death = Death {
        at: 4,
        after: false,
    };
    place.dying_pass(death);
    fs::remove_file(place.at("out/wqcap-q00-10000000000.pcap")).expect("there");
    let (ledger, calls) = place.whole_pass(true);
    let expected = DeliveryLedger {
        shipped: 3,
        expired_unshipped: 25,
        ..ALL
    };
    assert_eq!(ledger, expected);
    assert_eq!(calls[0], "abort packets", "the upload is aborted");
    // A file that is deleted after it was sent keeps its line.
    fs::remove_file(place.at("out/wqcap-q01-10000000000.pcap")).expect("there");
    assert_eq!(place.whole_pass(true), (expected, Vec::new()));
}

#[test]
fn files_deleted_by_the_capture_are_counted_once() {
    let place = Place::new();
    let out = place.at("out");
    let [known, other] = ["wqcap-q00-10000000000.pcap", "wqcap-q01-10000000000.pcap"];
    let line = |path: &Path, frames| ExpiredFile {
        file: path
            .file_name()
            .and_then(|it| it.to_str())
            .expect("plain")
            .into(),
        stamp: FileStamp::read(path).expect("there"),
        frames,
    };
    let start = ListPosition::default();
    let mut list = ExpiredList::open(&out, start).expect("opens");
    // One file with a record, and two without; the frames of one of them are unknown.
    let death = Death {
        at: 4,
        after: false,
    };
    place.dying_pass(death);
    list.remove(&out.join(known), &line(&out.join(known), Some(25)))
        .expect("removed");
    for (second, frames) in [(1, Some(7)), (2, None)] {
        let path = fixtures::capture(&out, 5, second, 7);
        list.remove(&path, &line(&path, frames)).expect("removed");
    }
    // A file whose line was written when the capture was killed.
    let left = fixtures::capture(&out, 6, 3, 11);
    let noted = line(&left, Some(11));
    let text = format!("{}\n", serde_json::to_string(&noted).expect("JSON"));
    let path = out.join(".wqcap-expired/0.jsonl");
    let mut lines = fs::File::options().append(true).open(path).expect("there");
    lines.write_all(text.as_bytes()).expect("written");
    let expected = DeliveryLedger {
        captured: ALL.captured + 7 + 11,
        shipped: ALL.captured - 25 + 11,
        expired_unshipped: 25 + 7,
        ..ALL
    };
    for _ in 0..2 {
        assert_eq!(place.whole_pass(true).0, expected);
    }
    // The next capture completes the interrupted deletion.
    let mut list = ExpiredList::open(&out, start).expect("opens");
    list.remove(&left, &noted).expect("removed");
    fs::remove_file(out.join(other)).expect("there");
    for _ in 0..2 {
        assert_eq!(place.whole_pass(true).0, expected);
    }
    let journal = Journal::read(&place.at("journal"), "tap", &place.plan(true).store);
    let journal = journal.expect("reads");
    assert_eq!(
        (journal.expired_files().0, journal.expired_uncounted_files()),
        (3, 1)
    );
}

#[test]
fn a_complete_object_is_shipped_without_its_file() {
    let calls = Place::new().whole_pass(true).1;
    let head = calls.iter().position(|it| it == "head packets");
    let place = Place::new();
    let death = Death {
        at: head.expect("asked for"),
        after: false,
    };
    place.dying_pass(death);
    let file = place.at("out/wqcap-q00-10000000000.pcap");
    let bytes = fs::read(&file).expect("there");
    fs::remove_file(&file).expect("there");
    assert_eq!(place.whole_pass(true).0, ALL);
    fs::write(&file, bytes).expect("written");
    place.assert_shipped();
}

#[test]
fn a_changed_file_is_sent_again() {
    let place = Place::new();
    let death = Death {
        at: 4,
        after: false,
    };
    place.dying_pass(death);
    fixtures::capture(&place.at("out"), 0, 10, 40);
    let (ledger, calls) = place.whole_pass(true);
    let expected = DeliveryLedger {
        captured: 43,
        shipped: 43,
        ..ALL
    };
    assert_eq!(ledger, expected);
    assert_eq!(calls[0], "abort packets");
    place.assert_shipped();
}

#[test]
fn an_object_of_wrong_length_is_sent_again() {
    let place = Place::new();
    let store = place.noting(None);
    *store.wrong.lock().expect("sound") = Some(1);
    let (done, ledger) = place.pass(&store, true);
    done.expect("shipped");
    assert_eq!(ledger, ALL);
    let puts = store.calls().iter().filter(|it| *it == "put flows").count();
    assert_eq!(puts, 2);
    place.assert_shipped();
}

#[test]
fn a_store_that_refuses_is_asked_for_three_files() {
    let place = Place::new();
    let mut store = place.noting(None);
    Arc::get_mut(&mut store).expect("ours alone").refuses =
        Some(("", StoreError::Refused("403".into())));
    let (done, ledger) = place.pass(&store, true);
    assert!(matches!(
        done,
        Err(PassError::Store(StoreError::Refused(_)))
    ));
    let pending = DeliveryLedger {
        shipped: 0,
        pending: ALL.captured,
        ..ALL
    };
    assert_eq!((store.calls().len(), ledger), (3, pending));
}

#[test]
fn a_refused_object_does_not_keep_the_other_files() {
    // The frames of the first file, and its table.
    let frames = "packets/dt=1970-01-01/hour=00/sensor=tap/10000000000-q00";
    for refused in [frames, "q00.pcap.parquet"] {
        let place = Place::new();
        let mut store = place.noting(None);
        Arc::get_mut(&mut store).expect("ours alone").refuses =
            Some((refused, StoreError::Refused("403".into())));
        let (done, ledger) = place.pass(&store, true);
        done.expect("the others are shipped");
        assert!(ledger.pending > 0 && ledger.shipped > 0, "{ledger:?}");
        assert_eq!(ledger.pending + ledger.shipped, ALL.captured);
        // Accepted later.
        assert_eq!(place.whole_pass(true).0, ALL);
        place.assert_shipped();
    }
}

#[test]
fn three_refused_files_do_not_keep_a_newer_one() {
    let place = Place::new();
    for copy in ["wqcap-q02-10000000000.pcap", "wqcap-q00-20000000000.pcap"] {
        let from = place.at("out/wqcap-q00-10000000000.pcap");
        fs::copy(from, place.at(&format!("out/{copy}"))).expect("copied");
    }
    let mut store = place.noting(None);
    Arc::get_mut(&mut store).expect("ours alone").refuses =
        Some(("/10000000000-q", StoreError::Refused("403".into())));
    let (done, _) = place.pass(&store, true);
    done.expect("the newer one is shipped");
    let newer = "packets/dt=1970-01-01/hour=00/sensor=tap/20000000000-q00.pcap";
    assert!(place.object(newer).is_some(), "{:?}", store.calls());
}

#[test]
fn the_pass_after_a_failure_begins_with_other_files() {
    let place = Place::new();
    let mut store = place.noting(None);
    Arc::get_mut(&mut store).expect("ours alone").refuses =
        Some(("-q00.pcap", StoreError::Failed("500".into())));
    let plan = place.plan(true);
    let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store).expect("opens");
    let runtime = Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime").block_on(async {
        let mut shipper = Shipper::new(plan, store as Arc<dyn Store>, journal, false);
        for shipped in [0, 3, 3] {
            let done = shipper.pass().await;
            assert!(matches!(done, Err(PassError::Store(StoreError::Failed(_)))));
            assert_eq!(shipper.journal.ledger().shipped, shipped);
        }
    });
}

#[test]
fn a_single_run_sends_the_other_files_after_a_failure() {
    // The store fails at the keys of one file, or at all keys.
    for (failing, calls, shipped) in [("-q00.pcap", 8, 3), ("", 2, 0)] {
        let place = Place::new();
        let mut store = place.noting(None);
        Arc::get_mut(&mut store).expect("ours alone").refuses =
            Some((failing, StoreError::Failed("500".into())));
        let plan = place.plan(true);
        let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store).expect("opens");
        let runtime = Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(async {
            let noted = Arc::clone(&store);
            let mut shipper = Shipper::new(plan, store as Arc<dyn Store>, journal, false);
            let done = shipper.passes_over_failures().await;
            assert!(matches!(done, Err(PassError::Store(StoreError::Failed(_)))));
            assert_eq!(shipper.journal.ledger().shipped, shipped);
            assert_eq!(noted.calls().len(), calls, "{:?}", noted.calls());
        });
    }
}

#[test]
fn a_lost_upload_is_restarted() {
    let place = Place::new();
    let mut store = place.noting(None);
    Arc::get_mut(&mut store).expect("ours alone").loses = Mutex::new(true);
    let (done, ledger) = place.pass(&store, true);
    done.expect("shipped");
    assert_eq!(ledger, ALL);
    let begun = store
        .calls()
        .iter()
        .filter(|it| *it == "begin packets")
        .count();
    assert_eq!(begun, 2);
    place.assert_shipped();
}

#[test]
fn an_invalid_file_is_deferred_and_the_others_are_sent() {
    let place = Place::new();
    fs::write(place.at("out/wqcap-q00-5.pcap"), "no capture").expect("written");
    let mut named = Vec::new();
    let plan = place.plan(true);
    let done = run(&plan, Mode::Once, |status| {
        named.clone_from(&status.problems);
        true
    });
    let status = done.expect("the others are shipped");
    assert_eq!(status.ledger, ALL);
    assert_eq!(status.uncounted_files, 1);
    assert_eq!(status.problems, named);
    assert!(
        named.len() == 1 && named[0].contains("wqcap-q00-5.pcap"),
        "{named:?}"
    );
}

#[test]
fn a_capture_is_followed_until_stopped() {
    let place = Place::new();
    let plan = place.plan(true);
    let mut late = None;
    let status = run(&plan, Mode::Follow, |status| {
        if status.ledger == ALL && late.is_none() {
            late = Some(fixtures::capture(&place.at("out"), 0, 11, 7));
        }
        status.ledger.shipped < 35
    });
    assert_eq!(status.expect("followed").ledger.captured, 35);
    assert!(late.is_some());
}

#[test]
fn a_clock_that_jumps_stops_nothing_and_lag_is_never_negative() {
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let now = SystemTime::now();
    // Modification times before the clock was set back or forward.
    for (written, most) in [
        (now + DAY, 0.0),
        (now + 20 * 365 * DAY, 0.0),
        (SystemTime::UNIX_EPOCH - DAY, f64::MAX),
    ] {
        let place = Place::new();
        for file in tree(&place.at("out"))
            .into_keys()
            .chain(tree(&place.at("flows")).into_keys())
        {
            let file = fs::File::options().write(true).open(file).expect("there");
            file.set_modified(written).expect("an own file");
        }
        // The capture would still be writing the indexes of new files.
        let plan = ShipPlan {
            index_dir: Some(place.at("index")),
            ..place.plan(true)
        };
        let mut lags = Vec::new();
        // More calls than that count as endless.
        let status = run(&plan, Mode::Follow, |status| {
            lags.push(status.lag_s);
            status.ledger.shipped < ALL.shipped && lags.len() < 100
        });
        assert_eq!(status.expect("followed").ledger, ALL, "{written:?}");
        assert!(
            lags.iter().all(|it| (0.0..=most).contains(it)),
            "{written:?}: {lags:?}"
        );

        // Files that cannot be shipped have a lag too.
        let store = place.noting(Some(Death {
            at: 0,
            after: false,
        })) as Arc<dyn Store>;
        let plan = ShipPlan {
            journal: place.at("other"),
            ..plan
        };
        let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store).expect("opens");
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        let lag = runtime.block_on(async {
            let mut shipper = Shipper::new(plan, store, journal, false);
            assert!(shipper.pass().await.is_err());
            let status = shipper.status.lock().expect("sound");
            assert_eq!(status.pending_files, 3);
            status.lag_s
        });
        let of_1970 = (now.duration_since(SystemTime::UNIX_EPOCH))
            .expect("later")
            .as_secs_f64();
        let least = if most == 0.0 { 0.0 } else { of_1970 };
        assert!((least..=most).contains(&lag), "{written:?}: {lag}");
    }
}

/// Empties a directory as an unmounted file system does. Returns the path of its content.
fn unmount(place: &Place, folder: &str) -> PathBuf {
    let away = place.at("away");
    fs::rename(place.at(folder), &away).expect("moved");
    fs::create_dir(place.at(folder)).expect("made");
    away
}

#[test]
fn a_file_system_that_is_not_mounted_deletes_nothing() {
    for folder in ["out", "flows"] {
        let place = Place::new();
        // All files have records, and one upload is begun.
        let death = Death {
            at: 4,
            after: false,
        };
        let before = place.dying_pass(death);
        let away = unmount(&place, folder);
        let (done, ledger) = place.pass(&place.noting(None), true);
        let why = done.expect_err("nothing is known of the files").to_string();
        assert!(
            why.contains("mounted?") && why.contains("dirs.json"),
            "{why}"
        );
        assert_eq!(ledger, before);
        // A capture that writes into the directory does not make it the known one.
        if folder == "out" {
            fixtures::capture(&place.at(folder), 0, 20, 1);
            assert!(place.pass(&place.noting(None), true).0.is_err());
        }
        fs::remove_dir_all(place.at(folder)).expect("an own folder");
        fs::rename(away, place.at(folder)).expect("mounted again");
        assert_eq!(place.whole_pass(true).0, ALL);
        place.assert_shipped();
    }
}

#[test]
fn removing_dirs_json_declares_files_deleted() {
    let place = Place::new();
    let death = Death {
        at: 4,
        after: false,
    };
    place.dying_pass(death);
    unmount(&place, "out");
    assert!(place.pass(&place.noting(None), true).0.is_err());
    fs::remove_file(place.at("journal/dirs.json")).expect("there");
    // Frames of the file that had a record.
    let gone = DeliveryLedger {
        captured: 25,
        shipped: 0,
        expired_unshipped: 25,
        ..ALL
    };
    assert_eq!(place.whole_pass(true).0, gone);
}

#[test]
fn a_directory_on_another_disk_is_recognised_by_its_files() {
    let place = Place::new();
    let death = Death {
        at: 4,
        after: false,
    };
    place.dying_pass(death);
    let away = unmount(&place, "out");
    // Restored with its modification time.
    let name = "wqcap-q00-10000000000.pcap";
    let file = place.at("out").join(name);
    fs::copy(away.join(name), &file).expect("copied");
    let time = fs::metadata(away.join(name)).and_then(|it| it.modified());
    let file = fs::File::options().write(true).open(&file).expect("there");
    file.set_modified(time.expect("known"))
        .expect("an own file");
    let expected = DeliveryLedger {
        captured: 25,
        shipped: 25,
        ..ALL
    };
    assert_eq!(place.whole_pass(true).0, expected);
}

#[test]
fn a_bucket_that_refuses_listing_accepts_a_status() {
    let place = Place::new();
    let store = |hides| {
        let mut store = place.noting(None);
        Arc::get_mut(&mut store).expect("ours alone").hides = hides;
        store
    };
    let claim = |store: &Arc<RecordingStore>| {
        let holder = LeaseHolder {
            sensor: "tap",
            host: "here",
            instance: "first",
            runs: &[],
            kept: KeptStatus::Unsure,
        };
        let as_store = Arc::clone(store) as Arc<dyn Store>;
        let mut lease = Lease::new(&holder, as_store, Arc::default()).expect("random bytes");
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(lease.claim()).expect("owned by no other");
    };
    let hiding = store(true);
    claim(&hiding);
    assert_eq!(*hiding.calls(), ["read status", "put_if status"]);
    assert!(place.object("status/sensor=tap.json").is_some());
    claim(&hiding);
    assert_eq!(hiding.calls()[2..], ["read status", "put_if status"]);
}

#[test]
fn a_refused_instance_sends_nothing() {
    let place = Place::new();
    let plan = place.plan(true);
    let status = run(&plan, Mode::Once, |_| true).expect("shipped");
    assert_eq!(status.ledger, ALL);
    let objects = tree(&place.at("store")).len();
    // The journal is lost, and the name is still held for some minutes.
    let again = ShipPlan {
        journal: place.at("other"),
        ..plan
    };
    let refused = run(&again, Mode::Once, |_| true);
    let Err(ShipError::Taken(taken)) = refused else {
        panic!("{refused:?}")
    };
    let why = taken.to_string();
    assert!(why.contains("ship.sensor = \"tap\""), "{why}");
    assert_eq!(tree(&place.at("store")).len(), objects + 1, "a refusal");
    // With [`Mode::Follow`] the claim is retried.
    let mut problems = Vec::new();
    let waits = run(&again, Mode::Follow, |status| {
        problems.clone_from(&status.problems);
        problems.is_empty()
    });
    assert_eq!(waits.expect("stopped").ledger.captured, 0);
    assert_eq!(problems, [why]);
    // The clock of the first machine is wrong.
    let key = place.at("store/status/sensor=tap.json");
    let text = fs::read_to_string(&key).expect("there");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["time"] = "2026-01-01T00:00:00Z".into();
    fs::write(&key, json.to_string()).expect("written");
    let refused = run(&again, Mode::Once, |_| true);
    let why = refused.expect_err("taken").to_string();
    assert!(why.contains("the clocks of the two hosts differ"), "{why}");
    // The name is free now.
    let file = fs::File::options().append(true).open(key).expect("there");
    let earlier = SystemTime::now() - Duration::from_secs(200);
    file.set_modified(earlier).expect("the time is set");
    let status = run(&again, Mode::Once, |_| true).expect("shipped");
    assert_eq!(status.ledger, ALL);
}

#[test]
fn a_store_that_is_not_mounted_gets_no_files() {
    let place = Place::new();
    let plan = place.plan(true);
    run(&plan, Mode::Once, |_| true).expect("shipped");
    // The empty mount point of the store.
    fs::rename(place.at("store"), place.at("mounted")).expect("renamed");
    fs::create_dir(place.at("store")).expect("made");
    fixtures::capture(&place.at("out"), 0, 20, 5);
    let refused = run(&plan, Mode::Once, |_| true).expect_err("refused");
    assert!(
        matches!(&refused, ShipError::Taken(it) if it.to_string().contains("not mounted")),
        "{refused}"
    );
    assert!(tree(&place.at("store")).is_empty());
    let mut problems = Vec::new();
    let waits = run(&plan, Mode::Follow, |status| {
        problems.clone_from(&status.problems);
        problems.is_empty()
    });
    assert_eq!(waits.expect("stopped").pending_files, 0, "nothing is read");
    assert!(tree(&place.at("store")).is_empty());
    fs::remove_dir(place.at("store")).expect("empty");
    fs::rename(place.at("mounted"), place.at("store")).expect("renamed");
    let status = run(&plan, Mode::Once, |_| true).expect("shipped");
    assert_eq!(status.ledger.shipped, ALL.shipped + 5);
}

#[test]
fn a_process_that_is_stopped_writes_a_last_status() {
    let place = Place::new();
    let plan = place.plan(true);
    let all = |status: &ShipStatus| status.ledger == ALL && status.pending_files == 0;
    let status = run(&plan, Mode::Follow, |status| !all(status)).expect("stopped");
    assert!(all(&status));
    let text = fs::read(place.at("store/status/sensor=tap.json")).expect("there");
    let stored = SensorStatus::parse(&text).expect("a status");
    assert_eq!((stored.ledger, stored.pending_files), (ALL, 0));
}

/// Returns all files below a folder, with their content.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(root).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            all.extend(tree(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).expect("reads"));
        }
    }
    all
}

#[test]
fn a_dry_run_lists_what_a_run_ships() {
    let place = Place::new();
    let plan = place.plan(true);
    let planned = dry_run(&plan).expect("reads").files;
    assert!(!place.at("journal").exists() && tree(&place.at("store")).is_empty());
    let objects = planned.iter().flat_map(|it| [&it.object, &it.blocks]);
    let objects: Vec<_> = objects.flatten().cloned().collect();
    assert_eq!(objects.len(), 5);
    let status = run(&plan, Mode::Once, |_| true).expect("shipped");
    assert_eq!((status.ledger, status.pending_files), (ALL, 0));
    let mut expected: Vec<_> = objects
        .iter()
        .map(|it| place.at("store").join(it))
        .collect();
    expected.push(place.at("store/status/sensor=tap.json"));
    expected.sort();
    let there: Vec<_> = tree(&place.at("store")).into_keys().collect();
    assert_eq!(there, expected);
    let nothing = dry_run(&plan).expect("reads");
    assert!(nothing.files.is_empty() && nothing.problems.is_empty());
    let journal = Journal::read(&plan.journal, &plan.sensor, &plan.store).expect("reads");
    assert!(
        journal
            .records()
            .all(|it| it.state == DeliveryState::Shipped)
    );
    // A file whose record is damaged is sent again.
    let first = journal.records().next().expect("a record");
    let record = first.kind.record(&plan.journal, &first.file);
    fs::write(record, "torn").expect("written");
    let again = dry_run(&plan).expect("reads");
    assert_eq!((again.files.len(), again.problems.len()), (1, 1));

    let absent = ShipPlan {
        store: format!("file://{}", place.at("absent").display()),
        journal: place.at("other"),
        ..plan
    };
    let refused = run(&absent, Mode::Once, |_| true);
    assert!(matches!(refused, Err(ShipError::Store(_))));
}
