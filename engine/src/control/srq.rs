//! The service over RDMA: every client a reliable connection, all of them on one shared receive queue.
//!
//! One thread polls the connection manager's events, the CQ's channel, the device's asynchronous events and the mail.
//! A receive that has completed is read and posted again at once. When the SRQ falls below its low watermark all the
//! same, `Level` says whether it grows; then the watermark is armed again, since one event disarms it.
//!
//! A message travels in parts of one packet each: a client that dies in the middle of one has then taken no receive
//! with it that would never complete.

use super::{
    auth::{self, Bond, Keys, Side},
    level::Level,
    mailbox::{Mailbox, Token},
    message::{Answer, Code, Handshake, Refusal, SrqStatus, VERSION},
    parts::{self, Joiner},
    service::{Counters, Service},
    session::{Session, Step},
};
use crate::{
    Error,
    config::ControlConfig,
    verbs::{
        AsyncEvent, AsyncEvents, CmChannel, CmEvent, Connection, Done, Ends, Incoming, Listener,
        MessageCq, Messages, Pd, SRQ_RESIZE, Slot, Srq, status_text,
    },
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Bytes of the longest part: the largest path MTU of InfiniBand and RoCE.
const LARGEST_PART: u32 = 4096;
/// Parts under way to one client.
const SENDS: u32 = 8;
/// Connections that may wait for the service to look.
const BACKLOG: i32 = 128;
/// Requests of one client that wait for its turn; a client that sends more without hearing an answer floods.
const WAITING: usize = 32;
/// Requests of one client in one round.
const ROUND: usize = 8;
/// How long the last answers may take when the service ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often the device's counters are read.
const TELL: Duration = Duration::from_millis(500);

/// A service over RDMA. Ends when it is dropped.
pub struct SrqServer {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl SrqServer {
    /// Binds, makes the SRQ, and starts the thread.
    ///
    /// # Errors
    /// No RDMA device has the address, the key file is missing or open to all, or a verb failed.
    pub fn start(
        service: &Arc<Service>,
        config: &ControlConfig,
        address: SocketAddr,
        settle: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let Some(key_file) = &config.key_file else {
            return Err(Error::Config {
                key: "control.rdma".into(),
                value: address.to_string(),
                problem: "needs control.key_file: clients over RDMA prove that they have its key"
                    .into(),
            });
        };
        let keys = Keys::read(key_file)?;
        let mailbox = Arc::new(Mailbox::new().map_err(|e| Error::System {
            what: "an event descriptor".into(),
            source: e.into(),
        })?);
        let server = Server::make(service, config, address, keys, Arc::clone(&mailbox))?;
        let _ = service
            .rdma
            .set((Arc::clone(&server.counters), Arc::clone(&server.told)));
        let thread = std::thread::Builder::new()
            .name("wqcap-srq".into())
            .spawn(move || {
                settle();
                server.run();
            })
            .map_err(|source| Error::System {
                what: "the thread wqcap-srq".into(),
                source,
            })?;
        Ok(Self {
            mailbox,
            thread: Some(thread),
        })
    }
}

impl Drop for SrqServer {
    fn drop(&mut self) {
        self.mailbox.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The fields' order is the order of teardown: QPs go before the SRQ, that before what it receives into.
struct Server {
    clients: HashMap<u32, Client>,
    srq: Srq,
    cq: MessageCq,
    pd: Pd,
    events: AsyncEvents,
    listener: Listener,
    channel: CmChannel,
    messages: Messages,
    /// Slots for receives that are not posted, and for sends that are not under way.
    spare: Vec<Slot>,
    free: Vec<Slot>,
    posted: u32,
    level: Level,
    /// Smaller size to come, once no more than that is posted.
    shrinking: Option<u32>,
    keys: Keys,
    service: Arc<Service>,
    mailbox: Arc<Mailbox>,
    counters: Arc<Counters>,
    told: Arc<Mutex<SrqStatus>>,
    status: SrqStatus,
    not_ready: PathBuf,
    /// Bytes of a part.
    part: usize,
    next: Token,
    tell: Instant,
}

impl Server {
    fn make(
        service: &Arc<Service>,
        config: &ControlConfig,
        address: SocketAddr,
        keys: Keys,
        mailbox: Arc<Mailbox>,
    ) -> Result<Self, Error> {
        let now = Instant::now();
        let channel = CmChannel::create()?;
        let listener = Listener::bind(&channel, address)?;
        let context = listener.context().clone();
        let device = context.query_device()?.orig_attr;
        let port = context.query_port(listener.port())?;
        let part = mtu_bytes(port.active_mtu).min(LARGEST_PART);
        let most = u32::try_from(device.max_srq_wr).unwrap_or(0);
        let cap = config.srq_max.min(most);
        let pd = Pd::alloc(&context)?;
        let sends = u32::try_from(service.limits.clients).unwrap_or(0) * SENDS;
        let (messages, mut free) = Messages::register(&pd, cap + sends, part)?;
        let spare = free.split_off(sends as usize);
        let resizes = config.srq_resize && probe(&pd, &messages, device.device_cap_flags);
        let mut level = Level::new(config.srq, cap, resizes, config.srq_calm.0, now);
        let srq = listener.srq(&pd, &messages, level.size())?;
        // It may hold more than was asked for.
        level.resized(srq.query()?.max_wr, now);
        let cq = MessageCq::create(&context, cap + sends + 64)?;
        let not_ready = PathBuf::from(format!(
            "/sys/class/infiniband/{}/ports/{}/hw_counters",
            context.name(),
            listener.port()
        ));
        let mut server = Self {
            clients: HashMap::new(),
            cq,
            pd,
            events: AsyncEvents::of(&context)?,
            messages,
            spare,
            free,
            posted: 0,
            status: SrqStatus {
                cap,
                ..SrqStatus::default()
            },
            level,
            shrinking: None,
            keys,
            service: Arc::clone(service),
            mailbox,
            counters: Arc::default(),
            told: Arc::default(),
            not_ready,
            part: part as usize,
            next: 1,
            tell: now,
            srq,
            listener,
            channel,
        };
        server.refill();
        server.arm();
        server.cq.arm()?;
        server.listener.listen(BACKLOG)?;
        server.tell_status();
        Ok(server)
    }

    fn run(mut self) {
        while !self.mailbox.is_ending() {
            self.wait();
            if let Err(e) = self.round() {
                tracing::error!("control.rdma is served no longer: {e}");
                return;
            }
        }
        self.say_farewell();
    }

    fn round(&mut self) -> Result<(), Error> {
        self.complete()?;
        self.asynchronous();
        self.connections();
        self.deliver();
        let now = Instant::now();
        self.serve(now);
        self.part_with(now);
        self.resize_if_calm(now);
        if now >= self.tell {
            self.tell = now + TELL;
            self.tell_status();
        }
        Ok(())
    }

    /// Sleeps until something is to be done.
    fn wait(&mut self) {
        let now = Instant::now();
        let limits = self.service.limits;
        let waits = self
            .clients
            .values_mut()
            .filter_map(|it| it.wait(now, &limits));
        let rest = waits
            .chain(self.level.wait(now))
            .min()
            .unwrap_or(Duration::from_secs(60))
            .min(if self.clients.is_empty() {
                Duration::from_secs(1)
            } else {
                TELL
            });
        let rest = Timespec::try_from(rest + Duration::from_millis(1)).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        let mut fds = [
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::new(&self.cq, PollFlags::IN),
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(&self.mailbox, PollFlags::IN),
        ];
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&rest));
    }

    /// Takes completions until there are none, with the event asked for before the last look.
    fn complete(&mut self) -> Result<(), Error> {
        self.cq.take_events();
        self.cq.arm()?;
        loop {
            let done = self.cq.poll()?;
            if done.is_empty() {
                return Ok(());
            }
            for it in done {
                self.completed(&it);
            }
            self.refill();
        }
    }

    fn completed(&mut self, it: &Done) {
        let Some(slot) = self.messages.returned(it.wr_id) else {
            // A send of a QP that is gone: its slots came back with it.
            return;
        };
        let mut client = self.clients.get_mut(&it.qp_num);
        if client.as_mut().is_some_and(|them| them.sent(it.wr_id)) {
            self.free.push(slot);
        } else {
            // A receive off the SRQ, whoever sent it, also one that has left since.
            self.posted = self.posted.saturating_sub(1);
            if let Some(client) = client.as_mut().filter(|_| it.status == 0) {
                client.take(&self.messages.bytes(&slot)[..it.byte_len as usize]);
            }
            self.spare.push(slot);
        }
        if let Some(client) = client.filter(|_| it.status != 0) {
            client.lost = Some(format!("its connection failed: {}", status_text(it.status)));
        }
    }

    /// Posts as many receives as there are to be.
    fn refill(&mut self) {
        let wanted = self.shrinking.unwrap_or(self.level.size());
        while self.posted < wanted {
            let Some(slot) = self.spare.pop() else { return };
            match self.srq.post(&mut self.messages, slot) {
                Ok(()) => self.posted += 1,
                Err((slot, errno)) => {
                    self.spare.push(slot);
                    let e = std::io::Error::from_raw_os_error(errno);
                    tracing::warn!(
                        "ibv_post_srq_recv: {e}; {} of {wanted} are posted",
                        self.posted
                    );
                    return;
                }
            }
        }
    }

    fn arm(&mut self) {
        match self.srq.arm(self.level.limit()) {
            Ok(()) => self.status.armed += 1,
            Err(e) => tracing::warn!("the low watermark is not armed: {e}"),
        }
    }

    fn asynchronous(&mut self) {
        while let Some(event) = self.events.take() {
            match event {
                AsyncEvent::SrqLimit(id) if id == self.srq.id() => self.limit_reached(),
                AsyncEvent::SrqError(id) if id == self.srq.id() => {
                    tracing::error!("the SRQ is in error (IBV_EVENT_SRQ_ERR): no request comes in");
                }
                other => tracing::debug!(?other, "asynchronous event"),
            }
        }
    }

    /// The SRQ was nearly empty.
    fn limit_reached(&mut self) {
        self.status.limit_events += 1;
        self.shrinking = None;
        let now = Instant::now();
        if let Some(size) = self.level.reached(now) {
            self.resize(size, now);
        }
        self.refill();
        self.arm();
    }

    fn resize(&mut self, size: u32, now: Instant) {
        let before = self.level.size();
        if let Err(e) = self.srq.resize(size) {
            tracing::warn!("the SRQ keeps {before} WRs: {e}");
            self.status.resize_refused += 1;
            self.level.refused();
            return;
        }
        let got = self.srq.query().map_or(size, |attr| attr.max_wr);
        self.level.resized(got, now);
        if self.level.size() > before {
            self.status.grown += 1;
        } else {
            self.status.shrunk += 1;
        }
    }

    /// Halves the SRQ after a calm time. What is posted beyond that must be consumed first: until then receives are
    /// not posted again.
    fn resize_if_calm(&mut self, now: Instant) {
        if self.shrinking.is_none() {
            self.shrinking = self.level.calmed(now);
        }
        let Some(size) = self.shrinking.filter(|size| self.posted <= *size) else {
            return;
        };
        self.shrinking = None;
        // The watermark may not stand above the size.
        if self.srq.arm((size / 4).max(1)).is_ok() {
            self.status.armed += 1;
            self.resize(size, now);
        }
        self.refill();
        self.arm();
    }

    fn connections(&mut self) {
        while let Some(event) = self.channel.take() {
            match event {
                CmEvent::Request(incoming) => self.admit(incoming),
                CmEvent::Established(key, _) => self.established(key),
                CmEvent::Disconnected(key) | CmEvent::Failed(key, _) => {
                    if let Some(client) = self.client_of(key) {
                        client.gone = true;
                    }
                }
                CmEvent::AddressResolved(_) | CmEvent::RouteResolved(_) | CmEvent::Other => {}
            }
        }
    }

    fn client_of(&mut self, key: usize) -> Option<&mut Client> {
        self.clients
            .values_mut()
            .find(|it| it.connection.key() == key)
    }

    fn admit(&mut self, incoming: Incoming) {
        if self.clients.len() >= self.service.limits.clients {
            Counters::count(&self.counters.refused);
            return;
        }
        let ends = Ends {
            pd: &self.pd,
            cq: &self.cq,
            srq: &self.srq,
            sends: SENDS,
        };
        match incoming.accept(&ends) {
            Ok(connection) => {
                let longest = self.service.limits.request;
                let client = Client::new(self.next, connection, longest, self.part);
                self.next += 1;
                self.clients.insert(client.connection.qp_num(), client);
                Counters::count(&self.counters.accepted);
            }
            Err(e) => {
                Counters::count(&self.counters.refused);
                tracing::warn!("control.rdma: a connection was not accepted: {e}");
            }
        }
    }

    /// A connection stands: the client gets its challenge, and nothing else before it has answered that.
    fn established(&mut self, key: usize) {
        let Some(client) = self.client_of(key) else {
            return;
        };
        match auth::nonce() {
            Ok(nonce) => {
                client.send(
                    &Handshake::Challenge {
                        version: VERSION,
                        nonce: nonce.clone(),
                    }
                    .text(),
                );
                client.challenge = Some(nonce);
            }
            Err(e) => client.lost = Some(e.to_string()),
        }
    }

    fn deliver(&mut self) {
        for (token, text) in self.mailbox.take() {
            let client = self.clients.values_mut().find(|it| it.token == token);
            if let Some(client) = client {
                if let Stage::Session(session) = &mut client.stage {
                    session.answered();
                }
                client.send(&text);
            }
        }
    }

    fn serve(&mut self, now: Instant) {
        let limits = self.service.limits;
        for client in self.clients.values_mut() {
            if let Err(joined) = &client.joined {
                client.expel(Answer::error(0, joined.clone()).text());
            }
            for _ in 0..ROUND {
                if !client.may_ask(now, limits.backlog) {
                    break;
                }
                let Some(text) = client.inbox.pop_front() else {
                    break;
                };
                match &mut client.stage {
                    Stage::Session(session) => match session.take(&text, now) {
                        Step::Answer(text) => client.send(&text),
                        Step::Later => {}
                        Step::Expel(text) => client.expel(text),
                    },
                    Stage::Stranger => {
                        let (service, mailbox, counters) =
                            (&self.service, &self.mailbox, &self.counters);
                        match client.identify(&text, &self.keys) {
                            Ok((access, welcome)) => {
                                let session =
                                    Session::new(client.token, access, service, mailbox, counters);
                                client.stage = Stage::Session(Box::new(session));
                                client.send(&welcome);
                            }
                            // Nothing is told to who has not proved a thing.
                            Err(()) => client.lost = Some("no proof of a key".into()),
                        }
                    }
                }
            }
            if client.inbox.len() > WAITING {
                let message = format!("more than {WAITING} requests wait; hear the answers first");
                let refusal = Refusal::new(Code::TooMany, message);
                client.expel(Answer::error(0, refusal).text());
            }
            let keeps_up = client.outbox_bytes() < limits.backlog;
            if let Stage::Session(session) = &mut client.stage
                && let Some(text) = session.push(now, keeps_up)
            {
                client.send(&text);
            }
            client.transmit(&mut self.messages, &mut self.free, now);
        }
    }

    /// Lets those go who have gone, and those who must. Their QPs go with them, and the slots of their sends come back.
    fn part_with(&mut self, now: Instant) {
        let limits = self.service.limits;
        let mut leaving = Vec::new();
        for (qp, client) in &mut self.clients {
            if let Some(why) = client.must_go(now, &limits) {
                let of = match client.stage {
                    Stage::Stranger => &self.counters.refused,
                    Stage::Session(_) => &self.counters.expelled,
                };
                Counters::count(of);
                tracing::debug!(qp, "control.rdma: a client is put out: {why}");
                leaving.push(*qp);
            } else if client.gone {
                leaving.push(*qp);
            }
        }
        for qp in leaving {
            if let Some(mut client) = self.clients.remove(&qp) {
                client.connection.disconnect();
                let under_way = std::mem::take(&mut client.under_way);
                // The QP is destroyed here: the device is done with its sends.
                drop(client);
                self.free.extend(
                    under_way
                        .into_iter()
                        .filter_map(|id| self.messages.returned(id)),
                );
            }
        }
        let clients = self.clients.len() as u64;
        self.counters.clients.store(clients, Ordering::Relaxed);
    }

    fn tell_status(&mut self) {
        let attr = self.srq.query().ok();
        self.status.max_wr = attr.map_or(0, |it| it.max_wr);
        self.status.limit = attr.map_or(0, |it| it.limit);
        self.status.posted = self.posted;
        self.status.resizes = self.level.resizes();
        self.status.qps = self.srq.holders() as u64;
        self.status.receiver_not_ready = ["send_rnr_err", "out_of_buffer"]
            .iter()
            .find_map(|name| std::fs::read_to_string(self.not_ready.join(name)).ok())
            .and_then(|text| text.trim().parse().ok());
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone_from(&self.status);
    }

    /// Sends what is still to be said, the answer to `shutdown` above all, and then ends each connection.
    fn say_farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        self.deliver();
        while Instant::now() < until {
            let now = Instant::now();
            for client in self.clients.values_mut() {
                client.transmit(&mut self.messages, &mut self.free, now);
            }
            if self.clients.values().all(Client::has_said_all) || self.complete().is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for client in self.clients.values_mut() {
            client.connection.disconnect();
        }
    }
}

/// Whether the device resizes SRQs, by its own word and by trying on one that nobody uses.
fn probe(pd: &Pd, messages: &Messages, capabilities: u32) -> bool {
    if capabilities & SRQ_RESIZE == 0 {
        return false;
    }
    let tried = Srq::create(pd, messages, 4).and_then(|mut srq| srq.resize(8));
    if let Err(e) = &tried {
        tracing::info!("the device says that it resizes SRQs, and does not: {e}");
    }
    tried.is_ok()
}

/// Bytes of an `ibv_mtu`.
fn mtu_bytes(mtu: u32) -> u32 {
    128 << mtu.clamp(1, 5)
}

/// How far a client has come.
enum Stage {
    /// It has not proved anything.
    Stranger,
    /// It may ask.
    Session(Box<Session>),
}

struct Client {
    token: Token,
    connection: Connection,
    stage: Stage,
    since: Instant,
    challenge: Option<String>,
    joiner: Joiner,
    joined: Result<(), Refusal>,
    inbox: VecDeque<Vec<u8>>,
    /// Parts to be sent.
    outbox: VecDeque<Vec<u8>>,
    /// Bytes of a part.
    part: usize,
    messages_sent: u32,
    /// Sends that are with the device, by their WR.
    under_way: Vec<u64>,
    arriving: Option<Instant>,
    sending: Option<Instant>,
    /// To be put out when it has been told why.
    expelled: bool,
    /// To be put out at once, for this reason.
    lost: Option<String>,
    gone: bool,
}

impl Client {
    fn new(token: Token, connection: Connection, longest: usize, part: usize) -> Self {
        Self {
            token,
            part,
            connection,
            stage: Stage::Stranger,
            since: Instant::now(),
            challenge: None,
            joiner: Joiner::new(longest),
            joined: Ok(()),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            messages_sent: 0,
            under_way: Vec::new(),
            arriving: None,
            sending: None,
            expelled: false,
            lost: None,
            gone: false,
        }
    }

    /// Takes a part that came. Beyond what may wait nothing is kept.
    fn take(&mut self, part: &[u8]) {
        if self.expelled || self.inbox.len() > WAITING {
            return;
        }
        match self.joiner.take(part) {
            Ok(Some(text)) => self.inbox.push_back(text),
            Ok(None) => {}
            Err(e) => {
                let code = match e {
                    parts::JoinError::TooLarge(_) => Code::TooLarge,
                    _ => Code::Malformed,
                };
                // The first is what went wrong; what follows it is out of order all the same.
                if self.joined.is_ok() {
                    self.joined = Err(Refusal::new(code, e.to_string()));
                }
            }
        }
        self.arriving = self
            .joiner
            .is_midway()
            .then(|| self.arriving.unwrap_or_else(Instant::now));
    }

    /// Splits a message into parts of a packet each, to be sent.
    fn send(&mut self, text: &str) {
        let outbox = &mut self.outbox;
        parts::split(self.messages_sent, text.as_bytes(), self.part, |part| {
            outbox.push_back(part);
        });
        self.messages_sent = self.messages_sent.wrapping_add(1);
    }

    fn expel(&mut self, text: String) {
        if !self.expelled {
            // A stranger hears nothing.
            match self.stage {
                Stage::Session(_) => self.send(&text),
                Stage::Stranger => self.lost = Some("nonsense before any proof".into()),
            }
            self.expelled = true;
            self.inbox.clear();
        }
    }

    fn may_ask(&mut self, now: Instant, backlog: usize) -> bool {
        let full = self.outbox_bytes() >= backlog;
        match &mut self.stage {
            _ if self.expelled || full || self.lost.is_some() => false,
            Stage::Stranger => true,
            Stage::Session(session) => session.is_ready(now),
        }
    }

    fn outbox_bytes(&self) -> usize {
        self.outbox.iter().map(Vec::len).sum()
    }

    /// Whether a completion is of one of its sends.
    fn sent(&mut self, wr_id: u64) -> bool {
        let Some(at) = self.under_way.iter().position(|it| *it == wr_id) else {
            return false;
        };
        self.under_way.swap_remove(at);
        self.sending = (!self.under_way.is_empty()).then(Instant::now);
        true
    }

    fn has_said_all(&self) -> bool {
        self.outbox.is_empty() && self.under_way.is_empty()
    }

    fn transmit(&mut self, messages: &mut Messages, free: &mut Vec<Slot>, now: Instant) {
        while self.under_way.len() < SENDS as usize && self.lost.is_none() {
            // There is a slot for each send that any client may have under way.
            let Some(mut slot) = free.pop() else { return };
            let Some(bytes) = self.outbox.pop_front() else {
                free.push(slot);
                return;
            };
            messages.bytes_mut(&mut slot)[..bytes.len()].copy_from_slice(&bytes);
            let length = u32::try_from(bytes.len()).unwrap_or(0);
            match self.connection.send(messages, slot, length) {
                Ok(wr_id) => {
                    self.under_way.push(wr_id);
                    self.sending.get_or_insert(now);
                }
                Err((slot, errno)) => {
                    free.push(slot);
                    let e = std::io::Error::from_raw_os_error(errno);
                    self.lost = Some(format!("ibv_post_send: {e}"));
                }
            }
        }
    }

    /// Whether it has the key that it says it has: its access, and the service's own proof.
    fn identify(
        &mut self,
        text: &[u8],
        keys: &Keys,
    ) -> Result<(super::message::Access, String), ()> {
        // One attempt to a challenge.
        let challenge = self.challenge.take().ok_or(())?;
        let Ok(Handshake::Proof { access, nonce, mac }) = serde_json::from_slice(text) else {
            return Err(());
        };
        if !auth::is_nonce(&nonce) {
            return Err(());
        }
        let bond = Bond {
            challenge,
            answer: nonce,
            access,
            service_qp: self.connection.qp_num(),
            client_qp: self.connection.peer_qp(),
        };
        if !keys.verify(Side::Client, &bond, &mac) {
            return Err(());
        }
        let mac = keys.prove(Side::Service, &bond).ok_or(())?;
        Ok((access, Handshake::Welcome { mac }.text()))
    }

    fn wait(&mut self, now: Instant, limits: &super::limits::Limits) -> Option<Duration> {
        if !self.inbox.is_empty() && self.may_ask(now, limits.backlog) {
            return Some(Duration::ZERO);
        }
        let until = |since: Instant, time| (since + time).saturating_duration_since(now);
        let stall = [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .map(|since| until(since, limits.stall))
            .min();
        let own = match &mut self.stage {
            Stage::Stranger => Some(until(self.since, limits.proof)),
            Stage::Session(session) => session.wait(now),
        };
        stall.into_iter().chain(own).min()
    }

    /// Why it is to be put out now, if it is.
    fn must_go(&self, now: Instant, limits: &super::limits::Limits) -> Option<String> {
        let over = |since: Instant, time| now.saturating_duration_since(since) > time;
        if self.gone {
            return None;
        }
        if let Some(why) = &self.lost {
            return Some(why.clone());
        }
        if matches!(self.stage, Stage::Stranger) && over(self.since, limits.proof) {
            return Some("no proof of a key in time".into());
        }
        if self.expelled && self.has_said_all() {
            return Some("it was told why".into());
        }
        [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .any(|since| over(since, limits.stall))
            .then(|| "it stalls".into())
    }
}
