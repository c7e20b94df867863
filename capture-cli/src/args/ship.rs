//! The arguments of `ship`.

use super::ConfigArgs;

/// `wqcap ship`
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ships what the capture of the same config finishes: files of output.dir, what is in them, and flow records of flows.dir. It \
runs beside the capture, as another process without its rights, and goes on where it was ended or killed.
Buckets take region, endpoint and credentials from the environment: AWS_REGION, AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, \
AWS_SECRET_ACCESS_KEY and so on; without keys they are those of the machine in its cloud.

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
