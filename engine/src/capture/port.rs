//! Verbs objects of a plan: QPs, tables and flow rules of a port, with their order of creation and
//! teardown.

use crate::{
    Error,
    config::Idle,
    plan::{
        PortPlan,
        steering::{
            QpPlan, RulePlan, Spread, Steering,
            rule_priority::{Move, PriorityLadder},
        },
    },
    rx::clock::{ClockReader, StampForm},
    rx::{QueueHandle, Ring, RingAttr},
    verbs::{
        self, CompletionStamps, Context, Flow, FlowKind, FlowRule, FlowSpec, Pd, RawQpHandle,
        RssQp, RwqTable, VerbsError, WqHandle,
    },
};
use wqcap_rss::key::RssKey;

/// All verbs objects of a port except the rings, which the loops own.
///
/// Fields are dropped in the order of teardown: rules first, so that no more frames arrive, then
/// QPs, then tables. WQs, CQs and memory are released with the last of table and ring.
pub struct Port {
    /// Flow rules installed on the port, specific ones before general ones; empty while no frames
    /// are received.
    rules: Vec<Rule>,
    is_open: bool,
    /// Flow rules and QPs that are installed on the port, or that will be.
    steering: Steering,
    qps: Vec<(QpPlan, PortQp)>,
    tables: Vec<(Spread, RwqTable)>,
    /// Queue number in each entry of the shared RSS indirection table.
    entries: Vec<u16>,
    key: RssKey,
    number: u8,
    /// Handle to the WQ of each receive queue; empty on a device without WQs.
    wqs: Vec<WqHandle>,
    /// QP of the only receive queue of a device without WQs.
    raw_qp: Option<RawQpHandle>,
    pd: Pd,
    context: Context,
    promiscuous: Option<promisc::Membership>,
}

/// QP that flow rules of the port lead to.
#[derive(Clone)]
enum PortQp {
    /// RSS QP over an indirection table, which spreads frames over queues.
    Rss(RssQp),
    /// QP with its own receive queue, on a device without WQs.
    Raw(RawQpHandle),
}

impl PortQp {
    fn install(&self, rule: &FlowRule) -> Result<Flow, VerbsError> {
        match self {
            Self::Rss(qp) => Flow::create(qp, rule),
            Self::Raw(qp) => Flow::create_to_raw_qp(qp, rule),
        }
    }
}

/// Flow rule that is installed on the port.
struct Rule {
    flow: Flow,
    /// Hardware priority on which the flow rule is installed.
    priority: u16,
    wanted: WantedRule,
}

/// Flow rule to install on the port, without its hardware priority.
#[derive(Clone, PartialEq, Eq)]
struct WantedRule {
    kind: FlowKind,
    rank: u16,
    specs: Vec<FlowSpec>,
    qp: QpPlan,
}

impl WantedRule {
    fn from_plan(rule: &RulePlan, steering: &Steering) -> Self {
        Self {
            kind: rule.kind,
            rank: rule.rank,
            specs: rule.specs.clone(),
            qp: steering.qps[rule.qp],
        }
    }
}

impl Port {
    /// Opens the plan's RDMA device and allocates a protection domain.
    ///
    /// # Errors
    /// The error of a verb.
    pub fn open(plan: &PortPlan) -> Result<Self, Error> {
        let context = Context::open(&plan.device.name)?;
        let pd = Pd::alloc(&context)?;
        Ok(Self {
            rules: Vec::new(),
            is_open: false,
            steering: plan.steering.clone(),
            qps: Vec::new(),
            tables: Vec::new(),
            entries: plan.table.clone(),
            key: plan.key,
            number: plan.number,
            wqs: Vec::new(),
            raw_qp: None,
            pd,
            context,
            promiscuous: None,
        })
    }

    /// Returns the verbs context of the port's device.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the number of the captured port on its device, from 1.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Queries the port state; returns `true` if the port is up.
    ///
    /// # Errors
    /// EIO if the device is lost.
    pub fn is_up(&self) -> Result<bool, Error> {
        /// Range of the values of `ibv_port_state` for which a port counts as up: `IBV_PORT_ACTIVE`
        /// and `IBV_PORT_ACTIVE_DEFER`.
        const UP: std::ops::RangeInclusive<u32> = 4..=5;
        let attr = self.context.query_port(self.number)?;
        Ok(UP.contains(&attr.state))
    }

