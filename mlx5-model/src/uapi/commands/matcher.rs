//! Commands for mlx5dv's flow matchers and their rules (`drivers/infiniband/hw/mlx5/fs.c`). They
//! have match criteria in the NIC's layout, and an action that verbs lack: passing frames to the
//! host's stack.

use std::mem::size_of;

use rustix::thread::CapabilitySet;

use crate::abi::*;
use crate::device::object::{FlowObject, FlowRules, MatcherObject};
use crate::process::{Errno, refuse_if};
use crate::steering::{Fate, FlowAction, LAST_PRIORITY, TableId, match_param};

use super::super::attrs::{
    AttrKind::{Choice, In, New, Object, Unknown},
    AttrSpec, Attrs, find, find_unused,
};
use super::UverbsFile;
use super::flow::{EGRESS, match_caps};

const MATCH_PARAMS: u16 = size_of::<mlx5_ib_match_params>() as u16;
/// Size in bytes of the data of each flow type (`enum mlx5_ib_flow_type`): NORMAL has its priority.
const FLOW_TYPES: [u16; 4] = [2, 0, 0, 0];

pub const CREATE: &[AttrSpec] = &[
    AttrSpec::mandatory(MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE, New),
    AttrSpec::mandatory(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK, In(1, MATCH_PARAMS)),
    AttrSpec::mandatory(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE, Choice),
    AttrSpec::mandatory(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA, In(1, 1)),
    AttrSpec::optional(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS, In(4, 8)),
    AttrSpec::optional(MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE, In(8, 8)),
];
pub const DESTROY: &[AttrSpec] = &[AttrSpec::mandatory(
    MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE,
    Object,
)];
pub const CREATE_FLOW: &[AttrSpec] = &[
    AttrSpec::mandatory(MLX5_IB_ATTR_CREATE_FLOW_HANDLE, New),
    AttrSpec::mandatory(MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE, In(1, MATCH_PARAMS)),
    AttrSpec::mandatory(MLX5_IB_ATTR_CREATE_FLOW_MATCHER, Object),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_DEST_QP, Object),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX, Unknown),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_ARR_FLOW_ACTIONS, Unknown),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_TAG, In(4, 4)),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX, Unknown),
    AttrSpec::optional(MLX5_IB_ATTR_CREATE_FLOW_FLAGS, In(4, 8)),
];
pub const DESTROY_FLOW: &[AttrSpec] = &[AttrSpec::mandatory(
    MLX5_IB_ATTR_DESTROY_FLOW_HANDLE,
    Object,
)];

pub fn create(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let flow_type = attrs.choice(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE, &FLOW_TYPES)?;
    let criteria = attrs.bytes(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA)?;
    let matcher = MatcherObject {
        mask: attrs.bytes(MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK)?,
        criteria: criteria.first().copied().unwrap_or(0),
        is_normal: flow_type == MLX5_IB_FLOW_TYPE_NORMAL,
        priority: attrs.number(MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE)? as u16,
        receives: is_receive_table(attrs)?,
    };
    let mut state = file.lock();
    let handle = state.matchers.insert(file.context(), matcher)?;
    drop(state);
    attrs.reply_handle(MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE, handle)
}

/// Returns `true` if the flow matcher's rules are for received frames (`mlx5_ib_matcher_ns`); sent
/// frames are not steered.
fn is_receive_table(attrs: &Attrs) -> Result<bool, Errno> {
    let (table, flags) = (
        MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE,
        MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS,
    );
    if !attrs.has(table) {
        return Ok(attrs.flags(flags, EGRESS)? == 0);
    }
    let known = MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX..=MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX;
    let number = u32::try_from(attrs.number(table)?).map_err(|_| libc::EINVAL)?;
    refuse_if(attrs.has(flags) || !known.contains(&number), libc::EINVAL)?;
    Ok(number == MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX)
}

pub fn destroy(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE)?;
    let mut state = file.lock();
    let index = find_unused(&state.matchers, handle, file.context())?;
    state.matchers.remove(index);
    Ok(())
}

pub fn create_flow(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let context = file.context();
    let mut state = file.lock();
    let handle = attrs.handle(MLX5_IB_ATTR_CREATE_FLOW_MATCHER)?;
    let matcher = find(&state.matchers, handle, context)?;
    let qp = if attrs.has(MLX5_IB_ATTR_CREATE_FLOW_DEST_QP) {
        let handle = attrs.handle(MLX5_IB_ATTR_CREATE_FLOW_DEST_QP)?;
        Some(find(&state.qps, handle, context)?)
    } else {
        None
    };
    file.require(CapabilitySet::NET_RAW)?;
    let to = qp.map(|qp| state.destination(qp)).transpose()?;
    let fate = fate(attrs, to.map(Fate::Forward))?;
    let tag = tag(attrs)?;
    let criteria = state.matchers.at(matcher).ok_or(libc::ENOENT)?;
    refuse_if(!criteria.is_normal, libc::EOPNOTSUPP)?;
    refuse_if(criteria.priority > LAST_PRIORITY, libc::ENOMEM)?;
    refuse_if(!criteria.receives, libc::EOPNOTSUPP)?;
    let value = attrs.bytes(MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE)?;
    let caps = match_caps(file);
    let parsed = match_param::parse(&criteria.mask, &value, criteria.criteria, caps)?;
    let table = if parsed.multicast_only {
        TableId::Multicast
    } else {
        TableId::Normal {
            priority: criteria.priority,
            traps: true,
        }
    };
    let action = FlowAction {
        fate,
        tag,
        counters: None,
    };
    let flow = FlowObject {
        // A matcher belongs to the device; its rules steer the first port.
        port: 0,
        qp,
        matcher: Some(matcher),
        counters: None,
        rules: FlowRules::Entries(vec![(table, parsed.rule)], action),
    };
    let handle = state.add_flow(context, flow)?;
    drop(state);
    attrs.reply_handle(MLX5_IB_ATTR_CREATE_FLOW_HANDLE, handle)
}

/// Decides how a flow rule treats its frames (`get_dests` of the driver): forward to a QP, pass to
/// the host's stack, or drop. The firmware refuses an entry with several of these or none.
fn fate(attrs: &Attrs, to: Option<Fate>) -> Result<Fate, Errno> {
    let miss = MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS;
    let drop = MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP;
    match (
        to,
        attrs.flags(MLX5_IB_ATTR_CREATE_FLOW_FLAGS, miss | drop)?,
    ) {
        (Some(to), 0) => Ok(to),
        (None, flags) if flags == miss => Ok(Fate::Host),
        (None, flags) if flags == drop => Ok(Fate::Drop),
        _ => Err(libc::EINVAL),
    }
}

fn tag(attrs: &Attrs) -> Result<Option<u32>, Errno> {
    if !attrs.has(MLX5_IB_ATTR_CREATE_FLOW_TAG) {
        return Ok(None);
    }
    let tag = attrs.number(MLX5_IB_ATTR_CREATE_FLOW_TAG)? as u32;
    if tag < 1 << 24 {
        Ok(Some(tag))
    } else {
        Err(libc::EINVAL)
    }
}

pub fn destroy_flow(file: &UverbsFile, attrs: &Attrs) -> Result<(), Errno> {
    let handle = attrs.handle(MLX5_IB_ATTR_DESTROY_FLOW_HANDLE)?;
    let mut state = file.lock();
    let index = find(&state.flows, handle, file.context())?;
    state.remove_flow(index);
    Ok(())
}
