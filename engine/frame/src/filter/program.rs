//! A verified classic BPF program and its interpreter.
//!
//! The virtual machine is that of the BSD packet filter (McCanne and Jacobson, USENIX 1993): an
//! accumulator, an index register, sixteen words of scratch memory, loads from the frame, forward
//! jumps. Opcodes are those of `pcap/bpf.h`.
//!
//! Instructions are decoded once: jumps become indices, and a load followed by a comparison, the
//! most common pair that libpcap emits, becomes one step. Jumps go forward, except for the loop of
//! `protochain`. Its iterations are limited, so every run terminates.

/// Classic BPF instruction: opcode, jump offset if true, jump offset if false, constant.
pub type Instruction = (u16, u8, u8, u32);

/// Number of words of a BPF program's scratch memory.
const MEMORY: usize = 16;
/// Lowest offset of ancillary BPF loads, which read kernel data instead of the frame
/// (`SKF_AD_OFF`).
const ANCILLARY: u32 = 0xffff_f000;
/// Maximum number of instructions of a filter program; libpcap's own limit is lower.
const LONGEST: usize = 65_535;
/// Maximum number of backward jumps per run of a filter program: the longest frame has no more
/// extension headers.
const MOST_ROUNDS: u32 = 32_768;

/// Reason why a compiled filter program is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The filter program reads kernel data: direction, interface or packet mark.
    #[error(
        "the filter expression tests a direction, interface or packet mark, which a frame does not contain; remove that test"
    )]
    NotInFrame,
    /// The filter program has an unknown BPF instruction.
    #[error(
        "the filter expression compiles to an unknown BPF instruction; rewrite the filter expression with other primitives"
    )]
    Instruction,
    /// The filter program jumps out of its bounds, or has no final return.
    #[error(
        "the filter expression compiles to a BPF program that does not end with a return, or jumps out of itself; rewrite the filter expression with other primitives"
    )]
    Endless,
    /// The filter program has more than 65535 instructions.
    #[error(
        "the filter expression compiles to more than 65535 BPF instructions, which is the limit; shorten the filter expression"
    )]
    TooLong,
}

/// Second operand of an arithmetic or jump instruction in a BPF program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operand {
    Constant(u32),
    Index,
}

/// Arithmetic operation of a BPF instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    Lsh,
    Rsh,
}

/// Comparison of a conditional BPF jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Equal,
    Greater,
    AtLeast,
    AnyBit,
}

/// Jump targets of a BPF comparison if it is true and if it is false: instruction indices, always
/// forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Branch {
    pub(super) yes: u16,
    pub(super) no: u16,
}

impl Branch {
    /// Returns the jump target for the result of a BPF comparison. `cold_path` makes the compiler
    /// emit a branch instead of a conditional move, so that the next instruction does not wait for
    /// the frame's bytes; either side could be marked cold.
    #[inline]
    fn choose(self, holds: bool) -> usize {
        if holds {
            std::hint::cold_path();
            usize::from(self.yes)
        } else {
            usize::from(self.no)
        }
    }
}

/// Decoded BPF instruction. Joined load-and-compare instructions have offset, constant and jump
/// targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Word(u32),
    Half(u32),
    Byte(u32),
    WordAt(u32),
    HalfAt(u32),
    ByteAt(u32),
    Constant(u32),
    Length,
    Load(u8),
    IndexConstant(u32),
    IndexLength,
    IndexLoad(u8),
    /// BPF instruction that loads the length of the IPv4 header at this offset into the index
    /// register.
    IndexHeader(u32),
    Store(u8),
    StoreIndex(u8),
    And(u32),
    Add(u32),
    Rsh(u32),
    Lsh(u32),
    /// BPF instruction for other arithmetic, and for arithmetic with the index register.
    Alu(Alu, Operand),
    Negate,
    Jump(u16),
    /// BPF jump to an earlier instruction, for another iteration of a loop.
    JumpBack(u16),
    Equal(u32, Branch),
    Greater(u32, Branch),
    AtLeast(u32, Branch),
    AnyBit(u32, Branch),
    IfIndex(Test, Branch),
    /// BPF instruction that joins `HalfAt` (load) and `Equal` (comparison) into one step.
    HalfAtEqual(u32, u16, Branch),
    /// BPF instruction that joins `Half` (load) and `AnyBit` (comparison) into one step.
    HalfAnyBit(u32, u16, Branch),
    /// Instruction that loads as `Half` does and compares the value as `Equal` does, in one step.
    HalfEqual(u32, u16, Branch),
    /// Instruction that loads as `Byte` does and compares the value as `Equal` does, in one step.
    ByteEqual(u32, u8, Branch),
    /// Instruction that loads as `Word` does and compares the value as `Equal` does, in one step.
    WordEqual(u32, u32, Branch),
    Return(u32),
    ReturnAccumulator,
    ToIndex,
    FromIndex,
}

