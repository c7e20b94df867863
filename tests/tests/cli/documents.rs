//! Checks the pages against the tree: the targets of links exist, and so do the files that
//! CONTRIBUTING.md and the walks in ARCHITECTURE.md name.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::binaries::root;

/// Pages outside docs/ whose links are checked.
const PAGES: [&str; 5] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "mlx5-model/README.md",
];

fn read(page: &str) -> String {
    fs::read_to_string(root().join(page)).unwrap_or_else(|e| panic!("{page}: {e}"))
}

fn pages() -> Vec<String> {
    let docs = fs::read_dir(root().join("docs")).expect("docs can be listed");
    let docs = docs
        .map(|entry| entry.expect("docs can be listed").file_name())
        .map(|name| format!("docs/{}", name.to_str().expect("a UTF-8 name")))
        .filter(|path| path.ends_with(".md"));
    PAGES.map(str::to_owned).into_iter().chain(docs).collect()
}

/// Returns the anchor of a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Returns the error of a link on a page; `None` if its target exists.
fn problem(page: &str, link: &str) -> Option<String> {
    let (path, heading) = link.split_once('#').unwrap_or((link, ""));
    let file = match path {
        "" => root().join(page),
        path => root().join(page).parent().expect("a folder").join(path),
    };
    if !file.exists() {
        return Some(format!("{page}: there is no file for the link {link}"));
    }
    let is_there = heading.is_empty()
        || fs::read_to_string(&file)
            .expect("text")
            .lines()
            .filter(|line| line.starts_with('#'))
            .any(|line| anchor(line.trim_start_matches('#').trim()) == heading);
    (!is_there).then(|| format!("{page}: there is no heading for the link {link}"))
}

#[test]
fn every_link_has_a_target() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().expect("a part");
            if link.starts_with("http") {
                continue;
            }
            seen += 1;
            wrong.extend(problem(&page, link));
        }
    }
    assert!(seen > 30, "only {seen} links");
    assert!(wrong.is_empty(), "{wrong:#?}");
    for link in ["docs/none.md", "docs/modes.md#none"] {
        assert!(problem("README.md", link).is_some(), "{link}");
    }
}

#[test]
fn contributing_names_files_that_exist() {
    let text = read("CONTRIBUTING.md");
    let paths: Vec<_> = text
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|it| it.contains('/') && !it.contains([' ', '\n']))
        .collect();
    assert!(paths.len() > 40, "{paths:?}");
    let missing: Vec<_> = paths
        .into_iter()
        .filter(|path| !root().join(path).exists())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_walks_of_the_architecture_page_name_existing_files_once() {
    let text = read("ARCHITECTURE.md");
    let (_, walks) = text.split_once("## Five walks").expect("a heading");
    let (walks, _) = walks.split_once("\n## ").expect("another heading");
    let (mut walk, mut steps) = (Vec::new(), 0);
    for line in walks.lines() {
        let Some((number, step)) = line.split_once(". `") else {
            continue;
        };
        let (path, _) = step.split_once('`').expect("a path in code");
        if number == "1" {
            walk.clear();
        }
        assert!(root().join(path).is_file(), "{path}");
        assert!(!walk.contains(&path), "{path} occurs twice");
        walk.push(path);
        assert_eq!(number, walk.len().to_string(), "{line}");
        steps += 1;
    }
    assert!(steps > 35, "only {steps} steps");
}

/// Rows of the table that follows `heading` in ARCHITECTURE.md, as cells without backquotes.
fn table_after(text: &str, heading: &str) -> Vec<Vec<String>> {
    let (_, after) = text.split_once(heading).expect("the heading exists");
    let rows = after
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells = row.trim_matches('|').split('|');
        cells
            .map(|it| it.trim().replace('`', "").trim_end_matches('/').to_owned())
            .collect()
    })
    .collect()
}

