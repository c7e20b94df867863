//! Errors as answers: a status, and a JSON body with what failed and what to do.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use std::io;
use utoipa::ToSchema;

/// Reason why an HTTP request has no result.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// A parameter of the request, or a field of its body, has a wrong value.
    #[error("{name} = {value:?}: {problem}")]
    Value {
        name: &'static str,
        value: String,
        problem: String,
    },
    /// The request does not have the form of a request of this interface.
    #[error("{0}")]
    Malformed(String),
    /// The caller has no valid token or certificate.
    #[error("{0}")]
    Unauthenticated(&'static str),
    /// The caller lacks the role for the request.
    #[error("the client {who} has the role read; this request needs the role mark")]
    NeedsMark { who: String },
    /// The request may come from a web page of another site.
    #[error("{0}")]
    Foreign(String),
    /// The request is of a version of HTTP whose clients cannot notice that an answer breaks off.
    #[error("HTTP/1.0 cannot show that an answer with packets breaks off or is incomplete")]
    OldHttp,
    /// The path of the request is not part of the HTTP interface.
    #[error("{0}: the service has no such path")]
    NoPath(String),
    /// The path does not support the method of the request.
    #[error("{0}: this path does not support the method of the request")]
    NoMethod(String),
    /// The request is for flow records, but the capture writes none.
    #[error("the capture of this sensor writes no flow records")]
    NoFlows,
    /// No mark or pin has the ID that the request names.
    #[error("mark = {0:?}: there is no pin or mark of this ID")]
    NoMark(String),
    /// The body of the request is longer than the limit.
    #[error("the body of the request has more than {0} bytes, which is the limit")]
    TooLong(usize),
    /// The body of the request did not arrive within the time limit.
    #[error("the body of the request was not complete after {0} s")]
    Slow(u64),
    /// The service is answering as many requests as it may.
    #[error(
        "the service already answers {0} requests, which is the limit (serve.max_requests); try again later"
    )]
    Busy(usize),
    /// The service is answering as many requests of this caller as it may.
    #[error(
        "the service already answers {0} requests of this caller, and leaves the rest of serve.max_requests to others; try again later"
    )]
    CallerBusy(usize),
    /// The service is answering as many requests for states, timelines, pins and marks as it may, in
    /// total or of this caller.
    #[error(
        "the service already answers {0} requests for states, timelines, pins and marks, or this caller has three quarters of them; try again later"
    )]
    ThreadsBusy(usize),
    /// The service would read more capture files at the same time than it may.
    #[error(
        "the request is for {files} capture files, with which all requests, or those of this caller, would read more than {limit} files, which is the limit"
    )]
    ManyFiles { files: usize, limit: usize },
    /// The disk of the sensor is too busy to read from it.
    #[error(
        "the disk is busy (programs waited for it in {percent} % of the last 10 s), and the capture has priority; try again later"
    )]
    DiskBusy { percent: f64 },
    /// The capture did not carry out the request, or cannot be reached.
    #[error("{0}")]
    Capture(String),
    /// No thread can be started for the request.
    #[error("cannot start a thread for the request: {0}")]
    NoThread(io::Error),
    /// The files of the capture cannot be read.
    #[error("{0}")]
    Failed(String),
}

/// Body of an answer that reports an error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    /// Short name of the error, for programs.
    pub error: &'static str,
    /// Description of the failure, with the refused value.
    pub detail: String,
    /// Remedy for the caller.
    pub remedy: String,
}

impl ApiError {
    /// Creates the error of a request's parameter with a wrong value.
    pub fn value(name: &'static str, value: &str, problem: impl ToString) -> Self {
        Self::Value {
            name,
            // A long value is not sent back.
            value: value.chars().take(200).collect(),
            problem: problem.to_string(),
        }
    }

    /// Returns the HTTP status of the answer that reports the error.
    pub fn status(&self) -> StatusCode {
        self.facts().0
    }

    /// Returns the HTTP status, the short name and the remedy of the error.
    fn facts(&self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Value { .. } => (
                StatusCode::BAD_REQUEST,
                "bad_value",
                "correct the value; /openapi.json describes the parameters",
            ),
            Self::Malformed(_) => (
                StatusCode::BAD_REQUEST,
                "malformed",
                "/openapi.json describes the requests",
            ),
            Self::Unauthenticated(_) => (
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "send the header \"Authorization: Bearer TOKEN\", or a client certificate; `wqcap serve --new-token NAME` makes a token",
            ),
            Self::NeedsMark { .. } => (
                StatusCode::FORBIDDEN,
                "needs_mark",
                "use a token with the role mark; `wqcap serve --new-token NAME --role mark` makes one",
            ),
            Self::Foreign(_) => (
                StatusCode::FORBIDDEN,
                "foreign_origin",
                "open the page by the address or the name under which the sensor is configured",
            ),
            Self::OldHttp => (
                StatusCode::HTTP_VERSION_NOT_SUPPORTED,
                "old_http",
                "send the request by HTTP/1.1; nginx does so with `proxy_http_version 1.1;`",
            ),
            Self::NoPath(_) => (
                StatusCode::NOT_FOUND,
                "no_such_path",
                "/openapi.json lists the paths",
            ),
            Self::NoMethod(_) => (
                StatusCode::METHOD_NOT_ALLOWED,
                "no_such_method",
                "/openapi.json lists the methods of the path",
            ),
            Self::NoFlows => (
                StatusCode::NOT_FOUND,
                "no_flows",
                "set [flows] in the sensor's config; new flow records are then shown",
            ),
            Self::NoMark(_) => (
                StatusCode::NOT_FOUND,
                "no_such_mark",
                "GET /api/v1/pins lists the IDs",
            ),
            Self::TooLong(_) => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "too_long",
                "send a shorter request",
            ),
            Self::Slow(_) => (
                StatusCode::REQUEST_TIMEOUT,
                "slow",
                "send the request faster",
            ),
            Self::Busy(_) | Self::CallerBusy(_) | Self::ThreadsBusy(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "busy",
                "repeat the request after the time in Retry-After",
            ),
            Self::ManyFiles { .. } => (
                StatusCode::TOO_MANY_REQUESTS,
                "many_files",
                "choose a shorter time range, which needs output.index_dir, or repeat the request after the time in Retry-After",
            ),
            Self::DiskBusy { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "disk_busy",
                "repeat the request after the time in Retry-After",
            ),
            Self::NoThread(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_thread",
                "repeat the request after the time in Retry-After",
            ),
            Self::Capture(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "no_capture",
                "start the capture with [control] in its config",
            ),
            Self::Failed(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "failed",
                "read the log of wqcap serve on the sensor",
            ),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, error, remedy) = self.facts();
        let body = ErrorBody {
            error,
            detail: self.to_string(),
            remedy: remedy.into(),
        };
        let mut answer = (status, Json(body)).into_response();
        let headers = answer.headers_mut();
        let is_later = matches!(
            self,
            Self::Busy(_)
                | Self::CallerBusy(_)
                | Self::ThreadsBusy(_)
                | Self::ManyFiles { .. }
                | Self::DiskBusy { .. }
                | Self::NoThread(_)
                | Self::Capture(_)
        );
        if is_later {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(
                header::WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"wqcap\""),
            );
        }
        answer
            .extensions_mut()
            .insert(FailureText(self.to_string()));
        answer
    }
}

/// Reason why a request failed, which the answer carries to the request's audit line.
#[derive(Clone, Debug)]
pub struct FailureText(pub String);
