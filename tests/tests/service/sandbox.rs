//! Tests of captures with few rights: as an ordinary user, and inside the sandbox of landlock and
//! seccomp until the last file is written.

use rustix::process::Signal;
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::OnceLock,
};
use wqcap_tests::{
    Dir, Pair, Program, Running, Wqcap,
    machine::netns::IFACE,
    machine::privileges::{self, ForAll, as_nobody},
    need, process,
    process::clients::{self, Build},
    skip,
    wqcap::wqcap,
};

/// User id of the account `nobody`.
const NOBODY: u32 = 65534;
/// Bit of CAP_DAC_OVERRIDE in a capability mask (`capability.h`).
const DAC_OVERRIDE: u64 = 1 << 1;
/// Bit of CAP_NET_RAW in a capability mask (`capability.h`).
const NET_RAW: u64 = 1 << 13;
/// Bit of CAP_IPC_LOCK in a capability mask (`capability.h`).
const IPC_LOCK: u64 = 1 << 14;

/// Folders, a control socket and a hook for a capture that uses every kind of output file.
struct Whole {
    place: ForAll,
}

impl Whole {
    fn new() -> Self {
        let place = ForAll::new();
        for name in ["out", "index", "flows", "run"] {
            let folder = place.dir().folder(name);
            fs::set_permissions(folder, fs::Permissions::from_mode(0o777))
                .expect("the test's folder is writable");
        }
        place.dir().folder("tools");
        place.dir().script(
            "tools/hook",
            "echo \"$(basename \"$1\") $(grep CapEff /proc/self/status | cut -f 2)\" >> \"${0%/*}/../run/hooked\"",
        );
        Self { place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.dir().join(name)
    }

    /// Returns a `wqcap run` with every option that opens files during the capture, and `settings`.
    fn program(&self, settings: &[&str]) -> Program {
        let at = |key: &str, name: &str| format!("{key}={}", self.path(name).display());
        let paths = [
            at("output.dir", "out"),
            at("output.index_dir", "index"),
            at("flows.dir", "flows"),
            at("output.hook", "tools/hook"),
            at("control.unix", "run/control.sock"),
        ];
        let fixed = [
            "capture.queues=2",
            "capture.ring=256",
            "capture.idle=sleep",
            "output.buffer=4MiB",
            "output.rotate_time=100ms",
            "output.keep_files=6",
            "output.encrypt_key_command=printf %064d 7",
            "flows.interval=1s",
            "metrics.listen=127.0.0.1:0",
            // The model checks the real capabilities of the process, as a kernel does.
            "model.caps=process",
        ];
        let settings = paths
            .iter()
            .map(String::as_str)
            .chain(fixed)
            .chain(settings.iter().copied());
        Program::new(self.place.wqcap())
            .args(["run", "--model", "synth:pps=3000,flows=64"])
            .args(settings.flat_map(|it| ["--set", it]))
            .arg("--summary")
            .arg(self.path("run/summary.json"))
    }

    /// Returns the lines that the hook has written, one per finished file.
    fn hooked(&self) -> String {
        fs::read_to_string(self.path("run/hooked")).unwrap_or_default()
    }

    /// Waits until the hook has run for at least `least` files.
    #[track_caller]
    fn until_hooked(&self, running: &mut Running, least: usize) {
        running.until("enough runs of the hook", |_| {
            self.hooked().lines().count() >= least
        });
    }

    fn is_empty(&self, folder: &str) -> bool {
        let mut entries = fs::read_dir(self.path(folder)).expect("the folder can be read");
        entries.next().is_none()
    }

    /// Drives a capture through rotation, retention, hooks, control requests and SIGTERM.
    ///
    /// Asserts on its files, its summary and the capabilities of its hooks. `as_whom` sets the user
    /// of `wqcap ctl`.
    fn assert_full_run(&self, mut running: Running, as_whom: impl Fn(Program) -> Program) {
        self.until_hooked(&mut running, 16);
        let ctl = |args: &[&str]| {
            let program = Program::new(self.place.wqcap())
                .args(["ctl", "--unix"])
                .arg(self.path("run/control.sock"))
                .args(args);
            as_whom(program).run().expect(0)
        };
        let _ = ctl(&["filter", "udp or tcp"]);
        // A restart creates all objects again inside the sandbox, with the io_uring of the writer.
        let _ = ctl(&["stop"]);
        let _ = ctl(&["start"]);
        let before = self.hooked().lines().count();
        self.until_hooked(&mut running, before + 4);
        running.until("an index and flow records", |_| {
            !self.is_empty("index") && !self.is_empty("flows")
        });
        running.signal(Signal::TERM);
        let done = running.wait().expect(0);
        assert!(
            !self.path("run/control.sock").exists(),
            "the control socket is removed at the end: {done}"
        );
        let summary = fs::read_to_string(self.path("run/summary.json")).expect("a summary");
        let summary = wqcap_tests::Summary::parse(&summary);
        assert!(summary.ledger.total.captured > 0);
        assert!(summary.files.len() <= 6, "{:?}", summary.files);
        let sealed = |path: &PathBuf| path.extension().is_some_and(|it| it == "enc");
        assert!(summary.files.iter().all(sealed), "{:?}", summary.files);
        assert_eq!(summary.json["encryption"]["failed"], 0);
        for line in self.hooked().lines() {
            assert!(
                line.ends_with(" 0000000000000000"),
                "a hook has no capabilities: {line}"
            );
        }
    }
}

/// Returns the value of the line `name` in proc_pid_status(5) for each thread of `pid`.
///
/// Threads of the software NIC are left out. They may have started before the capture gave up its
/// rights, and a real NIC has no such threads.
fn thread_status(pid: u32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process is running");
    let status = tasks.filter_map(|it| fs::read_to_string(it.ok()?.path().join("status")).ok());
    let status = status.filter(|it| !it.starts_with("Name:\tmlx5"));
    let line = |text: String| {
        let mut lines = text
            .lines()
            .filter_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
        lines.next().map(|it| it.trim().to_owned())
    };
    status.filter_map(line).collect()
}

/// Returns `true` if the seccomp filter applies to every thread of `pid`.
fn is_confined(pid: u32) -> bool {
    let filters = thread_status(pid, "Seccomp");
    !filters.is_empty() && filters.iter().all(|it| it == "2")
}

/// Asserts that every thread is in the sandbox and holds no capability outside `capabilities`.
#[track_caller]
fn assert_confined(running: &mut Running, capabilities: u64) {
    let pid = running.pid();
    running.until("the filter for all threads", |_| is_confined(pid));
    for value in thread_status(pid, "NoNewPrivs") {
        assert_eq!(value, "1");
    }
    for name in ["CapEff", "CapPrm"] {
        for value in thread_status(pid, name) {
            let held = u64::from_str_radix(&value, 16).expect("a mask");
            assert_eq!(held & !capabilities, 0, "{name} {value}");
        }
    }
}

#[test]
fn an_ordinary_user_captures_rotates_and_runs_hooks_in_the_sandbox() {
    if !process::is_root() {
        skip!("only root can start a program as another user with a capability");
    }
    let whole = Whole::new();
    let as_user = |program| as_nobody(program, privileges::NET_RAW);
    let mut running = as_user(whole.program(&[])).start();
    whole.until_hooked(&mut running, 1);
    assert_confined(&mut running, NET_RAW);
    whole.assert_full_run(running, as_user);
}

#[test]
fn root_switches_to_the_configured_user() {
    if !process::is_root() {
        skip!("only root can become another user");
    }
    let whole = Whole::new();
    let mut running = whole.program(&["process.user=nobody"]).start();
    whole.until_hooked(&mut running, 1);
    assert_confined(&mut running, NET_RAW | IPC_LOCK);
    for ids in thread_status(running.pid(), "Uid") {
        assert_eq!(ids, ["65534"; 4].join("\t"));
    }
    let file = fs::read_dir(whole.path("out"))
        .expect("the folder can be read")
        .flatten()
        .next();
    let owner = file.and_then(|it| it.metadata().ok()).map(|it| it.uid());
    // Retention may have deleted the file in the meantime.
    assert!(owner.is_none_or(|uid| uid == NOBODY), "{owner:?}");
    whole.assert_full_run(running, |program| program);
}

#[test]
fn an_impossible_process_user_is_refused() {
    let dir = Dir::new();
    let run = |user: &str| {
        Wqcap::run(&dir, "user")
            .model("synth:count=10")
            .set(&format!("process.user={user}"))
    };
    run("no-such-user")
        .done()
        .expect(2)
        .says(&["process.user = \"no-such-user\"", "no such user"]);
    if !process::is_root() {
        skip!("only root can give up root's rights");
    }
    let place = ForAll::new();
    let program = Program::new(place.wqcap())
        .args([
            "run",
            "--model",
            "synth:count=10",
            "--set",
            "output.format=none",
        ])
        .args(["--set", "process.user=daemon"]);
    as_nobody(program, privileges::NONE)
        .run()
        .expect(2)
        .says(&["process.user = \"daemon\"", "only root"]);
}

/// Returns a `wqcap run`, started by root with `process.user` = `nobody`, that runs `hook`.
fn hooked_as_nobody(place: &ForAll, hook: &Path) -> Program {
    let out = place.dir().join("out");
    if !out.exists() {
        let out = place.dir().folder("out");
        fs::set_permissions(out, fs::Permissions::from_mode(0o777))
            .expect("the test's folder is writable");
    }
    Program::new(place.wqcap())
        .args(["run", "--model", "synth:count=10"])
        .args([
            "--set",
            "process.user=nobody",
            "--set",
            "model.caps=process",
        ])
        .args(["--set", &format!("output.dir={}", out.display())])
        .args(["--set", &format!("output.hook={}", hook.display())])
}

#[test]
fn a_hook_that_the_user_can_replace_is_refused() {
    if !process::is_root() {
        skip!("only root can become another user");
    }
    let place = ForAll::new();
    let dir = place.dir();
    let hook = |folder: &Path, mode: u32| {
        fs::create_dir_all(folder).expect("the test's folder is writable");
        let hook = folder.join("hook");
        fs::write(&hook, "#!/bin/sh\n").expect("the test's folder is writable");
        fs::set_permissions(&hook, fs::Permissions::from_mode(mode))
            .expect("the test's folder is writable");
        hook
    };
    let mode = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .expect("the test's folder is writable");
    };
    let owned = |path: &Path| {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY))
            .expect("chown and chmod by root");
    };
    let roots = hook(&dir.join("roots"), 0o755);
    let writable = hook(&dir.join("writable"), 0o757);
    let own = hook(&dir.join("own"), 0o555);
    owned(&own);
    // Root owns the file and its folder, but the user can rename the folder through its parent.
    let renamed = hook(&dir.join("open/roots"), 0o755);
    mode(&dir.join("open"), 0o777);
    let group = hook(&dir.join("group"), 0o755);
    std::os::unix::fs::chown(dir.join("group"), None, Some(NOBODY))
        .expect("chown and chmod by root");
    mode(&dir.join("group"), 0o775);
    // In a sticky folder the user can replace only entries that the user owns.
    let sticky = hook(&dir.join("sticky"), 0o755);
    mode(&dir.join("sticky"), 0o1777);
    let link = dir.join("sticky/link");
    symlink(&roots, &link).expect("the test's folder is writable");
    let own_link = dir.join("sticky/own");
    symlink(&roots, &own_link).expect("the test's folder is writable");
    std::os::unix::fs::lchown(&own_link, Some(NOBODY), Some(NOBODY))
        .expect("chown and chmod by root");
    for hook in [&writable, &own, &renamed, &group, &own_link] {
        let done = hooked_as_nobody(&place, hook).run().expect(2);
        done.says(&[
            "output.hook = ",
            "process.user = \"nobody\" can write",
            "to root",
        ]);
    }
    for hook in [&roots, &sticky, &link] {
        let _ = hooked_as_nobody(&place, hook).run().expect(0);
    }
}

