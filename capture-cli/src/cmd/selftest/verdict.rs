//! Verdicts: which of the known differences between cards the tested device shows, derived from the
//! findings of a report.

use super::{
    disruptive,
    lengths::{self, LONGEST, TAGS},
    probe::FLAGS,
    record,
    report::{CardDifference, CardVerdict, Outcome, SelftestReport, Shown},
    roce,
    sleeping::{AT_COMPLETION, STARTS},
    striding::{FILLER_COUNTER, FIRST_STRIDE},
    traffic::{STAMP_KIND, TICKS},
};
use serde_json::Value;

/// Known differences between cards in the order of the report, each with its name.
const ALL: [(CardDifference, &str); 14] = [
    (CardDifference::F1, "limit of a WQ"),
    (CardDifference::F2, "stamps of a CQ for ticks"),
    (CardDifference::F3, "network interface of the port"),
    (CardDifference::F4, "filler counter"),
    (CardDifference::F5, "strides of an error"),
    (CardDifference::F6, "too long frames"),
    (CardDifference::F7, "longest frame"),
    (CardDifference::F8, "device folder after a driver restart"),
    (CardDifference::F9, "FCS"),
    (CardDifference::F10, "prefetch"),
    (CardDifference::F11, "RoCE packets"),
    (CardDifference::F12, "name of a LAG's device"),
    (CardDifference::F13, "moderation period"),
    (CardDifference::F14, "padding in rules"),
];

/// ID of the finding on whether a first test frame arrives.
const CONNECTED: &str = "traffic/arrives";

/// Creates the verdict that the device's behaviour differs as `what` describes.
fn differs(what: impl Into<String>) -> Shown {
    Shown::Differs { what: what.into() }
}

/// Returns the text of a finding's value; empty if the value is not a text.
fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Creates the verdict that the selftest has no finding on the difference, with the reason.
fn not_tested(reason: impl Into<String>) -> Shown {
    Shown::NotTested {
        reason: reason.into(),
    }
}

/// Returns the verdicts that follow from the findings of a selftest report.
pub fn verdicts(report: &SelftestReport) -> Vec<CardVerdict> {
    let findings = CardFindings(report);
    let verdict = |(difference, name): (CardDifference, &str)| CardVerdict {
        difference,
        name: name.into(),
        shown: findings.judge(difference),
    };
    ALL.map(verdict).into()
}

/// Findings of a selftest report, from which verdicts are derived.
struct CardFindings<'a>(&'a SelftestReport);

