//! Container image: `scripts/image` builds it, and captures run in it, without a daemon of containers.
//!
//! umoci unpacks the image, and crun runs it with a read-only root file system and without the right to gain privileges, as
//! in `configs/kubernetes`.

use serde_json::{Value, json};
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};
use wqcap_tests::{
    Dir, Done, Program, binaries,
    machine::netns::{IFACE, Namespace, Pair},
    process::is_root,
    skip,
};

/// User and group of the image.
const USER: u64 = 65532;
/// Frames of each capture.
const FRAMES: u64 = 1000;
/// Deadline for a build, which downloads packages.
const PATIENCE: Duration = Duration::from_secs(300);

/// Shell script that hides the control groups from a program: crun refuses machines with both versions.
const WITHOUT_CGROUPS: &str = "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"";

/// Python program that sends frames on an interface until it is killed.
const TRAFFIC: &str = "
import socket, sys, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind((sys.argv[1], 0))
while True:
    s.send(bytes.fromhex('ffffffffffff02000000000188b5') + bytes(50))
    time.sleep(0.0005)
";

/// Returns the package of a release that the variable WQCAP_PACKAGE names, or builds one of the
/// binaries under test, without cargo-deb.
fn package(dir: &Dir) -> PathBuf {
    if let Some(release) = env::var_os("WQCAP_PACKAGE") {
        return release.into();
    }
    let root = dir.folder("package");
    for folder in ["DEBIAN", "usr/bin", "usr/lib/wqcap", "etc/wqcap"] {
        fs::create_dir_all(root.join(folder)).expect("a new folder");
    }
    for (name, folder) in [("wqcap", "usr/bin"), (binaries::MODEL, "usr/lib/wqcap")] {
        let strip = Program::new("strip").arg("-o");
        let strip = strip.arg(root.join(folder).join(name));
        let _ = strip.arg(binaries::dir().join(name)).run().expect(0);
    }
    let control = concat!(
        "Package: wqcap\nVersion: ",
        env!("CARGO_PKG_VERSION"),
        "-1\nArchitecture: amd64\nMaintainer: tests\n\
        Depends: libc6, libgcc-s1, libpcap0.8, systemd | systemd-sysusers\n\
        Recommends: ca-certificates, ibverbs-providers, librdmacm1\n\
        Description: binaries under test\n"
    );
    fs::write(root.join("DEBIAN/control"), control).expect("the control file is written");
    let deb = dir.join("wqcap.deb");
    let build = Program::new("dpkg-deb").args(["--root-owner-group", "-Znone", "--build"]);
    let _ = build.arg(root).arg(&deb).timeout(PATIENCE).run().expect(0);
    deb
}

/// Builds the image, and returns its archive.
fn image(dir: &Dir, package: &Path, name: &str) -> PathBuf {
    let out = dir.join(name);
    let _ = Program::new(binaries::root().join("scripts/image"))
        .arg(package)
        .arg(&out)
        .env("DEBS", dir.join("debs"))
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .timeout(PATIENCE)
        .run()
        .expect(0);
    out
}

/// Unpacks the image. Returns its root and the configuration that umoci makes of it.
fn unpack(dir: &Dir, archive: &Path) -> (PathBuf, Value) {
    let layout = dir.folder("layout");
    let untar = Program::new("tar").arg("-xf").arg(archive);
    let _ = untar.arg("-C").arg(&layout).run().expect(0);
    let bundle = dir.join("bundle");
    let _ = Program::new("umoci")
        .args(["unpack", "--image"])
        .arg(format!(
            "{}:{}",
            layout.display(),
            env!("CARGO_PKG_VERSION")
        ))
        .arg(&bundle)
        .run()
        .expect(0);
    let config = fs::read(bundle.join("config.json")).expect("a configuration");
    let config = serde_json::from_slice(&config).expect("JSON");
    (bundle.join("rootfs"), config)
}

/// Containers of the image that capture in one network namespace and share one directory.
struct Node<'a> {
    dir: &'a Dir,
    root: PathBuf,
    /// Configuration of a container, as the image has it.
    config: Value,
    network: &'a Namespace,
    /// Directory of the machine at `/var/lib/wqcap`.
    storage: PathBuf,
}

