//! `wqcap extract` from a store: the frames that three sensors have shipped are byte for byte those
//! of the sensors' files, and only the needed parts of objects are fetched.

use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Done, Program, Wqcap, binaries,
    compare::{assert_bytes, assert_same},
    files,
    ledger::number,
    machine::{
        bucket::Bucket,
        proxy::{Fate, once},
    },
    need,
    oracles::{
        duckdb::Duckdb,
        s3::{BUCKET, S3},
    },
    wqcap::wqcap,
};

/// Names of the sensors. Each has a directory `NAME` for its files, and directories `NAME.index`
/// and `NAME.flows` next to it.
const SENSORS: [&str; 3] = ["tap-1", "tap-2", "tap-3"];
/// Number of frames of a sensor: 1000 bytes each, within 1.5 seconds.
const FRAMES: u64 = 6000;
/// Block type of an Interface Statistics Block in pcapng.
const STATISTICS: u32 = 5;

/// Sensors and the directory that they ship to.
struct Fleet {
    dir: Dir,
    /// URL of the store directory.
    url: String,
}

impl Fleet {
    /// Runs the captures of three sensors at the same time, in files of a megabyte. The last sensor
    /// compresses its files.
    fn new() -> Self {
        let dir = Dir::new();
        let url = format!("file://{}", dir.folder("store").display());
        let runs = SENSORS.map(|sensor| {
            let folder = |what: &str| dir.folder(&format!("{sensor}{what}"));
            let run = Wqcap::run(&dir, sensor)
                .model(&format!("synth:size=1000,flows=64,count={FRAMES},pps=4000"))
                .queues(2)
                .out(&folder(""))
                .set("output.format=pcapng")
                .set("output.rotate_size=1MB")
                .set(&format!("output.index_dir={}", folder(".index").display()))
                .set(&format!("flows.dir={}", folder(".flows").display()));
            match sensor {
                "tap-3" => run.set("output.compress=zstd"),
                _ => run,
            }
        });
        let running = runs.each_ref().map(Wqcap::start);
        for (run, running) in runs.iter().zip(running) {
            let finished = run.finished(running.wait(), 0);
            assert_eq!(finished.summary.ledger.total.captured, FRAMES);
        }
        drop(runs);
        Self { dir, url }
    }

    /// Runs the captures, and ships the files of all sensors into the store directory.
    fn shipped() -> Self {
        let fleet = Self::new();
        for sensor in SENSORS {
            let ship = fleet.ship(sensor, &fleet.url, "journal");
            let _ = ship.run().expect(0);
        }
        fleet
    }

    /// Returns the command that ships a sensor's files.
    fn ship(&self, sensor: &str, store: &str, journal: &str) -> Program {
        let at = |what: &str| self.dir.join(format!("{sensor}{what}"));
        let sets = [
            ("output.dir", at("").display().to_string()),
            ("output.index_dir", at(".index").display().to_string()),
            ("flows.dir", at(".flows").display().to_string()),
            (
                "ship.journal",
                at(&format!(".{journal}")).display().to_string(),
            ),
            ("ship.sensor", sensor.to_owned()),
            ("ship.store", store.to_owned()),
        ];
        let sets = sets.map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        wqcap(["ship", "--once"]).args(sets.concat())
    }

    /// Returns the command `wqcap ARGS` in the parent of the sensors' directories.
    fn wqcap(&self, args: &[&str]) -> Program {
        wqcap(args).cwd(self.dir.path())
    }

    /// Runs `wqcap ARGS` by a shell in the parent of the sensors' directories.
    #[track_caller]
    fn shell(&self, args: &str) {
        let _ = Program::new("sh")
            .args(["-c", &format!("\"$0\" {args}")])
            .arg(binaries::wqcap())
            .cwd(self.dir.path())
            .run()
            .expect(0);
    }

    /// Extracts frames from the store into a file. Returns the file and the printed report.
    #[track_caller]
    fn extract(&self, out: &str, args: &[&str]) -> (PathBuf, Value) {
        let all = [&["extract", &self.url, "--json", "-o", out], args].concat();
        let done = self.wqcap(&all).run().expect(0);
        (self.dir.join(out), report(&done))
    }

