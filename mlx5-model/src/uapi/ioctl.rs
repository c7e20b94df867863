//! Handler of `ioctl(2)` on a device (`RDMA_VERBS_IOCTL`): the methods that have no write()
//! command.
//!
//! Invariants: a request is checked as the kernel checks it (`ib_uverbs_cmd_verbs`) before it has
//! any effect. Every other method fails with `EPROTONOSUPPORT`, after which libibverbs uses
//! write().

use std::ffi::c_ulong;

use crate::abi::*;
use crate::device::clock::PAGE;
use crate::process::memory::copy_from_user;
use crate::process::{Errno, refuse_if};
use crate::settings;

use super::attrs::{AttrSpec, Attrs};
use super::commands::{counters, matcher};
use super::file::UverbsFile;
use super::trace;

/// An ioctl method: its object and number, its attributes, and the function that executes it.
struct Method {
    name: &'static str,
    object: u32,
    number: u32,
    specs: &'static [AttrSpec],
    run: fn(&UverbsFile, &Attrs) -> Result<(), Errno>,
}

impl Method {
    /// Returns `true` if the ioctl method destroys an object; a dead device still allows that.
    fn destroys(&self) -> bool {
        self.name.contains("_DESTROY")
    }
}

macro_rules! methods {
    ($($object:ident.$number:ident($specs:path) => $run:path;)*) => {
        static METHODS: &[Method] = &[$(Method {
            name: stringify!($number),
            object: $object,
            number: $number,
            specs: $specs,
            run: $run,
        }),*];
    };
}

methods! {
    UVERBS_OBJECT_COUNTERS.UVERBS_METHOD_COUNTERS_CREATE(counters::CREATE) => counters::create;
    UVERBS_OBJECT_COUNTERS.UVERBS_METHOD_COUNTERS_DESTROY(counters::DESTROY) => counters::destroy;
    UVERBS_OBJECT_COUNTERS.UVERBS_METHOD_COUNTERS_READ(counters::READ) => counters::read;
    MLX5_IB_OBJECT_FLOW_MATCHER.MLX5_IB_METHOD_FLOW_MATCHER_CREATE(matcher::CREATE) => matcher::create;
    MLX5_IB_OBJECT_FLOW_MATCHER.MLX5_IB_METHOD_FLOW_MATCHER_DESTROY(matcher::DESTROY) => matcher::destroy;
    UVERBS_OBJECT_FLOW.MLX5_IB_METHOD_CREATE_FLOW(matcher::CREATE_FLOW) => matcher::create_flow;
    UVERBS_OBJECT_FLOW.MLX5_IB_METHOD_DESTROY_FLOW(matcher::DESTROY_FLOW) => matcher::destroy_flow;
}

/// Executes one ioctl method with the kernel's checks and results.
pub fn ioctl(file: &UverbsFile, request: c_ulong, arg: u64) -> Result<(), Errno> {
    // The kernel reads the request as 32 bits, whatever the C library passes.
    if request as u32 != libc::_IOWR::<ib_uverbs_ioctl_hdr>(RDMA_IOCTL_MAGIC, 1) as u32 {
        return Err(libc::ENOTTY);
    }
    let (header, bytes) = read_request(arg)?;
    let method = METHODS
        .iter()
        .find(|method| {
            method.object == u32::from(header.object_id)
                && method.number == u32::from(header.method_id)
        })
        .ok_or(libc::EPROTONOSUPPORT)?;
    let result = run(file, method, &bytes, arg);
    if settings::global().debug {
        trace::print(file, format_args!("ioctl {}", method.name), result);
    }
    result
}

/// Reads header and attributes of an ioctl request, checked as `ib_uverbs_ioctl` does.
fn read_request(arg: u64) -> Result<(ib_uverbs_ioctl_hdr, Vec<u8>), Errno> {
    const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>();
    let mut bytes = vec![0; HEADER];
    copy_from_user(arg, &mut bytes)?;
    let header: ib_uverbs_ioctl_hdr = read_from(&bytes).ok_or(libc::EINVAL)?;
    let attrs = usize::from(header.num_attrs) * size_of::<ib_uverbs_attr>();
    if usize::from(header.length) > PAGE || usize::from(header.length) != HEADER + attrs {
        return Err(libc::EINVAL);
    }
    if header.reserved1 != 0 || header.reserved2 != 0 {
        return Err(libc::EPROTONOSUPPORT);
    }
    refuse_if(header.driver_id != RDMA_DRIVER_MLX5, libc::EINVAL)?;
    bytes.resize(attrs, 0);
    copy_from_user(arg.wrapping_add(HEADER as u64), &mut bytes)?;
    Ok((header, bytes))
}

fn run(file: &UverbsFile, method: &Method, bytes: &[u8], arg: u64) -> Result<(), Errno> {
    let attrs = Attrs::read(method.specs, bytes, arg)?;
    refuse_if(!file.has_context(), libc::EINVAL)?;
    file.check_alive(method.destroys())?;
    (method.run)(file, &attrs)
}
