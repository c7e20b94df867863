//! What the control service and metrics see of a supervised capture: its plan, a handle for snapshots, and the queue of
//! commands for its owner.

use super::{
    Order, PlanNow,
    compilations::Compilations,
    failed,
    mark::{Mark, mark},
    present::Present,
    replaced, same, transitions,
};
use crate::{
    analysis::live,
    capture::{Capture, CaptureHandle, Report, Snapshot},
    config::Config,
    control::{
        protocol::{
            CaptureState, CaptureStatus, Changed, Command, LedgerSnapshot, LogLevel, Refusal,
            RefusalCode, Stats, WriteBuffers,
        },
        server::{Backend, ChangeReply},
    },
    device::{self, DeviceFacts},
    filter::Filter,
    plan::{self, Plan},
    sink::{PinnedFiles, RetentionGauge},
    stats::{NicCounters, QueueLedger},
    sync::wakeup::Wakeup,
    time::system_ns,
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::SyncSender},
    time::{Duration, Instant},
};

/// How old statistics may be before they are put together anew; queues publish no more often.
const FRESH: Duration = Duration::from_millis(100);

/// What a program adds to the answers of its control service. The defaults suit one without texts and log levels.
pub trait Presenter: Send + Sync {
    /// The devices as a table for people.
    fn devices_text(&self, _devices: &[DeviceFacts]) -> String {
        String::new()
    }

    /// The plan as text for people.
    fn plan_text(&self, _now: &PlanNow) -> String {
        String::new()
    }

    /// The level that is logged; empty: this program does not say.
    fn log_level(&self) -> String {
        String::new()
    }

    /// Logs at another level from now on.
    ///
    /// # Errors
    /// Why it cannot.
    fn set_log_level(&self, _level: LogLevel) -> Result<(), String> {
        Err("this program cannot change what it logs".into())
    }
}

/// A presenter with the defaults.
impl Presenter for () {}

/// What the control service and metrics see of a supervised capture.
pub struct CaptureBackend {
    present: Mutex<Present>,
    queues: u16,
    pub(super) live: Arc<Mutex<Live>>,
    /// What the NIC has lost, as the capture's owner has last read it.
    nic: Mutex<NicCounters>,
    statistics: Mutex<Option<(Instant, live::TrafficSnapshot)>>,
    orders: SyncSender<Order>,
    /// Changes with a filter to be compiled first.
    compilations: Compilations,
    /// Woken for an order.
    owner: Wakeup,
    presenter: Box<dyn Presenter>,
}

/// The capture, as far as others may see it.
pub(super) enum Live {
    /// Under way: running or drained.
    Capturing(CaptureState, Handles),
    /// It has ended: stopped, or its device is lost and looked for.
    Ended(CaptureState, Box<Stopped>),
}

impl Live {
    fn state(&self) -> CaptureState {
        match self {
            Self::Capturing(state, _) | Self::Ended(state, _) => *state,
        }
    }

    fn handles(&self) -> Option<Handles> {
        match self {
            Self::Capturing(_, handles) => Some(handles.clone()),
            Self::Ended(..) => None,
        }
    }

    /// Returns the capture under way, or a refusal that says why nothing can be changed.
    fn changeable(&self) -> Result<Handles, Refusal> {
        self.handles().ok_or_else(|| {
            let why = transitions::refusal(self.state()).unwrap_or("nothing is captured any more");
            Refusal::new(RefusalCode::State, why)
        })
    }
}

/// What it was when it ended.
#[derive(Default)]
pub(super) struct Stopped {
    last: Option<Snapshot>,
    statistics: Option<live::TrafficSnapshot>,
    filter: String,
}

/// Of a capture under way.
#[derive(Clone)]
pub(super) struct Handles {
    capture: CaptureHandle,
    statistics: Option<live::Statistics>,
}

