//! The kit of the integration tests: what every test needs to drive the binaries from outside.
//!
//! The tests know the product only as its users do: through the command line, the summary, the capture files, and
//! verbs programs that run on the model. Nothing here links the engine or the model. Crate `wqcap-rss` is linked for one
//! purpose, to be compared with [`mod@reference`], which shares no code with it.
//!
//! | module | for |
//! |---|---|
//! | [`binaries`] | finding or building `wqcap` and the model's shared object |
//! | [`process`] | children that end: deadlines, signals by own pid, output kept |
//! | [`wqcap`] | the `wqcap run` and `wqcap model` command lines, and a finished run with its files |
//! | [`ledger`] | the summary, typed, and the sums every run must show |
//! | [`ctl`] | the control socket of a capture under way: questions, orders, and waiting for what the answers tell |
//! | [`compare`] | comparing much, and telling the first difference alone |
//! | [`files`] | capture files in and out, as plain records |
//! | [`filters`] | expressions that filters are tested with |
//! | [`frames`] | frames made by hand, with a sequence number where a test needs one |
//! | [`mod@reference`] | the naive answer to "which queue takes this frame?" |
//! | [`captures`] | a folder of real captures, or generated ones in its place |
//! | [`duckdb`] | reads Parquet files, independently of who wrote them |
//! | [`promtool`] | Prometheus' word on metrics and rules |
//! | [`netns`] | network namespaces joined by veth |
//! | [`privileges`] | running the product as a user without rights |
//! | [`clients`] | C programs, with and without the address sanitizer |
//! | [`dir`] | scratch folders |
//! | [`disks`] | disks that lose their power, stall and fail |
//! | [`skip!`] | leaving a test out, aloud |
//!
//! Invariants: no child outlives its test; a signal goes only to a pid that the test itself started; a test that
//! cannot run says so through [`skip!`] and never merely returns; a test waits for an event (a line of the log, an
//! answer, a counter, a file) and never for a time; what a failure prints fits a screen.

pub mod binaries;
pub mod captures;
pub mod clients;
pub mod compare;
pub mod ctl;
pub mod dir;
pub mod disks;
pub mod duckdb;
pub mod files;
pub mod filters;
pub mod frames;
pub mod ledger;
pub mod netns;
pub mod privileges;
pub mod process;
pub mod promtool;
pub mod reference;
pub mod skip;
pub mod wqcap;

pub use dir::Dir;
pub use ledger::{Ledger, Summary};
pub use netns::Pair;
pub use process::{Done, Program, Running};
pub use wqcap::{Finished, Wqcap};
