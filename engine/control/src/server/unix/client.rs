//! Client of the Unix socket: its buffers, and the events that it waits for.

use crate::{
    audit,
    protocol::{AccessLevel, Answer, Refusal, RefusalCode},
    server::{
        limits::ClientLimits,
        mailbox::ClientId,
        session::{ClientSession, SessionAction},
    },
};
use rustix::event::PollFlags;
use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// Maximum number of requests of one Unix socket client that one round of the server handles, so
/// that the client does not delay the others.
const ROUND: usize = 8;

pub struct UnixClient {
    pub id: ClientId,
    pub uid: u32,
    pub stream: UnixStream,
    /// `true` for a client of the owner of the capture process, or of root.
    pub is_owner: bool,
    session: ClientSession,
    /// Time of the client's last request or answer; `None`: the client may be idle for any time.
    active: Option<Instant>,
    /// Bytes received from the client and not handled yet: fewer than those of the longest request
    /// and one read.
    inbox: Vec<u8>,
    /// Bytes of answers that wait to be sent to the client.
    outbox: Vec<u8>,
    /// Time since which a request of the client has been arriving; `None`: no request is
    /// incomplete.
    arriving: Option<Instant>,
    /// Time since which the client's socket has accepted no bytes of an answer; `None`: no bytes
    /// wait.
    sending: Option<Instant>,
    /// Set if the client is to be disconnected once the refusal with the reason is sent.
    expelled: bool,
    /// Set when the client's forced disconnection has been counted.
    counted: bool,
    /// Set if the client has closed its side of the connection; it may still wait for answers.
    ended: bool,
    /// Set if the connection of the client has failed.
    gone: bool,
}

impl UnixClient {
    /// Creates a client whose connection to the Unix socket was just accepted. `is_owner` is `true`
    /// for the owner of the capture process and root, who may be idle for any time.
    pub fn new(
        id: ClientId,
        uid: u32,
        stream: UnixStream,
        session: ClientSession,
        is_owner: bool,
    ) -> Self {
        Self {
            id,
            uid,
            stream,
            session,
            is_owner,
            active: (!is_owner).then(Instant::now),
            inbox: Vec::new(),
            outbox: Vec::new(),
            arriving: None,
            sending: None,
            expelled: false,
            counted: false,
            ended: false,
            gone: false,
        }
    }

    /// Returns `true` if the client has read-only access to the control service.
    pub fn is_read_only(&self) -> bool {
        self.session.access() == AccessLevel::ReadOnly
    }

    /// Returns the time at which the idle client is to be disconnected. `None`: it waits for an
    /// answer, or may be idle for any time.
    fn idle_end(&self, limits: &ClientLimits) -> Option<Instant> {
        let is_idle = self.outbox.is_empty() && !self.session.expects_answers();
        self.active.filter(|_| is_idle).map(|it| it + limits.idle)
    }

    /// Returns `true` if the client has been idle for longer than the limit.
    pub fn is_idle(&self, now: Instant, limits: &ClientLimits) -> bool {
        self.idle_end(limits).is_some_and(|end| now >= end)
    }

    /// Sends the answer to a change that the client requested and whose outcome was pending.
    pub fn change_answered(&mut self, text: &str) {
        self.session.change_answered();
        self.send(text);
    }

    fn send(&mut self, text: &str) {
        self.outbox.extend_from_slice(text.as_bytes());
        self.outbox.push(b'\n');
        if let Some(active) = &mut self.active {
            *active = Instant::now();
        }
    }

    fn may_send_request(&mut self, now: Instant, limits: &ClientLimits) -> bool {
        !self.expelled && self.outbox.len() < limits.backlog && self.session.is_ready(now)
    }

    /// Returns `true` if the client's socket is to be read. It is not read while a complete request
    /// waits to be handled.
    fn wants_input(&mut self, now: Instant, limits: &ClientLimits) -> bool {
        !self.ended && !self.has_line() && self.may_send_request(now, limits)
    }

