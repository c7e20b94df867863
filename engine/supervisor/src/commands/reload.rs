//! Reload of the configuration while the process runs.

use super::key_reload::{KeyReload, ReloadChanges, ReloadTable};
use crate::{
    Supervisor,
    answers::{failed, replaced},
    backend::set_filter,
    commands,
    host::Host,
};
use wqcap_control::{
    protocol::{Changed, Refusal},
    server::ChangeReply,
};
use wqcap_engine::{
    capture::Capture,
    config::Config,
    filter::Filter,
    plan::{self, Plan},
    verbs::CVLAN_STRIPPING,
};

/// Table with the effect of a reload on each configuration key of a running capture.
const CAPTURE_KEYS: ReloadTable = ReloadTable {
    process: "the capture",
    keys: KEYS,
};

const KEYS: &[(&str, KeyReload)] = {
    use KeyReload::{Applies, NeedsRestart, Unused};
    &[
        ("capture.filter", Applies),
        ("rss.weights", Applies),
        ("wq.cvlan_stripping", Applies),
        ("output.keep*", Applies),
        ("output.rotate_*", Applies),
        (
            "output.hook",
            NeedsRestart(
                "the process that runs hooks starts before the sandbox, for one program; a new content of that program's file applies without a reload",
            ),
        ),
        (
            "output.*",
            NeedsRestart("the threads and buffers of the writer are made for it"),
        ),
        (
            "metrics*",
            NeedsRestart("the sandbox permits only the port of the start"),
        ),
        (
            "control*",
            NeedsRestart("the control service starts before the sandbox"),
        ),
        (
            "process.*",
            NeedsRestart("the process has entered its sandbox"),
        ),
        (
            "device.*",
            NeedsRestart("the device is opened at the start"),
        ),
        ("port", NeedsRestart("the ports are opened at the start")),
        (
            "rule",
            NeedsRestart("`wqcap ctl rule` changes the rules of a running capture"),
        ),
        (
            "cutoff",
            NeedsRestart("the flow tables of the queues are created with it"),
        ),
        (
            "capture.*",
            NeedsRestart("the queues and their loops are created with it"),
        ),
        ("wq.*", NeedsRestart("a WQ keeps the flags of its creation")),
        ("rss.*", NeedsRestart("the RSS QPs are created with it")),
        (
            "pipeline.*",
            NeedsRestart("the threads that process frames are started with it"),
        ),
        (
            "flows*",
            NeedsRestart("the tables of flow records are created with it"),
        ),
        (
            "ship.journal",
            NeedsRestart("the sandbox permits only the journal of the start"),
        ),
        ("ship.*", Unused),
        (
            "ship",
            NeedsRestart("the sandbox permits only the journal of the start"),
        ),
        ("serve*", Unused),
        ("anonymize*", Unused),
    ]
};

impl Supervisor {
    /// Reads the configuration file again. Once its capture filter is compiled,
    /// [`Supervisor::apply_reload`] applies the configuration.
    pub(crate) fn reload(&mut self, host: &mut impl Host, reply: ChangeReply) {
        let read = host.load_config().map_err(|e| failed(e.to_string()));
        let changeable = |new: Config| -> Result<Config, Refusal> {
            CAPTURE_KEYS.compare(&self.config, &new)?;
            Ok(new)
        };
        match read.and_then(changeable) {
            Ok(new) => self.backend.compile_for_reload(new, reply),
            Err(refusal) => reply.send(Err(refusal)),
        }
    }

    /// Applies a reloaded configuration to the capture. If any key differs that a running capture
    /// cannot change, nothing is changed.
    pub(crate) fn apply_reload(
        &mut self,
        new: Config,
        filter: Filter,
        capture: Option<(&mut Capture, &Plan)>,
    ) -> Result<Changed, Refusal> {
        // Another configuration may have been applied since this one was read.
        let changes = CAPTURE_KEYS.compare(&self.config, &new)?;
        let Some((capture, plan)) = capture else {
            if !changes.applied.is_empty() {
                return Err(self.backend.refusal());
            }
            self.config = new;
            return Ok(changes.outcome(""));
        };
        self.apply(new, filter, changes, capture, plan)
    }

