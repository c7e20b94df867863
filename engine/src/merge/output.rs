//! The merged file: encoded here, written in large pieces, named at its end.

use super::{MergeError, Plan, plan::Port};
use crate::reader::{Kind, Order, Packet, Statistics, options};
use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// Bytes written at once.
const PIECE: usize = 1 << 20;
/// What pcap says for "no limit".
const WHOLE: u32 = 262_144;
const SECOND: u64 = 1_000_000_000;

const SHB: u32 = 0x0a0d_0d0a;
const IDB: u32 = 1;
const ISB: u32 = 5;
const EPB: u32 = 6;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const MAGIC_NS: u32 = 0xa1b2_3c4d;
/// Where a pcap header has its snapshot length.
const PCAP_SNAPLEN: u64 = 16;
/// Where an interface block has its own.
const IDB_SNAPLEN: u64 = 12;
/// The link type's bit that says that an FCS length is told, and where it is told.
const HAS_FCS: u32 = 1 << 26;
const FCS_SHIFT: u32 = 28;

const END: u16 = 0;
const SHB_OS: u16 = 3;
const SHB_USERAPPL: u16 = 4;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const IF_FCSLEN: u16 = 13;
const EPB_FLAGS: u16 = 2;
const EPB_DROPCOUNT: u16 = 4;
const EPB_PACKETID: u16 = 5;
const EPB_QUEUE: u16 = 6;
/// Custom options, each with an enterprise number in front: text and bytes, to be copied and not.
const CUSTOM: [u16; 4] = [2988, 2989, 19372, 19373];
const ISB_STARTTIME: u16 = 2;
const ISB_ENDTIME: u16 = 3;
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;

/// Where the merged file goes.
pub struct Target {
    place: Place,
    shown: String,
}

enum Place {
    Stdout,
    /// A device or a pipe: written as it comes.
    Direct(File),
    /// Under a temporary name beside its own, which it gets when it is complete.
    Named(NamedTempFile, PathBuf),
}

impl Target {
    /// Prepares OUT; `-` is standard output.
    ///
    /// # Errors
    /// It is an input, or cannot be created.
    pub fn new(out: &Path, plan: &Plan) -> Result<Self, MergeError> {
        let shown = out.display().to_string();
        let refused = |problem: String| MergeError::Refused(format!("{shown}: {problem}"));
        let place = if out.as_os_str() == "-" {
            Place::Stdout
        } else {
            match fs::metadata(out) {
                Ok(metadata) if plan.reads(&metadata) => {
                    return Err(refused("is one of the inputs; name another output".into()));
                }
                Ok(metadata) if metadata.is_dir() => {
                    return Err(refused("is a folder; name a file".into()));
                }
                Ok(metadata) if !metadata.is_file() => {
                    let file = OpenOptions::new().write(true).open(out);
                    Place::Direct(file.map_err(|e| refused(e.to_string()))?)
                }
                _ => Place::Named(
                    temporary(out).map_err(|e| refused(format!("cannot be created: {e}")))?,
                    out.to_owned(),
                ),
            }
        };
        Ok(Self { place, shown })
    }
}

/// In the same folder, so that renaming is all it takes; with the rights a new file has.
fn temporary(out: &Path) -> io::Result<NamedTempFile> {
    let folder = match out.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    tempfile::Builder::new()
        .prefix(".wqcap-merge-")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
}

pub(super) struct Output {
    target: Target,
    kind: Kind,
    link_type: u32,
    snaplen: u32,
    /// The longest record above `snaplen`, if any was.
    above: Option<u32>,
    piece: Vec<u8>,
    written: u64,
    /// Where headers tell the snapshot length.
    snaplens: Vec<u64>,
    /// Interfaces described so far.
    interfaces: usize,
    /// The reader of a pipe has gone.
    pub(super) deaf: bool,
}

impl Output {
    pub(super) fn begin(
        target: Target,
        kind: Kind,
        link_type: u32,
        snaplen: u32,
        ports: &[Port],
    ) -> Self {
        let mut output = Self {
            target,
            kind,
            link_type,
            snaplen,
            above: None,
            piece: Vec::with_capacity(2 * PIECE),
            written: 0,
            snaplens: Vec::new(),
            interfaces: 0,
            deaf: false,
        };
        match kind {
            Kind::Pcap => output.pcap_header(ports.first()),
            Kind::Pcapng => {
                output.section();
                ports.iter().for_each(|port| output.interface(port));
            }
        }
        output
    }