#[test]
fn a_hook_in_a_folder_that_the_sandbox_can_write_is_refused() {
    let dir = Dir::new();
    for key in ["output.dir", "output.index_dir", "flows.dir"] {
        let name = key.replace('.', "-");
        let folder = dir.folder(&name);
        let hook = dir.script(&format!("{name}/hook"), "exit 0");
        let link = dir.join(format!("{name}-link"));
        symlink(&hook, &link).expect("the test's folder is writable");
        for hook in [&hook, &link] {
            for command in ["check", "run"] {
                let mut program = wqcap([command, "--model", "synth:count=10"])
                    .args(["--set", &format!("output.hook={}", hook.display())])
                    .args(["--set", &format!("{key}={}", folder.display())]);
                if key != "output.dir" {
                    let out = dir.folder("out");
                    program = program.args(["--set", &format!("output.dir={}", out.display())]);
                }
                program.run().expect(2).says(&[
                    "output.hook = ",
                    &format!("{key} = "),
                    "where the sandbox lets wqcap write",
                    "move the program",
                ]);
            }
        }
    }
}

/// Code inside the sandbox can send any message to the process that runs hooks, but it cannot
/// change the hook program.
#[test]
fn code_in_the_sandbox_can_pass_only_finished_files_to_the_hook() {
    let (dir, other) = (Dir::new(), Dir::new());
    need!(sandbox_support(&dir));
    let hooked = other.join("hooked");
    let hook = other.script(
        "hook",
        &format!("printf '%s\\n' \"$1\" >> {}", hooked.display()),
    );
    let (out, victim) = (dir.folder("out"), other.join("victim"));
    fs::write(&victim, "").expect("the test's folder is writable");
    fs::write(out.join("planted.pcap"), "x").expect("the test's folder is writable");
    symlink("/etc/hostname", out.join("wqcap-q00-1.pcap")).expect("the test's folder is writable");
    fs::write(dir.join("wqcap-q00-2.pcap"), "x").expect("the test's folder is writable");
    fs::write(out.join("wqcap-q00-3\n.pcap"), "x").expect("the test's folder is writable");
    let mut running = wqcap(["run", "--json", "--model", "synth:pps=2000,flows=64"])
        .args(["--set", "output.format=pcap"])
        .args(["--set", &format!("output.dir={}", out.display())])
        .args(["--set", &format!("output.hook={}", hook.display())])
        .args(["--set", "output.rotate_time=200ms"])
        .args(["--set", "process.sandbox=require"])
        .args(["--set", "capture.queues=1"])
        .env(
            "LD_PRELOAD",
            clients::ours("tests/clients/attack.c", Build::Library),
        )
        .env("ATTACK_PROBE", &victim)
        .env("ATTACK_VICTIM", &victim)
        .env("ATTACK_HOOK", &hook)
        .env("ATTACK_FOLDER", &out)
        .env("XDG_RUNTIME_DIR", dir.folder("scratch"))
        .start();
    running.until("all attacks are tried", |it| {
        it.stderr().contains("attack end: done")
    });
    let lines = || fs::read_to_string(&hooked).unwrap_or_default();
    let before = lines().lines().count();
    running.until("files after the attacks", |_| {
        lines().lines().count() > before + 1
    });
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    done.says(&[
        "attack hook: EACCES",
        "output.hook: the hook was not run for",
    ]);
    let out = out.canonicalize().expect("the folder exists");
    for line in lines().lines() {
        let name = Path::new(line).strip_prefix(&out).expect("in the folder");
        let is_finished = wqcap_tests::files::read(&out.join(name)).len() > 1;
        assert!(is_finished, "{line}");
    }
    let summary: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(summary["hooks"]["refused"], 7, "{done}");
    assert_eq!(summary["hooks"]["failed"], 0);
}

