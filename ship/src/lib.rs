//! What one capture finishes, in an object store: its files, what is in them, and its flow records; and packets of all
//! captures back from it.
//!
//! ```text
//! finished files, flow records -> journal -> parts -> store: packets/, blocks/, flows/, dns/
//!                                    |                  |
//!                                    |                  +-> query: blocks/ -> ranges of packets/ -> merge by time
//!                                    +-> delivery ledger -> status/ -> fleet
//! ```
//!
//! Readers find packets through `blocks/` alone, and a file's `blocks` are put when its packets are whole in the store: half
//! of a file is never seen. Keys follow from sensor, queue and start, so what is sent again after a crash replaces itself.
//! No file needs more of a store than to put, to put in parts, and to tell an object's length. A sensor's status is read, too,
//! and put on condition where the store can do that.
//! Who queries lists and gets.
//!
//! | module | what it does |
//! |---|---|
//! | [`key`] | names of objects |
//! | [`mod@store`] | an object store: a bucket, or a folder |
//! | `source` | finds what a capture has finished |
//! | `blocks` | writes the parts of a file, as its index has them, as a Parquet file |
//! | `flow_filter` | which flows a part may hold |
//! | [`journal`] | how far each file is, on disk before the next step |
//! | [`ledger`] | every captured frame in one line: shipped, pending, not selected, expired |
//! | [`shipper`] | takes the files through their steps, and tells the store how that goes |
//! | [`fleet`] | what all sensors of a store tell, and what is missing |
//! | [`query`] | extracts frames from a store |
//!
//! # Invariants
//!
//! May import `wqcap-files`, and of it no more than readers need. A file of a capture is read and never changed. What the
//! journal says of a file is on the disk before anything happens that follows from it. Memory is bounded by
//! parts x concurrency, and by a file's index; that of a query by a constant, and by the tables of the files that it is about.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bandwidth;
mod blocks;
pub mod fleet;
mod flow_filter;
pub mod journal;
pub mod key;
pub mod ledger;
pub mod query;
pub mod shipper;
mod source;
pub mod store;

use std::path::PathBuf;
use wqcap_files::{
    anonymize::AnonymizeQuery,
    index::{CaptureIndex, FlowTerms},
};

/// What is shipped, where to, and how fast.
#[derive(Clone, Debug)]
pub struct ShipPlan {
    /// Folder of the capture files.
    pub dir: PathBuf,
    /// Folder of their indexes; `None`: an index is made in memory, which reads the file once more.
    pub index_dir: Option<PathBuf>,
    /// Folder of the flow records; `None`: there are none.
    pub flows_dir: Option<PathBuf>,
    /// As [`check_url`](crate::store::check_url) takes it.
    pub store: String,
    /// The sensor's name, a plain word.
    pub sensor: String,
    /// The machine's, for whoever asks which of two has the sensor's.
    pub host: String,
    /// Which capture files go up; of the others only what is in them.
    pub packets: Selection,
    /// Bytes of a part.
    pub part_bytes: u64,
    /// Parts that are under way at a time.
    pub concurrency: usize,
    /// Bytes a second; `None`: as many as go.
    pub bandwidth: Option<u64>,
    /// How frames are anonymized before they are sent; `None`: they are sent as they are.
    pub anonymize: Option<AnonymizeQuery>,
    /// Folder of the journal, and of anonymized copies.
    pub journal: PathBuf,
}

/// Which capture files are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Each.
    All,
    /// None.
    None,
    /// Those that may hold frames of such flows.
    Of(FlowTerms),
}

impl Selection {
    /// Whether a file is sent in which this is.
    #[must_use]
    pub fn takes(&self, index: &CaptureIndex) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Of(terms) => !index.select(&(0..u64::MAX), terms).is_empty(),
        }
    }

    /// Whether each file is sent; `None`: that depends on what is in it.
    #[must_use]
    pub fn of_each(&self) -> Option<bool> {
        match self {
            Self::All => Some(true),
            Self::None => Some(false),
            Self::Of(_) => None,
        }
    }
}
