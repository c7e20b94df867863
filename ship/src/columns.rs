//! Columns of any Parquet file, by name.
//!
//! Invariant: no file causes a panic, and memory is bounded by the crate's limits of rows, pages and
//! values, whatever lengths the file states.

use crate::limits::{PARQUET_COLUMN, PARQUET_DICTIONARY, PARQUET_FOOTER, PARQUET_PAGE, ROWS};
use bytes::{Buf, Bytes, buf::Reader};
use parquet::{
    basic::{ConvertedType, Encoding, Type},
    column::{
        page::{Page, PageMetadata, PageReader},
        reader::{get_column_reader, get_typed_column_reader},
    },
    data_type::{ByteArrayType, DataType, Int32Type, Int64Type},
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader},
        reader::{ChunkReader, Length},
        serialized_reader::SerializedPageReader,
    },
};
use std::{cell::Cell, ops::Range, panic::AssertUnwindSafe, sync::Arc};
use wqcap_core::sync::caught::caught;

/// Last bytes of a Parquet file, which follow the length of its metadata.
const MAGIC: &[u8] = b"PAR1";
/// Number of rows of a Parquet column that are decoded at a time.
const BATCH: usize = 1 << 16;

/// Reader of the columns of a Parquet file. Its errors name the column, but not the file.
pub struct Columns {
    file: Arc<CheckedFile>,
    metadata: Arc<ParquetMetaData>,
    /// Row groups of the file that are read.
    groups: Range<usize>,
    /// Number of rows in these row groups.
    rows: usize,
    /// Maximum number of bytes of a column's values in these row groups.
    most_bytes: usize,
}

