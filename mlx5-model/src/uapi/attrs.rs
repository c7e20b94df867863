//! Attributes of ioctl() methods.
//!
//! Imports `abi` and `process`. Invariant: attributes are checked as the kernel checks them
//! (`uverbs_process_attr`).

use std::mem::offset_of;

use crate::abi::*;
use crate::handles::{ContextId, Index, Slab};
use crate::process::memory::{copy_from_user, copy_to_user};
use crate::process::{Errno, refuse_if};

/// Kind of an ioctl attribute (`enum uverbs_attr_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttrKind {
    /// Ioctl attribute for an object that the method creates; the object's handle is written to the
    /// attribute.
    New,
    /// Ioctl attribute with the handle of an existing verbs object.
    Object,
    /// Ioctl attribute with the handle of an object that the device cannot create; the lookup
    /// always fails with `ENOENT`.
    Unknown,
    /// Ioctl attribute with input data of a minimum and a maximum number of bytes. Up to eight
    /// bytes are in the attribute itself, more are behind its pointer.
    In(u16, u16),
    /// Ioctl attribute with one of several values, each with data of a fixed size.
    Choice,
    /// Ioctl attribute with a buffer for output of the method.
    Out,
}

/// Declaration of an attribute that an ioctl method takes: id, kind, and whether it is mandatory.
pub struct AttrSpec {
    id: u32,
    kind: AttrKind,
    mandatory: bool,
}

impl AttrSpec {
    /// Declares an ioctl attribute that the program must pass.
    pub const fn mandatory(id: u32, kind: AttrKind) -> Self {
        Self {
            id,
            kind,
            mandatory: true,
        }
    }

    /// Declares an ioctl attribute that the program may pass.
    pub const fn optional(id: u32, kind: AttrKind) -> Self {
        Self {
            id,
            kind,
            mandatory: false,
        }
    }
}

/// Returns the index of a verbs object as [`Slab::find`] does; for an ioctl a missing object is
/// `ENOENT`.
pub fn find<T>(slab: &Slab<T>, handle: u32, context: ContextId) -> Result<Index, Errno> {
    slab.find(handle, context).map_err(|_| libc::ENOENT)
}

/// Returns the index of an unused verbs object as [`Slab::find_unused`] does; for an ioctl a
/// missing object is `ENOENT`.
pub fn find_unused<T>(slab: &Slab<T>, handle: u32, context: ContextId) -> Result<Index, Errno> {
    find(slab, handle, context).and_then(|_| slab.find_unused(handle, context))
}

/// One attribute of an ioctl request, as the program passed it.
#[derive(Debug, Clone, Copy)]
struct Attr {
    id: u32,
    len: u16,
    flags: u32,
    /// Number of the chosen value of an attribute of kind [`AttrKind::Choice`]; reserved for other
    /// kinds.
    choice: u16,
    data: u64,
    /// Address of the ioctl attribute in the program's memory.
    at: u64,
}

/// Attributes that the program passed in an ioctl request and the method declares.
#[derive(Debug)]
pub struct Attrs(Vec<Attr>);

impl Attr {
    fn read(bytes: &[u8], at: u64) -> Option<Self> {
        let attr: ib_uverbs_attr = read_from(bytes)?;
        let word = |offset: usize| bytes.get(offset..)?.first_chunk::<2>().copied();
        let data = bytes
            .get(offset_of!(ib_uverbs_attr, __bindgen_anon_1)..)?
            .first_chunk::<8>()?;
        Some(Self {
            id: u32::from(attr.attr_id),
            len: attr.len,
            flags: u32::from(attr.flags),
            choice: u16::from_ne_bytes(word(offset_of!(ib_uverbs_attr, attr_data))?),
            data: u64::from_ne_bytes(*data),
            at,
        })
    }

    /// Checks an ioctl attribute against its declared kind, as `uverbs_process_attr` does.
    fn check(&self, kind: AttrKind) -> Result<(), Errno> {
        // The sizes of a choice are checked by the method.
        refuse_if(kind != AttrKind::Choice && self.choice != 0, libc::EINVAL)?;
        match kind {
            AttrKind::New | AttrKind::Object if self.len != 0 => Err(libc::EINVAL),
            AttrKind::In(least, most) if self.len < least || self.len > most => Err(libc::EINVAL),
            AttrKind::Unknown => Err(libc::ENOENT),
            _ => Ok(()),
        }
    }
}

