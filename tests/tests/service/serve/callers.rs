//! Tokens, client certificates, roles, and the audit trail.

use super::{Answer, Service, Stored, serve};
use rustix::process::Signal;
use std::{fs, path::PathBuf};
use wqcap_tests::{Dir, Done, Program, Wqcap, wqcap::wqcap};

/// Certificates of a test's own authority, made by openssl.
pub(super) struct Authority {
    dir: Dir,
}

impl Authority {
    pub(super) fn new() -> Self {
        let it = Self { dir: Dir::new() };
        it.openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=test authority",
            "-keyout",
            "ca_key.pem",
            "-out",
            "ca_cert.pem",
        ]);
        it.issue("server", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        it.issue("client", "extendedKeyUsage=clientAuth");
        it
    }

    /// Makes `NAME_cert.pem` and `NAME_key.pem`, as stenographer's clients expect them.
    fn issue(&self, name: &str, extension: &str) {
        let [key, request, cert] =
            ["key.pem", "request.pem", "cert.pem"].map(|it| format!("{name}_{it}"));
        self.openssl(&[
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            &format!("/CN={name} of test"),
            "-keyout",
            &key,
            "-out",
            &request,
        ]);
        let file = self.dir.write("extension", extension);
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &request,
            "-CA",
            "ca_cert.pem",
            "-CAkey",
            "ca_key.pem",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            file.to_str().expect("plain"),
            "-out",
            &cert,
        ]);
    }

    fn openssl(&self, args: &[&str]) {
        let _ = Program::new("openssl")
            .args(args)
            .cwd(self.dir.path())
            .run()
            .expect(0);
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    pub(super) fn folder(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Returns the settings of a service with TLS.
    pub(super) fn sets(&self) -> Vec<String> {
        vec![
            format!("serve.tls_cert={}", self.file("server_cert.pem")),
            format!("serve.tls_key={}", self.file("server_key.pem")),
        ]
    }
}

/// Makes a token and returns it.
pub(super) fn token(file: &str, name: &str, role: &str) -> String {
    let set = format!("serve.tokens={file}");
    let done = wqcap(["serve", "--set", &set, "--new-token", name, "--role", role])
        .run()
        .expect(0);
    done.stdout.trim().to_owned()
}

fn refused(sets: &[String], cap: &std::path::Path) -> Done {
    serve(cap, sets.iter().cloned()).run().expect(2)
}

#[test]
fn callers_get_what_their_role_allows() {
    let stored = Stored::new();
    let authority = Authority::new();
    let tokens = stored.dir.join("tokens").display().to_string();
    let (alice, ops) = (
        token(&tokens, "alice", "read"),
        token(&tokens, "ops", "mark"),
    );
    let mut sets = authority.sets();
    sets.extend([
        format!("serve.client_ca={}", authority.file("ca_cert.pem")),
        format!("serve.tokens={tokens}"),
    ]);
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let service = Service::start(&stored.serve(&sets));
    let ca = authority.file("ca_cert.pem");
    let ask = |path: &str, more: &[&str]| {
        let url = service.url.replace("127.0.0.1", "localhost");
        Answer::of(
            &format!("{url}{path}"),
            &[&["--cacert", &ca], more].concat(),
        )
    };
    let bearer = |token: &str| format!("Authorization: Bearer {token}");
    let (as_alice, as_ops) = (bearer(&alice), bearer(&ops));
    // Without TLS, or without trust, there is no answer.
    assert_eq!(
        Answer::of(&service.url.replace("https", "http"), &[]).status,
        0
    );
    // Nobody in particular.
    for path in [
        "/api/v1/status",
        "/api/v1/packets",
        "/api/v1/flows",
        "/metrics",
    ] {
        let _ = ask(path, &[]).assert_error(401, "unauthenticated");
    }
    let _ = ask("/query", &["-d", "tcp"]).assert_error(401, "unauthenticated");
    let _ = ask("/api/v1/status", &["-H", &bearer("0000")]).assert_error(401, "unauthenticated");
    for path in ["/", "/app.js", "/style.css", "/healthz", "/openapi.json"] {
        assert_eq!(ask(path, &[]).status, 200, "{path}");
    }
    // A token and a certificate.
    let (cert, key) = (
        authority.file("client_cert.pem"),
        authority.file("client_key.pem"),
    );
    let certificate = ["--cert", &cert, "--key", &key];
    for (who, by) in [
        ("alice", &["-H", as_alice.as_str()][..]),
        ("client of test", &certificate[..]),
    ] {
        let status = ask("/api/v1/status", by).json();
        assert_eq!(
            (status["who"].as_str(), status["role"].as_str()),
            (Some(who), Some("read"))
        );
        assert_eq!(ask("/api/v1/packets", by).status, 200, "{who}");
        let json = ["-H", "Content-Type: application/json"];
        let mark = [by, &json, &["-d", "{\"text\":\"x\"}"]].concat();
        let _ = ask("/api/v1/marks", &mark).assert_error(403, "needs_mark");
        let pin = [
            by,
            &json,
            &["-d", "{\"from\":\"-1h\",\"to\":\"now\",\"reason\":\"x\"}"],
        ]
        .concat();
        let _ = ask("/api/v1/pins", &pin).assert_error(403, "needs_mark");
    }
    // The role mark.
    let json = [
        "-H",
        as_ops.as_str(),
        "-H",
        "Content-Type: application/json",
        "-d",
    ];
    let pin = "{\"from\":\"-1h\",\"to\":\"now\",\"reason\":\"incident 7\",\"filter\":\"tcp\"}";
    let made = ask("/api/v1/pins", &[&json[..], &[pin]].concat());
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let listed = wqcap(["pin", "list"])
        .args(["--dir".as_ref(), stored.cap().as_os_str()])
        .run()
        .expect(0);
    assert!(
        listed.stdout.contains(&id) && listed.stdout.contains("incident 7"),
        "{listed}"
    );
    let of_pin = ask(&format!("/api/v1/packets?mark={id}"), &["-H", &as_alice]);
    let of_filter = ask("/api/v1/packets?filter=tcp", &["-H", &as_alice]);
    assert_eq!(of_pin.body, of_filter.body);
    for _ in 0..12 {
        let again = ask("/api/v1/pins", &[&json[..], &[pin]].concat());
        assert_eq!(again.status, 201, "{}", again.text());
    }
    // Without a capture no moment can be marked.
    let _ = ask(
        "/api/v1/marks",
        &[&json[..], &["{\"text\":\"x\"}"]].concat(),
    )
    .assert_error(503, "no_capture");
    // Pages of other sites.
    let foreign = [&json[..], &[pin, "-H", "Origin: https://evil.example"]].concat();
    let _ = ask("/api/v1/pins", &foreign).assert_error(403, "foreign_origin");
    // A browser keeps the token in a cookie.
    let body = format!("{{\"token\":\"{alice}\"}}");
    let log_in = ask(
        "/api/v1/session",
        &["-H", "Content-Type: application/json", "-d", &body],
    );
    assert_eq!(log_in.status, 204, "{}", log_in.text());
    let cookie = log_in.header("set-cookie").expect("a cookie");
    for part in ["httponly", "samesite=strict", "secure"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    let pair = format!("Cookie: wqcap_token={alice}");
    assert_eq!(ask("/api/v1/status", &["-H", &pair]).json()["who"], "alice");
    // Who, from where, what, how much, and how complete.
    let audit = service.audit();
    let has = |parts: &[&str]| {
        audit
            .iter()
            .any(|line| parts.iter().all(|it| line.contains(it)))
    };
    assert!(
        has(&[
            "alice at 127.0.0.1",
            "GET /api/v1/packets",
            "complete",
            "30000 frames",
            "bytes in"
        ]),
        "{audit:#?}"
    );
    assert!(
        has(&["client of test at", "GET /api/v1/packets"]),
        "{audit:#?}"
    );
    // The number of lines for changes is not limited.
    let pinned = audit.iter().filter(|line| {
        let parts = ["ops at", "POST /api/v1/pins {", "reason", "changed"];
        parts.iter().all(|it| line.contains(it))
    });
    assert_eq!(pinned.count(), 13, "{audit:#?}");
    assert!(has(&["anonymous at", "refused", "(401)"]), "{audit:#?}");
    let secrets = [&alice, &ops];
    assert!(
        !audit
            .iter()
            .any(|line| secrets.iter().any(|it| line.contains(*it))),
        "{audit:#?}"
    );
    let done = service.stop();
    assert!(!done.stderr.contains(&alice), "{done}");
}

#[test]
fn an_open_address_needs_tls_and_callers() {
    let dir = Dir::new();
    let authority = Authority::new();
    let cap = dir.folder("cap");
    let tokens = dir.join("tokens").display().to_string();
    let _ = token(&tokens, "alice", "read");
    let open = "serve.listen=0.0.0.0:0".to_owned();
    let tokens = format!("serve.tokens={tokens}");
    let mut only_tls = authority.sets();
    only_tls.push(open.clone());
    for sets in [
        vec![open.clone()],
        vec![open.clone(), tokens.clone()],
        only_tls.clone(),
    ] {
        refused(&sets, &cap).says(&[
            "other machines reach this address",
            "serve.tls_cert",
            "serve.tokens",
        ]);
    }
    let mut sound = only_tls;
    sound.push(tokens);
    let service = Service::start(&serve(&cap, sound));
    assert!(
        service.url.starts_with("https://0.0.0.0:"),
        "{}",
        service.url
    );
    let _ = service.stop();
}

#[test]
fn wrong_files_are_refused_with_their_names() {
    let dir = Dir::new();
    let authority = Authority::new();
    let cap = dir.folder("cap");
    let garbage = dir
        .write("garbage.pem", "no certificate\n")
        .display()
        .to_string();
    let wide = dir.write("wide", "").display().to_string();
    let line = dir.write("line", "alice read plain-text-token\n");
    let line_text = line.display().to_string();
    let _ = Program::new("chmod")
        .args(["600", &line_text])
        .run()
        .expect(0);
    let cert = format!("serve.tls_cert={}", authority.file("server_cert.pem"));
    let other_key = format!("serve.tls_key={}", authority.file("client_key.pem"));
    for (sets, parts) in [
        (vec![cert.clone()], &["serve.tls_cert", "serve.tls_key"][..]),
        (
            vec![cert.clone(), format!("serve.tls_key={garbage}")],
            &["garbage.pem"],
        ),
        (vec![cert, other_key], &["server_cert.pem"]),
        (
            vec![format!("serve.client_ca={garbage}")],
            &["serve.client_ca", "serve.tls_cert"],
        ),
        (
            vec![format!("serve.tokens={wide}")],
            &["wide", "0644", "0640"],
        ),
        (
            vec![format!("serve.tokens={line_text}")],
            &["line 1", "sha256:"],
        ),
        (
            vec![format!("serve.tokens={}/none", dir.path().display())],
            &["none", "No such file"],
        ),
        (
            vec!["output.format=none".into()],
            &["no files that could be served"],
        ),
    ] {
        refused(&sets, &cap).says(parts);
    }
    fs::remove_file(line).expect("removed");
}

#[test]
fn marks_reach_the_running_capture() {
    let dir = Dir::new();
    let run = Wqcap::run(&dir, "live")
        .model("synth:size=200,flows=16,pps=500")
        .set("output.format=pcapng")
        .control();
    let mut running = run.start();
    let _ = run.ctl().until_counted(&mut running, "captured", 200);
    let tokens = dir.join("tokens").display().to_string();
    let ops = token(&tokens, "ops", "mark");
    let sets = [
        format!("control.unix={}", run.ctl().socket().display()),
        format!("serve.tokens={tokens}"),
    ];
    let service = Service::start(&serve(run.out_path(), sets));
    let bearer = format!("Authorization: Bearer {ops}");
    let json = ["-H", &bearer, "-H", "Content-Type: application/json", "-d"];
    let body = "{\"text\":\"seen by an analyst\",\"before\":\"5s\",\"after\":\"5s\"}";
    let made = service.ask("/api/v1/marks", &[&json[..], &[body]].concat());
    assert_eq!(made.status, 201, "{}", made.text());
    let id = made.json()["id"].as_str().expect("an id").to_owned();
    let pins = service.ask("/api/v1/pins", &["-H", &bearer]).json();
    let pins = pins["pins"].as_array().expect("pins");
    assert!(pins.iter().any(|it| it["id"] == *id), "{pins:?}");
    for (bad, part) in [
        ("{\"text\":\"\"}", ""),
        ("{\"text\":\"a\\nb\"}", ""),
        ("{\"text\":\"x\",\"before\":\"25h\"}", "before"),
        ("{", "EOF"),
    ] {
        let answer = service.ask("/api/v1/marks", &[&json[..], &[bad]].concat());
        assert_eq!(answer.status, 400, "{bad}: {}", answer.text());
        assert!(answer.text().contains(part), "{bad}: {}", answer.text());
    }
    let _ = service.stop();
    let _ = run.ctl().run(&["shutdown"]).expect(0);
    let _ = running.wait().expect(0);
}

/// Waits until the service has reported `count` reloads in the audit trail.
#[track_caller]
fn until_reloaded(service: &mut Service, count: usize) {
    service.run.until("the reload is reported", |run| {
        run.stderr().matches("what=\"SIGHUP: reload\"").count() == count
    });
}

#[test]
fn a_reload_replaces_tokens_certificates_and_limits() {
    let stored = Stored::new();
    let authority = Authority::new();
    let tokens = stored.dir.join("tokens").display().to_string();
    let alice = token(&tokens, "alice", "read");
    let config = |text: &str| stored.dir.write("serve.toml", format!("[serve]\n{text}"));
    let file = config("max_requests = 4\n");
    let mut sets = authority.sets();
    sets.push(format!("serve.tokens={tokens}"));
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let program = stored.serve(&sets).args(["-c".as_ref(), file.as_os_str()]);
    let mut service = Service::start(&program);
    let ca = authority.file("ca_cert.pem");
    let (by_address, by_name) = (
        service.url.clone(),
        service.url.replace("127.0.0.1", "localhost"),
    );
    let ask = |url: &str, token: &str| {
        let bearer = format!("Authorization: Bearer {token}");
        let path = format!("{url}/api/v1/packets");
        Answer::of(&path, &["--cacert", &ca, "-H", &bearer])
    };
    let whole = ask(&by_address, &alice);
    assert_eq!(whole.status, 200);
    // The new certificate has no address, only a name.
    let bob = token(&tokens, "bob", "read");
    assert_eq!(ask(&by_address, &bob).status, 401, "before the reload");
    authority.issue("server", "subjectAltName=DNS:localhost");
    let _ = config("max_requests = 4\nmax_bytes = 1048576\n");
    service.run.signal(Signal::HUP);
    until_reloaded(&mut service, 1);
    assert_eq!(
        ask(&by_address, &bob).status,
        0,
        "the certificate is replaced"
    );
    let cut = ask(&by_name, &bob);
    assert_eq!(cut.status, 200);
    assert!(cut.body.len() < whole.body.len() / 2, "{}", cut.body.len());
    let audit = service.audit();
    let line = audit.iter().find(|it| it.contains("SIGHUP: reload"));
    let line = line.expect("a line of the reload");
    assert!(line.contains(r#"serve.max_bytes = \"1MiB\""#), "{line}");
    // A key that needs a restart is named, and nothing is replaced.
    let _ = config("max_requests = 4\nclient_ca = \"/nonexistent\"\n");
    service.run.signal(Signal::HUP);
    until_reloaded(&mut service, 2);
    assert!(
        service
            .run
            .stderr()
            .contains("serve.client_ca needs a restart of `wqcap serve`"),
        "{}",
        service.run.stderr()
    );
    assert_eq!(ask(&by_name, &bob).body.len(), cut.body.len());
    // Neither is anything replaced if a file is malformed.
    let _ = config("max_requests = 4\n");
    fs::write(&tokens, "bob\n").expect("written");
    service.run.signal(Signal::HUP);
    until_reloaded(&mut service, 3);
    assert_eq!(ask(&by_name, &alice).body.len(), cut.body.len());
    let done = service.stop();
    done.says(&["SIGHUP: the reload failed", "serve.tokens"]);
}
