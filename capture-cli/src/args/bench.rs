//! The arguments of `wqcap bench`.

use super::{ConfigArgs, seconds, written};
use clap::{Subcommand, value_parser};
use std::{path::PathBuf, time::Duration};
use wqcap_engine::config::{Format, Receive, Size, Timestamps};

/// `wqcap bench`
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// A word of `capture.receive`.
fn receive(text: &str) -> Result<Receive, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a receive mode; write frame, striding or auto"))
}

/// A word of `capture.timestamps`.
fn timestamps(text: &str) -> Result<Timestamps, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no origin of time stamps; write hardware or software"))
}

/// A word of `output.format` that makes files.
fn format(text: &str) -> Result<Format, String> {
    match text.parse() {
        Ok(Format::None) | Err(_) => Err(format!(
            "{text:?} is not a format of capture files; write pcap or pcapng"
        )),
        Ok(format) => Ok(format),
    }
}

/// How often, and in which form.
#[derive(Debug, clap::Args)]
pub struct CommonArgs {
    /// Number of repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Short frames that a queue survives while its loop is held, by receive mode in the same memory
    Burst(BenchBurstArgs),
    /// CPU time of a queue's core per frame written
    Capture(BenchCaptureArgs),
    /// Compression rate of one core, and the compressed size
    Compress(BenchCompressArgs),
    /// Writing frames to a disk, compared with plain direct writes
    Disk(BenchDiskArgs),
    /// CPU time of a receive loop per frame, compared with bare loops over the same ring
    Rx(BenchRxArgs),
    /// Latency that capture.idle = "sleep" adds to a frame after a pause
    Wake(BenchWakeArgs),
    /// Highest rate without loss from one port to another, and the latency
    Wire(BenchWireArgs),
}

/// `wqcap bench burst`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Holds the loop of a queue while the wire of the software NIC brings frames of 64 bytes, until the ring is full and frames \
are lost, and counts the frames up to the first lost one. Each mode of --receive gets the memory of the baseline, a ring of \
frame; strides are of 64 bytes. Then the loop continues; the bench fails if a frame that the NIC accepted is not captured. \
It runs on the software NIC only.

Examples:
  wqcap bench burst
  wqcap bench burst --memory 8MiB --hold 20ms --rate 1000000
  wqcap bench burst --json | jq '.results[1].ratio'")]
pub struct BenchBurstArgs {
    /// Memory of the queue, buffers and CQ together; frame gets the largest ring that fits, and no mode more than that
    #[arg(long, value_name = "SIZE", default_value = "34MiB", value_parser = written)]
    pub memory: Size,
    /// Modes to compare with frame: striding, auto
    #[arg(long, value_name = "MODE,...", default_value = "striding", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// How long a loop is held for the highest rate without loss: seconds, or a time with a unit
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = seconds)]
    pub hold: Duration,
    /// Also print how many frames are lost at this rate, in frames per second
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `wqcap bench capture`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills a ring while its loop is held, removes the rules, and then measures the CPU time of the queue's thread: \
poll, time stamp, parse of the 5-tuple, copy, submission, repost. There are two baselines: count, the same loop that only \
parses and counts, and copy, a bare loop over ibv_start_poll that copies the first 64 bytes of each frame behind a record \
header into memory, and writes nothing. All alternate.

Examples:
  wqcap bench capture /var/lib/wqcap
  wqcap bench capture --receive frame,striding
  wqcap bench capture --format pcapng
  wqcap bench capture --frame 1500 --rounds 20 --json
  wqcap bench capture --device mlx5_0   with the traffic that is there")]
pub struct BenchCaptureArgs {
    /// A directory on the disk
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Use this real device instead of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Frame size on the software NIC in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=2000), conflicts_with = "device")]
    pub frame: u32,
    /// How frames lie in the ring's memory: frame, striding; each is compared with the one before it, too
    #[arg(long, value_name = "MODE,...", default_value = "frame", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// Format of the files: pcap, pcapng
    #[arg(long, default_value = "pcap", value_parser = format)]
    pub format: Format,
    /// Rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `wqcap bench compress`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Compresses blocks of records on one core, each into its own compressed frame. The baseline copies them.

Examples:
  wqcap bench compress
  wqcap bench compress traffic.pcapng --block 1MiB --json")]