    /// Runs `wqcap ARGS -o OUT` on the sensors' own files, and returns the output file.
    #[track_caller]
    fn local(&self, out: &str, args: &[&str]) -> PathBuf {
        let _ = self.wqcap(&[args, &["-o", out]].concat()).run().expect(0);
        self.dir.join(out)
    }

    /// Returns the sorted files below the directory `kind` of the store.
    fn objects(&self, kind: &str) -> Vec<PathBuf> {
        let mut folders = vec![self.dir.join("store").join(kind)];
        let mut objects = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("the directory is readable") {
                let path = entry.expect("the directory is readable").path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => objects.push(path),
                }
            }
        }
        objects.sort();
        objects
    }
}

#[track_caller]
fn report(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Formats nanoseconds as decimal seconds.
fn decimal(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// Returns the block types of a pcapng file in the machine's byte order.
fn blocks(mut file: &[u8]) -> Vec<u32> {
    let mut types = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().expect("four bytes"));
        types.push(word(0));
        file = &file[word(4) as usize..];
    }
    types
}

#[test]
fn frames_extracted_from_a_store_equal_a_merge_of_the_sensors_files() {
    let fleet = Fleet::shipped();
    let inputs = |command: &'static str| [&[command][..], &SENSORS].concat();
    let merged = fleet.local("merged.pcap", &inputs("merge"));
    let (found, report) = fleet.extract("found.pcap", &[]);
    assert_bytes("all frames, as pcap", &bytes(&found), &bytes(&merged));
    assert_eq!(number(&report["frames"]), 3 * FRAMES);
    let objects = fleet.objects("packets").len() as u64;
    assert!(objects > 10, "{objects}");
    assert_eq!(number(&report["objects"]["read"]), objects);
    assert_eq!(report["losses"], Value::Array(Vec::new()));

    // `merge` to pcapng appends the sum of the files' statistics. `extract` does not, because
    // statistics are valid only for whole files.
    let merged = bytes(&fleet.local("merged.pcapng", &inputs("merge")));
    let found = bytes(&fleet.extract("found.pcapng", &[]).0);
    let (frames, statistics) = merged.split_at(found.len().min(merged.len()));
    assert_bytes("all frames, as pcapng", &found, frames);
    assert_eq!(blocks(statistics), [STATISTICS; 3]);

    // Output to a pipe, from a directory that is given by its path instead of a URL.
    fleet.shell("extract store -o - >piped.pcapng");
    assert_bytes(
        "frames written to a pipe",
        &bytes(&fleet.dir.join("piped.pcapng")),
        &found,
    );

    // A time range in which all sensors were capturing.
    let records = files::read(&fleet.dir.join("found.pcap"));
    let n = records.len();
    let (from, to) = (records[n * 2 / 5].ts, records[n / 2].ts);
    let (from_text, to_text) = (decimal(from), decimal(to));
    let times = ["--from", &from_text, "--to", &to_text];
    let (some, report) = fleet.extract("some.pcap", &times);
    let wanted: Vec<_> = records
        .into_iter()
        .filter(|it| (from..to).contains(&it.ts))
        .collect();
    assert!(wanted.len() > 100, "{}", wanted.len());
    assert_same(
        "frames of all sensors in a time range",
        &files::read(&some),
        &wanted,
    );
    assert!(number(&report["objects"]["read"]) < objects, "{report}");
    let fetched = &report["fetched"];
    let (received, needed) = (number(&fetched["bytes"]), number(&fetched["wanted_bytes"]));
    assert!(received * 2 <= needed * 3, "{report}");

    // Frames of each sensor equal those extracted from the sensor's directory and indexes.
    for sensor in SENSORS {
        let own = files::read(&fleet.local("own.pcap", &["merge", sensor]));
        let [from, to] = [own.len() * 2 / 5, own.len() / 2].map(|at| decimal(own[at].ts));
        // The filter selects every other frame: the number at the frame's end is even.
        let selection = [
            "--from",
            &from,
            "--to",
            &to,
            "--filter",
            "ether[992] & 1 = 0",
        ];
        let index = format!("{sensor}.index");
        let own = [&["extract", sensor, "--index", &index][..], &selection].concat();
        let own = bytes(&fleet.local("own.pcapng", &own));
        let args = [&["--sensor", sensor][..], &selection].concat();
        let (found, report) = fleet.extract("one.pcapng", &args);
        assert_bytes(sensor, &bytes(&found), &own);
        assert!(number(&report["frames"]) > 100, "{report}");
    }
    // If no frame matches, the file has no frames.
    let arp = ["--from", &to_text, "--filter", "arp"];
    let (none, report) = fleet.extract("none.pcapng", &arp);
    assert_eq!(
        (number(&report["frames"]), files::read(&none).len()),
        (0, 0)
    );
    // The tables exclude nearly all of the store's megabytes.
    assert!(number(&report["fetched"]["bytes"]) < 100_000, "{report}");
}

