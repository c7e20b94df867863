//! Differences between two selftest reports, by subject.

use super::report::{Outcome, SelftestReport};
use serde::Serialize;
use std::{collections::BTreeMap, fmt::Write};

/// Finding in which two selftest reports differ.
#[derive(Debug, PartialEq, Serialize)]
pub struct Difference {
    /// ID of the finding in which two selftest reports differ.
    id: String,
    /// Outcome of the finding in the first report; `None`: the report lacks the finding.
    a: Option<Outcome>,
    /// Outcome of the finding in the second report; `None`: the report lacks the finding.
    b: Option<Outcome>,
    /// `true` if one report lacks the finding because its format version had no such finding.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    older: bool,
}

/// Returns the differences between two selftest reports, grouped by the subject of the findings.
pub fn compare(a: &SelftestReport, b: &SelftestReport) -> BTreeMap<String, Vec<Difference>> {
    let mut pairs: BTreeMap<&str, (&str, [Option<&Outcome>; 2])> = BTreeMap::new();
    let versions = [a.version, b.version];
    for (side, report) in [a, b].into_iter().enumerate() {
        for it in &report.findings {
            pairs.entry(&it.id).or_insert((&it.subject, [None; 2])).1[side] = Some(&it.outcome);
        }
    }
    let mut differences: BTreeMap<String, Vec<Difference>> = BTreeMap::new();
    for (id, (subject, [a, b])) in pairs {
        if let (Some(a), Some(b)) = (a, b)
            && a.agrees(b)
        {
            continue;
        }
        let older = match (a, b) {
            (None, _) => versions[0] < versions[1],
            (_, None) => versions[1] < versions[0],
            _ => false,
        };
        differences
            .entry(subject.to_owned())
            .or_default()
            .push(Difference {
                id: id.to_owned(),
                a: a.cloned(),
                b: b.cloned(),
                older,
            });
    }
    differences
}

/// Formats the differences between two selftest reports as text.
pub fn text(differences: &BTreeMap<String, Vec<Difference>>) -> String {
    let mut text = String::new();
    let side = |it: &Option<Outcome>, older| match (it, older) {
        (Some(it), _) => it.text(),
        (None, false) => "not in the report".into(),
        (None, true) => "not in the older report".into(),
    };
    for (subject, them) in differences {
        let _ = writeln!(text, "{subject}");
        for it in them {
            let _ = writeln!(
                text,
                "  {}: {}; {}",
                it.id,
                side(&it.a, it.older),
                side(&it.b, it.older)
            );
        }
    }
    if text.is_empty() {
        text.push_str("no difference\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::report::Finding, *};

    fn report(findings: &[(&str, &str, Outcome)]) -> SelftestReport {
        let mut report = SelftestReport::new(false);
        let finding = |(subject, id, outcome): &(&str, &str, Outcome)| Finding {
            subject: (*subject).into(),
            id: (*id).into(),
            us: 0,
            outcome: outcome.clone(),
        };
        report.findings = findings.iter().map(finding).collect();
        report
    }

    #[test]
    fn only_differences_and_missing_findings_are_listed() {
        let no = |reason: &str| Outcome::NotAsked {
            reason: reason.into(),
        };
        let a = report(&[
            ("x", "x/1", Outcome::Accepted),
            ("y", "y/1", Outcome::Accepted),
            ("z", "z/1", no("one thing")),
            ("u", "u/1", Outcome::refused(22)),
        ]);
        let b = report(&[
            ("x", "x/1", Outcome::Accepted),
            ("y", "y/1", Outcome::refused(95)),
            ("z", "z/1", no("another")),
            ("u", "u/1", Outcome::refused(1)),
            ("v", "v/1", Outcome::Accepted),
        ]);
        let found = compare(&a, &b);
        let subjects: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(subjects, ["u", "v", "y"]);
        let text = text(&found);
        assert!(text.contains("y\n  y/1: accepted; refused: EOPNOTSUPP\n"));
        assert!(text.contains("v\n  v/1: not in the report; accepted\n"));
        assert!(compare(&a, &a).is_empty());
        // The first report is of a version that had no such finding.
        let mut older = a.clone();
        older.version -= 1;
        let text = super::text(&compare(&older, &b));
        assert!(text.contains("v\n  v/1: not in the older report; accepted\n"));
        // A finding that only an older version had is missing in the newer report.
        let mut newer = a;
        newer.findings.clear();
        let text = super::text(&compare(&older, &newer));
        assert!(text.contains("x\n  x/1: accepted; not in the report\n"));
    }
}
