//! Parser of `capture.cores`: CPU numbers, `[0, 1, 8]`, or the kernel's list format, `"0-3,8"`.

use serde::{Deserializer, de};
use std::fmt;

/// Highest CPU number that `capture.cores` accepts: higher than any kernel supports.
const MOST: usize = 1 << 16;

/// Deserializes `capture.cores`. The key is serialized as numbers.
pub(super) fn read<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Vec<usize>>, D::Error> {
    source.deserialize_any(Cores).map(Some)
}

struct Cores;

impl<'de> de::Visitor<'de> for Cores {
    type Value = Vec<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CPU numbers such as [0, 1, 8], or a list such as \"0-3,8\"")
    }

    fn visit_i64<E: de::Error>(self, n: i64) -> Result<Vec<usize>, E> {
        let cpu =
            usize::try_from(n).map_err(|_| E::invalid_value(de::Unexpected::Signed(n), &self));
        cpu.map(|cpu| vec![cpu])
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<usize>, A::Error> {
        let mut cores = Vec::new();
        while let Some(cpu) = numbers.next_element()? {
            cores.push(cpu);
        }
        Ok(cores)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<usize>, E> {
        list(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

/// Parses a CPU list such as `0-3,8`; returns `None` if the text is malformed.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let [first, last] = [first, last].map(|it| it.trim().parse::<usize>().ok());
        let (first, last) = (first?, last?);
        if last < first || last > MOST {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::super::{CaptureConfig, Config};

    fn cores(text: &str) -> Result<Option<Vec<usize>>, String> {
        let section = toml::from_str::<CaptureConfig>(&format!("cores = {text}"));
        section.map(|it| it.cores).map_err(|e| e.to_string())
    }

    #[test]
    fn numbers_and_lists_are_the_same() {
        for (text, want) in [
            ("[2, 3]", vec![2, 3]),
            ("\"0-3,8\"", vec![0, 1, 2, 3, 8]),
            ("\"7, 1-2\"", vec![7, 1, 2]),
            ("5", vec![5]),
            ("\"5\"", vec![5]),
        ] {
            assert_eq!(cores(text), Ok(Some(want)), "{text}");
        }
        assert_eq!(toml::from_str::<CaptureConfig>("").unwrap().cores, None);
        let config = Config::with_overrides("", &[("capture.cores", "0-1")]).unwrap();
        assert_eq!(config.capture.cores, Some(vec![0, 1]));
        assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    }

    #[test]
    fn malformed_lists_are_refused_with_an_example() {
        for text in [
            "\"\"",
            "\"3-1\"",
            "\"a\"",
            "\"1-\"",
            "\"0-99999999\"",
            "-1",
            "true",
        ] {
            let problem = cores(text).expect_err(text);
            assert!(problem.contains("0-3,8"), "{text}: {problem}");
        }
    }
}
