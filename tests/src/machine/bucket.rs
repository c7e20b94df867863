//! S3 bucket behind a proxy that injects faults and counts requests.

use super::proxy::Proxy;
use crate::{
    Program,
    oracles::s3::{KEY, S3, SECRET},
};
use std::time::Duration;

/// S3 server behind a proxy.
pub struct Bucket {
    /// S3 server with the objects.
    pub s3: S3,
    /// Proxy that programs connect to.
    pub proxy: Proxy,
}

impl Bucket {
    /// Starts a proxy in front of a server.
    #[must_use]
    pub fn new(s3: S3) -> Self {
        let proxy = Proxy::start(s3.address());
        Self { s3, proxy }
    }

    /// Sets the environment of `program` for access to the bucket through the S3 API.
    #[must_use]
    pub fn reached_by(&self, program: Program) -> Program {
        self.endpoint_of(program, "AWS_ENDPOINT_URL")
            .env("AWS_ALLOW_HTTP", "true")
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    /// Sets the environment of `program` for access to the bucket as Google Cloud Storage, whose
    /// XML API equals that of S3 except for signatures and conditions.
    #[must_use]
    pub fn reached_as_google(&self, program: Program) -> Program {
        self.endpoint_of(program, "GOOGLE_BASE_URL")
            .env("GOOGLE_ALLOW_HTTP", "true")
            .env("GOOGLE_BEARER_TOKEN", KEY)
    }

    /// Sets `variable` to the URL of the proxy in the environment of `program`.
    fn endpoint_of(&self, program: Program, variable: &str) -> Program {
        program
            .env(variable, format!("http://{}", self.proxy.address()))
            .env("NO_PROXY", "127.0.0.1")
            .timeout(Duration::from_secs(120))
    }
}
