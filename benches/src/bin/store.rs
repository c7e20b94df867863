//! Measures `wqcap serve` on a simulated store of a terabyte.
//!
//! `store WQCAP DIR [FILES [ROUNDS]]` writes the store below DIR, which needs 9 GB with the default of
//! 1000 files, starts `WQCAP serve` on it, and prints one line for each figure. The files of the store
//! are sparse and of 1 GiB each; their indexes are those of one real file of that length, with other
//! times. Seven real files of 100 MB, whose flows lie together, hold what is asked for: the first is
//! within ten minutes of eighteen sparse files, the others are alone. Root drops the page cache before
//! each question; other users measure with a warm cache, which is reported.

use ciborium::Value;
use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{self, BufRead, BufReader, BufWriter, Read, Write},
    net::TcpStream,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};
use wqcap_engine::files::index::IndexFolder;
use xxhash_rust::xxh3::xxh3_64;

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Time of the first frame of the store, in nanoseconds since 1970.
const START_NS: u64 = 1_770_000_000_000_000_000;
/// Duration of a sparse file in nanoseconds: 18 files are ten minutes.
const STEP_NS: u64 = 600_000_000_000 / 18;
/// Length of a sparse file in bytes.
const SPARSE: u64 = 1 << 30;
/// Frames of a flow in a real file, which lie together.
const TOGETHER: u32 = 2800;
/// Flows of a real file.
const FLOWS: u8 = 24;
/// Real files that are alone in their time.
const ALONE: u64 = 6;

/// Capture file in the format pcap with time stamps in nanoseconds.
struct Pcap(BufWriter<File>);

impl Pcap {
    fn create(path: &Path) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, 262_144, 1] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Self(out))
    }

    /// Writes a UDP frame of `len` bytes from 10.`from` to 10.200.0.1.
    fn frame(&mut self, ns: u64, len: u32, from: [u8; 3], port: u16) -> io::Result<()> {
        let seconds = u32::try_from(ns / 1_000_000_000).map_err(io::Error::other)?;
        let rest = u32::try_from(ns % 1_000_000_000).map_err(io::Error::other)?;
        for word in [seconds, rest, len, len] {
            self.0.write_all(&word.to_le_bytes())?;
        }
        let mut frame = vec![0x55; len as usize];
        let ip = u16::try_from(len - 14).map_err(io::Error::other)?;
        frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0]);
        frame[14..26].copy_from_slice(&[0x45, 0, 0, 0, 0, 1, 0, 0, 64, 17, 0, 0]);
        frame[16..18].copy_from_slice(&ip.to_be_bytes());
        frame[26..34].copy_from_slice(&[10, from[0], from[1], from[2], 10, 200, 0, 1]);
        frame[34..36].copy_from_slice(&port.to_be_bytes());
        frame[36..38].copy_from_slice(&53_u16.to_be_bytes());
        frame[38..40].copy_from_slice(&(ip - 20).to_be_bytes());
        self.0.write_all(&frame)
    }
}

/// Folders of a store.
struct Store {
    cap: PathBuf,
    index: PathBuf,
}

impl Store {
    fn indexes(&self) -> IndexFolder<'_> {
        IndexFolder {
            folder: &self.index,
            dir: &self.cap,
        }
    }

    fn file(&self, start_ns: u64) -> PathBuf {
        self.cap.join(format!("wqcap-q00-{start_ns}.pcap"))
    }

    /// Writes a real file whose flows lie together: its hosts are 10.`hosts`.0.0 and following.
    fn write_real(&self, start_ns: u64, hosts: u8) -> Fallible<PathBuf> {
        let path = self.file(start_ns);
        let mut out = Pcap::create(&path)?;
        let step = STEP_NS / (u64::from(TOGETHER) * u64::from(FLOWS));
        let mut ns = start_ns;
        for flow in 0..FLOWS {
            for _ in 0..TOGETHER {
                out.frame(ns, 1484, [hosts, 0, flow], 4000)?;
                ns += step;
            }
        }
        out.0.flush()?;
        let index = self.indexes().build(&path, None, || true)?;
        index.ok_or("the file changed")?;
        Ok(path)
    }

    /// Writes a file of [`SPARSE`] bytes of 65,536 flows, about 650 in each MiB.
    fn write_pattern(&self) -> Fallible<PathBuf> {
        let path = self.file(START_NS);
        let mut out = Pcap::create(&path)?;
        let (mut written, mut n) = (24, 0_u64);
        while written < SPARSE {
            let len = u32::try_from((SPARSE - written).min(400)).map_err(io::Error::other)?;
            // The last record takes what is left.
            let len = if SPARSE - written < 500 {
                SPARSE - written
            } else {
                u64::from(len)
            } as u32
                - 16;
            let flow = (n / 40 + n % 650) % 65_536;
            let [.., a, b, c] = flow.to_be_bytes();
            let ns = START_NS + STEP_NS / SPARSE * written;
            out.frame(ns, len, [100 + a, b, c], 1024)?;
            (written, n) = (written + 16 + u64::from(len), n + 1);
        }
        out.0.flush()?;
        let index = self.indexes().build(&path, None, || true)?;
        index.ok_or("the file changed")?;
        Ok(path)
    }

    /// Makes a sparse file with the items of an index, moved to another time.
    fn write_sparse(&self, start_ns: u64, items: &[Value]) -> Fallible<()> {
        let path = self.file(start_ns);
        let file = File::create(&path)?;
        file.set_len(SPARSE)?;
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(start_ns + STEP_NS))?;
        let meta = file.metadata()?;
        let mut out = BufWriter::new(File::create(self.indexes().path_of(&path))?);
        for item in items {
            let mut item = item.clone();
            moved(&mut item, start_ns - START_NS, &meta);
            let content = match item {
                // The flows are not CBOR within.
                Value::Bytes(flows) => flows,
                other => {
                    let mut content = Vec::new();
                    ciborium::into_writer(&other, &mut content)?;
                    content
                }
            };
            let entry = |key: &str, value| (Value::Text(key.into()), value);
            let item = Value::Map(vec![
                entry("xxh3", xxh3_64(&content).into()),
                entry("index", Value::Bytes(content)),
            ]);
            ciborium::into_writer(&item, &mut out)?;
        }
        out.flush()?;
        Ok(())
    }
}

