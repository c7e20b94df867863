//! What the traffic is: live statistics and flow records, fed by an observer beside the frame's way.

pub(crate) mod flow_table;
pub mod flows;
pub mod limits;
pub mod live;
pub mod observer;
