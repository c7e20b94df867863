//! A limit to bytes a second, kept a part at a time.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Lets each part begin when the time that the one before it takes at the limit is over.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Bytes a second.
    limit: Option<u64>,
    free_at: Instant,
}

impl Pace {
    pub(crate) fn new(limit: Option<u64>) -> Self {
        Self {
            limit,
            free_at: Instant::now(),
        }
    }

    /// When so many bytes may begin.
    pub(crate) fn begin(&mut self, bytes: u64) -> Instant {
        let begin = self.free_at.max(Instant::now());
        if let Some(limit) = self.limit {
            self.free_at = begin + Duration::from_secs_f64(bytes as f64 / limit as f64);
        }
        begin
    }

    /// Waits until so many bytes may begin.
    pub(crate) async fn wait(&mut self, bytes: u64) {
        sleep_until(self.begin(bytes)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn parts_take_their_time_and_silence_saves_none_up() {
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let mut pace = Pace::new(Some(1000));
            let begun = Instant::now();
            for _ in 0..3 {
                pace.wait(100).await;
            }
            assert!(begun.elapsed() >= Duration::from_millis(200));
            // The third part's time, and half a second more.
            sleep_until(pace.free_at + Duration::from_millis(500)).await;
            let begun = Instant::now();
            for _ in 0..2 {
                pace.wait(100).await;
            }
            assert!(begun.elapsed() >= Duration::from_millis(100));
            let mut free = Pace::new(None);
            free.wait(u64::MAX).await;
        });
    }
}
