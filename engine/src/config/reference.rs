//! Compares `docs/config.md` with the types: every key is documented with its default.

use super::*;
use serde::de::{self, DeserializeOwned, Deserializer, Visitor, value};
use std::{collections::BTreeMap, fmt::Debug, path::Path};
use toml::Table;

/// Deserializer that records the field names of a struct: serde passes them before it reads any
/// value.
struct Fields<'a>(&'a mut Vec<&'static str>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("no struct"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.extend(fields);
        Err(de::Error::custom("only the field names are read"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

fn fields<T: DeserializeOwned + Debug>() -> Vec<&'static str> {
    let mut fields = Vec::new();
    T::deserialize(Fields(&mut fields)).unwrap_err();
    fields
}

fn table(config: &Config) -> Table {
    Table::try_from(config).unwrap()
}

/// Returns the TOML value at a dotted key.
fn find<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    match key.split_once('.') {
        Some((first, rest)) => find(table.get(first)?.as_table()?, rest),
        None => table.get(key),
    }
}

/// Reads the configuration reference into a map from section to the documented default of each key.
fn document() -> BTreeMap<String, BTreeMap<String, String>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut sections: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut section = String::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title
                .split('`')
                .nth(1)
                .unwrap()
                .trim_matches(['[', ']'])
                .to_owned();
            sections.insert(section.clone(), BTreeMap::new());
        }
        if line.starts_with("| `") {
            let cells: Vec<_> = line.trim_matches('|').split(" | ").map(str::trim).collect();
            let [key, _meaning, _values, default] = cells[..] else {
                panic!("not four cells: {line}")
            };
            let name = key.split('`').nth(1).unwrap().to_owned();
            let rows = sections.get_mut(&section).unwrap();
            let before = rows.insert(name, default.to_owned());
            assert!(before.is_none(), "twice: {line}");
        }
    }
    sections
}

/// Returns every configuration section with the keys of its type.
fn types() -> BTreeMap<&'static str, Vec<&'static str>> {
    BTreeMap::from([
        ("device", fields::<DeviceConfig>()),
        ("capture", fields::<CaptureConfig>()),
        ("rule", fields::<RuleConfig>()),
        ("cutoff", fields::<CutoffConfig>()),
        ("wq", fields::<WqConfig>()),
        ("rss", fields::<RssConfig>()),
        ("pipeline", fields::<PipelineConfig>()),
        ("output", fields::<OutputConfig>()),
        ("flows", fields::<FlowsConfig>()),
        ("control", fields::<ControlConfig>()),
        ("metrics", fields::<MetricsConfig>()),
        ("ship", fields::<ShipConfig>()),
        ("anonymize", fields::<AnonymizeConfig>()),
        ("process", fields::<ProcessConfig>()),
    ])
}

#[test]
fn every_key_is_documented_and_nothing_else() {
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(
        sorted(fields::<Config>()),
        types().into_keys().collect::<Vec<_>>()
    );
    let document = document();
    assert_eq!(
        document.keys().collect::<Vec<_>>(),
        types().keys().collect::<Vec<_>>()
    );
    for (section, keys) in types() {
        assert_eq!(
            document[section].keys().collect::<Vec<_>>(),
            sorted(keys).iter().collect::<Vec<_>>(),
            "{section}"
        );
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    const OPTIONAL: &str = "[flows]\n[control]\n[metrics]\n[ship]\n[anonymize]\n";
    let everything = Config::parse(OPTIONAL).unwrap();
    for (section, rows) in document() {
        for (key, default) in rows {
            let name = format!("{section}.{key}");
            // A single literal in backquotes is the value. Words describe the meaning of an absent
            // key.
            let literal = default
                .strip_prefix('`')
                .and_then(|text| text.strip_suffix('`'));
            if ["rule", "cutoff"].contains(&section.as_str()) {
                // An array of tables has no default value; its fields have.
                let line = literal.map(|value| format!("{key} = {value}"));
                let alone = |line: &str| {
                    let text = format!("capture.mode = \"filtered\"\n[[{section}]]\n{line}");
                    let config = Config::parse(&text).unwrap();
                    (config.rule, config.cutoff)
                };
                assert_eq!(alone(&line.unwrap_or_default()), alone(""));
                continue;
            }
            match literal.filter(|text| !text.contains('`')) {
                Some(literal) => {
                    assert!(
                        find(&table(&everything), &name).is_some(),
                        "{name} has no value by default"
                    );
                    let set = Config::with_overrides(OPTIONAL, &[(&name, literal)]).unwrap();
                    let (set, default) = (table(&set), table(&everything));
                    assert_eq!(find(&set, &name), find(&default, &name), "{name}");
                }
                None => assert_eq!(
                    find(&table(&everything), &name),
                    None,
                    "{name} has a value by default"
                ),
            }
        }
    }
}
