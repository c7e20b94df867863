//! `wqcap ship`: ships the finished files of a capture to an object store.

use crate::{
    args::ShipArgs,
    daemon::{
        metrics::{DeliverySource, Endpoint, Metrics},
        reload::Reloadable,
        sandbox::Sandbox,
        sd_notify::Service,
        signals,
    },
    failure::Failure,
    term::{
        output,
        progress::ProgressLine,
        stderr,
        table::{bytes, counted, rate, scaled, thousands},
        terminal,
        text::Text,
    },
};
use std::{
    fmt::Write,
    fs,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};
use wqcap_engine::{
    anonymize::AnonymizeParams,
    config::{AnonymizeConfig, Config, Format, Sensor, ShipPackets},
    files::sealed::SecretKey,
    filter::Filter,
    index::FlowTerms,
};
use wqcap_ship::{
    ShipPlan, ShipSelection,
    shipper::{self, DryRun, Mode, Planned, ShipError, ShipStatus},
    store,
};
use wqcap_supervisor::{KeyReload, ReloadTable};

/// Interval at which the progress line is drawn and the service manager gets a message.
const EVERY: Duration = Duration::from_secs(1);

/// Effects of a reload on the configuration keys of shipping. A reload always reads files of
/// credentials again.
const KEYS: ReloadTable = ReloadTable {
    process: "`wqcap ship`",
    keys: {
        use KeyReload::{Applies, NeedsRestart, Unused};
        const FOLDERS: KeyReload =
            NeedsRestart("the sandbox permits only the folders of the start");
        &[
            ("ship.packets", Applies),
            ("ship.part_size", Applies),
            ("ship.concurrency", Applies),
            ("ship.bandwidth", Applies),
            (
                "ship.metrics",
                NeedsRestart("the sandbox permits only the port of the start"),
            ),
            (
                "ship*",
                NeedsRestart("the journal is for one store and one sensor"),
            ),
            (
                "anonymize*",
                NeedsRestart("the key is read before the sandbox"),
            ),
            ("output.dir", FOLDERS),
            ("output.index_dir", FOLDERS),
            ("flows*", FOLDERS),
            (
                "process.*",
                NeedsRestart("the process has entered its sandbox"),
            ),
            ("*", Unused),
        ]
    },
};

impl From<ShipError> for Failure {
    fn from(e: ShipError) -> Self {
        match e.may_pass() {
            true => Self::failed(e),
            false => Self::refused(e),
        }
    }
}

