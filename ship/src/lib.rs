//! Ships finished files of a capture, their tables of blocks and flow records to an object store,
//! and extracts packets of all captures from a store.
//!
//! ```text
//! finished files, flow records -> journal -> parts -> store: packets/, blocks/, flows/, dns/
//!                                    |                  |
//!                                    |                  +-> query: blocks/ -> ranges of packets/ -> merge by time
//!                                    +-> delivery ledger -> status/ -> fleet
//! ```
//!
//! Readers find packets only through `blocks/`. A file's table in `blocks/` is written after its
//! packets are complete in the store, so that no incomplete file is visible. Keys of objects are
//! derived from sensor, queue and start time, so that a file that is sent again after a crash
//! replaces its earlier object. To ship files, a store must support writing an object, multipart
//! upload and reading an object's length. A sensor's status is also read, and written with a
//! precondition where the store supports one. A query needs lists of keys, and reading objects.
//!
//! | module | purpose |
//! |---|---|
//! | `key` | keys of objects |
//! | [`mod@store`] | an object store: a bucket, or a folder |
//! | [`columns`] | reads columns of any Parquet file |
//! | `blocks` | writes the parts of a file, from its index, as a Parquet file, with a Bloom filter of the flows in each |
//! | `journal` | delivery state of each file, on disk before the next step |
//! | [`ledger`] | counts every captured frame in one line: shipped, pending, not selected, expired |
//! | [`shipper`] | finds the finished files of a capture, ships them step by step, and writes the sensor's status to the store |
//! | [`fleet`] | collects the statuses of all sensors of a store, and reports missing ones |
//! | [`query`] | extracts frames from a store |
//! | `limits` | limits of everything that a store, a table or a journal file may contain |
//! | `threads` | threads for work that blocks, started before the first request |
//!
//! # Invariants
//!
//! May import `wqcap-files`, and of it only what readers need. A capture's file is read and never
//! changed. A journal record is on the disk before any action that depends on it. Memory is bounded
//! by part size x concurrency, and by a file's index; the memory of a query by a constant, and by
//! the tables of the files that it covers.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

// The fuzz targets, which the tests replay, use the crate by its name.
#[cfg(test)]
extern crate self as wqcap_ship;

mod blocks;
pub mod columns;
#[cfg(test)]
mod corpus;
pub mod fleet;
mod journal;
mod key;
pub mod ledger;
mod limits;
pub mod query;
pub mod shipper;
pub mod store;
mod threads;

use std::path::PathBuf;
use wqcap_files::{
    anonymize::AnonymizeParams,
    index::{CaptureIndex, FlowTerms},
};

/// Configuration of shipping: source folders, object store, sensor, and limits.
#[derive(Clone, Debug)]
pub struct ShipPlan {
    /// Folder of the capture files to be shipped.
    pub dir: PathBuf,
    /// Folder of the capture files' indexes; `None`: `wqcap ship` builds indexes in memory, which
    /// reads each file once more.
    pub index_dir: Option<PathBuf>,
    /// Folder of the flow records to be shipped; `None`: no flow records are shipped.
    pub flows_dir: Option<PathBuf>,
    /// URL of the object store, in a form that [`check_url`](crate::store::check_url) accepts.
    pub store: String,
    /// Name of the sensor that ships: a plain word, which is part of object keys.
    pub sensor: String,
    /// Name of the machine that ships, which identifies the machine if two machines use one sensor
    /// name.
    pub host: String,
    /// Selection of the capture files whose packets are sent; of each other file only the table of
    /// blocks is sent.
    pub packets: ShipSelection,
    /// Length of a part of a multipart upload in bytes.
    pub part_bytes: u64,
    /// Maximum number of upload parts that are being sent at a time.
    pub concurrency: usize,
    /// Bandwidth limit of uploads in bytes per second; `None`: no limit.
    pub bandwidth: Option<u64>,
    /// Anonymization of frames before they are sent; `None`: frames are sent unchanged.
    pub anonymize: Option<AnonymizeParams>,
    /// Folder of the delivery journal and of anonymized copies.
    pub journal: PathBuf,
}

/// Selection of the capture files whose packets are sent to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShipSelection {
    /// The packets of every capture file are sent.
    All,
    /// The packets of no capture file are sent.
    None,
    /// The packets of capture files that may hold frames of matching flows are sent.
    Of(FlowTerms),
}

impl ShipSelection {
    /// Returns `true` if the packets of a capture file with this index are sent.
    pub(crate) fn takes(&self, index: &CaptureIndex) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Of(terms) => !index.select(&(0..u64::MAX), terms).is_empty(),
        }
    }

    /// Returns the decision to send packets if it does not depend on the capture file; `None`: it
    /// depends on a file's content.
    pub(crate) fn of_each(&self) -> Option<bool> {
        match self {
            Self::All => Some(true),
            Self::None => Some(false),
            Self::Of(_) => None,
        }
    }
}
