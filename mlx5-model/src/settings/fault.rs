//! Syntax of faults, and the check whether a fault is due.
//!
//! Imports `value`. Invariant: a parsed fault can be injected into any device that has its port.

use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;

use super::error::FaultSyntaxError;
use super::value::within;

const NS_PER_MS: u64 = 1_000_000;
/// Longest duration of an injected fault, and latest time after the start at which it can be
/// triggered, in milliseconds: one day. A larger value is refused, because its unit is probably
/// wrong.
const MAX_MS: u64 = 86_400_000;
/// Largest delay of a frame by the fault `slow_pci`, in nanoseconds: one second.
const MAX_NS: u64 = 1_000_000_000;
/// Largest clock step of a fault in nanoseconds, some eleven days. Sums with the host's time stay
/// far from the limits of 64 bits.
const MAX_JUMP_NS: i64 = 1_000_000_000_000_000;

/// Effect of an injected fault. A WQ is given by its number in the order of creation, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    WqFatal(u32),
    /// Fault that invalidates the memory keys of a WQ: its next frame completes with a local
    /// protection error.
    BadLkey(u32),
    /// Fault that damages a WQ's next frame on the wire, so that its FCS is wrong.
    BadFcs(u32),
    CqOverrun(u32),
    /// Fault that takes the port's link down until the end of the fault.
    PortDown(FaultEnd),
    /// Fault that fails the device until the end of the fault, when its driver has restarted it.
    DeviceFatal(FaultEnd),
    /// Fault that delays the write of each received frame to memory.
    SlowPci {
        /// Delay of each received frame in nanoseconds.
        ns: u64,
        /// Duration of the slowdown of received frames in nanoseconds; `None`: until the process
        /// ends.
        for_ns: Option<u64>,
    },
    /// Fault that loses this number of the port's next frames, because the PCIe bus does not take
    /// them.
    PciOverflow(u32),
    /// Fault that steps the NIC's clock by this number of nanoseconds.
    ClockJump(i64),
    /// Fault that makes the clock info page read as in the middle of an update, for this number of
    /// nanoseconds.
    ClockBusy(u64),
}

/// End of an injected fault that lasts for some time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEnd {
    Never,
    /// The injected fault ends after this number of nanoseconds.
    AfterNs(u64),
    /// The injected fault ends when this file exists.
    File(&'static Path),
}

/// Event that starts an injected fault on its port: a number of received frames, a time, or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// Trigger: the fault is due after its port has received this number of frames.
    Frames(u64),
    /// Trigger: the fault is due this number of nanoseconds after its port's first flow rule was
    /// installed.
    Ns(u64),
    /// Trigger: the fault is due when this file exists.
    File(&'static Path),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub effect: Effect,
    /// Port (from 1) that counts the frames and time of the fault's trigger, and that a port fault
    /// hits.
    pub port: u8,
    pub trigger: Trigger,
}

impl Fault {
    /// Returns whether the fault is due on a port that has received `frames` frames and got its
    /// first flow rule `since_rule_ns` ago.
    pub fn is_due(&self, frames: u64, since_rule_ns: Option<u64>) -> bool {
        match self.trigger {
            Trigger::Frames(after) => frames >= after,
            Trigger::Ns(after) => since_rule_ns.is_some_and(|ns| ns >= after),
            Trigger::File(path) => path.exists(),
        }
    }
}

/// Parses the faults of a device, separated by `;`. An error quotes the wrong part of the text and
/// states the valid form.
pub fn parse(value: &str) -> Result<Vec<Fault>, FaultSyntaxError> {
    value
        .split(';')
        .map(|fault| parse_one(fault.trim()))
        .collect()
}

