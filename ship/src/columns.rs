//! Columns of any Parquet file, by name.
//!
//! Invariant: no file causes a panic, and none takes memory for more than 2^24 rows.

use bytes::Bytes;
use parquet::{
    basic::{ConvertedType, Type},
    column::reader::get_typed_column_reader,
    data_type::{ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::reader::{FileReader, SerializedFileReader},
};
use std::panic::{self, AssertUnwindSafe};

/// Maximum number of rows of a Parquet file.
const MOST_ROWS: usize = 1 << 24;

/// Columns of a Parquet file. Errors name the column, but not the file.
pub struct Columns {
    reader: SerializedFileReader<Bytes>,
    rows: usize,
}

/// Reason why a Parquet file or one of its columns cannot be read. It does not name the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetColumnError {
    /// The file is not a Parquet file, or its metadata is damaged.
    #[error("the file cannot be read as Parquet: {0}")]
    File(#[source] ParquetError),
    /// The Parquet file has more rows than the limit.
    #[error("the Parquet file has {0} rows; the limit is {MOST_ROWS}")]
    TooManyRows(usize),
    /// No column of the Parquet file has the name.
    #[error("the Parquet file has no column {0}")]
    Absent(String),
    /// Several columns of the Parquet file have the name.
    #[error("the Parquet file has several columns with the name {0}")]
    Ambiguous(String),
    /// The column has lists of values.
    #[error("column {0} is a list; it must be a plain value")]
    List(String),
    /// The physical type of the column is not the one that the reader needs.
    #[error("column {0} has the type {1}; {2}")]
    PhysicalType(String, Type, &'static str),
    /// The column has numbers that count something else, such as times.
    #[error("column {0} has the type {1} ({2}); cast it to BIGINT")]
    ConvertedType(String, Type, ConvertedType),
    /// A number of the column is negative.
    #[error("column {0}: {1} is below 0")]
    Negative(String, i64),
    /// The column has a null where a value is needed.
    #[error("column {0}: is null")]
    Null(String),
    /// The column cannot be decoded.
    #[error("column {0}: {1}")]
    Decode(String, #[source] ParquetError),
    /// The decoder panicked on the values of the column.
    #[error("the values of column {0} are damaged")]
    Damaged(String),
    /// The number of values of the column is not the number of rows of the Parquet file.
    #[error("column {0} has {1} values for {2} rows")]
    Length(String, usize, usize),
}

use ParquetColumnError as Fault;

impl Columns {
    /// Opens a Parquet file that is in memory.
    ///
    /// # Errors
    /// The bytes are not a Parquet file, or it has more rows than the limit.
    pub fn new(file: Bytes) -> Result<Self, Fault> {
        let reader = SerializedFileReader::new(file).map_err(Fault::File)?;
        let rows = reader.metadata().file_metadata().num_rows();
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        if rows > MOST_ROWS {
            return Err(Fault::TooManyRows(rows));
        }
        Ok(Self { reader, rows })
    }

    /// Returns the number of rows of the Parquet file.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the value of a metadata key of the Parquet file.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&str> {
        let facts = self
            .reader
            .metadata()
            .file_metadata()
            .key_value_metadata()?;
        facts.iter().find(|it| it.key == key)?.value.as_deref()
    }

    /// Returns `true` if the Parquet file has a column of this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        !self.places(name).is_empty()
    }

    /// Reads a Parquet column of whole numbers of at least 0, one per row; `None`: null.
    ///
    /// # Errors
    /// The column is missing, has another type, or is damaged.
    pub fn numbers(&self, name: &str) -> Result<Vec<Option<u64>>, Fault> {
        let place = self.place(name)?;
        let column = self.schema().column(place);
        let is_other = matches!(
            column.converted_type(),
            ConvertedType::DECIMAL
                | ConvertedType::DATE
                | ConvertedType::TIME_MILLIS
                | ConvertedType::TIME_MICROS
                | ConvertedType::TIMESTAMP_MILLIS
                | ConvertedType::TIMESTAMP_MICROS
        );
        let is_unsigned = column.converted_type() == ConvertedType::UINT_32;
        let negative = |n: i64| Fault::Negative(name.into(), n);
        match column.physical_type() {
            kind if is_other => Err(Fault::ConvertedType(
                name.into(),
                kind,
                column.converted_type(),
            )),
            Type::INT64 => self.values::<Int64Type, _>(name, place, |n| {
                u64::try_from(*n).map_err(|_| negative(*n))
            }),
            Type::INT32 if is_unsigned => {
                self.values::<Int32Type, _>(name, place, |n| Ok(n.cast_unsigned().into()))
            }
            Type::INT32 => self.values::<Int32Type, _>(name, place, |n| {
                u64::try_from(*n).map_err(|_| negative((*n).into()))
            }),
            other => Err(Fault::PhysicalType(name.into(), other, "cast it to BIGINT")),
        }
    }

    /// Reads a Parquet column of texts, one per row; `None`: null.
    ///
    /// # Errors
    /// The column is missing, has another type, or is damaged.
    pub fn texts(&self, name: &str) -> Result<Vec<Option<String>>, Fault> {
        let place = self.place(name)?;
        match self.schema().column(place).physical_type() {
            Type::BYTE_ARRAY => self.values::<ByteArrayType, _>(name, place, |text| {
                let text = text.as_utf8().map(str::to_owned);
                text.map_err(|e| Fault::Decode(name.into(), e))
            }),
            other => Err(Fault::PhysicalType(name.into(), other, "it must be text")),
        }
    }

    /// Reads a Parquet column of byte arrays, one per row; `None`: null.
    ///
    /// # Errors
    /// The column is missing, has another type, or is damaged.
    pub fn bytes(&self, name: &str) -> Result<Vec<Option<Bytes>>, Fault> {
        let place = self.place(name)?;
        match self.schema().column(place).physical_type() {
            Type::BYTE_ARRAY => self.values::<ByteArrayType, _>(name, place, |it| {
                Ok(Bytes::copy_from_slice(it.data()))
            }),
            other => Err(Fault::PhysicalType(name.into(), other, "it must be bytes")),
        }
    }

    fn schema(&self) -> &parquet::schema::types::SchemaDescriptor {
        self.reader.metadata().file_metadata().schema_descr()
    }

    fn places(&self, name: &str) -> Vec<usize> {
        let columns = self.schema().columns().iter().enumerate();
        let named = columns.filter(|(_, it)| match it.path().parts() {
            [only] => only.eq_ignore_ascii_case(name),
            _ => false,
        });
        named.map(|(place, _)| place).collect()
    }

    fn place(&self, name: &str) -> Result<usize, Fault> {
        match self.places(name)[..] {
            [place] if self.schema().column(place).max_rep_level() == 0 => Ok(place),
            [_] => Err(Fault::List(name.into())),
            [] => Err(Fault::Absent(name.into())),
            _ => Err(Fault::Ambiguous(name.into())),
        }
    }

    /// Reads a Parquet column of physical type `T`. The decoders of the crate `parquet` trust
    /// lengths in the file, and panic if they are wrong.
    fn values<T: DataType, V>(
        &self,
        name: &str,
        place: usize,
        value: impl Fn(&T::T) -> Result<V, Fault>,
    ) -> Result<Vec<Option<V>>, Fault> {
        let read = AssertUnwindSafe(|| self.decoded::<T, V>(name, place, value));
        let damaged = |_| Err(Fault::Damaged(name.into()));
        panic::catch_unwind(read).unwrap_or_else(damaged)
    }

    fn decoded<T: DataType, V>(
        &self,
        name: &str,
        place: usize,
        value: impl Fn(&T::T) -> Result<V, Fault>,
    ) -> Result<Vec<Option<V>>, Fault> {
        let column_error = |e| Fault::Decode(name.into(), e);
        let most = self.schema().column(place).max_def_level();
        let mut all = Vec::new();
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(column_error)?;
            let rows = usize::try_from(group.metadata().num_rows()).unwrap_or(usize::MAX);
            let column = group.get_column_reader(place).map_err(column_error)?;
            let mut column = get_typed_column_reader::<T>(column);
            let (mut levels, mut values) = (Vec::new(), Vec::new());
            // No memory is reserved for the stated number of rows.
            let wanted = rows.min(MOST_ROWS);
            let (read, ..) = column
                .read_records(wanted, Some(&mut levels), None, &mut values)
                .map_err(column_error)?;
            let mut values = values.iter();
            for row in 0..read {
                let is_there = most == 0 || levels.get(row) == Some(&most);
                let found = is_there.then(|| values.next()).flatten();
                all.push(found.map(&value).transpose()?);
            }
        }
        match all.len() == self.rows {
            true => Ok(all),
            false => Err(Fault::Length(name.into(), all.len(), self.rows)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::{
        data_type::DoubleType,
        file::{properties::WriterProperties, writer::SerializedFileWriter},
        schema::parser::parse_message_type,
    };
    use std::sync::Arc;

    /// Writes a Parquet file with one row of these columns: an INT64, an optional text that is
    /// null, a DOUBLE, an unsigned INT32.
    fn sample() -> Bytes {
        let schema = "message any {
            REQUIRED INT64 n; OPTIONAL BYTE_ARRAY t (STRING); REQUIRED DOUBLE d; REQUIRED INT32 u (INTEGER(32,false));
            REQUIRED INT64 s (TIMESTAMP(MICROS,true));
        }";
        let schema = Arc::new(parse_message_type(schema).expect("a schema"));
        let properties = Arc::new(WriterProperties::new());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).expect("begun");
        let mut group = writer.next_row_group().expect("a group");
        let mut place = 0;
        while let Some(mut column) = group.next_column().expect("a column") {
            let written = match place {
                0 | 4 => column
                    .typed::<Int64Type>()
                    .write_batch(&[-7 + 4 * place], None, None),
                1 => column
                    .typed::<ByteArrayType>()
                    .write_batch(&[], Some(&[0]), None),
                2 => column.typed::<DoubleType>().write_batch(&[7.0], None, None),
                _ => column.typed::<Int32Type>().write_batch(&[-1], None, None),
            };
            written.expect("written");
            column.close().expect("closed");
            place += 1;
        }
        group.close().expect("closed");
        writer.into_inner().expect("whole").into()
    }

    #[test]
    fn columns_of_another_type_are_named_in_errors() {
        let columns = Columns::new(sample()).expect("Parquet");
        assert_eq!(columns.rows(), 1);
        assert_eq!(columns.texts("T").expect("texts"), [None]);
        assert_eq!(
            columns.numbers("u").expect("numbers"),
            [Some(u32::MAX.into())]
        );
        for (said, part) in [
            (columns.numbers("n").map(drop), "column n: -7 is below 0"),
            (
                columns.numbers("d").map(drop),
                "column d has the type DOUBLE",
            ),
            (
                columns.numbers("t").map(drop),
                "column t has the type BYTE_ARRAY",
            ),
            (columns.numbers("s").map(drop), "cast it to BIGINT"),
            (columns.texts("n").map(drop), "column n has the type INT64"),
            (columns.texts("x").map(drop), "has no column x"),
        ] {
            let said = said.expect_err(part).to_string();
            assert!(said.contains(part), "{said}");
        }
        assert!(Columns::new("no Parquet".into()).is_err());
    }

    #[test]
    fn no_damage_panics() {
        let sound = sample();
        for at in 0..sound.len() {
            for bit in (0..8).map(|it| 1 << it) {
                let mut damaged = sound.to_vec();
                damaged[at] ^= bit;
                if let Ok(columns) = Columns::new(damaged.into()) {
                    let _ = (columns.numbers("n"), columns.texts("t"), columns.bytes("t"));
                    let _ = (columns.numbers("u"), columns.fact("x"));
                }
            }
            let _ = Columns::new(sound.slice(..at));
        }
    }
}
