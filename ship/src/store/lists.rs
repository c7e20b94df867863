//! Lists of keys as a store sends them: bounded, and without keys that cannot be used.

use super::UnusableKeys;
use crate::limits::{KEY, KEYS, PAGES, TAG};
use bytes::Bytes;
use object_store::{client::HttpRequest, path::Path};
use quick_xml::{Reader, escape::unescape, events::Event};
use std::{cell::RefCell, ops::Range};

tokio::task_local! {
    /// Counts of the key list that the current task receives from a store.
    static LIST: RefCell<ListCounts>;
}

/// Counts of a key list that is being received from a store.
#[derive(Debug, Default)]
struct ListCounts {
    pages: usize,
    keys: usize,
    unusable: UnusableKeys,
}

/// Reason why a page of a store's list of keys is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListError {
    #[error("the store's response to a request for a list of keys is another document")]
    NoList,
    #[error("the store says that its list of keys is truncated, but not where the list continues")]
    Truncated,
    #[error("the list has more than {KEYS} keys, which is the limit")]
    Keys,
    #[error("the list has more than {PAGES} pages, which is the limit")]
    Pages,
    #[error("the token of the list's next page has {0} bytes; the limit is {TAG} bytes")]
    Token(usize),
}

/// Runs the requests for a list of keys. Also returns the keys that were left out of the list as
/// unusable.
pub(super) async fn listing<T>(work: impl Future<Output = T>) -> (T, UnusableKeys) {
    LIST.scope(RefCell::default(), async {
        let done = work.await;
        (done, LIST.with(|list| list.take().unusable))
    })
    .await
}

/// Returns `true` if an HTTP request asks a store for a page of a list of keys.
pub(super) fn is_list(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    request.method().as_str() == "GET"
        && query
            .split('&')
            .any(|it| it == "list-type=2" || it == "comp=list")
}

/// Removes the entries of a list's page whose keys cannot be used, and counts them in the list that
/// the current task receives.
///
/// # Errors
/// The list or the token of its next page exceeds a limit; or the response is another document, or
/// lacks that token.
pub(super) fn clean(page: &Bytes) -> Result<Bytes, ListError> {
    let ListPage { entries, .. } = ListPage::parse(page)?;
    let mut kept = Vec::new();
    let mut at = 0;
    let mut unusable = UnusableKeys::default();
    for (span, key) in &entries {
        if !is_usable(key) {
            kept.extend_from_slice(&page[at..span.start]);
            at = span.end;
            unusable.add(key);
        }
    }
    let count = |list: &RefCell<ListCounts>| {
        let mut list = list.borrow_mut();
        list.pages += 1;
        list.keys += entries.len();
        list.unusable.append(unusable);
        match (list.keys > KEYS, list.pages > PAGES) {
            (true, _) => Err(ListError::Keys),
            (_, true) => Err(ListError::Pages),
            _ => Ok(()),
        }
    };
    LIST.try_with(count).unwrap_or(Ok(()))?;
    if at == 0 {
        return Ok(page.clone());
    }
    kept.extend_from_slice(&page[at..]);
    Ok(kept.into())
}

/// Returns `true` if an object key can be used: it is not too long, and has no empty, `.` or `..`
/// part.
fn is_usable(key: &str) -> bool {
    let key = key.strip_suffix('/').unwrap_or(key);
    // A slash more at either end would be dropped and would name another object.
    let is_trimmed = !key.starts_with('/') && !key.ends_with('/');
    key.len() <= KEY && is_trimmed && Path::parse(key).is_ok()
}

/// Parsed page of a list of keys.
#[derive(Debug, Default)]
struct ListPage {
    /// Range of bytes of each entry in the page, and its key.
    entries: Vec<(Range<usize>, String)>,
    /// `true` if the page says that the list continues.
    is_truncated: bool,
    /// Length in bytes of the token with which the list continues; 0: the page has none.
    token: usize,
}

impl ListPage {
    /// Parses the response to a request for a page of keys.
    ///
    /// # Errors
    /// The response is no XML document of the right kind, or the token of the next page is missing
    /// or too long.
    fn parse(page: &[u8]) -> Result<Self, ListError> {
        let page = std::str::from_utf8(page).ok().and_then(parsed);
        let (root, page) = page.ok_or(ListError::NoList)?;
        match &*root {
            // S3 and GCS; Azure, whose pages have a token or are the last.
            b"ListBucketResult" | b"EnumerationResults" => {}
            _ => return Err(ListError::NoList),
        }
        match page.token {
            0 if page.is_truncated => Err(ListError::Truncated),
            // `object_store` panics if the address of the next request is too long.
            len if len > TAG => Err(ListError::Token(len)),
            _ => Ok(page),
        }
    }
}

