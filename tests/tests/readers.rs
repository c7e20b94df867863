//! Flow records as engines read them.
//!
//! | test | engine | shows |
//! |---|---|---|
//! | `types_and_facts_are_those_of_the_page` | DuckDB | the schema is that of `docs/flows.md`, the file says what it is, the page's example |
//! | `queries_read_what_they_need` | DuckDB | order, statistics and bloom filters rule out row groups |
//! | `WHO_reads_what_duckdb_reads` | pyarrow, Spark, ClickHouse, Sail: `scripts/soak` | the same types and rows, the ledger's sums, also of the sensors of a store, the page's example |

use serde_json::Value;
use std::{collections::BTreeMap, fs, path::PathBuf};
use wqcap_tests::{
    Dir, Finished, Wqcap, binaries,
    captures::Captures,
    ledger::number,
    need,
    oracles::{duckdb::Duckdb, readers::Reader},
    skip,
    wqcap::wqcap,
};

/// The times, whose types and values engines show in their own ways.
const TIMES: [&str; 4] = ["first_fwd", "last_fwd", "first_rev", "last_rev"];

/// A run that writes records into the folder `flows`.
fn run<'d>(dir: &'d Dir, wire: &str) -> Wqcap<'d> {
    let flows = dir.folder("flows");
    Wqcap::run(dir, "run")
        .model(wire)
        .set(&format!("flows.dir={}", flows.display()))
}

/// All records of a folder, for DuckDB.
fn table(dir: &Dir) -> String {
    format!("'{}/*.parquet'", dir.join("flows").display())
}

/// The page.
fn page() -> String {
    fs::read_to_string(binaries::root().join("docs/flows.md")).expect("the page")
}

/// The columns of the page: names, and types in the words of an engine.
fn columns(words: [&str; 4]) -> Vec<[String; 2]> {
    let kinds = ["int32", "int64", "string", "timestamp, µs, UTC"];
    let page = page();
    let rows = page.lines().filter_map(|it| it.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").expect("a type");
        let kind = rest.split(" | ").next().expect("a type");
        let at = kinds.iter().position(|it| *it == kind);
        let at = at.unwrap_or_else(|| panic!("what type is {kind:?}?"));
        [name.to_owned(), words[at].to_owned()]
    })
    .collect()
}

/// Two columns of a query.
fn pairs(rows: &[Vec<Value>]) -> Vec<[String; 2]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|it| [text(&it[0]), text(&it[1])]).collect()
}

#[test]
fn types_and_facts_are_those_of_the_page() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let _ = run(&dir, "synth:count=1000,flows=10").finish(0);
    let table = table(&dir);
    let seen = duckdb.query(&format!("DESCRIBE SELECT * FROM {table}"));
    let words = ["INTEGER", "BIGINT", "VARCHAR", "TIMESTAMP WITH TIME ZONE"];
    assert_eq!(pairs(&seen), columns(words));
    // As they stand in the file, since DuckDB knows more types than others.
    let stored = duckdb.query(&format!(
        "SELECT DISTINCT name, concat_ws(' ', type, converted_type, logical_type) FROM parquet_schema({table})
            WHERE type IS NOT NULL"
    ));
    let mut stored = pairs(&stored);
    let time = "INT64 TIMESTAMP_MICROS TimestampType(isAdjustedToUTC=1, unit=TimeUnit(MILLIS=<null>, MICROS=MicroSeconds(), NANOS=<null>))";
    let words = ["INT32", "INT64", "BYTE_ARRAY UTF8 StringType()", time];
    let mut documented = columns(words);
    stored.sort();
    documented.sort();
    assert_eq!(stored, documented);

    let facts = duckdb.query(&format!(
        "SELECT DISTINCT decode(key), decode(value) FROM parquet_kv_metadata({table}) ORDER BY ALL"
    ));
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ["wqcap.docs", "/usr/share/doc/wqcap/docs/flows.md"],
        ["wqcap.flows.schema_version", "3"],
        ["wqcap.version", version],
    ];
    assert_eq!(pairs(&facts), expected.map(|it| it.map(str::to_owned)));
    let page = page();
    for [key, _] in expected {
        assert!(page.contains(&format!("- `{key}`: ")), "{key}");
    }
    let made = duckdb.query(&format!(
        "SELECT DISTINCT created_by FROM parquet_file_metadata({table})"
    ));
    assert_eq!(made, [[format!("wqcap version {version}")]]);
    let done = duckdb.python(&example("import duckdb"), dir.path());
    assert_eq!(done.stdout.trim(), "1000", "{done}");
}

