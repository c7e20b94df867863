//! Origin of a pcapng file: the machine, the device and the run, as its header describes them.

use std::fs;

/// Interface of a capture file: description of a captured port.
#[derive(Clone, Debug, Default)]
pub struct PortDescription {
    /// Name of the port: its network interface, or its label.
    pub name: String,
    /// Description of the port for readers of the capture file.
    pub description: String,
    /// Description of the hardware of the port's device.
    pub device: String,
    /// Link speed of the port in bits per second; 0: unknown.
    pub speed: u64,
    /// `true` if the record of each frame of the port ends with the FCS.
    pub fcs: bool,
}

/// Origin of a capture file: description of the machine and the run.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Architecture and processor of the capturing machine.
    pub machine: String,
    /// Host name of the capturing machine.
    pub host: String,
    /// Operating system of the capturing machine and its release.
    pub os: String,
    /// Capture filter that applies at the file's beginning, a pcap-filter(7) expression; empty: all
    /// frames.
    pub filter: String,
    /// Comment on the run for readers of the capture file; empty: none.
    pub comment: String,
    /// Comment on the capture that the operator configured; empty: none.
    pub operator_comment: String,
}

impl Origin {
    /// Returns the origin of capture files with only the machine's fields set.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "a file of /proc or /etc")]
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let release = read("/proc/sys/kernel/osrelease");
        let cpus = read("/proc/cpuinfo");
        let model = cpus
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
            .map_or("", |(_, model)| model);
        Self {
            machine: format!("{} {model}", std::env::consts::ARCH).trim().into(),
            host: read("/proc/sys/kernel/hostname").trim().into(),
            os: format!("Linux {}", release.trim()).trim().into(),
            ..Self::default()
        }
    }
}
