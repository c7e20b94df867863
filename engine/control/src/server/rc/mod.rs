//! Control service over RDMA: each client is a reliable connection (an RC QP), and all of them
//! receive from one shared receive queue.
//!
//! One thread polls the connection manager's events, the CQ's channel, the device's asynchronous
//! events and the mailbox. A completed receive is read and reposted at once.
//!
//! A message is sent in fragments of one packet each: a client that dies in the middle of a message
//! then holds no receive that would never complete.

mod admission;
mod client;
mod receive_queue;
mod srq_sizing;

use super::{
    ConfigProblem, StartError, avoid_cpus,
    mailbox::{ClientId, Mailbox},
    service::ControlService,
    session::SessionContext,
    thread::{ServerThread, poll_for},
};
use crate::{
    audit,
    protocol::{
        Refusal, RefusalCode, SrqStatus,
        auth::{self, Keys},
        fragment,
    },
    server::ControlConfig,
};
use admission::Admission;
use client::{Credentials, RcClient, SENDS, peer_at};
use receive_queue::ReceiveQueue;
use rustix::event::{PollFd, PollFlags};
use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use wqcap_verbs::{
    AsyncEvent, AsyncEvents, CmChannel, CmEvent, CmKey, Incoming, Listener, MessageCompletion,
    MessageCq, MessageMemory, MessageSlot, Pd, QpResources, VerbsError, status_text,
};

/// Maximum number of RDMA connection requests that wait to be accepted.
const BACKLOG: i32 = 128;
/// Maximum time for sending the last answers to RDMA clients when the control service ends.
const FLUSH: Duration = Duration::from_secs(1);
/// Interval at which the state of the shared receive queue (SRQ) is published to other threads.
const PUBLISH: Duration = Duration::from_millis(500);

/// Starts the control service over RDMA: binds to `address`, creates the shared receive queue
/// (SRQ), and starts the service's thread, which avoids the CPUs in `busy`.
///
/// # Errors
/// No RDMA device has the address, the key file is missing or accessible to others, or a verb
/// failed.
pub fn start(
    service: &Arc<ControlService>,
    config: &ControlConfig,
    address: SocketAddr,
    busy: Vec<usize>,
) -> Result<ServerThread, StartError> {
    let keys = keys(config)?.unwrap_or_default();
    let mailbox = Arc::new(Mailbox::new().map_err(|e| StartError::System {
        what: "cannot create an event descriptor".into(),
        source: e.into(),
    })?);
    let context = SessionContext {
        service: Arc::clone(service),
        mailbox: Arc::clone(&mailbox),
        counters: Arc::default(),
    };
    let server = RcLoop::new(context, config, address, keys)?;
    let _ = service.rdma.set((
        Arc::clone(&server.context.counters),
        Arc::clone(&server.published),
    ));
    ServerThread::start("wqcap-srq", mailbox, move || {
        avoid_cpus(&busy);
        server.run();
    })
}

/// Returns the keys of the configured key file, with which RDMA clients authenticate; `None`: the
/// configuration has no key file.
///
/// # Errors
/// `control.rdma` is set without `control.key_file`, or the file is not a valid key file.
pub fn keys(config: &ControlConfig) -> Result<Option<Keys>, ConfigProblem> {
    match (&config.rdma, &config.key_file) {
        (Some(address), None) => Err(ConfigProblem {
            key: "control.rdma",
            value: format!("\"{address}\""),
            problem: "needs control.key_file, whose key RDMA clients must prove".into(),
        }),
        (_, None) => Ok(None),
        (_, Some(path)) => {
            let refused = |e: auth::KeyFileError| ConfigProblem {
                key: "control.key_file",
                value: format!("\"{}\"", path.display()),
                problem: e.problem(),
            };
            Keys::read(path).map(Some).map_err(refused)
        }
    }
}

/// State of the thread that serves RDMA clients. The order of the fields is the order in which they
/// are dropped: QPs before the SRQ, and the SRQ before the memory that it receives into.
struct RcLoop {
    /// Connected RDMA clients by QP number.
    clients: HashMap<u32, RcClient>,
    receives: ReceiveQueue,
    cq: MessageCq,
    pd: Pd,
    events: AsyncEvents,
    listener: Listener,
    channel: CmChannel,
    messages: MessageMemory,
    /// Message slots that no outstanding send uses.
    free: Vec<MessageSlot>,
    credentials: Credentials,
    admission: Admission<Incoming>,
    context: SessionContext,
    published: Arc<Mutex<SrqStatus>>,
    fragment_len: usize,
    next: ClientId,
    publish_at: Instant,
}

