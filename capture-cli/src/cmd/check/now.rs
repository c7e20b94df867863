//! Plan of a running capture, with the changes since the start of the process marked.

use super::text;
use std::{collections::BTreeMap, fmt::Write};
use wqcap_supervisor::{CurrentPlan, ValueChange};

/// Formats the current configuration of a capture, with its plan in comments. Changed keys are
/// listed at the top, and their lines are marked.
pub fn text_now(now: &CurrentPlan) -> String {
    let head = head(&now.state().to_string(), now.changed());
    let config = marked(&now.config().to_toml(), now.changed());
    format!("{head}{config}{}", text::describe(now.plan(), now.config()))
}

/// Formats the state of the capture and the list of its changed configuration keys.
fn head(state: &str, changed: &BTreeMap<String, ValueChange>) -> String {
    let mut text = format!("# State: {state}\n# Keys that changed since the start of the process:");
    if changed.is_empty() {
        text += " none";
    }
    for (key, ValueChange { was, now }) in changed {
        let _ = write!(text, "\n#   {key} = {now}, was {was}");
    }
    text + "\n\n"
}

/// Marks the lines of changed keys in the configuration's TOML text.
fn marked(toml: &str, changed: &BTreeMap<String, ValueChange>) -> String {
    let mut section = String::new();
    let mut text = String::new();
    for line in toml.lines() {
        let key = if let Some(name) = line.strip_prefix("[[") {
            section = name.trim_end_matches(']').to_owned();
            section.clone()
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
            String::new()
        } else {
            let key = line.split(" = ").next().unwrap_or_default();
            format!("{section}.{key}")
        };
        // A comment cannot follow the first line of a value with several lines.
        let is_whole = !line.ends_with("\"\"\"") && !line.ends_with("'''");
        let mark = match changed.contains_key(&key) && is_whole {
            true => "  # changed",
            false => "",
        };
        let _ = writeln!(text, "{line}{mark}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wqcap_engine::config::Config;

    #[test]
    fn changes_are_marked_and_the_text_is_still_a_config() {
        let rules = "[[rule]]\nid = \"a\"\n";
        let settings = [("capture.filter", "tcp"), ("capture.mode", "filtered")];
        let config = Config::with_overrides(rules, &settings).unwrap();
        let change = |was, now| ValueChange { was, now };
        let changed = [
            ("capture.filter".to_owned(), change(json!(""), json!("tcp"))),
            ("rule".to_owned(), change(json!([]), json!([{"id": "a"}]))),
            ("table".to_owned(), change(json!([8, 8]), json!([12, 4]))),
        ];
        let changed = BTreeMap::from(changed);
        let text = head("drained", &changed) + &marked(&config.to_toml(), &changed);
        assert_eq!(Config::parse(&text).unwrap(), config);
        for line in [
            "# State: drained",
            "#   capture.filter = \"tcp\", was \"\"",
            "#   table = [12,4], was [8,8]",
            "filter = \"tcp\"  # changed",
            "[[rule]]  # changed",
        ] {
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        assert_eq!(text.matches("  # changed").count(), 2);
        assert!(head("running", &BTreeMap::new()).contains("process: none\n"));
    }
}
