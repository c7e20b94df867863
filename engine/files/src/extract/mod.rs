//! Takes the frames of a time and a filter out of a folder of finished files.
//!
//! ```text
//! names -> files that can reach into the time -> indexes -> parts that can hold such frames -> merge, frame by frame
//! ```
//!
//! May import: [`crate::index`], [`crate::merge`], [`crate::read`], [`crate::folder`], and the filter of `wqcap-frame`.
//!
//! Invariants: names and indexes only leave out what cannot be wanted; each frame that is left is judged by its own
//! stamp and by the filter, so that the result is the same with and without them. No capture file is changed.

mod select;

use crate::{
    format::ETHERNET,
    index::FlowTerms,
    merge::{self, MergeError, MergePlan, MergeTarget},
    read::Packet,
};
use select::select;
use serde::Serialize;
use std::{
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};
use wqcap_frame::filter::Filter;

/// What is wanted.
#[derive(Clone, Debug)]
pub struct ExtractQuery {
    /// The folder of capture files.
    pub dir: PathBuf,
    /// The folder of their indexes; missing ones are made in it. `None`: files are chosen by their names alone.
    pub index_dir: Option<PathBuf>,
    /// From, up to and without; nanoseconds since 1970.
    pub times: Range<u64>,
    /// What frames are wanted.
    pub filter: Filter,
    /// Where to; `-` is standard output.
    pub out: PathBuf,
}

/// What an extraction did: the shape that `wqcap extract --json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Extracted {
    /// The file; `-` is standard output.
    pub out: String,
    /// `pcap` or `pcapng`.
    pub format: &'static str,
    /// Frames found.
    pub frames: u64,
    /// Bytes of the output.
    pub bytes: u64,
    /// Stamp of the first frame found.
    pub first_ns: Option<u64>,
    /// Stamp of the last.
    pub last_ns: Option<u64>,
    /// Finished files in the folder, and those that were read.
    pub files: ReadOf,
    /// Bytes of the finished files, and those that were read of them, for the frames.
    pub file_bytes: ReadOf,
    /// What came of indexes.
    pub index: IndexUse,
    /// How long it took.
    pub seconds: f64,
    /// What to know.
    pub notes: Vec<String>,
    /// What was lost with torn or damaged files, a line each.
    pub losses: Vec<String>,
}

/// How many were read, of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReadOf {
    /// Those that were read.
    pub read: u64,
    /// Those that there are.
    pub total: u64,
}

/// What came of indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IndexUse {
    /// Files whose index was used.
    pub files: u64,
    /// Those of them whose index was absent or stale, and was built.
    pub made: u64,
    /// Bytes of indexes read.
    pub bytes_read: u64,
    /// Bytes of files read to make indexes.
    pub bytes_to_make: u64,
    /// An index can help with the filter.
    pub helps_filter: bool,
}

/// Carries a query out. `watch` is told now and then how many bytes are read and how many are to be, and may answer
/// `false` to stop.
///
/// # Errors
/// The folder has no capture files or files that cannot stand in one, the output cannot be written, or `watch` stopped
/// it. What is wrong with a file is in the result.
pub fn extract(
    query: &ExtractQuery,
    watch: impl Fn(u64, u64) -> bool,
) -> Result<Extracted, MergeError> {
    let begun = Instant::now();
    let meter = Arc::new(AtomicU64::new(0));
    let terms = FlowTerms::parse(query.filter.expression());
    let selection = select(
        &query.dir,
        query.index_dir.as_deref(),
        &query.times,
        &terms,
        &meter,
        &|| watch(0, 0),
    )?;
    let read = selection.files.len() as u64;
    let plan = MergePlan::from_ranges(selection.files, selection.notes, &query.out)?;
    if plan.link_type() != ETHERNET && query.filter.program().is_some() {
        return Err(MergeError::Refused(format!(
            "the files have link type {}; a filter can only be applied to Ethernet",
            plan.link_type()
        )));
    }
    let target = MergeTarget::new(&query.out, &plan)?;
    let to_read = plan.bytes().unwrap_or(0);
    let wanted = |packet: &Packet<'_>| {
        query.times.contains(&packet.ns) && query.filter.accepts(packet.bytes, packet.len)
    };
    let out = query.out.display().to_string();
    let merged = merge::run_selected(plan, target, &out, wanted, |bytes| watch(bytes, to_read))?;
    let losses = merged.inputs.iter().filter_map(|input| {
        let loss = input.loss.as_ref()?;
        Some(format!("{}: {loss}", input.path))
    });
    Ok(Extracted {
        out,
        format: merged.format,
        frames: merged.frames,
        bytes: merged.bytes,
        first_ns: merged.first_ns,
        last_ns: merged.last_ns,
        files: ReadOf {
            read,
            total: selection.finished,
        },
        file_bytes: ReadOf {
            read: meter.load(Ordering::Relaxed),
            total: selection.finished_bytes,
        },
        index: IndexUse {
            files: selection.indexed,
            made: selection.made,
            bytes_read: selection.index_bytes,
            bytes_to_make: selection.making_bytes,
            helps_filter: !terms.is_empty(),
        },
        seconds: begun.elapsed().as_secs_f64(),
        losses: losses.collect(),
        notes: merged.notes,
    })
}
