//! `wqcap extract` from a store: what three sensors have shipped comes back, byte for byte as their own files have it, and no
//! more is fetched for it than need be.

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

/// Each has a folder of its name with its files, and others beside it.
const SENSORS: [&str; 3] = ["tap-1", "tap-2", "tap-3"];
/// Frames of a sensor, of 1000 bytes, in about a second and a half.
const FRAMES: u64 = 6000;
/// The type of a block of statistics.
const STATISTICS: u32 = 5;

/// Sensors and the folder that they ship to.
struct Fleet {
    dir: Dir,
    url: String,
}

impl Fleet {
    /// Three sensors that have captured at the same time, in files of a megabyte; the last one compresses its own.
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

    /// The same, shipped into the folder.
    fn shipped() -> Self {
        let it = Self::new();
        for sensor in SENSORS {
            let _ = it.ship(sensor, &it.url, "journal").run().expect(0);
        }
        it
    }

    /// What ships a sensor's files.
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

    /// `wqcap COMMAND ARGS` among the sensors' folders.
    fn wqcap(&self, args: &[&str]) -> Program {
        wqcap(args).cwd(self.dir.path())
    }

    /// Has a shell run it with these arguments among the sensors' folders.
    #[track_caller]
    fn shell(&self, args: &str) {
        let _ = Program::new("sh")
            .args(["-c", &format!("\"$0\" {args}")])
            .arg(binaries::wqcap())
            .cwd(self.dir.path())
            .run()
            .expect(0);
    }

    /// Extracts from the store into a file, and gives that and what is told.
    #[track_caller]
    fn extract(&self, out: &str, args: &[&str]) -> (PathBuf, Value) {
        let all = [&["extract", &self.url, "--json", "-o", out], args].concat();
        let done = self.wqcap(&all).run().expect(0);
        (self.dir.join(out), facts(&done))
    }

    /// What another command line makes of the sensors' own files.
    #[track_caller]
    fn local(&self, out: &str, args: &[&str]) -> PathBuf {
        let _ = self.wqcap(&[args, &["-o", out]].concat()).run().expect(0);
        self.dir.join(out)
    }

