//! Trials of the control service with well-behaved and misbehaving clients.

use crate::{
    Outcome,
    service::{TIMEOUT, Target, TrialService, check, request, status},
};
use rustix::process::Signal;
use std::{
    fs,
    path::Path,
    process::{Command as Process, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use wqcap_control::{
    client::{Client, ClientError, RcTransport, Transport},
    protocol::{
        AccessLevel, AnswerBody, Command, Handshake, RdmaStatus, RefusalCode, auth::Keys, fragment,
    },
};

/// Runner of trials that prints each result and counts failures.
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

/// Runs all trials.
pub fn run(address: &str, keys: &str, connects: &str, dir: &str) -> Outcome {
    let target = Target {
        address: address.parse()?,
        keys: Keys::read(Path::new(keys))?,
        key_file: keys.into(),
        dir: dir.into(),
    };
    let connects: u32 = connects.parse()?;
    let mut tally = Tally { failed: 0 };
    // Small enough to be exhausted. The SRQ shrinks only in the trial of shrinking.
    let small = "srq = 16\nsrq_max = 64\nsrq_calm = \"1h\"";
    let Some(service) = tally.run("the service starts", || TrialService::start(&target, small))
    else {
        return Err("no trial is possible".into());
    };
    let t = &mut tally;
    t.run(
        "an exhausted SRQ is refilled and grown, and no request is lost",
        || exhausted_srq(&service),
    );
    t.run("the low watermark is armed again after each event", || {
        limit_rearmed(&service)
    });
    t.run("64 clients on one SRQ all get their answers", || {
        many_clients(&service)
    });
    t.run(
        "an answer longer than a receive is fragmented and reassembled",
        || long_answer(&service),
    );
    t.run("a wrong key is refused", || wrong_key(&service));
    t.run("a proof is not valid on another connection", || {
        replayed_proof(&service)
    });
    t.run("a proof for another service is not valid", || {
        foreign_proof(&service)
    });
    t.run(
        "peers without a proof hold 16 slots at most, and others are served",
        || crowd_without_proof(&service),
    );
    t.run("the read-only key gives read-only access", || {
        read_only(&service)
    });
    t.run("oversize and malformed messages are refused", || {
        malformed(&service)
    });
    t.run("a client that proves nothing is disconnected", || {
        no_proof(&service)
    });
    t.run("clients killed in mid-request leave nothing behind", || {
        killed_clients(&service, keys)
    });
    t.run(
        &format!("{connects} connects and disconnects leak nothing"),
        || connects_and_disconnects(&service, connects),
    );
    t.run("the service ends in order", || service.shut_down());
    t.run("a calm SRQ shrinks again", || calm_srq(&target));
    t.run(
        "without resizing the SRQ has its full size from the start",
        || no_resizing(&target),
    );
    if tally.failed > 0 {
        return Err(format!("{} trials failed", tally.failed).into());
    }
    Ok(())
}

/// Runs `each` in `count` concurrent clients, after `between` has run with all of them connected.
fn crowd(
    target: &Target,
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
                    let client = target.client().map_err(|e| format!("client {i}: {e}"));
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
        check(failures.is_empty(), failures.join("; "))
    })
}

fn many_clients(service: &TrialService) -> Outcome {
    let before = service.status()?.transport.requests;
    crowd(
        &service.target,
        64,
        |i, client| {
            for turn in 0..3 {
                let body = match (i + turn) % 4 {
                    0 => request(client, Command::Stats)?,
                    1 => request(
                        client,
                        Command::Filter {
                            expression: format!("port {i}"),
                        },
                    )?,
                    2 => request(client, Command::Rotate)?,
                    _ => request(client, Command::Status)?,
                };
                let fits = match (i + turn) % 4 {
                    0 => matches!(body, AnswerBody::Stats(_)),
                    1 | 2 => matches!(body, AnswerBody::Changed(_)),
                    _ => matches!(body, AnswerBody::Status(_)),
                };
                check(fits, format!("{body:?}"))?;
            }
            Ok(())
        },
        || {
            let status = service.status()?;
            check(
                status.srq.qps >= 64,
                format!("{} QPs on the SRQ", status.srq.qps),
            )
        },
    )?;
    let requests = service.status()?.transport.requests - before;
    check(requests >= 64 * 3, format!("{requests} requests"))
}

