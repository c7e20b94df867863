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

    /// A program that finds it.
    #[must_use]
    pub fn reached_by(&self, program: Program) -> Program {
        self.endpoint_of(program, "AWS_ENDPOINT_URL")
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    /// A program that finds it as a bucket of Google's, whose servers speak S3's XML but for signatures and conditions.
    #[must_use]
    pub fn reached_as_google(&self, program: Program) -> Program {
        self.endpoint_of(program, "GOOGLE_BASE_URL")
            .env("GOOGLE_ALLOW_HTTP", "true")
            .env("GOOGLE_BEARER_TOKEN", KEY)
    }

    /// A program that is told by `variable` where the proxy is.
    fn endpoint_of(&self, program: Program, variable: &str) -> Program {
        program
            .env(variable, format!("http://{}", self.proxy.address()))
            .env("NO_PROXY", "127.0.0.1")
            .timeout(Duration::from_secs(120))
    }
}
