//! A plan's verbs objects: created in order, taken down in order, and nothing else.

use crate::{
    Error, clock,
    plan::{Plan, Stamps},
    rx::{Ring, RingAttr, system_ns},
    steer::{self, RulePlan, SIDES, Spread, Steering},
    verbs::{Context, Flow, FlowRule, Pd, RssQp, RwqTable, WqHandle},
};
use rss::key::RssKey;

/// Everything on a port but the rings, which their loops own.
///
/// The order of the fields is the order of teardown: rules first, so that nothing more arrives, then QPs, then the
/// tables. WQs, CQs and memory go with the last of table and ring.
pub struct Port {
    flows: Vec<Flow>,
    /// By rule: which of its two priorities it stands on.
    sides: Vec<u16>,
    qps: Vec<RssQp>,
    tables: Vec<(Spread, RwqTable)>,
    /// By queue.
    wqs: Vec<WqHandle>,
    pd: Pd,
    context: Context,
    _promiscuous: Option<promisc::Membership>,
}

impl Port {
    /// Opens the device.
    ///
    /// # Errors
    /// A verb's.
    pub fn open(plan: &Plan) -> Result<Self, Error> {
        let context = Context::open(&plan.device.name)?;
        let pd = Pd::alloc(&context)?;
        Ok(Self {
            flows: Vec::new(),
            sides: Vec::new(),
            qps: Vec::new(),
            tables: Vec::new(),
            wqs: Vec::new(),
            pd,
            context,
            _promiscuous: None,
        })
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Makes one queue's ring, ready and full of WRs.
    ///
    /// # Errors
    /// A verb's, or memory's.
    pub fn ring(&self, plan: &Plan, queue: u16) -> Result<Ring, Error> {
        let attr = RingAttr {
            wrs: plan.ring,
            buffer: plan.buffer,
            max_sge: plan.max_sge,
            flags: plan.wq_flags,
            // One vector serves all: a loop that polls needs none, a sleeper is woken wherever it runs.
            vector: 0,
            timestamps: plan.stamps != Stamps::Software,
            restore_vlan: plan.restore_vlan,
            channel: plan.sleep,
            direct: plan.direct,
            numa_node: plan.device.numa_node,
        };
        Ring::create(&self.context, &self.pd, attr).map_err(|e| match e {
            Error::Verb {
                verb,
                object,
                source,
                hint,
            } => Error::Verb {
                verb,
                object: format!("queue {queue}: {object}"),
                source,
                hint,
            },
            other => other,
        })
    }

    /// Makes the tables over the rings' WQs and the RSS QPs over the tables. Nothing arrives yet.
    ///
    /// # Errors
    /// A verb's.
    pub fn spread(&mut self, plan: &Plan, rings: &[Ring]) -> Result<(), Error> {
        self.wqs = rings.iter().map(|ring| ring.wq().handle()).collect();
        for qp in &plan.steering.qps {
            let table = match self.tables.iter().find(|(spread, _)| *spread == qp.spread) {
                Some((_, table)) => table.clone(),
                None => {
                    let queues = match qp.spread {
                        Spread::Table => plan.table.clone(),
                        Spread::Queue(queue) => vec![queue],
                    };
                    let table = self.table(&queues)?;
                    self.tables.push((qp.spread, table.clone()));
                    table
                }
            };
            self.qps.push(RssQp::create(
                &self.pd,
                &table,
                &plan.key,
                qp.hash_fields(),
            )?);
        }
        Ok(())
    }

    /// A table over the rings' WQs.
    fn table(&self, queues: &[u16]) -> Result<RwqTable, Error> {
        let wqs = queues.iter().map(|q| self.wqs[usize::from(*q)].clone());
        RwqTable::create(&self.context, wqs)
    }

    /// Lets another table take the place of the shared one, frames flowing.
    ///
    /// Each rule that spreads has two priorities, side by side, with nothing else on either ([`crate::steer::SIDES`]).
    /// One of them is free. The rule is installed there once more, to a new QP over the new table, before the old one
    /// goes. If the new one stands in front, it takes over the moment it is there; if it stands behind, the moment the
    /// old one is gone. In between no frame finds no rule, none finds two of one priority, and what stood before and
    /// behind the rule still does. The WQs are the same all along, so what the old QPs have already put on them stays.
    ///
    /// # Errors
    /// The plan leaves no room for it, or a verb's. Rules swapped by then lead to the new QPs, the others to the old:
    /// every frame arrives once all the same.
    pub fn respread(&mut self, spreading: &Spreading, table: &[u16]) -> Result<(), Error> {
        if !spreading.steering.has_sides {
            return Err(Error::Config {
                key: "rss.respread".into(),
                value: "true".into(),
                problem: format!(
                    "the rules stand on more than {} priorities, and each would need a second one to be swapped",
                    steer::MOST_RANKS
                ),
            });
        }
        let table = self.table(table)?;
        let mut qps = self.qps.clone();
        for (qp, planned) in qps.iter_mut().zip(&spreading.steering.qps) {
            if planned.spread == Spread::Table {
                *qp = RssQp::create(&self.pd, &table, &spreading.key, planned.hash_fields())?;
            }
        }
        for (i, rule) in spreading.steering.rules.iter().enumerate() {
            if spreading.steering.qps[rule.qp].spread != Spread::Table {
                continue;
            }
            let side = SIDES - 1 - self.sides[i];
            let new = Flow::create(&qps[rule.qp], &flow(spreading.port, rule, side))?;
            // The old one goes here, after the new one has come.
            self.flows[i] = new;
            self.sides[i] = side;
        }
        self.qps = qps;
        self.tables.retain(|(spread, _)| *spread != Spread::Table);
        self.tables.push((Spread::Table, table));
        Ok(())
    }

    /// Installs the rules, the most special first: from the last one on, every frame of the port arrives.
    ///
    /// # Errors
    /// A verb's, or promiscuous mode cannot be joined.
    pub fn let_in(&mut self, plan: &Plan) -> Result<(), Error> {
        if let Some(netdev) = plan.netdev.as_deref().filter(|_| plan.promiscuous) {
            self._promiscuous = promisc::Membership::join(netdev)?;
        }
        for rule in &plan.steering.rules {
            let flow = flow(plan.port, rule, 0);
            self.flows.push(Flow::create(&self.qps[rule.qp], &flow)?);
            self.sides.push(0);
        }
        Ok(())
    }

    /// Takes the rules away: nothing more arrives on the rings.
    pub fn shut(&mut self) {
        // The catch-all first, or frames of a rule already gone would still land on it.
        while self.flows.pop().is_some() {}
        self._promiscuous = None;
    }

    /// One reading of the device's clock beside the system's, the tightest of a few.
    ///
    /// # Errors
    /// The device cannot be asked for its clock.
    pub fn read_clock(&self) -> Result<(u64, u64), Error> {
        let mut best: Option<(u64, u64, u64)> = None;
        for _ in 0..5 {
            let before = system_ns();
            let ticks = self.context.query_clock()?;
            let width = system_ns().saturating_sub(before);
            if best.is_none_or(|(w, ..)| width < w) {
                best = Some((width, ticks, before + width / 2));
            }
        }
        Ok(best.map_or((0, 0), |(_, ticks, ns)| (ticks, ns)))
    }

    /// The line from the device's ticks to nanoseconds, at its nominal rate.
    ///
    /// # Errors
    /// The device cannot be asked for its clock.
    pub fn conversion(&self, plan: &Plan) -> Result<clock::Conversion, Error> {
        let (ticks, ns) = self.read_clock()?;
        Ok(clock::Conversion::new(
            ticks,
            ns,
            plan.device.caps.clock_khz,
        ))
    }
}

/// What swapping the rules over takes to know of a plan.
#[derive(Clone, Debug)]
pub struct Spreading {
    steering: Steering,
    key: RssKey,
    port: u8,
}

impl Spreading {
    /// Of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            steering: plan.steering.clone(),
            key: plan.key,
            port: plan.port,
        }
    }
}