/// Returns the number of requests that the devices of this machine have refused because an SRQ had
/// no receive. The kernel driver rxe counts them, whether or not the service's process runs.
fn refused_without_receive() -> Outcome<u64> {
    let mut sum = 0;
    for device in fs::read_dir("/sys/class/infiniband")? {
        let counter = device?.path().join("ports/1/hw_counters/send_rnr_err");
        sum += fs::read_to_string(counter)?.trim().parse::<u64>()?;
    }
    Ok(sum)
}

fn until_more_are_refused(before: u64) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    while refused_without_receive()? == before {
        check(Instant::now() < deadline, "the SRQ does not run empty")?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Stops the service's process once all clients are connected, until the SRQ has run empty in the
/// kernel, then continues the process. The clients send more requests than the SRQ has receives.
fn run_dry(service: &TrialService) -> Outcome {
    thread::scope(|scope| {
        let mut continuing = None;
        let outcome = crowd(
            &service.target,
            // More than the largest of these SRQs holds, including the rounding by the device.
            96,
            |_, client| {
                for _ in 0..2 {
                    request(client, Command::Stats)?;
                }
                Ok(())
            },
            || {
                let before = refused_without_receive()?;
                service.signal(Signal::STOP)?;
                continuing = Some(scope.spawn(move || {
                    let ran_dry = until_more_are_refused(before).map_err(|e| e.to_string());
                    service
                        .signal(Signal::CONT)
                        .map_err(|e| e.to_string())
                        .and(ran_dry)
                }));
                Ok(())
            },
        );
        if let Some(continuing) = continuing {
            continuing.join().expect("no panic")?;
        }
        outcome
    })
}

fn exhausted_srq(service: &TrialService) -> Outcome {
    let before = service.status()?;
    run_dry(service)?;
    let after = service.until("a limit event", |it| {
        it.srq.limit_events > before.srq.limit_events
    })?;
    let (was, is) = (&before.srq, &after.srq);
    check(
        is.grown > was.grown && is.max_wr > was.max_wr,
        format!("not grown: {is:?}"),
    )?;
    check(
        is.posted >= is.limit && is.limit > 0,
        format!("not refilled: {is:?}"),
    )?;
    check(
        is.receiver_not_ready > was.receiver_not_ready,
        format!("no receiver-not-ready was counted: {is:?}"),
    )
}

fn limit_rearmed(service: &TrialService) -> Outcome {
    for _ in 0..2 {
        let before = service.status()?.srq;
        run_dry(service)?;
        service.until("a limit event and an armed limit", |it| {
            it.srq.limit_events > before.limit_events
                && it.srq.armed > before.armed
                && it.srq.limit > 0
        })?;
    }
    Ok(())
}

fn calm_srq(target: &Target) -> Outcome {
    let service = TrialService::start(target, "srq = 16\nsrq_max = 256\nsrq_calm = \"3s\"")?;
    run_dry(&service)?;
    let before = service.status()?.srq;
    let mut client = service.target.client()?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // Receives above the smaller size must be consumed before the SRQ can shrink.
        for _ in 0..20 {
            request(&mut client, Command::Stats)?;
        }
        let after = status(&mut client)?.srq;
        if after.shrunk > before.shrunk && after.max_wr < before.max_wr {
            check(after.limit > 0, format!("not armed: {after:?}"))?;
            return service.shut_down();
        }
        check(Instant::now() < deadline, format!("{before:?} {after:?}"))?;
        thread::sleep(Duration::from_millis(200));
    }
}

