//! Client over RDMA: its connection, its handshake, and its queued messages.

use crate::{
    audit::{self, Peer},
    protocol::{
        AccessLevel, Answer, Challenge, HANDSHAKE_VERSION, Handshake, Refusal, RefusalCode,
        auth::{self, Keys, Role, Transcript},
        fragment::{self, FragmentError, Reassembler},
    },
    server::{
        backend::Requester,
        limits::ClientLimits,
        mailbox::ClientId,
        session::{ClientSession, SessionAction, SessionContext},
    },
};
use std::{
    collections::VecDeque,
    net::IpAddr,
    time::{Duration, Instant},
};
use wqcap_verbs::{Connection, MessageMemory, MessageSlot};

/// Maximum number of outstanding sends from the control service to one RDMA client.
pub const SENDS: u32 = 8;
/// Maximum number of requests of one RDMA client that wait to be handled. A client that sends more
/// without waiting for answers is flooding the service.
const WAITING: usize = 32;
/// Maximum number of requests of one RDMA client that one round of the server handles, so that the
/// client does not delay the others.
const ROUND: usize = 8;

/// Keys and identity with which the control service authenticates RDMA clients.
pub struct Credentials {
    /// Authentication keys of the service. A client must prove that it has one of them.
    pub keys: Keys,
    /// Identity of the service, which its challenges contain.
    pub identity: String,
    /// Port number of the service to which clients connect.
    pub port: u16,
}

/// Stage of an RDMA client's handshake with the control service.
enum HandshakeStage {
    /// The client is not authenticated. `Some`: the challenge was sent, and its answer has not
    /// arrived.
    Handshake(Option<Challenge>),
    Authenticated(Box<ClientSession>),
}

/// Client of the control service that is connected over RDMA. Dropping it destroys its QP.
pub struct RcClient {
    pub id: ClientId,
    pub connection: Connection,
    stage: HandshakeStage,
    since: Instant,
    reassembler: Reassembler,
    /// Refusal that answers the client's first invalid message fragment; `None`: all were valid.
    bad_fragment: Option<Refusal>,
    inbox: VecDeque<Vec<u8>>,
    /// Message fragments that wait to be sent to the client.
    outbox: VecDeque<Vec<u8>>,
    fragment_len: usize,
    messages_sent: u32,
    /// `wr_id`s of the outstanding sends to the client.
    outstanding: Vec<u64>,
    /// Time since which a message of the client has been arriving; `None`: no message is
    /// incomplete.
    arriving: Option<Instant>,
    /// Time since which a send to the client has been outstanding; `None`: none is outstanding.
    sending: Option<Instant>,
    /// Set if the client is to be disconnected once the refusal with the reason is sent.
    expelled: bool,
    /// Reason to disconnect the client at once; `None`: the client stays connected.
    pub lost: Option<String>,
    /// Set if the RDMA client has disconnected.
    pub gone: bool,
}

impl RcClient {
    pub fn new(
        id: ClientId,
        connection: Connection,
        longest_request: usize,
        fragment_len: usize,
    ) -> Self {
        Self {
            id,
            fragment_len,
            connection,
            stage: HandshakeStage::Handshake(None),
            since: Instant::now(),
            reassembler: Reassembler::new(longest_request),
            bad_fragment: None,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            messages_sent: 0,
            outstanding: Vec::new(),
            arriving: None,
            sending: None,
            expelled: false,
            lost: None,
            gone: false,
        }
    }

    pub fn is_authenticated(&self) -> bool {
        matches!(self.stage, HandshakeStage::Authenticated(_))
    }

    /// Sends the challenge of the handshake to the client. No other message is sent before the
    /// client has answered it.
    pub fn challenge(&mut self, service: &str) {
        match auth::nonce() {
            Ok(nonce) => {
                let challenge = Challenge {
                    version: HANDSHAKE_VERSION,
                    service: service.into(),
                    nonce,
                };
                self.send(&Handshake::Challenge(challenge.clone()).text());
                self.stage = HandshakeStage::Handshake(Some(challenge));
            }
            Err(e) => self.lost = Some(e.to_string()),
        }
    }

    /// Sends the answer to a change that the client requested and whose outcome was pending.
    pub fn change_answered(&mut self, text: &str) {
        if let HandshakeStage::Authenticated(session) = &mut self.stage {
            session.change_answered();
        }
        self.send(text);
    }

