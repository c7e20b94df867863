//! Messages: memory in slots, shared receive queues, and completion queues.

mod cq;
mod memory;
mod srq;

pub(crate) use cq::MessageCqInner;
pub use cq::{MessageCompletion, MessageCq, status_text};
pub(crate) use memory::BorrowerId;
pub use memory::{MessageMemory, MessageSlot, OWN_WR_IDS};
pub(crate) use srq::SrqInner;
pub use srq::{SRQ_RESIZE, Srq};
