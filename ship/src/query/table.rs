//! Reader of tables of parts: the columns that [`crate::blocks`] writes.

use crate::columns::{Columns, ParquetColumnError};
use crate::{
    blocks::{
        FLOW_FILTER, SCHEMA_VERSION, SCHEMA_VERSION_KEY, WITHOUT_FILTERS, flow_filter::FlowFilter,
    },
    limits::{KEY, PARTS},
};
use bytes::Bytes;
use std::ops::Range;
use wqcap_files::index::IndexKey;

/// Parts of one stored object, read from its table in `blocks/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartTable {
    /// Key of the stored object; `None`: the packets are not in the store.
    pub(super) object: Option<String>,
    /// Length of the whole stored object in bytes.
    pub(super) object_bytes: u64,
    /// Number of leading bytes of the stored object that a reader needs before any part.
    pub(super) head_bytes: u64,
    /// Parts of the stored object, at least one.
    pub(super) parts: Vec<ObjectPart>,
}

/// Part of a stored object: a byte range that can be read separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectPart {
    pub(super) bytes: Range<u64>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    pub(super) frames: u64,
    /// Set when a flow in this part of the object may have all index keys that the query demands.
    pub(super) may_hold: bool,
}

/// Reason why a table of parts cannot be used. The reason does not name the table.
#[derive(Debug, thiserror::Error)]
pub(super) enum PartTableError {
    #[error(transparent)]
    Column(#[from] ParquetColumnError),
    #[error(
        "the table has columns of version {0}; this wqcap reads versions {WITHOUT_FILTERS} and {SCHEMA_VERSION}"
    )]
    Version(String),
    #[error(
        "the column object, object_bytes or head_bytes of the table has several values, but all rows must have the same"
    )]
    SeveralObjects,
    #[error("the table names an object by a key of {0} bytes; the limit is {KEY} bytes")]
    ObjectKey(usize),
    #[error(
        "the column head_bytes of the table is {head}, which is more than object_bytes {object}"
    )]
    Head { head: u64, object: u64 },
    #[error(
        "row {row} of the table: the bytes {} to {} are outside of the object, which has {object} bytes",
        .bytes.start, .bytes.end
    )]
    Part {
        row: usize,
        bytes: Range<u64>,
        object: u64,
    },
    #[error(
        "column {FLOW_FILTER} of the table has a filter of {0} bytes, which is not a valid length"
    )]
    Filter(usize),
}

impl PartTable {
    /// Reads the table of an object's parts. `demanded` are the index keys of a flow that the query
    /// selects. `None`: the capture file has no frames, and its table no parts.
    pub(super) fn read(
        table: Bytes,
        demanded: &[IndexKey],
    ) -> Result<Option<Self>, PartTableError> {
        let columns = Columns::with_row_limit(table, PARTS)?;
        if let Some(version) = columns.fact(SCHEMA_VERSION_KEY)
            && ![SCHEMA_VERSION, WITHOUT_FILTERS].contains(&version)
        {
            return Err(PartTableError::Version(version.chars().take(20).collect()));
        }
        let objects = columns.texts("object")?;
        let [object_bytes, heads, starts, ends, firsts, lasts, frames] = [
            "object_bytes",
            "head_bytes",
            "byte_start",
            "byte_end",
            "first_ns",
            "last_ns",
            "frames",
        ]
        .map(|name| {
            let values = columns.numbers(name)?.into_iter();
            let values = values.collect::<Option<Vec<_>>>();
            values.ok_or_else(|| ParquetColumnError::Null(name.into()))
        });
        let (object_bytes, heads) = (object_bytes?, heads?);
        let (starts, ends, firsts) = (starts?, ends?, firsts?);
        let (lasts, frames) = (lasts?, frames?);
        let mut rows = objects.into_iter().zip(object_bytes).zip(heads);
        let Some(of) = rows.next() else {
            return Ok(None);
        };
        if rows.any(|other| other != of) {
            return Err(PartTableError::SeveralObjects);
        }
        let ((object, object_bytes), head_bytes) = of;
        if let Some(len) = object.as_ref().map(String::len).filter(|it| *it > KEY) {
            return Err(PartTableError::ObjectKey(len));
        }
        if head_bytes > object_bytes {
            let (head, object) = (head_bytes, object_bytes);
            return Err(PartTableError::Head { head, object });
        }
        let held = may_hold(&columns, demanded)?;
        let parts = (0..columns.rows()).map(|row| {
            let bytes = starts[row]..ends[row];
            if bytes.is_empty() || bytes.end > object_bytes {
                let object = object_bytes;
                return Err(PartTableError::Part { row, bytes, object });
            }
            Ok(ObjectPart {
                bytes,
                first_ns: firsts[row],
                last_ns: lasts[row],
                frames: frames[row],
                may_hold: held.get(row).is_none_or(|it| *it),
            })
        });
        Ok(Some(Self {
            object,
            object_bytes,
            head_bytes,
            parts: parts.collect::<Result<_, _>>()?,
        }))
    }

