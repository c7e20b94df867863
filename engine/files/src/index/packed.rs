//! Lists of an index as byte strings: a list of a million numbers is read as fast as it is copied,
//! whereas CBOR would describe each of them.
//!
//! Each item has a fixed length, and its numbers are big-endian, as those of CBOR itself.

use super::flow::IndexFlow;
use crate::format::ByteOrder::Big;
use serde::{
    Deserializer, Serializer,
    de::{Error, Visitor},
};
use std::{fmt, marker::PhantomData};

/// Item of a packed list, such as a number or a flow, encoded with a fixed length.
pub(super) trait Packed: Sized {
    /// Length of a packed item in bytes.
    const LEN: usize;
    /// Appends the packed form of the item to `bytes`.
    fn pack(&self, bytes: &mut Vec<u8>);
    /// Decodes an item from its packed form of [`Packed::LEN`] bytes.
    fn unpack(bytes: &[u8]) -> Self;
}

impl Packed for u32 {
    const LEN: usize = 4;

    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.to_be_bytes());
    }

    fn unpack(bytes: &[u8]) -> Self {
        Big.u32(bytes, 0)
    }
}

impl Packed for IndexFlow {
    const LEN: usize = 39;

    fn pack(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.ethertype.to_be_bytes());
        bytes.push(self.protocol);
        for (address, port) in [self.low, self.high] {
            bytes.extend(address.to_be_bytes());
            bytes.extend(port.to_be_bytes());
        }
    }

    fn unpack(bytes: &[u8]) -> Self {
        let end = |at| (Big.u128(bytes, at), Big.u16(bytes, at + 16));
        Self {
            ethertype: Big.u16(bytes, 0),
            protocol: bytes[2],
            low: end(3),
            high: end(21),
        }
    }
}

/// Encodes the items of a list as one byte string.
pub(super) fn pack<T: Packed>(items: &[T]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(items.len() * T::LEN);
    items.iter().for_each(|it| it.pack(&mut bytes));
    bytes
}

/// Decodes a list of items from a byte string. Returns `None` if the byte string ends within an
/// item.
pub(super) fn unpack<T: Packed>(bytes: &[u8]) -> Option<Vec<T>> {
    let is_whole = bytes.len().is_multiple_of(T::LEN);
    is_whole.then(|| bytes.chunks_exact(T::LEN).map(T::unpack).collect())
}

/// Serializes a list of packed items as a byte string.
pub(super) fn serialize<T: Packed, S: Serializer>(items: &[T], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_bytes(&pack(items))
}

/// Deserializes a list of packed items from a byte string.
pub(super) fn deserialize<'de, T: Packed, D: Deserializer<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    from.deserialize_byte_buf(PackedList(PhantomData))
}

struct PackedList<T>(PhantomData<T>);

impl<T: Packed> Visitor<'_> for PackedList<T> {
    type Value = Vec<T>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "a byte string of items of {} bytes", T::LEN)
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<T>, E> {
        unpack(bytes).ok_or_else(|| E::invalid_length(bytes.len(), &self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Numbers {
        #[serde(with = "super")]
        numbers: Vec<u32>,
    }

    #[test]
    fn lists_have_the_layout_of_the_documentation() {
        let flow = IndexFlow::between(0x86dd, 17, (1 << 120 | 2, 0x1234), (3, 0x5678));
        let mut packed = vec![0x86, 0xdd, 17];
        packed.extend([0; 15]);
        packed.extend([3, 0x56, 0x78, 1]);
        packed.extend([0; 14]);
        packed.extend([2, 0x12, 0x34]);
        assert_eq!(pack(&[flow]), packed);
        assert_eq!(unpack(&packed), Some(vec![flow]));
        assert_eq!(unpack::<IndexFlow>(&packed[1..]), None);

        let list = Numbers {
            numbers: vec![7, 0x0102_0304],
        };
        let mut bytes = Vec::new();
        ciborium::into_writer(&list, &mut bytes).expect("encoded");
        assert_eq!(bytes, b"\xa1gnumbers\x48\0\0\0\x07\x01\x02\x03\x04");
        let again: Numbers = ciborium::from_reader(&bytes[..]).expect("decoded");
        assert_eq!(again, list);
        // A list that ends within an item.
        bytes[9] = 0x47;
        assert!(ciborium::from_reader::<Numbers, _>(&bytes[..]).is_err());
    }
}
