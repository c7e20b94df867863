//! Subcommands, a file or folder each.

pub mod check;
pub mod ctl;
pub mod devices;
pub mod extcap;
pub mod extract;
#[cfg(feature = "ship")]
pub mod fleet;
#[cfg(feature = "flows")]
pub mod flows;
pub mod key;
pub mod manual;
pub mod merge;
pub mod model;
pub mod pin;
pub mod privileges;
pub mod recover;
pub mod rss;
pub mod run;
pub mod selftest;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "ship")]
pub mod ship;
pub mod summary;
pub mod top;
