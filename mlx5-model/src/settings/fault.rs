//! Faults on demand: how they are written, and when each is due.
//!
//! Imports nothing of the model: what a fault does to a queue, a port or the clock stands with those.
//! Invariants: a text that parses can be carried out on any device with the port it names; a fault
//! strikes once; frames are counted exactly, because a port stops its burst where a fault is due.

use std::fmt::Display;
use std::str::FromStr;

const NS_PER_MS: u64 = 1_000_000;
/// A day: longer is a slip of the unit.
const MS: u64 = 86_400_000;
/// A second a frame.
const NS: u64 = 1_000_000_000;
/// As far as a clock jumps, some eleven days: sums with host time stay far from the ends of 64 bits.
const JUMP_NS: i64 = 1_000_000_000_000_000;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A WQ goes into error by itself.
    WqFatal {
        /// Which, counted from 0 as they were created.
        queue: u32,
    },
    /// A WQ's keys are no longer good: its next frame meets a local protection error.
    BadLkey {
        /// As above.
        queue: u32,
    },
    /// A WQ's next frame was damaged on the wire: its FCS does not belong to it.
    BadFcs {
        /// As above.
        queue: u32,
    },
    /// The CQ of a WQ overruns.
    CqOverrun {
        /// As above.
        queue: u32,
    },
    /// The link goes down.
    PortDown {
        /// How long; `None`: it stays down.
        for_ns: Option<u64>,
    },
    /// The device dies.
    DeviceFatal {
        /// After how long its driver has it again; `None`: never.
        for_ns: Option<u64>,
    },
    /// Each frame takes longer to get to memory.
    SlowPci {
        /// By so much.
        ns: u64,
        /// How long; `None`: from now on.
        for_ns: Option<u64>,
    },
    /// The NIC's clock steps.
    ClockJump {
        /// By so much.
        ns: i64,
    },
    /// The clock info cannot be read, because it is being updated.
    ClockBusy {
        /// How long.
        for_ns: u64,
    },
}

/// When it happens, by its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// After so many frames.
    Frames(u64),
    /// So many nanoseconds after the first rule.
    Ns(u64),
}

/// One fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What.
    pub effect: Effect,
    /// The port that counts, and that goes down; from 1.
    pub port: u8,
    /// When.
    pub when: When,
}

impl Fault {
    /// Whether its time has come on a port that has had `frames` frames, and its first rule
    /// `since_rule_ns` ago.
    pub fn is_due(&self, frames: u64, since_rule_ns: Option<u64>) -> bool {
        match self.when {
            When::Frames(after) => frames >= after,
            When::Ns(after) => since_rule_ns.is_some_and(|ns| ns >= after),
        }
    }
}

/// What a setting's value says: faults, with `;` between them.
///
/// # Errors
/// A sentence that quotes the part that is wrong, and says what would do.
pub fn parse(text: &str) -> Result<Vec<Fault>, String> {
    text.split(';').map(|fault| one(fault.trim())).collect()
}

fn one(text: &str) -> Result<Fault, String> {
    let (what, when) = text
        .rsplit_once('@')
        .ok_or_else(|| format!("\"{text}\" does not say when: @frames=N or @ms=N"))?;
    let when = match when.split_once('=') {
        Some(("frames", count)) => When::Frames(number("frames", count, 0, u64::MAX)?),
        Some(("ms", ms)) => When::Ns(number("ms", ms, 0, MS)? * NS_PER_MS),
        _ => return Err(format!("\"@{when}\" is neither @frames=N nor @ms=N")),
    };
    let (kind, options) = what
        .split_once(':')
        .map_or((what, None), |(kind, options)| (kind, Some(options)));
    let mut options = Options::of(kind, options)?;
    let effect = match kind {
        "wq_fatal" => Effect::WqFatal {
            queue: options.queue()?,
        },
        "bad_lkey" => Effect::BadLkey {
            queue: options.queue()?,
        },
        "bad_fcs" => Effect::BadFcs {
            queue: options.queue()?,
        },
        "cq_overrun" => Effect::CqOverrun {
            queue: options.queue()?,
        },
        "port_down" => Effect::PortDown {
            for_ns: options.duration()?,
        },
        "device_fatal" => Effect::DeviceFatal {
            for_ns: options.duration()?,
        },
        "slow_pci" => Effect::SlowPci {
            ns: options.needed("ns", 1, NS)?,
            for_ns: options.duration()?,
        },
        "clock_jump" => Effect::ClockJump {
            ns: options.needed("ns", -JUMP_NS, JUMP_NS)?,
        },
        "clock_busy" => Effect::ClockBusy {
            for_ns: options.needed("for", 1, MS)? * NS_PER_MS,
        },
        _ => {
            return Err(format!(
                "\"{kind}\" is no fault; there are wq_fatal, bad_lkey, bad_fcs, cq_overrun, port_down, device_fatal, slow_pci, clock_jump and clock_busy"
            ));
        }
    };
    let port = options.take("port", 1, 2)?.unwrap_or(1);
    options.end()?;
    Ok(Fault { effect, port, when })
}

