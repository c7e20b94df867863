//! Mode `filtered`: translation of the configured flow rules (`[[rule]]`) into hardware rules.

use super::{MAX_PRIORITY, RulePlan, STEP, Steering, describe, frame_match::FrameMatch};
use crate::{
    Error,
    config::{RuleAction, RuleConfig},
    verbs::FlowSpec,
};
use std::fmt::Display;
use wqcap_rss::profile::{HashDepth, Profile};

impl Steering {
    /// Creates the steering of a table of configured flow rules. An empty table takes no frames.
    ///
    /// # Errors
    /// A rule is invalid, or rules would duplicate frames.
    pub fn filtered(rules: &[RuleConfig], depth: HashDepth, queues: u16) -> Result<Self, Error> {
        let mut steering = Self {
            asked: Some(rules.to_vec()),
            ..Self::default()
        };
        // For each rule in `steering.rules`: number of the user's rule, profile, match.
        let mut matches: Vec<(usize, Profile, FrameMatch)> = Vec::new();
        let mut wrong = Vec::new();
        for (number, rule) in (1..).zip(rules) {
            let mut refuse = |key: &str, value: &dyn Display, problem: String| {
                wrong.push(Error::config(
                    format!("rule {number}: {key}"),
                    value,
                    problem,
                ));
            };
            let before = rules.iter().take(number - 1);
            if let Some(id) = rule
                .id
                .as_ref()
                .filter(|id| before.into_iter().any(|it| it.id.as_ref() == Some(*id)))
            {
                refuse(
                    "id",
                    &format!("{id:?}"),
                    "another rule has this id; give each rule its own".into(),
                );
            }
            if rule.priority > MAX_PRIORITY {
                refuse(
                    "priority",
                    &rule.priority,
                    format!(
                        "the priority of a flow rule must be a number from 0 to {MAX_PRIORITY}"
                    ),
                );
                continue;
            }
            if let Some(queue) = rule.queue.filter(|q| *q >= queues) {
                let problem = format!("there are queues 0 to {}", queues - 1);
                refuse("queue", &queue, problem);
            }
            let wanted = match FrameMatch::from_rule(rule) {
                Ok(wanted) => wanted,
                Err(problem) => {
                    wrong.push(Error::config(format!("rule {number}"), "", problem));
                    continue;
                }
            };
            let whole = rule.action == RuleAction::Drop || rule.queue.is_some();
            for profile in wanted.profiles(depth, whole) {
                let qp = steering.qp(profile, rule.queue);
                let mut specs = wanted.specs(profile);
                if rule.action == RuleAction::Drop {
                    specs.push(FlowSpec::Drop);
                }
                let rank = rule.priority * STEP + u16::from(profile.priority_offset());
                let name = format!("rule {number} {profile}");
                steering.push(name, rank, specs, qp);
                matches.push((number, profile, wanted));
            }
        }
        if !wrong.is_empty() {
            return Err(Error::Several(wrong));
        }
        steering.refuse_duplicates(&matches)?;
        // The order of the user's rules does not matter.
        steering.rules.sort_by_key(|r| r.rank);
        steering.close_ranks();
        Ok(steering)
    }

    /// Refuses flow rules of one priority that can match the same frame and lead to different
    /// destinations.
    ///
    /// For such rules the NIC would deliver the frame twice, or choose one of them.
    fn refuse_duplicates(&self, matches: &[(usize, Profile, FrameMatch)]) -> Result<(), Error> {
        let target = |rule: &RulePlan| (rule.qp, rule.specs.contains(&FlowSpec::Drop));
        for (i, first) in self.rules.iter().enumerate() {
            for (j, second) in self.rules.iter().enumerate().skip(i + 1) {
                let ((a, pa, ma), (b, pb, mb)) = (&matches[i], &matches[j]);
                if a != b
                    && first.priority == second.priority
                    && target(first) != target(second)
                    && ma.as_profile(*pa).overlaps(&mb.as_profile(*pb))
                {
                    return Err(Error::config(
                        format!("rule {b}"),
                        "",
                        format!(
                            "this rule and rule {a} can match the same frame ({}) at the same priority, but lead to different destinations; give one of them another priority",
                            describe(&first.specs)
                        ),
                    ));
                }
            }
        }
        Ok(())
    }
}
