//! The kernel's ioctl() interface (`RDMA_VERBS_IOCTL`), for the methods that write() has no words for.
//!
//! May import what its siblings may. Invariants: a request is checked as the kernel checks it
//! (`ib_uverbs_cmd_verbs`, `uverbs_process_attr`) before anything happens; every other method answers
//! `EPROTONOSUPPORT`, upon which libibverbs says the same by write().

use std::ffi::c_ulong;
use std::io::Write;
use std::mem::{offset_of, size_of};

use crate::abi::*;
use crate::device::memory::{copy_from_user, copy_to_user, read_from};
use crate::device::nic::Session;
use crate::process::Errno;
use crate::settings::Settings;

use super::{counters, matcher};

/// What an attribute may be (`enum uverbs_attr_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An object that the method makes; its handle is the answer.
    New,
    /// An object's handle.
    Object,
    /// Handles of objects of a kind that the device cannot make: none is ever found.
    Unknown,
    /// Data of so many bytes; up to eight stand in the attribute itself, more where it points to.
    In(u16, u16),
    /// One of several, each with data of its own.
    Choice,
    /// Room for an answer.
    Out,
}

/// An attribute that a method knows.
pub struct Spec {
    id: u32,
    kind: Kind,
    mandatory: bool,
}

impl Spec {
    /// One that has to be there.
    pub const fn mandatory(id: u32, kind: Kind) -> Self {
        Self {
            id,
            kind,
            mandatory: true,
        }
    }

    /// One that may be left out.
    pub const fn optional(id: u32, kind: Kind) -> Self {
        Self {
            id,
            kind,
            mandatory: false,
        }
    }
}

/// A method: what it is called by, what it takes, and what it does.
pub struct Method {
    name: &'static str,
    object: u32,
    method: u32,
    specs: &'static [Spec],
    /// It gives something back: a dead device still does that.
    takes_leave: bool,
    run: fn(&Session, &Attrs) -> Result<(), Errno>,
}

static METHODS: &[Method] = &[
    Method {
        name: "UVERBS_METHOD_COUNTERS_CREATE",
        object: UVERBS_OBJECT_COUNTERS,
        method: UVERBS_METHOD_COUNTERS_CREATE,
        specs: counters::CREATE,
        takes_leave: false,
        run: counters::create,
    },
    Method {
        name: "UVERBS_METHOD_COUNTERS_DESTROY",
        object: UVERBS_OBJECT_COUNTERS,
        method: UVERBS_METHOD_COUNTERS_DESTROY,
        specs: counters::DESTROY,
        takes_leave: true,
        run: counters::destroy,
    },
    Method {
        name: "UVERBS_METHOD_COUNTERS_READ",
        object: UVERBS_OBJECT_COUNTERS,
        method: UVERBS_METHOD_COUNTERS_READ,
        specs: counters::READ,
        takes_leave: false,
        run: counters::read,
    },
    Method {
        name: "MLX5_IB_METHOD_FLOW_MATCHER_CREATE",
        object: MLX5_IB_OBJECT_FLOW_MATCHER,
        method: MLX5_IB_METHOD_FLOW_MATCHER_CREATE,
        specs: matcher::CREATE,
        takes_leave: false,
        run: matcher::create,
    },
    Method {
        name: "MLX5_IB_METHOD_FLOW_MATCHER_DESTROY",
        object: MLX5_IB_OBJECT_FLOW_MATCHER,
        method: MLX5_IB_METHOD_FLOW_MATCHER_DESTROY,
        specs: matcher::DESTROY,
        takes_leave: true,
        run: matcher::destroy,
    },
    Method {
        name: "MLX5_IB_METHOD_CREATE_FLOW",
        object: UVERBS_OBJECT_FLOW,
        method: MLX5_IB_METHOD_CREATE_FLOW,
        specs: matcher::CREATE_FLOW,
        takes_leave: false,
        run: matcher::create_flow,
    },
    Method {
        name: "MLX5_IB_METHOD_DESTROY_FLOW",
        object: UVERBS_OBJECT_FLOW,
        method: MLX5_IB_METHOD_DESTROY_FLOW,
        specs: matcher::DESTROY_FLOW,
        takes_leave: true,
        run: matcher::destroy_flow,
    },
];

/// An attribute as it was given.
#[derive(Debug, Clone, Copy)]
struct Attr {
    id: u32,
    len: u16,
    flags: u32,
    /// The element of a [`Kind::Choice`]; reserved otherwise.
    choice: u16,
    data: u64,
    /// Where it stands in the program's memory.
    at: u64,
}

/// The attributes of a request, each of which its method knows.
#[derive(Debug)]
pub struct Attrs(Vec<Attr>);

