//! One Parquet file: written under a name of its own, complete when it has its final one.

use super::{
    columns::{COLUMNS, Column, Values},
    flow::FlowRecord,
};
use crate::name::PART;
use parquet::{
    basic::Compression,
    data_type::{ByteArray, ByteArrayType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        properties::{EnabledStatistics, WriterProperties},
        writer::{SerializedColumnWriter, SerializedFileWriter},
    },
    schema::{parser::parse_message_type, types::Type},
};
use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// An open file of flow records.
pub(super) struct File {
    writer: SerializedFileWriter<fs::File>,
    part: PathBuf,
    path: PathBuf,
    records: u64,
}

impl File {
    /// Creates the file of the interval that ends about `ns`, by the system's clock.
    pub(super) fn create(dir: &Path, ns: u64) -> Result<Self, String> {
        let path = dir.join(format!("wqcap-flows-{ns}.parquet"));
        let mut part = OsString::from(&path);
        part.push(PART);
        let part = PathBuf::from(part);
        let failure =
            |e: &dyn std::fmt::Display| format!("flows.dir: cannot create {}: {e}", part.display());
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&part)
            .map_err(|e| failure(&e))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_created_by(concat!("wqcap ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let writer = schema()
            .and_then(|schema| SerializedFileWriter::new(file, schema, Arc::new(properties)))
            .map_err(|e| failure(&e))?;
        Ok(Self {
            writer,
            part,
            path,
            records: 0,
        })
    }

    /// Writes records as one row group.
    pub(super) fn write(&mut self, records: &[FlowRecord]) -> Result<(), String> {
        self.records += records.len() as u64;
        self.row_group(records).map_err(|e| self.failure(&e))
    }

    fn row_group(&mut self, records: &[FlowRecord]) -> Result<(), ParquetError> {
        let mut group = self.writer.next_row_group()?;
        for column in COLUMNS {
            // The schema is made of the same columns.
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            column.write(&mut writer, records)?;
            writer.close()?;
        }
        group.close().map(drop)
    }

    /// Records that were given to it.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// Removes what cannot be completed: without its end, no reader opens it.
    pub(super) fn discard(self) {
        let _ = fs::remove_file(&self.part);
    }

    /// Completes the file: its footer, its bytes on disk, its name.
    pub(super) fn finish(&mut self) -> Result<PathBuf, String> {
        self.writer.finish().map_err(|e| self.failure(&e))?;
        let settle = || -> io::Result<()> {
            self.writer.inner().sync_all()?;
            fs::rename(&self.part, &self.path)?;
            // The new name is an entry of the folder, which is a file of its own.
            let folder = self.path.parent().unwrap_or(Path::new("."));
            fs::File::open(folder)?.sync_all()
        };
        settle().map_err(|e| self.failure(&e))?;
        Ok(self.path.clone())
    }

    fn failure(&self, e: &dyn std::fmt::Display) -> String {
        format!("flows.dir: {}: {e}", self.part.display())
    }
}

/// All columns may be null in the schema: only some ever are.
fn schema() -> Result<Arc<Type>, ParquetError> {
    let mut text = String::from("message flows {\n");
    for Column {
        name,
        logical,
        values,
    } in COLUMNS
    {
        let physical = match values {
            Values::Int(_) => "INT32",
            Values::Long(_) => "INT64",
            Values::Text(_) => "BYTE_ARRAY",
        };
        text += &format!("OPTIONAL {physical} {name} ({logical});\n");
    }
    parse_message_type(&(text + "}")).map(Arc::new)
}

impl Column {
    fn write(
        &self,
        writer: &mut SerializedColumnWriter<'_>,
        records: &[FlowRecord],
    ) -> Result<(), ParquetError> {
        let mut levels = Vec::with_capacity(records.len());
        match self.values {
            Values::Int(of) => {
                // Parquet's unsigned numbers are the same bits in its signed types.
                let values = present(records, &mut levels, |it| Some(of(it)?.cast_signed()));
                let column = writer.typed::<Int32Type>();
                column.write_batch(&values, Some(&levels), None)
            }
            Values::Long(of) => {
                let values = present(records, &mut levels, |it| Some(of(it)?.cast_signed()));
                let column = writer.typed::<Int64Type>();
                column.write_batch(&values, Some(&levels), None)
            }
            Values::Text(of) => {
                let bytes = |it: &FlowRecord| Some(ByteArray::from(of(it)?.into_bytes()));
                let values = present(records, &mut levels, bytes);
                let column = writer.typed::<ByteArrayType>();
                column.write_batch(&values, Some(&levels), None)
            }
        }
        .map(drop)
    }
}

/// The values that are there, and for each record whether there is one.
fn present<T>(
    records: &[FlowRecord],
    levels: &mut Vec<i16>,
    of: impl Fn(&FlowRecord) -> Option<T>,
) -> Vec<T> {
    let mut values = Vec::with_capacity(records.len());
    for record in records {
        let value = of(record);
        levels.push(value.is_some().into());
        values.extend(value);
    }
    values
}
