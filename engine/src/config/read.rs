//! Reader of a configuration: a file's text and overrides become a [`Config`]. Each key is tried
//! separately, so that a wrong key does not hide problems of others.

use super::{
    Config, ConfigError, Format, Order,
    check::{self, range_of},
    misfit::{Candidate, Misfit},
    problem::{Problem, TextPosition, meant},
};
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{
    Table, Value,
    de::{DeTable, DeValue},
};

/// Name of the key `format` in `[output]`, whose value `none` leaves most keys of the section
/// without effect.
pub(super) const FORMAT: &str = "format";
/// Name of the key `vlan` in `[output]`, which has an effect also with `format = "none"`.
pub(super) const VLAN: &str = "vlan";

/// Configuration sections that are arrays of tables, such as `[[rule]]`.
const LISTS: [&str; 3] = ["port", "rule", "cutoff"];

/// Maximum number of problems of a configuration that are listed: more than a user corrects at a time.
const MOST_PROBLEMS: usize = 100;

/// Maximum number of parts of a key that is set, which are separated by dots: more than any key has.
const MOST_PARTS: usize = 8;

/// Configuration read from valid keys, with the problems of all other keys.
#[derive(Debug)]
pub struct ParsedConfig {
    config: Config,
    problems: Vec<Problem>,
    /// Configuration keys whose values are uncertain: wrong keys, and the keys suggested instead of
    /// them.
    doubtful: Vec<String>,
    /// Line and column of each key of the configuration file that no override replaced.
    places: BTreeMap<String, TextPosition>,
}

impl ParsedConfig {
    /// Returns the configuration, in which wrong keys have their defaults.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns all problems of the configuration found so far.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Returns the configuration if it has no problems.
    ///
    /// # Errors
    /// All problems of the configuration.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        match self.problems {
            problems if problems.is_empty() => Ok(self.config),
            problems => Err(ConfigError { problems }),
        }
    }

    /// Adds further problems of the configuration, unless they may follow from a known problem.
    pub fn add(&mut self, found: impl IntoIterator<Item = Problem>) {
        let known = self.problems.len();
        for mut it in found {
            // A problem of a whole rule may follow from one of its fields.
            let field = format!("{}: ", it.key);
            let follows = |key: &String| it.is_about(key) || key.starts_with(&field);
            if !self.doubtful.iter().any(follows) {
                it.place = self.places.get(&it.key).copied();
                self.problems.push(it);
            }
        }
        let new = self.problems[known..].iter().flat_map(doubtful);
        self.doubtful.extend(new);
        // Problems of the file in its order, then all others.
        self.problems
            .sort_by_key(|it| (it.place.is_none(), it.place));
    }
}

/// Reads the configuration in `text` (TOML), and then sets the single keys of `overrides`.
///
/// # Errors
/// The text is not TOML.
pub(super) fn read(text: &str, overrides: &[(&str, &str)]) -> Result<ParsedConfig, ConfigError> {
    let (table, mut places) = parse(text)?;
    let mut good = Table::new();
    let mut all_wrong = Vec::new();
    for (section, value) in table {
        let (fits, wrong) = fit(&section, value);
        all_wrong.extend(wrong);
        good.extend(fits.map(|it| (section, it)));
    }
    let mut problems = describe(all_wrong, &places);
    problems.extend(without_effect(&good));
    for (key, text) in overrides {
        match set(&mut good, key, text) {
            Ok(()) => places.retain(|it, _| !it.starts_with(key)),
            Err(problem) => problems.push(problem),
        }
    }
    let doubtful = problems.iter().flat_map(doubtful).collect();
    let mut config = Config::deserialize(Candidate(&Value::Table(good))).unwrap_or_else(|e| {
        problems.push(Problem::new("", "", format!("internal error: {e}")));
        Config::default()
    });
    if config.port.len() > 1 {
        config.output.order.get_or_insert(Order::Time);
    }
    for it in &mut problems {
        it.place = places.get(&it.key).copied();
    }
    let mut reading = ParsedConfig {
        problems,
        doubtful,
        places,
        config,
    };
    let found = check::check(&reading.config);
    reading.add(found);
    Ok(reading)
}

/// Returns the configuration keys that a problem makes uncertain: the wrong key and the suggested
/// one.
fn doubtful(problem: &Problem) -> impl Iterator<Item = String> {
    let key = Some(&problem.key).filter(|it| !it.is_empty());
    let suggested = problem.suggested.as_deref().map(str::to_owned);
    key.cloned().into_iter().chain(suggested)
}

