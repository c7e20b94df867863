//! WQ flags that may change while frames flow: CVLAN stripping, the only one that `ibv_modify_wq` takes.

use super::{Capture, Shared};
use crate::{Error, plan::Plan, rx::Orders};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Changes WQ flags of a running capture, from any thread.
#[derive(Clone)]
pub struct WqFlagsHandle {
    /// By queue.
    pub(super) orders: Vec<Arc<Orders>>,
    /// Why stripping cannot be turned on, if it cannot.
    refusal: Option<String>,
    stripping: Arc<AtomicBool>,
    shared: Shared,
}

impl Capture {
    /// For those who change WQ flags while another thread waits for the capture's end.
    #[must_use]
    pub fn wq_flags_handle(&self) -> WqFlagsHandle {
        self.wq_flags.clone()
    }
}

impl WqFlagsHandle {
    pub(super) fn new(plan: &Plan, shared: &Shared) -> Self {
        Self {
            orders: plan
                .queues
                .iter()
                .map(|it| Arc::new(Orders::new(it.index)))
                .collect(),
            refusal: refusal(plan),
            stripping: Arc::new(AtomicBool::new(plan.strips_vlan())),
            shared: shared.clone(),
        }
    }

    /// Whether the NIC takes CVLAN tags off.
    #[must_use]
    pub fn cvlan_stripping(&self) -> bool {
        self.stripping.load(Ordering::Acquire)
    }

    /// Turns CVLAN stripping on or off on every queue, frames flowing. Tags that the NIC takes off are put back, from
    /// what each completion says, or are lost where `output.vlan` says so; so it does not matter which frame is the
    /// first under the new setting.
    ///
    /// # Errors
    /// The device cannot strip, tags could not be put back, or a queue's own error: those before it are set back.
    pub fn set_cvlan_stripping(&self, on: bool) -> Result<(), Error> {
        if let Some(problem) = self.refusal.as_ref().filter(|_| on) {
            return Err(Error::config("wq.cvlan_stripping", on, problem));
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

/// Why a run of this plan cannot turn stripping on later.
fn refusal(plan: &Plan) -> Option<String> {
    let device = &plan.device;
    if !device.caps.cvlan_stripping {
        return Some(format!(
            "{} lacks IBV_RAW_PACKET_CAP_CVLAN_STRIPPING",
            device.name
        ));
    }
    if plan.restore_vlan || plan.output.vlan == crate::config::Vlan::Lost {
        return None;
    }
    if plan.ring.striding.is_some() {
        return Some(
            "there is no room between frames to put tags back; run with capture.receive = \"frame\" or output.vlan = \
             \"lost\""
                .into(),
        );
    }
    Some(
        "the verbs do not tell which frames lost a tag, so it could not be put back; run with output.vlan = \"lost\", \
         or capture.access = \"auto\" on a device with direct verbs"
            .into(),
    )
}
