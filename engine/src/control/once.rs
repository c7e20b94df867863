//! Changes that carry a name are carried out once: a repeat waits for the first or is answered as it was.

use super::{
    backend::Done,
    message::{Changed, Code, Command, Refusal},
};
use std::collections::{HashMap, VecDeque};

/// Outcomes remembered.
const MOST: usize = 256;
/// Bytes of a name.
pub const LONGEST_NAME: usize = 64;

/// What is known of named changes.
#[derive(Default)]
pub struct Once {
    known: HashMap<String, Known>,
    /// Names of what is done, oldest first.
    done: VecDeque<String>,
}

struct Known {
    command: Command,
    state: State,
}

enum State {
    /// Being carried out; these want to know.
    Pending(Vec<Done>),
    Done(Changed),
}

impl Once {
    /// A change of this name is wanted. True: it is new, carry it out and tell [`Once::finish`]. Otherwise `done` is
    /// told, or will be.
    ///
    /// The number of those that wait is bounded by what clients may have outstanding.
    pub fn begin(&mut self, name: &str, command: &Command, done: Done) -> bool {
        let Some(known) = self.known.get_mut(name) else {
            let known = Known {
                command: command.clone(),
                state: State::Pending(vec![done]),
            };
            self.known.insert(name.to_owned(), known);
            return true;
        };
        if known.command != *command {
            done.tell(Err(Refusal::new(
                Code::State,
                format!("once = {name:?} named another command before; take another name"),
            )));
            return false;
        }
        match &mut known.state {
            State::Pending(waiting) => waiting.push(done),
            State::Done(changed) => done.tell(Ok(changed.clone())),
        }
        false
    }

    /// The outcome, and who wants to know. A refusal changed nothing and is forgotten: it may be tried again.
    pub fn finish(&mut self, name: &str, outcome: &Result<Changed, Refusal>) -> Vec<Done> {
        let Some(known) = self.known.remove(name) else {
            return Vec::new();
        };
        let State::Pending(waiting) = known.state else {
            return Vec::new();
        };
        if let Ok(changed) = outcome {
            let known = Known {
                command: known.command,
                state: State::Done(changed.clone()),
            };
            self.known.insert(name.to_owned(), known);
            self.done.push_back(name.to_owned());
            if self.done.len() > MOST
                && let Some(oldest) = self.done.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn done() -> (Done, Receiver<Result<Changed, Refusal>>) {
        let (sender, told) = channel();
        (Done::new(move |outcome| _ = sender.send(outcome)), told)
    }

    fn changed(now: &str) -> Changed {
        Changed {
            changed: true,
            now: now.into(),
        }
    }

    #[test]
    fn a_repeat_hears_what_the_first_heard() {
        let mut once = Once::default();
        let (first, heard_first) = done();
        let (second, heard_second) = done();
        assert!(once.begin("a", &Command::Rotate, first));
        assert!(!once.begin("a", &Command::Rotate, second));
        assert!(heard_second.try_recv().is_err(), "it is not known yet");
        let outcome = Ok(changed("x"));
        for waiting in once.finish("a", &outcome) {
            waiting.tell(outcome.clone());
        }
        let (third, heard_third) = done();
        assert!(!once.begin("a", &Command::Rotate, third));
        for heard in [heard_first, heard_second, heard_third] {
            assert_eq!(heard.try_recv().unwrap(), outcome);
        }
        let (other, heard) = done();
        assert!(!once.begin("a", &Command::Stop, other));
        assert_eq!(heard.try_recv().unwrap().unwrap_err().code, Code::State);
    }

    #[test]
    fn refusals_are_tried_again_and_the_oldest_are_forgotten() {
        let mut once = Once::default();
        assert!(once.begin("a", &Command::Rotate, done().0));
        drop(once.finish("a", &Err(Refusal::new(Code::Failed, "x"))));
        assert!(once.begin("a", &Command::Rotate, done().0));
        for i in 0..MOST + 10 {
            let name = format!("{i}");
            assert!(once.begin(&name, &Command::Rotate, done().0));
            drop(once.finish(&name, &Ok(changed("x"))));
        }
        assert_eq!(once.known.len(), MOST + 1, "and the one that is pending");
    }
}
