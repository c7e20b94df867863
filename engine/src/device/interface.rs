//! Statistics of a network interface (`ethtool -S`), and settings that a test changes and restores:
//! the up state, and features of `ethtool -K`.
//!
//! May import: nothing beyond this folder.

#![allow(unsafe_code)]

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    net::UdpSocket,
    os::{fd::AsRawFd, unix::ffi::OsStrExt},
};

/// Length of the names in an ethtool string set, in bytes (`ETH_GSTRING_LEN` in linux/ethtool.h).
const NAME: usize = 32;
/// Identifier of the ethtool string set of statistics (`ETH_SS_STATS`).
const SS_STATS: u32 = 1;
/// Identifier of the ethtool string set of features (`ETH_SS_FEATURES` in linux/ethtool.h).
const SS_FEATURES: u32 = 4;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSTATS: u32 = 0x1d;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const SIOCETHTOOL: libc::c_ulong = 0x8946;
/// Number of 32-bit words of `struct ethtool_get_features_block`.
const GET_BLOCK: usize = 4;
/// Number of 32-bit words of `struct ethtool_set_features_block`.
const SET_BLOCK: usize = 2;

/// Network interface whose settings can be read and changed.
pub struct NetInterface {
    /// Name of the network interface.
    name: String,
    /// Socket for ioctl(2) requests about the network interface.
    socket: UdpSocket,
}

/// State of a network interface's feature, as `ethtool -k` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Feature {
    /// `true` if the network interface's feature is active.
    pub on: bool,
    /// `true` if the network interface's feature can be changed.
    pub changeable: bool,
}

/// Returns `true` if the kernel has a network interface named `netdev`.
///
/// A software NIC on a replayed wire makes up an interface with an index and a directory in sysfs,
/// which the kernel does not have.
#[must_use]
pub fn exists_in_kernel(netdev: &str) -> bool {
    kernel_names().iter().any(|it| it == netdev)
}

/// Returns the names of the network interfaces of this network namespace, in order. The kernel
/// accepts names that are not UTF-8 (`dev_valid_name` of net/core/dev.c).
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a file of /proc")]
pub fn kernel_names() -> Vec<OsString> {
    let table = fs::read("/proc/net/dev").unwrap_or_default();
    let lines = table.split(|byte| *byte == b'\n');
    let names = lines.filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some(OsStr::from_bytes(line[..colon].trim_ascii()).to_owned())
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    names
}

impl NetInterface {
    /// Opens a socket for requests about the network interface `name`.
    ///
    /// # Errors
    /// No socket can be created.
    pub fn open(name: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").or_else(|_| UdpSocket::bind("[::1]:0"))?;
        let name = name.to_owned();
        Ok(Self { name, socket })
    }

    /// Returns `true` if the network interface is administratively up.
    ///
    /// # Errors
    /// The interface does not exist.
    pub fn is_up(&self) -> io::Result<bool> {
        Ok(self.flags()? & libc::IFF_UP != 0)
    }

    /// Brings the network interface up or down.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let flags = self.flags()? & !libc::IFF_UP;
        let mut request = self.request()?;
        let flags = if up { flags | libc::IFF_UP } else { flags };
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        self.ioctl(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Reads the flags of the network interface (`SIOCGIFFLAGS`).
    fn flags(&self) -> io::Result<libc::c_int> {
        let mut request = self.request()?;
        self.ioctl(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: this request has set that member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_flags }.into())
    }

    /// Returns the state of a network interface's feature by `ethtool`'s name, or `None` if the
    /// interface does not have it.
    ///
    /// # Errors
    /// The interface has no features.
    pub fn feature(&self, name: &str) -> io::Result<Option<Feature>> {
        let (words, at) = self.feature_bit(name)?;
        let Some(at) = at else { return Ok(None) };
        let mut get = vec![0; 2 + words * GET_BLOCK];
        (get[0], get[1]) = (ETHTOOL_GFEATURES, u32::try_from(words).unwrap_or(0));
        self.ethtool(&mut get)?;
        let [available, _, active, never] =
            [0, 1, 2, 3].map(|word| get[2 + at / 32 * GET_BLOCK + word] >> (at % 32) & 1 == 1);
        Ok(Some(Feature {
            on: active,
            changeable: available && !never,
        }))
    }

