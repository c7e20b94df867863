//! `wqcap extract`: extracts frames by time and filter from a folder of capture files or from a
//! store.
//!
//! The summary goes to stderr, because stdout may carry the capture. With `--json` it goes to
//! stdout, and the capture must go to a file.

#[cfg(feature = "serve")]
mod sensors;
#[cfg(feature = "serve")]
mod spool;
#[cfg(feature = "ship")]
mod store;

use crate::{
    args::ExtractArgs,
    cmd::{key, merge},
    daemon::{self, signals},
    failure::Failure,
    term::{
        output,
        progress::ReadProgress,
        table::{bytes, counted},
        terminal,
        text::Text,
    },
};
use serde::Serialize;
use std::{cell::RefCell, fmt::Write, sync::atomic::Ordering};
use wqcap_engine::{
    anonymize::AnonymizeParams,
    extract::{self, ExtractQuery, Extracted, FrameQuery, FramesWritten},
    files::{pin::PinFolder, sealed::SecretKey},
    filter::{FileFilter, quoted_expression},
    index::FlowTerms,
};

/// Extracts frames from a directory of capture files, a store or sensors, and prints the amount of
/// data read.
pub fn extract(args: &ExtractArgs, quiet: bool) -> Result<(), Failure> {
    merge::settle_stdout(&args.out, args.json)?;
    let files = [("--anonymize", &args.anonymize), ("--key", &args.key.key)];
    let files = files
        .into_iter()
        .filter_map(|(option, it)| Some((option, it.as_ref()?)));
    merge::spare_files(&args.out, files)?;
    let key = key::of_args(&args.key)?;
    // Many files may overlap in time.
    daemon::raise_descriptor_limit();
    #[cfg(feature = "serve")]
    {
        let urls = sensors::urls(args)?;
        if !urls.is_empty() {
            return sensors::extract(args, &urls, quiet);
        }
    }
    #[cfg(feature = "ship")]
    if let Some(url) = store::url(args)? {
        return store::extract(args, url, quiet);
    }
    #[cfg(not(feature = "ship"))]
    if args
        .dir
        .as_os_str()
        .as_encoded_bytes()
        .windows(3)
        .any(|it| it == b"://")
    {
        return Err(Failure::refused(format!(
            "{}: this wqcap was built without object stores; build it with the feature ship",
            args.dir.display()
        )));
    }
    let query = query(args, key)?;
    let stop = signals::catch()?;
    let reading: RefCell<Option<ReadProgress>> = RefCell::default();
    let extracted = extract::extract(&query, |bytes, of| {
        if of > 0 {
            reading
                .borrow_mut()
                .get_or_insert_with(|| ReadProgress::with_size(quiet, of))
                .tick(&args.dir, bytes);
        }
        !stop.load(Ordering::Relaxed)
    });
    if let Some(reading) = reading.into_inner() {
        reading.clear();
    }
    let extracted = extracted?;
    print_result(args, quiet, &extracted, &text(&extracted))?;
    end(args, extracted.written)
}

/// Returns a failure if packet records were lost, or if no frame matches and `--fail-if-empty` is
/// given.
fn end(args: &ExtractArgs, written: FramesWritten) -> Result<(), Failure> {
    let mut messages = written.losses;
    if args.fail_if_empty && written.frames == 0 {
        messages.push("no frame matches".to_owned());
    }
    Failure::from_messages(messages)
}

/// Prints the result of an extraction, as JSON or as text.
fn print_result(
    args: &ExtractArgs,
    quiet: bool,
    extracted: &impl Serialize,
    words: &str,
) -> Result<(), Failure> {
    if args.json {
        output::print_json(extracted)?;
    } else if !quiet {
        terminal::print_block(words);
    }
    Ok(())
}

/// Builds the query of `wqcap extract` from its arguments and the decryption key of encrypted
/// files.
fn query(args: &ExtractArgs, key: Option<SecretKey>) -> Result<ExtractQuery, Failure> {
    Ok(ExtractQuery {
        dir: args.dir.clone(),
        index_dir: args.index.clone(),
        key,
        files: None,
        frames: frames(args)?,
    })
}

