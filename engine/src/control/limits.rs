//! How much one client may ask for: what keeps a flooder, a sleeper or a vandal from the others.

use std::time::{Duration, Instant};

/// Limits of one client. The same for every transport.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request.
    pub request: usize,
    /// Requests per second in the long run. A client above it waits: nothing is read from it.
    pub rate: u32,
    /// Requests at once before the rate counts.
    pub burst: u32,
    /// Changes that wait for their outcome.
    pub outstanding: u32,
    /// Messages that are none, before the client is put out.
    pub malformed: u32,
    /// How long a request may take to arrive whole, and a client to take what is sent to it.
    pub stall: Duration,
    /// How long a client may take to prove that it has the key.
    pub proof: Duration,
    /// Bytes of answers that wait for the client to take them. Above it no more requests are read, and no statistics
    /// are pushed.
    pub backlog: usize,
    /// Clients at once.
    pub clients: usize,
    /// Clients of one user at once, but for those who own the service.
    pub per_user: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            request: 64 << 10,
            rate: 50,
            burst: 100,
            outstanding: 8,
            malformed: 8,
            stall: Duration::from_secs(10),
            proof: Duration::from_secs(5),
            backlog: 256 << 10,
            clients: 128,
            per_user: 32,
        }
    }
}

/// Tokens that come back at a rate: one is taken for each request.
#[derive(Debug)]
pub struct Bucket {
    tokens: f64,
    burst: f64,
    rate: f64,
    since: Instant,
}

impl Bucket {
    /// A full one.
    #[must_use]
    pub fn new(limits: &Limits, now: Instant) -> Self {
        let burst = f64::from(limits.burst);
        Self {
            tokens: burst,
            burst,
            rate: f64::from(limits.rate),
            since: now,
        }
    }

    /// Takes a token if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        if self.tokens < 1.0 {
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// How long until there is one.
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
        let limits = Limits::default();
        let start = Instant::now();
        let mut bucket = Bucket::new(&limits, start);
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
