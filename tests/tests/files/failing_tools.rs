//! System calls of the tools that fail: strace injects one error per execution, at each position of
//! each kind of call. The tool ends by itself with a documented status and without a panic. Status 0
//! means complete output, any other status has a message. Earlier files are unharmed, and no
//! temporary file stays.
//!
//! | test | injected failures |
//! |---|---|
//! | `some_calls_of_each_tool_fail` | a sample of each tool's calls |
//! | `each_call_of_each_tool_fails` | all calls (soak) |
//!
//! A library attaches strace before `main`, so no call of the dynamic loader fails. strace counts
//! the calls of each thread separately.
//!
//! Exceptions, which the tools cannot handle: std panics if a thread gets no memory for its signal
//! stack or if a folder cannot be closed, and ends the process if the allocator gets no memory; the
//! thread of signal-hook panics if its socket fails ([`FOREIGN`]). Earlier files must be unharmed
//! then, too.
//!
//! `WQCAP_SEED` selects another sample, and `WQCAP_FAULTS` its size for each tool; the seed is
//! printed. All findings are printed together.

mod calls;

use calls::{Fault, cannot_fail, counted, faults};
use rustix::process::Signal;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    env, fs,
    hash::{DefaultHasher, Hash, Hasher},
    panic::catch_unwind,
    path::Path,
    str::FromStr,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Program, Running, Wqcap, binaries, files,
    machine::dir::tree,
    need,
    process::{
        TICK,
        clients::{self, Build},
    },
    skip::say,
};

/// Known findings that are not mended yet: the tool, and a part of its message.
const OPEN: [(&str, &str); 1] = [
    // `Server::bind`: tokio panics, and may then wait forever, if a worker thread cannot start.
    ("serve", "OS can't spawn worker thread"),
];
/// Time in which a tool ends, much longer than it takes on a slow machine.
const BOUND: Duration = Duration::from_secs(30);
/// Time in which a service prints its address.
const START_BOUND: Duration = Duration::from_secs(10);
/// Number of failures of each tool in a sample.
const SAMPLE: usize = 30;
/// Exit statuses of the tools: done, failed, refused.
const STATUSES: [i32; 3] = [0, 1, 2];
/// Exit status of the library that attaches strace, if strace cannot.
const NOT_ATTACHED: i32 = 99;
/// Messages of panics and aborts in other code than that of the tools: std and signal-hook.
const FOREIGN: [&str; 5] = [
    "failed to allocate an alternative stack",
    "failed to set up alternative stack guard page",
    "unexpected error during closedir",
    "memory allocation of",
    "/signal-hook-",
];
/// Mark of strace in the log line of a call that it made fail.
const INJECTED: &str = "(INJECTED)";
/// Content of files that the tools must not change.
const EARLIER: &str = "earlier file";

/// Files below the folder of a tool, by their paths.
type Files = BTreeMap<String, Vec<u8>>;

/// Tool with its arguments. It runs in a copy of the prepared folder.
struct Tool {
    name: &'static str,
    /// Arguments; `{}` is the folder.
    args: &'static [&'static str],
    /// Output file that may lack records if the exit status is not 0.
    partial: Option<&'static str>,
    /// Start of the paths of files that the tool does without if it cannot write them.
    optional: Option<&'static str>,
    /// The tool runs until SIGTERM, and answers requests until then.
    is_service: bool,
    /// A second run completes what a failed run has left.
    resumes: bool,
}

const TOOLS: [Tool; 6] = [
    Tool {
        name: "extract",
        args: &[
            "extract",
            "in",
            "--index",
            "made",
            "--filter",
            "udp",
            "-o",
            "out/extracted.pcapng",
        ],
        partial: Some("out/extracted.pcapng"),
        optional: Some("made/"),
        is_service: false,
        resumes: false,
    },
    Tool {
        name: "merge",
        args: &["merge", "in", "--json", "-o", "out/merged.pcapng"],
        partial: Some("out/merged.pcapng"),
        optional: None,
        is_service: false,
        resumes: false,
    },
    Tool {
        name: "recover",
        args: &["recover", "open"],
        partial: None,
        optional: None,
        is_service: false,
        resumes: true,
    },
    Tool {
        name: "flows",
        args: &["flows", "in", "--names", "-o", "records"],
        partial: None,
        optional: None,
        is_service: false,
        resumes: false,
    },
    Tool {
        name: "ship",
        args: &[
            "ship",
            "--once",
            "--set",
            "ship.store=file://{}/store",
            "--set",
            "ship.journal={}/journal",
            "--set",
            "ship.sensor=sensor",
            "--set",
            "output.dir={}/in",
            "--set",
            "output.index_dir={}/index",
            "--set",
            "flows.dir={}/flows",
        ],
        partial: None,
        optional: None,
        is_service: false,
        resumes: true,
    },
    Tool {
        name: "serve",
        args: &[
            "serve",
            "--set",
            "serve.listen=127.0.0.1:0",
            "--set",
            "output.dir={}/in",
            "--set",
            "output.format=pcapng",
            "--set",
            "output.index_dir={}/index",
            "--set",
            "flows.dir={}/flows",
        ],
        partial: None,
        optional: None,
        is_service: true,
        resumes: false,
    },
];

