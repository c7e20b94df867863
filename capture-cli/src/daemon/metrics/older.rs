//! Text format before OpenMetrics (version 0.0.4), which promtool and older scrapers read.
//!
//! It has the same samples as OpenMetrics. The family of a counter has the name of its samples,
//! including `_total`, and there is no end marker.

use prometheus_client::{encoding::text, registry::Registry};

/// Encodes the metrics of `registry` in the older Prometheus text format, or in that of
/// OpenMetrics.
pub fn encoded(registry: &Registry, in_older: bool) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, registry);
    if in_older { older(&text) } else { text }
}

/// Converts an OpenMetrics text to the older Prometheus text format.
fn older(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            // The type line of this family follows.
            help = Some(line);
            continue;
        }
        let counter = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        for line in help.take().into_iter().chain([line]) {
            match counter {
                Some(name) => out.push_str(&line.replacen(name, &format!("{name}_total"), 1)),
                None => out.push_str(line),
            }
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_as_their_samples() {
        let text = "# HELP a Frames.\n# TYPE a counter\na_total 1\n# HELP b Now.\n# TYPE b gauge\nb 2\n# EOF\n";
        assert_eq!(
            older(text),
            "# HELP a_total Frames.\n# TYPE a_total counter\na_total 1\n# HELP b Now.\n# TYPE b gauge\nb 2\n"
        );
    }
}
