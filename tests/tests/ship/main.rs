//! Tests of `wqcap ship`, which stores each finished file of a capture exactly once in spite of
//! failures, and of `wqcap fleet`, which checks that.

mod buckets;
mod changes;
mod hostile;
mod outages;
mod packets_back;
mod twins;

use rustix::process::Signal;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Done, Program, Running, Summary, Wqcap, files, frames,
    ledger::number,
    machine::{bucket::Bucket, dir::tree, proxy::Request},
    need,
    oracles::{duckdb::Duckdb, s3::BUCKET},
    wqcap::wqcap,
};

/// Size of an upload part in bytes: the minimum that stores accept.
const PART: u64 = 5 << 20;

/// Sensor: the folders of a capture, and the commands that capture into them and ship them.
struct Sensor<'d> {
    dir: &'d Dir,
    name: String,
}

impl<'d> Sensor<'d> {
    fn new(dir: &'d Dir, name: &str) -> Self {
        let it = Self {
            dir,
            name: name.to_owned(),
        };
        for folder in ["out", "index", "flows"] {
            dir.folder(&it.named(folder));
        }
        it
    }

    /// Returns the object key of the sensor's status.
    fn status_key(&self) -> String {
        format!("status/sensor={}.json", self.name)
    }

    /// Returns the file name of the sensor's folder `what`.
    fn named(&self, what: &str) -> String {
        format!("{}.{what}", self.name)
    }

    /// Returns the path of the sensor's folder `what`.
    fn at(&self, what: &str) -> PathBuf {
        self.dir.join(self.named(what))
    }

    /// Captures `frames` frames of 1000 bytes through `queues` queues, and returns the number of
    /// captured frames.
    fn capture(&self, frames: u64, queues: usize, more: &[&str]) -> u64 {
        let finished = self.run(frames, queues, more).finish(0);
        finished.summary.ledger.total.captured
    }

    /// Returns a run on a wire of `frames` frames of 1000 bytes, into the folders of the sensor.
    fn run(&self, frames: u64, queues: usize, more: &[&str]) -> Wqcap<'_> {
        let wire = format!("synth:size=1000,flows=64,count={frames}");
        Wqcap::run(self.dir, &self.name)
            .model(&wire)
            .queues(queues)
            .out(&self.at("out"))
            .set(&format!("output.index_dir={}", self.at("index").display()))
            .set(&format!("flows.dir={}", self.at("flows").display()))
            .sets(more)
    }

    /// Returns a `wqcap ship` of the sensor into `store`.
    fn ship(&self, store: &str, more: &[&str]) -> Program {
        wqcap(["ship"]).args(self.ship_settings(store)).args(more)
    }

    /// Returns the arguments that configure `wqcap ship` to ship the sensor's files into `store`.
    fn ship_settings(&self, store: &str) -> Vec<String> {
        let sets = [
            ("output.dir", self.at("out").display().to_string()),
            ("output.index_dir", self.at("index").display().to_string()),
            ("flows.dir", self.at("flows").display().to_string()),
            ("ship.journal", self.at("journal").display().to_string()),
            ("ship.sensor", self.name.clone()),
            ("ship.store", store.to_owned()),
            ("ship.part_size", PART.to_string()),
        ];
        let sets = sets.map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        sets.concat()
    }

    /// Ships all finished files with `--once`, and returns the status that is printed as JSON.
    #[track_caller]
    fn ship_once(&self, store: &str, more: &[&str]) -> Value {
        let done = self.ship(store, &[&["--once", "--json"], more].concat());
        let done = done.run().expect(0);
        serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
    }

    /// Returns the journal's record of the sensor's only capture file, if there is one.
    fn record(&self) -> Option<Value> {
        let folder = self.at("journal").join("packets");
        let mut entries = fs::read_dir(folder).ok()?.flatten();
        // A record has a hidden name until it is written completely.
        let record = entries.find(|it| {
            let name = it.file_name().into_string().unwrap_or_default();
            name.starts_with("wqcap-") && name.ends_with(".json")
        })?;
        serde_json::from_slice(&fs::read(record.path()).ok()?).ok()
    }

    /// Returns the contents of the captured files by the name at the end of their object key.
    fn captured(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(self.at("out"))
            .expect("the folder can be listed")
            .flatten();
        let named = entries.map(|it| {
            let name = it.file_name().into_string().expect("the name is UTF-8");
            let (queue, rest) = name["wqcap-".len()..]
                .split_once('-')
                .expect("a capture file name");
            let (start, ending) = rest.split_once('.').expect("a capture file name");
            let object = format!("{start}-{queue}.{ending}");
            (object, fs::read(it.path()).expect("the file can be read"))
        });
        named.collect()
    }
}

