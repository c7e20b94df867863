//! The HTTP interface: paths, parameters, who may call.

use super::places::Place;
use crate::{
    ServeLimits, ServePlan,
    audit::{Audited, Counters, OpenAnswers},
    error::{ApiError, ErrorBody, FailureText},
    flow_rows::{self, FlowOrder, FlowsAnswer, FlowsQuery, MOST_ANSWERED},
    identity::{Caller, CallerRole, Tokens},
    packets::{self, PacketsForm},
    permits::{ReadPermit, ReadPermits, held},
    query::{steno, times},
    sensor::{self, PinsAnswer, SensorAccess, StatusAnswer},
    store::{CaptureStore, StoreView},
    timeline::{self, Timeline},
};
use axum::{
    Extension, Json, Router,
    body::{Bytes, to_bytes},
    extract::{FromRequestParts, Query, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version, header, request::Parts},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};
use wqcap_files::{
    extract::{ExtractQuery, FrameQuery},
    index::FlowTerms,
    merge::OutputLimits,
};
use wqcap_frame::{
    check_community_id,
    filter::{FileFilter, Filter, FilterError},
};

/// Maximum number of threads of requests for states, timelines, pins and marks.
const MOST_THREADS: usize = 8;
/// Maximum length of the body of an HTTP request in bytes.
const MOST_BODY: usize = 64 << 10;
/// Maximum length of a filter expression in bytes. The time to compile a filter grows with the
/// square of its length.
const LONGEST_FILTER: usize = 8 << 10;
/// Maximum number of capture files with overlapping times that an answer reads concurrently. A
/// capture has one open file for each queue.
const MOST_FILES: usize = 256;
/// Default number of intervals of a timeline; [`MOST_BUCKETS`] is the maximum.
const BUCKETS: u64 = 300;
const MOST_BUCKETS: u64 = 2000;
/// Default number of flow records in an answer.
const FLOWS: usize = 200;
/// Name of the cookie that holds the token of a browser.
const COOKIE: &str = "wqcap_token";
/// Time in seconds after which a browser deletes the cookie with the token.
const SESSION_S: u32 = 12 * 3600;
/// Maximum time that a mark may cover before, and after, its moment.
const LONGEST_MARK: Duration = Duration::from_secs(24 * 3600);

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// State that all requests to the service share: plan, tokens, capture files, and counters.
pub struct ServeState {
    pub plan: ServePlan,
    pub store: CaptureStore,
    pub sensor: SensorAccess,
    pub counters: Arc<Counters>,
    /// Answers with packets that are in progress.
    pub answers: OpenAnswers,
    /// Tokens and limits of the service, which a reload replaces.
    changeable: Mutex<Changeable>,
    /// Permits of the requests that are reading capture files at present.
    permits: ReadPermits,
    /// Permits of the other requests that have a thread at present.
    threads: ReadPermits,
}

/// Part of the service's state that a reload replaces.
struct Changeable {
    tokens: Arc<Tokens>,
    limits: ServeLimits,
}

/// Properties of the connection over which a request came.
#[derive(Clone, Debug)]
pub struct ClientConnection {
    /// Network address and port of the client.
    pub address: SocketAddr,
    /// Name in the client's TLS certificate, which the service has verified; `None`: no
    /// certificate.
    pub certificate: Option<String>,
    /// Place of the connection, which it keeps after its first permitted request.
    pub place: Arc<Place>,
}

type Shared = State<Arc<ServeState>>;

impl ServeState {
    /// Creates the state of the service from its plan and its tokens.
    pub fn new(plan: ServePlan, tokens: Tokens) -> Self {
        Self {
            store: CaptureStore::new(plan.dir.clone(), plan.index_dir.clone(), plan.key.clone()),
            sensor: SensorAccess::new(&plan),
            counters: Arc::default(),
            answers: OpenAnswers::default(),
            changeable: Mutex::new(Changeable {
                tokens: Arc::new(tokens),
                limits: plan.limits,
            }),
            permits: ReadPermits::default(),
            threads: ReadPermits::default(),
            plan,
        }
    }

    fn changeable(&self) -> MutexGuard<'_, Changeable> {
        self.changeable
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the tokens and limits of the service. Requests that have begun keep the old ones.
    pub fn replace(&self, tokens: Tokens, limits: ServeLimits) {
        *self.changeable() = Changeable {
            tokens: Arc::new(tokens),
            limits,
        };
    }

    /// Returns the present tokens of the service.
    fn tokens(&self) -> Arc<Tokens> {
        Arc::clone(&self.changeable().tokens)
    }

    /// Returns the present limits of the service.
    fn limits(&self) -> ServeLimits {
        self.changeable().limits
    }

    /// Returns `true` if the service requires a token or a certificate from callers.
    fn authenticates(&self) -> bool {
        self.plan.tokens.is_some() || self.plan.tls.iter().any(|it| it.client_ca.is_some())
    }

    /// Returns the permit to read capture files for a request of `caller`, or an error if as many
    /// requests as allowed are reading them.
    fn permit(&self, caller: &Caller) -> Result<ReadPermit, ApiError> {
        self.permits.take(caller, self.limits().max_requests)
    }

