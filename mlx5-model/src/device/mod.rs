//! The device: a NIC with its objects, queues, ports, clock and events, and the thread that drives
//! it.
//!
//! Does not depend on commands, on files in sysfs or on the shims, which call it. The modules from
//! the bottom: `memory`, `clock`, `counters` and `event`; the queues (`cq`, `rq`, `sq`) with their
//! formats (`cqe`, `session`, `scatter`, `strides`, `gather`); `queues` and `object`; `port`;
//! `state`; `fault` and `round`, which work on the state; `nic`, the thread.

pub mod clock;
pub mod counters;
pub mod cq;
pub mod cqe;
mod delay_drop;
pub mod event;
mod fault;
mod fault_schedule;
mod gather;
pub mod memory;
pub mod nic;
pub mod object;
mod port;
mod queues;
mod round;
pub mod rq;
pub mod scatter;
pub mod session;
pub mod sq;
pub mod state;
pub mod strides;
