//! Parsers of setting values. An error states what is wrong with the value; the caller appends the
//! valid values.

use super::error::ModelValueError;

/// Parses the decimal number of a setting; underscores may group its digits.
pub fn number<T: std::str::FromStr>(value: &str) -> Result<T, ModelValueError> {
    let digits = value.replace('_', "");
    digits
        .parse()
        .map_err(|_| ModelValueError::NotANumber(value.to_owned()))
}

/// Parses a setting's number from `low` to `high`, both included.
pub fn within<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    value: &str,
    low: T,
    high: T,
) -> Result<T, ModelValueError> {
    let number: T = number(value)?;
    if number < low || number > high {
        return Err(ModelValueError::OutOfRange(number.to_string()));
    }
    Ok(number)
}

pub fn boolean(value: &str) -> Result<bool, ModelValueError> {
    match value {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(ModelValueError::NotABoolean(value.to_owned())),
    }
}

/// Parses a setting's 64-bit number: hexadecimal with the prefix `0x`, else decimal.
pub fn mask(value: &str) -> Result<u64, ModelValueError> {
    match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)
            .map_err(|_| ModelValueError::NotHexadecimal(value.to_owned())),
        None => number(value),
    }
}

/// Parses a setting's MAC address: six hexadecimal pairs separated by colons.
pub fn mac(value: &str) -> Result<[u8; 6], ModelValueError> {
    let mut bytes = [0; 6];
    let mut pairs = value.split(':');
    for byte in &mut bytes {
        *byte = pairs
            .next()
            .filter(|pair| pair.len() == 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or_else(|| ModelValueError::NotAMac(value.to_owned()))?;
    }
    match pairs.next() {
        None => Ok(bytes),
        Some(_) => Err(ModelValueError::MacTooLong(value.to_owned())),
    }
}

/// Checks that `value` can name a network interface (1 to 15 bytes, without slash and white space),
/// and returns it.
pub fn interface_name(value: &str) -> Result<String, ModelValueError> {
    let fits = (1..16).contains(&value.len())
        && value != "."
        && value != ".."
        && !value.contains(|c: char| c == '/' || c.is_whitespace());
    if fits {
        Ok(value.to_owned())
    } else {
        Err(ModelValueError::NotAnInterface(value.to_owned()))
    }
}
