//! The kit of the integration tests: what every test needs to drive the binaries from outside.
//!
//! The tests know the product only as its users do: through the command line, the summary, the capture files, and
//! verbs programs that run on the model. Nothing here links the engine or the model. Crate `wqcap-rss` is linked for one
//! purpose, to be compared with [`oracles::reference`], which shares no code with it.
//!
//! | module | for |
//! |---|---|
//! | [`binaries`] | finding or building `wqcap` and the model's shared object |
//! | [`process`] | children that end: deadlines, signals by own pid, output kept; C programs, with and without the address sanitizer |
//! | [`wqcap`] | the `wqcap run` and `wqcap model` command lines, and a finished run with its files |
//! | [`ledger`] | the summary, typed, and the sums every run must show |
//! | [`ctl`] | the control socket of a capture under way: requests, and waiting for what the answers say |
//! | [`compare`] | comparing much, and showing the first difference alone |
//! | [`files`] | capture files in and out, as plain records |
//! | [`frames`] | frames made by hand, with a sequence number where a test needs one; expressions that filters are tested with |
//! | [`oracles`] | independent judges: which queue takes a frame, the reference implementation of Community IDs, capinfos, ja4plus, DuckDB and other engines on Parquet files, promtool on metrics and rules, servers of S3 |
//! | [`captures`] | a folder of real captures, or generated ones in its place |
//! | [`machine`] | scratch folders, disks that stall and fail, network namespaces joined by veth and captures on them, a bucket behind a proxy that fails, users without rights |
//! | [`skip!`] | leaving a test out, aloud |
//!
//! Invariants: no child outlives its test; a signal goes only to a pid that the test itself started; a test that
//! cannot run says so through [`skip!`] and never merely returns; a test waits for an event (a line of the log, an
//! answer, a counter, a file) and never for a time; what a failure prints fits a screen.

pub mod binaries;
pub mod captures;
pub mod compare;
pub mod ctl;
pub mod files;
pub mod frames;
pub mod ledger;
pub mod machine;
pub mod oracles;
pub mod process;
pub mod skip;
pub mod wqcap;

pub use ledger::{Ledger, Summary};
pub use machine::{dir::Dir, netns::Pair};
pub use process::{Done, Program, Running};
pub use wqcap::{Finished, Wqcap};
