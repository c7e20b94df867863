//! The receive path: the pool of slots, the ring that they circulate in, and the receive loop.
//!
//! An [`Outlet`] decides where the frames of a loop go. Parsers, filters and sinks never import this crate: they get
//! borrowed bytes.
//!
//! Architecture invariant: a slot is a token. Either the slot is on the ring, where the device may
//! write to it, or one owner holds the token and may read the slot. There is no third place and no
//! second token.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod clock;
mod error;
mod load;
mod order;
mod ring;
mod worker;

pub use error::{LoopError, RingError, RxError, StrideMismatch, WqErrorCause};
pub use load::{Hashing, LoadSampler, QueueLoad, SamplingRate};
pub use order::LoopRequests;
pub use ring::{
    Account, Batch, DeviceQueue, Failed, FallbackAttr, Filled, FrameFacts, PacketQueue, Queue,
    QueueHandle, Recovered, Ring, RingAttr, Slot, SlotMemory, Wake, XdpQueue,
};
pub use worker::{
    Control, Ended, Hold, Idle, LoopEnd, MergedBatch, MergedOutlet, MergedRun, Outlet, PairedQueue,
    PairedWorker, Replacement, SlotsLost, StampSource, Stamper, Taken, Worker, pin,
};

use wqcap_core::sync;
