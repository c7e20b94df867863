//! Transport over RDMA: a reliable connection (an RC QP), established by the connection manager.

use super::{LONGEST_ANSWER, Transport};
use crate::protocol::{
    AccessLevel, Challenge, HANDSHAKE_VERSION, Handshake,
    auth::{self, Keys, Role, Transcript},
    fragment::{self, Reassembler},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    net::SocketAddr,
    time::{Duration, Instant},
};
use wqcap_verbs::{
    CmChannel, CmEvent, Connecting, Connection, MessageCompletion, MessageCq, MessageMemory,
    MessageSlot, Pd, QpResources, Srq, VerbsError, status_text,
};

/// Number of receive WRs that the RDMA client posts: an answer of up to this many fragments arrives
/// without a pause.
const RECEIVES: u32 = 64;
/// Maximum number of outstanding sends of the RDMA client.
const SENDS: u32 = 16;
/// Maximum time for which a send of the RDMA client waits for an earlier one to complete.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// RDMA connection of a client to the control service. The order of the fields is the order in
/// which they are dropped.
pub struct RcTransport {
    connection: Connection,
    service: SocketAddr,
    srq: Srq,
    cq: MessageCq,
    _pd: Pd,
    channel: CmChannel,
    messages: MessageMemory,
    free: Vec<MessageSlot>,
    /// `wr_id`s of the RDMA client's outstanding sends.
    outstanding: Vec<u64>,
    reassembler: Reassembler,
    inbox: VecDeque<Vec<u8>>,
    fragment_len: usize,
    messages_sent: u32,
    lost: Option<String>,
}

impl RcTransport {
    /// Connects to the control service over RDMA, and authenticates both the client and the
    /// service.
    ///
    /// # Errors
    /// No process serves this address, or client and service have different keys.
    pub fn connect(to: SocketAddr, keys: &Keys, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let mut transport = Self::connect_unauthenticated(to, deadline)?;
        let challenge = transport.receive_challenge(deadline)?;
        transport.authenticate(keys, keys.access(), challenge, deadline)?;
        Ok(transport)
    }

