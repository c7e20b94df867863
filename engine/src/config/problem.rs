//! What is wrong with a configuration, in the user's words: the key, its value, and what is allowed.

use std::fmt;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// Where in the file; `None`: it is not in the file, or not of one place.
    pub place: Option<Place>,
    /// The dotted key, or a section; empty: the text is no TOML.
    pub key: String,
    /// Its value, as given; empty: it is the key that is wrong.
    pub value: String,
    /// What is wrong: the limit, and what to do.
    pub problem: String,
}

/// A place in a text, both from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The character in it.
    pub column: usize,
}

impl Problem {
    /// A key that holds what cannot be done.
    pub fn new(key: impl Into<String>, value: impl ToString, problem: impl ToString) -> Self {
        Self {
            place: None,
            key: key.into(),
            value: value.to_string(),
            problem: problem.to_string(),
        }
    }

    /// Whether this is about something under `key`, or says that something else does not go with it.
    pub(super) fn is_about(&self, key: &str) -> bool {
        [&self.key, &self.problem].iter().any(|it| it.contains(key))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            key,
            value,
            problem,
            ..
        } = self;
        match (key.is_empty(), value.is_empty()) {
            (true, _) => f.write_str(problem),
            (false, true) => write!(f, "{key}: {problem}"),
            (false, false) => write!(f, "{key} = {value}: {problem}"),
        }
    }
}

/// All that is wrong with a configuration, in the order of the file.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    /// A line for each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, it) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let Some(Place { line, column }) = it.place {
                write!(f, "line {line}, column {column}: ")?;
            }
            it.fmt(f)?;
        }
        Ok(())
    }
}

/// The word of `known` that was most likely meant.
pub(super) fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Less alike is no help (Jaro, 0 to 1).
    const ALIKE: f64 = 0.75;
    known
        .into_iter()
        .map(|it| (strsim::jaro(word, it), it))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_hand_are_seen_through() {
        let known = ["queues", "cores", "ring", "buffer", "snaplen"];
        for (typed, is) in [
            ("queus", Some("queues")),
            ("snap_len", Some("snaplen")),
            ("rnig", Some("ring")),
            ("ring_size", Some("ring")),
            ("colour", None),
        ] {
            assert_eq!(meant(typed, known), is, "{typed}");
        }
    }

    #[test]
    fn there_is_no_empty_key_or_value() {
        assert_eq!(Problem::new("a.b", 1, "no").to_string(), "a.b = 1: no");
        assert_eq!(Problem::new("a.b", "", "no").to_string(), "a.b: no");
        assert_eq!(Problem::new("", "", "no").to_string(), "no");
    }
}