#[test]
fn a_query_result_selects_the_ranges_that_are_fetched() {
    let duckdb = need!(Duckdb::install());
    let fleet = Fleet::shipped();
    let store = fleet.dir.join("store");
    let table = |what: &str| {
        let files = store.join(what).join("*/*/*/*.parquet");
        format!(
            "read_parquet('{}', hive_partitioning = true)",
            files.display()
        )
    };
    let (flows, parts) = (table("flows"), table("blocks"));
    let flow = duckdb.query(&format!(
        "SELECT community_id FROM {flows} WHERE community_id IS NOT NULL ORDER BY ALL LIMIT 1"
    ));
    let id = flow[0][0].as_str().expect("a flow has a Community ID");
    let found = format!(
        "SELECT DISTINCT b.object, b.byte_start, b.byte_end, b.sensor FROM {flows} f JOIN {parts} b ON b.sensor = f.sensor
            AND b.queue = f.queue AND b.last_ns >= f.first_fwd_ns AND b.first_ns <= greatest(f.last_fwd_ns, f.last_rev_ns)
            WHERE f.community_id = '{id}'"
    );
    let (wanted, _) = fleet.extract("wanted.pcap", &["--community-id", id]);
    assert!(!files::read(&wanted).is_empty());
    for list in ["found.csv", "found.parquet"] {
        let copy = format!("COPY ({found}) TO '{list}'");
        let program = format!("import duckdb\nduckdb.execute({copy:?})");
        let _ = duckdb.python(&program, fleet.dir.path());
        let args = ["--ranges", list, "--community-id", id];
        let (out, report) = fleet.extract("flow.pcap", &args);
        assert_bytes(list, &bytes(&out), &bytes(&wanted));
        assert_eq!(number(&report["partitions"]), 0);
    }
    let from_pipe = "extract store --ranges - -o piped.pcap --community-id";
    fleet.shell(&format!("{from_pipe} '{id}' <found.csv"));
    assert_bytes(
        "frames of ranges read from a pipe",
        &bytes(&fleet.dir.join("piped.pcap")),
        &bytes(&wanted),
    );
}

