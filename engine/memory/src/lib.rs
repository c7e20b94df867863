//! Memory that a device may write to, or that a writer passes to the disk: mapped, pre-faulted,
//! never moved.
//!
//! Invariant: every page of a [`Region`] is resident before the region is handed out, or after its
//! [`Untouched`] has been touched, because the first access to fresh memory is many times slower
//! than a capture. No page is shared with a forked child, because copy-on-write would separate the
//! device's pages from the process's.

#![allow(unsafe_code)]

use std::{
    fmt, io,
    mem::MaybeUninit,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};
use wqcap_core::error::ResourceError;

/// Size of the requested huge pages in bytes: the common size on x86-64 and arm64.
const HUGE_PAGE: usize = 2 << 20;
/// Size in bytes of the smallest memory pages.
const PAGE: usize = 4096;
/// Number of bytes of memory that one call makes resident. The call blocks every mmap(2) of the
/// process while it runs.
const TOUCH: usize = 2 << 20;

/// Kind of memory pages that back a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages that the system has reserved (`vm.nr_hugepages`).
    Huge,
    /// Ordinary pages, with transparent huge pages requested.
    Ordinary,
}

/// Memory region: an anonymous private mapping, or a page-aligned part of one that no other region
/// uses. The mapping is unmapped with its last part.
pub struct Region {
    start: *mut u8,
    len: usize,
    mapping: Arc<Mapping>,
}

/// Pages of memory regions that are still to be made resident. The regions are usable before that,
/// but slower.
#[must_use]
pub struct Untouched(Arc<Mapping>);

impl Untouched {
    /// Makes the pages of the memory regions resident; changes none of their bytes.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn touch(self) -> Result<(), ResourceError> {
        self.0
            .populate()
            .map_err(|source| refusal(self.0.len, source))
    }
}

/// Creates the error for `bytes` bytes of memory that the kernel refuses.
fn refusal(bytes: usize, source: io::Error) -> ResourceError {
    ResourceError::System {
        what: format!("cannot allocate {bytes} bytes of memory"),
        source,
    }
}

/// Mapping of memory by one call of mmap(2), which memory regions share.
struct Mapping {
    start: *mut u8,
    len: usize,
    pages: Pages,
}

// SAFETY: no other region uses these bytes; they are accessed through raw pointers, whose users
// justify their exclusive access.
unsafe impl Send for Region {}
// SAFETY: shared references expose only the address and the length.
unsafe impl Sync for Region {}
// SAFETY: the mapping is only unmapped, once, by the thread that drops it.
unsafe impl Send for Mapping {}
// SAFETY: shared references expose only the address and the length.
unsafe impl Sync for Mapping {}

