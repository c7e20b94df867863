//! Command-line arguments.

use crate::term::time::Moment;
use clap::{ArgAction, Parser, Subcommand, value_parser};
use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};
use wqcap_engine::config::{Size, Span};

const EXAMPLES: &str = "\
Examples:
  wqcap devices                                   list the devices
  wqcap run -c /etc/wqcap/wqcap.toml              capture as configured
  wqcap run --set output.dir=. --duration 10      ten seconds into the current directory
  wqcap run --model synth:count=1000000 --set output.format=none
                                                  on the software NIC, without files

Exit status:
  0 done
  1 failed while running
  2 the command line, the config or the device does not allow it";

/// Packet capture on RDMA NICs, with a ledger that accounts for every frame.
#[derive(Debug, Parser)]
#[command(name = "wqcap", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Args {
    /// Log more to stderr; twice: everything (RUST_LOG overrides) [default: warnings]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Print errors only: no progress line, no final table
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// The subcommand.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// List the RDMA devices of this machine and their capabilities
    Devices(DevicesArgs),
    /// Validate a config; print the effective config and the objects that a run would create
    Check(CheckArgs),
    /// Capture until a signal, a limit, or the end of a finite wire
    Run(RunArgs),
    /// Run any verbs program on the software NIC
    Model(ModelArgs),
    /// Predict which queue each flow of a capture would take, without a NIC
    Rss(RssArgs),
    /// Merge capture files into one, in time order
    Merge(MergeArgs),
    /// Extract frames by time and filter from a directory of capture files
    Extract(ExtractArgs),
    /// Measure how fast this machine and its NIC are
    Bench(BenchArgs),
    /// Finish the files that a crash left open
    Recover(RecoverArgs),
    /// Inspect or change a running capture
    Ctl(CtlArgs),
    /// Show a live view of a running capture
    Top(TopArgs),
    /// Serve as a capture device of Wireshark
    Extcap(ExtcapArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Manual(ManualArgs),
    /// Run hooks for a capture; `wqcap run` starts this itself
    #[command(hide = true)]
    Hooks(HooksArgs),
}

/// `wqcap devices`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap devices
  wqcap devices --json | jq '.devices[].name'
  wqcap model --wire loopback -- wqcap devices    the devices of the software NIC")]
