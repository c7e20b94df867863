//! `wqcap ctl`: asks a running capture, and prints what it says.

use crate::{
    args::{CtlArgs, CtlCommand, RuleCommand, Setting},
    failure::Failure,
    output,
    table::{aligned, bytes, rate, scaled, thousands},
};
use engine::{
    control::{
        auth::Keys,
        client::{Client, ClientError, UnixLink},
        message::{
            Body, Command, ControlStatus, RdmaStatus, State, Stats, Status, TransportStatus, schema,
        },
        rdma::RdmaLink,
    },
    stats::{Counter, Total},
};
use serde_json::Value;
use std::{collections::BTreeMap, fmt::Write, io, net::ToSocketAddrs, path::Path, time::Duration};

/// Carries out one command.
pub fn ctl(args: &CtlArgs) -> Result<(), Failure> {
    if matches!(args.command, CtlCommand::Schema) {
        return output::print_json(&schema());
    }
    let command = command(&args.command)?;
    let mut client = connect(args)?;
    let once = command.is_change().then(fresh_name).transpose()?;
    let body = client.ask(command, once, args.timeout).map_err(failure)?;
    if let CtlCommand::Watch { every, count } = args.command {
        return watch(&mut client, every, count, args);
    }
    tell(&body, args.json)
}

fn connect(args: &CtlArgs) -> Result<Client, Failure> {
    if let (Some(to), Some(key_file)) = (&args.rdma, &args.key_file) {
        return connect_rdma(to, key_file, args.timeout);
    }
    let path = &args.unix;
    let link = UnixLink::connect(path).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "; no capture serves it: `[control]` in its configuration does, and --unix names its socket"
            }
            io::ErrorKind::PermissionDenied => {
                "; its file's mode and group, control.read_group and control.write_group say who may"
            }
            _ => "",
        };
        Failure::refused(format!("{}: {e}{hint}", path.display()))
    })?;
    Ok(Client::over(link))
}

fn connect_rdma(to: &str, key_file: &Path, timeout: Duration) -> Result<Client, Failure> {
    let refused = |e: io::Error| Failure::refused(format!("--rdma {to}: {e}"));
    let address = to
        .to_socket_addrs()
        .and_then(|mut them| them.next().ok_or(io::ErrorKind::NotFound.into()))
        .map_err(refused)?;
    let keys = Keys::read(key_file)?;
    let link = RdmaLink::connect(address, &keys, timeout).map_err(refused)?;
    Ok(Client::over(link))
}

/// A name no other change has, so that a repeat is told from a new one.
fn fresh_name() -> Result<String, Failure> {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|it| it.trim().to_owned())
        .map_err(|e| Failure::failed(format!("/proc/sys/kernel/random/uuid: {e}")))
}

fn failure(e: ClientError) -> Failure {
    Failure::failed(e.to_string())
}

/// What was typed as what is asked.
fn command(typed: &CtlCommand) -> Result<Command, Failure> {
    Ok(match typed {
        CtlCommand::Status | CtlCommand::Schema => Command::Status,
        CtlCommand::Stats => Command::Stats,
        CtlCommand::Watch { every, .. } => Command::Subscribe {
            interval_ms: u32::try_from(every.as_millis()).unwrap_or(u32::MAX),
        },
        CtlCommand::Plan => Command::Plan,
        CtlCommand::Devices => Command::Devices,
        CtlCommand::Start => Command::Start,
        CtlCommand::Stop => Command::Stop,
        CtlCommand::Drain => Command::Drain,
        CtlCommand::Rotate => Command::Rotate,
        CtlCommand::Filter { expression } => Command::Filter {
            expression: expression.clone(),
        },
        CtlCommand::Rule {
            what: RuleCommand::Add { fields },
        } => Command::RuleAdd { rule: rule(fields) },
        CtlCommand::Rule {
            what: RuleCommand::Remove { fields },
        } => Command::RuleRemove { rule: rule(fields) },
        CtlCommand::WqFlags {
            cvlan_stripping: None,
            scatter_fcs: None,
        } => {
            return Err(Failure::refused(
                "wq-flags: name a flag, --cvlan-stripping true or --scatter-fcs false, say",
            ));
        }
        CtlCommand::WqFlags {
            cvlan_stripping,
            scatter_fcs,
        } => Command::WqFlags {
            cvlan_stripping: *cvlan_stripping,
            scatter_fcs: *scatter_fcs,
        },
        CtlCommand::Respread { weights } => Command::Respread {
            weights: weights.clone(),
        },
        CtlCommand::Log { level } => Command::Log {
            level: serde_json::from_value(Value::from(level.as_str())).map_err(|_| {
                Failure::refused(format!(
                    "log {level}: write error, warn, info, debug or trace"
                ))
            })?,
        },
        CtlCommand::Reload => Command::Reload,
        CtlCommand::Shutdown => Command::Shutdown,
    })
}