    /// Returns a reader of the clock of the port's NIC.
    #[must_use]
    pub fn clock(&self) -> ClockReader<'_> {
        ClockReader::new(&self.context, self.number())
    }

    /// Creates the receive ring of one queue. The WQ of the ring is ready and filled with WRs.
    ///
    /// # Errors
    /// The error of a verb, or of a memory allocation.
    pub fn ring(&self, plan: &PortPlan, queue: u16) -> Result<Ring, Error> {
        let attr = RingAttr {
            wrs: plan.ring.wrs,
            buffer: plan.ring.buffer,
            max_sge: plan.ring.max_sge,
            striding: plan.ring.striding,
            fallback: plan.ring.fallback,
            compression: plan.compression,
            flags: plan.wq_flags,
            // One completion vector is enough: a polling loop needs none, and a sleeping loop is
            // woken on any CPU.
            vector: 0,
            stamps: match plan.stamp_form() {
                None => CompletionStamps::None,
                Some(StampForm::Ticks { .. }) => CompletionStamps::Ticks,
                Some(StampForm::RealTime) => CompletionStamps::RealTime,
            },
            headroom: plan.ring.headroom,
            channel: plan.idle == Idle::Sleep,
            moderation: plan.moderation,
            access: plan.access,
            raw_qp: plan.device.raw_qp_only.then_some(plan.number),
            numa_node: plan.device.numa_node,
        };
        Ring::create(&self.context, &self.pd, attr).map_err(|e| match e {
            verbs::VerbsError::Verb {
                verb,
                object,
                source,
            } => verbs::VerbsError::Verb {
                verb,
                object: format!("queue {queue}: {object}"),
                source,
            }
            .into(),
            other => other.into(),
        })
    }

    /// Creates the RSS indirection tables over the rings' WQs, and the RSS QPs over the tables. On
    /// a device without WQs, the QP of the only ring is used. No frame arrives until flow rules are
    /// installed.
    ///
    /// # Errors
    /// The error of a verb.
    pub fn create_qps(&mut self, rings: &[Ring]) -> Result<(), Error> {
        for ring in rings {
            match ring.handle() {
                QueueHandle::Wq(wq) => self.wqs.push(wq),
                QueueHandle::RawQp(qp) => self.raw_qp = Some(qp),
            }
        }
        self.provide(&self.steering.qps.clone())
    }

    /// Creates the QPs of `wanted` that do not exist yet, with their indirection tables.
    fn provide(&mut self, wanted: &[QpPlan]) -> Result<(), Error> {
        for plan in wanted {
            if self.qps.iter().all(|(there, _)| there != plan) {
                let qp = match &self.raw_qp {
                    Some(qp) => PortQp::Raw(qp.clone()),
                    None => self.rss_qp(plan)?,
                };
                self.qps.push((*plan, qp));
            }
        }
        Ok(())
    }

    /// Creates the RSS QP of `plan`, over the indirection table that `plan` selects: the shared
    /// one, or one of a single queue.
    fn rss_qp(&mut self, plan: &QpPlan) -> Result<PortQp, Error> {
        let table = self.table_for(plan.spread)?;
        self.rss_qp_over(&table, plan)
    }

    fn rss_qp_over(&self, table: &RwqTable, plan: &QpPlan) -> Result<PortQp, Error> {
        let qp = RssQp::create(&self.pd, table, &self.key, plan.hash_fields())?;
        Ok(PortQp::Rss(qp))
    }

    /// Returns the RSS indirection table for `spread` (all queues or one queue), and creates it if
    /// it does not exist yet.
    fn table_for(&mut self, spread: Spread) -> Result<RwqTable, Error> {
        if let Some((_, table)) = self.tables.iter().find(|(it, _)| *it == spread) {
            return Ok(table.clone());
        }
        let table = match spread {
            Spread::Table => self.table(&self.entries)?,
            Spread::Queue(queue) => self.table(&[queue])?,
        };
        self.tables.push((spread, table.clone()));
        Ok(table)
    }

    /// Creates an RSS indirection table with one entry for each of `queues`, which leads to the WQ
    /// of that queue's ring.
    fn table(&self, queues: &[u16]) -> Result<RwqTable, Error> {
        let wqs = queues.iter().map(|q| self.wqs[usize::from(*q)].clone());
        Ok(RwqTable::create(&self.context, wqs)?)
    }

    /// Replaces the shared RSS indirection table while frames are received.
    ///
    /// Every rule is installed a second time, to a new QP over the new table, on a hardware
    /// priority next to its own, before the old rule is removed
    /// ([`crate::plan::steering::rule_priority`]). A new rule in front of the old one applies as
    /// soon as it is installed; a new rule behind the old one applies as soon as the old one is
    /// removed. Meanwhile every frame matches a rule, no frame matches two rules of one priority,
    /// and the order relative to other rules stays. The WQs stay the same, so frames that the old
    /// QPs have placed on them are kept.
    ///
    /// # Errors
    /// The error of a verb. Rules swapped until then lead to the new QPs, the others to the old
    /// ones: every frame still arrives once.
    pub fn respread(&mut self, entries: &[u16]) -> Result<(), Error> {
        let table = self.table(entries)?;
        let mut qps = self.qps.clone();
        for (plan, qp) in &mut qps {
            if plan.spread == Spread::Table {
                *qp = self.rss_qp_over(&table, plan)?;
            }
        }
        for it in self.ladder().shift() {
            self.carry_out(it, &qps)?;
        }
        self.qps = qps;
        self.tables.retain(|(spread, _)| *spread != Spread::Table);
        self.tables.push((Spread::Table, table));
        self.entries = entries.to_vec();
        Ok(())
    }

    /// Puts another WQ into the place of queue `queue`'s while frames are received, as
    /// [`Port::respread`] replaces the shared indirection table.
    ///
    /// # Errors
    /// The error of a verb.
    pub fn replace_wq(&mut self, queue: usize, wq: WqHandle) -> Result<(), Error> {
        self.wqs[queue] = wq;
        // Kept until no QP uses them.
        let tables = std::mem::take(&mut self.tables);
        let mut qps = self.qps.clone();
        for (plan, qp) in &mut qps {
            *qp = self.rss_qp(plan)?;
        }
        let moves = self.ladder().shift();
        if moves.is_empty() && !self.rules.is_empty() {
            // Every hardware priority is taken: the rules cannot move to new QPs one by one.
            let rules = self.rules.drain(..);
            let rules: Vec<_> = rules.map(|it| (it.wanted, it.priority)).collect();
            self.qps = qps;
            for (wanted, priority) in rules {
                self.install(wanted, priority)?;
            }
        } else {
            for it in moves {
                self.carry_out(it, &qps)?;
            }
            self.qps = qps;
        }
        drop(tables);
        Ok(())
    }

    /// Replaces the installed flow rules with those of another steering while frames are received.
    /// New rules are installed before old ones are removed, and rules in both steerings stay
    /// installed.
    ///
    /// # Errors
    /// The error of a verb; then the previous rules are installed.
    pub fn replace_rules(&mut self, steering: Steering) -> Result<(), Error> {
        let made = self.provide(&steering.qps).and_then(|()| {
            if self.is_open {
                self.exchange(&steering)
            } else {
                Ok(())
            }
        });
        if made.is_ok() {
            self.steering = steering;
        }
        // Drops QPs that no rule leads to, and their tables.
        let used = &self.steering.qps;
        self.qps.retain(|(plan, _)| used.contains(plan));
        self.tables
            .retain(|(spread, _)| used.iter().any(|qp| qp.spread == *spread));
        made
    }

    /// Installs the flow rules of `steering` that are missing, then removes installed rules that
    /// `steering` does not contain.
    fn exchange(&mut self, steering: &Steering) -> Result<(), Error> {
        let mut gone: Vec<_> = self.rules.iter().map(|rule| rule.wanted.clone()).collect();
        let mut new = Vec::new();
        for rule in &steering.rules {
            let wanted = WantedRule::from_plan(rule, steering);
            match gone.iter().position(|it| *it == wanted) {
                Some(at) => _ = gone.remove(at),
                None => new.push(wanted),
            }
        }
        for (done, wanted) in new.iter().enumerate() {
            if let Err(e) = self.admit(wanted.clone()) {
                self.remove(&new[..done]);
                return Err(e);
            }
        }
        self.remove(&gone);
        Ok(())
    }

    /// Installs a flow rule on a hardware priority that fits its rank, and moves other rules if no
    /// priority is free.
    fn admit(&mut self, wanted: WantedRule) -> Result<(), Error> {
        let Some((moves, priority)) = self.ladder().admit(wanted.rank) else {
            return Err(Error::config(
                "rule: priority",
                "",
                "every hardware priority is taken; remove a rule first",
            ));
        };
        let qps = self.qps.clone();
        for it in moves {
            self.carry_out(it, &qps)?;
        }
        self.install(wanted, priority)
    }

    /// Removes flow rules, general ones first: otherwise frames of a removed rule would match a
    /// general one for a moment.
    fn remove(&mut self, them: &[WantedRule]) {
        let mut them: Vec<_> = them.iter().collect();
        them.sort_by_key(|it| it.rank);
        for wanted in them.into_iter().rev() {
            if let Some(at) = self.rules.iter().position(|rule| rule.wanted == *wanted) {
                self.rules.remove(at);
            }
        }
    }

    /// Moves the flow rules of one hardware priority to another one. `qps` are the QPs that the
    /// moved rules lead to.
    fn carry_out(&mut self, it: Move, qps: &[(QpPlan, PortQp)]) -> Result<(), Error> {
        for rule in self
            .rules
            .iter_mut()
            .filter(|rule| rule.priority == it.from)
        {
            let flow = create(qps, &rule.wanted, self.number, it.to)?;
            // Assigning drops the old rule, after the new one is installed.
            rule.flow = flow;
            rule.priority = it.to;
        }
        Ok(())
    }

    /// Installs a flow rule behind all other rules of its rank.
    fn install(&mut self, wanted: WantedRule, priority: u16) -> Result<(), Error> {
        let flow = create(&self.qps, &wanted, self.number, priority)?;
        let at = self
            .rules
            .partition_point(|rule| rule.wanted.rank <= wanted.rank);
        let rule = Rule {
            flow,
            priority,
            wanted,
        };
        self.rules.insert(at, rule);
        Ok(())
    }

    /// Returns the hardware priorities of the installed flow rules.
    fn ladder(&self) -> PriorityLadder {
        let rules = self.rules.iter();
        PriorityLadder::from_rules(rules.map(|rule| (rule.wanted.rank, rule.priority)))
    }

    /// Returns the flow rules and QPs that are installed on the port, or that will be.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Installs the flow rules of the plan, specific ones first. After the last one, every frame of
    /// the port arrives.
    ///
    /// # Errors
    /// The error of a verb, or promiscuous mode cannot be enabled.
    pub fn install_rules(&mut self, plan: &PortPlan) -> Result<(), Error> {
        if let Some(netdev) = plan.netdev.as_deref().filter(|_| plan.promiscuous) {
            self.promiscuous = promisc::Membership::join(netdev)?;
        }
        self.is_open = true;
        let steering = self.steering.clone();
        for rule in &steering.rules {
            self.install(WantedRule::from_plan(rule, &steering), rule.priority)?;
        }
        Ok(())
    }

    /// Removes the port's flow rules: no more frames arrive on the rings.
    pub fn remove_rules(&mut self) {
        self.is_open = false;
        // Catch-all first: otherwise frames of a removed rule would match it.
        while self.rules.pop().is_some() {}
        self.promiscuous = None;
    }
}

