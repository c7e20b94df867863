//! Transport over a Unix socket: one line for each message.

use super::{LONGEST_ANSWER, Transport};
use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

/// Connection of a client to the control service's Unix socket.
pub struct UnixTransport {
    stream: UnixStream,
    inbox: Vec<u8>,
}

impl UnixTransport {
    /// Connects to the control service's Unix socket at `path`.
    ///
    /// # Errors
    /// No process serves the socket, or the mode of its file denies access.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        Ok(Self {
            stream,
            inbox: Vec::new(),
        })
    }
}

impl Transport for UnixTransport {
    fn send(&mut self, text: &[u8]) -> io::Result<()> {
        let sent = self
            .stream
            .write_all(text)
            .and_then(|()| self.stream.write_all(b"\n"));
        match sent {
            // The service has closed the connection; `receive` returns the reason, if the service
            // sent one.
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
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
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
