//! Layout of frames in a queue's memory: one frame per WR, or many frames in a WR's buffer (a
//! striding WQ).
//!
//! Both layouts have the same bytes for frames: `capture.ring` x `capture.buffer` x
//! `capture.max_sge`. A striding WQ gives each frame as many strides as it needs and one CQE, so
//! the CQ has a CQE for every stride.

use super::constraints::ReceiveBuffers;
use crate::{
    Error,
    config::{self, Config, CqeCompression},
    device::{DeviceCaps, DeviceFacts},
    plan::Stamps,
    rx::FallbackAttr,
    verbs::{MiniFormat, RingCaps, Striding, StridingCaps},
};
use serde::Serialize;
use std::ops::RangeInclusive;

/// Bytes of a completion (CQE): the default `cqe_size` of a CQ.
const CQE: u64 = 64;
/// Number of longest frames that a striding WR's buffer holds, so that the unused end of the buffer
/// is small.
const LONGEST_FRAMES: u64 = 32;
/// Minimum WRs of a striding queue: some hold frames that are being read while others receive.
const LEAST_WRS: u64 = 4;
/// Maximum WRs of a WQ whose limit is unknown: a WQ's producer counter has 16 bits.
const MOST_WRS: u32 = 1 << 15;
/// Maximum frame length that a completion of a striding WQ can report: 16 bits of `byte_cnt`.
const LONGEST: u32 = 0xffff;

/// Receive memory of a queue: WRs, buffers and strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct QueueMemory {
    /// Number of WRs of the receive queue.
    #[serde(rename = "ring")]
    pub wrs: u32,
    /// Size of one receive buffer (scatter entry) in bytes.
    pub buffer: u32,
    /// Number of receive buffers (scatter entries) of a WR.
    pub max_sge: u32,
    /// Division into strides of a WR's single buffer, which many frames share; `None` if buffers have
    /// no strides.
    pub striding: Option<Striding>,
    /// `true` if many frames share each buffer, as in the blocks of a packet socket.
    #[serde(skip)]
    pub is_shared: bool,
    /// Limits of the ring with one WR per frame that replaces a striding one if the device's first
    /// completions do not fit; `None` with `capture.receive = "striding"` and without a striding
    /// queue.
    #[serde(skip)]
    pub fallback: Option<FallbackAttr>,
    /// Bytes in front of each WR's buffer for VLAN tags that are put back: one cache line, so that
    /// frames stay aligned, or 0.
    pub headroom: usize,
}

impl QueueMemory {
    /// Chooses the layout of a queue's receive memory by `capture.receive`, the device's
    /// capabilities, and the other settings.
    ///
    /// # Errors
    /// The device cannot create the requested layout, or the layout exceeds a limit of the device.
    pub(super) fn new(
        config: &Config,
        device: &DeviceFacts,
        frame: ReceiveBuffers,
        rings: RingCaps,
        restore_vlan: bool,
    ) -> Result<Self, Error> {
        let wanted = config.capture.receive;
        let can = match &device.caps.striding {
            _ if wanted == config::Receive::Frame => Err((String::new(), &[][..])),
            _ if !rings.striding => Err((
                "rings must be accessed directly; set capture.access = \"auto\" on a device with direct verbs".into(),
                &["capture.access"][..],
            )),
            None => Err((
                format!(
                    "the device {} lacks striding WQs for raw packets (MLX5DV_CONTEXT_MASK_STRIDING_RQ)",
                    device.name
                ),
                &[][..],
            )),
            Some(_) if u64::from(frame.bytes) * u64::from(frame.max_sge) > LONGEST.into() => Err((
                format!(
                    "capture.buffer x capture.max_sge is more than the {LONGEST} bytes that a completion of a striding WQ can \
                     report; set a smaller capture.buffer"
                ),
                &["capture.buffer", "capture.max_sge"][..],
            )),
            Some(_) if config.wq.cvlan_stripping && restore_vlan => Err((
                "VLAN tags that the NIC strips cannot be restored in a striding WQ; set wq.cvlan_stripping = false or \
                 output.vlan = \"lost\""
                    .into(),
                &["wq.cvlan_stripping", "output.vlan"][..],
            )),
            Some(can) => Ok(can),
        };
        match can {
            Ok(can) => striding(config, &device.caps, can, frame),
            Err((reason, others)) if wanted == config::Receive::Striding => Err(Error::config(
                "capture.receive",
                wanted,
                format!("{reason}; alternatively, set capture.receive = \"auto\""),
            )
            .involving(others)),
            Err(_) => match most_wrs(device) {
                (queue, Some(most)) if frame.wrs > most => Err(Error::config(
                    "capture.ring",
                    frame.wrs,
                    format!(
                        "a {queue} of the device {} has at most {most} WRs; set capture.ring = {most} or less",
                        device.name
                    ),
                )),
                _ => Ok(Self {
                    wrs: frame.wrs,
                    buffer: frame.bytes,
                    max_sge: frame.max_sge,
                    striding: None,
                    is_shared: false,
                    fallback: None,
                    headroom: if restore_vlan { 64 } else { 0 },
                }),
            },
        }
    }

