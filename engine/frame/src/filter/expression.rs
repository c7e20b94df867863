//! An expression and the program that libpcap makes of it.
//!
//! libpcap walks the graph of an expression's tests by recursion, as deep as there are tests one after the other, and in a time
//! that grows with the square of them. So it runs on a separate thread, whose stack is large enough for every expression
//! within the limits, and it is waited for no longer than [`LONGEST_COMPILATION`].

use super::{
    compiler,
    constraints::{self, Constraints},
    program::{Instruction, Program, Refused},
};
use serde::Serialize;
use std::time::Duration;

/// Bytes of an expression at most: about 3000 hosts.
pub const LONGEST_EXPRESSION: usize = 64 << 10;
/// Open parentheses and brackets at most.
pub const DEEPEST_NESTING: usize = 1000;
/// How long a compilation may take.
pub const LONGEST_COMPILATION: Duration = Duration::from_secs(60);
/// Characters of an expression in a message.
const SHOWN: usize = 200;

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
    /// It has more than [`LONGEST_EXPRESSION`] bytes.
    #[error(
        "the expression has {0} bytes; at most {LONGEST_EXPRESSION} are allowed; name networks instead of hosts, or filter when extracting"
    )]
    TooLong(usize),
    /// It has more than [`DEEPEST_NESTING`] open parentheses and brackets.
    #[error(
        "the expression has {0} levels of parentheses; at most {DEEPEST_NESTING} are allowed; leave those out that change nothing"
    )]
    TooDeep(usize),
    /// libpcap takes more than [`LONGEST_COMPILATION`].
    #[error(
        "libpcap has not compiled it within {} s; a list of hosts takes a time that grows with the square of its length; shorten it, or name networks",
        LONGEST_COMPILATION.as_secs()
    )]
    TooSlow,
    /// Another expression, which is abandoned, is still being compiled.
    #[error(
        "libpcap still compiles another expression after {} s, and compiles one at a time; try again later",
        LONGEST_COMPILATION.as_secs()
    )]
    Busy,
    /// The system has no thread for it.
    #[error("no thread to compile it: {0}; raise the limit to threads or memory")]
    NoThread(String),
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

/// An expression in quotes for a message, cut if it is long.
#[must_use]
pub fn shown(expression: &str) -> String {
    match expression.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &expression[..end], expression.len()),
        None => format!("{expression:?}"),
    }
}

/// Checks the limits that keep libpcap within its stack, and compiles.
fn compiled(expression: &str) -> Result<Program, FilterError> {
    if expression.len() > LONGEST_EXPRESSION {
        return Err(FilterError::TooLong(expression.len()));
    }
    let nesting = nesting(expression);
    if nesting > DEEPEST_NESTING {
        return Err(FilterError::TooDeep(nesting));
    }
    compiler::compile(expression, LONGEST_COMPILATION, compile_here)
}

/// The most parentheses and brackets that are open at once.
fn nesting(expression: &str) -> usize {
    let (mut open, mut most) = (0usize, 0);
    for byte in expression.bytes() {
        match byte {
            b'(' | b'[' => open += 1,
            b')' | b']' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// Lets libpcap compile an expression, on a stack that is large enough.
fn compile_here(expression: &str) -> Result<Program, FilterError> {
    let mut code = instructions(expression, false)?;
    if code.len() <= MOST_OPTIMISED {
        code = instructions(expression, true)?;
    }
    Ok(Program::new(&code)?)
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
        // Again, with another in between.
        assert!(Filter::compile("arp").unwrap().program().unwrap().len() < 10);
        let again = Filter::compile(&hosts.join(" or ")).unwrap();
        assert!(again.accepts(&frame, 34) == filter.accepts(&frame, 34));
    }

    fn hosts(n: usize) -> String {
        let hosts: Vec<_> = (0..n)
            .map(|i| format!("host 10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255))
            .collect();
        hosts.join(" or ")
    }

    #[test]
    fn what_is_beyond_the_limits_is_refused_with_them() {
        let message = |expression: &str| Filter::compile(expression).unwrap_err().to_string();
        let long = message(&hosts(8000));
        assert!(long.contains("at most 65536 are allowed"), "{long}");
        let deep = |open, close| message(&format!("{}ip{}", "(".repeat(open), ")".repeat(close)));
        let parentheses = deep(1001, 1001);
        assert!(
            parentheses.contains("1001 levels of parentheses; at most 1000"),
            "{parentheses}"
        );
        assert!(Filter::compile(&format!("{}ip{}", "(".repeat(1000), ")".repeat(1000))).is_ok());
        // Within the limits, and beyond libpcap's own.
        let nots = message(&format!("{}ip", "not ".repeat(16_000)));
        assert!(nots.contains("libpcap: "), "{nots}");
        let registers = message(&format!(
            "ip[0]{}{} = 5",
            "+(1".repeat(900),
            ")".repeat(900)
        ));
        assert!(registers.contains("libpcap: "), "{registers}");
    }

    #[test]
    fn a_long_expression_is_cut_in_messages() {
        assert_eq!(shown("tcp\n"), r#""tcp\n""#);
        let long = shown(&"ä".repeat(300));
        assert!(long.ends_with("ä\"... (600 bytes)"), "{long}");
        assert_eq!(long.chars().filter(|it| *it == 'ä').count(), SHOWN);
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
