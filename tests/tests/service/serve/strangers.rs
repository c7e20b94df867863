//! Clients that stall, flood, leave early or send nonsense.

use super::{Answer, FRAMES, Service, Stored};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixListener},
    time::{Duration, Instant},
};
use wqcap_tests::Dir;

/// Connects to a service without TLS.
fn connected(service: &Service) -> TcpStream {
    let address = service.url.strip_prefix("http://").expect("http");
    let stream = TcpStream::connect(address).expect("connects");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("set");
    stream
}

/// Connects from another address of the loopback interface.
fn connected_from(service: &Service, from: [u8; 4]) -> OwnedFd {
    let address = service.url.strip_prefix("http://").expect("http");
    let address: SocketAddr = address.parse().expect("an address");
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&socket, &SocketAddr::from((from, 0))).expect("bound");
    connect(&socket, &address).expect("connects");
    socket
}

/// Sends bytes and returns what comes back until the service closes the connection.
fn sent(service: &Service, bytes: &[u8]) -> String {
    let mut stream = connected(service);
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[track_caller]
fn assert_serves(service: &Service) {
    let answer = service.ask("/api/v1/packets?filter=udp", &[]);
    assert_eq!((answer.status, answer.curl), (200, 0), "{}", answer.text());
}

#[test]
fn nonsense_is_refused() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&[]));
    let long = "x".repeat(1_000_000);
    let many: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    let close = "Connection: close\r\n\r\n";
    for (what, request, status) in [
        ("no HTTP", "\u{16}\u{3}\u{1}\r\n\r\n".to_owned(), "400"),
        (
            "a long path",
            format!("GET /{long} HTTP/1.1\r\nHost: localhost\r\n{close}"),
            "4",
        ),
        (
            "a long header",
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {long}\r\n{close}"),
            "431",
        ),
        (
            "many headers",
            format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}{close}"),
            "431",
        ),
        (
            "another host",
            format!("GET /api/v1/status HTTP/1.1\r\nHost: evil.example\r\n{close}"),
            "403",
        ),
        (
            "two lengths",
            format!(
                "POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n{close}tcp"
            ),
            "400",
        ),
        (
            "a path outside",
            format!("GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n{close}"),
            "404",
        ),
        (
            "an encoded path",
            format!("GET /api/v1/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\n{close}"),
            "404",
        ),
    ] {
        let answer = sent(&service, request.as_bytes());
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "{what}: {answer}"
        );
    }
    let _ = service
        .ask("/api/v1/packets", &["--http1.0"])
        .assert_error(505, "old_http");
    let body = "a".repeat(70_000);
    let _ = service
        .ask("/query", &["-d", &body])
        .assert_error(413, "too_long");
    // Filters that are expensive to compile, and injection into headers.
    let bomb = vec!["(tcp or udp)"; 3000].join(" and ");
    let deep = format!("{}tcp{}", "(".repeat(3000), ")".repeat(3000));
    for filter in [bomb, deep] {
        let body = format!("filter={}", filter.replace(' ', "+"));
        let _ = service
            .ask("/api/v1/packets", &["-d", &body])
            .assert_error(400, "bad_value");
    }
    let nested = format!("{}tcp{}", "(".repeat(20_000), ")".repeat(20_000));
    assert_eq!(service.ask("/query", &["-d", &nested]).status, 400);
    let injected = service.ask("/api/v1/packets?mark=x%0d%0aSet-Cookie:%20a=b", &[]);
    assert!(
        injected.status == 404 && !injected.head.contains("set-cookie: a"),
        "{}",
        injected.head
    );
    assert_serves(&service);
    let done = service.stop();
    assert!(!done.stderr.contains("panicked"), "{done}");
}