impl Region {
    /// Maps and pre-faults `len` bytes of memory (at least one), on `numa_node` if given, in huge
    /// pages if available.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate(len: usize, numa_node: Option<u32>) -> Result<Self, ResourceError> {
        let len = len.max(1);
        Mapping::huge(len, numa_node)
            .and_then(Mapping::populate_all)
            .or_else(|_| Mapping::ordinary(len, numa_node)?.populate_all())
            .map(|mapping| Self {
                start: mapping.start,
                len,
                mapping: Arc::new(mapping),
            })
            .map_err(|source| refusal(len, source))
    }

    /// Maps and pre-faults `count` adjacent memory regions of `len` bytes (at least one), so that
    /// transparent huge pages can back regions that are smaller than a huge page. Reserved huge
    /// pages are left for memory that a device writes to.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn allocate_many(count: usize, len: usize) -> Result<Vec<Self>, ResourceError> {
        let (regions, untouched) = Self::map_many(count, len)?;
        untouched.touch()?;
        Ok(regions)
    }

    /// Maps `count` memory regions as [`Region::allocate_many`] does, without pre-faulting. Another
    /// thread can do that with [`Untouched::touch`].
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn map_many(count: usize, len: usize) -> Result<(Vec<Self>, Untouched), ResourceError> {
        let len = len.max(1);
        let stride = len.checked_next_multiple_of(PAGE);
        let whole = stride.and_then(|it| it.checked_mul(count.max(1)));
        let (Some(stride), Some(whole)) = (stride, whole) else {
            return Err(refusal(len, io::ErrorKind::OutOfMemory.into()));
        };
        let mapping = Mapping::ordinary(whole, None).map_err(|source| refusal(whole, source))?;
        let mapping = Arc::new(mapping);
        let part = |n: usize| Self {
            start: mapping.start.wrapping_add(n * stride),
            len,
            mapping: Arc::clone(&mapping),
        };
        Ok(((0..count).map(part).collect(), Untouched(mapping)))
    }

    /// Leaves the memory region out of core dumps (`MADV_DONTDUMP`).
    ///
    /// # Errors
    /// The kernel rejects the advice.
    pub fn exclude_from_core_dumps(&self) -> io::Result<()> {
        self.mapping.advise(libc::MADV_DONTDUMP)
    }

    /// Keeps the memory region out of swap (`mlock`).
    ///
    /// # Errors
    /// The limit of locked memory is reached (`ulimit -l`).
    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: our own mapping; locking changes none of its bytes.
        match unsafe { libc::mlock(self.start.cast(), self.len) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the memory region's first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start
    }

    /// Returns the number of usable bytes of the memory region, as requested.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `false`: a memory region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the kind of pages that back the memory region.
    #[must_use]
    pub fn pages(&self) -> Pages {
        self.mapping.pages
    }

    /// Returns the bytes of a memory region that no device writes to.
    #[inline]
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: at least `len` bytes of a mapping that no other region uses, initialised by the
        // kernel; `&mut self` is exclusive, and a region given to a device is owned by its
        // registration, which lends only `&Region`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Returns the first `len` bytes, or all if there are fewer, of a memory region that no device
    /// writes to.
    #[inline]
    #[must_use]
    pub fn as_slice(&self, len: usize) -> &[u8] {
        // SAFETY: as in `as_mut_slice`; clamped to the region.
        unsafe { std::slice::from_raw_parts(self.start, len.min(self.len)) }
    }
}

impl Mapping {
    /// Maps `len` bytes in reserved huge pages. Fails for less than one huge page, to leave the
    /// reserved pages to larger regions.
    fn huge(len: usize, numa_node: Option<u32>) -> io::Result<Self> {
        if len < HUGE_PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = len.checked_next_multiple_of(HUGE_PAGE);
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        Self::map(len, libc::MAP_HUGETLB, Pages::Huge, numa_node)
    }

    fn ordinary(len: usize, numa_node: Option<u32>) -> io::Result<Self> {
        let len = len.checked_next_multiple_of(PAGE);
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        Self::map(len, 0, Pages::Ordinary, numa_node)
    }

