//! Backend of the control service and metrics for a supervised capture: its plan, a handle for
//! snapshots, and the queue of commands for its owner.

mod compilations;
mod mark;

pub(crate) use mark::Mark;

use crate::{
    answers::{failed, replaced, same},
    host::HostError,
    order::Occurrence,
    present::{CurrentPlan, SupervisorState, copy_limits},
    transitions::{self, Event},
};
use compilations::{Compilations, FilterOrder};
use mark::mark;
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::SyncSender},
    time::{Duration, Instant},
};
use wqcap_control::{
    protocol::{
        CaptureState, CaptureStatus, Changed, Command, LedgerSnapshot, LogLevel, Refusal,
        RefusalCode, Stats, WriteBuffers,
    },
    server::{Backend, ChangeReply},
};
use wqcap_core::{
    stats::{NicCounters, QueueLedger},
    sync::wakeup::Wakeup,
};
use wqcap_engine::{
    analysis::live,
    capture::{Capture, CaptureHandle, Report, Snapshot},
    config::{Config, OutputConfig},
    device::{self, DeviceFacts},
    filter::{Filter, FilterCompiler},
    plan::{self, Plan},
    sink::{PinnedFiles, RetentionGauge},
};

/// Maximum age of cached live statistics of the traffic. Queues do not publish them more often.
const FRESH: Duration = Duration::from_millis(100);

/// Texts and log levels that a program adds to the answers of its supervisor's control service. The
/// defaults suit a program without them.
pub trait Presenter: Send + Sync {
    /// Returns the RDMA devices as a table for people.
    fn devices_text(&self, _devices: &[DeviceFacts]) -> String {
        String::new()
    }

    /// Returns the present capture plan as text for people.
    fn plan_text(&self, _now: &CurrentPlan) -> String {
        String::new()
    }

    /// Returns the present log level of the program; empty: unknown.
    fn log_level(&self) -> String {
        String::new()
    }

    /// Changes the log level of the program around the supervisor.
    ///
    /// # Errors
    /// Reason why the level cannot be changed.
    fn set_log_level(&self, _level: LogLevel) -> Result<(), HostError> {
        Err("this program cannot change its log level".into())
    }
}

/// Presenter of a program that adds no texts to the answers of its control service.
impl Presenter for () {}

/// View of a supervised capture for the control service and metrics.
pub struct CaptureBackend {
    present: Mutex<SupervisorState>,
    queues: u16,
    pub(crate) live: Arc<Mutex<CaptureView>>,
    /// Counters of losses in the NIC, as last read by the capture's owner.
    nic: Mutex<NicCounters>,
    statistics: Mutex<Option<(Instant, live::TrafficSnapshot)>>,
    orders: SyncSender<Occurrence>,
    /// Threads for changes of the capture whose filter must be compiled first.
    compilations: Compilations,
    filter_order: Arc<FilterOrder>,
    /// Wakeup of the capture's owner, used after a command is queued.
    owner: Wakeup,
    presenter: Box<dyn Presenter>,
}

/// State of the supervised capture, as other threads access it.
pub(crate) enum CaptureView {
    /// Running or drained capture, with handles through which other threads access it.
    Capturing(CaptureState, Box<Handles>),
    /// Capture that has ended: it is stopped, or its device is lost and searched for.
    Ended(CaptureState, Box<FinalValues>),
}

impl CaptureView {
    fn state(&self) -> CaptureState {
        match self {
            Self::Capturing(state, _) | Self::Ended(state, _) => *state,
        }
    }

    fn handles(&self) -> Option<Handles> {
        match self {
            Self::Capturing(_, handles) => Some(Handles::clone(handles)),
            Self::Ended(..) => None,
        }
    }

    /// Returns the handles of the running capture, or a refusal with the reason why it cannot be
    /// changed.
    fn changeable(&self) -> Result<Handles, Refusal> {
        self.handles().ok_or_else(|| self.refusal())
    }

    /// Returns the refusal of a change, because the capture has ended.
    fn refusal(&self) -> Refusal {
        let why = transitions::refusal(self.state()).unwrap_or("the capture has ended");
        Refusal::new(RefusalCode::State, why)
    }
}

