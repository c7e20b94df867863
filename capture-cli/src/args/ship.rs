//! The arguments of `ship`, and those of `extract` that are for stores.

use super::{ConfigArgs, seconds};
use std::{path::PathBuf, time::Duration};
use wqcap_engine::config::Sensor;

fn sensor(text: &str) -> Result<Sensor, String> {
    Sensor::try_from(text.to_owned())
}

/// What of a store `wqcap extract` reads.
#[derive(Debug, clap::Args)]
pub struct StoreArgs {
    /// In a store: only frames of this sensor; may be given several times [default: every sensor]
    #[arg(long = "sensor", value_name = "NAME", value_parser = sensor)]
    pub sensors: Vec<Sensor>,
    /// In a store: look for files that begin up to so long before --from, at least the length of the longest [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub lookback: Option<Duration>,
    /// In a store: fetch the ranges that this file lists, CSV or Parquet with the columns object, byte_start and byte_end, as a
    /// query of blocks/ prints them; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sensors", "lookback"])]
    pub ranges: Option<PathBuf>,
}

/// `wqcap ship`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ships what the capture of the same config finishes: files of output.dir, what is in them, and flow records of flows.dir. It \
runs beside the capture, as another process without its rights, and goes on where it was ended or killed.
Buckets take region, endpoint and credentials from the environment: AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, \
AWS_SECRET_ACCESS_KEY and so on, or GOOGLE_* and AZURE_* of Google's and Azure's; without keys they are those of the \
machine in its cloud.

Examples:
  wqcap ship -c /etc/wqcap/tap0.toml
  wqcap ship -c tap0.toml --set ship.store=file:///mnt/captures --once
  wqcap ship -c tap0.toml --dry-run
  wqcap ship -c tap0.toml --once --json | jq .ledger

Exit status: 1 also if files are left that could not be shipped.")]
pub struct ShipArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Ship what is there now, then end [default: go on until a signal]
    #[arg(long)]
    pub once: bool,
    /// List what would be shipped, and ship nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}
