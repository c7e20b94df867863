//! Main loop of shipping: a single pass, or passes while a capture is running.

use super::{
    LeaseRefusal, PassError, ShipError, ShipStatus, Shipper,
    lease::{KeptStatus, Lease, LeaseHolder},
};
use crate::{
    ShipPlan,
    journal::Journal,
    store::{self, StoreError},
    threads::RequestRuntime,
};
use std::{
    mem,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{sleep, timeout};

/// Interval between passes of shipping, and the shortest wait after a failed pass.
const EVERY: Duration = Duration::from_secs(1);
/// Longest wait after a failed pass of shipping, and the wait after a refusal by the store.
const LONGEST: Duration = Duration::from_secs(60);
/// Number of passes in a row in which the store fails and accepts no object, after which
/// [`Mode::Once`] ends.
const MOST_EMPTY: u32 = 2;
/// Maximum time for which the last status of a process that is stopped is written to the store.
const LAST_STATUS: Duration = Duration::from_secs(3);
/// Interval at which the status of shipping is passed to the caller, which may end shipping.
const TICK: Duration = Duration::from_millis(200);

/// Condition under which `wqcap ship` stops shipping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shipping ends when all present files have been shipped, or the store fails.
    Once,
    /// Shipping follows the capture, and ends when the caller stops it.
    Follow,
}

/// Checks that the object store of a plan can be opened. No request is sent.
///
/// # Errors
/// The settings or the credentials of the store cannot be used.
pub fn check_store(plan: &ShipPlan) -> Result<(), ShipError> {
    store::open(&plan.store)?;
    Ok(())
}

/// Ships the files of a plan to its store. `tick` is called several times a second with the status,
/// and returns `false` to stop. Upload parts that the store already has are not sent again.
///
/// # Errors
/// Shipping cannot start; the journal cannot be written; with [`Mode::Once`], the store fails, a
/// folder cannot be read, or another instance ships under the sensor's name. Errors of single files
/// are in [`ShipStatus::problems`].
pub fn run(
    plan: &ShipPlan,
    mode: Mode,
    mut tick: impl FnMut(&ShipStatus) -> bool,
) -> Result<ShipStatus, ShipError> {
    // This thread writes the journal and waits for the disk; requests continue on another thread.
    let runtime = RequestRuntime::start().map_err(ShipError::Threads)?;
    runtime.handle().block_on(async {
        let store = store::open(&plan.store)?;
        let journal = Journal::open(&plan.journal, &plan.sensor, &plan.store)?;
        let follows = mode == Mode::Follow;
        let (instance, runs) = (journal.instance().to_owned(), journal.runs().to_vec());
        let status = Arc::<Mutex<ShipStatus>>::default();
        let holder = LeaseHolder {
            sensor: &plan.sensor,
            host: &plan.host,
            instance: &instance,
            runs: &runs,
            kept: match store::folder_of(&plan.store) {
                None => KeptStatus::Unsure,
                Some(_) if journal.has_status() => KeptStatus::InDirectory,
                Some(_) => KeptStatus::NoneYet,
            },
        };
        let mut lease = Lease::new(&holder, Arc::clone(&store), Arc::clone(&status))?;
        let mut shipper = Shipper::new(plan.clone(), Arc::clone(&store), journal, follows);
        shipper.status = Arc::clone(&status);
        let seen = || {
            let mut status = status.lock().unwrap_or_else(PoisonError::into_inner);
            status.retries = store.retries();
            status.count_lag();
            status.clone()
        };
        {
            // Dropping the future ends shipping at any point, because the journal has the state of
            // each file.
            let mut work = pin!(async {
                match mode {
                    Mode::Once => shipper.once(&mut lease).await,
                    Mode::Follow => shipper.follow_with_lease(&mut lease).await,
                }
            });
            loop {
                tokio::select! {
                    done = &mut work => {
                        let status = seen();
                        let _ = tick(&status);
                        return done.map(|()| status);
                    }
                    () = sleep(TICK) => if !tick(&seen()) {
                        break;
                    }
                }
            }
        }
        if lease.is_held() {
            shipper.update_status(|status| status.now = None);
            // A store that does not answer keeps the former status.
            let _ = timeout(LAST_STATUS, lease.claim()).await;
        }
        Ok(seen())
    })
}

