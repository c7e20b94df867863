//! Effects of a reload on the keys of the configuration: a table for each process that reads its
//! configuration again.

use crate::{
    answers::{changed, replaced, same},
    present::{ValueChange, differences},
};
use serde_json::json;
use std::{collections::BTreeMap, fmt};
use wqcap_control::{
    audit::{self, Peer},
    protocol::{Changed, Refusal, RefusalCode},
};
use wqcap_engine::config::Config;

/// Effect of a reload on a configuration key whose value differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyReload {
    /// The running process takes over the new value of the configuration key.
    Applies,
    /// The process does not use the configuration key.
    Unused,
    /// The new value of the key needs a restart of the process, for this reason.
    NeedsRestart(&'static str),
}

/// Table with the effect of a reload on each configuration key of a process.
#[derive(Clone, Copy, Debug)]
pub struct ReloadTable {
    /// Name of the process for people, such as `the capture`.
    pub process: &'static str,
    /// Patterns of configuration keys with their effects. The first pattern that fits a key counts.
    /// `*` at the end of a pattern stands for any text.
    pub keys: &'static [(&'static str, KeyReload)],
}

/// Differences of a reloaded configuration that a running process can take over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReloadChanges {
    /// Old and new values of the configuration keys that the process takes over, by key.
    pub applied: BTreeMap<String, ValueChange>,
    /// Configuration keys that differ and that the process does not use.
    pub unused: Vec<String>,
}

/// Reason why a reloaded configuration is refused: keys differ that need a restart of the process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ReloadRefusal {
    process: &'static str,
    /// Configuration keys that need a restart, by the reason.
    keys: BTreeMap<&'static str, Vec<String>>,
}

impl fmt::Display for ReloadRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the reload is refused, and nothing is applied")?;
        let mut separator = ": ";
        for (reason, keys) in &self.keys {
            let need = if keys.len() == 1 { "needs" } else { "need" };
            let (keys, process) = (keys.join(", "), self.process);
            write!(
                f,
                "{separator}{keys} {need} a restart of {process}: {reason}"
            )?;
            separator = "; ";
        }
        Ok(())
    }
}

impl From<ReloadRefusal> for Refusal {
    fn from(e: ReloadRefusal) -> Self {
        Self::new(RefusalCode::State, e.to_string())
    }
}

impl ReloadTable {
    /// Returns the effect of a reload on the configuration key `key`; `None`: no pattern of the
    /// table fits.
    #[must_use]
    pub fn effect(&self, key: &str) -> Option<KeyReload> {
        let fits = |pattern: &str| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => key == pattern,
        };
        let found = self.keys.iter().find(|(pattern, _)| fits(pattern));
        found.map(|(_, effect)| *effect)
    }

    /// Compares the configuration `old` of the process with the reloaded configuration `new`.
    ///
    /// # Errors
    /// Configuration keys differ that need a restart of the process, or that no pattern of the
    /// table fits.
    pub fn compare(&self, old: &Config, new: &Config) -> Result<ReloadChanges, ReloadRefusal> {
        let mut changes = ReloadChanges::default();
        let mut fixed = BTreeMap::<_, Vec<_>>::new();
        for (key, change) in differences(&json!(old), &json!(new)) {
            match self.effect(&key) {
                Some(KeyReload::Applies) => _ = changes.applied.insert(key, change),
                Some(KeyReload::Unused) => changes.unused.push(key),
                Some(KeyReload::NeedsRestart(reason)) => fixed.entry(reason).or_default().push(key),
                None => fixed
                    .entry("it is read at the start")
                    .or_default()
                    .push(key),
            }
        }
        match fixed.is_empty() {
            true => Ok(changes),
            false => Err(ReloadRefusal {
                process: self.process,
                keys: fixed,
            }),
        }
    }
}

impl ReloadChanges {
    /// Removes those taken-over configuration keys that do not begin with `start`.
    pub(crate) fn retain_below(&mut self, start: &str) {
        self.applied.retain(|key, _| key.starts_with(start));
    }

    /// Returns the outcome of a reload whose changes were applied. `more` describes what else was
    /// read again; empty: nothing.
    #[must_use]
    pub fn outcome(&self, more: &str) -> Changed {
        let texts = |value: fn(&ValueChange) -> &serde_json::Value| {
            let texts = self.applied.iter();
            let texts = texts.map(|(key, it)| format!("{key} = {}", value(it)));
            texts.collect::<Vec<_>>()
        };
        let mut now = texts(|it| &it.now);
        now.extend(Some(more).filter(|it| !it.is_empty()).map(str::to_owned));
        if !self.applied.is_empty() {
            return replaced(texts(|it| &it.was).join("; "), &now.join("; "));
        }
        match (now.is_empty(), self.unused.as_slice()) {
            (false, _) => changed(&now.join("; ")),
            (true, []) => same("nothing differs"),
            (true, keys) => same(&format!(
                "the keys that this process uses are unchanged; the changed keys are used by other commands: {}",
                keys.join(", ")
            )),
        }
    }
}

/// Writes the outcome of a reload that the signal of `who` requested to the audit trail, and a
/// failure also to the log.
pub fn report_reload(who: &Peer, outcome: &Result<Changed, Refusal>) {
    audit::log_outcome(who, "SIGHUP: reload", outcome);
    if let Err(e) = outcome {
        tracing::error!(
            "SIGHUP: the reload failed, and the configuration is unchanged: {}",
            e.message
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: ReloadTable = ReloadTable {
        process: "the test",
        keys: &[
            ("output.keep*", KeyReload::Applies),
            ("output.*", KeyReload::NeedsRestart("files are open")),
            ("serve*", KeyReload::Unused),
        ],
    };

    fn config(text: &str) -> Config {
        Config::parse(text).expect(text)
    }

    #[test]
    fn changes_are_carried_out_or_all_refused_with_reasons() {
        let old = config("");
        let new = config("[output]\nkeep_files = 2\n[serve]\n");
        let changes = TABLE.compare(&old, &new).expect("applies");
        let outcome = changes.outcome("");
        assert!(outcome.changed);
        assert_eq!(outcome.was.as_deref(), Some("output.keep_files = 0"));
        assert_eq!(outcome.now, "output.keep_files = 2");

        let new = config(
            "[output]\nkeep_files = 2\ncomment = \"y\"\nindex_dir = \"/x\"\n[rss]\nrespread = true\n",
        );
        let refusal = TABLE.compare(&old, &new).expect_err("refused");
        assert_eq!(
            refusal.to_string(),
            "the reload is refused, and nothing is applied: output.comment, output.index_dir need a restart of the test: files are \
             open; rss.respread needs a restart of the test: it is read at the start"
        );
    }

    #[test]
    fn keys_of_other_processes_are_no_change() {
        let changes = TABLE.compare(&config(""), &config("[serve]\n"));
        let outcome = changes.expect("applies").outcome("");
        assert!(
            !outcome.changed && outcome.now.ends_with("are used by other commands: serve"),
            "{outcome:?}"
        );
        let outcome = ReloadChanges::default().outcome("");
        assert_eq!(
            (outcome.changed, outcome.now.as_str()),
            (false, "nothing differs")
        );
        let outcome = ReloadChanges::default().outcome("tokens were read again");
        assert_eq!(
            (outcome.changed, outcome.now.as_str()),
            (true, "tokens were read again")
        );
    }
}