    /// Connects to the control service over RDMA without authentication.
    ///
    /// # Errors
    /// No process serves this address.
    pub fn connect_unauthenticated(to: SocketAddr, deadline: Instant) -> io::Result<Self> {
        let left = || deadline.saturating_duration_since(Instant::now());
        let channel = CmChannel::create().map_err(failed)?;
        let connecting = Connecting::resolve(&channel, to, left()).map_err(failed)?;
        await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::AddressResolved(_))
        })?;
        connecting.resolve_route(left()).map_err(failed)?;
        await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::RouteResolved(_))
        })?;
        let context = connecting
            .context()
            .ok_or_else(|| io::Error::other("no RDMA device reaches this address"))?;
        let port = context.query_port(connecting.port()).map_err(failed)?;
        let fragment_len = fragment::longest(port.active_mtu);
        let pd = Pd::alloc(&context).map_err(failed)?;
        let (mut messages, mut free) =
            MessageMemory::register(&pd, RECEIVES + SENDS, fragment_len).map_err(failed)?;
        let mut srq = Srq::create(&pd, &messages, RECEIVES).map_err(failed)?;
        for slot in free.split_off(SENDS as usize) {
            srq.post(&mut messages, slot).map_err(|(_, e)| e)?;
        }
        let cq = MessageCq::create(&context, RECEIVES + SENDS).map_err(failed)?;
        let ends = QpResources {
            pd: &pd,
            cq: &cq,
            srq: &srq,
            sends: SENDS,
        };
        let mut connection = connecting.connect(&ends).map_err(failed)?;
        let established = await_event(&channel, deadline, |event| {
            matches!(event, CmEvent::Established(..))
        })?;
        if let CmEvent::Established(_, peer_qp) = established {
            connection.set_peer_qp(peer_qp);
        }
        Ok(Self {
            connection,
            service: to,
            srq,
            cq,
            _pd: pd,
            channel,
            messages,
            free,
            outstanding: Vec::new(),
            reassembler: Reassembler::new(LONGEST_ANSWER),
            inbox: VecDeque::new(),
            fragment_len: fragment_len as usize,
            messages_sent: 0,
            lost: None,
        })
    }

    /// Waits for the challenge of the control service, its first message.
    ///
    /// # Errors
    /// The challenge does not arrive, or has another handshake version.
    pub fn receive_challenge(&mut self, deadline: Instant) -> io::Result<Challenge> {
        let text = self.receive(deadline)?;
        accept_challenge(serde_json::from_slice(&text)?)
    }

    /// Answers the service's `challenge` with a proof of the key for `access`, and verifies the
    /// service's proof.
    ///
    /// # Errors
    /// The keys differ: the service closes the connection, or its proof is not valid.
    pub fn authenticate(
        &mut self,
        keys: &Keys,
        access: AccessLevel,
        challenge: Challenge,
        deadline: Instant,
    ) -> io::Result<()> {
        let (transcript, proof) = self.transcript(keys, access, challenge)?;
        self.send(proof.text().as_bytes())?;
        let denied = |e: io::Error| match e.kind() {
            ErrorKind::TimedOut => e,
            _ => io::Error::new(
                ErrorKind::PermissionDenied,
                "the service does not accept this key",
            ),
        };
        let text = self.receive(deadline).map_err(denied)?;
        match serde_json::from_slice(&text)? {
            Handshake::Welcome { mac } if keys.verify(Role::Service, &transcript, &mac) => Ok(()),
            _ => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "the service has not proved that it has the key",
            )),
        }
    }

    /// Returns the transcript over which [`RcTransport::authenticate`] computes its proof, and the
    /// handshake message with the proof.
    ///
    /// # Errors
    /// The key file has no key for this access level.
    pub fn transcript(
        &self,
        keys: &Keys,
        access: AccessLevel,
        challenge: Challenge,
    ) -> io::Result<(Transcript, Handshake)> {
        let no_address = || io::Error::other("the connection manager has no local address");
        let transcript = Transcript {
            challenge,
            answer: auth::nonce()?,
            access,
            service_qp: self.connection.peer_qp(),
            client_qp: self.connection.qp_num(),
            service: self.service,
            client: self.connection.addresses().0.ok_or_else(no_address)?,
        };
        let no_key = || {
            io::Error::new(
                ErrorKind::PermissionDenied,
                "the key file has no key for this access",
            )
        };
        let proof = Handshake::Proof {
            access,
            nonce: transcript.answer.clone(),
            mac: keys.prove(Role::Client, &transcript).ok_or_else(no_key)?,
        };
        Ok((transcript, proof))
    }

    /// Returns the length in bytes of the longest message fragment: one packet on this path.
    #[must_use]
    pub fn fragment_len(&self) -> usize {
        self.fragment_len
    }

    /// Sends the bytes `fragment` as one message fragment, without adding a header.
    ///
    /// # Errors
    /// The RDMA connection to the service is lost.
    pub fn send_fragment(&mut self, fragment: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + SEND_TIMEOUT;
        while self.free.is_empty() {
            self.progress(deadline)?;
        }
        let Some(slot) = self.free.pop() else {
            return Err(ErrorKind::WouldBlock.into());
        };
        match self.connection.send(&mut self.messages, slot, fragment) {
            Ok(wr_id) => {
                self.outstanding.push(wr_id);
                Ok(())
            }
            Err((slot, e)) => {
                self.free.push(slot);
                Err(e)
            }
        }
    }

    /// Waits for completions or connection events of the client's RDMA connection, and handles
    /// them.
    fn progress(&mut self, deadline: Instant) -> io::Result<()> {
        self.cq.take_events();
        self.cq.arm().map_err(failed)?;
        let mut any = false;
        loop {
            let done = self.cq.poll().map_err(failed)?;
            if done.is_empty() {
                break;
            }
            any = true;
            for it in done {
                self.completed(&it)?;
            }
        }
        if any {
            return Ok(());
        }
        if let Some(reason) = &self.lost {
            return Err(io::Error::new(ErrorKind::ConnectionReset, reason.clone()));
        }
        wait(
            &[
                PollFd::new(&self.cq, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
            ],
            deadline,
        )?;
        while let Some(event) = self.channel.take() {
            if let CmEvent::Disconnected(_) | CmEvent::Failed(..) = event {
                self.lost = Some("the service has closed the connection".into());
            }
        }
        Ok(())
    }

    fn completed(&mut self, it: &MessageCompletion) -> io::Result<()> {
        let Some(slot) = self.messages.take_returned(it) else {
            return Ok(());
        };
        if let Some(at) = self.outstanding.iter().position(|id| *id == it.wr_id) {
            self.outstanding.swap_remove(at);
            self.free.push(slot);
        } else if it.status == 0 {
            let fragment = &self.messages.bytes(&slot)[..it.byte_len as usize];
            let message = self
                .reassembler
                .push(fragment)
                .map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
            self.inbox.extend(message);
            let posted = self.srq.post(&mut self.messages, slot);
            posted.map_err(|(_, e)| e)?;
        }
        if it.status != 0 {
            self.lost.get_or_insert(format!(
                "the RDMA connection to the control service is lost: {}",
                status_text(it.status)
            ));
        }
        Ok(())
    }
}

