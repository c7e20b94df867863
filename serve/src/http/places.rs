//! Places for connections, which bound how many are open.
//!
//! Invariants: at most `most` connections have a place, and `most_of_address` of one address. If all
//! places are taken, a new connection gets the place of the oldest one without a permitted request, of
//! the address with the most of these; the older connection is closed. A named caller keeps three
//! quarters of the places at most. Thus neither clients without a token or certificate nor one caller
//! can keep the others out.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::Notify;

/// Places for the connections to the service.
#[derive(Clone, Debug)]
pub struct Places {
    taken: Arc<Mutex<Taken>>,
    /// Maximum number of open connections.
    most: usize,
    /// Maximum number of open connections from one network address. An IPv6 network of 64 bits
    /// counts as one address.
    most_of_address: usize,
}

/// Places that are taken.
#[derive(Debug, Default)]
struct Taken {
    /// Places by their numbers, which are in the order in which they were taken.
    places: BTreeMap<u64, TakenPlace>,
    next: u64,
}

#[derive(Debug)]
struct TakenPlace {
    address: IpAddr,
    /// Handle that closes the connection; `None`: it has had a permitted request, and is not closed
    /// for another one.
    closer: Option<Arc<Notify>>,
    /// Name of the caller for whom the connection keeps its place.
    caller: Option<String>,
}

impl Taken {
    /// Closes the oldest connection of `address` that has had no permitted request, and frees its
    /// place. Returns `false` if there is none.
    fn evict(&mut self, address: IpAddr) -> bool {
        let mut places = self.places.iter();
        let oldest = places.find_map(|(number, it)| {
            let closer = it.closer.as_ref().filter(|_| it.address == address)?;
            closer.notify_one();
            Some(*number)
        });
        oldest.is_some_and(|it| self.places.remove(&it).is_some())
    }

    /// Returns the address with the most connections that have had no permitted request.
    fn most_unproven(&self) -> Option<IpAddr> {
        let mut counts = HashMap::new();
        for it in self.places.values().filter(|it| it.closer.is_some()) {
            *counts.entry(it.address).or_insert(0) += 1;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count);
        most.map(|(address, _)| address)
    }

    fn of_address(&self, address: IpAddr) -> usize {
        let places = self.places.values();
        places.filter(|it| it.address == address).count()
    }
}

impl Places {
    /// Makes places for `most` connections, and for `most_of_address` of one address.
    pub fn new(most: usize, most_of_address: usize) -> Self {
        Self {
            taken: Arc::default(),
            most,
            most_of_address,
        }
    }

    /// Takes a place for a new connection of `address`, and closes another connection for it if all
    /// places are taken. `None`: the places that it may have are those of connections with permitted
    /// requests. Also returns the number of connections that are closed, of this and the other one.
    pub fn take(&self, address: IpAddr) -> (Option<Place>, u64) {
        let address = match address.to_canonical() {
            IpAddr::V6(ip) => IpAddr::from((ip.to_bits() >> 64 << 64).to_be_bytes()),
            v4 @ IpAddr::V4(_) => v4,
        };
        let mut taken = self.lock();
        let evicted_of = if taken.of_address(address) >= self.most_of_address {
            Some(Some(address))
        } else if taken.places.len() >= self.most {
            Some(taken.most_unproven())
        } else {
            None
        };
        let closed = u64::from(evicted_of.is_some());
        if evicted_of.is_some_and(|it| !it.is_some_and(|it| taken.evict(it))) {
            return (None, closed);
        }
        let (number, closer) = (taken.next, Arc::<Notify>::default());
        taken.next += 1;
        let place = TakenPlace {
            address,
            closer: Some(Arc::clone(&closer)),
            caller: None,
        };
        taken.places.insert(number, place);
        let place = Place {
            places: self.clone(),
            number,
            closer,
        };
        (Some(place), closed)
    }