#[test]
fn slow_and_many_clients_do_not_block_others() {
    // More than sockets and pieces hold.
    let stored = Stored::of("synth:size=1400,flows=16,proto=mix,pps=30000");
    let service = Service::start(&stored.serve(&["serve.max_requests=2"]));
    // Heads of requests that never end.
    let stalled: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = connected(&service);
            stream
                .write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: ")
                .expect("sent");
            stream
        })
        .collect();
    assert_serves(&service);
    // A body that never ends, and a client that sends nothing.
    let begun = Instant::now();
    let body = sent(
        &service,
        b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\ntcp",
    );
    assert!(
        body.starts_with("HTTP/1.1 408") && body.contains("slow"),
        "{body}"
    );
    assert_eq!(sent(&service, b""), "");
    let waited = begun.elapsed().as_secs();
    assert!((15..40).contains(&waited), "{waited} s");
    // More connections than one address may have: others still get an answer.
    let flood: Vec<_> = (0..1000).map(|_| connected(&service)).collect();
    let other = service.ask("/healthz", &["--interface", "127.0.0.2"]);
    assert_eq!(other.status, 200);
    // Two addresses that take all places, and more, do not keep a third one out.
    let second: Vec<_> = (0..300)
        .map(|_| connected_from(&service, [127, 0, 0, 3]))
        .collect();
    for _ in 0..20 {
        let other = service.ask("/healthz", &["--interface", "127.0.0.2"]);
        assert_eq!(other.status, 200);
    }
    drop((flood, second));
    drop(stalled);
    let deadline = Instant::now() + Duration::from_secs(15);
    while service.ask("/healthz", &[]).status != 200 {
        assert!(Instant::now() < deadline, "the service answers again");
    }
    // Answers that are not read use up the requests that may read files.
    let begin_two = || {
        [(); 2].map(|()| {
            let mut stream = connected(&service);
            let request = "GET /api/v1/packets HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).expect("sent");
            let mut first = [0; 16];
            stream.read_exact(&mut first).expect("an answer");
            stream
        })
    };
    let readers = begin_two();
    let busy = service.ask("/api/v1/packets", &[]);
    let _ = busy.assert_error(429, "busy");
    assert_eq!(busy.header("retry-after"), Some("5"));
    assert_eq!(service.ask("/api/v1/status", &[]).status, 200);
    // Clients that leave end the work.
    drop(readers);
    let deadline = Instant::now() + Duration::from_secs(10);
    let left = |audit: &str| {
        let lines = audit.lines().filter(|it| it.contains("the client left"));
        let sizes = lines.filter_map(|it| it.split_once("sent at most ")?.1.split(' ').next());
        sizes.filter(|it| *it != "0").count()
    };
    while left(&service.audit().join("\n")) < 2 {
        assert!(Instant::now() < deadline, "{:#?}", service.audit());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_serves(&service);
    // So does the end of the service.
    let readers = begin_two();
    let done = service.stop();
    drop(readers);
    assert!(!done.stderr.contains("panicked"), "{done}");
    assert_eq!(left(&done.stderr), 4, "{done}");
}

#[test]
fn requests_that_wait_for_the_capture_take_few_threads() {
    let stored = Stored::shared();
    let dir = Dir::new();
    let path = dir.join("silent.sock");
    // It accepts connections, and never answers.
    let _silent = UnixListener::bind(&path).expect("bound");
    let control = format!("control.unix={}", path.display());
    let service = Service::start(&stored.serve(&[&control]));
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connected(&service);
            let request = "GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n";
            stream.write_all(request.as_bytes()).expect("sent");
            stream
        })
        .collect();
    let busy = service.ask("/api/v1/status", &[]);
    let _ = busy.assert_error(429, "busy");
    assert_eq!(service.ask("/healthz", &[]).status, 200);
    drop(waiting);
    let deadline = Instant::now() + Duration::from_secs(60);
    while service.ask("/api/v1/status", &[]).status != 200 {
        assert!(Instant::now() < deadline, "the service answers again");
    }
    // A capture that hangs may hold frames, also if it has no file open.
    let answer = service.ask("/api/v1/packets?from=-1s", &[]);
    let lacks = answer.header("wqcap-lacks").unwrap_or_default();
    assert!(lacks.contains("it is unknown whether"), "{}", answer.head);
    let past = service.ask("/api/v1/packets?from=1000&to=2000", &[]);
    assert_eq!(past.header("wqcap-complete"), Some("true"), "{}", past.head);
    let _ = service.stop();
}

#[test]
fn filters_that_compile_slowly_do_not_block_others() {
    let service = Service::start(&Stored::shared().serve(&[]));
    // libpcap compiles this filter for several seconds.
    let ports: Vec<_> = (1..=800).map(|it: u16| it.to_string()).collect();
    let path = format!("/api/v1/flows?filter=udp+port+{}", ports.join("+or+"));
    std::thread::scope(|scope| {
        let slow: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| service.ask(&path, &[]).status))
            .collect();
        let mut served = 0;
        while !slow.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            assert_serves(&service);
            served += 1;
        }
        // If compilations blocked others, one round would take as long as a compilation.
        assert!(served > 5, "{served}");
        for answer in slow {
            assert_eq!(answer.join().expect("joined"), 200);
        }
    });
    let _ = service.stop();
}

#[test]
fn clients_that_ask_at_once_all_get_the_whole_answer() {
    let stored = Stored::shared();
    let service = Service::start(&stored.serve(&["serve.max_requests=16"]));
    let url = format!("{}/api/v1/packets", service.url);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..16)
            .map(|_| scope.spawn(|| Answer::of(&url, &[])))
            .collect();
        asked
            .into_iter()
            .map(|it| it.join().expect("joined"))
            .collect()
    });
    let frames = FRAMES.to_string();
    for answer in &answers {
        assert_eq!((answer.status, answer.curl), (200, 0));
        assert_eq!(
            answer.header("wqcap-frames"),
            Some(&*frames),
            "{}",
            answer.head
        );
        assert_eq!(answer.body, answers[0].body);
    }
    let _ = service.stop();
}
