//! Arguments of the commands that contact a running capture: `ctl` and `top`.

use super::{FilterArgs, Setting, seconds};
use clap::{Subcommand, value_parser};
use std::{path::PathBuf, time::Duration};

/// Arguments of `wqcap ctl`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  wqcap ctl status
  wqcap ctl watch --every 2s
  wqcap ctl stats --json | jq .ledger.total
  wqcap ctl filter 'tcp port 443'
  wqcap ctl --unix /tmp/control.sock rotate
  wqcap ctl mark 'alert 2024897' --before 5m --filter 'host 10.0.0.1'
  wqcap ctl --rdma 10.0.0.1:7471 --key-file control.key status

Exit status:
  0 done
  1 the service refused the request or failed
  2 the service cannot be reached, or the command line is wrong")]
pub struct CtlArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Print the answers of the control service as JSON
    #[arg(long, global = true, help_heading = None)]
    pub json: bool,
    #[command(subcommand)]
    pub command: CtlCommand,
}

/// Address of a control service, and the time-out for its answers.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Control service")]
pub struct ServiceArgs {
    /// Unix socket of the control service
    #[arg(
        long,
        value_name = "PATH",
        default_value = "/run/wqcap/control.sock",
        global = true
    )]
    pub unix: PathBuf,
    /// Connect to the control service over RDMA instead of its Unix socket
    #[arg(long, value_name = "HOST:PORT", requires = "key_file", global = true)]
    pub rdma: Option<String>,
    /// File with a key of the control service; required for RDMA
    #[arg(long, value_name = "FILE", global = true)]
    pub key_file: Option<PathBuf>,
    /// Time-out for an answer of the control service: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "30", global = true)]
    pub timeout: Duration,
}

/// Arguments of `wqcap top`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
q or Esc quits. A small terminal omits the least important parts first.

Examples:
  wqcap top
  wqcap top --unix /tmp/control.sock --every 0.5
  wqcap top --rdma 10.0.0.1:7471 --key-file control.key

Exit status:
  0 ended by a key or a signal
  1 the capture has ended
  2 the capture cannot be reached")]
pub struct TopArgs {
    #[command(flatten)]
    pub service: ServiceArgs,
    /// Refresh interval of the view: seconds, or a time with a unit
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "1", help_heading = None)]
    pub every: Duration,
}

/// Commands of the control service.
#[derive(Debug, Subcommand)]
pub enum CtlCommand {
    /// Print the state of the capture and of the control service
    Status,
    /// Print the current ledger of the capture
    Stats,
    /// Print the ledger of the capture repeatedly, until interrupted
    Watch {
        /// Interval between two ledgers: seconds, or a time with a unit
        #[arg(long, value_name = "S", value_parser = seconds, default_value = "1")]
        every: Duration,
        /// Stop after printing the ledger this many times
        #[arg(long, value_name = "N", value_parser = value_parser!(u64).range(1..))]
        count: Option<u64>,
    },
    /// Print the plan of the capture: devices, queues, mode and output
    Plan,
    /// List the RDMA devices of the capture's machine
    Devices,
    /// Start capturing again after stop or drain
    Start,
    /// Stop the capture and complete its files; the process keeps running
    Stop,
    /// Stop receiving frames, and complete the capture files
    Drain,
    /// Start a new capture file for each queue
    Rotate,
    /// Set the filter of the running capture
    Filter {
        /// pcap-filter(7) expression; its words are joined with blanks, and '' keeps every frame
        #[arg(required = true)]
        expression: Vec<String>,
    },
    /// Add or remove a hardware rule of the capture
    Rule {
        #[command(subcommand)]
        what: RuleCommand,
    },
    /// Change the creation flags of the capture's WQs
    WqFlags {
        /// Remove the customer VLAN tag of each frame in the NIC
        #[arg(long, value_name = "BOOL")]
        cvlan_stripping: Option<bool>,
        /// Deliver the frame check sequence with each frame
        #[arg(long, value_name = "BOOL")]
        scatter_fcs: Option<bool>,
    },
    /// Change each queue's share of the flows
    Respread {
        /// Share of the flows for each queue, such as 3,1 [default: by the load of each queue]
        #[arg(long, value_name = "N,N...", value_delimiter = ',')]
        weights: Vec<u32>,
    },
    /// Mark this moment: pin its capture files, and record the mark in the open pcapng files
    Mark {
        /// Description of the mark, in one line
        text: String,
        /// Time before the mark that the pin covers: seconds, or a time with a unit
        #[arg(long, value_name = "S", value_parser = seconds, default_value = "60s")]
        before: Duration,
        /// Time after the mark that the pin covers: seconds, or a time with a unit
        #[arg(long, value_name = "S", value_parser = seconds, default_value = "60s")]
        after: Duration,
        #[command(flatten)]
        filter: FilterArgs,
    },
    /// Set the log level of the capture process
    Log {
        /// Log level: error, warn, info, debug or trace
        level: String,
    },
    /// Read the configuration of the running capture again
    Reload,
    /// Stop the capture, complete the files and end the process
    Shutdown,
    /// Print the JSON Schema of the control messages, without contacting a service
    Schema,
}

/// Subcommands of `wqcap ctl rule`.
#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// Add a hardware rule
    Add {
        /// Fields of the rule to add, as in a `[[rule]]` of the config: proto=udp dst_port=53
        #[arg(required = true, value_name = "FIELD=VALUE")]
        fields: Vec<Setting>,
    },
    /// Remove a hardware rule
    Remove {
        /// Rule to remove: its id alone (id=dns), or all its fields
        #[arg(required = true, value_name = "FIELD=VALUE")]
        fields: Vec<Setting>,
    },
}
