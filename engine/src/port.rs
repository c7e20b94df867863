//! A plan's verbs objects: created in order, taken down in order, and nothing else.

use crate::{
    Error, clock,
    plan::{Plan, Stamps},
    rx::{Ring, RingAttr, system_ns},
    steer::Spread,
    verbs::{Context, Flow, FlowRule, Pd, RssQp, RwqTable},
};

/// Everything on a port but the rings, which their loops own.
///
/// The order of the fields is the order of teardown: rules first, so that nothing more arrives, then QPs, then the
/// tables. WQs, CQs and memory go with the last of table and ring.
pub struct Port {
    flows: Vec<Flow>,
    qps: Vec<RssQp>,
    tables: Vec<(Spread, RwqTable)>,
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
            qps: Vec::new(),
            tables: Vec::new(),
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
        for qp in &plan.steering.qps {
            let table = match self.tables.iter().find(|(spread, _)| *spread == qp.spread) {
                Some((_, table)) => table.clone(),
                None => {
                    let queues = match qp.spread {
                        Spread::Table => plan.table.clone(),
                        Spread::Queue(queue) => vec![queue],
                    };
                    let wqs = queues.iter().map(|q| rings[usize::from(*q)].wq());
                    let table = RwqTable::create(&self.context, wqs)?;
                    self.tables.push((qp.spread, table.clone()));
                    table
                }
            };
            self.qps.push(RssQp::create(
                &self.pd,
                &table,
                &plan.key,
                qp.profile.hash_fields(),
            )?);
        }
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
            let flow = FlowRule {
                port: plan.port,
                kind: rule.kind,
                priority: rule.priority,
                specs: rule.specs.clone(),
            };
            self.flows.push(Flow::create(&self.qps[rule.qp], &flow)?);
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
