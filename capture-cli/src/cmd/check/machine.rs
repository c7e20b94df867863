//! Checks what a configuration needs from this machine besides a device: folders, programs, groups,
//! keys, addresses. A missing one would end a run right after its start, or at its first file.

use super::{
    hook,
    refusal::{unusable, without_errno},
};
use crate::daemon::sandbox::files::written_folders;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::Path,
};
use wqcap_control::server;
use wqcap_engine::config::{Config, Format, MetricsConfig, Problem};

/// Returns all problems that a run of the configuration would have on this machine, besides its
/// device.
pub fn problems(config: &Config) -> Vec<Problem> {
    let control = config.control.iter().flat_map(server::check);
    let control = control.map(|it| Problem::new(it.key(), it.value(), it.problem()));
    let metrics = config.metrics.iter().filter_map(listen);
    let mut all = folders(config);
    all.extend(control.chain(metrics));
    all
}

/// Checks that the configured folders exist and are writable, and that the hook is a program that
/// the capture cannot replace.
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

/// Checks the folder that the configuration key `key` names; `None`: it can be used.
fn folder(key: &str, dir: &Path) -> Option<Problem> {
    let shown = dir.display();
    let remedy = format!(
        "create the directory (mkdir -p '{shown}') or name another directory (--set {key}=.)"
    );
    let writing = Access::WRITE_OK | Access::EXEC_OK;
    let problem = match fs::metadata(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            format!("there is no such directory; {remedy}")
        }
        Err(e) => without_errno(&e),
        Ok(metadata) if !metadata.is_dir() => format!("the path is not a directory; {remedy}"),
        Ok(_) => match accessat(CWD, dir, writing, AtFlags::EACCESS) {
            Ok(()) => return None,
            Err(e) => format!(
                "the directory cannot be written to: {}; change its permissions or name another (--set {key}=.)",
                without_errno(&e.into())
            ),
        },
    };
    Some(unusable(key, dir, &problem))
}

/// Checks that the metrics address belongs to this machine. Its port may be in use by a running
/// capture. `None`: the address can be used.
fn listen(metrics: &MetricsConfig) -> Option<Problem> {
    let any_port = |address: SocketAddr| SocketAddr::new(address.ip(), 0);
    let addresses = metrics.listen.resolve();
    let addresses = addresses.map(|all| all.into_iter().map(any_port).collect::<Vec<_>>());
    let error = addresses.and_then(|it| TcpListener::bind(&it[..])).err()?;
    let problem = match error.kind() {
        io::ErrorKind::AddrNotAvailable => "this machine has no such address".into(),
        _ => without_errno(&error),
    };
    let value = format!("\"{}\"", metrics.listen);
    Some(Problem::new("metrics.listen", value, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(dir: &Path) -> String {
        folder("output.dir", dir)
            .expect("the folder is refused")
            .to_string()
    }

    #[test]
    fn an_unusable_folder_is_reported_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(folder("output.dir", dir.path()), None);
        let message = refusal(&dir.path().join("no"));
        assert!(
            message.starts_with("output.dir = ") && message.contains("mkdir -p"),
            "{message}"
        );
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refusal(&file).contains("is not a directory"));
        // Root cannot write here either.
        assert!(refusal(Path::new("/proc/self")).contains("cannot be written to"));
        let counting = Config::with_overrides("", &[("output.format", "none")]).unwrap();
        assert_eq!(folders(&counting), []);
    }

    #[test]
    fn an_address_must_belong_to_this_machine() {
        for (address, is_ours) in [("127.0.0.1:80", true), ("192.0.2.1:9464", false)] {
            let listen_at = MetricsConfig {
                listen: String::from(address).try_into().unwrap(),
            };
            assert_eq!(listen(&listen_at).is_none(), is_ours, "{address}");
        }
    }
}
