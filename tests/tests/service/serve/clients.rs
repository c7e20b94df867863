//! Clients that exist: stenographer's, `wqcap extract`, a browser, and schemathesis.

use super::{
    Service, Stored,
    callers::{Authority, token},
};
use rustix::process::Signal;
use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    thread,
};
use wqcap_tests::{
    Dir, Program, binaries, files,
    frames::{Ends, Frame, IPV4},
    need,
    oracles::pypi,
    process::HANG,
    wqcap::wqcap,
};

/// Returns a reason to skip if a program is not installed.
fn installed(program: &str) -> Result<(), String> {
    let found = Program::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .run();
    match found.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} is not installed; scripts/packages test installs it"
        )),
    }
}

#[test]
fn stenographers_clients_work_unchanged() {
    need!(installed("stenoread"));
    need!(installed("jq"));
    let stored = Stored::shared();
    let authority = Authority::new();
    let mut sets = authority.sets();
    sets.push(format!("serve.client_ca={}", authority.file("ca_cert.pem")));
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let service = Service::start(&stored.serve(&sets));
    let port = service.url.rsplit(':').next().expect("a port");
    let dir = Dir::new();
    let config = dir.write(
        "config",
        format!(
            "{{\"Host\":\"localhost\",\"Port\":{port},\"CertPath\":\"{}\"}}",
            authority.folder().display()
        ),
    );
    let steno = |program: &str, args: &[&str]| {
        Program::new(program)
            .env("STENOGRAPHER_CONFIG", &config)
            .args(args)
            .run()
    };
    let all = dir.join("all.pcapng");
    let wanted = stored.extracted(&[], "pcapng").expect("frames");
    fs::write(&all, wanted).expect("written");
    let count = |path: &Path, filter: &str| {
        let done = Program::new("tcpdump")
            .arg("-nr")
            .arg(path)
            .arg(filter)
            .run()
            .expect(0);
        done.stdout.lines().count()
    };
    for (query, filter) in [
        ("udp", "udp"),
        ("host 10.0.0.6", "host 10.0.0.6"),
        ("net 10.0.0.0/30 and tcp", "net 10.0.0.0/30 and tcp"),
        ("net 10.0.0.0 mask 255.255.255.252", "net 10.0.0.0/30"),
        ("port 5001 or ip proto 17", "port 5001 or udp"),
        // Equal precedence, from left to right.
        (
            "udp or tcp and host 10.0.0.6",
            "(udp or tcp) and host 10.0.0.6",
        ),
        ("after 1h ago and tcp", "tcp"),
        ("(tcp and after 1h ago) or (udp and before 1h ago)", "tcp"),
        ("before 1h ago", "less 1"),
    ] {
        let out = dir.join("out.pcap");
        let _ = steno("stenoread", &[query, "-w", out.to_str().expect("plain")]).expect(0);
        assert_eq!(count(&out, ""), count(&all, filter), "{query}");
    }
    let some = dir.join("some.pcap");
    let args = [
        "--limit-packets",
        "5",
        "tcp",
        "-w",
        some.to_str().expect("plain"),
    ];
    let _ = steno("stenoread", &args).expect(0);
    assert_eq!(count(&some, ""), 5);
    let bad = steno(
        "stenocurl",
        &["/query", "-d", "host example.org", "--silent"],
    )
    .expect(0);
    assert!(
        bad.stdout.contains("at byte 5") && bad.stdout.contains("remedy"),
        "{bad}"
    );
    let health = steno("stenocurl", &["/healthz", "--silent"]).expect(0);
    assert_eq!(health.stdout, "ok\n");
    let _ = service.stop();
}

