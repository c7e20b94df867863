//! Files that change, or go, while they are sent.

use super::{Sensor, assert_ledger, assert_whole, objects_of, ship_to};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};
use wqcap_tests::{
    Dir, Done,
    ledger::number,
    machine::{bucket::Bucket, proxy::Fate},
    oracles::s3::S3,
};

/// A file of three parts, which comes to harm when its second one is on the way.
struct Harmed<'d> {
    bucket: Bucket,
    sensor: Sensor<'d>,
    captured: u64,
    /// Its name's end in the store, and its bytes.
    before: (String, Vec<u8>),
}

impl<'d> Harmed<'d> {
    fn new(dir: &'d Dir, name: &str) -> Self {
        let sensor = Sensor::new(dir, name);
        let captured = sensor.capture(12_000, 1, &[]);
        Self {
            bucket: Bucket::of(S3::s3s()),
            captured,
            before: sensor.captured().pop_first().expect("a file"),
            sensor,
        }
    }

    /// Ships while this is done to the file.
    fn ship(&self, harm: impl FnOnce(&Path) + Send + 'static) -> Done {
        let mut files = fs::read_dir(self.sensor.at("out"))
            .expect("lists")
            .flatten();
        let path = files.next().expect("a file").path();
        let mut harm = Some(harm);
        self.bucket.proxy.decide(move |it| {
            let is_second = it.target.contains("partNumber=2&");
            if let Some(harm) = harm.take_if(|_| is_second) {
                harm(&path);
            }
            Fate::Pass
        });
        // One part after the other: the third one is read when this is done.
        ship_to(&self.bucket, &self.sensor, &["--set", "ship.concurrency=1"]).run()
    }

    /// That it has waited, and is sent as it is now.
    fn assert_sent_anew(&self) {
        let objects = objects_of(&self.bucket, &self.sensor);
        let is_of_file = |it: &&String| it.starts_with("packets/") || it.starts_with("blocks/");
        assert_eq!(objects.keys().find(is_of_file), None);
        self.bucket.proxy.decide(|_| Fate::Pass);
        let done = ship_to(&self.bucket, &self.sensor, &[]).run().expect(0);
        let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let ledger = ["captured", "shipped"].map(|it| number(&status["ledger"][it]));
        assert!(
            ledger[0] == ledger[1] && ledger[0] != self.captured,
            "{status}"
        );
        assert_eq!(
            (&status["changed_files"], &status["pending_files"]),
            (&1.into(), &0.into())
        );
        assert_whole(&objects_of(&self.bucket, &self.sensor), &self.sensor);
        assert_eq!(self.bucket.s3.uploads(), 0);
    }
}

#[test]
fn a_file_that_grows_while_it_is_sent_waits_and_is_sent_anew() {
    let dir = Dir::new();
    let harmed = Harmed::new(&dir, "grown");
    // A frame like the first.
    let record = harmed.before.1[24..24 + 16 + 1000].to_vec();
    let done = harmed.ship(move |path| {
        let file = File::options().append(true).open(path);
        file.and_then(|mut it| it.write_all(&record))
            .expect("an own file");
    });
    done.expect(1)
        .says(&["wqcap-q00-", "changes while it is sent"]);
    harmed.assert_sent_anew();
}

#[test]
fn a_file_that_is_cut_while_it_is_sent_waits_and_is_sent_anew() {
    let dir = Dir::new();
    let harmed = Harmed::new(&dir, "cut");
    let done = harmed.ship(|path| {
        let file = File::options().write(true).open(path);
        // In the middle of a frame.
        file.and_then(|it| it.set_len(6_000_000))
            .expect("an own file");
    });
    done.expect(1)
        .says(&["wqcap-q00-", "became shorter while it is sent"]);
    harmed.assert_sent_anew();
}

#[test]
fn of_a_file_that_is_deleted_while_it_is_sent_all_is_sent() {
    let dir = Dir::new();
    let harmed = Harmed::new(&dir, "deleted");
    let done = harmed
        .ship(|path| fs::remove_file(path).expect("there"))
        .expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, harmed.captured, "shipped");
    let objects = objects_of(&harmed.bucket, &harmed.sensor);
    let (name, bytes) = &harmed.before;
    let found = objects
        .iter()
        .find(|(key, _)| key.starts_with("packets/") && key.ends_with(name));
    assert!(
        found.is_some_and(|it| it.1 == bytes),
        "{:?}",
        objects.keys()
    );
    assert!(
        objects
            .keys()
            .any(|it| it.starts_with("blocks/") && it.contains(name))
    );
    assert_eq!(harmed.bucket.s3.uploads(), 0);
    // It is known to be there.
    harmed.bucket.proxy.decide(|_| Fate::Pass);
    let done = ship_to(&harmed.bucket, &harmed.sensor, &[]).run().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, harmed.captured, "shipped");
    assert_eq!(status["objects"], 0);
}