    /// Returns the permit for the thread of a request that reads no frames. The thread continues when
    /// the client has left, so that these requests need a limit, too.
    fn thread(&self, caller: &Caller) -> Result<ReadPermit, ApiError> {
        let permit = self.threads.take(caller, MOST_THREADS);
        permit.map_err(|_| ApiError::ThreadsBusy(MOST_THREADS))
    }

    /// Returns `true` while a request reads capture files, or has not yet written its audit line.
    pub fn is_reading(&self) -> bool {
        self.permits.is_any_taken()
    }

    /// Returns the list of the present capture files, with the facts that were read of them.
    fn view(&self) -> Result<Arc<StoreView>, ApiError> {
        self.view_since(None)
    }

    /// Returns the list of capture files, read at the time `since` or later.
    fn view_since(&self, since: Option<Instant>) -> Result<Arc<StoreView>, ApiError> {
        let dir = &self.plan.dir;
        let view = self.store.view_since(since);
        view.map_err(|e| ApiError::Failed(format!("{}: {e}", dir.display())))
    }

    /// Identifies the caller of a request: by the request's token if it has one, otherwise by the
    /// client certificate of the connection.
    fn caller(
        &self,
        connection: &ClientConnection,
        headers: &HeaderMap,
    ) -> Result<Caller, ApiError> {
        let of = |name: Option<&str>, role| Caller {
            name: name.map(str::to_owned),
            role,
            address: connection.address,
        };
        if let Some(token) = token_of(headers) {
            return match self.tokens().find(token) {
                Some((name, role)) => Ok(of(Some(name), role)),
                None => Err(ApiError::Unauthenticated("the token is not known")),
            };
        }
        if let Some(name) = &connection.certificate {
            return Ok(of(Some(name), CallerRole::Read));
        }
        if self.authenticates() {
            return Err(ApiError::Unauthenticated(
                "the request has no token, and the connection no certificate",
            ));
        }
        check_host(headers)?;
        Ok(of(None, CallerRole::Read))
    }
}

/// Returns the access token of a request, from its header `Authorization` or its cookie.
fn token_of(headers: &HeaderMap) -> Option<&str> {
    let authorization = headers.get(header::AUTHORIZATION);
    if let Some(value) = authorization.and_then(|it| it.to_str().ok()) {
        let (scheme, token) = value.split_once(' ')?;
        return scheme.eq_ignore_ascii_case("bearer").then(|| token.trim());
    }
    let cookies = headers.get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(';'));
    let token = pairs.find_map(|it| it.trim().strip_prefix(COOKIE)?.strip_prefix('='));
    token.filter(|it| !it.is_empty())
}

/// Refuses a request whose header `Host` has a name that another site could have bound to this
/// address (DNS rebinding). Needed only while callers need no token.
fn check_host(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
    let Some(host) = host else { return Ok(()) };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let plain = name.trim_start_matches('[').trim_end_matches(']');
    if plain.eq_ignore_ascii_case("localhost") || plain.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    let shown: String = host.chars().take(100).collect();
    Err(ApiError::Foreign(format!(
        "the header Host is {shown:?}; without tokens the service answers to IP addresses and localhost only"
    )))
}

/// Refuses a request for a change that a web page of another site may have sent.
fn check_origin(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|it: &HeaderValue| it.to_str().ok())
    };
    let Some(origin) = text(header::ORIGIN) else {
        return Ok(());
    };
    let authority = origin.split_once("://").map(|it| it.1);
    match authority == text(header::HOST) && authority.is_some() {
        true => Ok(()),
        false => Err(ApiError::Foreign(format!(
            "the header Origin is {:?}, which is another site",
            origin.chars().take(100).collect::<String>()
        ))),
    }
}

/// Returns the router with all paths of the service. `description` is the document at
/// `/openapi.json`.
pub fn router(service: Arc<ServeState>, description: Arc<str>) -> Router {
    let with_line = Router::new()
        .route("/api/v1/flows", get(flows))
        .route("/api/v1/timeline", get(timeline))
        .route("/api/v1/status", get(status))
        .route("/api/v1/pins", get(pins).post(add_pin))
        .route("/api/v1/marks", post(add_mark))
        .route("/metrics", get(metrics))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&service),
            with_audit,
        ));
    Router::new()
        .merge(with_line)
        // These write their audit lines when their answers end.
        .route("/api/v1/packets", get(packets_get).post(packets_post))
        .route("/query", post(query))
        .route("/api/v1/session", post(log_in).delete(log_out))
        .route("/healthz", get(healthz))
        .route(
            "/openapi.json",
            get(async move || {
                let kind = "application/json";
                ([(header::CONTENT_TYPE, kind)], description.to_string())
            }),
        )
        .route(
            "/",
            get(|| {
                page(
                    "text/html; charset=utf-8",
                    include_str!("../../page/index.html"),
                )
            }),
        )
        .route(
            "/app.js",
            get(|| {
                page(
                    "text/javascript; charset=utf-8",
                    include_str!("../../page/app.js"),
                )
            }),
        )
        .route(
            "/style.css",
            get(|| {
                page(
                    "text/css; charset=utf-8",
                    include_str!("../../page/style.css"),
                )
            }),
        )
        .fallback(async |uri: Uri| ApiError::NoPath(uri.path().chars().take(200).collect()))
        .method_not_allowed_fallback(async |method: Method| ApiError::NoMethod(method.to_string()))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&service),
            with_body,
        ))
        .layer(middleware::map_response(with_headers))
        .with_state(service)
}

