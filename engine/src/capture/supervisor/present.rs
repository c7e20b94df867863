//! What holds now: the configuration and the plan with all that commands, reloads and a device that came back have changed.

use crate::{
    capture::Capture,
    config::Config,
    control::protocol::CaptureState,
    filter::Filter,
    plan::{Plan, QueuePlan},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A configuration and a plan as they hold, and what of them has changed.
#[derive(Clone, Debug, Serialize)]
pub struct PlanNow {
    /// What the capture does.
    pub state: CaptureState,
    /// With every default written out.
    pub config: Config,
    /// What it comes to.
    pub plan: Plan,
    /// By key of the configuration, and `table` for the indirection table: what differs from the start of the process.
    pub changed: BTreeMap<String, ValueChange>,
}

/// A value that has changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ValueChange {
    /// At the start; of the table, how many entries named each queue.
    pub was: Value,
    /// Now.
    pub now: Value,
}

/// What holds, beside what held at the start of the process.
pub(super) struct Present {
    at_start: (Config, Plan),
    pub(super) config: Config,
    pub(super) plan: Plan,
}

impl Present {
    pub(super) fn new(config: &Config, plan: &Plan) -> Self {
        let config = filled_in(config, plan);
        Self {
            at_start: (config.clone(), plan.clone()),
            config,
            plan: plan.clone(),
        }
    }

    /// The next capture will be as configured: commands have changed the last one only.
    pub(super) fn reset(&mut self, config: &Config, plan: &Plan) {
        self.config = filled_in(config, plan);
        self.plan = plan.clone();
    }

    /// A capture of `plan` runs.
    pub(super) fn runs(&mut self, capture: &Capture, plan: &Plan) {
        self.plan = plan.clone();
        self.config.device.name = Some(plan.device.name.clone());
        self.follow(capture);
    }

    /// The capture may have changed.
    pub(super) fn follow(&mut self, capture: &Capture) {
        self.plan = capture.plan_now(&self.plan);
        if let Some(rules) = capture.rules() {
            rules.clone_into(&mut self.config.rule);
        }
        self.config.wq.cvlan_stripping = self.plan.strips_vlan();
        let filter = self.plan.reduction.filter.clone();
        self.set_filter(filter);
    }

    pub(super) fn set_filter(&mut self, filter: Filter) {
        filter
            .expression()
            .clone_into(&mut self.config.capture.filter);
        if let Some(split) = &mut self.plan.steering.split {
            filter.expression().clone_into(&mut split.software);
        }
        self.plan.reduction.filter = filter;
    }

    pub(super) fn now(&self, state: CaptureState) -> PlanNow {
        let (config, plan) = &self.at_start;
        let mut changed = differences(&json!(config), &json!(self.config));
        if plan.table != self.plan.table {
            let change = ValueChange {
                was: shares(plan),
                now: shares(&self.plan),
            };
            changed.insert("table".into(), change);
        }
        PlanNow {
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

/// How many entries of the table name each queue.
fn shares(plan: &Plan) -> Value {
    let entries = |queue: &QueuePlan| plan.table.iter().filter(|it| **it == queue.index).count();
    plan.queues.iter().map(entries).collect()
}

/// The values that differ, by configuration key.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_as_keys_with_both_values() {
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
