//! Values of keys, parsed. An error says what is wrong with the value; the caller adds what is valid.

/// A decimal number; underscores may group its digits.
pub fn number<T: std::str::FromStr>(value: &str) -> Result<T, String> {
    let digits = value.replace('_', "");
    digits
        .parse()
        .map_err(|_| format!("\"{value}\" is not a number in range"))
}

/// A number from `low` to `high`.
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
        _ => Err(format!("\"{value}\" is neither true nor false")),
    }
}

/// A number that may be hexadecimal.
pub fn mask(value: &str) -> Result<u64, String> {
    match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16)
            .map_err(|_| format!("\"{value}\" is not a 64-bit hexadecimal number")),
        None => number(value),
    }
}

/// A MAC address as six hexadecimal pairs with colons.
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
        Some(_) => Err(format!("\"{value}\" is longer than a MAC address")),
    }
}

/// A name that a network interface can have.
pub fn interface_name(value: &str) -> Result<String, String> {
    let fits = (1..16).contains(&value.len())
        && value != "."
        && value != ".."
        && !value.contains(|c: char| c == '/' || c.is_whitespace());
    if fits {
        Ok(value.to_owned())
    } else {
        Err(format!("\"{value}\" is not an interface name"))
    }
}
