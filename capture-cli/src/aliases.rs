//! Options of tcpdump and dumpcap, translated to configuration keys and limits of the run.
//!
//! Invariant: an alias only sets keys and limits that have their own names, and `wqcap check`
//! prints them. `--set` overrides an alias that sets the same key.

use crate::{
    args::{AliasArgs, ConfigArgs, LimitArgs, Setting},
    config::read_text,
    failure::Failure,
};
use serde::Serialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use wqcap_engine::{
    config::{Config, Size},
    device::{self, DeviceFacts, kernel},
    files::name::FileName,
};

/// Option of tcpdump or dumpcap, with the configuration key or limit that it sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alias {
    /// Option of tcpdump or dumpcap as typed.
    pub option: String,
    /// Configuration key or limit that the option sets: `capture.snaplen = 96`, or `--count 1000`.
    pub sets: String,
}

/// Command line whose tcpdump and dumpcap options are translated to configuration keys and limits.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// Arguments for the configuration, including the keys that tcpdump and dumpcap options set.
    pub config: ConfigArgs,
    /// Limits of the capture run, including those that tcpdump and dumpcap options set.
    pub limits: LimitArgs,
    /// Each tcpdump or dumpcap option of the command line, with the key or limit that it sets.
    pub aliases: Vec<Alias>,
    /// Notes for the user about unexpected effects of tcpdump and dumpcap options.
    pub notes: Vec<String>,
    /// Names of RDMA devices or network interfaces that the options `-i` give.
    interfaces: Vec<String>,
    /// Path of the filter file that the option `-F` names.
    filter_file: Option<PathBuf>,
}

/// Translates the tcpdump and dumpcap options of the command line, except those that depend on the
/// devices of this machine.
pub fn settle(
    args: &AliasArgs,
    config: &ConfigArgs,
    limits: &LimitArgs,
) -> Result<Settled, Failure> {
    let mut it = Settled {
        config: config.clone(),
        limits: limits.clone(),
        interfaces: args.interface.clone(),
        filter_file: args.filter_file.clone(),
        ..Settled::default()
    };
    let typed = std::mem::take(&mut it.config.set);
    let words = it.config_of(args.words.clone());
    it.count_of_config();
    it.where_to(args)?;
    it.when_to_rotate(args)?;
    for condition in &args.autostop {
        it.autostop(condition, args)?;
    }
    if let Some(bytes) = args.snaplen {
        it.key(format!("-s {bytes}"), "capture.snaplen", bytes);
    }
    if args.no_promiscuous_mode {
        it.key("-p", "capture.promiscuous", false);
    }
    if let Some(comment) = &args.capture_comment {
        let option = format!("--capture-comment {comment:?}");
        it.text(option, "output.comment", comment);
    }
    if let Some(user) = &args.user {
        it.text(format!("-Z {user}"), "process.user", user);
    }
    it.filter(args, &words)?;
    it.config.set.extend(typed);
    Ok(it)
}

impl Settled {
    /// Takes the path of the config file from the front of the filter words, if the first of them
    /// is written as a path: with a slash, or with the extension `.toml`. Which files are in the
    /// working directory does not matter: others may have placed them there.
    fn config_of(&mut self, mut words: Vec<String>) -> Vec<String> {
        let is_path = |word: &String| {
            !word.contains(char::is_whitespace) && (word.contains('/') || word.ends_with(".toml"))
        };
        if self.config.file.is_none() && words.first().is_some_and(is_path) {
            self.config.file = Some(words.remove(0).into());
        }
        words
    }

    /// Takes the value of `-c` as a number of frames, as tcpdump and dumpcap do, if it has only
    /// digits, also if a file has this name.
    fn count_of_config(&mut self) {
        let count = |file: &PathBuf| {
            let text = file.to_str()?;
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            text.parse::<u64>().ok().filter(|it| digits && *it > 0)
        };
        let Some(count) = self.config.file.as_ref().and_then(count) else {
            return;
        };
        self.config.file = None;
        self.notes.push(format!(
            "-c {count} is taken as --count {count}; a config file of this name is -c ./{count}"
        ));
        self.limit(format!("-c {count}"), format!("--count {count}"));
        self.limits.count.get_or_insert(count);
    }

