//! Methods of access to a device's rings, and what each method offers.

use serde::{Serialize, Serializer};

use crate::device::Context;

/// Method of access to the WQ and the CQ of a queue.
///
/// The enum is exhaustive, so that a new method has to be named wherever rings are created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingAccess {
    /// Access through libibverbs, which every device supports.
    #[default]
    Verbs,
    /// Access to the rings of an mlx5 device in their own memory (libmlx5's direct verbs).
    Mlx5,
}

/// Capabilities of a method of access to rings. The device must have the capability as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RingCaps {
    /// The ring is read and written in its own memory, without calls of the verbs.
    pub in_memory: bool,
    /// The buffer of a WR can take many frames (striding WQs).
    pub striding: bool,
    /// Compressed completions of the ring's CQ can be read.
    pub compression: bool,
    /// Completions report the VLAN tag that the NIC stripped from a frame.
    pub stripped_tags: bool,
    /// Completions can have time stamps in UTC. libibverbs can lose a completion with one
    /// ([`RealTime`](crate::CompletionStamps::RealTime)).
    pub real_time: bool,
}

impl RingAccess {
    /// Returns the fastest method of access to the rings of a device.
    #[must_use]
    pub fn fastest(context: &Context) -> Self {
        // On other architectures stores need barrier instructions.
        if cfg!(target_arch = "x86_64") && context.0.is_mlx5() {
            Self::Mlx5
        } else {
            Self::Verbs
        }
    }

    /// Returns the capabilities of this method of access to rings.
    #[must_use]
    pub fn caps(self) -> RingCaps {
        match self {
            Self::Verbs => RingCaps::default(),
            Self::Mlx5 => RingCaps {
                in_memory: true,
                striding: true,
                compression: true,
                stripped_tags: true,
                real_time: true,
            },
        }
    }
}

/// Serialized as `true` if rings are accessed in their own memory.
impl Serialize for RingAccess {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bool(self.caps().in_memory)
    }
}
