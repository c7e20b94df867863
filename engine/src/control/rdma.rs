//! The client's end over RDMA.

use super::{
    auth::{self, Bond, Keys, Side},
    client::{LONGEST_ANSWER, Link},
    message::{Access, Handshake, VERSION},
    parts::{self, Joiner},
};
use crate::{
    Error,
    verbs::{
        CmChannel, CmEvent, Connecting, Connection, Ends, MessageCq, Messages, Pd, Slot, Srq,
        status_text,
    },
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::VecDeque,
    io::{self, ErrorKind},
    net::SocketAddr,
    time::{Duration, Instant},
};

/// Receives posted: an answer of so many parts comes without a pause.
const RECEIVES: u32 = 64;
/// Sends under way.
const SENDS: u32 = 16;
/// Bytes of the longest part.
const LARGEST_PART: u32 = 4096;

/// A connection to the service. The fields' order is the order of teardown.
pub struct RdmaLink {
    connection: Connection,
    srq: Srq,
    cq: MessageCq,
    _pd: Pd,
    channel: CmChannel,
    messages: Messages,
    free: Vec<Slot>,
    /// Sends that are with the device.
    under_way: Vec<u64>,
    joiner: Joiner,
    inbox: VecDeque<Vec<u8>>,
    part: usize,
    sent: u32,
    lost: Option<String>,
}

impl RdmaLink {
    /// Connects, and proves to have the key; the service proves that it has it too.
    ///
    /// # Errors
    /// Nobody answers there, or one side does not have the other's key.
    pub fn connect(to: SocketAddr, keys: &Keys, timeout: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + timeout;
        let mut link = Self::open(to, deadline)?;
        let challenge = link.challenge(deadline)?;
        link.prove(keys, keys.access(), challenge, deadline)?;
        Ok(link)
    }

    /// Connects, and does nothing more.
    ///
    /// # Errors
    /// Nobody answers there.
    pub fn open(to: SocketAddr, deadline: Instant) -> io::Result<Self> {
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
            .ok_or_else(|| io::Error::other("no RDMA device leads there"))?;
        let port = context.query_port(connecting.port()).map_err(failed)?;
        let part = (128 << port.active_mtu.clamp(1, 5)).min(LARGEST_PART);
        let pd = Pd::alloc(&context).map_err(failed)?;
        let (mut messages, mut free) =
            Messages::register(&pd, RECEIVES + SENDS, part).map_err(failed)?;
        let mut srq = Srq::create(&pd, &messages, RECEIVES).map_err(failed)?;
        for slot in free.split_off(SENDS as usize) {
            srq.post(&mut messages, slot)
                .map_err(|(_, errno)| io::Error::from_raw_os_error(errno))?;
        }
        let cq = MessageCq::create(&context, RECEIVES + SENDS).map_err(failed)?;
        let ends = Ends {
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
            srq,
            cq,
            _pd: pd,
            channel,
            messages,
            free,
            under_way: Vec::new(),
            joiner: Joiner::new(LONGEST_ANSWER),
            inbox: VecDeque::new(),
            part: part as usize,
            sent: 0,
            lost: None,
        })
    }

    /// The service's challenge, which comes first.
    ///
    /// # Errors
    /// It does not come.
    pub fn challenge(&mut self, deadline: Instant) -> io::Result<String> {
        let text = self.receive(deadline)?;
        match serde_json::from_slice(&text)? {
            Handshake::Challenge {
                version: VERSION,
                nonce,
            } => Ok(nonce),
            Handshake::Challenge { version, .. } => Err(io::Error::other(format!(
                "the service speaks version {version}, this program version {VERSION}"
            ))),
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Answers `challenge` with a proof for `access`, and holds the service to its own.
    ///
    /// # Errors
    /// The keys do not match: the service closes the connection, or proves nothing.
    pub fn prove(
        &mut self,
        keys: &Keys,
        access: Access,
        challenge: String,
        deadline: Instant,
    ) -> io::Result<()> {
        let (bond, proof) = self.bond(keys, access, challenge)?;
        self.send(proof.text().as_bytes())?;
        let denied = |e: io::Error| match e.kind() {
            ErrorKind::TimedOut => e,
            _ => io::Error::new(
                ErrorKind::PermissionDenied,
                "the service does not take this key",
            ),
        };
        let text = self.receive(deadline).map_err(denied)?;
        match serde_json::from_slice(&text)? {
            Handshake::Welcome { mac } if keys.verify(Side::Service, &bond, &mac) => Ok(()),
            _ => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "the service has not proved that it has the key",
            )),
        }
    }

    /// What [`RdmaLink::prove`] sends.
    ///
    /// # Errors
    /// There is no key for this access.
    pub fn proof(&self, keys: &Keys, access: Access, challenge: String) -> io::Result<Handshake> {
        self.bond(keys, access, challenge).map(|(_, proof)| proof)
    }

    fn bond(
        &self,
        keys: &Keys,
        access: Access,
        challenge: String,
    ) -> io::Result<(Bond, Handshake)> {
        let bond = Bond {
            challenge,
            answer: auth::nonce().map_err(failed)?,
            access,
            service_qp: self.connection.peer_qp(),
            client_qp: self.connection.qp_num(),
        };
        let no_key = || io::Error::new(ErrorKind::PermissionDenied, "the key file has no such key");
        let proof = Handshake::Proof {
            access,
            nonce: bond.answer.clone(),
            mac: keys.prove(Side::Client, &bond).ok_or_else(no_key)?,
        };
        Ok((bond, proof))
    }

    /// Bytes of the longest part that the path takes in one packet.
    #[must_use]
    pub fn part_len(&self) -> usize {
        self.part
    }

    /// Sends bytes as they are, as one part.
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send_part(&mut self, part: &[u8]) -> io::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.free.is_empty() {
            self.turn(deadline)?;
        }
        let Some(mut slot) = self.free.pop() else {
            return Err(ErrorKind::WouldBlock.into());
        };
        let length = part.len().min(self.part);
        self.messages.bytes_mut(&mut slot)[..length].copy_from_slice(&part[..length]);
        let length = u32::try_from(length).unwrap_or(0);
        match self.connection.send(&mut self.messages, slot, length) {
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

    /// Waits for something, and takes it.
    fn turn(&mut self, deadline: Instant) -> io::Result<()> {
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
                self.done(&it)?;
            }
        }
        if any {
            return Ok(());
        }
        if let Some(why) = &self.lost {
            return Err(io::Error::new(ErrorKind::ConnectionReset, why.clone()));
        }
        sleep(
            &[
                PollFd::new(&self.cq, PollFlags::IN),
                PollFd::new(&self.channel, PollFlags::IN),
            ],
            deadline,
        )?;
        while let Some(event) = self.channel.take() {
            if let CmEvent::Disconnected(_) | CmEvent::Failed(..) = event {
                self.lost = Some("the service has ended the connection".into());
            }
        }
        Ok(())
    }

    fn done(&mut self, it: &crate::verbs::Done) -> io::Result<()> {
        let Some(slot) = self.messages.returned(it.wr_id) else {
            return Ok(());
        };
        if let Some(at) = self.under_way.iter().position(|id| *id == it.wr_id) {
            self.under_way.swap_remove(at);
            self.free.push(slot);
        } else if it.status == 0 {
            let part = &self.messages.bytes(&slot)[..it.byte_len as usize];
            let joined = self
                .joiner
                .take(part)
                .map_err(|e| io::Error::new(ErrorKind::InvalidData, e))?;
            self.inbox.extend(joined);
            self.srq
                .post(&mut self.messages, slot)
                .map_err(|(_, errno)| io::Error::from_raw_os_error(errno))?;
        }
        if it.status != 0 {
            self.lost.get_or_insert(format!(
                "the connection is lost: {}",
                status_text(it.status)
            ));
        }
        Ok(())
    }
}