    fn map(len: usize, flags: i32, pages: Pages, numa_node: Option<u32>) -> io::Result<Self> {
        // SAFETY: a new anonymous mapping, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Self {
            start: start.cast(),
            len,
            pages,
        };
        if let Some(node) = numa_node {
            mapping.bind(node);
        }
        if pages == Pages::Ordinary {
            // Best effort: without transparent huge pages, ordinary pages are used.
            mapping.advise(libc::MADV_HUGEPAGE).ok();
        }
        mapping.advise(libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Prefers pages of one NUMA node for the mapping. Errors are ignored: a full node must not
    /// stop a capture.
    fn bind(&self, node: u32) {
        let Some(nodes) = node_mask(node) else { return };
        // SAFETY: our own mapping; the mask outlives the call and has as many bits as stated.
        unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.start,
                self.len,
                libc::MPOL_PREFERRED,
                nodes.as_ptr(),
                MASK_BITS,
                0usize,
            )
        };
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        self.advise_at(0, self.len, advice)
    }

    /// Applies madvise(2) to `len` bytes of the mapping at offset `at`.
    fn advise_at(&self, at: usize, len: usize, advice: i32) -> io::Result<()> {
        let start = self.start.wrapping_add(at);
        // SAFETY: within our own mapping; no advice that is given here changes its bytes.
        if unsafe { libc::madvise(start.cast(), len, advice) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Returns the memory mapping with all its pages resident.
    fn populate_all(self) -> io::Result<Self> {
        self.populate()?;
        Ok(self)
    }

    fn populate(&self) -> io::Result<()> {
        for at in (0..self.len).step_by(TOUCH) {
            let len = TOUCH.min(self.len - at);
            match self.advise_at(at, len, libc::MADV_POPULATE_WRITE) {
                // Linux before 5.14 lacks this advice: add 0 to a byte of each page instead.
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    for page in (at..at + len).step_by(PAGE) {
                        // SAFETY: inside our own mapping; an atomic addition of 0 changes no byte,
                        // even if other threads write to the page.
                        unsafe { AtomicU8::from_ptr(self.start.add(page)) }
                            .fetch_add(0, Ordering::Relaxed);
                    }
                }
                other => other?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, {:?})", self.len, self.pages())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; registrations and blocks own their region, and
        // every region holds its mapping, so no user is left.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Runs `make` with pages of one NUMA node preferred for memory that this thread maps during the
/// call. The thread that creates a CQ or a WQ also maps and touches its ring: with libmlx5 this
/// crate does it (`mlx5_alloc_buf_extern` of rdma-core, providers/mlx5/buf.c), otherwise the
/// provider. Without this function, rings are on the node that the thread runs on. Best effort: if
/// the policy cannot be set, `make` runs without it.
pub fn prefer_node<T>(node: Option<u32>, make: impl FnOnce() -> T) -> T {
    let nodes = node.and_then(node_mask);
    let before = nodes.and_then(|_| Policy::of_this_thread());
    if let (Some(nodes), Some(_)) = (nodes, &before) {
        Policy {
            mode: libc::MPOL_PREFERRED,
            nodes,
        }
        .set();
    }
    let made = make();
    if let Some(before) = before {
        before.set();
    }
    made
}

/// Number of bits in a word of a NUMA node mask.
const WORD_BITS: usize = libc::c_ulong::BITS as usize;
/// Number of words in a NUMA node mask, enough for the 1024 nodes that kernels support at most
/// (`CONFIG_NODES_SHIFT`).
const NODE_WORDS: usize = 1024 / WORD_BITS;
/// Length of a NUMA node mask in bits, as passed to mbind(2) and set_mempolicy(2): the kernel reads
/// one bit less (`get_nodes` of mm/mempolicy.c).
const MASK_BITS: usize = NODE_WORDS * WORD_BITS + 1;

/// Set of NUMA nodes: node N is bit N % 64 of word N / 64.
type NodeMask = [libc::c_ulong; NODE_WORDS];

/// Returns the mask of one NUMA node; `None` if kernels have no node of that number.
fn node_mask(node: u32) -> Option<NodeMask> {
    let node = node as usize;
    let mut mask = [0; NODE_WORDS];
    *mask.get_mut(node / WORD_BITS)? = 1 << (node % WORD_BITS);
    Some(mask)
}

/// NUMA memory policy of a thread (set_mempolicy(2)).
#[derive(Debug, PartialEq, Eq)]
struct Policy {
    mode: libc::c_int,
    nodes: NodeMask,
}

impl Policy {
    /// Returns the NUMA memory policy of the calling thread; `None` if the kernel does not report
    /// it.
    fn of_this_thread() -> Option<Self> {
        let mut it = Self {
            mode: 0,
            nodes: [0; NODE_WORDS],
        };
        // SAFETY: both buffers outlive the call, and the mask has as many bits as stated.
        let done = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut it.mode,
                it.nodes.as_mut_ptr(),
                NODE_WORDS * WORD_BITS,
                0usize,
                0usize,
            )
        };
        (done == 0).then_some(it)
    }

    fn set(&self) {
        // The default policy takes no nodes.
        let (nodes, bits) = match self.mode {
            libc::MPOL_DEFAULT => (ptr::null(), 0),
            _ => (self.nodes.as_ptr(), MASK_BITS),
        };
        // SAFETY: the mask outlives the call, and has as many bits as stated.
        unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, nodes, bits) };
    }
}

