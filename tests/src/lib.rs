//! Kit of the integration tests: helpers that drive the binaries from outside.
//!
//! The tests use only the interfaces of the product: the command line, the summary, the capture
//! files, and verbs programs that run on the model. The kit does not link the engine or the model.
//! It links crate `wqcap-rss` only to compare it with [`oracles::reference`], which shares no code
//! with that crate.
//!
//! | module | contents |
//! |---|---|
//! | [`binaries`] | finding or building `wqcap` and the model's shared object |
//! | [`process`] | child processes with a deadline, signals by pid, collected output; C programs, with and without the address sanitizer |
//! | [`wqcap`] | the `wqcap run` and `wqcap model` command lines, and a finished run with its files |
//! | [`ledger`] | the typed summary, and the sums that hold in every run |
//! | [`ctl`] | the control socket of a running capture: requests, and waiting for an answer with a given property |
//! | [`compare`] | comparison of long sequences; a failure prints only the first difference |
//! | [`files`] | reader and writer of capture files as plain records |
//! | [`frames`] | builder of frames; filter expressions for tests |
//! | [`oracles`] | independent references: the queue that RSS selects for a frame, the reference implementation of Community IDs, capinfos, ja4plus, DuckDB and other engines on Parquet files, promtool on metrics and rules, S3 servers |
//! | [`captures`] | a folder of real captures, or generated ones if that folder is absent |
//! | [`machine`] | scratch folders, disks that stall and fail, network namespaces joined by veth and captures on them, a bucket behind a proxy that injects faults, users without privileges |
//! | [`skip!`] | reported skip of a test that cannot run |
//!
//! Invariants:
//! - No child process outlives its test.
//! - A signal is sent only to a pid that the test itself started.
//! - A test that cannot run reports this with [`skip!`]; it never just returns.
//! - A test waits for an event (a log line, an answer, a counter, a file), never for a fixed time.
//! - The output of a failure fits on one screen.

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
