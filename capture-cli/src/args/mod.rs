//! Arguments of the command line.

mod aliases;
mod bench;
mod capture;
mod control;
mod files;
#[cfg(feature = "ship")]
mod fleet;
mod foreign;
mod pin;
mod selftest;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "ship")]
mod ship;

pub use aliases::*;
pub use bench::*;
pub use capture::*;
pub use control::*;
pub use files::*;
#[cfg(feature = "ship")]
pub use fleet::*;
pub use foreign::hint;
pub use pin::*;
pub use selftest::*;
#[cfg(feature = "serve")]
pub use serve::*;
#[cfg(feature = "ship")]
pub use ship::*;

use crate::term::message::LogFormat;
use clap::{
    ArgAction, Parser, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser},
};
use std::{
    path::PathBuf,
    str::FromStr,
    time::{Duration, TryFromFloatSecsError},
};
use strum::VariantNames;
use wqcap_engine::config::{Size, Span};

/// Examples and exit statuses that follow the main help.
const EXAMPLES: &str = "\
Examples:
  wqcap devices                                     list the devices
  wqcap run -c /etc/wqcap/wqcap.toml                capture as configured
  wqcap run -i ens1f0np0 -w out.pcap tcp port 443   as with tcpdump
  wqcap run --set output.dir=. --duration 10        ten seconds, into .
  wqcap run --model synth:count=1000000 --set output.format=none
                                                    on the software NIC

Exit status:
  0 done
  1 failed while running
  2 the command line, the config or the device does not allow it";

/// Commit that a release or a package was built from; `None` in other builds.
const COMMIT: Option<&str> = option_env!("WQCAP_COMMIT");

/// Returns the text of `--version`: version, commit and features.
fn long_version() -> String {
    let features = [
        ("flows", cfg!(feature = "flows")),
        ("serve", cfg!(feature = "serve")),
        ("ship", cfg!(feature = "ship")),
    ];
    let features: Vec<_> = features
        .iter()
        .filter_map(|(name, on)| on.then_some(*name))
        .collect();
    format!(
        "{}\ncommit: {}\nfeatures: {}",
        env!("CARGO_PKG_VERSION"),
        COMMIT.unwrap_or("unknown, because this is not a build of a package"),
        if features.is_empty() {
            "none".to_owned()
        } else {
            features.join(", ")
        },
    )
}

/// Heading of the options that every command takes.
const GLOBAL: &str = "Global options";

/// Packet capture on RDMA NICs, with a ledger that accounts for every frame.
#[derive(Debug, Parser)]
#[command(name = "wqcap", version, long_version = long_version(), after_help = EXAMPLES, disable_help_subcommand = true)]
pub struct Args {
    /// Write more log lines to stderr: once for debug, twice for everything. RUST_LOG overrides
    /// this [default: warnings]
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = GLOBAL)]
    pub verbose: u8,
    /// Print errors only, without progress line and final table
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = GLOBAL
    )]
    pub quiet: bool,
    /// Form of all lines on stderr: text, or json with one object per line [default: text]
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        hide_default_value = true,
        hide_possible_values = true,
        value_parser = PossibleValuesParser::new(LogFormat::VARIANTS).map(|it| it.parse().unwrap_or(LogFormat::Text)),
        help_heading = GLOBAL
    )]
    pub log_format: LogFormat,
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Subcommands of `wqcap`.
#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// List the RDMA devices of this machine and their capabilities
    Devices(DevicesArgs),
    /// Validate a config; print the effective config and the objects that a run would create
    Check(CheckArgs),
    /// Capture until a signal, a limit, or the end of a finite wire
    Run(RunArgs),
    /// Run any verbs program on the software NIC
    Model(ModelArgs),
    /// Predict which queue RSS selects for each flow of a capture, without a NIC
    Rss(RssArgs),
    /// Merge capture files into one, in time order
    Merge(MergeArgs),
    /// Extract frames by time and filter from capture files, or from an object store
    Extract(ExtractArgs),
    /// Write flow records of capture files, without a NIC
    #[cfg(feature = "flows")]
    Flows(FlowsArgs),
    /// Protect the capture files of a period from deletion
    Pin(PinArgs),
    /// Ship finished files and flow records to an object store
    #[cfg(feature = "ship")]
    Ship(ShipArgs),
    /// Serve packets, flow records and the state of a capture over HTTPS, with a page
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    /// Show all sensors of an object store, and whether anything is missing
    #[cfg(feature = "ship")]
    Fleet(FleetArgs),
    /// Measure how fast this machine and its NIC are
    Bench(BenchArgs),
    /// Test the real behaviour of a device, or compare two selftest reports
    Selftest(SelftestArgs),
    /// Finish the capture files that a crash left open
    Recover(RecoverArgs),
    /// Inspect or change a running capture
    Ctl(CtlArgs),
    /// Show a live view of a running capture
    Top(TopArgs),
    /// Serve as a capture device of Wireshark
    Extcap(ExtcapArgs),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Manual(ManualArgs),
    /// Run hooks for a capture; `wqcap run` starts this process
    #[command(hide = true)]
    Hooks(HooksArgs),
    /// Write the summary for a capture; `wqcap run` starts this process
    #[command(hide = true)]
    Outside(OutsideArgs),
}

