//! Answers that hold the permit of their request until the client has taken them, so that the number
//! of permits bounds the memory of answers that wait for slow clients.

use super::ReadPermit;
use axum::{
    body::Body,
    http::{HeaderValue, Response, header},
};
use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use std::{io, sync::Arc};

/// Maximum length in bytes of the pieces in which a body is sent.
const PIECE: usize = 64 << 10;

/// Returns an answer with the body `bytes`. It holds the permit until the client has taken all but the
/// last 64 KiB.
pub fn answer(bytes: Vec<u8>, permit: Arc<ReadPermit>) -> Response<Body> {
    let len = HeaderValue::from(bytes.len());
    let pieces = stream::unfold((Bytes::from(bytes), permit), async |(mut rest, permit)| {
        let piece = rest.split_to(rest.len().min(PIECE));
        // A part of the whole would keep the whole in memory.
        let piece = Bytes::copy_from_slice(&piece);
        (!piece.is_empty()).then(|| (Ok::<_, io::Error>(Frame::data(piece)), (rest, permit)))
    });
    let mut answer = Response::new(Body::new(StreamBody::new(pieces)));
    answer.headers_mut().insert(header::CONTENT_LENGTH, len);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::permits::tests::with_one_taken;
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    #[test]
    fn an_answer_holds_its_permit_until_it_is_taken() {
        let (permits, permit) = with_one_taken();
        let bytes: Vec<u8> = (0..=255).cycle().take(3 * PIECE + 1).collect();
        let mut body = answer(bytes.clone(), permit).into_body();
        let mut taken = Vec::new();
        while let Some(piece) = body.frame().now_or_never().expect("ready") {
            assert!(permits.is_any_taken());
            let piece = piece.expect("a piece").into_data().expect("bytes");
            assert!(piece.len() <= PIECE);
            taken.extend(piece);
        }
        assert!(!permits.is_any_taken());
        assert!(taken == bytes);
    }
}