/// Builds the selection of frames to extract, and the form of the output, from the arguments.
fn frames(args: &ExtractArgs) -> Result<FrameQuery, Failure> {
    let filter = args.filter.compile()?;
    let from = args.from.map_or(0, |it| it.0);
    let to = args.to.map_or(u64::MAX, |it| it.0);
    if from >= to {
        return Err(Failure::refused("--from must be before --to"));
    }
    let (times, filter) = match &args.mark {
        None => (from..to, filter),
        Some(id) => {
            let dir = extract::folder_of(&args.dir);
            let pin = PinFolder { dir }.find(id)?;
            let expression = both(&pin.filter, &args.filter.expression);
            let filter = FileFilter::compile(&expression).map_err(|e| {
                Failure::refused(format!(
                    "--mark {id}: {}: {e}",
                    quoted_expression(&expression)
                ))
            })?;
            (pin.times(), filter)
        }
    };
    Ok(FrameQuery {
        community_id: args.community_id.clone(),
        anonymize: anonymize(args)?,
        ..FrameQuery::new(times, filter, args.out.clone())
    })
}

/// Combines two filter expressions into one that selects the frames that both select.
fn both(a: &str, b: &str) -> String {
    match (a, b) {
        ("", it) | (it, "") => it.to_owned(),
        // An index supports plain terms, but not terms in parentheses.
        _ if [a, b].iter().all(|it| !FlowTerms::parse(it).is_empty()) => format!("{a} and {b}"),
        _ => format!("({a}) and ({b})"),
    }
}

/// Builds the parameters of the anonymization; `None`: the arguments do not request it.
fn anonymize(args: &ExtractArgs) -> Result<Option<AnonymizeParams>, Failure> {
    let Some(path) = &args.anonymize else {
        return Ok(None);
    };
    let key = SecretKey::read(path).map_err(|e| {
        Failure::refused(format!(
            "--anonymize {}: cannot read the anonymization key: {e}",
            path.display()
        ))
    })?;
    let slice = args.slice.unwrap_or_default();
    Ok(Some(AnonymizeParams { key, slice }))
}

/// Formats the result of an extraction from capture files as text.
fn text(it: &Extracted) -> String {
    let mut text = format!(
        "{}; read {} of {}, {} of {}\n",
        output_in_words(&it.written),
        it.files.read,
        counted(it.files.total, "file"),
        bytes(it.file_bytes.read),
        bytes(it.file_bytes.total)
    );
    let index = it.index;
    if index.made > 0 {
        let _ = writeln!(
            text,
            "note: {} indexes were missing or stale and were built first, reading {} of files",
            index.made,
            bytes(index.bytes_to_make)
        );
    }
    text + &notes_in_words(&it.written)
}

/// Formats the output of an extraction: `12 frames into OUT: pcapng, 1.2 KiB`.
fn output_in_words(it: &FramesWritten) -> String {
    let (frames, bytes) = (counted(it.frames, "frame"), bytes(it.bytes));
    format!("{frames} into {}: {}, {bytes}", Text(&it.out), it.format)
}

/// Formats the changes that anonymization made to the extracted frames, and the notes of the
/// extraction.
fn notes_in_words(it: &FramesWritten) -> String {
    let mut text = String::new();
    if let Some(done) = it.anonymized {
        let _ = writeln!(
            text,
            "anonymized: {} cut, by {}; {} overwritten",
            counted(done.frames_cut, "frame"),
            bytes(done.bytes_cut),
            counted(done.options_overwritten, "option"),
        );
        if done.frames_with_payload > 0 {
            let _ = writeln!(
                text,
                "note: {} with unchanged payload, which may contain addresses and names",
                counted(done.frames_with_payload, "frame"),
            );
        }
    }
    for note in &it.notes {
        let _ = writeln!(text, "note: {}", Text(note));
    }
    text
}
