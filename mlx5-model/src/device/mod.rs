//! The device: its objects, its ports, its queues, and the thread that drives them.

pub mod clock;
pub mod counters;
pub mod cq;
mod delay_drop;
pub mod event;
pub mod memory;
pub mod nic;
mod port;
pub mod rq;
pub mod sq;
pub mod state;