/// Fields as JSON values where they are such, numbers above all, else as text.
fn rule(fields: &[Setting]) -> BTreeMap<String, Value> {
    let value = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text));
    fields
        .iter()
        .map(|it| (it.key.clone(), value(&it.value)))
        .collect()
}

/// Prints statistics as they come, until somebody has had enough.
fn watch(
    client: &mut Client,
    every: Duration,
    count: Option<u64>,
    args: &CtlArgs,
) -> Result<(), Failure> {
    let mut before: Option<Box<Stats>> = None;
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let Body::Stats(stats) = client.next(every + args.timeout).map_err(failure)? else {
            continue;
        };
        left -= 1;
        if args.json {
            let line =
                serde_json::to_string(&stats).map_err(|e| Failure::failed(format!("JSON: {e}")))?;
            output::print(&(line + "\n"))?;
        } else {
            output::print(&watched(before.as_deref(), &stats))?;
        }
        before = Some(stats);
    }
    Ok(())
}

/// A line of `watch`: what came since the line before, and what is lost in all.
fn watched(before: Option<&Stats>, now: &Stats) -> String {
    let zero = Stats::default();
    let before = before.unwrap_or(&zero);
    let (was, is) = (&before.ledger.total, &now.ledger.total);
    // Another capture may have been started in between.
    let time = Duration::from_secs_f64((now.elapsed_s - before.elapsed_s).max(0.0));
    let frames = is.received.saturating_sub(was.received);
    let octets = is.bytes.saturating_sub(was.bytes);
    let lost = is.dropped_pipeline + is.dropped_storage + is.late + is.errors;
    let mut line = format!(
        "{:>9.1} s  {:>9}frames/s  {:>9}bit/s  received {}  captured {}  lost {}",
        now.elapsed_s,
        scaled(rate(frames, time)),
        scaled(rate(octets, time) * 8.0),
        thousands(is.received),
        thousands(is.captured),
        thousands(lost)
    );
    for (name, counter) in &now.nic {
        match counter {
            Counter::Value(0) => {}
            Counter::Value(n) => _ = write!(line, "  {name} {}", thousands(*n)),
            Counter::Unreadable(_) => _ = write!(line, "  {name} unreadable"),
        }
    }
    line + "\n"
}

fn tell(body: &Body, json: bool) -> Result<(), Failure> {
    match (body, json) {
        (Body::Status(it), true) => output::print_json(it),
        (Body::Stats(it), true) => output::print_json(it),
        (Body::Changed(it), true) => output::print_json(it),
        (Body::Subscribed { .. }, _) => Ok(()),
        (Body::Devices(it) | Body::Plan(it), _) => output::print_json(it),
        (Body::Status(it), false) => output::print(&status(it)),
        (Body::Stats(it), false) => output::print(&stats(it)),
        (Body::Changed(it), false) => output::print(&format!(
            "{}{}\n",
            if it.changed { "" } else { "no change: " },
            it.now
        )),
    }
}

fn status(it: &Status) -> String {
    let capture = &it.capture;
    let mut text = String::new();
    let mut line = |what: &str, value: String| _ = writeln!(text, "{what:<9}{value}");
    let state = match capture.state {
        State::Running => "running",
        State::Drained => "drained",
        State::Stopped => "stopped",
    };
    line(
        "state",
        format!(
            "{state}, {:.1} s, process {}",
            capture.elapsed_s, capture.pid
        ),
    );
    line(
        "device",
        format!(
            "{} port {}, {} queues",
            capture.device, capture.port, capture.queues
        ),
    );
    let filter = if capture.filter.is_empty() {
        "every frame"
    } else {
        &capture.filter
    };
    line("filter", filter.to_owned());
    line("log", capture.log.clone());
    line("frames", total(&capture.ledger));
    let ControlStatus { unix, rdma } = &it.control;
    if let Some(unix) = unix {
        line("unix", transport(unix));
    }
    if let Some(rdma) = rdma {
        line("rdma", transport(&rdma.transport));
        line("srq", srq(rdma));
    }
    line("wqcap", capture.wqcap.clone());
    text
}