/// Runs `wqcap ship`: ships finished capture files and flow records to an object store, or lists
/// the files that would be shipped.
pub fn ship(args: &ShipArgs, quiet: bool) -> Result<(), Failure> {
    let config = args.config.load()?;
    let mut plan = plan(&config)?;
    if args.dry_run {
        let DryRun {
            files, problems, ..
        } = shipper::dry_run(&plan)?;
        match args.json {
            true => output::print_json(&files)?,
            false => output::print(&planned_in_words(&files))?,
        }
        return Failure::from_messages(problems);
    }
    let file = args.config.file.as_deref();
    let metrics = config.ship.as_ref().and_then(|it| it.metrics.as_ref());
    let endpoint = metrics.map(|it| Endpoint::resolve("ship.metrics", it));
    let endpoint = endpoint.transpose()?;
    fs::create_dir_all(&plan.journal).map_err(|e| {
        let message = format_args!("ship.journal = {:?}: {e}", plan.journal);
        Failure::of_setup(message, &e)
    })?;
    let mut service = Service::new();
    Sandbox::enter_to_ship(&config, &plan, file.filter(|it| it.as_os_str() != "-"))?;
    // Shipping must not wait for a log collector.
    stderr::detach();
    stderr::start_writer()?;
    // Without a config file SIGHUP has nothing to reload.
    let signals = signals::catch_to_reload(file.is_some())?;
    let stop = signals.stop_flag();
    let source = DeliverySource::new(&plan.sensor);
    let metrics = endpoint.map(|it| {
        let source = source.clone();
        Metrics::start(&it, move |older| source.text(older), &[])
    });
    let metrics = metrics.transpose()?;
    if let Some(Metrics { address, .. }) = metrics.as_ref().filter(|_| !quiet) {
        terminal::print_line(format_args!("metrics at http://{address}/metrics"));
    }
    let mode = match args.once {
        true => Mode::Once,
        false => Mode::Follow,
    };
    service.ready(&format!("ships to {}", plan.store));
    let mut progress = ShipProgress::new(quiet);
    let mut reloadable = Reloadable::new(&args.config, KEYS, config, |_| {});
    let mut before = ShipStatus::default();
    let done = loop {
        let mut next = None;
        let done = shipper::run(&plan, mode, |status| {
            let status = status.clone().after(&before);
            source.publish(&status);
            if let Some(line) = progress.tick(&status) {
                service.alive(&line);
            }
            reloadable.attend(&signals, |new| {
                let new = reloaded(&plan, new)?;
                shipper::check_store(&new)?;
                next = Some(new);
                Ok("the files of credentials are read again".into())
            });
            next.is_none() && !stop.load(Ordering::Relaxed)
        });
        let done = done.map(|status| status.after(&before));
        match (done, next) {
            // Shipping continues from its journal.
            (Ok(status), Some(new)) if !stop.load(Ordering::Relaxed) => {
                (before, plan) = (status, new)
            }
            (done, _) => break done,
        }
    };
    service.stopping();
    progress.line.clear();
    let status = done?;
    if args.json {
        output::print_json(&status)?;
    } else if !quiet {
        output::print(&in_words(&status))?;
    }
    let is_stopped = stop.load(Ordering::Relaxed);
    match mode {
        // A signal is the normal end of this mode.
        Mode::Follow => Ok(()),
        Mode::Once if is_stopped => Err(Failure::failed(format!(
            "a signal stopped `wqcap ship` before everything was shipped; the next run ships the rest: {}",
            counted(status.pending_files, "file")
        ))),
        Mode::Once => Failure::from_messages(status.problems),
    }
}

/// Makes the plan of shipping to an object store from the configuration.
fn plan(config: &Config) -> Result<ShipPlan, Failure> {
    let output = &config.output;
    let no_store = || {
        let forms = store::FORMS;
        Failure::refused(format!(
            "ship.store is not set; write {forms} into [ship] of the config (-c CONFIG)"
        ))
    };
    let ship = config.ship.as_ref().ok_or_else(no_store)?;
    let url = ship.store.clone().ok_or_else(no_store)?;
    store::check_url(&url).map_err(|e| Failure::refused(format!("ship.store = {url:?}: {e}")))?;
    if output.is_stdout() || output.format == Format::None {
        return Err(Failure::refused(
            "this config writes no files that could be shipped; set output.dir and output.format",
        ));
    }
    let sensor = match &ship.sensor {
        Some(sensor) => sensor.clone(),
        None => of_host()?,
    };
    let index_dir = &output.index_dir;
    Ok(ShipPlan {
        dir: output.dir.clone(),
        index_dir: (!index_dir.as_os_str().is_empty()).then(|| index_dir.clone()),
        // Flow records contain addresses and names, so they are not shipped with anonymization.
        flows_dir: match config.anonymize {
            Some(_) => None,
            None => config.flows.as_ref().map(|it| it.dir.clone()),
        },
        anonymize: config.anonymize.as_ref().map(anonymize).transpose()?,
        store: url,
        sensor: sensor.as_str().to_owned(),
        host: host(),
        packets: selection(&ship.packets)?,
        part_bytes: ship.part_size.0,
        // The configuration limits this to 1 to 64.
        concurrency: ship.concurrency as usize,
        bandwidth: ship.bandwidth.map(|it| it.0),
        journal: ship.journal.clone(),
    })
}

/// Returns the plan of shipping with the values that it takes over from a reloaded configuration.
fn reloaded(plan: &ShipPlan, config: &Config) -> Result<ShipPlan, Failure> {
    let ship = config.ship.clone().unwrap_or_default();
    Ok(ShipPlan {
        packets: selection(&ship.packets)?,
        part_bytes: ship.part_size.0,
        concurrency: ship.concurrency as usize,
        bandwidth: ship.bandwidth.map(|it| it.0),
        ..plan.clone()
    })
}

