//! Reads flow records of a time range.
//!
//! Invariants: a request reads at most [`MOST_ROWS`] records, and files of at most [`MOST_BYTES`]. All
//! requests together have one file in memory, and one row group of it, of at most [`MOST_GROUP_ROWS`]
//! records and [`MOST_GROUP_TEXT`] of texts. Each has an answer of at most [`MOST_ANSWERED`] records
//! and [`MOST_ANSWER_TEXT`] of texts. A file that cannot be read is named in the answer, and the
//! others are read.

mod decision;

use self::decision::{Decision, is_exact};
use crate::FlowsFolder;
use serde::{Deserialize, Serialize};
use std::{
    cell::Cell,
    cmp::Reverse,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};
use utoipa::ToSchema;
use wqcap_files::{folder::open::read_regular, index::FlowTerms};
use wqcap_ship::columns::Columns;

/// Maximum number of flow records that one request reads.
const MOST_ROWS: u64 = 4_000_000;
/// Maximum length in bytes of a file of flow records that is read. A record takes about 60 bytes.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum number of flow records in a row group that is read. A capture writes half as many, and
/// DuckDB 122,880.
const MOST_GROUP_ROWS: usize = 256 * 1024;
/// Maximum number of bytes of one column of texts in a row group: twice as much as the
/// longest names of a row group of a capture.
const MOST_COLUMN_TEXT: usize = 64 << 20;
/// Maximum number of bytes of all texts in a row group.
const MOST_GROUP_TEXT: usize = 128 << 20;
/// Maximum number of flow records in an answer.
pub const MOST_ANSWERED: usize = 10_000;
/// Maximum number of bytes of all texts in an answer, as JSON: 800 for each of [`MOST_ANSWERED`]
/// records.
const MOST_ANSWER_TEXT: usize = 8 << 20;

/// Lock of the request that reads a file. The file and a row group of it take up to 700 MB, and a
/// service has `MemoryMax`.
static READING: Mutex<()> = Mutex::new(());

/// Order of the records in an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowOrder {
    /// Most bytes of both directions first.
    #[default]
    Bytes,
    /// Most frames of both directions first.
    Frames,
    /// Earliest first frame first.
    First,
    /// Latest last frame first.
    Last,
    /// Longest time from first to last frame first.
    Duration,
}

/// Flow record. Times are decimal digits: nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FlowRow {
    /// Time of the first frame.
    #[serde(serialize_with = "crate::query::digits::digits")]
    #[schema(value_type = String)]
    pub first_ns: u64,
    /// Time of the last frame.
    #[serde(serialize_with = "crate::query::digits::digits")]
    #[schema(value_type = String)]
    pub last_ns: u64,
    /// Address that sent the first frame; the MAC address without IP.
    pub src: String,
    /// Source port of TCP, UDP or SCTP.
    pub src_port: Option<u16>,
    /// Address to which the first frame was sent.
    pub dst: String,
    /// Destination port of TCP, UDP or SCTP.
    pub dst_port: Option<u16>,
    /// IANA protocol number; absent without IP.
    pub protocol: Option<u8>,
    /// Frames from `src`.
    pub frames_fwd: u64,
    /// Frames from `dst`.
    pub frames_rev: u64,
    /// Bytes from `src`.
    pub bytes_fwd: u64,
    /// Bytes from `dst`.
    pub bytes_rev: u64,
    /// Server name in the client's TLS or QUIC hello.
    pub tls_sni: Option<String>,
    /// JA4 fingerprint of the client's hello.
    pub ja4: Option<String>,
    /// Host of the first HTTP request in clear.
    pub http_host: Option<String>,
    /// Community ID.
    pub community_id: Option<String>,
    /// Label of the captured port with the first frame from `src`.
    pub port_fwd: Option<String>,
    /// Label of the captured port with the first frame from `dst`.
    pub port_rev: Option<String>,
    /// Reason why the record ended.
    pub ended_by: Option<String>,
}

impl FlowRow {
    /// Returns the number of bytes of all texts of the record, as JSON.
    fn text_len(&self) -> usize {
        let optional = [
            &self.tls_sni,
            &self.ja4,
            &self.http_host,
            &self.community_id,
            &self.port_fwd,
            &self.port_rev,
            &self.ended_by,
        ];
        let texts = optional.into_iter().flatten().chain([&self.src, &self.dst]);
        let of_byte = |byte| match byte {
            b'"' | b'\\' => 2,
            0..0x20 => r"\u0000".len(),
            _ => 1,
        };
        texts.flat_map(|it| it.bytes()).map(of_byte).sum()
    }
}

