//! The arguments of `pin`.

use super::{ConfigArgs, FilterArgs};
use crate::term::time::Moment;
use clap::Subcommand;
use std::path::PathBuf;

/// A folder of capture files: as it is named, or that of a configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CaptureFolderArgs {
    /// Directory of capture files [default: output.dir of the config]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// `wqcap pin`
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
What is pinned is not deleted for output.keep, keep_files, keep_age and keep_free, until it is released. Its bytes count \
for the limits. A running capture follows a pin at once; files that are open now are held when they are finished.
A filter holds fewer files only with the indexes of the config (output.index_dir): a file without an index is held if it \
may have frames of that time.
T is as for wqcap extract, or +10m: from now on.

Examples:
  wqcap pin -c /etc/wqcap/wqcap.toml --from -1h --to now \\
      --filter 'host 10.0.0.1' --reason 'incident 4711'
  wqcap pin --dir cap --from -10m --to +10m --reason 'test of today'
  wqcap pin list -c /etc/wqcap/wqcap.toml
  wqcap pin release -c /etc/wqcap/wqcap.toml 20260301T120000Z"
)]
pub struct PinArgs {
    #[command(flatten)]
    pub folder: CaptureFolderArgs,
    /// Start time, inclusive
    #[arg(long, value_name = "T", allow_hyphen_values = true, required = true)]
    pub from: Option<Moment>,
    /// End time, exclusive
    #[arg(long, value_name = "T", allow_hyphen_values = true, required = true)]
    pub to: Option<Moment>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// What it is for, in one line
    #[arg(long, value_name = "TEXT", required = true)]
    pub reason: Option<String>,
    /// Print JSON on stdout
    #[arg(long)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Option<PinCommand>,
}

/// What is done with pins that are there.
#[derive(Debug, Subcommand)]
pub enum PinCommand {
    /// List the pins, and what each holds
    List {
        #[command(flatten)]
        folder: CaptureFolderArgs,
        /// Print JSON on stdout
        #[arg(long)]
        json: bool,
    },
    /// Release a pin: what no other pin holds may be deleted again
    Release {
        #[command(flatten)]
        folder: CaptureFolderArgs,
        /// The pin, as `wqcap pin list` names it
        #[arg(value_name = "ID")]
        id: String,
    },
}
