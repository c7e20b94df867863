//! What a configuration needs of this machine beside a device: folders, programs, groups, keys, addresses. Whatever is
//! missing would end a run right after its start, or at its first file.

use super::hook;
use crate::daemon::sandbox::files::written_folders;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::Path,
};
use wqcap_engine::{
    config::{Config, Format, MetricsConfig, Problem},
    control::server,
};

/// All that is not as the configuration needs it.
pub fn problems(config: &Config) -> Vec<Problem> {
    let control = config.control.iter().flat_map(server::check);
    let control = control.map(|it| Problem::new(it.key, it.value, it.problem));
    let metrics = config.metrics.iter().filter_map(listen);
    let mut all = folders(config);
    all.extend(control.chain(metrics));
    all
}

/// Folders must be there and writable, and the hook must be a program that the capture cannot replace.
pub fn folders(config: &Config) -> Vec<Problem> {
    let output = &config.output;
    let folders = written_folders(config).map(|(key, dir)| folder(key, dir));
    let mut found: Vec<_> = folders.collect();
    let to_files = output.format != Format::None && !output.is_stdout();
    if to_files && !output.hook.as_os_str().is_empty() {
        found.push(hook::problem(config));
    }
    found.into_iter().flatten().collect()
}

fn folder(key: &str, dir: &Path) -> Option<Problem> {
    let shown = dir.display();
    let way_out = format!("create it (mkdir -p '{shown}') or name another (--set {key}=.)");
    let writing = Access::WRITE_OK | Access::EXEC_OK;
    let problem = match fs::metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => format!("no such directory; {way_out}"),
        Err(e) => told(&e),
        Ok(metadata) if !metadata.is_dir() => format!("is not a directory; {way_out}"),
        Ok(_) => match accessat(CWD, dir, writing, AtFlags::EACCESS) {
            Ok(()) => return None,
            Err(e) => format!(
                "cannot be written to: {}; change its permissions or name another (--set {key}=.)",
                told(&e.into())
            ),
        },
    };
    Some(unusable(key, dir, &problem))
}

/// The address must be one of this machine. Whether its port is free is another matter: a running capture has it.
fn listen(metrics: &MetricsConfig) -> Option<Problem> {
    let any_port = |address: SocketAddr| SocketAddr::new(address.ip(), 0);
    let addresses = metrics.listen.resolve();
    let addresses = addresses.map(|all| all.into_iter().map(any_port).collect::<Vec<_>>());
    let error = addresses.and_then(|it| TcpListener::bind(&it[..])).err()?;
    let problem = match error.kind() {
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        _ => told(&error),
    };
    let value = format!("\"{}\"", metrics.listen);
    Some(Problem::new("metrics.listen", value, problem))
}

/// An error without its number.
pub(super) fn told(e: &io::Error) -> String {
    let text = e.to_string();
    match text.split_once(" (os error") {
        Some((words, _)) => words.to_owned(),
        None => text,
    }
}

pub(super) fn unusable(key: &str, path: &Path, problem: &str) -> Problem {
    Problem::new(key, format!("\"{}\"", path.display()), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told_of(dir: &Path) -> String {
        folder("output.dir", dir).expect("a problem").to_string()
    }

    #[test]
    fn a_folder_that_will_not_do_is_told_with_a_way_out() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(folder("output.dir", dir.path()), None);
        let message = told_of(&dir.path().join("no"));
        assert!(
            message.starts_with("output.dir = ") && message.contains("mkdir -p"),
            "{message}"
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(told_of(&file).contains("is not a directory"));
        // Not even root can write here.
        assert!(told_of(Path::new("/proc/self")).contains("cannot be written to"));
        let counting = Config::with_overrides("", &[("output.format", "none")]).unwrap();
        assert_eq!(folders(&counting), []);
    }

    #[test]
    fn an_address_must_be_this_machines() {
        for (address, is_ours) in [("127.0.0.1:80", true), ("192.0.2.1:9464", false)] {
            let listen_at = MetricsConfig {
                listen: String::from(address).try_into().unwrap(),
            };
            assert_eq!(listen(&listen_at).is_none(), is_ours, "{address}");
        }
    }
}
