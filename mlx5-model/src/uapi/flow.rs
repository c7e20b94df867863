//! Flow rules: EX_CREATE_FLOW as the kernel and the driver check it.

use crate::abi::*;
use crate::device::nic::Session;
use crate::device::state::{Flow, FlowRules, QpBody, State};
use crate::objects::Index;
use crate::process::Errno;
use crate::process::capabilities;
use crate::steering::{
    Action, Destination, Fate, LAST_PRIORITY, MAX_SPECS, Match, Place, Sight, leftovers, parse,
};

use super::wq::lacks;
use super::{Request, counters};

/// `enum ib_flow_attr_type`, which no uAPI header names.
mod attr_type {
    pub const NORMAL: u32 = 0;
    pub const ALL_DEFAULT: u32 = 1;
    pub const MC_DEFAULT: u32 = 2;
    pub const SNIFFER: u32 = 3;
}

/// `enum ib_flow_flags`.
const DONT_TRAP: u32 = 1 << 1;
/// Rules for sent frames, which are not steered here.
pub const EGRESS: u32 = 1 << 2;
const RESERVED: u32 = 1 << 3;

/// What rules can look at.
pub fn sight(session: &Session) -> Sight {
    let caps = &session.device().settings().caps;
    Sight {
        tunnels: caps.tunnel_offloads,
        mpls: caps.mpls,
        esp: caps.esp,
    }
}

/// EX_CREATE_FLOW.
pub fn create(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let (command, rest) = request.core_and_rest::<ib_uverbs_create_flow>()?;
    let attr = &command.flow_attr;
    let specs = check(&command, rest)?;
    let mut state = session.lock();
    let port = state.port_index(u32::from(attr.port))?;
    let qp = state.qps.find(command.qp_handle, session.context())?;
    let to = destination(&state, qp)?;
    let parsed = parse(specs, attr.num_of_specs, sight(session))?;
    let counters = parsed
        .counters
        .map(|handle| state.rings.counters.find(handle, session.context()))
        .transpose()?;
    let wanted = counters::wanted(request)?;
    if attr.priority > LAST_PRIORITY {
        return Err(libc::ENOMEM);
    }
    if attr.flags & EGRESS != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let place = if parsed.multicast_only && attr.flags & DONT_TRAP == 0 {
        Place::Multicast
    } else {
        Place::Normal {
            priority: attr.priority,
            traps: attr.flags & DONT_TRAP == 0,
        }
    };
    let action = Action {
        fate: if parsed.drop {
            Fate::Drop
        } else {
            Fate::Forward(to)
        },
        tag: parsed.tag,
        counters,
    };
    let is_default = matches!(attr.type_, attr_type::ALL_DEFAULT | attr_type::MC_DEFAULT);
    if is_default && parsed.tag.is_some() {
        return Err(libc::EINVAL);
    }
    let all = [
        (Place::Leftovers, leftovers(true)),
        (Place::Leftovers, leftovers(false)),
    ];
    let rules = match attr.type_ {
        attr_type::NORMAL => FlowRules::Entries(vec![(place, parsed.rule)], action),
        attr_type::ALL_DEFAULT => FlowRules::Entries(all.to_vec(), action),
        attr_type::MC_DEFAULT => FlowRules::Entries(all[..1].to_vec(), action),
        attr_type::SNIFFER if session.device().settings().caps.sniffer => FlowRules::Sniffer(to),
        attr_type::SNIFFER => return Err(libc::EOPNOTSUPP),
        _ => return Err(libc::EINVAL),
    };
    if let Some(index) = counters {
        counters::bind(&mut state, index, wanted)?;
    }
    let flow = Flow {
        port,
        qp: Some(qp),
        matcher: None,
        counters,
        rules,
    };
    let flow_handle = install(&mut state, session.context(), flow)?;
    drop(state);
    request.reply(&ib_uverbs_create_flow_resp {
        comp_mask: 0,
        flow_handle,
    })
}

/// The kernel's checks that need no object; gives the specs' bytes.
fn check<'r>(command: &ib_uverbs_create_flow, rest: &'r [u8]) -> Result<&'r [u8], Errno> {
    let attr = &command.flow_attr;
    if command.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    if lacks(capabilities::NET_RAW) {
        return Err(libc::EPERM);
    }
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
    if rest[size..].iter().any(|&byte| byte != 0) {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(specs)
}

/// Where frames for a QP go.
pub fn destination(state: &State, qp: Index) -> Result<Destination, Errno> {
    match state.qps.at(qp).map(|qp| &qp.body) {
        Some(QpBody::Rss { tir, .. }) => Ok(Destination::Tir(*tir)),
        Some(QpBody::Raw { rq: Some(rq), .. }) => Ok(Destination::Rq(*rq)),
        _ => Err(libc::EINVAL),
    }
}

/// Puts a new rule into its port's tables; gives its handle. The counters are bound already.
pub fn install(state: &mut State, context: u32, flow: Flow) -> Result<u32, Errno> {
    // In use from here on, whatever comes: leaving is the same for a rule that was there and one that
    // could not be.
    if let Some(qp) = flow.qp.and_then(|qp| state.qps.at_mut(qp)) {
        qp.flows += 1;
    }
    if let Some(matcher) = flow.matcher.and_then(|it| state.matchers.at_mut(it)) {
        matcher.users += 1;
    }
    if let Err(errno) = add(state, &flow) {
        state.leave_flow(&flow);
        return Err(errno);
    }
    let now_ns = state.clock.now_ns();
    if let Some(port) = state.ports.get_mut(flow.port) {
        port.rules_changed(now_ns);
    }
    state.flows.insert(context, flow)
}

fn add(state: &mut State, flow: &Flow) -> Result<(), Errno> {
    let port = state.ports.get_mut(flow.port).ok_or(libc::EINVAL)?;
    match &flow.rules {
        FlowRules::Sniffer(to) => port.steering.sniff(*to),
        FlowRules::Entries(entries, action) => {
            let mut done: Vec<&(Place, Match)> = Vec::new();
            for entry in entries {
                if let Err(errno) = port.steering.add(entry.0, &entry.1, *action) {
                    done.iter()
                        .for_each(|entry| port.steering.remove(entry.0, &entry.1, *action));
                    return Err(errno);
                }
                done.push(entry);
            }
        }
    }
    Ok(())
}

/// EX_DESTROY_FLOW.
pub fn destroy(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_flow = request.core()?;
    if command.comp_mask != 0 {
        return Err(libc::EINVAL);
    }
    let mut state = session.lock();
    let index = state.flows.find(command.flow_handle, session.context())?;
    state.remove_flow(index);
    Ok(())
}
