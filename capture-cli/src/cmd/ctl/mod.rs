//! `wqcap ctl`: sends commands to a running capture, and prints the answers.

mod text;
mod traffic;

pub use text::{disk, state};

use crate::{
    args::{CtlArgs, CtlCommand, RuleCommand, ServiceArgs, Setting},
    failure::Failure,
    term::output,
};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io,
    net::ToSocketAddrs,
    path::Path,
    time::{Duration, Instant},
};
use wqcap_control::{
    client::{Client, ClientError, RcTransport, UnixTransport},
    protocol::{AnswerBody, Command, Stats, auth::Keys, schema},
};

/// Interval at which `wqcap ctl watch` checks whether its terminal or pipe is closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Executes one command of `wqcap ctl`.
pub fn ctl(args: &CtlArgs) -> Result<(), Failure> {
    let Some(command) = command(&args.command)? else {
        return output::print_json(&schema());
    };
    let mut client = connect(&args.service)?;
    let once = command.is_change().then(fresh_id).transpose()?;
    let body = client
        .request(command, once, args.service.timeout)
        .map_err(Failure::failed)?;
    if let CtlCommand::Watch { every, count } = args.command {
        return watch(&mut client, every, count, args);
    }
    print_answer(&body, args.json)
}

/// Connects to the control service over the transport that the arguments select: RDMA or a Unix
/// socket.
pub fn connect(args: &ServiceArgs) -> Result<Client, Failure> {
    if let (Some(to), Some(key_file)) = (&args.rdma, &args.key_file) {
        return connect_rdma(to, key_file, args.timeout);
    }
    let path = &args.unix;
    let transport = UnixTransport::connect(path).map_err(|e| {
        let hint = match e.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                "; no capture listens there; set [control] in its configuration, and name its socket with --unix"
            }
            io::ErrorKind::PermissionDenied => {
                "; access is granted by the mode and group of the socket, and by control.read_group and control.write_group"
            }
            _ => "",
        };
        Failure::refused(format!("cannot connect to the control socket {}: {e}{hint}", path.display()))
    })?;
    Ok(Client::new(transport))
}

/// Connects to a control service over RDMA, with the key in `key_file`.
fn connect_rdma(to: &str, key_file: &Path, timeout: Duration) -> Result<Client, Failure> {
    let refused = |e: io::Error| {
        Failure::refused(format!(
            "--rdma {to}: cannot connect to the control service: {e}"
        ))
    };
    let address = to
        .to_socket_addrs()
        .and_then(|mut them| them.next().ok_or(io::ErrorKind::NotFound.into()))
        .map_err(refused)?;
    let keys = Keys::read(key_file).map_err(|e| Failure::refused(format!("--key-file {e}")))?;
    let transport = RcTransport::connect(address, &keys, timeout).map_err(refused)?;
    Ok(Client::new(transport))
}

/// Returns an idempotency key that no other change request has, by which the control service
/// recognises a repeated request.
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
fn fresh_id() -> Result<String, Failure> {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid")
        .map(|it| it.trim().to_owned())
        .map_err(|e| Failure::failed(format!("/proc/sys/kernel/random/uuid: {e}")))
}

/// Returns the failure of a connection to the control service that was lost after at least one
/// answer.
pub fn ended(e: ClientError) -> Failure {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match e {
        ClientError::Lost(e)
            if matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) =>
        {
            Failure::failed("the capture has ended")
        }
        e => Failure::failed(e),
    }
}

