//! The other end without a connection: a client that asks by datagram, and somebody who hears announcements.

use super::{
    auth::Keys,
    client::{LONGEST_ANSWER, Link},
    datagram::{Datagram, Kind, Recent, Way},
    message::{Answer, Body, Outcome, Status},
    parts::{self, Joiner},
    rdma::{LARGEST_PART, await_event, failed, sleep},
};
use crate::verbs::{
    CmChannel, CmEvent, Context, DatagramQp, Destination, Ends, Listener, MessageCq, Messages, Pd,
    ROUTE_HEADER, Reaching, Slot, Srq,
};
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::{HashMap, VecDeque},
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// Receives posted.
const RECEIVES: u32 = 64;
/// Sends under way.
const SENDS: u32 = 4;
/// After this long without an answer a query is sent again.
const AGAIN: Duration = Duration::from_secs(1);
/// Services whose announcements are joined at once.
const SERVICES: usize = 256;
/// Who may wait to be told where to send announcements to.
const BACKLOG: i32 = 16;

/// A UD QP with receives of its own. The fields' order is the order of teardown.
struct End {
    qp: DatagramQp,
    srq: Srq,
    cq: MessageCq,
    pd: Pd,
    messages: Messages,
    free: Vec<Slot>,
    under_way: Vec<u64>,
    part: usize,
}

/// A part that came, and whose QP sent it.
type Came = (u32, Vec<u8>);

impl End {
    fn make(context: &Context, port: u8) -> io::Result<Self> {
        let mtu = context.query_port(port).map_err(failed)?.active_mtu;
        let part = (128 << mtu.clamp(1, 5)).min(LARGEST_PART);
        let pd = Pd::alloc(context).map_err(failed)?;
        let room = part + u32::try_from(ROUTE_HEADER).unwrap_or(0);
        let (mut messages, mut free) =
            Messages::register(&pd, RECEIVES + SENDS, room).map_err(failed)?;
        let mut srq = Srq::create(&pd, &messages, RECEIVES).map_err(failed)?;
        for slot in free.split_off(SENDS as usize) {
            srq.post(&mut messages, slot)
                .map_err(|(_, errno)| io::Error::from_raw_os_error(errno))?;
        }
        let cq = MessageCq::create(context, RECEIVES + SENDS).map_err(failed)?;
        let ends = Ends {
            pd: &pd,
            cq: &cq,
            srq: &srq,
            sends: SENDS,
        };
        Ok(Self {
            qp: DatagramQp::create(&ends, port).map_err(failed)?,
            srq,
            cq,
            pd,
            messages,
            free,
            under_way: Vec::new(),
            part: part as usize,
        })
    }

    /// Sends a datagram's bytes, if they fit one packet and the last ones are on their way.
    fn send(&mut self, bytes: &[u8], to: &Destination) -> io::Result<()> {
        if bytes.len() > self.part {
            return Err(ErrorKind::InvalidInput.into());
        }
        // Without a slot it is lost, as datagrams may be, and sent again later.
        let Some(mut slot) = self.free.pop() else {
            return Ok(());
        };
        self.messages.bytes_mut(&mut slot)[..bytes.len()].copy_from_slice(bytes);
        let length = u32::try_from(bytes.len()).unwrap_or(0);
        match self.qp.send(&mut self.messages, slot, length, to) {
            Ok(wr_id) => {
                self.under_way.push(wr_id);
                Ok(())
            }
            Err((slot, errno)) => {
                self.free.push(slot);
                Err(io::Error::from_raw_os_error(errno))
            }
        }
    }

    /// Takes what has come since the last time.
    fn take(&mut self) -> io::Result<Vec<Came>> {
        self.cq.take_events();
        self.cq.arm().map_err(failed)?;
        let mut came = Vec::new();
        loop {
            let done = self.cq.poll().map_err(failed)?;
            if done.is_empty() {
                return Ok(came);
            }
            for it in done {
                let Some(slot) = self.messages.returned(it.wr_id) else {
                    continue;
                };
                if let Some(at) = self.under_way.iter().position(|id| *id == it.wr_id) {
                    self.under_way.swap_remove(at);
                    self.free.push(slot);
                    continue;
                }
                if it.status == 0 {
                    let bytes = &self.messages.bytes(&slot)[..it.byte_len as usize];
                    let part = bytes.get(ROUTE_HEADER..).unwrap_or_default();
                    came.push((it.sender.qp_num, part.to_vec()));
                }
                self.srq
                    .post(&mut self.messages, slot)
                    .map_err(|(_, errno)| io::Error::from_raw_os_error(errno))?;
            }
        }
    }
}