/// Creates a flow rule on the device that leads frames to its QP.
fn create(
    qps: &[(QpPlan, PortQp)],
    wanted: &WantedRule,
    port: u8,
    priority: u16,
) -> Result<Flow, Error> {
    let rule = FlowRule {
        port,
        kind: wanted.kind,
        priority,
        specs: wanted.specs.clone(),
    };
    match qps.iter().find(|(plan, _)| *plan == wanted.qp) {
        Some((_, qp)) => Ok(qp.install(&rule)?),
        None => {
            Err(
                VerbsError::from_errno("ibv_create_flow", "a rule without its QP", libc::EINVAL)
                    .into(),
            )
        }
    }
}

/// Addresses that a network interface accepts in addition to its own: all frames (promiscuous mode)
/// or one more address. Each is a membership of the process's packet socket, which the kernel
/// removes when the process ends, even after `kill -9`.
///
/// Only creating the socket needs a privilege (`packet_create` of net/packet/af_packet.c checks
/// CAP_NET_RAW), and the sandbox of a capture on a real NIC forbids it. Therefore the first
/// capture's socket is kept for all later ones: after a drain, a stop, or the loss of the device.
pub(super) mod promisc {
    #![allow(unsafe_code)]

    use crate::{Error, ResourceError, device::interface::exists_in_kernel};
    use std::{
        ffi::CString,
        io, mem,
        os::fd::{AsRawFd, FromRawFd, OwnedFd},
        sync::OnceLock,
    };