/// The capture at one moment.
#[derive(Debug)]
pub struct StatusSnapshot {
    /// What it does.
    pub state: CaptureState,
    /// The RDMA device.
    pub device: String,
    /// Its port.
    pub port: u8,
    /// The network interface over it; `None`: there is none.
    pub interface: Option<String>,
    /// What it has counted; `None`: nothing yet.
    pub snapshot: Option<Snapshot>,
    /// Bytes of write buffers in use, and in all; `None`: nothing is written now.
    pub backlog: Option<(u64, u64)>,
    /// What pins hold of the finished files; `None`: nothing is ever deleted, or nothing is written now.
    pub pinned: Option<PinnedFiles>,
    /// `None`: statistics are off.
    pub traffic: Option<live::TrafficSnapshot>,
    /// WRs of each ring.
    pub ring: u32,
}

impl From<&Capture> for Handles {
    fn from(capture: &Capture) -> Self {
        Self {
            capture: capture.share(),
            statistics: capture.statistics_handle(),
        }
    }
}

impl CaptureBackend {
    pub(super) fn new(
        config: &Config,
        plan: &Plan,
        orders: SyncSender<Order>,
        owner: Wakeup,
        presenter: Box<dyn Presenter>,
    ) -> Self {
        Self {
            present: Mutex::new(Present::new(config, plan)),
            queues: u16::try_from(plan.queues.len()).unwrap_or(u16::MAX),
            live: Arc::new(Mutex::new(Live::Ended(
                CaptureState::Stopped,
                Box::new(Stopped {
                    filter: config.capture.filter.clone(),
                    ..Stopped::default()
                }),
            ))),
            compilations: Compilations::default(),
            nic: Mutex::default(),
            statistics: Mutex::default(),
            orders,
            owner,
            presenter,
        }
    }

    pub(super) fn is_running(&self, capture: &Capture, plan: &Plan) {
        lock(&self.present).runs(capture, plan);
        lock(&self.statistics).take();
        // The owner reads them once a second from now on.
        lock(&self.nic).clone_from(&capture.snapshot().nic);
        self.lets_in(capture, CaptureState::Running);
    }

    /// A capture is under way, running or drained.
    pub(super) fn lets_in(&self, capture: &Capture, state: CaptureState) {
        *self.live() = Live::Capturing(state, capture.into());
    }

    pub(super) fn has_seen(&self, snapshot: &Snapshot) {
        lock(&self.nic).clone_from(&snapshot.nic);
    }

    /// The capture has ended: stopped, or its device is lost.
    pub(super) fn has_ended(&self, report: &Report, state: CaptureState) {
        let stopped = Stopped {
            last: Some(Snapshot {
                elapsed: report.duration,
                queues: report.queues.clone(),
                rings: Vec::new(),
                nic: report.nic.clone(),
                outages: report.outages.clone(),
            }),
            statistics: report.statistics.clone(),
            filter: self.filter(),
        };
        *self.live() = Live::Ended(state, Box::new(stopped));
    }

    /// What the capture does.
    pub(super) fn state(&self) -> CaptureState {
        self.live().state()
    }

    /// Something of the capture may have changed: rules, table, flags, filter.
    pub(super) fn follow(&self, capture: &Capture) {
        lock(&self.present).follow(capture);
    }

    /// The table may have changed by itself.
    pub(super) fn follow_table(&self, capture: &Capture) {
        let mut present = lock(&self.present);
        if present.plan.table != capture.table() {
            present.follow(capture);
        }
    }

    pub(super) fn set_weights(&self, weights: &[u32]) {
        weights.clone_into(&mut lock(&self.present).config.rss.weights);
    }

    /// The capture ends for good; the next one is as configured.
    pub(super) fn reset(&self, config: &Config, plan: &Plan) {
        lock(&self.present).reset(config, plan);
    }

