//! An expression and the program that libpcap makes of it.

use super::{
    constraints::{self, Constraints},
    program::{Instruction, Program, Refused},
};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};

/// Instructions that libpcap optimises in about a second; its time grows with more than the square of them. A longer program
/// runs as it is: slower for each frame, but soon.
const MOST_OPTIMISED: usize = 8192;

/// What frames are kept: an expression with its program. The empty expression keeps all and has none.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Filter {
    expression: String,
    #[serde(skip)]
    program: Option<Program>,
}

/// Why an expression is no filter.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// libpcap's own words.
    #[error("libpcap: {0}")]
    Libpcap(String),
    /// It compiles, and cannot be answered from a frame's bytes.
    #[error("{0}")]
    Refused(#[from] Refused),
}

impl Filter {
    /// Compiles an expression for Ethernet frames.
    ///
    /// # Errors
    /// libpcap does not take it, or it asks for what is not in a frame.
    pub fn compile(expression: &str) -> Result<Self, FilterError> {
        let program = match expression.trim() {
            "" => None,
            trimmed => Some(compiled(trimmed)?),
        };
        Ok(Self {
            expression: expression.to_owned(),
            program,
        })
    }

    /// The expression, as given.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// What is to be run for each frame; `None`: all are kept.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// What is known of the bytes of each frame that is kept: one of these holds for it, and may hold for others.
    /// `None`: that cannot be told.
    #[must_use]
    pub fn constraints(&self) -> Option<Vec<Constraints>> {
        match &self.program {
            Some(program) => constraints::paths(program),
            None => Some(vec![Constraints::default()]),
        }
    }

    /// Whether a frame is kept. `len` is its length on the wire.
    #[inline]
    #[must_use]
    pub fn accepts(&self, frame: &[u8], len: u32) -> bool {
        self.program
            .as_ref()
            .is_none_or(|it| it.accepts(frame, len))
    }
}

/// Lets libpcap compile an expression. A capture asks several times for the same one: the last answer is kept.
fn compiled(expression: &str) -> Result<Program, FilterError> {
    // Old releases of libpcap compile with global state, one at a time.
    static LAST: Mutex<Option<(String, Program)>> = Mutex::new(None);
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, program)) = last.as_ref().filter(|it| it.0 == expression) {
        return Ok(program.clone());
    }
    let mut code = instructions(expression, false)?;
    if code.len() <= MOST_OPTIMISED {
        code = instructions(expression, true)?;
    }
    let program = Program::new(&code)?;
    *last = Some((expression.to_owned(), program.clone()));
    Ok(program)
}

fn instructions(expression: &str, optimise: bool) -> Result<Vec<Instruction>, FilterError> {
    let words = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => FilterError::Libpcap(words),
        other => FilterError::Libpcap(other.to_string()),
    };
    let dead = pcap::Capture::dead(pcap::Linktype::ETHERNET).map_err(words)?;
    let compiled = dead.compile(expression, optimise).map_err(words)?;
    let read = |instruction: &pcap::BpfInstruction| {
        // Its text is all that the crate shows of an instruction.
        let text = instruction.to_string();
        let mut fields = text.split(' ').map(str::parse::<u32>);
        let mut next = || fields.next()?.ok();
        Some((
            u16::try_from(next()?).ok()?,
            u8::try_from(next()?).ok()?,
            u8::try_from(next()?).ok()?,
            next()?,
        ))
    };
    let instructions = compiled.get_instructions().iter().map(read);
    instructions
        .collect::<Option<_>>()
        .ok_or_else(|| Refused::Instruction.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{FilterCell, FilterReader};
    use std::sync::Arc;

    const ARP: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6];

    #[test]
    fn the_empty_expression_keeps_all() {
        for expression in ["", "  "] {
            let filter = Filter::compile(expression).unwrap();
            assert!(filter.program().is_none() && filter.accepts(&[], 0));
            assert_eq!(filter.expression(), expression);
        }
    }

    #[test]
    fn an_expression_keeps_what_it_names() {
        let filter = Filter::compile("arp").unwrap();
        assert!(filter.accepts(&ARP, 14));
        assert!(!filter.accepts(&ARP[..13], 13));
        assert!(!Filter::compile("ip").unwrap().accepts(&ARP, 14));
        assert!(Filter::compile("greater 100").unwrap().accepts(&ARP, 100));
        assert!(!Filter::compile("greater 100").unwrap().accepts(&ARP, 99));
    }

    #[test]
    fn a_program_too_long_to_optimise_keeps_the_same() {
        let hosts: Vec<_> = (0..400)
            .map(|i| format!("host 10.0.{}.{}", i / 200, i % 200))
            .collect();
        let filter = Filter::compile(&hosts.join(" or ")).unwrap();
        assert!(filter.program().unwrap().len() > MOST_OPTIMISED);
        let mut frame = [0; 34];
        (frame[12], frame[14], frame[26], frame[30]) = (8, 0x45, 192, 10);
        for (third, fourth, kept) in [(0, 0, true), (1, 199, true), (1, 200, false), (2, 0, false)]
        {
            (frame[32], frame[33]) = (third, fourth);
            assert_eq!(filter.accepts(&frame, 34), kept, "10.0.{third}.{fourth}");
        }
        // The same again, and another in between.
        assert!(Filter::compile("arp").unwrap().program().unwrap().len() < 10);
        let again = Filter::compile(&hosts.join(" or ")).unwrap();
        assert!(again.accepts(&frame, 34) == filter.accepts(&frame, 34));
    }

    #[test]
    fn what_is_wrong_is_said_in_libpcaps_words() {
        let message = |expression| Filter::compile(expression).unwrap_err().to_string();
        assert!(
            message("tcp prot 80").contains("syntax error"),
            "{}",
            message("tcp prot 80")
        );
        assert!(message("host 1.2.3.4.5").starts_with("libpcap: "));
        let nothing = Filter::compile("ip and not ip").unwrap_err();
        assert!(nothing.to_string().contains("rejects all"), "{nothing}");
        let direction = Filter::compile("inbound").unwrap_err();
        assert_eq!(direction, FilterError::Refused(Refused::NotInFrame));
        assert!(Filter::compile("a\0b").is_err());
    }

    #[test]
    fn a_filter_holds_until_its_reader_refreshes() {
        let cell = Arc::new(FilterCell::new(Filter::compile("ip").unwrap()));
        let mut reader = FilterReader::new(Arc::clone(&cell));
        assert!(!reader.refresh());
        let before = cell.set(Filter::compile("arp").unwrap());
        assert_eq!(before.expression(), "ip");
        assert_eq!(reader.filter().expression(), "ip");
        assert!(reader.refresh() && !reader.refresh());
        assert_eq!(reader.filter().expression(), "arp");
    }

    #[test]
    fn the_last_change_is_seen_in_the_end() {
        let cell = Arc::new(FilterCell::default());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut reader = FilterReader::new(Arc::clone(&cell));
                    while reader.filter().expression() != "udp" {
                        reader.refresh();
                        std::hint::spin_loop();
                    }
                });
            }
            for expression in ["ip", "tcp", "udp"] {
                cell.set(Filter::compile(expression).unwrap());
            }
        });
    }
}
