//! The engine as a library of a crate outside this workspace. Cargo builds the crate with its
//! default profile, without optimisation. Unwritten memory then holds its previous content, so
//! undefined behaviour is detected here first. The crate's programs are `engine/examples/dns.rs`
//! and those in `tests/consumers/`.
//!
//! The crate and its model make system calls through libc (rustix's feature `use-libc`), so that
//! memcheck can run them: memcheck hides the kernel's vDSO, which rustix's own system calls need.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};
use wqcap_tests::{
    Dir, Program, binaries, files,
    frames::{Ends, Frame, IPV4, IPV6},
    process::{self, Done},
    skip,
};

/// Timeout for a build of the engine and all of its dependencies on a busy machine.
const BUILD: Duration = Duration::from_secs(3600);
/// Timeout for a capture under memcheck, which runs one thread at a time and many times slower.
const MEMCHECK: Duration = Duration::from_secs(900);
/// Number of DNS queries on the wire.
const QUERIES: u16 = 120;
/// Number of DNS answers on the wire.
const ANSWERS: u16 = 80;

/// Built crate outside the workspace.
struct OwnCrate {
    /// Directory of the crate.
    dir: PathBuf,
    /// Directory of the crate's programs.
    programs: PathBuf,
    /// Directory with `wqcap` and a model that memcheck can run.
    bin: PathBuf,
}