/// Creates a folder that serves as a store, and returns its path and its URL.
fn store(dir: &Dir) -> (PathBuf, String) {
    let store = dir.folder("store");
    let url = format!("file://{}", store.display());
    (store, url)
}

/// Asserts that `objects` are the captured files of the sensor with their block tables, its status
/// and its records of flows and names, and nothing else.
#[track_caller]
fn assert_whole(objects: &BTreeMap<String, Vec<u8>>, sensor: &Sensor<'_>) {
    let captured = sensor.captured();
    let place = format!("/sensor={}/", sensor.name);
    let mut packets = 0;
    let others = objects.iter();
    for (key, bytes) in others.filter(|(key, _)| **key != sensor.status_key()) {
        let (partition, name) = key.split_once(&place).unwrap_or_else(|| panic!("{key}"));
        let folders: Vec<_> = partition.split('/').collect();
        let [kind, day, hour] = folders[..] else {
            panic!("{key}")
        };
        assert!(
            day.starts_with("dt=20") && hour.starts_with("hour="),
            "{key}"
        );
        match kind {
            "packets" => {
                assert!(captured.get(name) == Some(bytes), "{key}");
                packets += 1;
            }
            "blocks" => {
                let of = name
                    .strip_suffix(".parquet")
                    .expect("a name that ends in .parquet");
                assert!(captured.contains_key(of), "{key}");
            }
            "flows" | "dns" | "dhcp" => assert!(bytes.starts_with(b"PAR1"), "{key}"),
            _ => panic!("{key}"),
        }
    }
    let blocks = objects.keys().filter(|it| it.starts_with("blocks/"));
    assert_eq!((packets, blocks.count()), (captured.len(), captured.len()));
}

/// Asserts that the ledger counts all `captured` frames in `line`, and 0 frames in the other lines.
#[track_caller]
fn assert_ledger(status: &Value, captured: u64, line: &str) {
    let ledger = status["ledger"].as_object().expect("a ledger");
    for (name, frames) in ledger {
        let expected = match name.as_str() {
            "captured" => captured,
            name if name == line => captured,
            _ => 0,
        };
        assert_eq!(number(frames), expected, "{name}: {status}");
    }
}

