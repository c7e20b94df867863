//! Encoder of the merged file, which writes pieces of 1 MiB.

use super::{ports::OutputPort, summary::MergeError, target::MergeTarget};
use crate::{
    format::{
        FileFormat, InterfaceStatistics,
        pcap::{self, encode_header, encode_record_header},
        pcapng::{
            self,
            code::{
                EPB_DROPCOUNT, EPB_FLAGS, EPB_QUEUE, IF_NAME, OPT_COMMENT, OPT_ENDOFOPT, SHB_OS,
                SHB_USERAPPL,
            },
            enhanced_packet, interface_description, interface_statistics, option, recode_options,
            section_header, simple_packet,
        },
        secrets::Secrets,
    },
    read::Packet,
    read::origin::MERGE_PROGRAM,
};
use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Maximum length of a record in the merged file that readers accept, for nearly every link type:
/// libpcap's MAXIMUM_SNAPLEN, and Wireshark's limit.
const MOST_BYTES: usize = 262_144;
/// Maximum number of bytes of the section comments in the merged file.
const MOST_COMMENTS: usize = 1 << 20;
/// Record options that reveal neither persons nor places, and are kept in an anonymized merged
/// file.
const ANONYMOUS_OPTIONS: [u16; 3] = [EPB_FLAGS, EPB_QUEUE, EPB_DROPCOUNT];
/// Number of buffered bytes of the merged file at which they are written.
const PIECE: usize = 1 << 20;

pub(super) struct MergeOutput {
    target: MergeTarget,
    format: FileFormat,
    /// Link type of the frames in a merged file of the format pcap, which has only one.
    link_type: u32,
    snaplen: u32,
    /// `true` if the merged file omits texts written by people or machines.
    anonymous: bool,
    /// Length in bytes of the longest merged record that is longer than `snaplen`; `None`: there is
    /// none.
    above: Option<u32>,
    piece: Vec<u8>,
    written: u64,
    /// Offsets in the merged file of the snapshot length in each header.
    snaplen_offsets: Vec<u64>,
    /// Number of interfaces that are described so far in the merged file.
    pub(super) interfaces: usize,
    /// Number of merged records that were cut to [`MOST_BYTES`] bytes.
    cut: u64,
    options_left_out: u64,
    texts_left_out: u64,
    /// Number of merged records without a timestamp that were written with that of the previous
    /// record.
    stamped: u64,
    /// Number of merged records whose time a pcap file cannot hold.
    late: u64,
    /// Hashes of the decryption secrets written to the merged file: the files of several queues
    /// contain the same secrets.
    secrets: HashSet<u64>,
    secrets_left_out: u64,
    /// `true` if the process that reads the output pipe has closed it.
    pub(super) reader_left: bool,
}

impl MergeOutput {
    /// Creates the encoder of an empty merged file.
    pub(super) fn new(
        target: MergeTarget,
        format: FileFormat,
        link_type: u32,
        snaplen: u32,
        anonymous: bool,
    ) -> Self {
        Self {
            target,
            format,
            link_type,
            snaplen,
            anonymous,
            above: None,
            piece: Vec::with_capacity(2 * PIECE),
            written: 0,
            snaplen_offsets: Vec::new(),
            interfaces: 0,
            cut: 0,
            options_left_out: 0,
            texts_left_out: 0,
            stamped: 0,
            late: 0,
            secrets: HashSet::new(),
            secrets_left_out: 0,
            reader_left: false,
        }
    }