/// Flow records of a query.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct FlowsAnswer {
    /// Records, in the requested order.
    pub flows: Vec<FlowRow>,
    /// Number of records that match the query.
    pub matched: u64,
    /// Set if `flows` lacks matching records: more than `limit`, or more than a request reads.
    pub truncated: bool,
    /// Set if the addresses, ports and protocols of records decide the whole filter. Otherwise some
    /// records may have no matching frame, and some frames no matching record: the filter tests
    /// something else, records of tunnels or with VLAN tags match, or records of ARP, which have no
    /// IP addresses, may match; or a record lacks its time or its addresses.
    pub exact: bool,
    /// Number of files, or directories of files, whose records are missing because they cannot be
    /// read. `notes` names them.
    pub unread: u64,
    /// Notes for people.
    pub notes: Vec<String>,
}

/// Query of a request for flow records.
#[derive(Debug)]
pub struct FlowsQuery {
    /// Time range in nanoseconds since 1970: a flow record matches if its flow has frames before
    /// the end and after the start.
    pub times: Range<u64>,
    /// pcap-filter expression; flow records decide only its plain terms.
    pub filter: String,
    /// Part of a TLS server name, an HTTP host or a JA4 fingerprint of the flow, in any case;
    /// empty: any.
    pub name: String,
    /// Community ID of the flow; empty: any.
    pub community_id: String,
    /// Order of the flow records in the answer.
    pub order: FlowOrder,
    /// Maximum number of flow records in the answer.
    pub limit: usize,
}

/// Reads the flow records that match a query. `is_wanted` is called before each row group of a file;
/// if it returns `false`, the answer lacks records without a note.
pub fn read(folder: &FlowsFolder, query: &FlowsQuery, is_wanted: &dyn Fn() -> bool) -> FlowsAnswer {
    let terms = FlowTerms::parse(&query.filter);
    let mut answer = FlowsAnswer {
        exact: is_exact(&query.filter, &terms),
        ..FlowsAnswer::default()
    };
    let mut rows = 0;
    for path in files(folder, &query.times, &mut answer) {
        if !is_wanted() {
            break;
        }
        if rows >= MOST_ROWS {
            answer.truncated = true;
            answer.notes.push(format!(
                "only {rows} flow records were read, which is the limit; choose a shorter period"
            ));
            break;
        }
        match of_file(&path, query, &terms, &mut answer, is_wanted) {
            Ok(read) => rows += read,
            Err(problem) => {
                answer.unread += 1;
                let path = path.display();
                let note = format!("{path}: the file cannot be read: {problem}");
                answer.notes.push(note);
            }
        }
    }
    keep_first(&mut answer, query);
    answer
}

/// Sorts the matching flow records, and keeps the first `limit` of them, as far as their texts have
/// at most [`MOST_ANSWER_TEXT`] bytes.
fn keep_first(answer: &mut FlowsAnswer, query: &FlowsQuery) {
    let flows = &mut answer.flows;
    match query.order {
        FlowOrder::Bytes => {
            flows.sort_by_key(|it| Reverse(it.bytes_fwd.saturating_add(it.bytes_rev)))
        }
        FlowOrder::Frames => {
            flows.sort_by_key(|it| Reverse(it.frames_fwd.saturating_add(it.frames_rev)))
        }
        FlowOrder::First => flows.sort_by_key(|it| it.first_ns),
        FlowOrder::Last => flows.sort_by_key(|it| Reverse(it.last_ns)),
        FlowOrder::Duration => {
            flows.sort_by_key(|it| Reverse(it.last_ns.saturating_sub(it.first_ns)));
        }
    }
    let mut text = 0;
    let fits = |row: &&FlowRow| {
        text += row.text_len();
        text <= MOST_ANSWER_TEXT
    };
    let kept = flows.iter().take(query.limit).take_while(fits).count();
    answer.truncated |= flows.len() > kept;
    flows.truncate(kept);
}