#[test]
fn finished_files_are_shipped_and_can_be_found_in_the_store() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    let captured = sensor.capture(20_000, 2, &["output.rotate_size=3MB"]);
    let planned = sensor.ship(&url, &["--dry-run"]).run().expect(0);
    assert!(tree(&folder).is_empty() && !sensor.at("journal").exists());

    let status = sensor.ship_once(&url, &[]);
    assert_ledger(&status, captured, "shipped");
    assert_eq!(status["pending_files"], 0);
    let objects = tree(&folder);
    assert_whole(&objects, &sensor);
    assert!(sensor.captured().len() >= 6, "{:?}", objects.keys());
    for key in objects.keys().filter(|it| **it != sensor.status_key()) {
        assert!(planned.stdout.contains(key), "{key}: {planned}");
    }
    let again = sensor.ship_once(&url, &[]);
    assert_ledger(&again, captured, "shipped");
    assert_eq!(again["objects"], 0);

    // The sums over both tables match the ledger; partitions are read as columns.
    let table = |what: &str| {
        let files = folder.join(what).join("*/*/*/*.parquet");
        format!(
            "read_parquet('{}', hive_partitioning = true)",
            files.display()
        )
    };
    let (blocks, flows) = (table("blocks"), table("flows"));
    let sums = duckdb.query(&format!(
        "SELECT (SELECT sum(frames)::BIGINT FROM {blocks} WHERE sensor = 'tap-1'),
            (SELECT sum(frames_fwd + frames_rev)::BIGINT FROM {flows} WHERE sensor = 'tap-1')"
    ));
    assert_eq!(
        sums[0].iter().map(number).collect::<Vec<_>>(),
        [captured; 2]
    );
    // Every flow has a block that covers its time.
    let found = duckdb.query(&format!(
        "SELECT count(*) FROM {flows} f WHERE NOT EXISTS (SELECT 1 FROM {blocks} b WHERE b.sensor = f.sensor
            AND b.queue = f.queue AND b.last_ns >= f.first_fwd_ns AND b.first_ns <= greatest(f.last_fwd_ns, f.last_rev_ns))"
    ));
    assert_eq!(number(&found[0][0]), 0, "number of flows without a block");
    // Each block, appended to the header of its object, is a valid capture file.
    let rows = duckdb.query(&format!(
        "SELECT object, object_bytes, head_bytes, byte_start, byte_end, first_ns, last_ns, frames FROM {blocks}"
    ));
    for row in rows {
        let object = &objects[row[0].as_str().expect("a key")];
        let numbers: Vec<_> = row[1..].iter().map(number).collect();
        let [len, head, start, end, first, last, frames] = numbers[..] else {
            panic!("{row:?}")
        };
        assert_eq!(len, object.len() as u64);
        let part = |from: u64, to: u64| {
            let [from, to] =
                [from, to].map(|it| usize::try_from(it).expect("the number fits usize"));
            object[from..to].to_vec()
        };
        let path = dir.write("part.pcap", [part(0, head), part(start, end)].concat());
        let records = files::read(&path);
        assert_eq!(records.len() as u64, frames);
        let stamps = records.iter().map(|it| it.ts);
        assert_eq!(stamps.clone().min(), Some(first));
        assert_eq!(stamps.max(), Some(last));
    }
}

/// Writes a key for anonymization. Returns its path, and the setting that names it.
fn anonymize_key(dir: &Dir) -> (PathBuf, String) {
    let key = dir.write("key", [7; 32]);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("the file can be written");
    let set = format!("anonymize.key={}", key.display());
    (key, set)
}

#[test]
fn anonymized_objects_equal_the_output_of_extract() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    let captured = sensor.capture(
        20_000,
        2,
        &["output.rotate_size=6MB", "output.compress=zstd"],
    );
    let (key, set) = anonymize_key(&dir);
    let status = sensor.ship_once(&url, &["--set", &set]);
    assert_ledger(&status, captured, "shipped");
    let copies = sensor.at("journal").join("copies");
    assert_eq!(
        fs::read_dir(copies)
            .expect("the folder can be listed")
            .count(),
        0
    );
    let objects = tree(&folder);
    let files = sensor.captured();
    assert!(files.len() >= 4, "{:?}", files.keys());
    for name in files.keys() {
        // The object equals the output of `extract --anonymize` on the file, byte for byte.
        let (start, queue) = name.split_once('-').expect("a capture file name");
        let (queue, _) = queue.split_once('.').expect("a capture file name");
        let alone = dir.folder(name);
        let file = format!("wqcap-{queue}-{start}.pcap.zst");
        fs::copy(sensor.at("out").join(&file), alone.join(&file)).expect("the file can be written");
        let out = dir.join("out.pcap");
        let extract = wqcap(["extract"]).arg(&alone).arg("-o").arg(&out);
        extract.arg("--anonymize").arg(&key).run().expect(0);
        let object = format!("/{start}-{queue}.pcap");
        let found: Vec<_> = objects
            .iter()
            .filter(|(key, _)| key.ends_with(&object))
            .collect();
        assert_eq!(found.len(), 1, "{object}: {:?}", objects.keys());
        assert!(
            *found[0].1 == fs::read(&out).expect("the file can be read"),
            "{object}"
        );
    }
    // There is one block table per file, the status of the sensor, and nothing else.
    let of = |kind: &str| objects.keys().filter(|it| it.starts_with(kind)).count();
    assert_eq!((of("packets/"), of("blocks/")), (files.len(), files.len()));
    assert_eq!(objects.len(), 2 * files.len() + 1);
    assert_eq!(sensor.ship_once(&url, &["--set", &set])["objects"], 0);
}

