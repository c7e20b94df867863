//! Reload of the configuration while the process runs.

use super::{
    Host, Supervisor, backend::set_filter, commands, failed, present::differences, replaced, same,
};
use serde_json::json;
use wqcap_control::{
    protocol::{Changed, Refusal, RefusalCode},
    server::ChangeReply,
};
use wqcap_engine::{
    capture::Capture, config::Config, filter::Filter, plan::Plan, verbs::CVLAN_STRIPPING,
};

impl Supervisor {
    /// Reads the configuration again. Once its capture filter is compiled,
    /// [`Supervisor::apply_reload`] applies it.
    pub(super) fn reload(&mut self, host: &mut impl Host, reply: ChangeReply) {
        let read = host.load_config().map_err(|e| failed(e.to_string()));
        match read.and_then(|new| self.refuse_unchangeable(&new).map(|()| new)) {
            Ok(new) => self.backend.compile_for_reload(new, reply),
            Err(refusal) => reply.send(Err(refusal)),
        }
    }

    /// Applies a reloaded configuration. If it differs only in keys that a running capture can
    /// change, they are changed; if any other key differs, nothing is changed.
    pub(super) fn apply_reload(
        &mut self,
        new: Config,
        filter: Filter,
        capture: Option<(&mut Capture, &Plan)>,
    ) -> Result<Changed, Refusal> {
        // Another configuration may have been applied since this one was read.
        self.refuse_unchangeable(&new)?;
        let Some((capture, plan)) = capture else {
            return if json!(new) == json!(self.config) {
                Ok(same("nothing differs"))
            } else {
                Err(self.backend.refusal())
            };
        };
        self.apply(new, filter, capture, plan)
    }

    /// Applies the differences of a reloaded configuration to the running capture, and to the plan
    /// of later captures.
    fn apply(
        &mut self,
        new: Config,
        filter: Filter,
        capture: &mut Capture,
        plan: &Plan,
    ) -> Result<Changed, Refusal> {
        let mut done = vec![commands::wq_flags(
            capture,
            plan,
            Some(new.wq.cvlan_stripping),
            None,
        )?];
        if new.rss.weights != self.config.rss.weights {
            // An empty list means equal shares here, not shares by load.
            let queues = plan.queues.len();
            let weights = match new.rss.weights.as_slice() {
                [] => vec![1; queues],
                weights => weights.to_vec(),
            };
            done.push(commands::respread(capture, &weights)?);
            self.backend.set_weights(&new.rss.weights);
            capture.table().clone_into(&mut self.plan.port.table);
        }
        done.push(set_filter(&capture.share(), filter.clone())?);
        self.plan.reduction.filter = filter;
        self.plan.port.wq_flags &= !CVLAN_STRIPPING;
        if new.wq.cvlan_stripping {
            self.plan.port.wq_flags |= CVLAN_STRIPPING;
        }
        self.config = new;
        done.retain(|it| it.changed);
        if done.is_empty() {
            return Ok(same("nothing differs"));
        }
        let (was, now): (Vec<_>, Vec<_>) = done
            .into_iter()
            .map(|it| (it.was.unwrap_or_default(), it.now))
            .unzip();
        Ok(replaced(was.join("; "), &now.join("; ")))
    }

    /// Refuses the reload of a configuration if keys differ that a running capture cannot change,
    /// and names them.
    fn refuse_unchangeable(&self, new: &Config) -> Result<(), Refusal> {
        let mut rest = new.clone();
        rest.capture.filter.clone_from(&self.config.capture.filter);
        rest.wq.cvlan_stripping = self.config.wq.cvlan_stripping;
        rest.rss.weights.clone_from(&self.config.rss.weights);
        let keys: Vec<_> = differences(&json!(self.config), &json!(rest))
            .into_keys()
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::State,
            format!(
                "the reload is refused, and nothing is applied: {} {} a restart of the capture",
                keys.join(", "),
                if keys.len() == 1 { "needs" } else { "need" }
            ),
        ))
    }
}
