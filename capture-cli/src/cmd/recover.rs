//! `wqcap recover`: files that a crash left open, finished; by hand, or when the next run starts.

use crate::{
    args::RecoverArgs,
    failure::Failure,
    term::{
        output,
        table::{counted, thousands},
        terminal,
    },
};
use std::{
    fmt::Write,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};
use wqcap_engine::{
    files::{
        folder::CaptureFolder,
        sealed::{self, SecretKey},
    },
    recover::{self, RecoveredFile, RecoveryOutcome},
};

/// How long the end of a run waits for files of an earlier run, once it was told to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at whether it was.
const TICK: Duration = Duration::from_millis(50);

/// Finishes what can be finished, and tells of each file.
pub fn recover(args: &RecoverArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let folder = CaptureFolder::list(&args.dir);
    let folder = folder.map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    for note in folder.unread_notes() {
        terminal::say(format_args!("note: {note}"));
    }
    let files = recover::finish(&folder.unfinished, || true);
    if args.json {
        output::print_json(&serde_json::json!({ "dir": args.dir, "files": files }))?;
    } else if files.is_empty() {
        output::print(&format!("{shown}: no .part files\n"))?;
    } else {
        output::print(&text(&files))?;
    }
    let messages = files
        .iter()
        .filter(|file| file.outcome == RecoveryOutcome::Failed)
        .map(|file| {
            let problem = file.problem.as_deref().unwrap_or("cannot be finished");
            format!("{}: {problem}", file.part.display())
        })
        .collect();
    Failure::unless_whole(messages)
}

/// Encrypts a file that was finished. Where that fails, it is plain, and the next run tries again.
fn encrypt(file: &mut RecoveredFile, key: &SecretKey, go_on: impl Fn() -> bool) {
    let Some(path) = &file.path else { return };
    match sealed::seal(path, key, go_on) {
        Ok(Some(sealed)) => file.path = Some(sealed.path),
        Ok(None) => {}
        // The writer, which encrypts what it finds, was faster.
        Err(_) if !path.exists() => file.path = Some(sealed::sealed_name(path)),
        Err(e) => tracing::error!("cannot encrypt {}: {e}; it stays as it is", path.display()),
    }
}

/// What an earlier run left open, being finished beside this one.
#[derive(Default)]
pub struct Leftovers {
    /// What became of each, as soon as that is known. Nothing more comes once all are done.
    done: Option<Receiver<RecoveredFile>>,
    quit: Arc<AtomicBool>,
}

impl Leftovers {
    /// Finds them down to so many levels of folders, before this run has files of its own, and finishes them in a thread:
    /// reading gigabytes through must not keep frames waiting. Not being able to is no reason not to capture.
    ///
    /// With a key, those that are finished are encrypted.
    pub fn begin(dir: &Path, levels: usize, key: Option<Arc<SecretKey>>) -> Self {
        let parts = match CaptureFolder::list_to(dir, levels) {
            Ok(it) if it.unfinished.is_empty() => return Self::default(),
            Ok(it) => it.unfinished,
            Err(e) => {
                tracing::warn!("{}: cannot look for files left open: {e}", dir.display());
                return Self::default();
            }
        };
        let (sender, done) = mpsc::channel();
        let quit = Arc::new(AtomicBool::new(false));
        let go_on = {
            let quit = Arc::clone(&quit);
            move || !quit.load(Ordering::Relaxed)
        };
        let work = move || {
            for part in parts.chunks(1).take_while(|_| go_on()) {
                for mut it in recover::finish(part, &go_on) {
                    if let Some(key) = &key {
                        encrypt(&mut it, key, &go_on);
                    }
                    log(&it);
                    let _ = sender.send(it);
                }
            }
        };
        match std::thread::Builder::new()
            .name("wqcap-recover".into())
            .spawn(work)
        {
            Ok(_) => Self {
                done: Some(done),
                quit,
            },
            Err(e) => {
                tracing::warn!("cannot start a thread to finish the files left open: {e}");
                Self::default()
            }
        }
    }

    /// Waits for the last of them, but once `stop` is set no longer than [`PATIENCE`]: the next run goes on with the
    /// rest. Those that somebody writes, or nobody knows, are none.
    pub fn finish(self, stop: &AtomicBool) -> Vec<RecoveredFile> {
        let mut all = Vec::new();
        let mut deadline = None;
        while let Some(done) = &self.done {
            match done.recv_timeout(TICK) {
                Ok(it) => all.push(it),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !stop.load(Ordering::Relaxed) {
                continue;
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + PATIENCE) {
                // Its storage may never answer: the thread ends with the process, and a file keeps its name till last.
                self.quit.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "files that an earlier run left open are not all finished after {PATIENCE:?}; the next run goes on, or \
                     wqcap recover"
                );
                break;
            }
        }
        all.retain(|it| {
            !matches!(
                it.outcome,
                RecoveryOutcome::InUse | RecoveryOutcome::Foreign | RecoveryOutcome::Irregular
            )
        });
        all
    }
}

fn log(it: &RecoveredFile) {
    if it.outcome == RecoveryOutcome::Failed {
        let problem = it.problem.as_deref().unwrap_or("cannot be finished");
        tracing::warn!("{}: {problem}", it.part.display());
    }
    for line in text(std::slice::from_ref(it)).lines() {
        tracing::info!("left open by an earlier run: {line}");
    }
}

/// A line for each file that is told of; failures go to stderr.
pub fn text(files: &[RecoveredFile]) -> String {
    let mut text = String::new();
    for file in files {
        let name = file.path.as_ref().unwrap_or(&file.part).display();
        let what = match file.outcome {
            RecoveryOutcome::Finished => {
                let cut = match (file.cut, &file.problem) {
                    (0, _) => String::new(),
                    (n, None) => format!(", {} cut", thousands(n)),
                    (n, Some(why)) => format!(", {} cut: {why}", thousands(n)),
                };
                format!(
                    "finished with {}, {}{cut}",
                    counted(file.records, "record"),
                    counted(file.kept, "byte")
                )
            }
            RecoveryOutcome::Removed => format!(
                "removed: no complete record in its {}",
                counted(file.cut, "byte")
            ),
            RecoveryOutcome::InUse => "left alone: a capture is writing it".into(),
            RecoveryOutcome::Foreign => "left alone: not a capture of wqcap's".into(),
            RecoveryOutcome::Irregular => "left alone: not a regular file".into(),
            RecoveryOutcome::Failed => continue,
        };
        let _ = writeln!(text, "{name}: {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_file() {
        let file = |outcome| RecoveredFile {
            part: "/cap/wqcap-q00-1.pcap.part".into(),
            path: (outcome == RecoveryOutcome::Finished).then(|| "/cap/wqcap-q00-1.pcap".into()),
            outcome,
            records: 1234,
            kept: 5678,
            cut: 100,
            problem: Some("100 zeros".into()),
        };
        let all = [
            RecoveryOutcome::Finished,
            RecoveryOutcome::InUse,
            RecoveryOutcome::Foreign,
            RecoveryOutcome::Irregular,
            RecoveryOutcome::Failed,
        ];
        assert_eq!(
            text(&all.map(file)),
            "/cap/wqcap-q00-1.pcap: finished with 1,234 records, 5,678 bytes, 100 cut: 100 zeros\n\
             /cap/wqcap-q00-1.pcap.part: left alone: a capture is writing it\n\
             /cap/wqcap-q00-1.pcap.part: left alone: not a capture of wqcap's\n\
             /cap/wqcap-q00-1.pcap.part: left alone: not a regular file\n"
        );
    }
}
