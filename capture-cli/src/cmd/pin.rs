//! `wqcap pin`: creates, lists and releases pins, which protect capture files from retention.

use crate::{
    args::{CaptureFolderArgs, PinArgs, PinCommand},
    failure::Failure,
    term::{
        output,
        table::{bytes, counted},
        terminal,
        text::Text,
        time::TimePoint,
    },
};
use serde::Serialize;
use std::{
    fmt::Write,
    path::{Path, PathBuf},
};
use wqcap_engine::{
    config::Format,
    files::{
        folder::{CaptureFolder, path_text},
        name::natural_order,
        pin::{HeldFile, Pin, PinError, PinEvaluator, PinFolder, Pins, UnsoundPin},
        read::origin::FileKind,
        sealed::SecretKey,
    },
    index::{FlowTerms, IndexFolder},
    merge::kind_in_folder,
    read::FileRanges,
};

/// Runs `wqcap pin`: creates, lists or releases pins, which protect capture files from deletion.
pub fn pin(args: &PinArgs) -> Result<(), Failure> {
    match &args.command {
        None => add(args),
        Some(PinCommand::List { folder, json }) => list(&CaptureSet::open(folder)?, *json),
        Some(PinCommand::Release { folder, id }) => {
            let place = CaptureSet::open(folder)?;
            place.pins().release(id)?;
            output::print(&format!("{id}: released\n"))
        }
    }
}

impl From<PinError> for Failure {
    fn from(e: PinError) -> Self {
        match e {
            PinError::Io { .. } => Self::failed(e),
            _ => Self::refused(e),
        }
    }
}

/// Folder of capture files, with the folder of their indexes.
struct CaptureSet {
    /// Path of the folder of capture files.
    dir: PathBuf,
    /// Path of the folder of the capture files' indexes; `None`: the capture writes no indexes.
    index_dir: Option<PathBuf>,
    /// Finished capture files of the folder, with their lengths.
    files: Vec<(PathBuf, u64)>,
    /// Decryption key of encrypted capture files. Without it, pins protect those without an index
    /// whatever their times are.
    key: Option<SecretKey>,
}

impl CaptureSet {
    /// Reads the folder of capture files that the arguments name.
    fn open(args: &CaptureFolderArgs) -> Result<Self, Failure> {
        let output = args.config.load()?.output;
        if args.dir.is_none() && (output.is_stdout() || output.format == Format::None) {
            return Err(Failure::refused(
                "this config writes no files; name the directory of the files with --dir DIR, or another config with -c CONFIG",
            ));
        }
        let dir = args.dir.clone().unwrap_or_else(|| output.dir.clone());
        let key = output.key_source().and_then(|it| it.read().ok());
        let folder = CaptureFolder::search(&dir).map_err(|e| {
            let shown = dir.display();
            Failure::refused(format!(
                "{shown}: {e}; name the directory of the capture files with -c CONFIG or --dir DIR"
            ))
        })?;
        for note in folder.unread_notes().chain(folder.losses()) {
            terminal::print_note(format_args!("{note}"));
        }
        let is_capture = |(path, _): &(PathBuf, u64)| {
            let file = FileRanges::whole(path.clone()).with_key(key.clone());
            kind_in_folder(&file) != FileKind::Foreign
        };
        let mut files = folder.finished;
        files.extend(folder.others.into_iter().filter(is_capture));
        files.sort_by(|(a, _), (b, _)| natural_order(a, b));
        let index_dir = output.index_dir;
        Ok(Self {
            dir,
            index_dir: (!index_dir.as_os_str().is_empty()).then_some(index_dir),
            files,
            key,
        })
    }

    /// Returns the pins in the folder of capture files, which protect files from deletion.
    fn pins(&self) -> PinFolder<'_> {
        PinFolder { dir: &self.dir }
    }

    /// Returns, for each finished capture file, the pins that protect it from deletion.
    fn held(&self, pins: &Pins) -> Vec<HeldFile> {
        let files: Vec<_> = self.files.iter().map(|(path, _)| path.as_path()).collect();
        let indexes = self.index_dir.as_deref().map(|folder| IndexFolder {
            folder,
            dir: &self.dir,
        });
        PinEvaluator::new(self.key.clone()).evaluate(&files, pins, indexes)
    }
}

/// Pin and a summary of the capture files that it protects, as `--json` prints it.
#[derive(Debug, Serialize)]
struct PinFacts<'a> {
    id: &'a str,
    #[serde(flatten)]
    pin: &'a Pin,
    /// Number of finished capture files that the pin protects.
    files: u64,
    /// Total length in bytes of the finished capture files that the pin protects.
    bytes: u64,
    /// Number of protected files that have no index, so that only their times decide.
    unindexed: u64,
}

/// Counts, for each pin, the capture files that it protects.
fn facts<'a>(place: &CaptureSet, pins: &'a Pins) -> Vec<PinFacts<'a>> {
    let fact = |(id, pin): &'a (String, Pin)| PinFacts {
        id,
        pin,
        files: 0,
        bytes: 0,
        unindexed: 0,
    };
    let mut facts: Vec<_> = pins.sound.iter().map(fact).collect();
    for (held, (_, len)) in place.held(pins).iter().zip(&place.files) {
        for i in &held.by {
            let it = &mut facts[*i];
            it.files += 1;
            it.bytes += len;
            it.unindexed += u64::from(!held.indexed);
        }
    }
    facts
}

