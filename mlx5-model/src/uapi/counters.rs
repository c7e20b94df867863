//! Flow counters: objects that rules count frames and bytes in, and the driver's part of a rule that
//! says which number is wanted where (`drivers/infiniband/hw/mlx5/counters.c`).

use std::mem::{offset_of, size_of};

use crate::abi::*;
use crate::device::memory::{copy_from_user, read_from, read_prefix};
use crate::device::nic::Session;
use crate::device::state::{FlowCounters, State};
use crate::objects::Index;
use crate::process::Errno;

use super::Request;
use super::ioctl::{Attrs, Kind, Spec};

/// `IB_COUNTER_PACKETS` and `IB_COUNTER_BYTES`, which no uAPI header names: descriptions below this.
const DESCRIPTIONS: u32 = 2;
/// `MAX_COUNTERS_NUM`.
const MAX_DESCRIBED: u32 = u16::MAX as u32 / 8;

/// Attributes of UVERBS_METHOD_COUNTERS_CREATE.
pub const CREATE: &[Spec] = &[Spec::mandatory(
    UVERBS_ATTR_CREATE_COUNTERS_HANDLE,
    Kind::New,
)];
/// Attributes of UVERBS_METHOD_COUNTERS_DESTROY.
pub const DESTROY: &[Spec] = &[Spec::mandatory(
    UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
    Kind::Object,
)];
/// Attributes of UVERBS_METHOD_COUNTERS_READ.
pub const READ: &[Spec] = &[
    Spec::mandatory(UVERBS_ATTR_READ_COUNTERS_HANDLE, Kind::Object),
    Spec::mandatory(UVERBS_ATTR_READ_COUNTERS_BUFF, Kind::Out),
    Spec::optional(UVERBS_ATTR_READ_COUNTERS_FLAGS, Kind::In(4, 8)),
];

/// UVERBS_METHOD_COUNTERS_CREATE.
pub fn create(session: &Session, attrs: &Attrs) -> Result<(), Errno> {
    let mut state = session.lock();
    let counters = &mut state.rings.counters;
    let handle = counters.insert(session.context(), FlowCounters::default())?;
    drop(state);
    attrs.reply_handle(UVERBS_ATTR_CREATE_COUNTERS_HANDLE, handle)
}

/// UVERBS_METHOD_COUNTERS_DESTROY.
pub fn destroy(session: &Session, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(UVERBS_ATTR_DESTROY_COUNTERS_HANDLE)?;
    let mut state = session.lock();
    let counters = &mut state.rings.counters;
    let index = counters
        .find(handle, session.context())
        .map_err(|_| libc::ENOENT)?;
    if counters
        .at(index)
        .is_some_and(|counters| counters.users > 0)
    {
        return Err(libc::EBUSY);
    }
    counters.remove(index);
    Ok(())
}

/// UVERBS_METHOD_COUNTERS_READ.
pub fn read(session: &Session, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(UVERBS_ATTR_READ_COUNTERS_HANDLE)?;
    let state = session.lock();
    let counters = state
        .rings
        .counters
        .get(handle, session.context())
        .map_err(|_| libc::ENOENT)?;
    if counters.users == 0 {
        return Err(libc::EINVAL);
    }
    // A number as it was a moment ago would do as well: there is no other here than the present one.
    attrs.flags(
        UVERBS_ATTR_READ_COUNTERS_FLAGS,
        IB_UVERBS_READ_COUNTERS_PREFER_CACHED,
    )?;
    let mut numbers = vec![0u64; attrs.room(UVERBS_ATTR_READ_COUNTERS_BUFF)? / size_of::<u64>()];
    for &(description, index) in &counters.wanted {
        let number = numbers.get_mut(index as usize).ok_or(libc::EINVAL)?;
        *number += [counters.packets, counters.bytes][description as usize];
    }
    drop(state);
    let bytes: Vec<u8> = numbers
        .iter()
        .flat_map(|number| number.to_ne_bytes())
        .collect();
    attrs.reply(UVERBS_ATTR_READ_COUNTERS_BUFF, &bytes)
}

/// What the driver's part of EX_CREATE_FLOW wants counted, as (description, index) pairs; nothing if it
/// does not say.
///
/// # Errors
/// As `mlx5_ib_create_flow` and `mlx5_ib_flow_counters_set_data`.
pub fn wanted(request: &Request<'_>) -> Result<Option<Vec<(u32, u32)>>, Errno> {
    let bytes = request.driver;
    if bytes.is_empty() {
        return Ok(None);
    }
    let header: mlx5_ib_create_flow = read_from(bytes).ok_or(libc::EOPNOTSUPP)?;
    let rest = bytes
        .get(offset_of!(mlx5_ib_create_flow, data)..)
        .unwrap_or(&[]);
    let known = match header.ncounters_data {
        0 => 0,
        1 => size_of::<mlx5_ib_flow_counters_data>(),
        _ => return Err(libc::EINVAL),
    };
    if rest.iter().skip(known).any(|&byte| byte != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    if known == 0 {
        return Ok(None);
    }
    let data: mlx5_ib_flow_counters_data = read_prefix(rest);
    if data.ncounters > MAX_DESCRIBED {
        return Err(libc::EINVAL);
    }
    const ONE: usize = size_of::<mlx5_ib_flow_counters_desc>();
    let mut bytes = vec![0; data.ncounters as usize * ONE];
    copy_from_user(data.counters_data, &mut bytes)?;
    let pairs = bytes.chunks_exact(ONE).map(|bytes| {
        let pair: mlx5_ib_flow_counters_desc = read_prefix(bytes);
        (pair.description, pair.index)
    });
    Ok(Some(pairs.collect()))
}

/// Binds counters to one more rule: the first says what is wanted of them, the others must not.
///
/// # Errors
/// `EINVAL` if the first does not say, or another does, or it is nothing that is counted.
pub fn bind(state: &mut State, index: Index, wanted: Option<Vec<(u32, u32)>>) -> Result<(), Errno> {
    let counters = state.rings.counters.at_mut(index).ok_or(libc::EINVAL)?;
    match wanted {
        Some(_) if !counters.wanted.is_empty() => return Err(libc::EINVAL),
        Some(wanted) => {
            let sound = |&(description, _): &(u32, u32)| description < DESCRIPTIONS;
            if !wanted.iter().all(sound) {
                return Err(libc::EINVAL);
            }
            counters.wanted = wanted;
        }
        None if counters.wanted.is_empty() => return Err(libc::EINVAL),
        None => {}
    }
    counters.users += 1;
    Ok(())
}