#[test]
fn queries_read_what_they_need() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    // Paced, so that a busy machine writes the records of flows that make room as fast as they come.
    let finished = run(
        &dir,
        "synth:size=64,flows=50000,count=200000,proto=mix,pps=100000",
    )
    .queues(2)
    .set("output.format=none")
    .set("flows.memory=1MiB")
    .finish(0);
    let table = table(&dir);
    let metadata = |column: &str, what: &str| {
        duckdb.query(&format!(
            "SELECT {what} FROM parquet_metadata({table}) WHERE path_in_schema = '{column}'"
        ))
    };

    // Statistics: whoever asks for the last flow needs no row group but those whose times reach so far.
    let records = number(&finished.summary.json["flows"]["records"]);
    let groups = metadata(
        "first_fwd_ns",
        "row_group_num_rows, stats_min_value::BIGINT, stats_max_value::BIGINT",
    );
    assert!(groups.len() >= 2, "{records} records in {groups:?}");
    let rows: u64 = groups.iter().map(|it| number(&it[0])).sum();
    assert_eq!(rows, records);
    let sums = duckdb.query(&format!(
        "SELECT min(first_fwd_ns), max(first_fwd_ns), sum(frames_fwd + frames_rev)::BIGINT FROM {table}"
    ));
    let (first, last) = (number(&sums[0][0]), number(&sums[0][1]));
    let total = finished.summary.ledger.total;
    let missed = number(&finished.summary.json["flows"]["missed_frames"]);
    assert_eq!(
        number(&sums[0][2]) + missed,
        total.captured + total.dropped_storage
    );
    let reach = |at: usize| groups.iter().map(move |it| number(&it[at]));
    assert_eq!((reach(1).min(), reach(2).max()), (Some(first), Some(last)));
    let needed = reach(2).filter(|max| *max >= last).count();
    assert!(needed < groups.len(), "{last} in {groups:?}");

    // Order: a later row begins earlier only where a row group begins.
    let unsorted = duckdb.query(&format!(
        "SELECT count(*) FROM (SELECT first_fwd_ns < lag(first_fwd_ns) OVER (PARTITION BY filename ORDER BY file_row_number) AS earlier
            FROM read_parquet({table}, filename = true, file_row_number = true)) WHERE earlier"
    ));
    assert!(
        number(&unsorted[0][0]) < groups.len() as u64,
        "{unsorted:?}"
    );

    // Bloom filters: of addresses and names, of a bounded size, without a false no and with few a false yes.
    let filters = duckdb.query(&format!(
        "SELECT DISTINCT path_in_schema, max(bloom_filter_length) FROM parquet_metadata({table})
            WHERE bloom_filter_offset IS NOT NULL GROUP BY ALL ORDER BY ALL"
    ));
    let mut lengths: BTreeMap<_, _> = filters
        .iter()
        .map(|it| (it[0].as_str().expect("a name"), number(&it[1])))
        .collect();
    let names: Vec<_> = lengths.keys().copied().collect();
    assert_eq!(
        names,
        [
            "community_id",
            "dst",
            "http_host",
            "ja4",
            "outer_dst",
            "outer_src",
            "src",
            "tls_sni"
        ]
    );
    lengths.retain(|_, length| *length > (256 << 10) + 64);
    assert!(lengths.is_empty(), "{lengths:?}");
    let excluded = |column: &str, value: &str| {
        let rows = duckdb.query(&format!(
            "SELECT count(*) FILTER (bloom_filter_excludes), count(*) FROM parquet_bloom_probe({table}, '{column}', '{value}')"
        ));
        (number(&rows[0][0]), number(&rows[0][1]))
    };
    let some = duckdb.query(&format!(
        "SELECT community_id, src, dst FROM {table} WHERE community_id IS NOT NULL ORDER BY bytes_fwd, community_id LIMIT 20"
    ));
    assert_eq!(some.len(), 20);
    for row in some {
        for (column, value) in ["community_id", "src", "dst"].iter().zip(&row) {
            let value = value.as_str().expect("a text");
            let (no, all) = excluded(column, value);
            assert_eq!(all, groups.len() as u64);
            assert!(no < all, "{column} {value} is in none of {all} row groups");
        }
    }
    let (mut no, mut all) = (0, 0);
    for i in 0..100 {
        let absent = excluded("community_id", &format!("1:absent{i}"));
        no += absent.0;
        all += absent.1;
    }
    assert!(no * 10 >= all * 9, "{no} of {all}");
}