/// Verified filter program: it terminates and reads only the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Decoded instructions of the filter program.
    ops: Box<[Op]>,
    /// `true` if the filter program uses scratch memory, which is cleared for each run.
    uses_memory: bool,
}

impl Program {
    /// Verifies and decodes a filter program.
    ///
    /// # Errors
    /// The program reads data outside the frame, or it is not a program that libpcap would emit.
    pub fn new(instructions: &[Instruction]) -> Result<Self, ProgramError> {
        if instructions.len() > LONGEST {
            return Err(ProgramError::TooLong);
        }
        let ops: Result<Box<[Op]>, ProgramError> = instructions
            .iter()
            .enumerate()
            .map(|(at, instruction)| decode(at, *instruction, instructions.len()))
            .collect();
        let mut ops = ops?;
        // Jumps stay inside the program and go forward, except for limited ones, so a program whose
        // last instruction returns always terminates.
        if !matches!(ops.last(), Some(Op::Return(_) | Op::ReturnAccumulator)) {
            return Err(ProgramError::Endless);
        }
        // The comparison itself stays in the program, because jumps may lead to it.
        for at in 1..ops.len() {
            if let Some(joined) = join(ops[at - 1], ops[at]) {
                ops[at - 1] = joined;
            }
        }
        let store = |op: &Op| matches!(op, Op::Store(_) | Op::StoreIndex(_));
        let load = |op: &Op| matches!(op, Op::Load(_) | Op::IndexLoad(_));
        let uses_memory = ops.iter().any(|op| store(op) || load(op));
        Ok(Self { ops, uses_memory })
    }

    /// Returns the decoded instructions of the filter program.
    pub(super) fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// Returns the number of instructions of the filter program.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns `false`, because a filter program has at least a return instruction.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns `true` if the filter program accepts a frame with `len` bytes on the wire.
    #[inline]
    #[must_use]
    pub fn accepts(&self, frame: &[u8], len: u32) -> bool {
        self.run(frame, len) != 0
    }

    /// Runs the filter program and returns its result: the number of bytes to keep, 0 for a
    /// rejected frame. A load from outside the frame or a division by zero ends the run with 0.
    #[must_use]
    pub fn run(&self, frame: &[u8], len: u32) -> u32 {
        let result = if self.uses_memory {
            self.steps::<MEMORY>(frame, len)
        } else {
            self.steps::<1>(frame, len)
        };
        result.unwrap_or(0)
    }

