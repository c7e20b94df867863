//! Names of capture files: `wqcap-q<QQ>-<start ns>.pcapng`, followed by `.zst` or `.lz4` if
//! compressed.
//!
//! May import: nothing of this crate. [`NameTemplate`] makes these names by default. This is the
//! only module that recognises names: code that deletes, finishes or merges files must not take a
//! foreign file for a capture file.

mod template;

pub use template::{NameTemplate, TemplateError};
pub use wqcap_pcap::name::{natural_order, resembles_capture};

use std::{fmt, path::Path};

/// Suffix of the names of sealed (encrypted) files: see [`crate::sealed`].
pub const SEALED: &str = ".enc";
/// Suffix of a capture file's name while the file is open for writing.
pub const PART: &str = ".part";
/// Text in a capture file's name that replaces the queue number if the file holds all queues.
const ALL: &str = "all";

/// Parsed name of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileName<'a> {
    /// Queue whose frames the capture file holds; `None`: the frames of all queues, in time order.
    pub queue: Option<u16>,
    /// Timestamp of the capture file's first record, or slightly later, in nanoseconds since 1970.
    pub start_ns: u64,
    /// Extension of the capture file's name: `pcap`, `pcapng`, `pcap.zst` and so on.
    pub ending: &'a str,
    /// `true` if the file is sealed (encrypted): its name ends in [`SEALED`].
    pub sealed: bool,
}

/// Returns `true` if a file is sealed (encrypted), by its name, which ends in [`SEALED`].
#[must_use]
pub fn is_sealed(path: &Path) -> bool {
    let name = path.as_os_str().as_encoded_bytes();
    name.ends_with(SEALED.as_bytes())
}

/// Returns a file name without the suffix [`SEALED`] of encrypted files.
#[must_use]
pub fn unsealed(name: &str) -> &str {
    name.strip_suffix(SEALED).unwrap_or(name)
}

impl<'a> FileName<'a> {
    /// Extensions of finished capture files, compressed or not.
    pub const ENDINGS: [&'static str; 6] = [
        "pcap",
        "pcapng",
        "pcap.zst",
        "pcapng.zst",
        "pcap.lz4",
        "pcapng.lz4",
    ];

    /// Returns `true` if a path has an extension of finished capture files, by any naming scheme.
    #[must_use]
    pub fn has_capture_ending(path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.map(unsealed);
        let ends_with = |ending: &&str| {
            name.and_then(|name| name.strip_suffix(ending))
                .is_some_and(|stem| stem.ends_with('.'))
        };
        Self::ENDINGS.iter().any(ends_with)
    }

    /// Parses the name of a finished capture file. Returns `None` if the name does not have the
    /// default form.
    #[must_use]
    pub fn parse(path: &'a Path) -> Option<Self> {
        let whole = path.file_name()?.to_str()?;
        let name = unsealed(whole);
        let (queue, rest) = name.strip_prefix("wqcap-")?.split_once('-')?;
        let (start, ending) = rest.split_once('.')?;
        let queue = match queue.strip_prefix('q') {
            Some(digits) if digits.len() >= 2 => Some(number(digits)?),
            None if queue == ALL => None,
            _ => return None,
        };
        let it = Self {
            queue,
            start_ns: number(start)?,
            ending,
            sealed: whole.len() > name.len(),
        };
        Self::ENDINGS.contains(&ending).then_some(it)
    }
}

/// Parses a number in a file name that consists of digits only, without sign and space; `None`: it
/// is none.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

impl fmt::Display for FileName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.queue {
            Some(queue) => write!(f, "wqcap-q{queue:02}-")?,
            None => write!(f, "wqcap-{ALL}-")?,
        }
        write!(f, "{}.{}", self.start_ns, self.ending)?;
        f.write_str(if self.sealed { SEALED } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_names_are_parsed_back() {
        for queue in [None, Some(0), Some(7), Some(1234)] {
            for (ending, sealed) in FileName::ENDINGS
                .map(|it| [(it, false), (it, true)])
                .concat()
            {
                let name = FileName {
                    queue,
                    start_ns: 1_795_233_110_453_271_320,
                    ending,
                    sealed,
                };
                let text = format!("/x/{name}");
                assert_eq!(FileName::parse(Path::new(&text)), Some(name), "{text}");
                assert!(FileName::has_capture_ending(Path::new(&text)), "{text}");
            }
        }
        let shown = |queue| {
            FileName {
                queue,
                start_ns: 5,
                ending: "pcap",
                sealed: false,
            }
            .to_string()
        };
        assert_eq!(shown(Some(3)), "wqcap-q03-5.pcap");
        assert_eq!(shown(None), "wqcap-all-5.pcap");
    }

    #[test]
    fn foreign_names_are_not_parsed() {
        for name in [
            "eth0.pcap",
            "wqcap-q1.pcap",
            "wqcap-qx-1.pcap",
            "wqcap-q1-1",
            "wqcap-q03-5.pcap.part",
            "wqcap-q03-5.pcap.enc.enc",
            "wqcap-q03-5.enc",
            "wqcap-q03-5.pcap.gz",
            "wqcap-q03-5",
            "wqcap-q3-5.pcap",
            "wqcap-q-5.pcap",
            "wqcap-q03-.pcap",
            "wqcap-q03-+5.pcap",
            "wqcap-q99999-5.pcap",
            "wqcap-q03-5-mine.pcap",
            "wqcap-any-5.pcap",
            "copy-of-wqcap-q03-5.pcap",
            "",
        ] {
            assert_eq!(FileName::parse(Path::new(name)), None, "{name}");
        }
    }
}
