//! `wqcap bench`: measures the speed of this machine and its NIC, one file for each subject.
//!
//! Each result is compared with a baseline of the same run. The two are measured in turn, so that
//! load on the machine slows both.

mod bare;
mod burst;
mod capture;
mod compress;
mod disk;
mod files;
mod report;
mod rounds;
mod rx;
mod wake;
pub mod wire;

use crate::{args::BenchCommand, failure::Failure};
use std::time::{SystemTime, UNIX_EPOCH};

/// Runs one of the benchmarks of `wqcap bench`, which prints its results.
pub fn bench(command: &BenchCommand) -> Result<(), Failure> {
    match command {
        BenchCommand::Burst(args) => burst::burst(args),
        BenchCommand::Capture(args) => capture::capture(args),
        BenchCommand::Compress(args) => compress::compress(args),
        BenchCommand::Disk(args) => disk::disk(args),
        BenchCommand::Rx(args) => rx::rx(args),
        BenchCommand::Wake(args) => wake::wake(args),
        BenchCommand::Wire(args) => wire::wire(args),
    }
}

/// Returns the system time in nanoseconds since 1970, in the form of time stamps.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX))
}
