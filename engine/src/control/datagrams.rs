//! The service's UD QP, on the same shared receive queue as everybody's: queries without a connection, and
//! announcements to groups and peers.
//!
//! A datagram may be lost and nobody hears of it: who asks asks again, and the next announcement comes. What is not
//! signed with a key is not answered, not even by a refusal, so that nobody's datagrams can be turned on another.

use super::{
    auth::Keys,
    datagram::{Datagram, Kind, Recent, Way},
    limits::Bucket,
    message::{Answer, Code, Command, DatagramStatus, Refusal, Request, VERSION},
    parts::{self, Joiner},
    service::Service,
};
use crate::{
    Error,
    config::ControlConfig,
    verbs::{
        CmChannel, CmEvent, CmKey, DatagramQp, Destination, Done, Ends, Incoming, Listener,
        Messages, Pd, ROUTE_HEADER, Reaching, Route, Slot,
    },
};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

/// Datagrams under way.
pub(super) const SENDS: u32 = 16;
/// Datagrams that wait to be sent; beyond them answers are not given.
const WAITING: usize = 256;
/// How long finding a peer may take.
const FINDING: Duration = Duration::from_secs(5);

/// What is there for datagrams. The fields' order is the order of teardown: the QP goes before the handles of those it
/// sends to.
pub(super) struct Datagrams {
    qp: DatagramQp,
    outbox: VecDeque<(Vec<u8>, Arc<Destination>)>,
    under_way: Vec<(u64, Arc<Destination>)>,
    peers: Vec<Peer>,
    listener: Option<Listener>,
    pd: Pd,
    port: u8,
    address: SocketAddr,
    /// Bytes of a part.
    part: usize,
    messages_sent: u32,
    recent: Recent,
    bucket: Bucket,
    every: Duration,
    next: Instant,
    status: DatagramStatus,
}

/// Whom to tell.
struct Peer {
    address: SocketAddr,
    /// Being found, or the membership in a group.
    reaching: Option<Reaching>,
    /// Where a group is. A single peer is asked anew each time: it may have started again, with another QP.
    group: Option<Arc<Destination>>,
    /// The announcement that waits for it to be found.
    waiting: Option<String>,
}

impl Datagrams {
    /// As `config` wishes: `None` if it wishes for none.
    ///
    /// # Errors
    /// A verb's: the device has no UD QPs, or the address is taken.
    pub(super) fn make(
        service: &Service,
        config: &ControlConfig,
        channel: &CmChannel,
        listener: &Listener,
        address: SocketAddr,
        ends: &Ends<'_>,
        part: usize,
    ) -> Result<Option<Self>, Error> {
        if !config.datagrams && config.announce.is_empty() {
            return Ok(None);
        }
        let now = Instant::now();
        let port = listener.port();
        let ends = Ends {
            sends: SENDS,
            ..*ends
        };
        let questions = config
            .datagrams
            .then(|| Listener::bind_datagrams(channel, address))
            .transpose()?;
        let peers = config.announce.iter().map(|address| Peer {
            address: *address,
            reaching: None,
            group: None,
            waiting: None,
        });
        Ok(Some(Self {
            qp: DatagramQp::create(&ends, port)?,
            outbox: VecDeque::new(),
            under_way: Vec::new(),
            peers: peers.collect(),
            listener: questions,
            pd: ends.pd.clone(),
            port,
            address,
            part,
            messages_sent: 0,
            recent: Recent::default(),
            bucket: Bucket::new(&service.limits, now),
            every: config.announce_interval.0,
            next: now,
            status: DatagramStatus::default(),
        }))
    }

    /// Lets others find the QP.
    pub(super) fn listen(&self, backlog: i32) -> Result<(), Error> {
        self.listener
            .as_ref()
            .map_or(Ok(()), |it| it.listen(backlog))
    }

    pub(super) fn status(&self) -> DatagramStatus {
        self.status
    }

