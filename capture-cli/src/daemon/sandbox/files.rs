//! Files that a capture may open, and the landlock domain that allows only these.

use super::SandboxError;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, NetPort, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use std::{
    env, fs,
    path::{Path, PathBuf},
};
use wqcap_engine::{
    config::{Config, Format},
    plan::Plan,
};

/// Newest version of landlock rights that the sandbox uses. Older kernels apply the subset that
/// they support.
const RIGHTS: ABI = ABI::V6;
/// Number of file descriptors that must be free: for the domain, for each rule in turn, and some
/// more.
const SPARE_DESCRIPTORS: usize = 4;

/// Paths that a capture may read for the C library, libpcap, libibverbs, libmlx5 and the engine's
/// inspection of the machine.
const READ: &[&str] = &[
    "/sys",
    "/proc",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/lib",
    "/lib64",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/libibverbs.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/protocols",
    "/etc/rdma",
    "/etc/services",
    "/dev/urandom",
];
/// Paths that `wqcap ship` may read to resolve a store's address and to verify its certificate.
#[cfg(feature = "ship")]
const READ_TO_CONNECT: &[&str] = &[
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/pki",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
];
/// Environment variables that name files of certificates and credentials for an object store.
#[cfg(feature = "ship")]
const NAMED_TO_CONNECT: &[&str] = &[
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
];
/// Device files that a capture opens, besides those of RDMA devices.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero"];
/// Folder of the device files of RDMA devices.
const RDMA_DEVICES: &str = "/dev/infiniband";
/// Name of an empty file that keeps the folder [`RDMA_DEVICES`] while it has no device files.
const KEEPER: &str = ".wqcap";

/// Files and TCP ports that one sandboxed process may use.
pub struct AllowedPaths {
    /// Files that the process may read, and folders that it may read with everything below them.
    read: Vec<PathBuf>,
    /// Files that the process may write, and folders in which it may create, write and remove
    /// files.
    write: Vec<PathBuf>,
    /// Device files that the process may use, and folders of such files.
    devices: Vec<PathBuf>,
    /// TCP ports on which the process may listen.
    listen: Vec<u16>,
    /// `true` if the sandbox allows TCP connections to any address, as `wqcap ship` needs.
    connects: bool,
}

impl AllowedPaths {
    /// Collects the paths that the configuration of a capture names, for its sandbox. All of them
    /// must exist.
    pub fn from_config(
        settings: &Config,
        plan: &Plan,
        config: Option<&Path>,
        pipe: Option<&Path>,
        wire: Option<&str>,
    ) -> Self {
        let mut read: Vec<PathBuf> = READ.iter().map(PathBuf::from).collect();
        // A panic reads the program's file for its backtrace.
        read.extend(env::current_exe());
        for path in config.into_iter().flat_map(places) {
            read.push(path);
        }
        let written = written_folders(settings);
        let mut write: Vec<_> = written.map(|(_, dir)| dir.to_owned()).collect();
        read.extend(settings.control.iter().filter_map(|it| it.key_file.clone()));
        // Retention reads the journal.
        read.extend(plan.output.journal.clone());
        // A pipe is written directly; another process replaces a regular file.
        write.extend(pipe.map(Path::to_owned));
        let on_model = wire.is_some();
        if on_model {
            // Its wires and its replacement of sysfs are files that the engine has no list of.
            read.push("/".into());
            write.extend(model_base());
            // Another process's software NIC and this one meet at a socket, which has a lock file.
            let peer = wire.and_then(|it| it.strip_prefix("peer:"));
            write.extend(peer.map(|it| folder_of(Path::new(it)).to_owned()));
        }
        let mut devices = plain_devices();
        if plan.ports().any(|it| it.device.kernel.is_none()) && !on_model {
            devices.push(lasting_folder(Path::new(RDMA_DEVICES)));
        }
        let listen = settings.metrics.iter().map(|it| it.listen.port).collect();
        Self {
            read,
            write,
            devices,
            listen,
            connects: false,
        }
    }