pub struct DevicesArgs {
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap extcap`: the arguments of Wireshark (extcap(4)), and those of the dialog
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Wireshark runs this by a script in its extcap directory (Help, About, Folders):
  #!/bin/sh
  exec wqcap --quiet extcap \"$@\"

Examples:
  wqcap extcap --extcap-interfaces
  tshark -i wqcap-model -o extcap.wqcap_model.wire:af_packet:lo")]
pub struct ExtcapArgs {
    /// List the interfaces
    #[arg(long)]
    pub extcap_interfaces: bool,
    /// Wireshark's version
    #[arg(long, value_name = "VERSION")]
    pub extcap_version: Option<String>,
    /// The interface to use
    #[arg(long, value_name = "NAME")]
    pub extcap_interface: Option<String>,
    /// List the interface's link types
    #[arg(long)]
    pub extcap_dlts: bool,
    /// List the options of the interface's dialog
    #[arg(long)]
    pub extcap_config: bool,
    /// A capture filter: validate it, or use it with --capture
    #[arg(long, value_name = "EXPR")]
    pub extcap_capture_filter: Option<String>,
    /// Start a capture
    #[arg(long)]
    pub capture: bool,
    /// Write frames to this pipe
    #[arg(long, value_name = "FILE")]
    pub fifo: Option<PathBuf>,
    /// The software NIC's wire
    #[arg(long, value_name = "WIRE", default_value = "synth:pps=1000")]
    pub wire: String,
    /// capture.queues
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// capture.mode
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// capture.snaplen
    #[arg(long, value_name = "BYTES")]
    pub snaplen: Option<u32>,
    /// More keys, KEY=VALUE, separated by blanks
    #[arg(long, value_name = "KEYS", default_value = "")]
    pub set: String,
}

/// `wqcap manual`, for packagers
#[derive(Debug, clap::Args)]
pub struct ManualArgs {
    /// Output directory; man1/ and completions/ are created in it
    pub dir: PathBuf,
}

/// `wqcap hooks`: reads paths from stdin, and writes reports to stdout
#[derive(Debug, clap::Args)]
pub struct HooksArgs {
    /// The hook
    pub program: PathBuf,
}

/// `wqcap check`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The output is itself a config; the plan is in its comments.

Examples:
  wqcap check /etc/wqcap/wqcap.toml
  wqcap check --set capture.queues=4 --model loopback
  wqcap check /etc/wqcap/wqcap.toml --privileges
  wqcap check wqcap.toml --json | jq .plan.memory")]
pub struct CheckArgs {
    /// The config [default: none, every key has its default]
    pub config: Option<PathBuf>,
    /// Set a key, overriding the config; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Plan for the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Print the rights that a run needs, those that are missing, and how to grant them
    #[arg(long)]
    pub privileges: bool,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap run`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
WIRE is one of
  af_packet:IFACE                                 a live interface
  pcap:FILE[,loop=N][,pps=N][,speed=X]            a capture file; speed=1: at the recorded pace
  synth:size=64,flows=1024[,pps=N][,count=N]      generated traffic
  peer:PATH                                       a model in another process
  loopback                                        every frame sent is received
A finite wire (pcap, synth with a count) loses no frames, and the run ends when the wire ends:
pipeline.on_full and output.on_full then default to hold, and capture.on_port_down to stop.
The config, or `,lossy` in the wire, overrides that.

Examples:
  wqcap run -c wqcap.toml --summary run.json
  wqcap run --set output.dir=. --set capture.queues=4 --count 1000
  wqcap run --model pcap:in.pcapng --set output.dir=out
  wqcap run --model af_packet:eth0 --set output.dir=. --set model.rate=10

SIGINT, SIGTERM and SIGHUP drain the queues and close the files; with --config, SIGHUP reads the config again instead.
A second SIGINT ends the run immediately.")]
pub struct RunArgs {
    /// The config [default: none, every key has its default]
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key, overriding the config; model.KEY sets a key of the model; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Stop after exactly this many captured frames [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop after this time: seconds, or a time with a unit such as 5m [default: no limit]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// At the end, write the summary (ledger and facts of the run) to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Capture from the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// At the end, print the summary on stdout as JSON
    #[arg(long)]
    pub json: bool,
}

/// `wqcap model`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The Nth wire is device mlx5_<N-1>. `wqcap run --help` describes WIRE.

Examples:
  wqcap model --wire loopback -- ibv_devinfo -v
  wqcap model --wire af_packet:eth0 --wire synth:size=64 --set mlx5_1.rate=25 -- ibv_devices

Exit status: the program's; 126 if it cannot be executed, 127 if it is not found.")]
pub struct ModelArgs {
    /// A wire; adds one device
    #[arg(long, value_name = "WIRE", required = true)]
    pub wire: Vec<String>,
    /// Set a key of the model: of all devices (rate=25), of one (mlx5_0.ports=2), of a port (mlx5_0.port2.mtu=9000)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// `wqcap rss`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Relevant keys: capture.queues, rss.hash, rss.key, rss.table_size, rss.weights.
A suggestion uses at most as many queues as are configured or as this machine has CPUs.

Examples:
  wqcap rss trace.pcap --set capture.queues=8
  wqcap rss -c wqcap.toml monday-*.pcapng --suggest
  wqcap rss trace.pcap --set rss.hash=l3 --json | jq .skew
  zstd -dc trace.pcapng.zst | wqcap rss -")]
pub struct RssArgs {
    /// Capture files, pcap or pcapng; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The config [default: none, every key has its default]
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key, overriding the config; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Suggest queues, hash, key and weights, with the reason for each
    #[arg(long)]
    pub suggest: bool,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap merge`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The files of one queue (wqcap-q<QQ>-<start>.…) in one directory form one stream; every other file is a stream of its own.
Interfaces with the same name in one directory are one port, and become one interface of the output.
OUT gets its name when it is complete, and replaces an existing file.

Examples:
  wqcap merge -o all.pcapng /var/lib/wqcap
  wqcap merge -o tap.pcapng left/ right/
  wqcap merge -o - cap/*.pcapng | tcpdump -nr -
  wqcap merge -o /dev/null --json a.pcap b.pcap | jq .gaps

Exit status: 1 also if OUT is complete except for the records lost in a truncated or damaged input.")]
pub struct MergeArgs {
    /// Output file: pcap or pcapng by its extension, otherwise by the inputs; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// Capture files, or directories of .pcap and .pcapng files; - is standard input
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    /// Print a report as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap extract`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
T is one of
  2026-03-01T12:00:00Z, 2026-03-01T14:00:00.5+02:00   RFC 3339
  '2026-03-01 12:00:00', '2026-03-01'                 local time
  1772366400, 1772366400.123456789                    seconds since 1970
  -10m, -1h30m, now                                   relative to now
--from is inclusive, --to is exclusive.
With --index, only the blocks of a file that may hold matching frames are read; missing indexes are built first.
An index helps with times, and with filters that join host, port and protocols by `and`.

Examples:
  wqcap extract /var/lib/wqcap --from -10m --filter 'host 10.0.0.1 and tcp port 443' -o found.pcapng
  wqcap extract cap --index idx --from '2026-03-01 12:00:00' --to '2026-03-01 12:05:00' -o - | tcpdump -nr -

Exit status: 1 also if OUT is complete except for the records lost in a truncated or damaged file.")]
pub struct ExtractArgs {
    /// Directory of capture files (output.dir of the capture)
    pub dir: PathBuf,
    /// Start time, inclusive [default: the beginning]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// End time, exclusive [default: the end]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub to: Option<Moment>,
    /// A pcap-filter(7) expression [default: every frame]
    #[arg(
        long,
        value_name = "EXPR",
        default_value = "",
        hide_default_value = true
    )]
    pub filter: String,
    /// Output file: pcap or pcapng by its extension, otherwise by the inputs; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// Directory of indexes (output.index_dir of the capture) [default: files are selected by name]
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
    /// Print a report as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench`
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// The benchmark.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// The benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
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

/// `wqcap bench capture`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills a ring while its loop is held, removes the rules, and then measures the CPU time of the queue's thread:
poll, time stamp, parse of the 5-tuple, copy, submission, repost. The baseline only parses and counts; the two alternate.

Examples:
  wqcap bench capture /var/lib/wqcap
  wqcap bench capture --frame 1500 --rounds 20 --json
  wqcap bench capture --device mlx5_0      with the traffic that arrives there")]
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
    /// Rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Number of repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
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
    /// Number of repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench disk`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes frames of 1500 bytes through the block writer, and the same number of bytes with plain O_DIRECT writes through
io_uring, alternately, each to a file that is synced and then deleted. There are two baselines: plain writes that extend
their file, and plain writes into a preallocated file. The ratio compares times: 1.00 is as fast as plain writes.

Examples:
  wqcap bench disk /var/lib/wqcap
  wqcap bench disk --size 8GiB --repeats 9 --json | jq '.results[0].ratio'")]
pub struct BenchDiskArgs {
    /// A directory on the disk
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Bytes to write per repeat
    #[arg(long, default_value = "1GiB", value_parser = written)]
    pub size: Size,
    /// Number of repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench rx`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills rings while no loop polls them, removes the rules, and then measures the CPU time of draining and reposting them:
the engine's loop with time stamps and ledger, a bare loop over ibv_poll_cq, and the baseline, a bare loop over
ibv_start_poll that reads the same fields including the time stamp. The three alternate.

Examples:
  wqcap bench rx
  wqcap bench rx --queues 1,4,16 --batch 1,16,64,256 --json
  wqcap bench rx --frame 1500
  wqcap bench rx --device mlx5_0      with the traffic that arrives there")]
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
    /// Rings to drain per repeat
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// Number of repeats
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
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
Captures with capture.idle = \"spin\" and \"sleep\" alternately, and compares the median age of frames when their loop
polls them: the latency that waking up adds. Frames should be some tenths of a millisecond apart.

Examples:
  wqcap bench wake --model synth:size=64,flows=1,pps=1000
  wqcap bench wake --set device.name=mlx5_1 --frames 10000 --json | jq '.results[0].extra_ns'")]
pub struct BenchWakeArgs {
    /// Set a key of the config; model.KEY sets a key of the model; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Capture from the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Frames per capture
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub frames: u64,
    /// Number of captures of each kind
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench wire`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Sends over a RAW_PACKET QP of one port and captures on another, counting only. Without --rate it searches the highest
rate without loss by bisection, from the link rate down (RFC 2544, 26.1). Then it sends single frames and measures the
time from the send call to the frame's time stamp; both ports must be on this machine.

Examples:
  wqcap bench wire                                       the software NIC, whose port is looped back to itself
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --sizes 64,512,1518 --report wire.json
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --rate 10000000 --seconds 60
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --replay traffic.pcapng --set capture.queues=8")]
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
    /// The receiver's config
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key of the receiver's config; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
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

/// `wqcap recover`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Truncates each wqcap-q….part file after its last complete record and renames it to its final name.
Files of a running capture are left alone, and no file is overwritten.

Examples:
  wqcap recover /var/lib/wqcap
  wqcap recover . --json | jq '.files[] | select(.cut > 0)'

Exit status: 1 if a file could not be finished.")]
pub struct RecoverArgs {
    /// Directory of capture files (output.dir of the capture)
    pub dir: PathBuf,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap ctl`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap ctl status
  wqcap ctl watch --every 2s
  wqcap ctl stats --json | jq .ledger.total
  wqcap ctl filter 'tcp port 443'
  wqcap ctl --unix /tmp/control.sock rotate
  wqcap ctl --rdma 10.0.0.1:7471 --key-file control.key status

Exit status: 0 done, 1 the service refused or failed, 2 the service cannot be reached or the command line is wrong.")]
pub struct CtlArgs {
    /// The service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print JSON on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// The command.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// A control service and the time-out.
#[derive(Debug, clap::Args)]
pub struct ServiceArgs {
    /// Unix socket of the service
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/wqcap/control.sock",
        global = true
    )]
    pub unix: PathBuf,
    /// Connect over RDMA instead of the socket
    #[arg(long, value_name = "HOST:PORT", requires = "key_file", global = true)]
    pub rdma: Option<String>,
    /// File with a key of the service; required for RDMA
    #[arg(long, value_name = "FILE", global = true)]
    pub key_file: Option<PathBuf>,
    /// Time-out for an answer: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30", global = true)]
    pub timeout: Duration,
}

/// `wqcap top`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
q or Esc quits. On a small terminal the least important parts are left out first.

Examples:
  wqcap top
  wqcap top --unix /tmp/control.sock --every 0.5
  wqcap top --rdma 10.0.0.1:7471 --key-file control.key

Exit status: 0 ended by a key or a signal, 1 the capture has ended, 2 the capture cannot be reached.")]
pub struct TopArgs {
    /// The service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Interval: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    pub every: Duration,
}

/// Commands of the control service.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Print the state of the capture and of the control service
    Status,
    /// Print the current ledger
    Stats,
    /// Print the ledger repeatedly, until interrupted
    Watch {
        /// Interval: seconds, or a time with a unit
        #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
        every: Duration,
        /// Stop after this many
        #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Print what is captured and how
    Plan,
    /// List the RDMA devices of the capture's machine
    Devices,
    /// Start capturing again after stop or drain
    Start,
    /// Stop the capture and complete the files; the process stays
    Stop,
    /// Receive no more frames, and complete the files
    Drain,
    /// Start a new file for each queue
    Rotate,
    /// Set the capture filter
    Filter {
        /// A pcap-filter(7) expression; '' keeps every frame
        expression: String,
    },
    /// Add or remove a hardware rule
    Rule {
        /// Add or remove
        #[command(subcommand)]
        what: RuleCommand,
    },
    /// Change the flags of the WQs
    WqFlags {
        /// The NIC removes the customer VLAN tag
        #[arg(long, value_name = "BOOL")]
        cvlan_stripping: Option<bool>,
        /// The NIC delivers the frame check sequence
        #[arg(long, value_name = "BOOL")]
        scatter_fcs: Option<bool>,
    },
    /// Change the queues' shares of the flows
    Respread {
        /// The share of each queue, such as 3,1 [default: by the load of each queue]
        #[arg(long, value_name = "N,N...", value_delimiter = ',')]
        weights: Vec<u32>,
    },
    /// Set the log level
    Log {
        /// error, warn, info, debug or trace
        level: String,
    },
    /// Read the configuration again
    Reload,
    /// Stop the capture, complete the files and end the process
    Shutdown,
    /// Print the JSON Schema of the messages, without contacting a service
    Schema,
}

/// `wqcap ctl rule`
#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// Add a rule
    Add {
        /// The fields of a `[[rule]]` of the config: proto=udp dst_port=53
        #[arg(required = true, value_name = "FIELD=VALUE")]
        fields: Vec<Setting>,
    },
    /// Remove a rule
    Remove {
        /// The rule's id alone (id=dns), or all its fields
        #[arg(required = true, value_name = "FIELD=VALUE")]
        fields: Vec<Setting>,
    },
}

/// `KEY=VALUE`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Before the first `=`.
    pub key: String,
    /// After it.
    pub value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err("no key before the =".into());
        }
        if text.contains('\n') {
            return Err("must be one line".into());
        }
        Ok(Self {
            key: key.into(),
            value: value.into(),
        })
    }
}

/// A size to write.
fn written(text: &str) -> Result<Size, String> {
    match text.parse()? {
        Size(0) => Err("must be above 0".into()),
        size => Ok(size),
    }
}

/// Seconds, optionally with a fraction, or a time with a unit.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())?,
        Err(_) => text.parse::<Span>()?.0,
    };
    if time.is_zero() {
        return Err("must be above 0".into());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn durations() {
        for (text, ms) in [("2", 2000), ("0.5", 500), ("5m", 300_000), ("100ms", 100)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["0", "-1", "x", "", "inf", "nan"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings() {
        let it: Setting = "capture.filter=tcp[13] = 2".parse().unwrap();
        assert_eq!(
            (it.key.as_str(), it.value.as_str()),
            ("capture.filter", "tcp[13] = 2")
        );
        for text in ["x", "=1", "a=b\nc=d"] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }

    #[test]
    fn program_arguments_are_the_programs_own() {
        let args = Args::try_parse_from([
            "wqcap", "model", "--wire", "loopback", "--", "x", "--wire", "-q",
        ])
        .unwrap();
        let CliCommand::Model(model) = args.command else {
            panic!()
        };
        assert_eq!(model.program, ["x", "--wire", "-q"]);
    }
}