/// Parses the configuration text, and returns its values with the line and column of each key.
fn parse(text: &str) -> Result<(Table, BTreeMap<String, TextPosition>), ConfigError> {
    let (spanned, errors) = DeTable::parse_recoverable(text);
    let first = errors.iter().take(MOST_PROBLEMS);
    let mut problems: Vec<_> = first.map(|it| no_toml(text, it)).collect();
    // Further errors on the same line mostly follow from the first.
    problems.dedup_by_key(|it| it.place.map(|it| it.line));
    problems.extend(not_listed(errors.len().saturating_sub(MOST_PROBLEMS)));
    if !problems.is_empty() {
        return Err(ConfigError { problems });
    }
    let table = toml::from_str(text).map_err(|e| ConfigError {
        problems: vec![no_toml(text, &e)],
    })?;
    let mut named = Vec::new();
    for (section, value) in spanned.get_ref() {
        let name = section.get_ref();
        let mut add = |key: String, at: usize| named.push((key, at));
        add(name.to_string(), section.span().start);
        match value.get_ref() {
            DeValue::Table(keys) => {
                for key in keys.keys() {
                    add(format!("{name}.{}", key.get_ref()), key.span().start);
                }
            }
            DeValue::Array(items) => {
                for (number, item) in (1..).zip(items.iter()) {
                    add(format!("{name} {number}"), item.span().start);
                    for key in item
                        .get_ref()
                        .as_table()
                        .into_iter()
                        .flat_map(|it| it.keys())
                    {
                        add(
                            format!("{name} {number}: {}", key.get_ref()),
                            key.span().start,
                        );
                    }
                }
            }
            _ => {}
        }
    }
    Ok((table, places(text, named)))
}

fn no_toml(text: &str, error: &toml::de::Error) -> Problem {
    let at = error.span().map(|it| it.start);
    let problem = Problem::new("", "", format!("not TOML: {}", error.message()));
    let place = at.and_then(|at| places(text, vec![((), at)]).remove(&()));
    Problem { place, ..problem }
}

/// Returns the line and column of each key of `named`, given by its byte offset in the
/// configuration text, in one pass over the text.
fn places<K: Ord>(text: &str, mut named: Vec<(K, usize)>) -> BTreeMap<K, TextPosition> {
    named.sort_by_key(|(_, at)| *at);
    let (mut line, mut column, mut before) = (1, 1, 0);
    let place = |(name, at): (K, usize)| {
        for c in text.get(before..at).unwrap_or_default().chars() {
            (line, column) = match c {
                '\n' => (line + 1, 1),
                _ => (line, column + 1),
            };
        }
        before = before.max(at);
        (name, TextPosition { line, column })
    };
    named.into_iter().map(place).collect()
}

/// Key or section of a configuration file that is wrong.
enum Wrong {
    /// Value of a known configuration key that does not fit, or section that has the wrong form.
    Value(Problem),
    /// Configuration section that does not exist, with its content.
    Section(String, Value),
    /// Configuration key that does not exist in its section.
    Key {
        section: String,
        key: String,
        /// Dotted name of the unknown configuration key.
        name: String,
        value: Value,
        /// Names of all keys of the section in which the unknown key is.
        known: &'static [&'static str],
    },
}

impl Wrong {
    /// Returns the dotted name of the wrong configuration key or section.
    fn name(&self) -> &str {
        match self {
            Self::Value(problem) => &problem.key,
            Self::Section(name, _) | Self::Key { name, .. } => name,
        }
    }

    /// Returns the problem of a wrong configuration key or section, with the name that was probably
    /// meant. The search for that name takes much longer than the other steps.
    fn describe(self) -> Problem {
        match self {
            Self::Value(problem) => problem,
            Self::Section(name, value) => unknown_section(&name, &value),
            Self::Key {
                section,
                key,
                name,
                value,
                known,
            } => unknown_key(&section, &key, &name, &value, known),
        }
    }
}

/// Describes the first [`MOST_PROBLEMS`] wrong keys and sections in the order of the file, and
/// counts the others.
fn describe(mut wrong: Vec<Wrong>, places: &BTreeMap<String, TextPosition>) -> Vec<Problem> {
    wrong.sort_by_key(|it| places.get(it.name()).copied());
    let more = wrong.len().saturating_sub(MOST_PROBLEMS);
    let first = wrong.into_iter().take(MOST_PROBLEMS);
    first.map(Wrong::describe).chain(not_listed(more)).collect()
}

/// Returns a problem that states how many (`more`) problems are not listed; `None` if it is 0.
fn not_listed(more: usize) -> Option<Problem> {
    let text = format!(
        "the configuration has {more} further problems (at most {MOST_PROBLEMS} are listed); correct the listed ones first"
    );
    (more > 0).then(|| Problem::new("", "", text))
}