/// Checks that this kernel supports the whole sandbox. The error is the reason to skip the test.
fn sandbox_support(dir: &Dir) -> Result<(), String> {
    let required = Wqcap::run(dir, "required")
        .model("synth:count=10")
        .set("process.sandbox=require")
        .done();
    if required.status.success() {
        return Ok(());
    }
    Err(required.stderr.trim().to_owned())
}

/// The sandbox grants access to folders, not to paths: a symbolic link that replaces the output
/// folder gives no access to its target.
#[test]
fn an_output_folder_replaced_by_a_link_gives_no_access_to_the_target() {
    let (dir, other) = (Dir::new(), Dir::new());
    need!(sandbox_support(&dir));
    let run = Wqcap::run(&dir, "exchanged")
        .model("synth:pps=2000,flows=64")
        .set("output.rotate_time=200ms");
    let out = run.out_path().to_owned();
    // The model removes its scratch folder at the end, so the sandbox lets a capture on the model
    // write in the parent of that folder. A capture on a real NIC has no such right.
    let mut running = run
        .program()
        .env("XDG_RUNTIME_DIR", dir.folder("scratch"))
        .start();
    running.until("a finished file", |_| has_finished_file(&out));
    fs::rename(&out, dir.join("moved")).expect("the test's folder is writable");
    symlink(other.path(), &out).expect("the test's folder is writable");
    let done = running.wait().expect(1);
    done.says(&["Permission denied"]);
    assert_eq!(
        fs::read_dir(other.path())
            .expect("the folder can be read")
            .count(),
        0
    );
}

