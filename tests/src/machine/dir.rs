//! Scratch folders.

use crate::Program;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// A folder that goes with its owner. With `WQCAP_KEEP` in the environment it stays, for a look at what went wrong.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    /// `None`: the folder stays.
    _guard: Option<tempfile::TempDir>,
}

impl Dir {
    /// An empty folder.
    ///
    /// # Panics
    /// When the system's scratch space cannot be written.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "making a folder is not a default value"
    )]
    pub fn new() -> Self {
        let made = tempfile::Builder::new()
            .prefix("wqcap-t")
            .tempdir()
            .expect("scratch space");
        if std::env::var_os("WQCAP_KEEP").is_some() {
            Self {
                path: made.keep(),
                _guard: None,
            }
        } else {
            Self {
                path: made.path().to_owned(),
                _guard: Some(made),
            }
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A name inside it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file and gives its path.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, contents).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Writes an executable shell script and gives its path.
    ///
    /// Another process writes it: a child that a test beside this one forks meanwhile would hold a descriptor of this
    /// process for writing, and until it has become another program nobody can execute the file (`ETXTBSY`).
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        let path = self.join(name);
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
        let _ = Program::new("sh")
            .args(["-c", write])
            .arg(&path)
            .arg(body)
            .run()
            .expect(0);
        path
    }

    /// Makes a folder inside it and gives its path.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

/// All files below a folder, by their places in it.
///
/// # Panics
/// One cannot be read, other than a `.part`.
#[must_use]
pub fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("lists") {
            let path = entry.expect("lists").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let place = path.strip_prefix(root).expect("below").to_str();
            let place = place.expect("plain").to_owned();
            match fs::read(&path) {
                Ok(bytes) => all.insert(place, bytes),
                // It has its final name by now.
                Err(_) if place.ends_with(".part") => None,
                Err(e) => panic!("{place}: {e}"),
            };
        }
    }
    all
}