#[test]
fn losses_and_wrong_arguments_are_reported_and_other_frames_are_extracted() {
    let fleet = Fleet::shipped();
    let objects = fleet.objects("packets");
    let gone = &objects[objects.len() / 2];
    fs::remove_file(gone).expect("the object is removed");
    let out = ["extract", "store", "-o", "rest.pcapng"];
    let done = fleet.wqcap(&out).run().expect(1);
    let name = gone.file_name().expect("an object has a name");
    let name = name.to_str().expect("the name is UTF-8");
    done.says(&[name, "is not in the store"]);
    let rest = files::read(&fleet.dir.join("rest.pcapng")).len() as u64;
    assert!(rest > FRAMES && rest < 3 * FRAMES, "{rest}");
    let kept = &objects[0];
    let length = fs::metadata(kept).expect("the object is there").len();
    let over = fleet.wqcap(&["extract", "store", "-o"]).arg(kept).run();
    over.expect(2).says(&["the output is a file of the store"]);
    assert_eq!(fs::metadata(kept).expect("it is still there").len(), length);

    fleet.dir.folder("empty");
    let absent = format!("file://{}", fleet.dir.join("absent").display());
    let empty = format!("file://{}", fleet.dir.join("empty").display());
    fleet
        .dir
        .write("wrong.csv", "object,byte_start,byte_end\npackets/x,1,z\n");
    fleet.dir.write("short.csv", "object,byte_start\n");
    for (args, error) in [
        (vec![absent.as_str()], "the directory must exist"),
        (vec![empty.as_str()], "has no blocks/"),
        (vec!["swift://b/p"], "swift://b/p: the URL is not a store"),
        (
            vec!["tap-1", "--sensor", "tap-1"],
            "--sensor is for a store",
        ),
        (
            vec!["tap-1", "--ranges", "wrong.csv"],
            "--ranges is for a store",
        ),
        (
            vec!["https://tap-1", "--ranges", "wrong.csv"],
            "--ranges is for a store, but https://tap-1 is a sensor",
        ),
        (vec!["store", "--mark", "x"], "--mark is for a directory"),
        (vec!["store", "--index", "x"], "--index is for a directory"),
        (vec!["store", "--sensor", "a/b"], "is not a sensor's name"),
        (
            vec!["store", "--sensor", "tap-9"],
            "has no capture files of tap-9",
        ),
        (
            vec!["store", "--ranges", "wrong.csv"],
            "--ranges wrong.csv: line 2: column byte_end of the list has \"z\"",
        ),
        (
            vec!["store", "--ranges", "short.csv"],
            "has no column byte_end",
        ),
        (
            vec!["store", "--ranges", "none.csv"],
            "--ranges none.csv: No such file",
        ),
    ] {
        let all = [&["extract"], &args[..], &["-o", "no.pcapng"]].concat();
        fleet.wqcap(&all).run().expect(2).says(&[error]);
        assert!(!fleet.dir.join("no.pcapng").exists(), "{args:?}");
    }
}

/// Answer of an overloaded S3 server.
const SLOW_DOWN: Fate = Fate::Answer(503, "<Error><Code>SlowDown</Code></Error>");

#[test]
fn shipping_and_extracting_succeed_through_a_failing_network() {
    let bucket = Bucket::new(S3::s3s());
    let fleet = Fleet::new();
    let prefix = "some/where";
    let url = format!("s3://{BUCKET}/{prefix}");
    // All sensors ship at the same time.
    let fates = &[SLOW_DOWN, Fate::Reset, Fate::Damage];
    bucket.proxy.decide(once(2, fates));
    let ships = SENSORS.map(|it| bucket.reached_by(fleet.ship(it, &url, "bucket")).start());
    for shipped in ships {
        let _ = shipped.wait().expect(0);
    }

    // An object that is cut off is continued at the cut; a list is requested again.
    bucket.proxy.decide(once(1, &[Fate::Cut]));
    let status = bucket.reached_by(fleet.wqcap(&["fleet", &url, "--json"]));
    let status = report(&status.run().expect(0));
    assert_eq!(status["findings"], Value::Array(Vec::new()));
    let ledger = |it: &Value| ["captured", "shipped"].map(|line| number(&it["ledger"][line]));
    let sensors = status["sensors"].as_array();
    let sensors = sensors.expect("the report lists sensors");
    assert_eq!(sensors.len(), SENSORS.len(), "{status}");
    for sensor in sensors {
        assert_eq!(ledger(sensor), [FRAMES; 2], "{sensor}");
    }

    let fates = &[SLOW_DOWN, Fate::Reset, Fate::Cut];
    bucket.proxy.decide(once(2, fates));
    let even = "ether[992] & 1 = 0";
    let extract = |out: &str, more: &[&str]| {
        let all = [&["extract", &url, "--json", "-o", out], more].concat();
        report(&bucket.reached_by(fleet.wqcap(&all)).run().expect(0))
    };
    let all = extract("found.pcap", &[]);
    let some = extract("even.pcap", &["--filter", even]);
    let merged = fleet.local("merged.pcap", &[&["merge"][..], &SENSORS].concat());
    let found = fleet.dir.join("found.pcap");
    assert_bytes("all frames", &bytes(&found), &bytes(&merged));
    assert_eq!(number(&all["frames"]), 3 * FRAMES);
    // tcpdump counts half of the sensors' frames, and so does the extraction.
    let tcpdump = Program::new("tcpdump").args(["-n", "--count", "-r"]);
    let counted = tcpdump.arg(&merged).arg(even).run().expect(0);
    let counted = counted
        .stdout
        .split(' ')
        .next()
        .expect("tcpdump prints a number");
    assert_eq!(counted, (3 * FRAMES / 2).to_string());
    assert_eq!(counted, some["frames"].to_string());

    // The server stores objects as files, so DuckDB can read the tables. Its sums equal each
    // sensor's ledger.
    let duckdb = need!(Duckdb::install());
    let store = bucket.s3.folder().join(prefix);
    for (table, frames) in [("blocks", "frames"), ("flows", "frames_fwd + frames_rev")] {
        let files = store.join(table).join("*/*/*/*.parquet");
        let sums = duckdb.query(&format!(
            "SELECT sensor, sum({frames})::BIGINT FROM read_parquet('{}', hive_partitioning = true)
                GROUP BY ALL ORDER BY ALL",
            files.display()
        ));
        let ledgers = SENSORS.map(|it| vec![Value::from(it), FRAMES.into()]);
        assert_eq!(sums, ledgers, "{table}");
    }
}