    #[inline]
    fn steps<const CELLS: usize>(&self, frame: &[u8], len: u32) -> Option<u32> {
        let (mut a, mut x) = (0_u32, 0_u32);
        let mut memory = [0_u32; CELLS];
        let (mut at, mut rounds) = (0_usize, MOST_ROUNDS);
        loop {
            let op = *self.ops.get(at)?;
            at += 1;
            match op {
                Op::HalfEqual(k, with, to) => {
                    let half = half(frame, k as usize)?;
                    a = u32::from(half);
                    at = to.choose(half == with);
                }
                Op::ByteEqual(k, with, to) => {
                    let byte = *frame.get(k as usize)?;
                    a = u32::from(byte);
                    at = to.choose(byte == with);
                }
                Op::WordEqual(k, with, to) => {
                    a = word(frame, k as usize)?;
                    at = to.choose(a == with);
                }
                Op::HalfAtEqual(k, with, to) => {
                    let half = half(frame, x as usize + k as usize)?;
                    a = u32::from(half);
                    at = to.choose(half == with);
                }
                Op::HalfAnyBit(k, with, to) => {
                    let half = half(frame, k as usize)?;
                    a = u32::from(half);
                    at = to.choose(half & with != 0);
                }
                Op::Equal(with, to) => at = to.choose(a == with),
                Op::Greater(with, to) => at = to.choose(a > with),
                Op::AtLeast(with, to) => at = to.choose(a >= with),
                Op::AnyBit(with, to) => at = to.choose(a & with != 0),
                Op::And(k) => a &= k,
                Op::Add(k) => a = a.wrapping_add(k),
                Op::Rsh(k) => a >>= k & 31,
                Op::Lsh(k) => a <<= k & 31,
                Op::IfIndex(test, to) => at = to.choose(test.holds(a, x)),
                Op::Word(k) => a = word(frame, k as usize)?,
                Op::Half(k) => a = u32::from(half(frame, k as usize)?),
                Op::Byte(k) => a = u32::from(*frame.get(k as usize)?),
                Op::WordAt(k) => a = word(frame, x as usize + k as usize)?,
                Op::HalfAt(k) => a = u32::from(half(frame, x as usize + k as usize)?),
                Op::ByteAt(k) => a = u32::from(*frame.get(x as usize + k as usize)?),
                Op::IndexHeader(k) => x = u32::from(*frame.get(k as usize)? & 15) * 4,
                Op::Alu(alu, Operand::Constant(k)) => a = alu.apply(a, k)?,
                Op::Alu(alu, Operand::Index) => a = alu.apply(a, x)?,
                Op::Negate => a = a.wrapping_neg(),
                Op::Jump(to) => at = usize::from(to),
                Op::JumpBack(to) => {
                    rounds = rounds.checked_sub(1)?;
                    at = usize::from(to);
                }
                Op::Return(k) => return Some(k),
                Op::ReturnAccumulator => return Some(a),
                Op::Constant(k) => a = k,
                Op::Length => a = len,
                Op::Load(cell) => a = memory[usize::from(cell) % CELLS],
                Op::IndexConstant(k) => x = k,
                Op::IndexLength => x = len,
                Op::IndexLoad(cell) => x = memory[usize::from(cell) % CELLS],
                Op::Store(cell) => memory[usize::from(cell) % CELLS] = a,
                Op::StoreIndex(cell) => memory[usize::from(cell) % CELLS] = x,
                Op::ToIndex => x = a,
                Op::FromIndex => a = x,
            }
        }
    }
}

impl Test {
    #[inline]
    fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
            Self::AnyBit => a & b != 0,
        }
    }
}

impl Alu {
    #[inline]
    fn apply(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::Lsh => a.checked_shl(b).unwrap_or(0),
            Self::Rsh => a.checked_shr(b).unwrap_or(0),
        })
    }
}

#[inline]
fn half(frame: &[u8], at: usize) -> Option<u16> {
    let bytes = frame.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes(bytes.try_into().ok()?))
}