/// Arguments of `wqcap manual`, which packagers run.
#[derive(Debug, clap::Args)]
pub struct ManualArgs {
    /// Output directory; man1/, man5/ and completions/ are created in it
    pub dir: PathBuf,
}

/// Arguments of `wqcap hooks`, which reads paths from stdin and writes reports to stdout.
#[derive(Debug, clap::Args)]
pub struct HooksArgs {
    /// Output directory of the capture
    #[arg(long)]
    pub dir: PathBuf,
    /// Template of the capture's file names
    #[arg(long)]
    pub name: String,
    /// Program to run as the hook
    pub program: PathBuf,
}

/// Arguments of `wqcap outside`, which reads a summary from stdin and writes errors to stdout.
#[derive(Debug, clap::Args)]
pub struct OutsideArgs {
    /// Summary file to replace
    #[arg(long)]
    pub summary: Option<PathBuf>,
    /// Control socket to remove at the end of the capture
    #[arg(long)]
    pub socket: Option<PathBuf>,
}

/// Configuration on the command line: a config file, and `--set` settings that override it.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArgs {
    /// Config file in TOML; - is standard input [default: none, every key has its default]
    #[arg(short = 'c', long = "config", value_name = "CONFIG")]
    pub file: Option<PathBuf>,
    /// Set a configuration key, overriding the config file; of several settings of a key the last
    /// one applies
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<Setting>,
}

/// Setting of the command line: `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Key of the setting: the part before the first `=`.
    pub key: String,
    /// Value of the setting: the part after the first `=`.
    pub value: String,
}

/// Reason why a text is not a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingSyntaxError {
    /// The text has no `=`.
    #[error("write KEY=VALUE")]
    NoEquals,
    /// The argument of `--set` begins with `=`, so that it has no key.
    #[error("there is no key before the =; write KEY=VALUE")]
    NoKey,
    /// The text has several lines.
    #[error("must be one line")]
    Lines,
}

impl FromStr for Setting {
    type Err = SettingSyntaxError;

    fn from_str(text: &str) -> Result<Self, SettingSyntaxError> {
        let (key, value) = text.split_once('=').ok_or(SettingSyntaxError::NoEquals)?;
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            return Err(SettingSyntaxError::NoKey);
        }
        if text.contains('\n') {
            return Err(SettingSyntaxError::Lines);
        }
        Ok(Self {
            key: key.into(),
            value: value.into(),
        })
    }
}

/// Reason why a text is not a size or a duration above 0.
#[derive(Debug, thiserror::Error)]
enum AmountError {
    #[error("must be above 0")]
    Zero,
    #[error("{0}")]
    Size(<Size as FromStr>::Err),
    #[error("{0}")]
    Span(<Span as FromStr>::Err),
    #[error(transparent)]
    Seconds(#[from] TryFromFloatSecsError),
}

/// Parses the size that an option takes, which must be above 0.
fn written(text: &str) -> Result<Size, AmountError> {
    match text.parse().map_err(AmountError::Size)? {
        Size(0) => Err(AmountError::Zero),
        size => Ok(size),
    }
}

/// Parses the duration that an option takes, which must be above 0: seconds, optionally with a
/// fraction, or a time with a unit.
fn seconds(text: &str) -> Result<Duration, AmountError> {
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds)?,
        Err(_) => text.parse::<Span>().map_err(AmountError::Span)?.0,
    };
    match time {
        Duration::ZERO => Err(AmountError::Zero),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_clap_definition_is_valid() {
        Args::command().debug_assert();
    }

    /// A man page of 80 columns has room for 73 characters in lines that keep their form, two of
    /// them for the indentation. Only the terminal breaks lines of prose.
    #[test]
    fn help_fits_a_page() {
        fn check(command: &clap::Command) {
            let name = command.get_name();
            let text = command.get_after_help().map(ToString::to_string);
            let text = text.unwrap_or_default();
            let mut lines = text.lines().peekable();
            while let Some(line) = lines.next() {
                if line.starts_with("  ") {
                    assert!(line.chars().count() <= 73, "{name}: {line}");
                } else {
                    let is_whole = line.is_empty() || line.ends_with(['.', ':']);
                    let leads = lines.peek().is_some_and(|next| next.starts_with("  "));
                    assert!(is_whole || leads, "{name}: {line}");
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&Args::command());
    }

    #[test]
    fn durations() {
        for (text, ms) in [("2", 2000), ("0.5", 500), ("5m", 300_000), ("100ms", 100)] {
            assert_eq!(
                seconds(text).ok(),
                Some(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in ["0", "-1", "x", "", "inf", "nan"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn settings() {
        let it: Setting = "capture.filter=tcp[13] = 2".parse().unwrap();
        assert_eq!(
            (it.key.as_str(), it.value.as_str()),
            ("capture.filter", "tcp[13] = 2")
        );
        for text in ["x", "=1", "a=b\nc=d"] {
            assert!(text.parse::<Setting>().is_err(), "{text}");
        }
    }

    #[test]
    fn arguments_after_the_program_belong_to_it() {
        let args = Args::try_parse_from([
            "wqcap", "model", "--wire", "loopback", "--", "x", "--wire", "-q",
        ])
        .unwrap();
        let CliCommand::Model(model) = args.command else {
            panic!()
        };
        assert_eq!(model.program, ["x", "--wire", "-q"]);
    }
}
