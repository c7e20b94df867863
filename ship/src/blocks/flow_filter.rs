//! Bloom filter of the keys of the flows in a part of a file.
//!
//! The format is the split block Bloom filter of Parquet ("Parquet Bloom Filter",
//! parquet-format/BloomFilter.md) without a header: blocks of 32 bytes. Each key is inserted as a
//! little-endian INT64.

use parquet::{bloom_filter::Sbbf, errors::ParquetError};
use wqcap_files::index::IndexKey;

/// Length in bytes of a block of the split block Bloom filter.
const BLOCK: usize = 32;
/// Number of bytes of a flow filter per index key: about 1 in 1000 look-ups is a false positive.
const BYTES_FOR_KEY: usize = 2;
/// Divisor that limits a flow filter to 2 % of the length of its capture file part. Without it the
/// filter of a part with many flows of one frame each would be longer.
const MOST_SHARE: u64 = 50;

/// Bloom filter of the index keys of the flows in a part of a capture file.
pub(crate) struct FlowFilter(Sbbf);

impl FlowFilter {
    /// Builds the flow filter of a capture file part of `part` bytes from index keys of its flows,
    /// in ascending order.
    pub(crate) fn new(keys: &[IndexKey], part: u64) -> Self {
        let most = usize::try_from(part / MOST_SHARE).unwrap_or(usize::MAX);
        let bytes = (keys.len() * BYTES_FOR_KEY).min(most);
        // A whole number of blocks; the crate itself would round up to a power of two.
        let mut filter = Sbbf::new(&vec![0; bytes.next_multiple_of(BLOCK).max(BLOCK)]);
        for key in keys {
            filter.insert(&key.0.cast_signed());
        }
        Self(filter)
    }

    /// Reads a flow filter from its bytes. `None`: the length is 0, or not a multiple of the
    /// filter's block length.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let is_whole = !bytes.is_empty() && bytes.len().is_multiple_of(BLOCK);
        is_whole.then(|| Self(Sbbf::new(bytes)))
    }

    pub(crate) fn write(&self) -> Result<Vec<u8>, ParquetError> {
        let mut bytes = Vec::new();
        self.0.write_bitset(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns `true` if a flow of the capture file part may have all of the demanded index keys.
    pub(crate) fn may_hold(&self, demanded: &[IndexKey]) -> bool {
        let has = |key: &IndexKey| self.0.check(&key.0.cast_signed());
        demanded.iter().all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns index keys that are spread over the range of 64 bits.
    fn keys(of: std::ops::Range<u64>) -> Vec<IndexKey> {
        let mut keys: Vec<_> = of
            .map(|it| IndexKey(it.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
            .collect();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn inserted_keys_are_found_and_false_positives_are_rare() {
        for count in [1, 15, 16, 17, 1000, 5000] {
            let inside = keys(0..count);
            let bytes = FlowFilter::new(&inside, 1 << 20).write().expect("written");
            assert_eq!(
                bytes.len() as u64,
                (2 * count).next_multiple_of(32),
                "{count}"
            );
            let filter = FlowFilter::read(&bytes).expect("one");
            assert!(filter.may_hold(&inside), "{count}");
            let outside = keys(count..count + 100_000);
            let taken = outside.iter().filter(|it| filter.may_hold(&[**it]));
            let taken = taken.count();
            assert!(taken < 200, "{taken} of 100,000 with {count}");
        }
    }

    #[test]
    fn the_filter_is_limited_to_its_share_of_the_part() {
        let all = keys(0..100_000);
        let filter = FlowFilter::new(&all, 1 << 20);
        assert!(filter.may_hold(&all));
        let bytes = filter.write().expect("written").len();
        assert!(bytes <= (1 << 20) / 50 + BLOCK, "{bytes}");
        assert!(
            FlowFilter::new(&[], 0)
                .write()
                .is_ok_and(|it| it == [0; BLOCK])
        );
        for none in [0, 1, 31, 33] {
            assert!(FlowFilter::read(&vec![0xff; none]).is_none());
        }
    }
}
