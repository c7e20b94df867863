//! Rules of `mode = "filtered"` that are added and removed while frames are received.

use super::Capture;
use crate::{Error, config::RuleConfig, plan::steering::Steering};

impl Capture {
    /// Returns the configured flow rules in effect; `None` in modes other than `filtered`, and if
    /// the rules were derived from the filter.
    #[must_use]
    pub fn rules(&self) -> Option<&[RuleConfig]> {
        self.sources.steering().asked.as_deref()
    }

    /// Returns the QPs and flow rules that are in effect on the captured port.
    #[must_use]
    pub fn steering(&self) -> &Steering {
        self.sources.steering()
    }

    /// Adds a flow rule while frames are received: frames of other rules still arrive exactly once.
    /// Returns `false` if the rule exists already.
    ///
    /// # Errors
    /// Another mode, another rule with the same `id`, a rule that is invalid or would duplicate
    /// frames, or the error of a verb. The rules then stay unchanged.
    pub fn add_rule(&mut self, rule: &RuleConfig) -> Result<bool, Error> {
        let mut rules = self.changeable()?;
        if rules.contains(rule) {
            return Ok(false);
        }
        if let Some(other) = rules
            .iter()
            .find(|it| rule.id.is_some() && it.id == rule.id)
        {
            return Err(Error::config(
                "rule: id",
                rule.id.as_deref().unwrap_or_default(),
                format!("another flow rule has this id: {other}; remove that rule first"),
            ));
        }
        rules.push(rule.clone());
        self.install_rules(&rules)?;
        self.note_rule("added", rule);
        Ok(true)
    }

    /// Removes a flow rule, given by its `id` alone or by all its fields, and returns it. Removing
    /// the last rule is allowed: then no frames are captured.
    ///
    /// # Errors
    /// The rule does not exist, another mode, or the error of a verb. The rules then stay
    /// unchanged.
    pub fn remove_rule(&mut self, which: &RuleConfig) -> Result<RuleConfig, Error> {
        let mut rules = self.changeable()?;
        let by_id = RuleConfig {
            id: which.id.clone(),
            ..RuleConfig::default()
        };
        let is_it = |rule: &RuleConfig| {
            if *which == by_id && which.id.is_some() {
                rule.id == which.id
            } else {
                rule == which
            }
        };
        let Some(at) = rules.iter().position(is_it) else {
            let there: Vec<_> = rules.iter().map(|it| format!("({it})")).collect();
            let there = match there.is_empty() {
                true => "the capture has no rules".into(),
                false => format!("there are {}", there.join(", ")),
            };
            return Err(Error::config(
                "rule remove",
                "",
                format!(
                    "the capture has no such flow rule ({which}); {there}; give the id of a rule, or all fields of a rule"
                ),
            ));
        };
        let rule = rules.remove(at);
        self.install_rules(&rules)?;
        self.note_rule("removed", &rule);
        Ok(rule)
    }

    fn changeable(&self) -> Result<Vec<RuleConfig>, Error> {
        self.rules().map(<[_]>::to_vec).ok_or_else(|| {
            Error::unsupported(
                "rule",
                "",
                "rules can be added and removed only with capture.mode = \"filtered\" and [[rule]]s; this run has another \
                 mode, or rules derived from its filter",
            )
        })
    }

    fn install_rules(&mut self, rules: &[RuleConfig]) -> Result<(), Error> {
        let queues = u16::try_from(self.shared.counters.len()).unwrap_or(u16::MAX);
        self.sources
            .port_mut("rule")?
            .replace_rules(Steering::filtered(rules, self.depth, queues)?)
    }

    fn note_rule(&self, what: &str, rule: &RuleConfig) {
        self.shared.note(format!("a flow rule was {what}: {rule}"));
    }
}
