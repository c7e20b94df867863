//! What a device does with tunnels.

use super::context::Context;
use crate::mlx5dv as ffi;

/// Tunnels whose inner headers the device can match and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TunnelOffloads {
    /// `MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN`.
    pub vxlan: bool,
    /// `MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE`.
    pub gre: bool,
}

impl TunnelOffloads {
    /// Of an mlx5 device; other devices do not tell.
    #[must_use]
    pub fn of(context: &Context) -> Self {
        // SAFETY: plain integers; `comp_mask` says which of them are asked for.
        let mut attr: ffi::mlx5dv_context = unsafe { std::mem::zeroed() };
        attr.comp_mask = ffi::MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS.into();
        // SAFETY: a live context and an attribute that outlives the call; the library asks the provider first.
        let read = unsafe {
            ffi::mlx5dv_is_supported((*context.0.raw).device.cast())
                && ffi::mlx5dv_query_device(context.0.raw.cast(), &raw mut attr) == 0
        };
        let has = |cap: u32| read && attr.tunnel_offloads_caps & cap != 0;
        Self {
            vxlan: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN),
            gre: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE),
        }
    }
}
