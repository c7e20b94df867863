//! DPDK's driver on striding receive queues ("multi-packet RQ"), whose rings it posts to and reads
//! itself.

use super::testpmd::{Counted, Setup, Testpmd};
use super::{ROOM, capture, flows, source, tagged};
use std::collections::BTreeMap;
use wqcap_testkit::captures::Captures;
use wqcap_testkit::compare::assert_frames;
use wqcap_testkit::{Dir, files, need, skip};

/// Setting of the model: the device accepts the smallest number of strides per WQE that any
/// firmware allows.
const FEW: &str = "ext_stride_num_range=true";

/// Stride geometry, as logarithms of size and number, and the reader of the queue.
#[derive(Clone, Copy, Debug)]
struct Strides {
    vector: bool,
    log_size: usize,
    log_count: usize,
}

impl Strides {
    /// Returns the driver arguments.
    fn device(self) -> String {
        let Self {
            vector,
            log_size,
            log_count,
        } = self;
        let vector = u8::from(vector);
        format!(
            "rx_vec_en={vector},mprq_en=1,rxqs_min_mprq=1,mprq_log_stride_size={log_size},mprq_log_stride_num={log_count}"
        )
    }

    /// Returns the option for descriptors of four WQEs. A descriptor is a stride.
    fn descriptors(self) -> String {
        format!("--rxd={}", 4 << self.log_count)
    }

    /// Returns the maximum frame length that a completion can report.
    fn longest(self) -> usize {
        (1 << (self.log_size + self.log_count)).min(0xffff)
    }

    /// Returns `true` if the driver delivers a frame of `len` bytes: it fits in a buffer, or its
    /// strides have 128 spare bytes and are passed on without a copy (`mprq_buf_to_pkt`).
    fn delivers(self, len: usize) -> bool {
        len <= ROOM || len + 128 <= len.next_multiple_of(1 << self.log_size)
    }

    /// Asserts that the driver uses striding queues with the configured reader.
    #[track_caller]
    fn assert_used(self, testpmd: &mut Testpmd) {
        let mode = testpmd.answer("show rxq info 0 0", "Burst mode: ");
        let wanted = if self.vector {
            "MPRQ Vector"
        } else {
            "Multi-Packet RQ"
        };
        assert!(mode.contains(wanted), "{self:?}: {mode}");
    }
}

const fn strides(vector: bool, log_size: usize, log_count: usize) -> Strides {
    Strides {
        vector,
        log_size,
        log_count,
    }
}

#[test]
fn every_capture_passes_through_strides_unchanged() {
    let dir = Dir::new();
    let (_, frames) = Captures::find().everything(&dir);
    for strides in [
        strides(true, 7, 9),
        strides(false, 7, 9),
        strides(true, 11, 9),
        strides(false, 8, 10),
        strides(true, 11, 3),
        strides(false, 11, 3),
        strides(true, 13, 5),
        strides(false, 13, 5),
    ] {
        // Frames that would cause a completion with an error are left out: the vectorised reader
        // drops frames polled together with one (`rxq_handle_pending_error`), and the scalar reader
        // treats it as an empty frame (`mlx5_rx_err_handle`).
        let frames: Vec<_> = frames
            .iter()
            .filter(|it| it.len() <= strides.longest())
            .cloned()
            .collect();
        let wire = capture(&dir, "all.pcap", &frames);
        let out = dir.join("out.pcap");
        let setup = Setup {
            out: Some(&out),
            device: &strides.device(),
            settings: &[FEW],
            options: &[
                "--mbuf-size=9856",
                "--max-pkt-len=9728",
                &strides.descriptors(),
            ],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        strides.assert_used(&mut testpmd);
        testpmd.open_wire();
        let counted = testpmd.counted(frames.len());
        drop(testpmd.quit());
        let (within, beyond): (Vec<_>, Vec<_>) = frames
            .into_iter()
            .partition(|it| strides.delivers(it.len()));
        let expected = Counted {
            received: within.len(),
            errors: beyond.len(),
            missed: 0,
        };
        assert_eq!(counted, expected, "{strides:?}");
        skip::say(&format!("NOTE {strides:?} through DPDK: {expected:?}"));
        let written: Vec<_> = files::read(&out).into_iter().map(|it| it.bytes).collect();
        assert_frames(format!("{strides:?}"), &written, &within);
    }
}

#[test]
fn striding_queues_receive_the_frames_of_ordinary_queues() {
    let dir = Dir::new();
    let frames = flows(256);
    let wire = capture(&dir, "flows.pcap", &frames);
    let mut of_frames = None;
    for device in [
        "rx_vec_en=1".to_owned(),
        strides(true, 7, 9).device(),
        strides(false, 7, 4).device(),
    ] {
        let setup = Setup {
            queues: 4,
            device: &device,
            settings: &[FEW],
            options: &["--rxd=1024"],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        testpmd.open_wire();
        let by_source: BTreeMap<_, _> = testpmd
            .received(frames.len())
            .into_iter()
            .map(|it| (it.source, (it.queue, it.hash, it.length)))
            .collect();
        drop(testpmd.quit());
        assert_eq!(by_source.len(), frames.len(), "{device}");
        match &of_frames {
            None => of_frames = Some(by_source),
            Some(of_frames) => assert_eq!(&by_source, of_frames, "{device}"),
        }
    }
}

#[test]
fn strided_frames_are_scattered_with_their_tag_stripped_and_their_fcs_kept() {
    let dir = Dir::new();
    let frames: Vec<_> = [18, 1000, 3000, 8900]
        .repeat(20)
        .into_iter()
        .map(tagged)
        .collect();
    let wire = capture(&dir, "tagged.pcap", &frames);
    // The vectorised reader treats a filler completion as a frame without an FCS
    // (`rxq_copy_mprq_mbuf_v`). Its WQEs are therefore large enough for all frames.
    for strides in [
        strides(true, 11, 9),
        strides(false, 11, 9),
        strides(false, 8, 6),
    ] {
        let setup = Setup {
            device: &strides.device(),
            settings: &[FEW],
            options: &[
                "--enable-scatter",
                "--max-pkt-len=9600",
                "--enable-hw-vlan-strip",
                "--disable-crc-strip",
                "--enable-rx-timestamp",
                &strides.descriptors(),
            ],
            ..Setup::default()
        };
        let mut testpmd = need!(Testpmd::start(&dir, &wire, &setup));
        strides.assert_used(&mut testpmd);
        testpmd.open_wire();
        let received = testpmd.received(frames.len());
        drop(testpmd.quit());
        let mut last_stamp = 0;
        for (frame, packet) in frames.iter().zip(&received) {
            // Without the tag, and without the FCS that the driver hides.
            assert_eq!(packet.length, frame.len() - 4, "{strides:?}: {packet:?}");
            assert_eq!(packet.vlan_tci, Some(0x2abc), "{strides:?}: {packet:?}");
            assert_eq!(packet.source, source(frame), "{strides:?}");
            assert!(packet.timestamp > last_stamp, "{strides:?}: {packet:?}");
            last_stamp = packet.timestamp;
        }
    }
}