#[test]
fn an_anonymized_file_is_sent_up_to_its_torn_record() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    let captured = sensor.capture(100, 1, &[]);
    let [name] = &sensor.captured().into_keys().collect::<Vec<_>>()[..] else {
        panic!("several files")
    };
    let (start, _) = name.split_once('-').expect("a capture file name");
    let path = sensor.at("out").join(format!("wqcap-q00-{start}.pcap"));
    let file = fs::File::options().write(true).open(&path).expect("there");
    let len = file.metadata().expect("there").len();
    file.set_len(len - 50).expect("cut");
    let (_, set) = anonymize_key(&dir);
    let done = sensor.ship(&url, &["--once", "--json", "--set", &set]);
    let done = done.run().expect(1);
    done.says(&["the last record is torn"]);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured - 1, "shipped");
    assert!(tree(&folder).keys().any(|it| it.starts_with("packets/")));
}

#[test]
fn without_packets_the_block_tables_are_shipped() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "thin");
    let captured = sensor.capture(2000, 2, &[]);
    let status = sensor.ship_once(&url, &["--set", "ship.packets=none"]);
    assert_ledger(&status, captured, "not_selected");
    let objects = tree(&folder);
    assert!(objects.keys().all(|it| !it.starts_with("packets/")));
    assert!(objects.keys().any(|it| it.starts_with("blocks/")));
    let status = sensor.ship_once(&url, &[]);
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(&folder), &sensor);
}

#[test]
fn a_filter_selects_files_by_their_frames() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "filtered");
    // Each file has the frame of one host.
    let some = frames::udp_flows(16, 100);
    for host in 0..3 {
        let name = format!("wqcap-q00-{}000000000.pcap", 1_700_000_000 + host);
        let path = sensor.at("out").join(name);
        let at = usize::try_from(host).expect("the number fits usize");
        files::write(&path, 1_700_000_000 + host, &some[at..][..1]);
    }
    let packets = ["--set", "ship.packets=host 10.0.0.2"];
    let status = sensor.ship_once(&url, &packets);
    let ledger = ["captured", "shipped", "not_selected"].map(|it| number(&status["ledger"][it]));
    assert_eq!(ledger, [3, 1, 2], "{status}");
    let objects = tree(&folder);
    let of = |kind: &str| objects.keys().filter(|it| it.starts_with(kind)).count();
    assert_eq!((of("packets/"), of("blocks/")), (1, 3));
    assert_eq!(sensor.ship_once(&url, &packets)["objects"], 0);
}

/// Returns the peak resident memory of a process in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is running");
    let line = status.lines().find_map(|it| it.strip_prefix("VmHWM:"));
    let kib = line.and_then(|it| it.trim().strip_suffix(" kB"));
    kib.and_then(|it| it.parse::<u64>().ok()).expect("a number") << 10
}

#[test]
fn parts_sent_before_a_kill_are_not_sent_again() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "killed");
    let captured = sensor.capture(20_000, 1, &[]);
    // The limit delays the second part by a minute, so the journal has the first one by then.
    let slowly = ["--once", "--set", "ship.bandwidth=80KiB"];
    let mut killed = sensor.ship(&url, &slowly).start();
    killed.until("a part is sent", |_| {
        let parts = sensor.record().map(|it| it["state"]["parts"].clone());
        parts.is_some_and(|it| it[0].is_string() && it[3].is_null())
    });
    // The parts in flight, and 64 MiB for the rest of the process.
    let most = 4 * PART + (64 << 20);
    let peak = peak_memory(killed.pid());
    assert!(
        peak <= most,
        "peak memory of {peak} bytes, at most {most} expected"
    );
    killed.signal(Signal::KILL);
    assert_eq!(killed.wait().signal(), Some(9));
    let packets = |it: &String| it.starts_with("packets/") && it.ends_with(".pcap");
    assert!(
        !tree(&folder).keys().any(packets),
        "an incomplete object is not visible"
    );
    let status = sensor.ship_once(&url, &[]);
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(&folder), &sensor);
    let all = bytes_of_files(&folder);
    assert!(number(&status["bytes"]) + PART <= all, "{status}");
}

