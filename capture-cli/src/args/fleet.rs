//! Arguments of `wqcap fleet`.

use super::ConfigArgs;
use wqcap_engine::config::Span;

/// Arguments of `wqcap fleet`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each wqcap ship process puts the status of its sensor into the store, at least once a minute. This \
command reads all of them. It prints when each sensor last reported, its last object, its lag, and its \
delivery ledger, in which captured = shipped + pending + not_selected + expired_unshipped. A sensor \
with packets in the newest hours of the store and without a status is reported as missing.
Buckets take region, endpoint and credentials from the environment, as for wqcap ship. The account \
must be allowed to list and to read.

Examples:
  wqcap fleet s3://captures/site1
  wqcap fleet -c /etc/wqcap/tap0.toml --stale 15m
  wqcap fleet file:///mnt/captures --json | jq '.findings[]'

Exit status:
  0 nothing is missing
  1 something is missing, or a sensor does not report
  2 the store cannot be read")]
pub struct FleetArgs {
    /// Object store: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or
    /// file:///DIRECTORY [default: ship.store of the config]
    #[arg(value_name = "STORE", conflicts_with_all = ["file", "set"])]
    pub store: Option<String>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Time without a report after which a sensor counts as silent, such as 90s or 1h
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub stale: Span,
    /// Print the status of all sensors on stdout as JSON
    #[arg(long)]
    pub json: bool,
}
