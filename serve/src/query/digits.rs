//! Numbers of 64 bits in JSON.

use serde::Serializer;

/// Serializes a number of 64 bits as decimal digits in a string, since JSON readers have 53 bits
/// for numbers.
pub fn digits<S: Serializer>(n: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(n)
}

/// Serializes an optional number of 64 bits as decimal digits in a string.
pub fn optional_digits<S: Serializer>(n: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match n {
        Some(n) => to.collect_str(n),
        None => to.serialize_none(),
    }
}
