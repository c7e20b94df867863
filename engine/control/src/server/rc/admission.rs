//! Admission of connection requests: decisions only, without verbs, so that every case can be
//! tested.
//!
//! A peer that has not proved a key is unknown. All such peers together hold at most
//! [`ClientLimits::unproved`] slots; the requests of others wait, in their order, without a QP. No
//! peer ever takes the slot of one that has proved its key.

use crate::server::limits::ClientLimits;
use std::{collections::VecDeque, time::Instant};

/// Queue of RDMA connection requests that wait to be accepted.
pub struct Admission<T> {
    waiting: VecDeque<(Instant, T)>,
}

impl<T> Default for Admission<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
        }
    }
}

impl<T> Admission<T> {
    /// Queues an RDMA connection request while `clients` clients are connected.
    ///
    /// # Errors
    /// The connection request is returned if connected clients and waiting requests use all slots.
    pub fn request(
        &mut self,
        request: T,
        clients: usize,
        limits: &ClientLimits,
        now: Instant,
    ) -> Result<(), T> {
        if clients + self.waiting.len() >= limits.clients {
            return Err(request);
        }
        self.waiting.push_back((now, request));
        Ok(())
    }

    /// Takes the next RDMA connection request to accept, if fewer peers without a proved key are
    /// connected than allowed; `unproved` is their present number.
    pub fn next(&mut self, unproved: usize, limits: &ClientLimits) -> Option<T> {
        if unproved >= limits.unproved {
            return None;
        }
        self.waiting.pop_front().map(|(_, request)| request)
    }

    /// Removes the RDMA connection requests that have waited for too long, and those for which
    /// `gone` is true. Returns their number.
    pub fn remove(
        &mut self,
        limits: &ClientLimits,
        now: Instant,
        gone: impl Fn(&T) -> bool,
    ) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|(since, request)| {
            now.saturating_duration_since(*since) <= limits.stall && !gone(request)
        });
        before - self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_without_proof_hold_a_part_of_the_slots() {
        let (limits, now) = (ClientLimits::default(), Instant::now());
        let mut admission = Admission::default();
        let (mut proved, mut unproved) = (100, 0);
        let request = |admission: &mut Admission<usize>, n, clients| {
            admission.request(n, clients, &limits, now)
        };
        for n in 0..28 {
            assert_eq!(request(&mut admission, n, proved + unproved), Ok(()));
            if let Some(next) = admission.next(unproved, &limits) {
                assert_eq!(next, n, "accepted in their order");
                unproved += 1;
            }
        }
        assert_eq!(unproved, limits.unproved, "16 of 128");
        assert_eq!(request(&mut admission, 28, proved + unproved), Err(28));
        assert_eq!(admission.next(unproved, &limits), None);
        // A peer that proves its key frees an unproved slot for another peer.
        (proved, unproved) = (proved + 1, unproved - 1);
        assert_eq!(admission.next(unproved, &limits), Some(16));
        assert_eq!(proved, 101, "no client that has proved its key has left");
    }

    #[test]
    fn requests_expire() {
        let (limits, now) = (ClientLimits::default(), Instant::now());
        let mut admission = Admission::default();
        for n in 0..3 {
            let at = now + limits.stall * n;
            admission.request(n, 0, &limits, at).unwrap();
        }
        assert_eq!(admission.remove(&limits, now + limits.stall, |_| false), 0);
        let later = now + limits.stall * 2;
        assert_eq!(admission.remove(&limits, later, |n| *n == 1), 2);
        assert_eq!(admission.next(0, &limits), Some(2));
    }
}
