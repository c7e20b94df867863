//! Packets back from a store: the frames of some times and a filter, of all sensors, as one capture file.
//!
//! ```text
//! partitions -> tables of parts (blocks/), their flow filters | a list of ranges -> plan: ranges of objects
//! plan -> pieces -> fetcher: range GETs, some ahead -> merge by time, frame by frame
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | `partitions` | which partitions, and which files in them, may have frames of the times |
//! | `columns`, `table` | reads Parquet files, and tables of parts |
//! | `ranges` | reads a list of ranges |
//! | `plan` | which ranges of which objects are fetched |
//! | `pieces` | which requests that takes |
//! | `fetch` | makes them, and gives what comes to the merge |
//!
//! Each sensor is to the merge what a folder of its name with its files is to `wqcap merge`: the same ports, streams and bytes
//! come out of both.

mod columns;
mod fetch;
mod partitions;
mod pieces;
mod plan;
mod ranges;
mod table;
#[cfg(test)]
mod tests;

pub use fetch::FetchProgress;
pub use plan::{ObjectChoice, ObjectParts, PlanError, StorePlan, Unsent, plan};
pub use ranges::RangeList;

use crate::store;
use fetch::Fetcher;
use serde::Serialize;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    runtime::{Builder, Handle},
    time::sleep,
};
use wqcap_files::{
    extract::{FrameQuery, FramesWritten, ReadOf, extract_ranges},
    index::FlowTerms,
    merge::MergeError,
};

/// Threads that sign, encrypt and receive.
const WORKERS: usize = 2;
/// How often whoever waits for the store looks whether it is to stop.
const TICK: Duration = Duration::from_millis(100);

/// What is wanted of a store.
#[derive(Clone, Debug)]
pub struct StoreQuery {
    /// As [`check_url`](crate::store::check_url) takes it.
    pub store: String,
    /// Which objects may have it.
    pub choice: ObjectChoice,
    /// Which of their frames.
    pub frames: FrameQuery,
}

/// What an extraction from a store did: the shape that `wqcap extract --json` prints for one.
#[derive(Clone, Debug, Serialize)]
pub struct StoreExtracted {
    /// What was found and written.
    #[serde(flatten)]
    pub written: FramesWritten,
    /// Folders of keys that were listed.
    pub partitions: u64,
    /// Tables of parts that were found, and those that were read.
    pub tables: ReadOf,
    /// Objects that have parts, and those of which some were fetched.
    pub objects: ReadOf,
    /// What was fetched of them.
    pub fetched: Fetched,
    /// Frames that are not in the store.
    pub unsent: Unsent,
    /// How long it took.
    pub seconds: f64,
}

/// What was fetched of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fetched {
    /// Bytes that came.
    pub bytes: u64,
    /// Bytes of the parts that may hold what is wanted, with the beginnings they need.
    pub wanted_bytes: u64,
    /// Requests.
    pub requests: u64,
}

/// Carries out a query. `watch` sees now and then how far it is; `stop`, once set, ends it.
///
/// # Errors
/// There is no such store, it does not answer, or has nothing of these times; the objects cannot go into one file; the output
/// cannot be written; or `stop` was set. What is wrong with an object is in the result.
pub fn extract(
    query: &StoreQuery,
    stop: &Arc<AtomicBool>,
    watch: impl Fn(&FetchProgress),
) -> Result<StoreExtracted, MergeError> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build();
    let failed = |e| MergeError::Failed(format!("cannot start threads: {e}"));
    let runtime = runtime.map_err(failed)?;
    let done = extract_on(runtime.handle(), query, stop, watch);
    // Whatever still comes is nobody's.
    runtime.shutdown_background();
    done
}

fn extract_on(
    runtime: &Handle,
    query: &StoreQuery,
    stop: &Arc<AtomicBool>,
    watch: impl Fn(&FetchProgress),
) -> Result<StoreExtracted, MergeError> {
    let begun = Instant::now();
    let url = &query.store;
    let store = {
        // Some of what it is made of asks for the runtime.
        let _within = runtime.enter();
        store::open_to_read(url, url).map_err(|e| MergeError::Refused(e.to_string()))?
    };
    let terms = FlowTerms::parse(query.frames.filter.expression());
    let plan = runtime.block_on(async {
        tokio::select! {
            planned = plan(&*store, &query.choice, &query.frames.times, &terms) => planned.map_err(|e| match e {
                PlanError::Refused(e) => MergeError::Refused(format!("{url}: {e}")),
                PlanError::Store(e) => MergeError::Failed(format!("{url}: {e}")),
            }),
            () = until(stop) => Err(MergeError::Stopped),
        }
    })?;
    let fetcher = Fetcher::new(store, runtime.clone(), &plan.objects, Arc::clone(stop));
    let files = fetcher.files(&plan.objects);
    let goes_on = |_, _| {
        watch(&fetcher.progress());
        !stop.load(Ordering::Relaxed) && fetcher.failure().is_none()
    };
    let written = extract_ranges(files, plan.notes, &query.frames, goes_on);
    // Whatever else was wrong by then follows from these.
    if stop.load(Ordering::Relaxed) && written.is_err() {
        return Err(MergeError::Stopped);
    }
    if let (Some(e), Err(_)) = (fetcher.failure(), &written) {
        return Err(MergeError::Failed(format!("{url}: {e}")));
    }
    let mut written = written?;
    let mut losses = plan.losses;
    losses.append(&mut written.losses);
    let progress = fetcher.progress();
    Ok(StoreExtracted {
        written: FramesWritten { losses, ..written },
        partitions: plan.partitions,
        tables: plan.tables,
        objects: ReadOf {
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

/// Waits until it is set.
async fn until(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        sleep(TICK).await;
    }
}
