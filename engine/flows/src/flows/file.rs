//! Writer of one Parquet file: written under a temporary name, renamed when complete.
//!
//! Queries read only parts of a file. Rows of a row group are ordered by time, which excludes whole
//! files, row groups and pages. Bloom filters of addresses and names exclude row groups without a
//! value.

use super::row::{Column, ParquetRow, SORTED_BY, Values};
use parquet::{
    basic::Compression,
    data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, SortingColumn},
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    schema::{
        parser::parse_message_type,
        types::{ColumnPath, Type},
    },
};
use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use wqcap_files::name::PART;

/// Maximum number of rows in a Parquet row group, which is held in memory until it is written.
pub(super) const MOST_ROWS: usize = 128 * 1024;
/// False positive rate of a Parquet bloom filter: the share of row groups without a searched value
/// that the filter does not exclude. A filter of [`MOST_ROWS`] values then has 256 KiB; filters of
/// fewer values are smaller.
const FALSE_HITS: f64 = 0.01;

/// Reason why a Parquet file cannot be written.
#[derive(Debug, thiserror::Error)]
pub(super) enum ParquetFileError {
    /// The file system refuses to create, sync or rename the file.
    #[error("flows.dir: cannot {action} {}: {source}", .part.display())]
    Io {
        /// Action on the Parquet file that failed: `create` or `write`.
        action: &'static str,
        /// Temporary path of the Parquet file.
        part: PathBuf,
        source: io::Error,
    },
    /// The Parquet library fails, also because the file system refuses a write.
    #[error("flows.dir: cannot {action} {}: {source}", .part.display())]
    Parquet {
        /// Action on the Parquet file that failed: `create` or `write`.
        action: &'static str,
        /// Temporary path of the Parquet file.
        part: PathBuf,
        source: ParquetError,
    },
}

/// Open Parquet file of one of the tables: flows, DNS or DHCP.
pub(super) struct ParquetFile {
    writer: SerializedFileWriter<fs::File>,
    part: PathBuf,
    path: PathBuf,
    rows: u64,
}

impl ParquetFile {
    /// Creates the Parquet file of a table for one interval; `ns` is the present system time.
    #[expect(
        clippy::disallowed_methods,
        reason = "create_new fails if the name exists"
    )]
    pub(super) fn create<R: ParquetRow>(dir: &Path, ns: u64) -> Result<Self, ParquetFileError> {
        let path = dir.join(format!("wqcap-{}-{ns}.parquet", R::TABLE));
        let mut part = OsString::from(&path);
        part.push(PART);
        let part = PathBuf::from(part);
        let action = "create";
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .map_err(|source| ParquetFileError::Io {
                action,
                part: part.clone(),
                source,
            })?;
        let writer = schema::<R>().and_then(|schema| {
            SerializedFileWriter::new(file, schema, Arc::new(properties::<R>()))
        });
        match writer {
            Ok(writer) => Ok(Self {
                writer,
                part,
                path,
                rows: 0,
            }),
            Err(source) => Err(ParquetFileError::Parquet {
                action,
                part,
                source,
            }),
        }
    }

    /// Writes at most [`MOST_ROWS`] rows as one Parquet row group, sorted by time. The rows must
    /// belong to the file's table.
    pub(super) fn write<R: ParquetRow>(&mut self, rows: &mut [R]) -> Result<(), ParquetFileError> {
        self.rows += rows.len() as u64;
        rows.sort_unstable_by_key(R::ns);
        self.row_group(rows).map_err(|e| self.failure(e))
    }

    fn row_group<R: ParquetRow>(&mut self, rows: &[R]) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in R::COLUMNS {
            // The schema is made from the same columns.
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            column.write(&mut writer, rows)?;
            writer.close()?;
        }
        group.close().map(drop)
    }

    /// Returns the number of rows written to the Parquet file so far.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// Removes an incomplete Parquet file: without a footer, no reader can open it.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.part);
    }

    /// Completes the Parquet file: writes the footer, syncs the data, and renames the file.
    pub(super) fn finish(&mut self) -> Result<PathBuf, ParquetFileError> {
        self.writer.finish().map_err(|e| self.failure(e))?;
        let settle = || -> io::Result<()> {
            self.writer.inner().sync_all()?;
            fs::rename(&self.part, &self.path)?;
            // The rename is on disk only after the directory is synced.
            let folder = self.path.parent().unwrap_or(Path::new("."));
            wqcap_files::folder::open::open_folder(folder)?.sync_all()
        };
        settle().map_err(|source| ParquetFileError::Io {
            action: "write",
            part: self.part.clone(),
            source,
        })?;
        Ok(self.path.clone())
    }

    fn failure(&self, source: ParquetError) -> ParquetFileError {
        ParquetFileError::Parquet {
            action: "write",
            part: self.part.clone(),
            source,
        }
    }
}

