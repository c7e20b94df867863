//! Remote control of a running capture: requests over a Unix socket or RDMA, and their answers.
//!
//! [`protocol`] contains the messages, their authentication and their fragmentation, without
//! sockets or queues; keys lie in memory of `wqcap-verbs`. [`server`] answers requests for a
//! [`Backend`](server::Backend), which represents the capture. [`client`] sends requests. Server
//! and client import the protocol, and neither imports the other. [`audit`] logs each request, its
//! origin and its outcome. The crate may import `wqcap-verbs`, for RDMA; it does not depend on
//! captures, plans or frames.

pub mod audit;
pub mod client;
pub mod protocol;
pub mod server;
