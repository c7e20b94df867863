//! Between the control service and the thread that owns the capture: what the service sees, and the orders it leaves.
//!
//! Invariant: the service's threads never wait for the capture. They read a handle's snapshots; what takes the owner
//! is left as an order, which the owner carries out between two looks at the capture.

use crate::{args::RunArgs, config, log};
use engine::{
    capture::{Capture, CaptureHandle, End, Report, Snapshot},
    config::Config,
    control::{
        backend::{Backend, Done},
        message::{CaptureStatus, Changed, Code, Command, Ledger, LogLevel, Refusal, State, Stats},
    },
    device,
    plan::Plan,
    stats::QueueLedger,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    time::Duration,
};

/// Orders that may wait. Far above what all clients may have outstanding.
const ORDERS: usize = 4096;
/// How long a signal may go unnoticed while nothing is captured.
const LOOK: Duration = Duration::from_millis(50);

/// What the service sees of this process.
pub struct Counter {
    plan: Value,
    device: String,
    port: u8,
    queues: u16,
    live: Mutex<Live>,
    orders: SyncSender<Order>,
}

/// The capture, as far as others may see it.
enum Live {
    Running(CaptureHandle),
    Drained(CaptureHandle),
    Stopped {
        last: Option<Box<Snapshot>>,
        filter: String,
    },
}

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
    /// For a process that captures as `plan` says, made of `config` as it was loaded.
    pub fn new(args: &'a RunArgs, config: &Config, plan: &Plan) -> Self {
        let (sender, orders) = sync_channel(ORDERS);
        let counter = Counter {
            plan: json!({ "config": config, "plan": plan }),
            device: plan.device.name.clone(),
            port: plan.port,
            queues: u16::try_from(plan.queues.len()).unwrap_or(u16::MAX),
            live: Mutex::new(Live::Stopped {
                last: None,
                filter: config.capture.filter.clone(),
            }),
            orders: sender,
        };
        Self {
            counter: Arc::new(counter),
            orders,
            args,
            config: config.clone(),
        }
    }

    /// The service's side.
    pub fn counter(&self) -> Arc<Counter> {
        Arc::clone(&self.counter)
    }

    /// The capture has begun.
    pub fn is_running(&self, capture: &Capture) {
        *self.counter.live() = Live::Running(capture.share());
    }

    /// It has ended; what is read of it from now on is its last state.
    pub fn has_ended(&self, report: &Report) {
        let filter = self.counter.filter();
        *self.counter.live() = Live::Stopped {
            last: Some(Box::new(Snapshot {
                elapsed: report.duration,
                queues: report.queues.clone(),
                beats: Vec::new(),
                nic: report.nic.clone(),
            })),
            filter,
        };
    }

    /// Carries out what has been ordered of a running capture. Who orders its end is put into `ended`, to be told when
    /// it has come.
    pub fn serve(&mut self, capture: &mut Capture, plan: &Plan, ended: &mut Vec<Done>) -> Next {
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

    fn change(
        &mut self,
        command: &Command,
        capture: &mut Capture,
        plan: &Plan,
    ) -> Result<Changed, Refusal> {
        match command {
            Command::Start => self.start(capture, plan),
            Command::Drain => Ok(self.drain(capture)),
            Command::Rotate if capture.rotate() => {
                Ok(changed("each queue goes on to its next file"))
            }
            Command::Rotate => Err(Refusal::new(
                Code::State,
                "output.format = \"none\": this run writes no files",
            )),
            Command::Reload => self.reload(Some(capture)),
            command => Err(unsupported(command)),
        }
    }

    /// Lets frames in again after a drain.
    fn start(&self, capture: &mut Capture, plan: &Plan) -> Result<Changed, Refusal> {
        let mut live = self.counter.live();
        if !matches!(*live, Live::Drained(_)) {
            return Ok(same("it is running"));
        }
        capture.resume(plan).map_err(|e| failed(e.to_string()))?;
        *live = Live::Running(capture.share());
        Ok(changed("running"))
    }

    fn drain(&self, capture: &mut Capture) -> Changed {
        let mut live = self.counter.live();
        if matches!(*live, Live::Drained(_)) {
            return same("it is drained");
        }
        capture.pause();
        *live = Live::Drained(capture.share());
        changed("nothing more comes in, and files are completed; `start` lets frames in again")
    }

    /// Waits for `start` while nothing is captured, with a `look` now and then; the order is told when the start has succeeded. `None`: the process
    /// is to end.
    pub fn await_start(&mut self, stop: &AtomicBool, mut look: impl FnMut()) -> Option<Done> {
        loop {
            look();
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
                Command::Drain | Command::Rotate => order.done.tell(Err(Refusal::new(
                    Code::State,
                    "nothing is captured; `start` begins a capture",
                ))),
                command => order.done.tell(Err(unsupported(&command))),
            }
        }
    }

    /// Reads the configuration again. What can change in a running capture changes; if anything else differs, nothing
    /// does.
    fn reload(&mut self, capture: Option<&Capture>) -> Result<Changed, Refusal> {
        let (settings, _) = config::split(&self.args.set);
        let new = config::load(self.args.config.as_deref(), &settings)
            .map_err(|e| failed(e.messages.join("; ")))?;
        let mut rest = new.clone();
        rest.capture.filter.clone_from(&self.config.capture.filter);
        let (was, is) = (json!(self.config), json!(rest));
        let mut keys = BTreeSet::new();
        differences("", &was, &is, &mut keys);
        if !keys.is_empty() {
            let keys: Vec<_> = keys.into_iter().collect();
            return Err(Refusal::new(
                Code::State,
                format!(
                    "{} cannot change while this process runs; end it and start it again",
                    keys.join(", ")
                ),
            ));
        }
        if new.capture.filter == self.counter.filter() {
            return Ok(same("nothing differs"));
        }
        self.set_filter(&new.capture.filter, capture)?;
        self.config = new;
        Ok(changed(&format!(
            "filter: {:?}",
            self.config.capture.filter
        )))
    }

    fn set_filter(&self, expression: &str, capture: Option<&Capture>) -> Result<(), Refusal> {
        match capture {
            Some(capture) => set(&capture.share(), expression).map(drop),
            None => Err(Refusal::new(
                Code::State,
                "nothing is captured: a filter holds for a running capture",
            )),
        }
    }
}

