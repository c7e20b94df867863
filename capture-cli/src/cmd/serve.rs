//! `wqcap serve`: packets, flow records and the state of a capture over HTTPS.

use crate::{
    args::ServeArgs,
    cmd::key,
    daemon::{self, reload::Reloadable, sandbox::Sandbox, sd_notify::Service, signals},
    failure::Failure,
    term::{output, stderr, table, terminal},
};
use rustix::process::{getpriority_process, setpriority_process};
use std::{sync::atomic::Ordering, time::Duration};
use wqcap_engine::{
    config::{Clock, Config, Format, ServeConfig},
    plan::available_memory,
};
use wqcap_serve::{FlowsFolder, ServeLimits, ServePlan, Server, ServerError, TlsFiles, identity};
use wqcap_supervisor::{KeyReload, ReloadTable};

/// Nice value of `wqcap serve`. Without a separate I/O class, the kernel derives the priority for
/// I/O from it: (nice + 20) / 5 (ioprio_set(2)).
const NICE: i32 = 10;

/// Memory in bytes that all answers share: the budgets of open files for decompression and records
/// (512 MiB), and for their buffers (256 MiB).
const SHARED: u64 = 768 << 20;
/// Memory in bytes of an answer whose client does not read: five pieces of 2 MiB, and the merge of
/// its files. 48 of them took 15.6 MiB each.
const OF_ANSWER: u64 = 16 << 20;

/// Effects of a reload on the configuration keys of `wqcap serve`. A reload always reads tokens and
/// certificates again.
const KEYS: ReloadTable = ReloadTable {
    process: "`wqcap serve`",
    keys: {
        use KeyReload::{Applies, NeedsRestart, Unused};
        const SECRETS: KeyReload = NeedsRestart(
            "the sandbox permits only the files of the start, whose content a reload reads again",
        );
        const FOLDERS: KeyReload =
            NeedsRestart("the sandbox permits only the folders of the start");
        &[
            ("serve.max_requests", Applies),
            ("serve.max_bytes", Applies),
            (
                "serve.listen",
                NeedsRestart("the service is bound to its address"),
            ),
            ("serve.*", SECRETS),
            ("output.dir", FOLDERS),
            ("output.index_dir", FOLDERS),
            ("output.encrypt_key*", SECRETS),
            ("flows*", FOLDERS),
            (
                "control*",
                NeedsRestart("the socket of the capture is known from the start"),
            ),
            (
                "ship.sensor",
                NeedsRestart("the name of the sensor is known from the start"),
            ),
            (
                "process.*",
                NeedsRestart("the process has entered its sandbox"),
            ),
            ("*", Unused),
        ]
    },
};

impl From<ServerError> for Failure {
    fn from(e: ServerError) -> Self {
        match e {
            ServerError::Threads(_) => Self::failed(e.to_string()),
            e => Self::of_setup(&e, &e),
        }
    }
}

/// Runs `wqcap serve` until a signal, or makes an access token.
pub fn serve(args: &ServeArgs, quiet: bool) -> Result<(), Failure> {
    let config = args.config.load()?;
    let serve = config.serve.clone().unwrap_or_default();
    if let Some(name) = &args.new_token {
        return new_token(args, &serve, name);
    }
    let plan = plan(&config, &serve)?;
    warn_about_memory(&plan.limits);
    let file = args.config.file.as_deref();
    let mut service = Service::new();
    // Each answer may need many files.
    daemon::raise_descriptor_limit();
    // The capture has priority.
    if getpriority_process(None).is_ok_and(|it| it < NICE) {
        let _ = setpriority_process(None, NICE);
    }
    Sandbox::enter_to_serve(
        &config,
        &plan,
        file.filter(|it| it.as_os_str() != "-"),
        serve.listen.port,
    )?;
    // Answers must not wait for a log collector.
    stderr::detach();
    stderr::start_writer()?;
    let signals = signals::catch_to_reload(true)?;
    let scheme = match plan.tls {
        Some(_) => "https",
        None => "http",
    };
    let server = Server::bind(plan)?;
    let address = server.address;
    if !quiet {
        terminal::print_line(format_args!("serving at {scheme}://{address}/"));
    }
    let status = format!("`wqcap serve` answers requests at {scheme}://{address}");
    service.ready(&status);
    let handle = server.reload_handle();
    let mut reloadable = Reloadable::new(&args.config, KEYS, config, |it| {
        it.serve.get_or_insert_default();
    });
    server.run(|| {
        service.alive(&status);
        reloadable.attend(&signals, |new| {
            let serve = new.serve.clone().unwrap_or_default();
            let limits = limits(&serve);
            warn_about_memory(&limits);
            handle.reload(limits)?;
            Ok("tokens and certificates were read again".into())
        });
        !signals.stop_flag().load(Ordering::Relaxed)
    })?;
    service.stopping();
    Ok(())
}

