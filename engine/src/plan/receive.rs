//! How frames lie in a queue's memory: one to a WR, or many to a WR's buffer (a striding WQ).
//!
//! Both have the same bytes for frames, `capture.ring` x `capture.buffer` x `capture.max_sge`. A striding WQ gives each
//! frame what it needs of them in strides, and a CQE for each: the CQ must have one for every stride.

use super::constraints::Buffers;
use crate::{
    Error,
    config::{self, Config, CqeCompression},
    device::{DeviceCaps, DeviceFacts},
    plan::Stamps,
    verbs::{MiniFormat, Striding, StridingCaps},
};
use serde::Serialize;
use std::ops::RangeInclusive;

/// Bytes of a CQE (`cqe_size` of a CQ that nobody has asked for more).
const CQE: u64 = 64;
/// A WR's buffer holds this many of the longest frames, so that what is left over at its end is little.
const LONGEST_FRAMES: u64 = 32;
/// WRs that a striding queue has at least: some with frames that are being read, and some to receive into.
const LEAST_WRS: u64 = 4;
/// Bytes of a frame that a completion of a striding WQ can tell: 16 bits of `byte_cnt`.
const LONGEST: u32 = 0xffff;

/// A queue's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueMemory {
    /// WRs.
    #[serde(rename = "ring")]
    pub wrs: u32,
    /// Bytes of one scatter entry.
    pub buffer: u32,
    /// Scatter entries of a WR.
    pub max_sge: u32,
    /// How frames share a WR's one buffer; `None`: each has a WR.
    pub striding: Option<Striding>,
    /// Bytes in front of each WR's buffer, where VLAN tags are put back: a cache line, so that frames stay aligned, or 0.
    pub headroom: usize,
}

impl QueueMemory {
    /// Decides by `capture.receive`, the device, and what else the configuration asks for.
    ///
    /// # Errors
    /// The device cannot make what is asked for, or nothing has room for it.
    pub(super) fn new(
        config: &Config,
        device: &DeviceFacts,
        frame: Buffers,
        direct: bool,
        restore_vlan: bool,
    ) -> Result<Self, Error> {
        let wanted = config.capture.receive;
        let can = match &device.caps.striding {
            _ if wanted == config::Receive::Frame => Err(String::new()),
            _ if !direct => Err(
                "rings must be accessed directly; set capture.access = \"auto\" on a device with direct verbs".into(),
            ),
            None => Err(format!(
                "{} lacks striding WQs for raw packets (MLX5DV_CONTEXT_MASK_STRIDING_RQ)",
                device.name
            )),
            Some(_) if u64::from(frame.bytes) * u64::from(frame.max_sge) > LONGEST.into() => Err(format!(
                "frames of capture.buffer x capture.max_sge bytes are wanted, and completions of a striding WQ tell of at \
                 most {LONGEST}"
            )),
            Some(_) if config.wq.cvlan_stripping && restore_vlan => Err(
                "VLAN tags that the NIC takes off cannot be put back between frames; set wq.cvlan_stripping = false or \
                 output.vlan = \"lost\""
                    .into(),
            ),
            Some(can) => Ok(can),
        };
        match can {
            Ok(can) => striding(config, &device.caps, can, frame),
            Err(why) if wanted == config::Receive::Striding => Err(Error::config(
                "capture.receive",
                wanted,
                format!("{why}; or set capture.receive = \"auto\""),
            )),
            Err(_) => match device.caps.max_wq_wr {
                Some(most) if frame.wrs > most => Err(Error::config(
                    "capture.ring",
                    frame.wrs,
                    format!(
                        "a WQ of {} has at most {most} WRs; set capture.ring = {most} or less",
                        device.name
                    ),
                )),
                _ => Ok(Self {
                    wrs: frame.wrs,
                    buffer: frame.bytes,
                    max_sge: frame.max_sge,
                    striding: None,
                    headroom: if restore_vlan { 64 } else { 0 },
                }),
            },
        }
    }

    /// Bytes from one WR's buffer to the next.
    fn pitch(&self) -> u64 {
        u64::from(self.buffer) * u64::from(self.max_sge) + self.headroom as u64
    }

    /// Registered memory, in bytes.
    #[must_use]
    pub fn registered(&self) -> u64 {
        u64::from(self.wrs) * self.pitch()
    }

