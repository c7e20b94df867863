//! Builds the configuration from the arguments.

use crate::{
    args::{ConfigArgs, Setting},
    failure::Failure,
};
use std::{
    io,
    path::Path,
    sync::{Mutex, PoisonError},
};
use wqcap_engine::{
    config::{Config, ParsedConfig, Problem, TextPosition},
    files::folder::open::{MOST_TEXT, read_named},
};

/// Prefix of the keys in `--set` that belong to the software NIC instead of the configuration.
const MODEL: &str = "model.";

impl ConfigArgs {
    /// Returns the settings of the software NIC in `--set`, without the prefix `model.` of their
    /// keys.
    pub fn model(&self) -> Vec<Setting> {
        let without_prefix = |it: &Setting| {
            let key = it.key.strip_prefix(MODEL)?.into();
            let value = it.value.clone();
            Some(Setting { key, value })
        };
        self.set.iter().filter_map(without_prefix).collect()
    }

    /// Reads the config file, if one is given, and applies the settings of `--set` over it. Returns
    /// a failure if any value is invalid.
    pub fn load(&self) -> Result<Config, Failure> {
        let reading = self.read()?;
        reading.into_config().map_err(|e| self.refuse(e.problems()))
    }

    /// Reads the configuration again, as [`ConfigArgs::load`] does. A config file that is now a pipe or
    /// a device is refused: opening it could block the command.
    pub fn load_again(&self) -> Result<Config, Failure> {
        let file = self.file.as_deref().filter(|it| it.as_os_str() != "-");
        let is_regular = |path: &Path| path.metadata().is_ok_and(|it| it.is_file());
        match file {
            Some(path) if path.exists() && !is_regular(path) => Err(Failure::refused(format!(
                "cannot read the config {}: a reload needs a regular file",
                path.display()
            ))),
            _ => self.load(),
        }
    }

    /// Reads the config file, and applies the settings of `--set` over it. Problems with values are
    /// part of the result and do not stop the reading.
    pub fn read(&self) -> Result<ParsedConfig, Failure> {
        let text = match &self.file {
            Some(path) => read_text(path).map_err(|e| {
                Failure::refused(format!("cannot read the config {}: {e}", path.display()))
            })?,
            None => String::new(),
        };
        let overrides: Vec<_> = self
            .set
            .iter()
            .filter(|it| !it.key.starts_with(MODEL))
            .map(|it| (it.key.as_str(), it.value.as_str()))
            .collect();
        Config::read(&text, &overrides).map_err(|e| self.refuse(e.problems()))
    }

    /// Converts configuration problems to a failure. Each message has the line and column in the
    /// config file where they are known.
    pub fn refuse(&self, problems: &[Problem]) -> Failure {
        let file = self.file.as_deref();
        Failure::all_refused(problems.iter().map(|it| in_file(it, file)))
    }
}

/// Formats a configuration problem after its position, as compilers do:
/// `file:line:column: problem`.
fn in_file(problem: &Problem, file: Option<&Path>) -> String {
    match (problem.place(), file) {
        (Some(TextPosition { line, column }), Some(path)) => {
            format!("{}:{line}:{column}: {problem}", path.display())
        }
        _ => problem.to_string(),
    }
}

/// Returns the text of a config file. The path `-` is standard input, which is read once and
/// cached.
///
/// # Errors
/// The file cannot be read, has more than [`MOST_TEXT`] bytes, or is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    static STDIN: Mutex<Option<String>> = Mutex::new(None);
    let read = || {
        let text = String::from_utf8(read_named(path, MOST_TEXT)?);
        text.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    };
    if path.as_os_str() != "-" {
        return read();
    }
    let mut stdin = STDIN.lock().unwrap_or_else(PoisonError::into_inner);
    if stdin.is_none() {
        *stdin = Some(read()?);
    }
    Ok(stdin.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn settings(texts: &[&str]) -> Vec<Setting> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn args_for_file(path: impl Into<PathBuf>) -> ConfigArgs {
        ConfigArgs {
            file: Some(path.into()),
            set: Vec::new(),
        }
    }

    #[test]
    fn a_pipe_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        std::fs::write(&path, "").unwrap();
        assert!(args_for_file(&path).load_again().is_ok());
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        let failure = args_for_file(&path).load_again().unwrap_err();
        assert!(failure.to_string().contains("a regular file"), "{failure}");
    }

    #[test]
    fn model_settings_are_not_config_keys() {
        let set = settings(&["capture.queues=2", "model.caps=all", "model.mlx5_0.ports=2"]);
        let args = ConfigArgs { file: None, set };
        assert_eq!(args.load().unwrap().capture.queues, Some(2));
        assert_eq!(args.model(), settings(&["caps=all", "mlx5_0.ports=2"]));
    }

    #[test]
    fn a_missing_file_is_named() {
        let failure = args_for_file("/nowhere/x.toml").load().unwrap_err();
        assert!(failure.messages[0].contains("/nowhere/x.toml"));
    }

    #[test]
    fn every_sample_loads() {
        let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
        let mut loaded = 0;
        for entry in std::fs::read_dir(samples).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                continue;
            }
            args_for_file(&path)
                .load()
                .unwrap_or_else(|e| panic!("{}: {e:?}", path.display()));
            loaded += 1;
        }
        assert!(loaded >= 5);
    }
}