/// Reason why a Parquet file or one of its columns cannot be read. It does not name the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParquetColumnError {
    /// The file is not a Parquet file, or its metadata is damaged.
    #[error("the file cannot be read as Parquet: {0}")]
    File(#[source] ParquetError),
    /// The Parquet file has more rows than the limit.
    #[error("the Parquet file has {rows} rows; the limit is {limit} rows")]
    TooManyRows {
        /// Number of rows that the Parquet file states.
        rows: usize,
        /// Maximum number of rows of this kind of Parquet file.
        limit: usize,
    },
    /// A row group of the Parquet file has more rows than the limit.
    #[error("a row group of the Parquet file has {rows} rows; the limit is {limit} rows")]
    RowGroup {
        /// Number of rows that the row group states.
        rows: usize,
        /// Maximum number of rows of a row group.
        limit: usize,
    },
    /// The metadata of the Parquet file is longer than the limit.
    #[error("the Parquet file has {0} bytes of metadata; the limit is {PARQUET_FOOTER} bytes")]
    FooterTooLong(usize),
    /// The values of a Parquet column are longer than the limit.
    #[error("Parquet column {0} has more than {1} bytes of values, which is the limit")]
    TooManyBytes(String, usize),
    /// The Parquet file has no column of the requested name.
    #[error("the Parquet file has no column {0}")]
    Absent(String),
    /// The Parquet file has several columns of the requested name.
    #[error("the Parquet file has several columns with the name {0}")]
    Ambiguous(String),
    /// The Parquet column has lists of values instead of plain values.
    #[error("Parquet column {0} has lists; it must have plain values")]
    List(String),
    /// The physical type of the Parquet column is not the one that the reader needs.
    #[error("Parquet column {0} has the type {1}; {2}")]
    PhysicalType(String, Type, &'static str),
    /// The Parquet column has numbers that are not plain counts, such as times.
    #[error("Parquet column {0} has the type {1} ({2}); cast it to BIGINT")]
    ConvertedType(String, Type, ConvertedType),
    /// A number of the Parquet column is negative.
    #[error("column {0}: {1} is below 0")]
    Negative(String, i64),
    /// The Parquet column has a null where a value is needed.
    #[error("Parquet column {0} has a null; every row must have a value")]
    Null(String),
    /// The Parquet column cannot be decoded.
    #[error("column {0}: {1}")]
    Decode(String, #[source] ParquetError),
    /// The decoder panicked on the values of the Parquet column.
    #[error("the values of Parquet column {0} are damaged")]
    Damaged(String),
    /// The Parquet column does not have one value per row of the file.
    #[error("Parquet column {0} has {1} values for {2} rows")]
    Length(String, usize, usize),
}

use ParquetColumnError as Fault;

impl Columns {
    /// Opens a Parquet file that is in memory, to read its columns.
    ///
    /// # Errors
    /// The bytes are not a Parquet file, or the file has more rows than the limit of this crate.
    pub fn new(file: Bytes) -> Result<Self, Fault> {
        Self::with_row_limit(file, ROWS)
    }

    /// Opens a Parquet file in memory that may have at most `limit` rows.
    ///
    /// # Errors
    /// As [`Columns::new`].
    pub(crate) fn with_row_limit(file: Bytes, limit: usize) -> Result<Self, Fault> {
        if let Some([.., a, b, c, d]) = file.strip_suffix(MAGIC) {
            let len = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
            if len > PARQUET_FOOTER {
                return Err(Fault::FooterTooLong(len));
            }
        }
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file);
        let metadata = metadata.map_err(Fault::File)?;
        let rows = metadata.file_metadata().num_rows();
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        if rows > limit {
            return Err(Fault::TooManyRows { rows, limit });
        }
        Ok(Self {
            file: Arc::new(CheckedFile(file)),
            groups: 0..metadata.num_row_groups(),
            metadata: Arc::new(metadata),
            rows,
            most_bytes: PARQUET_COLUMN,
        })
    }

    /// Returns the columns of each row group of the file separately, so that the memory for values
    /// is that of one row group. A row group may have at most `most_rows` rows, and a column of it
    /// `most_bytes` bytes of values.
    pub fn row_groups(
        &self,
        most_rows: usize,
        most_bytes: usize,
    ) -> impl Iterator<Item = Result<Self, Fault>> {
        self.groups.clone().map(move |n| {
            let rows = self.metadata.row_group(n).num_rows();
            let rows = usize::try_from(rows).unwrap_or(usize::MAX);
            if rows > most_rows {
                return Err(Fault::RowGroup {
                    rows,
                    limit: most_rows,
                });
            }
            Ok(Self {
                file: Arc::clone(&self.file),
                metadata: Arc::clone(&self.metadata),
                groups: n..n + 1,
                rows,
                most_bytes,
            })
        })
    }

    /// Returns the number of rows of the Parquet file that is read.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the value of the key `key` in the metadata of the Parquet file.
    #[must_use]
    pub fn fact(&self, key: &str) -> Option<&str> {
        let facts = self.metadata.file_metadata().key_value_metadata()?;
        facts.iter().find(|it| it.key == key)?.value.as_deref()
    }

    /// Returns `true` if the Parquet file has a column of the name `name`.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        !self.places(name).is_empty()
    }

    /// Reads a Parquet column of whole numbers of at least 0, one value per row; `None`: null.
    ///
    /// # Errors
    /// The Parquet column is missing, has another type, or is damaged.
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

    /// Reads a Parquet column of texts, one value per row; `None`: null.
    ///
    /// # Errors
    /// The Parquet column is missing, has another type, or is damaged.
    pub fn texts(&self, name: &str) -> Result<Vec<Option<String>>, Fault> {
        let place = self.place(name)?;
        let charge = budget(name, self.most_bytes);
        match self.schema().column(place).physical_type() {
            Type::BYTE_ARRAY => self.values::<ByteArrayType, _>(name, place, |text| {
                charge(text.len())?;
                let text = text.as_utf8().map(str::to_owned);
                text.map_err(|e| Fault::Decode(name.into(), e))
            }),
            other => Err(Fault::PhysicalType(name.into(), other, "it must be text")),
        }
    }

    /// Reads a Parquet column of byte arrays, one value per row; `None`: null.
    ///
    /// # Errors
    /// The Parquet column is missing, has another type, or is damaged.
    pub fn bytes(&self, name: &str) -> Result<Vec<Option<Bytes>>, Fault> {
        let place = self.place(name)?;
        let charge = budget(name, self.most_bytes);
        match self.schema().column(place).physical_type() {
            Type::BYTE_ARRAY => self.values::<ByteArrayType, _>(name, place, |it| {
                charge(it.len())?;
                Ok(Bytes::copy_from_slice(it.data()))
            }),
            other => Err(Fault::PhysicalType(name.into(), other, "it must be bytes")),
        }
    }

    fn schema(&self) -> &parquet::schema::types::SchemaDescriptor {
        self.metadata.file_metadata().schema_descr()
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

    /// Reads a Parquet column of physical type `T`. The decoders of the crate `parquet` panic on
    /// wrong lengths in the file, which becomes an error.
    fn values<T: DataType, V>(
        &self,
        name: &str,
        place: usize,
        value: impl Fn(&T::T) -> Result<V, Fault>,
    ) -> Result<Vec<Option<V>>, Fault> {
        let read = AssertUnwindSafe(|| self.decoded::<T, V>(name, place, value));
        caught(read).unwrap_or_else(|| Err(Fault::Damaged(name.into())))
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
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        for group in &self.metadata.row_groups()[self.groups.clone()] {
            let mut left = usize::try_from(group.num_rows()).unwrap_or(usize::MAX);
            let (file, chunk) = (Arc::clone(&self.file), group.column(place));
            // The crate panics on negative numbers.
            let start = chunk.dictionary_page_offset();
            let start = start.unwrap_or_else(|| chunk.data_page_offset());
            if start < 0 || chunk.compressed_size() < 0 {
                return Err(Fault::Damaged(name.into()));
            }
            let pages = SerializedPageReader::new(file, chunk, left, None).map_err(column_error)?;
            let pages = Box::new(CheckedPages(pages));
            let column = get_column_reader(self.schema().column(place), pages);
            let mut column = get_typed_column_reader::<T>(column);
            while left > 0 {
                levels.clear();
                values.clear();
                let wanted = left.min(BATCH);
                let (read, ..) = column
                    .read_records(wanted, Some(&mut levels), None, &mut values)
                    .map_err(column_error)?;
                if read == 0 {
                    break;
                }
                if all.len() + read > self.rows {
                    return Err(Fault::Length(name.into(), all.len() + read, self.rows));
                }
                let mut values = values.iter();
                for row in 0..read {
                    let is_there = most == 0 || levels.get(row) == Some(&most);
                    let found = is_there.then(|| values.next()).flatten();
                    all.push(found.map(&value).transpose()?);
                }
                left -= read.min(left);
            }
        }
        match all.len() == self.rows {
            true => Ok(all),
            false => Err(Fault::Length(name.into(), all.len(), self.rows)),
        }
    }
}

/// Returns a function that sums up the lengths of a Parquet column's values, and fails above the
/// limit `most`.
fn budget(name: &str, most: usize) -> impl Fn(usize) -> Result<(), Fault> {
    let left = Cell::new(most);
    move |len| {
        let now = left.get().checked_sub(len);
        left.set(now.ok_or_else(|| Fault::TooManyBytes(name.into(), most))?);
        Ok(())
    }
}

/// Parquet file in memory, whose pages are checked against a limit before they are uncompressed. A
/// reader of pages opens it at the header of each page.
struct CheckedFile(Bytes);

impl Length for CheckedFile {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
}

impl ChunkReader for CheckedFile {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        let header = self.0.get(start..);
        let header = header.ok_or_else(|| ParquetError::EOF("a page is after the end".into()))?;
        match page_len(header) {
            Some(0..=PARQUET_PAGE) => Ok(self.0.slice(start..).reader()),
            Some(len) => Err(ParquetError::General(format!(
                "a page of the Parquet file has {len} bytes; the limit is {PARQUET_PAGE} bytes"
            ))),
            None => Err(ParquetError::General("a page has no valid header".into())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        self.0.get_bytes(start, length)
    }
}

/// Returns the uncompressed length of a Parquet page from its header. The header is a struct of
/// Thrift's compact protocol, which begins with two numbers: the kind of the page and this length.
fn page_len(mut header: &[u8]) -> Option<usize> {
    /// First byte of a Thrift field of type i32 whose identifier is one more than that of the last
    /// field.
    const NEXT_I32: u8 = 0x15;
    let mut number = || {
        header = header.strip_prefix(&[NEXT_I32])?;
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let (byte, rest) = header.split_first()?;
            header = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                // Negative numbers are odd in this encoding.
                return (number % 2 == 0).then_some(number / 2);
            }
        }
        None
    };
    number()?;
    usize::try_from(number()?).ok()
}