    static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

    /// Membership of a packet socket on one network interface, which makes the interface accept
    /// frames to other addresses.
    pub struct Membership {
        index: libc::c_uint,
        /// Additional unicast address that the interface accepts; `None`: it accepts all frames.
        address: Option<[u8; 6]>,
    }

    impl Membership {
        /// Enables promiscuous mode. Returns `None` if the interface does not exist, as for a
        /// software NIC on a replayed wire.
        ///
        /// # Errors
        /// EPERM without CAP_NET_RAW.
        pub fn join(netdev: &str) -> Result<Option<Self>, Error> {
            Ok(Self::add(netdev, None).map_err(|source| {
                let hint = match source.raw_os_error() {
                    Some(libc::EPERM) => " (grant CAP_NET_RAW, or set capture.promiscuous = false)",
                    _ => "",
                };
                ResourceError::System {
                    what: format!(
                        "capture.promiscuous: cannot enable promiscuous mode of {netdev}{hint}"
                    ),
                    source,
                }
            })?)
        }

        /// Makes the interface accept frames to one more unicast address. Returns `None` if the
        /// interface does not exist.
        ///
        /// # Errors
        /// EPERM without CAP_NET_RAW.
        pub fn accept(netdev: &str, address: [u8; 6]) -> io::Result<Option<Self>> {
            Self::add(netdev, Some(address))
        }

