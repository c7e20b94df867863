//! Handles: the numbers by which commands name objects, and the slabs that hold the objects.
//!
//! Imports `process` for its errno. Invariants: a handle names one kind of object, at one index, of one generation,
//! in one context: anything else finds nothing; a freed index is not reused at once, so that a stale handle is
//! refused instead of naming another object.

use std::collections::VecDeque;

use crate::process::Errno;

/// A context of the device: one open of its file.
pub type ContextId = u32;

/// Kinds of object. The number is part of the handle, so that a handle of another kind is not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ObjectKind {
    Pd = 1,
    Mr,
    Mw,
    Cq,
    /// Work queue, or a QP's receive queue.
    Rq,
    /// A QP's send queue.
    Sq,
    Table,
    /// An RSS QP's hash and table (TIR).
    Tir,
    Qp,
    Flow,
    Srq,
    Ah,
    Counters,
    Matcher,
}

/// An object's index in its [`Slab`].
pub type Index = u32;

/// The most objects of one kind; the device's attributes never report more.
pub const LIMIT: usize = 1 << 16;
const INDEX_BITS: u32 = 16;
const GENERATION_BITS: u32 = 12;
/// How many freed indexes wait before one is reused.
const QUARANTINE: usize = 64;

/// Aligned so that its size is a power of two, as long as the object is small: then an entry is found by a shift,
/// which every frame does several times.
#[repr(align(128))]
struct SlabEntry<T> {
    generation: u32,
    context: ContextId,
    /// Number of objects that use this one.
    users: u32,
    value: Option<T>,
}

/// All objects of one kind.
pub struct Slab<T> {
    kind: ObjectKind,
    limit: usize,
    entries: Vec<SlabEntry<T>>,
    free: VecDeque<Index>,
}

impl<T> Slab<T> {
    /// An empty slab for `limit` objects of `kind`.
    pub fn new(kind: ObjectKind, limit: usize) -> Self {
        Self {
            kind,
            limit: limit.min(LIMIT),
            entries: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// Whether [`Slab::insert`] would fail.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.limit && self.free.is_empty()
    }

    /// Stores an object and returns its handle. Fails with `ENOMEM` when the slab is full.
    pub fn insert(&mut self, context: ContextId, value: T) -> Result<u32, Errno> {
        let full = self.entries.len() >= self.limit;
        let index = if self.free.len() > QUARANTINE || full {
            self.free.pop_front().ok_or(libc::ENOMEM)?
        } else {
            self.entries.push(SlabEntry {
                generation: 0,
                context,
                users: 0,
                value: None,
            });
            self.entries.len() as Index - 1
        };
        let entry = self.entries.get_mut(index as usize).ok_or(libc::ENOMEM)?;
        entry.generation = (entry.generation + 1) & ((1 << GENERATION_BITS) - 1);
        entry.context = context;
        entry.users = 0;
        entry.value = Some(value);
        Ok(self.handle(index))
    }

    /// The handle of the object at `index`.
    fn handle(&self, index: Index) -> u32 {
        let generation = self
            .entries
            .get(index as usize)
            .map_or(0, |entry| entry.generation);
        (self.kind as u32) << (INDEX_BITS + GENERATION_BITS) | generation << INDEX_BITS | index
    }

    /// The index of a context's object. Fails with `EINVAL` if there is none, as the kernel's lookup does in most
    /// commands.
    pub fn find(&self, handle: u32, context: ContextId) -> Result<Index, Errno> {
        let index = index_of(handle);
        match self.entries.get(index as usize) {
            Some(entry)
                if entry.value.is_some()
                    && entry.context == context
                    && self.handle(index) == handle =>
            {
                Ok(index)
            }
            _ => Err(libc::EINVAL),
        }
    }

    /// As [`Slab::find`], for an object that is to be destroyed. Fails with `EBUSY` if another one uses it.
    pub fn find_unused(&self, handle: u32, context: ContextId) -> Result<Index, Errno> {
        let index = self.find(handle, context)?;
        match self.users(index) {
            0 => Ok(index),
            _ => Err(libc::EBUSY),
        }
    }

    /// Number of objects that use the one at `index`.
    pub fn users(&self, index: Index) -> u32 {
        self.entries
            .get(index as usize)
            .map_or(0, |entry| entry.users)
    }

    /// Counts one user more of an object, if there is one.
    pub fn add_user(&mut self, index: impl Into<Option<Index>>) {
        if let Some(entry) = self.used(index.into()) {
            entry.users += 1;
        }
    }

    /// Counts one user less.
    pub fn remove_user(&mut self, index: impl Into<Option<Index>>) {
        if let Some(entry) = self.used(index.into()) {
            entry.users = entry.users.saturating_sub(1);
        }
    }

    fn used(&mut self, index: Option<Index>) -> Option<&mut SlabEntry<T>> {
        self.entries.get_mut(index? as usize)
    }

    #[inline]
    pub fn at(&self, index: Index) -> Option<&T> {
        self.entries.get(index as usize)?.value.as_ref()
    }

    #[inline]
    pub fn at_mut(&mut self, index: Index) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.value.as_mut()
    }

