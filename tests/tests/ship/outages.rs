//! Tests of `wqcap ship` with stores that do not answer, are full, or are absent for a while.

use super::{
    Metrics, Sensor, assert_ledger, assert_shipped, assert_whole, objects_of, ship_to, store,
};
use rustix::process::Signal;
use serde_json::Value;
use std::{collections::BTreeSet, fs, io};
use wqcap_tests::{
    Dir,
    machine::{
        bucket::Bucket,
        dir::tree,
        disks::Memory,
        proxy::{Fate, Request},
    },
    need,
    oracles::s3::{BUCKET, S3},
};

/// Returns `true` if the request sends part `number` of an object.
fn is_part(it: &Request, number: u64) -> bool {
    it.target.contains(&format!("partNumber={number}&"))
}

#[test]
fn a_request_without_an_answer_in_time_is_sent_again() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "unanswered");
    let captured = sensor.capture(12_000, 1, &[]);
    let unset = ship_to(&bucket, &sensor, &[]).env("AWS_TIMEOUT", "soon");
    unset.run().expect(2).says(&["AWS_TIMEOUT", "soon"]);
    let mut parts = 0;
    bucket.proxy.decide(move |it| {
        parts += usize::from(is_part(it, 2));
        match is_part(it, 2) && parts == 1 {
            true => Fate::Hold,
            false => Fate::Pass,
        }
    });
    let ship = ship_to(&bucket, &sensor, &[]).env("AWS_TIMEOUT", "2s");
    let done = ship.run().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&objects_of(&bucket, &sensor), &sensor);
    let requests = bucket.proxy.requests();
    let again = requests.iter().filter(|it| is_part(it, 2)).count();
    assert!(again >= 2 && bucket.proxy.held() == 1, "{requests:?}");
    assert_eq!(bucket.s3.uploads(), 0);
}

#[test]
fn a_full_bucket_is_reported_and_gets_all_files_when_it_has_room() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    // Stores differ in the status of a full bucket: some answer 507, others 403.
    for (name, status) in [("full-507", 507), ("full-403", 403)] {
        let sensor = Sensor::new(&dir, name);
        let captured = sensor.capture(12_000, 1, &[]);
        let full = Fate::Answer(status, "<Error><Code>QuotaExceeded</Code></Error>");
        bucket.proxy.decide(move |it| match is_part(it, 2) {
            true => full,
            false => Fate::Pass,
        });
        let ship = ship_to(&bucket, &sensor, &["--set", "ship.concurrency=1"]);
        ship.run().expect(1).says(&["QuotaExceeded"]);
        let objects = objects_of(&bucket, &sensor);
        let is_of_file = |it: &&String| it.starts_with("packets/") || it.starts_with("blocks/");
        assert_eq!(objects.keys().find(is_of_file), None);
        bucket.proxy.decide(|_| Fate::Pass);
        let requests = assert_shipped(&bucket, &sensor, captured);
        assert!(!requests.iter().any(|it| is_part(it, 1)), "{requests:?}");
        assert_eq!(bucket.s3.uploads(), 0);
    }
}

#[test]
fn a_store_on_a_full_disk_has_no_partial_file_and_gets_all_files_when_it_has_room() {
    let dir = Dir::new();
    let disk = need!(Memory::new(&dir, 8));
    let url = format!("file://{}", disk.path().display());
    let sensor = Sensor::new(&dir, "full");
    let captured = sensor.capture(12_000, 1, &[]);
    let done = sensor.ship(&url, &["--once"]).run().expect(1);
    let place = disk.path().join("packets").display().to_string();
    done.says(&["No space left on device", &place]);
    // Readers ignore names that begin with a dot.
    let hidden = |it: &str| it.rsplit('/').next().is_some_and(|it| it.starts_with('.'));
    let objects = tree(disk.path());
    let of_file = objects
        .keys()
        .filter(|it| it.starts_with("packets/") || it.starts_with("blocks/"));
    assert_eq!(of_file.map(|it| hidden(it)).collect::<Vec<_>>(), [true]);
    disk.grow(64);
    let status = sensor.ship_once(&url, &[]);
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(disk.path()), &sensor);
}