        fn add(netdev: &str, address: Option<[u8; 6]>) -> io::Result<Option<Self>> {
            // A virtual interface of the software NIC needs no membership, and no privilege for it.
            if !exists_in_kernel(netdev) {
                return Ok(None);
            }
            let name = CString::new(netdev).unwrap_or_default();
            // SAFETY: a NUL-terminated name.
            let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
            if index == 0 {
                return Ok(None);
            }
            let socket = match SOCKET.get() {
                Some(socket) => socket,
                None => {
                    let socket = open()?;
                    SOCKET.get_or_init(|| socket)
                }
            };
            match change(socket, libc::PACKET_ADD_MEMBERSHIP, index, address) {
                Ok(()) => Ok(Some(Self { index, address })),
                // The interface was removed meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
                Err(e) => Err(e),
            }
        }
    }

    impl Drop for Membership {
        fn drop(&mut self) {
            if let Some(socket) = SOCKET.get() {
                // The kernel removes the membership together with the interface.
                let _ = change(
                    socket,
                    libc::PACKET_DROP_MEMBERSHIP,
                    self.index,
                    self.address,
                );
            }
        }
    }

    fn open() -> io::Result<OwnedFd> {
        // Protocol 0: the socket itself receives nothing.
        // SAFETY: a plain system call.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn change(
        socket: &OwnedFd,
        how: libc::c_int,
        index: libc::c_uint,
        address: Option<[u8; 6]>,
    ) -> io::Result<()> {
        // SAFETY: a zeroed packet_mreq is valid; the length argument is its size.
        let done = unsafe {
            let mut request: libc::packet_mreq = mem::zeroed();
            request.mr_ifindex = i32::try_from(index).unwrap_or(0);
            request.mr_type = libc::PACKET_MR_PROMISC as u16;
            if let Some(address) = address {
                request.mr_type = libc::PACKET_MR_UNICAST as u16;
                request.mr_alen = 6;
                request.mr_address[..6].copy_from_slice(&address);
            }
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_PACKET,
                how,
                (&raw const request).cast(),
                libc::socklen_t::try_from(mem::size_of_val(&request)).unwrap_or(0),
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Drops every capability of this thread, as a sandbox forbids new packet sockets to the
        /// process.
        fn drop_capabilities() {
            // `_LINUX_CAPABILITY_VERSION_3`, of this thread.
            let header: [u32; 2] = [0x2008_0522, 0];
            let none = [0_u32; 6];
            // SAFETY: a header and two sets of three words each, as capset(2) defines them.
            let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
        }

        #[test]
        fn an_interface_is_joined_again_without_the_right_to_create_sockets() {
            if let Err(e) = open() {
                return eprintln!("skipped: a packet socket: {e}");
            }
            let first = Membership::join("lo").expect("joins").expect("lo exists");
            drop_capabilities();
            let refused = open().expect_err("creating a socket without CAP_NET_RAW fails");
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            drop(first);
            let second = Membership::join("lo").expect("joins by the same socket");
            assert!(second.is_some());
            let address =
                Membership::accept("lo", *b"\x02wqcap").expect("joins by the same socket");
            assert!(address.is_some());
        }
    }
}
