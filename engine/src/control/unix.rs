//! The service over a Unix socket: one thread, one `poll(2)`, a line for each message.
//!
//! A client that asks faster than it may, or does not take its answers, is not read from until it may again: its own
//! requests wait in its own socket, and nothing of it grows here.

use super::{
    limits::Limits,
    mailbox::{Mailbox, Token},
    message::{Answer, Code, Refusal},
    peer::{Peer, Rights, group},
    service::{Counters, Service},
    session::{Session, Step},
};
use crate::{Error, config::ControlConfig};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    os::unix::{
        fs::{FileTypeExt, PermissionsExt, chown},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Connections taken in one round, so that a crowd at the door does not keep those inside waiting.
const ACCEPT: usize = 16;
/// Requests of one client in one round, for the same reason.
const ROUND: usize = 8;
/// How long the last answers may take when the service ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// A service over a Unix socket. Ends, and takes the socket away, when it is dropped.
pub struct UnixServer {
    path: PathBuf,
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

impl UnixServer {
    /// Makes the socket and the thread.
    ///
    /// # Errors
    /// The socket cannot be made, another process serves it, or a group is not there.
    pub fn start(
        service: &Arc<Service>,
        config: &ControlConfig,
        settle: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let path = config.unix.clone();
        let failed = |source| Error::File {
            what: "control.unix",
            path: path.display().to_string(),
            source,
        };
        let rights = rights(config)?;
        let listener = listen(&path, config, &rights).map_err(failed)?;
        let mailbox = Arc::new(Mailbox::new().map_err(|e| failed(e.into()))?);
        let counters = Arc::<Counters>::default();
        let _ = service.unix.set(Arc::clone(&counters));
        let server = Server {
            service: Arc::clone(service),
            mailbox: Arc::clone(&mailbox),
            counters,
            rights,
            listener,
            clients: Vec::new(),
            next: 1,
        };
        let thread = std::thread::Builder::new()
            .name("wqcap-control".into())
            .spawn(move || {
                settle();
                server.run();
            })
            .map_err(|source| Error::System {
                what: "the thread wqcap-control".into(),
                source,
            })?;
        Ok(Self {
            path,
            mailbox,
            thread: Some(thread),
        })
    }
}

impl Drop for UnixServer {
    fn drop(&mut self) {
        self.mailbox.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn rights(config: &ControlConfig) -> Result<Rights, Error> {
    let read = config.read_group.as_deref();
    let write = config.write_group.as_deref();
    Ok(Rights {
        owner: rustix::process::geteuid().as_raw(),
        read: read.map(|it| group("control.read_group", it)).transpose()?,
        write: write
            .map(|it| group("control.write_group", it))
            .transpose()?,
    })
}

/// Makes the socket's file with its mode and group before anyone can connect to it.
fn listen(path: &Path, config: &ControlConfig, rights: &Rights) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|it| !it.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    remove_stale(path)?;
    let socket = net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Bound and not yet listening, it refuses everybody.
    let (mode, gid) = door(config, rights).map_err(io::Error::other)?;
    if let Some(gid) = gid {
        chown(path, None, Some(gid))?;
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    net::listen(&socket, 64)?;
    Ok(UnixListener::from(socket))
}

/// Mode and group of the socket's file. Without a say in the configuration, whoever has a right may connect: credentials
/// decide the rest.
fn door(config: &ControlConfig, rights: &Rights) -> Result<(u32, Option<u32>), Error> {
    let named = config.group.as_deref();
    let gid = match (named, rights.read, rights.write) {
        (Some(name), ..) => Some(group("control.group", name)?),
        (None, Some(one), None) | (None, None, Some(one)) => Some(one),
        _ => None,
    };
    let mode = match (&config.mode, gid, rights.read.and(rights.write)) {
        (Some(mode), ..) => mode.0,
        (None, None, Some(_)) => 0o666,
        (None, Some(_), _) => 0o660,
        (None, None, None) => 0o600,
    };
    Ok((mode, gid))
}

/// A socket that nobody serves any more is taken away; anything else at its place is left alone.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
        Ok(it) if !it.file_type().is_socket() => {
            return Err(io::Error::new(
                ErrorKind::AlreadyExists,
                "there is a file that is no socket; it is left alone",
            ));
        }
        Ok(_) => {}
    }
    match UnixStream::connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(
            ErrorKind::AddrInUse,
            "another process serves it; end that one, or set control.unix to another path",
        )),
        Err(e) => Err(e),
    }
}