/// Adds the HTTP headers that every answer of the service has.
async fn with_headers(mut answer: Response) -> Response {
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}

/// Reads the body of a request before the request is handled, within the limits of length and time.
async fn with_body(State(service): Shared, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let read = timeout(crate::PATIENCE, to_bytes(body, MOST_BODY)).await;
    let refused = match read {
        Ok(Ok(body)) => return next.run(Request::from_parts(parts, body.into())).await,
        Ok(Err(e)) if is_too_long(&e) => ApiError::TooLong(MOST_BODY),
        Ok(Err(e)) => malformed(&e),
        Err(_) => ApiError::Slow(crate::PATIENCE.as_secs()),
    };
    let audited = Audited::new(identified(&service, &parts).0, described(&parts, ""));
    audited.refuse(&service.counters, refused.status(), &refused.to_string());
    refused.into_response()
}

/// Returns `true` if the error means that the body of a request exceeds the length limit.
fn is_too_long(e: &axum::Error) -> bool {
    let cause = std::error::Error::source(e);
    cause.is_some_and(|it| it.is::<http_body_util::LengthLimitError>())
}

/// Identifies the caller of a request, handles the request, and writes its audit line.
async fn with_audit(State(service): Shared, mut request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    // The body is in memory already.
    let body = to_bytes(body, MOST_BODY).await.unwrap_or_default();
    let what = described(&parts, &String::from_utf8_lossy(&body));
    let (caller, outcome) = identified(&service, &parts);
    let audited = Audited::new(caller.clone(), what);
    let changes = !matches!(parts.method, Method::GET | Method::HEAD);
    request = Request::from_parts(parts, body.into());
    request.extensions_mut().insert(caller);
    let answer = match outcome {
        Ok(()) => next.run(request).await,
        Err(e) => e.into_response(),
    };
    match answer.extensions().get::<FailureText>() {
        Some(FailureText(why)) => audited.refuse(&service.counters, answer.status(), why),
        None if changes => audited.changed(&service.counters),
        None => audited.done(&service.counters),
    }
    answer
}

/// Returns the caller of a request, and an error if the request is refused. If the caller cannot be
/// identified, the returned caller has no name. The connection of a permitted request keeps its place.
fn identified(service: &ServeState, parts: &Parts) -> (Caller, Result<(), ApiError>) {
    let unknown = |address| Caller {
        name: None,
        role: CallerRole::Read,
        address,
    };
    let Some(connection) = parts.extensions.get::<ClientConnection>() else {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let refused = ApiError::Unauthenticated("the request's connection is not known");
        return (unknown(nowhere), Err(refused));
    };
    let caller = service.caller(connection, &parts.headers);
    let caller = caller.and_then(|it| match parts.method {
        Method::GET | Method::HEAD => Ok(it),
        _ => check_origin(&parts.headers).map(|()| it),
    });
    match caller {
        Ok(caller) => {
            connection.place.keep(caller.name.as_deref());
            (caller, Ok(()))
        }
        Err(e) => (unknown(connection.address), Err(e)),
    }
}

/// Returns the text that describes a request in its audit line: method, path, parameters, and
/// `body`.
fn described(parts: &Parts, body: &str) -> String {
    let query = parts.uri.query().map(|it| format!("?{it}"));
    let body = match body {
        "" => String::new(),
        it => format!(" {it}"),
    };
    format!(
        "{} {}{}{body}",
        parts.method,
        parts.uri.path(),
        query.unwrap_or_default()
    )
}

/// Parameters in the query part of a request's URI; unknown parameters are refused.
pub struct Params<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let Query(it) = Query::try_from_uri(&parts.uri).map_err(|e| malformed(&e))?;
        Ok(Self(it))
    }
}

fn malformed(e: &impl ToString) -> ApiError {
    ApiError::Malformed(e.to_string())
}

/// Parses the JSON body of a request.
fn json<T: DeserializeOwned>(headers: &HeaderMap, body: &[u8]) -> Result<T, ApiError> {
    match media_type(headers) {
        Some("application/json") => serde_json::from_slice(body).map_err(|e| malformed(&e)),
        _ => Err(ApiError::Malformed(
            "the body must be JSON, with the header \"Content-Type: application/json\"".into(),
        )),
    }
}

/// Returns the media type of a request's body, without the parameters of the header.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or_default().trim())
}

/// Deserializes a text or a number of a request as text, because JSON bodies and URIs have the same
/// parameters.
fn loose<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Loose {
        Text(String),
        Number(serde_json::Number),
        None(()),
    }
    Ok(match Loose::deserialize(from)? {
        Loose::Text(it) => Some(it),
        Loose::Number(it) => Some(it.to_string()),
        Loose::None(()) => None,
    })
}

