//! The receive path: a pool of slots, the ring they go round in, and the loop that turns it.
//!
//! May import: [`wqcap_verbs`], [`wqcap_memory`], [`crate::clock`], [`wqcap_core::stats`]. Where frames go from a loop is
//! [`wqcap_core::consumer`]'s business. Parsers, filters and sinks never import this: they see borrowed bytes.
//!
//! Architecture invariant: a slot is a token. It is on the ring, where the device may write to it, or somebody holds
//! the token and may read it; there is no third place, and no second token.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod clock;
mod error;
mod load;
mod order;
mod pool;
mod ring;
mod worker;

pub use error::RxError;
pub use load::{Hashing, QueueLoad, Sampler, Watch};
pub use order::Orders;
pub use pool::{Filled, Slot, SlotMemory};
pub use ring::{Account, Batch, DeviceQueue, Failed, Queue, Recovered, Ring, RingAttr, RingError};
pub use worker::{Control, Ended, Idle, Lost, Outlet, Stamper, Taken, Worker, pin};

use wqcap_core::sync;