pub struct BenchCompressArgs {
    /// Capture file with the frames to compress [default: generated payloads, half text and half noise]
    pub file: Option<PathBuf>,
    /// Block size
    #[arg(long, default_value = "64KiB", value_parser = written)]
    pub block: Size,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `wqcap bench disk`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes frames of 1500 bytes through the block writer, and the same number of bytes with plain O_DIRECT writes of several \
threads, alternately, each to a file that is synced and then deleted. There are two baselines: plain writes of 1 MiB that \
extend their file, and of 4 MiB, a block's size, into a preallocated file. The ratio compares times: 1.00 is as fast as plain writes.

Examples:
  wqcap bench disk /var/lib/wqcap
  wqcap bench disk --size 8GiB --json | jq '.results[0].ratio'")]
pub struct BenchDiskArgs {
    /// A directory on the disk
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Bytes to write per repeat
    #[arg(long, default_value = "1GiB", value_parser = written)]
    pub size: Size,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `wqcap bench rx`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills rings while no loop polls them, removes the rules, and then measures the CPU time of draining and reposting them: \
the engine's loop with time stamps and ledger, a bare loop over ibv_poll_cq, and the baseline, a bare loop over \
ibv_start_poll that reads the same fields including the time stamp. The three alternate.

Examples:
  wqcap bench rx
  wqcap bench rx --queues 1,4,16 --batch 1,16,64,256 --json
  wqcap bench rx --frame 1500
  wqcap bench rx --receive frame,striding
  wqcap bench rx --timestamps software  with CQEs compressed
  wqcap bench rx --device mlx5_0        with the traffic that is there")]
pub struct BenchRxArgs {
    /// Use this real device instead of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Frame size on the software NIC in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "device")]
    pub frame: u32,
    /// Numbers of queues; powers of two
    #[arg(long, value_name = "N,...", default_value = "1", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=64))]
    pub queues: Vec<u16>,
    /// Completions per poll
    #[arg(long, value_name = "N,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=1024))]
    pub batch: Vec<u16>,
    /// How frames lie in the rings' memory: frame, striding; each is compared with the one before it, too
    #[arg(long, value_name = "MODE,...", default_value = "frame", value_delimiter = ',', value_parser = receive)]
    pub receive: Vec<Receive>,
    /// Where the engine's time stamps come from: hardware, or software, with which a NIC that can compresses its CQEs (not those
    /// of the bare loops)
    #[arg(long, value_name = "WHERE", default_value = "hardware", value_parser = timestamps)]
    pub timestamps: Timestamps,
    /// WRs of a ring of the engine; a striding ring has as much memory for frames
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = value_parser!(u32).range(1..=32768))]
    pub ring: u32,
    /// Rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    #[command(flatten)]
    pub common: CommonArgs,
}

impl BenchRxArgs {
    /// Bytes of a WR's buffer: the default, or what a frame takes.
    pub fn buffer(&self) -> u32 {
        self.frame.next_power_of_two().max(2048)
    }
}

/// `wqcap bench wake`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Captures with capture.idle = \"spin\" and \"sleep\" alternately, and compares the median age of frames when their loop \
polls them: the latency that waking up adds. Frames should be some tenths of a millisecond apart.

Examples:
  wqcap bench wake --model synth:size=64,flows=1,pps=1000
  wqcap bench wake --set device.name=mlx5_1 --frames 10000
  wqcap bench wake --json | jq '.results[0].extra_ns'")]
pub struct BenchWakeArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Capture from the software NIC on this wire; --set model.KEY=VALUE sets a key of it
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Frames per capture
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub frames: u64,
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `wqcap bench wire`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Sends over a RAW_PACKET QP of one port and captures on another, counting only. Without --rate it searches the highest \
rate without loss by bisection, from the link rate down (RFC 2544, 26.1). Then it sends single frames and measures the \
time from the send call to the frame's time stamp; both ports must be on this machine. Without --tx it is the software NIC, \
whose port is looped back to itself.

Examples:
  wqcap bench wire
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --sizes 64,512,1518
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --rate 10000000 --seconds 60
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --replay traffic.pcapng")]
pub struct BenchWireArgs {
    /// The sending device
    #[arg(long, value_name = "NAME", requires = "rx")]
    pub tx: Option<String>,
    /// Port of the sending device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=254))]
    pub tx_port: u8,
    /// The receiving device; the config has its port and all other settings
    #[arg(long, value_name = "NAME", requires = "tx")]
    pub rx: Option<String>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Frame sizes in bytes, without FCS
    #[arg(long, value_name = "BYTES,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "replay")]
    pub sizes: Vec<u32>,
    /// Number of flows
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    pub flows: u32,
    /// Send the frames of a capture file instead, repeatedly
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Send this many frames per second instead of searching the rate
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Tolerated loss in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// Duration of each trial: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "2")]
    pub seconds: Duration,
    /// Number of single frames for the latency
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub probes: u32,
    /// Write the results to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}