#[test]
fn extract_merges_the_frames_of_sensors() {
    let (one, two) = (Stored::shared(), Stored::new());
    let authority = Authority::new();
    let dir = Dir::new();
    let tokens = dir.join("tokens").display().to_string();
    let secret = dir.write("secret", format!("{}\n", token(&tokens, "alice", "read")));
    let secret = secret.to_str().expect("plain");
    let mut sets = authority.sets();
    sets.push(format!("serve.tokens={tokens}"));
    let sets: Vec<_> = sets.iter().map(String::as_str).collect();
    let services = [one, &two].map(|it| Service::start(&it.serve(&sets)));
    let ca = authority.file("ca_cert.pem");
    let urls = services
        .each_ref()
        .map(|it| it.url.replace("127.0.0.1", "localhost"));
    let extract = |urls: &[&str], args: &[&str], ending: &str| {
        let out = dir.join(format!("found.{ending}"));
        let done = wqcap(["extract", "--ca", &ca, "--token-file", secret, "-o"])
            .arg(&out)
            .args(args)
            .args(urls)
            .run();
        (done, out)
    };
    let [a, b] = urls.each_ref().map(String::as_str);
    // One sensor: the frames of the sensor.
    let (done, out) = extract(&[a], &["--filter", "tcp"], "pcapng");
    let _ = done.expect(0);
    let here = dir.write(
        "here.pcapng",
        one.extracted(&["--filter", "tcp"], "pcapng")
            .expect("frames"),
    );
    let frames = |path: &Path| {
        files::read(path)
            .into_iter()
            .map(|it| (it.ts, it.bytes))
            .collect::<Vec<_>>()
    };
    assert_eq!(frames(&out), frames(&here));
    // Two sensors: all frames, in time order.
    let (done, out) = extract(&[a, b], &[], "pcapng");
    let _ = done.expect(0);
    let both = files::read(&out);
    assert_eq!(both.len() as u64, 2 * super::FRAMES);
    assert!(both.windows(2).all(|it| it[0].ts <= it[1].ts));
    // A sensor that is not there, and a token that is not known.
    let (done, out) = extract(&[a, "https://localhost:1"], &[], "pcapng");
    done.expect(1).says(&["https://localhost:1"]);
    assert_eq!(files::read(&out).len() as u64, super::FRAMES);
    let wrong = dir.write("wrong", "0000");
    let done = wqcap(["extract", a, "--ca", &ca, "--token-file"])
        .arg(wrong)
        .arg("-o")
        .arg(dir.join("x.pcap"))
        .run();
    done.expect(2)
        .says(&["the token is not known", "--new-token"]);
    let none = ["--filter", "arp and host 1.2.3.4", "--fail-if-empty"];
    let (done, out) = extract(&[a], &none[..2], "pcapng");
    let _ = done.expect(0);
    assert!(files::read(&out).is_empty());
    let (done, _) = extract(&[a], &none, "pcapng");
    done.expect(1).says(&["no frame"]);
    let (done, _) = extract(&[a, "cap"], &[], "pcapng");
    let _ = done.expect(2);
    for service in services {
        let _ = service.stop();
    }
}

#[test]
fn a_sensor_that_does_not_answer_delays_no_other_one() {
    let dir = Dir::new();
    let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let urls = silent.each_ref().map(|it| {
        it.set_nonblocking(true).expect("a socket");
        format!("http://{}", it.local_addr().expect("an address"))
    });
    let extract = wqcap(["extract", &urls[0], &urls[1], "-o"]).arg(dir.join("out.pcapng"));
    let mut running = extract.start();
    let mut asked = Vec::new();
    running.until("both sensors are asked", |_| {
        asked.extend(silent.iter().filter_map(|it| it.accept().ok()));
        asked.len() == 2
    });
    running.signal(Signal::TERM);
    let _ = running.wait();
}

/// Answers one request with these bytes, and returns the URL.
fn stranger(answer: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut piece = [0; 1024];
            let len = stream.read(&mut piece).expect("a request");
            request.extend_from_slice(&piece[..len]);
        }
        let _ = stream.write_all(&answer);
    });
    url
}

#[test]
fn a_hostile_sensor_does_not_keep_the_frames_of_others() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let dir = Dir::new();
    let plain = dir.write(
        "plain.pcapng",
        stored.extracted(&[], "pcapng").expect("frames"),
    );
    let packed = Program::new("gzip").arg("-k").arg(&plain).run();
    let _ = packed.expect(0);
    let packed = fs::read(dir.join("plain.pcapng.gz")).expect("packed");
    let ok = "200 OK\r\nWqcap-Complete: true\r\nWqcap-Frames: 0\r\n";
    let refusal = r#"{"error":"x","detail":"go away","remedy":"none"}"#;
    for (head, body, says) in [
        (ok, &b"no capture file"[..], "neither pcapng nor pcap"),
        // The answer could have any length when it is decompressed.
        (ok, &packed, "neither pcapng nor pcap"),
        (ok, &[0x0a, 0x0d, 0x0d, 0x0a], "cannot be read"),
        ("401 Unauthorized\r\n", refusal.as_bytes(), "go away"),
    ] {
        let head = format!("HTTP/1.1 {head}Content-Length: {}\r\n\r\n", body.len());
        let hostile = stranger([head.as_bytes(), body].concat());
        let out = dir.join("out.pcapng");
        let extract = wqcap(["extract", &hostile, &service.url, "-o"]).arg(&out);
        extract.run().expect(1).says(&[&hostile, says]);
        assert_eq!(files::read(&out).len() as u64, super::FRAMES, "{says}");
        fs::remove_file(out).expect("there");
    }
    // The folder of a device is no place for an answer.
    let extract = wqcap(["extract", &service.url, "-o", "/dev/null"]);
    let none = dir.join("none").display().to_string();
    let extract = extract.env("TMPDIR", &none).run();
    extract.expect(2).says(&[&none]);
    let _ = service.stop();
}

