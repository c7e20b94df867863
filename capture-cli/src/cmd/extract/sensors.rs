//! `wqcap extract https://SENSOR`: fetches the frames of one or several sensors, merged by time.

use super::{
    end, frames, notes_in_words, output_in_words, print_result,
    spool::{SpoolFolder, spooled_answer},
};
use crate::{
    args::ExtractArgs,
    daemon::signals,
    failure::Failure,
    term::{
        progress::ReadProgress,
        table::{bytes, counted, thousands},
        time::TimePoint,
    },
};
use serde::Serialize;
use std::{
    fmt::Write,
    panic,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use wqcap_engine::{
    extract::{FramesWritten, extract_ranges},
    filter::FileFilter,
};
use wqcap_serve::client::{ClientFiles, MOST_PACKETS, SensorClient, SensorFetchError};

/// Maximum number of sensors that are asked at the same time.
const AT_A_TIME: usize = 16;

impl From<SensorFetchError> for Failure {
    fn from(e: SensorFetchError) -> Self {
        match e {
            SensorFetchError::File { .. } | SensorFetchError::Refused { .. } => {
                Self::refused(e.to_string())
            }
            e => Self::failed(e.to_string()),
        }
    }
}

/// Result of an extraction from sensors, in the layout that `--json` prints.
#[derive(Debug, Serialize)]
struct SensorsExtracted {
    #[serde(flatten)]
    written: FramesWritten,
    sensors: Vec<SensorAnswer>,
}

/// Answer of one sensor to the request for frames, as `--json` prints it.
#[derive(Debug, Serialize)]
struct SensorAnswer {
    url: String,
    bytes: u64,
    /// Number of frames in the answer, as the sensor states; `None`: it states none.
    frames: Option<u64>,
    lacks: Option<String>,
}

/// Returns `true` if a path argument is the URL of a sensor.
fn is_url(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.starts_with("https://") || text.starts_with("http://")
}

/// Returns the URLs of the sensors that the arguments name; empty: they name a directory, a file or
/// a store.
pub(super) fn urls(args: &ExtractArgs) -> Result<Vec<String>, Failure> {
    let all: Vec<&PathBuf> = std::iter::once(&args.dir).chain(&args.more).collect();
    let urls = all.iter().filter(|it| is_url(it)).count();
    if urls == 0 {
        if let Some(second) = args.more.first() {
            return Err(Failure::refused(format!(
                "{}: only sensors (https://...) can be several; use wqcap merge for several directories",
                second.display()
            )));
        }
        return match args.sensor.names_files() {
            Some(option) => Err(Failure::refused(format!(
                "{option} is for a sensor, but {} is not https://HOST:PORT; leave {option} out",
                args.dir.display()
            ))),
            None => Ok(Vec::new()),
        };
    }
    if urls < all.len() {
        return Err(Failure::refused(
            "name either sensors (https://HOST:PORT) or one directory, file or store",
        ));
    }
    if args.index.is_some() {
        return Err(Failure::refused(
            "--index is for a directory; a sensor uses its own indexes; leave --index out",
        ));
    }
    #[cfg(feature = "ship")]
    if let Some(option) = args.store.first_given() {
        return Err(Failure::refused(format!(
            "{option} is for a store, but {} is a sensor; leave {option} out",
            args.dir.display()
        )));
    }
    Ok(all
        .iter()
        .map(|it| it.to_string_lossy().into_owned())
        .collect())
}

/// Extracts frames from sensors, merged by time, and prints the amount of data fetched.
pub(super) fn extract(args: &ExtractArgs, urls: &[String], quiet: bool) -> Result<(), Failure> {
    let mut query = frames_here(args)?;
    let client = SensorClient::new(&ClientFiles {
        token: args.sensor.token_file.clone(),
        ca: args.sensor.ca.clone(),
        cert: args.sensor.cert.clone(),
        key: args.sensor.cert_key.clone(),
    })?;
    let stop = signals::catch()?;
    let params = params(args);
    let reading = Mutex::new(ReadProgress::with_size(quiet, 0));
    let mut answers = Vec::new();
    let mut files = Vec::new();
    let mut losses = Vec::new();
    let mut refusals = 0;
    let spool = SpoolFolder::for_output(&args.out);
    // The output may need the other half.
    let most = (spool.room()? / 2 / urls.len() as u64).min(MOST_PACKETS);
    let fetch = |url: &String| {
        let mut file = spool.new_file()?;
        let fetched = client.fetch(url, &params, &mut file, most, &stop, |bytes| {
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            reading.tick(Path::new(url), bytes);
        });
        Ok::<_, Failure>((file, fetched))
    };
    for (url, fetched) in urls.iter().zip(on_threads(urls, fetch)) {
        let (file, fetched) = fetched?;
        let fetched = match fetched {
            Ok(it) => it,
            // The frames of the other sensors are written.
            Err(
                e @ (SensorFetchError::Lost { .. }
                | SensorFetchError::TooLong { .. }
                | SensorFetchError::Refused { .. }),
            ) if urls.len() > 1 => {
                refusals += usize::from(matches!(e, SensorFetchError::Refused { .. }));
                losses.push(e.to_string());
                continue;
            }
            Err(e) => return Err(e.into()),
        };
        losses.extend(fetched.lacks.iter().map(|it| format!("{url}: {it}")));
        if fetched.bytes > 0 {
            let answer = spooled_answer(url, file, fetched.bytes);
            files.push(answer.with_least_frames(fetched.frames.unwrap_or(0)));
        } else if let Some(stated @ 1..) = fetched.frames {
            losses.push(format!(
                "{url}: the answer is empty, but the sensor states {}",
                counted(stated, "frame")
            ));
        }
        answers.push(SensorAnswer {
            url: url.clone(),
            bytes: fetched.bytes,
            frames: fetched.frames,
            lacks: fetched.lacks,
        });
    }
    reading
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
    if answers.is_empty() {
        return match refusals == urls.len() {
            true => Err(Failure::all_refused(losses)),
            false => Failure::from_messages(losses),
        };
    }
    // The sensors have applied the query.
    query.times = 0..u64::MAX;
    query.filter = FileFilter::default();
    if spool.holds_output {
        query.limits.bytes = spool.room()?;
    }
    let mut written = extract_ranges(files, Vec::new(), &query, |_, _| {
        !stop.load(Ordering::Relaxed)
    })?;
    losses.append(&mut written.losses);
    written.losses = losses;
    // The merge has found each answer with fewer frames than its sensor states.
    let mut stated = answers.iter().map(|it| it.frames);
    let stated = stated.try_fold(0u64, |sum, frames| Some(sum.saturating_add(frames?)));
    if let Some(stated) = stated.filter(|it| *it < written.frames) {
        written.losses.push(format!(
            "the answers of the sensors state {}, but {} frames arrived",
            counted(stated, "frame"),
            thousands(written.frames)
        ));
    }
    let extracted = SensorsExtracted {
        written,
        sensors: answers,
    };
    print_result(args, quiet, &extracted, &text(&extracted))?;
    end(args, extracted.written)
}

/// Calls `work` for each of `all`, at most [`AT_A_TIME`] at the same time, and returns the results in
/// the order of `all`. A sensor that does not answer delays no other one.
fn on_threads<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(it) = all.get(at) else {
                return done;
            };
            done.push((at, work(it)));
        }
    };
    let mut done = thread::scope(|scope| {
        let others = 1..all.len().min(AT_A_TIME);
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
        // A thread that cannot be started leaves its work to the others.
        let others: Vec<_> = others.filter_map(spawn).collect();
        let mut done = worker();
        for other in others {
            let of_other = other.join();
            done.extend(of_other.unwrap_or_else(|e| panic::resume_unwind(e)));
        }
        done
    });
    done.sort_by_key(|it| it.0);
    done.into_iter().map(|it| it.1).collect()
}

