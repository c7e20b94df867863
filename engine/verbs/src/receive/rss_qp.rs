//! RSS QPs: RAW_PACKET QPs over an indirection table, which have no queues themselves.

use super::{
    qp::{QpInner, QpParents},
    rwq_table::RwqTable,
};
use crate::sys as ffi;
use crate::{
    device::operation,
    error::{VerbsError, check_created},
    mlx5dv as dv,
    pd::Pd,
};
use std::{mem, sync::Arc};
use wqcap_rss::{key::RssKey, profile::HashFields};

/// RSS QP: a RAW_PACKET QP that spreads frames over an indirection table (a TIR). It has no state
/// to modify or to query. Clones share one handle and are cheap.
#[derive(Clone)]
pub struct RssQp(pub(crate) Arc<QpInner>);

impl RssQp {
    /// Creates an RSS QP that hashes the header fields `fields` with Toeplitz.
    ///
    /// # Errors
    /// EPERM without CAP_NET_RAW; EINVAL for fields of two L3 or two L4 types, for no fields over
    /// more than one entry, and for a table of another context.
    pub fn create(
        pd: &Pd,
        table: &RwqTable,
        key: &RssKey,
        fields: HashFields,
    ) -> Result<Self, VerbsError> {
        let context = &pd.0.context;
        let object = || {
            format!(
                "a RAW_PACKET QP of device {} whose RSS hash has the fields {:#x}",
                context.name(),
                fields.bits()
            )
        };
        let create = operation!(context, create_qp_ex, "ibv_create_qp_ex", object)?;
        context.refuse_others([&table.0.context], "ibv_create_qp_ex", object)?;
        let mut key = *key.as_bytes();
        // SAFETY: plain old data; all zero is the documented start.
        let mut init: ffi::ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        init.qp_type = ffi::ibv_qp_type::IBV_QPT_RAW_PACKET;
        init.comp_mask = (ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
            | ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_IND_TABLE
            | ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_RX_HASH)
            .0;
        init.pd = pd.0.raw;
        init.rwq_ind_tbl = table.0.raw;
        // Toeplitz is 1, a key is 40 bytes.
        init.rx_hash_conf.rx_hash_function =
            ffi::ibv_rx_hash_function_flags::IBV_RX_HASH_FUNC_TOEPLITZ.0 as u8;
        init.rx_hash_conf.rx_hash_key_len = key.len() as u8;
        init.rx_hash_conf.rx_hash_key = key.as_mut_ptr();
        init.rx_hash_conf.rx_hash_fields_mask = fields.bits();
        let raw = if fields.contains(HashFields::INNER) {
            context.require_mlx5("mlx5dv_create_qp", object)?;
            // SAFETY: plain integers; `comp_mask` selects the valid ones.
            let mut tunnels: dv::mlx5dv_qp_init_attr = unsafe { mem::zeroed() };
            tunnels.comp_mask = dv::MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS.into();
            tunnels.create_flags = dv::MLX5DV_QP_CREATE_TUNNEL_OFFLOADS;
            let (context, init) = (context.raw.cast(), (&raw mut init).cast());
            // SAFETY: as below; the context is libmlx5's.
            unsafe { dv::mlx5dv_create_qp(context, init, &raw mut tunnels).cast() }
        } else {
            // SAFETY: live parents, held by the new object; the key outlives the call.
            unsafe { create(context.raw, &raw mut init) }
        };
        let raw = check_created(raw, "ibv_create_qp_ex", object())?;
        Ok(Self(Arc::new(QpInner {
            raw,
            _parents: QpParents::Table(Arc::clone(&table.0)),
            pd: Arc::clone(&pd.0),
        })))
    }
}
