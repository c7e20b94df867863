//! What is wrong with a configuration is told in full, in the user's words, and by `check` as by `run`: a table of broken
//! configurations, each with the exact text.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use wqcap_tests::{Dir, Done, skip, wqcap::wqcap};

/// The table; its first lines say how it is written.
const TABLE: &str = include_str!("broken_configs.txt");
/// A device for those that are wrong on any.
const MODEL: &str = "synth:count=1";

struct Broken {
    name: &'static str,
    config: String,
    says: Vec<String>,
}

fn table(dir: &Path, config: &Path) -> Vec<Broken> {
    let fill = |text: &str| {
        let text = text.replace("{dir}", dir.to_str().expect("plain"));
        text.replace("{config}", config.to_str().expect("plain"))
    };
    let cases = TABLE.split("\n== ").skip(1).map(|case| {
        let (name, rest) = case.split_once('\n').expect("a name");
        let (config, says) = rest.split_once("-- says\n").expect(name);
        Broken {
            name,
            config: fill(config),
            says: fill(says.trim_end()).lines().map(Into::into).collect(),
        }
    });
    cases.collect()
}

/// A directory as the table describes it, and the place of the configuration.
fn place() -> (Dir, std::path::PathBuf) {
    let dir = Dir::new();
    let _ = dir.folder("out");
    let _ = dir.write("file", "");
    let keys = dir.write("keys", "read_only = \"00112233445566778899aabbccddeeff\"\n");
    fs::set_permissions(&keys, fs::Permissions::from_mode(0o644)).expect("an own file");
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

/// Whether `text` is what `pattern` says, where `*` is anything.
fn fits(pattern: &str, text: &str) -> bool {
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
fn check_and_run_say_the_same_and_it_is_this() {
    let (dir, config) = place();
    let cases = table(dir.path(), &config);
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut wrong = String::new();
    for it in cases {
        fs::write(&config, &it.config).expect("an own file");
        let before = entries(&dir);
        let check = wqcap(["check", "--model", MODEL]).arg(&config).run();
        let check = check.expect(2);
        let run = wqcap(["run", "--model", MODEL, "-c"]).arg(&config).run();
        let run = run.expect(2);
        assert_eq!(check.stdout, "", "{}", it.name);
        assert_eq!(entries(&dir), before, "{} has left something", it.name);
        let (check, run) = (errors(&check), errors(&run));
        let same = it.says.len() == check.len()
            && it.says.iter().zip(&check).all(|(says, it)| fits(says, it));
        if !same || check != run {
            let [check, run] = [check, run].map(|it| it.join("\n"));
            wrong += &format!("== {}\n-- check says\n{check}\n", it.name);
            if check != run {
                wrong += &format!("-- run says\n{run}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "not as in the table:\n{wrong}");
}

#[test]
fn without_a_device_all_that_needs_none_is_checked() {
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some()) {
        skip!("this machine has an RDMA device");
    }
    let (dir, config) = place();
    let out = dir.join("out");
    let sound = format!(
        "output.dir = \"{}\"\ndevice.name = \"mlx5_0\"\n",
        out.display()
    );
    fs::write(&config, sound).expect("an own file");
    let done = wqcap(["check"]).arg(&config).run().expect(0);
    done.says(&["note: no RDMA device", "--device-required"]);
    assert!(done.stdout.contains("name = \"mlx5_0\""), "{done}");
    let done = wqcap(["check", "--device-required"]).arg(&config).run();
    done.expect(2).says(&["no RDMA device", "--model"]);
    // A few in the table are about a device.
    let needs_one = [
        "a device that is not there, and what else is wrong",
        "a port that is not there",
    ];
    for it in table(dir.path(), &config) {
        fs::write(&config, &it.config).expect("an own file");
        let done = wqcap(["check"]).arg(&config).run();
        if it.name == needs_one[1] {
            let _ = done.expect(0);
            continue;
        }
        let told = errors(&done.expect(2));
        let about_all = it.name != needs_one[0];
        let missing = |says: &&String| !told.iter().any(|it| fits(says, it));
        let missing: Vec<_> = it.says.iter().filter(missing).collect();
        assert!(
            missing.is_empty() == about_all,
            "{}: {missing:?} not in {told:?}",
            it.name
        );
    }
}

#[test]
fn patterns_fit() {
    for (pattern, text, does) in [
        ("a b", "a b", true),
        ("a b", "a b c", false),
        ("a * c", "a b c", true),
        ("a * c", "a b d", false),
        ("a *", "a b d", true),
        ("*, *!", "x, y!", true),
        ("a * for * is", "a b for c, d for e is", true),
    ] {
        assert_eq!(fits(pattern, text), does, "{pattern} {text}");
    }
}