/// Prometheus metrics of a running `wqcap ship`.
struct Metrics {
    endpoint: String,
}

impl Metrics {
    /// Reads the address of the metrics from the log of a process with `ship.metrics`.
    #[track_caller]
    fn from_log(shipping: &Running) -> Self {
        let log = shipping.stderr();
        let from_address = log.split("metrics at ").nth(1);
        let endpoint = from_address.and_then(|it| it.lines().next());
        let endpoint = endpoint.expect("the address of the metrics in the log");
        Self {
            endpoint: endpoint.to_owned(),
        }
    }

    /// Returns the current value of the sample `name`.
    #[track_caller]
    fn sample(&self, name: &str) -> f64 {
        let scrape = Program::new("curl").args(["-sS", &self.endpoint]).run();
        let mut samples = scrape.stdout.lines();
        let sample = samples.find_map(|it| it.strip_prefix(name)?.strip_prefix(' '));
        let value = sample.unwrap_or_else(|| panic!("{name} is not in {scrape}"));
        value.parse().expect("a number")
    }
}

#[test]
fn ship_follows_a_capture_until_a_signal() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "followed");
    let metrics = ["--json", "--set", "ship.metrics=127.0.0.1:0"];
    let mut shipping = sensor.ship(&url, &metrics).start();
    let captured = sensor.capture(5000, 2, &["output.rotate_size=1MB"]);
    let tables = |what: &str| {
        let objects = tree(&folder);
        objects.keys().filter(|it| it.starts_with(what)).count()
    };
    let files = sensor.captured().len();
    shipping.until("all files are shipped", |_| {
        tables("blocks/") == files && tables("flows/") > 0
    });
    let metrics = Metrics::from_log(&shipping);
    let shipped = "wqcap_ship_frames{sensor=\"followed\",line=\"shipped\"}";
    shipping.until(shipped, |_| metrics.sample(shipped) == captured as f64);
    shipping.signal(Signal::TERM);
    let done = shipping.wait().expect(0);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(&folder), &sensor);
}

/// Returns the number of bytes of the objects of capture files in a store: packets and blocks.
fn bytes_of_files(folder: &Path) -> u64 {
    let objects = tree(folder);
    let is_of_file = |key: &str| key.starts_with("packets/") || key.starts_with("blocks/");
    let all = objects.iter().filter(|(key, _)| is_of_file(key));
    all.map(|(_, bytes)| bytes.len() as u64).sum()
}

#[test]
fn a_reload_changes_the_limits_of_shipping() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "reloaded");
    let captured = sensor.capture(20_000, 1, &[]);
    // At this limit the second part waits for a minute.
    let config = dir.write("ship.toml", "[ship]\nbandwidth = \"80KiB\"\n");
    let config = config.to_str().expect("UTF-8");
    let mut shipping = sensor.ship(&url, &["--json", "-c", config]).start();
    shipping.until("a part is sent", |_| {
        let parts = sensor.record().map(|it| it["state"]["parts"].clone());
        parts.is_some_and(|it| it[0].is_string())
    });
    let reloads = |run: &Running| run.stderr().matches("what=\"SIGHUP: reload\"").count();
    let fixed = "[ship]\nmetrics = \"127.0.0.1:1\"\n[capture]\nsample = 2\n";
    dir.write("ship.toml", fixed);
    shipping.signal(Signal::HUP);
    shipping.until("the reload is refused", |run| reloads(run) == 1);
    let said = shipping.stderr();
    assert!(
        said.contains("ship.metrics needs a restart of `wqcap ship`"),
        "{said}"
    );
    dir.write("ship.toml", "[capture]\nsample = 2\n");
    shipping.signal(Signal::HUP);
    shipping.until("the reload is reported", |run| reloads(run) == 2);
    let is_whole = |key: &String| key.starts_with("blocks/");
    shipping.until("the file is sent without a limit", |_| {
        tree(&folder).keys().any(is_whole)
    });
    shipping.signal(Signal::TERM);
    let done = shipping.wait().expect(0);
    done.says(&["ship.bandwidth = null"]);
    let status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&tree(&folder), &sensor);
    // The counts include those before the reload.
    let all = bytes_of_files(&folder);
    assert!(number(&status["bytes"]) >= all, "{status}");
}

