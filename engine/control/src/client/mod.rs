//! Client of the control service: sends requests and waits for answers, over any transport.

mod rc;
mod unix;

pub use rc::RcTransport;
pub use unix::UnixTransport;

use crate::protocol::{Answer, AnswerBody, AnswerOutcome, Command, Refusal, Request, VERSION};
use std::{
    io,
    time::{Duration, Instant},
};

/// Maximum length in bytes of a control service's answer that the client accepts.
const LONGEST_ANSWER: usize = 16 << 20;

/// Connection of a client to the control service, which transports complete messages.
pub trait Transport {
    /// Sends a message to the control service.
    ///
    /// # Errors
    /// The message cannot be sent to the control service.
    fn send(&mut self, text: &[u8]) -> io::Result<()>;

    /// Waits for the next message of the control service, until `deadline`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `deadline`, or the error of a lost connection.
    fn receive(&mut self, deadline: Instant) -> io::Result<Vec<u8>>;
}

/// Reason why a request to the control service has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The control service refused the request.
    #[error("{}", .0.message)]
    Refused(Refusal),
    /// The connection to the control service failed, or the received message is not an answer.
    #[error("the control service of wqcap did not answer: {0}")]
    Lost(#[from] io::Error),
}

/// Client of the control service, over any transport.
pub struct Client {
    transport: Box<dyn Transport>,
    next: u64,
}

impl Client {
    /// Creates a client of the control service on the connection `transport`.
    #[must_use]
    pub fn new(transport: impl Transport + 'static) -> Self {
        Self {
            transport: Box::new(transport),
            next: 1,
        }
    }

    /// Sends a request to the control service and waits at most `timeout` for the answer. `once` is
    /// the idempotency key of a change.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn request(
        &mut self,
        command: Command,
        once: Option<String>,
        timeout: Duration,
    ) -> Result<AnswerBody, ClientError> {
        let id = self.next;
        self.next += 1;
        let request = Request {
            version: VERSION,
            id,
            once,
            command,
        };
        let text = serde_json::to_vec(&request).map_err(io::Error::from)?;
        self.transport.send(&text)?;
        let deadline = Instant::now() + timeout;
        loop {
            let answer = self.receive(deadline)?;
            // Number 0 concerns the connection; other numbers belong to a subscription.
            if answer.id == id || answer.id == 0 {
                return result(answer);
            }
        }
    }

    /// Waits at most `timeout` for the next statistics of a subscription.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn next_answer(&mut self, timeout: Duration) -> Result<AnswerBody, ClientError> {
        result(self.receive(Instant::now() + timeout)?)
    }

    fn receive(&mut self, deadline: Instant) -> Result<Answer, ClientError> {
        let text = self.transport.receive(deadline)?;
        serde_json::from_slice(&text).map_err(|e| {
            let text = String::from_utf8_lossy(&text[..text.len().min(200)]).into_owned();
            let problem = format!(
                "the received message {text:?} is not an answer of the control service: {e}"
            );
            ClientError::Lost(io::Error::new(io::ErrorKind::InvalidData, problem))
        })
    }
}

fn result(answer: Answer) -> Result<AnswerBody, ClientError> {
    match answer.outcome {
        AnswerOutcome::Ok(body) => Ok(body),
        AnswerOutcome::Error(refusal) => Err(ClientError::Refused(refusal)),
    }
}
