//! HTTP/1.1 proxy in front of a server. As a test requests, it answers instead of the server,
//! breaks connections, delays or withholds answers, or refuses connections for a while.

use std::{
    collections::HashSet,
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};

/// HTTP request without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of requests received before this request.
    pub number: usize,
    /// HTTP method, such as `PUT`.
    pub method: String,
    /// Path and query of the request.
    pub target: String,
    /// `true` if the request has an `If-Match` or `If-None-Match` header.
    pub conditional: bool,
}

/// Treatment of a request by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Forwards the request and returns the server's answer.
    Pass,
    /// Answers with a status and a body, without the server.
    Answer(u16, &'static str),
    /// Answers with the given raw text, including status line and headers, without the server.
    Say(&'static str),
    /// Resets the connection after half of the body.
    Reset,
    /// Neither forwards nor answers the request.
    Hold,
    /// Waits for [`Proxy::let_go`], then forwards the request and returns the server's answer.
    Wait,
    /// Forwards the request without its conditional headers and returns the server's answer.
    Unconditional,
    /// Forwards the request and discards the server's answer.
    Swallow,
    /// Forwards the request with one bit of its body flipped, if it has a body, and returns the
    /// server's answer.
    Damage,
    /// Forwards the request and returns the first half of the server's answer.
    Cut,
}

/// Returns a decision function that applies `fates` in turn to every `nth` new request. Repeated
/// requests and all others pass.
///
/// # Panics
/// The function panics if `fates` is empty or `nth` is 0.
pub fn once(nth: usize, fates: &'static [Fate]) -> impl FnMut(&Request) -> Fate + Send {
    let mut seen = HashSet::new();
    move |it| {
        let is_new = seen.insert((it.method.clone(), it.target.clone()));
        match is_new && seen.len() % nth == 0 {
            true => fates[seen.len() / nth % fates.len()],
            false => Fate::Pass,
        }
    }
}

type Decide = dyn FnMut(&Request) -> Fate + Send;

/// State shared by all connections of a proxy.
struct Shared {
    upstream: String,
    decide: Mutex<Box<Decide>>,
    /// Requests received since the last [`Proxy::decide`].
    requests: Mutex<Vec<Request>>,
    /// Number of requests that will get no answer.
    held: AtomicUsize,
    /// Held while a conditional request is at the server: moto compares and stores in two steps,
    /// S3 in one.
    conditional: Mutex<()>,
    waiting: Mutex<Waiting>,
    /// Signalled by [`Proxy::let_go`].
    released: Condvar,
    /// Set while the proxy does not accept connections.
    closed: AtomicBool,
}

/// Counters of the requests that wait for [`Proxy::let_go`].
#[derive(Default)]
struct Waiting {
    requests: usize,
    /// Number of calls of [`Proxy::let_go`].
    let_go: usize,
}

/// HTTP proxy that runs until the test ends.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Thread that accepts connections; `None` while the proxy is closed.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts a proxy for `upstream`, an address with a port. At first it forwards all requests.
    ///
    /// # Panics
    /// Panics if there is no free port.
    #[must_use]
    pub fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            decide: Mutex::new(Box::new(|_| Fate::Pass)),
            requests: Mutex::default(),
            held: AtomicUsize::new(0),
            conditional: Mutex::default(),
            waiting: Mutex::default(),
            released: Condvar::new(),
            closed: AtomicBool::new(false),
        });
        let accepting = Mutex::new(Some(shared.accept(listener)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// Stops accepting connections: clients get "connection refused".
    ///
    /// # Panics
    /// Panics if the proxy is already closed.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Unblocks the accepting thread.
        drop(TcpStream::connect(self.address));
        let accepting = locked(&self.accepting).take();
        accepting.expect("open").join().expect("no panic");
    }

    /// Accepts connections again, at the same address.
    ///
    /// # Panics
    /// Panics if the port is used by another program now.
    pub fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
        let listener = TcpListener::bind(self.address).expect("the previous port is free");
        *locked(&self.accepting) = Some(self.shared.accept(listener));
    }

    /// Returns the listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the function that decides the [`Fate`] of each request, and resets the list and the
    /// counters of requests.
    pub fn decide(&self, decide: impl FnMut(&Request) -> Fate + Send + 'static) {
        let shared = &self.shared;
        *locked(&shared.decide) = Box::new(decide);
        shared.requests().clear();
        shared.held.store(0, Ordering::SeqCst);
    }

    /// Returns the requests received since the last [`decide`](Self::decide).
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests().clone()
    }

    /// Returns the number of requests that got no answer ([`Fate::Hold`], [`Fate::Swallow`]).
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// Returns the number of requests that wait for [`let_go`](Self::let_go).
    #[must_use]
    pub fn waiting(&self) -> usize {
        locked(&self.shared.waiting).requests
    }

    /// Releases all requests that wait now.
    pub fn let_go(&self) {
        locked(&self.shared.waiting).let_go += 1;
        self.shared.released.notify_all();
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns `true` if a header line is `If-Match` or `If-None-Match`.
fn is_condition(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let conditions = ["if-match", "if-none-match"];
    conditions.iter().any(|it| name.eq_ignore_ascii_case(it))
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        locked(&self.requests)
    }

    /// Starts a thread that serves each connection until the proxy is closed.
    fn accept(self: &Arc<Self>, listener: TcpListener) -> JoinHandle<()> {
        let all = Arc::clone(self);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if all.closed.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&all);
                // Errors are ignored: a client may close its connection at any time.
                thread::spawn(move || drop(shared.serve(&client)));
            }
        })
    }

    /// Blocks until the next [`Proxy::let_go`].
    fn wait(&self) {
        let mut waiting = locked(&self.waiting);
        waiting.requests += 1;
        let before = waiting.let_go;
        let waits = |it: &mut Waiting| it.let_go == before;
        let mut waiting = self
            .released
            .wait_while(waiting, waits)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.requests -= 1;
    }

    /// Serves one request. A client connects again for the next request.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        let mut from = BufReader::new(client);
        let (request, head, length) = self.read_head(&mut from)?;
        let fate = locked(&self.decide)(&request);
        if fate == Fate::Reset {
            io::copy(&mut from.by_ref().take(length / 2), &mut io::sink())?;
            // With unread bytes in its buffer, the kernel closes the connection by a reset.
            return Ok(());
        }
        let mut body = Vec::new();
        from.by_ref().take(length).read_to_end(&mut body)?;
        let middle = body.len() / 2;
        if let (Fate::Damage, Some(byte)) = (fate, body.get_mut(middle)) {
            *byte ^= 1;
        }
        if fate == Fate::Wait {
            self.wait();
        }
        let mut answer = match fate {
            Fate::Answer(status, text) => format!(
                "HTTP/1.1 {status} Said\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            )
            .into_bytes(),
            Fate::Say(text) => text.into(),
            Fate::Unconditional => {
                let lines = head.split_inclusive("\r\n");
                let kept: String = lines.filter(|it| !is_condition(it)).collect();
                self.ask(&kept, &body)?
            }
            Fate::Pass | Fate::Wait | Fate::Swallow | Fate::Damage | Fate::Cut => {
                let _one_at_a_time = request.conditional.then(|| locked(&self.conditional));
                self.ask(&head, &body)?
            }
            Fate::Reset | Fate::Hold => Vec::new(),
        };
        if matches!(fate, Fate::Hold | Fate::Swallow) {
            self.held.fetch_add(1, Ordering::SeqCst);
            // Blocks until the client closes the connection.
            io::copy(&mut from, &mut io::sink())?;
            return Ok(());
        }
        if fate == Fate::Cut {
            answer.truncate(answer.len() / 2);
        }
        let mut to = client;
        to.write_all(&answer)?;
        to.shutdown(Shutdown::Write)
    }

    /// Reads the head of a request. Returns the request, the head to forward, and the length of the
    /// body.
    fn read_head(&self, from: &mut impl BufRead) -> io::Result<(Request, String, u64)> {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(ErrorKind::InvalidData.into());
        };
        let (mut head, mut length) = (line, 0);
        loop {
            let mut line = String::new();
            if from.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if line == "\r\n" {
                break;
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            match name.to_ascii_lowercase().as_str() {
                "connection" => continue,
                "content-length" => length = value.trim().parse().map_err(io::Error::other)?,
                _ => {}
            }
            head += &line;
        }
        head += "Connection: close\r\n\r\n";
        let mut requests = self.requests();
        let request = Request {
            number: requests.len(),
            method,
            target,
            conditional: head.lines().any(is_condition),
        };
        requests.push(request.clone());
        Ok((request, head, length))
    }

    /// Forwards a request to the server and returns the raw answer.
    fn ask(&self, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(&self.upstream)?;
        server.write_all(head.as_bytes())?;
        // A server that refuses a request may answer and close before it has read the whole body.
        let _ = server.write_all(body);
        let mut answer = Vec::new();
        match server.read_to_end(&mut answer) {
            Err(e) if answer.is_empty() => Err(e),
            _ => Ok(answer),
        }
    }
}
