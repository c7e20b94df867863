//! List of ranges of objects, made by a user: CSV or Parquet, as SQL engines print them.

use crate::columns::{Columns, ParquetColumnError};
use bytes::Bytes;
use csv::{ReaderBuilder, Trim};
use std::{collections::BTreeMap, io::Read, ops::Range};

/// First bytes of a Parquet file.
const PARQUET: &[u8] = b"PAR1";
/// Texts that SQL engines print for null in CSV.
const NULLS: [&str; 3] = ["", "NULL", "\\N"];

/// Byte ranges of stored objects that a user listed, by the objects' keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeList {
    pub(super) objects: BTreeMap<String, ListedRanges>,
    /// Number of rows in the user's list without an object key, whose packets are not in the store.
    pub(super) unsent: u64,
}

/// Byte ranges of one stored object in the user's list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListedRanges {
    /// Number of the stored object's bytes before its first part; `None`: not in the user's list.
    pub(super) head_bytes: Option<u64>,
    /// Length of the stored object in bytes; `None`: not in the user's list.
    pub(super) object_bytes: Option<u64>,
    /// Byte ranges of the stored object, in the order of the user's list.
    pub(super) ranges: Vec<Range<u64>>,
}

/// Reason why a user's list of byte ranges cannot be used. The reason does not name the file of the
/// list.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RangeListError {
    /// A column of the Parquet file with the user's list cannot be read.
    #[error(transparent)]
    Column(#[from] ParquetColumnError),
    /// The text of the user's list is not CSV.
    #[error(transparent)]
    Csv(#[from] csv::Error),
    /// The header of the CSV list has a column several times.
    #[error("line 1: the header of the list has several columns with the name {0}; keep one")]
    Ambiguous(&'static str),
    /// The header of the CSV list lacks a column.
    #[error(
        "line 1: the header of the list has no column {0}; object, byte_start and byte_end are needed, head_bytes and object_bytes are optional"
    )]
    Absent(&'static str),
    /// A row of the user's Parquet list is invalid; rows count from 0.
    #[error("row {0}: {1}")]
    Row(usize, RangeRowError),
    /// A line of the user's CSV list is invalid; lines count from 1.
    #[error("line {0}: {1}")]
    Line(u64, RangeRowError),
}

/// Reason why a row of a user's list of byte ranges is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeRowError {
    /// A value that every row of the list of byte ranges needs is null.
    #[error("column {0} of the list has a null; every row must have a value")]
    Null(&'static str),
    /// A value of the list's row is not a whole number of at least 0.
    #[error("column {0} of the list has {1:?}, which is not a whole number of at least 0")]
    Number(&'static str, String),
    /// The byte range of the list's row is empty.
    #[error("a row of the list has byte_start {}, which is not before its byte_end {}", .0.start, .0.end)]
    Empty(Range<u64>),
    /// The byte range of the list's row ends after the end of its object.
    #[error(
        "a row of the list has byte_end {end}, which is more than its object_bytes {object_bytes}, the length of the object"
    )]
    BeyondObject {
        /// End of the byte range in the list's row.
        end: u64,
        /// Length of the stored object in bytes, as stated in the list's row.
        object_bytes: u64,
    },
    /// Two rows of the list state different properties of one object.
    #[error(
        "column {name} of the list has {now}, but an earlier row has {before} for the same object"
    )]
    Contradiction {
        /// Name of the column in which the two rows differ.
        name: &'static str,
        /// Value of the column in the later row.
        now: u64,
        /// Value of the column in the earlier row.
        before: u64,
    },
}

/// Row of the user's list of byte ranges.
struct RangeRow {
    object: String,
    start: u64,
    end: u64,
    head_bytes: Option<u64>,
    object_bytes: Option<u64>,
}

impl RangeList {
    /// Reads a user's list of byte ranges in the format Parquet or CSV.
    ///
    /// # Errors
    /// The list is not Parquet or CSV, or is invalid. The error names the row and the column.
    pub fn read(list: Vec<u8>) -> Result<Self, RangeListError> {
        let mut it = Self::default();
        if list.starts_with(PARQUET) {
            it.add_parquet(list.into())?;
        } else {
            it.add_csv(&list[..])?;
        }
        Ok(it)
    }

