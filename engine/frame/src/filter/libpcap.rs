//! Compilation of filter expressions to programs by libpcap.
//!
//! libpcap traverses the graph of an expression's tests recursively. The recursion is as deep as
//! the longest sequence of tests, and the time grows with the square of their number. A compilation
//! therefore needs a stack that is large enough for every expression within the limits.

use super::{
    error::{DEEPEST_NESTING, FilterError, LONGEST_EXPRESSION},
    program::{Instruction, Program, ProgramError},
};

/// Maximum number of BPF instructions that are optimised. libpcap needs about a second for this
/// many, and its time grows with more than the square. A longer program runs unoptimised: slower
/// per frame, but available sooner.
pub(super) const MOST_OPTIMISED: usize = 8192;

/// Link types with tests of pcap-filter(7) that Ethernet does not have: IEEE 802.11 with radiotap,
/// PFLOG, Linux cooked v2, SunATM and MTP2 with its pseudo header. Others have no further ones:
/// `gencode.c` of libpcap.
const WITH_OWN_TESTS: [u32; 5] = [127, 117, 276, 123, 139];

/// Checks that a filter expression is within the limits of length and nesting that keep libpcap
/// within its stack.
pub(super) fn check_limits(expression: &str) -> Result<(), FilterError> {
    if expression.len() > LONGEST_EXPRESSION {
        return Err(FilterError::TooLong(expression.len()));
    }
    let nesting = nesting(expression);
    if nesting > DEEPEST_NESTING {
        return Err(FilterError::TooDeep(nesting));
    }
    Ok(())
}

/// Returns the maximum nesting depth of parentheses and brackets in a filter expression.
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

/// Compiles a filter expression for frames of a link type with libpcap in the current thread, which
/// needs a large stack.
pub(super) fn compile(expression: &str, link_type: u32) -> Result<Program, FilterError> {
    let mut code =
        instructions(expression, link_type, false).map_err(|e| of_link_type(e, expression))?;
    if code.len() <= MOST_OPTIMISED {
        code = instructions(expression, link_type, true)?;
    }
    Program::new(&code).map_err(|e| of_link_type(e.into(), expression))
}

/// Marks the reason why an expression is refused for a link type if it is defined for another one.
fn of_link_type(reason: FilterError, expression: &str) -> FilterError {
    let is_defined = |link_type: &u32| {
        let code = instructions(expression, *link_type, false);
        code.is_ok_and(|it| Program::new(&it).is_ok())
    };
    match WITH_OWN_TESTS.iter().any(is_defined) {
        true => FilterError::OtherLinkType(Box::new(reason)),
        false => reason,
    }
}

/// Returns the number that libpcap uses in programs on Linux for a link type of capture files: its
/// `pcap-common.c` maps those whose numbers differ between platforms.
fn data_link(link_type: u32) -> pcap::Linktype {
    pcap::Linktype(match link_type {
        14 | 101 => 12,
        100 => 11,
        102 => 15,
        103 => 16,
        106 => 19,
        other => i32::try_from(other).unwrap_or(i32::MAX),
    })
}

fn instructions(
    expression: &str,
    link_type: u32,
    optimise: bool,
) -> Result<Vec<Instruction>, FilterError> {
    let words = |e: pcap::Error| match e {
        pcap::Error::PcapError(words) => FilterError::Libpcap(words),
        other => FilterError::Libpcap(other.to_string()),
    };
    let dead = pcap::Capture::dead(data_link(link_type)).map_err(words)?;
    let compiled = dead.compile(expression, optimise).map_err(words)?;
    let read = |instruction: &pcap::BpfInstruction| {
        // The pcap crate exposes an instruction only as text.
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
        .ok_or_else(|| ProgramError::Instruction.into())
}