/// Records of the answer of a service to a request for all packets, if it says that it is complete.
/// They are sorted: records of one time are in any order if the first record of a file cannot be
/// read.
type Answer = Option<Vec<(u64, Vec<u8>)>>;

/// Ended execution of a tool.
struct Ended {
    done: Done,
    /// The tool was killed, because it did not end within [`BOUND`].
    hung: bool,
    answer: Answer,
    /// Files after the end.
    files: Files,
    /// Log of strace.
    log: String,
}

impl Ended {
    /// Returns the call that failed, as strace logs it.
    fn failed_call(&self) -> Option<&str> {
        self.log.lines().find(|it| it.contains(INJECTED))
    }

    /// Returns `true` if a write to stderr failed. strace counts the calls of each thread, so a
    /// failure also hits the thread that writes to stderr.
    fn fails_to_print(&self) -> bool {
        let mut failed = self.log.lines().filter(|it| it.contains(INJECTED));
        failed.any(|it| it.contains("write(2, "))
    }
}

/// Results of an execution without failures.
struct Reference {
    files: Files,
    /// Paths with digits replaced, of files whose names or contents differ between two executions.
    varying: BTreeSet<String>,
    answer: Answer,
    records: BTreeSet<(u64, Vec<u8>)>,
    faults: Vec<Fault>,
}

/// Returns a path with `#` for each digit.
fn pattern(path: &str) -> String {
    path.replace(|it: char| it.is_ascii_digit(), "#")
}

/// Prepares the folder that each execution gets a copy of: captures with indexes and flow records,
/// open files of a killed capture, and earlier output.
fn prepared(dir: &Dir) -> Files {
    let at = |name: &str| dir.folder(&format!("prepared/{name}"));
    let (captured, open) = (at("in"), at("open"));
    let _ = Wqcap::run(dir, "capture")
        .model("synth:size=imix,flows=16,proto=mix,ip=mix,count=2000,pps=20000")
        .queues(2)
        .out(&captured)
        .set("output.format=pcapng")
        .set("output.rotate_size=300kB")
        .set(&format!("output.index_dir={}", at("index").display()))
        .set(&format!("flows.dir={}", at("flows").display()))
        .set("flows.names=true")
        .finish(0);
    let captures = tree(&captured);
    assert!(captures.len() >= 4, "{:?}", captures.keys());
    for (i, (name, bytes)) in captures.iter().enumerate() {
        let (name, bytes) = match i {
            0 => (format!("{name}.part"), &bytes[..bytes.len() - 7]),
            1 => (format!("{name}.part"), &bytes[..]),
            2 => (format!("{name}.part"), &bytes[..0]),
            _ => (name.clone(), &bytes[..]),
        };
        fs::write(open.join(name), bytes).expect("written");
    }
    let _ = at("journal");
    for (folder, name) in [
        ("out", "extracted.pcapng"),
        ("out", "merged.pcapng"),
        ("records", "wqcap-flows-1.parquet"),
        ("store", "notes.txt"),
    ] {
        fs::write(at(folder).join(name), EARLIER).expect("written");
    }
    tree(&dir.join("prepared"))
}

/// Campaign of injected failures.
struct Campaign {
    dir: Dir,
    /// Files of the prepared folder.
    before: Files,
    library: String,
}

impl Campaign {
    fn new() -> Self {
        let dir = Dir::new();
        let before = prepared(&dir);
        let library = clients::ours("tests/clients/attach_strace.c", Build::Library);
        let library = library.to_str().expect("a text").to_owned();
        Self {
            dir,
            before,
            library,
        }
    }

    /// Runs a tool in a new copy of the prepared folder.
    fn run(&self, tool: &Tool, place: &str, fault: Option<Fault>) -> Ended {
        let work = self.dir.join(place);
        if work.exists() {
            fs::remove_dir_all(&work).expect("removed");
        }
        let _ = Program::new("cp")
            .arg("-a")
            .arg(self.dir.join("prepared"))
            .arg(&work)
            .run()
            .expect(0);
        self.run_in(tool, &work, fault)
    }

