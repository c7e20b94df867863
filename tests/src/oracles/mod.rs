//! Judges that share no code with the product.

pub mod duckdb;
pub mod promtool;
pub mod reference;
