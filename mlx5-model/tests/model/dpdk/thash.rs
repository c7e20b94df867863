//! DPDK's software Toeplitz hash of frames, computed by `mlx5-model/tests/clients/thash.c`.

use std::path::PathBuf;
use wqcap_testkit::process::clients;
use wqcap_testkit::{Dir, Program};

/// Fields of a frame that are hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    /// Source and destination address.
    Addresses,
    /// Addresses and ports.
    Ports,
}

/// Hash program and the path of its input file.
pub struct Thash {
    program: PathBuf,
    input: PathBuf,
}

impl Thash {
    /// Builds the program.
    ///
    /// # Errors
    /// Returns a reason to skip if DPDK's headers are missing.
    pub fn find(dir: &Dir) -> Result<Self, String> {
        Ok(Self {
            program: clients::with_package("mlx5-model/tests/clients/thash.c", "libdpdk")?,
            input: dir.join("thash.raw"),
        })
    }

    /// Returns the hash of each frame, and its entry in an indirection table of `table` entries.
    pub fn hashes<F: AsRef<[u8]>>(
        &self,
        key: &str,
        inputs: Inputs,
        table: usize,
        frames: &[F],
    ) -> Vec<(u32, usize)> {
        let raw: Vec<u8> = frames
            .iter()
            .map(AsRef::as_ref)
            .flat_map(|frame| [&(frame.len() as u16).to_be_bytes()[..], frame].concat())
            .collect();
        std::fs::write(&self.input, raw)
            .unwrap_or_else(|e| panic!("{}: {e}", self.input.display()));
        let inputs = match inputs {
            Inputs::Addresses => "addresses",
            Inputs::Ports => "ports",
        };
        let done = Program::new(&self.program)
            .args([key, inputs, &table.to_string()])
            .arg(&self.input)
            .run()
            .expect(0);
        let hashes: Vec<_> = done
            .stdout
            .lines()
            .map(|line| {
                let (hash, entry) = line.split_once(' ').expect("a hash and an entry");
                let hash = u32::from_str_radix(hash, 16).expect("a hash");
                (hash, entry.parse().expect("an entry"))
            })
            .collect();
        assert_eq!(hashes.len(), frames.len(), "{done}");
        hashes
    }
}
