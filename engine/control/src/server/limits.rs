//! How much one client may ask for, so that a flooding, stalled or malicious client does not disturb the others.

use std::time::{Duration, Instant};

/// Limits of one client; the same for every transport.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Bytes of a request.
    pub request: usize,
    /// Sustained requests per second. A client above the rate is not read from until it may ask again.
    pub rate: u32,
    /// Requests at once before the rate applies.
    pub burst: u32,
    /// Changes whose outcome is pending.
    pub pending: u32,
    /// Malformed requests before the client is disconnected.
    pub malformed: u32,
    /// How long a request may take to arrive completely, and a client to accept what is sent to it.
    pub stall: Duration,
    /// How long a client may take to authenticate.
    pub handshake: Duration,
    /// Bytes of answers that wait to be sent to the client. Above it no more requests are read, and no statistics are
    /// pushed.
    pub backlog: usize,
    /// Clients at once.
    pub clients: usize,
    /// Clients at once that have not proved a key, over RDMA, where no kernel vouches for them.
    pub unproved: usize,
    /// Clients of one user at once, except of the owner and root.
    pub per_user: usize,
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self {
            request: 64 << 10,
            rate: 50,
            burst: 100,
            pending: 8,
            malformed: 8,
            stall: Duration::from_secs(10),
            handshake: Duration::from_secs(5),
            backlog: 256 << 10,
            clients: 128,
            unproved: 16,
            per_user: 32,
        }
    }
}

/// A token bucket: each request takes a token, and tokens come back at a constant rate.
#[derive(Debug)]
pub struct TokenBucket {
    tokens: f64,
    burst: f64,
    rate: f64,
    since: Instant,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(limits: &ClientLimits, now: Instant) -> Self {
        let burst = f64::from(limits.burst);
        Self {
            tokens: burst,
            burst,
            rate: f64::from(limits.rate),
            since: now,
        }
    }

    /// Takes a token if one is available.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// Time until a token is available.
    pub fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        Duration::from_secs_f64(((1.0 - self.tokens) / self.rate).max(0.0))
    }

    fn fill(&mut self, now: Instant) {
        let grown = now.saturating_duration_since(self.since).as_secs_f64() * self.rate;
        self.tokens = (self.tokens + grown).min(self.burst);
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let limits = ClientLimits::default();
        let start = Instant::now();
        let mut bucket = TokenBucket::new(&limits, start);
        let taken = (0..1000).filter(|_| bucket.take(start)).count();
        assert_eq!(taken, limits.burst as usize);
        let wait = bucket.wait(start);
        assert!(wait > Duration::ZERO && wait <= Duration::from_millis(20));
        assert!(!bucket.take(start + wait / 2));
        let later = start + Duration::from_secs(1);
        let taken = (0..1000).filter(|_| bucket.take(later)).count();
        assert!((49..=50).contains(&taken), "{taken}");
        let much_later = start + Duration::from_secs(100);
        let taken = (0..1000).filter(|_| bucket.take(much_later)).count();
        assert_eq!(taken, limits.burst as usize);
    }
}