/// The port's interface is a real one of the kernel. The `synth` wire adds only two calls to the
/// sandbox's list for hardware: `process_vm_readv` and `process_vm_writev` on the capture itself.
/// So the capture turns on promiscuous mode again under the same restrictions as on a card.
#[test]
fn an_interface_is_promiscuous_again_after_a_drain_a_stop_and_a_lost_device() {
    let pair = need!(Pair::new());
    let dir = Dir::new();
    need!(sandbox_support(&dir));
    let [lost, back] = ["lost", "back"].map(|it| dir.join(it));
    let fault = format!(
        "device_fatal:until={}@file={}",
        back.display(),
        lost.display()
    );
    let run = Wqcap::run(&dir, "promiscuous")
        .model("synth:pps=2000,flows=64")
        .set(&format!("model.netdev={IFACE}"))
        .set(&format!("model.fault={fault}"))
        .set("device.on_loss=retry")
        .set("process.sandbox=require")
        .control()
        .wrapped(&["ip", "netns", "exec", pair.far.name()]);
    let (mut running, ctl) = (run.start(), run.ctl());
    let mut frames = 0;
    let mut receives = |running: &mut Running| {
        frames = ctl.until_counted(running, "received", frames + 100);
        assert_eq!(
            pair.far.promiscuity(),
            1,
            "promiscuity while the capture receives"
        );
    };
    receives(&mut running);
    let pid = running.pid();
    running.until("the filter for all threads", |_| is_confined(pid));
    for end in ["drain", "stop"] {
        assert!(ctl.change(&[end]));
        assert_eq!(pair.far.promiscuity(), 0, "promiscuity after {end}");
        assert!(ctl.change(&["start"]));
        receives(&mut running);
    }
    fs::write(lost, "").expect("the test's folder is writable");
    let mut until = |state: &str| {
        let is = |status: &serde_json::Value| status["capture"]["state"] == state;
        let _ = ctl.until(&mut running, "status", state, is);
    };
    until("lost");
    fs::write(back, "").expect("the test's folder is writable");
    until("running");
    receives(&mut running);
    running.signal(Signal::TERM);
    let _ = run.finished(running.wait(), 0);
    assert_eq!(pair.far.promiscuity(), 0, "promiscuity at the end");
}

