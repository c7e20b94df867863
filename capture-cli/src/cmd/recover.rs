//! `wqcap recover`: finishes files that a crash left open, on request or at the start of the next
//! run.

use crate::{
    args::RecoverArgs,
    daemon::signals,
    failure::Failure,
    term::{
        output,
        table::{counted, thousands},
        terminal,
        text::Text,
    },
};
use serde::Serialize;
use std::{
    fmt::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    time::{Duration, Instant},
};
use wqcap_engine::{
    files::{
        folder::{CaptureFolder, path_text},
        sealed::{self, SecretKey},
    },
    recover::{self, RecoveredFile, RecoveryOutcome},
};

/// Time for which the end of a run waits for the recovery of an earlier run's files after a stop
/// was requested.
const PATIENCE: Duration = Duration::from_secs(5);
/// Times for which the recovery of an earlier run's files waits before it tries again those that are
/// in use: after a kill, the kernel holds their locks until the last writes have ended.
const AGAIN: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// Interval at which a wait for the recovery checks for a stop request.
const TICK: Duration = Duration::from_millis(50);

/// Report that `wqcap recover --json` prints.
#[derive(Serialize)]
struct RecoveryReport<'a> {
    #[serde(serialize_with = "path_text::serialize")]
    dir: &'a Path,
    files: &'a [RecoveredFile],
}

/// Finishes the open capture files in a folder, as far as possible, and reports each of them.
pub fn recover(args: &RecoverArgs) -> Result<(), Failure> {
    let shown = args.dir.display();
    let folder = CaptureFolder::list(&args.dir);
    let folder = folder.map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    for note in folder.unread_notes() {
        terminal::print_note(format_args!("{note}"));
    }
    let stop = signals::catch()?;
    let files = recover::finish(&args.dir, &folder.unfinished, || {
        !stop.load(Ordering::Relaxed)
    });
    if args.json {
        output::print_json(&RecoveryReport {
            dir: &args.dir,
            files: &files,
        })?;
    } else if files.is_empty() {
        output::print(&format!("{shown}: no .part files\n"))?;
    } else {
        output::print(&text(&files))?;
    }
    let messages = files
        .iter()
        .filter(|file| file.outcome == RecoveryOutcome::Failed)
        .map(|file| {
            let problem = file.problem.as_deref().unwrap_or("cannot finish the file");
            format!("{}: {problem}", file.part.display())
        });
    let messages = folder.losses().chain(messages).collect();
    Failure::from_messages(messages)
}

/// Encrypts a recovered capture file below the folder `dir`. If that fails, the file stays unencrypted, and the next run
/// tries to encrypt it again.
fn encrypt(dir: &Path, file: &mut RecoveredFile, key: &SecretKey, may_continue: impl Fn() -> bool) {
    let Some(path) = &file.path else { return };
    match sealed::seal(dir, path, key, may_continue) {
        Ok(Some(sealed)) => file.path = Some(sealed.path),
        Ok(None) => {}
        // The writer also encrypts such files, and was faster.
        Err(_) if !path.exists() => file.path = Some(sealed::sealed_name(path)),
        Err(e) => tracing::error!(
            "cannot encrypt {}: {e}; the file stays unencrypted",
            path.display()
        ),
    }
}

/// Recovers the `.part` file `part` below the folder `dir`. A panic is a failure of the file, so that
/// the next ones are recovered.
fn finish(dir: &Path, part: &PathBuf, may_continue: &dyn Fn() -> bool) -> RecoveredFile {
    let attempt = || recover::finish(dir, slice::from_ref(part), may_continue);
    let finished = catch_unwind(AssertUnwindSafe(attempt)).ok();
    finished.and_then(|mut it| it.pop()).unwrap_or_else(|| RecoveredFile {
        part: part.clone(),
        path: None,
        outcome: RecoveryOutcome::Failed,
        records: 0,
        kept: 0,
        cut: 0,
        problem: Some(
            "the recovery ended in a panic, which is a fault in wqcap: please report it; the .part file keeps its name"
                .into(),
        ),
    })
}

/// Recovers these `.part` files by `attempt`, and passes each result to `done`. Files that are in use
/// are tried again after the waits of [`AGAIN`], which end early when the sender of `ended` is
/// dropped. Ends when `attempt` returns `None`.
fn finish_in_turn(
    mut parts: Vec<PathBuf>,
    ended: &Receiver<()>,
    mut attempt: impl FnMut(&PathBuf) -> Option<RecoveredFile>,
    mut done: impl FnMut(RecoveredFile),
) {
    for wait in AGAIN.map(Some).into_iter().chain([None]) {
        let mut in_use = Vec::new();
        for part in parts {
            match attempt(&part) {
                None => return,
                Some(it) if it.outcome == RecoveryOutcome::InUse && wait.is_some() => {
                    in_use.push(part);
                }
                Some(it) => done(it),
            }
        }
        match wait {
            Some(wait) if !in_use.is_empty() => drop(ended.recv_timeout(wait)),
            _ => return,
        }
        parts = in_use;
    }
}

/// Recovery of the capture files of an earlier run, in progress during this run.
#[derive(Default)]
pub struct Leftovers {
    /// Channel for the outcome of each recovered file. It is closed when all files are done.
    done: Option<Receiver<RecoveredFile>>,
    /// Flag that stops the recovery of the earlier run's files.
    quit: Arc<AtomicBool>,
    /// Channel that is closed when this run ends, which ends the waits of [`AGAIN`].
    running: Option<Sender<()>>,
}

