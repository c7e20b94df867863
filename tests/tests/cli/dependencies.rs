//! Checks the dependencies against `deny.toml`: allowed licences and allowed registries. `cargo
//! deny` checks more, but must be installed; these tests need only cargo, and no network.

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    env::consts::ARCH,
    fs,
    process::Command,
};
use toml::Table;
use wqcap_tests::binaries::root;

/// Reads a TOML file of the workspace.
fn toml(path: &str) -> Table {
    let text = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    text.parse().unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Returns the strings of an array.
fn strings(array: &toml::Value) -> Vec<&str> {
    let array = array.as_array().expect("an array");
    array
        .iter()
        .map(|it| it.as_str().expect("a string"))
        .collect()
}

/// Returns `true` if the `allowed` licences satisfy an SPDX expression. Older manifests write `/`
/// for `OR`.
fn permits(allowed: &[&str], expression: &str) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let met = any(allowed, &mut words);
    assert_eq!(words.next(), None, "cannot parse {expression}");
    met
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(allowed: &[&str], words: &mut Words<'_>) -> bool {
    let mut met = all(allowed, words);
    while words.next_if_eq(&"OR").is_some() {
        met |= all(allowed, words);
    }
    met
}

fn all(allowed: &[&str], words: &mut Words<'_>) -> bool {
    let mut met = one(allowed, words);
    while words.next_if_eq(&"AND").is_some() {
        met &= one(allowed, words);
    }
    met
}

fn one(allowed: &[&str], words: &mut Words<'_>) -> bool {
    let word = words.next().expect("a licence");
    if word == "(" {
        let met = any(allowed, words);
        assert_eq!(words.next(), Some(")"));
        return met;
    }
    match words.next_if_eq(&"WITH") {
        Some(_) => {
            let exception = words.next().expect("an exception");
            allowed.contains(&format!("{word} WITH {exception}").as_str())
        }
        None => allowed.contains(&word),
    }
}

#[test]
fn licence_expressions_are_evaluated() {
    let allowed = ["MIT", "Zlib", "GPL-2.0 WITH x"];
    for (expression, met) in [
        ("MIT", true),
        ("Apache-2.0", false),
        ("Apache-2.0 OR MIT", true),
        ("Apache-2.0/MIT", true),
        ("Apache-2.0 AND MIT", false),
        ("Zlib AND MIT OR Apache-2.0", true),
        ("Apache-2.0 OR BSD AND MIT", false),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", false),
        ("(MIT OR Apache-2.0) AND Zlib", true),
        ("GPL-2.0 WITH x", true),
        ("GPL-2.0 WITH y", false),
        ("GPL-2.0", false),
    ] {
        assert_eq!(permits(&allowed, expression), met, "{expression}");
    }
}

/// Checks this platform only: cargo has not fetched the packages of others.
#[test]
fn every_dependency_has_an_allowed_licence() {
    let deny = toml("deny.toml");
    let licenses = &deny["licenses"];
    let allowed = strings(&licenses["allow"]);
    let clarified: BTreeMap<_, _> = licenses["clarify"]
        .as_array()
        .expect("an array of tables")
        .iter()
        .map(|it| (it["crate"].as_str(), it["expression"].as_str()))
        .collect();

    let platform = format!("{ARCH}-unknown-linux-gnu");
    let done = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version=1"])
        .args(["--filter-platform", &platform])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let stderr = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "cargo metadata: {stderr}");
    let metadata: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    assert!(packages.len() > 100, "the list is incomplete: {packages:?}");

    let mut refused = Vec::new();
    for package in packages {
        let name = package["name"].as_str();
        let license = package["license"].as_str();
        let license = license.or_else(|| clarified.get(&name).copied().flatten());
        if !license.is_some_and(|it| permits(&allowed, it)) {
            refused.push(format!(
                "{} {}: {license:?}",
                package["name"], package["version"]
            ));
        }
    }
    assert!(refused.is_empty(), "deny.toml does not allow {refused:#?}");
}

/// Checks the packages of all platforms.
#[test]
fn every_dependency_comes_from_an_allowed_registry() {
    let deny = toml("deny.toml");
    let allowed: Vec<_> = strings(&deny["sources"]["allow-registry"])
        .into_iter()
        .map(|url| format!("registry+{url}"))
        .collect();
    let lock = toml("Cargo.lock");
    let packages = lock["package"].as_array().expect("packages");
    let mut foreign = Vec::new();
    for package in packages {
        // Packages of the workspace have no source.
        let Some(source) = package.get("source") else {
            continue;
        };
        let source = source.as_str().expect("a string").to_owned();
        if !allowed.contains(&source) || package.get("checksum").is_none() {
            foreign.push(format!("{}: {source}", package["name"]));
        }
    }
    assert!(packages.len() > 100 && foreign.is_empty(), "{foreign:#?}");
}

/// The fuzz targets' package of the model is outside the workspace, so only this test detects a
/// missing dependency.
#[test]
fn the_fuzz_model_has_the_dependencies_of_the_model() {
    let dependencies = |path: &str| {
        toml(path)["dependencies"]
            .as_table()
            .expect("a table")
            .clone()
    };
    let shared = &toml("Cargo.toml")["workspace"]["dependencies"];
    let model = dependencies("mlx5-model/Cargo.toml");
    let fuzzed = dependencies("fuzz/model/Cargo.toml");
    let names = |of: &Table| of.keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&fuzzed), names(&model));
    let features = |it: &toml::Value| -> BTreeSet<String> {
        let named = it.get("features").map(strings).unwrap_or_default();
        named.into_iter().map(str::to_owned).collect()
    };
    let version = |it: &toml::Value| it.get("version").or(it.as_str().map(|_| it)).cloned();
    for (name, own) in &model {
        let (there, shared) = (&fuzzed[name], &shared[name.as_str()]);
        assert_eq!(
            features(there),
            &features(own) | &features(shared),
            "{name}"
        );
        assert_eq!(version(there), version(shared), "{name}");
    }
}