/// Directories of the project's crates that a crate depends on, without dev-dependencies.
fn dependencies(dir: &str) -> BTreeSet<String> {
    let manifest = |path: &str| -> toml::Table { read(path).parse().expect("TOML") };
    let workspace = manifest("Cargo.toml");
    let crate_at = manifest(&format!("{dir}/Cargo.toml"));
    let of_crate = crate_at["dependencies"].as_table().expect("a table");
    of_crate
        .keys()
        .filter_map(|name| workspace["workspace"]["dependencies"][name].get("path"))
        .map(|path| path.as_str().expect("a path").to_owned())
        .collect()
}

#[test]
fn crates_depend_only_on_what_the_map_allows() {
    let map = table_after(&read("ARCHITECTURE.md"), "## The map");
    let mut above = BTreeSet::new();
    let mut checked = 0;
    for row in &map {
        let (dir, may) = (&row[0], row[2].as_str());
        let is_list = may.split(", ").all(|it| above.contains(it));
        let allowed: BTreeSet<String> = match may {
            "nothing" => BTreeSet::new(),
            "all above" => above.clone(),
            _ if is_list => may.split(", ").map(str::to_owned).collect(),
            _ => continue,
        };
        let actual = dependencies(dir);
        let extra: Vec<_> = actual.difference(&allowed).collect();
        assert!(extra.is_empty(), "{dir} depends on {extra:?}");
        if may != "all above" {
            let unused: Vec<_> = allowed.difference(&actual).collect();
            assert!(unused.is_empty(), "{dir} does not depend on {unused:?}");
        }
        above.insert(dir.clone());
        checked += 1;
    }
    assert!(checked >= 15, "only {checked} crates are in the map");
}

/// Names that follow `crate::` in a source file, without its unit tests.
fn imported_modules(source: &str) -> BTreeSet<String> {
    let product = source
        .split("#[cfg(test)]\nmod tests")
        .next()
        .expect("a part");
    let code = product
        .lines()
        .filter(|it| !it.trim_start().starts_with("//"));
    let code = code.collect::<Vec<_>>().join("\n");
    let name = |text: &str| -> String {
        let is_name = |c: &char| c.is_alphanumeric() || *c == '_';
        text.chars().take_while(is_name).collect()
    };
    let mut names = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(list) = after.strip_prefix('{') else {
            names.insert(name(after));
            continue;
        };
        // The names of the list itself, not those of the braces in it.
        let mut depth = 0;
        let mut is_start = true;
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => is_start = true,
                _ if is_start && !c.is_whitespace() => {
                    names.insert(name(&list[at..]));
                    is_start = false;
                }
                _ => {}
            }
        }
    }
    names
}

fn sources_below(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a directory");
    entries
        .flat_map(|entry| sources_below(&entry.expect("an entry").path()))
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .filter(|path| !path.ends_with("tests.rs"))
        .collect()
}

#[test]
fn modules_of_the_engine_import_only_those_above_them() {
    let table = table_after(&read("ARCHITECTURE.md"), "Its own modules:");
    let order: Vec<_> = table.iter().map(|row| row[0].clone()).collect();
    let library = read("engine/src/lib.rs");
    let declared = library.lines().filter_map(|line| {
        let name = line.strip_prefix("pub mod ")?.strip_suffix(';')?;
        Some(name.to_owned())
    });
    let declared: BTreeSet<_> = declared.collect();
    assert_eq!(
        declared,
        order.iter().cloned().collect(),
        "modules of the table"
    );
    let mut arrows = 0;
    for (at, module) in order.iter().enumerate() {
        let below = &order[at + 1..];
        let dir = root().join("engine/src").join(module);
        for file in sources_below(&dir) {
            let names = imported_modules(&fs::read_to_string(&file).expect("text"));
            arrows += names.iter().filter(|it| order.contains(it)).count();
            let back: Vec<_> = names.iter().filter(|it| below.contains(it)).collect();
            assert!(back.is_empty(), "{} imports {back:?}", file.display());
        }
    }
    assert!(arrows > 30, "only {arrows} imports were seen");
    let nested = "use crate::{\n    Error,\n    plan::{Plan, x::{y}},\n};\ncrate::sink::z();";
    let names: Vec<_> = imported_modules(nested).into_iter().collect();
    assert_eq!(names, ["Error", "plan", "sink"]);
}
