//! The calling thread's Linux capabilities.
//!
//! Imports nothing of the model. Invariant: read at each command, since programs give capabilities up.

#![allow(unsafe_code)]

/// `CAP_NET_ADMIN`: what is set of an interface.
pub const NET_ADMIN: u32 = 12;
/// `CAP_NET_RAW`: RAW_PACKET QPs and flow rules.
pub const NET_RAW: u32 = 13;
/// `CAP_SYS_RAWIO`: delay drop.
pub const SYS_RAWIO: u32 = 17;

/// `_LINUX_CAPABILITY_VERSION_3`.
const VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Whether the capability is in the calling thread's effective set.
pub fn has(capability: u32) -> bool {
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut data = [Data::default(); 2];
    // SAFETY: version 3 writes two data structs, which is what there is room for.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
    let word = data
        .get((capability / 32) as usize)
        .copied()
        .unwrap_or_default();
    result == 0 && word.effective & 1 << (capability % 32) != 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn agrees_with_proc() {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("CapEff:"))
            .unwrap();
        let effective = u64::from_str_radix(line.trim(), 16).unwrap();
        for capability in 0..40 {
            assert_eq!(
                super::has(capability),
                effective >> capability & 1 != 0,
                "{capability}"
            );
        }
    }
}