impl Shipper {
    /// Runs one pass that sends finished files to the store, and publishes the sensor's status
    /// before and after it.
    async fn once(&mut self, lease: &mut Lease) -> Result<(), ShipError> {
        self.update_status(|_| {});
        self.claim(lease).await??;
        let done = tokio::select! {
            done = self.passes_over_failures() => done,
            taken = lease.keep() => return Err(taken.into()),
        };
        let done = match done {
            Ok(()) => Ok(()),
            // The store does not accept a status either.
            Err(PassError::Store(e)) => return Err(PassError::Store(e).into()),
            Err(e) => {
                let problem = e.to_string();
                self.update_status(|status| status.problems.push(problem));
                Err(e)
            }
        };
        let claimed = self.claim(lease).await;
        done?;
        Ok(claimed??)
    }

    /// Writes the sensor status, and records in the journal under which instance.
    async fn claim(&mut self, lease: &mut Lease) -> Result<Result<(), LeaseRefusal>, PassError> {
        let claimed = lease.claim().await;
        self.journal
            .set_instance(lease.instance(), lease.is_held())?;
        Ok(claimed)
    }

    /// Runs passes until one ends without a failure of the store, or the next one would send
    /// nothing. After a failure at one file, the next pass begins with the other files.
    pub(super) async fn passes_over_failures(&mut self) -> Result<(), PassError> {
        let mut empty_passes = 0;
        loop {
            let failing = self.failing.len();
            let objects = self.sent_objects();
            let e = match self.pass().await {
                Err(PassError::Store(StoreError::Failed(e))) => e,
                done => return done,
            };
            match self.sent_objects() > objects {
                true => empty_passes = 0,
                false => empty_passes += 1,
            }
            if self.failing.len() == failing || empty_passes == MOST_EMPTY {
                return Err(StoreError::Failed(e).into());
            }
            tracing::warn!("{e}; the other files are sent before `wqcap ship` tries this again");
        }
    }

    /// Returns the number of objects that the store has accepted so far.
    fn sent_objects(&self) -> u64 {
        let status = self.status.lock();
        status.unwrap_or_else(PoisonError::into_inner).objects
    }

    /// Runs passes of shipping while no other instance ships under the sensor's name. While one
    /// does, or the disk of the journal is full, waits and tries again.
    async fn follow_with_lease(&mut self, lease: &mut Lease) -> Result<(), ShipError> {
        let mut is_reported = false;
        self.update_status(|_| {});
        loop {
            let problem = match self.claim(lease).await {
                Ok(Ok(())) => {
                    is_reported = false;
                    tokio::select! {
                        done = self.follow() => return done,
                        refusal = lease.keep() => refusal.to_string(),
                    }
                }
                Ok(Err(refusal)) => refusal.to_string(),
                Err(PassError::Journal(e)) if e.is_full() => e.to_string(),
                Err(e) => return Err(e.into()),
            };
            if !mem::replace(&mut is_reported, true) {
                tracing::error!("{problem}; `wqcap ship` tries again every minute");
            }
            self.update_status(|status| {
                status.now = None;
                status.failures += 1;
                status.problems.push(problem);
            });
            sleep(LONGEST).await;
        }
    }

    /// Runs passes of shipping in a loop until the delivery journal cannot be written. It waits while
    /// the disk of the journal is full.
    async fn follow(&mut self) -> Result<(), ShipError> {
        // Wait after the next failure.
        let mut wait = EVERY;
        let mut last = None;
        loop {
            let pause = match self.pass().await {
                Ok(()) => {
                    if last.take().is_some() {
                        tracing::warn!(
                            "the store, the directories and the journal work again, and shipping continues"
                        );
                    }
                    wait = EVERY;
                    EVERY
                }
                Err(PassError::Journal(e)) if !e.is_full() => {
                    return Err(PassError::Journal(e).into());
                }
                Err(e) => {
                    let pause = match &e {
                        PassError::Store(StoreError::Refused(_)) => LONGEST,
                        _ => wait,
                    };
                    wait = (pause * 2).min(LONGEST);
                    let problem = e.to_string();
                    self.update_status(|status| {
                        status.failures += 1;
                        status.problems.push(problem.clone());
                    });
                    // Logged once per series of failures.
                    if last.is_none() {
                        tracing::error!("{problem}; `wqcap ship` retries until this succeeds");
                    }
                    last = Some(problem);
                    pause
                }
            };
            sleep(pause).await;
        }
    }
}