    /// Returns the distance in bytes from the start of one WR's buffer to the start of the next.
    fn pitch(&self) -> u64 {
        u64::from(self.buffer) * u64::from(self.max_sge) + self.headroom as u64
    }

    /// Returns the registered receive memory of a queue, in bytes.
    #[must_use]
    pub fn registered(&self) -> u64 {
        u64::from(self.wrs) * self.pitch()
    }

    /// Returns the maximum number of outstanding completions of the queue.
    #[must_use]
    pub fn cqes(&self) -> u32 {
        self.wrs * self.striding.map_or(1, |it| it.strides)
    }

    /// Returns the bytes of the queue's completion queue (CQ).
    #[must_use]
    pub fn cq(&self) -> u64 {
        u64::from(self.cqes()) * CQE
    }

    /// Returns the number of frames of `len` bytes that fit into the receive memory of the queue.
    #[must_use]
    pub fn frames(&self, len: u32) -> u64 {
        let each = self.striding.map_or(1, |it| {
            it.strides / len.div_ceil(it.stride).clamp(1, it.strides)
        });
        u64::from(self.wrs) * u64::from(each)
    }

    /// Returns the number of frame slots that fan-out distributes: the WRs or, if many frames share
    /// a buffer, the WRs of 2048 bytes that the same memory would hold.
    ///
    /// Parsers then hold at most half of the memory, whatever the length of frames.
    #[must_use]
    pub fn parts(&self) -> u32 {
        /// Default size of a WR's receive buffer in bytes.
        const USUAL: u64 = 2048;
        match self.is_shared {
            false => self.wrs,
            true => u32::try_from(self.registered() / USUAL).unwrap_or(u32::MAX),
        }
    }

    /// Returns the bytes of the longest frame that the queue's receive memory can take.
    #[must_use]
    pub fn longest(&self) -> u32 {
        match self.striding {
            Some(_) => self.buffer.min(LONGEST),
            None => self.buffer.saturating_mul(self.max_sge),
        }
    }
}

/// Returns the kind of a device's receive queues (WQ or QP) with one WR for each frame, and their
/// maximum number of WRs, if known.
fn most_wrs(device: &DeviceFacts) -> (&'static str, Option<u32>) {
    match device.raw_qp_only {
        true => ("QP", Some(device.caps.max_qp_wr)),
        false => ("WQ", device.caps.max_wq_wr),
    }
}

