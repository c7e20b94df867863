//! Independent references that share no code with the product.

pub mod capinfos;
pub mod community;
pub mod duckdb;
pub mod ja4;
pub mod prometheus;
pub mod pypi;
pub mod readers;
pub mod reference;
pub mod s3;
pub mod tshark;
