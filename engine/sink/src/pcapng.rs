//! Encoder of pcapng files: one section with an interface for each port in the file, enhanced packet
//! blocks, and interface statistics at the end.

use crate::{Encoder, InterfaceTotals, Note, Origin, PortDescription, Record, Totals};
use std::sync::{Arc, Mutex};
use wqcap_core::{
    consumer::FCS_LEN,
    stats::{ClockReport, outage::OutageReporter},
};
use wqcap_files::{
    format::{
        ETHERNET, InterfaceStatistics,
        pcapng::{self, code, option, option_header},
        put_words,
    },
    index::MARK,
    read::origin::PROGRAM,
};

/// Length in bytes of a packet block's epb_dropcount option, present if frames were lost before the
/// record.
const DROPCOUNT_LEN: usize = 12;
/// Length in bytes of what follows the frame in each packet block: epb_flags and epb_queue of 8
/// bytes each, the end of options, and the block's length.
const END_LEN: usize = 20 + pcapng::BLOCK_TRAILER_LEN;
/// Bit of a packet block's epb_flags for the inbound direction.
const INBOUND: u32 = 1;
/// Bit of a packet block's epb_flags for a CRC error, a wrong FCS.
const CRC_ERROR: u32 = 1 << 24;
/// First byte of if_filter for a filter string of libpcap.
const LIBPCAP_STRING: u8 = 0;
/// Maximum length in bytes of a filter or note in a pcapng file, so that a header or a record fits
/// in a write block.
const MOST_TEXT: usize = 1000;

/// Encoder of frame records into the pcapng format.
#[derive(Clone, Debug)]
pub struct PcapngEncoder {
    /// Maximum bytes of a frame that its record holds; 0: whole frames.
    pub snaplen: u32,
    /// Captured ports that receive the frames; at least one.
    pub interfaces: Vec<PortDescription>,
    /// Index of each queue's port in [`PcapngEncoder::interfaces`]; empty: all queues are of the
    /// first port.
    pub ports: Vec<usize>,
    /// Origin of the capture file: machine, device and run.
    pub origin: Origin,
    /// Report on the NIC's clock, written at each capture file's end; `None`: the NIC's clock gives
    /// no time stamps.
    pub clock: Option<Arc<Mutex<Option<ClockReport>>>>,
    /// Outages of the capture since the previous capture file, which each file's header names.
    pub outages: OutageReporter,
}

/// Appends a text as a pcapng option, cut to [`MOST_TEXT`] bytes. An empty text is left out.
fn text(out: &mut Vec<u8>, code: u16, value: &str) {
    if !value.is_empty() {
        let end = value.floor_char_boundary(MOST_TEXT);
        option(out, code, &value.as_bytes()[..end]);
    }
}

impl Default for PcapngEncoder {
    /// Creates an encoder of whole frames of one interface without a name.
    fn default() -> Self {
        Self {
            snaplen: 0,
            interfaces: vec![PortDescription::default()],
            ports: Vec::new(),
            origin: Origin::default(),
            clock: None,
            outages: OutageReporter::default(),
        }
    }
}

impl PcapngEncoder {
    /// Returns the index of a queue's port in [`PcapngEncoder::interfaces`].
    fn port(&self, queue: u16) -> usize {
        self.ports.get(usize::from(queue)).copied().unwrap_or(0)
    }

    /// Appends the pcapng description of an interface, or of one of its queues if `queue` is given.
    fn describe(&self, out: &mut Vec<u8>, interface: &PortDescription, queue: Option<u16>) {
        let origin = &self.origin;
        let fcs_len = interface.fcs.then_some(FCS_LEN as u8);
        pcapng::interface_description(out, ETHERNET as u16, self.snaplen, fcs_len, |out| {
            let name = match queue {
                Some(queue) => format!("{} queue {queue}", interface.name),
                None => interface.name.clone(),
            };
            option(out, code::IF_NAME, name.as_bytes());
            text(out, code::IF_DESCRIPTION, &interface.description);
            if interface.speed > 0 {
                option(out, code::IF_SPEED, &interface.speed.to_ne_bytes());
            }
            // A shortened filter would have another meaning.
            if !origin.filter.is_empty() && origin.filter.len() <= MOST_TEXT {
                let filter = [&[LIBPCAP_STRING], origin.filter.as_bytes()].concat();
                option(out, code::IF_FILTER, &filter);
            }
            text(out, code::IF_OS, &origin.os);
            text(out, code::IF_HARDWARE, &interface.device);
        });
    }
}