/// Parses the optional time parameter `name` of a request to nanoseconds since 1970; returns
/// `other` if it is absent.
fn time(name: &'static str, text: Option<&str>, other: u64) -> Result<u64, ApiError> {
    let Some(text) = text.filter(|it| !it.is_empty()) else {
        return Ok(other);
    };
    times::parse(text, times::now()).map_err(|e| ApiError::value(name, text, e))
}

/// Parses the optional time range of a request's parameters `from` and `to`; an absent end is taken
/// from `all`.
fn range(from: Option<&str>, to: Option<&str>, all: Range<u64>) -> Result<Range<u64>, ApiError> {
    let from = time("from", from, all.start)?;
    let to_ns = time("to", to, all.end)?;
    match from < to_ns {
        true => Ok(from..to_ns),
        false => Err(ApiError::value(
            "to",
            to.unwrap_or_default(),
            "must be after from",
        )),
    }
}

/// Parses the optional number parameter `name` of a request; returns `other` if it is absent, and
/// an error if it is not in `within`.
fn number(
    name: &'static str,
    text: Option<&str>,
    within: Range<u64>,
    other: u64,
) -> Result<u64, ApiError> {
    let Some(text) = text.filter(|it| !it.is_empty()) else {
        return Ok(other);
    };
    let parsed = text.parse().ok().filter(|it| within.contains(it));
    parsed.ok_or_else(|| {
        let problem = format!(
            "the value must be a number from {} to {}",
            within.start,
            within.end - 1
        );
        ApiError::value(name, text, problem)
    })
}

/// Compiles the filter expression in the parameter `name` of a request. This can take a minute, so
/// the threads that handle connections must not call it.
fn filter(name: &'static str, text: &str) -> Result<FileFilter, ApiError> {
    compiled(name, text, FileFilter::compile)
}

fn compiled<F>(
    name: &'static str,
    text: &str,
    compile: impl FnOnce(&str) -> Result<F, FilterError>,
) -> Result<F, ApiError> {
    if text.len() > LONGEST_FILTER {
        let problem = format!(
            "the filter has more than {LONGEST_FILTER} bytes, which is the limit; name networks instead of hosts"
        );
        return Err(ApiError::value(name, text, problem));
    }
    compile(text).map_err(|e| match e {
        FilterError::Busy | FilterError::NoThread(_) => ApiError::NoThread(io::Error::other(e)),
        e => ApiError::value(name, text, e),
    })
}

/// Returns the Community ID in the parameter `community_id` of a request; `None`: it is absent or
/// empty. In a query string, a `+` that is not written as `%2B` is a blank, which no ID has.
fn community_id(text: Option<&str>) -> Result<Option<String>, ApiError> {
    let Some(text) = text.filter(|it| !it.is_empty()) else {
        return Ok(None);
    };
    let id = text.replace(' ', "+");
    check_community_id(&id).map_err(|e| ApiError::value("community_id", text, e))?;
    Ok(Some(id))
}

/// Parameters of a query for packets.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct PacketsParams {
    /// Start of the time range, inclusive [default: the first frame].
    #[serde(deserialize_with = "loose")]
    from: Option<String>,
    /// End of the time range, exclusive [default: the last frame].
    #[serde(deserialize_with = "loose")]
    to: Option<String>,
    /// pcap-filter expression [default: every frame].
    filter: Option<String>,
    /// Community ID of a flow.
    community_id: Option<String>,
    /// ID of a mark or a pin, whose times and filter apply in addition.
    mark: Option<String>,
    /// Number of bytes after which the answer ends as incomplete.
    #[serde(deserialize_with = "loose")]
    limit_bytes: Option<String>,
    /// Number of frames after which the answer ends as incomplete.
    #[serde(deserialize_with = "loose")]
    limit_packets: Option<String>,
    /// `pcapng` or `pcap` [default: pcapng].
    format: Option<String>,
}

/// Returns the frames of a time range and a filter.
///
/// The frames of finished files and those on the disk of open files, in time order, as `wqcap
/// extract` writes them. The headers `Wqcap-Complete`, `Wqcap-Frames` and `Wqcap-Lacks` say whether
/// the answer is complete; if the first is `trailer`, they are trailers. The last block of pcapng
/// that lacks frames has a comment that begins with `incomplete:`.
#[utoipa::path(get, path = "/api/v1/packets", params(PacketsParams), security(("token" = [])), responses(
    (status = 200, description = "Capture file", content_type = "application/vnd.tcpdump.pcap"),
    (status = 204, description = "No frame matches"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed, or too busy", body = ErrorBody),
))]
pub async fn packets_get(State(service): Shared, request: Request) -> Result<Response, ApiError> {
    let (parts, _) = request.into_parts();
    let what = described(&parts, "");
    let params = Query::try_from_uri(&parts.uri).map(|Query(it)| it);
    let params = params.map_err(|e| malformed(&e));
    packets(service, &parts, what, params).await
}