/// Asks a service by datagrams. What is not answered in time is asked again.
///
/// The fields' order is the order of teardown.
pub struct DatagramLink {
    end: End,
    service: Destination,
    _reaching: Reaching,
    channel: CmChannel,
    keys: Keys,
    way: Way,
    joiner: Joiner,
    inbox: VecDeque<Vec<u8>>,
    asked: Vec<u8>,
    /// Of what was asked since the last answer: a late answer is one all the same.
    nonces: Vec<String>,
    again: Instant,
}

impl DatagramLink {
    /// Finds the service's QP. Nothing is proved to it and by it before the first query.
    ///
    /// # Errors
    /// Nobody answers there, or not to datagrams.
    pub fn find(to: SocketAddr, keys: Keys, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let channel = CmChannel::create().map_err(failed)?;
        let reaching = Reaching::resolve(&channel, None, to, timeout).map_err(failed)?;
        await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::AddressResolved(_))
        })?;
        reaching.address_resolved(timeout).map_err(failed)?;
        await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::RouteResolved(_))
        })?;
        reaching.route_resolved().map_err(failed)?;
        let reached = await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::Reached(..))
        })?;
        let (Some(context), CmEvent::Reached(_, route)) = (reaching.context(), reached) else {
            return Err(io::Error::other("no RDMA device leads there"));
        };
        let end = End::make(&context, reaching.port())?;
        Ok(Self {
            service: Destination::to(&end.pd, &route).map_err(failed)?,
            way: Way {
                from: end.qp.qp_num(),
                to: route.qp_num(),
            },
            end,
            _reaching: reaching,
            channel,
            keys,
            joiner: Joiner::new(LONGEST_ANSWER),
            inbox: VecDeque::new(),
            asked: Vec::new(),
            nonces: Vec::new(),
            again: Instant::now(),
        })
    }

    fn ask(&mut self) -> io::Result<()> {
        let text = String::from_utf8_lossy(&self.asked).into_owned();
        let query = Datagram::sign(&self.keys, Kind::Query, None, self.way, text);
        let query = query.map_err(failed)?;
        self.again = Instant::now() + AGAIN;
        let end = &mut self.end;
        let mut all = Vec::new();
        parts::split(0, &query.bytes(), end.part, |part| all.push(part));
        self.nonces.push(query.nonce);
        let [part] = &all[..] else {
            let problem = "a query of more than one packet";
            return Err(io::Error::new(ErrorKind::InvalidInput, problem));
        };
        end.send(part, &self.service)
    }

    /// Takes what came that answers what was asked.
    fn take(&mut self) -> io::Result<()> {
        let back = Way {
            from: self.way.to,
            to: self.way.from,
        };
        for (from, part) in self.end.take()? {
            if from != self.way.to {
                continue;
            }
            // A part that does not follow is of an answer that lost one; the next answer begins anew.
            let whole = self.joiner.take(&part).or_else(|_| self.joiner.take(&part));
            let Some(bytes) = whole.ok().flatten() else {
                continue;
            };
            let answer = Datagram::read(&self.keys, Kind::Answer, back, &bytes)
                .filter(|it| self.nonces.contains(&it.nonce));
            if let Some(answer) = answer {
                self.nonces.clear();
                self.inbox.push_back(answer.text.into_bytes());
            }
        }
        Ok(())
    }
}

impl Link for DatagramLink {
    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        self.asked = text.to_vec();
        self.nonces.clear();
        self.ask()
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            self.take()?;
            if let Some(text) = self.inbox.pop_front() {
                return Ok(text);
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    "no answer that is signed with this key; both clocks must be within 30 s",
                ));
            }
            if now >= self.again {
                self.ask()?;
            }
            let fds = [
                PollFd::new(&self.end.cq, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
            ];
            match sleep(&fds, deadline.min(self.again)) {
                Err(e) if e.kind() == ErrorKind::TimedOut => {}
                other => other?,
            }
            // Nothing of it matters any more.
            while self.channel.take().is_some() {}
        }
    }
}