    /// The objects of a kind in the folder.
    fn objects(&self, kind: &str) -> Vec<PathBuf> {
        let mut folders = vec![self.dir.join("store").join(kind)];
        let mut objects = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).expect("lists") {
                let path = entry.expect("lists").path();
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
fn facts(done: &Done) -> Value {
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done}"))
}

fn bytes(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Seconds since 1970.
fn decimal(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// The types of a pcapng file's blocks in the machine's byte order.
fn blocks(mut file: &[u8]) -> Vec<u32> {
    let mut types = Vec::new();
    while !file.is_empty() {
        let word = |at: usize| u32::from_ne_bytes(file[at..at + 4].try_into().expect("four"));
        types.push(word(0));
        file = &file[word(4) as usize..];
    }
    types
}

#[test]
fn what_three_sensors_shipped_comes_back_as_their_own_files_are_merged() {
    let fleet = Fleet::shipped();
    let inputs = |command: &'static str| [&[command][..], &SENSORS].concat();
    let merged = fleet.local("merged.pcap", &inputs("merge"));
    let (found, told) = fleet.extract("found.pcap", &[]);
    assert_bytes("all frames, as pcap", &bytes(&found), &bytes(&merged));
    assert_eq!(number(&told["frames"]), 3 * FRAMES);
    let objects = fleet.objects("packets").len() as u64;
    assert!(objects > 10, "{objects}");
    assert_eq!(number(&told["objects"]["read"]), objects);
    assert_eq!(told["losses"], Value::Array(Vec::new()));

    // As pcapng merge sums the files' statistics up, which hold for whole files alone.
    let merged = bytes(&fleet.local("merged.pcapng", &inputs("merge")));
    let found = bytes(&fleet.extract("found.pcapng", &[]).0);
    let (frames, statistics) = merged.split_at(found.len().min(merged.len()));
    assert_bytes("all frames, as pcapng", &found, frames);
    assert_eq!(blocks(statistics), [STATISTICS; 3]);

    // To a pipe, from a folder that is not called a store.
    fleet.shell("extract store -o - >piped.pcapng");
    assert_bytes("to a pipe", &bytes(&fleet.dir.join("piped.pcapng")), &found);

    // A part of the time of all, in which all were capturing.
    let records = files::read(&fleet.dir.join("found.pcap"));
    let n = records.len();
    let (from, to) = (records[n * 2 / 5].ts, records[n / 2].ts);
    let (from_text, to_text) = (decimal(from), decimal(to));
    let times = ["--from", &from_text, "--to", &to_text];
    let (some, told) = fleet.extract("some.pcap", &times);
    let wanted: Vec<_> = records
        .into_iter()
        .filter(|it| (from..to).contains(&it.ts))
        .collect();
    assert!(wanted.len() > 100, "{}", wanted.len());
    assert_same("some time of all", &files::read(&some), &wanted);
    assert!(number(&told["objects"]["read"]) < objects, "{told}");
    let fetched = &told["fetched"];
    let (came, needed) = (number(&fetched["bytes"]), number(&fetched["wanted_bytes"]));
    assert!(came * 2 <= needed * 3, "{told}");

    // Of one sensor after the other, what its own folder and indexes give.
    for sensor in SENSORS {
        let own = files::read(&fleet.local("own.pcap", &["merge", sensor]));
        let [from, to] = [own.len() * 2 / 5, own.len() / 2].map(|at| decimal(own[at].ts));
        // Every other frame: the number at its end is even.
        let how = [
            "--from",
            &from,
            "--to",
            &to,
            "--filter",
            "ether[992] & 1 = 0",
        ];
        let index = format!("{sensor}.index");
        let own = [&["extract", sensor, "--index", &index][..], &how].concat();
        let own = bytes(&fleet.local("own.pcapng", &own));
        let how = [&["--sensor", sensor][..], &how].concat();
        let (found, told) = fleet.extract("one.pcapng", &how);
        assert_bytes(sensor, &bytes(&found), &own);
        assert!(number(&told["frames"]) > 100, "{told}");
    }
    // Nothing there: a file without frames.
    let arp = ["--from", &to_text, "--filter", "arp"];
    let (none, told) = fleet.extract("none.pcapng", &arp);
    assert_eq!((number(&told["frames"]), files::read(&none).len()), (0, 0));
    // By the tables alone nearly nothing is fetched, of megabytes.
    assert!(number(&told["fetched"]["bytes"]) < 100_000, "{told}");
}

#[test]
fn a_query_drives_what_is_fetched() {
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
    let id = flow[0][0].as_str().expect("a Community ID");
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
        let (out, told) = fleet.extract("flow.pcap", &["--ranges", list, "--community-id", id]);
        assert_bytes(list, &bytes(&out), &bytes(&wanted));
        assert_eq!(number(&told["partitions"]), 0);
    }
    let from_pipe = "extract store --ranges - -o piped.pcap --community-id";
    fleet.shell(&format!("{from_pipe} '{id}' <found.csv"));
    assert_bytes(
        "from a pipe",
        &bytes(&fleet.dir.join("piped.pcap")),
        &bytes(&wanted),
    );
}

#[test]
fn what_is_wrong_is_told_and_the_rest_comes() {
    let fleet = Fleet::shipped();
    let objects = fleet.objects("packets");
    let gone = &objects[objects.len() / 2];
    fs::remove_file(gone).expect("an own file");
    let out = ["extract", "store", "-o", "rest.pcapng"];
    let done = fleet.wqcap(&out).run().expect(1);
    let name = gone.file_name().expect("a name").to_str().expect("plain");
    done.says(&[name, "is not in the store"]);
    let rest = files::read(&fleet.dir.join("rest.pcapng")).len() as u64;
    assert!(rest > FRAMES && rest < 3 * FRAMES, "{rest}");

    fleet.dir.folder("empty");
    let absent = format!("file://{}", fleet.dir.join("absent").display());
    let empty = format!("file://{}", fleet.dir.join("empty").display());
    fleet
        .dir
        .write("wrong.csv", "object,byte_start,byte_end\npackets/x,1,z\n");
    fleet.dir.write("short.csv", "object,byte_start\n");
    for (args, said) in [
        (vec![absent.as_str()], "the directory must exist"),
        (vec![empty.as_str()], "has no blocks/"),
        (vec!["swift://b/p"], "swift://b/p: is not a store"),
        (
            vec!["tap-1", "--sensor", "tap-1"],
            "--sensor is for a store",
        ),
        (
            vec!["tap-1", "--ranges", "wrong.csv"],
            "--ranges is for a store",
        ),
        (vec!["store", "--mark", "x"], "--mark is for a directory"),
        (vec!["store", "--index", "x"], "--index is for a directory"),
        (vec!["store", "--sensor", "a/b"], "is not a sensor's name"),
        (vec!["store", "--sensor", "tap-9"], "has no files of tap-9"),
        (
            vec!["store", "--ranges", "wrong.csv"],
            "--ranges wrong.csv: line 2: column byte_end: \"z\"",
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
        fleet.wqcap(&all).run().expect(2).says(&[said]);
        assert!(!fleet.dir.join("no.pcapng").exists(), "{args:?}");
    }
}

/// A server that is overloaded.
const SLOW_DOWN: Fate = Fate::Answer(503, "<Error><Code>SlowDown</Code></Error>");

#[test]
fn through_a_failing_network_all_is_in_the_bucket_and_comes_back() {
    let bucket = Bucket::of(S3::s3s());
    let fleet = Fleet::new();
    let prefix = "some/where";
    let url = format!("s3://{BUCKET}/{prefix}");
    // All at the same time.
    let fates = &[SLOW_DOWN, Fate::Reset, Fate::Damage];
    bucket.proxy.decide(once(2, fates));
    let ships = SENSORS.map(|it| bucket.reached_by(fleet.ship(it, &url, "bucket")).start());
    for shipped in ships {
        let _ = shipped.wait().expect(0);
    }

    // Half of an object goes on where it broke off; a list begins anew.
    bucket.proxy.decide(once(1, &[Fate::Cut]));
    let told = bucket.reached_by(fleet.wqcap(&["fleet", &url, "--json"]));
    let told = facts(&told.run().expect(0));
    assert_eq!(told["findings"], Value::Array(Vec::new()));
    let ledger = |it: &Value| ["captured", "shipped"].map(|line| number(&it["ledger"][line]));
    let sensors = told["sensors"].as_array().expect("sensors");
    assert_eq!(sensors.len(), SENSORS.len(), "{told}");
    for sensor in sensors {
        assert_eq!(ledger(sensor), [FRAMES; 2], "{sensor}");
    }

    let fates = &[SLOW_DOWN, Fate::Reset, Fate::Cut];
    bucket.proxy.decide(once(2, fates));
    let even = "ether[992] & 1 = 0";
    let extract = |out: &str, more: &[&str]| {
        let all = [&["extract", &url, "--json", "-o", out], more].concat();
        facts(&bucket.reached_by(fleet.wqcap(&all)).run().expect(0))
    };
    let all = extract("found.pcap", &[]);
    let some = extract("even.pcap", &["--filter", even]);
    let merged = fleet.local("merged.pcap", &[&["merge"][..], &SENSORS].concat());
    let found = fleet.dir.join("found.pcap");
    assert_bytes("all frames", &bytes(&found), &bytes(&merged));
    assert_eq!(number(&all["frames"]), 3 * FRAMES);
    // Of the sensors' own frames, half.
    let tcpdump = Program::new("tcpdump").args(["-n", "--count", "-r"]);
    let counted = tcpdump.arg(&merged).arg(even).run().expect(0);
    let counted = counted.stdout.split(' ').next().expect("a number");
    assert_eq!(counted, (3 * FRAMES / 2).to_string());
    assert_eq!(counted, some["frames"].to_string());

    // The server keeps objects as files: an engine's sums are each sensor's ledger.
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

/// How many errors are told.
fn errors(done: &Done) -> usize {
    let lines = done.stderr.lines();
    lines.filter(|it| it.starts_with("error: ")).count()
}

#[test]
fn a_bucket_gives_what_a_folder_does_and_wrong_credentials_are_told_once() {
    let bucket = Bucket::of(need!(S3::moto()));
    let fleet = Fleet::shipped();
    let url = format!("s3://{BUCKET}/some/where");
    for sensor in SENSORS {
        let ship = fleet.ship(sensor, &url, "bucket");
        let _ = bucket.reached_by(ship).run().expect(0);
    }
    let (wanted, told) = fleet.extract("wanted.pcapng", &[]);
    let extract = |out: &str| {
        let all = ["extract", &url, "--json", "-o", out];
        bucket.reached_by(fleet.wqcap(&all))
    };
    // One that throttles, too.
    bucket.proxy.decide(|it| match it.number % 5 {
        4 => SLOW_DOWN,
        _ => Fate::Pass,
    });
    let found = facts(&extract("found.pcapng").run().expect(0));
    assert_bytes(
        "from a bucket",
        &bytes(&fleet.dir.join("found.pcapng")),
        &bytes(&wanted),
    );
    for what in ["frames", "partitions", "tables", "objects", "fetched"] {
        assert_eq!(found[what], told[what], "{what}");
    }
    let requests = bucket.proxy.requests();
    assert!(requests.iter().all(|it| it.method == "GET"), "{requests:?}");

    let refusal = "<Error><Code>InvalidAccessKeyId</Code></Error>";
    bucket.proxy.decide(move |_| Fate::Answer(403, refusal));
    let done = extract("refused.pcapng").run().expect(1);
    done.says(&["InvalidAccessKeyId"]);
    assert_eq!(errors(&done), 1, "{done}");
    assert_eq!(bucket.proxy.requests().len(), 1);
    // Who may list and not get is told so once, too, and leaves nothing behind.
    bucket
        .proxy
        .decide(move |it| match it.target.contains("list-type") {
            true => Fate::Pass,
            false => Fate::Answer(403, refusal),
        });
    let done = extract("refused.pcapng").run().expect(1);
    assert_eq!(errors(&done), 1, "{done}");
    assert!(!fleet.dir.join("refused.pcapng").exists());
}
