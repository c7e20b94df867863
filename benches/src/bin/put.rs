//! Uploads a file to a bucket with crate `object_store` alone. `benches/ship` compares `wqcap ship` with
//! it.
//!
//! `put FILE BUCKET KEY PART_BYTES CONCURRENCY` takes region, endpoint and credentials from the variables
//! `AWS_*`, and prints the seconds from the first request to the last response.

use object_store::{
    ObjectStoreExt, PutPayload, aws::AmazonS3Builder, multipart::MultipartStore, path::Path as Key,
};
use std::{env, error::Error, fs::File, os::unix::fs::FileExt, sync::Arc, time::Instant};
use tokio::task::{JoinSet, spawn_blocking};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [file, bucket, key, part, concurrency] = &args[..] else {
        return Err("usage: put FILE BUCKET KEY PART_BYTES CONCURRENCY".into());
    };
    let (part, concurrency) = (part.parse::<u64>()?, concurrency.parse::<usize>()?);
    // rustls requires a choice of the crypto provider, although loopback traffic is not encrypted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = AmazonS3Builder::from_env()
        .with_bucket_name(bucket)
        .build()?;
    let (client, key) = (Arc::new(client), Key::from(key.as_str()));
    let file = Arc::new(File::open(file)?);
    let len = file.metadata()?.len();
    let start = Instant::now();
    let upload = client.create_multipart(&key).await?;
    let mut parts = vec![None; usize::try_from(len.div_ceil(part))?];
    let mut sending = JoinSet::new();
    for number in 0..parts.len() {
        while sending.len() >= concurrency {
            if let Some(done) = sending.join_next().await {
                let (number, id) = done??;
                parts[number] = Some(id);
            }
        }
        let (file, client, key, upload) = (
            Arc::clone(&file),
            Arc::clone(&client),
            key.clone(),
            upload.clone(),
        );
        let at = number as u64 * part;
        let mut bytes = vec![0; usize::try_from(part.min(len - at))?];
        sending.spawn(async move {
            let bytes = spawn_blocking(move || file.read_exact_at(&mut bytes, at).map(|()| bytes));
            let bytes = bytes.await.map_err(std::io::Error::other)??;
            let payload = PutPayload::from(bytes);
            let id = client.put_part(&key, &upload, number, payload).await;
            id.map(|id| (number, id)).map_err(std::io::Error::other)
        });
    }
    while let Some(done) = sending.join_next().await {
        let (number, id) = done??;
        parts[number] = Some(id);
    }
    let parts = parts.into_iter().flatten().collect();
    client.complete_multipart(&key, &upload, parts).await?;
    let seconds = start.elapsed().as_secs_f64();
    client.head(&key).await?;
    println!("{seconds:.4}");
    Ok(())
}