    /// Collects the paths that `wqcap ship` may use: the capture's folders and the config to read, the
    /// journal to write, and a port to listen on.
    #[cfg(feature = "ship")]
    pub fn to_ship(
        plan: &wqcap_ship::ShipPlan,
        config: Option<&Path>,
        listen: Option<u16>,
    ) -> Self {
        let known = READ.iter().chain(READ_TO_CONNECT);
        let mut read: Vec<PathBuf> = known.map(PathBuf::from).collect();
        let named = NAMED_TO_CONNECT.iter().filter_map(env::var_os);
        read.extend(named.map(PathBuf::from));
        // A reload reads the config again.
        read.extend(config.into_iter().flat_map(places));
        // A panic reads the program's file for its backtrace.
        read.extend(env::current_exe());
        read.push(plan.dir.clone());
        read.extend(plan.index_dir.clone());
        read.extend(plan.flows_dir.clone());
        let mut write = vec![plan.journal.clone()];
        write.extend(wqcap_ship::store::folder_of(&plan.store).map(Path::to_owned));
        Self {
            read,
            write,
            devices: plain_devices(),
            listen: listen.into_iter().collect(),
            connects: true,
        }
    }

    /// Collects the paths that `wqcap serve` may use: the capture's folders, the config, certificates
    /// and tokens to read, the folder of pins to write, and its port.
    #[cfg(feature = "serve")]
    pub fn to_serve(
        plan: &wqcap_serve::ServePlan,
        config: Option<&Path>,
        pins: Option<PathBuf>,
        port: u16,
    ) -> Self {
        let mut read: Vec<PathBuf> = READ.iter().map(PathBuf::from).collect();
        // A reload reads the config again.
        read.extend(config.into_iter().flat_map(places));
        // A panic reads the program's file for its backtrace.
        read.extend(env::current_exe());
        read.push(plan.dir.clone());
        read.extend(plan.index_dir.clone());
        read.extend(plan.flows.iter().map(|it| it.dir.clone()));
        let tls = plan.tls.iter();
        let tls = tls.flat_map(|it| [Some(&it.cert), Some(&it.key), it.client_ca.as_ref()]);
        let secrets = tls.flatten().chain(&plan.tokens);
        read.extend(secrets.flat_map(|it| places(it)));
        Self {
            read,
            write: pins.into_iter().collect(),
            devices: plain_devices(),
            listen: vec![port],
            connects: false,
        }
    }

    /// Restricts this thread, and the threads that it creates, to the allowed files and ports.
    pub fn restrict(&self) -> Result<(), SandboxError> {
        // A path that cannot be opened gets no rule, so that a lack of descriptors would deny what
        // the capture needs.
        let spare = (0..SPARE_DESCRIPTORS).map(|_| PathFd::new("/"));
        drop(spare.collect::<Result<Vec<_>, _>>()?);
        match self.domain()? {
            RulesetStatus::NotEnforced => Err(SandboxError::NoLandlock),
            _ => Ok(()),
        }
    }

    /// Builds the landlock domain of the allowed files and ports, and enters it.
    fn domain(&self) -> Result<RulesetStatus, RulesetError> {
        let all = AccessFs::from_all(RIGHTS);
        let mut net = AccessNet::from_all(RIGHTS);
        if self.connects {
            net.remove(AccessNet::ConnectTcp);
        }
        let ports = self.listen.iter();
        let ports =
            ports.map(|&port| Ok::<_, RulesetError>(NetPort::new(port, AccessNet::BindTcp)));
        let status = Ruleset::default()
            .handle_access(all)?
            .handle_access(net)?
            .scope(Scope::from_all(RIGHTS))?
            .create()?
            .add_rules(path_beneath_rules(&self.read, reading()))?
            .add_rules(path_beneath_rules(&self.write, writing()))?
            .add_rules(path_beneath_rules(&self.devices, reading() | using()))?
            .add_rules(ports)?
            .restrict_self()?;
        Ok(status.ruleset)
    }
}

