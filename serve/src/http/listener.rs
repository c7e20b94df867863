//! Connections: TLS, client certificates, and their limits.
//!
//! Invariants: at most [`MOST_CONNECTIONS`] connections are open, and [`MOST_OF_ADDRESS`] of one
//! address; [`Places`] selects which of further ones are closed. A client has [`PATIENCE`] for a TLS handshake, for each
//! head of a request, and between requests. The kernel ends a connection whose client does not take
//! bytes for [`STALLED`](crate::packets::STALLED).

use super::{
    net_threads::NetThreads,
    openapi,
    places::{Place, Places},
    routes::{ClientConnection, ServeState, router},
};
use crate::{
    PATIENCE, ServeLimits, ServePlan, TlsFiles,
    identity::{TokenError, Tokens, certificate_name},
    packets::STALLED,
};
use axum::{Extension, Router};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use std::{
    fs, io,
    net::{SocketAddr, TcpListener as StdListener},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    runtime::{Builder, Runtime},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;
use wqcap_control::audit::write_left_out;
use wqcap_files::folder::open::{MOST_TEXT, read_named};

/// Maximum number of open connections to the service.
const MOST_CONNECTIONS: usize = 256;
/// Maximum number of open connections from one network address, so that no client takes all of
/// them.
const MOST_OF_ADDRESS: usize = 192;
/// Maximum number of headers of an HTTP request.
const MOST_HEADERS: usize = 64;
/// Maximum number of bytes of a request's head that are buffered. A longer head is refused.
const MOST_HEAD: usize = 16 << 10;
/// Time limit for answers in progress after the end of the service was requested.
const LAST: Duration = Duration::from_secs(5);
/// Time limit, after [`LAST`], for connections and for requests that read files to notice the end of
/// the service: the requests write their audit lines.
const GRACE: Duration = Duration::from_millis(500);
/// Interval at which the service checks whether it has to end.
const TICK: Duration = Duration::from_millis(200);
/// Interval at which indexes of new capture files are read. At the start the service waits as long
/// for the first reading.
const LEARN: Duration = Duration::from_secs(2);

/// Reason why the HTTP service cannot start or continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The service would listen on an address that other machines reach, without TLS or without
    /// identifying callers.
    #[error(
        "serve.listen = \"{0}\": other machines reach this address: set serve.tls_cert and serve.tls_key, and serve.client_ca or serve.tokens; or listen on 127.0.0.1"
    )]
    Open(SocketAddr),
    /// The service cannot listen on any of its addresses.
    #[error("serve.listen = \"{address}\": cannot listen on this address: {source}")]
    Listen {
        /// Address that the service tried last.
        address: SocketAddr,
        /// Error of the system call for this address.
        source: io::Error,
    },
    /// A PEM file of certificates or of a private key cannot be used.
    #[error("{}: {problem}", .path.display())]
    Tls {
        /// Path of the unusable PEM file.
        path: PathBuf,
        /// Reason why the PEM file cannot be used.
        problem: String,
    },
    /// The file of access tokens cannot be used.
    #[error("serve.tokens = {path:?}: {source}")]
    Tokens {
        /// Path of the unusable file of tokens.
        path: PathBuf,
        /// Reason why the file of tokens cannot be used.
        source: TokenError,
    },
    /// The threads of the service cannot be started.
    #[error("cannot start the threads of the service: {0}")]
    Threads(io::Error),
}

/// HTTP service that is bound to its address.
pub struct Server {
    /// Runtime of the calling thread, which accepts connections.
    runtime: Runtime,
    threads: NetThreads,
    listener: StdListener,
    tls: Option<SharedTls>,
    service: Arc<ServeState>,
    /// Network address on which the service listens.
    pub address: SocketAddr,
}

/// TLS acceptor of the service, which a reload replaces for further connections.
type SharedTls = Arc<Mutex<TlsAcceptor>>;

/// Handle that replaces tokens, certificates and limits of a running service.
#[derive(Clone)]
pub struct ServeReload {
    tls: Option<SharedTls>,
    service: Arc<ServeState>,
}

impl ServeReload {
    /// Reads tokens and certificates again from their files, and sets `limits`. Open connections
    /// keep their certificates, and requests that have begun keep their limits.
    ///
    /// # Errors
    /// A file of tokens, certificates or a key cannot be used; then nothing is replaced.
    pub fn reload(&self, limits: ServeLimits) -> Result<(), ServerError> {
        let (tokens, tls) = secrets(&self.service.plan)?;
        if let (Some(shared), Some(tls)) = (&self.tls, tls) {
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = tls;
        }
        self.service.replace(tokens, limits);
        Ok(())
    }
}

