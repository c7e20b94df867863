//! Memory regions: translation of lkey and address to memory that may be accessed.

use std::cell::Cell;

use crate::abi;
use crate::handles::{self, LIMIT, ObjectKind, Slab};
use crate::process::Errno;
use crate::process::memory::fault_in;

/// Kind of the NIC's access to registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read access to registered memory: gathering the data of a send.
    Read,
    /// Write access to registered memory: scattering a received frame.
    Write,
}

/// A registered range of memory (PRM "Memory key").
#[derive(Debug, Clone, Copy)]
pub struct MemoryRegion {
    /// Memory key of the region: index << 8 | variant.
    pub lkey: u32,
    /// Protection domain of the memory region.
    pub pd: u32,
    /// Access rights of the memory region: `IB_UVERBS_ACCESS_*`.
    pub access: u32,
    /// Address of the memory region as work requests state it.
    iova: u64,
    /// Address of the memory region in this process.
    start: u64,
    len: u64,
}

/// Lowest index in a memory key. 0 is not a key, and 1 with variant 0 is `MLX5_INVALID_LKEY`, which
/// ends a scatter list.
const FIRST_INDEX: u32 = 16;

/// All memory regions of a device, by the index in their keys.
pub struct Regions {
    slab: Slab<MemoryRegion>,
    /// Memory region of the last access. The next access is nearly always to the same region: one
    /// comparison replaces the lookup of its key. Cleared when any region changes.
    last: Cell<Option<MemoryRegion>>,
}

impl Default for Regions {
    fn default() -> Self {
        Self {
            slab: Slab::new(ObjectKind::Mr, LIMIT),
            last: Cell::default(),
        }
    }
}

impl Regions {
    /// REG_MR: adds a memory region that [`check_region`] has accepted. Fails with `ENOMEM` when
    /// the device has too many regions.
    pub fn register(
        &mut self,
        pd: u32,
        access: u32,
        start: u64,
        len: u64,
        iova: u64,
    ) -> Result<MemoryRegion, Errno> {
        self.last.set(None);
        let mut region = MemoryRegion {
            lkey: 0,
            pd,
            access,
            iova,
            start,
            len,
        };
        // All regions belong to the device; the handle identifies the context of a region.
        let handle = self.slab.insert(0, region)?;
        let index = handles::index_of(handle);
        region.lkey = (index + FIRST_INDEX) << 8 | handles::generation(handle) & 0xff;
        self.store(region);
        Ok(region)
    }

    fn store(&mut self, region: MemoryRegion) {
        if let Some(slot) = self.slab.at_mut(index_of(region.lkey)) {
            *slot = region;
        }
    }

    /// REREG_MR: changes the range, the protection domain or the access rights of the memory region
    /// with a key. Fails as [`check_region`] does.
    pub fn change(
        &mut self,
        lkey: u32,
        pd: Option<u32>,
        access: Option<u32>,
        range: Option<(u64, u64, u64)>,
    ) -> Result<MemoryRegion, Errno> {
        self.last.set(None);
        let old = self.get(lkey).copied().ok_or(libc::EINVAL)?;
        let (start, len, iova) = range.unwrap_or((old.start, old.len, old.iova));
        let access = access.unwrap_or(old.access);
        check_region(access, start, len, iova)?;
        let new = MemoryRegion {
            pd: pd.unwrap_or(old.pd),
            access,
            iova,
            start,
            len,
            ..old
        };
        self.store(new);
        Ok(new)
    }

    /// Removes the memory region with a key; the key becomes invalid.
    pub fn remove(&mut self, lkey: u32) {
        self.last.set(None);
        if self.get(lkey).is_some() {
            self.slab.remove(index_of(lkey));
        }
    }

    /// Returns the memory region with a key; `None` if index or variant of the key do not match.
    #[inline(always)]
    pub fn get(&self, lkey: u32) -> Option<&MemoryRegion> {
        let region = self.slab.at(index_of(lkey))?;
        (region.lkey == lkey).then_some(region)
    }

    #[cold]
    fn look_up(&self, lkey: u32) -> Option<MemoryRegion> {
        let region = self.get(lkey).copied();
        self.last.set(region);
        region
    }