    /// Sets a configuration key to a number or a boolean, and records the tcpdump or dumpcap option
    /// that sets it.
    fn key(&mut self, option: impl Into<String>, key: &str, value: impl ToString) {
        let value = value.to_string();
        self.limit(option.into(), format!("{key} = {value}"));
        let key = key.into();
        self.config.set.push(Setting { key, value });
    }

    /// Sets a configuration key to a string, and records the tcpdump or dumpcap option that sets
    /// it.
    fn text(&mut self, option: impl Into<String>, key: &str, value: &str) {
        self.limit(option.into(), format!("{key} = {value:?}"));
        self.config.set.push(Setting {
            key: key.into(),
            value: value.into(),
        });
    }

    /// Records the configuration key or limit that a tcpdump or dumpcap option sets.
    fn limit(&mut self, option: String, sets: String) {
        self.aliases.push(Alias { option, sets });
    }

    /// Translates the output options `-w`, `-o` and `-P`.
    fn where_to(&mut self, args: &AliasArgs) -> Result<(), Failure> {
        if args.pcap {
            self.text("-P", "output.format", "pcap");
        }
        if let Some(dir) = &args.dir {
            self.text(format!("-o {}", dir.display()), "output.dir", path(dir)?);
        }
        let Some(to) = &args.write else {
            return Ok(());
        };
        let option = format!("-w {}", to.display());
        if to.as_os_str() == "-" {
            self.key(option, "output.stdout", true);
        } else if to.is_dir() || path(to)?.ends_with('/') {
            self.text(option, "output.dir", path(to)?);
        } else {
            self.file(option, to, args)?;
        }
        Ok(())
    }

    /// Translates the option `-w FILE`: sets the output keys for one capture file in time order
    /// with the name FILE.
    fn file(&mut self, option: String, to: &Path, args: &AliasArgs) -> Result<(), Failure> {
        let (folder, name) = folder_and_name(path(to)?);
        let folder = Path::new(folder);
        self.text(option.clone(), "output.dir", path(folder)?);
        let ending = FileName::ENDINGS.iter().find(|ending| {
            name.strip_suffix(*ending)
                .is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
        });
        let mut stem = name.to_owned();
        if let Some(ending) = ending {
            stem.truncate(name.len() - ending.len() - 1);
            let (format, packed) = ending.split_once('.').unwrap_or((ending, "none"));
            self.text(option.clone(), "output.format", format);
            let compress = if packed == "zst" { "zstd" } else { packed };
            if compress != "none" {
                self.text(option.clone(), "output.compress", compress);
            }
        } else if name.ends_with(".gz") {
            return Err(Failure::refused(format!(
                "{option}: gzip is not written; a name that ends with .pcapng.zst or .pcapng.lz4 compresses the file"
            )));
        } else {
            let format = if args.pcap { "pcap" } else { "pcapng" };
            if !args.pcap {
                self.text(option.clone(), "output.format", format);
            }
            self.notes.push(format!(
                "{option}: .{format} is appended to the file name, because it has no extension of a capture format; write .pcap or .pcapng"
            ));
        }
        let rotates = args.rotate_seconds.is_some()
            || args.rotate_size.is_some()
            || !args.ring_buffer.is_empty();
        let has_time = stem.contains('%') || stem.contains("{start_ns}");
        if rotates && !has_time {
            stem += "-%Y%m%dT%H%M%S";
        } else if !has_time && to.exists() {
            return Err(Failure::refused(format!(
                "{option}: the capture file exists already, and nothing is overwritten; remove it or choose another name"
            )));
        }
        let order = if stem.contains("{queue}") {
            "queue"
        } else {
            "time"
        };
        self.text(option.clone(), "output.order", order);
        self.text(option, "output.name", &stem);
        Ok(())
    }

