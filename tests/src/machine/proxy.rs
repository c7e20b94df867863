//! A proxy of HTTP/1.1 in front of a server, which answers in its place, breaks off, waits, never answers, or is gone for a
//! while, as a test wants it.

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

/// A request, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// How many came before it.
    pub number: usize,
    /// `PUT`, say.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// It is to be done on a condition: `If-Match` or `If-None-Match`.
    pub conditional: bool,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server has it, and its answer goes back.
    Pass,
    /// The server never sees it: a status and a body.
    Answer(u16, &'static str),
    /// The server never sees it: an answer as it stands, status line and headers and all.
    Say(&'static str),
    /// The connection is reset when half of the body has come.
    Reset,
    /// Nobody ever hears of it again.
    Hold,
    /// It waits for [`Proxy::let_go`]. Then the server has it, and its answer goes back.
    Wait,
    /// The server has it without its condition, and its answer goes back.
    Unconditional,
    /// The server has it, and nobody hears its answer.
    Swallow,
    /// The server has it with a bit of its body changed, if it has one, and its answer goes back.
    Damage,
    /// The server has it, and its answer breaks off after half of it.
    Cut,
}

/// Of what comes for the first time, every `nth` request meets one of these fates, in their order; all else passes.
///
/// # Panics
/// There are no fates, or `nth` is 0.
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

/// What all connections know.
struct Shared {
    upstream: String,
    decide: Mutex<Box<Decide>>,
    /// All that has come.
    requests: Mutex<Vec<Request>>,
    /// Requests that wait for ever.
    held: AtomicUsize,
    waiting: Mutex<Waiting>,
    /// That somebody has let go.
    gone_on: Condvar,
    /// Nobody is listened to any more.
    closed: AtomicBool,
}

/// Requests that wait until they are let go.
#[derive(Default)]
struct Waiting {
    requests: usize,
    /// How often they have been let go.
    let_go: usize,
}

/// A proxy that listens until the test ends.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// `None`: it is closed.
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Starts one in front of `upstream`, an address with a port, that passes everything on.
    ///
    /// # Panics
    /// There is no port to listen on.
    #[must_use]
    pub fn start(upstream: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            decide: Mutex::new(Box::new(|_| Fate::Pass)),
            requests: Mutex::default(),
            held: AtomicUsize::new(0),
            waiting: Mutex::default(),
            gone_on: Condvar::new(),
            closed: AtomicBool::new(false),
        });
        let accepting = Mutex::new(Some(shared.accept(listener)));
        Self {
            address,
            shared,
            accepting,
        }
    }

    /// Is gone: who connects is refused.
    ///
    /// # Panics
    /// It is gone already.
    pub fn close(&self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        // Whom it would wait for.
        drop(TcpStream::connect(self.address));
        let accepting = locked(&self.accepting).take();
        accepting.expect("open").join().expect("no panic");
    }

    /// Is there again, at the same address.
    ///
    /// # Panics
    /// The port is not free any more.
    pub fn open(&self) {
        self.shared.closed.store(false, Ordering::SeqCst);
        let listener = TcpListener::bind(self.address).expect("the port that it had");
        *locked(&self.accepting) = Some(self.shared.accept(listener));
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on `decide` says what becomes of requests, which are counted from 0 again.
    pub fn decide(&self, decide: impl FnMut(&Request) -> Fate + Send + 'static) {
        let shared = &self.shared;
        *locked(&shared.decide) = Box::new(decide);
        shared.requests().clear();
        shared.held.store(0, Ordering::SeqCst);
    }

    /// The requests that have come since.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests().clone()
    }

    /// How many of them nobody hears of again.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.held.load(Ordering::SeqCst)
    }

    /// The requests that wait now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        locked(&self.shared.waiting).requests
    }

    /// Lets all go that wait now.
    pub fn let_go(&self) {
        locked(&self.shared.waiting).let_go += 1;
        self.shared.gone_on.notify_all();
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a line of a head is a condition.
fn is_condition(line: &str) -> bool {
    let name = line.split(':').next().unwrap_or_default();
    let conditions = ["if-match", "if-none-match"];
    conditions.iter().any(|it| name.eq_ignore_ascii_case(it))
}

impl Shared {
    fn requests(&self) -> MutexGuard<'_, Vec<Request>> {
        locked(&self.requests)
    }

    /// Serves whoever connects, until nobody is listened to any more.
    fn accept(self: &Arc<Self>, listener: TcpListener) -> JoinHandle<()> {
        let all = Arc::clone(self);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if all.closed.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&all);
                // A client that has gone is the test's own doing.
                thread::spawn(move || drop(shared.serve(&client)));
            }
        })
    }

    /// Waits until somebody lets it go.
    fn wait(&self) {
        let mut waiting = locked(&self.waiting);
        waiting.requests += 1;
        let before = waiting.let_go;
        let waits = |it: &mut Waiting| it.let_go == before;
        let mut waiting = self
            .gone_on
            .wait_while(waiting, waits)
            .unwrap_or_else(PoisonError::into_inner);
        waiting.requests -= 1;
    }

    /// Serves one request; whoever has another one connects again.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        let mut from = BufReader::new(client);
        let (request, head, length) = self.read_head(&mut from)?;
        let fate = locked(&self.decide)(&request);
        if fate == Fate::Reset {
            io::copy(&mut from.by_ref().take(length / 2), &mut io::sink())?;
            // With bytes unread, the kernel resets.
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
                self.ask(&head, &body)?
            }
            Fate::Reset | Fate::Hold => Vec::new(),
        };
        if matches!(fate, Fate::Hold | Fate::Swallow) {
            self.held.fetch_add(1, Ordering::SeqCst);
            // Until the client is gone.
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

    /// A request, its head as it goes on, and its body's length.
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

    /// What the server answers.
    fn ask(&self, head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(&self.upstream)?;
        server.write_all(head.as_bytes())?;
        // Who refuses may answer and be gone before all of the body is there.
        let _ = server.write_all(body);
        let mut answer = Vec::new();
        match server.read_to_end(&mut answer) {
            Err(e) if answer.is_empty() => Err(e),
            _ => Ok(answer),
        }
    }
}
