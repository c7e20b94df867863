//! Object handles: the numbers that name objects in commands, and the slabs that hold the objects.
//!
//! Imports `process` for its errno. Invariants: a handle names one kind of object, one index, one
//! generation and one context; a lookup with any other handle finds nothing. A freed index is not
//! reused at once, so that a stale handle is refused instead of naming another object.

use std::collections::VecDeque;

use crate::process::Errno;

/// Number that identifies a device context, which is one open of the device's file.
pub type ContextId = u32;

/// Kinds of verbs objects. The kind is part of an object's handle, so that a handle of another kind
/// is not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ObjectKind {
    Pd = 1,
    Mr,
    Mw,
    Cq,
    /// Object kind of a work queue, or of a QP's receive queue.
    Rq,
    /// Object kind of a QP's send queue.
    Sq,
    Table,
    /// Object kind of an RSS QP's hash and indirection table (TIR).
    Tir,
    Qp,
    Flow,
    Srq,
    Ah,
    Counters,
    Matcher,
}

/// A verbs object's index in its [`Slab`].
pub type Index = u32;

/// Maximum number of verbs objects of one kind; the device's attributes never report more.
pub const LIMIT: usize = 1 << 16;
const INDEX_BITS: u32 = 16;
const GENERATION_BITS: u32 = 12;
/// Number of freed slab indexes that wait before one is reused.
const QUARANTINE: usize = 64;

/// Entry of a slab of verbs objects. The alignment makes the size of an entry a power of two while
/// the object is small. An entry is then found by a shift, which every frame needs several times.
#[repr(align(128))]
struct SlabEntry<T> {
    generation: u32,
    context: ContextId,
    /// Number of other verbs objects that use the entry's object.
    users: u32,
    value: Option<T>,
}

/// Container for all verbs objects of one kind.
pub struct Slab<T> {
    kind: ObjectKind,
    limit: usize,
    entries: Vec<SlabEntry<T>>,
    free: VecDeque<Index>,
}

impl<T> Slab<T> {
    /// Returns an empty slab for at most `limit` verbs objects of `kind`.
    pub fn new(kind: ObjectKind, limit: usize) -> Self {
        Self {
            kind,
            limit: limit.min(LIMIT),
            entries: Vec::new(),
            free: VecDeque::new(),
        }
    }

    /// Returns `true` if the slab is full, so that [`Slab::insert`] would fail.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= self.limit && self.free.is_empty()
    }

    /// Stores a verbs object in the slab and returns its handle. Fails with `ENOMEM` when the slab
    /// is full.
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

    /// Returns the handle of the slab's object at `index`.
    fn handle(&self, index: Index) -> u32 {
        let generation = self
            .entries
            .get(index as usize)
            .map_or(0, |entry| entry.generation);
        (self.kind as u32) << (INDEX_BITS + GENERATION_BITS) | generation << INDEX_BITS | index
    }

    /// Returns the slab index of a device context's object. Fails with `EINVAL` if the context has
    /// no such object, as the kernel's lookup does in most commands.
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

    /// Returns the slab index of an object that is to be destroyed. Fails as [`Slab::find`] does,
    /// and with `EBUSY` if another object uses it.
    pub fn find_unused(&self, handle: u32, context: ContextId) -> Result<Index, Errno> {
        let index = self.find(handle, context)?;
        match self.users(index) {
            0 => Ok(index),
            _ => Err(libc::EBUSY),
        }
    }

    /// Returns the number of verbs objects that use the slab's object at `index`.
    pub fn users(&self, index: Index) -> u32 {
        self.entries
            .get(index as usize)
            .map_or(0, |entry| entry.users)
    }

    /// Adds 1 to the number of users of the slab's object at `index`; does nothing without an
    /// index.
    pub fn add_user(&mut self, index: impl Into<Option<Index>>) {
        if let Some(entry) = self.used(index.into()) {
            entry.users += 1;
        }
    }

    /// Subtracts 1 from the number of users of the slab's object at `index`; does nothing without
    /// an index.
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

    /// Returns the slab's object of a device context. Fails as [`Slab::find`] does.
    pub fn get(&self, handle: u32, context: ContextId) -> Result<&T, Errno> {
        self.at(self.find(handle, context)?).ok_or(libc::EINVAL)
    }

    /// Returns the slab's object of a device context for writing. Fails as [`Slab::find`] does.
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

    /// Returns the slab indexes of a device context's objects.
    pub fn of_context(&self, context: ContextId) -> Vec<Index> {
        self.entries
            .iter()
            .enumerate()
            .filter(|(_, entry)| entry.value.is_some() && entry.context == context)
            .map(|(index, _)| index as Index)
            .collect()
    }

    /// Removes all objects of a device context from the slab.
    pub fn remove_all_of(&mut self, context: ContextId) {
        for index in self.of_context(context) {
            self.remove(index);
        }
    }
}

/// Returns the slab index in an object's handle.
pub fn index_of(handle: u32) -> Index {
    handle & ((1 << INDEX_BITS) - 1)
}

/// Returns the generation in an object's handle: the number of times that its slab index was
/// assigned, modulo a power of two.
pub fn generation(handle: u32) -> u32 {
    handle >> INDEX_BITS & ((1 << GENERATION_BITS) - 1)
}

/// Returns a verbs object's 24-bit number (QPN, CQN, WQN, ...). It combines the slab index with 7
/// bits of the generation, so that the next object at this index gets another number. Numbers begin
/// at 64, because InfiniBand reserves QPs 0 and 1.
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
