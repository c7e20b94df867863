//! What the options of tcpdump and dumpcap mean here: keys of the configuration, and limits of the run.
//!
//! Invariant: an alias does nothing but set keys and limits that have a name of their own, and `wqcap check` prints which.
//! A key that is set by `--set` as well is what `--set` says.

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
    config::Size,
    device::{self, DeviceFacts},
    files::name::FileName,
};

/// A key or a limit that an option stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Alias {
    /// As typed.
    pub option: String,
    /// `capture.snaplen = 96`, or a limit, `--count 1000`.
    pub sets: String,
}

/// A command line whose aliases are told apart.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// With the keys that aliases set.
    pub config: ConfigArgs,
    /// With the limits that aliases set.
    pub limits: LimitArgs,
    /// What each alias is.
    pub aliases: Vec<Alias>,
    /// What a user may not expect.
    pub notes: Vec<String>,
    /// What `-i` names.
    interface: Option<String>,
    /// What `-F` names.
    filter_file: Option<PathBuf>,
}

/// Tells what the options mean, as far as that does not depend on the devices of this machine.
pub fn settle(
    args: &AliasArgs,
    config: &ConfigArgs,
    limits: &LimitArgs,
) -> Result<Settled, Failure> {
    let mut it = Settled {
        config: config.clone(),
        limits: limits.clone(),
        interface: args.interface.clone(),
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
    /// Takes the config's path from the front of the words, if it stands there.
    fn config_of(&mut self, mut words: Vec<String>) -> Vec<String> {
        let is_path = |word: &String| {
            let path = Path::new(word);
            !word.contains(char::is_whitespace)
                && (path.is_file() || word.contains('/') || word.ends_with(".toml"))
        };
        if self.config.file.is_none() && words.first().is_some_and(is_path) {
            self.config.file = Some(words.remove(0).into());
        }
        words
    }

    /// tcpdump's and dumpcap's `-c COUNT`: digits alone, and no such file.
    fn count_of_config(&mut self) {
        let count = |file: &PathBuf| {
            let text = file.to_str()?;
            let digits = text.bytes().all(|b| b.is_ascii_digit());
            (digits && !file.exists()).then(|| text.parse().ok())?
        };
        let Some(count) = self.config.file.as_ref().and_then(count) else {
            return;
        };
        self.config.file = None;
        self.notes.push(format!(
            "-c {count}: there is no file of that name, so it is --count {count}"
        ));
        self.limit(format!("-c {count}"), format!("--count {count}"));
        self.limits.count.get_or_insert(count);
    }

    /// A key that is a number or a truth value.
    fn key(&mut self, option: impl Into<String>, key: &str, value: impl ToString) {
        let value = value.to_string();
        self.limit(option.into(), format!("{key} = {value}"));
        let key = key.into();
        self.config.set.push(Setting { key, value });
    }

    /// A key that is a text.
    fn text(&mut self, option: impl Into<String>, key: &str, value: &str) {
        self.limit(option.into(), format!("{key} = {value:?}"));
        self.config.set.push(Setting {
            key: key.into(),
            value: value.into(),
        });
    }

    fn limit(&mut self, option: String, sets: String) {
        self.aliases.push(Alias { option, sets });
    }

    /// `-w`, `-o` and `-P`.
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

    /// One file in the order of time, by the name that was typed.
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
        } else {
            let format = if args.pcap { "pcap" } else { "pcapng" };
            if !args.pcap {
                self.text(option.clone(), "output.format", format);
            }
            self.notes.push(format!(
                "{option}: the name gets .{format} behind it, since its ending is none of a format; write .pcap or .pcapng"
            ));
        }
        let rotates = args.rotate_seconds.is_some()
            || args.rotate_size.is_some()
            || !args.ring_buffer.is_empty();
        let tells_time = stem.contains('%') || stem.contains("{start_ns}");
        if rotates && !tells_time {
            stem += "-%Y%m%dT%H%M%S";
        } else if !tells_time && to.exists() {
            return Err(Failure::refused(format!(
                "{option}: the file is there already, and nothing is overwritten; remove it or name another"
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

    /// `-G`, `-C`, `-W` and `-b`.
    fn when_to_rotate(&mut self, args: &AliasArgs) -> Result<(), Failure> {
        if let Some(seconds) = args.rotate_seconds {
            let time = format!("{seconds}s");
            self.text(format!("-G {seconds}"), "output.rotate_time", &time);
        }
        if let Some(size) = &args.rotate_size {
            let option = format!("-C {size}");
            let bytes = million_bytes(size).ok_or_else(|| {
                Failure::refused(format!(
                    "{option}: write a number of million bytes, or a size such as 100m or 4g"
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
                        "{option}: write duration:SECONDS, interval:SECONDS, filesize:KB, packets:N or files:N; \
                         files are named by output.name"
                    )));
                }
            }
        }
        Ok(())
    }

    /// `-a`. As in dumpcap, a size ends a file and not the run where there is a ring of files.
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
                    "{option}: write duration:SECONDS, filesize:KB, files:N or packets:N, each above 0"
                )));
            }
        }
        Ok(())
    }

    /// `-f` and the words.
    fn filter(&mut self, args: &AliasArgs, words: &[String]) -> Result<(), Failure> {
        let number = |word: &&String| word.bytes().all(|b| b.is_ascii_digit());
        if let Some(number) = words.first().filter(number) {
            return Err(Failure::refused(format!(
                "{number}: a filter does not begin with a number; none of the options before it takes one"
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

    /// Reads what `-F` names, and looks for what `-i` names among the devices there are: once, and behind the model.
    /// Without a device that is required, what `-i` names is taken as it is.
    pub fn look_up(&mut self, device_required: bool) -> Result<(), Failure> {
        let typed = std::mem::take(&mut self.config.set);
        if let Some(name) = self.interface.take() {
            let devices = device::list()?;
            let there = Path::new("/sys/class/net").join(&name).exists();
            let key = match (devices.is_empty() && !device_required, there) {
                (true, true) => "device.netdev",
                (true, false) => "device.name",
                (false, _) => key_of(&name, &devices, there)?,
            };
            self.text(format!("-i {name}"), key, &name);
        }
        if let Some(file) = self.filter_file.take() {
            let option = format!("-F {}", file.display());
            let filter = read_text(&file);
            let filter = filter.map_err(|e| Failure::refused(format!("{option}: {e}")))?;
            let filter: Vec<_> = filter.split_whitespace().collect();
            self.text(option, "capture.filter", &filter.join(" "));
        }
        self.config.set.extend(typed);
        Ok(())
    }
}

/// The key that selects what is called so; `there`: it is an interface of the kernel.
fn key_of(name: &str, devices: &[DeviceFacts], there: bool) -> Result<&'static str, Failure> {
    if devices.iter().any(|it| it.name == name) {
        return Ok("device.name");
    }
    let mut ports = devices.iter().flat_map(|it| &it.ports);
    if ports.any(|port| port.netdev.as_deref() == Some(name)) {
        return Ok("device.netdev");
    }
    let names: Vec<_> = devices.iter().map(|it| it.name.as_str()).collect();
    let list = match names.as_slice() {
        [] => "there is no RDMA device".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    Err(Failure::refused(if name == "any" {
        format!("-i any: one run captures one port; {list}")
    } else if there {
        format!(
            "-i {name}: no RDMA device has this interface ({list}); to capture from it by the software NIC, \
             write --model af_packet:{name} in place of -i {name}, or af_xdp:{name}, which is faster and takes the frames \
             from the kernel"
        )
    } else {
        format!("-i {name}: no such device or interface; {list}")
    }))
}

/// What stands behind the colon of a condition.
enum Value {
    Number(u64),
    /// In bytes.
    Size(u64),
}

impl Value {
    /// Of a file: plain numbers are thousands of bytes, as in dumpcap.
    fn bytes(&self) -> u64 {
        match self {
            Self::Number(kilobytes) => kilobytes.saturating_mul(1000),
            Self::Size(bytes) => *bytes,
        }
    }
}

fn read(condition: &str) -> Option<(&str, Value)> {
    let (word, value) = condition.split_once(':')?;
    let number = value.parse().ok().map(Value::Number);
    let size = || value.parse::<Size>().ok().map(|it| Value::Size(it.0));
    Some((word, number.or_else(size)?))
}

/// tcpdump's `-C`: millions of bytes, or with a letter powers of 1024.
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

/// Splits a path before the first part that is a template, else before the last part.
fn folder_and_name(path: &str) -> (&str, &str) {
    let plain = path.find(['%', '{']).unwrap_or(path.len());
    match path[..plain].rfind('/') {
        Some(0) => ("/", &path[1..]),
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (".", path),
    }
}

fn path(path: &Path) -> Result<&str, Failure> {
    let refused = || Failure::refused(format!("{}: not UTF-8", path.display()));
    path.to_str().ok_or_else(refused)
}

#[cfg(test)]
mod tests;
