//! Control commands that change something. [`CaptureBackend::route`] lists every command with the
//! function that executes it. The capture's owner executes changes of the capture.

mod key_reload;
mod reload;

pub use key_reload::{KeyReload, ReloadChanges, ReloadRefusal, ReloadTable, report_reload};

use crate::{
    Supervisor,
    answers::{changed, failed, replaced, same},
    backend::{CaptureBackend, Mark},
    order::{Occurrence, Outcome},
    transitions::Event,
};
use serde_json::Value;
use std::collections::BTreeMap;
use wqcap_control::{
    protocol::{Command, Refusal, RefusalCode},
    server::ChangeReply,
};
use wqcap_core::time::system_ns;
use wqcap_engine::{
    Error,
    capture::{Capture, Respread},
    config::RuleConfig,
    plan::Plan,
};

impl CaptureBackend {
    /// Executes a control command, or queues it for the capture's owner. The outcome is sent to
    /// `reply`.
    pub(crate) fn route(&self, command: Command, reply: ChangeReply) {
        match command {
            Command::Start => self.order(Event::Start, reply),
            Command::Stop => self.order(Event::Stop, reply),
            Command::Drain => self.order(Event::Drain, reply),
            Command::Reload => self.order(Event::Reload, reply),
            Command::Shutdown => self.order(Event::Shutdown, reply),
            Command::Rotate => order_change(self, reply, |_, capture, _| rotate(capture)),
            Command::WqFlags {
                cvlan_stripping,
                scatter_fcs,
            } => order_change(self, reply, move |_, capture, plan| {
                wq_flags(capture, plan, cvlan_stripping, scatter_fcs)
            }),
            Command::Respread { weights } => {
                order_change(self, reply, move |supervisor, capture, _| {
                    respread(capture, &weights).inspect(|_| {
                        if !weights.is_empty() {
                            supervisor.backend.set_weights(&weights);
                        }
                    })
                });
            }
            Command::RuleAdd { rule } => {
                order_change(self, reply, move |_, capture, _| add_rule(capture, &rule));
            }
            Command::RuleRemove { rule } => {
                order_change(self, reply, move |_, capture, _| {
                    remove_rule(capture, &rule)
                });
            }
            Command::Log { level } => reply.send(self.set_log_level(level)),
            Command::Filter { expression } => self.change_filter(expression, reply),
            Command::Mark {
                text,
                before_ms,
                after_ms,
                filter,
            } => {
                let mark = Mark {
                    text,
                    now: system_ns(),
                    before_ms,
                    after_ms,
                    filter,
                };
                self.mark(mark, reply);
            }
            // The control service answers queries itself.
            Command::Status
            | Command::Stats
            | Command::Devices
            | Command::Plan
            | Command::Subscribe { .. } => {
                reply.send(Err(failed("internal error: unroutable command".into())));
            }
        }
    }
}

/// Queues a change of the running capture, which the capture's owner executes.
fn order_change(
    backend: &CaptureBackend,
    reply: ChangeReply,
    change: impl FnOnce(&mut Supervisor, &mut Capture, &Plan) -> Outcome + Send + 'static,
) {
    backend.queue(Occurrence {
        event: Event::Change,
        work: Some(Box::new(|supervisor, capture| match capture {
            Some((capture, plan)) => change(supervisor, capture, plan),
            None => Err(supervisor.backend.refusal()),
        })),
        reply: Some(reply),
    });
}

fn rotate(capture: &Capture) -> Outcome {
    if capture.rotate() {
        return Ok(changed("each queue continues in its next file"));
    }
    Err(Refusal::new(
        RefusalCode::State,
        "output.format = \"none\": this run writes no files",
    ))
}

/// Changes the creation flags of the WQs of a running capture; only CVLAN stripping can change. A
/// flag that already has the requested value counts as unchanged.
pub(crate) fn wq_flags(
    capture: &Capture,
    plan: &Plan,
    cvlan_stripping: Option<bool>,
    scatter_fcs: Option<bool>,
) -> Outcome {
    if scatter_fcs.is_some_and(|on| on != plan.port.scatters_fcs()) {
        return Err(Refusal::new(
            RefusalCode::Unsupported,
            "wq.scatter_fcs: ibv_modify_wq changes only CVLAN stripping; set the key in the configuration and restart",
        ));
    }
    let flags = capture.wq_flags_handle();
    let is = flags.cvlan_stripping();
    let wanted = cvlan_stripping.unwrap_or(is);
    let state = |stripping| {
        let fcs = plan.port.scatters_fcs();
        format!("wq.cvlan_stripping = {stripping}, wq.scatter_fcs = {fcs}")
    };
    if wanted == is {
        return Ok(same(&state(is)));
    }
    flags.set_cvlan_stripping(wanted).map_err(refusal)?;
    Ok(replaced(state(is), &state(wanted)))
}