/// `ioctl(2)` on a device: one method.
///
/// # Errors
/// As the kernel.
pub fn ioctl(session: &Session, request: c_ulong, arg: u64) -> Result<(), Errno> {
    // The kernel takes the request for 32 bits, whatever the C library hands over.
    if request as u32 != libc::_IOWR::<ib_uverbs_ioctl_hdr>(RDMA_IOCTL_MAGIC, 1) as u32 {
        return Err(libc::ENOTTY);
    }
    let (header, bytes) = read_request(arg)?;
    let method = METHODS
        .iter()
        .find(|method| {
            method.object == u32::from(header.object_id)
                && method.method == u32::from(header.method_id)
        })
        .ok_or(libc::EPROTONOSUPPORT)?;
    let result = run(session, method, &bytes, arg);
    if Settings::global().debug {
        tell(session, method, result);
    }
    result
}

/// Header and attributes of a request, as `ib_uverbs_ioctl` checks them.
fn read_request(arg: u64) -> Result<(ib_uverbs_ioctl_hdr, Vec<u8>), Errno> {
    const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>();
    let mut bytes = vec![0; HEADER];
    copy_from_user(arg, &mut bytes)?;
    let header: ib_uverbs_ioctl_hdr = read_from(&bytes).ok_or(libc::EINVAL)?;
    let attrs = usize::from(header.num_attrs) * size_of::<ib_uverbs_attr>();
    if usize::from(header.length) > crate::device::clock::PAGE
        || usize::from(header.length) != HEADER + attrs
    {
        return Err(libc::EINVAL);
    }
    if header.reserved1 != 0 || header.reserved2 != 0 {
        return Err(libc::EPROTONOSUPPORT);
    }
    if header.driver_id != RDMA_DRIVER_MLX5 {
        return Err(libc::EINVAL);
    }
    bytes.resize(attrs, 0);
    copy_from_user(arg.wrapping_add(HEADER as u64), &mut bytes)?;
    Ok((header, bytes))
}

fn run(session: &Session, method: &Method, bytes: &[u8], arg: u64) -> Result<(), Errno> {
    let attrs = Attrs::read(method.specs, bytes, arg)?;
    if !session.is_ready() {
        return Err(libc::EINVAL);
    }
    session.admit(method.takes_leave)?;
    (method.run)(session, &attrs)
}

fn tell(session: &Session, method: &Method, result: Result<(), Errno>) {
    let result = match result {
        Ok(()) => "ok".to_owned(),
        Err(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    };
    let _ = writeln!(
        std::io::stderr(),
        "mlx5-model: {} context {}: ioctl {} -> {result}",
        session.device().settings().name,
        session.context(),
        method.name,
    );
}

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

    /// `uverbs_process_attr`.
    fn check(&self, kind: Kind) -> Result<(), Errno> {
        // What a choice takes, its method knows.
        if kind != Kind::Choice && self.choice != 0 {
            return Err(libc::EINVAL);
        }
        match kind {
            Kind::New | Kind::Object if self.len != 0 => Err(libc::EINVAL),
            Kind::In(least, most) if self.len < least || self.len > most => Err(libc::EINVAL),
            Kind::Unknown => Err(libc::ENOENT),
            _ => Ok(()),
        }
    }
}

impl Attrs {
    fn read(specs: &[Spec], bytes: &[u8], arg: u64) -> Result<Self, Errno> {
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
            if attrs.iter().any(|known| known.id == attr.id) {
                return Err(libc::EINVAL);
            }
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

    /// Whether an attribute was given.
    pub fn has(&self, id: u32) -> bool {
        self.find(id).is_some()
    }

    /// An object's handle.
    ///
    /// # Errors
    /// `EINVAL` if there is none, or it is none.
    pub fn handle(&self, id: u32) -> Result<u32, Errno> {
        u32::try_from(self.get(id)?.data).map_err(|_| libc::EINVAL)
    }

    /// What an attribute brings.
    ///
    /// # Errors
    /// `EFAULT` if it cannot be read.
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

    /// A number in an attribute itself.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    pub fn number(&self, id: u32) -> Result<u64, Errno> {
        Ok(self.get(id)?.data)
    }

    /// Flags, 0 if none were given (`uverbs_get_flags32`).
    ///
    /// # Errors
    /// `EINVAL` if there are others than `allowed`.
    pub fn flags(&self, id: u32, allowed: u32) -> Result<u32, Errno> {
        let Some(attr) = self.find(id) else {
            return Ok(0);
        };
        let flags = match attr.len {
            8 => attr.data,
            4 => attr.data & u64::from(u32::MAX),
            _ => return Err(libc::EINVAL),
        };
        if flags & !u64::from(allowed) != 0 {
            return Err(libc::EINVAL);
        }
        Ok(flags as u32)
    }