impl CardFindings<'_> {
    /// Returns whether the findings show the difference `difference` between cards.
    fn judge(&self, difference: CardDifference) -> Shown {
        match difference {
            CardDifference::F1 => self.wq_limit(),
            CardDifference::F2 => self.of_value(STAMP_KIND, |kind| match kind.as_str() {
                Some(TICKS) => Shown::AsExpected,
                _ => differs("completions of a CQ that was created for ticks carry UTC"),
            }),
            CardDifference::F3 => self.interface(),
            CardDifference::F4 => self.of_value(FILLER_COUNTER, |it| match it.as_str() {
                Some(FIRST_STRIDE) => Shown::AsExpected,
                _ => differs(format!(
                    "a filler completion of a striding WQ reports {} instead of its first stride as its counter",
                    text(it)
                )),
            }),
            CardDifference::F5 => self.of_value(lengths::CONSUMED, |it| match it.as_str() {
                Some(lengths::REST) => Shown::AsExpected,
                _ => differs(format!(
                    "a completion with an error consumes {} strides, not the rest of its receive WQE",
                    text(it)
                )),
            }),
            CardDifference::F6 => self.too_long(),
            CardDifference::F7 => self.longest(),
            CardDifference::F8 => match self.value(disruptive::FOLDER) {
                None => self.without(disruptive::RESTART),
                Some(Value::Bool(true)) => Shown::AsExpected,
                Some(_) => differs(
                    "a restart of the driver replaces /dev/infiniband, and with it rules of a sandbox for that folder",
                ),
            },
            CardDifference::F9 => self.fcs(),
            CardDifference::F10 => not_tested("wqcap bench rx --prefetch measures it"),
            CardDifference::F11 => self.roce(),
            CardDifference::F12 => self.of_value(record::LAG, |lag| match lag.as_str() {
                Some(record::NO_LAG) => not_tested("the device is not the device of a LAG"),
                Some(record::BOND) => Shown::AsExpected,
                _ => differs("the device of a LAG is not named mlx5_bond_<N>"),
            }),
            CardDifference::F13 => self.of_value(STARTS, |start| match start.as_str() {
                Some(AT_COMPLETION) => Shown::AsExpected,
                _ => differs(format!(
                    "the period of CQ moderation starts at {}",
                    text(start)
                )),
            }),
            CardDifference::F14 => self.padding(),
        }
    }

    /// Returns the outcome of the finding with the ID `id`; `None`: the report does not have it.
    fn outcome(&self, id: &str) -> Option<&Outcome> {
        let found = self.0.findings.iter().find(|it| it.id == id);
        found.map(|it| &it.outcome)
    }

    /// Returns the value of the finding with the ID `id`; `None`: the finding has no value.
    fn value(&self, id: &str) -> Option<&Value> {
        match self.outcome(id)? {
            Outcome::Value { value } => Some(value),
            _ => None,
        }
    }

    /// Returns the verdict that the difference was not tested, with the reason that the finding
    /// `id` gives.
    fn without(&self, id: &str) -> Shown {
        match (self.outcome(id), &self.0.ended_early) {
            (Some(Outcome::NotAsked { reason }), _) => not_tested(reason),
            (Some(other), _) => not_tested(format!("{id}: {}", other.text())),
            (None, Some(reason)) => not_tested(format!("the selftest ended early: {reason}")),
            // Frames were not sent, or none arrived.
            (None, None) => match (self.outcome("traffic"), self.outcome(CONNECTED)) {
                (Some(Outcome::NotAsked { reason }), _) => not_tested(reason),
                (_, Some(Outcome::Differs { .. })) => not_tested(
                    match self.value(record::FUNCTION) == Some(&Value::Bool(true)) {
                        false => "no frame arrives at the tested port",
                        true => {
                            "no frame arrives at the tested port: a virtual function that the host does not trust \
                             receives only frames to its own address"
                        }
                    },
                ),
                _ => not_tested(format!("the report of the selftest has no finding {id}")),
            },
        }
    }

    /// Judges the value of the finding `id`, or returns the verdict without it.
    fn of_value(&self, id: &str, judge: impl FnOnce(&Value) -> Shown) -> Shown {
        match self.value(id) {
            Some(value) => judge(value),
            None => self.without(id),
        }
    }

    /// Judges the size of the largest WQ that the device accepts.
    fn wq_limit(&self) -> Shown {
        let id = "wq/wrs/32768";
        let of = |id| match self.value(id).and_then(Value::as_u64) {
            Some(it) => it.to_string(),
            None => "an unknown number of".into(),
        };
        match self.outcome(id) {
            Some(Outcome::Accepted) => Shown::AsExpected,
            // EINVAL is the refusal of the size.
            Some(Outcome::Refused { errno, error }) if *errno != libc::EINVAL => {
                differs(format!("the device refuses WQs: {error}"))
            }
            Some(Outcome::Refused { .. }) => differs(format!(
                "a WQ has at most {} WRs; max_qp_wr is {}",
                of("limit/wrs"),
                of("limit/qp_wrs")
            )),
            _ => self.without(id),
        }
    }

    /// Judges how the network interface of the port was found.
    fn interface(&self) -> Shown {
        let id = "port/interface_known";
        let switchdev = self.value(record::ESWITCH).and_then(Value::as_str);
        let switchdev = switchdev == Some(record::SWITCHDEV);
        self.of_value(id, |known| match (known.as_bool(), switchdev) {
            (Some(true), false) => Shown::AsExpected,
            (Some(true), true) => differs(
                "the e-switch is in switchdev mode, where sysfs does not name the port's interface; RDMA netlink does",
            ),
            _ => differs(
                "the port's interface is unknown; promiscuous mode, counters of the interface and the check for a \
                 management port are missing",
            ),
        })
    }

    /// Judges the completion of a frame that is longer than its receive buffer.
    fn too_long(&self) -> Shown {
        match self.outcome(lengths::STATUS) {
            Some(Outcome::AsExpected) => Shown::AsExpected,
            Some(Outcome::Value { value }) => differs(text(value)),
            Some(Outcome::Differs { found, .. }) => differs(format!(
                "the completion of a frame that is longer than its receive buffer has {found}"
            )),
            _ => self.without(lengths::STATUS),
        }
    }

    /// Judges the length of the longest frames that the port accepts. With two VLAN tags a frame of
    /// the full MTU is 22 bytes longer than the MTU.
    fn longest(&self) -> Shown {
        let of = |tags: &str| self.value(&format!("{LONGEST}{tags}"));
        let all = TAGS.map(|(tags, _)| of(tags).and_then(Value::as_u64));
        let [Some(_), Some(_), Some(tagged)] = all else {
            return self.without(&format!("{LONGEST}{}", TAGS[2].0));
        };
        if tagged >= 22 {
            return Shown::AsExpected;
        }
        let counted = match self.value(lengths::OVERSIZE) {
            Some(Value::Bool(true)) => "counted in rx_oversize_pkts_phy",
            _ => "not counted by the port; raise the sender's MTU by 8 and test again",
        };
        differs(format!(
            "frames of more than MTU + {tagged} bytes do not arrive ({counted}); a full frame with two VLAN tags \
             has MTU + 22"
        ))
    }

    /// Judges whether the FCS follows the received frames.
    fn fcs(&self) -> Shown {
        let prefix = format!("frame with {}", FLAGS[1].0);
        let mut sent = self.0.findings.iter().filter(|it| {
            it.id.starts_with(&format!("{prefix}: "))
                && matches!(it.outcome, Outcome::AsExpected | Outcome::Differs { .. })
        });
        match sent.clone().next() {
            None => self.without(&prefix),
            Some(_) => match sent.find(|it| it.outcome != Outcome::AsExpected) {
                None => Shown::AsExpected,
                Some(it) => differs(format!(
                    "the bytes behind a frame are not its FCS ({})",
                    it.id.trim_start_matches(&prefix).trim_start_matches(": ")
                )),
            },
        }
    }

    /// Judges whether RoCE packets arrive as other frames do.
    fn roce(&self) -> Shown {
        let is = |id: &str| self.value(id).and_then(Value::as_bool);
        let lost: Vec<_> = [
            (roce::TO_PORT, "the port's"),
            (roce::TO_FOREIGN, "a foreign"),
        ]
        .into_iter()
        .filter(|(id, _)| is(id) == Some(false))
        .map(|(_, whose)| whose)
        .collect();
        match (lost.as_slice(), is(roce::TO_PORT), is(roce::ENABLED)) {
            ([], None, _) => self.without(roce::TO_PORT),
            ([], ..) => Shown::AsExpected,
            (lost, _, enabled) => {
                let state = match enabled {
                    Some(true) => "on",
                    Some(false) => "off",
                    None => "unknown",
                };
                differs(format!(
                    "RoCEv2 packets to {} address reach no ordinary rule (enable_roce is {state})",
                    lost.join(" and to ")
                ))
            }
        }
    }

    /// Judges whether the driver accepts the requests for flow rules, whose padding is zero.
    fn padding(&self) -> Shown {
        let rules = ["mac", "ipv4", "ipv4, tcp", "ipv6, udp"].map(|it| format!("rule/{it}"));
        let first = rules
            .iter()
            .find(|id| self.outcome(id) != Some(&Outcome::Accepted));
        match first.map(|id| (id, self.outcome(id))) {
            None => Shown::AsExpected,
            Some((id, Some(Outcome::Refused { error, .. }))) => {
                differs(format!("{id} is refused: {error}"))
            }
            Some((id, _)) => self.without(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::report::Finding, *};

    /// Returns the lines of the verdicts on a report with one finding.
    fn lines(id: &str, outcome: Outcome) -> Vec<String> {
        let mut report = SelftestReport::new(false);
        report.findings.push(Finding {
            subject: "any".into(),
            id: id.into(),
            us: 0,
            outcome,
        });
        verdicts(&report).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn differences_that_the_software_nic_cannot_show_are_named() {
        let value = |value: Value| Outcome::Value { value };
        let differs = Outcome::Differs {
            expected: 1.into(),
            found: 4.into(),
            raw: None,
        };
        for (id, outcome, line) in [
            (
                disruptive::FOLDER,
                value(false.into()),
                "F8 device folder after a driver restart: this card differs: a restart of the driver replaces \
                 /dev/infiniband, and with it rules of a sandbox for that folder",
            ),
            (
                disruptive::FOLDER,
                value(true.into()),
                "F8 device folder after a driver restart: as expected",
            ),
            (
                disruptive::RESTART,
                Outcome::refused(libc::EBUSY),
                "F8 device folder after a driver restart: not tested: driver/restart: refused: EBUSY",
            ),
            (
                STARTS,
                value("the event before".into()),
                "F13 moderation period: this card differs: the period of CQ moderation starts at the event before",
            ),
            (
                "wq/wrs/32768",
                Outcome::refused(libc::EOPNOTSUPP),
                "F1 limit of a WQ: this card differs: the device refuses WQs: EOPNOTSUPP",
            ),
            (
                "rule/mac",
                Outcome::refused(libc::EOPNOTSUPP),
                "F14 padding in rules: this card differs: rule/mac is refused: EOPNOTSUPP",
            ),
            (
                lengths::STATUS,
                differs,
                "F6 too long frames: this card differs: the completion of a frame that is longer than its receive buffer has 4",
            ),
            (
                CONNECTED,
                Outcome::Differs {
                    expected: true.into(),
                    found: false.into(),
                    raw: None,
                },
                "F4 filler counter: not tested: no frame arrives at the tested port",
            ),
        ] {
            let lines = lines(id, outcome);
            assert!(lines.iter().any(|it| it == line), "{line}: {lines:#?}");
        }
        assert_eq!(lines("any", Outcome::Accepted).len(), ALL.len());
    }
}