pub(crate) fn respread(capture: &mut Capture, weights: &[u32]) -> Outcome {
    let how = if weights.is_empty() {
        Respread::ByLoad
    } else {
        Respread::Weights(weights.to_vec())
    };
    let was = shares(capture);
    let done = capture.respread(&how).map_err(refusal)?;
    if done.moved == 0 {
        return Ok(same(&format!(
            "no other indirection table of {} entries spreads the load better",
            done.entries
        )));
    }
    Ok(replaced(
        was,
        &format!(
            "{}; {} of {} indirection table entries moved; the busiest queue had {:.2} times its share of the load and is now expected to have {:.2} times its share",
            shares(capture),
            done.moved,
            done.entries,
            done.skew_before,
            done.skew_after
        ),
    ))
}

/// Returns a text for people with the number of entries of the RSS indirection table that name each
/// queue.
fn shares(capture: &Capture) -> String {
    let mut entries = vec![0u32; capture.queues()];
    for queue in capture.table() {
        entries[usize::from(*queue)] += 1;
    }
    let entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
    format!("indirection table entries by queue: {}", entries.join(", "))
}

fn add_rule(capture: &mut Capture, fields: &BTreeMap<String, Value>) -> Outcome {
    let rule = rule(fields)?;
    let was = count(capture);
    let new = capture.add_rule(&rule).map_err(refusal)?;
    let now = count(capture);
    Ok(match new {
        true => replaced(was, &format!("{now}, with ({rule})")),
        false => same(&now),
    })
}

fn remove_rule(capture: &mut Capture, fields: &BTreeMap<String, Value>) -> Outcome {
    let rule = rule(fields)?;
    let was = count(capture);
    let removed = capture.remove_rule(&rule).map_err(refusal)?;
    Ok(replaced(
        format!("{was}, with ({removed})"),
        &count(capture),
    ))
}

fn count(capture: &Capture) -> String {
    match capture.rules().map(<[_]>::len).unwrap_or_default() {
        0 => "no rule: no frames are captured".into(),
        1 => "1 rule".into(),
        n => format!("{n} rules"),
    }
}

/// Converts the fields of a flow rule in a control command to a rule of the configuration.
fn rule(fields: &BTreeMap<String, Value>) -> Result<RuleConfig, Refusal> {
    let object = fields.clone().into_iter().collect();
    serde_json::from_value(Value::Object(object))
        .map_err(|e| Refusal::new(RefusalCode::Malformed, format!("rule: {e}")))
}

/// Converts an error to the refusal of a control command. The refusal's code distinguishes requests
/// that the caller can correct from failures.
fn refusal(e: Error) -> Refusal {
    let code = match &e {
        Error::Unsupported(_) => RefusalCode::Unsupported,
        Error::Config(_) | Error::Several(_) => RefusalCode::Malformed,
        _ => RefusalCode::Failed,
    };
    Refusal::new(code, e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: &Value) -> BTreeMap<String, Value> {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn message_fields_form_a_rule_or_are_refused_by_name() {
        let rule_of = |value| rule(&fields(&value));
        let it = rule_of(json!({"id": "dns", "proto": "udp", "dst_port": 53})).unwrap();
        assert_eq!((it.id.as_deref(), it.dst_port), (Some("dns"), Some(53)));
        for (value, word) in [
            (json!({"colour": 1}), "colour"),
            (json!({"vlan": 70_000}), "70000"),
            (json!({"proto": "tpc"}), "tpc"),
        ] {
            let refusal = rule_of(value).unwrap_err();
            assert_eq!(refusal.code, RefusalCode::Malformed);
            assert!(refusal.message.contains(word), "{refusal:?}");
        }
    }
}