    /// Returns the stored object's parts that may hold matching frames of the time range `times`.
    pub(super) fn parts_in<'t>(
        &'t self,
        times: &'t Range<u64>,
    ) -> impl Iterator<Item = &'t ObjectPart> {
        let parts = self.parts.iter();
        parts.filter(|it| it.may_hold && it.first_ns < times.end && it.last_ns >= times.start)
    }
}

/// Returns for each row of a table of parts whether a flow of the part may have all demanded index
/// keys. An empty list means that every part may have them.
fn may_hold(columns: &Columns, demanded: &[IndexKey]) -> Result<Vec<bool>, PartTableError> {
    if demanded.is_empty() || !columns.has(FLOW_FILTER) {
        return Ok(Vec::new());
    }
    let filters = columns.bytes(FLOW_FILTER)?;
    let of_row = |filter: Option<Bytes>| match filter {
        Some(bytes) => {
            let filter = FlowFilter::read(&bytes).ok_or(PartTableError::Filter(bytes.len()))?;
            Ok(filter.may_hold(demanded))
        }
        None => Ok(true),
    };
    filters.into_iter().map(of_row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        blocks::{self, ObjectInfo},
        shipper::fixtures,
    };

    #[test]
    fn written_tables_are_read_back() {
        let dir = tempfile::tempdir().expect("dir");
        let file = fixtures::capture(dir.path(), 3, 7, 10);
        let index = wqcap_files::index::build(&file, None, || true);
        let mut index = index.expect("reads").expect("made");
        // A second block with later stamps.
        let mut later = index.blocks[0].clone();
        (later.start, later.end) = (later.end, later.end + 500);
        (later.first_ns, later.last_ns) = (20_000_000_000, 21_000_000_000);
        index.blocks.push(later);
        let of = |key| ObjectInfo {
            key,
            bytes: 5000,
            queue: Some(3),
        };
        let write = |key| blocks::write(&index, of(key)).expect("written");
        let table = PartTable::read(write(Some("packets/x")), &[]).expect("reads");
        let table = table.expect("has parts");
        assert_eq!(table.object.as_deref(), Some("packets/x"));
        assert_eq!((table.object_bytes, table.head_bytes), (5000, index.head));
        let expected = index.blocks.iter().map(|it| ObjectPart {
            bytes: it.start..it.end,
            first_ns: it.first_ns,
            last_ns: it.last_ns,
            frames: it.frames,
            may_hold: true,
        });
        assert_eq!(table.parts, expected.collect::<Vec<_>>());
        let second = 1_000_000_000;
        for (times, parts) in [
            (0..u64::MAX, 2),
            (0..7 * second, 0),
            (0..7 * second + 1, 1),
            (8 * second..20 * second, 0),
            (21 * second..22 * second, 1),
            (21 * second + 1..22 * second, 0),
        ] {
            assert_eq!(table.parts_in(&times).count(), parts, "{times:?}");
        }
        let unsent = PartTable::read(write(None), &[]).expect("reads");
        assert_eq!(unsent.expect("has parts").object, None);
        index.blocks.clear();
        let empty = blocks::write(&index, of(None)).expect("written");
        assert_eq!(PartTable::read(empty, &[]).expect("reads"), None);
    }

    #[test]
    fn a_part_beyond_its_object_and_a_long_key_are_errors() {
        let dir = tempfile::tempdir().expect("dir");
        let file = fixtures::capture(dir.path(), 3, 7, 10);
        let index = wqcap_files::index::build(&file, None, || true);
        let index = index.expect("reads").expect("made");
        let long = "x".repeat(KEY + 1);
        let of = |bytes, key| ObjectInfo {
            key,
            bytes,
            queue: None,
        };
        for (bytes, key, part) in [
            (100, None, "row 0 of the table: the bytes 24 to"),
            (5, None, "column head_bytes of the table is 24"),
            (5000, Some(&*long), "a key of 1025 bytes"),
        ] {
            let table = blocks::write(&index, of(bytes, key)).expect("written");
            let said = PartTable::read(table, &[]).expect_err(part).to_string();
            assert!(said.contains(part), "{said}");
        }
    }
}
