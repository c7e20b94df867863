//! Robustness test: mutated captures are merged, extracted, indexed and recovered. No tool panics,
//! hangs or needs more memory than [`MOST_MEMORY`]. The output is read by libpcap, by Wireshark's
//! capinfos and by this crate.
//!
//! `WQCAP_MUTATED_SECONDS=3600 cargo test --release --package wqcap-files --test mutated` runs for
//! an hour. `WQCAP_SEED` repeats a run, and `WQCAP_ROUND` starts at the round that failed.

use pcap as pcap_lib;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    str::FromStr,
    sync::mpsc,
    time::{Duration, Instant},
};
use wqcap_files::{
    anonymize::AnonymizeParams,
    extract::{ExtractQuery, FrameQuery, FramesWritten, extract},
    format::{self, ByteOrder, ETHERNET, FileFormat},
    merge::{self, MergeError, MergePlan, MergeTarget},
    read::{self, FileEnd},
    recover::{RecoveryOutcome, recover},
    sealed::SecretKey,
};
use wqcap_frame::{Slice, filter::Filter};
use wqcap_testkit::skip;

#[path = "../src/fixtures.rs"]
#[allow(dead_code, reason = "unit tests use all of it")]
mod fixtures;

use fixtures::{Blocks, pcap_file, written};

/// Address space in bytes beyond that of the process at its start. The longest window of zstd is
/// 128 MiB, the longest block 16 MiB, the texts of a file's interfaces 16 MiB; the flows of an
/// index are smaller; buffers grow by doubling.
const MOST_MEMORY: u64 = 384 << 20;
/// Number of rounds, unless [`SECONDS`] is set.
const ROUNDS: u64 = 3_000;
const SECONDS: &str = "WQCAP_MUTATED_SECONDS";
/// Time after which a round counts as hung; a round takes milliseconds.
const HANG: Duration = Duration::from_secs(120);
/// Number of files that capinfos reads at once.
const BATCH: usize = 200;

fn number<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    let number = text.parse().ok();
    Some(number.unwrap_or_else(|| panic!("{name}={text} is not a number")))
}

/// Small, repeatable random generator: splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("small")
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// Applies a few changes: flipped bits, bytes and words with special values, pieces cut,
    /// repeated or moved.
    fn mutate(&mut self, file: &mut Vec<u8>, other: &[u8]) {
        const WORDS: [u32; 14] = [
            0,
            1,
            3,
            6,
            12,
            28,
            32,
            0x7fff_ffff,
            0x8000_0000,
            0xffff_fffe,
            u32::MAX,
            1 << 20,
            16 << 20,
            0x0a0d_0d0a,
        ];
        for _ in 0..=self.below(4) {
            let at = self.below(file.len());
            let len = 1 + self.below(64).min(file.len() - at.min(file.len()));
            match self.below(9) {
                _ if file.is_empty() => {}
                0 => file[at] ^= 1 << self.below(8),
                1 => file[at] = *self.one(&[0, 1, 0x7f, 0x80, 0xff]),
                2 | 3 => {
                    let word = self.one(&WORDS).to_ne_bytes();
                    let at = at & !3;
                    let end = file.len().min(at + 4);
                    file[at..end].copy_from_slice(&word[..end - at]);
                }
                4 => {
                    let half = self.one(&[0u16, 1, 2, 8, 9, u16::MAX]).to_ne_bytes();
                    let at = at & !1;
                    let end = file.len().min(at + 2);
                    file[at..end].copy_from_slice(&half[..end - at]);
                }
                5 => file.truncate(at),
                6 => drop(file.drain(at..file.len().min(at + len))),
                7 => {
                    let piece = file[at..file.len().min(at + len)].to_vec();
                    let to = self.below(file.len());
                    file.splice(to..to, piece.repeat(1 + self.below(20)));
                }
                _ => {
                    let from = self.below(other.len());
                    let piece = &other[from..other.len().min(from + len * 4)];
                    file.splice(at..at, piece.iter().copied());
                }
            }
        }
    }
}

/// Capture file, and its file name extension.
struct Sample {
    ending: &'static str,
    bytes: Vec<u8>,
}

