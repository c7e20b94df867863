//! Analysis of the traffic: live statistics and flow records, fed by an observer of each frame.

pub(crate) mod flow_table;
pub mod flows;
pub mod limits;
pub mod live;
pub mod observer;