struct Server {
    service: Arc<Service>,
    mailbox: Arc<Mailbox>,
    counters: Arc<Counters>,
    rights: Rights,
    listener: UnixListener,
    clients: Vec<Client>,
    next: Token,
}

impl Server {
    fn run(mut self) {
        while !self.mailbox.is_ending() {
            self.wait();
            self.deliver();
            self.accept();
            let now = Instant::now();
            for client in &mut self.clients {
                client.serve(now, &self.service.limits);
            }
            self.part();
        }
        self.say_farewell();
    }

    /// Sleeps until something is to be done.
    fn wait(&mut self) {
        let now = Instant::now();
        let limits = self.service.limits;
        let mut rest = Duration::from_secs(60);
        let mut fds = vec![
            PollFd::new(&self.mailbox, PollFlags::IN),
            PollFd::new(&self.listener, PollFlags::IN),
        ];
        for client in &mut self.clients {
            let mut wanted = PollFlags::empty();
            if client.wants_input(now, &limits) {
                wanted |= PollFlags::IN;
            }
            if !client.outbox.is_empty() {
                wanted |= PollFlags::OUT;
            }
            rest = rest.min(client.wait(now, &limits));
            // poll(2) tells a hang-up unasked, again and again: who is not wanted to speak is not listened to.
            if !wanted.is_empty() {
                fds.push(PollFd::new(&client.stream, wanted));
            }
        }
        let rest = Timespec::try_from(rest).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&rest));
    }

    fn deliver(&mut self) {
        for (token, text) in self.mailbox.take() {
            // A client that has left does not hear it.
            if let Some(client) = self.clients.iter_mut().find(|it| it.token == token) {
                client.session.answered();
                client.send(&text);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPT {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) => {
                    tracing::warn!("control.unix: a connection was not accepted: {e}");
                    return;
                }
            };
            if let Err(refusal) = self.admit(&stream) {
                Counters::count(&self.counters.refused);
                let line = Answer::error(0, refusal).text() + "\n";
                // Into an empty socket buffer; if that fails, the client sees the connection close.
                let _ = stream.set_nonblocking(true);
                let _ = (&stream).write(line.as_bytes());
            }
        }
    }

    fn admit(&mut self, stream: &UnixStream) -> Result<(), Refusal> {
        let limits = &self.service.limits;
        let failed = |e: io::Error| Refusal::new(Code::Failed, e.to_string());
        let peer = Peer::of(stream).map_err(failed)?;
        let access = self.rights.of(&peer).ok_or_else(|| {
            Refusal::new(
                Code::Denied,
                format!(
                    "user {} is neither the owner nor in control.read_group or control.write_group",
                    peer.uid
                ),
            )
        })?;
        let of_user = self.clients.iter().filter(|it| it.uid == peer.uid).count();
        if self.clients.len() >= limits.clients
            || (of_user >= limits.per_user && !self.rights.owns(&peer))
        {
            let message = format!(
                "{} clients are connected, {of_user} of them of this user; {} and {} are allowed",
                self.clients.len(),
                limits.clients,
                limits.per_user
            );
            return Err(Refusal::new(Code::TooMany, message));
        }
        let stream = stream.try_clone().map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        let session = Session::new(
            self.next,
            access,
            &self.service,
            &self.mailbox,
            &self.counters,
        );
        self.clients
            .push(Client::new(self.next, peer.uid, stream, session));
        self.next += 1;
        Counters::count(&self.counters.accepted);
        self.count_clients();
        Ok(())
    }

    /// Lets those go who have gone, and those who must.
    fn part(&mut self) {
        let now = Instant::now();
        let stall = self.service.limits.stall;
        let counters = &self.counters;
        let before = self.clients.len();
        self.clients.retain(|client| {
            let stalled = client.is_stalled(now, stall);
            if client.expelled && !client.counted || stalled {
                Counters::count(&counters.expelled);
            }
            !(stalled || client.gone || client.is_done())
        });
        for client in self.clients.iter_mut().filter(|it| it.expelled) {
            client.counted = true;
        }
        if self.clients.len() != before {
            self.count_clients();
        }
    }

    fn count_clients(&self) {
        self.counters
            .clients
            .store(self.clients.len() as u64, Ordering::Relaxed);
    }

    /// Sends what is still to be said, the answer to `shutdown` above all.
    fn say_farewell(&mut self) {
        let until = Instant::now() + FAREWELL;
        self.deliver();
        for client in &mut self.clients {
            let rest = until.saturating_duration_since(Instant::now());
            let _ = client.stream.set_nonblocking(false);
            if !rest.is_zero() && client.stream.set_write_timeout(Some(rest)).is_ok() {
                let _ = client.stream.write_all(&client.outbox);
            }
        }
    }
}

