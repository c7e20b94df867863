//! Analysis of the traffic: live statistics and flow records, fed by an observer of each frame.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod flow_table;
pub mod flows;
pub mod limits;
pub mod live;
pub mod observer;