fn plain_devices() -> Vec<PathBuf> {
    DEVICES.iter().map(PathBuf::from).collect()
}

/// Returns the folder for a landlock rule that still holds after a restart of the RDMA driver.
///
/// A rule belongs to the folder and not to its name. The kernel removes its folder together with the
/// last device file, and creates another one (`delete_path` of drivers/base/devtmpfs.c). A file that
/// the kernel has not created keeps the folder; without the right to create it, the rule is for the
/// parent, where the rights of the user still decide.
fn lasting_folder(folder: &Path) -> PathBuf {
    let keeper = folder.join(KEEPER);
    let kept = keeper.exists() || fs::File::create_new(&keeper).is_ok();
    match folder.parent() {
        Some(parent) if !kept && folder.exists() => parent.to_owned(),
        _ => folder.to_owned(),
    }
}

/// Returns the landlock rights to read files and list folders.
fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Returns the landlock rights to use device files: write and ioctl.
fn using() -> BitFlags<AccessFs> {
    AccessFs::WriteFile | AccessFs::IoctlDev
}

/// Returns the folders to which a capture writes, each with the configuration key that sets it.
pub fn written_folders(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    let output = &config.output;
    let to_files = output.format != Format::None && !output.is_stdout();
    let index_dir = Some(&output.index_dir).filter(|it| !it.as_os_str().is_empty());
    let folders = [
        ("output.dir", to_files.then_some(&output.dir)),
        ("output.index_dir", index_dir.filter(|_| to_files)),
        ("flows.dir", config.flows.as_ref().map(|it| &it.dir)),
    ];
    let named = folders.into_iter();
    named.filter_map(|(key, dir)| Some((key, dir?.as_path())))
}

/// Returns the landlock rights to write: all except to create devices and symbolic links, and to
/// execute programs. They include linking, because files opened in advance get their names in
/// subfolders.
fn writing() -> BitFlags<AccessFs> {
    reading()
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeDir
        | AccessFs::MakeSock
        | AccessFs::RemoveFile
        | AccessFs::RemoveDir
        | AccessFs::Refer
}

/// Returns the folder of a file as its path names it, and the folder of the file to which a link
/// leads, because either file may be replaced while it is in use.
fn places(file: &Path) -> Vec<PathBuf> {
    let mut places = vec![folder_of(file).to_owned()];
    if let Ok(path) = fs::canonicalize(file) {
        places.push(folder_of(&path).to_owned());
    }
    places
}

