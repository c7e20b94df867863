//! Checks that `output.hook` is a program that its capture cannot replace.
//!
//! A hook runs outside the capture's sandbox. An attacker who takes over a capture through its
//! traffic must not be able to replace the program, neither with the writes that the sandbox allows
//! nor as `process.user`.
//!
//! Invariant: every folder on the path to the program is checked, including those behind links.

use super::refusal::{unusable, without_errno};
use crate::daemon::sandbox::files::{model_base, written_folders};
use nix::unistd::Uid;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::{self, Metadata},
    io,
    os::unix::fs::MetadataExt,
    path::{Component, Path, PathBuf},
};
use wqcap_engine::config::{Config, Problem};

/// Maximum number of symbolic links followed on the path to a hook program, as in the kernel.
const MOST_LINKS: usize = 40;
/// Folder for hook programs that error messages recommend.
const PROPER_FOLDER: &str = "/usr/local/lib/wqcap";
/// Mode bit `S_ISVTX` of sys/stat.h: in a folder with this bit only owners rename and remove files.
const STICKY: u32 = 0o1000;

/// Returns the problem with the hook program of a configuration; `None`: the hook may run.
pub fn problem(config: &Config) -> Option<Problem> {
    let program = &config.output.hook;
    let problem = unfit(program).or_else(|| match reachable(config, program) {
        Ok(problem) => problem,
        Err(e) => Some(format!(
            "cannot find out which users can replace the program of output.hook: {}; name a program whose folders are readable",
            without_errno(&e)
        )),
    })?;
    Some(unusable("output.hook", program, &problem))
}

/// Returns the reason why a hook program cannot be run; `None`: it can be run.
fn unfit(program: &Path) -> Option<String> {
    match fs::metadata(program) {
        Err(e) => Some(without_errno(&e)),
        Ok(metadata) if !metadata.is_file() => Some("is not a file; name a program".into()),
        Ok(_) => {
            let allowed = accessat(CWD, program, Access::EXEC_OK, AtFlags::EACCESS);
            let e = allowed.err()?;
            Some(format!(
                "the program of output.hook cannot be run: {}; make it executable with chmod +x",
                without_errno(&e.into())
            ))
        }
    }
}

/// Returns the reason why the capture could replace its hook program; `None`: it cannot.
fn reachable(config: &Config, program: &Path) -> io::Result<Option<String>> {
    let steps = steps(program)?;
    let base = model_base();
    let ship = config.ship.as_ref().map(|it| it.journal.as_path());
    let written = written_folders(config)
        .chain(base.as_deref().map(|it| ("the software NIC's folder", it)))
        .chain(ship.map(|it| ("ship.journal", it)));
    for (key, dir) in written {
        // A missing folder is reported separately.
        let Ok(metadata) = fs::metadata(dir) else {
            continue;
        };
        let id = (metadata.dev(), metadata.ino());
        for step in &steps {
            if step.is_below(id)? {
                return Ok(Some(format!(
                    "{:?} is in {key} = {dir:?}, where the sandbox lets wqcap write, but hooks run outside the sandbox; \
                     move the program to a folder that only root can write, such as {PROPER_FOLDER}",
                    step.path()
                )));
            }
        }
    }
    let user = Uid::effective();
    if config.process.user.is_empty() || user.is_root() {
        return Ok(None);
    }
    let last = steps.len().saturating_sub(1);
    for (at, step) in steps.iter().enumerate() {
        let replaced = if step.is_replaceable(user)? {
            &step.folder
        } else if at == last && is_writable(&step.path(), &step.found, user)? {
            &step.path()
        } else {
            continue;
        };
        return Ok(Some(format!(
            "process.user = {:?} can write {replaced:?}, and so replace the program, which runs outside the sandbox; \
             give the program and the folders above it to root, without write permission for that user, \
             as in {PROPER_FOLDER}",
            config.process.user
        )));
    }
    Ok(None)
}

/// Step of the lookup of a path: one name that is looked up in a folder.
struct LookupStep {
    /// Absolute path of the folder in which the name is looked up, without links.
    folder: PathBuf,
    /// Metadata of the folder in which this step of the path of `output.hook` looks up the name.
    folder_found: Metadata,
    /// Name of the path that this step looks up in the folder: a directory, a link or the program.
    name: OsString,
    /// Metadata of the entry with the looked-up name; a link is not followed.
    found: Metadata,
}