    /// Translates the file rotation options `-G`, `-C`, `-W` and `-b`.
    fn when_to_rotate(&mut self, args: &AliasArgs) -> Result<(), Failure> {
        if let Some(seconds) = args.rotate_seconds {
            let time = format!("{seconds}s");
            self.text(format!("-G {seconds}"), "output.rotate_time", &time);
        }
        if let Some(size) = &args.rotate_size {
            let option = format!("-C {size}");
            let bytes = million_bytes(size).ok_or_else(|| {
                Failure::refused(format!(
                    "{option}: the value is not a file size; write a number of millions of bytes, or a size such as 100m or 4g"
                ))
            })?;
            self.key(option, "output.rotate_size", bytes);
        }
        match args.most_files {
            Some(files) if args.rotate_seconds.is_some() && args.rotate_size.is_none() => {
                self.limit(format!("-W {files}"), format!("--files {files}"));
                self.limits.files.get_or_insert(files);
            }
            Some(files) => self.key(format!("-W {files}"), "output.keep_files", files),
            None => {}
        }
        for condition in &args.ring_buffer {
            let option = format!("-b {condition}");
            match read(condition) {
                Some(("duration" | "interval", Value::Number(seconds))) => {
                    self.text(option, "output.rotate_time", &format!("{seconds}s"));
                }
                Some(("filesize", value)) => self.key(option, "output.rotate_size", value.bytes()),
                Some(("packets", Value::Number(n))) => self.key(option, "output.rotate_frames", n),
                Some(("files", Value::Number(n))) => self.key(option, "output.keep_files", n),
                _ => {
                    return Err(Failure::refused(format!(
                        "{option}: not a condition of -b; write duration:SECONDS, interval:SECONDS, \
                         filesize:KB, packets:N or files:N; output.name sets the file names"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Translates a stop condition of dumpcap's option `-a`. As in dumpcap, with `-b` a size ends a
    /// file instead of the run.
    fn autostop(&mut self, condition: &str, args: &AliasArgs) -> Result<(), Failure> {
        let option = format!("-a {condition}");
        match read(condition) {
            Some(("duration", Value::Number(seconds))) if seconds > 0 => {
                self.limit(option, format!("--duration {seconds}"));
                let time = Duration::from_secs(seconds);
                self.limits.duration.get_or_insert(time);
            }
            Some(("filesize", value)) if args.ring_buffer.is_empty() && value.bytes() > 0 => {
                let bytes = value.bytes();
                self.limit(option, format!("--bytes {bytes}"));
                self.limits.bytes.get_or_insert(Size(bytes));
            }
            Some(("filesize", value)) if value.bytes() > 0 => {
                self.key(option, "output.rotate_size", value.bytes());
            }
            Some(("files", Value::Number(n))) if n > 0 => {
                self.limit(option, format!("--files {n}"));
                self.limits.files.get_or_insert(n);
            }
            Some(("packets", Value::Number(n))) if n > 0 => {
                self.limit(option, format!("--count {n}"));
                self.limits.count.get_or_insert(n);
            }
            _ => {
                return Err(Failure::refused(format!(
                    "{option}: not a condition of -a; write duration:SECONDS, filesize:KB, files:N or \
                     packets:N, each above 0"
                )));
            }
        }
        Ok(())
    }

    /// Translates the capture filter, which is given by the option `-f` or by the filter words.
    fn filter(&mut self, args: &AliasArgs, words: &[String]) -> Result<(), Failure> {
        let number = |word: &&String| word.bytes().all(|b| b.is_ascii_digit());
        if let Some(number) = words.first().filter(number) {
            return Err(Failure::refused(format!(
                "{number}: a capture filter cannot begin with a number, and no option before this number takes one; remove it"
            )));
        }
        if let Some(filter) = &args.filter {
            self.text(format!("-f {filter:?}"), "capture.filter", filter);
        } else if !words.is_empty() {
            let filter = words.join(" ");
            self.text(filter.clone(), "capture.filter", &filter);
        }
        Ok(())
    }

    /// Reads the filter file of the option `-F`, and looks up the device or interface of the option
    /// `-i`. Must be called once, after the software NIC is loaded. On a machine without an RDMA
    /// device the name of `-i` is accepted unchecked, unless `device_required` is `true`.
    pub fn resolve_devices(&mut self, device_required: bool) -> Result<(), Failure> {
        // Errors of the configuration are reported when it is read as a whole.
        let config = self.config.read();
        let by_kernel = config.is_ok_and(|it| it.config().device.backend.is_of_kernel());
        let typed = std::mem::take(&mut self.config.set);
        match std::mem::take(&mut self.interfaces).as_slice() {
            [] => {}
            [name] if name != "any" => {
                let devices = device::list()?;
                let key = match self::key(name, &devices, device_required)? {
                    // A name that this machine does not have.
                    _ if by_kernel && devices.is_empty() => "device.netdev",
                    key => key,
                };
                self.text(format!("-i {name}"), key, name);
            }
            names => self.capture_ports(names, device_required)?,
        }
        if let Some(file) = self.filter_file.take() {
            let option = format!("-F {}", file.display());
            let filter = read_text(&file);
            let filter = filter.map_err(|e| {
                Failure::refused(format!(
                    "{option}: cannot read the file of the capture filter: {e}"
                ))
            })?;
            let filter: Vec<_> = filter.split_whitespace().collect();
            self.text(option, "capture.filter", &filter.join(" "));
        }
        self.config.set.extend(typed);
        Ok(())
    }
}

impl Settled {
    /// Sets the configuration's list of ports for several options `--model`, one port of each
    /// device, unless the configuration names devices.
    pub fn capture_models(&mut self, wires: &[String]) -> Result<(), Failure> {
        if wires.len() < 2 {
            return Ok(());
        }
        let config = self.config.read()?;
        let Config { device, port, .. } = config.config();
        if device.name.is_some() || device.netdev.is_some() || !port.is_empty() {
            return Ok(());
        }
        let option: Vec<_> = wires.iter().map(|it| format!("--model {it}")).collect();
        let ports = (0..wires.len()).map(|i| format!("{{device=\"mlx5_{i}\"}}"));
        let ports: Vec<_> = ports.collect();
        self.text(option.join(" "), "port", &format!("[{}]", ports.join(",")));
        Ok(())
    }

    /// Sets the configuration's list of ports if the option `-i` occurs several times or is `any`.
    fn capture_ports(&mut self, names: &[String], device_required: bool) -> Result<(), Failure> {
        let option: Vec<_> = names.iter().map(|name| format!("-i {name}")).collect();
        let option = option.join(" ");
        let devices = device::list()?;
        let mut names = names.to_vec();
        if names.iter().any(|it| it == "any") {
            if names.len() > 1 {
                return Err(Failure::refused(format!(
                    "{option}: -i any names every interface; leave the others out"
                )));
            }
            let (all, left_out) = every_interface(&devices);
            if all.is_empty() {
                return Err(Failure::refused("-i any: no network interface is up"));
            }
            let left_out = left_out.into_iter().map(|it| format!("-i any: {it}"));
            self.notes.extend(left_out);
            names = all;
        }
        let mut ports = Vec::new();
        for name in &names {
            let key = match key(name, &devices, device_required)? {
                "device.name" => "device",
                _ => "interface",
            };
            // The escapes of JSON are those of a TOML string, except for the character DEL.
            let name = serde_json::Value::from(name.as_str()).to_string();
            let name = name.replace('\u{7f}', "\\u007f");
            ports.push(format!("{{{key}={name}}}"));
        }
        let value = format!("[{}]", ports.join(","));
        self.text(option, "port", &value);
        Ok(())
    }
}

/// Returns the interfaces that `-i any` captures: each that is up, except those whose frames also
/// arrive on another interface. Also returns a note for each interface that is left out.
fn every_interface(devices: &[DeviceFacts]) -> (Vec<String>, Vec<String>) {
    let (mut all, mut left_out) = (Vec::new(), Vec::new());
    for it in kernel::interfaces() {
        let is_rdma = devices.iter().flat_map(|it| &it.ports);
        let is_rdma = is_rdma
            .filter_map(|port| port.netdev.as_ref())
            .any(|name| *name == it.name);
        let port = it.ports.first();
        let lower = it.kernel.as_ref().map_or(&[][..], |it| &it.lower);
        let why = if port.is_none_or(|port| port.state != "ACTIVE") {
            "it is down".to_owned()
        } else if is_rdma {
            "capturing its RDMA device would take its frames from the kernel".to_owned()
        } else if port.is_some_and(|port| !port.ethernet) {
            "it has no Ethernet header".to_owned()
        } else if !lower.is_empty() {
            format!(
                "the frames of this interface also arrive on {}",
                lower.join(", ")
            )
        } else {
            all.push(it.name);
            continue;
        };
        left_out.push(format!("{} is left out: {why}", it.name));
    }
    let names = device::interface::kernel_names();
    let unnamed = names.iter().filter(|it| it.to_str().is_none());
    left_out.extend(unnamed.map(|it| format!("{it:?} is left out: its name is not UTF-8")));
    (all, left_out)
}

/// Returns the configuration key that selects the device or interface `name` of the option `-i`.
/// Without a device and unless one is required, a name is accepted unchecked.
fn key(
    name: &str,
    devices: &[DeviceFacts],
    device_required: bool,
) -> Result<&'static str, Failure> {
    let is_netdev = Path::new("/sys/class/net").join(name).exists()
        || device::interface::exists_in_kernel(name);
    let is_known = |it: &DeviceFacts| {
        let mut ports = it.ports.iter();
        ports.any(|port| port.netdev.as_deref() == Some(name))
    };
    match devices {
        _ if devices.iter().any(|it| it.name == name) => Ok("device.name"),
        _ if is_netdev || devices.iter().any(is_known) => Ok("device.netdev"),
        [] if !device_required => Ok("device.name"),
        _ => {
            let names: Vec<_> = devices.iter().map(|it| it.name.as_str()).collect();
            let list = match names.as_slice() {
                [] => "this machine has no RDMA device".to_owned(),
                names => format!("devices: {}", names.join(", ")),
            };
            Err(Failure::refused(format!(
                "-i {name}: there is no such device or interface; {list}"
            )))
        }
    }
}

/// Value of a condition of the options `-a` and `-b`: the part after the colon.
enum Value {
    /// Plain number in the condition: seconds, frames, files or kilobytes.
    Number(u64),
    /// Size with a unit in a `-a` or `-b` condition, converted to bytes.
    Size(u64),
}

impl Value {
    /// Returns the value of a `filesize` condition in bytes. Plain numbers are thousands of bytes,
    /// as in dumpcap.
    fn bytes(&self) -> u64 {
        match self {
            Self::Number(kilobytes) => kilobytes.saturating_mul(1000),
            Self::Size(bytes) => *bytes,
        }
    }
}

/// Splits a condition of the options `-a` and `-b`, such as `filesize:100`, into its word and
/// value.
fn read(condition: &str) -> Option<(&str, Value)> {
    let (word, value) = condition.split_once(':')?;
    let number = value.parse().ok().map(Value::Number);
    let size = || value.parse::<Size>().ok().map(|it| Value::Size(it.0));
    Some((word, number.or_else(size)?))
}

/// Parses the size of tcpdump's option `-C` to bytes: millions of bytes, or with the letter k, m or
/// g a power of 1024.
fn million_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let unit = match &text[digits.len()..] {
        "" => 1_000_000,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit).filter(|it| *it > 0)
}

/// Splits an output path into directory and file name: before the first component with a template,
/// else before the last component.
fn folder_and_name(path: &str) -> (&str, &str) {
    let plain = path.find(['%', '{']).unwrap_or(path.len());
    match path[..plain].rfind('/') {
        Some(0) => ("/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (".", path),
    }
}

/// Returns a path as UTF-8 text, or a failure if it is not UTF-8.
fn path(path: &Path) -> Result<&str, Failure> {
    let refused = || {
        Failure::refused(format!(
            "{}: the path is not valid UTF-8; choose another path",
            path.display()
        ))
    };
    path.to_str().ok_or_else(refused)
}

#[cfg(test)]
mod tests;
