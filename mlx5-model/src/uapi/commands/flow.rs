//! Commands for flow rules by verbs: EX_CREATE_FLOW with the checks of kernel and driver.

use rustix::thread::CapabilitySet;

use crate::abi::*;
use crate::device::object::{FlowObject, FlowRules};
use crate::process::{Errno, refuse_if};
use crate::steering::flow_spec::{MAX_SPECS, parse};
use crate::steering::{Fate, FlowAction, LAST_PRIORITY, MatchCaps, TableId, leftovers};

use super::{UverbsFile, UverbsRequest, counters};

/// `enum ib_flow_attr_type`, which no uAPI header defines.
mod attr_type {
    pub const NORMAL: u32 = 0;
    pub const ALL_DEFAULT: u32 = 1;
    pub const MC_DEFAULT: u32 = 2;
    pub const SNIFFER: u32 = 3;
}

/// Flag of `enum ib_flow_flags`: frames also go to the flow rules behind this one.
const DONT_TRAP: u32 = 1 << 1;
/// Flag of `enum ib_flow_flags`: the flow rule is for sent frames, which are not steered.
pub const EGRESS: u32 = 1 << 2;
const RESERVED: u32 = 1 << 3;

/// Returns the matching capabilities of the device's flow tables.
pub fn match_caps(file: &UverbsFile) -> MatchCaps {
    let caps = file.caps();
    MatchCaps {
        tunnels: caps.tunnel_offloads,
        mpls: caps.mpls,
        esp: caps.esp,
        fragment_protocol: caps.fragment_protocol,
    }
}

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let (command, rest) = request.core_and_rest::<ib_uverbs_create_flow>()?;
    let attr = &command.flow_attr;
    let specs = check(file, &command, rest)?;
    let mut state = file.lock();
    let port = state.port_index(u32::from(attr.port))?;
    let qp = state.qps.find(command.qp_handle, file.context())?;
    let to = state.destination(qp)?;
    let parsed = parse(specs, attr.num_of_specs, match_caps(file))?;
    let counters = parsed
        .counters
        .map(|handle| state.queues.counters.find(handle, file.context()))
        .transpose()?;
    let layout = counters::layout(request)?;
    refuse_if(attr.priority > LAST_PRIORITY, libc::ENOMEM)?;
    refuse_if(attr.flags & EGRESS != 0, libc::EOPNOTSUPP)?;
    let is_sniffer = attr.type_ == attr_type::SNIFFER;
    refuse_if(!file.caps().rwq && !is_sniffer, libc::EOPNOTSUPP)?;
    let table = if parsed.multicast_only && attr.flags & DONT_TRAP == 0 {
        TableId::Multicast
    } else {
        TableId::Normal {
            priority: attr.priority,
            traps: attr.flags & DONT_TRAP == 0,
        }
    };
    let action = FlowAction {
        fate: if parsed.drop {
            Fate::Drop
        } else {
            Fate::Forward(to)
        },
        tag: parsed.tag,
        counters,
    };
    let is_default = matches!(attr.type_, attr_type::ALL_DEFAULT | attr_type::MC_DEFAULT);
    refuse_if(is_default && parsed.tag.is_some(), libc::EINVAL)?;
    let all = [
        (TableId::Leftovers, leftovers(true)),
        (TableId::Leftovers, leftovers(false)),
    ];
    let rules = match attr.type_ {
        attr_type::NORMAL => FlowRules::Entries(vec![(table, parsed.rule)], action),
        attr_type::ALL_DEFAULT => FlowRules::Entries(all.to_vec(), action),
        attr_type::MC_DEFAULT => FlowRules::Entries(all[..1].to_vec(), action),
        attr_type::SNIFFER if is_sniffer_refused(file) => return Err(libc::EOPNOTSUPP),
        // As `bnxt_re_create_flow` of drivers/infiniband/hw/bnxt_re/ib_verbs.c.
        attr_type::SNIFFER if !file.caps().rwq && state.ports[port].steering.has_sniffers() => {
            return Err(libc::EBUSY);
        }
        attr_type::SNIFFER => FlowRules::Sniffer(to),
        _ => return Err(libc::EINVAL),
    };
    if let Some(index) = counters {
        counters::bind(&mut state, index, layout)?;
    }
    let flow = FlowObject {
        port,
        qp: Some(qp),
        matcher: None,
        counters,
        rules,
    };
    let flow_handle = state.add_flow(file.context(), flow)?;
    drop(state);
    request.reply(&ib_uverbs_create_flow_resp {
        comp_mask: 0,
        flow_handle,
    })
}

/// Returns `true` if the device has no flow tables for sniffer rules. The firmware gives them to
/// physical functions only: inferred. The driver refuses rules for tables that do not exist
/// (`get_flow_table` of drivers/infiniband/hw/mlx5/fs.c).
fn is_sniffer_refused(file: &UverbsFile) -> bool {
    !file.caps().sniffer || file.settings().topology.is_vf
}

/// Makes the kernel's checks of EX_CREATE_FLOW that need no object. Returns the bytes of the flow
/// specs.
fn check<'r>(
    file: &UverbsFile,
    command: &ib_uverbs_create_flow,
    rest: &'r [u8],
) -> Result<&'r [u8], Errno> {
    let attr = &command.flow_attr;
    refuse_if(command.comp_mask != 0, libc::EINVAL)?;
    file.require(CapabilitySet::NET_RAW)?;
    let is_default = matches!(attr.type_, attr_type::ALL_DEFAULT | attr_type::MC_DEFAULT);
    if attr.flags >= RESERVED || attr.flags & DONT_TRAP != 0 && is_default {
        return Err(libc::EINVAL);
    }
    if attr.num_of_specs > MAX_SPECS || attr.reserved != [0; 2] {
        return Err(libc::EINVAL);
    }
    let size = if attr.num_of_specs > 0 {
        usize::from(attr.size)
    } else {
        0
    };
    let specs = rest.get(..size).ok_or(libc::EINVAL)?;
    refuse_if(rest[size..].iter().any(|&byte| byte != 0), libc::EOPNOTSUPP)?;
    Ok(specs)
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_flow = request.core()?;
    refuse_if(command.comp_mask != 0, libc::EINVAL)?;
    let mut state = file.lock();
    let index = state.flows.find(command.flow_handle, file.context())?;
    state.remove_flow(index);
    Ok(())
}