#[test]
fn the_frames_of_each_sensor_are_compared_with_the_number_that_it_states() {
    let stored = Stored::shared();
    let frames = stored.extracted(&[], "pcapng").expect("frames");
    let sensor = |stated: Option<u64>| {
        let stated = stated.map(|it| format!("Wqcap-Frames: {it}\r\n"));
        let head = format!(
            "HTTP/1.1 200 OK\r\nWqcap-Complete: true\r\n{}Content-Length: {}\r\n\r\n",
            stated.unwrap_or_default(),
            frames.len()
        );
        stranger([head.as_bytes(), &frames].concat())
    };
    let dir = Dir::new();
    for other in [None, Some(super::FRAMES - 1)] {
        let (short, other) = (sensor(Some(super::FRAMES + 1)), sensor(other));
        let extract = wqcap(["extract", &short, &other, "-o"]).arg(dir.join("out.pcapng"));
        let lacks = format!("the sensor states {} frames", super::FRAMES + 1);
        extract.run().expect(1).says(&[&short, &lacks]);
    }
}

/// Returns frames of HTTP requests for hosts with markup in their names.
fn hostile_frames() -> Vec<Vec<u8>> {
    let names = [
        "<img src=x onerror=alert(1)>",
        "a\"onmouseover=x",
        "plain.example",
    ];
    let requests = names.iter().zip(0..).map(|(name, n)| {
        let ends = Ends {
            from: 1 + n,
            to: 9,
            sport: 5000 + n,
            dport: 80,
        };
        let text = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        Frame::ethernet(&[], IPV4)
            .ipv4(ends, 6, 0)
            .tcp(ends)
            .bytes(text.as_bytes())
            .done()
    });
    requests.collect()
}

#[test]
fn a_browser_shows_the_page() {
    need!(installed("chromium"));
    need!(installed("chromedriver"));
    let stored = Stored::new();
    let trace = stored.dir.join("hostile.pcap");
    files::write(&trace, 1, &hostile_frames());
    stored.fill("hostile", &format!("pcap:{}", trace.display()));
    let tokens = stored.dir.join("tokens").display().to_string();
    let ops = token(&tokens, "ops", "mark");
    let set = format!("serve.tokens={tokens}");
    let service = Service::start(&stored.serve(&[&set]));
    let pictures = stored.dir.folder("pictures");
    let done = Program::new("python3")
        .arg(binaries::root().join("tests/clients/serve_page.py"))
        .arg(&service.url)
        .arg(&pictures)
        .arg(&ops)
        .timeout(3 * HANG)
        .run();
    assert!(done.status.success(), "{done}\n{:#?}", service.audit());
    let count = fs::read_dir(&pictures).expect("pictures").count();
    assert!(count >= 4, "{count} pictures");
    let _ = service.stop();
}

#[test]
fn schemathesis_finds_no_contradiction_to_the_description() {
    let packages = need!(pypi::installed("schemathesis", "", "4.32.5"));
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let done = Program::new("python3")
        .env("PYTHONPATH", packages)
        .args(["-m", "schemathesis.cli", "run"])
        .args(["--max-examples", "15", "--seed", "1", "--phases", "examples,coverage,fuzzing"])
        .args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"])
        .args(["--exclude-path", "/metrics"])
        .arg(format!("{}/openapi.json", service.url))
        .timeout(4 * HANG)
        .run();
    assert!(done.status.success(), "{done}");
    let _ = service.stop();
}