impl Attrs {
    /// Checks and stores the ioctl attributes in `bytes`, which were read behind the request's
    /// header at address `arg`.
    pub fn read(specs: &[AttrSpec], bytes: &[u8], arg: u64) -> Result<Self, Errno> {
        let first = arg.wrapping_add(size_of::<ib_uverbs_ioctl_hdr>() as u64);
        let mut attrs: Vec<Attr> = Vec::new();
        for (index, bytes) in bytes.chunks_exact(size_of::<ib_uverbs_attr>()).enumerate() {
            let at = first.wrapping_add((index * size_of::<ib_uverbs_attr>()) as u64);
            let attr = Attr::read(bytes, at).ok_or(libc::EINVAL)?;
            let Some(spec) = specs.iter().find(|spec| spec.id == attr.id) else {
                if attr.flags & UVERBS_ATTR_F_MANDATORY != 0 {
                    return Err(libc::EPROTONOSUPPORT);
                }
                continue;
            };
            refuse_if(attrs.iter().any(|known| known.id == attr.id), libc::EINVAL)?;
            attr.check(spec.kind)?;
            attrs.push(attr);
        }
        let complete = specs
            .iter()
            .all(|spec| !spec.mandatory || attrs.iter().any(|attr| attr.id == spec.id));
        if complete {
            Ok(Self(attrs))
        } else {
            Err(libc::EINVAL)
        }
    }

    fn find(&self, id: u32) -> Option<&Attr> {
        self.0.iter().find(|attr| attr.id == id)
    }

    fn get(&self, id: u32) -> Result<&Attr, Errno> {
        self.find(id).ok_or(libc::EINVAL)
    }

