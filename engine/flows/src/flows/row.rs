//! Rows and columns of a table, for all tables.

/// Row of a Parquet table.
pub(super) trait ParquetRow: Sized + 'static {
    /// Name of the table, in the names and the metadata of its files.
    const TABLE: &'static str;
    /// Version of the table's columns.
    const SCHEMA_VERSION: &'static str;
    /// Path of the installed page that documents the columns.
    const DOCS: &'static str;
    /// Columns in their order; the first [`SORTED_BY`] are times.
    const COLUMNS: &'static [Column<Self>];

    /// Time by which the rows are sorted, in nanoseconds since 1970.
    fn ns(&self) -> u64;
}

/// Number of leading columns by which the rows of a row group are sorted.
pub(super) const SORTED_BY: usize = 2;

/// Type of a column, with the function that computes its values. All query engines read these
/// types: none is unsigned, and no timestamp has nanoseconds.
pub(super) enum Values<R> {
    /// Number of at most 16 bits, stored as a signed 32-bit number.
    Int(fn(&R) -> Option<u16>),
    /// Number stored as a signed 64-bit number.
    Long(fn(&R) -> Option<u64>),
    /// Nanoseconds since 1970, truncated to microseconds.
    Time(fn(&R) -> Option<u64>),
    /// Text column without a bloom filter.
    Text(fn(&R) -> Option<String>),
    /// Text column with a bloom filter, for searches that match few rows.
    Name(fn(&R) -> Option<String>),
}

/// Column of a Parquet table with rows `R`.
pub(super) struct Column<R> {
    pub(super) name: &'static str,
    pub(super) values: Values<R>,
}

/// Declares the columns of a table: the name, type and value of each.
macro_rules! columns {
    ($row:ty; $($name:ident: $values:ident($of:expr);)+) => {
        /// Columns of the table in their order.
        pub(super) const COLUMNS: &[Column<$row>] = &[$(Column {
            name: stringify!($name),
            values: Values::<$row>::$values($of),
        },)+];
    };
}
pub(super) use columns;
