//! A plan's verbs objects: created in order, taken down in order, and nothing else.

use crate::{
    Error,
    config::Idle,
    plan::{
        Plan,
        steering::{
            QpPlan, RulePlan, Spread, Steering,
            rule_priority::{Ladder, Move},
        },
    },
    rx::clock::{Form, Reader},
    rx::{Ring, RingAttr},
    verbs::{
        self, CompletionStamps, Context, Flow, FlowKind, FlowRule, FlowSpec, Pd, RssQp, RwqTable,
        WqHandle,
    },
};
use wqcap_rss::key::RssKey;

/// Everything on a port but the rings, which their loops own.
///
/// The order of the fields is the order of teardown: rules first, so that nothing more arrives, then QPs, then the
/// tables. WQs, CQs and memory go with the last of table and ring.
pub struct Port {
    /// The rules that are installed, the more special before the more general; none while nothing is let in.
    rules: Vec<Rule>,
    is_open: bool,
    /// What is installed, or will be.
    steering: Steering,
    qps: Vec<(QpPlan, RssQp)>,
    tables: Vec<(Spread, RwqTable)>,
    /// The shared table: a queue for each entry.
    entries: Vec<u16>,
    key: RssKey,
    number: u8,
    /// By queue.
    wqs: Vec<WqHandle>,
    pd: Pd,
    context: Context,
    promiscuous: Option<promisc::Membership>,
}

/// An installed rule.
struct Rule {
    flow: Flow,
    /// On which hardware priority it stands now.
    priority: u16,
    wanted: Wanted,
}

/// A rule as it is wanted, wherever it stands.
#[derive(Clone, PartialEq, Eq)]
struct Wanted {
    kind: FlowKind,
    rank: u16,
    specs: Vec<FlowSpec>,
    qp: QpPlan,
}

