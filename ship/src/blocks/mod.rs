//! Table of a file's parts as a Parquet file: byte range, time range and flows of each part.
//!
//! Its columns are those of `docs/fleet.md`. A part is readable when the object's first
//! `head_bytes` bytes precede it. The column types are those that every engine reads: signed
//! integers, and timestamps in microseconds with additional columns in nanoseconds.

pub(crate) mod flow_filter;

use bytes::Bytes;
use flow_filter::FlowFilter;
use parquet::{
    basic::Compression,
    data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedFileWriter, SerializedRowGroupWriter},
    },
    schema::{parser::parse_message_type, types::ColumnPath},
};
use std::{borrow::Cow, sync::Arc};
use wqcap_files::index::{CaptureIndex, IndexBlock, IndexFlow, IndexKey};

/// Version of the Parquet columns of `blocks/`, written to each file.
pub(crate) const SCHEMA_VERSION: &str = "2";
/// Earlier version of the Parquet columns of `blocks/`, without flow filters.
pub(crate) const WITHOUT_FILTERS: &str = "1";
/// Name of the Parquet column with the flow filters.
pub(crate) const FLOW_FILTER: &str = "flow_filter";
/// Key of the Parquet metadata that holds the version of the columns of `blocks/`.
pub(crate) const SCHEMA_VERSION_KEY: &str = "wqcap.blocks.schema_version";
/// Parquet schema of a table in `blocks/`, in the order in which [`write`] writes the columns.
const SCHEMA: &str = "message blocks {
    OPTIONAL BYTE_ARRAY object (STRING);
    REQUIRED INT64 object_bytes;
    REQUIRED INT64 head_bytes;
    REQUIRED INT64 byte_start;
    REQUIRED INT64 byte_end;
    REQUIRED INT64 first_us (TIMESTAMP(MICROS,true));
    REQUIRED INT64 last_us (TIMESTAMP(MICROS,true));
    REQUIRED INT64 first_ns;
    REQUIRED INT64 last_ns;
    REQUIRED INT64 frames;
    OPTIONAL INT32 queue;
    OPTIONAL INT64 lost;
    OPTIONAL BYTE_ARRAY flow_filter;
}";

/// Object of the store whose parts a table in `blocks/` describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectInfo<'a> {
    /// Key of the capture file's object; `None`: its packets are not in the store.
    pub(crate) key: Option<&'a str>,
    /// Length of the capture file's object in bytes.
    pub(crate) bytes: u64,
    /// Receive queue whose frames the object holds; `None`: all queues.
    pub(crate) queue: Option<u16>,
}

/// Encodes the index of a capture file as a Parquet table of `blocks/`.
pub(crate) fn write(index: &CaptureIndex, of: ObjectInfo<'_>) -> Result<Bytes, ParquetError> {
    let facts = [
        (SCHEMA_VERSION_KEY, SCHEMA_VERSION),
        ("wqcap.version", env!("CARGO_PKG_VERSION")),
    ];
    let facts = facts.map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned()));
    // Filters are random bits: they can neither be compressed nor ordered.
    let filters = ColumnPath::from(FLOW_FILTER);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_column_compression(filters.clone(), Compression::UNCOMPRESSED)
        .set_column_dictionary_enabled(filters.clone(), false)
        .set_column_statistics_enabled(filters, EnabledStatistics::None)
        .set_created_by(concat!("wqcap version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(facts.into()))
        .build();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties))?;
    let rows = rows(index, of.bytes);
    if !rows.is_empty() {
        let mut group = writer.next_row_group()?;
        write_rows(&mut group, &rows, index.head, of)?;
        // Parts that are not in the store are never fetched, so they need no filters.
        let filters = match of.key {
            Some(_) => filters_of(index, &rows)?,
            None => vec![None; rows.len()],
        };
        let filters = filters.into_iter().map(|it| it.map(ByteArray::from));
        write_optional::<ByteArrayType, _>(&mut group, filters)?;
        group.close()?;
    }
    Ok(writer.into_inner()?.into())
}

