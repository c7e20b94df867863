//! Names of capture files of any program, and their order.

use std::{cmp::Ordering, path::Path};

/// Returns `true` if a path has a name as programs give it to capture files, such as `log.pcap.3`,
/// `TRACE.PCAP` or `a.cap.gz`.
#[must_use]
pub fn resembles_capture(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.to_ascii_lowercase();
    name.contains(".pcap") || name.split('.').skip(1).any(|part| part == "cap")
}

/// Compares paths of files by their components, in which numbers are compared by value: `a2` is
/// before `a10`.
#[must_use]
pub fn natural_order(a: &Path, b: &Path) -> Ordering {
    let (mut x, mut y) = (a.components(), b.components());
    loop {
        let order = match (x.next(), y.next()) {
            (Some(x), Some(y)) => {
                let [x, y] = [x, y].map(|it| it.as_os_str().as_encoded_bytes());
                natural_order_of_names(x, y)
            }
            // Equal numbers may have different digits.
            (None, None) => return a.cmp(b),
            (x, y) => x.is_some().cmp(&y.is_some()),
        };
        if order.is_ne() {
            return order;
        }
    }
}

/// Returns the number in a file name's first `len` bytes in a form that is ordered by value: the
/// count of its digits without leading zeros, and these digits.
fn number_in_name(name: &[u8], len: usize) -> (usize, &[u8]) {
    let zeros = name[..len].iter().take_while(|it| **it == b'0').count();
    (len - zeros, &name[zeros..len])
}

fn natural_order_of_names(mut a: &[u8], mut b: &[u8]) -> Ordering {
    loop {
        let digits = |name: &[u8]| name.iter().take_while(|it| it.is_ascii_digit()).count();
        let (n, m) = (digits(a), digits(b));
        let order = if n > 0 && m > 0 {
            let order = number_in_name(a, n).cmp(&number_in_name(b, m));
            (a, b) = (&a[n..], &b[m..]);
            order
        } else {
            let order = a.first().cmp(&b.first());
            if a.is_empty() || b.is_empty() {
                return order;
            }
            (a, b) = (&a[1..], &b[1..]);
            order
        };
        if order.is_ne() {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_ordered_by_value() {
        let names = [
            "0",
            "a",
            "a/b",
            "a.pcap",
            "a.pcap1",
            "a.pcap2",
            "a.pcap02",
            "a.pcap10",
            "a1b2",
            "a1b10",
            "a01b11",
            "a99999999999999999999999",
            "a100000000000000000000000",
            "b",
        ];
        let mut sorted: Vec<_> = names.iter().rev().map(Path::new).collect();
        sorted.sort_by(|a, b| natural_order(a, b));
        let sorted: Vec<_> = sorted.iter().map(|it| it.to_str().expect("text")).collect();
        let want = [
            "0",
            "a",
            "a/b",
            "a.pcap",
            "a.pcap1",
            "a.pcap02",
            "a.pcap2",
            "a.pcap10",
            "a1b2",
            "a1b10",
            "a01b11",
            "a99999999999999999999999",
            "a100000000000000000000000",
            "b",
        ];
        assert_eq!(sorted, want);
    }

    #[test]
    fn names_of_captures_of_any_program() {
        let is_capture = |name: &str| resembles_capture(Path::new(name));
        for name in [
            "a.pcap12",
            "/x/TRACE.PCAP",
            "log.pcap.1700000000",
            "a.cap",
            "a.CAP.gz",
            "a.pcapng.xz",
        ] {
            assert!(is_capture(name), "{name}");
        }
        for name in [
            "notes.txt",
            "/x.pcap/a",
            "pcap",
            "cap",
            "a.capacity",
            "a.parquet",
        ] {
            assert!(!is_capture(name), "{name}");
        }
    }
}