    /// Completions that the queue can have outstanding.
    #[must_use]
    pub fn cqes(&self) -> u32 {
        self.wrs * self.striding.map_or(1, |it| it.strides)
    }

    /// Bytes of the CQ.
    #[must_use]
    pub fn cq(&self) -> u64 {
        u64::from(self.cqes()) * CQE
    }

    /// Frames of `len` bytes that the queue holds while nobody reads.
    #[must_use]
    pub fn frames(&self, len: u32) -> u64 {
        let each = self.striding.map_or(1, |it| {
            it.strides / len.div_ceil(it.stride).clamp(1, it.strides)
        });
        u64::from(self.wrs) * u64::from(each)
    }

    /// Slots as fan-out shares them out: WRs, or as many frames as would be in WRs of their own in the same memory. At
    /// most half of the memory is then with parsers, however long frames are.
    #[must_use]
    pub fn parts(&self) -> u32 {
        /// Bytes of a WR's buffer by default.
        const USUAL: u64 = 2048;
        match self.striding {
            None => self.wrs,
            Some(_) => u32::try_from(self.registered() / USUAL).unwrap_or(u32::MAX),
        }
    }

    /// Bytes of the longest frame.
    #[must_use]
    pub fn longest(&self) -> u32 {
        match self.striding {
            Some(_) => self.buffer.min(LONGEST),
            None => self.buffer * self.max_sge,
        }
    }
}

/// Buffers of many frames in as much memory as `frame` would have.
fn striding(
    config: &Config,
    caps: &DeviceCaps,
    can: &StridingCaps,
    frame: Buffers,
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
                "the device supports powers of two from {} to {}",
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
            // No more than leaves enough WRs, unless even one of the longest frames would not fit.
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
                "{strides} strides of {stride} bytes do not hold a frame of capture.buffer x capture.max_sge = {longest} bytes; take {}",
                longest.div_ceil(stride).next_power_of_two()
            ),
        ));
    }
    let wrs = (memory / buffer).max(LEAST_WRS);
    // Powers of two all, or nearly: libmlx5 rounds up, and what is more than asked for would stay empty.
    let wrs = 1u64 << wrs.ilog2();
    let most_cqes = u64::from(caps.max_cqe) + 1;
    // An unknown limit refuses nothing: creating the WQ does.
    let most_wrs = caps.max_wq_wr.map_or(wrs, u64::from);
    if wrs * strides > most_cqes || wrs > most_wrs {
        let fits = (most_cqes * stride / longest).min(most_wrs * buffer / longest);
        return Err(Error::config(
            "capture.ring",
            frame.wrs,
            format!(
                "{wrs} WRs of {strides} strides of {stride} bytes would take {} CQEs; the device has at most {} and {} WRs: set \
                 capture.ring = {} or less, a larger capture.stride, or capture.receive = \"frame\"",
                wrs * strides,
                caps.max_cqe,
                most_wrs,
                1u64 << fits.max(1).ilog2(),
            ),
        ));
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
        headroom: 0,
    })
}

/// Decides by `capture.cqe_compression` and the device whether completions are compressed.
///
/// # Errors
/// They are to be, and cannot.
pub(super) fn compression(
    config: &Config,
    device: &DeviceFacts,
    memory: &QueueMemory,
    direct: bool,
    stamps: Stamps,
) -> Result<Option<MiniFormat>, Error> {
    let wanted = config.capture.cqe_compression;
    // Striding WQs skip strides; elsewhere each completion is of the next WQE.
    let (format, name) = match memory.striding {
        Some(_) => (MiniFormat::ChecksumStride, "CSUM_STRIDX"),
        None => (MiniFormat::Hash, "HASH"),
    };
    let why = match wanted {
        CqeCompression::Off => return Ok(None),
        _ if stamps != Stamps::Software => {
            "compressed completions have no time stamps of the NIC; set capture.timestamps = \"software\"".into()
        }
        _ if !direct => {
            "rings must be accessed directly; set capture.access = \"auto\" on a device with direct verbs".into()
        }
        _ if !device.caps.mini_cqes.contains(&format) => {
            format!("{} lacks mini CQEs of format {name}", device.name)
        }
        _ => return Ok(Some(format)),
    };
    match wanted {
        CqeCompression::On => Err(Error::config(
            "capture.cqe_compression",
            wanted,
            format!("{why}; or set capture.cqe_compression = \"auto\""),
        )),
        _ => Ok(None),
    }
}