fn number<T: FromStr + PartialOrd + Display>(
    name: &str,
    text: &str,
    low: T,
    high: T,
) -> Result<T, String> {
    text.replace('_', "")
        .parse()
        .ok()
        .filter(|value| (&low..=&high).contains(&value))
        .ok_or_else(|| format!("{name}={text} is no number from {low} to {high}"))
}

/// A fault's `k=v`, of which each is taken once.
struct Options<'a> {
    kind: &'a str,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Options<'a> {
    fn of(kind: &'a str, text: Option<&'a str>) -> Result<Self, String> {
        let given = text.map_or(Ok(Vec::new()), |text| {
            text.split(',')
                .map(|option| {
                    option
                        .split_once('=')
                        .map(|(name, value)| (name.trim(), value.trim()))
                        .ok_or_else(|| format!("\"{option}\" of {kind} is not k=v"))
                })
                .collect()
        })?;
        Ok(Self { kind, given })
    }

    fn take<T: FromStr + PartialOrd + Display>(
        &mut self,
        name: &str,
        low: T,
        high: T,
    ) -> Result<Option<T>, String> {
        match self.given.iter().position(|(given, _)| *given == name) {
            Some(at) => number(name, self.given.remove(at).1, low, high).map(Some),
            None => Ok(None),
        }
    }

    fn needed<T: FromStr + PartialOrd + Display>(
        &mut self,
        name: &str,
        low: T,
        high: T,
    ) -> Result<T, String> {
        let kind = self.kind;
        self.take(name, low, high)?
            .ok_or_else(|| format!("{kind} needs {name}=N"))
    }

    fn queue(&mut self) -> Result<u32, String> {
        Ok(self.take("queue", 0, u32::MAX)?.unwrap_or(0))
    }

    fn duration(&mut self) -> Result<Option<u64>, String> {
        Ok(self.take("for", 1, MS)?.map(|ms: u64| ms * NS_PER_MS))
    }

    fn end(self) -> Result<(), String> {
        match self.given.first() {
            None => Ok(()),
            Some((name, _)) => Err(format!(
                "{} takes no {name}, or not twice: wq_fatal, bad_lkey, bad_fcs and cq_overrun take queue, port_down, device_fatal and clock_busy take for, slow_pci ns and for, clock_jump ns, and all of them port",
                self.kind
            )),
        }
    }
}

/// The faults that are still to come.
#[derive(Debug, Default)]
pub struct Schedule(Vec<Fault>);

impl Schedule {
    /// All of a device's.
    pub fn new(faults: &[Fault]) -> Self {
        Self(faults.to_vec())
    }

    /// Whether nothing is to come.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Strikes with each fault, in the order they were written; `strike` tells whether it has struck.
    /// One that has not, because it is not due or its target is not there yet, is asked again.
    pub fn run(&mut self, mut strike: impl FnMut(&Fault) -> bool) {
        self.0.retain(|fault| !strike(fault));
    }

