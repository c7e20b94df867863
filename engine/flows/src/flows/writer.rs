//! Thread that writes flow records, and rows of DNS and DHCP if names are read. The thread that
//! reads names is then between it and the meters, which make flow records from frames.

use super::{
    FlowTotals, FlowsPlan, FlowsReport, NamesReport, PortLabels,
    dhcp::DhcpRow,
    dns::DnsRow,
    meter::{Meter, MeterChannels, RECORDS},
    names::{self, MOST_WAITING, NameRows, NamesCounters, NamesThread},
    record::FlowRecord,
    row::ParquetRow,
    table_writer::{TableResult, TableWriter},
};
use crate::flow_table;
use crossbeam_channel::{Receiver, Sender, never, select};
use std::{
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::Duration,
};
use wqcap_core::{error::ResourceError, sync::thread::spawn, time::system_ns};

/// Number of flow record batches for each meter, so that meters continue while a slow disk delays
/// the writer.
const BATCHES: usize = 64;

/// Writer of the flow records of all queues.
pub struct FlowWriter {
    thread: Option<JoinHandle<WriterResults>>,
    names: Option<JoinHandle<NamesCounters>>,
    /// Channels to the threads that write flow records and read names. They are dropped before the
    /// threads are joined, so that the threads end.
    exchange: Option<MeterChannels>,
    totals: Vec<Arc<Mutex<FlowTotals>>>,
    plan: FlowsPlan,
}

/// Results of the thread that writes flow records and of the names thread.
#[derive(Default)]
struct WriterResults {
    flows: TableResult,
    dns: TableResult,
    dhcp: TableResult,
    found: NamesCounters,
}

impl FlowWriter {
    /// Starts the threads that write flow records and read names, for `meters` flow meters.
    ///
    /// # Errors
    /// The directory cannot be written to, memory is refused, or a thread cannot be started.
    pub fn start(plan: &FlowsPlan, meters: usize) -> Result<Self, ResourceError> {
        let refused = |path: &Path, source| ResourceError::File {
            what: "flows.dir",
            path: path.display().to_string(),
            source,
        };
        // A directory that cannot be written to is reported at the start instead of after an
        // interval.
        tempfile::tempfile_in(&plan.dir).map_err(|source| refused(&plan.dir, source))?;
        flow_table::check_memory(meters, plan.capacity, FlowsPlan::FLOW_BYTES)?;
        let batches = meters.max(1) * BATCHES;
        let (empty_in, empty) = crossbeam_channel::bounded(batches);
        let (full_in, full) = crossbeam_channel::bounded(batches);
        for _ in 0..batches {
            // The channel's capacity is the number of batches.
            let _ = empty_in.send(Vec::with_capacity(RECORDS));
        }
        let mut work = RecordsWorker {
            interval_ns: plan.interval_ns,
            full,
            empty: empty_in,
            messages: never(),
            flow_table: TableWriter::new(plan.dir.clone()),
            dns_table: TableWriter::new(plan.dir.join(DnsRow::TABLE)),
            dhcp_table: TableWriter::new(plan.dir.join(DhcpRow::TABLE)),
        };
        let (mut names, mut samples) = (None, None);
        if plan.names {
            for table in [DnsRow::TABLE, DhcpRow::TABLE] {
                let folder = plan.dir.join(table);
                make_folder(&folder).map_err(|source| refused(&folder, source))?;
            }
            let most = plan.names_memory(meters);
            let NamesThread {
                thread,
                samples: copies,
                named,
                messages,
            } = names::start(work.full, batches, meters, most)?;
            (work.full, work.messages) = (named, messages);
            (names, samples) = (Some(thread), Some(copies));
        }
        let thread = spawn("wqcap-flows", move || work.run())?;
        Ok(Self {
            thread: Some(thread),
            names,
            exchange: Some(MeterChannels {
                empty,
                full: full_in,
                samples,
                waits: false,
            }),
            totals: (0..meters).map(|_| Arc::default()).collect(),
            plan: plan.clone(),
        })
    }

    /// Makes the meters that are created from now on wait for the writer and for the names thread
    /// instead of missing frames and names. This is for stored captures, whose frames can be
    /// delayed.
    #[must_use]
    pub fn with_waiting_meters(mut self) -> Self {
        if let Some(exchange) = &mut self.exchange {
            exchange.waits = true;
            if let Some(samples) = &mut exchange.samples {
                samples.waits = true;
            }
        }
        self
    }

