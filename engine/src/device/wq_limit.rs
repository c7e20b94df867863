//! Maximum size of a device's WQs, found by creating WQs because no query reports it.
//!
//! `max_qp_wr` is the limit of a QP's send queue. Linux since 2025 divides it by the largest WQE (`mlx5_ib_calc_max_qp_wr` of
//! drivers/infiniband/hw/mlx5/main.c: 8192 where it was 32768), while a WQ has up to `1 << log_max_wq_sz` WRs
//! (`set_user_rq_size` of drivers/infiniband/hw/mlx5/qp.c).
//!
//! May import: nothing beyond the verbs. Invariant: objects created here are destroyed here and
//! receive no frames.

use crate::{
    memory::Region,
    verbs::{CompletionStamps, Context, Cq, CqAttr, Mr, Pd, VerbsError, Wq, WqAttr},
};

/// Maximum WRs of a receive ring: the producer index of a WQ has 16 bits, and libmlx5 rounds rings
/// up to powers of two.
pub(super) const MOST: u32 = 1 << 15;

/// Returns the largest power of two of WRs with one scatter entry that a WQ of the device can have, at most [`MOST`].
///
/// # Errors
/// A verb fails for a reason other than the number of WRs. The limit is then unknown.
pub(super) fn find(context: &Context) -> Result<u32, VerbsError> {
    let pd = Pd::alloc(context)?;
    let memory = Mr::register(&pd, Region::allocate(4096, None)?)?;
    let attr = CqAttr {
        entries: 1,
        vector: 0,
        stamps: CompletionStamps::None,
        compression: None,
    };
    let cq = Cq::create(context, attr, None)?;
    largest(|max_wr| {
        let attr = WqAttr {
            max_wr,
            max_sge: 1,
            flags: 0,
            striding: None,
        };
        Wq::create(&pd, &cq, &memory, attr).map(drop)
    })
}

/// Returns the largest number of WRs, a power of two up to [`MOST`], with which `create` creates a
/// WQ. `create` refuses larger numbers with EINVAL.
fn largest(create: impl Fn(u32) -> Result<(), VerbsError>) -> Result<u32, VerbsError> {
    let mut wrs = MOST;
    loop {
        match create(wrs) {
            Ok(()) => return Ok(wrs),
            Err(VerbsError::Verb { source, .. })
                if source.raw_os_error() == Some(libc::EINVAL) && wrs > 1 =>
            {
                wrs /= 2;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error of a refused `ibv_create_wq`.
    fn refused(errno: i32) -> Result<(), VerbsError> {
        Err(VerbsError::from_errno("ibv_create_wq", "x", errno))
    }

    #[test]
    fn the_largest_accepted_size_is_the_limit() {
        for (limit, found) in [(1, 1), (64, 64), (100, 64), (8192, 8192), (1 << 20, MOST)] {
            let up_to = |wrs| {
                if wrs > limit {
                    refused(libc::EINVAL)
                } else {
                    Ok(())
                }
            };
            assert_eq!(largest(up_to).expect("found"), found, "{limit}");
        }
    }

    #[test]
    fn any_other_refusal_leaves_the_limit_unknown() {
        for errno in [libc::EPERM, libc::ENOMEM, libc::EINVAL] {
            let error = largest(|_| refused(errno)).expect_err("refused");
            let VerbsError::Verb { source, .. } = error else {
                panic!("{error}")
            };
            assert_eq!(source.raw_os_error(), Some(errno));
        }
    }
}