/// The example of the page for an engine: the block of Python that imports it.
fn example(import: &str) -> String {
    let page = page();
    let mut blocks = page.split("```python\n").skip(1);
    let block = blocks.find(|it| it.starts_with(import));
    let block = block.unwrap_or_else(|| panic!("no example begins with {import:?}"));
    block.split("```").next().expect("its end").to_owned()
}

/// Records of all captures, with a file among them that is being written.
fn recorded(dir: &Dir) -> Finished {
    let (file, _) = Captures::find().everything(dir);
    let wire = format!("pcap:{}", file.display());
    let finished = run(dir, &wire).queues(3).finish(0);
    fs::write(dir.join("flows/wqcap-flows-1.parquet.part"), "PAR1").expect("own");
    finished
}

/// All rows, as text and in an order of its own.
fn sorted<'v>(rows: impl IntoIterator<Item = &'v Vec<Value>>) -> Vec<String> {
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|it| Value::from(it.clone()).to_string())
        .collect();
    rows.sort();
    rows
}

/// Two sensors' files in a store, and what they have captured, by sensor.
fn shipped(dir: &Dir) -> (PathBuf, Value) {
    let store = dir.folder("store");
    let mut captured = serde_json::Map::new();
    for (sensor, frames) in [("tap-a", 3000), ("tap-b", 5000)] {
        let at = |what: &str| dir.folder(&format!("{sensor}.{what}"));
        let sets = [
            ("output.dir", at("out").display().to_string()),
            ("output.index_dir", at("index").display().to_string()),
            ("output.rotate_size", "1MB".to_owned()),
            ("flows.dir", at("flows").display().to_string()),
            ("ship.journal", at("journal").display().to_string()),
            ("ship.sensor", sensor.to_owned()),
            ("ship.store", format!("file://{}", store.display())),
        ];
        let sets = sets.map(|(key, value)| ["--set".to_owned(), format!("{key}={value}")]);
        let wire = format!("synth:size=1000,flows=64,proto=mix,count={frames}");
        let run = wqcap(["run", "--model", &wire]).args(sets.concat());
        run.run().expect(0);
        let ship = wqcap(["ship", "--once", "--json"]).args(sets.concat());
        let done = ship.run().expect(0);
        let told: Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(told["ledger"]["shipped"], frames, "{told}");
        captured.insert(sensor.into(), frames.into());
    }
    (store, captured.into())
}