    /// Applies the differences of a reloaded configuration to the running capture, and to the plan
    /// of later captures.
    fn apply(
        &mut self,
        new: Config,
        filter: Filter,
        changes: ReloadChanges,
        capture: &mut Capture,
        plan: &Plan,
    ) -> Result<Changed, Refusal> {
        let unchanged = ReloadChanges {
            unused: changes.unused.clone(),
            ..ReloadChanges::default()
        };
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
        done.extend(self.change_limits(&new, capture, changes));
        self.plan.port.wq_flags &= !CVLAN_STRIPPING;
        if new.wq.cvlan_stripping {
            self.plan.port.wq_flags |= CVLAN_STRIPPING;
        }
        self.config = new;
        done.retain(|it| it.changed);
        if done.is_empty() {
            return Ok(unchanged.outcome(""));
        }
        let (was, now): (Vec<_>, Vec<_>) = done
            .into_iter()
            .map(|it| (it.was.unwrap_or_default(), it.now))
            .unzip();
        Ok(replaced(was.join("; "), &now.join("; ")))
    }

    /// Changes the limits of the capture's files to those of a reloaded configuration. Returns the
    /// change; `None`: the limits are equal.
    fn change_limits(
        &mut self,
        new: &Config,
        capture: &Capture,
        mut changes: ReloadChanges,
    ) -> Option<Changed> {
        changes.retain_below("output.");
        if changes.applied.is_empty() {
            return None;
        }
        let limits = plan::output_limits(&new.output);
        capture.set_output_limits(limits);
        self.plan.output.set_limits(limits);
        self.backend.set_output_limits(&new.output);
        let outcome = changes.outcome("");
        let was = outcome.was.as_deref().unwrap_or_default();
        capture.note(format!(
            "limits of the capture files were changed from {was} to {}",
            outcome.now
        ));
        Some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wqcap_engine::config::{
        AnonymizeConfig, ControlConfig, CutoffConfig, FlowsConfig, MetricsConfig, PortConfig,
        RuleConfig, ServeConfig, ShipConfig,
    };

    /// Returns all keys of a configuration, as [`differences`] names them.
    fn all_keys() -> Vec<String> {
        let config = json!(Config {
            port: vec![PortConfig::default()],
            rule: vec![RuleConfig::default()],
            cutoff: vec![CutoffConfig::default()],
            flows: Some(FlowsConfig::default()),
            control: Some(ControlConfig::default()),
            metrics: Some(MetricsConfig::default()),
            ship: Some(ShipConfig::default()),
            serve: Some(ServeConfig::default()),
            anonymize: Some(AnonymizeConfig::default()),
            ..Config::default()
        });
        let sections = config.as_object().into_iter().flatten();
        let keys = sections.flat_map(|(section, value)| {
            let keys = value.as_object().into_iter().flatten();
            let keys = keys.map(move |(key, _)| format!("{section}.{key}"));
            // A list, or a section that may be absent, differs as a whole.
            let whole = [
                "capture", "device", "output", "pipeline", "process", "rss", "wq",
            ];
            let whole = (!whole.contains(&section.as_str())).then(|| section.clone());
            keys.chain(whole)
        });
        keys.collect()
    }

    #[test]
    fn a_reload_has_a_defined_effect_on_every_key() {
        let keys = all_keys();
        assert!(keys.len() > 80, "{keys:?}");
        let unknown: Vec<_> = keys
            .iter()
            .filter(|it| CAPTURE_KEYS.effect(it).is_none())
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        for (pattern, _) in KEYS {
            let start = pattern.trim_end_matches('*');
            let is_used = keys.iter().any(|it| it.starts_with(start));
            assert!(is_used, "no key fits {pattern}");
        }
    }

    #[test]
    fn keys_of_a_capture_are_distinguished_from_those_of_other_commands() {
        for key in ["output.keep", "output.keep_files", "output.rotate_time"] {
            assert_eq!(CAPTURE_KEYS.effect(key), Some(KeyReload::Applies), "{key}");
        }
        for key in ["ship.bandwidth", "serve", "serve.tokens", "anonymize.key"] {
            assert_eq!(CAPTURE_KEYS.effect(key), Some(KeyReload::Unused), "{key}");
        }
        for key in [
            "ship",
            "ship.journal",
            "output.dir",
            "output.hook",
            "metrics",
        ] {
            let effect = CAPTURE_KEYS.effect(key);
            assert!(matches!(effect, Some(KeyReload::NeedsRestart(_))), "{key}");
        }
    }
}