    /// A context's object. Fails as [`Slab::find`] does.
    pub fn get(&self, handle: u32, context: ContextId) -> Result<&T, Errno> {
        self.at(self.find(handle, context)?).ok_or(libc::EINVAL)
    }

    /// A context's object. Fails as [`Slab::find`] does.
    pub fn get_mut(&mut self, handle: u32, context: ContextId) -> Result<&mut T, Errno> {
        let index = self.find(handle, context)?;
        self.at_mut(index).ok_or(libc::EINVAL)
    }

    pub fn remove(&mut self, index: Index) -> Option<T> {
        let value = self.entries.get_mut(index as usize)?.value.take()?;
        self.free.push_back(index);
        Some(value)
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Index, &T)> {
        self.entries
            .iter()
            .enumerate()
            .filter_map(|(index, entry)| Some((index as Index, entry.value.as_ref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Index, &mut T)> {
        self.entries
            .iter_mut()
            .enumerate()
            .filter_map(|(index, entry)| Some((index as Index, entry.value.as_mut()?)))
    }

    /// The indexes of a context's objects.
    pub fn of_context(&self, context: ContextId) -> Vec<Index> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.value.is_some() && entry.context == context)
            .map(|(index, _)| index as Index)
            .collect()
    }

    /// Removes a context's objects.
    pub fn remove_all_of(&mut self, context: ContextId) {
        for index in self.of_context(context) {
            self.remove(index);
        }
    }
}

/// The index of an object that was just inserted.
pub fn index_of(handle: u32) -> Index {
    handle & ((1 << INDEX_BITS) - 1)
}

/// How often its index has been given out.
pub fn generation(handle: u32) -> u32 {
    handle >> INDEX_BITS & ((1 << GENERATION_BITS) - 1)
}

/// An object's 24-bit number (QPN, CQN, WQN, ...): its index, and enough of its generation that the next object there
/// gets another. Numbers begin at 64, since QPs 0 and 1 are InfiniBand's own.
pub fn number(handle: u32) -> u32 {
    let index = index_of(handle);
    let generation = generation(handle) & 0x7f;
    ((generation << INDEX_BITS | index) + 64) & 0xff_ffff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_one_kind_one_context_and_one_generation() {
        let mut pds = Slab::new(ObjectKind::Pd, 10);
        let mut cqs = Slab::new(ObjectKind::Cq, 10);
        let pd = pds.insert(1, "pd").unwrap();
        let cq = cqs.insert(1, "cq").unwrap();
        assert_eq!(pds.get(pd, 1), Ok(&"pd"));
        assert_eq!(pds.get(cq, 1), Err(libc::EINVAL));
        assert_eq!(pds.get(pd, 2), Err(libc::EINVAL));
        assert_eq!(pds.get(u32::MAX, 1), Err(libc::EINVAL));
        let index = pds.find(pd, 1).unwrap();
        assert_eq!(pds.remove(index), Some("pd"));
        assert_eq!(pds.remove(index), None);
        assert_eq!(pds.get(pd, 1), Err(libc::EINVAL));
        assert!(cqs.at(index).is_some());
    }

    #[test]
    fn handles_are_not_reused_soon_and_the_limit_holds() {
        let mut slab = Slab::new(ObjectKind::Mr, 4);
        let mut seen = std::collections::HashSet::new();
        for _ in 0..4000 {
            let handle = slab.insert(1, ()).unwrap();
            assert!(seen.insert(handle));
            slab.remove(handle & 0xffff);
        }
        for _ in 0..4 {
            slab.insert(1, ()).unwrap();
        }
        assert_eq!(slab.insert(1, ()), Err(libc::ENOMEM));
    }

    #[test]
    fn a_contexts_objects_are_found() {
        let mut slab = Slab::new(ObjectKind::Ah, 10);
        for context in [1, 2, 1] {
            slab.insert(context, context).unwrap();
        }
        assert_eq!(slab.of_context(1), [0, 2]);
        assert_eq!(slab.iter().count(), 3);
    }
}
