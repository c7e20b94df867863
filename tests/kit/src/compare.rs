//! Comparison of long sequences: a failure prints the first difference only.

use std::{
    collections::BTreeSet,
    fmt::{Debug, Display, Write},
    ops::Range,
};

/// Number of lines that an excerpt keeps from the beginning of a text.
const FIRST: usize = 8;
/// Number of lines that an excerpt keeps from the end of a text.
const LAST: usize = 24;
/// Maximum number of characters printed of a line or an item.
const WIDTH: usize = 400;

/// Asserts that two sequences are equal.
///
/// # Panics
/// Panics if they differ, with the first item that differs.
#[track_caller]
pub fn assert_same<T: PartialEq + Debug>(what: impl Display, found: &[T], wanted: &[T]) {
    let differs = |at: &usize| found.get(*at) != wanted.get(*at);
    let Some(at) = (0..found.len().max(wanted.len())).find(differs) else {
        return;
    };
    let shown = |item: Option<&T>| item.map_or("nothing".into(), |it| cut(&format!("{it:?}")));
    panic!(
        "{what}: item {at} differs\n found ({} items): {}\nwanted ({} items): {}",
        found.len(),
        shown(found.get(at)),
        wanted.len(),
        shown(wanted.get(at)),
    );
}

/// Asserts that two byte strings are equal, such as frames or whole files.
///
/// # Panics
/// Panics if they differ, with the bytes around the first difference.
#[track_caller]
pub fn assert_bytes(what: impl Display, found: &[u8], wanted: &[u8]) {
    if let Some(difference) = difference(found, wanted) {
        panic!("{what}: {difference}");
    }
}

/// Asserts that two sequences of frames are equal: the same frames, each once, in the same order.
///
/// # Panics
/// Panics if they differ, with the first frame that differs.
#[track_caller]
pub fn assert_frames<F: AsRef<[u8]>, W: AsRef<[u8]>>(
    what: impl Display,
    found: &[F],
    wanted: &[W],
) {
    for (at, (one, other)) in found.iter().zip(wanted).enumerate() {
        if let Some(difference) = difference(one.as_ref(), other.as_ref()) {
            panic!("{what}: frame {at}: {difference}");
        }
    }
    let (found, wanted) = (found.len(), wanted.len());
    assert!(found == wanted, "{what}: {found} frames, not {wanted}");
}

/// Asserts that `found` contains exactly the numbers of `wanted`.
///
/// # Panics
/// Panics if not, with the first missing number and the first unexpected number.
#[track_caller]
pub fn assert_numbers(found: &BTreeSet<u64>, wanted: Range<u64>) {
    let missing = wanted.clone().filter(|it| !found.contains(it));
    let others = found.iter().filter(|it| !wanted.contains(it));
    let (missing, others): (Vec<_>, Vec<_>) = (missing.collect(), others.collect());
    assert!(
        missing.is_empty() && others.is_empty(),
        "{} numbers of {wanted:?} are missing, the first {:?}; {} are unexpected, the first {:?}",
        missing.len(),
        missing.first(),
        others.len(),
        others.first()
    );
}

/// Describes the first difference of two byte strings; `None` if they are equal.
fn difference(found: &[u8], wanted: &[u8]) -> Option<String> {
    let (longest, shortest) = (found.len().max(wanted.len()), found.len().min(wanted.len()));
    let at = (0..longest).find(|at| *at >= shortest || found[*at] != wanted[*at])?;
    let around = |bytes: &[u8]| {
        let start = at.saturating_sub(8).min(bytes.len());
        let end = (at + 24).min(bytes.len());
        format!(
            "{:02x?} from {start}, of {} bytes",
            &bytes[start..end],
            bytes.len()
        )
    };
    Some(format!(
        "byte {at} differs\n found {}\nwanted {}",
        around(found),
        around(wanted)
    ))
}

/// Returns the first and last lines of a text, each cut to 400 characters, so that the text fits on
/// one screen.
#[must_use]
pub fn excerpt(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    let left_out = lines.len().saturating_sub(FIRST + LAST);
    let mut shown = String::new();
    for (at, line) in lines.iter().enumerate() {
        if at == FIRST && left_out > 0 {
            let _ = writeln!(shown, "[{left_out} lines]");
        }
        if at < FIRST || at >= FIRST + left_out {
            let _ = writeln!(shown, "{}", cut(line));
        }
    }
    shown
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(WIDTH) {
        None => text.to_owned(),
        Some((end, _)) => format!("{} [{} bytes more]", &text[..end], text.len() - end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    /// Returns the panic message of a comparison that fails.
    fn said(compare: impl Fn() + std::panic::UnwindSafe) -> String {
        let panic = catch_unwind(compare).expect_err("it differs");
        *panic.downcast::<String>().expect("a text")
    }

    #[test]
    fn equal_sequences_pass() {
        assert_same("texts", &["a", "b"], &["a", "b"]);
        assert_bytes("bytes", &[1, 2], &[1, 2]);
        assert_frames("frames", &[vec![1]], &[[1]]);
        assert_numbers(&(3..9).collect(), 3..9);
    }

    #[test]
    fn the_first_difference_of_long_sequences_is_printed() {
        let (mut one, other) = (vec![7_u8; 1 << 20], vec![7_u8; 1 << 20]);
        one[70_000] = 9;
        for said in [
            said(|| assert_bytes("file", &one, &other)),
            said(|| assert_same("file", &one, &other)),
            said(|| assert_frames("file", &[&other, &one], &[&other, &other])),
        ] {
            assert!(said.contains("70000") && said.len() < 500, "{said}");
        }
        let said = said(|| assert_same("texts", &["a"; 9], &["a"; 8]));
        assert!(
            said.contains("item 8") && said.contains("nothing"),
            "{said}"
        );
    }

    #[test]
    fn missing_and_unexpected_numbers_are_printed() {
        let mut found: BTreeSet<u64> = (0..100_000).collect();
        assert!(found.remove(&500) && found.insert(200_000));
        let said = said(|| assert_numbers(&found, 0..100_000));
        assert!(
            said.contains("500") && said.contains("200000") && said.len() < 300,
            "{said}"
        );
    }

    #[test]
    fn an_excerpt_fits_on_a_screen() {
        let text: String = (0..1000)
            .map(|i| format!("{i} {}\n", "x".repeat(1000)))
            .collect();
        let shown = excerpt(&text);
        assert_eq!(shown.lines().count(), FIRST + LAST + 1);
        assert!(shown.starts_with("0 x") && shown.contains("\n999 x"));
        assert!(shown.lines().all(|line| line.len() < WIDTH + 30));
        assert_eq!(excerpt("short\n"), "short\n");
    }
}