fn total(it: &Total) -> String {
    let mut text = format!(
        "{} received, {} captured, {}",
        thousands(it.received),
        thousands(it.captured),
        bytes(it.bytes)
    );
    for (name, n) in [
        ("filtered", it.filtered),
        ("sampled_out", it.sampled_out),
        ("deduplicated", it.deduplicated),
        ("dropped_pipeline", it.dropped_pipeline),
        ("dropped_storage", it.dropped_storage),
        ("late", it.late),
        ("errors", it.errors),
    ] {
        if n > 0 {
            let _ = write!(text, ", {} {name}", thousands(n));
        }
    }
    text
}

fn transport(it: &TransportStatus) -> String {
    format!(
        "{} clients, {} accepted, {} refused, {} expelled, {} requests",
        it.clients, it.accepted, it.refused, it.expelled, it.requests
    )
}

fn srq(RdmaStatus { srq: it, .. }: &RdmaStatus) -> String {
    let not_ready = it
        .receiver_not_ready
        .map_or("unreadable".into(), |n| n.to_string());
    format!(
        "{} of {} WRs posted (cap {}, {}), limit {} armed {} times and reached {} times, grown {}, shrunk {}, \
         refused {}, receiver not ready {not_ready}, {} QPs",
        it.posted,
        it.max_wr,
        it.cap,
        if it.resizes {
            "resized as needed"
        } else {
            "fixed"
        },
        it.limit,
        it.armed,
        it.limit_events,
        it.grown,
        it.shrunk,
        it.resize_refused,
        it.qps
    )
}

fn stats(it: &Stats) -> String {
    let mut rows = vec![
        ["queue", "received", "captured", "filtered", "lost", "bytes"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let row = |name: String, numbers: [u64; 5]| {
        std::iter::once(name)
            .chain(numbers.map(thousands))
            .collect::<Vec<_>>()
    };
    for q in &it.ledger.queues {
        let lost = q.dropped_pipeline + q.dropped_storage + q.late + q.errors;
        let left_out = q.filtered + q.sampled_out + q.deduplicated;
        rows.push(row(
            q.queue.to_string(),
            [q.received, q.captured, left_out, lost, q.bytes],
        ));
    }
    let t = &it.ledger.total;
    let lost = t.dropped_pipeline + t.dropped_storage + t.late + t.errors;
    let left_out = t.filtered + t.sampled_out + t.deduplicated;
    rows.push(row(
        "total".into(),
        [t.received, t.captured, left_out, lost, t.bytes],
    ));
    rows[0][3] = "left out".into();
    aligned(&rows) + &watched(None, it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_fields_are_numbers_where_they_are_such() {
        let fields: Vec<Setting> = ["proto=udp", "dst_port=53", "src=10.0.0.0/8"]
            .iter()
            .map(|it| it.parse().unwrap())
            .collect();
        let rule = rule(&fields);
        assert_eq!(rule["dst_port"], 53);
        assert_eq!(rule["proto"], "udp");
        assert_eq!(rule["src"], "10.0.0.0/8");
    }

    #[test]
    fn levels_and_flags_are_checked_before_anyone_is_asked() {
        for typed in [
            CtlCommand::Log {
                level: "loud".into(),
            },
            CtlCommand::WqFlags {
                cvlan_stripping: None,
                scatter_fcs: None,
            },
        ] {
            assert!(command(&typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn a_status_names_what_was_lost() {
        let mut status_of = Status {
            capture: Default::default(),
            control: ControlStatus::default(),
        };
        status_of.capture.ledger.dropped_storage = 1234;
        let text = status(&status_of);
        assert!(text.contains("1,234 dropped_storage"), "{text}");
        assert!(
            text.contains("every frame") && !text.contains("errors"),
            "{text}"
        );
    }
}