    /// Whether somebody asks for this QP.
    pub(super) fn is_asked_for(&self, incoming: &Incoming) -> bool {
        self.listener
            .as_ref()
            .is_some_and(|it| it.key() == incoming.listener())
    }

    /// Tells who asked where to send datagrams to.
    pub(super) fn show(&self, incoming: Incoming) {
        if let Err(e) = incoming.show(&self.qp) {
            tracing::debug!("control.rdma: who asked for datagrams was not told: {e}");
        }
    }

    /// Whether a completion is of one of its sends.
    pub(super) fn sent(&mut self, wr_id: u64) -> bool {
        let Some(at) = self.under_way.iter().position(|(id, _)| *id == wr_id) else {
            return false;
        };
        self.under_way.swap_remove(at);
        true
    }

    /// Whether a receive is one of this QP's.
    pub(super) fn is_of(&self, done: &Done) -> bool {
        done.qp_num == self.qp.qp_num()
    }

    /// Takes what came, and answers it if it is a query of somebody who has a key.
    pub(super) fn take(&mut self, done: &Done, received: &[u8], keys: &Keys, service: &Service) {
        let way = Way {
            from: done.sender.qp_num,
            to: self.qp.qp_num(),
        };
        let query = received
            .get(ROUTE_HEADER..)
            .filter(|_| self.listener.is_some())
            // A query fits one part.
            .and_then(|part| Joiner::new(part.len()).take(part).ok()?)
            .and_then(|bytes| Datagram::read(keys, Kind::Query, way, &bytes))
            .filter(|query| self.bucket.take(Instant::now()) && self.recent.is_new(query));
        let Some(query) = query else {
            self.status.refused += 1;
            return;
        };
        self.status.queries += 1;
        let answer = answer(&query.text, service).text();
        let back = Way {
            from: way.to,
            to: way.from,
        };
        let answered = Destination::back_to(&self.pd, self.port, done, received).and_then(|to| {
            self.say(
                keys,
                Kind::Answer,
                Some(query.nonce),
                back,
                answer,
                &Arc::new(to),
            )
        });
        if let Err(e) = answered {
            tracing::debug!("control.rdma: a query by datagram is not answered: {e}");
        }
    }

    fn say(
        &mut self,
        keys: &Keys,
        kind: Kind,
        nonce: Option<String>,
        way: Way,
        text: String,
        to: &Arc<Destination>,
    ) -> Result<(), Error> {
        if self.outbox.len() >= WAITING {
            // Lost, as datagrams may be.
            return Ok(());
        }
        let datagram = Datagram::sign(keys, kind, nonce, way, text)?;
        let outbox = &mut self.outbox;
        parts::split(self.messages_sent, &datagram.bytes(), self.part, |part| {
            outbox.push_back((part, Arc::clone(to)));
        });
        self.messages_sent = self.messages_sent.wrapping_add(1);
        Ok(())
    }

