//! The thread that writes records: one file for each interval of the wall clock in which there were any.

use super::{
    FlowTotals, FlowsPlan, FlowsReport,
    file::{File, MOST_ROWS},
    flow::FlowRecord,
    meter::{Meter, RECORDS, RecordChannels},
};
use crate::{Error, device::clock::system_ns, thread::spawn};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};

/// Batches of records for each meter: what a slow disk may hold up.
const BATCHES: usize = 64;

/// Takes records from all queues and writes them.
pub struct FlowWriter {
    thread: Option<JoinHandle<Finished>>,
    /// Dropped before the thread is joined, so that it sees the end.
    exchange: Option<RecordChannels>,
    totals: Vec<Arc<Mutex<FlowTotals>>>,
    plan: FlowsPlan,
}

/// What the thread leaves.
#[derive(Default)]
struct Finished {
    files: Vec<PathBuf>,
    failures: Vec<String>,
    unwritten: u64,
}

impl FlowWriter {
    /// Starts the thread, for so many meters.
    ///
    /// # Errors
    /// The folder cannot be written to, or there is no thread to be had.
    pub fn start(plan: &FlowsPlan, meters: usize) -> Result<Self, Error> {
        // What cannot be written is told at the start, not after an interval.
        tempfile::tempfile_in(&plan.dir).map_err(|source| Error::File {
            what: "flows.dir",
            path: plan.dir.display().to_string(),
            source,
        })?;
        let batches = meters.max(1) * BATCHES;
        let (empty_in, empty) = crossbeam_channel::bounded(batches);
        let (full_in, full) = crossbeam_channel::bounded(batches);
        for _ in 0..batches {
            // Bounded by the very number of batches: there is room.
            let _ = empty_in.send(Vec::with_capacity(RECORDS));
        }
        let work = Work {
            plan: plan.clone(),
            full,
            empty: empty_in,
            rows: Vec::new(),
            file: None,
            finished: Finished::default(),
        };
        let thread = spawn("wqcap-flows", move || work.run())?;
        Ok(Self {
            thread: Some(thread),
            exchange: Some(RecordChannels {
                empty,
                full: full_in,
            }),
            totals: (0..meters).map(|_| Arc::default()).collect(),
            plan: plan.clone(),
        })
    }

    /// The counting half of a queue, or of one of its parsers, made by a function that is to run on that thread, so that
    /// its memory is near; each once. `None`: there are not so many.
    #[must_use]
    pub fn meter(&self, at: usize, queue: usize) -> Option<impl FnOnce() -> Meter + Send + use<>> {
        let totals = Arc::clone(self.totals.get(at)?);
        let queue = u16::try_from(queue).ok()?;
        let (plan, exchange) = (self.plan.clone(), self.exchange.clone()?);
        Some(move || Meter::new(queue, &plan, exchange, totals))
    }

    /// Sums over all meters, as they were last published.
    #[must_use]
    pub fn totals(&self) -> FlowTotals {
        let mut sum = FlowTotals::default();
        for totals in &self.totals {
            if let Ok(totals) = totals.lock() {
                sum += *totals;
            }
        }
        sum
    }

    /// Waits until everything is written. All meters must be gone by then.
    #[must_use]
    pub fn finish(mut self) -> FlowsReport {
        let finished = self.join();
        FlowsReport {
            totals: self.totals(),
            unwritten: finished.unwritten,
            files: finished.files,
            failures: finished.failures,
        }
    }

    fn join(&mut self) -> Finished {
        self.exchange = None;
        let joined = self.thread.take().map(JoinHandle::join);
        joined.and_then(Result::ok).unwrap_or_else(|| Finished {
            failures: vec!["the thread of flow records ended in a panic".into()],
            ..Finished::default()
        })
    }
}

impl Drop for FlowWriter {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.join();
        }
    }
}

/// The thread's own.
struct Work {
    plan: FlowsPlan,
    full: Receiver<Vec<FlowRecord>>,
    empty: Sender<Vec<FlowRecord>>,
    /// Rows of the row group to come.
    rows: Vec<FlowRecord>,
    file: Option<File>,
    finished: Finished,
}

impl Work {
    fn run(mut self) -> Finished {
        let interval = self.plan.interval_ns.max(1);
        let mut next = (system_ns() / interval + 1).saturating_mul(interval);
        loop {
            let now = system_ns();
            if now >= next {
                self.end_interval();
                next = (now / interval + 1).saturating_mul(interval);
            }
            match self
                .full
                .recv_timeout(Duration::from_nanos(next.saturating_sub(now)))
            {
                Ok(batch) => self.take(batch),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.end_interval();
        self.finished
    }

    fn take(&mut self, mut batch: Vec<FlowRecord>) {
        self.rows.append(&mut batch);
        // A full channel cannot be: it has room for every batch there is.
        let _ = self.empty.try_send(batch);
        if self.rows.len() + RECORDS > MOST_ROWS {
            self.write_rows();
        }
    }

    /// Writes what there is as a row group.
    fn write_rows(&mut self) {
        if self.rows.is_empty() {
            return;
        }
        let written = match &mut self.file {
            Some(file) => file.write(&mut self.rows),
            none => match File::create(&self.plan.dir, system_ns()) {
                Ok(file) => none.insert(file).write(&mut self.rows),
                Err(failure) => {
                    self.finished.unwritten += self.rows.len() as u64;
                    Err(failure)
                }
            },
        };
        self.rows.clear();
        if let Err(failure) = written {
            self.fail(failure);
        }
    }

    fn end_interval(&mut self) {
        self.write_rows();
        match self.file.as_mut().map(File::finish) {
            Some(Ok(path)) => {
                self.finished.files.push(path);
                self.file = None;
            }
            Some(Err(failure)) => self.fail(failure),
            None => {}
        }
    }

    /// Gives up the open file, if there is one; the next records begin another.
    fn fail(&mut self, failure: String) {
        if let Some(file) = self.file.take() {
            self.finished.unwritten += file.records();
            file.discard();
        }
        tracing::error!("{failure}");
        // The first says why; a full disk would say it every interval.
        if self.finished.failures.is_empty() {
            self.finished.failures.push(failure);
        }
    }
}