impl Link for RdmaLink {
    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        let mut split = Vec::new();
        parts::split(self.sent, text, self.part, |part| split.push(part));
        self.sent = self.sent.wrapping_add(1);
        split.iter().try_for_each(|part| self.send_part(part))
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        loop {
            if let Some(text) = self.inbox.pop_front() {
                return Ok(text);
            }
            self.turn(deadline)?;
        }
    }
}

impl Drop for RdmaLink {
    fn drop(&mut self) {
        self.connection.disconnect();
    }
}

fn failed(e: impl Into<Error>) -> io::Error {
    match e.into() {
        ref e @ Error::Verb { ref source, .. } => io::Error::new(source.kind(), e.to_string()),
        e => io::Error::other(e.to_string()),
    }
}

/// Waits until one of these is ready.
fn sleep(fds: &[PollFd<'_>], deadline: Instant) -> io::Result<()> {
    let rest = deadline.saturating_duration_since(Instant::now());
    if rest.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    let rest = Timespec::try_from(rest).map_err(|_| ErrorKind::InvalidInput)?;
    let mut fds = fds.to_vec();
    match poll(&mut fds, Some(&rest)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Waits for an event of the connection being made.
fn await_event(
    channel: &CmChannel,
    deadline: Instant,
    wanted: impl Fn(&CmEvent) -> bool,
) -> io::Result<CmEvent> {
    loop {
        while let Some(event) = channel.take() {
            match event {
                event if wanted(&event) => return Ok(event),
                CmEvent::Failed(_, why) => {
                    return Err(io::Error::new(ErrorKind::ConnectionRefused, why));
                }
                CmEvent::Disconnected(_) => return Err(ErrorKind::ConnectionReset.into()),
                _ => {}
            }
        }
        sleep(&[PollFd::new(channel, PollFlags::IN)], deadline)?;
    }
}
