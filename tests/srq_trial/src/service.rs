//! Control service in a separate process, and its clients.

use crate::Outcome;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Command as Process, Stdio},
    thread,
    time::{Duration, Instant},
};
use wqcap_control::{
    client::{Client, RcTransport},
    protocol::{AnswerBody, Command, RdmaStatus, auth::Keys},
};

/// Timeout of each step, long enough for a slow emulated machine.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Address of a service, its keys, and the working folder.
#[derive(Clone)]
pub struct Target {
    pub address: SocketAddr,
    pub keys: Keys,
    pub key_file: PathBuf,
    pub dir: PathBuf,
}

/// Control service in a child process, killed on drop.
pub struct TrialService {
    child: Child,
    pub target: Target,
}

impl TrialService {
    pub fn start(target: &Target, more: &str) -> Outcome<Self> {
        let config = target.dir.join("trial.toml");
        let text = format!(
            "[control]\nunix = {:?}\nrdma = \"{}\"\nkey_file = {:?}\n{more}\n",
            target.dir.join("trial.sock"),
            target.address,
            target.key_file
        );
        fs::write(&config, text)?;
        let child = Process::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()?;
        let service = Self {
            child,
            target: target.clone(),
        };
        let deadline = Instant::now() + TIMEOUT;
        while service.target.client().is_err() {
            if Instant::now() > deadline {
                return Err("the service does not start".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(service)
    }

    pub fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.child.id())?;
        kill_process(Pid::from_raw(pid).ok_or("a pid")?, signal)?;
        Ok(())
    }

    pub fn status(&self) -> Outcome<RdmaStatus> {
        let mut client = self.target.client()?;
        // The service publishes its state twice a second.
        thread::sleep(Duration::from_millis(600));
        status(&mut client)
    }

    /// Requests the status until `wanted` accepts it, and returns it.
    pub fn until(&self, what: &str, wanted: impl Fn(&RdmaStatus) -> bool) -> Outcome<RdmaStatus> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status = self.status()?;
            if wanted(&status) {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("timeout while waiting for {what}: {status:?}").into());
            }
        }
    }

    /// Returns the number of file descriptors and the resident kilobytes of the service's process.
    pub fn resources(&self) -> Outcome<(usize, u64)> {
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let text = fs::read_to_string(proc.join("status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = line.unwrap_or("").trim().trim_end_matches(" kB").parse()?;
        Ok((fs::read_dir(proc.join("fd"))?.count(), resident))
    }

    pub fn shut_down(mut self) -> Outcome {
        request(&mut self.target.client()?, Command::Shutdown)?;
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("the service ended with {status}").into()),
                None if Instant::now() > deadline => return Err("the service does not end".into()),
                None => thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

impl Drop for TrialService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Target {
    pub fn client(&self) -> Outcome<Client> {
        Ok(Client::new(RcTransport::connect(
            self.address,
            &self.keys,
            TIMEOUT,
        )?))
    }

    pub fn link(&self) -> Outcome<RcTransport> {
        Ok(RcTransport::connect_unauthenticated(
            self.address,
            Instant::now() + TIMEOUT,
        )?)
    }

    /// Writes a key file and reads the keys from it.
    pub fn keys_from(&self, name: &str, text: &str) -> Outcome<Keys> {
        let path = self.dir.join(name);
        fs::write(&path, text)?;
        restrict(&path)?;
        Ok(Keys::read(&path)?)
    }
}

fn restrict(path: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o600),
    )?)
}

pub fn request(client: &mut Client, command: Command) -> Outcome<AnswerBody> {
    client
        .request(command, None, TIMEOUT)
        .map_err(|e| e.to_string().into())
}

pub fn status(client: &mut Client) -> Outcome<RdmaStatus> {
    match request(client, Command::Status)? {
        AnswerBody::Status(it) => it
            .control
            .rdma
            .ok_or_else(|| "no RDMA in the status".into()),
        other => Err(format!("{other:?}").into()),
    }
}

pub fn check(condition: bool, reason: impl std::fmt::Display) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(reason.to_string().into())
    }
}
