//! Files that benchmarks write with the engine's writer.

use crate::failure::Failure;
use std::{path::Path, sync::Arc};
use tempfile::TempDir;
use wqcap_engine::{
    memory::Region,
    sink::{BLOCK, BlockSink, Encoder, OutputPlan, Writer, WriterConfig},
};

/// Default of the configuration key `output.buffer` in bytes.
const BUFFER: u64 = 256 << 20;

/// Creates a scratch directory for a benchmark in `dir`, which is removed when the returned value
/// is dropped.
pub fn scratch(dir: &Path) -> Result<TempDir, Failure> {
    tempfile::Builder::new()
        .prefix(".wqcap-bench-")
        .tempdir_in(dir)
        .map_err(|e| {
            Failure::refused(format!(
                "cannot create a directory for the benchmark in {}: {e}",
                dir.display()
            ))
        })
}

/// Starts the engine's block writer for one queue, with files in `dir` and frames of at most
/// `longest` bytes.
pub fn start<E: Encoder>(
    dir: &Path,
    longest: usize,
    encoder: &E,
) -> Result<(Writer, BlockSink<E>), Failure> {
    let files = WriterConfig::new(OutputPlan::pcap(dir, BUFFER), longest);
    let (mut writer, mut sinks) = Writer::start(&files, encoder, &[Arc::default()])?;
    // A capture also waits for this before it receives frames.
    writer.wait_for_memory()?;
    let sink = sinks.pop().ok_or_else(|| Failure::failed("no sink"))?;
    Ok((writer, sink))
}

/// Allocates as many memory blocks as the block writer of [`start`] has, of equal length.
pub fn blocks() -> Result<Vec<Region>, Failure> {
    Ok(Region::allocate_many(BUFFER as usize / BLOCK, BLOCK)?)
}

/// Waits until the block writer's files have their final names, and returns the paths of these
/// files.
pub fn finish(writer: Writer) -> Result<Vec<std::path::PathBuf>, Failure> {
    let finished = writer.finish();
    match finished.failures.into_iter().next() {
        Some(failure) => Err(Failure::failed(failure)),
        None => Ok(finished.files.iter().collect()),
    }
}

/// Deletes a capture file of the benchmark.
pub fn remove(file: &Path) -> Result<(), Failure> {
    std::fs::remove_file(file)
        .map_err(|e| Failure::failed(format!("cannot delete {}: {e}", file.display())))
}