/// Requests huge pages for heap memory that has not been written to yet. Random reads of a large
/// array then need no page table walk for each item. Only whole huge pages inside the memory are
/// requested; if the kernel has none, it uses ordinary pages.
pub fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let start = memory.as_mut_ptr().cast::<u8>();
    let skip = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let len = size_of_val(memory).saturating_sub(skip) / HUGE_PAGE * HUGE_PAGE;
    if len > 0 {
        // SAFETY: whole pages inside memory that is borrowed exclusively; the advice changes no
        // byte of them.
        unsafe { libc::madvise(start.wrapping_add(skip).cast(), len, libc::MADV_HUGEPAGE) };
    }
}

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Prefetches the first `lines` cache lines of item `at` of a slice, or all that the item has, for
/// use a little later. An index without an item is harmless. On architectures other than x86-64,
/// does nothing.
#[inline]
pub fn prefetch<T>(table: &[T], at: usize, lines: usize) {
    let item = table.as_ptr().wrapping_add(at).cast::<u8>();
    for line in 0..lines_of::<T>(lines) {
        prefetch_line(item.wrapping_add(line * LINE));
    }
}

/// Returns the number of cache lines of an item of type `T`, at most `most`.
const fn lines_of<T>(most: usize) -> usize {
    let lines = size_of::<T>().div_ceil(LINE);
    if lines < most { lines } else { most }
}

/// Prefetches the cache line of an address, which need not be valid.
#[inline(always)]
pub fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it has no effect that a program can observe, and no address makes it
        // fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Reads from the first `lines` cache lines of item `at` of a slice, or all that the item has, so
