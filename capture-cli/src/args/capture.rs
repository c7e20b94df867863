//! The arguments of what captures or looks at devices: `devices`, `check`, `run`, `model`, `extcap`.

use super::{AliasArgs, ConfigArgs, Setting, seconds, written};
use clap::value_parser;
use std::{ffi::OsString, path::PathBuf, time::Duration};
use wqcap_engine::config::Size;

/// `wqcap devices`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap devices
  wqcap devices --json | jq '.devices[].name'
  wqcap model --wire loopback -- wqcap devices   of the software NIC")]
pub struct DevicesArgs {
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

/// `wqcap check`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The output is itself a config; the plan is in its comments, and so are the keys that options of tcpdump and dumpcap set.

Examples:
  wqcap check /etc/wqcap/wqcap.toml
  wqcap check --set capture.queues=4 --model loopback
  wqcap check /etc/wqcap/wqcap.toml --privileges
  wqcap check -i ens1f0np0 -w out.pcap -C 100 -W 10 tcp port 443
  wqcap check wqcap.toml --json | jq .plan.memory")]
pub struct CheckArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// Plan for the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Print the rights that a run needs, those that are missing, and how to grant them
    #[arg(long)]
    pub privileges: bool,
    /// Refuse a machine without an RDMA device, instead of checking only what needs none
    #[arg(long)]
    pub device_required: bool,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub aliases: AliasArgs,
}

/// When a run ends by itself; the first of them ends it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LimitArgs {
    /// Stop after exactly this many captured frames [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop after this time: seconds, or a time with a unit such as 5m [default: no limit]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Stop once this much is written, compression aside: a size such as 10GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = written)]
    pub bytes: Option<Size>,
    /// Stop once this many files are full [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub files: Option<u64>,
}

/// `wqcap run`
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
WIRE is one of these, with options as in synth:size=64-1500,pps=1000 or pcap:a.pcap,loop=2:
  af_packet:IFACE   a live interface, copied: ring=128MiB
  af_xdp:IFACE      a live interface, taken from the kernel: queues=N,
                    mode=auto|native|skb, zerocopy=auto|on|off,
                    ring=128MiB, busy_poll
  pcap:FILE         a capture file, also .zst and .lz4, a folder of them,
                    or - (stdin): loop=N (0: for ever), pps=N,
                    speed=X (1: at the recorded pace), lossy
  synth:OPTIONS     generated frames: size=64 (also 64/594/1514, 64-1500
                    or imix), flows=1024, pps=N, count=N,
                    proto=udp|tcp|mix, ip=4|6|mix, vlan=ID,
                    dir=one|both, lossy
  peer:PATH         a model in another process
  loopback          every frame sent is received
mlx5-model/README.md (in the package docs/mlx5-model.md) explains the options, and the keys of --set model.KEY=VALUE.
A finite wire (pcap, synth with a count) loses no frames, and the run ends when the wire ends: \
pipeline.on_full and output.on_full then default to hold, and capture.on_port_down to stop. \
The config, or lossy in the wire, overrides that.
SIGINT, SIGTERM, SIGQUIT and SIGHUP drain the queues and close the files; with --config, SIGHUP reads the config again \
instead, unless the terminal that the run was started on is gone. \
A SIGINT or SIGQUIT more than a second later ends the run at once: frames that are not being written yet are lost, and counted. \
SIGUSR1 prints the counters, and SIGUSR2 makes everything received so far readable in the files, as with tcpdump. \
docs/service.md has all signals.

Examples:
  wqcap run -c wqcap.toml --summary run.json
  wqcap run -i ens1f0np0 -w out.pcap -c 1000 tcp port 443
  wqcap run -i mlx5_0 -w - | tshark -r -
  wqcap run --set output.dir=. --set capture.queues=4 --count 1000
  wqcap run --model pcap:in.pcapng --set output.dir=out
  wqcap run --model af_packet:eth0 --set output.dir=. --set model.rate=10
  wqcap run --model af_xdp:eth1 --set output.dir=. --duration 10")]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// At the end, write the summary (ledger and facts of the run) to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Capture from the software NIC on this wire; --set model.KEY=VALUE sets a key of it
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// At the end, print the summary on stdout as JSON
    #[arg(long)]
    pub json: bool,
    /// List the devices, as `wqcap devices` does, and capture nothing
    #[arg(short = 'D', long)]
    pub list_interfaces: bool,
    #[command(flatten)]
    pub aliases: AliasArgs,
}

/// `wqcap model`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The Nth wire is device mlx5_<N-1>. wqcap run --help describes WIRE.

Examples:
  wqcap model --wire loopback -- ibv_devinfo -v
  wqcap model --wire af_packet:eth0 --wire synth:size=64 \\
      --set mlx5_1.rate=25 -- ibv_devices

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