/// Moves the times of an item of an index, and gives it the stamp of another file.
fn moved(item: &mut Value, by: u64, file: &fs::Metadata) {
    match item {
        Value::Array(items) => items.iter_mut().for_each(|it| moved(it, by, file)),
        Value::Map(entries) => {
            for (key, value) in entries {
                match key.as_text() {
                    Some("first_ns" | "last_ns") => {
                        let ns = value.as_integer().and_then(|it| u64::try_from(it).ok());
                        *value = (ns.unwrap_or(0) + by).into();
                    }
                    Some("modified_s") => *value = file.mtime().into(),
                    Some("modified_ns") => *value = file.mtime_nsec().into(),
                    _ => moved(value, by, file),
                }
            }
        }
        _ => {}
    }
}

/// Reads the items of an index file: the flows as bytes, the others as values.
fn items(path: &Path) -> Fallible<Vec<Value>> {
    let mut from = BufReader::new(File::open(path)?);
    let mut items = Vec::new();
    while !from.fill_buf()?.is_empty() {
        let item: Value = ciborium::from_reader(&mut from)?;
        let entries = item.into_map().map_err(|_| "an item is a map")?;
        let content = entries
            .into_iter()
            .find(|(key, _)| key.as_text() == Some("index"));
        let content = content.and_then(|(_, value)| value.into_bytes().ok());
        let content = content.ok_or("an item has content")?;
        items.push(match items.len() {
            1 => Value::Bytes(content),
            _ => ciborium::from_reader(&content[..])?,
        });
    }
    Ok(items)
}

/// Running service. It ends with this value.
struct Service {
    run: Child,
    address: String,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
    }
}

/// Answer of the service.
struct Answer {
    /// Time until the first byte of the body.
    first: Duration,
    /// Time until the end of the body.
    all: Duration,
    /// Bytes of the body.
    len: u64,
    /// First MiB of the body.
    body: Vec<u8>,
}

impl Service {
    fn start(wqcap: &str, store: &Store) -> Fallible<Self> {
        let mut run = Command::new(wqcap)
            .args(["serve", "--set", "serve.listen=127.0.0.1:0"])
            .args(["--set", &format!("output.dir={}", store.cap.display())])
            .args([
                "--set",
                &format!("output.index_dir={}", store.index.display()),
            ])
            .stderr(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(run.stderr.take().ok_or("no output")?).lines();
        let address = lines.find_map(|line| {
            let line = line.ok()?;
            let (_, address) = line.split_once("serving at http://")?;
            Some(address.trim().trim_end_matches('/').to_owned())
        });
        thread::spawn(move || lines.for_each(drop));
        let address = address.ok_or("the service did not start")?;
        Ok(Self { run, address })
    }

    fn ask(&self, path: &str) -> Fallible<Answer> {
        let start = Instant::now();
        let mut stream = TcpStream::connect(&self.address)?;
        let host = &self.address;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        )?;
        let mut stream = BufReader::with_capacity(1 << 20, stream);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        if ![" 200 ", " 204 "].iter().any(|it| line.contains(it)) {
            return Err(format!("{path}: {line}").into());
        }
        while !line.trim().is_empty() {
            line.clear();
            stream.read_line(&mut line)?;
        }
        stream.fill_buf()?;
        let first = start.elapsed();
        // Only the beginning is of interest, and keeping the rest would cost the time of copying it.
        let mut body = Vec::new();
        stream.by_ref().take(1 << 20).read_to_end(&mut body)?;
        let rest = io::copy(&mut stream, &mut io::sink())?;
        Ok(Answer {
            first,
            all: start.elapsed(),
            len: body.len() as u64 + rest,
            body,
        })
    }

