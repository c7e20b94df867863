//! What the traffic is: live statistics and flow records, fed by an observer beside the frame's way.

pub mod flows;
pub mod live;
pub mod observer;