    pub(super) fn interfaces(&self) -> usize {
        self.interfaces
    }

    fn pcap_header(&mut self, port: Option<&Port>) {
        let fcs = port
            .and_then(|port| port.fcs_len)
            .map_or(0, |bytes| HAS_FCS | u32::from(bytes / 2) << FCS_SHIFT);
        let snaplen = if self.snaplen == 0 {
            WHOLE
        } else {
            self.snaplen
        };
        self.snaplen = snaplen;
        self.snaplens.push(PCAP_SNAPLEN);
        self.words(&[MAGIC_NS]);
        self.piece.extend(2u16.to_ne_bytes());
        self.piece.extend(4u16.to_ne_bytes());
        self.words(&[0, 0, snaplen, self.link_type | fcs]);
        self.interfaces = 1;
    }

    fn section(&mut self) {
        let at = self.block(SHB);
        self.words(&[BYTE_ORDER]);
        self.piece.extend(1u16.to_ne_bytes());
        self.piece.extend(0u16.to_ne_bytes());
        self.piece.extend((-1i64).to_ne_bytes());
        self.option(SHB_OS, std::env::consts::OS.as_bytes());
        self.option(
            SHB_USERAPPL,
            concat!("wqcap ", env!("CARGO_PKG_VERSION"), " merge").as_bytes(),
        );
        self.option(END, &[]);
        self.close(at);
    }

    /// Describes a port.
    pub(super) fn interface(&mut self, port: &Port) {
        self.snaplens
            .push(self.written + self.piece.len() as u64 + IDB_SNAPLEN);
        let at = self.block(IDB);
        let link_type = u16::try_from(self.link_type).unwrap_or(u16::MAX);
        self.piece.extend(link_type.to_ne_bytes());
        self.piece.extend(0u16.to_ne_bytes());
        self.words(&[self.snaplen]);
        self.option(IF_NAME, port.name.as_bytes());
        for (code, text) in &port.texts {
            self.option(*code, text.as_bytes());
        }
        self.option(IF_TSRESOL, &[9]);
        if let Some(len) = port.fcs_len {
            self.option(IF_FCSLEN, &[len]);
        }
        self.option(END, &[]);
        self.close(at);
        self.interfaces += 1;
    }

    /// Writes a record, of `queue` where it does not say itself.
    #[inline]
    pub(super) fn record(
        &mut self,
        packet: &Packet<'_>,
        port: usize,
        queue: Option<u16>,
    ) -> Result<(), MergeError> {
        let caplen = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
        if caplen > self.snaplen && self.snaplen != 0 {
            self.above = self.above.max(Some(caplen));
        }
        match self.kind {
            Kind::Pcap => {
                let seconds = u32::try_from(packet.ns / SECOND).unwrap_or(u32::MAX);
                let fraction = (packet.ns % SECOND) as u32;
                self.words(&[seconds, fraction, caplen, packet.len]);
                self.piece.extend_from_slice(packet.bytes);
            }
            Kind::Pcapng => {
                let start = self.piece.len();
                self.words(&[
                    EPB,
                    0,
                    u32::try_from(port).unwrap_or(0),
                    (packet.ns >> 32) as u32,
                    packet.ns as u32,
                    caplen,
                    packet.len,
                ]);
                self.piece.extend_from_slice(packet.bytes);
                let padding = packet.bytes.len().next_multiple_of(4) - packet.bytes.len();
                self.piece.extend_from_slice(&[0; 4][..padding]);
                if packet.options.is_empty() {
                    if let Some(queue) = queue {
                        self.option(EPB_QUEUE, &u32::from(queue).to_ne_bytes());
                        self.option(END, &[]);
                    }
                } else if packet.order == Order::NATIVE {
                    self.piece.extend_from_slice(packet.options);
                } else {
                    self.turned(packet.options, packet.order);
                }
                self.close(start);
            }
        }
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    /// Options of the other byte order.
    fn turned(&mut self, bytes: &[u8], order: Order) {
        for (code, value) in options(bytes, order) {
            let word = order.u32(value, 0).to_ne_bytes();
            match (code, value.len()) {
                (EPB_FLAGS | EPB_QUEUE, 4) => self.option(code, &word),
                (EPB_DROPCOUNT | EPB_PACKETID, 8) => {
                    self.option(code, &order.u64(value, 0).to_ne_bytes());
                }
                (code, 4..) if CUSTOM.contains(&code) => {
                    self.option(code, &[&word, &value[4..]].concat());
                }
                _ => self.option(code, value),
            }
        }
        self.option(END, &[]);
    }

    /// Tells what the inputs' statistics told of a port.
    pub(super) fn statistics(&mut self, port: usize, of: &Statistics) {
        if self.kind == Kind::Pcap || *of == Statistics::default() {
            return;
        }
        let stamp = |ns: u64| {
            let words = [(ns >> 32) as u32, ns as u32];
            words.map(u32::to_ne_bytes).concat()
        };
        let at = self.block(ISB);
        self.words(&[u32::try_from(port).unwrap_or(0)]);
        self.piece.extend(stamp(of.end_ns.unwrap_or(0)));
        for (code, ns) in [(ISB_STARTTIME, of.start_ns), (ISB_ENDTIME, of.end_ns)] {
            if let Some(ns) = ns {
                self.option(code, &stamp(ns));
            }
        }
        for (code, n) in [(ISB_IFRECV, of.received), (ISB_IFDROP, of.dropped)] {
            if let Some(n) = n {
                self.option(code, &n.to_ne_bytes());
            }
        }
        self.option(END, &[]);
        self.close(at);
    }

    /// Writes what is left, and names the file. Gives its length, and a note if headers had to be corrected or could
    /// not be.
    pub(super) fn finish(mut self) -> Result<(u64, Option<String>), MergeError> {
        self.flush()?;
        let note = match self.above {
            None => None,
            Some(longest) => self.raise(longest)?,
        };
        let failed = |what: &str, e: &dyn std::fmt::Display| {
            MergeError::Failed(format!("{}: cannot {what}: {e}", self.target.shown))
        };
        match self.target.place {
            Place::Named(file, path) => {
                file.as_file().sync_all().map_err(|e| failed("sync", &e))?;
                file.persist(&path)
                    .map_err(|e| failed("rename", &e.error))?;
                // The name lasts once its folder does; not every file system has that to offer.
                if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
                    let _ = File::open(folder).and_then(|folder| folder.sync_all());
                }
            }
            Place::Direct(_) | Place::Stdout => {}
        }
        Ok((self.written, note))
    }