#[test]
fn a_kernel_without_landlock_is_reported_or_refused() {
    let dir = Dir::new();
    let run = |sandbox: &str| {
        let wrapper = clients::ours("tests/clients/without_landlock.c", Build::Plain);
        Wqcap::run(&dir, sandbox)
            .model("synth:count=1000")
            .set(&format!("process.sandbox={sandbox}"))
            .wrapped(&[wrapper.to_str().expect("the path is UTF-8")])
    };
    let on = run("on").finish(0);
    assert_eq!(on.summary.ledger.total.captured, 1000);
    on.done
        .says(&["a part of the sandbox is missing", "no landlock"]);
    let off = run("off").finish(0);
    assert!(!off.done.stderr.contains("sandbox"), "{}", off.done);
    run("require")
        .done()
        .expect(2)
        .says(&["process.sandbox = \"require\"", "no landlock"]);
}

/// Results of the attacks that `attack.c` tries from inside a capture.
/// The two ends of a wire meet at a socket, whose lock file the software NIC creates.
#[test]
fn a_wire_to_another_process_is_open_in_the_sandbox() {
    let dir = Dir::new();
    if let Err(reason) = sandbox_support(&dir) {
        skip!("{reason}");
    }
    let cable = dir.join("cable");
    let run = Wqcap::run(&dir, "peer")
        .model(&format!("peer:{}", cable.display()))
        .set("process.sandbox=require")
        .control();
    let mut running = run.start();
    running.until("the sandbox", |it| it.stderr().contains("capturing"));
    let pid = running.pid();
    running.until("the filter for all threads", |_| is_confined(pid));
    running.until("the socket", |_| cable.exists());
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    assert!(!done.stderr.contains("Permission denied"), "{done}");
}

