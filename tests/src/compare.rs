//! Comparing much: a failure tells the first difference, and not all there is.

use std::{
    collections::BTreeSet,
    fmt::{Debug, Display, Write},
    ops::Range,
};

/// Lines of an excerpt: the first ones, and the last ones.
const FIRST: usize = 8;
const LAST: usize = 24;
/// Characters of a line, or of an item, that are shown.
const WIDTH: usize = 400;

/// Asserts that two sequences are the same.
///
/// # Panics
/// When they are not, with the first item that differs.
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

/// Asserts that two pieces of bytes are the same: a frame, or a whole file.
///
/// # Panics
/// When they are not, with the bytes around the first that differs.
#[track_caller]
pub fn assert_bytes(what: impl Display, found: &[u8], wanted: &[u8]) {
    if let Some(difference) = difference(found, wanted) {
        panic!("{what}: {difference}");
    }
}

/// Asserts that two sequences of frames are the same, each frame having come once and in its order.
///
/// # Panics
/// When they are not, with the first that differs.
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

/// Asserts that exactly the numbers of `wanted` are there.
///
/// # Panics
/// When they are not, with the first that is missing and the first that is too many.
#[track_caller]
pub fn assert_numbers(found: &BTreeSet<u64>, wanted: Range<u64>) {
    let missing = wanted.clone().filter(|it| !found.contains(it));
    let others = found.iter().filter(|it| !wanted.contains(it));
    let (missing, others): (Vec<_>, Vec<_>) = (missing.collect(), others.collect());
    assert!(
        missing.is_empty() && others.is_empty(),
        "of {wanted:?} there are missing {}, the first {:?}; there are {} others, the first {:?}",
        missing.len(),
        missing.first(),
        others.len(),
        others.first()
    );
}

/// Where two pieces of bytes begin to differ.
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

/// Of a text what fits a screen: its first and its last lines, none of them long.
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

    /// What a comparison that fails says.
    fn said(compare: impl Fn() + std::panic::UnwindSafe) -> String {
        let panic = catch_unwind(compare).expect_err("it differs");
        *panic.downcast::<String>().expect("a text")
    }

    #[test]
    fn what_is_the_same_passes() {
        assert_same("texts", &["a", "b"], &["a", "b"]);
        assert_bytes("bytes", &[1, 2], &[1, 2]);
        assert_frames("frames", &[vec![1]], &[[1]]);
        assert_numbers(&(3..9).collect(), 3..9);
    }

    #[test]
    fn of_much_the_first_difference_is_told() {
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
    fn numbers_that_are_missing_or_too_many_are_told() {
        let mut found: BTreeSet<u64> = (0..100_000).collect();
        assert!(found.remove(&500) && found.insert(200_000));
        let said = said(|| assert_numbers(&found, 0..100_000));
        assert!(
            said.contains("500") && said.contains("200000") && said.len() < 300,
            "{said}"
        );
    }

    #[test]
    fn an_excerpt_fits_a_screen() {
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
