//! Memory limit of this process's control group, of version 1 or 2 (cgroups(7)).
//!
//! May import: nothing of this crate.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Version of Linux control groups, which limit the memory of processes.
#[derive(Clone, Copy)]
enum Version {
    /// Version 1: each kind of resource has a hierarchy of its own.
    V1,
    /// Version 2: all kinds of resources share one hierarchy.
    V2,
}

/// Returns the lowest memory limit, in bytes, among this process's control group and the groups
/// above it; `None`: no limit was found.
pub(super) fn memory_limit() -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    limit_of(&groups, &mounts)
}

/// Returns the lower memory limit of both versions of control groups. `groups` is the content of
/// `/proc/PID/cgroup`, `mounts` of `/proc/PID/mountinfo`.
fn limit_of(groups: &str, mounts: &str) -> Option<u64> {
    let limits = [Version::V1, Version::V2]
        .into_iter()
        .filter_map(|version| {
            let group = group_of(version, groups)?;
            let (mount, folder) = folder_of(version, group, mounts)?;
            limit_by(version, &mount, &folder)
        });
    limits.min()
}

/// Returns the path of this process's control group in its hierarchy, from the lines
/// `ID:CONTROLLERS:PATH` of `groups`.
fn group_of(version: Version, groups: &str) -> Option<&str> {
    let mut lines = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        rest.split_once(':')
    });
    let (_, path) = lines.find(|(controllers, _)| match version {
        Version::V1 => controllers.split(',').any(|it| it == "memory"),
        Version::V2 => controllers.is_empty(),
    })?;
    Some(path)
}

/// Returns the mount point of the hierarchy of control groups, and the folder of a control group
/// below it. In a container only the part of the hierarchy below a root (field 4,
/// proc_pid_mountinfo(5)) may be mounted.
fn folder_of(version: Version, group: &str, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, mount) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let (fstype, options) = (kind.next()?, kind.nth(1)?);
        let is_it = match version {
            Version::V1 => fstype == "cgroup" && options.split(',').any(|it| it == "memory"),
            Version::V2 => fstype == "cgroup2",
        };
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        is_it.then(|| (mount.into(), Path::new(mount).join(below)))
    })
}

/// Returns the lowest memory limit, in bytes, of the control group in `folder` and of the groups
/// above it, up to the mount point `mount`.
fn limit_by(version: Version, mount: &Path, folder: &Path) -> Option<u64> {
    match version {
        // "# of bytes of memory limit with regard to hierarchy under which the memory cgroup is"
        // (Documentation/admin-guide/cgroup-v1/memory.rst). Without a limit it is the largest
        // number of pages.
        Version::V1 => {
            let stat = read(&folder.join("memory.stat"))?;
            let mut lines = stat.lines();
            let limit = lines.find_map(|it| it.strip_prefix("hierarchical_memory_limit "))?;
            limit.trim().parse().ok()
        }
        // `memory.max` of a group also limits the groups below it; "max" is no limit
        // (Documentation/admin-guide/cgroup-v2.rst).
        Version::V2 => {
            let groups = folder.ancestors().take_while(|it| it.starts_with(mount));
            let limits = groups.filter_map(|it| read(&it.join("memory.max"))?.trim().parse().ok());
            limits.min()
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "files of /proc and of cgroups")]
fn read(path: &Path) -> Option<String> {
    // The paths of mounts may not be UTF-8.
    let text = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_both_versions_and_of_the_groups_above_are_found() {
        let dir = tempfile::tempdir().expect("dir");
        let at = |name: &str| dir.path().join(name);
        let root = dir.path().display();
        let write = |file: &str, text: &str| {
            fs::create_dir_all(at(file).parent().expect("a folder")).expect("made");
            fs::write(at(file), text).expect("written");
        };
        let v1 = format!(
            "35 31 0:32 / {root}/cpu rw - cgroup cgroup rw,cpu\n36 31 0:33 / {root}/memory rw,relatime - cgroup cgroup rw,memory\n"
        );
        let v2 = format!("41 31 0:38 / {root}/unified rw shared:4 - cgroup2 cgroup2 rw\n");
        let groups = "4:cpuset,memory:/a/b\n1:cpu:/\n0::/c/d\n";
        assert_eq!(limit_of(groups, &format!("{v1}{v2}")), None);
        let stat = "cache 0\nhierarchical_memory_limit 314572800\nhierarchical_memsw_limit 1\n";
        write("memory/a/b/memory.stat", stat);
        assert_eq!(limit_of(groups, &v1), Some(300 << 20));
        write("unified/c/d/memory.max", "max\n");
        write("unified/c/memory.max", "1000000000\n");
        assert_eq!(limit_of(groups, &v2), Some(1_000_000_000));
        assert_eq!(limit_of(groups, &format!("{v1}{v2}")), Some(300 << 20));
        // A container: the hierarchy below /a/b is mounted.
        let mounted = v1.replace("0:33 / ", "0:33 /a ");
        write("memory/b/memory.stat", "hierarchical_memory_limit 5\n");
        assert_eq!(limit_of(groups, &mounted), Some(5));
    }
}
