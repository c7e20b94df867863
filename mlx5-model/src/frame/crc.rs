//! CRC-32C of SCTP. Ethernet's CRC comes from the crate `crc32fast`.

/// CRC-32C of each byte value, least significant bit first, as lookup table.
static CRC32C: [u32; 256] = {
    let mut table = [0; 256];
    let mut value = 0;
    while value < 256 {
        let mut crc = value as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 {
                crc >> 1 ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
            bit += 1;
        }
        table[value] = crc;
        value += 1;
    }
    table
};

/// Returns SCTP's checksum (RFC 9260 appendix A) in the byte order of its field.
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
    fn crc_of_the_check_string() {
        // The check value of CRC-32C is 0xe3069283.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    }
}
