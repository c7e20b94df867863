//! Messages: memory in slots, shared receive queues, and completion queues.

mod cq;
mod memory;
mod srq;

pub(crate) use cq::MessageCqInner;
pub use cq::{MessageCq, status_text};
pub use memory::{MessageSlot, Messages};
pub(crate) use srq::SrqInner;
pub use srq::{SRQ_RESIZE, Srq};
