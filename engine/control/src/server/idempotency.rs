//! Idempotency keys: a change with a key is carried out once. A repeat gets the outcome of the
//! first request, at once or when it is known.

use super::backend::ChangeReply;
use crate::protocol::{Changed, Command, Refusal, RefusalCode};
use std::collections::{HashMap, VecDeque};

/// Maximum number of completed changes whose outcomes the service keeps by their idempotency keys.
const CAPACITY: usize = 256;
/// Maximum length of an idempotency key in bytes.
pub const LONGEST_KEY: usize = 64;

/// Cache of the outcomes of recent changes, by the idempotency keys of their requests.
#[derive(Default)]
pub struct IdempotencyCache {
    entries: HashMap<String, RequestEntry>,
    /// Idempotency keys of completed changes, oldest first, which is the order of removal.
    done: VecDeque<String>,
}

struct RequestEntry {
    command: Command,
    progress: RequestProgress,
}

/// Result of registering the idempotency key of a requested change.
#[derive(Debug, PartialEq, Eq)]
pub enum Registration {
    /// The requested change is the first with this idempotency key.
    New,
    /// The request repeats an earlier one with the same idempotency key.
    Repeat,
    /// The idempotency key was used for another change, so that the request is refused.
    Refused(Refusal),
}

enum RequestProgress {
    /// Change that is being carried out; the replies of its request and of repeats wait for the
    /// outcome.
    Pending(Vec<ChangeReply>),
    Done(Changed),
}

impl IdempotencyCache {
    /// Registers a requested change with its idempotency key. If the key is new, the caller carries
    /// the change out and calls [`IdempotencyCache::finish`]. Otherwise `reply` is sent, at once or
    /// when the outcome of the first request is available.
    ///
    /// The number of waiting replies is limited by the changes that clients may have pending.
    pub fn begin(&mut self, key: &str, command: &Command, reply: ChangeReply) -> Registration {
        let Some(entry) = self.entries.get_mut(key) else {
            let entry = RequestEntry {
                command: command.clone(),
                progress: RequestProgress::Pending(vec![reply]),
            };
            self.entries.insert(key.to_owned(), entry);
            return Registration::New;
        };
        if entry.command != *command {
            let refusal = Refusal::new(
                RefusalCode::State,
                format!(
                    "the idempotency key `once` = {key:?} was used for another command; use another key"
                ),
            );
            reply.send(Err(refusal.clone()));
            return Registration::Refused(refusal);
        }
        match &mut entry.progress {
            RequestProgress::Pending(waiting) => waiting.push(reply),
            RequestProgress::Done(changed) => reply.send(Ok(changed.clone())),
        }
        Registration::Repeat
    }

    /// Records the outcome of a change, and returns the replies of requests that wait for it. A
    /// refusal changed nothing and is not kept, so that the change may be tried again.
    pub fn finish(&mut self, key: &str, outcome: &Result<Changed, Refusal>) -> Vec<ChangeReply> {
        let Some(RequestEntry {
            command,
            progress: RequestProgress::Pending(waiting),
        }) = self.entries.remove(key)
        else {
            return Vec::new();
        };
        if let Ok(changed) = outcome {
            let progress = RequestProgress::Done(changed.clone());
            self.entries
                .insert(key.to_owned(), RequestEntry { command, progress });
            self.done.push_back(key.to_owned());
            if self.done.len() > CAPACITY
                && let Some(oldest) = self.done.pop_front()
            {
                self.entries.remove(&oldest);
            }
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Requester;
    use std::sync::mpsc::{Receiver, channel};

    fn reply() -> (ChangeReply, Receiver<Result<Changed, Refusal>>) {
        let (sender, outcomes) = channel();
        let reply = ChangeReply::new(Requester::Owner, move |outcome| _ = sender.send(outcome));
        (reply, outcomes)
    }

    fn changed(now: &str) -> Changed {
        Changed {
            changed: true,
            now: now.into(),
            ..Changed::default()
        }
    }

    #[test]
    fn a_repeat_gets_the_outcome_of_the_first() {
        let mut cache = IdempotencyCache::default();
        let (first, to_first) = reply();
        let (second, to_second) = reply();
        assert_eq!(cache.begin("a", &Command::Rotate, first), Registration::New);
        assert_eq!(
            cache.begin("a", &Command::Rotate, second),
            Registration::Repeat
        );
        assert!(
            to_second.try_recv().is_err(),
            "the outcome is not known yet"
        );
        let outcome = Ok(changed("x"));
        for waiting in cache.finish("a", &outcome) {
            waiting.send(outcome.clone());
        }
        let (third, to_third) = reply();
        assert_eq!(
            cache.begin("a", &Command::Rotate, third),
            Registration::Repeat
        );
        for received in [to_first, to_second, to_third] {
            assert_eq!(received.try_recv().unwrap(), outcome);
        }
        let (other, to_other) = reply();
        let begun = cache.begin("a", &Command::Stop, other);
        let refusal = to_other.try_recv().unwrap().unwrap_err();
        assert_eq!(begun, Registration::Refused(refusal.clone()));
        assert_eq!(refusal.code, RefusalCode::State);
    }

    #[test]
    fn a_refusal_may_be_retried_and_the_oldest_outcomes_are_removed() {
        let mut cache = IdempotencyCache::default();
        assert_eq!(
            cache.begin("a", &Command::Rotate, reply().0),
            Registration::New
        );
        drop(cache.finish("a", &Err(Refusal::new(RefusalCode::Failed, "x"))));
        assert_eq!(
            cache.begin("a", &Command::Rotate, reply().0),
            Registration::New
        );
        for i in 0..CAPACITY + 10 {
            let key = i.to_string();
            assert_eq!(
                cache.begin(&key, &Command::Rotate, reply().0),
                Registration::New
            );
            drop(cache.finish(&key, &Ok(changed("x"))));
        }
        assert_eq!(
            cache.entries.len(),
            CAPACITY + 1,
            "completed keys and the pending one"
        );
    }
}