/// Builds the local part of the query. The sensors look up marks and Community IDs themselves.
fn frames_here(args: &ExtractArgs) -> Result<wqcap_engine::extract::FrameQuery, Failure> {
    let mut here = args.clone();
    here.mark = None;
    here.community_id = None;
    frames(&here)
}

/// Returns the parameters of the request for frames that is sent to each sensor.
fn params(args: &ExtractArgs) -> Vec<(&'static str, String)> {
    let time = |it: &Option<TimePoint>| {
        it.map(|TimePoint(ns)| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000))
    };
    let expression = &args.filter.expression;
    let all = [
        ("from", time(&args.from)),
        ("to", time(&args.to)),
        (
            "filter",
            Some(expression.clone()).filter(|it| !it.is_empty()),
        ),
        ("community_id", args.community_id.clone()),
        ("mark", args.mark.clone()),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// Formats the result of an extraction from sensors as text.
fn text(it: &SensorsExtracted) -> String {
    let mut text = format!("{}; fetched", output_in_words(&it.written));
    for (n, sensor) in it.sensors.iter().enumerate() {
        let separator = if n == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{separator} {} from {}",
            bytes(sensor.bytes),
            sensor.url
        );
    }
    text.push('\n');
    text + &notes_in_words(&it.written)
}