#[test]
fn files_not_yet_shipped_are_deleted_last() {
    let dir = Dir::new();
    let (_, url) = store(&dir);
    let sensor = Sensor::new(&dir, "kept");
    sensor.capture(4000, 1, &["output.rotate_size=1MB"]);
    sensor.ship_once(&url, &[]);
    let out = sensor.at("out");
    let shipped: Vec<_> = fs::read_dir(&out)
        .expect("the folder can be listed")
        .flatten()
        .collect();
    assert!(shipped.len() > 3, "{shipped:?}");
    // The oldest file has not been shipped.
    let oldest = out.join("wqcap-q00-5.pcap");
    fs::copy(shipped[0].path(), &oldest).expect("the file can be copied");
    let run = |name: &str, keep: &str| {
        let run = Wqcap::run(&dir, name)
            .model("synth:size=1000,flows=64,count=3000")
            .queues(1)
            .out(&out)
            .set("output.rotate_size=1MB")
            .set(&format!("ship.journal={}", sensor.at("journal").display()))
            .set(&format!("output.keep_files={keep}"));
        let done = run.done().expect(0);
        let summary = fs::read_to_string(run.summary_path()).expect("a summary");
        (
            done,
            Summary::parse(&summary).json["deleted"]["unshipped"].clone(),
        )
    };
    let (done, unshipped) = run("first", "5");
    assert!(oldest.exists(), "{done}");
    assert!(shipped.iter().all(|it| !it.path().exists()), "{done}");
    assert_eq!(unshipped, 0, "{done}");
    // No shipped file is left to delete, and the limit still applies.
    let (done, unshipped) = run("second", "1");
    assert!(!oldest.exists(), "{done}");
    assert!(number(&unshipped) >= 5, "{unshipped}: {done}");
    done.says(&["wqcap-q00-5.pcap before it was shipped", "not shipped yet"]);
}

#[test]
fn files_deleted_before_shipping_are_in_the_ledger() {
    let dir = Dir::new();
    let (_, url) = store(&dir);
    let sensor = Sensor::new(&dir, "unseen");
    let journal = format!("ship.journal={}", sensor.at("journal").display());
    let more = ["output.rotate_size=1MB", "output.keep_files=2", &journal];
    let capture = |more: &[&str]| {
        let run = sensor.run(8000, 2, more);
        run.done().expect(0);
        let summary = fs::read_to_string(run.summary_path()).expect("a summary");
        Summary::parse(&summary).ledger.total.captured
    };
    // The second run deletes files of the first one and counts their frames by their indexes.
    let first = capture(&more);
    let second = capture(&more);
    let status = sensor.ship_once(&url, &[]);
    assert_eq!(status["ledger"]["captured"], first + second, "{status}");
    let expired = number(&status["ledger"]["expired_unshipped"]);
    let shipped = number(&status["ledger"]["shipped"]);
    assert_eq!(expired + shipped, first + second, "{status}");
    assert!(shipped > 0 && expired > first, "{status}");
    assert_eq!(status["expired_uncounted_files"], 0, "{status}");
    // Shipped files are deleted without a loss. The frames of a deleted file without an index are
    // not counted.
    let unindexed = [&more[..], &["output.index_dir="]].concat();
    let third = capture(&unindexed);
    let fourth = capture(&unindexed);
    let status = sensor.ship_once(&url, &[]);
    let uncounted = number(&status["expired_uncounted_files"]);
    assert_eq!(uncounted, 2, "{status}");
    let captured = number(&status["ledger"]["captured"]);
    let all = first + second + third + fourth;
    assert!(captured < all && captured > all - third, "{status}");
    let seen = wqcap(["fleet", &url]).run().expect(1);
    seen.says(&["2 of these files had uncounted frames"]);
}

