//! Deserialization errors of a TOML value in the user's terms: they name the expected kind, never a
//! Rust type.

use super::problem::meant;
use serde::{
    Deserializer,
    de::{
        self, Expected, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use std::fmt;
use toml::Value;

/// Reason why a TOML value does not fit its configuration key.
#[derive(Debug)]
pub(super) enum Misfit {
    /// The configuration value has the wrong type; holds serde's name of the expected type.
    Kind(String),
    /// The configuration value is none of the key's allowed words.
    Word(&'static [&'static str]),
    /// The configuration key is unknown; holds the known keys.
    Key(&'static [&'static str]),
    /// The configuration value was refused by its type's own parser; holds the error message.
    Other(String),
}

impl Misfit {
    /// Returns the values that a configuration key allows, as text. `range` is the range of the
    /// key, if it has one.
    pub(super) fn text(&self, value: &Value, range: Option<String>) -> String {
        match self {
            Self::Kind(expected) => {
                let (what, usual) = kind(expected);
                let each = match value {
                    Value::Array(_) if !what.starts_with("a list") => "each must be",
                    _ => "must be",
                };
                match (range, usual) {
                    (Some(range), Some(_)) => format!("{each} {what} ({range})"),
                    (Some(range), None) => format!("{each} {what}; {range}"),
                    (None, Some(usual)) => format!("{each} {what} ({usual})"),
                    (None, None) => format!("{each} {what}"),
                }
            }
            Self::Word(words) => {
                let typed = value.as_str().unwrap_or_default();
                let guess = meant(&typed.to_lowercase(), words.iter().copied());
                let guess = guess.map(|it| format!("; did you mean \"{it}\"?"));
                format!("must be {}{}", any_of(words), guess.unwrap_or_default())
            }
            Self::Key(known) => format!(
                "the value must be a section with some of the keys {}",
                known.join(", ")
            ),
            // Problem messages begin with the value, so its quotation at the start is removed.
            Self::Other(text) => {
                let quoted = value.as_str().map(|it| format!("{it:?}"));
                let rest = quoted.and_then(|it| text.strip_prefix(&it));
                let rest = rest.map(|it| it.trim_start_matches([':', ' ']));
                rest.map_or(text.as_str(), |it| it.strip_prefix("is ").unwrap_or(it))
                    .to_owned()
            }
        }
    }
}

/// Translates serde's name of a type into the user's terms, with the limits of a number whose key
/// has no range of its own.
fn kind(expected: &str) -> (&str, Option<&'static str>) {
    match expected {
        "u8" => ("a whole number", Some("0 to 255")),
        "u16" => ("a whole number", Some("0 to 65535")),
        "u32" => ("a whole number", Some("0 to 4294967295")),
        "u64" | "usize" => ("a whole number", Some("0 or more")),
        "a boolean" => ("true or false", None),
        "a string" | "path string" => ("text in quotes", None),
        "a sequence" => ("a list, such as [1, 2]", None),
        "socket address" => ("an address with a port, such as \"127.0.0.1:9464\"", None),
        it if it.starts_with("struct ") => ("a section of keys", None),
        it => (it, None),
    }
}

/// Formats the allowed words of a configuration key as `"a", "b" or "c"`.
fn any_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|it| format!("\"{it}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for Misfit {}

impl de::Error for Misfit {
    fn custom<T: fmt::Display>(text: T) -> Self {
        match text.to_string() {
            // Message of the standard library for malformed socket addresses.
            it if it == "invalid socket address syntax" => Self::Kind("socket address".into()),
            it => Self::Other(it),
        }
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Kind(expected.to_string())
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::Kind(expected.to_string())
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::Word(expected)
    }

    fn unknown_field(_: &str, expected: &'static [&'static str]) -> Self {
        Self::Key(expected)
    }
}

/// TOML configuration value to be deserialized; errors are [`Misfit`]s.
#[derive(Clone, Copy)]
pub(super) struct Candidate<'v>(pub &'v Value);

impl IntoDeserializer<'_, Misfit> for Candidate<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Candidate<'_> {
    type Error = Misfit;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        match self.0 {
            Value::String(it) => visitor.visit_str(it),
            Value::Integer(it) => visitor.visit_i64(*it),
            Value::Float(it) => visitor.visit_f64(*it),
            Value::Boolean(it) => visitor.visit_bool(*it),
            Value::Datetime(_) => Err(de::Error::invalid_type(
                Unexpected::Other("a date"),
                &visitor,
            )),
            Value::Array(it) => {
                SeqDeserializer::new(it.iter().map(Candidate)).deserialize_any(visitor)
            }
            Value::Table(it) => {
                let entries = it
                    .iter()
                    .map(|(key, value)| (key.as_str(), Candidate(value)));
                MapDeserializer::new(entries).deserialize_any(visitor)
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Misfit> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Misfit> {
        match self.0.as_str() {
            Some(word) => visitor.visit_enum(word.into_deserializer()),
            None => Err(Misfit::Word(words)),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}
