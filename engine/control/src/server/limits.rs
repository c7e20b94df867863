//! Limits of one client, so that a flooding, stalled or malicious client does not disturb the
//! others.

use std::time::{Duration, Instant};

/// Limits of one client of the control service, which are equal on every transport.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// Maximum length in bytes of one request of a client.
    pub request: usize,
    /// Number of requests per second that a client may send permanently. A client above the rate is
    /// not read from until another request is allowed.
    pub rate: u32,
    /// Number of requests that a client may send at once before `rate` applies.
    pub burst: u32,
    /// Maximum number of changes that one client has requested and whose outcome is pending.
    pub pending: u32,
    /// Number of malformed requests of a client that are answered before the client is
    /// disconnected.
    pub malformed: u32,
    /// Maximum time for a client's request to arrive completely, and for a client to accept data
    /// sent to it.
    pub stall: Duration,
    /// Maximum time for a client's handshake, in which it authenticates.
    pub handshake: Duration,
    /// Number of bytes of answers queued for a client above which no more of its requests are read
    /// and no statistics are pushed to it.
    pub backlog: usize,
    /// Maximum number of clients that are connected over one transport.
    pub clients: usize,
    /// Maximum number of connected RDMA clients that have not proved a key. The kernel does not
    /// identify clients over RDMA.
    pub unproved: usize,
    /// Maximum number of connected clients of one user, except of the owner and root.
    pub per_user: usize,
    /// Maximum number of connected clients that have read-only access.
    pub read_only: usize,
    /// Number of places among `clients` that only the owner of the capture process and root may
    /// take.
    pub reserved: usize,
    /// Time without a request and without a subscription after which a client is disconnected,
    /// unless it belongs to the owner or root.
    pub idle: Duration,
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
            read_only: 64,
            reserved: 8,
            idle: Duration::from_secs(60),
        }
    }
}

/// Token bucket that limits a client's rate of requests: each request takes a token, and tokens are
/// refilled at a constant rate.
#[derive(Debug)]
pub struct TokenBucket {
    tokens: f64,
    burst: f64,
    rate: f64,
    since: Instant,
}

impl TokenBucket {
    /// Creates a full token bucket with the rate and the burst of `limits`.
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

    /// Takes a token for one request. Returns `false` if no token is available.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// Returns the time until the bucket has a token for the next request.
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
