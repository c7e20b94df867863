//! Byte constraints that every frame accepted by a filter program satisfies.
//!
//! The analysis follows each path through a program. A comparison on a path constrains bytes: for
//! instance two bytes are `08 00`, or three bits are zero. Other conditions (greater than, not
//! equal, arithmetic, the length) are ignored. The [`Constraints`] of a path therefore hold for all
//! frames that the path accepts, and possibly for others. The NIC's rules need exactly this: they
//! may match more frames than the filter accepts, never fewer.

use super::program::{Branch, Op, Program};
use std::collections::BTreeMap;

/// Maximum number of steps for the analysis of a filter program; a program that needs more has too
/// many paths.
const MOST_STEPS: usize = 50_000;

/// Position in a frame from which a byte offset is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffsetOrigin {
    /// Start of the frame, from which the offset is counted.
    Start,
    /// End of the IPv4 header that begins at this offset, by its header length field, from which
    /// the offset is counted.
    BehindIpv4(u32),
}

/// Known bits of one byte of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    /// Mask of the known bits of a frame's byte.
    pub mask: u8,
    /// Values of the known bits of a frame's byte; 0 where `mask` is 0.
    pub value: u8,
}

/// Known bits of a frame's bytes at the end of one path through a filter program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints(BTreeMap<(OffsetOrigin, u32), Bits>);

impl Constraints {
    /// Returns the known bits of the frame's byte at offset `at`, counted from `from`.
    #[must_use]
    pub fn byte(&self, from: OffsetOrigin, at: u32) -> Bits {
        self.0.get(&(from, at)).copied().unwrap_or_default()
    }

    /// Returns the 16-bit value in the frame at offset `at`, counted from `from`, if all its bits
    /// are known.
    #[must_use]
    pub fn half(&self, from: OffsetOrigin, at: u32) -> Option<u16> {
        let (high, low) = (self.byte(from, at), self.byte(from, at + 1));
        (high.mask & low.mask == 0xff).then(|| u16::from_be_bytes([high.value, low.value]))
    }

    /// Adds the constraint that a value loaded from the frame has these bits. Returns `false` if
    /// that contradicts known bits, so that no frame takes this path.
    fn learn(&mut self, load: LoadedValue, mask: u32, value: u32) -> bool {
        load.bytes(mask, value).all(|(place, new)| {
            let old = self.0.entry(place).or_default();
            let agree = (old.value ^ new.value) & old.mask & new.mask == 0;
            old.mask |= new.mask;
            old.value |= new.value;
            agree
        })
    }

    /// Returns `true` if a value loaded from the frame is known to have these bits.
    fn has(&self, load: LoadedValue, mask: u32, value: u32) -> bool {
        load.bytes(mask, value).all(|(place, asked)| {
            let known = self.byte(place.0, place.1);
            known.mask & asked.mask == asked.mask && known.value & asked.mask == asked.value
        })
    }
}

/// Value that a filter program loaded from the frame into a register, possibly reduced by a mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LoadedValue {
    /// Position in the frame from which the offset of a loaded value is counted.
    from: OffsetOrigin,
    /// Offset of the first byte of the loaded value, counted from `from`.
    at: u32,
    /// Number of bytes of the loaded value: 1, 2 or 4.
    size: u32,
    /// Bits of the loaded value that earlier AND instructions have left.
    mask: u32,
}

impl LoadedValue {
    fn new(from: OffsetOrigin, at: u32, size: u32) -> Option<Self> {
        at.checked_add(size)?;
        let mask = u32::MAX >> (32 - 8 * size);
        Some(Self {
            from,
            at,
            size,
            mask,
        })
    }

    fn and(self, with: u32) -> Self {
        Self {
            mask: self.mask & with,
            ..self
        }
    }

    /// Splits a loaded value into the frame bytes that it was loaded from, with the bits of each
    /// byte.
    fn bytes(self, mask: u32, value: u32) -> impl Iterator<Item = ((OffsetOrigin, u32), Bits)> {
        (0..self.size).filter_map(move |i| {
            let shift = 8 * (self.size - 1 - i);
            let [.., mask] = (mask >> shift).to_be_bytes();
            let [.., value] = (value >> shift).to_be_bytes();
            let bits = Bits {
                mask,
                value: value & mask,
            };
            (mask != 0).then_some(((self.from, self.at + i), bits))
        })
    }
}