    /// Which element of a choice was taken, out of `sizes.len()`, whose data are of these sizes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it is none, `EINVAL` if its data are of another size.
    pub fn choice(&self, id: u32, sizes: &[u16]) -> Result<u32, Errno> {
        let attr = self.get(id)?;
        // `elem_id` and a reserved byte.
        let [choice, reserved] = attr.choice.to_ne_bytes();
        let size = sizes.get(usize::from(choice)).ok_or(libc::EOPNOTSUPP)?;
        if reserved != 0 || attr.len != *size {
            return Err(libc::EINVAL);
        }
        Ok(u32::from(choice))
    }

    /// How many bytes of an answer there is room for.
    ///
    /// # Errors
    /// `EINVAL` if nothing was asked for.
    pub fn room(&self, id: u32) -> Result<usize, Errno> {
        Ok(usize::from(self.get(id)?.len))
    }

    /// Answers.
    ///
    /// # Errors
    /// `EFAULT` if it cannot be written.
    pub fn reply(&self, id: u32, bytes: &[u8]) -> Result<(), Errno> {
        let attr = self.get(id)?;
        copy_to_user(attr.data, &bytes[..bytes.len().min(usize::from(attr.len))])?;
        let flags = (attr.flags | UVERBS_ATTR_F_VALID_OUTPUT) as u16;
        let at = attr.at + offset_of!(ib_uverbs_attr, flags) as u64;
        copy_to_user(at, &flags.to_ne_bytes())
    }

    /// Tells a new object's handle.
    ///
    /// # Errors
    /// `EFAULT` if it cannot be written.
    pub fn reply_handle(&self, id: u32, handle: u32) -> Result<(), Errno> {
        let at = self.get(id)?.at + offset_of!(ib_uverbs_attr, __bindgen_anon_1) as u64;
        copy_to_user(at, &u64::from(handle).to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::memory::bytes_of;

    const SPECS: &[Spec] = &[
        Spec::mandatory(1, Kind::Object),
        Spec::optional(2, Kind::In(4, 4)),
        Spec::optional(3, Kind::Choice),
        Spec::optional(4, Kind::Unknown),
    ];

    fn attr(id: u16, len: u16, flags: u32, choice: u16, data: u64) -> ib_uverbs_attr {
        let mut attr: ib_uverbs_attr = crate::device::memory::read_prefix(&[]);
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
        assert_eq!(refused(&[]), libc::EINVAL, "mandatory");
        assert_eq!(refused(&[object, object]), libc::EINVAL, "twice");
        assert_eq!(refused(&[attr(1, 4, 0, 0, 7)]), libc::EINVAL, "length");
        assert_eq!(refused(&[attr(1, 0, 0, 1, 7)]), libc::EINVAL, "reserved");
        assert_eq!(refused(&[object, attr(2, 5, 0, 0, 0)]), libc::EINVAL);
        assert_eq!(refused(&[object, attr(2, 3, 0, 0, 0)]), libc::EINVAL);
        assert_eq!(refused(&[object, attr(4, 0, 0, 0, 1)]), libc::ENOENT);
        let mandatory = attr(9, 0, UVERBS_ATTR_F_MANDATORY, 0, 0);
        assert_eq!(refused(&[object, mandatory]), libc::EPROTONOSUPPORT);
        assert!(read(&[object, attr(9, 0, 0, 0, 0)]).is_ok(), "ignored");
        assert_eq!(
            read(&[attr(1, 0, 0, 0, 1 << 32)]).unwrap().handle(1),
            Err(libc::EINVAL)
        );
    }

    #[test]
    fn data_of_up_to_eight_bytes_stands_in_the_attribute() {
        let object = attr(1, 0, 0, 0, 7);
        let attrs = read(&[object, attr(2, 4, 0, 0, 0x1_0000_0005)]).unwrap();
        assert_eq!(attrs.bytes(2), Ok(5u32.to_ne_bytes().to_vec()));
        assert_eq!(attrs.flags(2, 7), Ok(5));
        assert_eq!(attrs.flags(2, 3), Err(libc::EINVAL));
        assert_eq!(attrs.flags(3, 3), Ok(0));
    }

    #[test]
    fn choices_have_their_sizes() {
        let choose = |choice: u16, len| {
            let attrs = read(&[attr(1, 0, 0, 0, 7), attr(3, len, 0, choice, 0)]).unwrap();
            attrs.choice(3, &[2, 0])
        };
        assert_eq!(choose(0, 2), Ok(0));
        assert_eq!(choose(1, 0), Ok(1));
        assert_eq!(choose(0, 0), Err(libc::EINVAL));
        assert_eq!(choose(2, 0), Err(libc::EOPNOTSUPP));
        assert_eq!(choose(1 << 8, 2), Err(libc::EINVAL), "reserved");
    }
}
