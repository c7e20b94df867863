//! RoCE frames, by their headers.

/// UDP port of RoCE v2 (InfiniBand Architecture Specification, annex A17).
const ROCE_V2_PORT: u16 = 4791;
/// EtherType of RoCE v1 (annex A16).
const ROCE_V1: u16 = 0x8915;

/// Returns `true` for a frame of RoCE v1 or v2, behind at most two VLAN tags.
pub fn is_roce(frame: &[u8]) -> bool {
    let word = |at: usize| Some(u16::from_be_bytes(*frame.get(at..)?.first_chunk()?));
    let mut at = 12;
    while at < 20 && matches!(word(at), Some(0x8100 | 0x88a8)) {
        at += 4;
    }
    let (kind, ip) = (word(at), at + 2);
    let byte = |at: usize| frame.get(at).copied();
    let udp = match kind {
        Some(ROCE_V1) => return true,
        Some(0x0800)
            if byte(ip + 9) == Some(17) && word(ip + 6).is_some_and(|it| it & 0x1fff == 0) =>
        {
            ip + usize::from(byte(ip).unwrap_or(0) & 15) * 4
        }
        Some(0x86dd) if byte(ip + 6) == Some(17) => ip + 40,
        _ => return false,
    };
    word(udp + 2) == Some(ROCE_V2_PORT)
}
