//! Compares `docs/config.md` with the types: every key is documented with its default.

use super::{read::known, *};
use std::{collections::BTreeMap, path::Path};
use toml::Table;

fn table(config: &Config) -> Table {
    Table::try_from(config).unwrap()
}

/// Returns the TOML value at a dotted configuration key.
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

#[test]
fn every_key_is_documented_and_nothing_else() {
    let sorted = |names: &[&'static str]| {
        let mut names: Vec<_> = names.iter().map(ToString::to_string).collect();
        names.sort_unstable();
        names
    };
    let document = document();
    let sections: Vec<_> = document.keys().cloned().collect();
    assert_eq!(sections, sorted(known(None)));
    for (section, keys) in document {
        let keys: Vec<_> = keys.into_keys().collect();
        assert_eq!(keys, sorted(known(Some(&section))), "{section}");
    }
}

#[test]
fn documented_defaults_are_the_defaults() {
    const OPTIONAL: &str = "[flows]\n[control]\n[metrics]\n[ship]\n[serve]\n[anonymize]\n";
    let everything = Config::parse(OPTIONAL).unwrap();
    for (section, rows) in document() {
        for (key, default) in rows {
            let name = format!("{section}.{key}");
            // A single literal in backquotes is the value. Words describe the meaning of an absent
            // key.
            let literal = default
                .strip_prefix('`')
                .and_then(|text| text.strip_suffix('`'));
            if ["port", "rule", "cutoff"].contains(&section.as_str()) {
                // An array of tables has no default value; its fields have.
                let line = literal.map(|value| format!("{key} = {value}"));
                let required = match section.as_str() {
                    "port" => "interface = \"mon0\"",
                    _ => "",
                };
                let alone = |line: &str| {
                    let text =
                        format!("capture.mode = \"filtered\"\n[[{section}]]\n{required}\n{line}");
                    let config = Config::parse(&text).unwrap();
                    (config.port, config.rule, config.cutoff)
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
