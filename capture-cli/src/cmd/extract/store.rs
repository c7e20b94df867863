//! `wqcap extract` from a store: reads the frames of all sensors by the tables of the files'
//! contents, or by a list of ranges.

use super::{end, frames, notes_in_words, output_in_words, print_result};
use crate::{
    args::ExtractArgs,
    daemon::signals,
    failure::Failure,
    term::{
        progress::ReadProgress,
        table::{bytes, counted, thousands},
    },
};
use std::{
    cell::RefCell,
    fmt::{Display, Write},
    path::Path,
    time::Duration,
};
use wqcap_engine::files::folder::open::{MOST_LIST, read_named};
use wqcap_ship::{
    query::{
        self, ObjectChoice, PlanError, RangeList, StoreExtracted, StoreQuery, StoreQueryError,
    },
    store::{self, FORMS},
};

/// Default of `--lookback`: time before `--from` within which the searched capture files may begin.
const LOOKBACK: Duration = Duration::from_secs(24 * 60 * 60);

impl From<StoreQueryError> for Failure {
    fn from(e: StoreQueryError) -> Self {
        match e {
            StoreQueryError::Merge(e) => e.into(),
            StoreQueryError::Threads(_)
            | StoreQueryError::Fetch { .. }
            | StoreQueryError::Plan {
                problem: PlanError::Store(_),
                ..
            } => Self::failed(e),
            _ => Self::refused(e),
        }
    }
}

/// Returns the URL of the object store that the arguments name; `None`: they name a directory of
/// capture files.
pub(super) fn url(args: &ExtractArgs) -> Result<Option<String>, Failure> {
    let shown = args.dir.display();
    let Some(url) = store::url_of(&args.dir) else {
        return match args.store.first_given() {
            None => Ok(None),
            Some(name) => Err(Failure::refused(format!(
                "{name} is for a store, but {shown} is neither a URL nor a directory with blocks/dt=...; leave {name} out, or name {FORMS}"
            ))),
        };
    };
    store::check_url(&url).map_err(|e| Failure::refused(format!("{shown}: {e}")))?;
    let misplaced = [
        ("--mark", args.mark.is_some()),
        ("--index", args.index.is_some()),
    ];
    if let Some((name, _)) = misplaced.into_iter().find(|(_, is_given)| *is_given) {
        return Err(Failure::refused(format!(
            "{name} is for a directory of capture files, but {shown} is a store; leave {name} out"
        )));
    }
    let place = |path: &Path| path.canonicalize().ok();
    let out = place(&args.out).filter(|it| it.is_file());
    if let (Some(out), Some(store)) = (out, store::folder_of(&url).and_then(place))
        && out.starts_with(store)
    {
        return Err(Failure::refused(format!(
            "{}: the output is a file of the store; name another output",
            args.out.display()
        )));
    }
    Ok(Some(url))
}

/// Extracts frames from an object store, and prints the amount of data fetched.
pub(super) fn extract(args: &ExtractArgs, url: String, quiet: bool) -> Result<(), Failure> {
    let query = StoreQuery {
        store: url,
        choice: choice(args)?,
        frames: frames(args)?,
    };
    let stop = signals::catch()?;
    let reading: RefCell<Option<ReadProgress>> = RefCell::default();
    let extracted = query::extract(&query, &stop, |it| {
        let objects = format!("{} of {} objects", it.objects, it.of_objects);
        reading
            .borrow_mut()
            .get_or_insert_with(|| ReadProgress::with_size(quiet, it.of_bytes))
            .tick(Path::new(&objects), it.bytes);
    });
    if let Some(reading) = reading.into_inner() {
        reading.clear();
    }
    let extracted = extracted?;
    print_result(args, quiet, &extracted, &text(&extracted))?;
    end(args, extracted.written)
}

/// Selects the objects of the store that may contain the requested frames.
fn choice(args: &ExtractArgs) -> Result<ObjectChoice, Failure> {
    let of = &args.store;
    if let Some(path) = &of.ranges {
        let refused =
            |e: &dyn Display| Failure::refused(format!("--ranges {}: {e}", path.display()));
        let list = read_named(path, MOST_LIST).map_err(|e| refused(&e))?;
        let list = RangeList::read(list).map_err(|e| refused(&e))?;
        return Ok(ObjectChoice::Of(list));
    }
    let lookback = of.lookback.unwrap_or(LOOKBACK);
    Ok(ObjectChoice::OfTimes {
        sensors: of.sensors.iter().map(ToString::to_string).collect(),
        lookback_ns: u64::try_from(lookback.as_nanos()).unwrap_or(u64::MAX),
    })
}

/// Formats the result of an extraction from a store as text.
fn text(it: &StoreExtracted) -> String {
    let mut text = format!(
        "{}; fetched {} of {} of {} by {}\n",
        output_in_words(&it.written),
        bytes(it.fetched.bytes),
        thousands(it.objects.read),
        counted(it.objects.total, "object"),
        counted(it.fetched.requests, "request"),
    );
    if it.unsent.parts > 0 {
        let parts = counted(it.unsent.parts, "part");
        let frames = match it.unsent.frames {
            0 => String::new(),
            frames => format!(" with {}", counted(frames, "frame")),
        };
        let _ = writeln!(
            text,
            "note: {parts} of files{frames} were not sent because of ship.packets, and are on their sensors"
        );
    }
    text + &notes_in_words(&it.written)
}
