//! Hostile stores: every response, object and journal file is bounded, and a bad object is named
//! while the rest is answered. No command panics or hangs.

use super::{Sensor, assert_ledger, store};
use rustix::fs::{CWD, FileType, mknodat};
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use wqcap_tests::{
    Dir, Done, Program,
    machine::{dir::tree, privileges::ForAll},
    process, skip,
    wqcap::wqcap,
};

/// Address space of a command that reads a hostile store. It is many times what a sound store needs,
/// and a fraction of what the hostile ones send or state.
const MEMORY: &str = "--as=3000000000";
/// Maximum duration of a command that reads a hostile store.
const PATIENCE: Duration = Duration::from_secs(120);
/// Duration of the test with mutated stores in seconds, unless the environment variable is set.
const MUTATED: (&str, u64) = ("WQCAP_MUTATED_SECONDS", 15);
/// Body that a server sends without an end.
static ENDLESS: [u8; 65_536] = [b'x'; 65_536];

/// HTTP server that answers every request by a function of the request's target.
struct Hostile {
    address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Hostile {
    fn start(
        answer: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let requests = Arc::new(AtomicUsize::new(0));
        let (answer, count) = (Arc::new(answer), Arc::clone(&requests));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let answer = Arc::clone(&answer);
                // Errors are ignored: the client closes the connection when it has had enough.
                thread::spawn(move || drop(serve(client, &*answer)));
            }
        });
        Self { address, requests }
    }

    /// Runs `wqcap fleet` on the server as an S3 store.
    fn fleet(&self) -> Done {
        let fleet = wqcap(["fleet", "s3://captures"])
            .env("AWS_ENDPOINT_URL", format!("http://{}", self.address))
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", "somebody")
            .env("AWS_SECRET_ACCESS_KEY", "secret")
            .env("AWS_SESSION_TOKEN", "token")
            .env("NO_PROXY", "127.0.0.1");
        bounded(fleet)
    }
}

fn serve(
    mut client: TcpStream,
    answer: &dyn Fn(&str, &mut TcpStream) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = BufReader::new(client.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
    }
    answer(first.split(' ').nth(1).unwrap_or_default(), &mut client)
}

/// Runs a command with bounded memory. It may fail, but must not panic, abort or hang.
#[track_caller]
fn bounded(program: Program) -> Done {
    let done = program
        .wrapped(["prlimit", MEMORY, "--"])
        .timeout(PATIENCE)
        .run();
    assert!(
        matches!(done.status.code(), Some(0..=2)) && !done.stderr.contains("panicked"),
        "{done}"
    );
    done
}

fn answer(to: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> io::Result<()> {
    let len = body.len();
    write!(
        to,
        "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n{headers}\r\n"
    )?;
    to.write_all(body)
}

/// Sends an answer whose body has no end, until the client closes the connection.
fn endless(to: &mut TcpStream, head: &str, begin: &str, more: &[u8]) -> io::Result<()> {
    write!(to, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{begin}")?;
    loop {
        to.write_all(more)?;
    }
}

fn is_list(target: &str) -> bool {
    target.contains("list-type=2")
}

fn entry(key: &str) -> String {
    format!(
        "<Contents><Key>{key}</Key><LastModified>2026-11-26T00:00:00.000Z</LastModified><ETag>\"x\"</ETag><Size>1</Size></Contents>"
    )
}

/// Returns a page of a list. With `next`, the list continues on another page.
fn page(entries: &str, next: &str) -> String {
    let more = !next.is_empty();
    let token = match more {
        true => format!("<NextContinuationToken>{next}</NextContinuationToken>"),
        false => String::new(),
    };
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><IsTruncated>{more}</IsTruncated>{entries}{token}</ListBucketResult>"
    )
}

#[test]
fn redirects_are_not_followed_and_no_credentials_are_sent() {
    let other = Hostile::start(|_, to| answer(to, "200 OK", "", page("", "").as_bytes()));
    let target = format!("http://localhost:{}/x", other.address.port());
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let location = format!("Location: {target}\r\n");
        let store = Hostile::start(move |_, to| answer(to, status, &location, b""));
        let done = store.fleet();
        assert_ne!(done.status.code(), Some(0), "{done}");
        done.says(&["redirects the request to \"localhost\"", &status[..3]]);
        assert_eq!(store.requests.load(Ordering::SeqCst), 1, "not retried");
    }
    assert_eq!(other.requests.load(Ordering::SeqCst), 0);
}

