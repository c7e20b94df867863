//! Arguments of the commands that capture or inspect devices: `devices`, `check`, `run`, `model`,
//! `extcap`.

use super::{AliasArgs, ConfigArgs, Setting, seconds, written};
use clap::value_parser;
use std::{ffi::OsString, path::PathBuf, time::Duration};
use wqcap_engine::config::Size;

/// Arguments of `wqcap devices`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap devices
  wqcap devices --json | jq '.devices[].name'
  wqcap model --wire loopback -- wqcap devices   the software NIC")]
pub struct DevicesArgs {
    /// Print the devices on stdout as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `wqcap check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The output is itself a config. Its comments contain the plan, and the keys that options of tcpdump \
and dumpcap set.

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
    /// Make the plan for the software NIC on this wire; several times: with one device for each wire
    #[arg(long, value_name = "WIRE")]
    pub model: Vec<String>,
    /// Print the rights that a run of this config needs, those that are missing, and how to grant
    /// them
    #[arg(long)]
    pub privileges: bool,
    /// Fail if the machine has no RDMA device, instead of checking only what needs no device
    #[arg(long)]
    pub device_required: bool,
    /// Print the config and its plan, or with --privileges the rights, on stdout as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub aliases: AliasArgs,
}

/// Limits of a run. The run ends when it reaches the first of them.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LimitArgs {
    /// Stop the run after exactly this many captured frames [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop the run after this time: seconds, or a time with a unit such as 5m [default: no limit]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub duration: Option<Duration>,
    /// Stop the run after writing this many bytes of frames, counted before compression: a size
    /// such as 10GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = written)]
    pub bytes: Option<Size>,
    /// Stop the run once this many capture files are full [default: no limit]
    #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
    pub files: Option<u64>,
}

/// Arguments of `wqcap run`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
WIRE is one of these, with options as in synth:size=64-1500,pps=1000 or pcap:a.pcap,loop=2:
  af_packet:IFACE   a live interface, copied: ring=128MiB
                    (-i IFACE captures it without the software NIC)
  pcap:FILE         a capture file, also .zst and .lz4, a folder of them,
                    or - (stdin): loop=N (0: forever), pps=N,
                    speed=X (1: at the recorded pace), lossy
  synth:OPTIONS     generated frames: size=64 (also 64/594/1514, 64-1500
                    or imix), flows=1024, pps=N, count=N,
                    proto=udp|tcp|mix, ip=4|6|mix, vlan=ID,
                    dir=one|both, lossy
  peer:PATH         a model in another process
  loopback          every frame sent is received
mlx5-model/README.md (in the package docs/mlx5-model.md) explains the options, and the keys of \
--set model.KEY=VALUE.
A finite wire (pcap, synth with a count) loses no frames, and the run ends when the wire ends: \
pipeline.on_full and output.on_full then default to hold, and capture.on_port_down to stop. \
The config, or lossy in the wire, overrides these defaults.
SIGINT, SIGTERM, SIGQUIT and SIGHUP drain the queues and close the files. With --config, SIGHUP reads \
the config again instead, unless the terminal that started the run is closed. \
A SIGINT, SIGTERM or SIGQUIT more than a second later ends the run at once: frames that are not being \
written yet are lost and counted. A run that writes less than 1 MiB in a period of 25 s, while it ends, is \
ended with status 1. \
SIGUSR1 prints the counters. SIGUSR2 makes all frames received so far readable in the files, as with \
tcpdump. docs/service.md lists all signals.

Examples:
  wqcap run -c wqcap.toml --summary run.json
  wqcap run -i ens1f0np0 -w out.pcap -c 1000 tcp port 443
  wqcap run -i mlx5_0 -w - | tshark -r -
  wqcap run --set output.dir=. --set capture.queues=4 --count 1000
  wqcap run --model pcap:in.pcapng --set output.dir=out
  wqcap run --model synth:pps=100k --set output.dir=. --duration 10
  wqcap run -i eth0 --set output.dir=. --duration 10")]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// At the end, write the summary (ledger and facts of the run) to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Capture from the software NIC on this wire; --set model.KEY=VALUE sets one of its keys.
    /// Several times: from one device for each wire
    #[arg(long, value_name = "WIRE")]
    pub model: Vec<String>,
    /// At the end, print the summary on stdout as JSON
    #[arg(long)]
    pub json: bool,
    /// List the devices, as `wqcap devices` does, and capture nothing
    #[arg(short = 'D', long)]
    pub list_interfaces: bool,
    #[command(flatten)]
    pub aliases: AliasArgs,
}

/// Arguments of `wqcap model`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The Nth wire becomes device mlx5_<N-1>. wqcap run --help describes WIRE.

Examples:
  wqcap model --wire loopback -- ibv_devinfo -v
  wqcap model --wire af_packet:eth0 --wire synth:size=64 \\
      --set mlx5_1.rate=25 -- ibv_devices

Exit status: that of the program; 126 if it cannot be executed, 127 if it is not found.")]
pub struct ModelArgs {
    /// Add one device with this wire to the software NIC
    #[arg(long, value_name = "WIRE", required = true)]
    pub wire: Vec<String>,
    /// Set a key of the software NIC: of all devices (rate=25), of one device (mlx5_0.ports=2), or
    /// of one port (mlx5_0.port2.mtu=9000)
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Verbs program to run, and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// Arguments of `wqcap extcap`: those that Wireshark passes (extcap(4)), and those of its dialog.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Wireshark runs this command through a script in its extcap directory (Help, About, Folders):
  #!/bin/sh
  exec wqcap --quiet extcap \"$@\"

Examples:
  wqcap extcap --extcap-interfaces
  tshark -i wqcap-model -o extcap.wqcap_model.wire:af_packet:lo")]
pub struct ExtcapArgs {
    /// List the capture interfaces
    #[arg(long)]
    pub extcap_interfaces: bool,
    /// Version of the Wireshark that runs this command
    #[arg(long, value_name = "VERSION")]
    pub extcap_version: Option<String>,
    /// Capture interface that the request is about
    #[arg(long, value_name = "NAME")]
    pub extcap_interface: Option<String>,
    /// List the link types of the capture interface
    #[arg(long)]
    pub extcap_dlts: bool,
    /// List the options of the capture interface's dialog
    #[arg(long)]
    pub extcap_config: bool,
    /// Capture filter: validate it, or apply it with --capture
    #[arg(long, value_name = "EXPR")]
    pub extcap_capture_filter: Option<String>,
    /// Start a capture on the capture interface
    #[arg(long)]
    pub capture: bool,
    /// Write captured frames to this pipe
    #[arg(long, value_name = "FILE")]
    pub fifo: Option<PathBuf>,
    /// Wire of the software NIC
    #[arg(long, value_name = "WIRE", default_value = "synth:pps=1000")]
    pub wire: String,
    /// Number of receive queues (sets capture.queues)
    #[arg(long, value_name = "N")]
    pub queues: Option<u16>,
    /// Capture mode (sets capture.mode)
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Bytes to capture of each frame (sets capture.snaplen)
    #[arg(long, value_name = "BYTES")]
    pub snaplen: Option<u32>,
    /// Further configuration keys as KEY=VALUE, separated by blanks
    #[arg(long, value_name = "KEYS", default_value = "")]
    pub set: String,
}