/// Lists the files that may have flow records of the time range `times`, in the order of their
/// names. A file is named after the time at which it was created, and has the records of flows that
/// ended from then on.
fn files(folder: &FlowsFolder, times: &Range<u64>, answer: &mut FlowsAnswer) -> Vec<PathBuf> {
    let entries = match fs::read_dir(&folder.dir) {
        Ok(entries) => entries,
        Err(e) => {
            let dir = folder.dir.display();
            answer.unread += 1;
            let note = format!("{dir}: the directory cannot be read: {e}");
            answer.notes.push(note);
            return Vec::new();
        }
    };
    let created = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?;
        let ns = name
            .strip_prefix("wqcap-flows-")?
            .strip_suffix(".parquet")?;
        ns.parse::<u64>().ok()
    };
    let all = entries.filter_map(|it| {
        let path = it.ok()?.path();
        Some((created(&path)?, path))
    });
    let mut all: Vec<_> = all.collect();
    all.sort();
    // A record is in a file after its last frame, and at most the delay after its first one.
    let delay = u64::try_from(folder.delay.as_nanos()).unwrap_or(u64::MAX);
    let latest = times.end.saturating_add(delay);
    let earliest = times.start.saturating_sub(delay);
    let within = |(ns, _): &(u64, PathBuf)| *ns >= earliest && *ns <= latest;
    all.into_iter()
        .filter(within)
        .map(|(_, path)| path)
        .collect()
}

/// Adds the matching flow records of a file to the answer. Returns the number of records that were
/// read.
fn of_file(
    path: &Path,
    query: &FlowsQuery,
    terms: &FlowTerms,
    answer: &mut FlowsAnswer,
    is_wanted: &dyn Fn() -> bool,
) -> Result<u64, String> {
    let _reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
    if !is_wanted() {
        return Ok(0);
    }
    let bytes = read_regular(path, MOST_BYTES).map_err(|e| e.to_string())?;
    let columns = Columns::new(bytes.into()).map_err(|e| e.to_string())?;
    let rows = columns.rows() as u64;
    if rows > MOST_ROWS {
        return Err(format!(
            "it has {rows} flow records; the limit is {MOST_ROWS}"
        ));
    }
    for group in columns.row_groups(MOST_GROUP_ROWS, MOST_COLUMN_TEXT) {
        if !is_wanted() {
            break;
        }
        let group = group.map_err(|e| e.to_string())?;
        add_rows(&FlowColumns::read(&group, terms)?, query, terms, answer);
    }
    Ok(rows)
}

/// Adds the matching flow records of a row group to the answer.
fn add_rows(table: &FlowColumns, query: &FlowsQuery, terms: &FlowTerms, answer: &mut FlowsAnswer) {
    let mut text: usize = answer.flows.iter().map(FlowRow::text_len).sum();
    for n in 0..table.first.len() {
        let Some(row) = table.row(n) else {
            answer.exact = false;
            continue;
        };
        if row.first_ns < query.times.end
            && row.last_ns >= query.times.start
            && has_name(&row, &query.name)
            && (query.community_id.is_empty()
                || row.community_id.as_ref() == Some(&query.community_id))
        {
            let decision = Decision::of(table, n, &row, terms);
            answer.exact &= decision.is_certain();
            if !decision.is_listed() {
                continue;
            }
            answer.matched += 1;
            text += row.text_len();
            answer.flows.push(row);
        }
        // Bounds the memory for records that are not in the answer.
        if answer.flows.len() > 4 * MOST_ANSWERED || text > 4 * MOST_ANSWER_TEXT {
            keep_first(answer, query);
            text = MOST_ANSWER_TEXT;
        }
    }
}

fn has_name(row: &FlowRow, name: &str) -> bool {
    let wanted = name.to_lowercase();
    let names = [&row.tls_sni, &row.http_host, &row.ja4];
    wanted.is_empty()
        || names
            .into_iter()
            .flatten()
            .any(|it| it.to_lowercase().contains(&wanted))
}

type Numbers = Vec<Option<u64>>;
type Texts = Vec<Option<String>>;

/// Columns of a Parquet file of flow records.
#[derive(Default)]
struct FlowColumns {
    first: Numbers,
    last: [Numbers; 2],
    ports: [Numbers; 2],
    protocol: Numbers,
    ethertype: Numbers,
    frames: [Numbers; 2],
    bytes: [Numbers; 2],
    src: Texts,
    dst: Texts,
    /// Source and destination of the tunnel; null without a filter to decide.
    outer: [Texts; 2],
    outer_protocol: Numbers,
    vlan: Numbers,
    sni: Texts,
    ja4: Texts,
    host: Texts,
    id: Texts,
    captured: [Texts; 2],
    ended_by: Texts,
}