#[test]
fn a_server_without_credentials_gets_no_token_of_the_cloud() {
    let dir = Dir::new();
    let sensor = Sensor::new(&dir, "tap-1");
    let _ = sensor.capture(100, 1, &[]);
    let tokens = Arc::new(AtomicUsize::new(0));
    let requested = Arc::clone(&tokens);
    // The store and the metadata service of the cloud.
    let server = Hostile::start(move |target, to| {
        if target.contains("computeMetadata") {
            requested.fetch_add(1, Ordering::SeqCst);
            let token = br#"{"access_token":"secret","expires_in":3600,"token_type":"Bearer"}"#;
            return answer(to, "200 OK", "Metadata-Flavor: Google\r\n", token);
        }
        answer(to, "403 Forbidden", "", b"")
    });
    let address = server.address.to_string();
    let ship = sensor
        .ship("gs://captures", &["--once"])
        .env("GCE_METADATA_HOST", &address)
        .env("METADATA_HOST", &address)
        .env("GOOGLE_BASE_URL", format!("http://{address}"))
        .env("GOOGLE_ALLOW_HTTP", "true")
        .env("NO_PROXY", "127.0.0.1");
    for (skips, is_requested) in [("false", true), ("true", false)] {
        let ship = ship.clone().env("GOOGLE_SKIP_SIGNATURE", skips);
        let done = ship.run().expect(1);
        done.says(&["403"]);
        let requests = tokens.swap(0, Ordering::SeqCst);
        assert_eq!(requests > 0, is_requested, "{done}");
    }
}

#[test]
fn endless_bodies_of_errors_are_cut() {
    for status in ["400 Bad", "403 Forbidden"] {
        let store = Hostile::start(move |_, to| endless(to, status, "<Error>", &ENDLESS));
        let done = store.fleet();
        assert_ne!(done.status.code(), Some(0), "{done}");
        assert!(done.stderr.len() < 100_000, "{}", done.stderr.len());
        done.says(&[&status[..3], "xxxx"]);
    }
}

#[test]
fn endless_lists_are_errors_that_name_the_limit() {
    let long = Hostile::start(|_, to| {
        let begin = page("", "").replace("</ListBucketResult>", "");
        let more = entry("status/sensor=a.json").repeat(400);
        endless(to, "200 OK", &begin, more.as_bytes())
    });
    let done = long.fleet();
    assert_ne!(done.status.code(), Some(0), "{done}");
    done.says(&["more than 16777216 bytes, which is the limit"]);
    assert_eq!(long.requests.load(Ordering::SeqCst), 1, "not retried");

    let stated = Hostile::start(|_, to| {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n<List";
        to.write_all(head.as_bytes())
    });
    assert_ne!(stated.fleet().status.code(), Some(0));

    let pages = Hostile::start(|_, to| {
        let entries: String = (0..1000).map(|n| entry(&format!("status/{n}"))).collect();
        answer(to, "200 OK", "", page(&entries, "again").as_bytes())
    });
    let done = pages.fleet();
    assert_ne!(done.status.code(), Some(0), "{done}");
    done.says(&["more than 1000000 keys, which is the limit"]);

    let token = Hostile::start(|_, to| {
        let next = "%".repeat(70_000);
        answer(to, "200 OK", "", page("", &next).as_bytes())
    });
    let done = token.fleet();
    assert_eq!(done.status.code(), Some(2), "{done}");
    done.says(&["next page has 70000 bytes; the limit is 4096 bytes"]);
}

#[test]
fn unusable_keys_are_named_and_the_others_read() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    sensor.capture(2000, 1, &[]);
    sensor.ship_once(&url, &[]);
    let status = fs::read(folder.join(sensor.status_key())).expect("the file can be read");
    let store = Hostile::start(move |target, to| {
        let head = |range: &str| {
            format!(
                "ETag: \"x\"\r\nLast-Modified: Thu, 26 Nov 2026 00:00:00 GMT\r\nContent-Range: bytes {range}\r\n"
            )
        };
        if is_list(target) && target.contains("status") {
            let keys = [
                "status/sensor=tap-1.json",
                "status//x",
                "status/long",
                "status/odd",
            ];
            let keys: String = keys.iter().map(|key| entry(key)).collect();
            let keys = keys + &entry(&format!("status/{}", "k".repeat(5000)));
            answer(to, "200 OK", "", page(&keys, "").as_bytes())
        } else if is_list(target) {
            let keys = "<CommonPrefixes><Prefix>blocks//</Prefix></CommonPrefixes>";
            answer(to, "200 OK", "", page(keys, "").as_bytes())
        } else if target.contains("tap-1") {
            let range = format!("0-{}/{}", status.len() - 1, status.len());
            answer(to, "206 Partial", &head(&range), &status)
        } else if target.contains("long") {
            let head = format!(
                "206 Partial\r\nContent-Length: 99999999999\r\n{}",
                head("0-1048575/1048576")
            );
            endless(to, head.trim_end(), "", &ENDLESS)
        } else {
            answer(to, "206 Partial", &head("5-4/99999999999999999999"), b"abc")
        }
    });
    let done = store.fleet().expect(1);
    assert!(done.stdout.contains("tap-1"), "{done}");
    done.says(&[
        "status//x: the key cannot be used",
        "blocks//: the key cannot be used",
        "status/long: ",
        "sends more than the 1048576 bytes that were requested",
        "status/odd: ",
        "status/kkkk",
    ]);
}

