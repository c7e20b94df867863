//! What can be typed. Only what works is listed.

use crate::term::time::Moment;
use clap::{ArgAction, Parser, Subcommand, value_parser};
use std::{ffi::OsString, path::PathBuf, str::FromStr, time::Duration};
use wqcap_engine::config::{Size, Span};

const EXAMPLES: &str = "\
Examples:
  wqcap devices                                   what is here
  wqcap run -c /etc/wqcap/wqcap.toml              capture as the config says
  wqcap run --set output.dir=. --duration 10      ten seconds into this folder, all else by default
  wqcap run --model synth:count=1000000 --set output.format=none
                                                  no NIC at hand: a software one, and no files

Exit status:
  0 done
  1 failed while running
  2 the command line, the config or the device cannot do it";

/// Packet capture at line rate on RDMA NICs, with a ledger in which every frame is accounted for.
#[derive(Debug, Parser)]
#[command(name = "wqcap", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Args {
    /// Tell more on stderr; twice: everything (RUST_LOG overrides) [default: warnings]
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Tell errors only: no progress line, no final table
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the RDMA devices of this machine and what each can do
    Devices(DevicesArgs),
    /// Validate a config; print what holds in effect and what a run would create
    Check(CheckArgs),
    /// Capture until a signal, a limit, or the end of a finite wire
    Run(RunArgs),
    /// Run any verbs program on the software NIC
    Model(ModelArgs),
    /// Tell which queue each flow of a capture would take, without a NIC
    Rss(RssArgs),
    /// Join capture files into one, by time
    Merge(MergeArgs),
    /// Take the frames of some time and filter out of a folder of capture files
    Extract(ExtractArgs),
    /// Tell how fast this machine is
    Bench(BenchArgs),
    /// Finish the files that a crash left open
    Recover(RecoverArgs),
    /// Ask a running capture, or tell it what to do
    Ctl(CtlArgs),
    /// Look at a running capture, live
    Top(TopArgs),
    /// Be a capture device of Wireshark
    Extcap(ExtcapArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Manual(ManualArgs),
    /// Run hooks for a capture, which starts this itself
    #[command(hide = true)]
    Hooks(HooksArgs),
}

/// `wqcap devices`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap devices
  wqcap devices --json | jq '.devices[].name'
  wqcap model --wire loopback -- wqcap devices    what the software NIC offers")]