    /// Returns a number of a file of the process in /proc.
    fn fact(&self, file: &str, name: &str) -> Fallible<u64> {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.run.id()))?;
        let value = text
            .lines()
            .find_map(|it| it.strip_prefix(name))
            .ok_or("no such fact")?;
        let value = value.trim_start_matches(':').trim();
        Ok(value.trim_end_matches(" kB").parse()?)
    }
}

/// Drops the page cache; says so once if it cannot.
fn drop_cache() {
    let _ = Command::new("sync").status();
    if fs::write("/proc/sys/vm/drop_caches", "3").is_err() {
        println!("the page cache is warm: only root can drop it");
    }
}

fn read_through(path: &Path, buffer: &mut [u8]) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut sum = 0;
    loop {
        match file.read(buffer)? {
            0 => return Ok(sum),
            n => sum += n as u64,
        }
    }
}

fn mb_per_s(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

fn main() -> Fallible<()> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [wqcap, dir, rest @ ..] = &args[..] else {
        return Err("usage: store WQCAP DIR [FILES [ROUNDS]]".into());
    };
    let files = rest.first().map_or(Ok(1000), |it| it.parse::<u64>())?;
    let rounds = rest.get(1).map_or(Ok(5), |it| it.parse::<u64>())?;
    let store = Store {
        cap: Path::new(dir).join("cap"),
        index: Path::new(dir).join("index"),
    };
    fs::create_dir_all(&store.cap)?;
    fs::create_dir_all(&store.index)?;
    let middle = START_NS + files / 2 * STEP_NS;
    let end = START_NS + (files + 1) * STEP_NS;
    let pattern = store.write_pattern()?;
    let pattern_items = items(&store.indexes().path_of(&pattern))?;
    for n in 1..files {
        store.write_sparse(START_NS + n * STEP_NS, &pattern_items)?;
    }
    store.write_real(middle + 1, 1)?;
    let alone: Vec<PathBuf> = (0..ALONE)
        .map(|n| store.write_real(end + n * STEP_NS, 2 + n as u8))
        .collect::<Fallible<_>>()?;
    let index = fs::metadata(store.indexes().path_of(&pattern))?.len();
    println!(
        "{files} files of {SPARSE} bytes with indexes of {index} bytes; {} real files",
        ALONE + 1
    );

    let start = Instant::now();
    let service = Service::start(wqcap, &store)?;
    let all = loop {
        let answer = service.ask("/api/v1/timeline?buckets=200")?;
        if String::from_utf8_lossy(&answer.body).contains("\"unindexed_files\":0,") {
            break answer.all;
        }
        thread::sleep(Duration::from_millis(10));
    };
    println!(
        "all known after {:.2} s; {} kB of memory; timeline of everything in {:.1} ms",
        start.elapsed().as_secs_f64(),
        service.fact("status", "VmRSS")?,
        all.as_secs_f64() * 1e3
    );
    let second = |ns: u64| ns / 1_000_000_000;
    let (from, to) = (second(middle) - 300, second(middle) + 300);
    for n in 0..rounds {
        for (what, filter) in [
            ("flow of 4 MB", format!("host+10.1.0.{}", 5 + n % 10)),
            ("no flow", "host+10.9.9.9".to_owned()),
        ] {
            for cold in [true, false] {
                if cold {
                    drop_cache();
                }
                let read = service.fact("io", "rchar")?;
                let path = format!("/api/v1/packets?from={from}&to={to}&filter={filter}");
                match service.ask(&path) {
                    Ok(answer) => println!(
                        "round {n}, {what}, {}: first byte after {:.0} ms, {} bytes in {:.0} ms, {} bytes read",
                        if cold { "cold" } else { "warm" },
                        answer.first.as_secs_f64() * 1e3,
                        answer.len,
                        answer.all.as_secs_f64() * 1e3,
                        service.fact("io", "rchar")? - read
                    ),
                    Err(e) => println!("round {n}, {what}: {e}"),
                }
            }
        }
        drop_cache();
        let mut buffer = vec![0; 1 << 20];
        let start = Instant::now();
        let mut bytes = 0;
        for path in &alone {
            bytes += read_through(path, &mut buffer)?;
        }
        let disk = mb_per_s(bytes, start.elapsed());
        drop_cache();
        let path = format!(
            "/api/v1/packets?from={}&to={}&format=pcap",
            second(end),
            second(end + ALONE * STEP_NS) + 1
        );
        let cold = service.ask(&path)?;
        let warm = service.ask(&path)?;
        let of = |it: &Answer| mb_per_s(it.len, it.all);
        println!(
            "round {n}, {bytes} bytes in order: disk {disk:.0} MB/s, answer {:.0} MB/s ({:.2} of the disk), warm {:.0} MB/s",
            of(&cold),
            of(&cold) / disk,
            of(&warm)
        );
    }
    println!("{} kB of memory at most", service.fact("status", "VmHWM")?);
    Ok(())
}