    /// Returns the address in this process for an access of `len` bytes at `addr` through `lkey`;
    /// `None` if a queue of protection domain `pd` may not make the access.
    #[inline(always)]
    pub fn resolve(
        &self,
        lkey: u32,
        pd: u32,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Option<*mut u8> {
        let region = match self.last.get() {
            Some(last) if last.lkey == lkey => last,
            _ => self.look_up(lkey)?,
        };
        let offset = addr.wrapping_sub(region.iova);
        let inside = offset <= region.len && len <= region.len - offset;
        let allowed =
            access == Access::Read || region.access & abi::IB_UVERBS_ACCESS_LOCAL_WRITE != 0;
        (inside && allowed && region.pd == pd)
            .then_some(region.start.wrapping_add(offset) as *mut u8)
    }
}

#[inline]
fn index_of(lkey: u32) -> u32 {
    (lkey >> 8).wrapping_sub(FIRST_INDEX)
}

/// Checks a memory registration as the kernel does (`ib_check_mr_access`, `ib_umem_get`), then pins
/// the memory, which takes long for much memory. Fails with `EINVAL` for contradictory rights or an
/// iova with another offset in its page, with `EFAULT` for memory that is not mapped or lacks the
/// rights, with `EOPNOTSUPP` for on-demand paging.
pub fn check_region(access: u32, start: u64, len: u64, iova: u64) -> Result<(), Errno> {
    let writes = abi::IB_UVERBS_ACCESS_REMOTE_WRITE | abi::IB_UVERBS_ACCESS_REMOTE_ATOMIC;
    let known = abi::IB_UVERBS_ACCESS_LOCAL_WRITE
        | writes
        | abi::IB_UVERBS_ACCESS_REMOTE_READ
        | abi::IB_UVERBS_ACCESS_MW_BIND
        | abi::IB_UVERBS_ACCESS_ZERO_BASED
        | abi::IB_UVERBS_ACCESS_ON_DEMAND
        | abi::IB_UVERBS_ACCESS_HUGETLB
        | abi::IB_UVERBS_ACCESS_OPTIONAL_RANGE;
    if access & writes != 0 && access & abi::IB_UVERBS_ACCESS_LOCAL_WRITE == 0
        || access & !known != 0
    {
        return Err(libc::EINVAL);
    }
    if access & abi::IB_UVERBS_ACCESS_ON_DEMAND != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if start & 0xfff != iova & 0xfff
        || start.checked_add(len).is_none()
        || iova.checked_add(len).is_none()
        || len == 0
    {
        return Err(libc::EINVAL);
    }
    fault_in(
        start,
        len,
        access & (abi::IB_UVERBS_ACCESS_LOCAL_WRITE | writes) != 0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: u32 = abi::IB_UVERBS_ACCESS_LOCAL_WRITE;

    #[test]
    fn every_invalid_access_is_refused() {
        let memory = [0u8; 256];
        let at = memory.as_ptr() as u64;
        let mut regions = Regions::default();
        let region = regions.register(1, WRITE, at, 256, at).unwrap();
        let resolve = |lkey, pd, addr, len| regions.resolve(lkey, pd, addr, len, Access::Write);
        assert_eq!(resolve(region.lkey, 1, at, 256), Some(at as *mut u8));
        assert_eq!(
            resolve(region.lkey, 1, at + 256, 0),
            Some((at + 256) as *mut u8)
        );
        assert_eq!(resolve(region.lkey ^ 1, 1, at, 1), None, "wrong variant");
        assert_eq!(resolve(region.lkey + 256, 1, at, 1), None, "wrong index");
        assert_eq!(
            resolve(region.lkey, 2, at, 1),
            None,
            "wrong protection domain"
        );
        assert_eq!(
            resolve(region.lkey, 1, at - 1, 1),
            None,
            "before the region"
        );
        assert_eq!(
            resolve(region.lkey, 1, at + 255, 2),
            None,
            "beyond the region"
        );
        assert_eq!(
            resolve(region.lkey, 1, at + 1, u64::MAX),
            None,
            "the length overflows"
        );
        assert_eq!(resolve(abi::MLX5_INVALID_LKEY, 1, at, 1), None);
    }

    #[test]
    fn rights_and_reregistration() {
        let memory = [0u8; 64];
        let at = memory.as_ptr() as u64;
        let mut regions = Regions::default();
        let region = regions.register(1, 0, at, 64, at).unwrap();
        assert_eq!(regions.resolve(region.lkey, 1, at, 1, Access::Write), None);
        assert!(
            regions
                .resolve(region.lkey, 1, at, 1, Access::Read)
                .is_some()
        );
        regions
            .change(region.lkey, Some(3), Some(WRITE), None)
            .unwrap();
        assert!(
            regions
                .resolve(region.lkey, 3, at, 1, Access::Write)
                .is_some()
        );
        assert_eq!(
            check_region(abi::IB_UVERBS_ACCESS_REMOTE_WRITE, at, 64, at),
            Err(libc::EINVAL)
        );
        assert_eq!(check_region(WRITE, at, 64, at + 1), Err(libc::EINVAL));
        assert_eq!(check_region(WRITE, 4096, 64, 4096), Err(libc::EFAULT));
        assert_eq!(check_region(WRITE, at, 0, at), Err(libc::EINVAL));
        regions.remove(region.lkey);
        assert!(regions.get(region.lkey).is_none());
    }

    #[test]
    fn a_different_iova_is_translated() {
        let memory = [0u8; 64];
        let at = memory.as_ptr() as u64;
        let iova = 0x10_0000_0000 | at & 0xfff;
        let mut regions = Regions::default();
        let region = regions.register(1, WRITE, at, 64, iova).unwrap();
        assert_eq!(
            regions.resolve(region.lkey, 1, iova + 8, 8, Access::Write),
            Some((at + 8) as *mut u8)
        );
        assert_eq!(regions.resolve(region.lkey, 1, at, 8, Access::Write), None);
    }

    #[test]
    fn freed_keys_are_not_reused_at_once() {
        let memory = [0u8; 64];
        let at = memory.as_ptr() as u64;
        let mut regions = Regions::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..60 {
            let region = regions.register(1, WRITE, at, 64, at).unwrap();
            assert!(seen.insert(region.lkey >> 8));
            regions.remove(region.lkey);
        }
    }
}