/// Splits a configuration section into its valid part and the problems of the rest.
fn fit(section: &str, value: Value) -> (Option<Value>, Vec<Wrong>) {
    if !known(None).contains(&section) {
        return (None, vec![Wrong::Section(section.to_owned(), value)]);
    }
    let known_here = known(Some(section));
    match value {
        Value::Table(keys) if !LISTS.contains(&section) => {
            let (fits, wrong) = fit_keys(section, known_here, keys, |key, value| {
                let one = Table::from_iter([(key.to_owned(), value)]);
                (format!("{section}.{key}"), Value::Table(one))
            });
            (Some(Value::Table(fits)), wrong)
        }
        Value::Array(items) if LISTS.contains(&section) => {
            let mut all = Vec::new();
            let mut wrong = Vec::new();
            for (number, item) in (1..).zip(items) {
                let Value::Table(keys) = item else {
                    let problem = format!(
                        "each entry of the list {section} must be a section; write [[{section}]]"
                    );
                    wrong.push(Wrong::Value(Problem::new(section, "", problem)));
                    continue;
                };
                let (fits, more) = fit_keys(section, known_here, keys, |key, value| {
                    let one = Table::from_iter([(key.to_owned(), value)]);
                    let one = Value::Array(vec![Value::Table(one)]);
                    (format!("{section} {number}: {key}"), one)
                });
                all.push(Value::Table(fits));
                wrong.extend(more);
            }
            (Some(Value::Array(all)), wrong)
        }
        other => {
            let header = if LISTS.contains(&section) {
                format!("[[{section}]]")
            } else {
                format!("[{section}]")
            };
            let problem = format!("this entry must be a section of keys; write {header}");
            let given = match &other {
                Value::Table(_) => String::new(),
                other => other.to_string(),
            };
            (
                None,
                vec![Wrong::Value(Problem::new(section, given, problem))],
            )
        }
    }
}

/// Splits the keys of a configuration section into valid keys and problems. `known` are the
/// section's keys; `alone` returns the full name of a key, and a section that has only that key.
fn fit_keys(
    section: &str,
    known: &'static [&'static str],
    keys: Table,
    alone: impl Fn(&str, Value) -> (String, Value),
) -> (Table, Vec<Wrong>) {
    let mut wrong = Vec::new();
    let mut fits = Table::new();
    for (key, value) in keys {
        let (name, one) = alone(&key, value.clone());
        let outcome = match known.contains(&key.as_str()) {
            true => attempt(section, one),
            false => Err(Misfit::Key(known)),
        };
        match outcome {
            Ok(()) => _ = fits.insert(key, value),
            Err(Misfit::Key(known)) if !known.contains(&key.as_str()) => wrong.push(Wrong::Key {
                section: section.to_owned(),
                key,
                name,
                value,
                known,
            }),
            Err(misfit) => {
                let problem = misfit.text(&value, range_of(&name));
                wrong.push(Wrong::Value(Problem::new(name, value, problem)));
            }
        }
    }
    (fits, wrong)
}

fn attempt(section: &str, value: Value) -> Result<(), Misfit> {
    let table = Table::from_iter([(section.to_owned(), value)]);
    Config::deserialize(Candidate(&Value::Table(table))).map(drop)
}

/// Returns the names of all configuration sections or, if `section` is given, of all its keys. They
/// come from serde's error for an unknown key.
pub(super) fn known(section: Option<&str>) -> &'static [&'static str] {
    let nothing = || Table::from_iter([(String::new(), Value::Boolean(true))]);
    let asked = match section {
        None => Config::deserialize(Candidate(&Value::Table(nothing()))).map(drop),
        Some(list) if LISTS.contains(&list) => {
            attempt(list, Value::Array(vec![Value::Table(nothing())]))
        }
        Some(section) => attempt(section, Value::Table(nothing())),
    };
    match asked {
        Err(Misfit::Key(known)) => known,
        _ => &[],
    }
}

fn unknown_section(name: &str, value: &Value) -> Problem {
    let (kind, given) = match value {
        Value::Table(_) => ("section", String::new()),
        Value::Array(list) if list.iter().all(Value::is_table) => ("section", String::new()),
        other => ("key", other.to_string()),
    };
    let sections = known(None);
    let home = home_of(name).filter(|_| kind == "key");
    let section = || meant(name, sections.iter().copied());
    let (rest, suggested) = match home {
        Some(key) => (format!("did you mean {key}?"), Some(key)),
        None => match section() {
            Some(it) => (format!("did you mean [{it}]?"), Some(it.to_owned())),
            None => (format!("the sections are {}", sections.join(", ")), None),
        },
    };
    Problem {
        suggested: suggested.map(Into::into),
        ..Problem::new(name, given, format!("unknown {kind}; {rest}"))
    }
}

