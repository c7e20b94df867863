//! Remote control of a running capture: requests over a Unix socket or RDMA, and their answers.
//!
//! [`protocol`] holds the messages, their authentication and their framing, without sockets or queues; keys lie in memory of
//! `wqcap-verbs`. [`server`] answers requests for a [`Backend`](server::Backend), which stands for the capture; [`client`]
//! sends them. Server and client import the protocol, and neither imports the other. [`audit`] writes what was asked for, by
//! whom, and what came of it. The crate may import `wqcap-verbs`, for RDMA; it knows nothing of
//! captures, plans or frames.

pub mod audit;
pub mod client;
pub mod protocol;
pub mod server;