impl OwnCrate {
    /// Returns the crate, which is built once per process. The crate and its build directory stay
    /// below the repository's `target`, so that later builds are incremental.
    fn build() -> &'static Self {
        static BUILT: OnceLock<OwnCrate> = OnceLock::new();
        BUILT.get_or_init(|| {
            let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-crate");
            fs::create_dir_all(dir.join("bin")).expect("the directory is created");
            write_manifest(&dir).expect("the manifest is written");
            let target = dir.join("target");
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            // scripts/test sets these variables for test programs. With them, cargo would build
            // every dependency again.
            let done = Program::new("env")
                .args(["--unset=RUSTC_BOOTSTRAP", "--unset=RUSTFLAGS"])
                .arg(cargo)
                .args(["build", "--quiet", "--offline", "--target-dir"])
                .arg(&target)
                .cwd(&dir)
                .timeout(BUILD)
                .run();
            done.expect(0);
            let debug = target.join("debug");
            let bin = dir.join("bin");
            for (from, name) in [
                (binaries::wqcap(), "wqcap"),
                (debug.join("deps/libmlx5_model.so"), "libmlx5_model.so"),
            ] {
                replace(&from, &bin.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            OwnCrate {
                dir,
                programs: debug,
                bin,
            }
        })
    }

    /// Runs a program of the crate with `args` on the model, whose wire has [`QUERIES`] and
    /// [`ANSWERS`].
    fn run(&self, dir: &Dir, program: &str, args: &[&OsStr]) -> Done {
        self.run_by(dir, &[], program, args, process::HANG)
    }

    /// Runs a program of the crate on the model under memcheck, and asserts that memcheck reports
    /// no error.
    #[track_caller]
    fn check_memory(&self, dir: &Dir, program: &str, args: &[&OsStr]) -> Done {
        let log = dir.join("memcheck.log");
        let mut valgrind: Vec<OsString> = [
            "valgrind",
            "--tool=memcheck",
            "--error-exitcode=99",
            "--track-origins=yes",
            // Polling loops get the single CPU in turn.
            "--fair-sched=yes",
            "--num-callers=30",
        ]
        .map(Into::into)
        .into();
        valgrind.push(format!("--log-file={}", log.display()).into());
        let done = self.run_by(dir, &valgrind, program, args, MEMCHECK);
        let log = fs::read_to_string(log).unwrap_or_default();
        assert!(
            log.contains("ERROR SUMMARY: 0 errors"),
            "{log}\n{}",
            done.stderr
        );
        done
    }

    fn run_by(
        &self,
        dir: &Dir,
        wrapper: &[OsString],
        program: &str,
        args: &[&OsStr],
        timeout: Duration,
    ) -> Done {
        let file = dir.join("dns.pcap");
        files::write(&file, 1_600_000_000, &wire());
        let caps: &[&str] = if process::is_root() {
            &[]
        } else {
            &["--set", "caps=all"]
        };
        Program::new(self.bin.join("wqcap"))
            .args(["model", "--wire", &format!("pcap:{}", file.display())])
            .args(caps)
            .arg("--")
            .args(wrapper)
            .arg(self.programs.join(program))
            .arg("mlx5_0")
            .args(args)
            .timeout(timeout)
            .run()
    }
}

/// Returns frames of DNS queries and answers, alternately over IPv4 and IPv6.
fn wire() -> Vec<Vec<u8>> {
    (0..QUERIES + ANSWERS)
        .map(|i| {
            let is_query = i < QUERIES;
            let ends = Ends {
                from: 1 + i % 16,
                to: 100,
                sport: 1024 + i,
                dport: 53,
            };
            let ends = if is_query { ends } else { ends.back() };
            let frame = if i % 2 == 0 {
                Frame::ethernet(&[], IPV4).ipv4(ends, 17, 0)
            } else {
                Frame::ethernet(&[], IPV6).ipv6(ends, 17)
            };
            let flags = if is_query { 0x01 } else { 0x81 };
            let [high, low] = i.to_be_bytes();
            frame
                .udp(ends)
                .bytes(&[high, low, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0])
                .done()
        })
        .collect()
}

/// Writes the crate's manifest, and a lock file with the versions of the workspace.
fn write_manifest(dir: &Path) -> io::Result<()> {
    let root = binaries::root();
    let at = |path: &str| root.join(path).display().to_string();
    let manifest = format!(
        r#"[package]
name = "own-crate"
version = "0.1.0"
edition = "2024"
publish = false

[[bin]]
name = "dns"
path = "{example}"

[[bin]]
name = "files"
path = "{consumers}/files.rs"

[[bin]]
name = "misuse"
path = "{consumers}/misuse.rs"

[dependencies]
wqcap-engine = {{ path = "{engine}", default-features = false }}
wqcap-rss = {{ path = "{rss}" }}
mlx5-model = {{ path = "{model}" }}
rustix = {{ version = "1", features = ["use-libc"] }}

[patch.crates-io]
bindgen = {{ path = "{bindgen}" }}

[profile.dev]
opt-level = 0
debug = "line-tables-only"
incremental = false

[workspace]
"#,
        example = at("engine/examples/dns.rs"),
        consumers = at("tests/consumers"),
        engine = at("engine"),
        rss = at("rss"),
        model = at("mlx5-model"),
        bindgen = at("compat/bindgen"),
    );
    write_if_changed(&dir.join("Cargo.toml"), manifest.as_bytes())?;
    // Cargo keeps only the packages that the crate needs in its copy of the lock file.
    let lock = fs::read(root.join("Cargo.lock"))?;
    let seed = dir.join("Cargo.lock.workspace");
    if fs::read(&seed).ok().as_deref() != Some(&lock) || !dir.join("Cargo.lock").exists() {
        fs::write(dir.join("Cargo.lock"), &lock)?;
        fs::write(seed, lock)?;
    }
    Ok(())
}

fn write_if_changed(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::read(path) {
        Ok(now) if now == bytes => Ok(()),
        _ => fs::write(path, bytes),
    }
}

/// Replaces `to` with a copy of `from`. A running program keeps the old file.
fn replace(from: &Path, to: &Path) -> io::Result<()> {
    let new = to.with_extension("new");
    fs::copy(from, &new)?;
    fs::rename(new, to)
}

#[test]
fn the_example_runs_in_its_own_crate_without_optimisation() {
    let dir = Dir::new();
    let done = OwnCrate::build().run(&dir, "dns", &[]).expect(0);
    assert_eq!(done.stdout, format!("{QUERIES} DNS queries\n"));
}

#[test]
fn a_consumer_of_frames_builds_no_control_service_and_no_parquet() {
    let own = OwnCrate::build();
    let needed = readelf_needed(&own.programs.join("dns"));
    // Libraries of rdma-core are loaded when they are used.
    for library in ["librdmacm", "libmlx5"] {
        assert!(
            !needed.iter().any(|it| it.starts_with(library)),
            "{needed:?}"
        );
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Program::new(cargo)
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none"])
        .args(["--package", "wqcap-engine"])
        .cwd(&own.dir)
        .run()
        .expect(0);
    let names: Vec<_> = tree
        .stdout
        .lines()
        .filter_map(|it| it.split(' ').next())
        .collect();
    assert!(names.contains(&"wqcap-sink"), "{names:?}");
    for absent in [
        "wqcap-control",
        "wqcap-supervisor",
        "wqcap-names",
        "parquet",
    ] {
        assert!(
            !names.contains(&absent),
            "{absent} is built for a consumer of frames"
        );
    }
}

/// Returns the shared libraries that a program loads.
fn readelf_needed(program: &Path) -> Vec<String> {
    let output = Command::new("readelf")
        .arg("--dynamic")
        .arg(program)
        .output();
    let output = output.expect("readelf of binutils, which the linker needs too");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}

#[test]
fn misuse_of_the_verbs_from_safe_code_is_refused() {
    let dir = Dir::new();
    let done = OwnCrate::build().run(&dir, "misuse", &[]).expect(0);
    assert_eq!(done.stdout, "0 attempts were not refused\n");
}

#[test]
fn memcheck_finds_no_use_of_uninitialised_memory() {
    if let Err(e) = Command::new("valgrind").arg("--version").output() {
        skip!("valgrind cannot be run: {e}");
    }
    let (dir, own) = (Dir::new(), OwnCrate::build());
    let done = own.check_memory(&dir, "dns", &[]).expect(0);
    assert_eq!(done.stdout, format!("{QUERIES} DNS queries\n"));
    let out = dir.folder("out");
    let done = own
        .check_memory(&dir, "files", &[out.as_os_str()])
        .expect(0);
    let frames = QUERIES + ANSWERS;
    assert_eq!(done.stdout, format!("{frames} frames captured\n"));
    own.check_memory(&dir, "misuse", &[]).expect(0);
}
