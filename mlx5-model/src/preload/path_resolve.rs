//! Decision which paths belong to the overlay, and the paths that replace them.
//!
//! Imports `overlay`. Invariant: a path that hardware would not have created is foreign. Checking
//! for that costs one or two comparisons.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use libc::AT_FDCWD;

use crate::process::real::raw;
use crate::sysfs::address::PCI_DOMAIN;

use super::overlay::Overlay;

pub const PATH_MAX: usize = libc::PATH_MAX as usize;

const CLASS: &[u8] = b"/sys/class/infiniband";
const NETDEVS: &[u8] = b"/sys/class/net/";
const PCI: &[u8] = b"/sys/bus/pci/devices";
const DEVICES: &[u8] = b"/sys/devices/pci";
const DEBUG: &[u8] = b"/sys/kernel/debug/mlx5/";
const NODES: &[u8] = b"/dev/infiniband";

/// Path of a file in the run directory, as a C string with its terminating zero.
pub struct PathBuffer([u8; PATH_MAX]);

impl PathBuffer {
    /// Concatenates two parts of a path; returns `None` if the path is too long.
    fn join(first: &[u8], second: &[u8]) -> Option<Box<Self>> {
        let length = first.len() + second.len();
        if length >= PATH_MAX {
            return None;
        }
        let mut path = Box::new(Self([0; PATH_MAX]));
        path.0[..first.len()].copy_from_slice(first);
        path.0[first.len()..length].copy_from_slice(second);
        Some(path)
    }

    pub fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}

/// Result of resolving a path that the program passes to a system call.
pub enum Resolved {
    /// The program's path does not belong to the model.
    Foreign,
    /// The program's path is that of a file or directory in the run directory and is used
    /// unchanged.
    InPlace,
    /// The program's path is replaced by this path of a file or directory in the run directory.
    Redirected(Box<PathBuffer>),
    /// The program's path is that of the device node `/dev/infiniband/uverbs<N>`.
    Device(usize),
}

/// Returns the rest of `path` behind the directory `prefix`; empty for `prefix` itself, `None` for
/// a path outside it.
fn below<'a>(path: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    path.strip_prefix(prefix)
        .filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// Reads the path that `/proc` shows for the descriptor `fd` into `link`. Returns `None` if there
/// is no path.
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

impl Overlay {
    /// Resolves a path of the program, relative to the directory of the descriptor `dir`, to the
    /// file that the model shows there.
    pub fn resolve(&self, dir: c_int, path: &[u8]) -> Resolved {
        if path.first() != Some(&b'/') {
            // A relative path leads into the run directory without a redirection if the base
            // directory is in it. Only the device nodes differ from the files there.
            return match self.node(path) {
                Some(device) if self.holds_nodes(dir) => Resolved::Device(device),
                _ => Resolved::Foreign,
            };
        }
        let own = below(path, &self.dir);
        if let Some(rest) = below(own.unwrap_or(path), NODES) {
            let slashes = rest.iter().take_while(|byte| **byte == b'/').count();
            if let Some(device) = self.node(&rest[slashes..]) {
                return Resolved::Device(device);
            }
        }
        if own.is_some() {
            return Resolved::InPlace;
        }
        if !self.covers(path) {
            return Resolved::Foreign;
        }
        // The C library refuses a path that is too long.
        PathBuffer::join(&self.dir, path).map_or(Resolved::Foreign, Resolved::Redirected)
    }

    /// Returns `true` if the model's files replace the machine's at this absolute path, where real
    /// hardware would have files.
    fn covers(&self, path: &[u8]) -> bool {
        if !path.starts_with(b"/sys/") {
            return below(path, NODES).is_some();
        }
        if let Some(rest) = path.strip_prefix(CLASS) {
            return matches!(rest.first(), None | Some(b'/' | b'_'));
        }
        if let Some(rest) = path.strip_prefix(NETDEVS) {
            let mut netdevs = self.virtual_netdevs.iter();
            return netdevs.any(|(name, _)| below(rest, name.as_bytes()).is_some());
        }
        let on_bus = below(path, PCI).map(|rest| rest.strip_prefix(b"/").unwrap_or(rest));
        if on_bus.is_some_and(<[u8]>::is_empty) {
            // The listing also contains the machine's own devices.
            return true;
        }
        let rest = on_bus
            .or_else(|| path.strip_prefix(DEVICES))
            .or_else(|| path.strip_prefix(DEBUG));
        rest.and_then(|rest| rest.strip_prefix(PCI_DOMAIN.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&b':'))
    }

    /// Returns the number of the modelled device whose node in `/dev/infiniband` has this name.
    fn node(&self, name: &[u8]) -> Option<usize> {
        let number = std::str::from_utf8(name.strip_prefix(b"uverbs")?).ok()?;
        number.parse().ok().filter(|device| *device < self.devices)
    }

    /// Returns `true` if the descriptor `dir` is open on the run directory's `/dev/infiniband`.
    fn holds_nodes(&self, dir: c_int) -> bool {
        let mut link = [0; PATH_MAX];
        path_of(dir, &mut link).and_then(|path| below(path, &self.dir)) == Some(NODES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(path: &str) -> String {
        let overlay = Overlay {
            dir: b"/tmp/run".to_vec(),
            devices: 2,
            virtual_netdevs: vec![(c"mlx5_0p1".into(), 7)],
        };
        match overlay.resolve(AT_FDCWD, path.as_bytes()) {
            Resolved::Foreign => "foreign".into(),
            Resolved::InPlace => "in place".into(),
            Resolved::Redirected(path) => {
                let end = path
                    .0
                    .iter()
                    .position(|byte| *byte == 0)
                    .expect("a terminating zero");
                String::from_utf8_lossy(&path.0[..end]).into_owned()
            }
            Resolved::Device(device) => format!("uverbs{device}"),
        }
    }

    #[test]
    fn only_paths_that_hardware_has_are_redirected() {
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
            "/sys/bus/pci/drivers",
            "/sys/bus/pci/devices/0000:00:01.0",
            "/sys/devices/pci0000:00",
            "/sys/kernel/debug/mlx5",
            "/sys/kernel/debug/mlx5/0000:01:00.0",
        ] {
            assert_eq!(resolved(foreign), "foreign", "{foreign}");
        }
        for redirected in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband_verbs/uverbs0",
            "/sys/class/net/mlx5_0p1",
            "/sys/class/net/mlx5_0p1/mtu",
            "/dev/infiniband",
            "/dev/infiniband/uverbs2",
            "/dev/infiniband/rdma_cm",
            "/sys/bus/pci/devices",
            "/sys/bus/pci/devices/",
            "/sys/bus/pci/devices/15b3:01:00.0/numa_node",
            "/sys/devices/pci15b3:00",
            "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop/timeout",
        ] {
            assert_eq!(resolved(redirected), format!("/tmp/run{redirected}"));
        }
        assert_eq!(resolved("/tmp/run/sys/class"), "in place");
        assert_eq!(resolved("/dev/infiniband/uverbs1"), "uverbs1");
        assert_eq!(resolved("/dev/infiniband//uverbs0"), "uverbs0");
        assert_eq!(resolved("/tmp/run/dev/infiniband/uverbs1"), "uverbs1");
    }

    #[test]
    fn too_long_paths_are_left_to_the_c_library() {
        assert_eq!(
            resolved(&format!("/sys/class/infiniband/{}", "x".repeat(PATH_MAX))),
            "foreign"
        );
    }
}