#[test]
fn impossible_settings_and_unreadable_files_are_reported() {
    let dir = Dir::new();
    let (_, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    sensor.capture(100, 1, &[]);
    for (store, more, says) in [
        ("/srv", "ship.concurrency=4", "ship.store = \"/srv\""),
        (url.as_str(), "ship.sensor=a/b", "not a sensor's name"),
        (url.as_str(), "ship.part_size=1MiB", "5MiB to 1GiB"),
        (url.as_str(), "output.format=none", "writes no files"),
        (
            url.as_str(),
            "output.name=q{queue}",
            "leave output.name out",
        ),
    ] {
        let done = sensor.ship(store, &["--once", "--set", more]).run();
        done.expect(2).says(&[says]);
    }
    // The directory may be mounted later.
    let absent = format!("file://{}", dir.join("absent").display());
    let done = sensor.ship(&absent, &["--once"]).run().expect(1);
    done.says(&["directory must exist"]);
    sensor.ship_once(&url, &[]);
    let other = sensor.ship(&url, &["--once", "--set", "ship.sensor=other"]);
    other.run().expect(2).says(&["ship.journal", "\"tap-1\""]);
    wqcap(["ship"])
        .run()
        .expect(2)
        .says(&["ship.store is not set"]);

    fs::write(sensor.at("out").join("wqcap-q00-7.pcap"), "no capture")
        .expect("the file can be written");
    let done = sensor.ship(&url, &["--once"]).run().expect(1);
    done.says(&["wqcap-q00-7.pcap"]);
}

/// Returns a `wqcap ship --once --json` of a sensor to a bucket.
fn ship_to(bucket: &Bucket, sensor: &Sensor<'_>, more: &[&str]) -> Program {
    let url = format!("s3://{BUCKET}/{}", sensor.name);
    let more = [&["--once", "--json"], more].concat();
    bucket.reached_by(sensor.ship(&url, &more))
}

/// Returns the objects of a sensor in a bucket, by their key.
fn objects_of(bucket: &Bucket, sensor: &Sensor<'_>) -> BTreeMap<String, Vec<u8>> {
    bucket.s3.objects(&format!("{}/", sensor.name))
}

/// Ships a sensor to a bucket, asserts that all frames are shipped, and returns the requests that
/// the proxy has recorded.
#[track_caller]
fn assert_shipped(bucket: &Bucket, sensor: &Sensor<'_>, captured: u64) -> Vec<Request> {
    let done = ship_to(bucket, sensor, &[]).run().expect(0);
    let status = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert_whole(&objects_of(bucket, sensor), sensor);
    bucket.proxy.requests()
}

/// Runs `wqcap fleet URL --json`, asserts its exit status, and returns its JSON and its output.
#[track_caller]
fn fleet(url: &str, more: &[&str], code: i32) -> (Value, Done) {
    let done = wqcap(["fleet", url, "--json"]).args(more).run();
    let done = done.expect(code);
    let fleet = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"));
    (fleet, done)
}

/// Returns the sensors of a fleet report, by name.
fn sensors(fleet: &Value) -> BTreeMap<String, &Value> {
    let sensors = fleet["sensors"].as_array().expect("sensors").iter();
    sensors
        .map(|it| (it["sensor"].as_str().expect("a name").to_owned(), it))
        .collect()
}

#[test]
fn a_fleet_report_sums_up_its_sensors_and_names_silent_ones() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let (first, second) = (Sensor::new(&dir, "tap-1"), Sensor::new(&dir, "tap-2"));
    let captured = [first.capture(3000, 2, &[]), second.capture(500, 1, &[])];
    // The store has no sensor.
    let (none, done) = fleet(&url, &[], 1);
    assert_eq!(none["findings"][0]["kind"], "nobody");
    done.says(&["no status of a sensor"]);

    first.ship_once(&url, &[]);
    let mut shipping = second.ship(&url, &[]).start();
    let status = folder.join(second.status_key());
    shipping.until("the status has all frames as shipped", |_| {
        let text = fs::read(&status).unwrap_or_default();
        let json = serde_json::from_slice::<Value>(&text).unwrap_or_default();
        json["ledger"]["shipped"] == captured[1] && json["pending_files"] == 0
    });
    let (all, _) = fleet(&url, &[], 0);
    assert_eq!(all["findings"], serde_json::json!([]));
    let by_name = sensors(&all);
    assert_eq!(by_name.keys().collect::<Vec<_>>(), ["tap-1", "tap-2"]);
    for (it, captured) in by_name.values().zip(captured) {
        assert_ledger(it, captured, "shipped");
        assert_eq!(
            (&it["stale"], &it["adds_up"]),
            (&false.into(), &true.into())
        );
        assert!(it["last_object"]["key"].is_string(), "{it}");
    }
    let total = ["captured", "shipped"].map(|it| number(&all["total"][it]));
    assert_eq!(total, [captured.iter().sum::<u64>(); 2]);
    let shown = wqcap(["fleet", url.as_str()]).run().expect(0);
    for row in ["tap-1", "tap-2", "total"] {
        let rows = shown.stdout.lines().filter(|it| it.starts_with(row));
        assert!(rows.count() > 0, "{row}: {shown}");
    }
    assert!(shown.stdout.contains("3,500"), "{shown}");

    shipping.signal(Signal::KILL);
    assert_eq!(shipping.wait().signal(), Some(9));
    let (late, done) = fleet(&url, &["--stale", "0s"], 1);
    let found = late["findings"].as_array().expect("findings").iter();
    let found = found.map(|it| ["kind", "sensor"].map(|key| it[key].as_str().expect("a text")));
    let silent = [["stale", "tap-1"], ["stale", "tap-2"]];
    assert_eq!(found.collect::<Vec<_>>(), silent);
    done.says(&["tap-2: the sensor has stored no status for"]);

    // The store of a configuration is used.
    let set = format!("ship.store={url}");
    wqcap(["fleet", "--set", set.as_str()]).run().expect(0);
    wqcap(["fleet"]).run().expect(2).says(&["ship.store"]);
    let absent = format!("file://{}", dir.join("absent").display());
    let done = wqcap(["fleet", absent.as_str()]).run().expect(2);
    done.says(&["STORE = "]);
}

