//! Arguments of `wqcap selftest`.

use super::{Setting, seconds};
use clap::value_parser;
use std::{path::PathBuf, time::Duration};

/// Arguments of `wqcap selftest`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests every object, size, flag, hash and rule from the device that a capture can use. Records what \
the device accepts, what it refuses (errno), and how long each request takes. Unless --disruptive is \
given, all rules are for a MAC address that only this test uses. With --tx it sends known frames, and \
compares the queues where they arrive and their completions with what the engine expects. The report \
contains no address of your network. Findings have a subject; --compare groups by it. The last lines \
say which of the known differences between cards the device shows.

Examples:
  wqcap selftest --device mlx5_0 --report card.json
  wqcap selftest --device mlx5_0 --tx mlx5_1        two ports on a cable
  wqcap selftest --model loopback --tx mlx5_0 --report model.json
  wqcap selftest --compare model.json card.json

Exit status:
  0 done
  1 the test ended early, or a finding is not as expected; the report
    has the findings up to that point
  2 the command line or the device does not allow it")]
pub struct SelftestArgs {
    /// Device to test [default: the only device of the machine]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Port of the device to test
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..))]
    pub port: u8,
    /// Send known frames from this device to the tested port. Name the tested device itself if its
    /// frames come back to it
    #[arg(long, value_name = "NAME")]
    pub tx: Option<String>,
    /// Port of the sending device
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u8).range(1..), requires = "tx")]
    pub tx_port: u8,
    /// Time to measure the drift of the device's clock: seconds, or a time with a unit [default: 60
    /// s; on the software NIC 1 s]
    #[arg(long, value_name = "S", value_parser = seconds, overrides_with = "drift")]
    pub drift: Option<Duration>,
    /// Write the selftest report to this file as JSON
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Also install rules that match other traffic of the port, and change the port for a moment:
    /// promiscuity, rx-all, link down and up, its driver
    #[arg(long)]
    pub disruptive: bool,
    /// Print the differences between two selftest reports, and test nothing
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["device", "tx", "drift", "report", "model", "disruptive"])]
    pub compare: Option<Vec<PathBuf>>,
    /// Print selftest reports as a Markdown table with one row per device, and test nothing
    #[arg(long, num_args = 1.., value_name = "FILE", conflicts_with_all = ["device", "tx", "drift", "report", "model", "disruptive", "compare"])]
    pub table: Option<Vec<PathBuf>>,
    /// Test the software NIC on this wire
    #[arg(long, value_name = "WIRE")]
    pub model: Option<String>,
    /// Set a key of the software NIC: model.KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
    /// Print the selftest report, or the differences between two, on stdout as JSON
    #[arg(long)]
    pub json: bool,
    /// Print the JSON Schema of selftest reports
    #[arg(long, hide = true)]
    pub schema: bool,
}
