//! Location of the keys of a key file in the memory of a process, inspected from another process.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{FileExt, PermissionsExt},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};
use wqcap_control::protocol::auth::Keys;

const KEY_FILE: &str = "WQCAP_TEST_KEY_FILE";

/// Runs as the process that holds keys: reads them, waits for a line, drops them, waits for the
/// end.
#[test]
#[ignore = "helper process that the tests below start"]
fn holder() {
    let Some(path) = env::var_os(KEY_FILE) else {
        return;
    };
    let keys = Keys::read(Path::new(&path)).unwrap();
    let copy = keys.clone();
    let mut line = String::new();
    // Not with `println`, whose output the harness captures.
    fs::write("/proc/self/fd/1", "\nholds\n").unwrap();
    std::io::stdin().read_line(&mut line).unwrap();
    drop((keys, copy));
    fs::write("/proc/self/fd/1", "\ndropped\n").unwrap();
    std::io::stdin().read_line(&mut line).unwrap();
}

struct Holder {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts a holder of the keys in `path`, after the shell commands in `before`.
    fn start(path: &Path, before: &str) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", &format!("{before} exec \"$0\" \"$@\"")])
            .arg(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "keys::holder", "--nocapture"])
            .env(KEY_FILE, path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut holder = Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        holder.until("holds");
        holder
    }

    fn until(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            let read = self.stdout.read_line(&mut line).unwrap();
            assert!(read > 0, "the holder ended before it wrote {word:?}");
        }
    }

    /// Returns the VmFlags of every mapping that contains `needle`.
    fn mappings_with(&self, needle: &[u8]) -> Vec<String> {
        let proc = format!("/proc/{}", self.child.id());
        let memory = fs::File::open(format!("{proc}/mem")).unwrap();
        let smaps = fs::read_to_string(format!("{proc}/smaps")).unwrap();
        let mut found = Vec::new();
        let mut is_in_it = false;
        for line in smaps.lines() {
            if let Some(flags) = line.strip_prefix("VmFlags:") {
                if is_in_it {
                    found.push(flags.to_owned());
                }
                continue;
            }
            let Some((range, rest)) = line.split_once(' ') else {
                continue;
            };
            let hex = |text| u64::from_str_radix(text, 16).ok();
            let Some((start, end)) = range
                .split_once('-')
                .and_then(|(a, b)| Some((hex(a)?, hex(b)?)))
            else {
                continue;
            };
            // Mappings of the kernel, and those without access, cannot be read.
            let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
            is_in_it = rest.starts_with('r')
                && memory.read_exact_at(&mut bytes, start).is_ok()
                && bytes.windows(needle.len()).any(|it| it == needle);
        }
        found
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn key_file(dir: &Path) -> (std::path::PathBuf, [u8; 32], String) {
    let mut key = [0; 32];
    getrandom::fill(&mut key).unwrap();
    let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = dir.join("key");
    fs::write(&path, format!("read_write = \"{hex}\"\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    (path, key, hex)
}

#[test]
fn keys_are_excluded_from_dumps_and_swap_and_erased_on_drop() {
    let dir = tempfile::tempdir().unwrap();
    let (path, key, hex) = key_file(dir.path());
    let mut holder = Holder::start(&path, "");
    let held = holder.mappings_with(&key);
    assert_eq!(held.len(), 1, "one copy, on separate pages: {held:?}");
    let has = |flag: &str| held[0].split_whitespace().any(|it| it == flag);
    assert!(has("dd"), "not left out of core dumps: {held:?}");
    assert!(has("lo"), "not locked: {held:?}");
    assert_eq!(
        holder.mappings_with(hex.as_bytes()),
        [""; 0],
        "in hex, as in the file"
    );
    holder.stdin.write_all(b"drop\n").unwrap();
    holder.until("dropped");
    assert_eq!(holder.mappings_with(&key), [""; 0], "after the drop");
}

#[test]
fn a_refused_mlock_is_not_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (path, key, _) = key_file(dir.path());
    // Root may lock memory above the limit, unless it gives up the capability.
    let holder = Holder::start(
        &path,
        "ulimit -l 0; [ $(id -u) = 0 ] && exec setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock \"$0\" \"$@\";",
    );
    let held = holder.mappings_with(&key);
    assert!(held.len() == 1 && held[0].contains("dd"), "{held:?}");
    assert!(!held[0].contains(" lo"), "mlock must be refused: {held:?}");
}
