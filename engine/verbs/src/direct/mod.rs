//! Direct access to the memory of a CQ and a receive WQ, whose addresses libmlx5's direct verbs
//! return.
//!
//! `ibv_poll_cq` and `ibv_post_wq_recv` cost a call through a function pointer, a branch for every
//! kind of queue, and a copy for each frame. The layouts are the device's documented interface, and
//! libmlx5 returns the addresses (`mlx5dv_init_obj(3)`). A ring whose WQEs keep their addresses is
//! reposted by advancing a counter.
//!
//! Used only on x86-64, where stores reach the device in program order without a barrier
//! instruction. On other architectures and devices, rings use the verbs.
//!
//! Sources: `infiniband/mlx5dv.h`; the NVIDIA Programmer's Reference Manual, "Completion Queue"
//! (CQE, ownership, doorbell record, arming) and "Work Queue" (receive WQE, doorbell record).

mod access;
mod cq;
mod inspect;
mod wq;

pub use access::{RingAccess, RingCaps};
pub use cq::{Cqe, Cqes, DirectCq, FrameStrides};
pub use inspect::{Inspected, InspectedAttr, InspectedQueue, InspectedStrides};
pub use wq::DirectWq;