impl FlowColumns {
    /// Reads the columns of a row group, as far as an answer or the terms of its filter need them.
    fn read(columns: &Columns, terms: &FlowTerms) -> Result<Self, String> {
        let numbers = |name| columns.numbers(name).map_err(|e| e.to_string());
        let left = Cell::new(MOST_GROUP_TEXT);
        let texts = |name| {
            let column = columns.texts(name).map_err(|e| e.to_string())?;
            let len = column.iter().flatten().map(String::len).sum();
            let now = left.get().checked_sub(len).ok_or_else(|| {
                format!(
                    "the texts of a row group have more than {MOST_GROUP_TEXT} bytes, which is the limit"
                )
            })?;
            left.set(now);
            Ok::<_, String>(column)
        };
        // Files of earlier versions lack some columns.
        let optional = |name| match columns.has(name) {
            true => texts(name),
            false => Ok(vec![None; columns.rows()]),
        };
        let optional_numbers = |name| match columns.has(name) {
            true => numbers(name),
            false => Ok(Vec::new()),
        };
        let outer = |name| match terms.is_empty() {
            true => Ok(vec![None; columns.rows()]),
            false => optional(name),
        };
        Ok(Self {
            first: numbers("first_fwd_ns")?,
            last: [numbers("last_fwd_ns")?, numbers("last_rev_ns")?],
            ports: [numbers("src_port")?, numbers("dst_port")?],
            protocol: numbers("protocol")?,
            ethertype: numbers("ethertype")?,
            frames: [numbers("frames_fwd")?, numbers("frames_rev")?],
            bytes: [numbers("bytes_fwd")?, numbers("bytes_rev")?],
            src: texts("src")?,
            dst: texts("dst")?,
            outer: [outer("outer_src")?, outer("outer_dst")?],
            outer_protocol: optional_numbers("outer_protocol")?,
            vlan: optional_numbers("vlan")?,
            sni: optional("tls_sni")?,
            ja4: optional("ja4")?,
            host: optional("http_host")?,
            id: optional("community_id")?,
            captured: [optional("port_fwd")?, optional("port_rev")?],
            ended_by: optional("ended_by")?,
        })
    }

    fn row(&self, n: usize) -> Option<FlowRow> {
        let number = |of: &Numbers| of.get(n).copied().flatten();
        let text = |of: &Texts| of.get(n).cloned().flatten();
        let small = |of: &Numbers| number(of).and_then(|it| u16::try_from(it).ok());
        let first_ns = number(&self.first)?;
        Some(FlowRow {
            first_ns,
            last_ns: self
                .last
                .iter()
                .filter_map(number)
                .max()
                .unwrap_or(first_ns),
            src: text(&self.src)?,
            src_port: small(&self.ports[0]),
            dst: text(&self.dst)?,
            dst_port: small(&self.ports[1]),
            protocol: number(&self.protocol).and_then(|it| u8::try_from(it).ok()),
            frames_fwd: number(&self.frames[0]).unwrap_or(0),
            frames_rev: number(&self.frames[1]).unwrap_or(0),
            bytes_fwd: number(&self.bytes[0]).unwrap_or(0),
            bytes_rev: number(&self.bytes[1]).unwrap_or(0),
            tls_sni: text(&self.sni),
            ja4: text(&self.ja4),
            http_host: text(&self.host),
            community_id: text(&self.id),
            port_fwd: text(&self.captured[0]),
            port_rev: text(&self.captured[1]),
            ended_by: text(&self.ended_by),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use parquet::{
        basic::Compression,
        column::writer::ColumnWriter,
        data_type::ByteArray,
        file::{
            properties::{EnabledStatistics, WriterProperties},
            writer::SerializedFileWriter,
        },
        schema::parser::parse_message_type,
    };
    use std::{sync::Arc, time::Duration};

    /// Names of the columns of texts that a table of the tests has.
    const TEXTS: [&str; 4] = ["src", "dst", "tls_sni", "http_host"];

    /// Writes a table of `rows` flow records, each with four texts of `len` bytes.
    fn table(dir: &Path, rows: usize, len: usize) -> FlowsFolder {
        let numbers = "first_fwd_ns last_fwd_ns last_rev_ns src_port dst_port protocol ethertype \
                       frames_fwd frames_rev bytes_fwd bytes_rev";
        let numbers = numbers
            .split_whitespace()
            .map(|it| format!("REQUIRED INT64 {it};"));
        let texts = TEXTS.map(|it| format!("REQUIRED BYTE_ARRAY {it} (STRING);"));
        let schema = numbers.chain(texts).collect::<String>();
        let schema = parse_message_type(&format!("message flows {{ {schema} }}"));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::None);
        let (schema, properties) = (schema.expect("a schema"), properties.build());
        let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties));
        let mut writer = writer.expect("begun");
        let mut group = writer.next_row_group().expect("a group");
        let text = ByteArray::from("a".repeat(len).as_str());
        while let Some(mut column) = group.next_column().expect("a column") {
            let written = match column.untyped() {
                ColumnWriter::Int64ColumnWriter(it) => it.write_batch(&vec![1; rows], None, None),
                ColumnWriter::ByteArrayColumnWriter(it) => {
                    it.write_batch(&vec![text.clone(); rows], None, None)
                }
                _ => panic!("a column of another type"),
            };
            assert_eq!(written.expect("written"), rows);
            column.close().expect("closed");
        }
        group.close().expect("closed");
        let file = writer.into_inner().expect("whole");
        fs::write(dir.join("wqcap-flows-1.parquet"), file).expect("written");
        FlowsFolder {
            dir: dir.into(),
            delay: Duration::ZERO,
        }
    }