    pub(super) fn live(&self) -> MutexGuard<'_, Live> {
        lock(&self.live)
    }

    fn handles(&self) -> Option<Handles> {
        self.live().handles()
    }

    /// Changes the filter once it is compiled.
    fn change_filter(&self, expression: &str, reply: ChangeReply) {
        let (live, expression) = (Arc::clone(&self.live), expression.to_owned());
        let change = move || {
            lock(&live).changeable()?;
            let filter = compiled(&expression)?;
            // It may have ended, or another one begun, while libpcap compiled.
            let handles = lock(&live).changeable()?;
            set_filter(&handles.capture, filter)
        };
        self.after_compilation(reply, move |reply| reply.send(change()));
    }

    /// Has the filter of a configuration compiled, which the owner then applies.
    pub(super) fn compile_for_reload(&self, config: Config, reply: ChangeReply) {
        let (orders, owner) = (self.orders.clone(), self.owner.clone());
        self.after_compilation(reply, move |reply| {
            match compiled(&config.capture.filter) {
                Ok(filter) => {
                    // As in `change`: the owner is busy ending.
                    let _ = orders.try_send(Order::Apply {
                        config: Box::new(config),
                        filter,
                        reply,
                    });
                    owner.wake();
                }
                Err(refusal) => reply.send(Err(refusal)),
            }
        });
    }

    /// Carries out a change on the thread that waits for libpcap.
    pub(super) fn after_compilation(
        &self,
        reply: ChangeReply,
        change: impl FnOnce(ChangeReply) + Send + 'static,
    ) {
        let held = Arc::new(Mutex::new(Some(reply)));
        let take = |held: &Mutex<Option<ChangeReply>>| lock(held).take();
        let of_change = Arc::clone(&held);
        let accepted = self.compilations.carry_out(move || {
            if let Some(reply) = take(&of_change) {
                change(reply);
            }
        });
        if let Err(refusal) = accepted
            && let Some(reply) = take(&held)
        {
            reply.send(Err(refusal));
        }
    }

    pub(super) fn filter(&self) -> String {
        match &*self.live() {
            Live::Capturing(_, handles) => handles.capture.filter(),
            Live::Ended(_, stopped) => stopped.filter.clone(),
        }
    }

    /// All that can be seen at once.
    pub fn snapshot(&self) -> StatusSnapshot {
        let (state, snapshot) = self.counted();
        let (device, port, interface, ring) = {
            let plan = &lock(&self.present).plan;
            let name = plan.device.name.clone();
            (name, plan.port, plan.netdev.clone(), plan.ring.wrs)
        };
        StatusSnapshot {
            state,
            device,
            port,
            interface,
            snapshot,
            backlog: self.backlog(),
            pinned: self.retention().map(|it| it.pinned()),
            traffic: self.traffic(),
            ring,
        }
    }

    /// Bytes of write buffers in use, and in all.
    fn backlog(&self) -> Option<(u64, u64)> {
        let handles = self.handles()?;
        let backlog = handles.capture.backlog?;
        Some((backlog.used(), backlog.size()))
    }

    /// What retention finds; `None`: nothing is ever deleted, or nothing is written now.
    fn retention(&self) -> Option<RetentionGauge> {
        self.handles()?.capture.retention
    }

    /// Where it stands and what it has counted.
    fn counted(&self) -> (CaptureState, Option<Snapshot>) {
        // The lock is not held while counters are read.
        let (state, handles) = match &*self.live() {
            Live::Capturing(state, handles) => (*state, handles.clone()),
            Live::Ended(state, stopped) => return (*state, stopped.last.clone()),
        };
        // The loops' counters are read as they are. The NIC's take system calls: those that the owner has read serve.
        let nic = lock(&self.nic).clone();
        (state, Some(handles.capture.snapshot_beside(nic)))
    }

    /// The traffic of now, or of the end; `None`: statistics are off.
    fn traffic(&self) -> Option<live::TrafficSnapshot> {
        let handle = match &*self.live() {
            Live::Capturing(_, handles) => handles.statistics.clone()?,
            Live::Ended(_, stopped) => return stopped.statistics.clone(),
        };
        let mut last = lock(&self.statistics);
        let now = Instant::now();
        match &*last {
            Some((at, it)) if now < *at + FRESH => Some(it.clone()),
            _ => {
                let it = handle.snapshot();
                *last = Some((now, it.clone()));
                Some(it)
            }
        }
    }
}