/// Lays out a striding queue, whose buffers many frames share, in as much memory as the receive
/// buffers of `frame` take.
fn striding(
    config: &Config,
    caps: &DeviceCaps,
    can: &StridingCaps,
    frame: ReceiveBuffers,
) -> Result<QueueMemory, Error> {
    let of_logs = |logs: &RangeInclusive<u32>| 1u64 << logs.start()..=1u64 << logs.end();
    let (stride_can, strides_can) = (of_logs(&can.stride_log), of_logs(&can.strides_log));
    let check = |key: &'static str, value: u64, can: &RangeInclusive<u64>| {
        if value.is_power_of_two() && can.contains(&value) {
            return Ok(());
        }
        Err(Error::config(
            key,
            value,
            format!(
                "the value must be a power of two, and the device supports {} to {}",
                can.start(),
                can.end()
            ),
        ))
    };
    let capture = &config.capture;
    let stride = capture.stride.map_or(*stride_can.start(), |it| it.0);
    check("capture.stride", stride, &stride_can)?;
    let longest = u64::from(frame.bytes) * u64::from(frame.max_sge);
    let memory = longest * u64::from(frame.wrs);
    let strides = match capture.strides {
        Some(strides) => u64::from(strides),
        None => {
            // At least 16 buffers fit the memory, unless one longest frame needs a larger buffer.
            let several = (longest * LONGEST_FRAMES).min(memory / 16).max(longest);
            (several / stride)
                .max(1)
                .next_power_of_two()
                .clamp(*strides_can.start(), *strides_can.end())
        }
    };
    check("capture.strides", strides, &strides_can)?;
    let buffer = stride * strides;
    if buffer < longest {
        return Err(Error::config(
            "capture.strides",
            strides,
            format!(
                "{strides} strides of {stride} bytes do not hold a frame of capture.buffer x capture.max_sge = {longest} \
                 bytes; set capture.strides = {}",
                longest.div_ceil(stride).next_power_of_two()
            ),
        )
        .involving(&["capture.buffer", "capture.max_sge"]));
    }
    let wrs = (memory / buffer).max(LEAST_WRS);
    // libmlx5 rounds the number of WRs up to a power of two. WRs beyond the requested number would
    // stay empty.
    let wrs = 1u64 << wrs.ilog2();
    let most_cqes = u64::from(caps.max_cqe) + 1;
    // With an unknown limit the check is left to the creation of the WQ.
    let most_wrs = caps.max_wq_wr.map_or(wrs, u64::from);
    if wrs * strides > most_cqes || wrs > most_wrs {
        let fits = (most_cqes * stride / longest).min(most_wrs * buffer / longest);
        return Err(Error::config(
            "capture.ring",
            frame.wrs,
            format!(
                "{wrs} WRs of {strides} strides of {stride} bytes take {} CQEs; the device supports at most {} CQEs and {} WRs; set \
                 capture.ring = {} or less, a larger capture.stride, or capture.receive = \"frame\"",
                wrs * strides,
                caps.max_cqe,
                most_wrs,
                1u64 << fits.max(1).ilog2(),
            ),
        )
        .involving(&["capture.stride", "capture.receive"]));
    }
    let narrow = |it: u64| u32::try_from(it).unwrap_or(u32::MAX);
    Ok(QueueMemory {
        wrs: narrow(wrs),
        buffer: narrow(buffer),
        max_sge: 1,
        striding: Some(Striding {
            stride: narrow(stride),
            strides: narrow(strides),
        }),
        is_shared: true,
        fallback: (capture.receive == config::Receive::Auto).then_some(FallbackAttr {
            longest: narrow(longest),
            most_wrs: caps.max_wq_wr.unwrap_or(MOST_WRS),
        }),
        headroom: 0,
    })
}

/// Returns the format of compressed completions (CQEs), or `None` if they are not compressed.
///
/// # Errors
/// `capture.cqe_compression` is `on`, and the device or another setting rules compression out.
pub(super) fn compression(
    config: &Config,
    device: &DeviceFacts,
    memory: &QueueMemory,
    rings: RingCaps,
    stamps: Stamps,
) -> Result<Option<MiniFormat>, Error> {
    let wanted = config.capture.cqe_compression;
    // A completion of a striding WQ may skip strides, so it needs its stride index. In other WQs
    // each completion is of the next WQE.
    let (format, name) = match memory.striding {
        Some(_) => (MiniFormat::ChecksumStride, "CSUM_STRIDX"),
        None => (MiniFormat::Hash, "HASH"),
    };
    let reason = match wanted {
        CqeCompression::Off => return Ok(None),
        _ if device.kernel.is_some() => "an ordinary network interface has no completions".into(),
        _ if stamps != Stamps::Software => {
            "compressed completions have no time stamps of the NIC; set capture.timestamps = \"software\"".into()
        }
        _ if !rings.compression => {
            "rings must be accessed directly; set capture.access = \"auto\" on a device with direct verbs".into()
        }
        _ if !device.caps.mini_cqes.contains(&format) => {
            format!("the device {} lacks mini CQEs of format {name}", device.name)
        }
        _ => return Ok(Some(format)),
    };
    match wanted {
        CqeCompression::On => Err(Error::config(
            "capture.cqe_compression",
            wanted,
            format!("{reason}; alternatively, set capture.cqe_compression = \"auto\""),
        )
        .involving(&["capture.timestamps", "capture.access"])),
        _ => Ok(None),
    }
}