    /// Writes the header of the merged file, with these capture ports (interfaces) and section
    /// comments.
    pub(super) fn begin(&mut self, ports: &[OutputPort], comments: &[String]) {
        match self.format {
            FileFormat::Pcap => {
                if self.snaplen == 0 {
                    self.snaplen = pcap::NO_LIMIT;
                }
                let fcs_len = ports.first().and_then(|port| port.link.fcs_len);
                let header = encode_header(self.snaplen, self.link_type, fcs_len);
                self.piece.extend(header);
                self.snaplen_offsets.push(pcap::SNAPLEN_OFFSET);
                self.interfaces = 1;
            }
            FileFormat::Pcapng => {
                let comments = if self.anonymous {
                    self.texts_left_out += comments.len() as u64;
                    &[]
                } else {
                    comments
                };
                let mut room = MOST_COMMENTS;
                section_header(&mut self.piece, |out| {
                    for comment in comments {
                        match room.checked_sub(comment.len()) {
                            Some(left) => room = left,
                            None => {
                                self.texts_left_out += 1;
                                continue;
                            }
                        }
                        option(out, OPT_COMMENT, comment.as_bytes());
                    }
                    option(out, SHB_OS, std::env::consts::OS.as_bytes());
                    option(out, SHB_USERAPPL, MERGE_PROGRAM.as_bytes());
                });
                ports.iter().for_each(|port| self.interface(port));
            }
        }
    }

    /// Writes the interface description of a capture port to the merged file.
    pub(super) fn interface(&mut self, port: &OutputPort) {
        let block = self.written + self.piece.len() as u64;
        self.snaplen_offsets.push(block + pcapng::SNAPLEN_OFFSET);
        let link_type = u16::try_from(port.link.link_type).unwrap_or(u16::MAX);
        let number = format!("port {}", self.interfaces);
        let (name, options) = if self.anonymous {
            self.texts_left_out += 1 + port.options.len() as u64;
            (&number, &[][..])
        } else {
            (&port.name, &port.options[..])
        };
        interface_description(
            &mut self.piece,
            link_type,
            self.snaplen,
            port.link.fcs_len,
            |out| {
                option(out, IF_NAME, name.as_bytes());
                for (code, value) in options {
                    option(out, *code, value);
                }
            },
        );
        self.interfaces += 1;
    }