/// Returns the frames of a time range and a filter, with the parameters in the body.
///
/// As GET. The body is JSON or a form.
#[utoipa::path(post, path = "/api/v1/packets", request_body = PacketsParams, security(("token" = [])), responses(
    (status = 200, description = "Capture file", content_type = "application/vnd.tcpdump.pcap"),
    (status = 204, description = "No frame matches"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed, or too busy", body = ErrorBody),
))]
pub async fn packets_post(
    State(service): Shared,
    parts: Parts,
    body: Bytes,
) -> Result<Response, ApiError> {
    let what = described(&parts, &String::from_utf8_lossy(&body));
    let params = match (parts.uri.query(), media_type(&parts.headers)) {
        (Some(_), _) => Err(ApiError::Malformed(
            "the parameters of this request must be in its body, and not in its address".into(),
        )),
        (None, Some("application/x-www-form-urlencoded")) => form(&body),
        (None, _) => json(&parts.headers, &body),
    };
    packets(service, &parts, what, params).await
}

/// Parses the form in the body of a request.
fn form<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let text = std::str::from_utf8(body).map_err(|e| malformed(&e))?;
    let uri: Uri = format!("/?{text}")
        .parse()
        .map_err(|e: axum::http::uri::InvalidUri| malformed(&e))?;
    let Query(it) = Query::try_from_uri(&uri).map_err(|e| malformed(&e))?;
    Ok(it)
}

async fn packets(
    service: Arc<ServeState>,
    parts: &Parts,
    what: String,
    params: Result<PacketsParams, ApiError>,
) -> Result<Response, ApiError> {
    let pcapng = PacketsForm {
        media_type: "application/vnd.tcpdump.pcap",
        file_name: "packets.pcapng",
        is_file_always: false,
        // The last block has a comment.
        shows_losses: true,
        max_bytes: service.limits().max_bytes,
    };
    let pcap = PacketsForm {
        file_name: "packets.pcap",
        shows_losses: accepts_trailers(&parts.headers),
        ..pcapng
    };
    let build = move |service: &ServeState| {
        let params = params?;
        let form = match params.format.as_deref() {
            None | Some("" | "pcapng") => pcapng,
            Some("pcap") => pcap,
            Some(other) => return Err(ApiError::value("format", other, "must be pcapng or pcap")),
        };
        Ok((frames_of(service, &params, form)?, form))
    };
    stream(service, parts, what, build).await
}

/// Builds the query for the frames that the parameters of a request select.
fn frames_of(
    service: &ServeState,
    params: &PacketsParams,
    form: PacketsForm,
) -> Result<FrameQuery, ApiError> {
    let mut times = range(params.from.as_deref(), params.to.as_deref(), 0..u64::MAX)?;
    let text = params.filter.as_deref().unwrap_or_default();
    let mut expression = filter("filter", text)?;
    if let Some(id) = params.mark.as_deref().filter(|it| !it.is_empty()) {
        let pin = service.sensor.pin(id)?;
        times = times.start.max(pin.from_ns)..times.end.min(pin.to_ns);
        let both = match (pin.filter.as_str(), text.trim()) {
            ("", it) | (it, "") => it.to_owned(),
            (a, b) => format!("({a}) and ({b})"),
        };
        expression = filter("filter", &both)?;
    }
    let limits = OutputLimits {
        frames: number(
            "limit_packets",
            params.limit_packets.as_deref(),
            1..u64::MAX,
            u64::MAX,
        )?,
        bytes: number(
            "limit_bytes",
            params.limit_bytes.as_deref(),
            1..u64::MAX,
            u64::MAX,
        )?
        .min(service.limits().max_bytes),
        open: MOST_FILES,
    };
    Ok(FrameQuery {
        community_id: community_id(params.community_id.as_deref())?,
        limits,
        ..FrameQuery::new(times, expression, form.file_name.into())
    })
}

/// Returns `true` if the client of a request accepts trailers (RFC 9110, 6.5.1). Hyper sends no
/// trailers to other clients.
fn accepts_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::TE).iter();
    let mut codings = values
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(','));
    codings.any(|it| it.trim().eq_ignore_ascii_case("trailers"))
}

/// Streams the answer to a query for frames, and writes the audit line of a request that is
/// refused.
async fn stream(
    service: Arc<ServeState>,
    parts: &Parts,
    what: String,
    build: impl FnOnce(&ServeState) -> Result<(FrameQuery, PacketsForm), ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let (caller, identified) = identified(&service, parts);
    let permit = identified.and_then(|()| match parts.version {
        Version::HTTP_09 | Version::HTTP_10 => Err(ApiError::OldHttp),
        _ => service.permit(&caller),
    });
    let audited = Audited::new(caller, what);
    let permit = match permit {
        Ok(permit) => permit,
        Err(e) => {
            audited.refuse(&service.counters, e.status(), &e.to_string());
            return Err(e);
        }
    };
    let counters = Arc::clone(&service.counters);
    let open = service.answers.begin(audited);
    let prepare = move |permit: &ReadPermit| {
        let (frames, form) = build(&service)?;
        sensor::check_disk()?;
        // The capture is asked before the files are listed: what it writes after that is found.
        let (state, asked) = service.sensor.capture_at();
        let view = service.view_since(Some(asked))?;
        let mut files = view.files_of(&frames.times);
        let unwritten = service.sensor.unwritten(&state, &view, frames.times.end);
        files.losses.extend(unwritten);
        permit.add_files(files.finished.len() + files.open.len())?;
        let query = ExtractQuery {
            dir: service.plan.dir.clone(),
            index_dir: service.plan.index_dir.clone(),
            key: service.plan.key.clone(),
            files: Some(files),
            frames,
        };
        Ok((query, form))
    };
    packets::answer(prepare, permit, open, counters).await
}