    fn add_parquet(&mut self, list: Bytes) -> Result<(), RangeListError> {
        let columns = Columns::new(list)?;
        let optional = |name| match columns.has(name) {
            true => columns.numbers(name),
            false => Ok(vec![None; columns.rows()]),
        };
        let objects = columns.texts("object")?;
        let (starts, ends) = (columns.numbers("byte_start")?, columns.numbers("byte_end")?);
        let (heads, lens) = (optional("head_bytes")?, optional("object_bytes")?);
        for (row, object) in objects.into_iter().enumerate() {
            let Some(object) = object else {
                self.unsent += 1;
                continue;
            };
            let number =
                |name, values: &[Option<u64>]| values[row].ok_or(RangeRowError::Null(name));
            let parsed = || {
                Ok(RangeRow {
                    object,
                    start: number("byte_start", &starts)?,
                    end: number("byte_end", &ends)?,
                    head_bytes: heads[row],
                    object_bytes: lens[row],
                })
            };
            let added = parsed().and_then(|it| self.add(it));
            added.map_err(|e| RangeListError::Row(row, e))?;
        }
        Ok(())
    }

    fn add_csv(&mut self, list: impl Read) -> Result<(), RangeListError> {
        let mut reader = ReaderBuilder::new().trim(Trim::All).from_reader(list);
        let header = reader.headers()?.clone();
        let place = |name: &'static str| {
            let named = header.iter().enumerate();
            let mut named = named.filter(|(_, it)| it.eq_ignore_ascii_case(name));
            match (named.next(), named.next()) {
                (Some((at, _)), None) => Ok(Some(at)),
                (None, _) => Ok(None),
                _ => Err(RangeListError::Ambiguous(name)),
            }
        };
        let needed = |name| place(name)?.ok_or(RangeListError::Absent(name));
        let object = needed("object")?;
        let (start, end) = (needed("byte_start")?, needed("byte_end")?);
        let (head, len) = (place("head_bytes")?, place("object_bytes")?);
        for record in reader.records() {
            let record = record?;
            let line = record.position().map_or(0, csv::Position::line);
            let text = |at: usize| record.get(at).filter(|it| !NULLS.contains(it));
            let number = |name, at| {
                let text = record.get(at).unwrap_or_default();
                text.parse()
                    .map_err(|_| RangeRowError::Number(name, text.into()))
            };
            let optional = |name, at: Option<usize>| match at {
                Some(at) if text(at).is_some() => number(name, at).map(Some),
                _ => Ok(None),
            };
            let Some(object) = text(object) else {
                self.unsent += 1;
                continue;
            };
            let parsed = || {
                Ok(RangeRow {
                    object: object.to_owned(),
                    start: number("byte_start", start)?,
                    end: number("byte_end", end)?,
                    head_bytes: optional("head_bytes", head)?,
                    object_bytes: optional("object_bytes", len)?,
                })
            };
            let added = parsed().and_then(|it| self.add(it));
            added.map_err(|e| RangeListError::Line(line, e))?;
        }
        Ok(())
    }

    fn add(&mut self, row: RangeRow) -> Result<(), RangeRowError> {
        let range = row.start..row.end;
        if range.is_empty() {
            return Err(RangeRowError::Empty(range));
        }
        if let Some(object_bytes) = row.object_bytes.filter(|len| *len < row.end) {
            let end = row.end;
            return Err(RangeRowError::BeyondObject { end, object_bytes });
        }
        let listed = self.objects.entry(row.object).or_default();
        for (name, before, now) in [
            ("head_bytes", &mut listed.head_bytes, row.head_bytes),
            ("object_bytes", &mut listed.object_bytes, row.object_bytes),
        ] {
            match (*before, now) {
                (Some(before), Some(now)) if before != now => {
                    return Err(RangeRowError::Contradiction { name, now, before });
                }
                (_, None) => {}
                (_, now) => *before = now,
            }
        }
        listed.ranges.push(range);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blocks::{self, ObjectInfo},
        shipper::fixtures,
    };

    fn list(text: &str) -> Result<RangeList, RangeListError> {
        RangeList::read(text.into())
    }

    #[test]
    fn output_of_sql_engines_is_parsed() {
        let expected = |head, len| {
            let a = ListedRanges {
                head_bytes: head,
                object_bytes: len,
                ranges: vec![500..900, 0..100],
            };
            let b = ListedRanges {
                ranges: std::iter::once(7..8).collect(),
                ..a.clone()
            };
            RangeList {
                objects: [("a, b".to_owned(), a), ("c".to_owned(), b)].into(),
                unsent: 0,
            }
        };
        let least = "object,byte_start,byte_end\n\"a, b\",500,900\nc,7,8\n\"a, b\",0,100\n";
        assert_eq!(list(least).expect("a list"), expected(None, None));
        // Columns in any order, among others, with the quotes of ClickHouse and the line ends of
        // Windows.
        let all = "\"byte_end\",\"x\",\"OBJECT\",\"byte_start\",\"object_bytes\",\"head_bytes\"\r\n\
            900,1,\"a, b\",500,1000,24\r\n8, ,c , 7,1000,24\r\n100,1,\"a, b\",0,1000,24\r\n";
        assert_eq!(list(all).expect("a list"), expected(Some(24), Some(1000)));
        let nulls =
            "object,byte_start,byte_end,head_bytes\n,1,2,3\nNULL,1,2,3\n\\N,1,2,3\nx,1,2,\n";
        let found = list(nulls).expect("a list");
        assert_eq!((found.unsent, found.objects.len()), (3, 1));
        assert_eq!(found.objects["x"].head_bytes, None);
        let none = list("object,byte_start,byte_end\n").expect("a list");
        assert_eq!(none, RangeList::default());
    }

    #[test]
    fn errors_name_line_and_column() {
        let header = "object,byte_start,byte_end,object_bytes\n";
        for (rows, part) in [
            (
                "x,1,2,9\nx,one,2,9",
                "line 3: column byte_start of the list has \"one\"",
            ),
            ("x,1,-2,9", "line 2: column byte_end of the list has \"-2\""),
            ("x,1,,9", "line 2: column byte_end of the list has \"\""),
            ("x,1,2.0,9", "\"2.0\", which is not a whole number"),
            ("x,1,2,nine", "line 2: column object_bytes"),
            (
                "x,2,2,9",
                "line 2: a row of the list has byte_start 2, which is not before its byte_end 2",
            ),
            (
                "x,2,10,9",
                "line 2: a row of the list has byte_end 10, which is more than its object_bytes 9",
            ),
            (
                "x,1,2,9\nx,1,2,8",
                "line 3: column object_bytes of the list has 8, but an earlier row has 9",
            ),
            ("x,1,2", "line: 2"),
        ] {
            let said = list(&format!("{header}{rows}\n"))
                .expect_err(part)
                .to_string();
            assert!(said.contains(part), "{said}");
        }
        for (text, part) in [
            ("", "has no column object"),
            ("object,byte_start\n", "has no column byte_end"),
            (
                "object,object,byte_start,byte_end\n",
                "several columns with the name object",
            ),
            ("PAR1 and no more", "cannot be read as Parquet"),
        ] {
            let said = list(text).expect_err(part).to_string();
            assert!(said.contains(part), "{said}");
        }
        let said = RangeList::read(b"object,byte_start,byte_end\n\xff,1,2\n".into());
        let said = said.expect_err("no text").to_string();
        assert!(said.contains("record 1 "), "{said}");
    }

    #[test]
    fn a_table_of_parts_is_a_list_of_ranges() {
        let dir = tempfile::tempdir().expect("dir");
        let file = fixtures::capture(dir.path(), 3, 7, 10);
        let index = wqcap_files::index::build(&file, None, || true);
        let index = index.expect("reads").expect("made");
        let of = |key| ObjectInfo {
            key,
            bytes: 5000,
            queue: None,
        };
        let table = blocks::write(&index, of(Some("x"))).expect("written");
        let found = RangeList::read(table.into()).expect("a list");
        let listed = &found.objects["x"];
        assert_eq!(
            (listed.head_bytes, listed.object_bytes),
            (Some(index.head), Some(5000))
        );
        let block = &index.blocks[0];
        assert_eq!(listed.ranges.len(), 1);
        assert_eq!(listed.ranges[0], block.start..block.end);
        let table = blocks::write(&index, of(None)).expect("written");
        let found = RangeList::read(table.into()).expect("a list");
        assert_eq!((found.unsent, found.objects.len()), (1, 0));
    }
}