/// Reads the anonymization key for shipped frames (`anonymize.key`).
fn anonymize(config: &AnonymizeConfig) -> Result<AnonymizeParams, Failure> {
    let none = "anonymize.key is not set; name the file of a key (`openssl rand -out FILE 32` generates one)";
    let path = config.key.as_ref();
    let path = path.ok_or_else(|| Failure::refused(none))?;
    let key = SecretKey::read(path);
    let refused = |e| Failure::refused(format!("anonymize.key = {path:?}: {e}"));
    Ok(AnonymizeParams {
        key: key.map_err(refused)?,
        slice: config.slice,
    })
}

/// Returns the selection of capture files whose packets are shipped (`ship.packets`).
fn selection(packets: &ShipPackets) -> Result<ShipSelection, Failure> {
    let expression = match packets {
        ShipPackets::All => return Ok(ShipSelection::All),
        ShipPackets::None => return Ok(ShipSelection::None),
        ShipPackets::Of(expression) => expression,
    };
    let refused = |reason| Failure::refused(format!("ship.packets = {expression:?}: {reason}"));
    Filter::compile(expression).map_err(|e| refused(e.to_string()))?;
    let terms = FlowTerms::parse(expression);
    if terms.is_empty() {
        return Err(refused(
            "an index cannot evaluate this filter; write terms such as \"host 10.0.0.1\" and \"tcp port 443\", joined by \"and\"".into(),
        ));
    }
    Ok(ShipSelection::Of(terms))
}

/// Returns the host name of this machine.
fn host() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Returns the default name of the sensor: the host name of this machine.
fn of_host() -> Result<Sensor, Failure> {
    Sensor::try_from(host()).map_err(|e| {
        Failure::refused(format!(
            "ship.sensor is not set, and the name of the host cannot replace it: {e}"
        ))
    })
}

/// Progress line of shipping, updated each second, for the terminal and for the service manager.
struct ShipProgress {
    /// Progress line of shipping on the terminal.
    line: ProgressLine,
    /// Time of the progress line's last update, and the number of bytes shipped by then.
    last: Option<(Instant, u64)>,
}

impl ShipProgress {
    fn new(quiet: bool) -> Self {
        Self {
            line: ProgressLine::new(quiet),
            last: None,
        }
    }

    /// Draws and returns the progress line of shipping, if a second has passed since the last one.
    fn tick(&mut self, status: &ShipStatus) -> Option<String> {
        let now = Instant::now();
        let (then, before) = self.last.unwrap_or((now, status.bytes));
        let time = now.saturating_duration_since(then);
        if self.last.is_some() && time < EVERY {
            return None;
        }
        self.last = Some((now, status.bytes));
        let sent = status.bytes.saturating_sub(before);
        let line = line(status, sent, time);
        self.line.draw(&line);
        Some(line)
    }
}

/// Formats the progress line of shipping:
/// `12.3 MB/s  3 files, 1.5 GiB left  lag 2 s  wqcap-q00-5.pcap`.
fn line(status: &ShipStatus, sent: u64, time: Duration) -> String {
    let mut text = format!(
        "{}B/s  {}, {} left  lag {:.0} s",
        scaled(rate(sent, time)),
        counted(status.pending_files, "file"),
        bytes(status.pending_bytes),
        status.lag_s
    );
    if status.ledger.expired_unshipped > 0 {
        let _ = write!(
            text,
            "  expired_unshipped {}",
            thousands(status.ledger.expired_unshipped)
        );
    }
    let what = status.problems.last().or(status.now.as_ref());
    if let Some(what) = what {
        let _ = write!(text, "  {what}");
    }
    text
}