fn samples() -> Vec<Sample> {
    let mut all = Vec::new();
    let mut add = |ending, bytes| all.push(Sample { ending, bytes });
    for (format, ending) in [(FileFormat::Pcap, "pcap"), (FileFormat::Pcapng, "pcapng")] {
        add(ending, written(format, 20).0);
    }
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for magic in [0xa1b2_c3d4, 0xa1b2_3c4d, 0xa1b2_cd34] {
            let records = [
                (1, 5, &[1; 60][..], 60),
                (2, 6, &[2; 30], 1500),
                (3, 7, &[], 0),
            ];
            add("pcap", pcap_file(order, magic, &records));
        }
        let mut blocks = Blocks::new(order);
        let texts = [
            (1, &b"a comment"[..]),
            (2, b"eth0"),
            (3, b"described"),
            (12, b"an OS"),
        ];
        blocks.interface(96, &texts);
        blocks.interface(0, &[(2, b"eth1"), (9, &[9]), (13, &[4]), (14, &[0; 8])]);
        let options: Vec<u8> = [
            (1, &b"look"[..]),
            (2, &blocks.word(1)),
            (3, &[2, 1, 2, 3, 4]),
            (4, &[0; 8]),
            (5, &[0; 8]),
            (6, &blocks.word(3)),
            (7, &[1, 0, 0, 0, 0, 0, 0, 0, 9]),
            (2988, b"PEN!text"),
            (19_373, b"PEN!bytes"),
            (0x8001, b"mine"),
        ]
        .into_iter()
        .flat_map(|(code, value)| blocks.option(code, value))
        .collect();
        blocks.packet(0, 1_000_000, &[3; 60], 60, &options);
        blocks.packet(1, 2_000_000, &[4; 61], 1500, &[]);
        let simple = [&blocks.word(64)[..], &[5; 64]].concat();
        blocks.block(3, &simple);
        // The obsolete packet block: interface and drops in half words each.
        let head = [0, 0, 2_500_000, 20, 60].map(|n| blocks.word(n)).concat();
        blocks.block(2, &[&head[..], &[6; 20], &options[..16]].concat());
        blocks.block(4, &[1, 2, 3, 4]);
        let received = blocks.option(4, &[9, 0, 0, 0, 0, 0, 0, 0]);
        blocks.block(5, &[&[0; 12][..], &received].concat());
        blocks.section(order).interface(0, &[]);
        blocks.packet(0, 3_000_000, &[7; 14], 14, &[]);
        add("pcapng", blocks.1);
    }
    all
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; zstd_safe::compress_bound(bytes.len())];
    let len = zstd_safe::compress(&mut out[..], bytes, 1).expect("packs");
    out.truncate(len);
    out
}

/// Builds a compressed file of a few hundred KB that describes 40 interfaces with 670 MB of
/// comments.
fn bomb() -> Vec<u8> {
    let mut blocks = Blocks::new(ByteOrder::Little);
    let frame = |from: &mut usize, blocks: &Blocks| {
        let piece = compressed(&blocks.1[*from..]);
        *from = blocks.1.len();
        piece
    };
    let mut at = 0;
    let mut file = frame(&mut at, &blocks);
    // The comment is not UTF-8: as text it is three times as long.
    blocks.interface(0, &[(1, &[0xff; 65_532][..]); 255]);
    file.extend(frame(&mut at, &blocks).repeat(40));
    blocks.packet(0, 1, &[1; 60], 60, &[]);
    file.extend(frame(&mut at, &blocks));
    file
}

/// Test bench: a folder with one input file, and a folder for the outputs.
struct Bench {
    root: tempfile::TempDir,
    filter: Filter,
    /// Set when capinfos is installed.
    capinfos: bool,
    /// Outputs that capinfos has not read yet.
    waiting: Vec<PathBuf>,
    files: u64,
    frames: u64,
}

impl Bench {
    fn dir(&self, name: &str) -> PathBuf {
        let dir = self.root.path().join(name);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("made");
        dir
    }

