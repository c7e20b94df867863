//! Takes the frames of a time and a filter out of a folder of finished files.
//!
//! ```text
//! names -> files that can reach into the times -> indexes -> parts that can hold such frames -> merge, frame by frame
//! ```
//!
//! May import: [`crate::index`], [`crate::merge`], [`crate::read`], [`crate::folder`], and the filter of `wqcap-frame`.
//!
//! Invariants: names and indexes only leave out what cannot be wanted; each frame that is left is judged by its own
//! stamp and by the filter, so that the result is the same with and without them. No capture file is changed.

mod select;

pub use select::IndexUse;

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
    /// From the start, up to and without the end; nanoseconds since 1970.
    pub times: Range<u64>,
    /// Which frames are wanted.
    pub filter: Filter,
    /// The output; `-` is standard output.
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
    /// How indexes were used.
    pub index: IndexUse,
    /// How long it took.
    pub seconds: f64,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// What was lost with torn or damaged files, a line each.
    pub losses: Vec<String>,
}

/// A count of what was read, and of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ReadOf {
    /// How many were read.
    pub read: u64,
    /// How many there are.
    pub total: u64,
}

/// Carries out a query. `watch` is called now and then with the bytes read and the bytes to be read, and may return
/// `false` to stop.
///
/// # Errors
/// The folder has no capture files, or files that cannot go into one file, the output cannot be written, or `watch` stopped
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
    let plan = MergePlan::from_ranges(selection.files, selection.notes, &query.out, false)?;
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
    let merged = merge::run_selected(plan, target, wanted, |bytes| watch(bytes, to_read))?;
    let losses = merged.inputs.iter().filter_map(|input| {
        let loss = input.loss.as_ref()?;
        Some(format!("{}: {loss}", input.path))
    });
    Ok(Extracted {
        out: merged.out,
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
        index: selection.index,
        seconds: begun.elapsed().as_secs_f64(),
        losses: losses.collect(),
        notes: merged.notes,
    })
}
