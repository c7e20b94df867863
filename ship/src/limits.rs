//! Limits of everything that a store, a table or a journal file may contain. Exceeding a limit is an
//! error that names the limit; memory is bounded by these numbers and never by a number in a file.

/// Maximum number of bytes that are kept of the body of a store's error response.
pub const ERROR_BODY: usize = 4 << 10;
/// Maximum number of bytes of a store's response that is not an object's content: a page of a list
/// of keys, or the confirmation of a request.
pub const RESPONSE: usize = 16 << 20;
/// Maximum number of bytes of a store's response to a request for an object, or for a range of one.
pub const CONTENT: usize = TABLE as usize;
/// Maximum number of keys in a list of a folder of the store.
pub const KEYS: usize = 1_000_000;
/// Maximum number of pages in a list of a folder of the store.
pub const PAGES: usize = 100_000;
/// Maximum length of an object's key in bytes. It is the limit of S3.
pub const KEY: usize = 1024;
/// Maximum length in bytes of a store's ETags, generations and upload identifiers, and of the token
/// of a list's next page.
pub const TAG: usize = 4 << 10;
/// Maximum number of unusable keys of a store that a list names; further ones are only counted.
pub const NAMED_KEYS: usize = 8;
/// Maximum length in bytes of an object that is read in one request, such as a sensor's status;
/// also the length of the first request for a table of parts.
pub const SMALL: u64 = 1 << 20;
/// Maximum length in bytes of a table of parts, which describes a capture file in `blocks/`.
pub const TABLE: u64 = 256 << 20;
/// Number of objects in a row for which the store does not answer or reports a temporary error, after
/// which the whole store counts as failed: each failure may take minutes of retries. A refusal is
/// quick, and often concerns some objects only, such as archived ones.
pub const MOST_FAILED: u64 = 8;
/// Maximum number of sensor statuses that a survey of a store reads.
pub const STATUSES: usize = 20_000;
/// Maximum number of byte ranges of objects that a query plans.
pub const PLANNED_RANGES: usize = 4 << 20;
/// Maximum number of rows of a table of parts, which describes a capture file in `blocks/`.
pub const PARTS: usize = 1 << 20;
/// Maximum number of rows of any Parquet file.
pub const ROWS: usize = 1 << 24;
/// Maximum length in bytes of the metadata at the end of a Parquet file.
pub const PARQUET_FOOTER: usize = 4 << 20;
/// Maximum length in bytes of an uncompressed page of a Parquet file.
pub const PARQUET_PAGE: usize = 64 << 20;
/// Maximum number of values in the dictionary of a Parquet column.
pub const PARQUET_DICTIONARY: usize = 4 << 20;
/// Maximum number of bytes of all texts or byte arrays of a Parquet column together.
pub const PARQUET_COLUMN: usize = 256 << 20;
/// Maximum length in bytes of a file in the delivery journal, except tables of parts. A record of
/// an upload has the ETags of up to 10,000 parts.
pub const JOURNAL_FILE: u64 = 4 << 20;