fn properties<R: ParquetRow>() -> WriterProperties {
    let version = format!("wqcap.{}.schema_version", R::TABLE);
    let facts = [
        (version.as_str(), R::SCHEMA_VERSION),
        ("wqcap.version", env!("CARGO_PKG_VERSION")),
        ("wqcap.docs", R::DOCS),
    ];
    let facts = facts.map(|(key, value)| KeyValue::new(key.to_owned(), value.to_owned()));
    let order = (0..).take(SORTED_BY).map(|column_idx| SortingColumn {
        column_idx,
        descending: false,
        nulls_first: false,
    });
    let mut properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        // Parquet's own library parses this format.
        .set_created_by(concat!("wqcap version ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_key_value_metadata(Some(facts.into()))
        .set_sorting_columns(Some(order.collect()));
    for column in &R::COLUMNS[..SORTED_BY] {
        properties = properties
            .set_column_statistics_enabled(ColumnPath::from(column.name), EnabledStatistics::Page);
    }
    for column in R::COLUMNS {
        if matches!(column.values, Values::Name(_)) {
            properties = properties
                .set_column_bloom_filter_fpp(ColumnPath::from(column.name), FALSE_HITS)
                .set_column_bloom_filter_max_ndv(ColumnPath::from(column.name), MOST_ROWS as u64);
        }
    }
    properties.build()
}

/// Returns the Parquet schema of a table. All columns are optional in it, though only some contain
/// nulls.
fn schema<R: ParquetRow>() -> Result<Arc<Type>, ParquetError> {
    let mut text = format!("message {} {{\n", R::TABLE);
    for Column { name, values } in R::COLUMNS {
        text += &match values {
            Values::Int(_) => format!("OPTIONAL INT32 {name};\n"),
            Values::Long(_) => format!("OPTIONAL INT64 {name};\n"),
            Values::Time(_) => format!("OPTIONAL INT64 {name} (TIMESTAMP(MICROS,true));\n"),
            Values::Text(_) | Values::Name(_) => format!("OPTIONAL BYTE_ARRAY {name} (STRING);\n"),
        };
    }
    parse_message_type(&(text + "}")).map(Arc::new)
}

impl<R> Column<R> {
    fn write(
        &self,
        writer: &mut SerializedColumnWriter<'_>,
        rows: &[R],
    ) -> Result<(), ParquetError> {
        let mut levels = Vec::with_capacity(rows.len());
        match self.values {
            Values::Int(of) => {
                let values = present(rows, &mut levels, |it| of(it).map(i32::from));
                let column = writer.typed::<Int32Type>();
                column.write_batch(&values, Some(&levels), None)
            }
            Values::Long(of) => {
                // A signed 64-bit number has room for nanoseconds until the year 2262.
                let signed = |it: &R| of(it).map(|n| i64::try_from(n).unwrap_or(i64::MAX));
                let values = present(rows, &mut levels, signed);
                let column = writer.typed::<Int64Type>();
                column.write_batch(&values, Some(&levels), None)
            }
            Values::Time(of) => {
                let us = |it: &R| of(it).map(|ns| (ns / 1000).cast_signed());
                let values = present(rows, &mut levels, us);
                let column = writer.typed::<Int64Type>();
                column.write_batch(&values, Some(&levels), None)
            }
            Values::Text(of) | Values::Name(of) => {
                let bytes = |it: &R| Some(ByteArray::from(of(it)?.into_bytes()));
                let values = present(rows, &mut levels, bytes);
                let column = writer.typed::<ByteArrayType>();
                column.write_batch(&values, Some(&levels), None)
            }
        }
        .map(drop)
    }
}

/// Returns the values of a Parquet column without the missing ones. Appends a definition level to
/// `levels` for each row: 1 if the row has a value, otherwise 0.
fn present<R, T>(rows: &[R], levels: &mut Vec<i16>, of: impl Fn(&R) -> Option<T>) -> Vec<T> {
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        let value = of(row);
        levels.push(value.is_some().into());
        values.extend(value);
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flows::{Direction, FlowEndReason, FlowRecord};
    use parquet::{
        file::reader::{FileReader, SerializedFileReader},
        record::RowAccessor,
    };
    use wqcap_frame::{FiveTuple, FlowKey};

    const START: u64 = 1_700_000_000_000_000_000;

    /// Returns a flow record of one frame at `first_ns`, and of one frame back at `back_ns` if that
    /// is set.
    fn record(first_ns: u64, back_ns: Option<u64>) -> FlowRecord {
        let way = |ns| Direction {
            frames: 1,
            bytes: 60,
            first_ns: ns,
            last_ns: ns,
        };
        FlowRecord {
            tuple: FiveTuple::default(),
            vlans: [FlowKey::UNTAGGED; 2],
            network: None,
            ethertype: 0x0806,
            icmp: None,
            outer: None,
            ways: [way(first_ns), back_ns.map(way).unwrap_or_default()],
            tcp_flags: None,
            queue: 0,
            ports: [None, None],
            end: FlowEndReason::Idle,
            names: None,
        }
    }

    #[test]
    fn a_row_group_is_in_the_order_of_first_frames() {
        let mut records: Vec<_> = (0..50)
            .map(|at| record(START + 999_999 * (at * 7 % 50), None))
            .collect();
        records[3] = record(START + 50_000_001, Some(START + 50_001_002));
        // The clock may have any value.
        records[9] = record(u64::MAX, Some(0));
        let mut expected: Vec<_> = records
            .iter()
            .map(|it| i64::try_from(it.first_ns()).unwrap_or(i64::MAX))
            .collect();
        expected.sort_unstable();

        let dir = tempfile::tempdir().unwrap();
        let mut file = ParquetFile::create::<FlowRecord>(dir.path(), START).unwrap();
        file.write(&mut records).unwrap();
        let path = file.finish().unwrap();
        let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
        let group = reader.metadata().row_group(0);
        let order = group.sorting_columns().unwrap().iter().map(|it| {
            let column = group.column(usize::try_from(it.column_idx).unwrap());
            (column.column_path().string(), it.descending)
        });
        let named = ["first_fwd", "first_fwd_ns"].map(|it| (it.to_owned(), false));
        assert_eq!(order.collect::<Vec<_>>(), named);

        let rows: Vec<_> = reader.get_row_iter(None).unwrap().collect();
        let rows: Vec<_> = rows.into_iter().map(Result::unwrap).collect();
        let ns: Vec<_> = rows.iter().map(|row| row.get_long(1).unwrap()).collect();
        assert_eq!(ns, expected);
        let us: Vec<_> = rows
            .iter()
            .map(|row| row.get_timestamp_micros(0).unwrap())
            .collect();
        let cut: Vec<_> = expected[..49].iter().map(|ns| ns / 1000).collect();
        assert_eq!(us[..49], cut);
        assert_eq!(us[49], (u64::MAX / 1000).cast_signed());
        // Times of the way back; null for flows without one.
        let back = rows
            .iter()
            .map(|row| (row.get_timestamp_micros(4).ok(), row.get_long(5).ok()))
            .filter(|it| *it != (None, None));
        let expected = [
            (Some(1_700_000_000_050_001), Some(1_700_000_000_050_001_002)),
            (Some(0), Some(0)),
        ];
        assert_eq!(back.collect::<Vec<_>>(), expected);
    }
}