    /// Records were longer than any header had said: the output's header says so.
    fn raise(&self, longest: u32) -> Result<Option<String>, MergeError> {
        let Place::Named(file, _) = &self.target.place else {
            return Ok(Some(format!(
                "a record of {longest} bytes is above the snapshot length {} of the output's header, which was out by \
                 then",
                self.snaplen
            )));
        };
        for at in &self.snaplens {
            file.as_file()
                .write_all_at(&longest.to_ne_bytes(), *at)
                .map_err(|e| MergeError::Failed(format!("{}: {e}", self.target.shown)))?;
        }
        Ok(None)
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        if self.deaf {
            self.piece.clear();
            return Ok(());
        }
        let result = match &mut self.target.place {
            Place::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(&self.piece).and_then(|()| stdout.flush())
            }
            Place::Direct(file) => file.write_all(&self.piece),
            Place::Named(file, _) => file.as_file_mut().write_all(&self.piece),
        };
        match result {
            Ok(()) => self.written += self.piece.len() as u64,
            // Who reads a pipe may have had enough.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.deaf = true,
            Err(e) => {
                return Err(MergeError::Failed(format!(
                    "{}: at byte {}: cannot write: {e}",
                    self.target.shown, self.written
                )));
            }
        }
        self.piece.clear();
        Ok(())
    }

    #[inline]
    fn words<const N: usize>(&mut self, words: &[u32; N]) {
        self.piece
            .extend_from_slice(words.map(u32::to_ne_bytes).as_flattened());
    }

    /// Begins a block; [`Output::close`] gives it its lengths.
    fn block(&mut self, kind: u32) -> usize {
        let at = self.piece.len();
        self.words(&[kind, 0]);
        at
    }

    #[inline]
    fn close(&mut self, at: usize) {
        let total = u32::try_from(self.piece.len() - at + 4).unwrap_or(u32::MAX);
        self.words(&[total]);
        self.piece[at + 4..at + 8].copy_from_slice(&total.to_ne_bytes());
    }

    fn option(&mut self, code: u16, value: &[u8]) {
        let Ok(len) = u16::try_from(value.len()) else {
            return;
        };
        self.piece.extend(code.to_ne_bytes());
        self.piece.extend(len.to_ne_bytes());
        self.piece.extend_from_slice(value);
        let padding = value.len().next_multiple_of(4) - value.len();
        self.piece.extend_from_slice(&[0; 4][..padding]);
    }
}
