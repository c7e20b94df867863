//! Tests of `wqcap ship` with buckets that throttle, reset connections, damage data or refuse
//! requests, and of a kill during each request.

use super::{PART, Sensor, assert_ledger, assert_shipped, assert_whole, objects_of, ship_to};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use wqcap_tests::{
    Dir, Program, files,
    machine::{
        bucket::Bucket,
        proxy::{Fate, Request, once},
    },
    need,
    oracles::s3::{BUCKET, S3},
    wqcap::wqcap,
};

#[test]
fn a_bucket_that_throttles_and_resets_connections_gets_all_files() {
    let bucket = Bucket::new(need!(S3::moto()));
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "throttled");
    let captured = sensor.capture(12_000, 1, &[]);
    let mut reset = false;
    let disturbed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&disturbed);
    let mut fate = move |it: &Request| {
        if it.target.contains("partNumber=2") && !std::mem::replace(&mut reset, true) {
            return Fate::Reset;
        }
        // Amazon's servers throttle with 503, others with 429.
        match it.number % 6 {
            0 => Fate::Answer(503, "<Error><Code>SlowDown</Code></Error>"),
            3 => Fate::Answer(429, "<Error><Code>TooManyRequests</Code></Error>"),
            _ => Fate::Pass,
        }
    };
    bucket.proxy.decide(move |it| {
        let fate = fate(it);
        count.fetch_add(usize::from(fate != Fate::Pass), Ordering::SeqCst);
        fate
    });
    let done = ship_to(&bucket, &sensor, &[]).run().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&objects_of(&bucket, &sensor), &sensor);
    let disturbed = disturbed.load(Ordering::SeqCst);
    assert!(disturbed > 3, "{disturbed} requests were disturbed");
    assert_eq!(status["retries"], disturbed);
    let requests = bucket.proxy.requests();
    let parts = requests
        .iter()
        .filter(|it| it.target.contains("partNumber"));
    assert!(parts.count() > 3, "{requests:?}");
    assert_eq!(bucket.s3.uploads(), 0);
    // Every object has its SHA-256, whether it was sent in parts or in one request.
    let objects = bucket.s3.digests("throttled/");
    assert!(objects.len() > 3, "{}", objects.len());
    for (n, (bytes, digest)) in objects.iter().enumerate() {
        let file = dir.join(format!("object-{n}"));
        fs::write(&file, bytes).expect("the file can be written");
        let done = Program::new("sha256sum").arg(&file).run().expect(0);
        assert!(done.stdout.starts_with(digest), "{digest}: {}", done.stdout);
    }
}

#[test]
fn data_damaged_in_transit_is_refused_and_sent_again() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "damaged");
    let captured = sensor.capture(12_000, 1, &[]);
    bucket.proxy.decide(once(1, &[Fate::Damage]));
    let requests = assert_shipped(&bucket, &sensor, captured);
    for part in 1..=3 {
        let part = format!("partNumber={part}&");
        let sent = requests.iter().filter(|it| it.target.contains(&part));
        assert_eq!(sent.count(), 2, "{part}: {requests:?}");
    }
    assert_eq!(bucket.s3.uploads(), 0);

    // Amazon's servers answer 400, which ends the pass. The next pass sends the part again.
    let other = Sensor::new(&dir, "mismatch");
    let captured = other.capture(12_000, 1, &[]);
    let refusal = "<Error><Code>XAmzContentSHA256Mismatch</Code></Error>";
    bucket
        .proxy
        .decide(move |it| match it.target.contains("partNumber=2&") {
            true => Fate::Answer(400, refusal),
            false => Fate::Pass,
        });
    let done = ship_to(&bucket, &other, &[]).run().expect(1);
    done.says(&["XAmzContentSHA256Mismatch"]);
    bucket.proxy.decide(|_| Fate::Pass);
    assert_shipped(&bucket, &other, captured);
}