struct Attacked {
    /// Name and errno of each attack; `Err` holds the reason why no attack could be tried.
    results: Result<Vec<(String, String)>, String>,
    /// Mode of the victim file after the attacks.
    victim_mode: u32,
}

/// Returns the results of one capture, shared by all tests, that a preloaded library attacks from
/// inside. The `synth` wire of the software NIC adds only two calls to the sandbox's list for
/// hardware: `process_vm_readv` and `process_vm_writev` on the capture itself.
fn attacked() -> &'static Attacked {
    static ATTACKED: OnceLock<Attacked> = OnceLock::new();
    ATTACKED.get_or_init(|| {
        let (dir, other) = (Dir::new(), Dir::new());
        if let Err(reason) = sandbox_support(&dir) {
            return Attacked {
                results: Err(reason),
                victim_mode: 0,
            };
        }
        let victim = other.join("victim");
        fs::write(&victim, "").expect("the test's folder is writable");
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o644))
            .expect("the test's folder is writable");
        let control = other.folder("control");
        for folder in [dir.path(), &control] {
            fs::create_dir(folder.join("sub")).expect("the test's folder is writable");
        }
        let run = Wqcap::run(&dir, "attacked")
            .model("synth:pps=2000,flows=64")
            .set("process.sandbox=require")
            .set(&format!("control.unix={}", control.join("sock").display()));
        let out = run.out_path().to_owned();
        let mut running = run
            .program()
            .env(
                "LD_PRELOAD",
                clients::ours("tests/clients/attack.c", Build::Library),
            )
            .env("ATTACK_PROBE", &victim)
            .env("ATTACK_VICTIM", &victim)
            .env("ATTACK_CONTROL", &control)
            .env("ATTACK_SUMMARY", dir.path())
            .env("ATTACK_OUT", &out)
            .env("XDG_RUNTIME_DIR", dir.folder("scratch"))
            .start();
        running.until("all attacks are tried", |it| {
            it.stderr().contains("attack end: done")
        });
        running.signal(Signal::TERM);
        let done = running.wait();
        let done = done.expect(0);
        let lines = done.stderr.lines();
        let results = lines.filter_map(|it| it.strip_prefix("attack ")?.split_once(": "));
        let after = fs::metadata(&victim).expect("the file exists");
        Attacked {
            results: Ok(results.map(|(name, e)| (name.into(), e.into())).collect()),
            victim_mode: after.mode() & 0o7777,
        }
    })
}

/// Asserts that each of `attacks` had the result `error`: an errno, or `done`.
#[track_caller]
fn assert_refused(attacks: &[&str], error: &str) {
    match &attacked().results {
        Err(reason) => skip!("{}", reason.trim()),
        Ok(results) => {
            for attack in attacks {
                let found = results.iter().find(|(name, _)| name == attack);
                assert_eq!(
                    found.map(|(_, e)| e.as_str()),
                    Some(error),
                    "result of attack {attack}"
                );
            }
        }
    }
}

#[test]
fn the_sandbox_blocks_terminal_input_and_signals_for_io() {
    assert_refused(&["TIOCSTI", "TIOCLINUX", "FIOSETOWN", "F_SETOWN"], "EPERM");
}

#[test]
fn the_sandbox_blocks_changes_of_modes_and_owners() {
    let modes = ["chmod", "fchmod", "fchmodat", "fchmodat2"];
    assert_refused(&modes, "EPERM");
    assert_refused(&["chown", "lchown", "fchown", "fchownat"], "EPERM");
    assert_refused(&["setxattr"], "EPERM");
    if attacked().results.is_ok() {
        assert_eq!(attacked().victim_mode, 0o644, "mode of the victim file");
    }
}

#[test]
fn the_sandbox_blocks_changes_of_times_by_name() {
    assert_refused(&["utimensat"], "EPERM");
}