impl Encoder for PcapngEncoder {
    fn extension(&self) -> &'static str {
        "pcapng"
    }

    fn header(&mut self, queue: Option<u16>, ns: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let outages = self.outages.unreported(ns);
        let origin = &self.origin;
        pcapng::section_header(&mut out, |out| {
            text(out, code::OPT_COMMENT, &origin.comment);
            text(out, code::OPT_COMMENT, &origin.operator_comment);
            if !origin.host.is_empty() {
                let comment = format!("{}{}", pcapng::HOST_COMMENT, origin.host);
                text(out, code::OPT_COMMENT, &comment);
            }
            text(out, code::OPT_COMMENT, &outages);
            text(out, code::SHB_HARDWARE, &origin.machine);
            text(out, code::SHB_OS, &origin.os);
            text(out, code::SHB_USERAPPL, PROGRAM);
        });
        if let Some(queue) = queue {
            // The file has the interface of its queue only.
            let port = self.port(queue);
            self.interfaces = self.interfaces.get(port).cloned().into_iter().collect();
            self.ports = Vec::new();
        }
        for interface in &self.interfaces {
            self.describe(&mut out, interface, queue);
        }
        out
    }

    fn interface(&self, queue: u16) -> u32 {
        self.port(queue) as u32
    }

    fn next_header_ns(&self) -> u64 {
        self.outages.next_ns()
    }

    #[inline]
    fn record_len(&self, record: &Record<'_>) -> usize {
        let lost = if record.lost_before == 0 {
            0
        } else {
            DROPCOUNT_LEN
        };
        pcapng::PACKET_HEADER_LEN + record.caplen().next_multiple_of(4) + lost + END_LEN
    }

    #[expect(
        clippy::inline_always,
        reason = "a call would force the compiler to store each frame's record in memory"
    )]
    #[inline(always)]
    fn record(&self, out: &mut [u8], queue: u16, record: &Record<'_>) {
        // A block is much smaller than 4 GiB.
        let (total, caplen) = (out.len() as u32, record.caplen() as u32);
        let (header, rest) = out.split_at_mut(pcapng::PACKET_HEADER_LEN);
        header.copy_from_slice(&pcapng::encode_packet_header(
            total,
            record.interface,
            record.ns,
            caplen,
            record.wire_len(),
        ));
        let (rest, end) = rest.split_at_mut(rest.len() - END_LEN);
        let (padded, lost) = rest.split_at_mut(record.caplen().next_multiple_of(4));
        // Zeroes the padding, if there is any, and bytes of the frame that are overwritten next.
        if let Some(last) = padded.last_chunk_mut::<4>() {
            *last = [0; 4];
        }
        record.copy_to(&mut padded[..record.caplen()]);
        if record.lost_before > 0 {
            lost[..4].copy_from_slice(&option_header(code::EPB_DROPCOUNT, 8).to_ne_bytes());
            lost[4..].copy_from_slice(&record.lost_before.to_ne_bytes());
        }
        put_words(
            end,
            &[
                option_header(code::EPB_FLAGS, 4),
                INBOUND | if record.bad_fcs { CRC_ERROR } else { 0 },
                option_header(code::EPB_QUEUE, 4),
                u32::from(queue),
                option_header(code::OPT_ENDOFOPT, 0),
                total,
            ],
        );
    }

    fn supports_marks(&self) -> bool {
        true
    }

    fn set_filter(&mut self, filter: &str) -> bool {
        filter.clone_into(&mut self.origin.filter);
        true
    }

    fn record_with_notes(&self, queue: u16, record: &Record<'_>, notes: &[Note]) -> Vec<u8> {
        let mut out = vec![0; self.record_len(record)];
        self.record(&mut out, queue, record);
        // Before the end of options and the closing length.
        out.truncate(out.len() - 4 - pcapng::BLOCK_TRAILER_LEN);
        for note in notes {
            let comment = match note {
                Note::Filter(filter) if filter.is_empty() => {
                    "the capture filter from this block on is: none".into()
                }
                Note::Filter(filter) => {
                    format!("the capture filter from this block on is: {filter}")
                }
                Note::Mark(mark) => format!("{MARK}{mark}"),
            };
            text(&mut out, code::OPT_COMMENT, &comment);
        }
        option(&mut out, code::OPT_ENDOFOPT, &[]);
        pcapng::close_block(&mut out, 0);
        out
    }

    fn trailer(&self, totals: &Totals) -> Vec<u8> {
        let mut out = Vec::new();
        for index in 0..self.interfaces.len() {
            let of_interface = match self.interfaces.len() {
                1 => InterfaceTotals {
                    received: totals.received,
                    dropped: totals.dropped,
                },
                _ => totals.interfaces.get(index).copied().unwrap_or_default(),
            };
            let statistics = InterfaceStatistics {
                received: Some(of_interface.received),
                dropped: Some(of_interface.dropped),
                start_ns: Some(totals.first_ns),
                end_ns: Some(totals.last_ns),
            };
            pcapng::interface_statistics(&mut out, index as u32, &statistics, |out| {
                if let Some(clock) = &self.clock {
                    let report = clock.lock().map_or(None, |it| *it).unwrap_or_default();
                    text(out, code::OPT_COMMENT, &report.line());
                }
            });
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{
        Block, PcapNgReader,
        blocks::{
            enhanced_packet::EnhancedPacketOption as Epb,
            interface_statistics::InterfaceStatisticsOption as Isb,
        },
    };
    use std::time::Duration;

    #[test]
    fn reads_back_byte_for_byte_and_to_the_nanosecond() {
        let mut encoder = PcapngEncoder {
            interfaces: vec![PortDescription {
                name: "mlx5_0".into(),
                ..PortDescription::default()
            }],
            ..PcapngEncoder::default()
        };
        let mut file = encoder.header(Some(3), 0);
        for len in [14usize, 15, 16, 17, 60] {
            let frame = vec![len as u8; len];
            let record = Record {
                ns: 1_700_000_000_123_456_789,
                bytes: &frame,
                len: 1500,
                fcs: &[],
                fcs_len: 0,
                bad_fcs: false,
                interface: 0,
                lost_before: u64::from(len == 16) * 7,
            };
            let mut out = vec![0xff; encoder.record_len(&record)];
            encoder.record(&mut out, 3, &record);
            file.extend(out);
        }
        file.extend(encoder.trailer(&Totals {
            first_ns: 1,
            last_ns: 2,
            received: 12,
            dropped: 7,
            ..Totals::default()
        }));
        let mut reader = PcapNgReader::new(&file[..]).expect("section");
        let mut lens = Vec::new();
        while let Some(block) = reader.next_block() {
            match block.expect("sound") {
                Block::InterfaceDescription(i) => assert_eq!(i.snaplen, 0),
                Block::EnhancedPacket(p) => {
                    assert_eq!(p.original_len, 1500);
                    assert!(p.data.iter().all(|b| usize::from(*b) == p.data.len()));
                    assert_eq!(p.timestamp, Duration::from_nanos(1_700_000_000_123_456_789));
                    let lost = p.options.iter().find_map(|o| {
                        if let Epb::DropCount(n) = o {
                            Some(*n)
                        } else {
                            None
                        }
                    });
                    assert_eq!(lost, (p.data.len() == 16).then_some(7));
                    assert!(p.options.contains(&Epb::Flags(1)), "{:?}", p.options);
                    lens.push(p.data.len());
                }
                Block::InterfaceStatistics(i) => {
                    assert!(
                        i.options.contains(&Isb::IsbIfRecv(12))
                            && i.options.contains(&Isb::IsbIfDrop(7)),
                        "{i:?}"
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(lens, [14, 15, 16, 17, 60]);
    }
}