/// Last counters, statistics and filter of a capture that has ended, for the control service.
#[derive(Default)]
pub(crate) struct FinalValues {
    last: Option<Snapshot>,
    statistics: Option<live::TrafficSnapshot>,
    filter: String,
}

/// Handles to a running capture, through which its counters and statistics are read.
#[derive(Clone)]
pub(crate) struct Handles {
    capture: CaptureHandle,
    statistics: Option<live::Statistics>,
}

/// Status of the supervised capture at one moment, for the control service and metrics.
#[derive(Debug)]
pub struct StatusSnapshot {
    /// State of the capture: running, drained, stopped, or its device lost.
    pub state: CaptureState,
    /// Name of the captured RDMA device.
    pub device: String,
    /// Number of the captured port of the device.
    pub port: u8,
    /// Network interface of the captured port; `None`: it has none.
    pub interface: Option<String>,
    /// Counters of the capture's queues and NIC; `None`: nothing has been counted yet.
    pub snapshot: Option<Snapshot>,
    /// Number of bytes of write buffers in use, and in total; `None`: no capture files are written
    /// now.
    pub backlog: Option<(u64, u64)>,
    /// Capture files that pins protect from deletion; `None`: retention is off, or no files are
    /// written now.
    pub pinned: Option<PinnedFiles>,
    /// Live statistics of the captured traffic; `None`: statistics are off.
    pub traffic: Option<live::TrafficSnapshot>,
    /// Number of receive WRs in each queue's ring.
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
    pub(crate) fn new(
        config: &Config,
        plan: &Plan,
        orders: SyncSender<Occurrence>,
        owner: Wakeup,
        presenter: Box<dyn Presenter>,
    ) -> Self {
        Self {
            present: Mutex::new(SupervisorState::new(config, plan)),
            queues: u16::try_from(plan.queues.len()).unwrap_or(u16::MAX),
            live: Arc::new(Mutex::new(CaptureView::Ended(
                CaptureState::Stopped,
                Box::new(FinalValues {
                    filter: config.capture.filter.clone(),
                    ..FinalValues::default()
                }),
            ))),
            compilations: Compilations::default(),
            filter_order: Arc::default(),
            nic: Mutex::default(),
            statistics: Mutex::default(),
            orders,
            owner,
            presenter,
        }
    }

    /// Takes over the plan and the NIC counters of a capture that has just started.
    pub(crate) fn begin_capture(&self, capture: &Capture, plan: &Plan) {
        lock(&self.present).set_running(capture, plan);
        lock(&self.statistics).take();
        // Initial NIC counters; from now on the owner reads them once per second.
        lock(&self.nic).clone_from(&capture.snapshot().nic);
    }

    /// Publishes the handles of a running or drained capture to other threads.
    pub(crate) fn publish_capture(&self, capture: &Capture, state: CaptureState) {
        *self.live() = CaptureView::Capturing(state, Box::new(capture.into()));
    }

    /// Stores the NIC counters that the capture's owner has read.
    pub(crate) fn store_nic_counters(&self, snapshot: &Snapshot) {
        lock(&self.nic).clone_from(&snapshot.nic);
    }

    /// Publishes to other threads that the capture is stopped, or that its device is lost.
    pub(crate) fn publish_end(&self, report: &Report, state: CaptureState) {
        let stopped = FinalValues {
            last: Some(Snapshot {
                elapsed: report.duration,
                queues: report.queues.clone(),
                ports: report.ports.clone(),
                rings: Vec::new(),
                nic: report.nic.clone(),
                outages: report.outages.clone(),
            }),
            statistics: report.statistics.clone(),
            filter: self.filter(),
        };
        *self.live() = CaptureView::Ended(state, Box::new(stopped));
    }

    /// Returns the refusal of a change of the capture while no capture exists.
    pub(crate) fn refusal(&self) -> Refusal {
        self.live().refusal()
    }

    /// Copies the values that can change while the capture runs: flow rules, RSS indirection table,
    /// WQ flags, filter.
    pub(crate) fn follow(&self, capture: &Capture) {
        lock(&self.present).follow(capture);
    }

