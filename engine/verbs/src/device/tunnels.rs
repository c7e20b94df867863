//! Tunnel offload capabilities of a device.

use super::context::Context;
use crate::mlx5dv as ffi;

/// Tunnels whose inner headers the device can match and hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct TunnelOffloads {
    /// `true` if the device matches and hashes headers inside VXLAN
    /// (`MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN`).
    pub vxlan: bool,
    /// `true` if the device matches and hashes headers inside GRE
    /// (`MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE`).
    pub gre: bool,
}

impl TunnelOffloads {
    /// Returns the tunnel capabilities of an mlx5 device; all `false` for other devices, which do
    /// not report them.
    #[must_use]
    pub fn query(context: &Context) -> Self {
        let attr = context.mlx5_attributes(ffi::MLX5DV_CONTEXT_MASK_TUNNEL_OFFLOADS);
        let has = |cap: u32| attr.is_some_and(|it| it.tunnel_offloads_caps & cap != 0);
        Self {
            vxlan: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_VXLAN),
            gre: has(ffi::MLX5DV_RAW_PACKET_CAP_TUNNELED_OFFLOAD_GRE),
        }
    }
}
