//! Commands for flow counters, and the driver's part of a rule, which defines the values that a
//! read returns (`drivers/infiniband/hw/mlx5/counters.c`).

use std::mem::{offset_of, size_of};

use crate::abi::*;
use crate::device::object::CountersObject;
use crate::device::state::DeviceState;
use crate::handles::Index;
use crate::process::memory::copy_from_user;
use crate::process::{Errno, refuse_if};

use super::super::attrs::{
    AttrKind::{In, New, Object, Out},
    AttrSpec, Attrs, find, find_unused,
};
use super::{UverbsFile, UverbsRequest};

/// Number of values that flow counters can describe: `IB_COUNTER_PACKETS` and `IB_COUNTER_BYTES`,
/// which no uAPI header defines.
const DESCRIPTIONS: u32 = 2;
/// Maximum number of flow counter descriptions that a rule may pass: `MAX_COUNTERS_NUM`.
const MAX_DESCRIBED: u32 = u16::MAX as u32 / 8;

pub const CREATE: &[AttrSpec] = &[AttrSpec::mandatory(UVERBS_ATTR_CREATE_COUNTERS_HANDLE, New)];
pub const DESTROY: &[AttrSpec] = &[AttrSpec::mandatory(
    UVERBS_ATTR_DESTROY_COUNTERS_HANDLE,
    Object,
)];
pub const READ: &[AttrSpec] = &[
    AttrSpec::mandatory(UVERBS_ATTR_READ_COUNTERS_HANDLE, Object),
    AttrSpec::mandatory(UVERBS_ATTR_READ_COUNTERS_BUFF, Out),
    AttrSpec::optional(UVERBS_ATTR_READ_COUNTERS_FLAGS, In(4, 8)),
];

pub fn create(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let mut state = file.lock();
    let counters = &mut state.queues.counters;
    let handle = counters.insert(file.context(), CountersObject::default())?;
    drop(state);
    attrs.reply_handle(UVERBS_ATTR_CREATE_COUNTERS_HANDLE, handle)
}

pub fn destroy(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(UVERBS_ATTR_DESTROY_COUNTERS_HANDLE)?;
    let mut state = file.lock();
    let counters = &mut state.queues.counters;
    let index = find_unused(counters, handle, file.context())?;
    counters.remove(index);
    Ok(())
}

pub fn read(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(UVERBS_ATTR_READ_COUNTERS_HANDLE)?;
    let state = file.lock();
    let all = &state.queues.counters;
    let index = find(all, handle, file.context())?;
    refuse_if(all.users(index) == 0, libc::EINVAL)?;
    let counters = all.at(index).ok_or(libc::ENOENT)?;
    // Cached values are allowed; the model always reads current ones.
    attrs.flags(
        UVERBS_ATTR_READ_COUNTERS_FLAGS,
        IB_UVERBS_READ_COUNTERS_PREFER_CACHED,
    )?;
    let mut numbers = vec![0u64; attrs.room(UVERBS_ATTR_READ_COUNTERS_BUFF)? / size_of::<u64>()];
    for &(description, index) in &counters.layout {
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

/// Returns the flow counter layout that the driver's part of EX_CREATE_FLOW defines, as
/// (description, index) pairs; `None` without one. Fails as `mlx5_ib_create_flow` and
/// `mlx5_ib_flow_counters_set_data` do.
pub fn layout(request: &UverbsRequest<'_>) -> Result<Option<Vec<(u32, u32)>>, Errno> {
    let bytes = request.driver_bytes();
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
    refuse_if(data.ncounters > MAX_DESCRIBED, libc::EINVAL)?;
    const ONE: usize = size_of::<mlx5_ib_flow_counters_desc>();
    let mut bytes = vec![0; data.ncounters as usize * ONE];
    copy_from_user(data.counters_data, &mut bytes)?;
    let pairs = bytes.chunks_exact(ONE).map(|bytes| {
        let pair: mlx5_ib_flow_counters_desc = read_prefix(bytes);
        (pair.description, pair.index)
    });
    Ok(Some(pairs.collect()))
}

/// Binds flow counters to one more rule. The first rule must define the layout of their values, the
/// others must not: otherwise fails with `EINVAL`, as for an unknown description.
pub fn bind(
    state: &mut DeviceState,
    index: Index,
    layout: Option<Vec<(u32, u32)>>,
) -> Result<(), Errno> {
    let counters = state.queues.counters.at_mut(index).ok_or(libc::EINVAL)?;
    match layout {
        Some(_) if !counters.layout.is_empty() => return Err(libc::EINVAL),
        Some(layout) => {
            let exists = |&(description, _): &(u32, u32)| description < DESCRIPTIONS;
            refuse_if(!layout.iter().all(exists), libc::EINVAL)?;
            counters.layout = layout;
        }
        None if counters.layout.is_empty() => return Err(libc::EINVAL),
        None => {}
    }
    state.queues.counters.add_user(index);
    Ok(())
}
