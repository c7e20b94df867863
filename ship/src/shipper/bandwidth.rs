//! Bandwidth limiter: delays the start of each part.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Pacing of upload parts: each part begins when the previous one would be complete at the
/// bandwidth limit.
#[derive(Debug)]
pub(crate) struct PartPace {
    /// Bandwidth limit of uploads in bytes per second; `None`: no limit.
    limit: Option<u64>,
    free_at: Instant,
}

impl PartPace {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            free_at: Instant::now(),
        }
    }

    /// Returns the time at which the upload of the next `bytes` bytes may begin under the bandwidth
    /// limit.
    pub(crate) fn begin(&mut self, bytes: u64) -> Instant {
        let begin = self.free_at.max(Instant::now());
        if let Some(limit) = self.limit {
            self.free_at = begin + Duration::from_secs_f64(bytes as f64 / limit as f64);
        }
        begin
    }

    /// Waits until the upload of the next `bytes` bytes may begin under the bandwidth limit.
    pub(crate) async fn wait(&mut self, bytes: u64) {
        sleep_until(self.begin(bytes)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn parts_are_paced_and_idle_time_is_not_saved_up() {
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let mut pace = PartPace::new(Some(1000));
            let begun = Instant::now();
            for _ in 0..3 {
                pace.wait(100).await;
            }
            assert!(begun.elapsed() >= Duration::from_millis(200));
            // Wait for the third part's time and half a second more.
            sleep_until(pace.free_at + Duration::from_millis(500)).await;
            let begun = Instant::now();
            for _ in 0..2 {
                pace.wait(100).await;
            }
            assert!(begun.elapsed() >= Duration::from_millis(100));
            let mut free = PartPace::new(None);
            free.wait(u64::MAX).await;
        });
    }
}