/// State of the filter analysis on one path through the program.
#[derive(Clone, Debug, Default)]
struct Path {
    /// Index of the path's next instruction in the filter program.
    at: usize,
    /// Constraints on the frame's bytes collected so far on this path.
    known: Constraints,
    /// Content of the BPF accumulator; `None`: it was not loaded from the frame.
    a: Option<LoadedValue>,
    /// Offset of the IPv4 header whose length is in the BPF index register; `None`: the register
    /// has another value.
    x: Option<u32>,
}

impl Path {
    /// Updates the path for a load of `size` bytes at offset `at` of the frame into the BPF
    /// accumulator.
    fn load(&mut self, at: u32, size: u32) {
        self.a = LoadedValue::new(OffsetOrigin::Start, at, size);
    }

    /// Updates the path for a load at offset `at` after the BPF index register into the
    /// accumulator.
    fn load_behind(&mut self, at: u32, size: u32) {
        self.a = self.x.and_then(|header| {
            LoadedValue::new(
                OffsetOrigin::BehindIpv4(header),
                at.checked_sub(header)?,
                size,
            )
        });
    }

    /// Returns the program paths for both results of the comparison `a == with`.
    fn equal(self, with: u32, to: Branch) -> [Option<Self>; 2] {
        let Some(load) = self.a else {
            return self.both(to);
        };
        let known_equal = self.known.has(load, load.mask, with);
        let equal = (with & !load.mask == 0).then(|| self.learn(load, load.mask, with, to.yes));
        let other = (!known_equal).then(|| self.to(to.no));
        [equal.flatten(), other]
    }

    /// Returns the program paths for both results of the comparison `a & with != 0`.
    fn any_bit(self, with: u32, to: Branch) -> [Option<Self>; 2] {
        let Some(load) = self.a else {
            return self.both(to);
        };
        let bits = with & load.mask;
        let some = match bits.count_ones() {
            0 => None,
            1 => self.learn(load, bits, bits, to.yes),
            _ => (!self.known.has(load, bits, 0)).then(|| self.to(to.yes)),
        };
        [some, self.learn(load, bits, 0, to.no)]
    }

    /// Returns the program path to instruction `to` with an added constraint; `None` if no frame
    /// takes it.
    fn learn(&self, load: LoadedValue, mask: u32, value: u32, to: u16) -> Option<Self> {
        let mut path = self.to(to);
        path.known.learn(load, mask, value).then_some(path)
    }

    /// Returns the program paths to both jump targets without added constraints.
    fn both(self, to: Branch) -> [Option<Self>; 2] {
        [Some(self.to(to.yes)), Some(self.to(to.no))]
    }

    /// Returns a copy of the program path that continues at instruction number `at`.
    fn to(&self, at: u16) -> Self {
        Self {
            at: usize::from(at),
            ..self.clone()
        }
    }
}