#[test]
fn the_sandbox_blocks_files_with_special_modes() {
    let calls = ["open_setuid", "open_setgid", "unnamed_setuid"];
    assert_refused(&calls, "EPERM");
    assert_refused(&["openat2_setuid"], "ENOSYS");
    assert_refused(&["mkdir_setgid", "mknod_setuid"], "EPERM");
    if cfg!(target_arch = "x86_64") {
        let old = ["old_open_setuid", "old_creat_setuid", "old_mkdir_sticky"];
        assert_refused(&old, "EPERM");
    }
    assert_refused(&["open_ordinary"], "done");
}

/// `flock` stays possible: wqcap locks its files with it, and a filter cannot see which file a
/// descriptor belongs to.
#[test]
fn the_sandbox_blocks_record_locks_but_not_flock() {
    assert_refused(&["record_lock", "file_lock"], "EPERM");
    assert_refused(&["flock"], "done");
}

#[test]
fn the_sandbox_blocks_socket_options_that_evade_routing() {
    let options = ["transparent", "freebind", "mark", "to_device"];
    assert_refused(&options, "EPERM");
}

#[test]
fn the_sandbox_blocks_new_io_uring_instances() {
    assert_refused(&["io_uring_setup"], "EPERM");
}

#[test]
fn the_sandbox_blocks_unix_sockets() {
    let kinds = ["unix_stream", "unix_datagram", "unix_seqpacket"];
    assert_refused(&kinds, "EPERM");
    assert_refused(&["socketpair", "connect"], "EPERM");
}

#[test]
fn the_sandbox_blocks_sockets_of_other_kinds() {
    let kinds = [
        "mptcp", "tcp", "sctp", "ping", "raw", "packet", "vsock", "alg",
    ];
    assert_refused(&kinds, "EPERM");
    assert_refused(&["route", "netfilter", "generic"], "EPERM");
}

#[test]
fn the_sandbox_blocks_listening_and_tcp_fast_open() {
    assert_refused(&["listen", "fastopen"], "EPERM");
}

#[test]
fn the_sandbox_blocks_access_to_other_processes() {
    let calls = [
        "tgkill",
        "kill",
        "prlimit",
        "setpriority",
        "setpriority_group",
        "ptrace",
        "execve",
    ];
    assert_refused(&calls, "EPERM");
}

#[test]
fn the_sandbox_blocks_writes_to_other_files() {
    assert_refused(&["write_victim"], "EACCES");
}

#[test]
fn the_sandbox_blocks_new_files_next_to_the_summary() {
    assert_refused(&["beside_summary", "below_summary"], "EACCES");
}

#[test]
fn the_sandbox_blocks_new_files_next_to_the_control_socket() {
    assert_refused(&["beside_control", "below_control"], "EACCES");
}

#[test]
fn a_capture_as_root_keeps_only_the_capabilities_that_it_needs() {
    if !process::is_root() {
        skip!("only root has capabilities to drop");
    }
    let dir = Dir::new();
    let start = |name: &str| {
        let run = Wqcap::run(&dir, name)
            .model("synth:pps=2000,flows=64")
            .set("model.caps=process");
        (run.out_path().to_owned(), run.program())
    };
    let (_, program) = start("own");
    let mut running = program.arg("-v").start();
    running.until("the capture is running", |it| {
        it.stderr().contains("capturing")
    });
    assert_confined(&mut running, NET_RAW | IPC_LOCK);
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    done.says(&[
        "the root process keeps the capabilities CAP_IPC_LOCK, CAP_NET_RAW and drops all others",
    ]);

    let (out, program) = start("anothers");
    std::os::unix::fs::chown(&out, Some(NOBODY), Some(NOBODY)).expect("chown and chmod by root");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o700)).expect("chown and chmod by root");
    let mut running = program.start();
    running.until("the capture is running", |it| {
        it.stderr().contains("capturing")
    });
    assert_confined(&mut running, NET_RAW | IPC_LOCK | DAC_OVERRIDE);
    running.signal(Signal::TERM);
    let done = running.wait().expect(0);
    done.says(&["root keeps CAP_DAC_OVERRIDE", "process.user"]);
}

/// Returns `true` if the folder has a finished pcap file.
fn has_finished_file(out: &Path) -> bool {
    let mut names = fs::read_dir(out)
        .expect("the folder can be read")
        .flatten()
        .map(|it| it.path());
    names.any(|it| it.extension().is_some_and(|it| it == "pcap"))
}