/// Pages of a Parquet column chunk; a page whose decoder would take more memory than the limit is
/// an error.
struct CheckedPages(SerializedPageReader<CheckedFile>);

impl Iterator for CheckedPages {
    type Item = Result<Page, ParquetError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>, ParquetError> {
        let page = self.0.get_next_page()?;
        match &page {
            Some(Page::DictionaryPage {
                buf, num_values, ..
            }) => {
                let values = *num_values as usize;
                if values > buf.len().min(PARQUET_DICTIONARY) {
                    return Err(ParquetError::General(format!(
                        "a dictionary of the Parquet file has {values} values in {} bytes; the limit is {PARQUET_DICTIONARY} values",
                        buf.len()
                    )));
                }
            }
            Some(Page::DataPage { encoding, .. } | Page::DataPageV2 { encoding, .. }) => {
                if matches!(
                    encoding,
                    Encoding::DELTA_BYTE_ARRAY | Encoding::DELTA_LENGTH_BYTE_ARRAY
                ) {
                    return Err(ParquetError::NYI(format!(
                        "a Parquet column has the encoding {encoding}, which is not supported; write the column with PLAIN or RLE_DICTIONARY"
                    )));
                }
            }
            None => {}
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>, ParquetError> {
        self.0.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<(), ParquetError> {
        self.0.skip_next_page()
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

    /// Writes a Parquet file with a column `t` of `rows` equal texts of `len` bytes.
    fn texts_of(rows: usize, len: usize, dictionary: bool) -> Bytes {
        let schema = parse_message_type("message any { REQUIRED BYTE_ARRAY t (STRING); }");
        let properties = WriterProperties::builder()
            .set_compression(parquet::basic::Compression::SNAPPY)
            .set_dictionary_enabled(dictionary)
            .set_dictionary_page_size_limit(1 << 30)
            .set_statistics_enabled(parquet::file::properties::EnabledStatistics::None);
        let properties = Arc::new(properties.build());
        let schema = Arc::new(schema.expect("a schema"));
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, properties).expect("begun");
        let mut group = writer.next_row_group().expect("a group");
        let mut column = group.next_column().expect("a column").expect("one");
        let text = parquet::data_type::ByteArray::from("a".repeat(len).as_str());
        let texts = vec![text; rows];
        let written = column
            .typed::<ByteArrayType>()
            .write_batch(&texts, None, None);
        written.expect("written");
        column.close().expect("closed");
        group.close().expect("closed");
        writer.into_inner().expect("whole").into()
    }

    #[test]
    fn row_groups_are_read_one_by_one_within_their_limits() {
        let schema = parse_message_type("message any { REQUIRED INT64 n; }").expect("a schema");
        let properties = Arc::new(WriterProperties::new());
        let writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), properties);
        let mut writer = writer.expect("begun");
        for numbers in [&[1, 2, 3][..], &[4], &[5, 6]] {
            let mut group = writer.next_row_group().expect("a group");
            let mut column = group.next_column().expect("a column").expect("one");
            let written = column.typed::<Int64Type>().write_batch(numbers, None, None);
            written.expect("written");
            column.close().expect("closed");
            group.close().expect("closed");
        }
        let file = writer.into_inner().expect("whole");
        let columns = Columns::new(file.into()).expect("Parquet");
        let numbers = columns.row_groups(2, 0).map(|it| it?.numbers("n"));
        let numbers: Vec<_> = numbers.collect();
        let [first, second, third] = &numbers[..] else {
            panic!("{numbers:?}");
        };
        assert!(matches!(first, Err(Fault::RowGroup { rows: 3, limit: 2 })));
        assert_eq!(second.as_deref().expect("read"), [Some(4)]);
        assert_eq!(third.as_deref().expect("read"), [Some(5), Some(6)]);
        let texts = Columns::new(texts_of(4, 10, false)).expect("Parquet");
        for (most, is_read) in [(40, true), (39, false)] {
            let group = texts.row_groups(4, most).next().expect("a row group");
            assert_eq!(group.expect("few rows").texts("t").is_ok(), is_read);
        }
    }

    #[test]
    fn values_that_exceed_a_limit_are_named() {
        let longest = Columns::new(texts_of(4, 1 << 20, false)).expect("Parquet");
        assert_eq!(longest.texts("t").expect("within the limits").len(), 4);
        let read = |file: Bytes| {
            assert!(file.len() < 32 << 20, "compressed: {}", file.len());
            let columns = Columns::new(file).expect("Parquet");
            columns.bytes("t").expect_err("too long").to_string()
        };
        // The values are compressed, or refer to one value of a dictionary.
        for dictionary in [false, true] {
            let said = read(texts_of(300, 1 << 20, dictionary));
            assert!(
                said.contains("more than 268435456 bytes of values"),
                "{said}"
            );
        }
        let said = read(texts_of(1, PARQUET_PAGE, false));
        assert!(said.contains("the limit is 67108864 bytes"), "{said}");
        let file = texts_of(11, 1, false);
        let said = Columns::with_row_limit(file.clone(), 10)
            .err()
            .expect("too many");
        assert!(
            said.to_string().contains("11 rows; the limit is 10"),
            "{said}"
        );
        let mut long = file.to_vec();
        let at = long.len() - 8;
        long[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let said = Columns::new(long.into()).err().expect("too long");
        assert!(
            said.to_string().contains("bytes of metadata; the limit"),
            "{said}"
        );
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
