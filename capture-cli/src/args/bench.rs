//! Arguments of `wqcap bench`.

use super::{ConfigArgs, seconds, written};
use clap::{Subcommand, value_parser};
use std::{path::PathBuf, time::Duration};
use wqcap_engine::config::{Format, Receive, Size, Timestamps};

/// Arguments of `wqcap bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// Text of an option that is not one of the option's values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum WrongBenchValue {
    #[error("{0:?} is not a receive mode; write frame, striding or auto")]
    Receive(String),
    #[error("{0:?} is not a source of time stamps; write hardware or software")]
    Timestamps(String),
    #[error("{0:?} is not a format of capture files; write pcap or pcapng")]
    Format(String),
}

/// Parses a value of `capture.receive`.
fn receive(text: &str) -> Result<Receive, WrongBenchValue> {
    text.parse()
        .map_err(|_| WrongBenchValue::Receive(text.into()))
}

/// Parses a value of `capture.timestamps`.
fn timestamps(text: &str) -> Result<Timestamps, WrongBenchValue> {
    text.parse()
        .map_err(|_| WrongBenchValue::Timestamps(text.into()))
}

/// Parses a value of `output.format` that produces files.
fn format(text: &str) -> Result<Format, WrongBenchValue> {
    match text.parse() {
        Ok(Format::None) | Err(_) => Err(WrongBenchValue::Format(text.into())),
        Ok(format) => Ok(format),
    }
}

/// Options of most `wqcap bench` commands: number of repeats, and JSON output.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Number of times that the measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print the benchmark's results on stdout as JSON
    #[arg(long)]
    pub json: bool,
}

/// Benchmarks of `wqcap bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Count the short frames that a queue absorbs while its loop is held, for each receive mode in
    /// equal memory
    Burst(BenchBurstArgs),
    /// Measure the CPU time that a queue's core spends per frame written to files
    Capture(BenchCaptureArgs),
    /// Measure the compression rate of one core, and the compressed size
    Compress(BenchCompressArgs),
    /// Measure how fast frames are written to a disk, compared with plain direct writes
    Disk(BenchDiskArgs),
    /// Measure the CPU time of a receive loop per frame, compared with bare loops over the same
    /// ring
    Rx(BenchRxArgs),
    /// Measure the latency that capture.idle = "sleep" adds to a frame after a pause
    Wake(BenchWakeArgs),
    /// Search for the highest rate without loss from one port to another, and measure the latency
    Wire(BenchWireArgs),
}

/// Arguments of `wqcap bench burst`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Holds the loop of a queue while the wire of the software NIC delivers 64-byte frames, until the \
ring is full and frames are lost. Counts the frames before the first lost one. Each mode of \
--receive gets as much memory as the baseline, a ring in mode frame. Strides are 64 bytes. The \
loop then continues. The benchmark fails if a frame that the NIC accepted is not captured. It runs \
on the software NIC only.

Examples:
  wqcap bench burst
  wqcap bench burst --memory 8MiB --hold 20ms --rate 1000000
  wqcap bench burst --json | jq '.results[1].ratio'")]
pub struct BenchBurstArgs {
    /// Memory of the queue, for its buffers and its CQ together. Mode frame gets the largest ring
    /// that fits, and no other mode gets more memory than that
    #[arg(long, value_name = "SIZE", default_value = "34MiB", value_parser = written)]
    pub memory: Size,
    /// Receive modes to compare with mode frame: striding, auto
    #[arg(long, value_name = "MODE,...", default_value = "striding", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// Time for which the receive loop is held when searching for the highest rate without loss:
    /// seconds, or a time with a unit
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = seconds)]
    pub hold: Duration,
    /// Also print how many frames are lost during the hold at this rate, in frames per second
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `wqcap bench capture`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills a ring while its loop is held, removes the rules, and then measures the CPU time of the \
queue's thread: poll, time stamp, parse of the 5-tuple, copy, submission, repost. There are two \
baselines. Baseline count is the same loop, but it only parses and counts. Baseline copy is a bare \
loop over ibv_start_poll that copies a record header and the first 64 bytes of each frame into \
memory, and writes nothing. All of them alternate.

Examples:
  wqcap bench capture /var/lib/wqcap
  wqcap bench capture --receive frame,striding
  wqcap bench capture --format pcapng
  wqcap bench capture --frame 1500 --rounds 20 --json
  wqcap bench capture --device mlx5_0   with traffic on the wire")]
pub struct BenchCaptureArgs {
    /// Directory for the capture files that the benchmark writes
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Measure on this RDMA device instead of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Frame size on the software NIC in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=2000), conflicts_with = "device")]
    pub frame: u32,
    /// Receive modes to measure: frame, striding. Each mode is also compared with the one before it
    #[arg(long, value_name = "MODE,...", default_value = "frame", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// Format of the written capture files: pcap, pcapng
    #[arg(long, default_value = "pcap", value_parser = format)]
    pub format: Format,
    /// Number of full receive rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `wqcap bench compress`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Compresses blocks of records on one core, each into a separate compressed frame. The baseline copies them.

Examples:
  wqcap bench compress
  wqcap bench compress traffic.pcapng --block 1MiB --json")]