/// Adds objects to a folder store that are no files, or have a length that no file of their kind has.
fn add_oddities(folder: &Path) {
    let fifo = |path: PathBuf| mknodat(CWD, path, FileType::Fifo, 0o600.into(), 0);
    fifo(folder.join("status/fifo.json")).expect("the file can be made");
    fs::create_dir(folder.join("status/folder.json")).expect("the folder can be made");
    let socket = UnixListener::bind(folder.join("status/socket.json"));
    drop(socket.expect("the socket can be made"));
    let sparse = fs::File::create(folder.join("status/sparse.json"));
    let sparse = sparse.expect("the file can be made");
    sparse
        .set_len(4 << 40)
        .expect("the file can be made longer");
}

#[test]
fn oddities_in_a_folder_are_named_and_the_rest_is_answered() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    sensor.capture(6000, 2, &["output.rotate_size=1MB"]);
    sensor.ship_once(&url, &[]);
    let out = dir.join("out.pcapng");
    let extract = || wqcap(["extract", &url]).arg("-o").arg(&out);
    let _ = extract().run().expect(0);
    let whole = fs::metadata(&out).expect("written").len();

    // The content of the oddities cannot be read.
    let objects = tree(&folder);
    add_oddities(&folder);
    let done = bounded(wqcap(["fleet", &url])).expect(1);
    assert!(done.stdout.contains("tap-1"), "{done}");
    done.says(&["fifo.json", "socket.json", "sparse.json: "]);

    let tables: Vec<_> = objects
        .keys()
        .filter(|it| it.starts_with("blocks/"))
        .collect();
    assert!(tables.len() >= 6, "{tables:?}");
    let at = |n: usize| folder.join(tables[n]);
    for n in 0..3 {
        fs::remove_file(at(n)).expect("removed");
    }
    mknodat(CWD, at(0), FileType::Fifo, 0o600.into(), 0).expect("the file can be made");
    let sparse = fs::File::create(at(1)).expect("the file can be made");
    sparse
        .set_len(4 << 40)
        .expect("the file can be made longer");
    fs::write(at(2), "no Parquet").expect("written");
    fs::write(at(3), "").expect("written");
    fs::remove_file(&out).expect("removed");
    let done = bounded(extract()).expect(1);
    for table in &tables[..4] {
        done.says(&[table]);
    }
    done.says(&["the limit for objects of this kind is 268435456 bytes"]);
    let rest = fs::metadata(&out).expect("written").len();
    assert!(rest > 100_000 && rest < whole, "{rest} of {whole}");
}

