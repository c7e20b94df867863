//! Shipping from start to end: once, or for as long as a capture goes on.

use super::{
    Shipper, Status, Trouble,
    lease::{Holder, Lease, Taken},
};
use crate::{
    ShipPlan,
    journal::{Journal, JournalError},
    store::{self, StoreError},
};
use std::{
    io, mem,
    pin::pin,
    sync::{Arc, PoisonError},
    time::Duration,
};
use tokio::{runtime::Builder, time::sleep};

/// How often folders are looked at, and the least wait after a failure.
const EVERY: Duration = Duration::from_secs(1);
/// The longest wait after a failure, and the wait when the store has refused.
const LONGEST: Duration = Duration::from_secs(60);
/// How often others see how it goes, and may end it.
const TICK: Duration = Duration::from_millis(200);

/// Threads that sign, encrypt and send.
const WORKERS: usize = 2;

/// When to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When all that is there has been shipped, or the store fails.
    Once,
    /// When told to.
    Follow,
}

/// Why nothing is shipped, or not all.
#[derive(Debug, thiserror::Error)]
pub enum ShipError {
    /// It cannot begin.
    #[error("{0}")]
    Start(String),
    /// It has begun, and cannot go on.
    #[error("{0}")]
    Failed(String),
}

impl From<JournalError> for ShipError {
    fn from(e: JournalError) -> Self {
        Self::Start(e.to_string())
    }
}

impl From<StoreError> for ShipError {
    fn from(e: StoreError) -> Self {
        Self::Start(e.to_string())
    }
}

impl From<Trouble> for ShipError {
    fn from(e: Trouble) -> Self {
        Self::Failed(e.to_string())
    }
}

impl From<Taken> for ShipError {
    fn from(e: Taken) -> Self {
        Self::Failed(e.to_string())
    }
}

/// Ships. `tick` sees several times a second how it goes, and says whether to go on; what has been sent by then is not sent
/// again the next time.
///
/// # Errors
/// It cannot begin; the journal cannot be written; with [`Mode::Once`], the store fails, a folder cannot be read, or another
/// ships under the sensor's name. What could not be done with single files is in [`Status::problems`].
pub fn run(
    plan: &ShipPlan,
    mode: Mode,
    mut tick: impl FnMut(&Status) -> bool,
) -> Result<Status, ShipError> {
    let start = |e: io::Error| ShipError::Start(format!("cannot start threads: {e}"));
    // The journal is written by this thread, which waits for the disk; requests go on meanwhile in others.
    let runtime = Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .enable_all()
        .build();
    let runtime = runtime.map_err(start)?;
    let done = runtime.block_on(async {
        let store = store::open(&plan.store)?;
        let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store)?;
        let follows = mode == Mode::Follow;
        let instance = journal.instance().to_owned();
        let mut shipper = Shipper::new(plan.clone(), Arc::clone(&store), journal, follows);
        let status = Arc::clone(&shipper.status);
        let holder = Holder {
            sensor: &plan.sensor,
            host: &plan.host,
            instance: &instance,
        };
        let mut lease = Lease::new(&holder, Arc::clone(&store), Arc::clone(&status))?;
        let seen = || {
            let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
            status.retries = store.retries();
            status.count_lag();
            status.clone()
        };
        // To drop it is to end it: whatever it waits for, the journal says how far it is.
        let mut work = pin!(async {
            match mode {
                Mode::Once => shipper.once(&mut lease).await,
                Mode::Follow => shipper.follow_alone(&mut lease).await,
            }
        });
        loop {
            tokio::select! {
                done = &mut work => {
                    let status = seen();
                    let _ = tick(&status);
                    return done.map(|()| status);
                }
                () = sleep(TICK) => {
                    let status = seen();
                    if !tick(&status) {
                        return Ok(status);
                    }
                }
            }
        }
    });
    // A file may still be read that nobody waits for.
    runtime.shutdown_background();
    done
}

impl Shipper {
    /// One pass, between two statuses.
    async fn once(&mut self, lease: &mut Lease) -> Result<(), ShipError> {
        self.tell(|_| {});
        lease.claim().await?;
        let done = tokio::select! {
            done = self.pass() => done,
            taken = lease.keep() => return Err(taken.into()),
        };
        let done = match done {
            Ok(()) => Ok(()),
            // It does not take a status either.
            Err(Trouble::Store(e)) => return Err(Trouble::Store(e).into()),
            Err(e) => {
                let problem = e.to_string();
                self.tell(|status| status.problems.push(problem));
                Err(e)
            }
        };
        let told = lease.claim().await;
        done?;
        Ok(told?)
    }

    /// Passes as long as nobody else ships under the sensor's name. Whoever does may be gone some day.
    async fn follow_alone(&mut self, lease: &mut Lease) -> Result<(), ShipError> {
        let mut is_told = false;
        self.tell(|_| {});
        loop {
            let taken = match lease.claim().await {
                Ok(()) => {
                    is_told = false;
                    tokio::select! {
                        done = self.follow() => return done,
                        taken = lease.keep() => taken,
                    }
                }
                Err(taken) => taken,
            };
            let problem = taken.to_string();
            if !mem::replace(&mut is_told, true) {
                tracing::error!("{problem}; nothing is sent until then");
            }
            self.tell(|status| {
                status.now = None;
                status.failures += 1;
                status.problems.push(problem);
            });
            sleep(LONGEST).await;
        }
    }

    /// Passes, until the journal cannot be written.
    async fn follow(&mut self) -> Result<(), ShipError> {
        // After the next failure.
        let mut wait = EVERY;
        let mut last = None;
        loop {
            let pause = match self.pass().await {
                Ok(()) => {
                    if last.take().is_some() {
                        tracing::warn!("ship.store: goes on");
                    }
                    wait = EVERY;
                    EVERY
                }
                Err(Trouble::Journal(e)) => return Err(ShipError::Failed(e.to_string())),
                Err(e) => {
                    let pause = match &e {
                        Trouble::Store(StoreError::Refused(_)) => LONGEST,
                        _ => wait,
                    };
                    wait = (pause * 2).min(LONGEST);
                    let problem = e.to_string();
                    self.tell(|status| {
                        status.failures += 1;
                        status.problems.push(problem.clone());
                    });
                    // Once, however long it lasts.
                    if last.is_none() {
                        tracing::error!("{problem}; tried again until it goes on");
                    }
                    last = Some(problem);
                    pause
                }
            };
            sleep(pause).await;
        }
    }
}