pub struct BenchCompressArgs {
    /// Capture file with the frames to compress [default: generated payloads, half text and half
    /// noise]
    pub file: Option<PathBuf>,
    /// Size of a block of frame records before compression
    #[arg(long, default_value = "64KiB", value_parser = written)]
    pub block: Size,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `wqcap bench disk`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes 1500-byte frames through the block writer, and the same number of bytes with plain O_DIRECT \
writes of several threads. The two alternate, and each writes a file that is synced and then \
deleted. There are two baselines: plain writes of 1 MiB that extend their file, and plain writes of \
4 MiB, the size of a block, into a preallocated file. The ratio compares times: 1.00 is as fast as \
plain writes.

Examples:
  wqcap bench disk /var/lib/wqcap
  wqcap bench disk --size 8GiB --json | jq '.results[0].ratio'")]
pub struct BenchDiskArgs {
    /// Directory for the benchmark's files, on the disk to measure
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Bytes that each method writes per repeat
    #[arg(long, default_value = "1GiB", value_parser = written)]
    pub size: Size,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `wqcap bench rx`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills rings while no loop polls them, removes the rules, and then measures the CPU time of draining \
and reposting them with three loops: the engine's loop with time stamps and ledger, a bare loop over \
ibv_poll_cq, and the baseline, a bare loop over ibv_start_poll that reads the same fields including \
the time stamp. The three alternate.

Examples:
  wqcap bench rx
  wqcap bench rx --queues 1,4,16 --batch 1,16,64,256 --json
  wqcap bench rx --frame 1500
  wqcap bench rx --receive frame,striding
  wqcap bench rx --timestamps software  with compressed CQEs
  wqcap bench rx --device mlx5_0        with traffic on the wire
  wqcap bench rx --device mlx5_0 --prefetch")]
pub struct BenchRxArgs {
    /// Measure on this RDMA device instead of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Frame size on the software NIC in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "device")]
    pub frame: u32,
    /// Numbers of receive queues to measure with; each must be a power of two
    #[arg(long, value_name = "N,...", default_value = "1", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=64))]
    pub queues: Vec<u16>,
    /// Numbers of completions per poll to measure with
    #[arg(long, value_name = "N,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=1024))]
    pub batch: Vec<u16>,
    /// Receive modes to measure: frame, striding. Each mode is also compared with the one before it
    #[arg(long, value_name = "MODE,...", default_value = "frame", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// Source of the engine's time stamps: hardware or software. With software, the NIC
    /// compresses the CQEs of the engine's loop if it can, but never those of the bare loops
    #[arg(long, value_name = "WHERE", default_value = "hardware", value_parser = timestamps)]
    pub timestamps: Timestamps,
    /// Also measure the engine's loop with a consumer that reads the first cache line of each
    /// frame, and with one that prefetches these lines for each batch. A NIC writes frames to
    /// another cache than the software NIC
    #[arg(long)]
    pub prefetch: bool,
    /// Number of receive WRs in each ring of the engine. A striding ring has as much memory for
    /// frames
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = value_parser!(u32).range(1..=32768))]
    pub ring: u32,
    /// Number of full receive rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub common: CommonArgs,
}

impl BenchRxArgs {
    /// Returns the size of a receive WR's buffer in bytes: the default of 2048, or more if a frame
    /// needs it.
    pub fn buffer(&self) -> u32 {
        self.frame.next_power_of_two().max(2048)
    }
}

/// Arguments of `wqcap bench wake`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Captures with capture.idle = \"spin\" and \"sleep\" alternately, and compares the median age of \
frames when their loop polls them. The difference is the latency of waking up. Frames should be some \
tenths of a millisecond apart.

Examples:
  wqcap bench wake --model synth:size=64,flows=1,pps=1000
  wqcap bench wake --set device.name=mlx5_1 --frames 10000
  wqcap bench wake --json | jq '.results[0].extra_ns'")]
pub struct BenchWakeArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Capture from the software NIC on this wire; --set model.KEY=VALUE sets one of its keys
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Number of frames to receive per capture
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub frames: u64,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Arguments of `wqcap bench wire`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Sends over a RAW_PACKET QP of one port and captures on another, counting only. Without --rate it \
searches for the highest rate without loss by bisection, from the link rate down (RFC 2544, 26.1). \
Then it sends single frames and measures the time from the send call to the frame's time stamp. Both \
ports must be on this machine. Without --tx it uses the software NIC with its port looped back to \
itself.

Examples:
  wqcap bench wire
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --sizes 64,512,1518
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --rate 10000000 --seconds 60
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --replay traffic.pcapng")]
pub struct BenchWireArgs {
    /// RDMA device that sends the frames
    #[arg(long, value_name = "NAME", requires = "rx")]
    pub tx: Option<String>,
    /// Port of the sending device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=254))]
    pub tx_port: u8,
    /// RDMA device that receives the frames. The config sets its port and all other settings
    #[arg(long, value_name = "NAME", requires = "tx")]
    pub rx: Option<String>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Sizes of the generated frames in bytes, without FCS
    #[arg(long, value_name = "BYTES,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "replay")]
    pub sizes: Vec<u32>,
    /// Number of flows among the generated frames
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    pub flows: u32,
    /// Send the frames of this capture file instead of generated ones, repeatedly
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Send this many frames per second instead of searching for the highest rate without loss
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Share of sent frames that may be lost at the highest rate, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// Duration of a trial at one rate: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "2")]
    pub seconds: Duration,
    /// Number of single frames sent to measure the latency
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub probes: u32,
    /// Write the benchmark's results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print the benchmark's results on stdout as JSON
    #[arg(long)]
    pub json: bool,
}
