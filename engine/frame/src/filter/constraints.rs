//! What every frame that a program keeps has in its bytes.
//!
//! A program is followed along each of its paths. A comparison that a path passes says something about bytes: that
//! these are `08 00`, that those three bits are zero. What a path says of other things (greater than, not equal,
//! arithmetic, the length) is left out, so that a path's [`Constraints`] holds of all frames that are kept by it, and maybe of
//! others. That is what a NIC's rules need: they may take more than the filter keeps, never less.

use super::program::{Branch, Op, Program};
use std::collections::BTreeMap;

/// Steps after which a program has too many paths to be followed.
const MOST_STEPS: usize = 50_000;

/// Where bytes are counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OffsetOrigin {
    /// The frame's first byte.
    Start,
    /// The end of the IPv4 header that begins at this offset, as its length field tells.
    BehindIpv4(u32),
}

/// Bits of a byte that are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bits {
    /// Which.
    pub mask: u8,
    /// What they are; zero where the mask is.
    pub value: u8,
}

/// What is known of a frame's bytes at the end of one path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Constraints(BTreeMap<(OffsetOrigin, u32), Bits>);

impl Constraints {
    /// What is known of one byte.
    #[must_use]
    pub fn byte(&self, from: OffsetOrigin, at: u32) -> Bits {
        self.0.get(&(from, at)).copied().unwrap_or_default()
    }

    /// A half word, if all of it is known.
    #[must_use]
    pub fn half(&self, from: OffsetOrigin, at: u32) -> Option<u16> {
        let (high, low) = (self.byte(from, at), self.byte(from, at + 1));
        (high.mask & low.mask == 0xff).then(|| u16::from_be_bytes([high.value, low.value]))
    }

    /// Learns that the loaded value has these bits; false: it is known to have others, so no frame comes here.
    fn learn(&mut self, load: Load, mask: u32, value: u32) -> bool {
        load.bytes(mask, value).all(|(place, new)| {
            let old = self.0.entry(place).or_default();
            let agree = (old.value ^ new.value) & old.mask & new.mask == 0;
            old.mask |= new.mask;
            old.value |= new.value;
            agree
        })
    }

    /// Whether the loaded value is known to have these bits.
    fn has(&self, load: Load, mask: u32, value: u32) -> bool {
        load.bytes(mask, value).all(|(place, asked)| {
            let known = self.byte(place.0, place.1);
            known.mask & asked.mask == asked.mask && known.value & asked.mask == asked.value
        })
    }
}

/// A value loaded from the frame, of which a mask has left some bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Load {
    from: OffsetOrigin,
    at: u32,
    size: u32,
    mask: u32,
}

impl Load {
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

    /// The bits of a value by the bytes they were loaded from.
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

/// A path under way.
#[derive(Clone, Debug, Default)]
struct Path {
    at: usize,
    known: Constraints,
    /// The accumulator, if it was loaded.
    a: Option<Load>,
    /// The index, if it is the length of the IPv4 header at this offset.
    x: Option<u32>,
}

impl Path {
    fn load(&mut self, at: u32, size: u32) {
        self.a = Load::new(OffsetOrigin::Start, at, size);
    }

    fn load_behind(&mut self, at: u32, size: u32) {
        self.a = self.x.and_then(|header| {
            Load::new(
                OffsetOrigin::BehindIpv4(header),
                at.checked_sub(header)?,
                size,
            )
        });
    }

    /// Both ways of `a == with`.
    fn equal(self, with: u32, to: Branch) -> [Option<Self>; 2] {
        let Some(load) = self.a else {
            return self.both(to);
        };
        let known_equal = self.known.has(load, load.mask, with);
        let equal = (with & !load.mask == 0).then(|| self.learn(load, load.mask, with, to.yes));
        let other = (!known_equal).then(|| self.to(to.no));
        [equal.flatten(), other]
    }

    /// Both ways of `a & with != 0`.
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

    fn learn(&self, load: Load, mask: u32, value: u32, to: u16) -> Option<Self> {
        let mut path = self.to(to);
        path.known.learn(load, mask, value).then_some(path)
    }

    fn both(self, to: Branch) -> [Option<Self>; 2] {
        [Some(self.to(to.yes)), Some(self.to(to.no))]
    }

    fn to(&self, at: u16) -> Self {
        Self {
            at: usize::from(at),
            ..self.clone()
        }
    }
}

/// What is known at the end of each path that keeps a frame; `None`: there are too many of them, or a loop.
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
        // A load with the comparison behind it is one step.
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

    fn of(expression: &str) -> Vec<Constraints> {
        let filter = Filter::compile(expression).unwrap();
        paths(filter.program().unwrap()).unwrap()
    }

    #[test]
    fn a_path_knows_what_it_has_compared() {
        let known = of("ip dst net 10.0.0.0/8 and tcp dst port 80");
        assert_eq!(known.len(), 1);
        let known = &known[0];
        assert_eq!(known.half(OffsetOrigin::Start, 12), Some(0x0800));
        let ten = Bits {
            mask: 0xff,
            value: 10,
        };
        assert_eq!(known.byte(OffsetOrigin::Start, 30), ten);
        assert_eq!(known.byte(OffsetOrigin::Start, 31), Bits::default());
        // No fragment but a first one.
        let offset = Bits {
            mask: 0x1f,
            value: 0,
        };
        assert_eq!(known.byte(OffsetOrigin::Start, 20), offset);
        assert_eq!(known.half(OffsetOrigin::BehindIpv4(14), 2), Some(80));
    }

    #[test]
    fn each_alternative_is_a_path_and_what_cannot_be_is_none() {
        let types = |expression| {
            let mut types: Vec<_> = of(expression)
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
    fn loops_are_not_followed() {
        let filter = Filter::compile("ip6 protochain 58").unwrap();
        assert_eq!(paths(filter.program().unwrap()), None);
    }
}