/// Returns the path of the folder that contains a file.
fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Returns the folder that contains the software NIC's scratch folder, which is removed at the end.
/// The software NIC sets it in the environment; `None`: it is not in use.
pub fn model_base() -> Option<PathBuf> {
    let scratch = env::var_os("MLX5_MODEL_DIR").map(PathBuf::from)?;
    scratch.parent().map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::ErrorKind, net::TcpListener, os::unix::fs::symlink, sync::mpsc, thread};
    use wqcap_testkit::skip;

    #[test]
    fn other_files_cannot_be_opened() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = other.path().join("secret");
        fs::write(&secret, "x").unwrap();
        symlink(other.path(), own.path().join("way out")).unwrap();
        let domain = AllowedPaths {
            read: Vec::new(),
            write: vec![own.path().to_owned()],
            devices: Vec::new(),
            listen: vec![0],
            connects: false,
        };
        let inside = own.path().to_owned();
        // A domain restricts the thread that enters it.
        let refused = thread::spawn(move || {
            domain.restrict()?;
            let file = inside.join("a.part");
            fs::write(&file, "frames").expect("the folder is writable");
            fs::create_dir(inside.join("hour")).expect("the folder is writable");
            fs::hard_link(&file, inside.join("hour/a")).expect("the folder is writable");
            fs::rename(&file, inside.join("a")).expect("the folder is writable");
            fs::remove_file(inside.join("a")).expect("the folder is writable");
            fs::remove_file(inside.join("hour/a")).expect("the folder is writable");
            fs::remove_dir(inside.join("hour")).expect("the folder is writable");
            TcpListener::bind("127.0.0.1:0").expect("the port is allowed");
            let outside = [
                fs::read(&secret).map(drop),
                fs::read(inside.join("way out/secret")).map(drop),
                fs::write(secret.with_file_name("new"), ""),
                fs::remove_file(&secret),
            ];
            let moved_in = fs::hard_link(&secret, inside.join("secret"));
            assert!(moved_in.is_err(), "a hard link must not give rights");
            Ok::<_, SandboxError>(outside.map(|it| it.map_err(|e| e.kind())))
        });
        match refused.join().unwrap() {
            Ok(refused) => assert_eq!(refused, [Err(ErrorKind::PermissionDenied); 4]),
            Err(reason) => skip!("not enforced here: {reason}"),
        }
        assert!(other.path().join("secret").exists());
    }

    /// Removes a device file and, as the kernel does, its folder if that is empty. Then creates the
    /// file again.
    fn restart_driver(device: &Path) {
        let folder = folder_of(device);
        fs::remove_file(device).unwrap();
        let _ = fs::remove_dir(folder);
        fs::create_dir_all(folder).unwrap();
        fs::write(device, "").unwrap();
    }

    /// Returns the result of opening `device` in a sandbox with a rule for `allowed`, after a restart
    /// of the driver; `None` if landlock is not enforced.
    fn open_after_restart(device: &Path, allowed: PathBuf) -> Option<Result<(), ErrorKind>> {
        let domain = AllowedPaths {
            read: Vec::new(),
            write: Vec::new(),
            devices: vec![allowed],
            listen: Vec::new(),
            connects: false,
        };
        let device = device.to_owned();
        // This thread is not restricted, and is the kernel.
        let (ready, is_ready) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let path = device.clone();
        let open = thread::spawn(move || {
            let restricted = domain.restrict();
            ready.send(()).unwrap();
            goes.recv().unwrap();
            let opened = fs::File::options().read(true).write(true).open(path);
            restricted.ok()?;
            Some(opened.map(drop).map_err(|e| e.kind()))
        });
        is_ready.recv().unwrap();
        restart_driver(&device);
        go.send(()).unwrap();
        open.join().unwrap()
    }

    #[test]
    fn device_files_can_be_opened_after_a_restart_of_the_driver() {
        let dev = tempfile::tempdir().unwrap();
        let folder = dev.path().join("infiniband");
        let device = folder.join("uverbs0");
        let keeper = folder.join(KEEPER);
        fs::create_dir(&folder).unwrap();
        fs::write(&device, "").unwrap();
        let Some(by_name) = open_after_restart(&device, folder.clone()) else {
            skip!("landlock is not enforced here");
        };
        assert_eq!(by_name, Err(ErrorKind::PermissionDenied), "another folder");
        // The name of the keeper is taken by a link to nowhere: root may create every file.
        symlink("/nonexistent/file", &keeper).unwrap();
        let parent = lasting_folder(&folder);
        fs::remove_file(&keeper).unwrap();
        assert_eq!(parent, dev.path());
        assert_eq!(open_after_restart(&device, parent), Some(Ok(())));
        assert_eq!(lasting_folder(&folder), folder);
        assert!(keeper.exists());
        let kept = open_after_restart(&device, lasting_folder(&folder));
        assert_eq!(kept, Some(Ok(())));
    }

    #[test]
    fn folders_of_a_link_and_of_its_target_are_included() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().canonicalize().unwrap().join("there");
        fs::create_dir(&there).unwrap();
        fs::write(there.join("c.toml"), "").unwrap();
        let link = dir.path().join("c.toml");
        symlink(there.join("c.toml"), &link).unwrap();
        assert_eq!(places(&link), [dir.path().to_owned(), there]);
        assert_eq!(folder_of(Path::new("c.toml")), Path::new("."));
    }
}