/// Returns the parts of a capture file that can be read separately, each a row of its table in
/// `blocks/`. A file without such parts has one part, the whole file.
fn rows(index: &CaptureIndex, bytes: u64) -> Cow<'_, [IndexBlock]> {
    if index.apart {
        return index.blocks.as_slice().into();
    }
    let joined = index.blocks.iter().cloned().reduce(|mut a, b| {
        a.flows.extend(b.flows);
        a.first_ns = a.first_ns.min(b.first_ns);
        a.last_ns = a.last_ns.max(b.last_ns);
        a.frames += b.frames;
        a.lost = a.lost.zip(b.lost).map(|(a, b)| a.saturating_add(b));
        a.others |= b.others;
        a
    });
    let whole = joined.map(|mut it| {
        (it.start, it.end) = (0, bytes);
        it
    });
    whole.into_iter().collect()
}

/// Writes all columns of a table of parts except the flow filters.
fn write_rows<W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: &[IndexBlock],
    head: u64,
    of: ObjectInfo<'_>,
) -> Result<(), ParquetError> {
    let key = of.key.map(ByteArray::from);
    write_optional::<ByteArrayType, _>(group, rows.iter().map(|_| key.clone()))?;
    let numbers: [fn(&IndexBlock, u64, u64) -> u64; 9] = [
        |_, _, bytes| bytes,
        |_, head, _| head,
        |row, _, _| row.start,
        |row, _, _| row.end,
        |row, _, _| row.first_ns / 1000,
        |row, _, _| row.last_ns / 1000,
        |row, _, _| row.first_ns,
        |row, _, _| row.last_ns,
        |row, _, _| row.frames,
    ];
    for number in numbers {
        let values = rows.iter().map(|it| signed(number(it, head, of.bytes)));
        write_column::<Int64Type, _>(group, &values.collect::<Vec<_>>(), None)?;
    }
    write_optional::<Int32Type, _>(group, rows.iter().map(|_| of.queue.map(i32::from)))?;
    write_optional::<Int64Type, _>(group, rows.iter().map(|it| it.lost.map(signed)))
}

/// Writes the next Parquet column of a table of parts. An optional column has definition levels.
fn write_column<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Ok(());
    };
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// Writes the next Parquet column of a table of parts from one optional value per row.
fn write_optional<T: DataType, W: std::io::Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    rows: impl Iterator<Item = Option<T::T>>,
) -> Result<(), ParquetError> {
    let rows: Vec<_> = rows.collect();
    let levels: Vec<_> = rows.iter().map(|it| it.is_some().into()).collect();
    let values: Vec<_> = rows.into_iter().flatten().collect();
    write_column::<T, W>(group, &values, Some(&levels))
}

/// Returns the flow filter of each part of a capture file; `None`: the part may have any flow.
fn filters_of(
    index: &CaptureIndex,
    rows: &[IndexBlock],
) -> Result<Vec<Option<Vec<u8>>>, ParquetError> {
    let of_flows: Vec<_> = index.flows.iter().map(IndexFlow::keys).collect();
    let filter = |row: &IndexBlock| {
        // An index read from a disk may refer to missing flows.
        let flows = row.flows.iter().map(|it| of_flows.get(*it as usize));
        let flows: Option<Vec<_>> = flows.collect();
        let Some(flows) = flows.filter(|_| !row.others) else {
            return Ok(None);
        };
        let mut keys: Vec<IndexKey> = flows.into_iter().flatten().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        let filter = FlowFilter::new(&keys, row.end - row.start);
        filter.write().map(Some)
    };
    rows.iter().map(filter).collect()
}

