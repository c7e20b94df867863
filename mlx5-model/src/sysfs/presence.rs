//! Hiding of a device while its driver restarts: its links in the tree are moved to another
//! directory and back.
//!
//! Imports nothing of the model. Invariant: a device whose links cannot be moved (in a sandbox)
//! stays visible; opening it fails nevertheless.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Directory below the run directory to which the links of hidden devices are moved.
const ASIDE: &str = "away";

static DIR: OnceLock<PathBuf> = OnceLock::new();

/// Stores the run directory in which the links of devices are moved.
pub fn attach(dir: &Path) {
    let _ = DIR.set(dir.to_owned());
}

/// Shows or hides the device with number `index` by moving its links in the run directory.
pub fn set(index: usize, name: &str, present: bool) {
    if let Some(dir) = DIR.get() {
        let aside = dir.join(ASIDE);
        let (from, to) = if present {
            (&aside, dir)
        } else {
            (dir, &aside)
        };
        move_links(index, name, from, to);
    }
}

fn move_links(index: usize, name: &str, from: &Path, to: &Path) {
    for link in [
        format!("sys/class/infiniband_verbs/uverbs{index}"),
        format!("sys/class/infiniband/{name}"),
        format!("dev/infiniband/uverbs{index}"),
    ] {
        let place = to.join(&link);
        if let Some(parent) = place.parent() {
            let _ = fs::create_dir_all(parent);
        }
        let _ = fs::rename(from.join(&link), place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn hidden_links_are_restored_unchanged() {
        let temp = tempfile::tempdir().unwrap();
        let class = temp.path().join("sys/class/infiniband");
        fs::create_dir_all(&class).unwrap();
        symlink("../../devices/x", class.join("mlx5_7")).unwrap();
        let (here, aside) = (temp.path(), temp.path().join(ASIDE));
        move_links(7, "mlx5_7", here, &aside);
        assert_eq!(fs::read_dir(&class).unwrap().count(), 0);
        move_links(7, "mlx5_7", &aside, here);
        let back = fs::read_link(class.join("mlx5_7")).unwrap();
        assert_eq!(back, Path::new("../../devices/x"));
    }
}
