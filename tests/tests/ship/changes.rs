//! Tests of `wqcap ship` on files that grow, shrink or disappear during the upload.

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

/// Sensor with one file of three parts, which is changed while its second part is sent.
struct ChangingFile<'d> {
    bucket: Bucket,
    sensor: Sensor<'d>,
    /// Number of frames in the file before the change.
    captured: u64,
    /// End of the object key and content of the file before the change.
    before: (String, Vec<u8>),
}

impl<'d> ChangingFile<'d> {
    fn new(dir: &'d Dir, name: &str) -> Self {
        let sensor = Sensor::new(dir, name);
        let captured = sensor.capture(12_000, 1, &[]);
        Self {
            bucket: Bucket::new(S3::s3s()),
            captured,
            before: sensor.captured().pop_first().expect("a file"),
            sensor,
        }
    }

    /// Ships, and calls `change` with the path of the file when the second part arrives.
    fn ship(&self, change: impl FnOnce(&Path) + Send + 'static) -> Done {
        let mut files = fs::read_dir(self.sensor.at("out"))
            .expect("the folder can be listed")
            .flatten();
        let path = files.next().expect("a file").path();
        let mut change = Some(change);
        self.bucket.proxy.decide(move |it| {
            let is_second = it.target.contains("partNumber=2&");
            if let Some(change) = change.take_if(|_| is_second) {
                change(&path);
            }
            Fate::Pass
        });
        // Parts are sent one at a time, so the third part is read after the change.
        ship_to(&self.bucket, &self.sensor, &["--set", "ship.concurrency=1"]).run()
    }

    /// Asserts that the file was not sent, and that the next pass sends it with its new content and
    /// ends with `status`.
    fn assert_sent_in_the_next_pass(&self, status: i32) -> Done {
        let objects = objects_of(&self.bucket, &self.sensor);
        let is_of_file = |it: &&String| it.starts_with("packets/") || it.starts_with("blocks/");
        assert_eq!(objects.keys().find(is_of_file), None);
        self.bucket.proxy.decide(|_| Fate::Pass);
        let next = ship_to(&self.bucket, &self.sensor, &[]);
        let done = next.run().expect(status);
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
        done
    }
}

#[test]
fn a_file_that_grows_during_the_upload_is_sent_in_the_next_pass() {
    let dir = Dir::new();
    let file = ChangingFile::new(&dir, "grown");
    // Append a copy of the first frame.
    let record = file.before.1[24..24 + 16 + 1000].to_vec();
    let done = file.ship(move |path| {
        let opened = File::options().append(true).open(path);
        opened
            .and_then(|mut it| it.write_all(&record))
            .expect("the file can be written");
    });
    done.expect(1)
        .says(&["wqcap-q00-", "was changed while it was sent"]);
    file.assert_sent_in_the_next_pass(0);
}

#[test]
fn a_file_that_shrinks_during_the_upload_is_sent_in_the_next_pass() {
    let dir = Dir::new();
    let file = ChangingFile::new(&dir, "cut");
    let done = file.ship(|path| {
        let opened = File::options().write(true).open(path);
        // This length cuts a frame.
        opened
            .and_then(|it| it.set_len(6_000_000))
            .expect("the file can be written");
    });
    done.expect(1)
        .says(&["wqcap-q00-", "became shorter while it was sent"]);
    // It is sent as it is, and named: its last record is torn.
    file.assert_sent_in_the_next_pass(1)
        .says(&["wqcap-q00-", "the last record is torn"]);
}

#[test]
fn a_file_that_is_deleted_during_the_upload_is_sent_completely() {
    let dir = Dir::new();
    let file = ChangingFile::new(&dir, "deleted");
    let done = file
        .ship(|path| fs::remove_file(path).expect("the file exists"))
        .expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, file.captured, "shipped");
    let objects = objects_of(&file.bucket, &file.sensor);
    let (name, bytes) = &file.before;
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
    assert_eq!(file.bucket.s3.uploads(), 0);
    // The next pass finds the file in the journal as shipped.
    file.bucket.proxy.decide(|_| Fate::Pass);
    let done = ship_to(&file.bucket, &file.sensor, &[]).run().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, file.captured, "shipped");
    assert_eq!(status["objects"], 0);
}
