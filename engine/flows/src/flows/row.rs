//! What a table's rows and columns are made of, whichever table it is.

/// A row of a table.
pub(super) trait Row: Sized + 'static {
    /// The table's name, in those of its files and in their metadata.
    const TABLE: &'static str;
    /// Version of its columns.
    const SCHEMA_VERSION: &'static str;
    /// Where the package has the page that explains them.
    const DOCS: &'static str;
    /// All of them, in their order; the first [`SORTED_BY`] are times.
    const COLUMNS: &'static [Column<Self>];

    /// What its table is in the order of.
    fn ns(&self) -> u64;
}

/// So many of the first columns are what the rows of a row group are in the order of.
pub(super) const SORTED_BY: usize = 2;

/// How a column's values are made. Their types are those that every engine reads: none is unsigned, none is a timestamp in
/// nanoseconds.
pub(super) enum Values<R> {
    /// A number of 16 bits at most, in a signed one of 32.
    Int(fn(&R) -> Option<u16>),
    /// A number in a signed one of 64 bits.
    Long(fn(&R) -> Option<u64>),
    /// Nanoseconds since 1970, cut to microseconds.
    Time(fn(&R) -> Option<u64>),
    /// A text.
    Text(fn(&R) -> Option<String>),
    /// A text by which a few of all rows are looked for.
    Name(fn(&R) -> Option<String>),
}

/// A column of a table with such rows.
pub(super) struct Column<R> {
    pub(super) name: &'static str,
    pub(super) values: Values<R>,
}

/// The rows of a table; each column's name and how its values are made.
macro_rules! columns {
    ($row:ty; $($name:ident: $values:ident($of:expr);)+) => {
        /// All of them, in their order.
        pub(super) const COLUMNS: &[Column<$row>] = &[$(Column {
            name: stringify!($name),
            values: Values::<$row>::$values($of),
        },)+];
    };
}
pub(super) use columns;
