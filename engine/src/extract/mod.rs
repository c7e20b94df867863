//! Takes the frames of some time and some filter out of a folder of finished files.
//!
//! ```text
//! names -> files that can reach into the time -> indexes -> parts that can hold such frames -> merge, frame by frame
//! ```
//!
//! May import: [`crate::index`], [`crate::filter`], [`crate::merge`], [`crate::reader`].
//!
//! Invariants: names and indexes only leave out what cannot be wanted; each frame that is left is judged by its own
//! stamp and by the filter, so that the result is the same with and without them. No capture file is changed.

mod select;

use crate::{
    filter::Filter,
    index::Terms,
    merge::{self, MergeError, Plan, Target},
    reader::{ETHERNET, Packet},
};
use select::{Selection, select};
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

/// What is sought.
#[derive(Clone, Debug)]
pub struct Query {
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
    pub files: Of,
    /// Bytes of the finished files, and those that were read of them, for the frames.
    pub file_bytes: Of,
    /// What came of indexes.
    pub index: IndexUse,
    /// How long it took.
    pub seconds: f64,
    /// What to know.
    pub notes: Vec<String>,
    /// What a torn or damaged file has cost, a line each.
    pub losses: Vec<String>,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Of {
    /// That were read.
    pub read: u64,
    /// That there are.
    pub total: u64,
}

/// What came of indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IndexUse {
    /// Files whose index was asked.
    pub files: u64,
    /// Those of them whose index was absent or stale, and made.
    pub made: u64,
    /// Bytes of indexes read.
    pub bytes_read: u64,
    /// Bytes of files read to make indexes.
    pub bytes_to_make: u64,
    /// The filter is one that an index can help with.
    pub helps_filter: bool,
}

/// Carries a query out. `watch` is told now and then how many bytes are read and how many are to be, and may answer
/// `false` to stop.
///
/// # Errors
/// The folder has no capture files or files that cannot stand in one, the output cannot be written, or `watch` stopped
/// it. What is wrong with a file is in the result.
pub fn extract(query: &Query, watch: impl Fn(u64, u64) -> bool) -> Result<Extracted, MergeError> {
    let begun = Instant::now();
    let meter = Arc::new(AtomicU64::new(0));
    let terms = Terms::of(query.filter.expression());
    let selection = select(
        &query.dir,
        query.index_dir.as_deref(),
        &query.times,
        &terms,
        &meter,
        &|| watch(0, 0),
    )?;
    let Selection { parts, .. } = selection;
    let read = parts.len() as u64;
    let plan = Plan::of_parts(parts, selection.notes, &query.out)?;
    if plan.link_type() != ETHERNET && query.filter.program().is_some() {
        return Err(MergeError::Refused(format!(
            "the files have link type {}: a filter is for Ethernet",
            plan.link_type()
        )));
    }
    let target = Target::new(&query.out, &plan)?;
    let to_read = plan.bytes().unwrap_or(0);
    let wanted = |packet: &Packet<'_>| {
        query.times.contains(&packet.ns) && query.filter.accepts(packet.bytes, packet.len)
    };
    let out = query.out.display().to_string();
    let merged = merge::pick(plan, target, &out, wanted, |bytes| watch(bytes, to_read))?;
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
        files: Of {
            read,
            total: selection.files,
        },
        file_bytes: Of {
            read: meter.load(Ordering::Relaxed),
            total: selection.bytes,
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
