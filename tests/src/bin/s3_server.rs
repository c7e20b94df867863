//! S3 server for tests, based on crate `s3s-fs`: it stores objects as files below FOLDER, with the
//! key as the path. It rejects requests that are not signed with the test key, or whose content
//! does not match the signature.
//!
//! `s3_server FOLDER` prints its listening address and runs until it is killed.

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use std::{env, error::Error};
use tokio::net::TcpListener;
use wqcap_tests::oracles::s3::{KEY, SECRET};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).ok_or("usage: s3_server FOLDER")?;
    let files = FileSystem::new(folder).map_err(|e| format!("{e:?}"))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(KEY, SECRET));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        let served = http1::Builder::new().serve_connection(TokioIo::new(client), service.clone());
        // Errors are ignored: a test may close its connection at any time.
        tokio::spawn(async { drop(served.await) });
    }
}
