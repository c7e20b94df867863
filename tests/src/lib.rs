//! Kit of the integration tests: helpers that drive the binaries from outside.
//!
//! The tests use only the interfaces of the product: the command line, the summary, the capture
//! files, and verbs programs that run on the model. The kit does not link the engine or the model.
//! It links crate `wqcap-rss` only to compare it with [`oracles::reference`], which shares no code
//! with that crate.
//!
//! The modules of crate `wqcap-testkit`, which other crates' tests use, too, are exported again.
//! Its invariants hold here.
//!
//! | module | contents |
//! |---|---|
//! | [`binaries`] | finding or building `wqcap` and the model's shared object |
//! | [`wqcap`] | the `wqcap run` and `wqcap model` command lines, and a finished run with its files |
//! | [`ledger`] | the typed summary, and the sums that hold in every run |
//! | [`ctl`] | the control socket of a running capture: requests, and waiting for an answer with a given property |
//! | [`oracles`] | independent references: the queue that RSS selects for a frame, the reference implementation of Community IDs, capinfos, ja4plus, DuckDB and other engines on Parquet files, promtool on metrics and rules, S3 servers |
//! | [`machine`] | disks that stall and fail, live captures between two network namespaces, a bucket behind a proxy that injects faults, the binaries for users without privileges |

pub mod binaries;
pub mod ctl;
pub mod ledger;
pub mod machine;
pub mod oracles;
pub mod wqcap;

pub use ledger::{Ledger, Summary};
pub use wqcap::{Finished, Wqcap};
pub use wqcap_testkit::*;
