//! `wqcap serve`: packets, flow records and states over HTTPS, asked for by curl, stenographer's
//! clients and a browser.
//!
//! | module | shows |
//! |---|---|
//! | `alerts` | the frames of an alert of Suricata, from another machine |
//! | `answers` | answers equal `wqcap extract` and tcpdump; open files; what is incomplete |
//! | `callers` | tokens, certificates, roles, their reload, and the audit trail |
//! | `clients` | unmodified `stenoread` and `stenocurl`, `wqcap extract https://`, a browser, schemathesis |
//! | `load` | clients beside a capture at a high rate, on an idle machine |
//! | `strangers` | clients that stall, flood, leave early or send nonsense |

mod alerts;
mod answers;
mod callers;
mod clients;
mod load;
mod strangers;

use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};
use wqcap_tests::{Dir, Done, Program, Running, Wqcap, wqcap::wqcap};

/// Number of frames of the stored capture.
const FRAMES: u64 = 30_000;

/// Capture on disk: files of two queues with their indexes, and flow records.
struct Stored {
    dir: Dir,
}

impl Stored {
    /// Runs a capture once for all tests that only read.
    fn shared() -> &'static Self {
        static STORED: OnceLock<Stored> = OnceLock::new();
        STORED.get_or_init(Self::new)
    }

    fn new() -> Self {
        Self::of("synth:size=imix,flows=64,proto=mix,ip=mix,pps=15000")
    }

    /// Runs a capture of [`FRAMES`] frames.
    fn of(wire: &str) -> Self {
        let it = Self {
            dir: Dir::for_all(),
        };
        it.fill("stored", &format!("{wire},count={FRAMES}"));
        it
    }

    /// Captures a wire into the folders.
    fn fill(&self, name: &str, wire: &str) {
        let run = Wqcap::run(&self.dir, name)
            .model(wire)
            .queues(2)
            .out(&self.dir.folder("cap"))
            .sets(&[
                "output.format=pcapng",
                "output.rotate_size=1MB",
                "flows.names=true",
            ])
            .sets(&self.sets().iter().map(String::as_str).collect::<Vec<_>>());
        let _ = run.start().wait().expect(0);
    }

    /// Returns the settings that capture and service share.
    fn sets(&self) -> [String; 2] {
        let folder = |what: &str| self.dir.folder(what).display().to_string();
        [
            format!("output.index_dir={}", folder("index")),
            format!("flows.dir={}", folder("flows")),
        ]
    }

    fn cap(&self) -> PathBuf {
        self.dir.join("cap")
    }

    /// Returns the command line of a service for this capture, with further settings.
    fn serve(&self, sets: &[&str]) -> Program {
        let sets = sets.iter().map(|it| (*it).to_owned()).chain(self.sets());
        serve(&self.cap(), sets)
    }

    /// Extracts frames with `wqcap extract`. `None`: no frame matches.
    fn extracted(&self, args: &[&str], ending: &str) -> Option<Vec<u8>> {
        let dir = Dir::new();
        let out = dir.join(format!("out.{ending}"));
        let done = wqcap(["extract", "--json"])
            .arg(self.cap())
            .args(["-o".as_ref(), out.as_os_str()])
            .args(["--index".as_ref(), self.dir.join("index").as_os_str()])
            .args(args)
            .run()
            .expect(0);
        let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let bytes = fs::read(&out).expect("the output exists");
        (report["frames"] != 0).then_some(bytes)
    }
}

/// Returns the command line of a service for a folder of capture files.
fn serve(dir: &Path, sets: impl IntoIterator<Item = String>) -> Program {
    let own = [
        format!("output.dir={}", dir.display()),
        "output.format=pcapng".into(),
        "serve.listen=127.0.0.1:0".into(),
    ];
    own.into_iter()
        .chain(sets)
        .fold(wqcap(["serve"]), |program, set| {
            program.args(["--set", &set])
        })
}

/// Running service.
struct Service {
    run: Running,
    /// Address, such as `http://127.0.0.1:4711`.
    url: String,
}

impl Service {
    #[track_caller]
    fn start(program: &Program) -> Self {
        let mut run = program.start();
        run.until("the service prints its address", |it| {
            it.stderr().contains("serving at ")
        });
        let said = run.stderr();
        let url = said.split("serving at ").nth(1).expect("an address");
        let url = url.split_whitespace().next().expect("an address");
        Self {
            url: url.trim_end_matches('/').to_owned(),
            run,
        }
    }

    /// Asks with curl.
    #[track_caller]
    fn ask(&self, path: &str, args: &[&str]) -> Answer {
        Answer::of(&format!("{}{path}", self.url), args)
    }

    /// Asks for JSON with status 200.
    #[track_caller]
    fn json(&self, path: &str) -> Value {
        let answer = self.ask(path, &[]);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// Returns the lines of the audit trail so far.
    fn audit(&self) -> Vec<String> {
        let said = self.run.stderr();
        let lines = said.lines().filter(|it| it.starts_with("audit: "));
        lines.map(str::to_owned).collect()
    }

    /// Ends the service by SIGTERM.
    #[track_caller]
    fn stop(self) -> Done {
        self.run.signal(Signal::TERM);
        self.run.wait().expect(0)
    }
}

/// Answer that curl received.
struct Answer {
    /// Status; 0: there is none.
    status: u16,
    /// Exit status of curl: 0 if the answer is complete.
    curl: i32,
    /// Header lines and trailers in lower case.
    head: String,
    body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    fn of(url: &str, args: &[&str]) -> Self {
        let dir = Dir::new();
        let (head, body) = (dir.join("head"), dir.join("body"));
        let done = Program::new("curl")
            .args([
                "--silent",
                "--max-time",
                "60",
                "--write-out",
                "%{http_code}",
            ])
            .args(["-H", "TE: trailers"])
            .args(["--dump-header".as_ref(), head.as_os_str()])
            .args(["--output".as_ref(), body.as_os_str()])
            .args(args)
            .arg(url)
            .run();
        Self {
            status: done.stdout.trim().parse().unwrap_or(0),
            curl: done.status.code().unwrap_or(-1),
            head: fs::read_to_string(head).unwrap_or_default().to_lowercase(),
            body: fs::read(body).unwrap_or_default(),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|e| panic!("{e}: {} {}", self.status, self.text()))
    }

    /// Returns the last value of a header or trailer.
    fn header(&self, name: &str) -> Option<&str> {
        let prefix = format!("{name}: ");
        let mut lines = self.head.lines().rev();
        lines.find_map(|it| it.strip_prefix(&prefix))
    }

    /// Asserts that this is an error with a status, a short name, and a remedy.
    #[track_caller]
    fn assert_error(&self, status: u16, error: &str) -> String {
        assert_eq!(self.status, status, "{}", self.text());
        let body = self.json();
        assert_eq!(body["error"], error, "{body}");
        assert!(
            body["remedy"].as_str().is_some_and(|it| !it.is_empty()),
            "{body}"
        );
        body["detail"].as_str().expect("a detail").to_owned()
    }
}
