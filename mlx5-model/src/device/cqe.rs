//! Layout of completion queue entries.
//!
//! Imports `abi`.

use std::mem::offset_of;

use crate::abi::{self, mlx5_cqe64, mlx5_err_cqe};

/// Mask for 24-bit numbers: CQNs, QPNs, flow tags and the indexes in doorbell records.
pub const MASK_24: u32 = 0xff_ffff;

/// Value of the format field for the title CQE of a compression session, in bits 3:2 of `op_own`.
const COMPRESSED: u64 = 3;

/// A CQE (PRM "CQE format"): eight big-endian words. The last word is stored last.
#[derive(Debug, Clone, Copy, Default)]
pub struct NicCqe(pub [u64; 8]);

// The words below rely on these offsets.
const _: () = {
    // Only this field of the generated layout's first half has a name.
    assert!(offset_of!(mlx5_cqe64, srqn_uidx) == 32);
    assert!(offset_of!(mlx5_cqe64, byte_cnt) == 44);
    assert!(offset_of!(mlx5_cqe64, timestamp) == 48);
    assert!(offset_of!(mlx5_cqe64, sop_drop_qpn) == 56);
    assert!(offset_of!(mlx5_cqe64, wqe_counter) == 60);
    assert!(offset_of!(mlx5_cqe64, op_own) == 63);
    assert!(offset_of!(mlx5_err_cqe, srqn) == 32);
    assert!(offset_of!(mlx5_err_cqe, vendor_err_synd) == 54);
    assert!(offset_of!(mlx5_err_cqe, syndrome) == 55);
    assert!(offset_of!(mlx5_err_cqe, s_wqe_opcode_qpn) == 56);
};

/// Fields of a received frame's CQE.
#[derive(Debug, Clone, Copy, Default)]
pub struct RxInfo {
    /// RSS hash of a received frame (`rss_hash_result`, bytes 12 to 15).
    pub hash: u32,
    /// `rss_hash_type` of a received frame, byte 16. Bits 3:2: hashed IP version (1 IPv4, 2 IPv6),
    /// bits 7:6: hashed transport (1 TCP, 2 UDP), both for the destination; bits 1:0 and 5:4:
    /// likewise for the source.
    pub hash_type: u8,
    /// Valid checksums of a received frame (`hds_ip_ext`, byte 28): `MLX5_CQE_L3_OK`,
    /// `MLX5_CQE_L4_OK`.
    pub checks: u8,
    /// Header types of a received frame (`l4_hdr_type_etc`, byte 29): bits 6:4 transport, bits 3:2
    /// network layer, bit 0 `cv`.
    pub headers: u8,
    /// Tag control information of a received frame's C-VLAN tag (`vlan_info`, bytes 30 and 31).
    pub vlan: u16,
    /// Number of bytes of a received frame that were written to the program's memory (`byte_cnt`).
    pub byte_count: u32,
    /// Flow tag of a received frame, in the low 24 bits of `sop_drop_qpn`.
    pub tag: u32,
}

/// Reason why a WQE failed, as its CQE states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WqeError {
    /// Error syndrome in the CQE of a failed WQE: `MLX5_CQE_SYNDROME_*`.
    pub syndrome: u8,
    /// Vendor's error syndrome in the CQE of a failed WQE (`vendor_err_synd`).
    pub vendor: u8,
}

impl WqeError {
    /// WQE error: the queue was or went into error before the WQE was executed.
    pub const FLUSHED: Self = Self::new(abi::MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0xf9);
    /// WQE error: the frame is longer than its buffers.
    pub const TOO_LONG: Self = Self::new(abi::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, 0x32);
    /// WQE error: a memory key, range or access right is invalid.
    pub const PROTECTION: Self = Self::new(abi::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, 0x51);
    /// WQE error: the WQE is malformed.
    pub const BAD_WQE: Self = Self::new(abi::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, 0x68);

    const fn new(syndrome: u32, vendor: u8) -> Self {
        let syndrome = syndrome as u8;
        Self { syndrome, vendor }
    }
}

impl NicCqe {
    #[inline(always)]
    pub fn received(uidx: u32, wqe_counter: u16, timestamp: u64, info: &RxInfo) -> Self {
        Self([
            0,
            u64::from(info.hash),
            u64::from(info.hash_type) << 56,
            u64::from(info.checks) << 24 | u64::from(info.headers) << 16 | u64::from(info.vlan),
            u64::from(uidx) << 32,
            u64::from(info.byte_count),
            timestamp,
            last_word(info.tag & MASK_24, wqe_counter, abi::MLX5_CQE_RESP_SEND),
        ])
    }