    /// How long until the next announcement.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        (!self.peers.is_empty()).then(|| self.next.saturating_duration_since(now))
    }

    /// Announces when it is time.
    pub(super) fn announce(
        &mut self,
        channel: &CmChannel,
        keys: &Keys,
        service: &Service,
        now: Instant,
    ) {
        if self.peers.is_empty() || now < self.next {
            return;
        }
        self.next = now + self.every;
        let text = match service.look(&Command::Status) {
            Ok(body) => Answer::ok(0, body).text(),
            Err(refusal) => Answer::error(0, refusal).text(),
        };
        for index in 0..self.peers.len() {
            if let Some(group) = self.peers[index].group.clone() {
                self.announce_to(keys, text.clone(), &group);
                continue;
            }
            let peer = &mut self.peers[index];
            match Reaching::resolve(channel, Some(self.address), peer.address, FINDING) {
                Ok(reaching) => {
                    peer.reaching = Some(reaching);
                    peer.waiting = Some(text.clone());
                }
                Err(e) => self.status.miss(peer.address, &e.to_string()),
            }
        }
    }

    fn announce_to(&mut self, keys: &Keys, text: String, to: &Arc<Destination>) {
        let way = Way {
            from: self.qp.qp_num(),
            to: 0,
        };
        match self.say(keys, Kind::Announcement, None, way, text, to) {
            Ok(()) => self.status.announcements += 1,
            Err(e) => tracing::warn!("an announcement is left out: {e}"),
        }
    }

    /// Takes an event of a peer being found; false: it is not of one.
    pub(super) fn event(&mut self, keys: &Keys, event: &CmEvent) -> bool {
        let (CmEvent::AddressResolved(key)
        | CmEvent::RouteResolved(key)
        | CmEvent::Reached(key, _)
        | CmEvent::Failed(key, _)) = event
        else {
            return false;
        };
        let Some(at) = self.peers.iter().position(|peer| peer.is(*key)) else {
            return false;
        };
        let address = self.peers[at].address;
        let reaching = self.peers[at].reaching.as_ref();
        let outcome = match (event, reaching) {
            (CmEvent::AddressResolved(_), Some(it)) => it.address_resolved(FINDING),
            (CmEvent::RouteResolved(_), Some(it)) => it.route_resolved(),
            (CmEvent::Reached(_, route), _) => self.reached(at, keys, route),
            (CmEvent::Failed(_, why), _) => {
                self.status.miss(address, why);
                self.peers[at].reaching = None;
                return true;
            }
            _ => Ok(()),
        };
        if let Err(e) = outcome {
            self.status.miss(address, &e.to_string());
            self.peers[at].reaching = None;
        }
        true
    }

    fn reached(&mut self, at: usize, keys: &Keys, route: &Route) -> Result<(), Error> {
        let to = Arc::new(Destination::to(&self.pd, route)?);
        let peer = &mut self.peers[at];
        if peer.address.ip().is_multicast() {
            peer.group = Some(Arc::clone(&to));
        } else {
            peer.reaching = None;
        }
        if let Some(text) = peer.waiting.take() {
            self.announce_to(keys, text, &to);
        }
        Ok(())
    }

    /// Sends what waits, as far as there are slots.
    pub(super) fn transmit(&mut self, messages: &mut Messages, free: &mut Vec<Slot>) {
        while self.under_way.len() < SENDS as usize && !self.outbox.is_empty() {
            let Some(mut slot) = free.pop() else { return };
            let Some((bytes, to)) = self.outbox.pop_front() else {
                free.push(slot);
                return;
            };
            messages.bytes_mut(&mut slot)[..bytes.len()].copy_from_slice(&bytes);
            let length = u32::try_from(bytes.len()).unwrap_or(0);
            match self.qp.send(messages, slot, length, &to) {
                Ok(wr_id) => self.under_way.push((wr_id, to)),
                Err((slot, errno)) => {
                    free.push(slot);
                    let e = std::io::Error::from_raw_os_error(errno);
                    tracing::warn!("ibv_post_send of a datagram: {e}");
                }
            }
        }
    }
}

impl Peer {
    fn is(&self, key: CmKey) -> bool {
        self.reaching.as_ref().is_some_and(|it| it.key() == key)
    }
}

impl DatagramStatus {
    fn miss(&mut self, peer: SocketAddr, why: &str) {
        self.missed += 1;
        tracing::debug!("control.announce: {peer} is not reached: {why}");
    }
}

/// What a query hears: only what changes nothing, and is short.
fn answer(text: &str, service: &Service) -> Answer {
    let request: Request = match serde_json::from_str(text) {
        Ok(it) => it,
        Err(e) => return Answer::error(0, Refusal::new(Code::Malformed, e.to_string())),
    };
    if request.version != VERSION {
        let message = format!("this service speaks version {VERSION}");
        return Answer::error(request.id, Refusal::new(Code::Malformed, message));
    }
    match request.command {
        Command::Status | Command::Stats => Answer::of(request.id, service.look(&request.command)),
        _ => {
            let message = "a datagram may ask for status and stats; connect for anything else";
            Answer::error(request.id, Refusal::new(Code::Unsupported, message))
        }
    }
}
