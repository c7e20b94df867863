//! Errors of invalid configurations: `wqcap check` and `wqcap run` both report all errors of a
//! file. The table holds broken configurations with the exact messages.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use wqcap_tests::{Dir, Done, skip, wqcap::wqcap};

/// Table of broken configurations; its first lines describe the format.
const TABLE: &str = include_str!("broken_configs.txt");
/// Wire of a model device, for errors that do not depend on the device.
const MODEL: &str = "synth:count=1";

struct Broken {
    name: &'static str,
    config: String,
    errors: Vec<String>,
}

fn table(dir: &Path, config: &Path) -> Vec<Broken> {
    let fill = |text: &str| {
        let text = text.replace("{dir}", dir.to_str().expect("a UTF-8 path"));
        text.replace("{config}", config.to_str().expect("a UTF-8 path"))
    };
    let cases = TABLE.split("\n== ").skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (config, errors) = rest.split_once("-- errors\n").expect(name);
        Broken {
            name,
            config: fill(config),
            errors: fill(errors.trim_end()).lines().map(Into::into).collect(),
        }
    });
    cases.collect()
}

/// Creates the directory that the table describes. Returns it with the path of the configuration.
fn place() -> (Dir, std::path::PathBuf) {
    let dir = Dir::new();
    let _ = dir.folder("out");
    let _ = dir.write("file", "");
    let keys = dir.write("keys", "read_only = \"00112233445566778899aabbccddeeff\"\n");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).expect("the mode can be set");
    let config = dir.join("wqcap.toml");
    (dir, config)
}

fn errors(done: &Done) -> Vec<String> {
    let lines = done.stderr.lines();
    lines
        .filter_map(|it| it.strip_prefix("error: "))
        .map(Into::into)
        .collect()
}

/// Returns `true` if `text` matches `pattern`, in which `*` stands for any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let parts: Vec<_> = pattern.split('*').collect();
    let [first, middle @ .., last] = &parts[..] else {
        return pattern == text;
    };
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    for part in middle {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

fn entries(dir: &Dir) -> Vec<String> {
    let entries = fs::read_dir(dir.path()).expect("a folder");
    let name = |it: std::io::Result<fs::DirEntry>| it.expect("lists").file_name();
    let mut names: Vec<_> = entries
        .map(|it| name(it).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn check_and_run_report_the_errors_of_the_table() {
    let (dir, config) = place();
    let cases = table(dir.path(), &config);
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut wrong = String::new();
    for it in cases {
        fs::write(&config, &it.config).expect("the file is writable");
        let before = entries(&dir);
        let check = wqcap(["check", "--model", MODEL]).arg(&config).run();
        let check = check.expect(2);
        let run = wqcap(["run", "--model", MODEL, "-c"]).arg(&config).run();
        let run = run.expect(2);
        assert_eq!(check.stdout, "", "{}", it.name);
        assert_eq!(entries(&dir), before, "{} has left files", it.name);
        let (check, run) = (errors(&check), errors(&run));
        let same = it.errors.len() == check.len()
            && it
                .errors
                .iter()
                .zip(&check)
                .all(|(error, it)| matches_pattern(error, it));
        if !same || check != run {
            let [check, run] = [check, run].map(|it| it.join("\n"));
            wrong += &format!("== {}\n-- errors of check\n{check}\n", it.name);
            if check != run {
                wrong += &format!("-- errors of run\n{run}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "errors differ from the table:\n{wrong}");
}

#[test]
fn without_a_device_check_reports_all_other_errors() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skip!("this machine has an RDMA device");
    }
    let (dir, config) = place();
    let out = dir.join("out");
    let sound = format!(
        "output.dir = \"{}\"\ndevice.name = \"mlx5_0\"\n",
        out.display()
    );
    fs::write(&config, sound).expect("the file is writable");
    let done = wqcap(["check"]).arg(&config).run().expect(0);
    done.says(&["note: no RDMA device", "--device-required"]);
    assert!(done.stdout.contains("name = \"mlx5_0\""), "{done}");
    let done = wqcap(["check", "--device-required"]).arg(&config).run();
    done.expect(2).says(&["no RDMA device", "--model"]);
    // These cases of the table depend on a device.
    let needs_device = ["a missing device and another error", "a missing port"];
    for it in table(dir.path(), &config) {
        fs::write(&config, &it.config).expect("the file is writable");
        let done = wqcap(["check"]).arg(&config).run();
        if it.name == needs_device[1] {
            let _ = done.expect(0);
            continue;
        }
        let reported = errors(&done.expect(2));
        let is_complete = it.name != needs_device[0];
        let missing = |error: &&String| !reported.iter().any(|it| matches_pattern(error, it));
        let missing: Vec<_> = it.errors.iter().filter(missing).collect();
        assert!(
            missing.is_empty() == is_complete,
            "{}: {missing:?} not in {reported:?}",
            it.name
        );
    }
}

#[test]
fn patterns_match() {
    for (pattern, text, does) in [
        ("a b", "a b", true),
        ("a b", "a b c", false),
        ("a * c", "a b c", true),
        ("a * c", "a b d", false),
        ("a *", "a b d", true),
        ("*, *!", "x, y!", true),
        ("a * for * is", "a b for c, d for e is", true),
    ] {
        assert_eq!(matches_pattern(pattern, text), does, "{pattern} {text}");
    }
}