/// Reads the tokens, and builds the TLS acceptor from the certificates, of a plan.
fn secrets(plan: &ServePlan) -> Result<(Tokens, Option<TlsAcceptor>), ServerError> {
    let tokens = match &plan.tokens {
        None => Tokens::default(),
        Some(path) => Tokens::read(path).map_err(|source| ServerError::Tokens {
            path: path.clone(),
            source,
        })?,
    };
    let tls = plan.tls.as_ref();
    let tls = tls.map(|it| acceptor(it, plan.tokens.is_some()));
    Ok((tokens, tls.transpose()?))
}

impl Server {
    /// Reads the certificates and tokens of a plan, and binds its address.
    ///
    /// # Errors
    /// A file cannot be used, the address cannot be bound or must not be reachable by other
    /// machines, or no thread can be started.
    pub fn bind(plan: ServePlan) -> Result<Self, ServerError> {
        let identifies = plan.tokens.is_some() || plan.tls.iter().any(|it| it.client_ca.is_some());
        let is_local = |it: &&SocketAddr| it.ip().is_loopback();
        if let Some(open) = plan.listen.iter().find(|it| !is_local(it))
            && (plan.tls.is_none() || !identifies)
        {
            return Err(ServerError::Open(*open));
        }
        let (tokens, tls) = secrets(&plan)?;
        let tls = tls.map(|it| Arc::new(Mutex::new(it)));
        let (listener, address) = bound(&plan.listen)?;
        let runtime = Builder::new_current_thread().enable_all().build();
        let threads = NetThreads::start().map_err(ServerError::Threads)?;
        let service = Arc::new(ServeState::new(plan, tokens));
        let begun = Instant::now();
        service.store.learn(|| begun.elapsed() < LEARN);
        Ok(Self {
            runtime: runtime.map_err(ServerError::Threads)?,
            threads,
            listener,
            tls,
            service,
            address,
        })
    }

    /// Returns a handle that replaces tokens, certificates and limits while the service runs.
    #[must_use]
    pub fn reload_handle(&self) -> ServeReload {
        ServeReload {
            tls: self.tls.clone(),
            service: Arc::clone(&self.service),
        }
    }

    /// Serves requests until `may_continue` returns `false`, then gives answers in progress a short
    /// time to complete.
    ///
    /// # Errors
    /// The listening socket cannot be used, or a thread cannot be started.
    pub fn run(self, mut may_continue: impl FnMut() -> bool) -> Result<(), ServerError> {
        let Self {
            runtime,
            mut threads,
            listener,
            tls,
            service,
            address,
        } = self;
        let failed = |source| ServerError::Listen { address, source };
        let (stop, stopped) = watch::channel(false);
        let places = Places::new(MOST_CONNECTIONS, MOST_OF_ADDRESS);
        let is_over = Arc::new(AtomicBool::new(false));
        let learner = learner(&service, &is_over)?;
        let result = runtime.block_on(async {
            let listener = TcpListener::from_std(listener).map_err(failed)?;
            let routes = router(Arc::clone(&service), openapi::document().into());
            let accept = accept(
                listener,
                tls,
                &service,
                routes,
                &places,
                &stopped,
                &mut threads,
            );
            tokio::pin!(accept);
            loop {
                tokio::select! {
                    () = &mut accept => {}
                    () = sleep(TICK) => {
                        write_left_out();
                        if !may_continue() {
                            break;
                        }
                    }
                }
            }
            let _ = stop.send(true);
            let until_not = async |is_so: &dyn Fn() -> bool| {
                while is_so() {
                    sleep(GRACE / 50).await;
                }
            };
            let _ = timeout(LAST + GRACE, until_not(&|| places.is_any_taken())).await;
            let _ = timeout(GRACE, until_not(&|| service.is_reading())).await;
            service.answers.end(&service.counters);
            Ok(())
        });
        is_over.store(true, Ordering::Relaxed);
        learner.thread().unpark();
        drop(threads);
        result
    }
}

/// Starts the thread that reads the indexes of new capture files, and the state of the capture.
fn learner(
    service: &Arc<ServeState>,
    is_over: &Arc<AtomicBool>,
) -> Result<thread::JoinHandle<()>, ServerError> {
    let (service, is_over) = (Arc::clone(service), Arc::clone(is_over));
    let run = move || {
        while !is_over.load(Ordering::Relaxed) {
            // A loop that makes no rounds between two readings is stuck.
            let _ = service.sensor.capture();
            service.store.learn(|| !is_over.load(Ordering::Relaxed));
            thread::park_timeout(LEARN);
        }
    };
    let builder = thread::Builder::new().name("serve-index".into());
    builder.spawn(run).map_err(ServerError::Threads)
}

/// Binds a listening socket to the first of `addresses` that can be bound.
fn bound(addresses: &[SocketAddr]) -> Result<(StdListener, SocketAddr), ServerError> {
    let bind = |address: &SocketAddr| {
        let listener = StdListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    let mut last = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut source = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match bind(address) {
            Ok(bound) => return Ok(bound),
            Err(e) => (last, source) = (*address, e),
        }
    }
    Err(ServerError::Listen {
        address: last,
        source,
    })
}

