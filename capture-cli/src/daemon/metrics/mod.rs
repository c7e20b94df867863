//! Metrics endpoint for Prometheus: counters of a capture (`[metrics]`), or of the shipping of its
//! files (`ship.metrics`).
//!
//! ```text
//! GET /metrics -> http: one thread per request -> a source: snapshots that others publish -> families -> text
//! ```
//!
//! Invariant: a scrape reads published snapshots and never waits for the capture. Whatever clients
//! do, the endpoint uses at most [`AT_ONCE`] threads, with a few kilobytes each.

#[cfg(feature = "ship")]
mod delivery;
mod families;
mod http;
mod older;

#[cfg(feature = "ship")]
pub use delivery::DeliverySource;
pub use families::MetricsSource;

use crate::failure::Failure;
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
};
use wqcap_control::server::avoid_cpus;
use wqcap_engine::config::Listen;

/// Maximum number of metrics requests in progress. Further clients get status 503.
const AT_ONCE: usize = 32;
/// Maximum number of metrics requests in progress of one address, so that a client that stalls them
/// does not keep others from the metrics.
const OF_ADDRESS: usize = 8;

/// Address on which the metrics endpoint listens. Its host is resolved before the process enters
/// its sandbox, which allows no lookup.
pub struct Endpoint {
    /// Configuration key that sets the address of the metrics endpoint.
    key: &'static str,
    /// Address of the metrics endpoint as configured.
    listen: Listen,
    /// Socket addresses to which the configured host of the metrics endpoint resolves.
    addresses: Vec<SocketAddr>,
}

impl Endpoint {
    /// Resolves the host of a metrics endpoint's address. `key` is the configuration key that sets
    /// the address.
    pub fn resolve(key: &'static str, listen: &Listen) -> Result<Self, Failure> {
        let mut it = Self {
            key,
            listen: listen.clone(),
            addresses: Vec::new(),
        };
        // A name server may answer later.
        it.addresses = it
            .listen
            .resolve()
            .map_err(|e| Failure::failed(it.problem(&e)))?;
        Ok(it)
    }

    /// Returns the message for a metrics address that cannot be resolved or listened on.
    fn problem(&self, e: &io::Error) -> String {
        let Self { key, listen, .. } = self;
        format!("{key} = \"{listen}\": cannot listen on this address: {e}")
    }
}

/// Running metrics endpoint. Dropping it stops its thread.
pub struct Metrics {
    /// Socket address on which the metrics endpoint listens.
    pub address: SocketAddr,
    /// Socket whose closing stops the thread of the metrics endpoint.
    bell: Option<UnixStream>,
    /// Thread that accepts connections to the metrics endpoint.
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Starts to serve `source` on the first address of `endpoint` that can be bound. `source`
    /// returns the text in the older format if its argument is `true`, else in that of OpenMetrics.
    /// The metrics thread stays off the CPUs in `busy`, which belong to the capture.
    pub fn start(
        endpoint: &Endpoint,
        source: impl Fn(bool) -> String + Send + Sync + 'static,
        busy: &[usize],
    ) -> Result<Self, Failure> {
        let refused = |e: io::Error| Failure::of_setup(endpoint.problem(&e), &e);
        let listener = TcpListener::bind(&endpoint.addresses[..]).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (bell, ear) = UnixStream::pair().map_err(refused)?;
        let busy = busy.to_vec();
        let thread = thread::Builder::new()
            .name("wqcap-metrics".into())
            .spawn(move || {
                avoid_cpus(&busy);
                serve(&listener, &ear, &Arc::new(source));
            })
            .map_err(refused)?;
        Ok(Self {
            address,
            bell: Some(bell),
            thread: Some(thread),
        })
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.bell.take();
        if let Some(thread) = self.thread.take() {
            // The thread returns no result.
            let _ = thread.join();
        }
    }
}

/// Accepts connections to the metrics endpoint until the other end of `ear` is closed.
fn serve<S>(listener: &TcpListener, ear: &UnixStream, source: &Arc<S>)
where
    S: Fn(bool) -> String + Send + Sync + 'static,
{
    let under_way = Arc::new(Mutex::new(Vec::new()));
    loop {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(ear, PollFlags::IN),
        ];
        // If poll is interrupted, accept returns WouldBlock.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        let (stream, address) = match listener.accept() {
            Ok((stream, client)) => (stream, client.ip()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => {
                tracing::debug!("metrics: {e}");
                // The descriptors may be used up: pause before the next attempt.
                thread::sleep(http::PAUSE);
                continue;
            }
        };
        let Some(slot) = RequestSlot::take(&under_way, address) else {
            http::refuse(stream);
            continue;
        };
        let source = Arc::clone(source);
        let answer = move || {
            http::answer(stream, |older| source(older));
            drop(slot);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().spawn(answer);
    }
}

/// Addresses of the clients whose metrics requests are in progress.
type UnderWay = Arc<Mutex<Vec<IpAddr>>>;

/// Metrics request that is in progress until it is dropped.
struct RequestSlot {
    under_way: UnderWay,
    address: IpAddr,
}

impl RequestSlot {
    /// Counts a new request. `None`: too many requests are in progress, of all clients or of the
    /// client's address.
    fn take(under_way: &UnderWay, address: IpAddr) -> Option<Self> {
        let mut all = under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let of_address = all.iter().filter(|it| **it == address).count();
        if all.len() >= AT_ONCE || of_address >= OF_ADDRESS {
            return None;
        }
        all.push(address);
        Some(Self {
            under_way: Arc::clone(under_way),
            address,
        })
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let all = self.under_way.lock();
        let mut all = all.unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = all.iter().position(|it| *it == self.address) {
            all.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_does_not_keep_others_from_the_metrics() {
        let under_way = UnderWay::default();
        let take = |last: u8| RequestSlot::take(&under_way, IpAddr::from([10, 0, 0, last]));
        let mut slots: Vec<_> = (0..20).filter_map(|_| take(1)).collect();
        assert_eq!(slots.len(), OF_ADDRESS);
        slots.extend((2..100).filter_map(take));
        assert_eq!(slots.len(), AT_ONCE);
        slots.truncate(OF_ADDRESS);
        assert!(take(1).is_none() && take(2).is_some());
        drop(slots);
        assert!(under_way.lock().expect("no panic").is_empty());
    }
}