    /// Runs a tool in a folder.
    fn run_in(&self, tool: &Tool, work: &Path, fault: Option<Fault>) -> Ended {
        let shown = work.to_str().expect("a text");
        let log = format!("{shown}.strace");
        let mut strace = vec!["-qq".into(), "-f".into(), "-o".into(), log.clone()];
        strace.extend(["-e".into(), "signal=none".into()]);
        if let Some(Fault { call, error, nth }) = fault {
            let inject = format!("inject={call}:error={error}:when={nth}");
            strace.extend(["-e".into(), format!("trace={call}"), "-e".into(), inject]);
        }
        let program = Program::new("env")
            .arg(format!("LD_PRELOAD={}", self.library))
            .arg(format!("STRACE_ARGS={}", strace.join("\n")))
            .arg(binaries::wqcap())
            .args(tool.args.iter().map(|it| it.replace("{}", shown)))
            .cwd(work)
            .timeout(4 * BOUND);
        let mut running = program.start();
        let mut answer = None;
        if tool.is_service {
            if let Some(url) = address(&mut running) {
                answer = packets(&url, &self.dir.join(format!("{shown}.answer")));
            }
            if !running.ended() {
                running.signal(Signal::TERM);
            }
        }
        let hung = !ends(&mut running);
        if hung {
            running.signal(Signal::KILL);
        }
        let done = running.wait();
        assert_ne!(
            done.status.code(),
            Some(NOT_ATTACHED),
            "strace cannot attach to the tool: {done}"
        );
        Ended {
            done,
            hung,
            answer,
            files: tree(work),
            log: fs::read_to_string(log).unwrap_or_default(),
        }
    }

    /// Runs a tool twice without failures.
    fn reference(&self, tool: &Tool) -> Result<Reference, String> {
        let [one, two] = ["reference", "reference"].map(|it| self.run(tool, it, None));
        for ended in [&one, &two] {
            assert_eq!(ended.done.status.code(), Some(0), "{}", ended.done);
        }
        assert!(!tool.is_service || one.answer.is_some(), "{}", one.done);
        let paths: BTreeSet<_> = one.files.keys().chain(two.files.keys()).collect();
        let differs = |it: &&&String| one.files.get(**it) != two.files.get(**it);
        let varying = paths.iter().filter(differs).map(|it| pattern(it)).collect();
        let faults = faults(&counted(&one.log)).map_err(|calls| {
            format!(
                "{}: calls without errors in the table: {calls:?}",
                tool.name
            )
        })?;
        let work = self.dir.join("reference");
        let records = tool.partial.map(|it| records(&work.join(it)));
        Ok(Reference {
            files: one.files,
            varying,
            answer: one.answer,
            records: records.unwrap_or_default(),
            faults,
        })
    }

    /// Makes a call of a tool fail, and returns what is wrong then. `None`: no thread has made the
    /// call, or a call that cannot fail was selected.
    fn try_fault(
        &self,
        tool: &Tool,
        want: &Reference,
        place: &str,
        fault: Fault,
    ) -> Option<Vec<String>> {
        let ended = self.run(tool, place, Some(fault));
        if ended
            .log
            .lines()
            .any(|it| it.contains(INJECTED) && cannot_fail(it))
        {
            return None;
        }
        let failed = ended.failed_call()?.to_owned();
        let stderr = &ended.done.stderr;
        if let Some((_, known)) = OPEN
            .iter()
            .find(|it| it.0 == tool.name && stderr.contains(it.1))
        {
            say(&format!("NOTE {}: known finding: {known}", tool.name));
            return Some(Vec::new());
        }
        let is_foreign = FOREIGN.iter().any(|it| stderr.contains(it));
        let mut wrong = Vec::new();
        if ended.hung && !is_foreign {
            wrong.push("it does not end".to_owned());
        } else if !is_foreign {
            match (ended.done.status.code(), ended.done.signal()) {
                (Some(code), _) if STATUSES.contains(&code) => {}
                (_, Some(signal)) => wrong.push(format!("signal {signal} ends it")),
                (code, None) => wrong.push(format!("its exit status is {code:?}")),
            }
            if stderr.contains("panicked") {
                wrong.push("it panics".into());
            }
        }
        let is_done = ended.done.status.code() == Some(0);
        if !is_done && !is_foreign && fault.error == "EINTR" {
            wrong.push("it does not repeat an interrupted call".into());
        }
        // A message cannot be written if that very call fails.
        if !is_done && stderr.trim().is_empty() && !ended.fails_to_print() {
            wrong.push("it fails without a message".into());
        }
        if ended.answer.is_some() && ended.answer != want.answer {
            wrong.push("the answer differs, and is said to be complete".into());
        }
        let work = self.dir.join(place);
        wrong.extend(self.harm(tool, want, &ended.files, &work));
        if is_done {
            wrong.extend(want.differences(tool, &ended.files));
        } else if tool.resumes {
            let again = self.run_in(tool, &work, None);
            if again.done.status.code() != Some(0) {
                wrong.push(format!("a second run fails: {}", again.done.stderr.trim()));
            }
            let differences = want.differences(tool, &again.files).into_iter();
            wrong.extend(differences.map(|it| format!("after a second run, {it}")));
        } else if !is_foreign && !ended.hung {
            let left = ended.files.keys();
            let left = left.filter(|it| {
                !self.before.contains_key(*it)
                    && !want.files.contains_key(*it)
                    && !want.varying.contains(&pattern(it))
            });
            wrong.extend(left.map(|it| format!("{} stays", pattern(it))));
        }
        let status = ended.done.status;
        let said = stderr.lines().take(4).collect::<Vec<_>>().join(" / ");
        for it in &mut wrong {
            *it = format!("{it}\n    {failed}\n    {status}: {said}");
        }
        Some(wrong)
    }