impl Leftovers {
    /// Starts the recovery of the open capture files of an earlier run, down to `levels` levels of
    /// folders, before this run creates files. A separate thread finishes them, because reading
    /// gigabytes must not delay frames. An error is logged and does not stop the capture.
    ///
    /// With a key, finished files are encrypted.
    pub fn begin(dir: &Path, levels: usize, key: Option<SecretKey>) -> Self {
        let parts = match CaptureFolder::list_to(dir, levels) {
            Ok(it) if it.unfinished.is_empty() => return Self::default(),
            Ok(it) => it.unfinished,
            Err(e) => {
                tracing::warn!(
                    "{}: cannot search for files that an earlier run left open: {e}",
                    dir.display()
                );
                return Self::default();
            }
        };
        let (sender, done) = mpsc::channel();
        let quit = Arc::new(AtomicBool::new(false));
        let may_continue = {
            let quit = Arc::clone(&quit);
            move || !quit.load(Ordering::Relaxed)
        };
        let dir = dir.to_owned();
        let (running, ended) = mpsc::channel();
        let work = move || {
            let attempt =
                |part: &PathBuf| may_continue().then(|| finish(&dir, part, &may_continue));
            finish_in_turn(parts, &ended, attempt, |mut it| {
                if let Some(key) = &key {
                    encrypt(&dir, &mut it, key, &may_continue);
                }
                log(&it);
                let _ = sender.send(it);
            });
        };
        match std::thread::Builder::new()
            .name("wqcap-recover".into())
            .spawn(work)
        {
            Ok(_) => Self {
                done: Some(done),
                quit,
                running: Some(running),
            },
            Err(e) => {
                tracing::warn!(
                    "cannot start the thread that finishes the files that an earlier run left open: {e}"
                );
                Self::default()
            }
        }
    }

    /// Waits for the recovery of the remaining files, but at most [`PATIENCE`] after `stop` is set.
    /// The next run recovers the others. Files that another capture writes and files of other
    /// programs are left out of the result.
    pub fn finish(mut self, stop: &AtomicBool) -> Vec<RecoveredFile> {
        drop(self.running.take());
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
                // The storage may never answer. The thread ends with the process, and a file is
                // renamed only as the last step.
                self.quit.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "files that an earlier run left open are not all finished after {PATIENCE:?}; \
                     the next run or wqcap recover continues"
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

/// Logs the outcome of the recovery of a capture file.
fn log(it: &RecoveredFile) {
    if it.outcome == RecoveryOutcome::Failed {
        let problem = it.problem.as_deref().unwrap_or("cannot finish the file");
        tracing::warn!("{}: {problem}", it.part.display());
    }
    for line in text(slice::from_ref(it)).lines() {
        tracing::info!("an earlier run left this capture file open: {line}");
    }
}

/// Formats the outcome of each recovered file in one line. Failures are left out, because they are
/// printed to stderr.
pub fn text(files: &[RecoveredFile]) -> String {
    let mut text = String::new();
    for file in files {
        let name = file.path.as_ref().unwrap_or(&file.part).display();
        let what = match file.outcome {
            RecoveryOutcome::Finished => {
                let cut = match (file.cut, &file.problem) {
                    (0, _) => String::new(),
                    (n, None) => format!(", {} cut off", thousands(n)),
                    (n, Some(reason)) => format!(", {} cut off: {reason}", thousands(n)),
                };
                format!(
                    "the file was finished with {}, {}{cut}",
                    counted(file.records, "record"),
                    counted(file.kept, "byte")
                )
            }
            RecoveryOutcome::Removed => format!(
                "the file was removed, because it had no complete record in its {}",
                counted(file.cut, "byte")
            ),
            RecoveryOutcome::InUse => "skipped: a capture is writing it".into(),
            RecoveryOutcome::Foreign => "skipped: not a capture file of wqcap".into(),
            RecoveryOutcome::Irregular => "skipped: not a regular file".into(),
            RecoveryOutcome::Failed => continue,
        };
        let _ = writeln!(text, "{}", Text(format_args!("{name}: {what}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a kill, the kernel may hold the lock of a file for a moment.
    #[test]
    fn a_file_that_is_in_use_is_tried_again() {
        let dir = tempfile::tempdir().expect("dir");
        let part = dir.path().join("wqcap-q00-5.pcap.part");
        std::fs::write(&part, "").expect("written");
        let locked = std::fs::File::open(&part).expect("opened");
        locked.lock().expect("locked");
        let mut lock = Some(locked);
        // The run has ended, so that nothing waits.
        let (_, ended) = mpsc::channel();
        let (mut attempts, mut outcomes) = (Vec::new(), Vec::new());
        let attempt = |part: &PathBuf| {
            let it = finish(dir.path(), part, &|| true);
            attempts.push(it.outcome);
            drop(lock.take());
            Some(it)
        };
        finish_in_turn(vec![part], &ended, attempt, |it| outcomes.push(it.outcome));
        let (in_use, removed) = (RecoveryOutcome::InUse, RecoveryOutcome::Removed);
        assert_eq!((attempts, outcomes), (vec![in_use, removed], vec![removed]));
    }

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
            "/cap/wqcap-q00-1.pcap: the file was finished with 1,234 records, 5,678 bytes, 100 cut off: 100 zeros\n\
             /cap/wqcap-q00-1.pcap.part: skipped: a capture is writing it\n\
             /cap/wqcap-q00-1.pcap.part: skipped: not a capture file of wqcap\n\
             /cap/wqcap-q00-1.pcap.part: skipped: not a regular file\n"
        );
    }
}
