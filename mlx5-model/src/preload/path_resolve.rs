//! What a path means to the model.
//!
//! Imports only the stage. Invariant: anything that hardware would not have put there is foreign,
//! and finding that out costs a comparison or two.

use std::ffi::{c_char, c_int};
use std::os::unix::ffi::OsStrExt;

use libc::AT_FDCWD;

use super::Stage;
use crate::process::real::raw;
use crate::sysfs::tree::PCI_DOMAIN;

pub const PATH_MAX: usize = libc::PATH_MAX as usize;

const CLASS: &[u8] = b"/sys/class/infiniband";
const NETDEVS: &[u8] = b"/sys/class/net/";
const PCI: &[u8] = b"/sys/bus/pci/devices/";
const DEVICES: &[u8] = b"/sys/devices/pci";
const DEBUG: &[u8] = b"/sys/kernel/debug/mlx5/";
const NODES: &[u8] = b"/dev/infiniband";

/// A path of the model's making, with its zero.
pub struct Text([u8; PATH_MAX]);

impl Text {
    /// Two parts in a row, if they fit.
    fn of(first: &[u8], second: &[u8]) -> Option<Box<Text>> {
        let length = first.len() + second.len();
        if length >= PATH_MAX {
            return None;
        }
        let mut text = Box::new(Text([0; PATH_MAX]));
        text.0[..first.len()].copy_from_slice(first);
        text.0[first.len()..length].copy_from_slice(second);
        Some(text)
    }

    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Where in the run directory a path leads.
pub enum Path {
    /// The program's own path leads there.
    Same,
    /// This one does.
    Other(Box<Text>),
}

/// What a path means.
pub enum Meaning {
    /// Not the model's.
    Foreign,
    /// A file or directory of the tree.
    Tree(Path),
    /// `/dev/infiniband/uverbs<N>`.
    Device(usize),
}

/// The rest of `path` below `prefix`, empty for `prefix` itself.
fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(prefix)
        .filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// What `/proc` says is open as `fd`.
pub fn path_of(fd: c_int, link: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    let name = if fd == AT_FDCWD {
        "/proc/self/cwd\0".to_owned()
    } else {
        format!("/proc/self/fd/{fd}\0")
    };
    // SAFETY: the name ends in a zero; the buffer is writable for its length.
    let length =
        unsafe { raw::readlink(name.as_ptr().cast(), link.as_mut_ptr().cast(), link.len()) };
    link.get(..usize::try_from(length).ok()?)
}

impl Stage {
    /// What `path`, relative to the directory `dir`, means.
    pub fn meaning(&self, dir: c_int, path: &[u8]) -> Meaning {
        if path.first() != Some(&b'/') {
            // A relative path leads into the tree by itself when a directory of it is open or the
            // current one. Only the nodes are not what they are in the tree.
            return match self.node(path) {
                Some(device) if self.holds_nodes(dir) => Meaning::Device(device),
                _ => Meaning::Foreign,
            };
        }
        let own = below(path, &self.dir);
        if let Some(rest) = below(own.unwrap_or(path), NODES) {
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            if let Some(device) = self.node(&rest[slashes..]) {
                return Meaning::Device(device);
            }
        }
        if own.is_some() {
            return Meaning::Tree(Path::Same);
        }
        if !self.shows(path) {
            return Meaning::Foreign;
        }
        // What is too long for a path either way, the C library may refuse itself.
        Text::of(&self.dir, path).map_or(Meaning::Foreign, |text| Meaning::Tree(Path::Other(text)))
    }

    /// Whether hardware would show itself at this absolute path.
    fn shows(&self, path: &[u8]) -> bool {
        if !path.starts_with(b"/sys/") {
            return below(path, NODES).is_some();
        }
        if let Some(rest) = path.strip_prefix(CLASS) {
            return matches!(rest.first(), None | Some(b'/' | b'_'));
        }
        if let Some(rest) = path.strip_prefix(NETDEVS) {
            return self
                .made_up
                .iter()
                .any(|(name, _)| below(rest, name.as_bytes()).is_some());
        }
        let rest = path
            .strip_prefix(PCI)
            .or_else(|| path.strip_prefix(DEVICES))
            .or_else(|| path.strip_prefix(DEBUG));
        rest.and_then(|rest| rest.strip_prefix(PCI_DOMAIN.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&b':'))
    }

    /// The device whose node has this name.
    fn node(&self, name: &[u8]) -> Option<usize> {
        let number = std::str::from_utf8(name.strip_prefix(b"uverbs")?).ok()?;
        number.parse().ok().filter(|device| *device < self.devices)
    }

    /// Whether a directory is the tree's `/dev/infiniband`.
    fn holds_nodes(&self, dir: c_int) -> bool {
        let mut link = [0; PATH_MAX];
        path_of(dir, &mut link).and_then(|path| below(path, &self.dir)) == Some(NODES)
    }

    /// The run directory.
    pub fn path(&self) -> &std::path::Path {
        std::path::Path::new(std::ffi::OsStr::from_bytes(&self.dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(path: &str) -> String {
        let stage = Stage {
            dir: b"/tmp/run".to_vec(),
            devices: 2,
            made_up: vec![(c"mlx5_0p1".into(), 7)],
        };
        match stage.meaning(AT_FDCWD, path.as_bytes()) {
            Meaning::Foreign => "foreign".into(),
            Meaning::Tree(Path::Same) => "same".into(),
            Meaning::Tree(Path::Other(text)) => {
                let end = text.0.iter().position(|byte| *byte == 0).expect("a zero");
                String::from_utf8_lossy(&text.0[..end]).into_owned()
            }
            Meaning::Device(device) => format!("uverbs{device}"),
        }
    }

    #[test]
    fn only_what_hardware_shows_is_led_elsewhere() {
        for foreign in [
            "/sys/class",
            "/sys/class/infinibandit",
            "/sys/class/net",
            "/sys/class/net/mlx5_0p10",
            "/sys/class/net/eth0/mtu",
            "/dev/infinibands",
            "/dev/null",
            "",
            "uverbs0",
            "state",
            "/tmp/runner/x",
            "/sys/bus/pci/devices/0000:00:01.0",
            "/sys/devices/pci0000:00",
            "/sys/kernel/debug/mlx5",
            "/sys/kernel/debug/mlx5/0000:01:00.0",
        ] {
            assert_eq!(meaning(foreign), "foreign", "{foreign}");
        }
        for led in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/class/net/mlx5_0p1",
            "/sys/class/net/mlx5_0p1/mtu",
            "/dev/infiniband",
            "/dev/infiniband/uverbs2",
            "/dev/infiniband/rdma_cm",
            "/sys/bus/pci/devices/15b3:01:00.0/numa_node",
            "/sys/devices/pci15b3:00",
            "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop/timeout",
        ] {
            assert_eq!(meaning(led), format!("/tmp/run{led}"));
        }
        assert_eq!(meaning("/tmp/run/sys/class"), "same");
        assert_eq!(meaning("/dev/infiniband/uverbs1"), "uverbs1");
        assert_eq!(meaning("/dev/infiniband//uverbs0"), "uverbs0");
        assert_eq!(meaning("/tmp/run/dev/infiniband/uverbs1"), "uverbs1");
    }

    #[test]
    fn too_long_is_left_to_the_c_library() {
        assert_eq!(
            meaning(&format!("/sys/class/infiniband/{}", "x".repeat(PATH_MAX))),
            "foreign"
        );
    }
}