impl Transport for RcTransport {
    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        let mut fragments = Vec::new();
        fragment::split(self.messages_sent, text, self.fragment_len, |it| {
            fragments.push(it);
        });
        self.messages_sent = self.messages_sent.wrapping_add(1);
        fragments.iter().try_for_each(|it| self.send_fragment(it))
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(text) = self.inbox.pop_front() {
                return Ok(text);
            }
            self.progress(deadline)?;
        }
    }
}

impl Drop for RcTransport {
    fn drop(&mut self) {
        self.connection.disconnect();
    }
}

/// Returns the challenge in a handshake message, if it has the handshake version of this program.
fn accept_challenge(message: Handshake) -> io::Result<Challenge> {
    match message {
        Handshake::Challenge(it) if it.version == HANDSHAKE_VERSION => Ok(it),
        Handshake::Challenge(it) => Err(io::Error::other(format!(
            "the service uses version {} of the handshake, this program version {HANDSHAKE_VERSION}; \
             use the same release of wqcap on both sides",
            it.version
        ))),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

fn failed(e: VerbsError) -> io::Error {
    let kind = match &e {
        VerbsError::Verb { source, .. } => source.kind(),
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, e)
}

/// Waits until one of the file descriptors `fds` is ready, or until `deadline`.
fn wait(fds: &[PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    if timeout.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    let timeout = Timespec::try_from(timeout).map_err(|_| ErrorKind::InvalidInput)?;
    let mut fds = fds.to_vec();
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Waits for the connection event that `wanted` selects, while the client's RDMA connection is
/// being established.
fn await_event(
    channel: &CmChannel,
    deadline: Instant,
    wanted: impl Fn(&CmEvent) -> bool,
) -> io::Result<CmEvent> {
    loop {
        while let Some(event) = channel.take() {
            match event {
                event if wanted(&event) => return Ok(event),
                CmEvent::Failed(_, reason) => {
                    return Err(io::Error::new(ErrorKind::ConnectionRefused, reason));
                }
                CmEvent::Disconnected(_) => return Err(ErrorKind::ConnectionReset.into()),
                _ => {}
            }
        }
        wait(&[PollFd::new(channel, PollFlags::IN)], deadline)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_both_handshake_versions() {
        let old = r#"{"challenge":{"version":1,"nonce":"00"}}"#;
        let problem = accept_challenge(serde_json::from_str(old).unwrap()).unwrap_err();
        assert!(
            problem.to_string().contains("version 1") && problem.to_string().contains("version 2"),
            "{problem}"
        );
        let new = r#"{"challenge":{"version":2,"service":"sensor","nonce":"00"}}"#;
        let challenge = accept_challenge(serde_json::from_str(new).unwrap()).unwrap();
        assert_eq!(challenge.service, "sensor");
    }
}
