//! Formatting of numbers, rates, sizes and tables.

use super::text::Text;
use std::time::Duration;

/// Formats a number with thousands separators: `1234567` as `1,234,567`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a number with its noun: `1 frame`, `1,234 frames`.
pub fn counted(n: u64, one: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {one}{plural}", thousands(n))
}

/// Formats a rate with about three digits and a decimal prefix, without its unit: `1.23 M`.
pub fn scaled(rate: f64) -> String {
    const STEPS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // The step is chosen after rounding: 999.96 k is 1.00 M.
    match STEPS.iter().find(|(step, _)| rate >= step * 0.9995) {
        Some((step, name)) => {
            let value = rate / step;
            let decimals = if value < 9.995 {
                2
            } else {
                usize::from(value < 99.95)
            };
            format!("{value:.decimals$} {name}")
        }
        None => format!("{rate:.0} "),
    }
}

/// Formats a number of bytes in binary units: `1.5 KiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    if n == 1 {
        return counted(n, "byte");
    }
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = usize::from(unit > 0 && value.fract() > 0.0);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Formats a duration in nanoseconds: `1.5 ms`.
pub fn span(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.1} s", ns as f64 / 1e9),
    }
}

/// Converts elapsed seconds from an answer of the control service to a duration. Invalid or too
/// large values become 0.
pub fn valid_seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

/// Returns the rate of `amount` per second over `time`, or 0 if `time` is 0.
pub fn rate(amount: u64, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 {
        amount as f64 / seconds
    } else {
        0.0
    }
}

/// Returns a row of cells for the table that [`aligned`] formats.
pub fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).into()
}

/// Formats rows of cells as a table: right-aligned columns except the first, which is left-aligned.
/// Characters that would control a terminal are escaped.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let one_line = |row: &Vec<String>| row.iter().map(|it| Text(it).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(one_line).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|i| {
            rows.iter()
                .filter_map(|row| row.get(i))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<_> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, width))| {
                if i == 0 {
                    format!("{cell:<width$}")
                } else {
                    format!("{cell:>width$}")
                }
            })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_separated() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(n), text);
        }
        assert_eq!(thousands(u64::MAX), "18,446,744,073,709,551,615");
    }

    #[test]
    fn one_is_singular() {
        for (n, text) in [(0, "0 files"), (1, "1 file"), (1234, "1,234 files")] {
            assert_eq!(counted(n, "file"), text);
        }
    }

    #[test]
    fn rates_keep_three_digits() {
        for (rate, text) in [
            (0.0, "0 "),
            (999.0, "999 "),
            (1000.0, "1.00 k"),
            (19_530_000.0, "19.5 M"),
            (148_810_000.0, "149 M"),
            (999_960.0, "1.00 M"),
            (5.43e9, "5.43 G"),
        ] {
            assert_eq!(scaled(rate), text);
        }
    }

    #[test]
    fn bytes_in_binary_units() {
        for (n, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1500, "1.5 KiB"),
            (64 << 20, "64 MiB"),
            (3 << 29, "1.5 GiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn spans_have_their_unit() {
        let texts = [0, 999, 1500, 2_500_000, 61_000_000_000].map(span);
        assert_eq!(texts, ["0 ns", "999 ns", "1.5 us", "2.5 ms", "61.0 s"]);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [
            vec!["q".into(), "frames".into()],
            vec!["total".into(), "7".into()],
        ];
        assert_eq!(aligned(&rows), "q      frames\ntotal       7\n");
    }
}
