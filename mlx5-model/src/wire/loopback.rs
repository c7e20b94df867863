//! Loopback wire: each sent frame is received again, in order.
//!
//! Invariants: at most [`MAX_FRAMES`] frames and [`MAX_BYTES`] bytes are queued. A frame that does
//! not fit is dropped whole and counted. Once the queues have reached their largest size, the wire
//! allocates nothing.

use super::delivery::{Delivery, Receiver, WireDirection};

const MAX_FRAMES: usize = 4096;
const MAX_BYTES: usize = 64 << 20;

/// Loopback wire of two frame queues. Sends fill one queue while received frames are taken from the
/// other; when that queue is empty, the two are swapped. So every frame is contiguous and is copied
/// once.
#[derive(Default)]
pub(super) struct LoopbackWire {
    filling: FrameQueue,
    draining: FrameQueue,
    dropped: u64,
}

#[derive(Default)]
struct FrameQueue {
    bytes: Vec<u8>,
    lens: Vec<u32>,
    /// Offset in `bytes` of the next frame that is taken from the queue.
    at: usize,
    /// Index in `lens` of the next frame that is taken from the queue.
    next: usize,
}

impl LoopbackWire {
    pub(super) fn send(&mut self, frame: &[u8]) {
        let frames = self.filling.lens.len() + self.draining.lens.len() - self.draining.next;
        let bytes = self.filling.bytes.len() + self.draining.bytes.len() - self.draining.at;
        if frames >= MAX_FRAMES || bytes + frame.len() > MAX_BYTES {
            self.dropped += 1;
            return;
        }
        self.filling.bytes.extend_from_slice(frame);
        self.filling.lens.push(frame.len() as u32);
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    #[inline]
    pub(super) fn burst(
        &mut self,
        _now_ns: u64,
        budget: usize,
        receiver: &mut impl Receiver,
    ) -> usize {
        let mut taken = 0;
        while taken < budget {
            let queue = &mut self.draining;
            let Some(len) = queue.lens.get(queue.next) else {
                if self.filling.lens.is_empty() {
                    break;
                }
                queue.clear();
                std::mem::swap(&mut self.filling, &mut self.draining);
                continue;
            };
            let len = *len as usize;
            let bytes = &queue.bytes[queue.at..][..len];
            if receiver.deliver(bytes, WireDirection::Received) == Delivery::Wait {
                break;
            }
            queue.at += len;
            queue.next += 1;
            taken += 1;
        }
        taken
    }
}

impl FrameQueue {
    fn clear(&mut self) {
        self.bytes.clear();
        self.lens.clear();
        self.at = 0;
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::delivery::{Each, WireFrame};

    fn burst(
        wire: &mut LoopbackWire,
        budget: usize,
        take: impl FnMut(WireFrame<'_>) -> Delivery,
    ) -> usize {
        wire.burst(0, budget, &mut Each(take))
    }

    fn drain(wire: &mut LoopbackWire, budget: usize) -> Vec<Vec<u8>> {
        let mut frames = vec![];
        burst(wire, budget, |frame| {
            frames.push(frame.bytes.to_vec());
            Delivery::Taken
        });
        frames
    }

    #[test]
    fn order_is_kept_across_bursts_and_waits() {
        let mut wire = LoopbackWire::default();
        let (mut sent, mut got) = (0_u32, vec![]);
        for round in 0..200 {
            for _ in 0..round % 7 {
                wire.send(&[&sent.to_be_bytes()[..], &vec![0; 14 + round]].concat());
                sent += 1;
            }
            assert_eq!(burst(&mut wire, 9, |_| Delivery::Wait), 0);
            got.extend(drain(&mut wire, round % 5));
        }
        got.extend(drain(&mut wire, usize::MAX));
        let numbers: Vec<u32> = got
            .iter()
            .map(|it| u32::from_be_bytes(*it.first_chunk().unwrap()))
            .collect();
        assert_eq!(numbers, (0..sent).collect::<Vec<_>>());
        assert_eq!(wire.dropped(), 0);
    }

    #[test]
    fn frames_beyond_the_limits_are_counted() {
        let mut wire = LoopbackWire::default();
        for _ in 0..MAX_FRAMES + 5 {
            wire.send(&[0; 60]);
        }
        assert_eq!(wire.dropped(), 5);
        assert_eq!(drain(&mut wire, 10).len(), 10);
        for _ in 0..11 {
            wire.send(&[0; 60]);
        }
        assert_eq!(wire.dropped(), 6);
        assert_eq!(drain(&mut wire, usize::MAX).len(), MAX_FRAMES);

        let large = vec![0; 256 << 10];
        for _ in 0..MAX_BYTES / large.len() + 3 {
            wire.send(&large);
        }
        assert_eq!(wire.dropped(), 9);
    }
}
