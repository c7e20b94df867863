//! Arguments of `wqcap serve`.

use super::ConfigArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use wqcap_serve::identity::CallerRole;

/// Arguments of `wqcap serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Answers requests for the packets, flow records and state of the capture with the same config, as [serve] \
sets: an HTTP interface (/openapi.json), stenographer's POST /query, and a page (/). It runs next to the \
capture, as another process without the capture's rights. Each request is a line of the audit trail in the log.
Without [serve] it listens on 127.0.0.1:9465, and every user of this machine may read packets from it.

Examples:
  wqcap serve -c /etc/wqcap/tap0.toml
  wqcap serve -c tap0.toml --new-token alice
  wqcap serve -c tap0.toml --new-token ops --role mark
  curl -o dns.pcapng '127.0.0.1:9465/api/v1/packets?filter=port+53'")]
pub struct ServeArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Make a token of this name, append its line to serve.tokens, print the token, and end
    #[arg(long, value_name = "NAME")]
    pub new_token: Option<String>,
    /// Role of the new token: read, or mark to also set marks and pins
    #[arg(long, requires = "new_token", default_value = "read", hide_default_value = true, value_parser = PossibleValuesParser::new(["read", "mark"]).map(|it| CallerRole::parse(&it).unwrap_or(CallerRole::Read)))]
    pub role: CallerRole,
}

/// Options of `wqcap extract` for sensors.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct SensorArgs {
    /// From a sensor: file with the token [default: the environment variable WQCAP_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// From a sensor: PEM file of the authorities that sign its certificate [default: those of the
    /// system]
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// From a sensor: PEM file of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert_key")]
    pub cert: Option<PathBuf>,
    /// From a sensor: PEM file of the key of the client certificate
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub cert_key: Option<PathBuf>,
}

impl SensorArgs {
    /// Returns the first of these options that is given.
    pub fn names_files(&self) -> Option<&'static str> {
        let all = [
            ("--token-file", &self.token_file),
            ("--ca", &self.ca),
            ("--cert", &self.cert),
        ];
        all.into_iter().find(|(_, it)| it.is_some()).map(|it| it.0)
    }
}