    /// Returns a function that creates flow meter number `at` for `queue`, whose frames come from
    /// `ports`. Call it once, on the thread that uses the meter, so that its memory is on that
    /// thread's NUMA node. Returns `None` if there is no meter of this number.
    #[must_use]
    pub fn meter(
        &self,
        at: usize,
        queue: usize,
        ports: PortLabels,
    ) -> Option<impl FnOnce() -> Meter + Send + use<>> {
        let totals = Arc::clone(self.totals.get(at)?);
        let queue = u16::try_from(queue).ok()?;
        let (plan, exchange) = (self.plan.clone(), self.exchange.clone()?);
        Some(move || Meter::new(queue, ports, &plan, exchange, totals))
    }

    /// Returns the sum of the last published totals of all flow meters.
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

    /// Waits until all flow records are written. All flow meters must be dropped before.
    #[must_use]
    pub fn finish(mut self) -> FlowsReport {
        let WriterResults {
            flows,
            dns,
            dhcp,
            found,
        } = self.join();
        let totals = self.totals();
        let names = self.plan.names.then_some(NamesReport {
            flows: found.flows,
            dns: found.dns,
            dhcp: found.dhcp,
            unreadable: found.unreadable,
            missed: found.missed + totals.missed_payloads,
            unwritten: dns.unwritten + dhcp.unwritten,
            dns_files: dns.files,
            dhcp_files: dhcp.files,
        });
        FlowsReport {
            totals,
            unwritten: flows.unwritten,
            files: flows.files,
            names,
            failures: [flows.failures, dns.failures, dhcp.failures].concat(),
        }
    }

    fn join(&mut self) -> WriterResults {
        self.exchange = None;
        let joined = self.thread.take().map(JoinHandle::join);
        let mut finished = joined
            .and_then(Result::ok)
            .unwrap_or_else(|| WriterResults {
                flows: TableResult {
                    failures: vec!["the thread of flow records panicked".into()],
                    ..TableResult::default()
                },
                ..WriterResults::default()
            });
        // The names thread ends before the writer.
        match self.names.take().map(JoinHandle::join) {
            Some(Ok(found)) => finished.found = found,
            Some(Err(_)) => {
                let failure = "the thread of names panicked".into();
                finished.dns.failures.push(failure);
            }
            None => {}
        }
        finished
    }
}

impl Drop for FlowWriter {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.join();
        }
    }
}

/// Creates a directory if it does not exist, and syncs its parent so that it survives a crash.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => {
            wqcap_files::folder::open::open_folder(folder.parent().unwrap_or(Path::new(".")))?
                .sync_all()?
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e),
    }
    tempfile::tempfile_in(folder).map(drop)
}

/// State of the thread that writes flow records.
struct RecordsWorker {
    interval_ns: u64,
    full: Receiver<Vec<FlowRecord>>,
    empty: Sender<Vec<FlowRecord>>,
    messages: Receiver<NameRows>,
    flow_table: TableWriter<FlowRecord>,
    dns_table: TableWriter<DnsRow>,
    dhcp_table: TableWriter<DhcpRow>,
}

impl RecordsWorker {
    fn run(mut self) -> WriterResults {
        let interval = self.interval_ns.max(1);
        let mut next = (system_ns() / interval + 1).saturating_mul(interval);
        let full = self.full.clone();
        let mut messages = self.messages.clone();
        loop {
            let now = system_ns();
            if now >= next {
                self.flow_table.end_interval();
                self.dns_table.end_interval();
                self.dhcp_table.end_interval();
                next = (now / interval + 1).saturating_mul(interval);
            }
            select! {
                recv(full) -> batch => match batch {
                    Ok(batch) => self.take(batch),
                    Err(_) => break,
                },
                recv(messages) -> rows => match rows {
                    Ok(rows) => self.take_messages(rows),
                    // Records may still arrive after the last message.
                    Err(_) => messages = never(),
                },
                default(Duration::from_nanos(next.saturating_sub(now))) => {}
            }
        }
        while let Ok(rows) = self.messages.try_recv() {
            self.take_messages(rows);
        }
        WriterResults {
            flows: self.flow_table.finish(),
            dns: self.dns_table.finish(),
            dhcp: self.dhcp_table.finish(),
            found: NamesCounters::default(),
        }
    }

    fn take(&mut self, mut batch: Vec<FlowRecord>) {
        self.flow_table.take(&mut batch, RECORDS);
        // The channel has room for every existing batch.
        let _ = self.empty.try_send(batch);
    }

    fn take_messages(&mut self, mut rows: NameRows) {
        self.dns_table.take(&mut rows.dns, MOST_WAITING);
        self.dhcp_table.take(&mut rows.dhcp, MOST_WAITING);
    }
}
