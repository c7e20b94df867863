//! `wqcap pin`: holds on capture files, which retention does not delete.

use crate::{
    args::{CaptureFolderArgs, PinArgs, PinCommand},
    failure::Failure,
    term::{
        output,
        table::{bytes, counted},
        terminal,
        time::Moment,
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
        folder::CaptureFolder,
        pin::{HeldFile, Holder, Pin, PinError, PinFolder, Pins},
        sealed::open_with,
    },
    index::{FlowTerms, IndexFolder},
};

/// Makes, lists or releases pins.
pub fn pin(args: &PinArgs) -> Result<(), Failure> {
    match &args.command {
        None => add(args),
        Some(PinCommand::List { folder, json }) => list(&Place::of(folder)?, *json),
        Some(PinCommand::Release { folder, id }) => {
            let place = Place::of(folder)?;
            place.pins().release(id)?;
            output::print(&format!("{id}: released\n"))
        }
    }
}

impl From<PinError> for Failure {
    fn from(e: PinError) -> Self {
        match e {
            PinError::Io { .. } => Self::failed(e.to_string()),
            _ => Self::refused(e.to_string()),
        }
    }
}

/// Where files are, and their indexes.
struct Place {
    dir: PathBuf,
    index_dir: Option<PathBuf>,
    /// Finished files and their lengths.
    files: Vec<(PathBuf, u64)>,
}

impl Place {
    fn of(args: &CaptureFolderArgs) -> Result<Self, Failure> {
        let output = args.config.load()?.output;
        if args.dir.is_none() && (output.is_stdout() || output.format == Format::None) {
            return Err(Failure::refused(
                "this config writes no files: name their directory with --dir DIR, or another config with -c CONFIG",
            ));
        }
        let dir = args.dir.clone().unwrap_or_else(|| output.dir.clone());
        let folder = CaptureFolder::list(&dir).map_err(|e| {
            let shown = dir.display();
            Failure::refused(format!(
                "{shown}: {e}; name the directory of the capture files with -c CONFIG or --dir DIR"
            ))
        })?;
        for note in folder.unread_notes() {
            terminal::say(format_args!("note: {note}"));
        }
        // Without it, files that have no index are held whatever their times are.
        if let Some(key) = output.key_source().and_then(|it| it.read().ok()) {
            open_with(key);
        }
        let index_dir = output.index_dir;
        Ok(Self {
            dir,
            index_dir: (!index_dir.as_os_str().is_empty()).then_some(index_dir),
            files: folder.finished,
        })
    }

    fn pins(&self) -> PinFolder<'_> {
        PinFolder { dir: &self.dir }
    }

    /// For each file, the pins that hold it.
    fn held(&self, pins: &Pins) -> Vec<HeldFile> {
        let files: Vec<_> = self.files.iter().map(|(path, _)| path.as_path()).collect();
        let indexes = self.index_dir.as_deref().map(|folder| IndexFolder {
            folder,
            dir: &self.dir,
        });
        Holder::default().held(&files, pins, indexes)
    }
}

/// A pin and what it holds, as `--json` prints it.
#[derive(Debug, Serialize)]
struct PinFacts<'a> {
    id: &'a str,
    #[serde(flatten)]
    pin: &'a Pin,
    /// Finished files that it holds.
    files: u64,
    /// Their bytes.
    bytes: u64,
    /// Those of the files that have no index, and are held by their times alone.
    unindexed: u64,
}

/// What each pin holds.
fn facts<'a>(place: &Place, pins: &'a Pins) -> Vec<PinFacts<'a>> {
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

fn add(args: &PinArgs) -> Result<(), Failure> {
    let (Some(from), Some(to), Some(reason)) = (args.from, args.to, &args.reason) else {
        return Err(Failure::refused("--from, --to and --reason are required"));
    };
    if from >= to {
        return Err(Failure::refused("--from must be before --to"));
    }
    args.filter.compile()?;
    let place = Place::of(&args.folder)?;
    let now: Moment = "now".parse().map_err(Failure::failed)?;
    let pin = Pin {
        from_ns: from.0,
        to_ns: to.0,
        filter: args.filter.expression.clone(),
        reason: reason.clone(),
        made_ns: now.0,
    };
    let id = place.pins().add(&pin)?;
    // As they are with the pin in force: none of them goes from now on.
    let place = Place::of(&args.folder)?;
    let pins = Pins {
        sound: vec![(id, pin)],
        ..Pins::default()
    };
    let facts = facts(&place, &pins);
    let Some(fact) = facts.first() else {
        return Ok(());
    };
    for note in notes(&place, fact, now) {
        terminal::say(format_args!("note: {note}"));
    }
    match args.json {
        true => output::print_json(fact),
        false => output::print(&format!("{}: holds {}\n", fact.id, held(fact))),
    }
}

/// What whoever pins should know.
fn notes(place: &Place, fact: &PinFacts<'_>, now: Moment) -> Vec<String> {
    let mut notes = Vec::new();
    let pin = fact.pin;
    if pin.to_ns > now.0 {
        notes.push(
            "files that are finished later are held, too, as far as they are of this time".into(),
        );
    }
    if pin.filter.is_empty() {
        return notes;
    }
    if FlowTerms::parse(&pin.filter).is_empty() {
        notes.push(format!(
            "an index cannot tell of {:?}: every file of this time is held; terms joined by \"and\" hold fewer",
            pin.filter
        ));
    } else if place.index_dir.is_none() {
        notes.push(
            "without indexes the filter tells nothing, and every file of this time is held; output.index_dir of the config has indexes"
                .into(),
        );
    } else if fact.unindexed > 0 {
        notes.push(format!(
            "{} without an index: held by time alone",
            counted(fact.unindexed, "file")
        ));
    }
    notes
}

fn held(fact: &PinFacts<'_>) -> String {
    format!("{}, {}", counted(fact.files, "file"), bytes(fact.bytes))
}

fn list(place: &Place, json: bool) -> Result<(), Failure> {
    let pins = place.pins().read();
    let facts = facts(place, &pins);
    if json {
        return output::print_json(&serde_json::json!({
            "dir": place.dir,
            "pins": facts,
            "unsound": pins.unsound,
            "notes": pins.notes,
        }));
    }
    for note in &pins.notes {
        terminal::say(format_args!("note: {note}"));
    }
    for it in &pins.unsound {
        terminal::say(format_args!(
            "note: {:?}: {}; nothing is deleted while it is there",
            it.path.display(),
            it.problem
        ));
    }
    output::print(&text(&place.dir, &facts))
}

/// A line for each pin.
fn text(dir: &Path, facts: &[PinFacts<'_>]) -> String {
    if facts.is_empty() {
        return format!("{}: no pins\n", dir.display());
    }
    let mut text = String::new();
    for fact in facts {
        let pin = fact.pin;
        let _ = write!(
            text,
            "{}  {} to {}, ",
            fact.id,
            Moment(pin.from_ns),
            Moment(pin.to_ns)
        );
        if !pin.filter.is_empty() {
            let _ = write!(text, "{}, ", pin.filter);
        }
        let _ = writeln!(text, "{}: {}", held(fact), pin.reason);
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
