//! Flow records as read by query engines.
//!
//! | test | engine | shows |
//! |---|---|---|
//! | `types_and_metadata_are_as_documented` | DuckDB | the schema and metadata are those of `docs/flows.md`; the page's example works |
//! | `queries_can_skip_row_groups` | DuckDB | order, statistics and bloom filters exclude row groups |
//! | `ENGINE_reads_the_same_as_duckdb` | pyarrow, Spark, ClickHouse, Sail: `scripts/soak` | the same types and rows; sums equal the ledger, also for the sensors of a store; the page's example works |

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

/// Columns of times. Engines print their types and values differently.
const TIMES: [&str; 4] = ["first_fwd", "last_fwd", "first_rev", "last_rev"];

/// Returns a run that writes flow records into the directory `flows`.
fn run<'d>(dir: &'d Dir, wire: &str) -> Wqcap<'d> {
    let flows = dir.folder("flows");
    Wqcap::run(dir, "run")
        .model(wire)
        .set(&format!("flows.dir={}", flows.display()))
}

/// Returns the DuckDB expression for all records of the directory `flows`.
fn table(dir: &Dir) -> String {
    format!("'{}/*.parquet'", dir.join("flows").display())
}

/// Returns the page `docs/flows.md`.
fn page() -> String {
    fs::read_to_string(binaries::root().join("docs/flows.md")).expect("the page is readable")
}

/// Returns the documented columns: names and types. `types` has an engine's names of the four types
/// of the page.
fn columns(types: [&str; 4]) -> Vec<[String; 2]> {
    let kinds = ["int32", "int64", "string", "timestamp, µs, UTC"];
    let page = page();
    let rows = page.lines().filter_map(|it| it.strip_prefix("| `"));
    rows.map(|row| {
        let (name, rest) = row.split_once("` | ").expect("a row has a type");
        let kind = rest.split(" | ").next().expect("a row has a type");
        let at = kinds.iter().position(|it| *it == kind);
        let at = at.unwrap_or_else(|| panic!("unknown type {kind:?}"));
        [name.to_owned(), types[at].to_owned()]
    })
    .collect()
}

/// Converts the first two columns of a query to text.
fn pairs(rows: &[Vec<Value>]) -> Vec<[String; 2]> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|it| [text(&it[0]), text(&it[1])]).collect()
}

#[test]
fn types_and_metadata_are_as_documented() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    let _ = run(&dir, "synth:count=1000,flows=10").finish(0);
    let table = table(&dir);
    let seen = duckdb.query(&format!("DESCRIBE SELECT * FROM {table}"));
    let types = ["INTEGER", "BIGINT", "VARCHAR", "TIMESTAMP WITH TIME ZONE"];
    assert_eq!(pairs(&seen), columns(types));
    // The types stored in the file are checked, too, because DuckDB supports more types than other
    // engines.
    let stored = duckdb.query(&format!(
        "SELECT DISTINCT name, concat_ws(' ', type, converted_type, logical_type) FROM parquet_schema({table})
            WHERE type IS NOT NULL"
    ));
    let mut stored = pairs(&stored);
    let time = "INT64 TIMESTAMP_MICROS TimestampType(isAdjustedToUTC=1, unit=TimeUnit(MILLIS=<null>, MICROS=MicroSeconds(), NANOS=<null>))";
    let types = ["INT32", "INT64", "BYTE_ARRAY UTF8 StringType()", time];
    let mut documented = columns(types);
    stored.sort();
    documented.sort();
    assert_eq!(stored, documented);

    let metadata = duckdb.query(&format!(
        "SELECT DISTINCT decode(key), decode(value) FROM parquet_kv_metadata({table}) ORDER BY ALL"
    ));
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ["wqcap.docs", "/usr/share/doc/wqcap/docs/flows.md"],
        ["wqcap.flows.schema_version", "4"],
        ["wqcap.version", version],
    ];
    assert_eq!(pairs(&metadata), expected.map(|it| it.map(str::to_owned)));
    let page = page();
    for [key, _] in expected {
        assert!(page.contains(&format!("- `{key}`: ")), "{key}");
    }
    let writer = duckdb.query(&format!(
        "SELECT DISTINCT created_by FROM parquet_file_metadata({table})"
    ));
    assert_eq!(writer, [[format!("wqcap version {version}")]]);
    let done = duckdb.python(&example("import duckdb"), dir.path());
    assert_eq!(done.stdout.trim(), "1000", "{done}");
}

#[test]
fn queries_can_skip_row_groups() {
    let duckdb = need!(Duckdb::install());
    let dir = Dir::new();
    // The wire is paced, so that even a busy machine writes the records of evicted flows in time.
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

    // Statistics: a query for the last flow reads only row groups whose times include it.
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

    // Order: rows are sorted by `first_fwd_ns` within a row group.
    let unsorted = duckdb.query(&format!(
        "SELECT count(*) FROM (SELECT first_fwd_ns < lag(first_fwd_ns) OVER (PARTITION BY filename ORDER BY file_row_number) AS earlier
            FROM read_parquet({table}, filename = true, file_row_number = true)) WHERE earlier"
    ));
    assert!(
        number(&unsorted[0][0]) < groups.len() as u64,
        "{unsorted:?}"
    );

    // Bloom filters exist for addresses and names, and their size is bounded. They have no false
    // negatives and few false positives.
    let filters = duckdb.query(&format!(
        "SELECT DISTINCT path_in_schema, max(bloom_filter_length) FROM parquet_metadata({table})
            WHERE bloom_filter_offset IS NOT NULL GROUP BY ALL ORDER BY ALL"
    ));
    let mut lengths: BTreeMap<_, _> = filters
        .iter()
        .map(|it| (it[0].as_str().expect("a column has a name"), number(&it[1])))
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
            let value = value.as_str().expect("a value is text");
            let (no, all) = excluded(column, value);
            assert_eq!(all, groups.len() as u64);
            assert!(
                no < all,
                "{column} {value} is excluded from all {all} row groups"
            );
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