/// Parses a list's page, and returns the name of its root element. `None`: the page is not XML.
fn parsed(page: &str) -> Option<(Vec<u8>, ListPage)> {
    let mut reader = Reader::from_str(page);
    let mut found = ListPage::default();
    let mut root = None;
    // Start of the present entry, and its key.
    let mut entry: Option<(usize, Option<String>)> = None;
    let mut text_at = None;
    loop {
        let before = usize::try_from(reader.buffer_position()).ok()?;
        let event = reader.read_event().ok()?;
        let after = usize::try_from(reader.buffer_position()).ok()?;
        if let Event::Start(it) | Event::Empty(it) = &event {
            root.get_or_insert_with(|| it.local_name().as_ref().to_vec());
        }
        match event {
            // `object_store` compares names without their namespaces, too.
            Event::Start(it) => match it.local_name().as_ref() {
                b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix" if entry.is_none() => {
                    entry = Some((before, None));
                }
                b"Key" | b"Prefix" | b"Name" if entry.is_some() => text_at = Some(after),
                b"IsTruncated" | b"NextContinuationToken" | b"NextMarker" if entry.is_none() => {
                    text_at = Some(after);
                }
                _ => {}
            },
            Event::End(it) => match it.local_name().as_ref() {
                b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix" => {
                    if let Some((start, Some(key))) = entry.take() {
                        found.entries.push((start..after, key));
                    }
                }
                b"Key" | b"Prefix" | b"Name" => {
                    if let (Some(at), Some((_, key))) = (text_at.take(), &mut entry) {
                        let raw = page.get(at..before)?;
                        *key = Some(unescape(raw).map_or_else(|_| raw.into(), Into::into));
                    }
                }
                name @ (b"IsTruncated" | b"NextContinuationToken" | b"NextMarker") => {
                    let text = text_at.take().and_then(|at| page.get(at..before));
                    let text = text.unwrap_or_default().trim();
                    match name {
                        b"IsTruncated" => found.is_truncated = text == "true",
                        _ => found.token = found.token.max(text.len()),
                    }
                }
                _ => {}
            },
            Event::Eof => return Some((root?, found)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::runtime::Builder;

    #[test]
    fn entries_with_unusable_keys_are_left_out_and_named() {
        let long = "x".repeat(KEY + 1);
        let page = format!(
            "<?xml version=\"1.0\"?><ListBucketResult><Name>b</Name><Prefix>blocks/</Prefix>\
             <Contents><Key>blocks/a&amp;b</Key><Size>1</Size></Contents>\
             <Contents><Key>blocks//x</Key><Size>1</Size></Contents>\
             <Contents><Key>{long}</Key></Contents>\
             <CommonPrefixes><Prefix>blocks/dt=1/</Prefix></CommonPrefixes>\
             <CommonPrefixes><Prefix>blocks//</Prefix></CommonPrefixes></ListBucketResult>"
        );
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let page = Bytes::from(page);
        let (cleaned, unusable) = runtime.block_on(listing(async { clean(&page) }));
        let cleaned = cleaned.expect("within the limits");
        let cleaned = std::str::from_utf8(&cleaned).expect("text");
        let (_, page) = parsed(cleaned).expect("XML");
        let keys: Vec<_> = page.entries.iter().map(|(_, key)| key.as_str()).collect();
        assert_eq!(keys, ["blocks/a&b", "blocks/dt=1/"]);
        assert_eq!(unusable.count, 3);
        assert_eq!(unusable.named[0], "blocks//x");
        assert!(unusable.named.iter().all(|it| it.len() <= KEY));
    }

    #[test]
    fn a_page_that_is_not_a_whole_list_is_an_error() {
        let of = |page: &'static str| clean(&Bytes::from_static(page.as_bytes())).map(|_| ());
        let cut = "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>";
        assert_eq!(of(cut), Err(ListError::Truncated));
        let empty_token = "<ListBucketResult><IsTruncated>true</IsTruncated>\
                           <NextContinuationToken/></ListBucketResult>";
        assert_eq!(of(empty_token), Err(ListError::Truncated));
        for other in [
            "<Error><Code>SlowDown</Code></Error>",
            "<html/>",
            "<no XML",
            "<ListBucketResult></ListBucketResult><",
        ] {
            assert_eq!(of(other), Err(ListError::NoList));
        }
        for whole in [
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>a</NextContinuationToken></ListBucketResult>",
            "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
            "<ListBucketResult/>",
            "<EnumerationResults><NextMarker/></EnumerationResults>",
        ] {
            assert_eq!(of(whole), Ok(()));
        }
    }

    #[test]
    fn a_token_that_no_request_can_have_is_an_error() {
        for (root, name) in [
            ("ListBucketResult", "NextContinuationToken"),
            ("ListBucketResult", "s3:NextContinuationToken"),
            ("EnumerationResults", "NextMarker"),
        ] {
            let of = |len| {
                let token = "%".repeat(len);
                let page = format!("<{root}><{name}>{token}</{name}></{root}>");
                clean(&page.into()).map(|_| ())
            };
            assert_eq!(of(TAG), Ok(()));
            assert_eq!(of(TAG + 1), Err(ListError::Token(TAG + 1)));
        }
    }

    #[test]
    fn a_list_without_an_end_is_an_error() {
        let entry = "<Contents><Key>a</Key></Contents>".repeat(1000);
        let page = Bytes::from(format!("<ListBucketResult>{entry}</ListBucketResult>"));
        let empty = Bytes::from_static(b"<ListBucketResult></ListBucketResult>");
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let count = |page: &Bytes| {
            let pages = async {
                let mut pages = 0;
                loop {
                    match clean(page) {
                        Ok(_) => pages += 1,
                        Err(e) => return (pages, e),
                    }
                }
            };
            runtime.block_on(listing(pages)).0
        };
        assert_eq!(count(&page), (KEYS / 1000, ListError::Keys));
        assert_eq!(count(&empty), (PAGES, ListError::Pages));
    }
}