    /// Returns the earlier files that are lost or changed.
    fn harm(&self, tool: &Tool, want: &Reference, files: &Files, work: &Path) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, before) in &self.before {
            let after = files.get(path);
            if after == Some(before) || after.is_some() && after == want.files.get(path) {
                continue;
            }
            // An open file gets its final name, or is removed if it has no record.
            let finished = path.strip_suffix(".part");
            let finished = finished.filter(|_| tool.name == "recover");
            if let Some(finished) = finished {
                let complete = want.files.get(finished);
                let is_finished = complete == after.or(files.get(finished));
                if is_finished || before.is_empty() && after.is_none() {
                    continue;
                }
            }
            if tool.partial == Some(path) && after.is_some() {
                // A torn file makes the reader panic.
                let found = catch_unwind(|| records(&work.join(path)));
                if found.is_ok_and(|it| it.is_subset(&want.records)) {
                    continue;
                }
            }
            let how = if after.is_some() { "changed" } else { "lost" };
            wrong.push(format!("{} is {how}", pattern(path)));
        }
        wrong
    }
}

impl Reference {
    /// Returns the differences of the files of a successful run from the reference.
    fn differences(&self, tool: &Tool, files: &Files) -> Vec<String> {
        let may_lack = |it: &str| tool.optional.is_some_and(|start| it.starts_with(start));
        let varies = |it: &&String| {
            self.varying.contains(&pattern(it)) || !files.contains_key(*it) && may_lack(it)
        };
        let differs = |it: &&String| self.files.get(*it) != files.get(*it);
        let paths: BTreeSet<_> = self.files.keys().chain(files.keys()).collect();
        let paths = paths.into_iter().filter(differs);
        let described = paths.filter(|it| !varies(it)).map(|it| {
            let what = match (self.files.contains_key(it), files.contains_key(it)) {
                (true, true) => "differs from the reference",
                (true, false) => "is missing",
                _ => "is left over",
            };
            format!("{} {what}", pattern(it))
        });
        described.collect()
    }
}

/// Waits for the address of a service. `None`: it has ended, or does not print one.
fn address(running: &mut Running) -> Option<String> {
    let deadline = Instant::now() + START_BOUND;
    while !running.ended() && Instant::now() < deadline {
        let stderr = running.stderr();
        if let Some((_, url)) = stderr.split_once("serving at ")
            && let Some((url, _)) = url.split_once('\n')
        {
            return Some(url.trim_end_matches('/').to_owned());
        }
        thread::sleep(TICK);
    }
    None
}

/// Asks a service for all packets with curl.
fn packets(url: &str, path: &Path) -> Answer {
    let head = path.with_extension("head");
    let done = Program::new("curl")
        .args(["--silent", "--noproxy", "*", "--max-time", "20"])
        .args(["-H", "TE: trailers"])
        .args(["--dump-header".as_ref(), head.as_os_str()])
        .args(["--output".as_ref(), path.as_os_str()])
        .arg(format!("{url}/api/v1/packets?format=pcapng"))
        .run();
    let head = fs::read_to_string(head).unwrap_or_default().to_lowercase();
    let is_complete = done.status.code() == Some(0) && head.contains("wqcap-complete: true");
    // A torn file makes the reader panic.
    let read = || catch_unwind(|| files::read(path)).unwrap_or_default();
    is_complete.then(|| {
        let records = read().into_iter().map(|it| (it.ts, it.bytes));
        let mut records: Vec<_> = records.collect();
        assert!(records.is_sorted_by_key(|it| it.0), "{}", path.display());
        records.sort();
        records
    })
}

