//! Extraction of packets from a store: frames of a time range and a filter, of all sensors, as one
//! capture file.
//!
//! ```text
//! partitions -> tables of parts (blocks/), their flow filters | a list of ranges -> plan: ranges of objects
//! plan -> pieces -> fetcher: range GETs, some ahead -> merge by time, frame by frame
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | `partitions` | selects the partitions and files that may have frames of the times |
//! | `table` | reads tables of parts |
//! | `ranges` | reads a list of ranges |
//! | `plan` | selects the ranges of objects to be fetched |
//! | `pieces` | combines ranges to requests |
//! | `fetch` | sends the requests, and passes the content to the merge |
//!
//! To the merge, each sensor is a folder of its name with its files. The result has the same ports,
//! streams and bytes as that of `wqcap merge` on such folders.

mod fetch;
mod partitions;
mod pieces;
mod plan;
mod ranges;
mod table;
#[cfg(test)]
mod tests;

pub use fetch::FetchProgress;
pub use plan::{ObjectChoice, PlanError, Unsent};
pub use ranges::{RangeList, RangeListError, RangeRowError};

use crate::{
    store::{self, StoreError, StoreOpenError},
    threads::RequestRuntime,
};
use fetch::Fetcher;
use plan::plan;
use serde::Serialize;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, time::sleep};
use wqcap_files::{
    extract::{FrameQuery, FramesWritten, ReadCount, extract_ranges},
    index::FlowTerms,
    merge::MergeError,
};

/// Interval at which a wait for the store checks whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// Query for frames in an object store.
#[derive(Clone, Debug)]
pub struct StoreQuery {
    /// URL of the object store, in a form that [`check_url`](crate::store::check_url) accepts.
    pub store: String,
    /// Selection of the objects that the query reads.
    pub choice: ObjectChoice,
    /// Selection of the frames that the query extracts.
    pub frames: FrameQuery,
}

/// Result of an extraction from a store, in the layout that `wqcap extract --json` prints.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct StoreExtracted {
    /// Numbers of the frames found, and the capture file that was written.
    #[serde(flatten)]
    pub written: FramesWritten,
    /// Number of partition folders of `blocks/` that were listed.
    pub partitions: u64,
    /// Numbers of tables of parts in `blocks/`: those that were found, and those that were read.
    pub tables: ReadCount,
    /// Numbers of stored objects: those with checked parts, and those from which parts were
    /// fetched.
    pub objects: ReadCount,
    /// Numbers of bytes and requests with which the extraction fetched parts of objects.
    pub fetched: Fetched,
    /// Numbers of matching parts and frames that were not sent to the store.
    pub unsent: Unsent,
    /// Duration of the extraction in seconds.
    pub seconds: f64,
}

/// Numbers of bytes and requests with which a query fetched parts of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fetched {
    /// Number of bytes that the query received from the store.
    pub bytes: u64,
    /// Number of bytes in the object parts that may hold matching frames, and in the objects'
    /// beginnings that these parts need.
    pub wanted_bytes: u64,
    /// Number of read requests that the query sent to the store.
    pub requests: u64,
}

/// Reason why a query of a store wrote no capture file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreQueryError {
    /// The threads that send the query's requests cannot be started.
    #[error("cannot start the threads of the store query: {0}")]
    Threads(#[source] io::Error),
    /// The store of the query cannot be opened.
    #[error(transparent)]
    Open(#[from] StoreOpenError),
    /// The ranges to fetch for the query cannot be planned.
    #[error("{url}: {problem}")]
    Plan {
        /// URL of the queried store.
        url: String,
        /// Reason why the ranges to fetch cannot be planned.
        #[source]
        problem: PlanError,
    },
    /// A request to the store failed while the query read objects.
    #[error("{url}: {problem}")]
    Fetch {
        /// URL of the queried store.
        url: String,
        /// Error of the first store request that failed.
        #[source]
        problem: StoreError,
    },
    /// The objects cannot be combined into one capture file, or the caller stopped the query.
    #[error(transparent)]
    Merge(#[from] MergeError),
}

/// Extracts the frames of a query from a store to a capture file. `watch` is called regularly with
/// the fetch progress. Setting `stop` ends the query.
///
/// # Errors
/// The store cannot be opened, does not answer, or has no files of these times; the objects cannot
/// be combined into one file; the output cannot be written; or `stop` was set. Problems of single
/// objects are part of the result.
pub fn extract(
    query: &StoreQuery,
    stop: &Arc<AtomicBool>,
    watch: impl Fn(&FetchProgress),
) -> Result<StoreExtracted, StoreQueryError> {
    let runtime = RequestRuntime::start().map_err(StoreQueryError::Threads)?;
    // Responses that still arrive afterwards are discarded.
    extract_on(runtime.handle(), query, stop, watch)
}

fn extract_on(
    runtime: &Handle,
    query: &StoreQuery,
    stop: &Arc<AtomicBool>,
    watch: impl Fn(&FetchProgress),
) -> Result<StoreExtracted, StoreQueryError> {
    let begun = Instant::now();
    let url = &query.store;
    let store = {
        // Parts of the store's client need the runtime's context.
        let _within = runtime.enter();
        store::open_to_read(url, url)?
    };
    let terms = FlowTerms::parse(query.frames.filter.expression());
    let plan = runtime.block_on(async {
        tokio::select! {
            planned = plan(&*store, &query.choice, &query.frames.times, &terms) => planned.map_err(|problem| {
                let url = url.clone();
                StoreQueryError::Plan { url, problem }
            }),
            () = until(stop) => Err(MergeError::Stopped.into()),
        }
    })?;
    let fetcher = Fetcher::new(store, runtime.clone(), &plan.objects, Arc::clone(stop));
    let files = fetcher.files(&plan.objects);
    let may_continue = |_, _| {
        watch(&fetcher.progress());
        !stop.load(Ordering::Relaxed) && fetcher.failure().is_none()
    };
    let written = extract_ranges(files, plan.notes, &query.frames, may_continue);
    // Later errors are consequences of a stop or of a failure of the store.
    if stop.load(Ordering::Relaxed) && written.is_err() {
        return Err(MergeError::Stopped.into());
    }
    if let (Some(problem), Err(_)) = (fetcher.failure().cloned(), &written) {
        let url = url.clone();
        return Err(StoreQueryError::Fetch { url, problem });
    }
    let mut written = written?;
    let mut losses = plan.losses;
    losses.append(&mut written.losses);
    let progress = fetcher.progress();
    Ok(StoreExtracted {
        written: FramesWritten { losses, ..written },
        partitions: plan.partitions,
        tables: plan.tables,
        objects: ReadCount {
            read: progress.of_objects,
            total: plan.known,
        },
        fetched: Fetched {
            bytes: progress.bytes,
            wanted_bytes: fetcher.wanted_bytes(),
            requests: fetcher.requests(),
        },
        unsent: plan.unsent,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// Waits until the query's flag `stop` is set.
async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        sleep(TICK).await;
    }
}
