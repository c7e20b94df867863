//! Lists of keys as a store sends them: bounded, and without keys that cannot be used.

use super::UnusableKeys;
use crate::limits::{KEY, KEYS, PAGES};
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

/// Limit that a store's list of keys exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ListLimit {
    #[error("the list has more than {KEYS} keys, which is the limit")]
    Keys,
    #[error("the list has more than {PAGES} pages, which is the limit")]
    Pages,
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
/// the current task receives. A page that is not XML is returned unchanged.
///
/// # Errors
/// The list exceeds a limit.
pub(super) fn clean(page: &Bytes) -> Result<Bytes, ListLimit> {
    let entries = std::str::from_utf8(page).ok().and_then(entries);
    let entries = entries.unwrap_or_default();
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
            (true, _) => Err(ListLimit::Keys),
            (_, true) => Err(ListLimit::Pages),
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

/// Returns the entries of a list's page: the range of bytes of each entry in the page, and its key.
/// `None`: the page is not XML.
fn entries(page: &str) -> Option<Vec<(Range<usize>, String)>> {
    let mut reader = Reader::from_str(page);
    let mut found = Vec::new();
    // Start of the present entry, and its key.
    let mut entry: Option<(usize, Option<String>)> = None;
    let mut text_at = None;
    loop {
        let before = usize::try_from(reader.buffer_position()).ok()?;
        let event = reader.read_event().ok()?;
        let after = usize::try_from(reader.buffer_position()).ok()?;
        match event {
            Event::Start(it) => match it.name().as_ref() {
                b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix" if entry.is_none() => {
                    entry = Some((before, None));
                }
                b"Key" | b"Prefix" | b"Name" if entry.is_some() => text_at = Some(after),
                _ => {}
            },
            Event::End(it) => match it.name().as_ref() {
                b"Contents" | b"CommonPrefixes" | b"Blob" | b"BlobPrefix" => {
                    if let Some((start, Some(key))) = entry.take() {
                        found.push((start..after, key));
                    }
                }
                b"Key" | b"Prefix" | b"Name" => {
                    if let (Some(at), Some((_, key))) = (text_at.take(), &mut entry) {
                        let raw = page.get(at..before)?;
                        *key = Some(unescape(raw).map_or_else(|_| raw.into(), Into::into));
                    }
                }
                _ => {}
            },
            Event::Eof => return Some(found),
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
        let keys: Vec<_> = entries(cleaned).expect("XML").into_iter().collect();
        let keys: Vec<_> = keys.iter().map(|(_, key)| key.as_str()).collect();
        assert_eq!(keys, ["blocks/a&b", "blocks/dt=1/"]);
        assert_eq!(unusable.count, 3);
        assert_eq!(unusable.named[0], "blocks//x");
        assert!(unusable.named.iter().all(|it| it.len() <= KEY));
        let other = Bytes::from_static(b"<no XML");
        assert_eq!(clean(&other), Ok(other));
    }

    #[test]
    fn a_list_without_an_end_is_an_error() {
        let entry = "<Contents><Key>a</Key></Contents>".repeat(1000);
        let page = Bytes::from(format!("<L>{entry}</L>"));
        let empty = Bytes::from_static(b"<L></L>");
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
        assert_eq!(count(&page), (KEYS / 1000, ListLimit::Keys));
        assert_eq!(count(&empty), (PAGES, ListLimit::Pages));
    }
}