    /// Copies the capture's RSS indirection table if it was rebalanced without a command.
    pub(crate) fn follow_table(&self, capture: &Capture) {
        let mut present = lock(&self.present);
        if present.plan.port.table != capture.table() {
            present.follow(capture);
        }
    }

    pub(crate) fn set_weights(&self, weights: &[u32]) {
        weights.clone_into(&mut lock(&self.present).config.rss.weights);
    }

    /// Takes over the limits of capture files (retention, rotation) from a reloaded configuration.
    pub(crate) fn set_output_limits(&self, from: &OutputConfig) {
        copy_limits(from, &mut lock(&self.present).config.output);
    }

    /// Resets the present configuration and plan to those of the next capture.
    pub(crate) fn reset(&self, config: &Config, plan: &Plan) {
        lock(&self.present).reset(config, plan);
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, CaptureView> {
        lock(&self.live)
    }

    fn handles(&self) -> Option<Handles> {
        self.live().handles()
    }

    /// Compiles another capture filter, and then applies it to the running capture unless the filter
    /// of a later request was applied meanwhile.
    pub(crate) fn change_filter(&self, expression: String, reply: ChangeReply) {
        let (live, order) = (Arc::clone(&self.live), Arc::clone(&self.filter_order));
        let number = order.request();
        let change = move |filters: &FilterCompiler| {
            lock(&live).changeable()?;
            let filter = compiled(filters, &expression)?;
            // The capture may have ended or been replaced while libpcap compiled.
            let handles = lock(&live).changeable()?;
            order.apply(number, || set_filter(&handles.capture, filter))
        };
        self.after_compilation(reply, move |reply, filters| reply.send(change(filters)));
    }

    /// Compiles the capture filter of a reloaded configuration, which the capture's owner then
    /// applies.
    pub(crate) fn compile_for_reload(&self, config: Config, reply: ChangeReply) {
        let (orders, owner) = (self.orders.clone(), self.owner.clone());
        self.after_compilation(reply, move |reply, filters| {
            match compiled(filters, &config.capture.filter) {
                Ok(filter) => {
                    // A full queue means that the owner is ending, as in `queue`.
                    let _ = orders.try_send(Occurrence {
                        event: Event::Reloaded,
                        work: Some(Box::new(|supervisor, capture| {
                            supervisor.apply_reload(config, filter, capture)
                        })),
                        reply: Some(reply),
                    });
                    owner.wake();
                }
                Err(refusal) => reply.send(Err(refusal)),
            }
        });
    }

    /// Sets the mark that a control command requests, once its filter is compiled.
    pub(crate) fn mark(&self, wanted: Mark, reply: ChangeReply) {
        let dir = lock(&self.present).plan.output.dir.clone();
        let requests = self.handles().and_then(|it| it.capture.requests().cloned());
        if wanted.filter.is_empty() {
            // No compilation is necessary.
            return mark(&wanted, dir, requests, &FilterCompiler::default(), reply);
        }
        self.after_compilation(reply, move |reply, filters| {
            mark(&wanted, dir, requests, filters, reply);
        });
    }

    /// Queues a control command for the capture's owner as the event `event`.
    pub(crate) fn order(&self, event: Event, reply: ChangeReply) {
        self.queue(Occurrence {
            event,
            work: None,
            reply: Some(reply),
        });
    }

    /// Queues an event for the capture's owner, and wakes the owner.
    pub(crate) fn queue(&self, order: Occurrence) {
        // A full queue means that the owner is ending. Dropping the order answers the request.
        let _ = self.orders.try_send(order);
        self.owner.wake();
    }

    /// Executes a change of the capture on the thread that compiles its filter.
    fn after_compilation(
        &self,
        reply: ChangeReply,
        change: impl FnOnce(ChangeReply, &FilterCompiler) + Send + 'static,
    ) {
        let requester = reply.requester();
        let held = Arc::new(Mutex::new(Some(reply)));
        let take = |held: &Mutex<Option<ChangeReply>>| lock(held).take();
        let of_change = Arc::clone(&held);
        let accepted = self.compilations.carry_out(requester, move |filters| {
            if let Some(reply) = take(&of_change) {
                change(reply, filters);
            }
        });
        if let Err(refusal) = accepted
            && let Some(reply) = take(&held)
        {
            reply.send(Err(refusal));
        }
    }

    pub(crate) fn filter(&self) -> String {
        match &*self.live() {
            CaptureView::Capturing(_, handles) => handles.capture.filter(),
            CaptureView::Ended(_, stopped) => stopped.filter.clone(),
        }
    }

    /// Returns the present status of the capture, for the control service and metrics.
    pub fn snapshot(&self) -> StatusSnapshot {
        let (state, snapshot) = self.counted();
        let (device, port, interface, ring) = {
            let plan = &lock(&self.present).plan;
            (
                plan.names(),
                plan.port.number,
                plan.port.netdev.clone(),
                plan.port.ring.wrs,
            )
        };
        StatusSnapshot {
            state,
            device,
            port,
            interface,
            snapshot,
            backlog: self.backlog().map(|it| (it.used, it.buffer)),
            pinned: self.retention().map(|it| it.pinned()),
            traffic: self.traffic(),
            ring,
        }
    }

    /// Returns the size and the use of the write buffers; `None`: no capture files are written now.
    fn backlog(&self) -> Option<WriteBuffers> {
        let handles = self.handles()?;
        let backlog = handles.capture.backlog()?;
        Some(WriteBuffers {
            buffer: backlog.size(),
            used: backlog.used(),
            waiting_ms: u64::try_from(backlog.waiting().as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// Returns the gauge of the retention, which deletes old capture files; `None`: retention is
    /// off, or no files are written now.
    fn retention(&self) -> Option<RetentionGauge> {
        self.handles()?.capture.retention().cloned()
    }

    /// Returns the state of the capture and the latest values of its counters.
    fn counted(&self) -> (CaptureState, Option<Snapshot>) {
        // The lock is not held while counters are read.
        let (state, handles) = match &*self.live() {
            CaptureView::Capturing(state, handles) => (*state, handles.clone()),
            CaptureView::Ended(state, stopped) => return (*state, stopped.last.clone()),
        };
        // The loops' counters are read directly. NIC counters take system calls, so the owner's
        // last values are used.
        let nic = lock(&self.nic).clone();
        (state, Some(handles.capture.snapshot_with_nic(nic)))
    }

    /// Returns the live statistics of the traffic, or those at the capture's end; `None`:
    /// statistics are off.
    fn traffic(&self) -> Option<live::TrafficSnapshot> {
        let handle = match &*self.live() {
            CaptureView::Capturing(_, handles) => handles.statistics.clone()?,
            CaptureView::Ended(_, stopped) => return stopped.statistics.clone(),
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
    pub(crate) fn set_log_level(&self, level: LogLevel) -> Result<Changed, Refusal> {
        let before = self.presenter.log_level();
        let set = self.presenter.set_log_level(level);
        set.map_err(|e| failed(e.to_string()))?;
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
            (plan.names(), plan.port.number)
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
                ports: snapshot.ports,
            },
            nic: snapshot.nic,
            beats: snapshot.rings.iter().map(|it| it.beats).collect(),
            disk: self.backlog(),
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
            CaptureView::Capturing(state, handles) => {
                (*state, Some(handles.capture.current_filter()))
            }
            CaptureView::Ended(state, _) => (*state, None),
        };
        let now = {
            let mut present = lock(&self.present);
            // The filter changes without the capture's owner.
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
        self.route(command.clone(), reply);
    }
}

fn compiled(filters: &FilterCompiler, expression: &str) -> Result<Filter, Refusal> {
    plan::compile_filter(filters, "capture.filter", expression)
        .map_err(|e| Refusal::new(RefusalCode::Malformed, e.to_string()))
}

/// Replaces the capture filter of the running capture.
pub(crate) fn set_filter(handle: &CaptureHandle, filter: Filter) -> Result<Changed, Refusal> {
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