pub struct DevicesArgs {
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap extcap`: the arguments are Wireshark's (extcap(4)), and those of the dialog
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Wireshark runs this. It finds it by a file in its extcap folder (Help, About, Folders):
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
    /// The interface that is meant
    #[arg(long, value_name = "NAME")]
    pub extcap_interface: Option<String>,
    /// List its link types
    #[arg(long)]
    pub extcap_dlts: bool,
    /// List what its dialog offers
    #[arg(long)]
    pub extcap_config: bool,
    /// A capture filter: checked, or used with --capture
    #[arg(long, value_name = "EXPR")]
    pub extcap_capture_filter: Option<String>,
    /// Capture
    #[arg(long)]
    pub capture: bool,
    /// Where frames go
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

/// `wqcap manual`, for those who package
#[derive(Debug, clap::Args)]
pub struct ManualArgs {
    /// Where they go: man1/ and completions/ below it
    pub dir: PathBuf,
}

/// `wqcap hooks`: paths come in on stdin, reports go out on stdout
#[derive(Debug, clap::Args)]
pub struct HooksArgs {
    /// The hook
    pub program: PathBuf,
}

/// `wqcap check`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
What is printed is itself a config: the plan stands in its comments.

Examples:
  wqcap check /etc/wqcap/wqcap.toml
  wqcap check --set capture.queues=4 --model loopback
  wqcap check /etc/wqcap/wqcap.toml --privileges
  wqcap check wqcap.toml --json | jq .plan.memory")]
pub struct CheckArgs {
    /// The config [default: none, every key has its default]
    pub config: Option<PathBuf>,
    /// Set a key, above what the config says; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Plan for the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Tell which rights a run takes, which of them are missing, and how to grant those
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
  pcap:FILE[,loop=N][,pps=N][,speed=X]            a capture file; speed=1 is the recorded pace
  synth:size=64,flows=1024[,pps=N][,count=N]      made-up traffic
  peer:PATH                                       another model in another process
  loopback                                        what is sent is received
A wire that ends (pcap, synth with a count) loses nothing, and the run ends with it:
pipeline.on_full and output.on_full are then hold and capture.on_port_down is stop,
unless the config, or `,lossy` in the wire, says otherwise.

Examples:
  wqcap run -c wqcap.toml --summary run.json
  wqcap run --set output.dir=. --set capture.queues=4 --count 1000
  wqcap run --model pcap:in.pcapng --set output.dir=out
  wqcap run --model af_packet:eth0 --set output.dir=. --set model.rate=10

SIGINT, SIGTERM and SIGHUP drain the queues and close the files; with --config, SIGHUP reads it again instead.
A second SIGINT ends at once.")]
pub struct RunArgs {
    /// The config [default: none, every key has its default]
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key, above what the config says; model.KEY is for the model; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// End after exactly this many captured frames [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// End after this time: seconds, or a time with its unit, 5m [default: no limit]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Write the ledger and the facts of the run to this file, as JSON, at the end
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Capture from the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Print the summary on stdout, as JSON, at the end
    #[arg(long)]
    pub json: bool,
}

/// `wqcap model`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The Nth wire is device mlx5_<N-1>. `wqcap run --help` says what a WIRE is.

Examples:
  wqcap model --wire loopback -- ibv_devinfo -v
  wqcap model --wire af_packet:eth0 --wire synth:size=64 --set mlx5_1.rate=25 -- ibv_devices

Exit status: the program's; 126 if it cannot be executed, 127 if it is not found.")]
pub struct ModelArgs {
    /// A wire, and a device with it
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
The keys that matter: capture.queues, rss.hash, rss.key, rss.table_size, rss.weights.
A suggestion looks at no more queues than are configured or than this machine has CPUs.

Examples:
  wqcap rss trace.pcap --set capture.queues=8
  wqcap rss -c wqcap.toml monday-*.pcapng --suggest
  wqcap rss trace.pcap --set rss.hash=l3 --json | jq .skew
  zstd -dc trace.pcapng.zst | wqcap rss -")]
pub struct RssArgs {
    /// Captures, pcap or pcapng; - is standard input
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The config [default: none, every key has its default]
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key, above what the config says; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Propose queues, hash, key and weights, with the reason for each
    #[arg(long)]
    pub suggest: bool,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap merge`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The files of one queue (wqcap-q<QQ>-<start>.…) in one folder follow each other; every other file stands for itself.
Interfaces of one name in one folder are one port, and one interface of the output.
OUT appears under its name when it is complete, and takes the place of what was there.

Examples:
  wqcap merge -o all.pcapng /var/lib/wqcap
  wqcap merge -o tap.pcapng left/ right/
  wqcap merge -o - cap/*.pcapng | tcpdump -nr -
  wqcap merge -o /dev/null --json a.pcap b.pcap | jq .gaps

Exit status: 1 also when OUT is complete but for what a torn or damaged input had lost.")]
pub struct MergeArgs {
    /// Where to; pcap or pcapng by its ending, else by the inputs; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// Captures, or folders of .pcap and .pcapng files; - is standard input
    #[arg(required = true, value_name = "IN")]
    pub inputs: Vec<PathBuf>,
    /// Print what was done as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap extract`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
T is one of
  2026-03-01T12:00:00Z, 2026-03-01T14:00:00.5+02:00   RFC 3339
  '2026-03-01 12:00:00', '2026-03-01'                 the time of this machine's zone
  1772366400, 1772366400.123456789                    seconds since 1970
  -10m, -1h30m, now                                   before now
Frames at T of --from are taken, those at T of --to are not.
With --index, a file's index tells which of its blocks can hold what is sought; missing ones are made there first.
It helps with every T, and with filters that join host, port and protocols by `and`.

Examples:
  wqcap extract /var/lib/wqcap --from -10m --filter 'host 10.0.0.1 and tcp port 443' -o found.pcapng
  wqcap extract cap --index idx --from '2026-03-01 12:00:00' --to '2026-03-01 12:05:00' -o - | tcpdump -nr -

Exit status: 1 also when OUT is complete but for what a torn or damaged file had lost.")]
pub struct ExtractArgs {
    /// The folder, output.dir of the capture
    pub dir: PathBuf,
    /// From when on [default: the beginning]
    #[arg(long, value_name = "T", allow_hyphen_values = true)]
    pub from: Option<Moment>,
    /// Until when, without it [default: the end]
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
    /// Where to; pcap or pcapng by its ending, else by the files; - is standard output
    #[arg(short, long, value_name = "OUT")]
    pub out: PathBuf,
    /// The folder of indexes, output.index_dir of the capture [default: files are chosen by their names]
    #[arg(long, value_name = "DIR")]
    pub index: Option<PathBuf>,
    /// Print what was done as JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench`
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub command: BenchCommand,
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// What a queue's core pays for a frame that is written
    Capture(BenchCaptureArgs),
    /// How fast a core compresses frames, and what is left of them
    Compress(BenchCompressArgs),
    /// Writing frames to a disk, against the least that a writer can do there
    Disk(BenchDiskArgs),
    /// What a loop costs a frame, against the least that a program can do with a ring
    Rx(BenchRxArgs),
    /// What capture.idle = "sleep" costs a frame that comes after a pause
    Wake(BenchWakeArgs),
    /// How fast frames go from one port to another without loss, and how old they are then
    Wire(BenchWireArgs),
}

/// `wqcap bench capture`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills a ring while its loop is held back, takes the rules away, and then measures the CPU time of the queue's thread:
poll, time stamp, parse of the 5-tuple, copy, submission, repost. The baseline only parses and counts, in turn with it.

Examples:
  wqcap bench capture /var/lib/wqcap
  wqcap bench capture --frame 1500 --rounds 20 --json
  wqcap bench capture --device mlx5_0      with whatever comes in there")]
pub struct BenchCaptureArgs {
    /// A folder on the disk
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// A real device, in place of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Bytes of a frame of the software NIC, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=2000), conflicts_with = "device")]
    pub frame: u32,
    /// Rings that are drained each time
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// How many times
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench compress`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Compresses blocks of records one after the other, each to a frame of its own, on one core. The baseline copies them.

Examples:
  wqcap bench compress
  wqcap bench compress traffic.pcapng --block 1MiB --json")]
pub struct BenchCompressArgs {
    /// A capture whose frames are compressed [default: made-up ones, half of them text and half noise]
    pub file: Option<PathBuf>,
    /// Bytes of a block
    #[arg(long, default_value = "64KiB", value_parser = written)]
    pub block: Size,
    /// How many times
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench disk`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Writes frames of 1500 bytes through the block writer, and as many bytes with plain O_DIRECT writes through io_uring, in
turn, each to a file that is synced and then deleted. Plain writes are compared twice: each making its file longer, and
into a file that has all its room before. The ratio is time by time: 1.00 is as fast as plain writes.

Examples:
  wqcap bench disk /var/lib/wqcap
  wqcap bench disk --size 8GiB --repeats 9 --json | jq '.results[0].ratio'")]
pub struct BenchDiskArgs {
    /// A folder on the disk
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Bytes to write each time
    #[arg(long, default_value = "1GiB", value_parser = written)]
    pub size: Size,
    /// How many times
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench rx`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Fills rings while nobody looks at them, takes the rules away, and then measures the CPU time of draining and reposting
them: the engine's loop with its time stamps and its ledger, a bare loop over ibv_poll_cq, and the baseline, a bare loop
over ibv_start_poll that reads the same fields, time stamp included; in turn.

Examples:
  wqcap bench rx
  wqcap bench rx --queues 1,4,16 --batch 1,16,64,256 --json
  wqcap bench rx --frame 1500
  wqcap bench rx --device mlx5_0      with whatever comes in there")]
pub struct BenchRxArgs {
    /// A real device, in place of the software NIC
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Bytes of a frame of the software NIC, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "device")]
    pub frame: u32,
    /// Numbers of queues, powers of two
    #[arg(long, value_name = "N,...", default_value = "1", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=64))]
    pub queues: Vec<u16>,
    /// Completions that a loop takes at once
    #[arg(long, value_name = "N,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u16).range(1..=1024))]
    pub batch: Vec<u16>,
    /// Rings that are drained each time
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// How many times
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
Captures with capture.idle = \"spin\" and \"sleep\" in turn, and compares the median age of frames when their loop has
them: by how much the NIC's waking is later than a loop that polls. Frames should be some tenths of a millisecond apart.

Examples:
  wqcap bench wake --model synth:size=64,flows=1,pps=1000
  wqcap bench wake --set device.name=mlx5_1 --frames 10000 --json | jq '.results[0].extra_ns'")]
pub struct BenchWakeArgs {
    /// Set a key of the config; model.KEY is for the model; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Capture on the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Frames of each capture
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = value_parser!(u64).range(1..=10_000_000))]
    pub frames: u64,
    /// How many captures of each kind
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = value_parser!(u32).range(1..=1000))]
    pub repeats: u32,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap bench wire`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Sends over a RAW_PACKET QP of one port and captures on another, counting only. Without --rate the highest rate without
loss is sought, from the link's rate down by halves (RFC 2544, 26.1). Then single frames are sent, and the time from the
call that sends one to its stamp is taken; both ends must be on this machine.

Examples:
  wqcap bench wire                                       the software NIC, whose port leads back to itself
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --sizes 64,512,1518 --report wire.json
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --rate 10000000 --seconds 60
  wqcap bench wire --tx mlx5_0 --rx mlx5_1 --replay traffic.pcapng --set capture.queues=8")]
pub struct BenchWireArgs {
    /// The device that sends
    #[arg(long, value_name = "NAME", requires = "rx")]
    pub tx: Option<String>,
    /// Its port
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..=254))]
    pub tx_port: u8,
    /// The device that receives; its port and all else are the config's
    #[arg(long, value_name = "NAME", requires = "tx")]
    pub rx: Option<String>,
    /// The receiver's configuration
    #[arg(short, long, value_name = "CONFIG")]
    pub config: Option<PathBuf>,
    /// Set a key of the receiver's config; the last one wins
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Bytes of frames, without FCS
    #[arg(long, value_name = "BYTES,...", default_value = "64", value_delimiter = ',', value_parser = value_parser!(u32).range(60..=9216), conflicts_with = "replay")]
    pub sizes: Vec<u32>,
    /// Flows that frames are of
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = value_parser!(u32).range(1..=65_536))]
    pub flows: u32,
    /// Send the frames of a capture file instead, over and over
    #[arg(long, value_name = "FILE")]
    pub replay: Option<PathBuf>,
    /// Frames a second, in place of a search
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Loss that counts as none, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// How long each rate is tried
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "2")]
    pub seconds: Duration,
    /// Single frames whose age is taken
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub probes: u32,
    /// Write the results to a file, as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap recover`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Cuts each wqcap-q….part file at the end of its last whole record and gives it its final name.
Files that a running capture writes are left alone, and nothing is overwritten.

Examples:
  wqcap recover /var/lib/wqcap
  wqcap recover . --json | jq '.files[] | select(.cut > 0)'

Exit status: 1 if a file could not be finished.")]
pub struct RecoverArgs {
    /// The folder, output.dir of the capture
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

Exit status: 0 done, 1 the service refused or failed, 2 it cannot be reached or the command line is wrong.")]
pub struct CtlArgs {
    /// The service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print JSON on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// What to ask or to do.
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// A control service, and how patiently it is asked.
#[derive(Debug, clap::Args)]
pub struct ServiceArgs {
    /// The service's socket
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/wqcap/control.sock",
        global = true
    )]
    pub unix: PathBuf,
    /// Ask over RDMA, in place of the socket
    #[arg(long, value_name = "HOST:PORT", requires = "key_file", global = true)]
    pub rdma: Option<String>,
    /// File with a key of the service, for RDMA
    #[arg(long, value_name = "FILE", global = true)]
    pub key_file: Option<PathBuf>,
    /// How long to wait for an answer: seconds, or a time with its unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30", global = true)]
    pub timeout: Duration,
}

/// `wqcap top`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
q or Esc ends it. What does not fit on a small terminal is left out, the least important first.

Examples:
  wqcap top
  wqcap top --unix /tmp/control.sock --every 0.5
  wqcap top --rdma 10.0.0.1:7471 --key-file control.key

Exit status: 0 ended by a key or a signal, 1 the capture has gone, 2 it cannot be reached.")]
pub struct TopArgs {
    /// The service.
    #[command(flatten)]
    pub service: ServiceArgs,
    /// How often: seconds, or a time with its unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
    pub every: Duration,
}

/// What to ask a capture, or to tell it.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// State of the capture and of the control service
    Status,
    /// The ledger as it stands
    Stats,
    /// The ledger again and again, until interrupted
    Watch {
        /// How often: seconds, or a time with its unit
        #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
        every: Duration,
        /// End after so many
        #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// What is captured and how
    Plan,
    /// The RDMA devices of its machine
    Devices,
    /// Capture again after stop or drain
    Start,
    /// End the capture in order; the process stays
    Stop,
    /// Let nothing more in and complete the files
    Drain,
    /// Go on to a new file
    Rotate,
    /// Let another filter hold
    Filter {
        /// pcap-filter(7); '' keeps every frame
        expression: String,
    },
    /// Add or remove a rule in the NIC
    Rule {
        /// Which of the two
        #[command(subcommand)]
        what: RuleCommand,
    },
    /// Change what the WQs do with frames
    WqFlags {
        /// The NIC takes the customer VLAN tag off
        #[arg(long, value_name = "BOOL")]
        cvlan_stripping: Option<bool>,
        /// The NIC delivers the frame check sequence
        #[arg(long, value_name = "BOOL")]
        scatter_fcs: Option<bool>,
    },
    /// Spread flows over the queues by other shares
    Respread {
        /// A share for each queue, 3,1 [default: by what each has received]
        #[arg(long, value_name = "N,N...", value_delimiter = ',')]
        weights: Vec<u32>,
    },
    /// Log from another level on
    Log {
        /// error, warn, info, debug or trace
        level: String,
    },
    /// Read the configuration again
    Reload,
    /// End the process in order
    Shutdown,
    /// Print the JSON Schema of the messages; asks nobody
    Schema,
}

/// `wqcap ctl rule`
#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// Add one
    Add {
        /// Its fields, as a rule of the config has them: proto=udp dst_port=53
        #[arg(required = true, value_name = "FIELD=VALUE")]
        fields: Vec<Setting>,
    },
    /// Remove one
    Remove {
        /// Its id alone (id=dns), or its fields as they were added
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

/// Seconds, with a fraction if need be, or a time with its unit.
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
        let Command::Model(model) = args.command else {
            panic!()
        };
        assert_eq!(model.program, ["x", "--wire", "-q"]);
    }
}
