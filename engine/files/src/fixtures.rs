//! Capture files for tests: built by hand, and as a capture writes them.

use crate::format::{ByteOrder, ETHERNET, FileFormat, SECOND, pcap, pcapng};

/// Builds a pcap file from records of (seconds, fraction, bytes, original length).
pub(crate) fn pcap_file(
    order: ByteOrder,
    magic: u32,
    records: &[(u32, u32, &[u8], u32)],
) -> Vec<u8> {
    let word = |n: u32| match order {
        ByteOrder::Little => n.to_le_bytes(),
        ByteOrder::Big => n.to_be_bytes(),
    };
    let version = match order {
        ByteOrder::Little => 0x0004_0002,
        ByteOrder::Big => 0x0002_0004,
    };
    let mut file: Vec<u8> = [magic, version, 0, 0, 60, 1].map(word).concat();
    for (seconds, fraction, bytes, len) in records {
        let caplen = u32::try_from(bytes.len()).expect("short");
        file.extend([*seconds, *fraction, caplen, *len].map(word).concat());
        if magic == 0xa1b2_cd34 {
            file.extend([0; 8]);
        }
        file.extend(*bytes);
    }
    file
}

/// Builder of pcapng blocks in a given byte order.
pub(crate) struct Blocks(pub(crate) ByteOrder, pub(crate) Vec<u8>);

impl Blocks {
    pub(crate) fn new(order: ByteOrder) -> Self {
        let mut it = Self(order, Vec::new());
        it.section(order);
        it
    }

    pub(crate) fn word(&self, n: u32) -> [u8; 4] {
        match self.0 {
            ByteOrder::Little => n.to_le_bytes(),
            ByteOrder::Big => n.to_be_bytes(),
        }
    }

    fn half(&self, n: u16) -> [u8; 2] {
        match self.0 {
            ByteOrder::Little => n.to_le_bytes(),
            ByteOrder::Big => n.to_be_bytes(),
        }
    }

    pub(crate) fn block(&mut self, kind: u32, body: &[u8]) -> &mut Self {
        let mut body = body.to_vec();
        body.resize(body.len().next_multiple_of(4), 0);
        let total = u32::try_from(body.len() + 12).expect("short");
        let [kind, total] = [kind, total].map(|n| self.word(n));
        self.1.extend([&kind[..], &total, &body, &total].concat());
        self
    }

    pub(crate) fn section(&mut self, order: ByteOrder) -> &mut Self {
        self.0 = order;
        let body = [
            &self.word(0x1a2b_3c4d)[..],
            &self.half(1),
            &self.half(0),
            &[0xff; 8],
        ]
        .concat();
        self.block(0x0a0d_0d0a, &body)
    }

    pub(crate) fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len()).expect("short");
        let mut option = [&self.half(code)[..], &self.half(len), value].concat();
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    pub(crate) fn interface(&mut self, snaplen: u32, options: &[(u16, &[u8])]) -> &mut Self {
        let options: Vec<u8> = options
            .iter()
            .flat_map(|(code, value)| self.option(*code, value))
            .collect();
        let body = [
            &self.half(1)[..],
            &self.half(0),
            &self.word(snaplen),
            &options,
        ]
        .concat();
        self.block(1, &body)
    }

    pub(crate) fn packet(
        &mut self,
        interface: u32,
        ticks: u64,
        bytes: &[u8],
        len: u32,
        options: &[u8],
    ) -> &mut Self {
        let caplen = u32::try_from(bytes.len()).expect("short");
        let head = [interface, (ticks >> 32) as u32, ticks as u32, caplen, len];
        let mut body = head.map(|n| self.word(n)).concat();
        body.extend(bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(options);
        self.block(6, &body)
    }
}

/// Builds a file as a capture of queue 1 writes it. Returns its bytes, and the start of each record
/// followed by the end of the last one.
pub(crate) fn written(format: FileFormat, frames: u64) -> (Vec<u8>, Vec<usize>) {
    let mut file = Vec::new();
    match format {
        FileFormat::Pcap => file.extend(pcap::encode_header(pcap::NO_LIMIT, ETHERNET, None)),
        FileFormat::Pcapng => {
            pcapng::section_header(&mut file, |_| {});
            pcapng::interface_description(&mut file, 1, 0, None, |out| {
                pcapng::option(out, pcapng::code::IF_NAME, b"port queue 1");
            });
        }
    }
    let mut starts = vec![file.len()];
    for i in 0..frames {
        let bytes = vec![(i as u8).wrapping_add(1); 14 + i as usize * 3];
        let (ns, caplen) = (SECOND + i, u32::try_from(bytes.len()).expect("short"));
        match format {
            FileFormat::Pcap => {
                file.extend(pcap::encode_record_header(ns, caplen, 1500));
                file.extend(&bytes);
            }
            FileFormat::Pcapng => {
                pcapng::enhanced_packet(&mut file, 0, ns, &bytes, 1500, |out| {
                    pcapng::option(out, pcapng::code::EPB_QUEUE, &1u32.to_ne_bytes());
                    pcapng::option(out, pcapng::code::OPT_ENDOFOPT, &[]);
                });
            }
        }
        starts.push(file.len());
    }
    (file, starts)
}
