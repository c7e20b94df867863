//! What the traffic is: live statistics and flow records, fed by an observer of the frames that are kept.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod flow_table;
pub mod flows;
pub mod limits;
pub mod live;
pub mod observer;
