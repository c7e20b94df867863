//! Arguments of `wqcap pin`.

use super::{ConfigArgs, FilterArgs};
use crate::term::time::TimePoint;
use clap::Subcommand;
use std::path::PathBuf;

/// Folder of capture files: `--dir`, or `output.dir` of a configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CaptureFolderArgs {
    /// Directory of capture files [default: output.dir of the config]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    #[command(flatten)]
    pub config: ConfigArgs,
}

/// Arguments of `wqcap pin`.
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Pinned files are not deleted for output.keep, keep_files, keep_age and keep_free until their pin is \
released. Their bytes count towards the limits. A running capture obeys a pin at once. Files that are \
open now are protected when they are finished.
A filter selects fewer files only with the indexes of the config (output.index_dir). A file without an \
index is protected if it may have frames of that time.
T has the forms of wqcap extract, or +10m: relative to now, in the future.

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
    /// Start of the pinned period, inclusive
    #[arg(long, value_name = "T", allow_hyphen_values = true, required = true)]
    pub from: Option<TimePoint>,
    /// End of the pinned period, exclusive
    #[arg(long, value_name = "T", allow_hyphen_values = true, required = true)]
    pub to: Option<TimePoint>,
    #[command(flatten)]
    pub filter: FilterArgs,
    /// Reason for the pin, in one line
    #[arg(long, value_name = "TEXT", required = true)]
    pub reason: Option<String>,
    /// Print the new pin on stdout as JSON
    #[arg(long)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Option<PinCommand>,
}

/// Subcommands of `wqcap pin` for existing pins.
#[derive(Debug, Subcommand)]
pub enum PinCommand {
    /// List the pins, and the capture files that each protects
    List {
        #[command(flatten)]
        folder: CaptureFolderArgs,
        /// Print the pins on stdout as JSON
        #[arg(long)]
        json: bool,
    },
    /// Release a pin; capture files that no other pin protects may be deleted again
    Release {
        #[command(flatten)]
        folder: CaptureFolderArgs,
        /// Id of the pin, as `wqcap pin list` prints it
        #[arg(value_name = "ID")]
        id: String,
    },
}
