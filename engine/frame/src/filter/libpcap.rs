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

/// Checks the limits of a filter expression that keep libpcap within its stack.
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

/// Compiles a filter expression with libpcap in the current thread, which needs a large stack.
pub(super) fn compile(expression: &str) -> Result<Program, FilterError> {
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