/// that they are cached afterwards; no instruction waits for the values. A prefetch may be dropped
/// if many are in flight, a read is not: in a loop of these calls, the cache misses of many items
/// overlap. If there is no such item, does nothing.
#[inline]
pub fn touch<T: Copy>(table: &[T], at: usize, lines: usize) {
    let Some(item) = table.get(at) else { return };
    for line in 0..lines_of::<T>(lines) {
        let byte = std::ptr::from_ref(item).cast::<MaybeUninit<u8>>();
        // SAFETY: a byte of the item, which is borrowed and, as it is `Copy`, has no interior
        // mutability. The byte may be padding, but its value is not used.
        unsafe { byte.add(line * LINE).read_volatile() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_resident_and_writable_from_the_first_to_the_last_byte() {
        let mut region = Region::allocate(5000, None).expect("memory");
        assert_eq!(region.len(), 5000);
        let bytes = region.as_mut_slice();
        bytes[0] = 1;
        bytes[4999] = 2;
        let mut resident = [0u8; 2];
        // SAFETY: our own mapping of two pages, and a byte for each.
        let ret = unsafe { libc::mincore(region.as_ptr().cast(), 8192, resident.as_mut_ptr()) };
        assert_eq!(ret, 0);
        assert_eq!(resident.map(|r| r & 1), [1, 1]);
    }

    #[test]
    fn parts_of_one_mapping_are_disjoint_and_outlive_each_other() {
        let mut parts = Region::allocate_many(3, 5000).expect("memory");
        for (n, part) in (1u8..).zip(&mut parts) {
            assert_eq!((part.len(), part.as_ptr().addr() % PAGE), (5000, 0));
            part.as_mut_slice().fill(n);
        }
        let mut last = parts.pop().expect("three");
        drop(parts.remove(0));
        assert!(parts[0].as_slice(5000).iter().all(|it| *it == 2));
        drop(parts);
        assert!(last.as_slice(5000).iter().all(|it| *it == 3));
        last.as_mut_slice().fill(4);
        assert!(Region::allocate_many(1 << 20, 1 << 50).is_err());
    }

    #[test]
    fn pages_touched_later_become_resident_and_keep_their_bytes() {
        let (mut parts, untouched) = Region::map_many(3, 2 << 20).expect("memory");
        parts[2].as_mut_slice()[5] = 7;
        untouched.touch().expect("memory");
        let mut resident = vec![0u8; (6 << 20) / PAGE];
        // SAFETY: our own mapping of three parts, and a byte for each page.
        let ret =
            unsafe { libc::mincore(parts[0].as_ptr().cast(), 6 << 20, resident.as_mut_ptr()) };
        assert_eq!(ret, 0);
        assert!(resident.iter().all(|page| page & 1 == 1));
        assert_eq!(parts[2].as_slice(6), [0, 0, 0, 0, 0, 7]);
    }

    #[test]
    fn a_node_is_preferred_during_the_call_only() {
        let Some(before) = Policy::of_this_thread() else {
            return eprintln!("skipped: get_mempolicy: {}", io::Error::last_os_error());
        };
        let meanwhile = prefer_node(Some(0), Policy::of_this_thread).expect("worked before");
        assert_eq!(
            (meanwhile.mode, meanwhile.nodes[0]),
            (libc::MPOL_PREFERRED, 1)
        );
        assert_eq!(Policy::of_this_thread(), Some(before));
        let untouched = prefer_node(None, Policy::of_this_thread);
        assert_eq!(untouched, Policy::of_this_thread());
    }

    #[test]
    fn a_mask_has_only_the_bit_of_its_node() {
        for node in [0, 1, 63, 64, 65, 127, 128, 1000, 1023] {
            let mask = node_mask(node).expect("a node that kernels have");
            let bits = mask.map(libc::c_ulong::count_ones).iter().sum::<u32>();
            let word = mask[node as usize / WORD_BITS];
            assert_eq!(
                (bits, word >> (node as usize % WORD_BITS)),
                (1, 1),
                "{node}"
            );
        }
        for node in [1024, 1025, u32::MAX] {
            assert_eq!(node_mask(node), None);
            // Memory is allocated without the node.
            assert_eq!(
                Region::allocate(4096, Some(node)).expect("memory").len(),
                4096
            );
            assert_eq!(prefer_node(Some(node), || 7), 7);
        }
        assert!(Region::allocate(4096, Some(1023)).is_ok());
    }

    #[test]
    fn huge_pages_can_be_requested_for_any_length() {
        for len in [0, 1, HUGE_PAGE - 1, 5 * HUGE_PAGE + 7] {
            let mut bytes = Vec::<u8>::with_capacity(len);
            prefer_huge_pages(bytes.spare_capacity_mut());
            bytes.resize(len, 7);
            assert!(bytes.iter().all(|it| *it == 7));
        }
    }

    #[test]
    fn any_index_may_be_prefetched() {
        let table = [[7_u8; 200]; 3];
        for at in [0, 2, 3, usize::MAX] {
            prefetch(&table, at, usize::MAX);
            prefetch::<u8>(&[], at, 1);
        }
        assert!(table.as_flattened().iter().all(|it| *it == 7));
    }

    #[test]
    fn a_region_is_not_inherited_by_a_forked_child() {
        let region = Region::allocate(4096, None).expect("memory");
        let address = region.as_ptr() as usize;
        let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        // An adjacent mapping with the same flags may share the mapping's entry.
        let holds = |line: &str| {
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            range
                .and_then(|(a, b)| Some((hex(a)?..hex(b)?).contains(&address)))
                .unwrap_or(false)
        };
        let flags = maps
            .lines()
            .skip_while(|line| !holds(line))
            .find(|line| line.starts_with("VmFlags:"))
            .expect("the mapping is listed");
        assert!(flags.split_whitespace().any(|f| f == "dc"), "{flags}");
    }

    #[test]
    fn allocation_errors_name_the_size() {
        let error = Region::allocate(1 << 50, None).expect_err("a petabyte");
        assert!(
            error.to_string().contains("1125899906842624 bytes"),
            "{error}"
        );
    }
}
