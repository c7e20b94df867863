//! The arguments of `fleet`.

use super::ConfigArgs;
use std::time::Duration;
use wqcap_engine::config::Span;

/// `wqcap fleet`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each `wqcap ship` puts the status of its sensor into the store, at least once a minute. This reads all of them: when each sensor \
was heard of last, its last object, how far it is behind, and its delivery ledger, in which captured = shipped + pending + \
not_selected + expired_unshipped. Sensors whose packets are in the newest hours of the store are missed if they have no status.
Buckets take region, endpoint and credentials from the environment, as for wqcap ship; the account must be allowed to list and to \
read.

Examples:
  wqcap fleet s3://captures/site1
  wqcap fleet -c /etc/wqcap/tap0.toml --stale 15m
  wqcap fleet file:///mnt/captures --json | jq '.findings[]'

Exit status: 0 nothing is missing, 1 something is, or a sensor is not heard of, 2 the store cannot be asked.")]
pub struct FleetArgs {
    /// The store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///DIRECTORY [default: ship.store of the config]
    #[arg(value_name = "STORE", conflicts_with_all = ["file", "set"])]
    pub store: Option<String>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// How long a sensor may be silent, such as 90s or 1h
    #[arg(long, value_name = "TIME", value_parser = span, default_value = "5m")]
    pub stale: Duration,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
}

fn span(text: &str) -> Result<Duration, String> {
    text.parse::<Span>().map(|it| it.0)
}