/// Reads a PEM file. A pipe is refused: a reload would wait for its writer, and the service with it.
fn pem(path: &Path) -> Result<Vec<u8>, ServerError> {
    let read = || match fs::metadata(path)?.is_file() {
        true => read_named(path, MOST_TEXT),
        false => Err(io::Error::other("it is not a regular file; name one")),
    };
    read().map_err(|e| ServerError::Tls {
        path: path.to_owned(),
        problem: e.to_string(),
    })
}

/// Reads all TLS certificates of a PEM file.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ServerError> {
    let failed = |problem: String| ServerError::Tls {
        path: path.to_owned(),
        problem,
    };
    let text = pem(path)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| failed(e.to_string()))?;
    match all.is_empty() {
        true => Err(failed("the file has no certificate in PEM form".into())),
        false => Ok(all),
    }
}

/// Builds the TLS acceptor of the service. If the service has tokens, clients without a certificate
/// are accepted.
fn acceptor(files: &TlsFiles, has_tokens: bool) -> Result<TlsAcceptor, ServerError> {
    let failed = |path: &Path, problem: &dyn ToString| ServerError::Tls {
        path: path.to_owned(),
        problem: problem.to_string(),
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder
        .with_safe_default_protocol_versions()
        .map_err(|e| failed(&files.cert, &e))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|e| failed(path, &e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = match has_tokens {
                true => verifier.allow_unauthenticated(),
                false => verifier,
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| failed(path, &e))?)
        }
    };
    let key =
        PrivateKeyDer::from_pem_slice(&pem(&files.key)?).map_err(|e| failed(&files.key, &e))?;
    let config = builder.with_single_cert(certificates(&files.cert)?, key);
    let mut config = config.map_err(|e| failed(&files.cert, &e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Accepts connections, and serves each of them in a separate task.
async fn accept(
    listener: TcpListener,
    tls: Option<SharedTls>,
    service: &Arc<ServeState>,
    routes: Router,
    places: &Places,
    stopped: &watch::Receiver<bool>,
    threads: &mut NetThreads,
) {
    loop {
        // A stream belongs to the scheduler that handles it.
        let accepted = listener.accept().await;
        let accepted = accepted.and_then(|(it, address)| Ok((it.into_std()?, address)));
        let (stream, address) = match accepted {
            Ok(it) => it,
            // No descriptor is free, or the client has left.
            Err(_) => {
                sleep(TICK).await;
                continue;
            }
        };
        let counters = &service.counters;
        counters.connections.fetch_add(1, Ordering::Relaxed);
        let (place, closed) = places.take(address.ip());
        counters.turned_away.fetch_add(closed, Ordering::Relaxed);
        let Some(place) = place.map(Arc::new) else {
            continue;
        };
        let task = Task {
            routes: routes.clone(),
            service: Arc::clone(service),
            address,
            stopped: stopped.clone(),
            place: Arc::clone(&place),
        };
        let tls = tls.as_ref().map(|it| {
            let tls = it.lock().unwrap_or_else(PoisonError::into_inner);
            tls.clone()
        });
        threads.spawn(async move {
            if let Ok(stream) = TcpStream::from_std(stream) {
                tokio::select! {
                    () = task.handshake(stream, tls) => {}
                    () = place.lost() => {}
                }
            }
        });
    }
}

/// HTTP connection of a client, with the state that the asynchronous task of the connection needs.
struct Task {
    routes: Router,
    service: Arc<ServeState>,
    address: SocketAddr,
    stopped: watch::Receiver<bool>,
    place: Arc<Place>,
}

impl Task {
    async fn handshake(self, stream: TcpStream, tls: Option<TlsAcceptor>) {
        let ms = u32::try_from(STALLED.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, ms);
        let _ = stream.set_nodelay(true);
        let Some(tls) = tls else {
            return self.serve(stream, None).await;
        };
        match timeout(PATIENCE, tls.accept(stream)).await {
            Ok(Ok(stream)) => {
                let certificates = stream.get_ref().1.peer_certificates();
                let name = certificates
                    .and_then(|it| it.first())
                    .map(|it| certificate_name(it));
                self.serve(stream, name).await;
            }
            Ok(Err(_)) | Err(_) => {
                let failed = &self.service.counters.handshakes_failed;
                failed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn serve(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        certificate: Option<String>,
    ) {
        let connection = ClientConnection {
            address: self.address,
            certificate,
            place: self.place,
        };
        let routes = self.routes.layer(Extension(connection));
        let served = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_headers(MOST_HEADERS)
            .max_buf_size(MOST_HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        tokio::pin!(served);
        tokio::select! {
            _ = &mut served => return,
            _ = self.stopped.changed() => {}
        }
        served.as_mut().graceful_shutdown();
        let _ = timeout(LAST, served).await;
    }
}
