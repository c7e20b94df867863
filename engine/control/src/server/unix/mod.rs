//! Control service over a Unix socket: one thread, one `poll(2)`, one line for each message.
//!
//! A client that exceeds its rate or does not read its answers is not read from until another
//! request is allowed. Its requests wait in its socket buffer, so that no memory grows here.

mod client;
mod peer;
mod socket;

use crate::server::ControlConfig;
pub use socket::check;

use super::{
    StartError, avoid_cpus,
    backend::Requester,
    mailbox::{ClientId, Mailbox},
    service::ControlService,
    session::{ClientSession, SessionContext},
    thread::{ServerThread, poll_for},
};
use crate::{
    audit::{self, Peer},
    protocol::{AccessLevel, Answer, Refusal, RefusalCode},
};
use client::UnixClient;
use peer::{AccessPolicy, PeerCredentials};
use rustix::event::{PollFd, PollFlags};
use std::{
    fs,
    io::{self, ErrorKind, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum number of client connections to the Unix socket accepted in one round, so that many new
/// ones do not delay the clients already connected.
const ACCEPT: usize = 16;
/// Time after which a round of the server handles no further requests of clients other than the
/// owner and root, whose requests come first in each round.
const ROUND_TIME: Duration = Duration::from_millis(50);
/// Maximum time for sending the last answers to Unix socket clients when the control service ends.
const FLUSH: Duration = Duration::from_secs(1);

/// Unix socket of the control service, on which clients may wait to be served. Dropping it removes
/// the socket's file.
pub struct ControlSocket {
    file: SocketFile,
    listener: UnixListener,
    policy: AccessPolicy,
}

/// File of the control service's Unix socket. Dropping it removes the file, if this process may do
/// so.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

impl ControlSocket {
    /// Creates the Unix socket of the control service with its mode and group. With `control.rdma`,
    /// also loads librdmacm, which a sandbox would prevent later.
    ///
    /// # Errors
    /// The socket cannot be created, another process serves it, a group does not exist, or librdmacm
    /// is not installed.
    pub fn bind(config: &ControlConfig) -> Result<Self, StartError> {
        if config.rdma.is_some() {
            wqcap_verbs::load_connection_manager()?;
        }
        let policy = AccessPolicy::new(config)?;
        let listener = socket::listen(&config.unix, config, &policy)
            .map_err(|e| socket_error(&config.unix, e))?;
        Ok(Self {
            file: SocketFile(config.unix.clone()),
            listener,
            policy,
        })
    }
}

fn io_refusal(e: io::Error) -> Refusal {
    Refusal::new(
        RefusalCode::Failed,
        format!("cannot set up the connection of the client: {e}"),
    )
}

fn socket_error(path: &Path, source: io::Error) -> StartError {
    StartError::Socket {
        path: path.display().to_string(),
        source,
    }
}

/// Starts the control service over a Unix socket. Returns the thread, which avoids the CPUs in
/// `busy`, and the socket's file, which stays as long as the thread runs.
///
/// # Errors
/// The thread cannot be started.
pub fn start(
    service: &Arc<ControlService>,
    socket: ControlSocket,
    busy: Vec<usize>,
) -> Result<(ServerThread, SocketFile), StartError> {
    let ControlSocket {
        file,
        listener,
        policy,
    } = socket;
    let mailbox = Arc::new(Mailbox::new().map_err(|e| StartError::System {
        what: "cannot create an event descriptor".into(),
        source: e.into(),
    })?);
    let context = SessionContext {
        service: Arc::clone(service),
        mailbox: Arc::clone(&mailbox),
        counters: Arc::default(),
    };
    let _ = service.unix.set(Arc::clone(&context.counters));
    let server = UnixLoop {
        context,
        policy,
        listener,
        clients: Vec::new(),
        next: 1,
        turn: 0,
    };
    let thread = ServerThread::start("wqcap-control", mailbox, move || {
        avoid_cpus(&busy);
        server.run();
    })?;
    Ok((thread, file))
}

/// State of the thread that serves clients of the Unix socket.
struct UnixLoop {
    context: SessionContext,
    policy: AccessPolicy,
    listener: UnixListener,
    clients: Vec<UnixClient>,
    next: ClientId,
    /// Index of the client with which the next round begins, modulo the number of clients.
    turn: usize,
}

impl UnixLoop {
    fn run(mut self) {
        while !self.context.mailbox.is_ending() {
            self.wait();
            self.deliver();
            self.accept();
            self.serve_clients();
            self.remove_clients();
            audit::write_left_out();
        }
        self.flush();
    }

    /// Waits for the next event of the Unix socket transport, or until a client needs attention.
    fn wait(&mut self) {
        let now = Instant::now();
        let limits = self.context.service.limits;
        let mut timeout = Duration::from_secs(60);
        let mut fds = vec![
            PollFd::new(&self.context.mailbox, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for client in &mut self.clients {
            let wanted = client.wanted_events(now, &limits);
            timeout = timeout.min(client.wait(now, &limits));
            // poll(2) always reports a hang-up: a client without a wanted event is left out,
            // because the loop would spin otherwise.
            if !wanted.is_empty() {
                fds.push(PollFd::new(&client.stream, wanted));
            }
        }
        poll_for(&mut fds, timeout);
    }

    /// Runs one round for all clients: first for the owner and root, then for the others, of whom
    /// each round begins with another one.
    fn serve_clients(&mut self) {
        let limits = &self.context.service.limits;
        let now = Instant::now();
        for client in self.clients.iter_mut().filter(|it| it.is_owner) {
            client.serve(now, limits, || true);
        }
        let until = now + ROUND_TIME;
        let turn = self.turn % self.clients.len().max(1);
        let (later, first) = self.clients.split_at_mut(turn);
        for client in first.iter_mut().chain(later).filter(|it| !it.is_owner) {
            client.serve(now, limits, || Instant::now() < until);
        }
        self.turn = turn + 1;
    }

    fn deliver(&mut self) {
        for (id, text) in self.context.mailbox.take() {
            // The client may have left.
            if let Some(client) = self.clients.iter_mut().find(|it| it.id == id) {
                client.change_answered(&text);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    tracing::warn!("control.unix: cannot accept a connection: {e}");
                    return;
                }
            };
            if let Err(refusal) = self.admit(&stream) {
                self.context.counters.update(|it| it.refused += 1);
                let line = Answer::error(0, refusal).text() + "\n";
                // The socket buffer is empty. If the write fails, the client only gets the end of
                // the connection.
                let _ = stream.set_nonblocking(true);
                let _ = (&stream).write(line.as_bytes());
            }
        }
    }

    fn admit(&mut self, stream: &UnixStream) -> Result<(), Refusal> {
        let peer = PeerCredentials::read(stream).map_err(io_refusal)?;
        let who = Peer::process(peer.uid, peer.pid);
        self.admit_peer(stream, &peer, &who)
            .inspect_err(|refusal| audit::log_refusal(&who, "a connection", refusal))
    }

    fn admit_peer(
        &mut self,
        stream: &UnixStream,
        peer: &PeerCredentials,
        who: &Peer,
    ) -> Result<(), Refusal> {
        let access = self.policy.access(peer).ok_or_else(|| {
            Refusal::new(
                RefusalCode::Denied,
                format!(
                    "user {} is neither the owner of the capture process nor a member of control.read_group or control.write_group",
                    peer.uid
                ),
            )
        })?;
        let is_owner = self.policy.is_owner(peer);
        self.has_room(peer, access, is_owner)?;
        let stream = stream.try_clone().map_err(io_refusal)?;
        stream.set_nonblocking(true).map_err(io_refusal)?;
        let requester = match is_owner {
            true => Requester::Owner,
            false => Requester::Other,
        };
        let who = who.clone();
        let session = ClientSession::new(self.next, who, access, requester, &self.context);
        self.clients.push(UnixClient::new(
            self.next, peer.uid, stream, session, is_owner,
        ));
        self.next += 1;
        self.context.counters.update(|it| it.accepted += 1);
        self.count_clients();
        Ok(())
    }

    /// Checks that another client may connect to the Unix socket. Places are reserved for the owner
    /// and root, and clients with read-only access cannot take the places of those that may change
    /// something.
    fn has_room(
        &self,
        peer: &PeerCredentials,
        access: AccessLevel,
        is_owner: bool,
    ) -> Result<(), Refusal> {
        let limits = &self.context.service.limits;
        let all = self.clients.len();
        let count = |wanted: &dyn Fn(&UnixClient) -> bool| {
            self.clients.iter().filter(|it| wanted(it)).count()
        };
        let of_user = count(&|it| it.uid == peer.uid);
        let read_only = count(&UnixClient::is_read_only);
        let (places, is_full) = match is_owner {
            true => (limits.clients, false),
            false => (
                limits.clients - limits.reserved,
                of_user >= limits.per_user
                    || (access == AccessLevel::ReadOnly && read_only >= limits.read_only),
            ),
        };
        if all < places && !is_full {
            return Ok(());
        }
        let message = format!(
            "{all} clients are connected, {of_user} of them of this user, {read_only} that only read; at most {} in total, \
             {} per user and {} that only read are allowed, and {} places are for the owner and root",
            limits.clients, limits.per_user, limits.read_only, limits.reserved
        );
        Err(Refusal::new(RefusalCode::TooMany, message))
    }

    /// Removes clients of the Unix socket that have disconnected, are done, or must be
    /// disconnected.
    fn remove_clients(&mut self) {
        let now = Instant::now();
        let limits = self.context.service.limits;
        let counters = &self.context.counters;
        let before = self.clients.len();
        self.clients.retain_mut(|client| {
            let idle = client.is_idle(now, &limits);
            let stalled = client.is_stalled(now, limits.stall);
            if client.is_newly_expelled() || stalled || idle {
                counters.update(|it| it.expelled += 1);
            }
            !(stalled || idle || client.is_done())
        });
        if self.clients.len() != before {
            self.count_clients();
        }
    }

    fn count_clients(&self) {
        let clients = self.clients.len() as u64;
        self.context.counters.update(|it| it.clients = clients);
    }

    /// Sends the last answers to Unix socket clients when the service ends, in particular the one
    /// to the command `shutdown`.
    fn flush(&mut self) {
        let until = Instant::now() + FLUSH;
        self.deliver();
        for client in &mut self.clients {
            client.flush(until.saturating_duration_since(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        protocol::{CaptureStatus, Command, Stats},
        server::{
            backend::{Backend, ChangeReply},
            limits::ClientLimits,
        },
    };
    use serde_json::{Value, json};
    use std::{
        io::{BufRead, BufReader},
        thread,
    };

    /// Time that [`SlowBackend`] takes for a query.
    const QUERY_TIME: Duration = Duration::from_millis(10);

    /// Backend that is slow to list devices.
    struct SlowBackend;

    impl Backend for SlowBackend {
        fn status(&self) -> CaptureStatus {
            CaptureStatus::default()
        }
        fn stats(&self) -> Stats {
            Stats::default()
        }
        fn devices(&self) -> Result<Value, Refusal> {
            thread::sleep(QUERY_TIME);
            Ok(json!([]))
        }
        fn plan(&self) -> Result<Value, Refusal> {
            Err(Refusal::new(RefusalCode::State, "none"))
        }
        fn change(&self, _: &Command, _: ChangeReply) {}
    }

    /// Adds a client of the user `uid` to the server, and sends `requests` requests for devices.
    /// Returns the client's end of the connection.
    fn connect(server: &mut UnixLoop, uid: u32, requests: usize) -> UnixStream {
        let (stream, mut theirs) = UnixStream::pair().expect("a pair");
        stream.set_nonblocking(true).expect("a mode");
        let (access, requester, is_owner) = match uid {
            0 => (AccessLevel::ReadWrite, Requester::Owner, true),
            _ => (AccessLevel::ReadOnly, Requester::Other, false),
        };
        let id = server.next;
        server.next += 1;
        let who = Peer::process(uid, 7);
        let session = ClientSession::new(id, who, access, requester, &server.context);
        let client = UnixClient::new(id, uid, stream, session, is_owner);
        server.clients.push(client);
        let request = json!({"version": 1, "id": 1, "command": {"do": "devices"}});
        let text = format!("{request}\n").repeat(requests);
        theirs.write_all(text.as_bytes()).expect("written");
        theirs
    }

    #[test]
    fn a_flood_of_slow_queries_delays_the_owner_by_one_round() {
        const OTHERS: usize = 20;
        let dir = tempfile::tempdir().expect("dir");
        let mut server = UnixLoop {
            context: SessionContext {
                service: ControlService::new(Arc::new(SlowBackend), ClientLimits::default()),
                mailbox: Arc::new(Mailbox::new().expect("a mailbox")),
                counters: Arc::default(),
            },
            policy: AccessPolicy::default(),
            listener: UnixListener::bind(dir.path().join("socket")).expect("a socket"),
            clients: Vec::new(),
            next: 1,
            turn: 0,
        };
        let others: Vec<_> = (0..OTHERS)
            .map(|_| connect(&mut server, 1000, 50))
            .collect();
        let owner = connect(&mut server, 0, 1);
        server.serve_clients();
        let mut handled = 0;
        server
            .context
            .counters
            .update(|it| handled = u128::from(it.requests));
        let most = 1 + ROUND_TIME.as_millis() / QUERY_TIME.as_millis();
        assert!((2..=most).contains(&handled), "{handled} of {most}");
        let mut line = String::new();
        let _ = BufReader::new(&owner).read_line(&mut line).expect("a line");
        assert!(line.contains("\"ok\""), "{line}");
        // Each client has its turn.
        for _ in 0..OTHERS {
            server.serve_clients();
        }
        for client in &others {
            let _ = BufReader::new(client).read_line(&mut line).expect("a line");
        }
    }
}