fn parse_one(text: &str) -> Result<Fault, FaultSyntaxError> {
    let (what, when) = text
        .rsplit_once('@')
        .ok_or_else(|| FaultSyntaxError::NoTrigger(text.to_owned()))?;
    let trigger = match when.split_once('=') {
        Some(("frames", count)) => Trigger::Frames(number("frames", count, 0, u64::MAX)?),
        Some(("ms", ms)) => Trigger::Ns(number("ms", ms, 0, MAX_MS)? * NS_PER_MS),
        Some(("file", path)) => Trigger::File(static_path(path)),
        _ => return Err(FaultSyntaxError::NotATrigger(when.to_owned())),
    };
    let (kind, options) = what
        .split_once(':')
        .map_or((what, None), |(kind, options)| (kind, Some(options)));
    let mut options = FaultOptions::parse(kind, options)?;
    let effect = match kind {
        "wq_fatal" => Effect::WqFatal(options.queue()?),
        "bad_lkey" => Effect::BadLkey(options.queue()?),
        "bad_fcs" => Effect::BadFcs(options.queue()?),
        "cq_overrun" => Effect::CqOverrun(options.queue()?),
        "port_down" => Effect::PortDown(options.end()?),
        "device_fatal" => Effect::DeviceFatal(options.end()?),
        "slow_pci" => Effect::SlowPci {
            ns: options.required("ns", 1, MAX_NS)?,
            for_ns: options.duration()?,
        },
        "pci_overflow" => Effect::PciOverflow(options.required("count", 1, u32::MAX)?),
        "clock_jump" => Effect::ClockJump(options.required("ns", -MAX_JUMP_NS, MAX_JUMP_NS)?),
        "clock_busy" => Effect::ClockBusy(options.required("for", 1, MAX_MS)? * NS_PER_MS),
        _ => return Err(FaultSyntaxError::NotAFault(kind.to_owned())),
    };
    let port = options.take("port", 1, 2)?.unwrap_or(1);
    options.finish()?;
    Ok(Fault {
        effect,
        port,
        trigger,
    })
}

/// Returns `text` as a path that is never freed: the settings are parsed once and used until the
/// process ends.
fn static_path(text: &str) -> &'static Path {
    Path::new(Box::leak(Box::<str>::from(text)))
}

fn number<T: FromStr + PartialOrd + Display + Copy>(
    name: &'static str,
    text: &str,
    low: T,
    high: T,
) -> Result<T, FaultSyntaxError> {
    within(text, low, high).map_err(|_| FaultSyntaxError::OutOfRange {
        name,
        text: text.to_owned(),
        low: low.to_string(),
        high: high.to_string(),
    })
}