    /// How many frames a port that has had `frames` may have before this must be looked at again.
    pub fn frames_left(&self, port: u8, frames: u64) -> u64 {
        let left = |fault: &Fault| match fault.when {
            // One that is due but waits for its target must not stop the port.
            When::Frames(after) if fault.port == port && after > frames => Some(after - frames),
            _ => None,
        };
        self.0.iter().filter_map(left).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_with_all_its_options() {
        let fault = |effect, port, when| Fault { effect, port, when };
        let (frames, ms) = (When::Frames(7), When::Ns(3_000_000));
        for (text, wanted) in [
            (
                "wq_fatal:queue=2@frames=7",
                fault(Effect::WqFatal { queue: 2 }, 1, frames),
            ),
            (
                "bad_fcs:queue=1@frames=7",
                fault(Effect::BadFcs { queue: 1 }, 1, frames),
            ),
            ("bad_lkey@ms=3", fault(Effect::BadLkey { queue: 0 }, 1, ms)),
            (
                "cq_overrun:port=2,queue=1@ms=3",
                fault(Effect::CqOverrun { queue: 1 }, 2, ms),
            ),
            (
                "port_down:for=5@frames=7",
                fault(
                    Effect::PortDown {
                        for_ns: Some(5_000_000),
                    },
                    1,
                    frames,
                ),
            ),
            (
                "port_down@ms=3",
                fault(Effect::PortDown { for_ns: None }, 1, ms),
            ),
            (
                "device_fatal@frames=7",
                fault(Effect::DeviceFatal { for_ns: None }, 1, frames),
            ),
            (
                "device_fatal:for=5@ms=3",
                fault(
                    Effect::DeviceFatal {
                        for_ns: Some(5_000_000),
                    },
                    1,
                    ms,
                ),
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
                "clock_jump:ns=-9@frames=7",
                fault(Effect::ClockJump { ns: -9 }, 1, frames),
            ),
            (
                "clock_jump:ns=+9@frames=7",
                fault(Effect::ClockJump { ns: 9 }, 1, frames),
            ),
            (
                "clock_busy:for=5@ms=3",
                fault(Effect::ClockBusy { for_ns: 5_000_000 }, 1, ms),
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
    fn what_is_wrong_is_quoted() {
        for (text, says) in [
            ("", "does not say when"),
            ("wq_fatal", "does not say when"),
            ("wq_fatal@ms=1;", "does not say when"),
            ("wq_fatal@", "neither @frames=N nor @ms=N"),
            ("wq_fatal@hours=1", "neither @frames=N nor @ms=N"),
            ("wq_fatal@frames=-1", "frames=-1 is no number from 0"),
            ("wq_fatal@ms=86400001", "to 86400000"),
            ("@ms=1", "\"\" is no fault"),
            ("fire@ms=1", "\"fire\" is no fault"),
            ("wq_fatal:@ms=1", "is not k=v"),
            ("wq_fatal:queue@ms=1", "\"queue\" of wq_fatal is not k=v"),
            ("wq_fatal:for=1@ms=1", "wq_fatal takes no for"),
            ("wq_fatal:queue=1,queue=2@ms=1", "or not twice"),
            ("wq_fatal:queue=4294967296@ms=1", "queue=4294967296"),
            ("port_down:port=3@ms=1", "port=3 is no number from 1 to 2"),
            ("port_down:for=0@ms=1", "for=0"),
            ("slow_pci@ms=1", "slow_pci needs ns=N"),
            ("slow_pci:ns=0@ms=1", "ns=0"),
            ("clock_jump@ms=1", "clock_jump needs ns=N"),
            ("clock_busy@ms=1", "clock_busy needs for=N"),
            ("clock_jump:ns=1000000000000001@ms=1", "ns=1000000000000001"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_fault_strikes_once_and_a_port_stops_where_it_is_due() {
        let faults = parse("bad_lkey@frames=10;wq_fatal@frames=4;device_fatal:port=2@frames=1;clock_jump:ns=1@ms=2")
            .expect("good");
        let mut schedule = Schedule::new(&faults);
        assert_eq!(schedule.frames_left(1, 0), 4);
        assert_eq!(schedule.frames_left(2, 0), 1);
        let struck = |schedule: &mut Schedule, frames, ns| {
            let mut struck = Vec::new();
            schedule.run(|fault| {
                let due = fault.port == 1 && fault.is_due(frames, ns);
                struck.extend(due.then_some(fault.effect));
                due
            });
            struck
        };
        assert_eq!(struck(&mut schedule, 3, None), []);
        assert_eq!(
            struck(&mut schedule, 4, Some(2_000_000)),
            [Effect::WqFatal { queue: 0 }, Effect::ClockJump { ns: 1 }]
        );
        assert_eq!(schedule.frames_left(1, 4), 6);
        // Due, but its target is not there: the port goes on meanwhile.
        schedule.run(|_| false);
        assert_eq!(schedule.frames_left(1, 10), u64::MAX);
        assert_eq!(
            struck(&mut schedule, 11, None),
            [Effect::BadLkey { queue: 0 }]
        );
        assert!(!schedule.is_empty());
        schedule.run(|_| true);
        assert!(schedule.is_empty());
    }
}
