//! Parsers of setting values. An error states what is wrong with the value; the caller appends the
//! valid values.

/// Parses the decimal number of a setting; underscores may group its digits.
pub fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    let digits = value.replace('_', "");
    digits
        .parse()
        .map_err(|_| format!("the value \"{value}\" is not a number in the allowed range"))
}

/// Parses a setting's number from `low` to `high`, both included.
pub fn within<T: std::str::FromStr + PartialOrd + std::fmt::Display>(
    value: &str,
    low: T,
    high: T,
) -> Result<T, String> {
    let number = number(value)?;
    if number < low || number > high {
        return Err(format!("{number} is out of range"));
    }
    Ok(number)
}

pub fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("the value \"{value}\" is neither true nor false")),
    }
}

/// Parses a setting's 64-bit number: hexadecimal with the prefix `0x`, else decimal.
pub fn mask(value: &str) -> Result<u64, String> {
    match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)
            .map_err(|_| format!("\"{value}\" is not a 64-bit hexadecimal number")),
        None => number(value),
    }
}

/// Parses a setting's MAC address: six hexadecimal pairs separated by colons.
pub fn mac(value: &str) -> Result<[u8; 6], String> {
    let mut bytes = [0; 6];
    let mut pairs = value.split(':');
    for byte in &mut bytes {
        *byte = pairs
            .next()
            .filter(|pair| pair.len() == 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
            .ok_or_else(|| format!("\"{value}\" is not a MAC address such as 0c:42:a1:00:00:01"))?;
    }
    match pairs.next() {
        None => Ok(bytes),
        Some(_) => Err(format!(
            "the value \"{value}\" is longer than a MAC address of six bytes"
        )),
    }
}

/// Checks that `value` can name a network interface: 1 to 15 bytes, without slash and white space.
pub fn interface_name(value: &str) -> Result<String, String> {
    let fits = (1..16).contains(&value.len())
        && value != "."
        && value != ".."
        && !value.contains(|c: char| c == '/' || c.is_whitespace());
    if fits {
        Ok(value.to_owned())
    } else {
        Err(format!(
            "\"{value}\" is not a name of a network interface, which has 1 to 15 bytes without slash and white space"
        ))
    }
}
