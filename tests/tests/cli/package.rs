//! Debian package: its content, and that it can be installed, used and removed.
//!
//! `scripts/newcomer` tests the same in a separate Debian system.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};
use wqcap_tests::{Dir, Done, Program, binaries, process, skip};

/// Systemd unit that runs the package's configuration file.
const UNIT: &str = "usr/lib/systemd/system/wqcap.service";
/// Files of the package that users need, with their paths.
const INSTALLED: &[&str] = &[
    "usr/bin/wqcap",
    "usr/lib/wqcap/libmlx5_model.so",
    UNIT,
    "usr/lib/systemd/system/wqcap@.service",
    "usr/lib/systemd/system/wqcap-serve@.service",
    "usr/lib/systemd/system/wqcap-ship@.service",
    "usr/lib/sysusers.d/wqcap.conf",
    "usr/lib/tmpfiles.d/wqcap.conf",
    "usr/lib/x86_64-linux-gnu/wireshark/extcap/wqcap",
    "usr/share/bash-completion/completions/wqcap",
    "usr/share/doc/wqcap/copyright",
    "usr/share/doc/wqcap/docs/config.md",
    "usr/share/doc/wqcap/examples/kubernetes/site/kustomization.yaml",
    "usr/share/doc/wqcap/examples/monitoring/alerts.yml",
    "usr/share/man/man1/wqcap-run.1.gz",
    "usr/share/man/man5/wqcap.toml.5.gz",
    "etc/wqcap/wqcap.toml",
];

fn program(name: &str, args: &[&str]) -> Program {
    Program::new(name).args(args)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

/// Runs dpkg on the system below `root`. Maintainer scripts run outside `root`, and dpkg passes
/// its path to them.
fn dpkg(root: &Path, args: &[&str]) -> Done {
    program("dpkg", &["--force-script-chrootless", "--force-depends"])
        .arg(format!("--root={}", root.display()))
        .args(args)
        .run()
}

#[test]
fn the_package_can_be_installed_used_and_purged() {
    for tool in ["cargo-deb", "dpkg", "systemd-sysusers", "systemd-tmpfiles"] {
        let found = program("sh", &["-c", &format!("command -v {tool}")]).run();
        if !found.status.success() {
            skip!(
                "{tool} is not installed; scripts/package installs cargo-deb, and Debian has the others"
            );
        }
    }
    if !process::is_root() {
        skip!("only root can install packages");
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
    assert!(depends.stdout.contains("libpcap0.8"), "{depends}");
    // Libraries of rdma-core are loaded when they are used.
    let recommends = program("dpkg-deb", &["--field", text(&deb), "Recommends"])
        .run()
        .expect(0);
    for library in ["ibverbs-providers", "librdmacm1"] {
        assert!(!depends.stdout.contains(library), "{depends}");
        assert!(recommends.stdout.contains(library), "{recommends}");
    }

    let root = dir.folder("root");
    for folder in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "etc"] {
        fs::create_dir_all(root.join(folder)).expect("the directory is created");
    }
    for file in ["var/lib/dpkg/status", "etc/passwd", "etc/group"] {
        fs::write(root.join(file), "").expect("the file is written");
    }
    let _ = dpkg(&root, &["--install", text(&deb)]).expect(0);
    for name in INSTALLED {
        assert!(root.join(name).is_file(), "{name} is installed");
    }
    let unit = fs::read_to_string(root.join(UNIT)).expect("the unit is installed");
    assert!(
        unit.contains("\nExecStart=/usr/bin/wqcap run -c /etc/wqcap/wqcap.toml\n"),
        "{unit}"
    );
    assert!(!unit.contains("%i"), "{unit}");
    let user = fs::read_to_string(root.join("etc/passwd")).expect("the file was created");
    assert!(user.contains("wqcap:"), "{user}");
    let data = fs::metadata(root.join("var/lib/wqcap"));
    let data = data.expect("the data directory was created");
    assert_eq!(data.permissions().mode() & 0o7777, 0o750);

    // The installed program finds the installed model.
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
    assert_eq!(
        fs::read_dir(&out)
            .expect("the directory is readable")
            .count(),
        1
    );

    // Purging the package keeps captured frames.
    let frames = root.join("var/lib/wqcap/frames.pcap");
    fs::write(&frames, "").expect("the file is written");
    let _ = dpkg(&root, &["--purge", "wqcap"]).expect(0);
    for name in INSTALLED {
        assert!(!root.join(name).exists(), "{name} is removed");
    }
    assert!(frames.exists() && !root.join("etc/wqcap").exists());
}

/// Runs without cargo-deb, too, to detect files that were moved without a change of the manifest's
/// list of assets.
#[test]
fn the_packages_assets_exist() {
    let crate_dir = binaries::root().join("capture-cli");
    let manifest =
        fs::read_to_string(crate_dir.join("Cargo.toml")).expect("the manifest is readable");
    let sources = manifest
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[\"../"));
    let sources: Vec<_> = sources.filter_map(|rest| rest.split('"').next()).collect();
    assert!(sources.len() > 8, "{sources:?}");
    for source in sources {
        // For a glob, the directory must exist and not be empty.
        let path = binaries::root().join(source.split('*').next().expect("a path"));
        let found = path.is_file() || fs::read_dir(&path).is_ok_and(|mut it| it.next().is_some());
        assert!(found, "{source} exists");
    }
    let scripts = fs::read_dir(binaries::root().join("configs/debian"));
    let scripts = scripts.expect("the directory is readable");
    let scripts: Vec<_> = scripts
        .map(|it| it.expect("the directory is readable").path())
        .collect();
    assert_eq!(scripts.len(), 3, "{scripts:?}");
    for script in scripts {
        let _ = program("sh", &["-n", text(&script)]).run().expect(0);
    }
}