struct Client {
    token: Token,
    uid: u32,
    stream: UnixStream,
    session: Session,
    /// What has come and is not yet taken: less than a longest request and one read.
    inbox: Vec<u8>,
    /// What is to be sent.
    outbox: Vec<u8>,
    /// Since when a request has been arriving, or an answer has not been taken.
    arriving: Option<Instant>,
    sending: Option<Instant>,
    /// To be put out when it has been told why.
    expelled: bool,
    counted: bool,
    /// It will ask no more, but may still be waiting for answers.
    ended: bool,
    gone: bool,
}

impl Client {
    fn new(token: Token, uid: u32, stream: UnixStream, session: Session) -> Self {
        Self {
            token,
            uid,
            stream,
            session,
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

    fn send(&mut self, text: &str) {
        self.outbox.extend_from_slice(text.as_bytes());
        self.outbox.push(b'\n');
    }

    fn may_ask(&mut self, now: Instant, limits: &Limits) -> bool {
        !self.expelled && self.outbox.len() < limits.backlog && self.session.is_ready(now)
    }

    /// Whether a read makes sense: not while whole requests wait for their turn.
    fn wants_input(&mut self, now: Instant, limits: &Limits) -> bool {
        !self.ended && !self.has_line() && self.may_ask(now, limits)
    }

    /// Whether nothing more will come of it.
    fn is_done(&self) -> bool {
        let asked = self.has_line() || self.session.is_waiting();
        self.outbox.is_empty() && (self.expelled || (self.ended && !asked))
    }

    fn has_line(&self) -> bool {
        self.inbox.contains(&b'\n')
    }

    /// How long nothing needs to be done for it, unless its socket says so.
    fn wait(&mut self, now: Instant, limits: &Limits) -> Duration {
        if self.has_line() && self.may_ask(now, limits) {
            return Duration::ZERO;
        }
        let stall = [self.arriving, self.sending]
            .into_iter()
            .flatten()
            .min()
            .map(|since| (since + limits.stall).saturating_duration_since(now));
        // A millisecond more, so that the time has surely come on waking.
        [self.session.wait(now), stall]
            .into_iter()
            .flatten()
            .min()
            .map_or(Duration::from_secs(60), |it| it + Duration::from_millis(1))
    }

    fn serve(&mut self, now: Instant, limits: &Limits) {
        if self.wants_input(now, limits) {
            self.receive(limits);
        }
        for _ in 0..ROUND {
            if !self.may_ask(now, limits) {
                break;
            }
            let Some(line) = self.line() else { break };
            match self.session.take(&line, now) {
                Step::Answer(text) => self.send(&text),
                Step::Later => {}
                Step::Expel(text) => {
                    self.send(&text);
                    self.expelled = true;
                }
            }
        }
        let keeps_up = self.outbox.len() < limits.backlog;
        if let Some(text) = self.session.push(now, keeps_up) {
            self.send(&text);
        }
        self.transmit(now);
    }

    /// The next whole line, without its end.
    fn line(&mut self) -> Option<Vec<u8>> {
        let end = self.inbox.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.inbox.drain(..=end).collect();
        line.pop();
        self.arriving = (!self.inbox.is_empty()).then(Instant::now);
        Some(line)
    }

    fn receive(&mut self, limits: &Limits) {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => self.ended = true,
            Ok(n) => {
                self.arriving.get_or_insert_with(Instant::now);
                self.inbox.extend_from_slice(&buffer[..n]);
            }
            Err(e) if is_passing(&e) => {}
            Err(_) => self.gone = true,
        }
        let end = self.inbox.iter().position(|byte| *byte == b'\n');
        if end.unwrap_or(self.inbox.len()) > limits.request {
            let message = format!("a request of more than {} bytes", limits.request);
            self.send(&Answer::error(0, Refusal::new(Code::TooLarge, message)).text());
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

    fn is_stalled(&self, now: Instant, stall: Duration) -> bool {
        // A request that waits for its turn is whole: that is not the client's delay.
        let arriving = self.arriving.filter(|_| !self.has_line());
        [arriving, self.sending]
            .into_iter()
            .flatten()
            .any(|since| now.saturating_duration_since(since) > stall)
    }
}

fn is_passing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
