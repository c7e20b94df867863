//! `wqcap extract https://SENSOR`: fetches the frames of one or several sensors, merged by time.

use super::{end, frames, notes_in_words, output_in_words, print_result};
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
use rustix::fs::{StatVfs, fstatvfs};
use serde::Serialize;
use std::{
    env,
    fmt::Write,
    fs::{self, File},
    io::{self, ErrorKind, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering},
};
use wqcap_engine::{
    extract::{FramesWritten, extract_ranges},
    files::read::{FileRanges, RemoteContent, is_capture_start},
    filter::Filter,
};
use wqcap_serve::client::{ClientFiles, MOST_PACKETS, SensorClient, SensorFetchError};

/// Maximum number of bytes of a file system that the answers of sensors leave free.
const MOST_RESERVE: u64 = 1 << 30;

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

/// Answer of a sensor in a temporary file without a name.
#[derive(Debug)]
struct SpooledAnswer {
    url: String,
    file: Arc<File>,
}

impl SpooledAnswer {
    /// Returns the answer, of `len` bytes, as an input of a merge. Its ports are those of the
    /// sensor.
    fn into_ranges(self, len: u64) -> FileRanges {
        let folder = PathBuf::from(&self.url);
        let all = std::iter::once(0..len).collect();
        FileRanges::from_remote(&folder, "answer", all, Arc::new(self))
    }
}

impl RemoteContent for SpooledAnswer {
    fn name(&self) -> String {
        self.url.clone()
    }

    fn read(&self, _: bool) -> io::Result<Box<dyn Read + Send>> {
        let mut start = [0; 4];
        let len = self.file.read_at(&mut start, 0)?;
        // A service sends no compressed file, whose frames could fill the disk.
        if !is_capture_start(&start[..len]) {
            let problem = "the answer is neither pcapng nor pcap";
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        Ok(Box::new(SpoolReader {
            file: Arc::clone(&self.file),
            at: 0,
        }))
    }
}

/// Reader of a temporary file with a position of its own.
struct SpoolReader {
    file: Arc<File>,
    /// Offset in the file of the next byte to read.
    at: u64,
}

impl Read for SpoolReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read_at(into, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
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
    let mut reading = ReadProgress::with_size(quiet, 0);
    let mut answers = Vec::new();
    let mut files = Vec::new();
    let mut losses = Vec::new();
    let mut refusals = 0;
    let folder = spool_folder(&args.out);
    for url in urls {
        let unusable = |e: io::Error| {
            Failure::refused(format!("{}: cannot create a file: {e}", folder.display()))
        };
        // The file has no name, so that it does not outlive this process.
        let mut file = tempfile::tempfile_in(&folder).map_err(unusable)?;
        let most = spool_limit(&fstatvfs(&file).map_err(|e| unusable(e.into()))?);
        let fetched = client.fetch(url, &params, &mut file, most, &stop, |bytes| {
            reading.tick(Path::new(url), bytes);
        });
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
            let file = Arc::new(file);
            let answer = SpooledAnswer {
                url: url.clone(),
                file,
            };
            files.push(answer.into_ranges(fetched.bytes));
        }
        answers.push(SensorAnswer {
            url: url.clone(),
            bytes: fetched.bytes,
            frames: fetched.frames,
            lacks: fetched.lacks,
        });
    }
    reading.clear();
    if answers.is_empty() {
        return match refusals == urls.len() {
            true => Err(Failure::all_refused(losses)),
            false => Failure::from_messages(losses),
        };
    }
    // The sensors have applied the query.
    query.times = 0..u64::MAX;
    query.filter = Filter::default();
    let mut written = extract_ranges(files, Vec::new(), &query, |_, _| {
        !stop.load(Ordering::Relaxed)
    })?;
    losses.append(&mut written.losses);
    written.losses = losses;
    let stated: Option<u64> = answers.iter().map(|it| it.frames).sum();
    if let Some(stated) = stated.filter(|it| *it != written.frames) {
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

/// Returns the directory for temporary files: that of the output `out`, unless the output is a pipe
/// or a device, whose directory may be in memory.
fn spool_folder(out: &Path) -> PathBuf {
    let is_file = || fs::metadata(out).map_or(true, |it| it.is_file());
    if out.as_os_str() != "-" && is_file() {
        let folder = out.parent().filter(|it| !it.as_os_str().is_empty());
        return folder.unwrap_or(Path::new(".")).to_owned();
    }
    // hier(7): /tmp may be in memory, and /var/tmp is not.
    let on_disk = Path::new("/var/tmp");
    match env::var_os("TMPDIR") {
        None if on_disk.is_dir() => on_disk.to_owned(),
        _ => env::temp_dir(),
    }
}

/// Returns the maximum length in bytes of a sensor's answer in a temporary file, from the state of
/// the file system: half of the free space, because the output may need the other half, without a
/// reserve for other programs.
fn spool_limit(disk: &StatVfs) -> u64 {
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let size = disk.f_blocks.saturating_mul(disk.f_frsize);
    let reserve = (size / 20).min(MOST_RESERVE);
    (free.saturating_sub(reserve) / 2).min(MOST_PACKETS)
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