/// Hears announcements: those sent to an address, and to a group.
///
/// The fields' order is the order of teardown.
pub struct Announcements {
    end: End,
    _group: Option<Reaching>,
    listener: Listener,
    channel: CmChannel,
    keys: Keys,
    joiners: HashMap<u32, Joiner>,
    recent: Recent,
    inbox: VecDeque<(u32, Box<Status>)>,
}

impl Announcements {
    /// Listens on `at`, an address of an RDMA device here, and joins `group`.
    ///
    /// # Errors
    /// No RDMA device has the address, or it cannot join.
    pub fn listen(
        at: SocketAddr,
        group: Option<IpAddr>,
        keys: Keys,
        timeout: Duration,
    ) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let channel = CmChannel::create().map_err(failed)?;
        let listener = Listener::bind_datagrams(&channel, at).map_err(failed)?;
        let mut end = End::make(listener.context(), listener.port())?;
        let group = group
            .map(|it| join(&channel, at, SocketAddr::new(it, 0), &mut end, deadline))
            .transpose()?;
        listener.listen(BACKLOG).map_err(failed)?;
        Ok(Self {
            end,
            _group: group,
            listener,
            channel,
            keys,
            joiners: HashMap::new(),
            recent: Recent::default(),
            inbox: VecDeque::new(),
        })
    }

    /// The next announcement, and the QP of the service that made it.
    ///
    /// # Errors
    /// [`ErrorKind::TimedOut`]: there was none that is signed with the key.
    pub fn next(&mut self, deadline: Instant) -> io::Result<(u32, Box<Status>)> {
        loop {
            self.take()?;
            if let Some(it) = self.inbox.pop_front() {
                return Ok(it);
            }
            sleep(
                &[
                    PollFd::new(&self.end.cq, PollFlags::IN),
                    PollFd::new(&self.channel, PollFlags::IN),
                ],
                deadline,
            )?;
            while let Some(event) = self.channel.take() {
                match event {
                    CmEvent::Request(it) if it.listener() == self.listener.key() => {
                        it.show(&self.end.qp).map_err(failed)?;
                    }
                    _ => {}
                }
            }
        }
    }

    fn take(&mut self) -> io::Result<()> {
        for (from, part) in self.end.take()? {
            if self.joiners.len() >= SERVICES && !self.joiners.contains_key(&from) {
                self.joiners.clear();
            }
            let joiner = self
                .joiners
                .entry(from)
                .or_insert_with(|| Joiner::new(LONGEST_ANSWER));
            let whole = joiner.take(&part).or_else(|_| joiner.take(&part));
            let Some(bytes) = whole.ok().flatten() else {
                continue;
            };
            let way = Way { from, to: 0 };
            let said = Datagram::read(&self.keys, Kind::Announcement, way, &bytes)
                .filter(|it| self.recent.is_new(it))
                .and_then(|it| serde_json::from_str::<Answer>(&it.text).ok());
            if let Some(Answer {
                outcome: Outcome::Ok(Body::Status(status)),
                ..
            }) = said
            {
                self.inbox.push_back((from, status));
            }
        }
        Ok(())
    }
}

fn join(
    channel: &CmChannel,
    at: SocketAddr,
    group: SocketAddr,
    end: &mut End,
    deadline: Instant,
) -> io::Result<Reaching> {
    let left = || deadline.saturating_duration_since(Instant::now());
    let reaching = Reaching::resolve(channel, Some(at), group, left()).map_err(failed)?;
    await_event(channel, deadline, |event| {
        matches!(event, CmEvent::AddressResolved(_))
    })?;
    reaching.address_resolved(left()).map_err(failed)?;
    let reached = await_event(channel, deadline, |event| {
        matches!(event, CmEvent::Reached(..))
    })?;
    if let CmEvent::Reached(_, route) = reached {
        end.qp.attach(&route).map_err(failed)?;
    }
    Ok(reaching)
}
