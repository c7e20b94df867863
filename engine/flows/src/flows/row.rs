//! Rows and columns of a Parquet table, the common part of all tables.

/// Row of a Parquet table of flows, DNS or DHCP.
pub(super) trait ParquetRow: Sized + 'static {
    /// Name of the Parquet table, in the names and the metadata of its files.
    const TABLE: &'static str;
    /// Version of the columns of the Parquet table, stored in its files.
    const SCHEMA_VERSION: &'static str;
    /// Path of the installed page that documents the Parquet table's columns.
    const DOCS: &'static str;
    /// Columns of the Parquet table in their order; the first [`SORTED_BY`] are times.
    const COLUMNS: &'static [Column<Self>];

    /// Returns the time by which the Parquet rows are sorted, in nanoseconds since 1970.
    fn ns(&self) -> u64;
}

/// Number of leading columns by which the rows of a Parquet row group are sorted.
pub(super) const SORTED_BY: usize = 2;

/// Type of a Parquet column, with the function that computes its values. All query engines read
/// these types: none is unsigned, and no timestamp has nanoseconds.
pub(super) enum Values<R> {
    /// Parquet column of numbers of at most 16 bits, stored as signed 32-bit numbers.
    Int(fn(&R) -> Option<u16>),
    /// Parquet column of numbers stored as signed 64-bit numbers.
    Long(fn(&R) -> Option<u64>),
    /// Parquet column of times, from nanoseconds since 1970 truncated to microseconds.
    Time(fn(&R) -> Option<u64>),
    /// Parquet text column without a bloom filter.
    Text(fn(&R) -> Option<String>),
    /// Parquet text column with a bloom filter, for searches that match few rows.
    Name(fn(&R) -> Option<String>),
}

/// Column of a Parquet table with rows `R`.
pub(super) struct Column<R> {
    pub(super) name: &'static str,
    pub(super) values: Values<R>,
}

/// Declares the columns of a Parquet table: the name, type and value of each.
macro_rules! columns {
    ($row:ty; $($name:ident: $values:ident($of:expr);)+) => {
        /// Columns of a Parquet table of flow, DNS or DHCP records, in their order in the file.
        pub(super) const COLUMNS: &[Column<$row>] = &[$(Column {
            name: stringify!($name),
            values: Values::<$row>::$values($of),
        },)+];
    };
}
pub(super) use columns;