/// Options `NAME=VALUE` of a fault's text, each of which may be given once.
struct FaultOptions<'a> {
    kind: &'a str,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> FaultOptions<'a> {
    fn parse(kind: &'a str, text: Option<&'a str>) -> Result<Self, FaultSyntaxError> {
        let mut given = Vec::new();
        for option in text.into_iter().flat_map(|text| text.split(',')) {
            let (name, value) =
                option
                    .split_once('=')
                    .ok_or_else(|| FaultSyntaxError::NotAnOption {
                        option: option.to_owned(),
                        kind: kind.to_owned(),
                    })?;
            given.push((name.trim(), value.trim()));
        }
        Ok(Self { kind, given })
    }

    fn take<T: FromStr + PartialOrd + Display + Copy>(
        &mut self,
        name: &'static str,
        low: T,
        high: T,
    ) -> Result<Option<T>, FaultSyntaxError> {
        match self.given.iter().position(|(given, _)| *given == name) {
            Some(at) => number(name, self.given.remove(at).1, low, high).map(Some),
            None => Ok(None),
        }
    }

    fn required<T: FromStr + PartialOrd + Display + Copy>(
        &mut self,
        name: &'static str,
        low: T,
        high: T,
    ) -> Result<T, FaultSyntaxError> {
        let missing = FaultSyntaxError::Missing {
            kind: self.kind.to_owned(),
            name,
        };
        self.take(name, low, high)?.ok_or(missing)
    }

    fn queue(&mut self) -> Result<u32, FaultSyntaxError> {
        Ok(self.take("queue", 0, u32::MAX)?.unwrap_or(0))
    }

    fn duration(&mut self) -> Result<Option<u64>, FaultSyntaxError> {
        Ok(self.take("for", 1, MAX_MS)?.map(|ms: u64| ms * NS_PER_MS))
    }

    fn end(&mut self) -> Result<FaultEnd, FaultSyntaxError> {
        let file = self.given.iter().position(|(given, _)| *given == "until");
        let file = file.map(|at| static_path(self.given.remove(at).1));
        match (self.duration()?, file) {
            (None, None) => Ok(FaultEnd::Never),
            (Some(ns), None) => Ok(FaultEnd::AfterNs(ns)),
            (None, Some(path)) => Ok(FaultEnd::File(path)),
            (Some(_), Some(_)) => Err(FaultSyntaxError::TwoEnds(self.kind.to_owned())),
        }
    }

    fn finish(self) -> Result<(), FaultSyntaxError> {
        match self.given.first() {
            None => Ok(()),
            Some((name, _)) => Err(FaultSyntaxError::UnknownOption {
                kind: self.kind.to_owned(),
                name: (*name).to_owned(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_with_all_its_options() {
        let fault = |effect, port, trigger| Fault {
            effect,
            port,
            trigger,
        };
        let (frames, ms) = (Trigger::Frames(7), Trigger::Ns(3_000_000));
        for (text, wanted) in [
            (
                "wq_fatal:queue=2@frames=7",
                fault(Effect::WqFatal(2), 1, frames),
            ),
            (
                "bad_fcs:queue=1@frames=7",
                fault(Effect::BadFcs(1), 1, frames),
            ),
            ("bad_lkey@ms=3", fault(Effect::BadLkey(0), 1, ms)),
            (
                "cq_overrun:port=2,queue=1@ms=3",
                fault(Effect::CqOverrun(1), 2, ms),
            ),
            (
                "port_down:for=5@frames=7",
                fault(Effect::PortDown(FaultEnd::AfterNs(5_000_000)), 1, frames),
            ),
            (
                "port_down@ms=3",
                fault(Effect::PortDown(FaultEnd::Never), 1, ms),
            ),
            (
                "port_down:until=/tmp/up@file=/tmp/down",
                fault(
                    Effect::PortDown(FaultEnd::File(Path::new("/tmp/up"))),
                    1,
                    Trigger::File(Path::new("/tmp/down")),
                ),
            ),
            (
                "device_fatal@frames=7",
                fault(Effect::DeviceFatal(FaultEnd::Never), 1, frames),
            ),
            (
                "device_fatal:for=5@ms=3",
                fault(Effect::DeviceFatal(FaultEnd::AfterNs(5_000_000)), 1, ms),
            ),
            (
                "slow_pci:ns=1_000,for=5@ms=3",
                fault(
                    Effect::SlowPci {
                        ns: 1000,
                        for_ns: Some(5_000_000),
                    },
                    1,
                    ms,
                ),
            ),
            (
                "pci_overflow:count=3@frames=7",
                fault(Effect::PciOverflow(3), 1, frames),
            ),
            (
                "clock_jump:ns=-9@frames=7",
                fault(Effect::ClockJump(-9), 1, frames),
            ),
            (
                "clock_jump:ns=+9@frames=7",
                fault(Effect::ClockJump(9), 1, frames),
            ),
            (
                "clock_busy:for=5@ms=3",
                fault(Effect::ClockBusy(5_000_000), 1, ms),
            ),
        ] {
            assert_eq!(parse(text), Ok(vec![wanted]), "{text}");
        }
        assert_eq!(
            parse("wq_fatal@ms=1; bad_lkey@ms=2").map(|all| all.len()),
            Ok(2)
        );
    }

    #[test]
    fn errors_quote_the_wrong_part() {
        for (text, expected) in [
            ("", "has no trigger"),
            ("wq_fatal", "has no trigger"),
            ("wq_fatal@ms=1;", "has no trigger"),
            ("wq_fatal@", "is not a trigger"),
            ("wq_fatal@hours=1", "is not a trigger"),
            ("wq_fatal@frames=-1", "frames=-1 is not a number from 0"),
            ("wq_fatal@ms=86400001", "to 86400000"),
            ("@ms=1", "\"\" is not a fault"),
            ("fire@ms=1", "\"fire\" is not a fault"),
            ("wq_fatal:@ms=1", "is not an option"),
            (
                "wq_fatal:queue@ms=1",
                "\"queue\" of wq_fatal is not an option",
            ),
            ("wq_fatal:for=1@ms=1", "wq_fatal does not take for"),
            ("wq_fatal:queue=1,queue=2@ms=1", "or takes it once"),
            ("wq_fatal:queue=4294967296@ms=1", "queue=4294967296"),
            (
                "port_down:port=3@ms=1",
                "port=3 is not a number from 1 to 2",
            ),
            ("port_down:for=0@ms=1", "for=0"),
            (
                "port_down:for=1,until=a@ms=1",
                "for or the option until, but not both",
            ),
            ("wq_fatal:until=a@ms=1", "wq_fatal does not take until"),
            ("slow_pci@ms=1", "slow_pci requires ns=N"),
            ("slow_pci:ns=0@ms=1", "ns=0"),
            ("clock_jump@ms=1", "clock_jump requires ns=N"),
            ("clock_busy@ms=1", "clock_busy requires for=N"),
            ("clock_jump:ns=1000000000000001@ms=1", "ns=1000000000000001"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_makes_a_fault_due() {
        let name = format!("mlx5-model-fault-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let text = format!("wq_fatal@file={}", path.display());
        let [fault] = parse(&text).expect("valid faults")[..] else {
            panic!("one fault");
        };
        assert!(!fault.is_due(9, Some(9)));
        std::fs::write(&path, "").expect("the file is written");
        assert!(fault.is_due(0, None));
        std::fs::remove_file(&path).expect("the file is removed");
    }
}