    /// Switches a feature of the network interface on or off.
    ///
    /// # Errors
    /// EPERM without CAP_NET_ADMIN; EOPNOTSUPP if the interface does not have the feature.
    pub fn set_feature(&self, name: &str, on: bool) -> io::Result<()> {
        let (words, at) = self.feature_bit(name)?;
        let at = at.ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
        let mut set = vec![0; 2 + words * SET_BLOCK];
        (set[0], set[1]) = (ETHTOOL_SFEATURES, u32::try_from(words).unwrap_or(0));
        let block = 2 + at / 32 * SET_BLOCK;
        set[block] = 1 << (at % 32);
        set[block + 1] = u32::from(on) << (at % 32);
        self.ethtool(&mut set)
    }

    /// Reads the ethtool statistics of the network interface, by name.
    ///
    /// # Errors
    /// The interface has no statistics.
    pub fn statistics(&self) -> io::Result<BTreeMap<String, u64>> {
        let names = self.names(SS_STATS)?;
        // struct ethtool_stats: cmd, n_stats, then a u64 for each.
        let mut values = vec![0u32; 2 + names.len() * 2];
        (values[0], values[1]) = (ETHTOOL_GSTATS, u32::try_from(names.len()).unwrap_or(0));
        self.ethtool(&mut values)?;
        let value = |w: &[u32]| {
            let [a, b, c, d] = w[0].to_ne_bytes();
            let [e, f, g, h] = w[1].to_ne_bytes();
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        };
        let values = values[2..].chunks_exact(2).map(value);
        Ok(names.into_iter().zip(values).collect())
    }

    /// Reads the names in one ethtool string set of the network interface.
    fn names(&self, set: u32) -> io::Result<Vec<String>> {
        // struct ethtool_sset_info: cmd, reserved, sset_mask (u64), then a u32 for each requested
        // set.
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << set, 0, 0, 0];
        self.ethtool(&mut info)?;
        let count = if info[2] == 0 { 0 } else { info[4] as usize };
        // struct ethtool_gstrings: cmd, string_set, len, then the names.
        let mut names = vec![0u32; 3 + count * NAME / 4];
        (names[0], names[1], names[2]) = (ETHTOOL_GSTRINGS, set, u32::try_from(count).unwrap_or(0));
        self.ethtool(&mut names)?;
        let text: Vec<u8> = names[3..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        let name = |bytes: &[u8]| {
            String::from_utf8_lossy(bytes.split(|b| *b == 0).next().unwrap_or(bytes)).into_owned()
        };
        Ok(text.chunks_exact(NAME).map(name).collect())
    }

    /// Executes an ethtool command on the network interface. `words` is the command's structure,
    /// which the kernel reads and writes; the counts in it fit its length.
    fn ethtool(&self, words: &mut [u32]) -> io::Result<()> {
        let mut request = self.request()?;
        request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
        self.ioctl(SIOCETHTOOL, &mut request)
    }

    /// Returns the number of 32-bit words that hold a bit for each interface feature, and the bit
    /// of the feature `name` if it exists.
    fn feature_bit(&self, name: &str) -> io::Result<(usize, Option<usize>)> {
        let names = self.names(SS_FEATURES)?;
        let at = names.iter().position(|it| it == name);
        Ok((names.len().div_ceil(32), at))
    }

    /// Returns an `ifreq` (ioctl request) with the network interface's name.
    fn request(&self) -> io::Result<libc::ifreq> {
        // SAFETY: a zeroed ifreq is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if self.name.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(self.name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        Ok(request)
    }

    /// Executes an ioctl(2) request about the network interface on its socket.
    fn ioctl(&self, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: a live socket, and a request that takes a `struct ifreq`, which outlives the call, as does what it
        // points to.
        let done =
            unsafe { libc::ioctl(self.socket.as_raw_fd(), what, std::ptr::from_mut(request)) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_reports_its_state_and_features() {
        let lo = NetInterface::open("lo").expect("a socket");
        assert!(exists_in_kernel("lo") && !exists_in_kernel("nosuch0"));
        assert!(lo.is_up().is_ok());
        assert_eq!(lo.feature("no-such-feature").expect("query feature"), None);
        let scatter = lo.feature("tx-scatter-gather").expect("query feature");
        assert!(scatter.is_some_and(|it| it.on), "{scatter:?}");
        let none = NetInterface::open("nosuch0").expect("a socket");
        let refused = none.is_up().expect_err("no such interface");
        assert_eq!(refused.raw_os_error(), Some(libc::ENODEV));
    }
}