impl CaptureBackend {
    fn set_log_level(&self, level: LogLevel) -> Result<Changed, Refusal> {
        let before = self.presenter.log_level();
        self.presenter.set_log_level(level).map_err(failed)?;
        let now = format!("log: {level}");
        Ok(if before == level.to_string() {
            same(&now)
        } else {
            replaced(format!("log: {before}"), &now)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backend for CaptureBackend {
    fn status(&self) -> CaptureStatus {
        let (state, snapshot) = self.counted();
        let (device, port) = {
            let plan = &lock(&self.present).plan;
            (plan.device.name.clone(), plan.port)
        };
        CaptureStatus {
            wqcap: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            state,
            device,
            port,
            queues: self.queues,
            elapsed_s: snapshot.as_ref().map_or(0.0, |it| it.elapsed.as_secs_f64()),
            filter: self.filter(),
            log: self.presenter.log_level(),
            ledger: snapshot
                .map(|it| QueueLedger::total(&it.queues).into())
                .unwrap_or_default(),
            disk: self.retention().and_then(|it| it.outlook()),
        }
    }

    fn stats(&self) -> Stats {
        let Some(snapshot) = self.counted().1 else {
            return Stats::default();
        };
        Stats {
            elapsed_s: snapshot.elapsed.as_secs_f64(),
            ledger: LedgerSnapshot {
                total: QueueLedger::total(&snapshot.queues).into(),
                queues: snapshot.queues,
            },
            nic: snapshot.nic,
            disk: self
                .backlog()
                .map(|(used, buffer)| WriteBuffers { buffer, used }),
            statistics: self.traffic(),
        }
    }

    fn devices(&self) -> Result<Value, Refusal> {
        let devices = device::list().map_err(|e| failed(e.to_string()))?;
        let text = self.presenter.devices_text(&devices);
        Ok(json!({ "devices": devices, "text": text }))
    }

    fn plan(&self) -> Result<Value, Refusal> {
        let (state, filter) = match &*self.live() {
            Live::Capturing(state, handles) => (*state, Some(handles.capture.filter_now())),
            Live::Ended(state, _) => (*state, None),
        };
        let now = {
            let mut present = lock(&self.present);
            // It changes without the capture's owner.
            if let Some(filter) = filter {
                present.set_filter((*filter).clone());
            }
            present.now(state)
        };
        let mut answer = json!(now);
        answer["text"] = self.presenter.plan_text(&now).into();
        Ok(answer)
    }

    fn change(&self, command: &Command, reply: ChangeReply) {
        match command {
            Command::Log { level } => reply.send(self.set_log_level(*level)),
            Command::Filter { expression } => self.change_filter(expression, reply),
            Command::Mark {
                text,
                before_ms,
                after_ms,
                filter,
            } => {
                let wanted = Mark {
                    text: text.clone(),
                    now: system_ns(),
                    before_ms: *before_ms,
                    after_ms: *after_ms,
                    filter: filter.clone(),
                };
                let dir = lock(&self.present).plan.output.dir.clone();
                let requests = self.handles().and_then(|it| it.capture.requests);
                self.after_compilation(reply, move |reply| mark(&wanted, dir, requests, reply));
            }
            command => {
                let order = Order::Command {
                    command: command.clone(),
                    reply,
                };
                // A full queue: the owner is busy ending. Dropping the order answers so.
                let _ = self.orders.try_send(order);
                self.owner.wake();
            }
        }
    }
}

fn compiled(expression: &str) -> Result<Filter, Refusal> {
    plan::compiled("capture.filter", expression)
        .map_err(|e| Refusal::new(RefusalCode::Malformed, e.to_string()))
}

/// Applies another filter.
pub(super) fn set_filter(handle: &CaptureHandle, filter: Filter) -> Result<Changed, Refusal> {
    if handle.filter() == filter.expression() {
        return Ok(same(&format!("filter: {:?}", filter.expression())));
    }
    handle
        .set_compiled_filter(filter)
        .map(|change| {
            replaced(
                format!("filter: {:?}", change.before),
                &format!("filter: {:?}", change.after),
            )
        })
        .map_err(|e| Refusal::new(RefusalCode::Malformed, e.to_string()))
}
