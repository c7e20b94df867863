//! The Debian package: what is in it, and that it installs, works and goes from where it was installed.
//!
//! `scripts/newcomer` does the same in a Debian of its own.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use wqcap_tests::{Dir, Done, Program, binaries, process, skip};

/// The port of the configuration that comes with it.
const UNIT: &str = "usr/lib/systemd/system/wqcap.service";
/// What somebody looks for, and where.
const LOOKED_FOR: &[&str] = &[
    "usr/bin/wqcap",
    "usr/lib/wqcap/libmlx5_model.so",
    UNIT,
    "usr/lib/systemd/system/wqcap@.service",
    "usr/lib/systemd/system/wqcap-ship@.service",
    "usr/lib/sysusers.d/wqcap.conf",
    "usr/lib/tmpfiles.d/wqcap.conf",
    "usr/lib/x86_64-linux-gnu/wireshark/extcap/wqcap",
    "usr/share/bash-completion/completions/wqcap",
    "usr/share/doc/wqcap/copyright",
    "usr/share/doc/wqcap/docs/config.md",
    "usr/share/doc/wqcap/examples/monitoring/alerts.yml",
    "usr/share/man/man1/wqcap-run.1.gz",
    "usr/share/man/man5/wqcap.toml.5.gz",
    "etc/wqcap/wqcap.toml",
];

fn program(name: &str, args: &[&str]) -> Program {
    Program::new(name).args(args)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain")
}

/// dpkg for a system below `root`, whose scripts run here and are told where that is.
fn dpkg(root: &Path, args: &[&str]) -> Done {
    program("dpkg", &["--force-script-chrootless", "--force-depends"])
        .arg(format!("--root={}", root.display()))
        .args(args)
        .run()
}

#[test]
fn it_installs_works_and_goes() {
    for tool in ["cargo-deb", "dpkg", "systemd-sysusers", "systemd-tmpfiles"] {
        let found = program("sh", &["-c", &format!("command -v {tool}")]).run();
        if !found.status.success() {
            skip!("no {tool} here; scripts/package installs cargo-deb, and Debian has the others");
        }
    }
    if !process::is_root() {
        skip!("installing takes root");
    }
    let dir = Dir::new();
    let deb = dir.join("wqcap.deb");
    let _ = Program::new(binaries::root().join("scripts/package"))
        .args(["--dev", text(&deb)])
        .env("WQCAP_BIN_DIR", binaries::dir())
        .timeout(std::time::Duration::from_secs(300))
        .run()
        .expect(0);
    let depends = program("dpkg-deb", &["--field", text(&deb), "Depends"])
        .run()
        .expect(0);
    for needed in [
        "libibverbs1",
        "librdmacm1",
        "libpcap0.8",
        "ibverbs-providers",
    ] {
        assert!(depends.stdout.contains(needed), "{depends}");
    }

    let root = dir.folder("root");
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        fs::create_dir_all(root.join(folder)).expect("own");
    }
    for file in ["var/lib/dpkg/status", "etc/passwd", "etc/group"] {
        fs::write(root.join(file), "").expect("own");
    }
    let _ = dpkg(&root, &["--install", text(&deb)]).expect(0);
    for name in LOOKED_FOR {
        assert!(root.join(name).is_file(), "{name} is not there");
    }
    let unit = fs::read_to_string(root.join(UNIT)).expect("there");
    assert!(
        unit.contains("\nExecStart=/usr/bin/wqcap run -c /etc/wqcap/wqcap.toml\n"),
        "{unit}"
    );
    assert!(!unit.contains("%i"), "{unit}");
    let user = fs::read_to_string(root.join("etc/passwd")).expect("made");
    assert!(user.contains("wqcap:"), "{user}");
    let data = fs::metadata(root.join("var/lib/wqcap")).expect("made");
    assert_eq!(data.permissions().mode() & 0o7777, 0o750);

    // It finds its model where it was installed.
    let out = dir.folder("out");
    let run = Program::new(root.join("usr/bin/wqcap"))
        .args([
            "--quiet",
            "run",
            "--model",
            "synth:count=1000",
            "--set",
            "capture.queues=1",
        ])
        .arg("--set")
        .arg(format!("output.dir={}", out.display()));
    let _ = run.run().expect(0);
    assert_eq!(fs::read_dir(&out).expect("own").count(), 1);

    // Somebody's frames outlive the program that took them.
    let frames = root.join("var/lib/wqcap/frames.pcap");
    fs::write(&frames, "").expect("own");
    let _ = dpkg(&root, &["--purge", "wqcap"]).expect(0);
    for name in LOOKED_FOR {
        assert!(!root.join(name).exists(), "{name} is left");
    }
    assert!(frames.exists() && !root.join("etc/wqcap").exists());
}

/// Also where there is no cargo-deb: files move, and the list of assets is far from them.
#[test]
fn what_it_is_made_of_is_there() {
    let crate_dir = binaries::root().join("capture-cli");
    let manifest = fs::read_to_string(crate_dir.join("Cargo.toml")).expect("the manifest");
    let sources = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[\"../"));
    let sources: Vec<_> = sources.filter_map(|rest| rest.split('"').next()).collect();
    assert!(sources.len() > 8, "{sources:?}");
    for source in sources {
        // A glob's folder must be there, and not be empty.
        let path = binaries::root().join(source.split('*').next().expect("a part"));
        let found = path.is_file() || fs::read_dir(&path).is_ok_and(|mut it| it.next().is_some());
        assert!(found, "{source} is not there");
    }
    let scripts = fs::read_dir(binaries::root().join("configs/debian")).expect("a folder");
    let scripts: Vec<_> = scripts.map(|it| it.expect("lists").path()).collect();
    assert_eq!(scripts.len(), 3, "{scripts:?}");
    for script in scripts {
        let _ = program("sh", &["-n", text(&script)]).run().expect(0);
    }
}
