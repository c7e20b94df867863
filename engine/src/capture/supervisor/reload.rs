//! The configuration, read again while the process runs.

use super::{Host, Supervisor, backend::set_filter, commands, failed, replaced, same, transitions};
use crate::{
    capture::Capture,
    config::Config,
    control::protocol::{Changed, Refusal, RefusalCode},
    filter::Filter,
    plan::Plan,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

impl Supervisor {
    /// Reads the configuration again. What can change in a running capture changes; if anything else differs, nothing
    /// does.
    pub(super) fn reload(
        &mut self,
        host: &mut impl Host,
        capture: Option<(&mut Capture, &Plan)>,
    ) -> Result<Changed, Refusal> {
        let new = host.load_config().map_err(failed)?;
        self.refuse_the_rest(&new)?;
        let filter = &new.capture.filter;
        Filter::compile(filter).map_err(|e| {
            Refusal::new(
                RefusalCode::Malformed,
                format!("capture.filter = {filter:?}: {e}"),
            )
        })?;
        let Some((capture, plan)) = capture else {
            return if json!(new) == json!(self.config) {
                Ok(same("nothing differs"))
            } else {
                let why = transitions::refusal(self.backend.state()).unwrap_or_default();
                Err(Refusal::new(RefusalCode::State, why))
            };
        };
        let outcome = self.apply(new, capture, plan);
        // A re-spread that failed half way has moved rules all the same.
        self.backend.is_spread(capture);
        outcome
    }

    /// Changes in the running capture what differs.
    fn apply(
        &mut self,
        new: Config,
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
            // None at all means equal ones here, not by load.
            let queues = plan.queues.len();
            let weights = match new.rss.weights.as_slice() {
                [] => vec![1; queues],
                weights => weights.to_vec(),
            };
            done.push(commands::respread(capture, &weights)?);
        }
        done.push(set_filter(&capture.share(), &new.capture.filter)?);
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

    /// What cannot change, by key.
    fn refuse_the_rest(&self, new: &Config) -> Result<(), Refusal> {
        let mut rest = new.clone();
        rest.capture.filter.clone_from(&self.config.capture.filter);
        rest.wq.cvlan_stripping = self.config.wq.cvlan_stripping;
        rest.rss.weights.clone_from(&self.config.rss.weights);
        let mut keys = BTreeSet::new();
        differences("", &json!(self.config), &json!(rest), &mut keys);
        if keys.is_empty() {
            return Ok(());
        }
        let keys: Vec<_> = keys.into_iter().collect();
        Err(Refusal::new(
            RefusalCode::State,
            format!(
                "{} cannot change while this process runs; end it and start it again",
                keys.join(", ")
            ),
        ))
    }
}

/// Names of the values that differ, as configuration keys.
fn differences(at: &str, one: &Value, other: &Value, keys: &mut BTreeSet<String>) {
    match (one, other) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let path = if at.is_empty() {
                    key.clone()
                } else {
                    format!("{at}.{key}")
                };
                let null = Value::Null;
                let of =
                    |map: &serde_json::Map<String, Value>| map.get(key).unwrap_or(&null).clone();
                differences(&path, &of(a), &of(b), keys);
            }
        }
        (a, b) if a != b => _ = keys.insert(at.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_as_keys() {
        let mut keys = BTreeSet::new();
        let one = json!({"a": {"b": 1, "c": 2}, "d": 3});
        let other = json!({"a": {"b": 1, "c": 4}, "e": 5});
        differences("", &one, &other, &mut keys);
        assert_eq!(keys.into_iter().collect::<Vec<_>>(), ["a.c", "d", "e"]);
    }
}