#[test]
fn a_damaged_record_of_the_journal_is_named_and_its_file_sent_again() {
    let dir = Dir::new();
    let (_, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    let captured = sensor.capture(2000, 1, &[]);
    sensor.ship_once(&url, &[]);
    let folder = sensor.at("journal").join("packets");
    let mut records = fs::read_dir(folder)
        .expect("the folder can be listed")
        .flatten();
    let record = records.find(|it| it.path().extension().is_some_and(|it| it == "json"));
    let record = record.expect("a record").path();
    let text = fs::read_to_string(&record).expect("the file can be read");
    assert!(text.contains(",\"xxh3\":\""), "{text}");
    let frames = format!("\"frames\":{captured}");
    let damaged = text.replace(&frames, "\"frames\":7");
    assert_ne!(damaged, text);
    fs::write(&record, &damaged).expect("the file can be written");
    let done = sensor.ship(&url, &["--once", "--json"]).run().expect(0);
    done.says(&["checksum of the file is wrong", "packets/wqcap-"]);
    let status: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_ledger(&status, captured, "shipped");
    assert!(
        status["objects"].as_u64().is_some_and(|it| it > 0),
        "sent again"
    );

    // Earlier versions wrote no checksum.
    let text = fs::read_to_string(&record).expect("the file can be read");
    let (content, _) = text.split_once(",\"xxh3\"").expect("a checksum");
    fs::write(&record, format!("{content}}}")).expect("the file can be written");
    let status = sensor.ship_once(&url, &[]);
    assert_ledger(&status, captured, "shipped");
    assert_eq!(status["objects"], 0);

    // The file of a damaged record is gone: its frames are in no line, and the record is named.
    fs::write(&record, &damaged).expect("the file can be written");
    let captures = fs::read_dir(sensor.at("out")).expect("the folder can be listed");
    for path in captures.flatten().map(|it| it.path()) {
        if path.is_file() {
            fs::remove_file(path).expect("the file can be removed");
        }
    }
    let done = sensor.ship(&url, &["--once"]).run().expect(1);
    done.says(&[
        "checksum of the file is wrong",
        "move this journal file away",
    ]);

    let sums = sensor.at("journal").join("ledger.json");
    let text = fs::read_to_string(&sums).expect("the file can be read");
    let (content, _) = text.split_once(",\"xxh3\"").expect("a checksum");
    let wrong = content.replacen("\"captured\":0", "\"captured\":9", 1);
    assert_ne!(wrong, content);
    fs::write(&sums, format!("{wrong}}}")).expect("the file can be written");
    let done = sensor.ship(&url, &["--once"]).run().expect(1);
    done.says(&["the delivery ledger does not add up"]);
}

#[test]
fn no_thread_is_an_error() {
    if !process::is_root() {
        skip!("another user's processes can only be limited as root");
    }
    let all = ForAll::new();
    let dir = all.dir();
    let (_, url) = store(dir);
    let sensor = Sensor::new(dir, "tap-1");
    sensor.capture(2000, 1, &[]);
    sensor.ship_once(&url, &[]);
    let chmod = Program::new("chmod").args(["-R", "a+rwX"]);
    let _ = chmod.arg(dir.path()).run().expect(0);
    let out = dir.join("out.pcapng");
    let mut refused = 0;
    for threads in 0..12 {
        let limit = format!("--nproc={threads}");
        let wqcap = |command: &str| Program::new(all.wqcap()).arg(command);
        let fleet = wqcap("fleet").arg(&url);
        let extract = wqcap("extract").arg(&url).arg("-o").arg(&out);
        let ship = wqcap("ship").arg("--once").args(sensor.ship_settings(&url));
        for program in [fleet, extract, ship] {
            // The limit counts all processes of the user.
            let user = [
                "setpriv",
                "--reuid=61234",
                "--regid=61234",
                "--clear-groups",
            ];
            let wrapper = user.into_iter().chain(["prlimit", &limit, "--"]);
            let done = program.wrapped(wrapper).timeout(PATIENCE).run();
            let is_error = match done.status.code() {
                Some(1) => done.stderr.contains("Resource temporarily unavailable"),
                Some(code) => code == 0,
                None => false,
            };
            assert!(
                is_error && !done.stderr.contains("panicked"),
                "{threads}: {done}"
            );
            refused += usize::from(done.status.code() == Some(1));
        }
    }
    assert!(refused >= 6, "only {refused} commands had no thread");
}

#[test]
fn mutated_stores_are_read_without_panic_or_hang() {
    let dir = Dir::new();
    let (folder, url) = store(&dir);
    let sensor = Sensor::new(&dir, "tap-1");
    sensor.capture(3000, 2, &["output.rotate_size=1MB"]);
    sensor.ship_once(&url, &[]);
    let objects: Vec<_> = tree(&folder).into_iter().collect();
    let out = dir.join("out.pcapng");
    let seconds = env::var(MUTATED.0).map(|it| it.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(MUTATED.1));
    let seed = env::var("WQCAP_SEED").map(|it| it.parse().expect("a number"));
    let mut seed: u64 = seed.unwrap_or(1);
    let mut random = move |below: usize| {
        // xorshift64*.
        seed ^= seed >> 12;
        seed ^= seed << 25;
        seed ^= seed >> 27;
        let number = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(number).expect("31 bits") % below.max(1)
    };
    let (mut rounds, mut named) = (0, 0);
    while Instant::now() < end {
        let (key, bytes) = &objects[rounds % objects.len()];
        let mut mutated = bytes.clone();
        match random(3) {
            0 => {
                for _ in 0..=random(8) {
                    let at = random(mutated.len());
                    mutated[at] ^= 1 << random(8);
                }
            }
            1 => mutated.truncate(random(bytes.len())),
            _ => mutated.extend((0..=random(4096)).map(|_| random(256).to_le_bytes()[0])),
        }
        fs::write(folder.join(key), &mutated).expect("the file can be written");
        let fleet = bounded(wqcap(["fleet", &url]));
        let extract = bounded(wqcap(["extract", &url]).arg("-o").arg(&out));
        named += [fleet, extract]
            .iter()
            .filter(|it| it.status.code() == Some(1) && it.stderr.contains("error: "))
            .count();
        fs::write(folder.join(key), bytes).expect("the file can be written");
        rounds += 1;
    }
    assert!(
        rounds >= objects.len().min(10) && named > 0,
        "{rounds} rounds, {named} named"
    );
    let after: Vec<_> = tree(&folder).into_iter().collect();
    assert!(after == objects, "a command has changed the store");
}