/// Converts a number to the signed integer of a Parquet column. Time stamps in nanoseconds fit
/// until the year 2262.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipper::fixtures;
    use parquet::{
        file::reader::{FileReader, SerializedFileReader},
        record::RowAccessor,
    };
    use wqcap_files::index::FlowTerms;

    #[test]
    fn each_part_is_a_row_with_portable_types() {
        let dir = tempfile::tempdir().expect("dir");
        let file = fixtures::capture(dir.path(), 3, 7, 10);
        let index = wqcap_files::index::build(&file, None, || true);
        let mut index = index.expect("reads").expect("made");
        assert_eq!(index.blocks[0].lost, None, "pcap has no drop counts");
        index.blocks[0].lost = Some(5);
        let bytes = std::fs::metadata(&file).expect("there").len();
        let of = |key, queue| ObjectInfo { key, bytes, queue };
        let table = write(&index, of(Some("packets/x.pcap"), Some(3))).expect("written");
        let reader = SerializedFileReader::new(table).expect("Parquet");
        let rows: Vec<_> = reader.get_row_iter(None).expect("rows").collect();
        let rows: Vec<_> = rows.into_iter().map(|it| it.expect("a row")).collect();
        assert_eq!(rows.len(), index.blocks.len());
        let row = &rows[0];
        assert_eq!(row.get_string(0).expect("a text"), "packets/x.pcap");
        let signed = |n: u64| i64::try_from(n).expect("small");
        let longs = [1, 2, 3, 4, 7, 8, 9].map(|i| row.get_long(i).expect("a number"));
        let block = &index.blocks[0];
        let expected = [
            bytes,
            index.head,
            block.start,
            block.end,
            block.first_ns,
            block.last_ns,
            10,
        ];
        assert_eq!(longs, expected.map(signed));
        let first = row.get_timestamp_micros(5).expect("a time");
        assert_eq!(first, signed(block.first_ns / 1000));
        assert_eq!(row.get_int(10).expect("a number"), 3);
        assert_eq!(row.get_long(11).expect("a number"), 5);
        let filter = row.get_bytes(12).expect("bytes");
        let filter = FlowFilter::read(filter.data()).expect("a filter");
        assert!(filter.may_hold(&index.flows[0].keys()));
        assert!(!filter.may_hold(&FlowTerms::parse("host 10.0.0.1").keys()));

        index.blocks[0].lost = None;
        let table = write(&index, of(None, None)).expect("written");
        let reader = SerializedFileReader::new(table).expect("Parquet");
        let row = reader.get_row_iter(None).expect("rows").next();
        let row = row.expect("one").expect("a row");
        assert!(
            row.get_string(0).is_err() && row.get_int(10).is_err() && row.get_long(11).is_err(),
            "null"
        );
        assert!(row.get_bytes(12).is_err(), "null");
        index.blocks[0].others = true;
        let filters = filters_of(&index, &super::rows(&index, bytes)).expect("made");
        assert_eq!(filters, [None], "flows that are not in the index");
    }

    #[test]
    fn a_file_without_separate_parts_is_one_part() {
        let dir = tempfile::tempdir().expect("dir");
        let file = fixtures::capture(dir.path(), 0, 7, 10);
        let index = wqcap_files::index::build(&file, None, || true);
        let mut index = index.expect("reads").expect("made");
        let before = index.blocks[0].clone();
        index.blocks.extend(index.blocks.clone());
        index.apart = false;
        let whole = rows(&index, 5000);
        let mut expected = before.clone();
        (expected.start, expected.end, expected.frames) = (0, 5000, 20);
        expected.flows.extend(before.flows);
        assert_eq!(*whole, [expected]);
        let filter = filters_of(&index, &whole).expect("made");
        let filter = FlowFilter::read(filter[0].as_ref().expect("of all")).expect("a filter");
        assert!(filter.may_hold(&index.flows[0].keys()));
        index.blocks.clear();
        assert_eq!(*rows(&index, 5000), []);
    }
}
