//! WQ flags that may change while frames are received: CVLAN stripping, the only one that
//! `ibv_modify_wq` accepts.

use super::{Capture, SharedRun};
use crate::{Error, plan::Plan, rx::LoopRequests};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Handle with which any thread changes WQ flags of a running capture.
#[derive(Clone)]
pub struct WqFlagsHandle {
    /// Mailbox for requests to the receive loop of each queue.
    pub(super) orders: Vec<Arc<LoopRequests>>,
    /// Reason why CVLAN stripping cannot be turned on; `None`: it can be turned on.
    refusal: Option<String>,
    stripping: Arc<AtomicBool>,
    shared: SharedRun,
}

impl Capture {
    /// Returns a handle with which another thread changes WQ flags while the capture's owner waits
    /// for the end.
    #[must_use]
    pub fn wq_flags_handle(&self) -> WqFlagsHandle {
        self.wq_flags.clone()
    }
}

impl WqFlagsHandle {
    pub(super) fn new(plan: &Plan, shared: &SharedRun) -> Self {
        Self {
            orders: plan
                .queues
                .iter()
                .map(|it| Arc::new(LoopRequests::new(it.index)))
                .collect(),
            refusal: refusal(plan),
            stripping: Arc::new(AtomicBool::new(plan.port.strips_vlan())),
            shared: shared.clone(),
        }
    }

    /// Returns `true` if the NIC at present strips CVLAN tags from frames.
    #[must_use]
    pub fn cvlan_stripping(&self) -> bool {
        self.stripping.load(Ordering::Acquire)
    }

    /// Turns CVLAN stripping on or off on every queue while frames are received. Stripped tags are
    /// restored from the completions, or left out with `output.vlan = "lost"`. Therefore it does
    /// not matter which frame is the first with the new setting.
    ///
    /// # Errors
    /// The device cannot strip, tags could not be restored, or a queue fails. Queues changed before
    /// the failure are set back.
    pub fn set_cvlan_stripping(&self, on: bool) -> Result<(), Error> {
        if let Some(problem) = self.refusal.as_ref().filter(|_| on) {
            return Err(Error::unsupported("wq.cvlan_stripping", on, problem));
        }
        for (queue, orders) in self.orders.iter().enumerate() {
            if let Err(e) = orders.cvlan_stripping(on) {
                for orders in &self.orders[..queue] {
                    let _ = orders.cvlan_stripping(!on);
                }
                return Err(e.into());
            }
        }
        self.stripping.store(on, Ordering::Release);
        self.shared
            .note(format!("wq.cvlan_stripping was set to {on}"));
        Ok(())
    }
}

/// Returns the reason why a run of this plan cannot turn CVLAN stripping on later; `None`: it can.
fn refusal(plan: &Plan) -> Option<String> {
    if plan.has_several_ports() {
        return Some("this cannot change while several ports are captured".into());
    }
    let device = &plan.port.device;
    if !device.caps.cvlan_stripping {
        return Some(format!(
            "{} lacks IBV_RAW_PACKET_CAP_CVLAN_STRIPPING",
            device.name
        ));
    }
    if plan.port.restore_vlan || plan.output.vlan == crate::config::Vlan::Lost {
        return None;
    }
    if plan.port.ring.striding.is_some() {
        return Some(
            "tags cannot be restored in a striding ring, which has no space between frames; run with \
             capture.receive = \"frame\" or output.vlan = \"lost\""
                .into(),
        );
    }
    Some(
        "tags cannot be restored: libibverbs does not report which frames lost a tag; run with \
         output.vlan = \"lost\", or capture.access = \"auto\" on a device with direct verbs"
            .into(),
    )
}