#[test]
fn wrong_credentials_are_reported_and_not_retried() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "refused");
    let captured = sensor.capture(100, 1, &[]);
    let ship = ship_to(&bucket, &sensor, &[]);
    let done = ship.env("AWS_SECRET_ACCESS_KEY", "wrong").run().expect(1);
    done.says(&["SignatureDoesNotMatch"]);
    // The refusal of the status object does not end the pass; that of each file's object does.
    let requests = bucket.proxy.requests().into_iter();
    let of_files = requests.filter(|it| !it.target.contains("/status/"));
    let mut targets: Vec<_> = of_files.map(|it| it.target).collect();
    let count = targets.len();
    targets.sort();
    targets.dedup();
    assert!(
        (1..=3).contains(&count) && targets.len() == count,
        "{targets:?}"
    );
    assert_shipped(&bucket, &sensor, captured);
}

#[test]
fn a_google_bucket_can_be_filled_and_read() {
    let bucket = Bucket::new(need!(S3::moto()));
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "google");
    let captured = sensor.capture(12_000, 1, &[]);
    let url = format!("gs://{BUCKET}/{}", sensor.name);
    let done = bucket.reached_as_google(sensor.ship(&url, &["--once", "--json"]));
    let done = done.run().expect(0);
    let status = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&objects_of(&bucket, &sensor), &sensor);
    assert_eq!(bucket.s3.uploads(), 0);
    let seen = bucket.reached_as_google(wqcap(["fleet", &url]));
    let seen = seen.run().expect(0);
    assert!(seen.stdout.contains(&sensor.name), "{seen}");
    let found = dir.join("found.pcapng");
    let extract = wqcap(["extract", &url, "-o"]).arg(&found);
    bucket.reached_as_google(extract).run().expect(0);
    assert_eq!(files::read(&found).len() as u64, captured);
}

#[test]
fn a_kill_before_any_request_arrives_is_recovered_by_the_next_pass() {
    assert_killed_at_each_request(Fate::Hold);
}

#[test]
fn a_kill_before_any_answer_arrives_is_recovered_by_the_next_pass() {
    assert_killed_at_each_request(Fate::Swallow);
}

/// Kills `wqcap ship` at each of its requests in turn, while that request meets `fate`, and asserts
/// that the next pass ships all files.
#[track_caller]
fn assert_killed_at_each_request(fate: Fate) {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let whole = Sensor::new(&dir, "whole");
    let captured = whole.capture(12_000, 1, &[]);
    let all = assert_shipped(&bucket, &whole, captured).len();
    assert!(all > 8, "{all} requests");
    let mut lost_uploads = 0;
    for at in 0..all {
        // Another sensor ships the same files through symbolic links.
        let sensor = Sensor::new(&dir, &format!("killed-{at}"));
        for folder in ["out", "index", "flows"] {
            fs::remove_dir(sensor.at(folder)).expect("the folder is empty");
            std::os::unix::fs::symlink(whole.at(folder), sensor.at(folder))
                .expect("the folder can be linked");
        }
        bucket.proxy.decide(move |it| match it.number == at {
            true => fate,
            false => Fate::Pass,
        });
        let mut killed = ship_to(&bucket, &sensor, &["--set", "ship.concurrency=1"]).start();
        killed.until("a request without an answer", |_| bucket.proxy.held() > 0);
        killed.signal(Signal::KILL);
        assert_eq!(killed.wait().signal(), Some(9));
        let last = bucket.proxy.requests().pop().expect("at least one request");
        lost_uploads += usize::from(fate == Fate::Swallow && last.target.contains("?uploads"));
        bucket.proxy.decide(|_| Fate::Pass);
        assert_shipped(&bucket, &sensor, captured);
    }
    // An upload whose id never arrived cannot be aborted; a bucket's lifecycle rule removes it.
    let expected = usize::from(fate == Fate::Swallow);
    assert_eq!((lost_uploads, bucket.s3.uploads()), (expected, expected));
}