/// Returns the steps of looking up the path to a file, including those of all links on it.
fn steps(file: &Path) -> io::Result<Vec<LookupStep>> {
    let mut left: VecDeque<OsString> = VecDeque::new();
    let mut at = PathBuf::from("/");
    let mut steps = Vec::new();
    let mut links = 0;
    let names = |path: &Path| -> Vec<OsString> {
        let names = path.components().filter(|it| *it != Component::RootDir);
        names.map(|it| it.as_os_str().to_owned()).collect()
    };
    left.extend(names(&std::path::absolute(file)?));
    while let Some(name) = left.pop_front() {
        match name.as_encoded_bytes() {
            b"." => continue,
            b".." => {
                at.pop();
                continue;
            }
            _ => {}
        }
        let path = at.join(&name);
        let found = fs::symlink_metadata(&path)?;
        let is_link = found.is_symlink();
        steps.push(LookupStep {
            folder: at.clone(),
            folder_found: fs::symlink_metadata(&at)?,
            name,
            found,
        });
        if !is_link {
            at = path;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        let target = fs::read_link(&path)?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        for name in names(&target).into_iter().rev() {
            left.push_front(name);
        }
    }
    Ok(steps)
}

impl LookupStep {
    /// Returns the absolute path of the entry that the step looks up.
    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Returns `true` if the step looks up its name in the folder with the device and inode `id`,
    /// or in a folder below it.
    fn is_below(&self, id: (u64, u64)) -> io::Result<bool> {
        for folder in self.folder.ancestors() {
            let folder = fs::symlink_metadata(folder)?;
            if (folder.dev(), folder.ino()) == id {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns `true` if `user`, the user of this process, can replace the entry that the step
    /// looks up.
    fn is_replaceable(&self, user: Uid) -> io::Result<bool> {
        let folder = &self.folder_found;
        let owns = |it: &Metadata| it.uid() == user.as_raw();
        let is_kept = folder.mode() & STICKY != 0 && !owns(folder) && !owns(&self.found);
        Ok(!is_kept && is_writable(&self.folder, folder, user)?)
    }
}

/// Returns `true` if `user`, the user of this process, can write to a file or folder, or can give
/// itself the permission.
fn is_writable(path: &Path, found: &Metadata, user: Uid) -> io::Result<bool> {
    if found.uid() == user.as_raw() {
        return Ok(true);
    }
    match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::ROFS | rustix::io::Errno::PERM) => {
            Ok(false)
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Returns the message for a hook `program` with the output directory `dir`.
    fn refusal(dir: &Path, program: &Path) -> Option<String> {
        let settings = [
            ("output.dir", dir.to_str().unwrap()),
            ("output.hook", program.to_str().unwrap()),
        ];
        let config = Config::with_overrides("", &settings).unwrap();
        problem(&config).map(|it| it.to_string())
    }

    #[test]
    fn a_hook_that_the_capture_can_replace_is_refused_on_every_path_to_it() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        let (dir, tools) = (place.join("out"), place.join("tools"));
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::create_dir(&tools).unwrap();
        for program in [tools.join("hook"), dir.join("hook"), dir.join("sub/hook")] {
            fs::write(&program, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        // Hooks in the folder, by a link to it, by a link in it, and by a folder of a link's
        // target.
        symlink(dir.join("hook"), tools.join("to-hook")).unwrap();
        symlink(&dir, tools.join("to-dir")).unwrap();
        symlink(tools.join("hook"), dir.join("to-tools")).unwrap();
        symlink("to-dir/sub/../../tools/hook", tools.join("through")).unwrap();
        symlink(&dir, place.join("other-name")).unwrap();
        for reached in [
            dir.join("hook"),
            dir.join("sub/hook"),
            dir.join("to-tools"),
            dir.join("sub/../../tools/hook"),
            tools.join("../out/hook"),
            tools.join("to-hook"),
            tools.join("to-dir/hook"),
            tools.join("through"),
        ] {
            for given in [dir.clone(), place.join("other-name")] {
                let refusal = refusal(&given, &reached).unwrap_or_default();
                for part in [
                    "output.hook = ",
                    "output.dir = ",
                    "sandbox",
                    "move the program",
                ] {
                    assert!(refusal.contains(part), "{reached:?}: {refusal}");
                }
            }
        }
        symlink("hook", tools.join("own")).unwrap();
        for apart in [
            tools.join("hook"),
            tools.join("own"),
            dir.join("../tools/hook"),
            PathBuf::from("/bin/true"),
        ] {
            assert_eq!(refusal(&dir, &apart), None, "{apart:?}");
        }
        symlink("circle", tools.join("circle")).unwrap();
        assert!(refusal(&dir, &tools.join("circle")).is_some());
    }
}