    /// Sets the fields of a striding queue's CQE: its WQE (`wqe_id`, bytes 2 and 3), and the bytes
    /// and strides of the WQE that it consumes.
    ///
    /// `wqe_id` is the 16-bit counter of WQEs: readers mask it to the ring (`rx_burst_mprq` of
    /// DPDK's `mlx5_rx.c`).
    #[inline(always)]
    pub fn in_wqe(mut self, wqe_id: u16, byte_count: u32) -> Self {
        self.0[0] = u64::from(wqe_id) << 32;
        self.0[5] = u64::from(byte_count);
        self
    }

    /// Makes a CQE the title of a compression session of `count` completions (`MLX5_COMPRESSED` of
    /// DPDK's `mlx5_prm.h`: 3 in the format bits of `op_own`).
    pub fn titled(mut self, count: u32) -> Self {
        self.0[5] = u64::from(count);
        self.0[7] |= COMPRESSED << 2;
        self
    }

    /// Returns `true` for the CQE of a received frame or for a filler CQE of a striding queue.
    pub fn is_received(&self) -> bool {
        self.opcode() == abi::MLX5_CQE_RESP_SEND
    }

    pub fn wqe_counter(&self) -> u16 {
        (self.0[7] >> 16) as u16
    }

    /// Creates a CQE from the fields in its words 4 to 7, which every CQE has.
    #[inline(always)]
    fn new(uidx: u32, byte_count: u32, word_6: u64, last_word: u64) -> Self {
        let (uidx, byte_count) = (u64::from(uidx) << 32, u64::from(byte_count));
        Self([0, 0, 0, 0, uidx, byte_count, word_6, last_word])
    }

    #[inline]
    pub fn sent(
        uidx: u32,
        wqe_counter: u16,
        timestamp: u64,
        opcode: u8,
        qpn: u32,
        byte_count: u32,
    ) -> Self {
        let wqe = u32::from(opcode) << 24 | qpn & MASK_24;
        let last_word = last_word(wqe, wqe_counter, abi::MLX5_CQE_REQ);
        Self::new(uidx, byte_count, timestamp, last_word)
    }

    /// Creates the CQE of a failed WQE; `send` is the opcode of a send queue's WQE.
    pub fn failed(
        uidx: u32,
        wqe_counter: u16,
        error: WqeError,
        send: Option<u8>,
        qpn: u32,
    ) -> Self {
        let opcode = if send.is_some() {
            abi::MLX5_CQE_REQ_ERR
        } else {
            abi::MLX5_CQE_RESP_ERR
        };
        let wqe = u32::from(send.unwrap_or(0)) << 24 | qpn & MASK_24;
        let syndrome = u64::from(error.vendor) << 8 | u64::from(error.syndrome);
        Self::new(uidx, 0, syndrome, last_word(wqe, wqe_counter, opcode))
    }

    /// Creates the CQE which marks that its CQ continues in another ring (RESIZE_CQ).
    pub fn resized() -> Self {
        Self::new(0, 0, 0, last_word(0, 0, abi::MLX5_CQE_RESIZE_CQ))
    }

    fn opcode(&self) -> u32 {
        (self.0[7] as u32 & 0xff) >> 4
    }
}

#[inline]
fn last_word(sop_drop_qpn: u32, wqe_counter: u16, opcode: u32) -> u64 {
    u64::from(sop_drop_qpn) << 32 | u64::from(wqe_counter) << 16 | u64::from(opcode) << 4
}

/// Numbers of completions in error on one CQ, which are added to the counters of the port.
#[derive(Debug, Clone, Copy, Default)]
pub struct ErrorCounts {
    pub receive: u64,
    pub receive_flushed: u64,
    /// Number of receive completions in error because the frame was too long.
    pub receive_length: u64,
    pub send: u64,
    pub send_flushed: u64,
}

impl ErrorCounts {
    /// Adds a CQE in error to the error counts by queue type and syndrome.
    pub fn add(&mut self, cqe: &NicCqe) {
        let syndrome = cqe.0[6] as u32 & 0xff;
        let flushed = u64::from(syndrome == abi::MLX5_CQE_SYNDROME_WR_FLUSH_ERR);
        if cqe.opcode() == abi::MLX5_CQE_REQ_ERR {
            self.send += 1;
            self.send_flushed += flushed;
        } else {
            self.receive += 1;
            self.receive_flushed += flushed;
            self.receive_length += u64::from(syndrome == abi::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
        }
    }
}