/// Adds a pin, and prints a summary of the capture files that it protects.
fn add(args: &PinArgs) -> Result<(), Failure> {
    let (Some(from), Some(to), Some(reason)) = (args.from, args.to, &args.reason) else {
        return Err(Failure::refused("--from, --to and --reason are required"));
    };
    if from >= to {
        return Err(Failure::refused("--from must be before --to"));
    }
    args.filter.compile()?;
    let place = CaptureSet::open(&args.folder)?;
    let now: TimePoint = "now".parse().map_err(Failure::failed)?;
    let pin = Pin {
        from_ns: from.0,
        to_ns: to.0,
        filter: args.filter.expression.clone(),
        reason: reason.clone(),
        made_ns: now.0,
    };
    let id = place.pins().add(&pin)?;
    // Lists the files again: with the pin in force none of them can be deleted any more.
    let place = CaptureSet::open(&args.folder)?;
    let pins = Pins {
        sound: vec![(id, pin)],
        ..Pins::default()
    };
    let facts = facts(&place, &pins);
    let Some(fact) = facts.first() else {
        return Ok(());
    };
    for note in notes(&place, fact, now) {
        terminal::print_note(format_args!("{note}"));
    }
    match args.json {
        true => output::print_json(fact),
        false => output::print(&format!("{}: protects {}\n", Text(fact.id), held(fact))),
    }
}

/// Returns notes for the user about the effect of a pin.
fn notes(place: &CaptureSet, fact: &PinFacts<'_>, now: TimePoint) -> Vec<String> {
    let mut notes = Vec::new();
    let pin = fact.pin;
    if pin.to_ns > now.0 {
        notes.push("files of this period that are finished later are also protected".into());
    }
    if pin.filter.is_empty() {
        return notes;
    }
    if FlowTerms::parse(&pin.filter).is_empty() {
        notes.push(format!(
            "an index cannot evaluate the filter {:?}, so every file of this period is protected; terms joined by \"and\" protect fewer files",
            pin.filter
        ));
    } else if place.index_dir.is_none() {
        notes.push(
            "without indexes the filter has no effect, so every file of this period is protected; set output.index_dir in the config"
                .into(),
        );
    } else if fact.unindexed > 0 {
        notes.push(format!(
            "the filter is not applied to {} without an index; time alone decides which of them are protected",
            counted(fact.unindexed, "file")
        ));
    }
    notes
}

/// Formats the number and total length of the capture files that a pin protects.
fn held(fact: &PinFacts<'_>) -> String {
    format!("{}, {}", counted(fact.files, "file"), bytes(fact.bytes))
}

/// Report that `wqcap pin list --json` prints.
#[derive(Serialize)]
struct PinReport<'a> {
    #[serde(serialize_with = "path_text::serialize")]
    dir: &'a Path,
    pins: Vec<PinFacts<'a>>,
    unsound: &'a [UnsoundPin],
    notes: &'a [String],
}

/// Prints the pins of a folder of capture files.
fn list(place: &CaptureSet, json: bool) -> Result<(), Failure> {
    let pins = place.pins().read();
    let facts = facts(place, &pins);
    if json {
        return output::print_json(&PinReport {
            dir: &place.dir,
            pins: facts,
            unsound: &pins.unsound,
            notes: &pins.notes,
        });
    }
    for note in &pins.notes {
        terminal::print_note(format_args!("{note}"));
    }
    for it in &pins.unsound {
        terminal::print_note(format_args!(
            "{:?}: {}; no capture file is deleted until this is corrected",
            it.path.display(),
            it.problem
        ));
    }
    output::print(&text(&place.dir, &facts))
}

/// Formats the pins of a folder of capture files, one line for each.
fn text(dir: &Path, facts: &[PinFacts<'_>]) -> String {
    if facts.is_empty() {
        return format!("{}: no pins\n", Text(dir.display()));
    }
    let mut text = String::new();
    for fact in facts {
        let pin = fact.pin;
        let _ = write!(
            text,
            "{}  {} to {}, ",
            Text(fact.id),
            TimePoint(pin.from_ns),
            TimePoint(pin.to_ns)
        );
        if !pin.filter.is_empty() {
            let _ = write!(text, "{}, ", Text(&pin.filter));
        }
        let _ = writeln!(text, "{}: {}", held(fact), Text(&pin.reason));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_for_each_pin() {
        let pin = |filter: &str| Pin {
            from_ns: 1_772_366_400_000_000_000,
            to_ns: 1_772_366_460_500_000_000,
            filter: filter.into(),
            reason: "incident 4711".into(),
            made_ns: 0,
        };
        let [all, some] = ["", "tcp port 443"].map(pin);
        let fact = |id, pin| PinFacts {
            id,
            pin,
            files: 1,
            bytes: 2048,
            unindexed: 0,
        };
        let facts = [fact("a", &all), fact("b-2", &some)];
        let dir = Path::new("/cap");
        assert_eq!(
            text(dir, &facts),
            "a  2026-03-01T12:00:00Z to 2026-03-01T12:01:00.5Z, 1 file, 2 KiB: incident 4711\n\
             b-2  2026-03-01T12:00:00Z to 2026-03-01T12:01:00.5Z, tcp port 443, 1 file, 2 KiB: incident 4711\n"
        );
        assert_eq!(text(dir, &[]), "/cap: no pins\n");
    }
}