    /// Writes a record to the merged file. The number `queue` is written as its queue option,
    /// unless the record has options.
    #[inline]
    pub(super) fn record(
        &mut self,
        packet: &Packet<'_>,
        port: usize,
        queue: Option<u16>,
    ) -> Result<(), MergeError> {
        let bytes = packet.bytes.get(..MOST_BYTES).unwrap_or(packet.bytes);
        self.cut += u64::from(bytes.len() < packet.bytes.len());
        let caplen = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if caplen > self.snaplen && self.snaplen != 0 {
            self.above = self.above.max(Some(caplen));
        }
        let (out, anonymous) = (&mut self.piece, self.anonymous);
        match self.format {
            FileFormat::Pcap => {
                self.stamped += u64::from(!packet.stamped);
                self.late += u64::from(packet.ns >= pcap::END_OF_TIME);
                let header = encode_record_header(packet.ns, caplen, packet.len);
                out.extend_from_slice(&header);
                out.extend_from_slice(bytes);
            }
            FileFormat::Pcapng
                if !packet.stamped
                    && port == 0
                    && queue.is_none()
                    && packet.len == caplen
                    && (self.snaplen == 0 || caplen <= self.snaplen) =>
            {
                simple_packet(out, bytes, packet.len);
            }
            FileFormat::Pcapng => {
                self.stamped += u64::from(!packet.stamped);
                let port = u32::try_from(port).unwrap_or(0);
                enhanced_packet(out, port, packet.ns, bytes, packet.len, |out| {
                    if packet.options.is_empty() {
                        if let Some(queue) = queue {
                            option(out, EPB_QUEUE, &u32::from(queue).to_ne_bytes());
                            option(out, OPT_ENDOFOPT, &[]);
                        }
                    } else {
                        let wanted = |code| !anonymous || ANONYMOUS_OPTIONS.contains(&code);
                        self.options_left_out +=
                            recode_options(out, packet.options, packet.order, wanted);
                    }
                });
            }
        }
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes TLS and other decryption secrets to the merged file, each only once.
    #[cold]
    pub(super) fn secrets(&mut self, secrets: &Secrets) -> Result<(), MergeError> {
        let mut hash = DefaultHasher::new();
        secrets.hash(&mut hash);
        if self.anonymous || self.format == FileFormat::Pcap {
            self.secrets_left_out += 1;
        } else if self.secrets.insert(hash.finish()) {
            secrets.encode(&mut self.piece);
        }
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes interface statistics of a capture port to the merged file: the sum of those of the
    /// inputs.
    pub(super) fn statistics(&mut self, port: usize, sum: &InterfaceStatistics) {
        if self.format == FileFormat::Pcapng && *sum != InterfaceStatistics::default() {
            let port = u32::try_from(port).unwrap_or(0);
            interface_statistics(&mut self.piece, port, sum, |_| {});
        }
    }

    /// Returns the number of bytes of the merged file so far, including buffered ones.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        self.written + self.piece.len() as u64
    }

    /// Passes the buffered part of the merged file on if the caller waits for it while the merge
    /// runs.
    pub(super) fn pass_on(&mut self) -> Result<(), MergeError> {
        match self.target.is_awaited() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Writes a comment as the last block of a pcapng output, in an interface statistics block of
    /// its first interface. An output without interfaces gets one for that. A comment that is longer
    /// than a pcapng option is cut.
    pub(super) fn closing_comment(&mut self, text: &str) {
        const CUT: &str = "…";
        let most = usize::from(u16::MAX);
        let text = match text.len() > most {
            true => &format!(
                "{}{CUT}",
                &text[..text.floor_char_boundary(most - CUT.len())]
            ),
            false => text,
        };
        if self.format == FileFormat::Pcapng {
            if self.interfaces == 0 {
                let link_type = u16::try_from(self.link_type).unwrap_or(u16::MAX);
                interface_description(&mut self.piece, link_type, 0, None, |_| {});
                self.interfaces = 1;
            }
            let none = InterfaceStatistics::default();
            interface_statistics(&mut self.piece, 0, &none, |out| {
                option(out, OPT_COMMENT, text.as_bytes());
            });
        }
    }

    /// Writes the remaining bytes of the merged file and renames the file. Returns its length, and
    /// notes on differences from the inputs.
    pub(super) fn finish(mut self) -> Result<(u64, Vec<String>), MergeError> {
        self.flush()?;
        let mut notes = Vec::new();
        let anonymous = self.anonymous;
        if let Some(longest) = self.above {
            notes.extend(self.raise_snaplen(longest)?);
        }
        for (n, what) in [
            (
                self.cut,
                "records are cut to 262144 bytes, the limit of readers",
            ),
            (
                self.stamped,
                "records without a stamp are written with the stamp of the previous record",
            ),
            (
                self.late,
                "records are later than 2106-02-07, which pcap cannot hold, and are written with its last second; pcapng can hold them",
            ),
            (
                self.options_left_out,
                if anonymous {
                    "options of records, such as comments, are left out: all but flags, queues and drop counts"
                } else {
                    "options of records are malformed, or more than 1 MiB of one record, and are left out"
                },
            ),
            (
                self.texts_left_out,
                "names of interfaces or files, descriptions and comments are left out",
            ),
            (
                self.secrets_left_out,
                if anonymous {
                    "blocks of decryption secrets are left out"
                } else {
                    "blocks of decryption secrets are left out: pcap cannot hold them"
                },
            ),
        ] {
            if n > 0 {
                notes.push(format!("{n} {what}"));
            }
        }
        self.target.finish()?;
        Ok((self.written, notes))
    }

    /// Updates the snapshot length in all headers of the merged file if records were longer than
    /// the input headers stated. Returns a note if a header can no longer be changed.
    fn raise_snaplen(&self, longest: u32) -> Result<Option<String>, MergeError> {
        for offset in &self.snaplen_offsets {
            if !self.target.rewrite(&longest.to_ne_bytes(), *offset)? {
                return Ok(Some(format!(
                    "a record of {longest} bytes is above the snapshot length {} in the output's header, which was \
                     already written",
                    self.snaplen
                )));
            }
        }
        Ok(None)
    }

    fn flush(&mut self) -> Result<(), MergeError> {
        if !self.reader_left {
            self.reader_left = !self.target.write(&self.piece, self.written)?;
            if !self.reader_left {
                self.written += self.piece.len() as u64;
            }
        }
        self.piece.clear();
        Ok(())
    }
}
