//! Devices: their contexts, events, clocks and capabilities.

mod async_event;
mod clock;
mod cm_id;
mod context;
mod ring_memory;
mod striding;
mod tunnels;

pub use async_event::{AsyncEvent, AsyncEvents};
pub use clock::ClockInfo;
pub use cm_id::CmKey;
pub(crate) use cm_id::{CmEventChannel, CmId};
pub use context::{Context, allow_release_of_lost_objects, names};
pub(crate) use context::{ContextInner, operation};
pub use striding::StridingCaps;
pub use tunnels::TunnelOffloads;