    /// Takes a message fragment that the client sent. The client's messages beyond the limit of
    /// waiting requests are dropped.
    pub fn receive(&mut self, fragment: &[u8]) {
        if self.expelled || self.inbox.len() > WAITING {
            return;
        }
        match self.reassembler.push(fragment) {
            Ok(Some(text)) => self.inbox.push_back(text),
            Ok(None) => {}
            Err(e) => {
                let code = match e {
                    FragmentError::TooLarge(_) => RefusalCode::TooLarge,
                    _ => RefusalCode::Malformed,
                };
                // The first error is the cause of the later ones.
                self.bad_fragment
                    .get_or_insert_with(|| Refusal::new(code, e.to_string()));
            }
        }
        self.arriving = self
            .reassembler
            .is_midway()
            .then(|| self.arriving.unwrap_or_else(Instant::now));
    }

    /// Runs one round of the server for the RDMA client: handles its requests, and pushes
    /// statistics.
    pub fn serve(&mut self, now: Instant, context: &SessionContext, credentials: &Credentials) {
        let backlog = context.service.limits.backlog;
        if let Some(refusal) = &self.bad_fragment {
            let refusal = refusal.clone();
            self.refuse(refusal);
        }
        for _ in 0..ROUND {
            if !self.may_send_request(now, backlog) {
                break;
            }
            let Some(text) = self.inbox.pop_front() else {
                break;
            };
            self.handle(&text, now, context, credentials);
        }
        if self.inbox.len() > WAITING {
            let message = format!(
                "more than {WAITING} requests of this client wait for their answers; await these answers before sending more"
            );
            self.refuse(Refusal::new(RefusalCode::TooMany, message));
        }
        let keeps_up = self.outbox_bytes() < backlog;
        if let HandshakeStage::Authenticated(session) = &mut self.stage
            && let Some(text) = session.due_statistics(now, keeps_up)
        {
            self.send(&text);
        }
    }

    fn handle(
        &mut self,
        text: &[u8],
        now: Instant,
        context: &SessionContext,
        credentials: &Credentials,
    ) {
        let action = match &mut self.stage {
            HandshakeStage::Authenticated(session) => session.handle(text, now),
            HandshakeStage::Handshake(challenge) => {
                // Each challenge allows one attempt.
                let challenge = challenge.take();
                match challenge.and_then(|it| verify(it, text, credentials, &self.connection)) {
                    Some((access, welcome)) => {
                        let who = self.peer(Some(access));
                        let session =
                            ClientSession::new(self.id, who, access, Requester::Other, context);
                        self.stage = HandshakeStage::Authenticated(Box::new(session));
                        SessionAction::Send(welcome)
                    }
                    // A client that has proved nothing gets no reason.
                    None => {
                        self.lost = Some("no valid proof of a key".into());
                        SessionAction::Wait
                    }
                }
            }
        };
        match action {
            SessionAction::Send(text) => self.send(&text),
            SessionAction::Wait => {}
            SessionAction::Disconnect(text) => self.expel(text),
        }
    }

    /// Splits a message to the client into fragments, and queues these for sending.
    fn send(&mut self, text: &str) {
        let outbox = &mut self.outbox;
        fragment::split(
            self.messages_sent,
            text.as_bytes(),
            self.fragment_len,
            |fragment| outbox.push_back(fragment),
        );
        self.messages_sent = self.messages_sent.wrapping_add(1);
    }

    /// Returns the client's name in the audit trail: the kind of key that it has proved, and its
    /// address.
    pub fn peer(&self, access: Option<AccessLevel>) -> Peer {
        let key = match access {
            Some(AccessLevel::ReadWrite) => "key read_write from ",
            Some(AccessLevel::ReadOnly) => "key read_only from ",
            None => "",
        };
        peer_at(key, self.connection.addresses().1)
    }

    fn refuse(&mut self, refusal: Refusal) {
        if let HandshakeStage::Authenticated(session) = &self.stage
            && !self.expelled
        {
            audit::log_refusal(&session.who, "a message", &refusal);
        }
        self.expel(Answer::error(0, refusal).text());
    }

    fn expel(&mut self, text: String) {
        if !self.expelled {
            if self.is_authenticated() {
                self.send(&text);
            } else {
                self.lost = Some("malformed messages before any proof".into());
            }
            self.expelled = true;
            self.inbox.clear();
        }
    }

    fn may_send_request(&mut self, now: Instant, backlog: usize) -> bool {
        let full = self.outbox_bytes() >= backlog;
        match &mut self.stage {
            _ if self.expelled || full || self.lost.is_some() => false,
            HandshakeStage::Handshake(_) => true,
            HandshakeStage::Authenticated(session) => session.is_ready(now),
        }
    }