    /// Runs all tools on a file.
    fn try_out(&mut self, bytes: &[u8], ending: &str) {
        let dir = self.dir("in");
        let name = format!("wqcap-q00-1.{ending}");
        let input = dir.join(&name);
        fs::write(&input, bytes).expect("written");
        for format in ["pcap", "pcapng"] {
            let out = self.out(format);
            let merged =
                MergePlan::new(std::slice::from_ref(&input), None, &out).and_then(|plan| {
                    let target = MergeTarget::new(&out, &plan)?;
                    merge::run(plan, target, |_| true)
                });
            self.written(&out, merged.map(|it| it.frames));
        }
        let indexes = self.dir("index");
        let query = |it: &Self, index_dir, out: &Path| ExtractQuery {
            dir: dir.clone(),
            index_dir,
            key: None,
            files: None,
            frames: FrameQuery::new(0..u64::MAX / 2, it.filter.clone(), out.to_owned()),
        };
        let found = [None, Some(indexes.clone()), Some(indexes)].map(|index_dir| {
            let out = self.out("pcapng");
            let query = query(self, index_dir, &out);
            let done = extract(&query, |_, _| true).map(|it| it.written);
            let facts =
                |it: &FramesWritten| (it.frames, it.first_ns, it.last_ns, it.losses.clone());
            let result = done.as_ref().map(facts).map_err(ToString::to_string);
            self.written(&out, done.map(|it| it.frames));
            result
        });
        // Results are equal with and without an index.
        assert_eq!(found[0], found[1]);
        assert_eq!(found[1], found[2]);
        let out = self.out("pcapng");
        let mut anonymous = query(self, None, &out);
        anonymous.frames.anonymize = Some(AnonymizeParams {
            key: SecretKey::new(&[7; 32]),
            slice: Slice::Whole,
        });
        let done = extract(&anonymous, |_, _| true);
        self.written(&out, done.map(|it| it.written.frames));
        fs::rename(&input, dir.join(format!("{name}.part"))).expect("renamed");
        for file in recover(&dir).expect("lists") {
            if file.outcome == RecoveryOutcome::Finished {
                assert!(holds(&input, file.records), "{file:?}");
            }
        }
    }

    /// Returns the path of the next output.
    fn out(&mut self, format: &str) -> PathBuf {
        self.files += 1;
        self.root
            .path()
            .join(format!("out-{}.{format}", self.files))
    }

    /// Reads an output with this crate, libpcap and capinfos. After an error there must be no
    /// output.
    fn written(&mut self, out: &Path, done: Result<u64, MergeError>) {
        let Ok(frames) = done else {
            assert!(!out.exists());
            return;
        };
        assert!(holds(out, frames), "{frames} frames");
        self.frames += frames;
        let mut reader = read::open(out).expect("opens");
        while reader.advance().expect("reads") {}
        let links: Vec<_> = reader.interfaces().iter().map(|it| it.link_type).collect();
        // libpcap refuses a file whose interfaces have several link types.
        if links.iter().all(|it| *it == links[0]) {
            assert_eq!(frames_by_libpcap(out), frames, "libpcap");
        }
        // Wireshark does not support every link type, and checks the frames of some.
        let ethernet = links.iter().all(|it| *it == ETHERNET);
        if !(self.capinfos && ethernet) {
            fs::remove_file(out).expect("there");
            return;
        }
        self.waiting.push(out.to_owned());
        if self.waiting.len() >= BATCH {
            self.run_capinfos();
        }
    }

    /// Runs capinfos on the outputs.
    fn run_capinfos(&mut self) {
        // capinfos needs more memory than the limit of this test.
        let done = Command::new("sh")
            .args(["-c", "ulimit -v unlimited; exec capinfos -c \"$@\"", "sh"])
            .args(&self.waiting)
            .output()
            .expect("starts");
        let said = String::from_utf8_lossy(&done.stderr);
        let kept = self.root.path();
        if !done.status.success() {
            let name = |path: &&PathBuf| said.contains(&*path.to_string_lossy());
            if let Some(bad) = self.waiting.iter().find(name) {
                let _ = fs::copy(bad, env::temp_dir().join("wqcap-refused"));
            }
            let first: Vec<_> = said.lines().take(5).collect();
            panic!("capinfos refuses: {first:#?} ({})", kept.display());
        }
        for path in self.waiting.drain(..) {
            fs::remove_file(path).expect("there");
        }
    }
}

