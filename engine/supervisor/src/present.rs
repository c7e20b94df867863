//! Present configuration and plan, including the changes by commands, reloads and a recovered
//! device.

use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use wqcap_control::protocol::CaptureState;
use wqcap_engine::{
    capture::Capture,
    config::{Config, OutputConfig},
    filter::Filter,
    plan::{Plan, QueuePlan},
};

/// Present configuration and plan of the capture, with the changes since the start of the process.
#[derive(Clone, Debug, Serialize)]
pub struct CurrentPlan {
    state: CaptureState,
    config: Config,
    plan: Plan,
    changed: BTreeMap<String, ValueChange>,
}

impl CurrentPlan {
    /// Returns the state of the capture: running, drained, stopped, or its device lost.
    #[must_use]
    pub fn state(&self) -> CaptureState {
        self.state
    }

    /// Returns the configuration of the capture with every default written out.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the capture's plan, which was made from its configuration.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the changes since the start of the process, by configuration key; the key `table`
    /// stands for the RSS indirection table.
    #[must_use]
    pub fn changed(&self) -> &BTreeMap<String, ValueChange> {
        &self.changed
    }
}

/// Old and new value of a changed configuration key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueChange {
    /// Value of the configuration key at the start; for the RSS indirection table, the number of
    /// entries of each queue.
    pub was: Value,
    /// Present value of the configuration key; for the RSS indirection table, the number of entries
    /// of each queue.
    pub now: Value,
}

/// Present configuration and plan of the capture, and those at the start of the process.
pub(super) struct SupervisorState {
    at_start: (Config, Plan),
    pub(super) config: Config,
    pub(super) plan: Plan,
}

impl SupervisorState {
    pub(super) fn new(config: &Config, plan: &Plan) -> Self {
        let config = filled_in(config, plan);
        Self {
            at_start: (config.clone(), plan.clone()),
            config,
            plan: plan.clone(),
        }
    }

    /// Resets the present configuration and plan to those of the next capture, because changes by
    /// commands apply only to the last one.
    pub(super) fn reset(&mut self, config: &Config, plan: &Plan) {
        self.config = filled_in(config, plan);
        self.plan = plan.clone();
    }

    /// Records that a capture with the plan `plan` is running.
    pub(super) fn set_running(&mut self, capture: &Capture, plan: &Plan) {
        self.plan = plan.clone();
        plan.name_device(&mut self.config);
        self.follow(capture);
    }

    /// Copies the values that can change while the capture runs: flow rules, RSS indirection table,
    /// WQ flags, filter.
    pub(super) fn follow(&mut self, capture: &Capture) {
        self.plan = capture.current_plan(&self.plan);
        if let Some(rules) = capture.rules() {
            rules.clone_into(&mut self.config.rule);
        }
        self.config.wq.cvlan_stripping = self.plan.port.strips_vlan();
        let filter = self.plan.reduction.filter.clone();
        self.set_filter(filter);
    }

    pub(super) fn set_filter(&mut self, filter: Filter) {
        filter
            .expression()
            .clone_into(&mut self.config.capture.filter);
        if let Some(split) = &mut self.plan.port.steering.split {
            filter.expression().clone_into(&mut split.software);
        }
        self.plan.reduction.filter = filter;
    }

    pub(super) fn now(&self, state: CaptureState) -> CurrentPlan {
        let (config, plan) = &self.at_start;
        let mut changed = differences(&json!(config), &json!(self.config));
        if plan.port.table != self.plan.port.table {
            let change = ValueChange {
                was: shares(plan),
                now: shares(&self.plan),
            };
            changed.insert("table".into(), change);
        }
        CurrentPlan {
            state,
            config: self.config.clone(),
            plan: self.plan.clone(),
            changed,
        }
    }
}

fn filled_in(config: &Config, plan: &Plan) -> Config {
    let mut config = config.clone();
    plan.fill_in(&mut config);
    config
}

/// Returns the number of entries of the RSS indirection table that name each queue.
fn shares(plan: &Plan) -> Value {
    let entries = |queue: &QueuePlan| {
        plan.port
            .table
            .iter()
            .filter(|it| **it == queue.index)
            .count()
    };
    plan.queues.iter().map(entries).collect()
}

/// Returns the values that differ between two configurations, by configuration key.
pub(super) fn differences(one: &Value, other: &Value) -> BTreeMap<String, ValueChange> {
    let mut found = BTreeMap::new();
    compare("", one, other, &mut found);
    found
}

fn compare(at: &str, one: &Value, other: &Value, found: &mut BTreeMap<String, ValueChange>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            let of = |map: &Map<String, Value>, key| map.get(key).cloned().unwrap_or_default();
            for key in a.keys().chain(b.keys()) {
                let path = match at {
                    "" => key.clone(),
                    at => format!("{at}.{key}"),
                };
                compare(&path, &of(a, key), &of(b, key), found);
            }
        }
        (a, b) if a != b => {
            let change = ValueChange {
                was: a.clone(),
                now: b.clone(),
            };
            found.insert(at.to_owned(), change);
        }
        _ => {}
    }
}

/// Copies the limits of capture files (retention, rotation), which can change while a capture runs.
pub(super) fn copy_limits(from: &OutputConfig, to: &mut OutputConfig) {
    to.keep = from.keep;
    to.keep_files = from.keep_files;
    to.keep_age = from.keep_age;
    to.keep_free = from.keep_free;
    to.rotate_size = from.rotate_size;
    to.rotate_time = from.rotate_time;
    to.rotate_frames = from.rotate_frames;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_dotted_keys_and_both_values() {
        let one = json!({"a": {"b": 1, "c": 2}, "d": 3});
        let other = json!({"a": {"b": 1, "c": 4}, "e": 5});
        let found: Vec<_> = differences(&one, &other)
            .into_iter()
            .map(|(key, it)| (key, it.was, it.now))
            .collect();
        let expected = [
            ("a.c".to_owned(), json!(2), json!(4)),
            ("d".to_owned(), json!(3), Value::Null),
            ("e".to_owned(), Value::Null, json!(5)),
        ];
        assert_eq!(found, expected);
    }
}