fn set(handle: &CaptureHandle, expression: &str) -> Result<Changed, Refusal> {
    if handle.filter() == expression {
        return Ok(same(&format!("filter: {expression:?}")));
    }
    handle
        .set_filter(expression)
        .map(|change| changed(&format!("filter: {:?}", change.after)))
        .map_err(|e| Refusal::new(Code::Malformed, e.to_string()))
}

/// Names of the values that differ, as configuration keys.
fn differences(at: &str, one: &Value, other: &Value, keys: &mut BTreeSet<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                let null = Value::Null;
                let of =
                    |map: &serde_json::Map<String, Value>| map.get(key).unwrap_or(&null).clone();
                differences(&path, &of(a), &of(b), keys);
            }
        }
        (a, b) if a != b => _ = keys.insert(at.to_owned()),
        _ => {}
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

fn unsupported(command: &Command) -> Refusal {
    let name = json!(command)["do"].as_str().unwrap_or_default().to_owned();
    Refusal::new(
        Code::Unsupported,
        format!("{name} is not supported by this build"),
    )
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

impl Counter {
    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Option<CaptureHandle> {
        match &*self.live() {
            Live::Running(handle) | Live::Drained(handle) => Some(handle.clone()),
            Live::Stopped { .. } => None,
        }
    }

    fn filter(&self) -> String {
        match &*self.live() {
            Live::Running(handle) | Live::Drained(handle) => handle.filter(),
            Live::Stopped { filter, .. } => filter.clone(),
        }
    }

    /// Where it stands, what it has counted, and the filter.
    fn look(&self) -> (State, Option<Snapshot>) {
        // The lock is not held while counters are read.
        let (state, handle) = match &*self.live() {
            Live::Running(handle) => (State::Running, handle.clone()),
            Live::Drained(handle) => (State::Drained, handle.clone()),
            Live::Stopped { last, .. } => return (State::Stopped, last.as_deref().cloned()),
        };
        (state, Some(handle.snapshot()))
    }
}

impl Backend for Counter {
    fn status(&self) -> CaptureStatus {
        let (state, snapshot) = self.look();
        CaptureStatus {
            wqcap: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            state,
            device: self.device.clone(),
            port: self.port,
            queues: self.queues,
            elapsed_s: snapshot.as_ref().map_or(0.0, |it| it.elapsed.as_secs_f64()),
            filter: self.filter(),
            log: log::level(),
            ledger: snapshot
                .map(|it| QueueLedger::total(&it.queues).into())
                .unwrap_or_default(),
        }
    }

    fn stats(&self) -> Stats {
        let Some(snapshot) = self.look().1 else {
            return Stats::default();
        };
        Stats {
            elapsed_s: snapshot.elapsed.as_secs_f64(),
            ledger: Ledger {
                total: QueueLedger::total(&snapshot.queues).into(),
                queues: snapshot.queues,
            },
            nic: snapshot.nic,
        }
    }

    fn devices(&self) -> Result<Value, Refusal> {
        let devices = device::list().map_err(|e| failed(e.to_string()))?;
        Ok(json!({ "devices": devices }))
    }

    fn plan(&self) -> Result<Value, Refusal> {
        Ok(self.plan.clone())
    }

    fn change(&self, command: &Command, done: Done) {
        match command {
            Command::Log { level } => done.tell(set_level(*level)),
            Command::Filter { expression } => done.tell(match self.handle() {
                Some(handle) => set(&handle, expression),
                None => Err(Refusal::new(
                    Code::State,
                    "nothing is captured; `start` begins a capture",
                )),
            }),
            command => {
                let order = Order {
                    command: command.clone(),
                    done,
                };
                // A full desk: the owner is busy ending. Dropping the order tells so.
                let _ = self.orders.try_send(order);
            }
        }
    }
}

fn set_level(level: LogLevel) -> Result<Changed, Refusal> {
    let before = log::level();
    log::set_level(level.name()).map_err(failed)?;
    let now = format!("log: {}", level.name());
    Ok(if before == level.name() {
        same(&now)
    } else {
        changed(&now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_as_keys() {
        let mut keys = BTreeSet::new();
        let one = json!({"a": {"b": 1, "c": 2}, "d": 3});
        let other = json!({"a": {"b": 1, "c": 4}, "e": 5});
        differences("", &one, &other, &mut keys);
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["a.c", "d", "e"]);
    }

    #[test]
    fn what_is_not_there_yet_is_refused_by_name() {
        let refusal = unsupported(&Command::Respread {
            weights: Vec::new(),
        });
        assert_eq!(refusal.code, Code::Unsupported);
        assert!(refusal.message.starts_with("respread is not supported"));
    }
}
