//! The text of a wire: its options, its numbers, and errors in it.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;
/// A smaller ring is full after a few milliseconds; a larger one is a mistake of the unit.
const RINGS: RangeInclusive<u64> = 2 * MIB..=4096 * MIB;
/// The ring of a live wire that is not told another.
pub const RING: u64 = 128 * MIB;

/// An invalid part of a wire: which, its value, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wire `{wire}`: {part}: `{value}` is not allowed; {allowed}")]
pub struct SpecError {
    wire: String,
    part: String,
    value: String,
    allowed: String,
}

/// A wire as the user wrote it, for errors to quote.
pub struct SpecText<'a>(pub &'a str);

impl SpecText<'_> {
    pub fn error(&self, part: &str, value: &str, allowed: impl Into<String>) -> SpecError {
        SpecError {
            wire: self.0.to_owned(),
            part: part.to_owned(),
            value: value.to_owned(),
            allowed: allowed.into(),
        }
    }

    /// Stores an option, which may be given once.
    pub fn once<T: fmt::Debug>(
        &self,
        part: &str,
        slot: &mut Option<T>,
        value: T,
    ) -> Result<(), SpecError> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.error(part, part, "it may be given once")),
        }
    }

    /// The same for what was made of an option's `value`, if anything was.
    pub fn option<T: fmt::Debug>(
        &self,
        part: &str,
        value: &str,
        slot: &mut Option<T>,
        parsed: Option<T>,
        allowed: &str,
    ) -> Result<(), SpecError> {
        let parsed = parsed.ok_or_else(|| self.error(part, value, allowed))?;
        self.once(part, slot, parsed)
    }

    /// The name of an interface, of a wire of this kind.
    pub fn interface(&self, kind: &str, name: &str) -> Result<String, SpecError> {
        // dev_valid_name, net/core/dev.c: up to 15 bytes, no slash, colon or space, not "." or "..".
        if name.is_empty()
            || name.len() > 15
            || name == "."
            || name == ".."
            || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
        {
            let allowed = format!("the name of a network interface, such as {kind}:eth0");
            return Err(self.error("interface", name, allowed));
        }
        Ok(name.to_owned())
    }

    /// The size of a live wire's ring.
    pub fn ring(&self, value: &str, slot: &mut Option<u64>) -> Result<(), SpecError> {
        let allowed = "whole MiB from 2MiB to 4096MiB";
        let bytes = bytes(value).filter(|it| it % MIB == 0 && RINGS.contains(it));
        self.option("ring", value, slot, bytes, allowed)
    }

    /// A rate.
    pub fn pps(&self, value: &str, slot: &mut Option<NonZeroU64>) -> Result<(), SpecError> {
        let allowed = "frames per second from 1, such as 1000000 or 1M; omit it for no pacing";
        let parsed = number(value).and_then(NonZeroU64::new);
        self.option("pps", value, slot, parsed, allowed)
    }
}

/// A count: digits with an optional `k`, `M` or `G` (powers of ten).
pub fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// A size: digits with an optional `KiB`, `MiB` or `GiB`.
pub fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