/// Returns the dotted name of the configuration key called `key` in the first section that has one;
/// `None`: no section has it.
fn home_of(key: &str) -> Option<String> {
    let mut sections = known(None).iter().filter(|it| !LISTS.contains(it));
    let home = sections.find(|it| known(Some(it)).contains(&key))?;
    Some(format!("{home}.{key}"))
}

fn unknown_key(
    section: &str,
    key: &str,
    name: &str,
    value: &Value,
    known_here: &[&'static str],
) -> Problem {
    // Keys of list entries are named without the entry.
    let here = meant(key, known_here.iter().copied());
    let here = here.map(|it| match name.strip_suffix(key) {
        Some(entry) if LISTS.contains(&section) => (it.to_owned(), format!("{entry}{it}")),
        _ => (format!("{section}.{it}"), format!("{section}.{it}")),
    });
    let home = home_of(key).map(|it| (it.clone(), it));
    let (problem, suggested) = match home.or(here) {
        Some((shown, full)) => (format!("unknown key; did you mean {shown}?"), Some(full)),
        None => {
            let keys = known_here.join(", ");
            (
                format!("unknown key; the keys of this section are {keys}"),
                None,
            )
        }
    };
    Problem {
        suggested: suggested.map(Into::into),
        ..Problem::new(name, value, problem)
    }
}

/// Returns a problem for each configuration key that has no effect next to `output.format =
/// "none"`.
fn without_effect(good: &Table) -> Vec<Problem> {
    let Some(output) = good.get("output").and_then(Value::as_table) else {
        return Vec::new();
    };
    if output.get(FORMAT).and_then(Value::as_str) != Some("none") {
        return Vec::new();
    }
    let without_effect = output.iter().filter(|(key, _)| !counts(key));
    without_effect
        .map(|(key, value)| ineffective(key, value))
        .collect()
}

fn ineffective(key: &str, value: &Value) -> Problem {
    let problem = "has no effect with output.format = \"none\", which only counts frames; leave one of the two out";
    Problem::new(format!("output.{key}"), value, problem)
}

/// Returns `true` if the key `key` of `[output]` is allowed with `format = "none"`: stripped tags
/// are put back anyway, and `stdout` has its own error message.
fn counts(key: &str) -> bool {
    [FORMAT, VLAN, "stdout"].contains(&key)
}

/// Sets the configuration key `key` in `good`: as TOML if `text` is a valid TOML value for it,
/// otherwise as a string.
fn set(good: &mut Table, key: &str, text: &str) -> Result<(), Problem> {
    let refused = |problem: String| Err(Problem::new(key, text, problem));
    if key.split('.').any(str::is_empty) {
        return refused("the key has an empty part; write section.key=value".into());
    }
    if key.split('.').count() > MOST_PARTS {
        return refused("the key has too many parts; write section.key=value".into());
    }
    let (section, rest) = match key.split_once('.') {
        Some((section, rest)) => (section, Some(rest)),
        None => (key, None),
    };
    let mut first_problem = None;
    let candidates = [text.parse::<Value>().ok(), Some(Value::String(text.into()))];
    for value in candidates.into_iter().flatten() {
        let nested = rest.iter().flat_map(|it| it.rsplit('.'));
        let nested = nested.fold(value.clone(), |inner, key| {
            Value::Table(Table::from_iter([(key.to_owned(), inner)]))
        });
        let (_, wrong) = fit(section, nested);
        match wrong.into_iter().next().map(Wrong::describe) {
            Some(problem) => _ = first_problem.get_or_insert(problem),
            None => {
                return put(good, section, rest, value).map_err(|it| Problem {
                    value: text.into(),
                    ..it
                });
            }
        }
    }
    match first_problem {
        Some(it) if key.starts_with(&format!("{}.", it.key)) && it.key.contains('.') => {
            refused(format!("unknown key; {} {}", it.key, it.problem))
        }
        Some(it) => refused(it.problem.into()),
        None => Ok(()),
    }
}

/// Inserts a valid configuration key into `good`. Setting `output.format` to `none` removes the
/// keys that need files.
fn put(good: &mut Table, section: &str, key: Option<&str>, value: Value) -> Result<(), Problem> {
    let Some(key) = key else {
        good.insert(section.into(), value);
        return Ok(());
    };
    let none = <&str>::from(Format::None);
    let entry = good
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()));
    let Value::Table(keys) = entry else {
        return Err(Problem::new(
            section,
            "",
            "is not a table of keys; set it as a whole",
        ));
    };
    if section == "output" && key == FORMAT && value.as_str() == Some(none) {
        keys.retain(|it, _| counts(it));
    } else if section == "output" && !counts(key) {
        let format = keys.get(FORMAT).and_then(Value::as_str);
        if format == Some(none) {
            return Err(ineffective(key, &value));
        }
    }
    keys.insert(key.into(), value);
    Ok(())
}