/// Answers a query in stenographer's language with a pcap file.
///
/// The headers `Steno-Limit-Bytes` and `Steno-Limit-Packets` limit the answer.
#[utoipa::path(post, path = "/query", request_body(content = String, content_type = "text/plain"), security(("token" = [])), responses(
    (status = 200, description = "pcap file", content_type = "application/octet-stream"),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed, or too busy", body = ErrorBody),
))]
pub async fn query(
    State(service): Shared,
    parts: Parts,
    body: Bytes,
) -> Result<Response, ApiError> {
    let what = described(&parts, &String::from_utf8_lossy(&body));
    let headers = parts.headers.clone();
    let build = move |service: &ServeState| {
        let text = std::str::from_utf8(&body).map_err(|e| malformed(&e))?;
        let form = PacketsForm {
            media_type: "application/octet-stream",
            file_name: "packets.pcap",
            is_file_always: true,
            shows_losses: accepts_trailers(&headers),
            max_bytes: service.limits().max_bytes,
        };
        Ok((steno_frames(service, text, &headers, form)?, form))
    };
    stream(service, &parts, what, build).await
}

/// Builds the query for the frames that a query in stenographer's language selects.
fn steno_frames(
    service: &ServeState,
    text: &str,
    headers: &HeaderMap,
    form: PacketsForm,
) -> Result<FrameQuery, ApiError> {
    let limit = |name: &'static str| {
        let value = headers.get(name).map(|it| it.to_str().unwrap_or("?"));
        number(name, value, 0..u64::MAX, 0).map(|it| if it == 0 { u64::MAX } else { it })
    };
    let limits = OutputLimits {
        frames: limit("steno-limit-packets")?,
        bytes: limit("steno-limit-bytes")?.min(service.limits().max_bytes),
        open: MOST_FILES,
    };
    let parsed = steno::parse(text, times::now());
    let alternatives = parsed.map_err(|e| ApiError::value("query", text, e))?;
    let compiled = |it: &str| compiled("query", &steno::behind_vlan_tags(it), Filter::compile);
    let out = form.file_name.into();
    let query = match &alternatives[..] {
        [] => FrameQuery::new(0..0, FileFilter::default(), out),
        [only] => FrameQuery {
            terms: Some(FlowTerms::parse(&only.filter)),
            ..FrameQuery::new(only.times.clone(), compiled(&only.filter)?, out)
        },
        all => {
            let start = all.iter().map(|it| it.times.start).min().unwrap_or(0);
            let end = all.iter().map(|it| it.times.end).max().unwrap_or(0);
            let pairs = all
                .iter()
                .map(|it| Ok((it.times.clone(), compiled(&it.filter)?)));
            FrameQuery {
                alternatives: pairs.collect::<Result<_, ApiError>>()?,
                ..FrameQuery::new(start..end, FileFilter::default(), out)
            }
        }
    };
    Ok(FrameQuery { limits, ..query })
}

/// Parameters of a query for flow records.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct FlowsParams {
    /// Start of the time range [default: everything].
    from: Option<String>,
    /// End of the time range [default: everything].
    to: Option<String>,
    /// pcap-filter expression; records decide its plain terms.
    filter: Option<String>,
    /// Part of a TLS server name, an HTTP host or a JA4 fingerprint.
    name: Option<String>,
    /// Community ID of a flow.
    community_id: Option<String>,
    /// Order: `bytes`, `frames`, `first`, `last` or `duration` [default: bytes].
    #[param(value_type = Option<FlowOrder>)]
    sort: Option<String>,
    /// Maximum number of records, 1 to 10000 [default: 200].
    limit: Option<String>,
}

/// Returns flow records of a time range.
#[utoipa::path(get, path = "/api/v1/flows", params(FlowsParams), security(("token" = [])), responses(
    (status = 200, description = "Flow records", body = FlowsAnswer),
    (status = "4XX", description = "Refused, or no flow records are written", body = ErrorBody),
    (status = "5XX", description = "Failed, or too busy", body = ErrorBody),
))]
pub async fn flows(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<FlowsParams>,
) -> Result<Response, ApiError> {
    let folder = service.plan.flows.clone().ok_or(ApiError::NoFlows)?;
    let text = params.filter.unwrap_or_default();
    let order = match params.sort.as_deref() {
        None | Some("") => FlowOrder::default(),
        Some(name) => serde_json::from_value(name.into()).map_err(|_| {
            ApiError::value(
                "sort",
                name,
                "must be bytes, frames, first, last or duration",
            )
        })?,
    };
    let limit = number(
        "limit",
        params.limit.as_deref(),
        1..MOST_ANSWERED as u64 + 1,
        FLOWS as u64,
    )?;
    let query = FlowsQuery {
        times: range(params.from.as_deref(), params.to.as_deref(), 0..u64::MAX)?,
        filter: text,
        name: params.name.unwrap_or_default(),
        community_id: community_id(params.community_id.as_deref())?.unwrap_or_default(),
        order,
        limit: usize::try_from(limit).unwrap_or(FLOWS),
    };
    let permit = service.permit(&caller)?;
    json_of_thread(permit, move |is_wanted| {
        // An expression that packets refuse is refused here too.
        filter("filter", &query.filter)?;
        Ok(flow_rows::read(&folder, &query, is_wanted))
    })
    .await
}