    /// Returns the events for which the client's socket is to be polled.
    pub fn wanted_events(&mut self, now: Instant, limits: &ClientLimits) -> PollFlags {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, self.wants_input(now, limits));
        wanted.set(PollFlags::OUT, !self.outbox.is_empty());
        wanted
    }

    /// Returns `true` if the client can be removed: its connection has failed, or nothing more is
    /// to be received from it or sent to it.
    pub fn is_done(&self) -> bool {
        let asked = self.has_line() || self.session.has_pending();
        self.gone || self.outbox.is_empty() && (self.expelled || (self.ended && !asked))
    }

    /// Returns `true` only on the first call after the client was expelled, so that it is counted
    /// once.
    pub fn is_newly_expelled(&mut self) -> bool {
        self.expelled && !std::mem::replace(&mut self.counted, true)
    }

    fn has_line(&self) -> bool {
        self.inbox.contains(&b'\n')
    }

    /// Returns the time until the Unix socket client needs attention without an event of its
    /// socket.
    pub fn wait(&mut self, now: Instant, limits: &ClientLimits) -> Duration {
        if self.has_line() && self.may_send_request(now, limits) {
            return Duration::ZERO;
        }
        let stall = [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .min()
            .map(|since| (since + limits.stall).saturating_duration_since(now));
        let idle = self.idle_end(limits);
        let idle = idle.map(|end| end.saturating_duration_since(now));
        // One millisecond more, so that the time has passed on waking.
        [self.session.wait(now), stall, idle]
            .into_iter()
            .flatten()
            .min()
            .map_or(Duration::from_secs(60), |it| it + Duration::from_millis(1))
    }

    /// Runs one round of the server for the client: receives bytes, handles requests while
    /// `has_time` returns `true`, pushes statistics, sends answers.
    pub fn serve(&mut self, now: Instant, limits: &ClientLimits, has_time: impl Fn() -> bool) {
        if self.wants_input(now, limits) {
            self.receive(limits);
        }
        for _ in 0..ROUND {
            if !self.may_send_request(now, limits) || !has_time() {
                break;
            }
            let Some(line) = self.take_line() else { break };
            match self.session.handle(&line, now) {
                SessionAction::Send(text) => self.send(&text),
                SessionAction::Wait => {}
                SessionAction::Disconnect(text) => {
                    self.send(&text);
                    self.expelled = true;
                }
            }
        }
        let keeps_up = self.outbox.len() < limits.backlog;
        if let Some(text) = self.session.due_statistics(now, keeps_up) {
            self.send(&text);
        }
        self.transmit(now);
    }

    /// Takes the client's next complete request out of the inbox: one line, without its line break.
    fn take_line(&mut self) -> Option<Vec<u8>> {
        let end = self.inbox.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
        line.pop();
        self.arriving = (!self.inbox.is_empty()).then(Instant::now);
        Some(line)
    }

    fn receive(&mut self, limits: &ClientLimits) {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.arriving.get_or_insert_with(Instant::now);
                self.inbox.extend_from_slice(&buffer[..n]);
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.gone = true,
        }
        let end = self.inbox.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.inbox.len()) > limits.request {
            let message = format!(
                "the request is longer than the {} bytes that the service accepts",
                limits.request
            );
            let refusal = Refusal::new(RefusalCode::TooLarge, message);
            audit::log_refusal(&self.session.who, "a message", &refusal);
            self.send(&Answer::error(0, refusal).text());
            self.inbox = Vec::new();
            self.expelled = true;
        }
    }

    fn transmit(&mut self, now: Instant) {
        while !self.outbox.is_empty() {
            match self.stream.write(&self.outbox) {
                Ok(n) => {
                    self.outbox.drain(..n);
                    self.sending = None;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.sending.get_or_insert(now);
                    return;
                }
                Err(_) => {
                    self.gone = true;
                    return;
                }
            }
        }
    }

    /// Sends the remaining answers to the client when the service ends, for at most `timeout`.
    pub fn flush(&mut self, timeout: Duration) {
        let _ = self.stream.set_nonblocking(false);
        if !timeout.is_zero() && self.stream.set_write_timeout(Some(timeout)).is_ok() {
            let _ = self.stream.write_all(&self.outbox);
        }
    }

    pub fn is_stalled(&self, now: Instant, stall: Duration) -> bool {
        // A complete request that waits for its turn is not the client's delay.
        let arriving = self.arriving.filter(|_| !self.has_line());
        [arriving, self.sending]
            .into_iter()
            .flatten()
            .any(|since| now.saturating_duration_since(since) > stall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::session::tests::harness;

    #[test]
    fn a_client_that_asks_for_nothing_is_idle_after_a_while() {
        let limits = ClientLimits::default();
        for (is_owner, ends) in [(false, true), (true, false)] {
            let (stream, _theirs) = UnixStream::pair().expect("a pair");
            let session = harness(AccessLevel::ReadOnly).session;
            let start = Instant::now();
            let mut client = UnixClient::new(7, 1000, stream, session, is_owner);
            assert!(!client.is_idle(start + limits.idle / 2, &limits));
            let later = Instant::now() + limits.idle;
            assert_eq!(client.is_idle(later, &limits), ends);
            client.send("an answer");
            assert!(!client.is_idle(later, &limits), "the answer is not sent");
            client.transmit(start);
            assert!(!client.is_idle(start + limits.idle, &limits), "just active");
        }
    }
}
