//! What a pcapng file tells of where it comes from.

use std::fs;

/// The machine, the device and the run.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The machine's hardware: architecture and processor.
    pub machine: String,
    /// The machine's name.
    pub host: String,
    /// The operating system and its release.
    pub os: String,
    /// The capture port in words.
    pub description: String,
    /// The device's hardware in words.
    pub device: String,
    /// The link's bits a second; 0: unknown.
    pub speed: u64,
    /// Which frames the file holds at its beginning, a pcap-filter(7) expression; empty: all.
    pub filter: String,
    /// What a reader should know of the run; empty: nothing.
    pub comment: String,
    /// What the operator says of it; empty: nothing.
    pub operator_comment: String,
}

impl Origin {
    /// Of this machine, and no more.
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