impl RcLoop {
    fn new(
        context: SessionContext,
        config: &ControlConfig,
        address: SocketAddr,
        keys: Keys,
    ) -> Result<Self, VerbsError> {
        let now = Instant::now();
        let channel = CmChannel::create()?;
        let listener = Listener::bind(&channel, address)?;
        let device = listener.context().clone();
        let port = device.query_port(listener.port())?;
        let credentials = Credentials {
            keys,
            identity: identity(device.name(), listener.port()),
            port: address.port(),
        };
        let fragment_len = fragment::longest(port.active_mtu);
        let max_wr = device.query_device()?.orig_attr.max_srq_wr;
        let cap = config.srq_max.min(u32::try_from(max_wr).unwrap_or(0));
        let pd = Pd::alloc(&device)?;
        let sends = u32::try_from(context.service.limits.clients).unwrap_or(0) * SENDS;
        let (mut messages, mut free) = MessageMemory::register(&pd, cap + sends, fragment_len)?;
        let spare = free.split_off(sends as usize);
        let receives = ReceiveQueue::new(&listener, config, &pd, &mut messages, spare, now)?;
        let mut server = Self {
            clients: HashMap::new(),
            receives,
            cq: MessageCq::create(&device, cap + sends + 64)?,
            pd,
            events: AsyncEvents::open(&device)?,
            listener,
            channel,
            messages,
            free,
            credentials,
            admission: Admission::default(),
            context,
            published: Arc::default(),
            fragment_len: fragment_len as usize,
            next: 1,
            publish_at: now,
        };
        server.cq.arm()?;
        server.listener.listen(BACKLOG)?;
        server.publish();
        Ok(server)
    }

    fn run(mut self) {
        while !self.context.mailbox.is_ending() {
            self.wait();
            if let Err(e) = self.round() {
                tracing::error!("control.rdma is no longer served: {e}; restart the process");
                return;
            }
        }
        self.flush();
    }

    fn round(&mut self) -> Result<(), VerbsError> {
        self.complete()?;
        self.handle_device_events();
        self.handle_connection_events();
        self.deliver();
        let now = Instant::now();
        for client in self.clients.values_mut() {
            client.serve(now, &self.context, &self.credentials);
            client.transmit(&mut self.messages, &mut self.free, now);
        }
        self.remove_clients(now);
        audit::write_left_out();
        self.admit();
        self.receives.shrink_if_calm(&mut self.messages, now);
        if now >= self.publish_at {
            self.publish_at = now + PUBLISH;
            self.publish();
        }
        Ok(())
    }

    /// Waits for the next event of the RDMA transport, or until a client or the SRQ needs
    /// attention.
    fn wait(&mut self) {
        let now = Instant::now();
        let limits = self.context.service.limits;
        let waits = self
            .clients
            .values_mut()
            .filter_map(|it| it.wait(now, &limits));
        let timeout = waits
            .chain(self.receives.wait(now))
            .min()
            .unwrap_or(Duration::from_secs(60))
            .min(if self.clients.is_empty() {
                Duration::from_secs(1)
            } else {
                PUBLISH
            });
        let mut fds = [
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::new(&self.cq, PollFlags::IN),
            PollFd::new(&self.events, PollFlags::IN),
            PollFd::new(&self.context.mailbox, PollFlags::IN),
        ];
        poll_for(&mut fds, timeout + Duration::from_millis(1));
    }