/// Converts a command of `wqcap ctl` to a command of the control service. `None`: the command is
/// `schema`, which needs no service.
fn command(typed: &CtlCommand) -> Result<Option<Command>, Failure> {
    Ok(Some(match typed {
        CtlCommand::Schema => return Ok(None),
        CtlCommand::Status => Command::Status,
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
            expression: expression.join(" "),
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
                "wq-flags: name a flag, such as --cvlan-stripping true",
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
        CtlCommand::Mark {
            text,
            before,
            after,
            filter,
        } => {
            let ms = |time: &Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            Command::Mark {
                text: text.clone(),
                before_ms: ms(before),
                after_ms: ms(after),
                filter: filter.expression.clone(),
            }
        }
        CtlCommand::Log { level } => Command::Log {
            level: serde_json::from_value(Value::from(level.as_str())).map_err(|_| {
                Failure::refused(format!(
                    "log {level}: the log level is unknown; write error, warn, info, debug or trace"
                ))
            })?,
        },
        CtlCommand::Reload => Command::Reload,
        CtlCommand::Shutdown => Command::Shutdown,
    }))
}

/// Converts the fields of a flow rule to JSON values: numbers, also hexadecimal ones, and other
/// JSON values where they parse, else text.
fn rule(fields: &[Setting]) -> BTreeMap<String, Value> {
    let value = |it: &Setting| {
        let text = it.value.as_str();
        let hex = text.strip_prefix("0x");
        if it.key == "id" {
            return Value::from(text);
        }
        match hex.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(number) => Value::from(number),
            None => serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
        }
    };
    fields
        .iter()
        .map(|it| (it.key.clone(), value(it)))
        .collect()
}

/// Prints the capture's statistics as they arrive, until stdout is closed or `count` lines are
/// printed.
fn watch(
    client: &mut Client,
    every: Duration,
    count: Option<u64>,
    args: &CtlArgs,
) -> Result<(), Failure> {
    let mut before: Option<Box<Stats>> = None;
    let mut left = count.unwrap_or(u64::MAX);
    let mut deadline = Instant::now() + every + args.service.timeout;
    while left > 0 && !output::is_gone(&io::stdout()) {
        let stats = match client.next_answer(CHECK_INTERVAL) {
            Ok(AnswerBody::Stats(stats)) => stats,
            Ok(_) => continue,
            Err(ClientError::Lost(e))
                if e.kind() == io::ErrorKind::TimedOut && Instant::now() < deadline =>
            {
                continue;
            }
            Err(e) => return Err(ended(e)),
        };
        deadline = Instant::now() + every + args.service.timeout;
        left -= 1;
        if args.json {
            output::print_json_line(&stats)?;
        } else {
            output::print(&text::watched(before.as_deref(), &stats))?;
        }
        before = Some(stats);
    }
    Ok(())
}

/// Prints an answer of the control service as JSON or as text.
fn print_answer(body: &AnswerBody, json: bool) -> Result<(), Failure> {
    match body {
        AnswerBody::Status(it) => print_as(it.as_ref(), json, text::status),
        AnswerBody::Stats(it) => print_as(it.as_ref(), json, text::stats),
        AnswerBody::Devices(it) | AnswerBody::Plan(it) => print_as(it, json, text::text_of),
        AnswerBody::Subscribed { .. } => Ok(()),
        AnswerBody::Changed(it) => print_as(it, json, |it| {
            let prefix = if it.changed { "" } else { "no change: " };
            format!("{prefix}{}\n", it.now)
        }),
    }
}

/// Prints a part of an answer of the control service as JSON, or as the text that `text` returns.
fn print_as<T: Serialize>(it: &T, json: bool, text: fn(&T) -> String) -> Result<(), Failure> {
    match json {
        true => output::print_json(it),
        false => output::print(&text(it)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_rule_fields_become_numbers() {
        let fields: Vec<Setting> = [
            "proto=udp",
            "dst_port=53",
            "src=10.0.0.0/8",
            "ethertype=0x88cc",
            "id=7",
        ]
        .iter()
        .map(|it| it.parse().unwrap())
        .collect();
        let rule = rule(&fields);
        assert_eq!(rule["dst_port"], 53);
        assert_eq!(rule["proto"], "udp");
        assert_eq!(rule["src"], "10.0.0.0/8");
        assert_eq!(rule["ethertype"], 0x88cc);
        assert_eq!(rule["id"], "7");
    }

    #[test]
    fn levels_and_flags_are_checked_before_connecting() {
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
}