/// A planned rule on one of its priorities.
fn flow(port: u8, rule: &RulePlan, side: u16) -> FlowRule {
    FlowRule {
        port,
        kind: rule.kind,
        priority: rule.priority + side,
        specs: rule.specs.clone(),
    }
}

/// Promiscuous mode of a network interface, as a packet socket's membership: the kernel undoes it when the socket
/// goes, even after `kill -9`.
mod promisc {
    #![allow(unsafe_code)]

    use crate::Error;
    use std::{
        ffi::CString,
        io, mem,
        os::fd::{AsRawFd, FromRawFd, OwnedFd},
    };

    /// A joined interface.
    pub struct Membership(#[allow(dead_code, reason = "held for its drop")] OwnedFd);

    impl Membership {
        /// Joins; `None` where no such interface exists (a software NIC on a replayed wire has none).
        pub fn join(netdev: &str) -> Result<Option<Self>, Error> {
            let failed = |what: &str| {
                let source = io::Error::last_os_error();
                let hint = match source.raw_os_error() {
                    Some(libc::EPERM) => {
                        "; it needs CAP_NET_RAW, or set capture.promiscuous = false"
                    }
                    _ => "",
                };
                Error::System {
                    what: format!("capture.promiscuous: {what} on {netdev}{hint}"),
                    source,
                }
            };
            if !is_kernels(netdev) {
                return Ok(None);
            }
            let name = CString::new(netdev).unwrap_or_default();
            // SAFETY: a NUL-terminated name.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            if index == 0 {
                return Ok(None);
            }
            // Protocol 0: the socket itself receives nothing.
            // SAFETY: a plain system call; the descriptor is owned from here on.
            let fd =
                unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
            if fd < 0 {
                return Err(failed("a packet socket"));
            }
            // SAFETY: a new descriptor nobody else has.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: a zeroed packet_mreq is valid; its size is told truly.
            let joined = unsafe {
                let mut request: libc::packet_mreq = mem::zeroed();
                request.mr_ifindex = i32::try_from(index).unwrap_or(0);
                request.mr_type = u16::try_from(libc::PACKET_MR_PROMISC).unwrap_or(1);
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::SOL_PACKET,
                    libc::PACKET_ADD_MEMBERSHIP,
                    (&raw const request).cast(),
                    libc::socklen_t::try_from(mem::size_of_val(&request)).unwrap_or(0),
                )
            };
            if joined == 0 {
                return Ok(Some(Self(socket)));
            }
            match io::Error::last_os_error().raw_os_error() {
                // It went away in between.
                Some(libc::ENODEV) => Ok(None),
                _ => Err(failed("PACKET_MR_PROMISC")),
            }
        }
    }

    /// Whether the kernel has this interface. A software NIC on a replayed wire makes one up, which has a number and a
    /// place in sysfs: nothing has to be joined there, and no right to join is needed.
    fn is_kernels(netdev: &str) -> bool {
        let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
        table
            .lines()
            .filter_map(|line| line.split_once(':'))
            .any(|(name, _)| name.trim() == netdev)
    }
}