#[test]
fn a_second_machine_with_the_same_sensor_name_is_refused() {
    let dir = Dir::new();
    let (_, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap");
    let captured = sensor.capture(500, 1, &[]);
    sensor.ship_once(&url, &[]);
    let journal = format!("ship.journal={}", sensor.at("other").display());
    let other = sensor.ship(&url, &["--once", "--set", &journal]).run();
    let instead = ["ship.sensor = \"tap\"", "another ship.journal", "180 s"];
    other.expect(1).says(&instead);
    let (all, done) = fleet(&url, &[], 1);
    assert_eq!(all["findings"][0]["kind"], "refused", "{all}");
    assert_eq!(all["total"]["shipped"], captured);
    done.says(&["tap: host", "ships nothing"]);
}

#[test]
fn missing_unshipped_files_are_reported_and_those_of_an_absent_disk_are_not_expired() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap");
    let captured = sensor.capture(500, 1, &[]);
    // The journal has the files of the sensor, but the store refuses them.
    let blocked = folder.join("packets");
    fs::write(&blocked, "").expect("the file can be written");
    sensor.ship(&url, &["--once"]).run().expect(1);
    fs::remove_file(blocked).expect("the file exists");
    let away = dir.join("away");
    fs::rename(sensor.at("out"), &away).expect("the folder can be moved");
    dir.folder(&sensor.named("out"));
    let done = sensor.ship(&url, &["--once"]).run().expect(1);
    done.says(&["output.dir", "mounted?", "dirs.json"]);
    let (all, done) = fleet(&url, &[], 1);
    assert_eq!(all["findings"][0]["kind"], "problem", "{all}");
    assert_eq!(all["total"]["expired_unshipped"], 0);
    done.says(&["tap: output.dir"]);
    // Without dirs.json the directory is accepted, and the missing files count as expired.
    fs::remove_file(sensor.at("journal").join("dirs.json")).expect("the file exists");
    sensor.ship_once(&url, &[]);
    let (all, done) = fleet(&url, &[], 1);
    assert_eq!(all["findings"][0]["kind"], "expired", "{all}");
    assert_eq!(all["total"]["expired_unshipped"], captured);
    done.says(&["deleted before they were shipped"]);
}