/// Returns the number of frames that libpcap reads from a file.
fn frames_by_libpcap(path: &Path) -> u64 {
    let mut file = pcap_lib::Capture::from_file(path).expect("libpcap opens it");
    let mut read = 0;
    loop {
        match file.next_packet() {
            Ok(_) => read += 1,
            Err(pcap_lib::Error::NoMorePackets) => return read,
            Err(e) => panic!("libpcap, frame {read}: {e}"),
        }
    }
}

/// Returns `true` if a file is complete and has `records` records.
fn holds(path: &Path, records: u64) -> bool {
    let mut reader = read::open(path).expect("opens");
    while reader.advance().expect("reads") {}
    reader.end() == Some(FileEnd::Clean) && reader.packets() == records
}

/// Limits the address space of the process to its present size plus `more` bytes.
fn limit_memory(more: u64) {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|it| it.strip_prefix("VmSize:"));
    let words = line.and_then(|it| it.split_whitespace().next());
    let kib: u64 = words.expect("a size").parse().expect("a number");
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(kib * 1024 + more);
    setrlimit(Resource::As, Rlimit { current, maximum }).expect("a lower limit");
}

#[test]
fn mutated_files_do_no_harm() {
    let capinfos = Command::new("capinfos").arg("--version").output().is_ok();
    if !capinfos {
        let why = "capinfos is not installed; outputs are read by libpcap only";
        skip::note("mutated_files_do_no_harm", why);
    }
    let seed = number("WQCAP_SEED").unwrap_or(1);
    let seconds = number(SECONDS).map(Duration::from_secs);
    let (alive, watched) = mpsc::channel::<u64>();
    std::thread::spawn(move || {
        let mut round = 0;
        loop {
            match watched.recv_timeout(HANG) {
                Ok(now) => round = now,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    eprintln!("seed {seed}, round {round} hangs");
                    std::process::abort();
                }
            }
        }
    });
    let mut bench = Bench {
        root: tempfile::tempdir_in("/dev/shm")
            .or_else(|_| tempfile::tempdir())
            .expect("dir"),
        filter: Filter::compile("len >= 20").expect("compiles"),
        capinfos,
        waiting: Vec::new(),
        files: 0,
        frames: 0,
    };
    let (samples, bomb) = (samples(), bomb());
    limit_memory(MOST_MEMORY);
    for sample in &samples {
        bench.try_out(&sample.bytes, sample.ending);
    }
    bench.try_out(&bomb, "pcapng.zst");
    assert!(bench.frames > 0);
    let begun = Instant::now();
    let first: u64 = number("WQCAP_ROUND").unwrap_or(0);
    let mut round = first;
    while seconds.map_or(round - first < ROUNDS, |it| begun.elapsed() < it) {
        alive.send(round).expect("watched");
        // The seed depends on the round, so that a round can be repeated.
        let mut random = Random(seed << 32 ^ round);
        let sample = random.one(&samples);
        let mut file = sample.bytes.clone();
        let other = random.one(&samples);
        let mut ending = sample.ending.to_owned();
        match random.below(8) {
            0 => {
                random.mutate(&mut file, &other.bytes);
                file = compressed(&file);
                ending += ".zst";
            }
            1 => {
                file = compressed(&file);
                random.mutate(&mut file, &other.bytes);
                ending += ".zst";
            }
            _ => random.mutate(&mut file, &other.bytes),
        }
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            bench.try_out(&file, &ending);
        }));
        if let Err(e) = failed {
            let kept = env::temp_dir().join(format!("wqcap-mutated.{ending}"));
            let _ = fs::write(&kept, &file);
            eprintln!("seed {seed}, round {round}: the file is {}", kept.display());
            std::panic::resume_unwind(e);
        }
        round += 1;
    }
    if !bench.waiting.is_empty() {
        bench.run_capinfos();
    }
    let (rounds, files) = (round - first, bench.files);
    println!(
        "{rounds} mutated files, seed {seed}: {files} files with {} frames written",
        bench.frames
    );
}
