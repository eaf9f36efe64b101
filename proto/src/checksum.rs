//! CRC-32C (Castagnoli; RFC 3720, section 12.1), the checksum of tensors, of what comes on plain lanes, and of references; and CRC-32,
//! that of zips. Made with the vector instructions that the processor has.

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

/// The checksum of all of them.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// The checksum of bytes that follow those of which `sum` is the checksum.
#[must_use]
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    // It has 32 bits.
    digest.finalize() as u32
}

/// The checksum of bytes from the sums of their two parts, the second of which has so many bytes.
#[must_use]
pub fn crc32c_combine(first: u32, second: u32, bytes: u64) -> u32 {
    // It has 32 bits.
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), bytes) as u32
}

/// The CRC-32 of zips, of bytes that follow those of which `sum` is the checksum; 0 is that of no bytes.
#[must_use]
pub fn crc32_append(sum: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, u64::from(!sum));
    digest.update(bytes);
    // It has 32 bits.
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_3720_come_out() {
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        for (bytes, sum) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (b"123456789", 0xe306_9283),
            (b"", 0),
        ] {
            assert_eq!(crc32c(bytes), sum);
        }
    }

    #[test]
    fn a_sum_goes_on_wherever_it_was_cut() {
        let bytes: Vec<u8> = (0..5_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let whole = crc32c(&bytes);
        for cut in [0, 1, 15, 16, 255, 256, 257, 4_095, 4_999, 5_000] {
            let (first, second) = bytes.split_at(cut);
            assert_eq!(crc32c_append(crc32c(first), second), whole, "cut at {cut}");
            let combined = crc32c_combine(crc32c(first), crc32c(second), second.len() as u64);
            assert_eq!(combined, whole, "cut at {cut}");
        }
    }

    #[test]
    fn the_checksum_of_zips_is_the_usual_one_and_goes_on_where_it_was_cut() {
        assert_eq!((crc32_append(0, b"123456789"), crc32_append(0, b"")), (0xcbf4_3926, 0));
        assert_eq!(crc32_append(crc32_append(0, b"1234"), b"56789"), 0xcbf4_3926);
    }
}