/// Returns the page's example for an engine: the Python block that begins with `import`.
fn example(import: &str) -> String {
    let page = page();
    let mut blocks = page.split("```python\n").skip(1);
    let block = blocks.find(|it| it.starts_with(import));
    let block = block.unwrap_or_else(|| panic!("no example begins with {import:?}"));
    block.split("```").next().expect("a block ends").to_owned()
}

/// Records the flows of all captures, and adds an unfinished `.part` file to the directory.
fn record_all(dir: &Dir) -> Finished {
    let (file, _) = Captures::find().everything(dir);
    let wire = format!("pcap:{}", file.display());
    let finished = run(dir, &wire).queues(3).finish(0);
    fs::write(dir.join("flows/wqcap-flows-1.parquet.part"), "PAR1").expect("the file is written");
    finished
}

/// Returns rows as sorted lines of text.
fn sorted<'v>(rows: impl IntoIterator<Item = &'v Vec<Value>>) -> Vec<String> {
    let mut rows: Vec<_> = rows
        .into_iter()
        .map(|it| Value::from(it.clone()).to_string())
        .collect();
    rows.sort();
    rows
}

/// Captures and ships files of two sensors. Returns the store's directory and the number of
/// captured frames by sensor.
fn ship_two_sensors(dir: &Dir) -> (PathBuf, Value) {
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
        let report: Value = serde_json::from_str(&done.stdout).expect("the report is JSON");
        assert_eq!(report["ledger"]["shipped"], frames, "{report}");
        captured.insert(sensor.into(), frames.into());
    }
    (store, captured.into())
}

/// Asserts that a reader reads the same types and rows as DuckDB, and that sums equal the ledger.
/// `types` has the reader's names of the four types of the page.
fn assert_reads(duckdb: &Duckdb, reader: &Reader, types: [&str; 4], import: &str) {
    let dir = Dir::new();
    let finished = record_all(&dir);
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
    let read = reader.read(
        &folder,
        id.as_str().expect("a Community ID"),
        number(middle),
    );
    let read_types = serde_json::from_value(read["types"].clone());
    let read_types: Vec<Vec<Value>> = read_types.expect("the reader prints types");
    assert_eq!(pairs(&read_types), columns(types));
    let rows = serde_json::from_value(read["rows"].clone());
    let rows: Vec<Vec<Value>> = rows.expect("the reader prints rows");
    assert_eq!(rows.len() as u64, number(&flows["records"]));
    for (row, expected) in sorted(&rows).iter().zip(sorted(&expected)) {
        assert_eq!(*row, expected);
    }
    let names = columns(types);
    let sum = |column: &str| -> u64 {
        let at = names.iter().position(|it| it[0] == column);
        let at = at.expect("the page has the column");
        rows.iter().map(|it| number(&it[at])).sum()
    };
    assert_eq!(sum("frames_fwd") + sum("frames_rev"), frames);
    assert_eq!(sum("bytes_fwd") + sum("bytes_rev"), number(&flows["bytes"]));
    assert_eq!((&read["named"], &read["since"]), (named, since));
    assert!(
        number(since) < rows.len() as u64 && number(named) > 0,
        "{query:?}"
    );

    let (store, captured) = ship_two_sensors(&dir);
    let sums = reader.sums(&store);
    assert_eq!(sums["blocks"], captured);
    assert_eq!(sums["flows"], captured);

    let done = reader.run(&example(import), &[], dir.path());
    assert_eq!(done.stdout.trim(), frames.to_string(), "{done}");
    skip::say(&format!(
        "{} records with {frames} frames, as in the ledger",
        rows.len()
    ));
}

#[test]
#[ignore = "downloads some hundred MB from PyPI: scripts/soak runs it"]
fn pyarrow_reads_the_same_as_duckdb() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pyarrow"));
    let types = ["int32", "int64", "string", "timestamp[us, tz=UTC]"];
    assert_reads(&duckdb, &reader, types, "import glob, pyarrow");
}

#[test]
#[ignore = "downloads some hundred MB from PyPI: scripts/soak runs it"]
fn spark_reads_the_same_as_duckdb() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pyspark"));
    let types = ["int", "bigint", "string", "timestamp"];
    assert_reads(&duckdb, &reader, types, "from pyspark.sql import");
}

#[test]
#[ignore = "downloads some hundred MB from PyPI: scripts/soak runs it"]
fn clickhouse_reads_the_same_as_duckdb() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("chdb"));
    let types = [
        "Nullable(Int32)",
        "Nullable(Int64)",
        "Nullable(String)",
        "Nullable(DateTime64(6, 'UTC'))",
    ];
    assert_reads(&duckdb, &reader, types, "import chdb");
}

#[test]
#[ignore = "downloads some hundred MB from PyPI: scripts/soak runs it"]
fn sail_reads_the_same_as_duckdb() {
    let duckdb = need!(Duckdb::install());
    let reader = need!(Reader::install("pysail"));
    let types = ["int", "bigint", "string", "timestamp"];
    assert_reads(&duckdb, &reader, types, "from pysail.spark import");
}