#[inline]
fn word(frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Joins a BPF load and the comparison after it into one instruction, if such an instruction
/// exists.
fn join(load: Op, then: Op) -> Option<Op> {
    Some(match (load, then) {
        (Op::Half(k), Op::Equal(with, to)) => Op::HalfEqual(k, with.try_into().ok()?, to),
        (Op::HalfAt(k), Op::Equal(with, to)) => Op::HalfAtEqual(k, with.try_into().ok()?, to),
        (Op::Half(k), Op::AnyBit(with, to)) => Op::HalfAnyBit(k, with.try_into().ok()?, to),
        (Op::Byte(k), Op::Equal(with, to)) => Op::ByteEqual(k, with.try_into().ok()?, to),
        (Op::Word(k), Op::Equal(with, to)) => Op::WordEqual(k, with, to),
        _ => return None,
    })
}

fn decode(at: usize, (code, jt, jf, k): Instruction, len: usize) -> Result<Op, ProgramError> {
    let jump = |by: usize| {
        let to = (at + 1).saturating_add(by);
        if to < len {
            u16::try_from(to).ok()
        } else {
            None
        }
        .ok_or(ProgramError::Endless)
    };
    let cell = || {
        let cell = u8::try_from(k).ok();
        cell.filter(|it| usize::from(*it) < MEMORY)
            .ok_or(ProgramError::Instruction)
    };
    // An indexed load can read kernel data only if its constant is an ancillary offset.
    let in_frame = |op: Op| {
        if k >= ANCILLARY {
            Err(ProgramError::NotInFrame)
        } else {
            Ok(op)
        }
    };
    let operand = if code & 0x08 == 0 {
        Operand::Constant(k)
    } else {
        Operand::Index
    };
    let alu = |alu: Alu| {
        Ok(match (alu, operand) {
            (Alu::And, Operand::Constant(k)) => Op::And(k),
            (Alu::Add, Operand::Constant(k)) => Op::Add(k),
            (Alu::Rsh, Operand::Constant(k @ 0..32)) => Op::Rsh(k),
            (Alu::Lsh, Operand::Constant(k @ 0..32)) => Op::Lsh(k),
            _ => Op::Alu(alu, operand),
        })
    };
    let test = |test: Test| {
        let (yes, no) = (jump(jt.into())?, jump(jf.into())?);
        let to = Branch { yes, no };
        Ok(match (test, operand) {
            (_, Operand::Index) => Op::IfIndex(test, to),
            (Test::Equal, Operand::Constant(with)) => Op::Equal(with, to),
            (Test::Greater, Operand::Constant(with)) => Op::Greater(with, to),
            (Test::AtLeast, Operand::Constant(with)) => Op::AtLeast(with, to),
            (Test::AnyBit, Operand::Constant(with)) => Op::AnyBit(with, to),
        })
    };
    match code {
        0x20 => in_frame(Op::Word(k)),
        0x28 => in_frame(Op::Half(k)),
        0x30 => in_frame(Op::Byte(k)),
        0x40 => in_frame(Op::WordAt(k)),
        0x48 => in_frame(Op::HalfAt(k)),
        0x50 => in_frame(Op::ByteAt(k)),
        0x00 => Ok(Op::Constant(k)),
        0x80 => Ok(Op::Length),
        0x60 => Ok(Op::Load(cell()?)),
        0x01 => Ok(Op::IndexConstant(k)),
        0x81 => Ok(Op::IndexLength),
        0x61 => Ok(Op::IndexLoad(cell()?)),
        0xb1 => in_frame(Op::IndexHeader(k)),
        0x02 => Ok(Op::Store(cell()?)),
        0x03 => Ok(Op::StoreIndex(cell()?)),
        0x04 | 0x0c => alu(Alu::Add),
        0x14 | 0x1c => alu(Alu::Sub),
        0x24 | 0x2c => alu(Alu::Mul),
        0x34 | 0x3c => alu(Alu::Div),
        0x44 | 0x4c => alu(Alu::Or),
        0x54 | 0x5c => alu(Alu::And),
        0x64 | 0x6c => alu(Alu::Lsh),
        0x74 | 0x7c => alu(Alu::Rsh),
        0x84 => Ok(Op::Negate),
        0x94 | 0x9c => alu(Alu::Mod),
        0xa4 | 0xac => alu(Alu::Xor),
        0x05 => {
            let back = usize::try_from(k.wrapping_neg())
                .ok()
                .filter(|it| *it <= at + 1);
            match back.filter(|it| *it != 0) {
                // A jump to itself would be an endless loop.
                Some(1) => Err(ProgramError::Endless),
                Some(by) => Ok(Op::JumpBack(u16::try_from(at + 1 - by).unwrap_or(0))),
                None => Ok(Op::Jump(jump(usize::try_from(k).unwrap_or(usize::MAX))?)),
            }
        }
        0x15 | 0x1d => test(Test::Equal),
        0x25 | 0x2d => test(Test::Greater),
        0x35 | 0x3d => test(Test::AtLeast),
        0x45 | 0x4d => test(Test::AnyBit),
        0x06 => Ok(Op::Return(k)),
        0x16 => Ok(Op::ReturnAccumulator),
        0x07 => Ok(Op::ToIndex),
        0x87 => Ok(Op::FromIndex),
        _ => Err(ProgramError::Instruction),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETURN_A: Instruction = (0x16, 0, 0, 0);

    fn run(instructions: &[Instruction], frame: &[u8]) -> u32 {
        let program = Program::new(instructions).unwrap();
        program.run(frame, u32::try_from(frame.len()).unwrap() + 100)
    }

    #[test]
    fn every_instruction() {
        let frame = [0x45, 1, 2, 3, 4, 5, 6, 7];
        for (instructions, result) in [
            (&[(0x20, 0, 0, 1)][..], 0x0102_0304),
            (&[(0x28, 0, 0, 6)], 0x0607),
            (&[(0x30, 0, 0, 7)], 7),
            (&[(0x01, 0, 0, 2), (0x40, 0, 0, 2)], 0x0405_0607),
            (&[(0x01, 0, 0, 2), (0x48, 0, 0, 1)], 0x0304),
            (&[(0x01, 0, 0, 2), (0x50, 0, 0, 1)], 3),
            (&[(0x00, 0, 0, 9)], 9),
            (&[(0x80, 0, 0, 0)], 108),
            (&[(0x81, 0, 0, 0), (0x87, 0, 0, 0)], 108),
            (&[(0xb1, 0, 0, 0), (0x87, 0, 0, 0)], 20),
            (
                &[
                    (0x00, 0, 0, 5),
                    (0x02, 0, 0, 3),
                    (0x00, 0, 0, 1),
                    (0x60, 0, 0, 3),
                ],
                5,
            ),
            (&[(0x01, 0, 0, 5), (0x03, 0, 0, 15), (0x60, 0, 0, 15)], 5),
            (
                &[
                    (0x00, 0, 0, 5),
                    (0x02, 0, 0, 0),
                    (0x61, 0, 0, 0),
                    (0x87, 0, 0, 0),
                ],
                5,
            ),
            (
                &[
                    (0x00, 0, 0, 5),
                    (0x07, 0, 0, 0),
                    (0x00, 0, 0, 6),
                    (0x0c, 0, 0, 0),
                ],
                11,
            ),
            (&[(0x00, 0, 0, 5), (0x04, 0, 0, u32::MAX)], 4),
            (&[(0x00, 0, 0, 5), (0x14, 0, 0, 6)], u32::MAX),
            (&[(0x00, 0, 0, 5), (0x24, 0, 0, 6)], 30),
            (&[(0x00, 0, 0, 50), (0x34, 0, 0, 6)], 8),
            (&[(0x00, 0, 0, 50), (0x94, 0, 0, 6)], 2),
            (&[(0x00, 0, 0, 5), (0x44, 0, 0, 6)], 7),
            (&[(0x00, 0, 0, 5), (0x54, 0, 0, 6)], 4),
            (&[(0x00, 0, 0, 5), (0xa4, 0, 0, 6)], 3),
            (&[(0x00, 0, 0, 5), (0x64, 0, 0, 6)], 320),
            (&[(0x00, 0, 0, 5), (0x64, 0, 0, 32)], 0),
            (&[(0x00, 0, 0, 320), (0x74, 0, 0, 6)], 5),
            (&[(0x00, 0, 0, 5), (0x84, 0, 0, 0)], 5_u32.wrapping_neg()),
            (&[(0x05, 0, 0, 1), (0x06, 0, 0, 1), (0x00, 0, 0, 2)], 2),
        ] {
            let mut program = instructions.to_vec();
            program.push(RETURN_A);
            assert_eq!(run(&program, &frame), result, "{instructions:?}");
        }
    }

    #[test]
    fn comparisons() {
        for (code, a, k, holds) in [
            (0x15, 5, 5, true),
            (0x15, 5, 6, false),
            (0x25, 6, 5, true),
            (0x25, 5, 5, false),
            (0x35, 5, 5, true),
            (0x35, 4, 5, false),
            (0x45, 6, 4, true),
            (0x45, 6, 1, false),
        ] {
            let ends = [(0x06, 0, 0, 1), (0x06, 0, 0, 2)];
            let with_constant = [(0x00, 0, 0, a), (code, 0, 1, k), ends[0], ends[1]];
            let x = (0x01, 0, 0, k);
            let with_index = [(0x00, 0, 0, a), x, (code | 8, 0, 1, 0), ends[0], ends[1]];
            let expected = if holds { 1 } else { 2 };
            assert_eq!(run(&with_constant, &[]), expected, "{code:x}");
            assert_eq!(run(&with_index, &[]), expected, "{code:x}");
        }
    }

    #[test]
    fn joined_loads_and_comparisons() {
        let frame = [8, 6, 1, 2];
        let ends = [(0x06, 0, 0, 1), RETURN_A];
        for (load, value) in [
            (0x28, 0x0806),
            (0x30, 8),
            (0x20, 0x0806_0102),
            (0x48, 0x0806),
        ] {
            for (with, result) in [(value, 1), (value ^ 1, value), (u32::MAX, value)] {
                let program = [(load, 0, 0, 0), (0x15, 0, 1, with), ends[0], ends[1]];
                assert_eq!(run(&program, &frame), result, "{load:x} {with:x}");
                assert_eq!(run(&program, &frame[..0]), 0);
            }
        }
    }

    #[test]
    fn loads_outside_the_frame_reject_the_frame() {
        for load in [(0x20, 1), (0x28, 3), (0x30, 4), (0xb1, 4)] {
            assert_eq!(run(&[(load.0, 0, 0, load.1), (0x06, 0, 0, 1)], &[0; 4]), 0);
        }
        let far = [(0x01, 0, 0, u32::MAX), (0x50, 0, 0, 1000), (0x06, 0, 0, 1)];
        assert_eq!(run(&far, &[0; 4]), 0);
        let division = [(0x01, 0, 0, 0), (0x3c, 0, 0, 0), (0x06, 0, 0, 1)];
        assert_eq!(run(&division, &[]), 0);
    }

    #[test]
    fn loop_iterations_are_limited() {
        // Program that returns the offset of the first 0 byte.
        let find = [
            (0x50, 0, 0, 0),
            (0x15, 4, 0, 0),
            (0x87, 0, 0, 0),
            (0x04, 0, 0, 1),
            (0x07, 0, 0, 0),
            (0x05, 0, 0, (-6_i32).cast_unsigned()),
            (0x87, 0, 0, 0),
            RETURN_A,
        ];
        assert_eq!(run(&find, &[7, 7, 0, 7]), 2);
        assert_eq!(run(&find, &[7; 4]), 0);
        let endless = [
            (0x00, 0, 0, 1),
            (0x05, 0, 0, (-2_i32).cast_unsigned()),
            RETURN_A,
        ];
        assert_eq!(run(&endless, &[]), 0);
    }

    #[test]
    fn invalid_programs_are_rejected() {
        let refused = |instructions: &[Instruction]| Program::new(instructions).unwrap_err();
        assert_eq!(refused(&[]), ProgramError::Endless);
        assert_eq!(refused(&[(0x00, 0, 0, 1)]), ProgramError::Endless);
        assert_eq!(refused(&[(0x15, 1, 0, 0), RETURN_A]), ProgramError::Endless);
        assert_eq!(
            refused(&[(0x05, 0, 0, u32::MAX), RETURN_A]),
            ProgramError::Endless
        );
        assert_eq!(
            refused(&[(0x02, 0, 0, 16), RETURN_A]),
            ProgramError::Instruction
        );
        assert_eq!(
            refused(&[(0xff, 0, 0, 0), RETURN_A]),
            ProgramError::Instruction
        );
        assert_eq!(
            refused(&[(0x28, 0, 0, 0xffff_f004), RETURN_A]),
            ProgramError::NotInFrame
        );
        let long = vec![RETURN_A; 65_536];
        assert_eq!(refused(&long), ProgramError::TooLong);
    }
}
