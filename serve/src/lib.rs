//! Packets, flow records and the state of a sensor over HTTPS.
//!
//! ```text
//! connection -> listener: TLS, limits -> caller: certificate, token -> handler -> answer, audit line
//!                                                                        |
//!                      store: files, indexes ----------------------------+--> packets, stenographer, timeline
//!                      flow records -------------------------------------+--> flows
//!                      control socket, pins -----------------------------+--> status, marks, pins
//! ```
//!
//! | module | purpose |
//! |---|---|
//! | [`client`] | fetches frames from other sensors |
//! | [`identity`] | who calls: tokens, client certificates, roles |
//! | `query` | languages and values of requests: times, stenographer's query language, numbers of 64 bits in JSON |
//! | `error` | errors as answers |
//! | `store` | the files of the capture with their times, from indexes |
//! | `packets` | streams the frames of a query |
//! | `permits` | how many requests are answered at the same time, and of one caller; answers that hold their permit until they are sent |
//! | `flow_rows` | reads flow records |
//! | `timeline` | stored frames and bytes by interval |
//! | `sensor` | state of the capture, marks, pins |
//! | `audit` | an audit line and counters for each request |
//! | `http` | connections, TLS, their limits; the HTTP interface and its description |
//!
//! # Invariants
//!
//! The process only reads what the capture writes; it adds pins and sends marks for callers with the
//! role for that. It never waits for the capture and the capture never waits for it. Requests,
//! connections, memory and the bytes of an answer have bounds. Every request ends in one audit line.
//! An answer that lacks frames states that in its last block, in a trailer and in the audit line.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod audit;
pub mod client;
mod error;
mod flow_rows;
mod http;
pub mod identity;
mod packets;
mod permits;
mod query;
mod sensor;
mod store;
mod timeline;

pub use http::{ServeReload, Server, ServerError};

use std::{net::SocketAddr, path::PathBuf, time::Duration};
use wqcap_files::sealed::SecretKey;

/// Time limit for a TLS handshake, for the head of a request, and for its body.
const PATIENCE: Duration = Duration::from_secs(10);

/// Configuration of the HTTP service: address, callers, folders of the capture, and limits.
#[derive(Clone, Debug)]
pub struct ServePlan {
    /// Addresses to listen on; the first one that can be bound is used.
    pub listen: Vec<SocketAddr>,
    /// Files with the TLS certificate and key of the service; `None`: HTTP without TLS.
    pub tls: Option<TlsFiles>,
    /// File of the access tokens; `None`: no caller has a token.
    pub tokens: Option<PathBuf>,
    /// Folder of the capture files.
    pub dir: PathBuf,
    /// Folder of the capture files' indexes; `None`: files are selected by their first packet
    /// records.
    pub index_dir: Option<PathBuf>,
    /// Folder of the flow records; `None`: the capture writes no flow records.
    pub flows: Option<FlowsFolder>,
    /// Path of the Unix socket of the capture's control service; `None`: the capture has none.
    pub control: Option<PathBuf>,
    /// Set if the time stamps of the frames are those of the NIC's clock, which may differ from that
    /// of the service.
    pub has_nic_clock: bool,
    /// Decryption key of encrypted capture files; `None`: the service has no key.
    pub key: Option<SecretKey>,
    /// Name of the sensor on which the service runs.
    pub sensor: String,
    /// Limits of requests and answers.
    pub limits: ServeLimits,
}

/// Limits of requests and answers of the service, which can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServeLimits {
    /// Maximum number of requests that read capture files at the same time.
    pub max_requests: usize,
    /// Number of bytes after which an answer with packets ends as incomplete.
    pub max_bytes: u64,
}

/// PEM files for TLS connections to the service.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// File with the certificates of the service, its own certificate first.
    pub cert: PathBuf,
    /// File with the private key of the service.
    pub key: PathBuf,
    /// File with the certificates of the authorities that sign client certificates; `None`: clients
    /// have no certificates.
    pub client_ca: Option<PathBuf>,
}

/// Folder of the files of flow records.
#[derive(Clone, Debug)]
pub struct FlowsFolder {
    /// Path of the folder of flow records.
    pub dir: PathBuf,
    /// Longest time from a flow's first frame until its record is in a file.
    pub delay: Duration,
}