fn long_answer(service: &TrialService) -> Outcome {
    match request(&mut service.target.client()?, Command::Plan)? {
        AnswerBody::Plan(plan) => {
            let numbers = plan.as_array().ok_or("no list")?;
            check(
                numbers.len() == 10_000 && numbers[9_999] == 1_009_999,
                "the plan differs from the one that the service sends",
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

fn wrong_key(service: &TrialService) -> Outcome {
    let before = service.status()?.transport.refused;
    let wrong = service
        .target
        .keys_from("wrong", &format!("read_write = \"{}\"", "ee".repeat(32)))?;
    let outcome = RcTransport::connect(service.target.address, &wrong, TIMEOUT).map(drop);
    refused_link(outcome)?;
    let after = service.until("a refusal", |it| it.transport.refused > before)?;
    check(after.transport.refused == before + 1, format!("{after:?}"))
}

/// Sends the proof of one connection on another connection.
fn replayed_proof(service: &TrialService) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    let (mut one, mut other) = (service.target.link()?, service.target.link()?);
    let challenge = one.receive_challenge(deadline)?;
    let other_challenge = other.receive_challenge(deadline)?;
    check(challenge != other_challenge, "two challenges are equal")?;
    let (_, proof) = one.transcript(&service.target.keys, AccessLevel::ReadWrite, challenge)?;
    one.send(proof.text().as_bytes())?;
    let welcome: Handshake = serde_json::from_slice(&one.receive(deadline)?)?;
    check(
        matches!(welcome, Handshake::Welcome { .. }),
        format!("{welcome:?}"),
    )?;
    other.send(proof.text().as_bytes())?;
    check(
        other.receive(deadline).is_err(),
        "the replayed proof was answered",
    )
}

/// Proves the right key over the identity of another service.
fn foreign_proof(service: &TrialService) -> Outcome {
    let deadline = Instant::now() + TIMEOUT;
    let mut link = service.target.link()?;
    let mut challenge = link.receive_challenge(deadline)?;
    check(!challenge.service.is_empty(), "the service has no identity")?;
    challenge.service.push('x');
    let (_, proof) = link.transcript(&service.target.keys, AccessLevel::ReadWrite, challenge)?;
    link.send(proof.text().as_bytes())?;
    check(
        link.receive(deadline).is_err(),
        "the proof for another service was answered",
    )
}

/// Connects repeatedly from more peers than may be connected without a proof, while a client sends
/// requests.
fn crowd_without_proof(service: &TrialService) -> Outcome {
    const MOST: u64 = 16;
    let mut client = service.target.client()?;
    let alone = Instant::now() + TIMEOUT;
    while status(&mut client)?.transport.clients > 1 {
        check(Instant::now() < alone, "earlier clients do not leave")?;
        thread::sleep(Duration::from_millis(20));
    }
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..MOST + 8 {
            scope.spawn(|| {
                while !end.load(Ordering::Relaxed) {
                    let deadline = Instant::now() + TIMEOUT;
                    let link =
                        RcTransport::connect_unauthenticated(service.target.address, deadline);
                    // Ends when the service disconnects the peer.
                    let _ = link.map(|mut it| while it.receive(deadline).is_ok() {});
                }
            });
        }
        let outcome = (|| {
            let deadline = Instant::now() + TIMEOUT;
            let mut most = 0;
            while most < MOST {
                let clients = status(&mut client)?.transport.clients - 1;
                most = most.max(clients);
                check(
                    clients <= MOST,
                    format!("{clients} clients without a proof"),
                )?;
                check(
                    Instant::now() < deadline,
                    format!("at most {most} clients at once without a proof"),
                )?;
                thread::sleep(Duration::from_millis(20));
            }
            // A second client with the key waits for a free slot, and is then served together with
            // the first.
            status(&mut service.target.client()?)?;
            status(&mut client).map(drop)
        })();
        end.store(true, Ordering::Relaxed);
        outcome
    })
}

fn read_only(service: &TrialService) -> Outcome {
    let text = fs::read_to_string(&service.target.key_file)?;
    let line = text
        .lines()
        .find(|it| it.starts_with("read_only"))
        .ok_or("no key")?;
    let keys = service.target.keys_from("look", line)?;
    let mut client = Client::new(RcTransport::connect(
        service.target.address,
        &keys,
        TIMEOUT,
    )?);
    status(&mut client)?;
    match client.request(Command::Rotate, None, TIMEOUT) {
        Err(ClientError::Refused(refusal)) if refusal.code == RefusalCode::Denied => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn proven(service: &TrialService) -> Outcome<RcTransport> {
    Ok(RcTransport::connect(
        service.target.address,
        &service.target.keys,
        TIMEOUT,
    )?)
}

fn malformed(service: &TrialService) -> Outcome {
    let deadline = || Instant::now() + TIMEOUT;
    let mut nonsense = proven(service)?;
    nonsense.send(b"{\"dance\":1}")?;
    let answer = String::from_utf8(nonsense.receive(deadline())?)?;
    check(answer.contains("malformed"), &answer)?;

    let mut oversize = proven(service)?;
    let text = vec![b' '; 128 << 10];
    // The service ends the connection before the whole message is sent.
    let _ = oversize.send(&text);
    let answer = oversize.receive(deadline()).map(String::from_utf8);
    check(
        !matches!(&answer, Ok(Ok(text)) if !text.contains("too_large")),
        format!("{answer:?}"),
    )?;
    check(
        oversize.receive(deadline()).is_err(),
        "the connection stays open",
    )?;

    let mut garbage = proven(service)?;
    garbage.send_fragment(b"\0\0\0garbage")?;
    let answer = garbage.receive(deadline()).map(String::from_utf8);
    check(
        !matches!(&answer, Ok(Ok(text)) if !text.contains("malformed")),
        format!("{answer:?}"),
    )?;
    check(
        garbage.receive(deadline()).is_err(),
        "the connection stays open",
    )?;
    service.status().map(drop)
}

fn no_proof(service: &TrialService) -> Outcome {
    let mut silent = service.target.link()?;
    let mut eager = service.target.link()?;
    let deadline = Instant::now() + TIMEOUT;
    silent.receive_challenge(deadline)?;
    eager.receive_challenge(deadline)?;
    eager.send(br#"{"version":1,"id":1,"command":{"do":"status"}}"#)?;
    check(
        eager.receive(deadline).is_err(),
        "an unauthenticated client was answered",
    )?;
    let started = Instant::now();
    check(
        silent.receive(deadline).is_err(),
        "an unauthenticated client received more than the challenge",
    )?;
    check(
        started.elapsed() < TIMEOUT,
        "an unauthenticated client is not disconnected",
    )
}

/// Sends the first of two fragments, then sleeps until the process is killed.
pub fn half(address: &str, keys: &str) -> Outcome {
    let mut link = RcTransport::connect(address.parse()?, &Keys::read(Path::new(keys))?, TIMEOUT)?;
    let mut first = Vec::new();
    let text = vec![b' '; link.fragment_len() + 1];
    fragment::split(0, &text, link.fragment_len(), |part| {
        if first.is_empty() {
            first = part;
        }
    });
    link.send_fragment(&first)?;
    println!("half");
    thread::sleep(TIMEOUT);
    Ok(())
}

fn killed_clients(service: &TrialService, keys: &str) -> Outcome {
    let before = service.until("a service without other clients", |it| it.srq.qps == 1)?;
    for _ in 0..8 {
        let mut child = Process::new(std::env::current_exe()?)
            .args(["half", &service.target.address.to_string(), keys])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = [0; 5];
        let read = child
            .stdout
            .take()
            .map(|mut it| std::io::Read::read_exact(&mut it, &mut line));
        child.kill()?;
        child.wait()?;
        check(
            matches!(read, Some(Ok(()))),
            "the client did not send half a request",
        )?;
    }
    let after = service.until("the end of the QPs of killed clients", |it| it.srq.qps == 1)?;
    check(
        after.srq.posted + 8 > before.srq.posted,
        format!("{before:?} {after:?}"),
    )?;
    service.status().map(drop)
}

fn connects_and_disconnects(service: &TrialService, connects: u32) -> Outcome {
    let quiet = |it: &RdmaStatus| it.srq.qps == 1;
    // The first connections warm up allocators and caches.
    for _ in 0..20 {
        service.target.client()?;
    }
    service.until("a service without other clients", quiet)?;
    let (before, kernel) = (service.resources()?, resources()?);
    for i in 0..connects {
        match i % 3 {
            0 => drop(service.target.link()?),
            _ => {
                request(&mut service.target.client()?, Command::Stats)?;
            }
        }
    }
    service.until("a service without other clients", quiet)?;
    let (after, left) = (service.resources()?, resources()?);
    check(
        after.0 == before.0,
        format!("{} descriptors, {} before", after.0, before.0),
    )?;
    let grown = after.1.saturating_sub(before.1);
    check(grown < 2048, format!("{grown} KiB more than before"))?;
    check(
        kernel == left,
        format!("objects in the kernel: {kernel} before, {left} after"),
    )
}

/// Returns the kernel's counts of RDMA objects by kind.
fn resources() -> Outcome<String> {
    let output = Process::new("rdma").args(["resource", "show"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn no_resizing(target: &Target) -> Outcome {
    let service = TrialService::start(target, "srq = 16\nsrq_max = 64\nsrq_resize = false")?;
    let before = service.status()?.srq;
    check(
        !before.resizes && before.posted == 64,
        format!("{before:?}"),
    )?;
    run_dry(&service)?;
    let after = service.status()?.srq;
    check(
        after.limit_events > 0 && after.limit > 0,
        format!("{after:?}"),
    )?;
    check(after.grown == 0 && after.posted == 64, format!("{after:?}"))?;
    service.shut_down()
}