    fn outbox_bytes(&self) -> usize {
        self.outbox.iter().map(Vec::len).sum()
    }

    /// Returns `true` if the completion with `wr_id` belongs to a send to this client, which is
    /// then no longer outstanding.
    pub fn send_completed(&mut self, wr_id: u64) -> bool {
        let Some(at) = self.outstanding.iter().position(|it| *it == wr_id) else {
            return false;
        };
        self.outstanding.swap_remove(at);
        self.sending = (!self.outstanding.is_empty()).then(Instant::now);
        true
    }

    pub fn has_sent_all(&self) -> bool {
        self.outbox.is_empty() && self.outstanding.is_empty()
    }

    /// Posts queued message fragments to the RDMA client while send slots are available.
    pub fn transmit(
        &mut self,
        messages: &mut MessageMemory,
        free: &mut Vec<MessageSlot>,
        now: Instant,
    ) {
        while self.outstanding.len() < SENDS as usize && self.lost.is_none() {
            // There is a slot for each send that any client may have outstanding.
            let Some(slot) = free.pop() else { return };
            let Some(bytes) = self.outbox.pop_front() else {
                free.push(slot);
                return;
            };
            match self.connection.send(messages, slot, &bytes) {
                Ok(wr_id) => {
                    self.outstanding.push(wr_id);
                    self.sending.get_or_insert(now);
                }
                Err((slot, e)) => {
                    free.push(slot);
                    self.lost = Some(format!("ibv_post_send: {e}"));
                }
            }
        }
    }

    /// Disconnects the RDMA client and destroys its QP. The message slots of its outstanding sends
    /// are returned to `free`.
    pub fn disconnect(mut self, messages: &mut MessageMemory, free: &mut Vec<MessageSlot>) {
        self.connection.disconnect();
        free.extend(self.connection.close(messages, self.outstanding));
    }

    /// Returns the time until the RDMA client needs attention without a completion; `None`: never.
    pub fn wait(&mut self, now: Instant, limits: &ClientLimits) -> Option<Duration> {
        if !self.inbox.is_empty() && self.may_send_request(now, limits.backlog) {
            return Some(Duration::ZERO);
        }
        let until = |since: Instant, time| (since + time).saturating_duration_since(now);
        let stall = [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .map(|since| until(since, limits.stall))
            .min();
        let own = match &mut self.stage {
            HandshakeStage::Handshake(_) => Some(until(self.since, limits.handshake)),
            HandshakeStage::Authenticated(session) => session.wait(now),
        };
        stall.into_iter().chain(own).min()
    }

    /// Returns the reason to disconnect the RDMA client now; `None`: it stays connected.
    pub fn disconnect_reason(&self, now: Instant, limits: &ClientLimits) -> Option<String> {
        let over = |since: Instant, time| now.saturating_duration_since(since) > time;
        if self.gone {
            return None;
        }
        if let Some(reason) = &self.lost {
            return Some(reason.clone());
        }
        if !self.is_authenticated() && over(self.since, limits.handshake) {
            return Some("the client has not proved a key in time".into());
        }
        if self.expelled && self.has_sent_all() {
            return Some("the client was expelled".into());
        }
        [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .any(|since| over(since, limits.stall))
            .then(|| "the client stalls: a message from or to it takes too long".into())
    }
}

/// Returns the name in the audit trail of a peer over RDMA: the kind of key that it has proved, and
/// its address.
pub fn peer_at(key: &str, address: Option<IpAddr>) -> Peer {
    Peer::named(match address {
        Some(address) => format!("{key}{address}"),
        None => format!("{key}an unknown address"),
    })
}

/// Verifies the client's proof that it has a key. Returns the client's access level, and the answer
/// with the service's own proof; `None`: the proof is invalid.
fn verify(
    challenge: Challenge,
    text: &[u8],
    Credentials { keys, port, .. }: &Credentials,
    connection: &Connection,
) -> Option<(AccessLevel, String)> {
    let Ok(Handshake::Proof { access, nonce, mac }) = serde_json::from_slice(text) else {
        return None;
    };
    if !auth::is_nonce(&nonce) {
        return None;
    }
    let (own, peer) = connection.addresses();
    let transcript = Transcript {
        challenge,
        answer: nonce,
        access,
        service_qp: connection.qp_num(),
        client_qp: connection.peer_qp(),
        service: (own?, *port).into(),
        client: peer?,
    };
    if !keys.verify(Role::Client, &transcript, &mac) {
        return None;
    }
    let mac = keys.prove(Role::Service, &transcript)?;
    Some((access, Handshake::Welcome { mac }.text()))
}