/// Returns the constraints of each program path that accepts a frame; `None` if the program has too
/// many paths or a loop.
pub(super) fn paths(program: &Program) -> Option<Vec<Constraints>> {
    let mut ends = Vec::new();
    let mut open = vec![Path::default()];
    let mut steps = 0;
    while let Some(mut path) = open.pop() {
        steps += 1;
        if steps > MOST_STEPS {
            return None;
        }
        let op = *program.ops().get(path.at)?;
        path.at += 1;
        // A load joined with its comparison is one step.
        match op {
            Op::Word(at) | Op::WordEqual(at, ..) => path.load(at, 4),
            Op::Half(at) | Op::HalfEqual(at, ..) | Op::HalfAnyBit(at, ..) => path.load(at, 2),
            Op::Byte(at) | Op::ByteEqual(at, ..) => path.load(at, 1),
            Op::WordAt(at) => path.load_behind(at, 4),
            Op::HalfAt(at) | Op::HalfAtEqual(at, ..) => path.load_behind(at, 2),
            Op::ByteAt(at) => path.load_behind(at, 1),
            Op::And(with) => path.a = path.a.map(|it| it.and(with)),
            Op::Constant(_)
            | Op::Length
            | Op::Load(_)
            | Op::Add(_)
            | Op::Rsh(_)
            | Op::Lsh(_)
            | Op::Alu(..)
            | Op::Negate
            | Op::FromIndex => path.a = None,
            Op::IndexHeader(at) => path.x = Some(at),
            Op::IndexConstant(_) | Op::IndexLength | Op::IndexLoad(_) | Op::ToIndex => {
                path.x = None;
            }
            Op::Store(_)
            | Op::StoreIndex(_)
            | Op::Jump(_)
            | Op::JumpBack(_)
            | Op::Equal(..)
            | Op::Greater(..)
            | Op::AtLeast(..)
            | Op::AnyBit(..)
            | Op::IfIndex(..)
            | Op::Return(_)
            | Op::ReturnAccumulator => {}
        }
        let next = match op {
            Op::Equal(with, to) | Op::WordEqual(_, with, to) => path.equal(with, to),
            Op::HalfEqual(_, with, to) | Op::HalfAtEqual(_, with, to) => {
                path.equal(with.into(), to)
            }
            Op::ByteEqual(_, with, to) => path.equal(with.into(), to),
            Op::AnyBit(with, to) => path.any_bit(with, to),
            Op::HalfAnyBit(_, with, to) => path.any_bit(with.into(), to),
            Op::Greater(_, to) | Op::AtLeast(_, to) | Op::IfIndex(_, to) => path.both(to),
            Op::Jump(to) => [Some(path.to(to)), None],
            Op::JumpBack(_) => return None,
            Op::Return(0) => [None, None],
            Op::Return(_) | Op::ReturnAccumulator => {
                ends.push(path.known);
                [None, None]
            }
            _ => [Some(path), None],
        };
        open.extend(next.into_iter().flatten());
    }
    Some(ends)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    fn constraints_of(expression: &str) -> Vec<Constraints> {
        let filter = Filter::compile(expression).unwrap();
        paths(filter.program().unwrap()).unwrap()
    }

    #[test]
    fn a_path_has_the_constraints_of_its_comparisons() {
        let known = constraints_of("ip dst net 10.0.0.0/8 and tcp dst port 80");
        assert_eq!(known.len(), 1);
        let known = &known[0];
        assert_eq!(known.half(OffsetOrigin::Start, 12), Some(0x0800));
        let ten = Bits {
            mask: 0xff,
            value: 10,
        };
        assert_eq!(known.byte(OffsetOrigin::Start, 30), ten);
        assert_eq!(known.byte(OffsetOrigin::Start, 31), Bits::default());
        // The filter accepts first fragments only.
        let offset = Bits {
            mask: 0x1f,
            value: 0,
        };
        assert_eq!(known.byte(OffsetOrigin::Start, 20), offset);
        assert_eq!(known.half(OffsetOrigin::BehindIpv4(14), 2), Some(80));
    }

    #[test]
    fn each_alternative_is_a_path_and_contradictions_are_not() {
        let types = |expression| {
            let mut types: Vec<_> = constraints_of(expression)
                .iter()
                .map(|it| it.half(OffsetOrigin::Start, 12))
                .collect();
            types.sort_unstable();
            types.dedup();
            types
        };
        assert_eq!(types("arp or ip"), [Some(0x0800), Some(0x0806)]);
        assert_eq!(types("greater 100"), [None]);
        assert_eq!(types("not arp"), [None]);
        assert_eq!(types("ether[12:2] = 0x8100 and vlan"), [Some(0x8100)]);
        assert_eq!(types("vlan"), [Some(0x8100), Some(0x88a8), Some(0x9100)]);
    }

    #[test]
    fn programs_with_loops_are_not_analysed() {
        let filter = Filter::compile("ip6 protochain 58").unwrap();
        assert_eq!(paths(filter.program().unwrap()), None);
    }
}