impl Node<'_> {
    /// Runs a program in a container as `user` with `capabilities`, which are ambient for a user
    /// other than root.
    fn run(&self, name: &str, user: u64, capabilities: &[&str], args: &[&str]) -> Done {
        let mut config = self.config.clone();
        config["root"] = json!({"path": self.root, "readonly": true});
        let process = &mut config["process"];
        process["terminal"] = json!(false);
        process["args"] = json!(args);
        process["user"] = json!({"uid": user, "gid": user});
        process["noNewPrivileges"] = json!(true);
        let names: Vec<_> = capabilities.iter().map(|it| format!("CAP_{it}")).collect();
        let ambient = if user == 0 { Vec::new() } else { names.clone() };
        process["capabilities"] = json!({
            "bounding": names, "permitted": names, "effective": names,
            "inheritable": ambient, "ambient": ambient,
        });
        let namespace = format!("/run/netns/{}", self.network.name());
        config["linux"]["namespaces"] = json!([
            {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
            {"type": "network", "path": namespace},
        ]);
        config["linux"]["resources"] = json!({});
        let mounts = config["mounts"].as_array_mut().expect("mounts");
        mounts.retain(|it| it["type"] != "cgroup");
        for (at, folder) in [("/var/lib/wqcap", ""), ("/run/wqcap", "run")] {
            mounts.push(json!({
                "destination": at, "source": self.storage.join(folder), "type": "bind",
                "options": ["bind", "rw", "nosuid", "nodev"],
            }));
        }
        // The ConfigMap of the manifests.
        let manifests = binaries::root().join("configs/kubernetes/capture");
        mounts.push(json!({
            "destination": "/etc/wqcap", "source": manifests, "type": "bind",
            "options": ["bind", "ro", "nosuid", "nodev"],
        }));
        let bundle = self.dir.folder(name);
        let config = serde_json::to_vec(&config).expect("JSON");
        fs::write(bundle.join("config.json"), config).expect("the configuration is written");
        Program::new("crun")
            .args(["--cgroup-manager=disabled", "--root"])
            .arg(self.dir.join("containers"))
            .args(["run", "--bundle"])
            .arg(&bundle)
            .arg(format!("{}-{name}", self.network.name()))
            .wrapped(["unshare", "--mount", "sh", "-c", WITHOUT_CGROUPS, "sh"])
            .run()
            .expect(0)
    }

    /// Asserts that a capture got all frames, and that tshark reads them from its files.
    #[track_caller]
    fn check(&self, done: &Done, folder: &str) {
        let summary = serde_json::from_str::<Value>(&done.stdout);
        let summary = summary.unwrap_or_else(|e| panic!("{e}: {done}"));
        let total = &summary["ledger"]["total"];
        assert_eq!(total["captured"], FRAMES, "{done}");
        let files = fs::read_dir(self.storage.join(folder)).expect("a folder");
        let files: Vec<_> = files
            .map(|it| it.expect("a folder that can be listed").path())
            .filter(|it| it.extension().is_some_and(|it| it == "pcapng"))
            .collect();
        assert_eq!(files.len(), 1, "{files:?}");
        let read = Program::new("tshark").arg("-r").arg(&files[0]);
        let lines = read.run().expect(0).stdout.lines().count();
        assert_eq!(lines as u64, FRAMES);
    }
}

#[test]
#[ignore = "downloads packages and takes a minute; scripts/soak runs it"]
fn captures_run_in_the_image_with_few_rights() {
    if !is_root() {
        skip!("only root can build the image and create network namespaces");
    }
    for tool in ["apt-get", "dpkg-deb", "umoci", "crun", "strip", "tshark"] {
        let found = Program::new("sh").args(["-c", &format!("command -v {tool}")]);
        if !found.run().status.success() {
            skip!("{tool} is not installed; scripts/packages test installs it");
        }
    }
    let pair = wqcap_tests::need!(Pair::new());
    let dir = Dir::new();
    let package = package(&dir);
    let archive = image(&dir, &package, "image.tar");
    let again = image(&dir, &package, "again.tar");
    let same = Program::new("cmp").arg(&archive).arg(again);
    let _ = same.run().expect(0);

    let (root, config) = unpack(&dir, &archive);
    assert_eq!(config["process"]["args"], json!(["/usr/bin/wqcap"]));
    assert_eq!(config["process"]["user"]["uid"], USER);
    assert!(!root.join("bin/sh").exists(), "the image has a shell");
    let traffic = pair
        .near
        .program("python3", &["-c", TRAFFIC, IFACE])
        .start();

    let storage = dir.folder("storage");
    let node = Node {
        dir: &dir,
        root,
        config,
        network: &pair.far,
        storage,
    };
    // As in the manifests: a container creates the folders, and root becomes the user of the configuration.
    let folders = [
        "",
        "/packets",
        "/packets/.wqcap-pins",
        "/index",
        "/flows",
        "/ship",
        "/run",
    ];
    let folders = folders.map(|it| format!("/var/lib/wqcap{it}"));
    let mut install = vec!["install", "-d", "--owner=65532", "--group=0", "--mode=0750"];
    install.extend(folders.iter().map(String::as_str));
    fs::create_dir(node.storage.join("run")).expect("a new folder");
    let _ = node.run("folders", 0, &["CHOWN", "DAC_OVERRIDE", "FOWNER"], &install);
    let interface = format!("--set=device.netdev={IFACE}");
    let count = format!("--count={FRAMES}");
    let config = "--config=/etc/wqcap/wqcap.toml";
    let capture = [
        "/usr/bin/wqcap",
        "run",
        config,
        &interface,
        &count,
        "--json",
    ];
    let rights = ["NET_RAW", "SETUID", "SETGID", "SETPCAP"];
    let done = node.run("as-root", 0, &rights, &capture);
    node.check(&done, "packets");
    let owner = Program::new("find").arg(node.storage.join("packets"));
    let foreign = owner
        .args(["!", "-user", &USER.to_string()])
        .run()
        .expect(0);
    assert_eq!(foreign.stdout, "", "files of another user");

    // As the user of the image from the start, with one ambient capability.
    let own = "/var/lib/wqcap/flows";
    let capture = [
        "/usr/bin/wqcap",
        "run",
        "-i",
        IFACE,
        "-o",
        own,
        &count,
        "--json",
    ];
    let done = node.run("as-user", USER, &["NET_RAW"], &capture);
    node.check(&done, "flows");
    drop(traffic);
}