    /// Returns `true` if a connection has a place.
    #[must_use]
    pub fn is_any_taken(&self) -> bool {
        !self.lock().places.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Place of an open connection, which becomes free when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    number: u64,
    closer: Arc<Notify>,
}

impl Place {
    /// Notes that the connection has had a permitted request of `caller`. From then on it is not
    /// closed for another connection, unless this caller keeps three quarters of all places.
    pub fn keep(&self, caller: Option<&str>) {
        let mut taken = self.places.lock();
        let of_caller = taken
            .places
            .values()
            .filter(|it| it.caller.as_deref() == caller);
        if caller.is_some() && of_caller.count() >= self.places.most / 4 * 3 {
            return;
        }
        if let Some(it) = taken.places.get_mut(&self.number) {
            it.closer = None;
            it.caller = caller.map(str::to_owned);
        }
    }

    /// Waits until the place is needed for another connection.
    pub async fn lost(&self) {
        self.closer.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().places.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_lost(place: &Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[test]
    fn a_connection_without_a_permitted_request_gives_its_place_up() {
        let places = Places::new(4, 3);
        let take = |last| {
            let (place, closed) = places.take(address(last));
            (place.expect("a place"), closed)
        };
        let many: Vec<_> = (0..3).map(|_| take(1).0).collect();
        let other = take(2).0;
        // All places are taken: the oldest connection of the address with the most is closed.
        let (third, closed) = take(3);
        assert_eq!(closed, 1);
        let lost: Vec<_> = many.iter().chain([&other, &third]).map(is_lost).collect();
        assert_eq!(lost, [true, false, false, false, false]);
        // The share of the address: its oldest connection is closed. One that had a permitted request
        // stays.
        drop(other);
        many[1].keep(None);
        let (fourth, closed) = take(1);
        assert_eq!(closed, 0);
        let (fifth, closed) = take(1);
        assert_eq!(closed, 1);
        let lost: Vec<_> = [&many[1], &many[2], &third, &fourth, &fifth]
            .map(is_lost)
            .into();
        assert_eq!(lost, [false, true, false, false, false]);
        drop((many, third, fourth, fifth));
        assert!(!places.is_any_taken());
    }

    #[test]
    fn connections_with_permitted_requests_keep_their_places() {
        let places = Places::new(3, 2);
        let [a, b, c] = [1, 1, 2].map(|it| places.take(address(it)).0.expect("a place"));
        for it in [&a, &b, &c] {
            it.keep(None);
        }
        for it in [1, 2] {
            let (refused, closed) = places.take(address(it));
            assert!(refused.is_none());
            assert_eq!(closed, 1);
        }
        assert!(![&a, &b, &c].into_iter().any(is_lost));
        drop(c);
        assert!(places.take(address(2)).0.is_some());
    }

    #[test]
    fn a_named_caller_keeps_three_quarters_of_the_places() {
        let places = Places::new(4, 4);
        let take = |last| places.take(address(last)).0;
        let of_one: Vec<_> = (0..4).filter_map(take).collect();
        for it in &of_one {
            it.keep(Some("one"));
        }
        // The fourth has no kept place.
        let other = take(9).expect("a place");
        other.keep(Some("other"));
        let lost: Vec<_> = of_one.iter().map(is_lost).collect();
        assert_eq!(lost, [false, false, false, true]);
        assert!(take(9).is_none());
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let places = Places::new(4, 2);
        let of = |text: &str| places.take(text.parse().expect("an address"));
        let first = of("2001:db8::1").0.expect("a place");
        let _second = of("2001:db8::2").0.expect("a place");
        let _other = of("2001:db8:0:1::1").0.expect("a place");
        assert!(!is_lost(&first));
        assert_eq!(of("2001:db8::3").1, 1);
        assert!(is_lost(&first));
        // An IPv4 address in its IPv6 form.
        let places = Places::new(4, 1);
        let mapped = places.take("::ffff:192.0.2.1".parse().expect("an address"));
        assert_eq!((mapped.1, places.take(address(1)).1), (0, 1));
    }
}