/// Formats the delivery ledger of shipping, and the amount sent.
fn in_words(status: &ShipStatus) -> String {
    let mut text = String::new();
    for (name, frames) in status.ledger.lines() {
        let _ = writeln!(text, "{name:<18}{:>20}", thousands(frames));
    }
    let _ = writeln!(
        text,
        "sent: {}, {}; left: {}, {}",
        counted(status.objects, "object"),
        bytes(status.bytes),
        counted(status.pending_files, "file"),
        bytes(status.pending_bytes)
    );
    if status.uncounted_files > 0 {
        let _ = writeln!(
            text,
            "note: the frames of {} are not counted yet",
            counted(status.uncounted_files, "file")
        );
    }
    text
}

/// Formats the objects that `wqcap ship` would send, one line for each.
fn planned_in_words(planned: &[Planned]) -> String {
    let mut text = String::new();
    for it in planned {
        for object in it.object.iter().chain(&it.blocks) {
            let _ = writeln!(text, "{}  {}", Text(object), Text(it.path.display()));
        }
    }
    let sent = planned.iter().filter(|it| it.object.is_some());
    let _ = writeln!(
        text,
        "{} to ship, {}",
        counted(planned.len() as u64, "file"),
        bytes(sent.map(|it| it.bytes).sum())
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use wqcap_ship::ledger::{DeliveryLedger, FrameState};

    /// Returns the message for a configuration that is refused.
    fn refused(text: &str) -> String {
        let config = Config::parse(text).expect(text);
        plan(&config).expect_err(text).messages.join("\n")
    }

    #[test]
    fn a_plan_has_a_store_a_sensor_and_files() {
        let text = "[ship]\nstore = \"s3://b/p\"\nsensor = \"tap\"\npackets = \"none\"\n[flows]";
        let plan = plan(&Config::parse(text).expect("a valid config")).expect("a valid plan");
        assert_eq!(plan.sensor, "tap");
        assert_eq!(plan.packets, ShipSelection::None);
        assert_eq!(plan.flows_dir, Some(PathBuf::from("/var/lib/wqcap/flows")));
        assert_eq!((plan.index_dir, plan.bandwidth), (None, None));
        for (text, part) in [
            ("", "ship.store is not set"),
            ("[ship]", "ship.store is not set"),
            (
                "[ship]\nstore = \"swift://b\"",
                "ship.store = \"swift://b\"",
            ),
            (
                "[ship]\nstore = \"s3://b\"\npackets = \"hots 1.1.1.1\"",
                "ship.packets = \"hots 1.1.1.1\"",
            ),
            (
                "[ship]\nstore = \"s3://b\"\npackets = \"len > 9\"",
                "an index cannot evaluate this filter",
            ),
            (
                "[ship]\nstore = \"s3://b\"\n[output]\nformat = \"none\"",
                "writes no files",
            ),
        ] {
            let message = refused(text);
            assert!(message.contains(part), "{message:?} lacks {part:?}");
        }
    }

    #[test]
    fn the_line_has_rate_backlog_and_lag() {
        let mut status = ShipStatus {
            pending_files: 3,
            pending_bytes: 3 << 29,
            lag_s: 2.4,
            now: Some("wqcap-q00-5.pcap".into()),
            ..ShipStatus::default()
        };
        let second = Duration::from_secs(1);
        assert_eq!(
            line(&status, 12_300_000, second),
            "12.3 MB/s  3 files, 1.5 GiB left  lag 2 s  wqcap-q00-5.pcap"
        );
        status.ledger.add_frames(FrameState::Expired, 1234);
        status.problems.push("the store is gone".into());
        let text = line(&status, 0, Duration::ZERO);
        assert!(
            text.ends_with("lag 2 s  expired_unshipped 1,234  the store is gone"),
            "{text}"
        );
    }

    #[test]
    fn each_line_of_the_ledger_is_printed() {
        let status = ShipStatus {
            ledger: DeliveryLedger {
                captured: 1111,
                shipped: 1,
                pending: 10,
                not_selected: 100,
                expired_unshipped: 1000,
            },
            uncounted_files: 1,
            ..ShipStatus::default()
        };
        let text = in_words(&status);
        for line in [
            "captured                         1,111",
            "expired_unshipped                1,000",
            "note: the frames of 1 file are not counted yet",
        ] {
            assert!(text.lines().any(|it| it == line), "{text}");
        }
    }
}