/// Returns an answer to `HEAD` with this length and this ETag.
fn head(bytes: u64, etag: &str) -> Fate {
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\nETag: {etag}\r\nLast-Modified: Sun, 01 Nov 2026 00:00:00 GMT\r\n\
         Connection: close\r\n\r\n"
    );
    Fate::Say(answer.leak())
}

#[test]
fn an_object_whose_length_or_etag_differs_is_not_verified() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    for (name, says) in [
        ("length", "the object has 7 bytes in the store instead of "),
        ("etag", "the object has ETag other"),
    ] {
        let sensor = Sensor::new(&dir, name);
        let captured = sensor.capture(6000, 1, &[]);
        let len = sensor
            .captured()
            .into_values()
            .next()
            .expect("a file")
            .len() as u64;
        assert!(len > PART, "{len}");
        let wrong = match name {
            "length" => head(7, "\"any\""),
            _ => head(len, "\"other\""),
        };
        let is_of_packets = |it: &Request| it.method == "HEAD" && it.target.contains("/packets/");
        bucket.proxy.decide(move |it| match is_of_packets(it) {
            true => wrong,
            false => Fate::Pass,
        });
        ship_to(&bucket, &sensor, &[]).run().expect(1).says(&[says]);
        // The object has no block table, so no query finds it.
        let objects = objects_of(&bucket, &sensor);
        assert!(
            objects.keys().all(|it| !it.starts_with("blocks/")),
            "{:?}",
            objects.keys()
        );
        // Only the first answer is wrong.
        let mut answers = 0;
        bucket.proxy.decide(move |it| {
            answers += usize::from(is_of_packets(it));
            match is_of_packets(it) && answers == 1 {
                true => wrong,
                false => Fate::Pass,
            }
        });
        let requests = assert_shipped(&bucket, &sensor, captured);
        let targets = requests
            .iter()
            .filter(|it| it.target.contains("/blocks/") || is_of_packets(it));
        let methods: Vec<_> = targets.map(|it| it.method.as_str()).collect();
        assert_eq!(methods, ["HEAD", "HEAD", "PUT", "HEAD"], "{requests:?}");
        assert_eq!(bucket.s3.uploads(), 0);
    }
}

#[test]
fn an_upload_of_which_the_store_lost_a_part_begins_again() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "part");
    let captured = sensor.capture(12_000, 1, &[]);
    let mut refused = 0;
    bucket.proxy.decide(move |it| {
        let completes = it.method == "POST" && it.target.contains("uploadId=");
        refused += usize::from(completes);
        match completes && refused == 1 {
            true => Fate::Answer(400, "<Error><Code>InvalidPart</Code></Error>"),
            false => Fate::Pass,
        }
    });
    let requests = assert_shipped(&bucket, &sensor, captured);
    let begun = |it: &&Request| it.method == "POST" && it.target.contains("?uploads");
    assert_eq!(requests.iter().filter(begun).count(), 2, "{requests:?}");
    assert_eq!(bucket.s3.uploads(), 0);
}

#[test]
fn a_table_that_the_store_confirmed_and_lost_is_sent_again() {
    let bucket = Bucket::new(S3::s3s());
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "table");
    let captured = sensor.capture(6000, 1, &[]);
    bucket.proxy.decide(
        |it| match it.method == "HEAD" && it.target.contains("/blocks/") {
            true => Fate::Answer(404, ""),
            false => Fate::Pass,
        },
    );
    ship_to(&bucket, &sensor, &[]).run().expect(1);
    bucket.proxy.decide(|_| Fate::Pass);
    let requests = assert_shipped(&bucket, &sensor, captured);
    let put = |it: &&Request| it.method == "PUT" && it.target.contains("/blocks/");
    assert_eq!(requests.iter().filter(put).count(), 1, "{requests:?}");
}
