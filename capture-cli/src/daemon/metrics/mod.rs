//! The metrics endpoint: what a capture has counted (`[metrics]`), or what has been shipped of it (`ship.metrics`), for
//! Prometheus to fetch.
//!
//! ```text
//! GET /metrics -> http: one small thread a request -> a source: snapshots that others publish -> families -> text
//! ```
//!
//! Invariant: a scrape reads what loops and looks have published. It never waits for the capture, and whatever a client
//! does, there are a few threads at most and a few kilobytes for each.

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
    net::{SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
};
use wqcap_engine::{config::Listen, control::server::avoid_cpus};

/// Requests that are answered at once; who comes on top of that is told to come again.
const AT_ONCE: usize = 8;

/// Where to listen, once its host has been looked up: a sandboxed process cannot.
pub struct Endpoint {
    /// The key that names it.
    key: &'static str,
    listen: Listen,
    addresses: Vec<SocketAddr>,
}

impl Endpoint {
    /// Looks the host up, which is the value of a key.
    pub fn of(key: &'static str, listen: &Listen) -> Result<Self, Failure> {
        let mut it = Self {
            key,
            listen: listen.clone(),
            addresses: Vec::new(),
        };
        it.addresses = it.listen.resolve().map_err(|e| it.refused(&e))?;
        Ok(it)
    }

    fn refused(&self, e: &io::Error) -> Failure {
        Failure::refused(format!("{} = \"{}\": {e}", self.key, self.listen))
    }
}

/// The endpoint under way. It ends when this is dropped.
pub struct Metrics {
    /// Where it is.
    pub address: SocketAddr,
    /// Closing it ends the thread.
    bell: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl Metrics {
    /// Serves `source`, which makes the text in the older format or in that of OpenMetrics, at the first address of `endpoint` that can be listened on, away from the CPUs in `busy`, which are
    /// the capture's.
    pub fn start(
        endpoint: &Endpoint,
        source: impl Fn(bool) -> String + Send + Sync + 'static,
        busy: &[usize],
    ) -> Result<Self, Failure> {
        let refused = |e: io::Error| endpoint.refused(&e);
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
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until `ear` hears of the end.
fn serve<S>(listener: &TcpListener, ear: &UnixStream, source: &Arc<S>)
where
    S: Fn(bool) -> String + Send + Sync + 'static,
{
    let under_way = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(ear, PollFlags::IN),
        ];
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, None);
        if !fds[1].revents().is_empty() {
            return;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
            Err(e) => {
                tracing::debug!("metrics: {e}");
                // Out of descriptors, say: not again at once.
                thread::sleep(http::PAUSE);
                continue;
            }
        };
        if under_way.fetch_add(1, Ordering::AcqRel) >= AT_ONCE {
            http::turn_away(stream);
            under_way.fetch_sub(1, Ordering::AcqRel);
            continue;
        }
        let (source, mine) = (Arc::clone(source), Arc::clone(&under_way));
        let answer = move || {
            http::answer(stream, |older| source(older));
            mine.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().spawn(answer).is_err() {
            under_way.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