    /// Returns `true` if the ioctl request has the attribute `id`.
    pub fn has(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    /// Returns the object handle in an ioctl attribute. Fails with `EINVAL` if the attribute is not
    /// given or not a handle.
    pub fn handle(&self, id: u32) -> Result<u32, Errno> {
        u32::try_from(self.get(id)?.data).map_err(|_| libc::EINVAL)
    }

    /// Returns the data of an ioctl attribute. Fails with `EFAULT` if they cannot be read.
    pub fn bytes(&self, id: u32) -> Result<Vec<u8>, Errno> {
        let attr = self.get(id)?;
        let len = usize::from(attr.len);
        if len <= size_of::<u64>() {
            return Ok(attr.data.to_ne_bytes()[..len].to_vec());
        }
        let mut bytes = vec![0; len];
        copy_from_user(attr.data, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the number in an ioctl attribute itself. Fails with `EINVAL` if the attribute is not
    /// given.
    pub fn number(&self, id: u32) -> Result<u64, Errno> {
        Ok(self.get(id)?.data)
    }

    /// Returns the flags in an ioctl attribute, 0 if it is not given (`uverbs_get_flags32`). Fails
    /// with `EINVAL` for flags outside `allowed`.
    pub fn flags(&self, id: u32, allowed: u32) -> Result<u32, Errno> {
        let Some(attr) = self.find(id) else {
            return Ok(0);
        };
        let flags = match attr.len {
            8 => attr.data,
            4 => attr.data & u64::from(u32::MAX),
            _ => return Err(libc::EINVAL),
        };
        refuse_if(flags & !u64::from(allowed) != 0, libc::EINVAL)?;
        Ok(flags as u32)
    }

    /// Returns the number of the chosen value of an ioctl attribute; `sizes` are the sizes of the
    /// values' data. Fails with `EOPNOTSUPP` for another number, with `EINVAL` if the data have
    /// another size.
    pub fn choice(&self, id: u32, sizes: &[u16]) -> Result<u32, Errno> {
        let attr = self.get(id)?;
        // `elem_id` and a reserved byte.
        let [choice, reserved] = attr.choice.to_ne_bytes();
        let size = sizes.get(usize::from(choice)).ok_or(libc::EOPNOTSUPP)?;
        refuse_if(reserved != 0 || attr.len != *size, libc::EINVAL)?;
        Ok(u32::from(choice))
    }

    /// Returns the size of an ioctl attribute's output buffer in bytes. Fails with `EINVAL` if the
    /// attribute is not given.
    pub fn room(&self, id: u32) -> Result<usize, Errno> {
        Ok(usize::from(self.get(id)?.len))
    }

    /// Writes output to an ioctl attribute's buffer. Fails with `EFAULT` if the buffer is not
    /// writable.
    pub fn reply(&self, id: u32, bytes: &[u8]) -> Result<(), Errno> {
        let attr = self.get(id)?;
        copy_to_user(attr.data, &bytes[..bytes.len().min(usize::from(attr.len))])?;
        let flags = (attr.flags | UVERBS_ATTR_F_VALID_OUTPUT) as u16;
        let at = attr.at + offset_of!(ib_uverbs_attr, flags) as u64;
        copy_to_user(at, &flags.to_ne_bytes())
    }

    /// Writes the handle of a new object to an ioctl attribute. Fails with `EFAULT` if the
    /// attribute is not writable.
    pub fn reply_handle(&self, id: u32, handle: u32) -> Result<(), Errno> {
        let at = self.get(id)?.at + offset_of!(ib_uverbs_attr, __bindgen_anon_1) as u64;
        copy_to_user(at, &u64::from(handle).to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECS: &[AttrSpec] = &[
        AttrSpec::mandatory(1, AttrKind::Object),
        AttrSpec::optional(2, AttrKind::In(4, 4)),
        AttrSpec::optional(3, AttrKind::Choice),
        AttrSpec::optional(4, AttrKind::Unknown),
    ];

    fn attr(id: u16, len: u16, flags: u32, choice: u16, data: u64) -> ib_uverbs_attr {
        let mut attr: ib_uverbs_attr = read_prefix(&[]);
        attr.attr_id = id;
        attr.len = len;
        attr.flags = flags as u16;
        attr.attr_data.reserved = choice;
        attr.__bindgen_anon_1.data = data;
        attr
    }

    fn read(attrs: &[ib_uverbs_attr]) -> Result<Attrs, Errno> {
        let bytes: Vec<u8> = attrs
            .iter()
            .flat_map(|attr| bytes_of(attr).to_vec())
            .collect();
        Attrs::read(SPECS, &bytes, 0x1000)
    }

    fn refused(attrs: &[ib_uverbs_attr]) -> Errno {
        read(attrs).map(drop).unwrap_err()
    }

    #[test]
    fn attributes_are_refused_as_by_the_kernel() {
        let object = attr(1, 0, 0, 0, 7);
        assert_eq!(read(&[object]).unwrap().handle(1), Ok(7));
        assert_eq!(
            refused(&[]),
            libc::EINVAL,
            "a mandatory attribute is missing"
        );
        assert_eq!(
            refused(&[object, object]),
            libc::EINVAL,
            "an attribute is given twice"
        );
        assert_eq!(
            refused(&[attr(1, 4, 0, 0, 7)]),
            libc::EINVAL,
            "wrong length"
        );
        assert_eq!(
            refused(&[attr(1, 0, 0, 1, 7)]),
            libc::EINVAL,
            "a reserved field is set"
        );
        assert_eq!(refused(&[object, attr(2, 5, 0, 0, 0)]), libc::EINVAL);
        assert_eq!(refused(&[object, attr(2, 3, 0, 0, 0)]), libc::EINVAL);
        assert_eq!(refused(&[object, attr(4, 0, 0, 0, 1)]), libc::ENOENT);
        let mandatory = attr(9, 0, UVERBS_ATTR_F_MANDATORY, 0, 0);
        assert_eq!(refused(&[object, mandatory]), libc::EPROTONOSUPPORT);
        assert!(
            read(&[object, attr(9, 0, 0, 0, 0)]).is_ok(),
            "an unknown optional attribute is ignored"
        );
        assert_eq!(
            read(&[attr(1, 0, 0, 0, 1 << 32)]).unwrap().handle(1),
            Err(libc::EINVAL)
        );
    }

    #[test]
    fn data_of_up_to_eight_bytes_is_in_the_attribute() {
        let object = attr(1, 0, 0, 0, 7);
        let attrs = read(&[object, attr(2, 4, 0, 0, 0x1_0000_0005)]).unwrap();
        assert_eq!(attrs.bytes(2), Ok(5u32.to_ne_bytes().to_vec()));
        assert_eq!(attrs.flags(2, 7), Ok(5));
        assert_eq!(attrs.flags(2, 3), Err(libc::EINVAL));
        assert_eq!(attrs.flags(3, 3), Ok(0));
    }

    #[test]
    fn choices_have_fixed_sizes() {
        let choose = |choice: u16, len| {
            let attrs = read(&[attr(1, 0, 0, 0, 7), attr(3, len, 0, choice, 0)]).unwrap();
            attrs.choice(3, &[2, 0])
        };
        assert_eq!(choose(0, 2), Ok(0));
        assert_eq!(choose(1, 0), Ok(1));
        assert_eq!(choose(0, 0), Err(libc::EINVAL));
        assert_eq!(choose(2, 0), Err(libc::EOPNOTSUPP));
        assert_eq!(
            choose(1 << 8, 2),
            Err(libc::EINVAL),
            "a reserved field is set"
        );
    }
}