    fn all() -> FlowsQuery {
        FlowsQuery {
            times: 0..u64::MAX,
            filter: String::new(),
            name: String::new(),
            community_id: String::new(),
            order: FlowOrder::Bytes,
            limit: MOST_ANSWERED,
        }
    }

    fn answer(rows: usize, len: usize) -> FlowsAnswer {
        let dir = tempfile::tempdir().expect("a directory");
        read(&table(dir.path(), rows, len), &all(), &|| true)
    }

    #[test]
    fn reading_ends_when_the_answer_is_not_wanted() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = table(dir.path(), 5, 10);
        for wanted in 0..4_u8 {
            let left = Cell::new(wanted);
            let is_wanted = || left.replace(left.get().saturating_sub(1)) > 0;
            let answer = read(&folder, &all(), &is_wanted);
            // Before the file, when its turn has come, and before its row group.
            let expected = if wanted < 3 { 0 } else { 5 };
            assert_eq!(answer.matched, expected, "{wanted}");
        }
    }

    #[test]
    fn texts_of_all_row_groups_are_limited() {
        let dir = tempfile::tempdir().expect("a directory");
        // 20 MiB of texts, which is less than one group may add.
        let folder = table(dir.path(), 5, 1 << 20);
        let mut answer = FlowsAnswer::default();
        for _ in 0..5 {
            let path = folder.dir.join("wqcap-flows-1.parquet");
            let terms = FlowTerms::parse("");
            let read = of_file(&path, &all(), &terms, &mut answer, &|| true);
            assert_eq!(read, Ok(5));
        }
        let text: usize = answer.flows.iter().map(FlowRow::text_len).sum();
        assert!(text <= 4 * MOST_ANSWER_TEXT, "{text}");
    }

    #[test]
    fn texts_of_an_answer_are_limited() {
        let whole = answer(2000, 1000);
        assert_eq!((whole.flows.len(), whole.truncated), (2000, false));
        // Two records have 8 MiB of texts.
        let long = answer(12, 1 << 20);
        assert_eq!((long.flows.len(), long.matched), (2, 12));
        assert!(long.truncated && long.unread == 0, "{:?}", long.notes);
    }

    #[test]
    fn a_row_group_with_too_many_texts_is_named() {
        let read = answer(32_000, 1000);
        assert_eq!((read.matched, read.unread), (32_000, 0), "{:?}", read.notes);
        // Each column is within its limit, and all of them are not.
        let refused = answer(36_000, 1000);
        assert_eq!((refused.matched, refused.unread), (0, 1));
        assert!(refused.notes[0].contains("more than 134217728 bytes"));
    }
}