/// Returns the number of `error: ` lines on standard error.
fn count_errors(done: &Done) -> usize {
    let lines = done.stderr.lines();
    lines.filter(|it| it.starts_with("error: ")).count()
}

#[test]
fn a_bucket_gives_the_same_frames_as_a_directory_and_wrong_credentials_give_one_error() {
    let bucket = Bucket::new(need!(S3::moto()));
    let fleet = Fleet::shipped();
    let url = format!("s3://{BUCKET}/some/where");
    for sensor in SENSORS {
        let ship = fleet.ship(sensor, &url, "bucket");
        let _ = bucket.reached_by(ship).run().expect(0);
    }
    let (wanted, local) = fleet.extract("wanted.pcapng", &[]);
    let extract = |out: &str| {
        let all = ["extract", &url, "--json", "-o", out];
        bucket.reached_by(fleet.wqcap(&all))
    };
    // The bucket also throttles every fifth request.
    bucket.proxy.decide(|it| match it.number % 5 {
        4 => SLOW_DOWN,
        _ => Fate::Pass,
    });
    let found = report(&extract("found.pcapng").run().expect(0));
    assert_bytes(
        "frames of a bucket",
        &bytes(&fleet.dir.join("found.pcapng")),
        &bytes(&wanted),
    );
    for what in ["frames", "partitions", "tables", "objects", "fetched"] {
        assert_eq!(found[what], local[what], "{what}");
    }
    let requests = bucket.proxy.requests();
    assert!(requests.iter().all(|it| it.method == "GET"), "{requests:?}");

    // Without the right to list the objects, the tables suffice.
    let denied = "<Error><Code>AccessDenied</Code></Error>";
    bucket
        .proxy
        .decide(move |it| match it.target.contains("where%2Fpackets") {
            true => Fate::Answer(403, denied),
            false => Fate::Pass,
        });
    let found = report(&extract("unlisted.pcapng").run().expect(0));
    let note = found["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("packets/ cannot be listed"), "{found}");
    let unlisted = bytes(&fleet.dir.join("unlisted.pcapng"));
    assert_bytes("frames of tables", &unlisted, &bytes(&wanted));
    let _ = bucket.proxy.requests();

    let refusal = "<Error><Code>InvalidAccessKeyId</Code></Error>";
    bucket.proxy.decide(move |_| Fate::Answer(403, refusal));
    let done = extract("refused.pcapng").run().expect(1);
    done.says(&["InvalidAccessKeyId"]);
    assert_eq!(count_errors(&done), 1, "{done}");
    // One request for each of the two lists.
    assert_eq!(bucket.proxy.requests().len(), 2);
    // Credentials that permit listing but not reading also give one error, and no output file.
    bucket
        .proxy
        .decide(move |it| match it.target.contains("list-type") {
            true => Fate::Pass,
            false => Fate::Answer(403, refusal),
        });
    let done = extract("refused.pcapng").run().expect(1);
    assert_eq!(count_errors(&done), 1, "{done}");
    assert!(!fleet.dir.join("refused.pcapng").exists());
}
