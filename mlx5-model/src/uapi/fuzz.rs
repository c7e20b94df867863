//! Runner of untrusted commands, for the fuzz target and the replay of its corpus.
//!
//! An input is a sequence of writes to the device's file, each preceded by its length in two bytes
//! (little endian). In a write, 8 bytes that end with [`MARK`] stand for an address in memory of
//! the run; their first bytes give the offset. 4 bytes that begin with `HND` stand for the handle
//! in the response, at [`RESPONSE`], to the write of that number.

use super::file::UverbsFile;
use super::write;
use crate::abi::*;
use crate::device::clock::PAGE;
use crate::device::nic::Device;
use crate::process::memory::copy_from_user;
use crate::process::{Errno, descriptors, real};
use crate::settings::{self, Settings};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// Upper four bytes of an eight-byte word of a fuzzing input that stands for an address.
const MARK: [u8; 4] = *b"ADDR";
/// Offset in the fuzzing run's memory at which the commands' responses are written.
const RESPONSE: u64 = 64;
/// Size of the fuzzing run's own memory in bytes.
const ARENA: usize = 1 << 20;

/// Upper limit of descriptor numbers that are closed after a fuzzing run; inputs open fewer.
const MOST_DESCRIPTORS: RawFd = 4096;

/// Executes the write() commands of all fuzzing inputs on one file with a device context. Returns
/// the number of writes that succeeded.
pub fn run<'a>(inputs: impl IntoIterator<Item = &'a [u8]>) -> Result<usize, Errno> {
    let settings = Settings::parse("loopback", "caps=all").map_err(|_| libc::EINVAL)?;
    settings::set(settings);
    // Static memory, because the device may still access a ring when this function returns.
    static MEMORY: OnceLock<Box<[u64]>> = OnceLock::new();
    let memory = MEMORY.get_or_init(|| vec![0; (ARENA + PAGE) / 8].into());
    let base = (memory.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let mut handles = Vec::new();
    let file = UverbsFile::open(Device::get(0, |_, _, _| ())?)?;
    let mut done = 0;
    write::write(&file, &get_context(base))?;
    for input in inputs {
        let mut rest = input;
        while let [low, high, behind @ ..] = rest {
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            let (bytes, next) = behind.split_at(behind.len().min(len));
            let mut bytes = bytes.to_vec();
            for word in bytes.as_chunks_mut::<8>().0 {
                if word[4..] == MARK {
                    let [a, b, c, d, ..] = *word;
                    let place = u32::from_le_bytes([a, b, c, d]) as usize % ARENA;
                    *word = (base + place as u64).to_ne_bytes();
                }
            }
            for word in bytes.as_chunks_mut::<4>().0 {
                if let [b'H', b'N', b'D', n] = *word {
                    let handle = handles.get(usize::from(n)).copied();
                    *word = handle.unwrap_or(word_of(*word)).to_ne_bytes();
                }
            }
            done += usize::from(write::write(&file, &bytes).is_ok());
            // The response of an extended command is preceded by two more words.
            let is_extended = bytes.get(3).is_some_and(|byte| byte & 0x80 != 0);
            let mut handle = [0; 4];
            copy_from_user(base + RESPONSE + 8 * u64::from(is_extended), &mut handle)?;
            handles.push(word_of(handle));
            rest = next;
        }
    }
    file.close_context();
    // Closes the channels that the program would close.
    for fd in (3..MOST_DESCRIPTORS).filter(|fd| descriptors::contains(*fd)) {
        descriptors::release(fd);
        let _ = real::close(fd);
    }
    Ok(done)
}

fn word_of(bytes: [u8; 4]) -> u32 {
    u32::from_ne_bytes(bytes)
}

fn get_context(response: u64) -> Vec<u8> {
    let request = ib_uverbs_get_context {
        response,
        ..Default::default()
    };
    let driver = mlx5_ib_alloc_ucontext_req_v2 {
        total_num_bfregs: 16,
        ..Default::default()
    };
    let body = [bytes_of(&request), bytes_of(&driver)].concat();
    let words = |len: usize| u16::try_from(len / 4).unwrap_or(u16::MAX);
    let header = ib_uverbs_cmd_hdr {
        command: IB_USER_VERBS_CMD_GET_CONTEXT,
        in_words: words(8 + body.len()),
        out_words: words(ARENA / 64),
    };
    [bytes_of(&header), &body].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    /// Number of bits at the start of a corpus file that a test inverts one by one.
    const TURNED: usize = 8 * 512;

    /// Runs the replay of the fuzzing corpus in a separate process, because the settings belong to
    /// the process.
    #[test]
    fn commands_of_the_corpus_are_replayed() {
        let alone = "uapi::fuzz::tests::alone";
        let done = Command::new(std::env::current_exe().expect("the path of this test"))
            .args(["--exact", alone, "--ignored", "--nocapture"])
            .output()
            .expect("the replay starts");
        let said = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        let last: Vec<_> = errors.lines().rev().take(5).collect();
        let passed = done.status.success() && said.contains("1 passed");
        assert!(passed, "{}: {last:#?}", done.status);
    }

    #[test]
    #[ignore = "commands_of_the_corpus_are_replayed runs it in a separate process"]
    fn alone() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/uverbs");
        let entries = fs::read_dir(dir).expect("a corpus directory");
        let mut files: Vec<_> = entries
            .map(|it| it.expect("a directory entry").path())
            .collect();
        files.sort();
        assert!(!files.is_empty());
        for file in files {
            let bytes = fs::read(&file).expect("the file is readable");
            let done = run([&bytes[..]]).expect("the commands run");
            println!("{}: {done} commands succeed", file.display());
            assert!(done > 0, "{}", file.display());
            let cuts = (0..bytes.len()).map(|len| bytes[..len].to_vec());
            let turned = (0..TURNED.min(8 * bytes.len())).map(|bit| {
                let mut turned = bytes.clone();
                turned[bit / 8] ^= 1 << (bit % 8);
                turned
            });
            let all: Vec<_> = cuts.chain(turned).collect();
            // Several inputs share a context, so that each finds the objects of those before it.
            for some in all.chunks(64) {
                run(some.iter().map(|it| &it[..])).expect("the commands run");
            }
        }
    }
}