#[test]
fn an_absent_store_is_reported_once_and_gets_each_file_once() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "away");
    let url = format!("s3://{BUCKET}/{}", sensor.name);
    let more = ["--json", "--set", "ship.metrics=127.0.0.1:0"];
    let mut shipping = bucket.reached_by(sensor.ship(&url, &more)).start();
    let status = bucket.s3.folder().join(&sensor.name);
    let status = status.join(sensor.status_key());
    shipping.until("the status is in the store", |_| status.exists());
    let metrics = Metrics::from_log(&shipping);
    let sample = |name: &str| metrics.sample(&format!("wqcap_ship_{name}{{sensor=\"away\"}}"));
    bucket.proxy.close();
    let captured = sensor.capture(12_000, 1, &[]);
    shipping.until("a failure", |_| sample("failures_total") >= 1.0);
    let lag = sample("lag_seconds");
    assert!(lag > 0.0 && sample("pending_files") >= 2.0, "{lag}");
    // The store is back but refuses requests. That is not logged a second time.
    bucket
        .proxy
        .decide(|it| match it.target.contains("/status/") {
            true => Fate::Pass,
            false => Fate::Answer(400, "<Error><Code>ServiceStarts</Code></Error>"),
        });
    bucket.proxy.open();
    shipping.until("a second failure", |_| sample("failures_total") >= 2.0);
    assert!(sample("lag_seconds") > lag);
    bucket.proxy.decide(|_| Fate::Pass);
    shipping.until("all files are shipped", |_| sample("pending_files") == 0.0);
    assert!(sample("lag_seconds") == 0.0);
    shipping.signal(Signal::TERM);
    let done = shipping.wait().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&objects_of(&bucket, &sensor), &sensor);
    assert_eq!(bucket.s3.uploads(), 0);
    let count = |message: &str| done.stderr.matches(message).count();
    let counts = [
        "retries until this succeeds",
        "the store, the directories and the journal work again, and shipping continues",
    ]
    .map(count);
    assert_eq!(counts, [1, 1], "{done}");
    assert!(count("the sensor status is written later") <= 1, "{done}");
    // Each object of the files was put exactly once.
    let requests = bucket.proxy.requests().into_iter();
    let sent = requests.filter(|it| it.method == "PUT" && !it.target.contains("/status/"));
    let sent: Vec<_> = sent.map(|it| it.target).collect();
    let distinct: BTreeSet<_> = sent.iter().collect();
    assert!(sent.len() >= 5 && distinct.len() == sent.len(), "{sent:?}");
}

#[test]
fn a_full_disk_of_the_journal_delays_shipping_and_ends_no_service() {
    let dir = Dir::new();
    let disk = need!(Memory::new(&dir, 1));
    let sensor = Sensor::new(&dir, "fulljournal");
    let (folder, url) = store(&dir);
    let journal = format!("ship.journal={}", disk.path().join("ship").display());
    let more = ["--json", "--set", &journal];
    let mut shipping = sensor.ship(&url, &more).start();
    let sums = disk.path().join("ship/ledger.json");
    shipping.until("the journal records the status in the store", |_| {
        fs::read_to_string(&sums).is_ok_and(|it| it.contains("\"has_status\":true"))
    });
    let filler = disk.path().join("filler");
    let full = fs::write(&filler, vec![0; 2 << 20]).expect_err("the disk is full");
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    let captured = sensor.capture(12_000, 1, &[]);
    shipping.until("the full disk is reported", |it| {
        it.stderr().contains("No space left on device")
    });
    // A service manager starts such a process again.
    let other = format!("ship.journal={}", disk.path().join("other").display());
    let done = sensor.ship(&url, &["--set", &other]).run().expect(1);
    done.says(&["ship.journal", "No space left on device"]);
    fs::remove_file(&filler).expect("removed");
    shipping.until("shipping continues", |it| {
        it.stderr().contains("and shipping continues")
    });
    shipping.signal(Signal::TERM);
    let done = shipping.wait().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(&folder), &sensor);
}
