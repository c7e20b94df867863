//! Arguments of `wqcap ship`, and those of `wqcap extract` for stores.

use super::{ConfigArgs, seconds};
use clap::builder::{StringValueParser, TypedValueParser};
use std::{path::PathBuf, time::Duration};
use wqcap_engine::config::Sensor;

/// Options of `wqcap extract` that select the frames to read from a store.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreArgs {
    /// In a store: extract only frames of this sensor; the option may be given several times
    /// [default: every sensor]
    #[arg(long = "sensor", value_name = "NAME", value_parser = StringValueParser::new().try_map(Sensor::try_from))]
    pub sensors: Vec<Sensor>,
    /// In a store: search files that begin at most this long before --from; must be at least the
    /// duration of the longest file [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub lookback: Option<Duration>,
    /// In a store: fetch the ranges that this file lists, as a query of blocks/ prints them: CSV or
    /// Parquet with the columns object, byte_start and byte_end; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sensors", "lookback"])]
    pub ranges: Option<PathBuf>,
}

impl StoreArgs {
    /// Returns the name of the first of the options that is given; `None`: none is.
    pub fn first_given(&self) -> Option<&'static str> {
        let all = [
            ("--sensor", !self.sensors.is_empty()),
            ("--lookback", self.lookback.is_some()),
            ("--ranges", self.ranges.is_some()),
        ];
        all.into_iter()
            .find(|(_, is_given)| *is_given)
            .map(|it| it.0)
    }
}

/// Arguments of `wqcap ship`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ships the results of the capture with the same config: finished files of output.dir, a table of \
their contents, and flow records of flows.dir. It runs next to the capture, as another process without \
the capture's rights. After an end or a kill it continues where it stopped.
Buckets take region, endpoint and credentials from the environment: AWS_REGION, AWS_ENDPOINT_URL, \
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and so on, or GOOGLE_* and AZURE_* for Google and Azure. \
Without keys, the credentials are those of the cloud machine.

Examples:
  wqcap ship -c /etc/wqcap/tap0.toml
  wqcap ship -c tap0.toml --set ship.store=file:///mnt/captures --once
  wqcap ship -c tap0.toml --dry-run
  wqcap ship -c tap0.toml --once --json | jq .ledger

Exit status: 1 also if files are left that could not be shipped.")]
pub struct ShipArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Ship the capture files and flow records that are finished now, then end [default: continue
    /// until a signal]
    #[arg(long)]
    pub once: bool,
    /// List the objects that would be shipped, and ship nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the shipping status, or with --dry-run the list, on stdout as JSON
    #[arg(long)]
    pub json: bool,
}
