//! Problems of a configuration: the key, its value, and the allowed values of that key.

use std::fmt;

/// One problem of a configuration: its place, the key, the value and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    pub(super) place: Option<TextPosition>,
    /// Dotted name of the wrong configuration key or section; empty: the text is not TOML.
    pub(crate) key: String,
    /// Configuration value as given; empty: the key itself is wrong.
    pub(crate) value: Box<str>,
    /// Limit that the configuration value violates, and the remedy.
    pub(super) problem: Box<str>,
    /// Key or section that was probably meant; `None` if the key is known, or similar to none.
    pub(super) suggested: Option<Box<str>>,
    /// Other configuration keys and sections whose values the problem depends on.
    pub(super) involved: Box<[&'static str]>,
}

/// Line and column in a configuration text, both counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TextPosition {
    /// Line number in the configuration text, from 1.
    pub line: usize,
    /// Character position within the line of configuration text, from 1.
    pub column: usize,
}

impl Problem {
    /// Creates a problem of the configuration key `key`, without a place in the file.
    pub fn new(key: impl Into<String>, value: impl ToString, problem: impl ToString) -> Self {
        Self {
            place: None,
            key: key.into(),
            value: value.to_string().into(),
            problem: problem.to_string().into(),
            suggested: None,
            involved: Box::default(),
        }
    }

    /// Adds other configuration keys and sections whose values the problem depends on. If one of
    /// them is wrong, the problem may only follow from it.
    #[must_use]
    pub fn involving(mut self, keys: &[&'static str]) -> Self {
        self.involved = keys.into();
        self
    }

    /// Returns the line and column of the problem in the configuration file; `None`: the problem
    /// has no single place, or is not in the file.
    #[must_use]
    pub fn place(&self) -> Option<TextPosition> {
        self.place
    }

    /// Returns `true` if the problem depends on the value of the configuration key or section
    /// `key`, or of a key below it.
    pub(super) fn is_about(&self, key: &str) -> bool {
        let below = |it: &str| {
            it.strip_prefix(key)
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        };
        below(&self.key) || self.involved.iter().any(|it| below(it))
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

/// All problems of a configuration, in the order of the file.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    pub(super) problems: Vec<Problem>,
}

impl ConfigError {
    /// Returns the configuration problems in the order of the file; never none.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for ConfigError {
    /// Writes one line per configuration problem, with line and column where they are known.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, it) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            if let Some(TextPosition { line, column }) = it.place {
                write!(f, "line {line}, column {column}: ")?;
            }
            it.fmt(f)?;
        }
        Ok(())
    }
}

/// Returns the word of `known` that is most similar to a mistyped `word`, if one is similar enough.
pub(super) fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Minimum Jaro similarity (0 to 1) of a word that is suggested for a mistyped one.
    const MIN_SIMILARITY: f64 = 0.75;
    known
        .into_iter()
        .map(|it| (strsim::jaro(word, it), it))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, it)| it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelled_words_are_recognized() {
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
    fn a_problem_is_about_its_key_the_section_and_the_keys_that_it_depends_on() {
        let it = Problem::new("rss.weights", "[1]", "no").involving(&["capture.queues"]);
        for (key, is) in [
            ("rss.weights", true),
            ("rss", true),
            ("capture.queues", true),
            ("capture", true),
            ("capture.queue", false),
            ("rss.weights.x", false),
            ("output", false),
        ] {
            assert_eq!(it.is_about(key), is, "{key}");
        }
    }

    #[test]
    fn empty_keys_and_values_are_left_out() {
        assert_eq!(Problem::new("a.b", 1, "no").to_string(), "a.b = 1: no");
        assert_eq!(Problem::new("a.b", "", "no").to_string(), "a.b: no");
        assert_eq!(Problem::new("", "", "no").to_string(), "no");
    }
}
