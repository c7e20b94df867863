//! Packet filters: a filter expression with its compiled program.

use super::{
    constraints::{self, Constraints},
    program::Program,
};
use serde::Serialize;

/// Maximum number of characters of a filter expression that an error message shows.
const SHOWN: usize = 200;

/// Packet filter: a pcap-filter expression and its program. The empty expression accepts all frames
/// and has no program.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Filter {
    /// Filter expression as the user gave it.
    expression: String,
    /// Compiled filter program; `None` accepts all frames.
    #[serde(skip)]
    program: Option<Program>,
}

impl Filter {
    /// Creates a packet filter from an expression and its compiled program.
    pub(super) fn new(expression: &str, program: Option<Program>) -> Self {
        Self {
            expression: expression.to_owned(),
            program,
        }
    }

    /// Returns the filter expression as the user gave it.
    #[must_use]
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Returns the filter program to run for each frame; `None` if all frames are accepted.
    #[must_use]
    pub fn program(&self) -> Option<&Program> {
        self.program.as_ref()
    }

    /// Returns alternative sets of byte constraints for the frames that the filter accepts. Every
    /// accepted frame satisfies at least one set; other frames may satisfy one too. Returns `None`
    /// if the filter program is too complex to analyse.
    #[must_use]
    pub fn constraints(&self) -> Option<Vec<Constraints>> {
        match &self.program {
            Some(program) => constraints::paths(program),
            None => Some(vec![Constraints::default()]),
        }
    }

    /// Returns `true` if the filter accepts a frame with `len` bytes on the wire.
    #[inline]
    #[must_use]
    pub fn accepts(&self, frame: &[u8], len: u32) -> bool {
        self.program
            .as_ref()
            .is_none_or(|it| it.accepts(frame, len))
    }
}

/// Returns a filter expression in quotes for a message, shortened to 200 characters.
#[must_use]
pub fn quoted_expression(expression: &str) -> String {
    match expression.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{:?}... ({} bytes)", &expression[..end], expression.len()),
        None => format!("{expression:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{
        FilterCell, FilterError, FilterReader, ProgramError, libpcap::MOST_OPTIMISED,
    };
    use std::sync::Arc;

    const ARP: [u8; 14] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6];

    #[test]
    fn the_empty_expression_accepts_all_frames() {
        for expression in ["", "  "] {
            let filter = Filter::compile(expression).unwrap();
            assert!(filter.program().is_none() && filter.accepts(&[], 0));
            assert_eq!(filter.expression(), expression);
        }
    }

    #[test]
    fn an_expression_accepts_the_frames_it_describes() {
        let filter = Filter::compile("arp").unwrap();
        assert!(filter.accepts(&ARP, 14));
        assert!(!filter.accepts(&ARP[..13], 13));
        assert!(!Filter::compile("ip").unwrap().accepts(&ARP, 14));
        assert!(Filter::compile("greater 100").unwrap().accepts(&ARP, 100));
        assert!(!Filter::compile("greater 100").unwrap().accepts(&ARP, 99));
    }

    #[test]
    fn an_unoptimised_program_accepts_the_same_frames() {
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
        // Compile the expression again, after another one.
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
    fn expressions_beyond_the_limits_are_rejected() {
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
        // Expressions within these limits but beyond libpcap's limits.
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
    fn a_long_expression_is_shortened_in_messages() {
        assert_eq!(quoted_expression("tcp\n"), r#""tcp\n""#);
        let long = quoted_expression(&"ä".repeat(300));
        assert!(long.ends_with("ä\"... (600 bytes)"), "{long}");
        assert_eq!(long.chars().filter(|it| *it == 'ä').count(), SHOWN);
    }

    #[test]
    fn errors_contain_the_message_of_libpcap() {
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
        let reason = FilterError::Refused(ProgramError::NotInFrame);
        assert_eq!(direction, FilterError::OtherLinkType(Box::new(reason)));
        assert!(Filter::compile("a\0b").is_err());
    }

    #[test]
    fn a_filter_applies_until_its_reader_refreshes() {
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
    fn every_reader_finally_has_the_last_filter() {
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