/// Runs work that takes long on a new thread, and returns its result with the permit. `work` gets a
/// function that returns `false` after the client has left.
async fn in_thread<T: Send + 'static>(
    permit: ReadPermit,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, ReadPermit), ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("serve-read".into())
        .spawn(move || {
            let result = work(&|| !sender.is_closed());
            drop(sender.send(result.map(|it| (it, permit))));
        })
        .map_err(ApiError::NoThread)?;
    let ended = |_| ApiError::Failed("the thread that reads the files ended early".into());
    receiver.await.map_err(ended)?
}

/// Answers a request with the result of work on a new thread, as JSON. The permit is held until the
/// client has taken the answer.
async fn json_of_thread<T: Serialize>(
    permit: ReadPermit,
    work: impl FnOnce(&dyn Fn() -> bool) -> Result<T, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let text = move |is_wanted: &dyn Fn() -> bool| {
        let text = serde_json::to_vec(&work(is_wanted)?);
        text.map_err(|e| ApiError::Failed(e.to_string()))
    };
    let (text, permit) = in_thread(permit, text).await?;
    let mut answer = held::answer(text, permit.into());
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(answer)
}

/// Parameters of a timeline.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct TimelineParams {
    /// Start of the first interval [default: the first stored frame].
    from: Option<String>,
    /// End of the last interval [default: the last stored frame].
    to: Option<String>,
    /// Number of intervals, 1 to 2000 [default: 300].
    buckets: Option<String>,
}

/// Returns what is stored, by interval.
#[utoipa::path(get, path = "/api/v1/timeline", params(TimelineParams), security(("token" = [])), responses(
    (status = 200, description = "Timeline", body = Timeline),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub async fn timeline(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    Params(params): Params<TimelineParams>,
) -> Result<Response, ApiError> {
    let count = number(
        "buckets",
        params.buckets.as_deref(),
        1..MOST_BUCKETS + 1,
        BUCKETS,
    )?;
    json_of_thread(service.thread(&caller)?, move |_| {
        let view = service.view()?;
        let now = times::now();
        let all = view.span().unwrap_or(now.saturating_sub(1)..now);
        let times = range(params.from.as_deref(), params.to.as_deref(), all)?;
        let pins = service.sensor.pins();
        Ok(timeline::timeline(&view, times, count, pins.pins))
    })
    .await
}

/// Returns the state of the sensor.
#[utoipa::path(get, path = "/api/v1/status", security(("token" = [])), responses(
    (status = 200, description = "State", body = StatusAnswer),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub async fn status(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    json_of_thread(service.thread(&caller)?, move |_| {
        let (capture, disk_hours) = service.sensor.capture();
        let view = service.view()?;
        let (capture, capture_problem) = match capture {
            Ok(it) => (Some(it), None),
            Err(problem) => (None, Some(problem.text)),
        };
        Ok(StatusAnswer {
            version: env!("CARGO_PKG_VERSION"),
            sensor: service.plan.sensor.clone(),
            now_ns: times::now(),
            who: caller.name,
            role: caller.role,
            authenticates: service.authenticates(),
            store: service.sensor.store(&view, disk_hours),
            capture,
            capture_problem,
        })
    })
    .await
}

/// Returns the pins.
#[utoipa::path(get, path = "/api/v1/pins", security(("token" = [])), responses(
    (status = 200, description = "Pins", body = PinsAnswer),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub async fn pins(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let permit = service.thread(&caller)?;
    json_of_thread(permit, move |_| Ok(service.sensor.pins())).await
}

/// Pin to add.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PinBody {
    /// Start of the pinned time range.
    from: String,
    /// End of the pinned time range.
    to: String,
    /// pcap-filter expression of the pinned frames [default: every frame].
    #[serde(default)]
    filter: String,
    /// Reason for the pin, in one line.
    reason: String,
}

/// Mark to set.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MarkBody {
    /// Description, in one line of at most 900 bytes.
    text: String,
    /// Time before now that the mark covers, such as `60s` [default: 60s].
    #[serde(default = "minute")]
    before: String,
    /// Time after now that the mark covers, such as `60s` [default: 60s].
    #[serde(default = "minute")]
    after: String,
    /// pcap-filter expression of the frames that the mark covers [default: every frame].
    #[serde(default)]
    filter: String,
}

fn minute() -> String {
    "60s".into()
}