/// What a reader reads is what DuckDB reads, and sums up to the ledger.
fn assert_reads(duckdb: &Duckdb, reader: &Reader, words: [&str; 4], import: &str) {
    let dir = Dir::new();
    let finished = recorded(&dir);
    let table = table(&dir);
    let flows = &finished.summary.json["flows"];
    let total = finished.summary.ledger.total;
    let frames = number(&flows["frames"]);
    assert_eq!(
        frames + number(&flows["missed_frames"]),
        total.captured + total.dropped_storage
    );

    let times = TIMES.map(|it| format!("epoch_us({it}) AS {it}")).join(", ");
    let expected = duckdb.query(&format!("SELECT * REPLACE ({times}) FROM {table}"));
    let query = duckdb.query(&format!(
        "WITH named AS (SELECT community_id AS id FROM {table} WHERE ip_version = 6 AND community_id IS NOT NULL ORDER BY ALL LIMIT 1),
              middle AS (SELECT quantile_disc(first_fwd, 0.5) AS time FROM {table})
        SELECT id, epoch_us(time), count(*) FILTER (community_id = id), count(*) FILTER (first_fwd >= time)
        FROM {table}, named, middle GROUP BY ALL"
    ));
    let [id, middle, named, since] = &query[0][..] else {
        panic!("{query:?}")
    };
    let folder = dir.join("flows");
    let read = reader.read(&folder, id.as_str().expect("a name"), number(middle));
    let types: Vec<Vec<Value>> = serde_json::from_value(read["types"].clone()).expect("types");
    assert_eq!(pairs(&types), columns(words));
    let rows: Vec<Vec<Value>> = serde_json::from_value(read["rows"].clone()).expect("rows");
    assert_eq!(rows.len() as u64, number(&flows["records"]));
    for (row, expected) in sorted(&rows).iter().zip(sorted(&expected)) {
        assert_eq!(*row, expected);
    }
    let names = columns(words);
    let sum = |way: &str| -> u64 {
        let at = names.iter().position(|it| it[0] == way).expect("a column");
        rows.iter().map(|it| number(&it[at])).sum()
    };
    assert_eq!(sum("frames_fwd") + sum("frames_rev"), frames);
    assert_eq!(sum("bytes_fwd") + sum("bytes_rev"), number(&flows["bytes"]));
    assert_eq!((&read["named"], &read["since"]), (named, since));
    assert!(
        number(since) < rows.len() as u64 && number(named) > 0,
        "{query:?}"
    );

    let (store, captured) = shipped(&dir);
    let sums = reader.sums(&store);
    assert_eq!(sums["blocks"], captured);
    assert_eq!(sums["flows"], captured);

    let done = reader.run(&example(import), &[], dir.path());
    assert_eq!(done.stdout.trim(), frames.to_string(), "{done}");
    skip::say(&format!(
        "{} records, {frames} frames: the ledger's",
        rows.len()
    ));
}

#[test]
#[ignore = "takes some hundred MB from PyPI: scripts/soak runs it"]
fn pyarrow_reads_what_duckdb_reads() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pyarrow"));
    let words = ["int32", "int64", "string", "timestamp[us, tz=UTC]"];
    assert_reads(&duckdb, &reader, words, "import glob, pyarrow");
}

#[test]
#[ignore = "takes some hundred MB from PyPI: scripts/soak runs it"]
fn spark_reads_what_duckdb_reads() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pyspark"));
    let words = ["int", "bigint", "string", "timestamp"];
    assert_reads(&duckdb, &reader, words, "from pyspark.sql import");
}

#[test]
#[ignore = "takes some hundred MB from PyPI: scripts/soak runs it"]
fn clickhouse_reads_what_duckdb_reads() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("chdb"));
    let words = [
        "Nullable(Int32)",
        "Nullable(Int64)",
        "Nullable(String)",
        "Nullable(DateTime64(6, 'UTC'))",
    ];
    assert_reads(&duckdb, &reader, words, "import chdb");
}

#[test]
#[ignore = "takes some hundred MB from PyPI: scripts/soak runs it"]
fn sail_reads_what_duckdb_reads() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pysail"));
    let words = ["int", "bigint", "string", "timestamp"];
    assert_reads(&duckdb, &reader, words, "from pysail.spark import");
}
