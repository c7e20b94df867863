//! Checks the pages against the tree: the targets of links exist, and so do the files that
//! CONTRIBUTING.md and the walks in ARCHITECTURE.md name.

use std::fs;
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
    let (_, walks) = text.split_once("## Three walks").expect("a heading");
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
    assert!(steps > 20, "only {steps} steps");
}
