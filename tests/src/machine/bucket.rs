//! A bucket behind a proxy that breaks off, refuses and counts.

use super::proxy::Proxy;
use crate::{
    Program,
    oracles::s3::{KEY, S3, SECRET},
};
use std::time::Duration;

/// A server behind a proxy.
pub struct Bucket {
    /// The server.
    pub s3: S3,
    /// What programs reach instead.
    pub proxy: Proxy,
}

impl Bucket {
    /// Puts a proxy in front of a server.
    #[must_use]
    pub fn of(s3: S3) -> Self {
        let proxy = Proxy::start(s3.address());
        Self { s3, proxy }
    }

    /// A program that finds it as a bucket of Google's, whose servers speak S3's XML but for signatures and conditions.
    #[must_use]
    pub fn reached_as_google(&self, program: Program) -> Program {
        let endpoint = format!("http://{}", self.proxy.address());
        program
            .env("GOOGLE_BASE_URL", endpoint)
            .env("GOOGLE_ALLOW_HTTP", "true")
            .env("GOOGLE_BEARER_TOKEN", KEY)
            .env("NO_PROXY", "127.0.0.1")
            .timeout(Duration::from_secs(120))
    }

    /// A program that finds it.
    #[must_use]
    pub fn reached_by(&self, program: Program) -> Program {
        let endpoint = format!("http://{}", self.proxy.address());
        program
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_ALLOW_HTTP", "true")
            .env("NO_PROXY", "127.0.0.1")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .timeout(Duration::from_secs(120))
    }
}
