//! Receive memory of an AF_XDP socket.

use super::XdpAttr;
use wqcap_core::error::ResourceError;
use wqcap_memory::Region;

/// Receive memory of an AF_XDP socket, in huge pages if there are any. Only its address is lent:
/// the kernel writes to the chunks that it has.
#[derive(Debug)]
pub struct ChunkMemory(Region);

impl ChunkMemory {
    pub(super) fn allocate(attr: &XdpAttr) -> Result<Self, ResourceError> {
        let bytes = attr.chunks as usize * attr.chunk_bytes as usize;
        Region::allocate(bytes, attr.numa_node).map(Self)
    }

    /// Returns the address of the first chunk of the receive memory.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Returns the size in bytes of all chunks of the receive memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `false`: the memory has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}
