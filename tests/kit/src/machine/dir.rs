//! Scratch folders of tests.

use super::privileges::copy_program;
use crate::Program;
use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Temporary folder, deleted on drop. If `WQCAP_KEEP` is set in the environment, the folder is kept
/// for inspection after a failure.
#[derive(Debug)]
pub struct Dir {
    path: PathBuf,
    /// Guard that deletes the folder; `None` if the folder is kept.
    _guard: Option<tempfile::TempDir>,
}

impl Dir {
    /// Creates an empty folder.
    ///
    /// # Panics
    /// Panics if the folder for temporary files is not writable.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a constructor with a side effect is not a default"
    )]
    pub fn new() -> Self {
        let made = tempfile::Builder::new()
            .prefix("wqcap-t")
            .tempdir()
            .expect("the folder for temporary files is writable");
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

    /// Creates an empty folder that every user can access. The repository itself may be unreadable
    /// for other users.
    ///
    /// # Panics
    /// Panics if the folder for temporary files is not writable.
    #[must_use]
    pub fn for_all() -> Self {
        let dir = Self::new();
        // The mode of /tmp: a user cannot replace the files of another user.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o1777))
            .expect("the mode of the new folder can be set");
        dir
    }

    /// Copies a program with its permissions to the folder, and returns the path of the copy.
    ///
    /// # Panics
    /// Panics if the file cannot be copied.
    pub fn bring(&self, file: &Path) -> PathBuf {
        let copy = self.join(file.file_name().expect("a file has a name"));
        copy_program(file, &copy);
        copy
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of `name` in the folder.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file and returns its path.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        fs::write(&path, contents).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Writes an executable shell script and returns its path.
    ///
    /// A separate process writes the file. Otherwise a child that a concurrent test forks would
    /// inherit the writing descriptor, and executing the file would fail with `ETXTBSY` until that
    /// child calls exec.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
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

    /// Creates a folder inside this folder and returns its path.
    ///
    /// # Panics
    /// Panics if the folder cannot be created.
    pub fn folder(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir_all(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

/// Returns the content of all files below a folder, by their paths relative to it.
///
/// # Panics
/// Panics if a file other than a `.part` file cannot be read.
#[must_use]
pub fn tree(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let place = path
                .strip_prefix(root)
                .expect("a path below the root")
                .to_str();
            let place = place.expect("a UTF-8 path").to_owned();
            match fs::read(&path) {
                Ok(bytes) => all.insert(place, bytes),
                // The file has been renamed to its final name.
                Err(_) if place.ends_with(".part") => None,
                Err(e) => panic!("{place}: {e}"),
            };
        }
    }
    all
}
