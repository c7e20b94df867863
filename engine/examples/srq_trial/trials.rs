//! Clients, good and bad.

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
use wqcap_engine::control::{
    client::{Client, ClientError, RcTransport, Transport},
    protocol::{
        AccessLevel, AnswerBody, Command, Handshake, RdmaStatus, RefusalCode, auth::Keys, fragment,
    },
};

/// How long anything may take: an emulated machine is slow.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the service is and what opens it.
#[derive(Clone)]
struct Place {
    address: SocketAddr,
    keys: Keys,
    key_file: PathBuf,
    dir: PathBuf,
}

/// A service in a process of its own.
struct Served {
    child: Child,
    place: Place,
}

impl Served {
    fn start(place: &Place, more: &str) -> Outcome<Self> {
        let config = place.dir.join("trial.toml");
        let text = format!(
            "[control]\nunix = {:?}\nrdma = \"{}\"\nkey_file = {:?}\n{more}\n",
            place.dir.join("trial.sock"),
            place.address,
            place.key_file
        );
        fs::write(&config, text)?;
        let child = Process::new(std::env::current_exe()?)
            .arg("serve")
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()?;
        let served = Self {
            child,
            place: place.clone(),
        };
        let deadline = Instant::now() + PATIENCE;
        while served.place.client().is_err() {
            if Instant::now() > deadline {
                return Err("the service does not come up".into());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(served)
    }

    fn signal(&self, signal: Signal) -> Outcome {
        let pid = i32::try_from(self.child.id())?;
        kill_process(Pid::from_raw(pid).ok_or("a pid")?, signal)?;
        Ok(())
    }

    fn status(&self) -> Outcome<RdmaStatus> {
        let mut client = self.place.client()?;
        // The thread tells its state twice a second.
        thread::sleep(Duration::from_millis(600));
        status(&mut client)
    }

    /// Asks for the status until it is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&RdmaStatus) -> bool) -> Outcome<RdmaStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status()?;
            if wanted(&status) {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("{what} did not come: {status:?}").into());
            }
        }
    }

    /// Descriptors and resident kilobytes of its process.
    fn held(&self) -> Outcome<(usize, u64)> {
        let proc = PathBuf::from(format!("/proc/{}", self.child.id()));
        let text = fs::read_to_string(proc.join("status"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let resident = line.unwrap_or("").trim().trim_end_matches(" kB").parse()?;
        Ok((fs::read_dir(proc.join("fd"))?.count(), resident))
    }

    fn shut_down(mut self) -> Outcome {
        ask(&mut self.place.client()?, Command::Shutdown)?;
        let deadline = Instant::now() + PATIENCE;
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

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Place {
    fn client(&self) -> Outcome<Client> {
        Ok(Client::new(RcTransport::connect(
            self.address,
            &self.keys,
            PATIENCE,
        )?))
    }

    fn link(&self) -> Outcome<RcTransport> {
        Ok(RcTransport::connect_unauthenticated(
            self.address,
            Instant::now() + PATIENCE,
        )?)
    }

    /// A client with the one key of the other access.
    fn with(&self, name: &str, text: &str) -> Outcome<Keys> {
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

fn ask(client: &mut Client, command: Command) -> Outcome<AnswerBody> {
    client
        .request(command, None, PATIENCE)
        .map_err(|e| e.to_string().into())
}

fn status(client: &mut Client) -> Outcome<RdmaStatus> {
    match ask(client, Command::Status)? {
        AnswerBody::Status(it) => it
            .control
            .rdma
            .ok_or_else(|| "no RDMA in the status".into()),
        other => Err(format!("{other:?}").into()),
    }
}

fn hold(condition: bool, why: impl std::fmt::Display) -> Outcome {
    if condition {
        Ok(())
    } else {
        Err(why.to_string().into())
    }
}

/// Counts and prints.
struct Tally {
    failed: u32,
}

impl Tally {
    fn run<T>(&mut self, name: &str, trial: impl FnOnce() -> Outcome<T>) -> Option<T> {
        let started = Instant::now();
        let outcome = trial();
        let took = started.elapsed().as_secs_f64();
        match outcome {
            Ok(value) => {
                println!("ok {name} ({took:.1} s)");
                Some(value)
            }
            Err(e) => {
                println!("FAIL {name}: {e} ({took:.1} s)");
                self.failed += 1;
                None
            }
        }
    }
}

/// All trials.
pub fn run(address: &str, keys: &str, connects: &str, dir: &str) -> Outcome {
    let place = Place {
        address: address.parse()?,
        keys: Keys::read(Path::new(keys))?,
        key_file: keys.into(),
        dir: dir.into(),
    };
    let connects: u32 = connects.parse()?;
    let mut tally = Tally { failed: 0 };
    // Small enough to be exhausted, and calm only when that is what is tried.
    let small = "srq = 16\nsrq_max = 64\nsrq_calm = \"1h\"";
    let Some(served) = tally.run("the service comes up", || Served::start(&place, small)) else {
        return Err("nothing can be tried".into());
    };
    let t = &mut tally;
    t.run(
        "an exhausted SRQ is refilled and grown, and no request is lost",
        || exhaust(&served),
    );
    t.run("the low watermark is armed again after each event", || {
        again(&served)
    });
    t.run("64 clients on one SRQ are all answered", || many(&served));
    t.run(
        "an answer longer than a receive is split and joined",
        || long(&served),
    );
    t.run("a wrong key is refused", || wrong_key(&served));
    t.run("a proof is worth nothing on another connection", || {
        replay(&served)
    });
    t.run("the read-only key may look and not change", || {
        read_only(&served)
    });
    t.run("oversize and malformed messages are refused", || {
        malformed(&served)
    });
    t.run("who proves nothing is put out", || stranger(&served));
    t.run("clients killed in mid-request leave nothing behind", || {
        killed(&served, keys)
    });
    t.run(
        &format!("{connects} connects and disconnects leak nothing"),
        || churn(&served, connects),
    );
    t.run("the service ends in order", || served.shut_down());
    t.run("a calm SRQ shrinks again", || shrink(&place));
    t.run(
        "a device that resizes nothing has the whole SRQ from the start",
        || fixed(&place),
    );
    if tally.failed > 0 {
        return Err(format!("{} trials failed", tally.failed).into());
    }
    Ok(())
}

/// Clients, each on a thread of its own, that have connected and wait for `go`.
fn crowd(
    place: &Place,
    count: u64,
    each: impl Fn(u64, &mut Client) -> Outcome + Sync,
    between: impl FnOnce() -> Outcome,
) -> Outcome {
    let ready = std::sync::Barrier::new(usize::try_from(count)? + 1);
    let go = std::sync::Barrier::new(usize::try_from(count)? + 1);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..count)
            .map(|i| {
                let (ready, go, each) = (&ready, &go, &each);
                scope.spawn(move || {
                    let client = place.client().map_err(|e| format!("client {i}: {e}"));
                    ready.wait();
                    go.wait();
                    let outcome = each(i, &mut client?);
                    outcome.map_err(|e| format!("client {i}: {e}"))
                })
            })
            .collect();
        ready.wait();
        let paused = between();
        go.wait();
        let outcomes = clients.into_iter().map(|it| it.join().expect("no panic"));
        let failures: Vec<_> = outcomes.filter_map(Result::err).collect();
        paused?;
        hold(failures.is_empty(), failures.join("; "))
    })
}

fn many(served: &Served) -> Outcome {
    let before = served.status()?.transport.requests;
    crowd(
        &served.place,
        64,
        |i, client| {
            for turn in 0..3 {
                let body = match (i + turn) % 4 {
                    0 => ask(client, Command::Stats)?,
                    1 => ask(
                        client,
                        Command::Filter {
                            expression: format!("port {i}"),
                        },
                    )?,
                    2 => ask(client, Command::Rotate)?,
                    _ => ask(client, Command::Status)?,
                };
                let fits = match (i + turn) % 4 {
                    0 => matches!(body, AnswerBody::Stats(_)),
                    1 | 2 => matches!(body, AnswerBody::Changed(_)),
                    _ => matches!(body, AnswerBody::Status(_)),
                };
                hold(fits, format!("{body:?}"))?;
            }
            Ok(())
        },
        || {
            let status = served.status()?;
            hold(
                status.srq.qps >= 64,
                format!("{} QPs on the SRQ", status.srq.qps),
            )
        },
    )?;
    let requests = served.status()?.transport.requests - before;
    hold(requests >= 64 * 3, format!("{requests} requests"))
}

/// Stops the service's process once all are connected; its SRQ runs empty in the kernel; lets it go on.
fn run_dry(served: &Served) -> Outcome {
    thread::scope(|scope| {
        let mut wake = None;
        let outcome = crowd(
            &served.place,
            64,
            |_, client| {
                for _ in 0..2 {
                    ask(client, Command::Stats)?;
                }
                Ok(())
            },
            || {
                served.signal(Signal::STOP)?;
                wake = Some(scope.spawn(|| {
                    thread::sleep(Duration::from_millis(1500));
                    served.signal(Signal::CONT).map_err(|e| e.to_string())
                }));
                Ok(())
            },
        );
        if let Some(wake) = wake {
            wake.join().expect("no panic")?;
        }
        outcome
    })
}

fn exhaust(served: &Served) -> Outcome {
    let before = served.status()?;
    run_dry(served)?;
    let after = served.status()?;
    let (was, is) = (&before.srq, &after.srq);
    hold(
        is.limit_events > was.limit_events,
        format!("no limit event: {is:?}"),
    )?;
    hold(
        is.grown > was.grown && is.max_wr > was.max_wr,
        format!("not grown: {is:?}"),
    )?;
    hold(
        is.posted >= is.limit && is.limit > 0,
        format!("not refilled: {is:?}"),
    )?;
    hold(
        is.receiver_not_ready > was.receiver_not_ready,
        format!("nobody was told to wait: {is:?}"),
    )
}

fn again(served: &Served) -> Outcome {
    for _ in 0..2 {
        let before = served.status()?.srq;
        run_dry(served)?;
        let after = served.status()?.srq;
        hold(
            after.limit_events > before.limit_events,
            format!("{before:?} {after:?}"),
        )?;
        hold(
            after.armed > before.armed && after.limit > 0,
            format!("not armed: {after:?}"),
        )?;
    }
    Ok(())
}

fn shrink(place: &Place) -> Outcome {
    let served = Served::start(place, "srq = 16\nsrq_max = 256\nsrq_calm = \"3s\"")?;
    run_dry(&served)?;
    let before = served.status()?.srq;
    let mut client = served.place.client()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        // Receives above the smaller size must be used up before the queue can shrink.
        for _ in 0..20 {
            ask(&mut client, Command::Stats)?;
        }
        let after = status(&mut client)?.srq;
        if after.shrunk > before.shrunk && after.max_wr < before.max_wr {
            hold(after.limit > 0, format!("not armed: {after:?}"))?;
            return served.shut_down();
        }
        hold(Instant::now() < deadline, format!("{before:?} {after:?}"))?;
        thread::sleep(Duration::from_millis(200));
    }
}

fn long(served: &Served) -> Outcome {
    match ask(&mut served.place.client()?, Command::Plan)? {
        AnswerBody::Plan(plan) => {
            let numbers = plan.as_array().ok_or("no list")?;
            hold(
                numbers.len() == 10_000 && numbers[9_999] == 1_009_999,
                "another plan",
            )
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn refused_link(outcome: std::io::Result<()>) -> Outcome {
    match outcome {
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn wrong_key(served: &Served) -> Outcome {
    let before = served.status()?.transport.refused;
    let wrong = served
        .place
        .with("wrong", &format!("read_write = \"{}\"", "ee".repeat(32)))?;
    let outcome = RcTransport::connect(served.place.address, &wrong, PATIENCE).map(drop);
    refused_link(outcome)?;
    let after = served.until("a refusal", |it| it.transport.refused > before)?;
    hold(after.transport.refused == before + 1, format!("{after:?}"))
}

/// What one connection has proved is sent again on another.
fn replay(served: &Served) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    let (mut one, mut other) = (served.place.link()?, served.place.link()?);
    let challenge = one.receive_challenge(deadline)?;
    let other_challenge = other.receive_challenge(deadline)?;
    hold(challenge != other_challenge, "two challenges are the same")?;
    let proof = one.proof(&served.place.keys, AccessLevel::ReadWrite, challenge)?;
    one.send(proof.text().as_bytes())?;
    let welcome: Handshake = serde_json::from_slice(&one.receive(deadline)?)?;
    hold(
        matches!(welcome, Handshake::Welcome { .. }),
        format!("{welcome:?}"),
    )?;
    other.send(proof.text().as_bytes())?;
    hold(
        other.receive(deadline).is_err(),
        "the replayed proof was answered",
    )
}

fn read_only(served: &Served) -> Outcome {
    let text = fs::read_to_string(&served.place.key_file)?;
    let line = text
        .lines()
        .find(|it| it.starts_with("read_only"))
        .ok_or("no key")?;
    let keys = served.place.with("look", line)?;
    let mut client = Client::new(RcTransport::connect(served.place.address, &keys, PATIENCE)?);
    status(&mut client)?;
    match client.request(Command::Rotate, None, PATIENCE) {
        Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::Denied => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn proven(served: &Served) -> Outcome<RcTransport> {
    Ok(RcTransport::connect(
        served.place.address,
        &served.place.keys,
        PATIENCE,
    )?)
}

fn malformed(served: &Served) -> Outcome {
    let deadline = || Instant::now() + PATIENCE;
    let mut nonsense = proven(served)?;
    nonsense.send(b"{\"dance\":1}")?;
    let answer = String::from_utf8(nonsense.receive(deadline())?)?;
    hold(answer.contains("malformed"), &answer)?;

    let mut oversize = proven(served)?;
    let text = vec![b' '; 128 << 10];
    // The service ends the connection before all of it is sent.
    let _ = oversize.send(&text);
    let answer = oversize.receive(deadline()).map(String::from_utf8);
    hold(
        !matches!(&answer, Ok(Ok(text)) if !text.contains("too_large")),
        format!("{answer:?}"),
    )?;
    hold(
        oversize.receive(deadline()).is_err(),
        "the connection goes on",
    )?;

    let mut garbage = proven(served)?;
    garbage.send_fragment(b"\0\0\0garbage")?;
    let answer = garbage.receive(deadline()).map(String::from_utf8);
    hold(
        !matches!(&answer, Ok(Ok(text)) if !text.contains("malformed")),
        format!("{answer:?}"),
    )?;
    hold(
        garbage.receive(deadline()).is_err(),
        "the connection goes on",
    )?;
    served.status().map(drop)
}

fn stranger(served: &Served) -> Outcome {
    let mut silent = served.place.link()?;
    let mut eager = served.place.link()?;
    let deadline = Instant::now() + PATIENCE;
    silent.receive_challenge(deadline)?;
    eager.receive_challenge(deadline)?;
    eager.send(br#"{"version":1,"id":1,"command":{"do":"status"}}"#)?;
    hold(eager.receive(deadline).is_err(), "a stranger was answered")?;
    let started = Instant::now();
    hold(
        silent.receive(deadline).is_err(),
        "a stranger was told something",
    )?;
    hold(started.elapsed() < PATIENCE, "a stranger stays")
}

/// Begins a request of two parts and waits to be killed.
pub fn half(address: &str, keys: &str) -> Outcome {
    let mut link = RcTransport::connect(address.parse()?, &Keys::read(Path::new(keys))?, PATIENCE)?;
    let mut first = Vec::new();
    let text = vec![b' '; link.fragment_len() + 1];
    fragment::split(0, &text, link.fragment_len(), |part| {
        if first.is_empty() {
            first = part;
        }
    });
    link.send_fragment(&first)?;
    println!("half");
    thread::sleep(PATIENCE);
    Ok(())
}

fn killed(served: &Served, keys: &str) -> Outcome {
    let before = served.until("a quiet service", |it| it.srq.qps == 1)?;
    for _ in 0..8 {
        let mut child = Process::new(std::env::current_exe()?)
            .args(["half", &served.place.address.to_string(), keys])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = [0; 5];
        let told = child
            .stdout
            .take()
            .map(|mut it| std::io::Read::read_exact(&mut it, &mut line));
        child.kill()?;
        child.wait()?;
        hold(
            matches!(told, Some(Ok(()))),
            "the client did not come as far as that",
        )?;
    }
    let after = served.until("the end of their QPs", |it| it.srq.qps == 1)?;
    hold(
        after.srq.posted + 8 > before.srq.posted,
        format!("{before:?} {after:?}"),
    )?;
    served.status().map(drop)
}

fn churn(served: &Served, connects: u32) -> Outcome {
    let quiet = |it: &RdmaStatus| it.srq.qps == 1;
    // The first ones warm up allocators and caches.
    for _ in 0..20 {
        served.place.client()?;
    }
    served.until("a quiet service", quiet)?;
    let (before, kernel) = (served.held()?, resources()?);
    for i in 0..connects {
        match i % 3 {
            0 => drop(served.place.link()?),
            _ => {
                ask(&mut served.place.client()?, Command::Stats)?;
            }
        }
    }
    served.until("a quiet service", quiet)?;
    let (after, left) = (served.held()?, resources()?);
    hold(
        after.0 == before.0,
        format!("{} descriptors, {} before", after.0, before.0),
    )?;
    let grown = after.1.saturating_sub(before.1);
    hold(grown < 2048, format!("{grown} KiB more than before"))?;
    hold(
        kernel == left,
        format!("objects in the kernel: {kernel} before, {left} after"),
    )
}

/// Counts of RDMA objects, by kind, as the kernel has them.
fn resources() -> Outcome<String> {
    let output = Process::new("rdma").args(["resource", "show"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn fixed(place: &Place) -> Outcome {
    let served = Served::start(place, "srq = 16\nsrq_max = 64\nsrq_resize = false")?;
    let before = served.status()?.srq;
    hold(
        !before.resizes && before.posted == 64,
        format!("{before:?}"),
    )?;
    run_dry(&served)?;
    let after = served.status()?.srq;
    hold(
        after.limit_events > 0 && after.limit > 0,
        format!("{after:?}"),
    )?;
    hold(after.grown == 0 && after.posted == 64, format!("{after:?}"))?;
    served.shut_down()
}
