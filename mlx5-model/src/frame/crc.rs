//! CRCs: of Ethernet, and SCTP's.
//!
//! Imports nothing.

/// The CRC of each byte, least significant bit first.
const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ polynomial
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[value] = crc;
        value += 1;
    }
    table
}

/// IEEE 802.3, 3.2.9: eight tables for eight bytes at a time.
static CRC_TABLES: [[u32; 256]; 8] = {
    let mut tables = [table(0xedb8_8320); 8];
    let mut index = 1;
    while index < 8 {
        let mut value = 0;
        while value < 256 {
            let before = tables[index - 1][value];
            tables[index][value] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            value += 1;
        }
        index += 1;
    }
    tables
};

/// The Ethernet CRC.
pub fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let low = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]) ^ crc;
        let table = |index: usize, value: u32| CRC_TABLES[index][(value & 0xff) as usize];
        crc = table(7, low)
            ^ table(6, low >> 8)
            ^ table(5, low >> 16)
            ^ table(4, low >> 24)
            ^ table(3, u32::from(chunk[4]))
            ^ table(2, u32::from(chunk[5]))
            ^ table(1, u32::from(chunk[6]))
            ^ table(0, u32::from(chunk[7]));
    }
    for &byte in chunks.remainder() {
        crc = CRC_TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize] ^ crc >> 8;
    }
    !crc
}

static CRC32C: [u32; 256] = table(0x82f6_3b78);

/// SCTP's checksum (RFC 9260 appendix A), as its field holds it.
pub fn crc32c(bytes: &[u8]) -> [u8; 4] {
    let crc = bytes.iter().fold(u32::MAX, |crc, byte| {
        CRC32C[((crc ^ u32::from(*byte)) & 0xff) as usize] ^ crc >> 8
    });
    (!crc).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_ethernets() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        let bytes: Vec<u8> = (0..255).collect();
        for len in 0..40 {
            let mut slow = u32::MAX;
            for byte in &bytes[..len] {
                slow = CRC_TABLES[0][((slow ^ u32::from(*byte)) & 0xff) as usize] ^ slow >> 8;
            }
            assert_eq!(crc32(&bytes[..len]), !slow);
        }
    }

    #[test]
    fn the_crc_of_the_digits() {
        // The check value of CRC-32C is 0xe3069283.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }
}