/// ID of a new pin or mark.
#[derive(Debug, Serialize, ToSchema)]
pub struct Created {
    /// ID.
    id: String,
    /// Change that the capture made for the mark.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

fn need_mark(caller: &Caller) -> Result<(), ApiError> {
    match caller.role {
        CallerRole::Mark => Ok(()),
        CallerRole::Read => Err(ApiError::NeedsMark {
            who: caller.shown().to_owned(),
        }),
    }
}

/// Pins the files with the frames of a time range and a filter, so that they are not deleted.
#[utoipa::path(post, path = "/api/v1/pins", request_body = PinBody, security(("token" = [])), responses(
    (status = 201, description = "Pin", body = Created),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed", body = ErrorBody),
))]
pub async fn add_pin(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Created>), ApiError> {
    need_mark(&caller)?;
    let it: PinBody = json(&headers, &body)?;
    let times = range(Some(&it.from), Some(&it.to), 0..u64::MAX)?;
    let permit = service.thread(&caller)?;
    let work = move |_: &dyn Fn() -> bool| {
        filter("filter", &it.filter)?;
        let pin = sensor::new_pin(times.start, times.end, it.filter, it.reason);
        service.sensor.add_pin(&pin)
    };
    let (id, _) = in_thread(permit, work).await?;
    Ok((StatusCode::CREATED, Json(Created { id, detail: None })))
}

/// Marks the present moment in the capture, and pins the files around it.
#[utoipa::path(post, path = "/api/v1/marks", request_body = MarkBody, security(("token" = [])), responses(
    (status = 201, description = "Mark", body = Created),
    (status = "4XX", description = "Refused", body = ErrorBody),
    (status = "5XX", description = "Failed, or no capture runs", body = ErrorBody),
))]
pub async fn add_mark(
    State(service): Shared,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<(StatusCode, Json<Created>), ApiError> {
    need_mark(&caller)?;
    let it: MarkBody = json(&headers, &body)?;
    let duration = |name, text: &str| {
        let parsed = humantime::parse_duration(text).map_err(|e| ApiError::value(name, text, e))?;
        match parsed <= LONGEST_MARK {
            true => Ok(parsed),
            false => Err(ApiError::value(name, text, "must be at most 24h")),
        }
    };
    let (before, after) = (
        duration("before", &it.before)?,
        duration("after", &it.after)?,
    );
    let permit = service.thread(&caller)?;
    let work = move |_: &dyn Fn() -> bool| {
        filter("filter", &it.filter)?;
        service.sensor.mark(it.text, before, after, it.filter)
    };
    let ((id, detail), _) = in_thread(permit, work).await?;
    let detail = Some(detail);
    Ok((StatusCode::CREATED, Json(Created { id, detail })))
}

/// Token of a browser.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionBody {
    /// Token.
    token: String,
}

/// Stores a token in a cookie of the browser.
#[utoipa::path(post, path = "/api/v1/session", request_body = SessionBody, responses(
    (status = 204, description = "The cookie is set"),
    (status = "4XX", description = "Refused", body = ErrorBody),
))]
pub async fn log_in(
    State(service): Shared,
    Extension(connection): Extension<ClientConnection>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let caller = |name: Option<&str>| Caller {
        name: name.map(str::to_owned),
        role: CallerRole::Read,
        address: connection.address,
    };
    let check = || -> Result<_, ApiError> {
        check_origin(&headers)?;
        let it: SessionBody = json(&headers, &body)?;
        let tokens = service.tokens();
        let found = tokens.find(&it.token);
        let (name, _) = found.ok_or(ApiError::Unauthenticated("the token is not known"))?;
        Ok((name.to_owned(), it.token))
    };
    const WHAT: &str = "POST /api/v1/session";
    match check() {
        Ok((name, token)) => {
            Audited::new(caller(Some(&name)), WHAT).done(&service.counters);
            Ok(with_cookie(&service, &token, SESSION_S))
        }
        Err(e) => {
            let audited = Audited::new(caller(None), WHAT);
            audited.refuse(&service.counters, e.status(), &e.to_string());
            Err(e)
        }
    }
}

/// Removes the cookie with the token.
#[utoipa::path(delete, path = "/api/v1/session", responses(
    (status = 204, description = "The cookie is removed"),
    (status = "4XX", description = "Refused", body = ErrorBody),
))]
pub async fn log_out(State(service): Shared, headers: HeaderMap) -> Result<Response, ApiError> {
    check_origin(&headers)?;
    Ok(with_cookie(&service, "", 0))
}

fn with_cookie(service: &ServeState, token: &str, seconds: u32) -> Response {
    let secure = if service.plan.tls.is_some() {
        "; Secure"
    } else {
        ""
    };
    let cookie =
        format!("{COOKIE}={token}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    let mut answer = StatusCode::NO_CONTENT.into_response();
    // A known token is hexadecimal.
    let cookie = HeaderValue::try_from(cookie).map(|it| (header::SET_COOKIE, it));
    answer.headers_mut().extend(cookie);
    answer
}

/// Says that the service answers.
#[utoipa::path(get, path = "/healthz", responses((status = 200, description = "The service answers", content_type = "text/plain", body = String)))]
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Returns the counters of the service in the text format of OpenMetrics.
#[utoipa::path(get, path = "/metrics", security(("token" = [])), responses(
    (status = 200, description = "Counters", content_type = "application/openmetrics-text", body = String),
    (status = "4XX", description = "Refused", body = ErrorBody),
))]
pub async fn metrics(State(service): Shared) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], service.counters.text())
}

async fn page(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}
