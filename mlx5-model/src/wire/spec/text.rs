//! Parsing of the options and numbers in the text of a wire, and errors in the text.

use std::fmt;
use std::num::NonZeroU64;
use std::ops::RangeInclusive;

const MIB: u64 = 1 << 20;
/// Allowed sizes of a live wire's receive ring in bytes. A smaller ring is full after a few
/// milliseconds; a larger value has a wrong unit.
const RINGS: RangeInclusive<u64> = 2 * MIB..=4096 * MIB;
/// Default size of a live wire's receive ring, in bytes.
pub const RING: u64 = 128 * MIB;

/// Invalid part of the description of a wire, which is the software NIC's traffic source: name and
/// value of the part, and the allowed values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wire `{wire}`: {part}: `{value}` is not allowed; {allowed}")]
pub struct SpecError {
    wire: String,
    part: String,
    value: String,
    allowed: String,
}

/// Text of a wire's description as the user wrote it, which errors quote.
pub struct SpecText<'a>(pub &'a str);

impl SpecText<'_> {
    /// Builds the error for an invalid `part` of a wire's description, which states the allowed
    /// values.
    pub fn error(&self, part: &str, value: &str, allowed: impl Into<String>) -> SpecError {
        SpecError {
            wire: self.0.to_owned(),
            part: part.to_owned(),
            value: value.to_owned(),
            allowed: allowed.into(),
        }
    }

    /// Stores the value of a wire's option in `slot`. Fails if the option was already given.
    pub fn once<T: fmt::Debug>(
        &self,
        part: &str,
        slot: &mut Option<T>,
        value: T,
    ) -> Result<(), SpecError> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.error(part, part, "give the option only once")),
        }
    }

    /// Stores the parsed `value` of a wire's option in `slot`. Fails if the value is not valid or
    /// if the option was already given.
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

    /// Checks and returns the network interface name of a wire of `kind`.
    pub fn interface(&self, kind: &str, name: &str) -> Result<String, SpecError> {
        // dev_valid_name, net/core/dev.c: up to 15 bytes, no slash, colon or space, not "." or
        // "..".
        if name.is_empty()
            || name.len() > 15
            || name == "."
            || name == ".."
            || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace())
        {
            let allowed = format!("use the name of a network interface, such as {kind}:eth0");
            return Err(self.error("interface", name, allowed));
        }
        Ok(name.to_owned())
    }

    /// Parses the size of a live wire's receive ring in bytes, and stores it in `slot`.
    pub fn ring(&self, value: &str, slot: &mut Option<u64>) -> Result<(), SpecError> {
        let allowed = "use whole MiB from 2MiB to 4096MiB";
        let bytes = bytes(value).filter(|it| it % MIB == 0 && RINGS.contains(it));
        self.option("ring", value, slot, bytes, allowed)
    }

    /// Parses a wire's rate in frames per second, and stores it in `slot`.
    pub fn pps(&self, value: &str, slot: &mut Option<NonZeroU64>) -> Result<(), SpecError> {
        let allowed = "use frames per second from 1, such as 1000000 or 1M; omit it for no pacing";
        let parsed = number(value).and_then(NonZeroU64::new);
        self.option("pps", value, slot, parsed, allowed)
    }
}

/// Parses the count in a wire's option: digits with an optional `k`, `M` or `G` (powers of ten).
pub fn number(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'k' => (&text[..text.len() - 1], 1_000),
        b'M' => (&text[..text.len() - 1], 1_000_000),
        b'G' => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Parses the size in a wire's option: digits with an optional `KiB`, `MiB` or `GiB`.
pub fn bytes(text: &str) -> Option<u64> {
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let (digits, unit) = units
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1));
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
