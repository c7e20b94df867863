//! Between the control service and the thread that owns the capture: what the service sees, and the orders it leaves.
//!
//! Invariant: the service's threads never wait for the capture. They read a handle's snapshots; what takes the owner
//! is left as an order, which the owner carries out between two looks at the capture.

mod change;
mod counter;
mod reload;

pub use counter::{Counter, Sight};

use crate::args::RunArgs;
use engine::{
    capture::{Capture, End, Report, Snapshot},
    config::Config,
    control::{
        backend::Done,
        message::{Changed, Code, Command, Refusal},
    },
    plan::Plan,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel},
    },
    time::Duration,
};

/// Orders that may wait. Far above what all clients may have outstanding.
const ORDERS: usize = 4096;
/// How long a signal may go unnoticed while nothing is captured.
const LOOK: Duration = Duration::from_millis(50);

/// Something the capture's owner is to do.
struct Order {
    command: Command,
    done: Done,
}

/// Where the capture's owner finds its orders.
pub struct Desk<'a> {
    counter: Arc<Counter>,
    orders: Receiver<Order>,
    args: &'a RunArgs,
    config: Config,
    /// Set by SIGHUP: the configuration is to be read again.
    hangup: Arc<AtomicBool>,
}

/// What an order means to the capture's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Go on.
    GoOn,
    /// End the capture and wait for what is ordered then.
    Stop,
    /// End the process.
    End,
}

impl<'a> Desk<'a> {
    /// For a process that captures as `plan` says, made of `config` as it was loaded. When `hangup` is set, it is
    /// loaded again.
    pub fn new(args: &'a RunArgs, config: &Config, plan: &Plan, hangup: Arc<AtomicBool>) -> Self {
        let (sender, orders) = sync_channel(ORDERS);
        Self {
            counter: Arc::new(Counter::new(config, plan, sender)),
            orders,
            args,
            config: config.clone(),
            hangup,
        }
    }

    /// Loads the configuration again if a signal has asked for that; nobody waits for the answer but the log.
    fn heed_hangup(&mut self, capture: Option<(&mut Capture, &Plan)>) {
        if !self.hangup.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.reload(capture) {
            Ok(it) => tracing::info!("SIGHUP: the configuration is read again: {}", it.now),
            Err(e) => tracing::error!("SIGHUP: nothing has changed: {}", e.message),
        }
    }

    /// The service's side.
    pub fn counter(&self) -> Arc<Counter> {
        Arc::clone(&self.counter)
    }

    /// The capture has begun.
    pub fn is_running(&self, capture: &Capture) {
        self.counter.is_running(capture);
    }

    /// What the last look at it has shown.
    pub fn has_seen(&self, snapshot: &Snapshot) {
        self.counter.has_seen(snapshot);
    }

    /// It has ended; what is read of it from now on is its last state.
    pub fn has_ended(&self, report: &Report) {
        self.counter.has_ended(report);
    }

    /// It has ended with its device, and is to go on once that is back. True: not before somebody orders it, since it
    /// was drained.
    pub fn has_lost(&self, report: &Report) -> bool {
        self.counter.has_lost(report)
    }

    /// Answers what is ordered while the device is lost, for a moment. Who orders the end of the search is put into
    /// `ended`.
    pub fn serve_lost(&mut self, ended: &mut Vec<Done>) -> Next {
        self.heed_hangup(None);
        // The sender's other end is ours: there is no error but the time-out.
        let Ok(order) = self.orders.recv_timeout(LOOK) else {
            return Next::GoOn;
        };
        match order.command {
            Command::Stop => {
                ended.push(order.done);
                return Next::Stop;
            }
            Command::Shutdown => {
                ended.push(order.done);
                return Next::End;
            }
            Command::Start => order.done.tell(Ok(same(LOST))),
            Command::Reload => {
                let outcome = self.reload(None);
                order.done.tell(outcome);
            }
            _ => order.done.tell(Err(device_lost())),
        }
        Next::GoOn
    }

    /// Carries out what has been ordered of a running capture. Who orders its end is put into `ended`, to be told when
    /// it has come.
    pub fn serve(&mut self, capture: &mut Capture, plan: &Plan, ended: &mut Vec<Done>) -> Next {
        self.heed_hangup(Some((&mut *capture, plan)));
        loop {
            let order = match self.orders.try_recv() {
                Ok(order) => order,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Next::GoOn,
            };
            match order.command {
                Command::Stop => {
                    ended.push(order.done);
                    return Next::Stop;
                }
                Command::Shutdown => {
                    ended.push(order.done);
                    return Next::End;
                }
                command => order.done.tell(self.change(&command, capture, plan)),
            }
        }
    }

    /// Waits for `start` while nothing is captured, with a `look` now and then; the order is told when the start has
    /// succeeded. `None`: the process is to end.
    pub fn await_start(&mut self, stop: &AtomicBool, mut look: impl FnMut()) -> Option<Done> {
        loop {
            look();
            self.heed_hangup(None);
            let order = match self.orders.recv_timeout(LOOK) {
                Ok(order) => order,
                Err(RecvTimeoutError::Timeout) if !stop.load(Ordering::Relaxed) => continue,
                Err(_) => return None,
            };
            match order.command {
                Command::Start => return Some(order.done),
                Command::Shutdown => {
                    order.done.tell(Ok(changed("the process ends")));
                    return None;
                }
                Command::Stop => order.done.tell(Ok(same("it is stopped"))),
                Command::Reload => {
                    let outcome = self.reload(None);
                    order.done.tell(outcome);
                }
                _ => order.done.tell(Err(nothing_runs())),
            }
        }
    }
}

/// It was done, and so it is now.
pub fn changed(now: &str) -> Changed {
    Changed {
        changed: true,
        now: now.into(),
    }
}

/// It was tried, and failed.
pub fn failed(message: String) -> Refusal {
    Refusal::new(Code::Failed, message)
}

fn same(now: &str) -> Changed {
    Changed {
        changed: false,
        now: now.into(),
    }
}

fn nothing_runs() -> Refusal {
    Refusal::new(Code::State, "nothing is captured; `start` begins a capture")
}

/// How it stands then.
const LOST: &str = "the device is lost; capturing goes on by itself once it is back";

fn device_lost() -> Refusal {
    Refusal::new(Code::State, LOST)
}

/// Tells those whose orders ended the capture.
pub fn tell_ended(waiting: Vec<Done>, end: &End) {
    for done in waiting {
        done.tell(if end.is_failure() {
            Err(Refusal::new(
                Code::Failed,
                format!("it ended with a failure: {end:?}"),
            ))
        } else {
            Ok(changed("stopped, and files are closed"))
        });
    }
}
