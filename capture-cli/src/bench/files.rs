//! Files that a bench writes by the engine's writer: what capturing and disk benches share.

use crate::failure::Failure;
use std::{path::Path, sync::Arc};
use tempfile::TempDir;
use wqcap_engine::{
    Wakeup,
    memory::Region,
    sink::{BLOCK, BlockSink, Encoder, Files, OutputPlan, Writer},
};

/// `output.buffer` by default.
const BUFFER: u64 = 256 << 20;

/// A directory in `dir` that is gone with this value.
pub fn scratch(dir: &Path) -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix(".wqcap-bench-")
        .tempdir_in(dir)
        .map_err(|e| Failure::refused(format!("{}: {e}", dir.display())))
}

/// Starts a writer of one queue into `dir`, for frames of `longest` bytes at most.
pub fn start<E: Encoder>(
    dir: &Path,
    longest: usize,
    encoder: &E,
) -> Result<(Writer, BlockSink<E>), Failure> {
    let files = Files {
        output: OutputPlan::pcap(dir, BUFFER),
        snaplen: 0,
        longest,
        hook_process: None,
        finish_times: Default::default(),
        at_rest: None,
        ring: None,
        limit: None,
        owner: Wakeup::default(),
    };
    let (mut writer, mut sinks) = Writer::start(&files, encoder, &[Arc::default()])?;
    // As a capture does before frames come.
    writer.wait_for_memory()?;
    let sink = sinks.pop().ok_or_else(|| Failure::failed("no sink"))?;
    Ok((writer, sink))
}

/// As many blocks as that writer has, of the same size.
pub fn blocks() -> Result<Vec<Region>, Failure> {
    Ok(Region::several(BUFFER as usize / BLOCK, BLOCK)?)
}

/// Waits for the files' final names.
pub fn finish(writer: Writer) -> Result<Vec<std::path::PathBuf>, Failure> {
    let finished = writer.finish();
    match finished.failures.into_iter().next() {
        Some(failure) => Err(Failure::failed(failure)),
        None => Ok(finished.files.iter().collect()),
    }
}

/// Deletes a file.
pub fn remove(file: &Path) -> Result<(), Failure> {
    std::fs::remove_file(file).map_err(|e| Failure::failed(format!("{}: {e}", file.display())))
}
