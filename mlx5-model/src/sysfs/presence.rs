//! A device that is not there for a while: its links in the tree are put aside, and put back.
//!
//! Imports nothing of the model. Invariant: a device whose links cannot be moved (a sandbox lets nobody) is shown as if
//! it were there; opening it fails all the same.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Where links wait, below the run directory.
const ASIDE: &str = "away";

static DIR: OnceLock<PathBuf> = OnceLock::new();

/// The tree of this process is here.
pub fn attach(dir: &Path) {
    // The first to be told of is the only one.
    let _ = DIR.set(dir.to_owned());
}

/// Nobody finds the device any more.
pub fn hide(number: usize, name: &str) {
    if let Some(dir) = DIR.get() {
        move_links(number, name, dir, &dir.join(ASIDE));
    }
}

/// It is there again.
pub fn show(number: usize, name: &str) {
    if let Some(dir) = DIR.get() {
        move_links(number, name, &dir.join(ASIDE), dir);
    }
}

fn move_links(number: usize, name: &str, from: &Path, to: &Path) {
    for link in [
        format!("sys/class/infiniband_verbs/uverbs{number}"),
        format!("sys/class/infiniband/{name}"),
        format!("dev/infiniband/uverbs{number}"),
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
    fn links_go_and_come_back_as_they_were() {
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
