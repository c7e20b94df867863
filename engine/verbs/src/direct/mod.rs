//! A CQ and a receive WQ read and written in their own memory, as libmlx5's direct verbs hand them out.
//!
//! `ibv_poll_cq` and `ibv_post_wq_recv` go through a function pointer, a branch for everything a queue may be, and a
//! copy for each frame. The layouts are the device's documented interface, libmlx5 gives them to whoever asks
//! (`mlx5dv_init_obj(3)`), and a ring whose WQEs keep their addresses is reposted by moving a counter.
//!
//! Only where stores reach the device in program order without a barrier instruction: x86-64. Everywhere else, and on
//! other devices, a ring goes through the verbs.
//!
//! Sources: `infiniband/mlx5dv.h`; the NVIDIA Programmer's Reference Manual, "Completion Queue" (CQE, ownership,
//! doorbell record, arming) and "Work Queue" (receive WQE, doorbell record).

mod cq;
mod inspect;
mod wq;

pub use cq::{Cqe, Cqes, DirectCq, FrameStrides};
pub use inspect::{Inspected, InspectedQueue};
pub use wq::DirectWq;

use crate::{
    device::{Context, ContextInner},
    error::VerbsError,
};

/// Whether rings of this context can be reached directly.
#[must_use]
pub fn is_direct(context: &Context) -> bool {
    cfg!(target_arch = "x86_64") && context.0.is_mlx5()
}

/// Refuses an object of another provider: `mlx5dv_init_obj` takes it for one of libmlx5's without a look.
fn of_mlx5(context: &ContextInner, object: &str) -> Result<(), VerbsError> {
    if context.is_mlx5() {
        return Ok(());
    }
    let object = format!("{object} of {}", context.name());
    Err(VerbsError::from_errno(
        "mlx5dv_init_obj",
        object,
        libc::EOPNOTSUPP,
    ))
}