impl Wanted {
    fn of(rule: &RulePlan, steering: &Steering) -> Self {
        Self {
            kind: rule.kind,
            rank: rule.rank,
            specs: rule.specs.clone(),
            qp: steering.qps[rule.qp],
        }
    }
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
            rules: Vec::new(),
            is_open: false,
            steering: plan.steering.clone(),
            qps: Vec::new(),
            tables: Vec::new(),
            entries: plan.table.clone(),
            key: plan.key,
            number: plan.port,
            wqs: Vec::new(),
            pd,
            context,
            promiscuous: None,
        })
    }

    /// The device's context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Its number, from 1.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// Asks the device whether the port is up.
    ///
    /// # Errors
    /// EIO from a device that is gone.
    pub fn ask(&self) -> Result<bool, Error> {
        /// `IBV_PORT_ACTIVE` and `IBV_PORT_ACTIVE_DEFER`.
        const UP: std::ops::RangeInclusive<u32> = 4..=5;
        let attr = self.context.query_port(self.number)?;
        Ok(UP.contains(&attr.state))
    }

    /// The device's clock, to be looked at.
    #[must_use]
    pub fn clock(&self) -> Reader<'_> {
        Reader::of(&self.context, self.number())
    }

    /// Makes one queue's ring, ready and full of WRs.
    ///
    /// # Errors
    /// A verb's, or memory's.
    pub fn ring(&self, plan: &Plan, queue: u16) -> Result<Ring, Error> {
        let attr = RingAttr {
            wrs: plan.ring.wrs,
            buffer: plan.ring.buffer,
            max_sge: plan.ring.max_sge,
            striding: plan.ring.striding,
            compression: plan.compression,
            flags: plan.wq_flags,
            // One vector serves all: a loop that polls needs none, a sleeper is woken wherever it runs.
            vector: 0,
            stamps: match plan.stamp_form() {
                None => CompletionStamps::None,
                Some(Form::Ticks { .. }) => CompletionStamps::Ticks,
                Some(Form::RealTime) => CompletionStamps::RealTime,
            },
            headroom: plan.ring.headroom,
            channel: plan.idle == Idle::Sleep,
            moderation: plan.moderation,
            direct: plan.direct,
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

    /// Makes the tables over the rings' WQs and the RSS QPs over the tables. Nothing arrives yet.
    ///
    /// # Errors
    /// A verb's.
    pub fn spread(&mut self, rings: &[Ring]) -> Result<(), Error> {
        self.wqs = rings.iter().map(|ring| ring.wq().handle()).collect();
        self.provide(&self.steering.qps.clone())
    }

    /// Makes those of these QPs that are not there yet, with their tables.
    fn provide(&mut self, wanted: &[QpPlan]) -> Result<(), Error> {
        for plan in wanted {
            if self.qps.iter().all(|(there, _)| there != plan) {
                let table = self.table_for(plan.spread)?;
                let qp = RssQp::create(&self.pd, &table, &self.key, plan.hash_fields())?;
                self.qps.push((*plan, qp));
            }
        }
        Ok(())
    }

    /// The table for frames that are spread so, made if it is not there yet.
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

    /// A table over the rings' WQs.
    fn table(&self, queues: &[u16]) -> Result<RwqTable, Error> {
        let wqs = queues.iter().map(|q| self.wqs[usize::from(*q)].clone());
        Ok(RwqTable::create(&self.context, wqs)?)
    }

    /// Lets another table take the place of the shared one, frames flowing.
    ///
    /// Every rule is installed once more, to a new QP over the new table, on a priority beside its own, before the old
    /// one goes ([`crate::plan::steering::rule_priority`]). If the new one stands in front, it takes over the moment it is there; if it stands
    /// behind, the moment the old one is gone. In between no frame finds no rule, none finds two of one priority, and
    /// what stood before and behind the rule still does. The WQs are the same all along, so what the old QPs have
    /// already put on them stays.
    ///
    /// # Errors
    /// A verb's. Rules swapped by then lead to the new QPs, the others to the old: every frame arrives once all the
    /// same.
    pub fn respread(&mut self, entries: &[u16]) -> Result<(), Error> {
        let table = self.table(entries)?;
        let mut qps = self.qps.clone();
        for (plan, qp) in &mut qps {
            if plan.spread == Spread::Table {
                *qp = RssQp::create(&self.pd, &table, &self.key, plan.hash_fields())?;
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

    /// Lets the rules of another steering take the place of those there are, frames flowing: what is new is installed
    /// before what is gone goes, and what stays is never away.
    ///
    /// # Errors
    /// A verb's; then the rules are those there were.
    pub fn steer(&mut self, steering: Steering) -> Result<(), Error> {
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
        // QPs that no rule leads to, and their tables.
        let used = &self.steering.qps;
        self.qps.retain(|(plan, _)| used.contains(plan));
        self.tables
            .retain(|(spread, _)| used.iter().any(|qp| qp.spread == *spread));
        made
    }

    /// Installs what is missing, then takes away what is too many.
    fn exchange(&mut self, steering: &Steering) -> Result<(), Error> {
        let mut gone: Vec<_> = self.rules.iter().map(|rule| rule.wanted.clone()).collect();
        let mut new = Vec::new();
        for rule in &steering.rules {
            let wanted = Wanted::of(rule, steering);
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

    /// Installs a rule on a priority of its rank; others make room where there is none.
    fn admit(&mut self, wanted: Wanted) -> Result<(), Error> {
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

    /// Takes rules away, the more general first, or frames of one already gone would land on it for a moment.
    fn remove(&mut self, them: &[Wanted]) {
        let mut them: Vec<_> = them.iter().collect();
        them.sort_by_key(|it| it.rank);
        for wanted in them.into_iter().rev() {
            if let Some(at) = self.rules.iter().position(|rule| rule.wanted == *wanted) {
                self.rules.remove(at);
            }
        }
    }

    /// Moves the rules of one priority to another, onto these QPs.
    fn carry_out(&mut self, it: Move, qps: &[(QpPlan, RssQp)]) -> Result<(), Error> {
        for rule in self
            .rules
            .iter_mut()
            .filter(|rule| rule.priority == it.from)
        {
            let flow = create(qps, &rule.wanted, self.number, it.to)?;
            // The old one goes here, after the new one has come.
            rule.flow = flow;
            rule.priority = it.to;
        }
        Ok(())
    }

    /// Installs a rule behind all others of its rank.
    fn install(&mut self, wanted: Wanted, priority: u16) -> Result<(), Error> {
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

    /// Where the installed rules stand.
    fn ladder(&self) -> Ladder {
        let rules = self.rules.iter();
        Ladder::of(rules.map(|rule| (rule.wanted.rank, rule.priority)))
    }

    /// What is installed, or will be.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        &self.steering
    }

    /// Installs the rules, the most special first: from the last one on, every frame of the port arrives.
    ///
    /// # Errors
    /// A verb's, or promiscuous mode cannot be joined.
    pub fn let_in(&mut self, plan: &Plan) -> Result<(), Error> {
        if let Some(netdev) = plan.netdev.as_deref().filter(|_| plan.promiscuous) {
            self.promiscuous = promisc::Membership::join(netdev)?;
        }
        self.is_open = true;
        let steering = self.steering.clone();
        for rule in &steering.rules {
            self.install(Wanted::of(rule, &steering), rule.priority)?;
        }
        Ok(())
    }

    /// Takes the rules away: nothing more arrives on the rings.
    pub fn shut(&mut self) {
        self.is_open = false;
        // The catch-all first, or frames of a rule already gone would still land on it.
        while self.rules.pop().is_some() {}
        self.promiscuous = None;
    }
}

/// Installs a rule that leads to its QP.
fn create(
    qps: &[(QpPlan, RssQp)],
    wanted: &Wanted,
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
        Some((_, qp)) => Ok(Flow::create(qp, &rule)?),
        None => Err(Error::Device("a rule's QP has not been made".into())),
    }
}

/// What a network interface accepts beyond its own address: all frames (promiscuous mode) or one more address, as a
/// membership of the process's packet socket: the kernel undoes it when the process ends, even after `kill -9`.
///
/// Only creating the socket takes a right (`packet_create` of net/packet/af_packet.c asks for CAP_NET_RAW), and a
/// capture's sandbox lets none be created on a real NIC. So the first capture's socket stays for all later ones: after a
/// drain, a stop, or the loss of the device.
pub(super) mod promisc {
    #![allow(unsafe_code)]

    use crate::{Error, ResourceError, device::interface::is_kernels};
    use std::{
        ffi::CString,
        io, mem,
        os::fd::{AsRawFd, FromRawFd, OwnedFd},
        sync::OnceLock,
    };

    static SOCKET: OnceLock<OwnedFd> = OnceLock::new();

    /// A joined interface, by its index.
    pub struct Membership {
        index: libc::c_uint,
        /// The address that it accepts; all frames where there is none.
        address: Option<[u8; 6]>,
    }

    impl Membership {
        /// Sets promiscuous mode; `None` where no such interface exists (a software NIC on a replayed wire has none).
        ///
        /// # Errors
        /// EPERM without CAP_NET_RAW.
        pub fn join(netdev: &str) -> Result<Option<Self>, Error> {
            Ok(Self::of(netdev, None).map_err(|source| {
                let hint = match source.raw_os_error() {
                    Some(libc::EPERM) => {
                        "; it needs CAP_NET_RAW, or set capture.promiscuous = false"
                    }
                    _ => "",
                };
                ResourceError::System {
                    what: format!(
                        "capture.promiscuous: a packet socket's membership on {netdev}{hint}"
                    ),
                    source,
                }
            })?)
        }

        /// Lets the interface accept frames to one more unicast address; `None` where no such interface exists.
        ///
        /// # Errors
        /// EPERM without CAP_NET_RAW.
        pub fn accept(netdev: &str, address: [u8; 6]) -> io::Result<Option<Self>> {
            Self::of(netdev, Some(address))
        }

        fn of(netdev: &str, address: Option<[u8; 6]>) -> io::Result<Option<Self>> {
            // On one that is made up nothing has to be joined, and no right to join is needed.
            if !is_kernels(netdev) {
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
                // It went away in between.
                Err(e) if e.raw_os_error() == Some(libc::ENODEV) => Ok(None),
                Err(e) => Err(e),
            }
        }
    }

    impl Drop for Membership {
        fn drop(&mut self) {
            if let Some(socket) = SOCKET.get() {
                // An interface that has gone has taken the membership along.
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
        // SAFETY: a new descriptor nobody else has.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn change(
        socket: &OwnedFd,
        how: libc::c_int,
        index: libc::c_uint,
        address: Option<[u8; 6]>,
    ) -> io::Result<()> {
        // SAFETY: a zeroed packet_mreq is valid; its size is told truly.
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

        /// Takes every capability from this thread, as a sandbox takes new packet sockets from the process.
        fn give_up_rights() {
            // `_LINUX_CAPABILITY_VERSION_3`, of this thread.
            let header: [u32; 2] = [0x2008_0522, 0];
            let none = [0_u32; 6];
            // SAFETY: a header and two sets of three words each, as capset(2) has them.
            let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
            assert_eq!(done, 0, "{}", io::Error::last_os_error());
        }

        #[test]
        fn an_interface_is_joined_again_when_no_socket_may_be_created_any_more() {
            if let Err(e) = open() {
                return eprintln!("skipped: a packet socket: {e}");
            }
            let first = Membership::join("lo").expect("joins").expect("there");
            give_up_rights();
            let refused = open().expect_err("no right is left");
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