    /// Handles completions of sends and receives until none is left; the CQ's next event is armed
    /// before the last poll.
    fn complete(&mut self) -> Result<(), VerbsError> {
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
            self.receives.refill(&mut self.messages);
        }
    }

    fn completed(&mut self, it: &MessageCompletion) {
        let Some(slot) = self.messages.take_returned(it) else {
            // A send of a destroyed QP, whose slots were returned with it.
            return;
        };
        let mut client = self.clients.get_mut(&it.qp_num);
        if client
            .as_mut()
            .is_some_and(|client| client.send_completed(it.wr_id))
        {
            self.free.push(slot);
        } else {
            // A receive of the SRQ, from any client; the sender may have disconnected since.
            if let Some(client) = client.as_mut().filter(|_| it.status == 0) {
                client.receive(&self.messages.bytes(&slot)[..it.byte_len as usize]);
            }
            self.receives.completed(slot);
        }
        if let Some(client) = client.filter(|_| it.status != 0) {
            let status = status_text(it.status);
            client.lost = Some(format!(
                "the RDMA connection of the client failed: {status}"
            ));
        }
    }

    fn handle_device_events(&mut self) {
        while let Some(event) = self.events.take() {
            let srq = self.receives.srq.id();
            match event {
                AsyncEvent::SrqLimit(id) if id == srq => {
                    self.receives
                        .limit_reached(&mut self.messages, Instant::now());
                }
                AsyncEvent::SrqError(id) if id == srq => {
                    tracing::error!(
                        "control.rdma receives no requests: its SRQ is in error (IBV_EVENT_SRQ_ERR); restart the process"
                    );
                }
                other => tracing::debug!(?other, "control.rdma: asynchronous event of the device"),
            }
        }
    }

    fn handle_connection_events(&mut self) {
        while let Some(event) = self.channel.take() {
            match event {
                CmEvent::Request(incoming) => {
                    let (limits, clients) = (&self.context.service.limits, self.clients.len());
                    let now = Instant::now();
                    if let Err(refused) = self.admission.request(incoming, clients, limits, now) {
                        let who = peer_at("", refused.peer_address());
                        drop(refused);
                        let message = format!(
                            "connected clients and waiting connection requests use all {} RDMA client slots; try again after another client has left",
                            limits.clients
                        );
                        let refusal = Refusal::new(RefusalCode::TooMany, message);
                        audit::log_refusal(&who, "a connection", &refusal);
                        self.context.counters.update(|it| it.refused += 1);
                    }
                }
                CmEvent::Established(key, _) => {
                    if let Some(client) = client_of(&mut self.clients, key) {
                        client.challenge(&self.credentials.identity);
                    }
                }
                CmEvent::Disconnected(key) | CmEvent::Failed(key, _) => {
                    match client_of(&mut self.clients, key) {
                        Some(client) => client.gone = true,
                        None => self.remove_requests(|it| it.key() == Some(key)),
                    }
                }
                CmEvent::AddressResolved(_) | CmEvent::RouteResolved(_) | CmEvent::Other => {}
            }
        }
    }

    /// Accepts waiting RDMA connection requests, as long as more peers without a proof of a key may
    /// be connected.
    fn admit(&mut self) {
        self.remove_requests(|_| false);
        loop {
            let unproved = self.clients.values().filter(|it| !it.is_authenticated());
            let unproved = unproved.count();
            match self.admission.next(unproved, &self.context.service.limits) {
                Some(incoming) => self.accept(incoming),
                None => return,
            }
        }
    }

    /// Rejects the RDMA connection requests that have waited for too long, and those for which
    /// `gone` is true.
    fn remove_requests(&mut self, gone: impl Fn(&Incoming) -> bool) {
        let limits = &self.context.service.limits;
        let removed = self.admission.remove(limits, Instant::now(), gone) as u64;
        self.context.counters.update(|it| it.refused += removed);
    }

    fn accept(&mut self, incoming: Incoming) {
        let limits = &self.context.service.limits;
        let ends = QpResources {
            pd: &self.pd,
            cq: &self.cq,
            srq: &self.receives.srq,
            sends: SENDS,
        };
        match incoming.accept(&ends) {
            Ok(connection) => {
                let qp = connection.qp_num();
                let client =
                    RcClient::new(self.next, connection, limits.request, self.fragment_len);
                self.next += 1;
                self.clients.insert(qp, client);
                self.context.counters.update(|it| it.accepted += 1);
            }
            Err(e) => {
                self.context.counters.update(|it| it.refused += 1);
                tracing::warn!("control.rdma: cannot accept a connection: {e}");
            }
        }
    }

    fn deliver(&mut self) {
        for (id, text) in self.context.mailbox.take() {
            // The client may have left.
            if let Some(client) = self.clients.values_mut().find(|it| it.id == id) {
                client.change_answered(&text);
            }
        }
    }

    /// Removes RDMA clients that have disconnected, or that must be disconnected.
    fn remove_clients(&mut self, now: Instant) {
        let limits = self.context.service.limits;
        let counters = &self.context.counters;
        let leaving = self.clients.extract_if(|qp, client| {
            let Some(reason) = client.disconnect_reason(now, &limits) else {
                return client.gone;
            };
            let is_authenticated = client.is_authenticated();
            counters.update(|it| match is_authenticated {
                true => it.expelled += 1,
                false => it.refused += 1,
            });
            tracing::debug!(qp, "control.rdma: a client is disconnected: {reason}");
            if !is_authenticated {
                let refusal = Refusal::new(RefusalCode::Denied, reason);
                audit::log_refusal(&client.peer(None), "a connection", &refusal);
            }
            true
        });
        for (_, client) in leaving {
            client.disconnect(&mut self.messages, &mut self.free);
        }
        let clients = self.clients.len() as u64;
        counters.update(|it| it.clients = clients);
    }

    fn publish(&mut self) {
        *self
            .published
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = self.receives.status();
    }

    /// Sends the last answers to RDMA clients when the service ends, in particular the one to the
    /// command `shutdown`, and then ends each connection.
    fn flush(&mut self) {
        let until = Instant::now() + FLUSH;
        self.deliver();
        while Instant::now() < until {
            let now = Instant::now();
            for client in self.clients.values_mut() {
                client.transmit(&mut self.messages, &mut self.free, now);
            }
            if self.clients.values().all(RcClient::has_sent_all) || self.complete().is_err() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        for client in self.clients.values_mut() {
            client.connection.disconnect();
        }
    }
}

fn client_of(clients: &mut HashMap<u32, RcClient>, key: CmKey) -> Option<&mut RcClient> {
    clients.values_mut().find(|it| it.connection.key() == key)
}

/// Returns the identity of the control service in its challenges: a text that differs for every
/// service and every start of a service.
fn identity(device: &str, port: u8) -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let start = auth::nonce().unwrap_or_default();
    format!("{host} {device} port {port} {start:.16}")
}
