//! Marks: pin the files around a moment, and note the mark in the open files.
//!
//! Invariant: the control service's threads do not wait for a disk. A separate thread writes each
//! pin.

use crate::answers::{changed, failed};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
};
use wqcap_control::{
    protocol::{Changed, Refusal, RefusalCode},
    server::ChangeReply,
};
use wqcap_core::sync::thread::spawn;
use wqcap_engine::{
    filter::{FilterCompiler, quoted_expression},
    sink::SinkRequests,
};
use wqcap_files::pin::{Pin, PinError, PinFolder};

/// Maximum length in bytes of a mark's text: capture files hold the text and the mark's ID in one
/// comment.
const LONGEST: usize = 900;

/// Mark that a control command requests: a text, and the time range around the request.
pub(crate) struct Mark {
    pub(crate) text: String,
    /// Time at which a client requested the mark of a moment in the capture, in nanoseconds since
    /// 1970. It is taken before the mark's filter is compiled.
    pub(crate) now: u64,
    pub(crate) before_ms: u64,
    pub(crate) after_ms: u64,
    pub(crate) filter: String,
}

impl Mark {
    /// Returns a pin, which protects the capture files of the mark's time range from deletion.
    fn pin(&self, filters: &FilterCompiler) -> Result<Pin, Refusal> {
        let refused = |problem: String| Refusal::new(RefusalCode::Malformed, problem);
        if self.text.len() > LONGEST {
            return Err(refused(format!(
                "the text of the mark has {} bytes; at most {LONGEST} are allowed",
                self.text.len()
            )));
        }
        let expression = &self.filter;
        filters
            .compile(expression)
            .map_err(|e| refused(format!("filter = {}: {e}", quoted_expression(expression))))?;
        let now = self.now;
        let ns = |ms: u64| ms.saturating_mul(1_000_000);
        Ok(Pin {
            from_ns: now.saturating_sub(ns(self.before_ms)),
            // An empty range still contains the moment itself.
            to_ns: now.saturating_add(ns(self.after_ms).max(1)),
            filter: expression.clone(),
            reason: self.text.clone(),
            made_ns: now,
        })
    }
}

/// Sets a mark: pins the capture files of its time range, and notes it in the open files. `dir` is
/// the directory of the capture files; `None`: the run writes no files. `requests` leads to the
/// writers of the running capture; `filters` checks the mark's filter.
pub(crate) fn mark(
    mark: &Mark,
    dir: Option<PathBuf>,
    requests: Option<Arc<SinkRequests>>,
    filters: &FilterCompiler,
    reply: ChangeReply,
) {
    let Some(dir) = dir else {
        return reply.send(Err(Refusal::new(
            RefusalCode::State,
            "this run writes no files to mark; set output.dir and output.format",
        )));
    };
    let pin = match mark.pin(filters) {
        Ok(pin) => pin,
        Err(refusal) => return reply.send(Err(refusal)),
    };
    let write = move || reply.send(written(&dir, &pin, requests.as_deref()));
    if let Err(e) = spawn("wqcap-mark", write) {
        tracing::warn!("cannot set a mark: {e}");
    }
}

fn written(dir: &Path, pin: &Pin, requests: Option<&SinkRequests>) -> Result<Changed, Refusal> {
    let id = PinFolder { dir }.add(pin).map_err(|e| match e {
        PinError::Io { .. } => failed(e.to_string()),
        PinError::TooMany(_) => Refusal::new(RefusalCode::TooMany, e.to_string()),
        _ => Refusal::new(RefusalCode::Malformed, e.to_string()),
    })?;
    if let Some(requests) = requests {
        requests.mark(&format!("{id}: {}", pin.reason));
    }
    let now = format!("the capture files of the period of mark {id} are now protected by a pin");
    Ok(Changed {
        id: Some(id),
        ..changed(&now)
    })
}