/// Makes an access token, stores its hash in the file of tokens, and prints it.
fn new_token(args: &ServeArgs, serve: &ServeConfig, name: &str) -> Result<(), Failure> {
    let none = || {
        Failure::refused(
            "serve.tokens is not set; name the file of tokens in [serve] of the config (-c CONFIG), or with --set serve.tokens=FILE",
        )
    };
    let path = serve.tokens.as_ref().ok_or_else(none)?;
    let token = identity::add_token(path, name, args.role)
        .map_err(|e| Failure::refused(format!("serve.tokens = {path:?}: {e}")))?;
    output::print(&format!("{token}\n"))?;
    terminal::print_note(format_args!(
        "this is the only copy of the token; a running wqcap serve reads the file at its next start, or on SIGHUP"
    ));
    Ok(())
}

/// Makes the plan of the HTTP service from the configuration.
fn plan(config: &Config, serve: &ServeConfig) -> Result<ServePlan, Failure> {
    let output = &config.output;
    if output.is_stdout() || output.format == Format::None {
        return Err(Failure::refused(
            "this config writes no files that could be served; set output.dir and output.format",
        ));
    }
    let index_dir = Some(&output.index_dir).filter(|it| !it.as_os_str().is_empty());
    for (key, dir) in [
        ("output.dir", Some(&output.dir)),
        ("output.index_dir", index_dir),
        ("flows.dir", config.flows.as_ref().map(|it| &it.dir)),
    ] {
        let Some(dir) = dir.filter(|it| !it.is_dir()) else {
            continue;
        };
        // The capture may create it later, or its file system may be mounted later.
        return Err(Failure::failed(format!(
            "{key} = {dir:?}: there is no such directory; start the capture first, or use its config (-c CONFIG)"
        )));
    }
    // A name server may answer later.
    let listen = serve.listen.resolve().map_err(|e| {
        Failure::failed(format!(
            "serve.listen = \"{}\": cannot listen on this address: {e}",
            serve.listen
        ))
    })?;
    let tls = match (&serve.tls_cert, &serve.tls_key) {
        (Some(cert), Some(key)) => Some(TlsFiles {
            cert: cert.clone(),
            key: key.clone(),
            client_ca: serve.client_ca.clone(),
        }),
        _ => None,
    };
    let key = output.key_source();
    let key = key.map(|it| key::read(&it, it.config_key())).transpose()?;
    let sensor = config.ship.as_ref().and_then(|it| it.sensor.as_ref());
    let names = rustix::system::uname();
    Ok(ServePlan {
        listen,
        tls,
        tokens: serve.tokens.clone(),
        dir: output.dir.clone(),
        index_dir: index_dir.cloned(),
        flows: config.flows.as_ref().map(|it| FlowsFolder {
            dir: it.dir.clone(),
            delay: it.active.0 + it.idle.0 + 2 * it.interval.0 + Duration::from_secs(10),
        }),
        control: config.control.as_ref().map(|it| it.unix.clone()),
        has_nic_clock: config.capture.clock == Clock::Nic,
        key,
        sensor: match sensor {
            Some(name) => name.as_str().to_owned(),
            None => names.nodename().to_string_lossy().into_owned(),
        },
        limits: limits(serve),
    })
}

/// Logs a warning if the answers that the limits permit may need more memory than this process may
/// have.
fn warn_about_memory(limits: &ServeLimits) {
    if let Some(problem) = memory_problem(limits.max_requests, available_memory()) {
        tracing::warn!("{problem}");
    }
}

/// Returns the message that `max_requests` answers at the same time may need more than the
/// `available` bytes of memory.
fn memory_problem(max_requests: usize, available: u64) -> Option<String> {
    let needed = SHARED + max_requests as u64 * OF_ANSWER;
    let fits = (available.saturating_sub(SHARED) / OF_ANSWER).max(1);
    (needed > available).then(|| {
        format!(
            "serve.max_requests = {max_requests}: this many answers at the same time may need {} of memory, and this process may have {}; set at most {fits}, or raise MemoryMax= of the unit",
            table::bytes(needed),
            table::bytes(available)
        )
    })
}

/// Returns the limits of requests and answers that the configuration sets.
fn limits(serve: &ServeConfig) -> ServeLimits {
    ServeLimits {
        // The configuration limits this to 1 to 256.
        max_requests: serve.max_requests as usize,
        max_bytes: serve.max_bytes.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_requests_that_needs_too_much_memory_is_named() {
        assert_eq!(memory_problem(8, 2 << 30), None);
        assert_eq!(memory_problem(80, 2 << 30), None);
        let problem = memory_problem(81, 2 << 30).expect("too much");
        for part in ["serve.max_requests = 81", "2 GiB", "set at most 80,"] {
            assert!(problem.contains(part), "{problem}");
        }
        let problem = memory_problem(8, 512 << 20).expect("too much");
        assert!(problem.contains("set at most 1,"), "{problem}");
    }
}
