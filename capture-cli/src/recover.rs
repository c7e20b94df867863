//! `wqcap recover`: files that a crash left open, finished.

use crate::{
    args::RecoverArgs,
    failure::{Failure, Kind},
    output,
    table::thousands,
};
use engine::recover::{self, Outcome, Recovered};
use std::fmt::Write;

/// Finishes what can be finished, and tells of each file.
pub fn recover(args: &RecoverArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let files =
        recover::recover(&args.dir).map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    if args.json {
        output::print_json(&serde_json::json!({ "dir": args.dir, "files": files }))?;
    } else if files.is_empty() {
        output::print(&format!("{shown}: no .part files\n"))?;
    } else {
        output::print(&text(&files))?;
    }
    let messages: Vec<_> = files
        .iter()
        .filter(|file| file.outcome == Outcome::Failed)
        .map(|file| {
            let problem = file.problem.as_deref().unwrap_or("cannot be finished");
            format!("{}: {problem}", file.part.display())
        })
        .collect();
    if messages.is_empty() {
        return Ok(());
    }
    Err(Failure {
        kind: Kind::Failed,
        messages,
    })
}

/// A line for each file that is told of on stdout; failures go to stderr.
fn text(files: &[Recovered]) -> String {
    let mut text = String::new();
    for file in files {
        let name = file.path.as_ref().unwrap_or(&file.part).display();
        let what = match file.outcome {
            Outcome::Finished => {
                let cut = match (file.cut, &file.problem) {
                    (0, _) => String::new(),
                    (n, None) => format!(", {} cut", thousands(n)),
                    (n, Some(why)) => format!(", {} cut: {why}", thousands(n)),
                };
                format!(
                    "finished with {} records, {} bytes{cut}",
                    thousands(file.records),
                    thousands(file.kept)
                )
            }
            Outcome::Removed => format!(
                "removed: no whole record in its {} bytes",
                thousands(file.cut)
            ),
            Outcome::InUse => "left alone: a capture is writing it".into(),
            Outcome::Foreign => "left alone: not the name of a capture file".into(),
            Outcome::Failed => continue,
        };
        let _ = writeln!(text, "{name}: {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_file() {
        let file = |outcome| Recovered {
            part: "/cap/wqcap-q00-1.pcap.part".into(),
            path: (outcome == Outcome::Finished).then(|| "/cap/wqcap-q00-1.pcap".into()),
            outcome,
            records: 1234,
            kept: 5678,
            cut: 100,
            problem: Some("100 zeros".into()),
        };
        let all = [
            Outcome::Finished,
            Outcome::InUse,
            Outcome::Foreign,
            Outcome::Failed,
        ];
        assert_eq!(
            text(&all.map(file)),
            "/cap/wqcap-q00-1.pcap: finished with 1,234 records, 5,678 bytes, 100 cut: 100 zeros\n\
             /cap/wqcap-q00-1.pcap.part: left alone: a capture is writing it\n\
             /cap/wqcap-q00-1.pcap.part: left alone: not the name of a capture file\n"
        );
    }
}