/// Waits until a tool ends. `false`: it runs longer than [`BOUND`].
fn ends(running: &mut Running) -> bool {
    let deadline = Instant::now() + BOUND;
    while !running.ended() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(TICK);
    }
    true
}

/// Returns the times and bytes of a file's records.
fn records(path: &Path) -> BTreeSet<(u64, Vec<u8>)> {
    let records = files::read(path).into_iter();
    records.map(|it| (it.ts, it.bytes)).collect()
}

fn strace() -> Result<(), String> {
    let missing = ["strace", "curl"].into_iter().find(|it| {
        let done = Program::new("sh")
            .args(["-c", "command -v \"$0\"", it])
            .run();
        !done.status.success()
    });
    match missing {
        None => Ok(()),
        Some(it) => Err(format!("{it} is not installed (scripts/packages test)")),
    }
}

/// Returns the number in an environment variable.
fn number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

/// Makes calls of each tool, or of the one in `WQCAP_TOOL`, fail: `most` of them, or all.
#[track_caller]
fn campaign(most: Option<usize>) {
    let seed: u64 = number("WQCAP_SEED").unwrap_or(1);
    say(&format!("failing calls of tools: WQCAP_SEED={seed}"));
    let campaign = Campaign::new();
    let mut findings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let only = env::var("WQCAP_TOOL").ok();
    let is_chosen = |it: &&Tool| only.as_ref().is_none_or(|only| only == it.name);
    for tool in TOOLS.iter().filter(is_chosen) {
        let want = match campaign.reference(tool) {
            Ok(it) => it,
            Err(finding) => {
                findings.insert(finding, Vec::new());
                continue;
            }
        };
        let mut cases = want.faults.clone();
        let all = cases.len();
        cases.sort_by_cached_key(|it| {
            let mut hasher = DefaultHasher::new();
            (seed, it.call, it.error, it.nth).hash(&mut hasher);
            hasher.finish()
        });
        cases.truncate(most.unwrap_or(all));
        let cases = Mutex::new(VecDeque::from(cases));
        let results = Mutex::new(Vec::new());
        let started = Instant::now();
        thread::scope(|scope| {
            for worker in 0..2 {
                let (cases, results, want, campaign) = (&cases, &results, &want, &campaign);
                scope.spawn(move || {
                    let place = format!("worker{worker}");
                    loop {
                        let next = cases.lock().expect("no panic").pop_front();
                        let Some(fault) = next else { break };
                        let result = campaign.try_fault(tool, want, &place, fault);
                        results.lock().expect("no panic").push((fault, result));
                    }
                });
            }
        });
        let results = results.into_inner().expect("no panic");
        let failed = results.iter().filter(|it| it.1.is_some()).count();
        let (name, took) = (tool.name, started.elapsed());
        say(&format!(
            "{name}: {failed} of {all} calls failed, {took:.0?}"
        ));
        assert!(failed > 0, "no call of {name} failed");
        for (fault, wrong) in results {
            for wrong in wrong.into_iter().flatten() {
                let (what, how) = wrong.split_once('\n').unwrap_or((&wrong, ""));
                let kind = format!("{name}, {} {}: {what}", fault.call, fault.error);
                let case = format!("  call {}\n{how}", fault.nth);
                findings.entry(kind).or_default().push(case);
            }
        }
    }
    let lines = findings.iter().map(|(kind, cases)| {
        let shown = cases.iter().take(4).cloned().collect::<Vec<_>>();
        format!("{kind} ({} times)\n{}", cases.len(), shown.join("\n"))
    });
    let lines: Vec<_> = lines.collect();
    assert!(
        lines.is_empty(),
        "{} kinds of findings:\n{}",
        lines.len(),
        lines.join("\n")
    );
}

#[test]
fn some_calls_of_each_tool_fail() {
    need!(strace());
    campaign(Some(number("WQCAP_FAULTS").unwrap_or(SAMPLE)));
}

#[test]
#[ignore = "takes many minutes (scripts/soak)"]
fn each_call_of_each_tool_fails() {
    need!(strace());
    campaign(None);
}
