//! RAW_PACKET QPs with their own receive queue, of devices without WQs. No query reports them, so
//! one is created.
//!
//! May import: nothing beyond the verbs. Invariant: objects created here are destroyed here and
//! receive no frames.

use crate::{
    memory::Region,
    verbs::{Context, Mr, Pd, PlainCq, RawQp, RawQpAttr, VerbsError},
};

/// Returns `true` if the device has RAW_PACKET QPs that receive; `is_known` is the result without
/// the right to create one (CAP_NET_RAW).
pub(super) fn exists(context: &Context, is_known: bool) -> bool {
    match create(context) {
        Ok(()) => true,
        Err(VerbsError::Verb { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => {
            is_known
        }
        Err(e) => {
            tracing::debug!("{}: no RAW_PACKET QP: {e}", context.name());
            false
        }
    }
}

fn create(context: &Context) -> Result<(), VerbsError> {
    let pd = Pd::alloc(context)?;
    let memory = Mr::register(&pd, Region::allocate(4096, None)?)?;
    let cq = PlainCq::create(context, 1, 0, None)?;
    let attr = RawQpAttr {
        max_wr: 1,
        max_sge: 1,
        port: 1,
    };
    RawQp::create(&pd, &cq, &memory, attr).map(drop)
}
