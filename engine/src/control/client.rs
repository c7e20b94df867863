//! The other end: a client that asks and waits for its answers, over any transport.

use super::message::{Answer, Body, Command, Outcome, Refusal, Request, VERSION};
use std::{
    fmt,
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Bytes of the longest answer that is taken.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// A connection that carries whole messages.
pub trait Link {
    /// Sends one.
    ///
    /// # Errors
    /// It cannot be sent.
    fn send(&mut self, text: &[u8]) -> io::Result<()>;

    /// The next one, before `deadline`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`], or the connection is gone.
    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>>;
}

/// Why there is no answer as wished.
#[derive(Debug)]
pub enum ClientError {
    /// The service refused.
    Refused(Refusal),
    /// The connection failed, or what came is no answer.
    Lost(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => f.write_str(&refusal.message),
            Self::Lost(e) => write!(f, "no answer: {e}"),
        }
    }
}

impl From<io::Error> for ClientError {
    fn from(e: io::Error) -> Self {
        Self::Lost(e)
    }
}

/// A client.
pub struct Client {
    link: Box<dyn Link>,
    next: u64,
}

impl Client {
    /// Over this connection.
    #[must_use]
    pub fn over(link: impl Link + 'static) -> Self {
        Self {
            link: Box::new(link),
            next: 1,
        }
    }

    /// Asks, and waits at most `timeout` for the answer.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn ask(
        &mut self,
        command: Command,
        once: Option<String>,
        timeout: Duration,
    ) -> Result<Body, ClientError> {
        let id = self.next;
        self.next += 1;
        let request = Request {
            version: VERSION,
            id,
            once,
            command,
        };
        let text = serde_json::to_vec(&request).map_err(io::Error::from)?;
        self.link.send(&text)?;
        let deadline = Instant::now() + timeout;
        loop {
            let answer = self.receive(deadline)?;
            // Number 0: the service speaks of the connection. Other numbers: a subscription's.
            if answer.id == id || answer.id == 0 {
                return outcome(answer);
            }
        }
    }

    /// What comes next of a subscription, at most `timeout` from now.
    ///
    /// # Errors
    /// As [`ClientError`] says.
    pub fn next(&mut self, timeout: Duration) -> Result<Body, ClientError> {
        outcome(self.receive(Instant::now() + timeout)?)
    }

    fn receive(&mut self, deadline: Instant) -> Result<Answer, ClientError> {
        let text = self.link.receive(deadline)?;
        serde_json::from_slice(&text).map_err(|e| {
            let text = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
            let problem = format!("{text:?} is no answer: {e}");
            ClientError::Lost(io::Error::new(io::ErrorKind::InvalidData, problem))
        })
    }
}

fn outcome(answer: Answer) -> Result<Body, ClientError> {
    match answer.outcome {
        Outcome::Ok(body) => Ok(body),
        Outcome::Error(refusal) => Err(ClientError::Refused(refusal)),
    }
}

/// A connection to a Unix socket.
pub struct UnixLink {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl UnixLink {
    /// Connects.
    ///
    /// # Errors
    /// Nobody serves the socket, or one may not.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
        })
    }
}

impl Link for UnixLink {
    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        let sent = self
            .stream
            .write_all(text)
            .and_then(|()| self.stream.write_all(b"\n"));
        match sent {
            // The service has closed the connection; it may have said why, which is for `receive` to find.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.inbox[searched..].iter().position(|b| *b == b'\n') {
                let mut line: Vec<u8> = self.inbox.drain(..=searched + end).collect();
                line.pop();
                return Ok(line);
            }
            searched = self.inbox.len();
            if searched > LONGEST_ANSWER {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(rest))?;
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.inbox.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}
