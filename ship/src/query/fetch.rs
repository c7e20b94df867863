//! Fetcher of parts of objects, with read-ahead for the merge.
//!
//! ```text
//! merge reads a first record -> also request the beginnings of the next objects in the list
//! merge reads an object      -> also request its next pieces, and the next beginnings in time
//! ```
//!
//! Invariants: requests in progress and unread parts take at most [`MEMORY`], and another half MiB
//! for each object that is read. At most [`MOST_OPEN`] objects of a sensor are read at the same
//! time, whatever their tables state. Unread beginnings of objects take at most another
//! [`BEGINNINGS`]. After a refusal or a final failure the store gets no further requests for the
//! object; after temporary errors for [`MOST_FAILED`] objects in a row none at all.

use super::{
    pieces::{Piece, PieceCursor, Pieces, sum},
    plan::{ObjectParts, REQUESTS},
};
use crate::{
    limits::MOST_FAILED,
    store::{ReadStore, StoreError},
};
use bytes::{Buf, Bytes};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    io::{self, Read},
    ops::Range,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::Duration,
    vec,
};
use tokio::{runtime::Handle, sync::Semaphore};
use wqcap_files::read::{FileRanges, RemoteContent};

/// Maximum number of bytes of all object ranges that a query has requested and not read yet.
const MEMORY: u64 = 256 << 20;
/// Maximum number of bytes of unread beginnings of objects that a query keeps.
const BEGINNINGS: u64 = 64 << 20;
/// Maximum length in bytes of a fetched piece of an object: stores recommend 8 to 16 MiB.
const MOST_PIECE: u64 = 8 << 20;
const LEAST_PIECE: u64 = 256 << 10;
/// Maximum number of objects of a sensor that are read at the same time, because they overlap in
/// time. Each needs about half a MiB for its pieces and 256 KiB for its reader.
const MOST_OPEN: usize = 256;
/// Number of leading bytes of an uncompressed object that contain its first packet record.
const LEAD: u64 = 16 << 10;
/// Number of leading bytes of a compressed object that contain its first packet record, with its
/// whole first compressed block.
const COMPRESSED_LEAD: u64 = 256 << 10;
/// Number of objects whose beginnings are requested in advance.
const AHEAD: usize = 32;
/// Interval at which a wait for a piece of an object checks whether the query was stopped.
const TICK: Duration = Duration::from_millis(100);

/// Progress of fetching the objects of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FetchProgress {
    /// Number of bytes that the query has received from the store.
    pub bytes: u64,
    /// Total number of bytes that the query fetches from the store.
    pub of_bytes: u64,
    /// Number of objects that the query has read from the store.
    pub objects: u64,
    /// Total number of objects that the query reads from the store.
    pub of_objects: u64,
}

/// Reason why a piece of an object cannot be fetched.
#[derive(Clone, Debug, thiserror::Error)]
enum FetchError {
    #[error("the object is not in the store")]
    Missing,
    #[error(
        "the object has changed: it has {has} bytes, but had {had} bytes when its table in blocks/ was written"
    )]
    Changed { has: u64, had: u64 },
    #[error(transparent)]
    Store(StoreError),
    #[error("{0}")]
    Unusable(String),
    #[error(
        "more than {MOST_OPEN} objects of this sensor overlap in time, which is the limit: the object is left out"
    )]
    Overlapping,
    #[error("the query was stopped")]
    Stopped,
}

/// Length and number of the pieces in which an object is fetched in advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Portions {
    /// Maximum length of a piece of an object in bytes.
    piece: u64,
    /// Number of pieces of an object that are requested and not read yet.
    depth: usize,
}

impl Portions {
    /// Computes the length and the number of pieces for the objects of these sensors and queues,
    /// which are read concurrently.
    fn for_streams<'k>(streams: impl Iterator<Item = (&'k str, Option<u16>)>) -> Self {
        let mut queues: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (sensor, queue) in streams {
            queues.entry(sensor).or_default().insert(queue);
        }
        let of_sensors = queues.values().map(|it| it.len().min(MOST_OPEN));
        let streams = of_sensors.sum::<usize>().max(1) as u64;
        let piece = (MEMORY / (4 * streams)).clamp(LEAST_PIECE, MOST_PIECE);
        let depth = (MEMORY / (piece * streams)).clamp(2, 16);
        Self {
            piece,
            // Between 2 and 16.
            depth: depth as usize,
        }
    }
}

/// Object of the store that the query fetches in pieces.
struct Object {
    key: String,
    /// Index of the object's sensor in the fetcher's list `open`.
    sensor: usize,
    bytes: u64,
    pieces: Pieces,
    /// Rank of the stored object by the time stamp of its first frame, among all objects of the
    /// query.
    turn: usize,
    state: Mutex<ObjectState>,
}

#[derive(Default)]
struct ObjectState {
    /// Requested pieces of the stored object's beginning; empty: not requested yet, or taken by the
    /// reader.
    leads: Vec<Arc<PendingPiece>>,
    /// Set when a reader of the whole stored object, not only of its beginning, has been opened.
    opened: bool,
    /// First failure of a request for the object. After it the query sends no requests for it.
    failure: Option<StoreError>,
}

impl Object {
    fn state(&self) -> MutexGuard<'_, ObjectState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fetcher of a query's objects from the store, in pieces.
pub(super) struct Fetcher {
    store: Arc<dyn ReadStore>,
    runtime: Handle,
    stop: Arc<AtomicBool>,
    permits: Semaphore,
    portions: Portions,
    /// Objects that the query fetches, in the order of the merge's inputs.
    objects: Vec<Object>,
    /// Positions in `objects`, in the order of the time stamps of the objects' first frames.
    by_time: Vec<usize>,
    /// Total number of bytes in all pieces of the query's objects.
    of_bytes: u64,
    /// Number of bytes of objects' beginnings that are requested or kept.
    kept: AtomicU64,
    /// Number of bytes of pieces that readers of whole objects have requested and not read yet,
    /// without the objects' beginnings.
    reserved: AtomicU64,
    /// Number of objects that are being read, by sensor.
    open: Vec<AtomicUsize>,
    requests: AtomicU64,
    fetched: AtomicU64,
    read: AtomicU64,
    /// Number of objects that failed since a request succeeded.
    failed_in_row: AtomicU64,
    /// Failure of the store as a whole. After it the query sends no requests.
    failure: OnceLock<StoreError>,
}

impl fmt::Debug for Fetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fetcher of {} objects", self.objects.len())
    }
}

impl Fetcher {
    /// Makes a fetcher of a query's objects; no request is sent yet. Setting `stop` ends all waits
    /// for pieces.
    pub(super) fn new(
        store: Arc<dyn ReadStore>,
        runtime: Handle,
        objects: &[ObjectParts],
        stop: Arc<AtomicBool>,
    ) -> Arc<Self> {
        let streams = objects.iter().map(|it| (&*it.key.sensor, it.key.queue));
        let portions = Portions::for_streams(streams);
        let sensors: BTreeSet<_> = objects.iter().map(|it| &it.key.sensor).collect();
        let sensors: Vec<_> = sensors.into_iter().collect();
        let mut by_time: Vec<_> = (0..objects.len()).collect();
        by_time.sort_by_key(|at| objects[*at].first_ns);
        let mut turns = vec![0; objects.len()];
        for (turn, at) in by_time.iter().enumerate() {
            turns[*at] = turn;
        }
        let object = |(it, turn): (&ObjectParts, usize)| {
            let is_plain = it.key.ending().starts_with("pcap") && !it.key.ending().contains('.');
            let lead = if is_plain { LEAD } else { COMPRESSED_LEAD };
            Object {
                key: it.key.packets(),
                sensor: sensors.partition_point(|sensor| **sensor < it.key.sensor),
                bytes: it.bytes,
                pieces: Pieces::new(&it.ranges, lead, portions.piece),
                turn,
                state: Mutex::default(),
            }
        };
        let objects: Vec<_> = objects.iter().zip(turns).map(object).collect();
        Arc::new(Self {
            store,
            runtime,
            stop,
            permits: Semaphore::new(REQUESTS),
            portions,
            of_bytes: sum(objects.iter().map(|it| it.pieces.bytes())),
            objects,
            by_time,
            kept: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            open: sensors.iter().map(|_| AtomicUsize::new(0)).collect(),
            requests: AtomicU64::new(0),
            fetched: AtomicU64::new(0),
            read: AtomicU64::new(0),
            failed_in_row: AtomicU64::new(0),
            failure: OnceLock::new(),
        })
    }

    /// Returns the fetcher's objects as inputs of a merge. Objects of a sensor appear as files in a
    /// folder of the sensor's name.
    pub(super) fn files(self: &Arc<Self>, objects: &[ObjectParts]) -> Vec<FileRanges> {
        let file = |(at, it): (usize, &ObjectParts)| {
            let content = ObjectContent {
                fetcher: Arc::clone(self),
                object: at,
            };
            let folder = Path::new(&it.key.sensor);
            let ranges = it.ranges.clone();
            FileRanges::from_remote(folder, &it.key.file, ranges, Arc::new(content))
                .with_least_frames(it.frames)
        };
        objects.iter().enumerate().map(file).collect()
    }

    pub(super) fn progress(&self) -> FetchProgress {
        FetchProgress {
            bytes: self.fetched.load(Ordering::Relaxed),
            of_bytes: self.of_bytes,
            objects: self.read.load(Ordering::Relaxed),
            of_objects: self.objects.len() as u64,
        }
    }

    pub(super) fn wanted_bytes(&self) -> u64 {
        sum(self.objects.iter().map(|it| it.pieces.wanted_bytes()))
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the failure of the store as a whole, after which the query sends no requests.
    pub(super) fn failure(&self) -> Option<&StoreError> {
        self.failure.get()
    }

    /// Requests a piece of an object from the store.
    fn request(self: &Arc<Self>, object: usize, piece: Piece) -> Arc<PendingPiece> {
        let (sender, receiver) = mpsc::channel();
        let fetcher = Arc::clone(self);
        let span = piece.span.clone();
        self.runtime.spawn(async move {
            let got = fetcher.get(object, span).await;
            // The receiver may have been dropped.
            let _ = sender.send(got);
        });
        let state = Mutex::new(PendingState::Coming(receiver));
        Arc::new(PendingPiece { piece, state })
    }

    async fn get(&self, object: usize, span: Range<u64>) -> Result<Bytes, FetchError> {
        let object = &self.objects[object];
        let wanted = span.end - span.start;
        let _permit = self.permits.acquire().await;
        let failure = || object.state().failure.clone();
        if let Some(e) = self.failure().cloned().or_else(failure) {
            return Err(FetchError::Store(e));
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(FetchError::Stopped);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let e = match self.store.read(&object.key, span).await {
            Ok((_, has)) if has != object.bytes => return Err(changed(object, has)),
            Ok((bytes, _)) if bytes.len() as u64 == wanted => {
                self.fetched.fetch_add(wanted, Ordering::Relaxed);
                self.failed_in_row.store(0, Ordering::Relaxed);
                return Ok(bytes);
            }
            Ok((bytes, _)) => StoreError::Failed(format!(
                "{}: the store returned {} bytes of the object instead of {wanted}",
                object.key,
                bytes.len()
            )),
            Err(StoreError::NotFound(_)) => return Err(FetchError::Missing),
            Err(StoreError::Unusable(why)) => return Err(FetchError::Unusable(why)),
            Err(e) => e,
        };
        if let StoreError::Failed(_) = e {
            // Stores differ in the error for a range beyond the end of an object that has become
            // shorter.
            match self.store.length(&object.key).await {
                Ok(has) if has != object.bytes => return Err(changed(object, has)),
                Err(StoreError::NotFound(_)) => return Err(FetchError::Missing),
                _ => {}
            }
        }
        Err(FetchError::Store(self.fail(object, e)))
    }

    /// Records the failure of a request for an object, and returns it. A store that reports
    /// temporary errors for [`MOST_FAILED`] objects in a row is taken to fail for all of them.
    fn fail(&self, object: &Object, e: StoreError) -> StoreError {
        let first = object.state().failure.replace(e.clone()).is_none();
        let before = match first && e.is_temporary() {
            true => self.failed_in_row.fetch_add(1, Ordering::Relaxed),
            false => 0,
        };
        if before + 1 >= MOST_FAILED {
            self.failure.get_or_init(|| e.clone());
        }
        e
    }

    /// Requests the beginnings of an object and of the next [`AHEAD`] objects, in the order of the
    /// list or of their first time stamps.
    fn read_ahead(self: &Arc<Self>, object: usize, in_list: bool) {
        if in_list {
            let end = self.objects.len().min(object + AHEAD);
            (object..end).for_each(|it| self.request_leads(it));
        } else {
            let next = self.by_time.iter().skip(self.objects[object].turn);
            next.take(AHEAD).for_each(|it| self.request_leads(*it));
        }
    }

    fn request_leads(self: &Arc<Self>, at: usize) {
        let object = &self.objects[at];
        let mut state = object.state();
        if state.leads.is_empty() && !state.opened {
            self.kept
                .fetch_add(object.pieces.lead_bytes(), Ordering::Relaxed);
            let leads = object.pieces.leads.iter().cloned();
            state.leads = leads.map(|piece| self.request(at, piece)).collect();
        }
    }

    /// Drops the beginning of a stored object after its first packet record was read, if all kept
    /// beginnings exceed [`BEGINNINGS`].
    fn release_leads(&self, at: usize) {
        if self.kept.load(Ordering::Relaxed) > BEGINNINGS {
            self.take_leads(at);
        }
    }

    /// Returns the maximum length of the next piece that the reader of a whole object may request
    /// while `coming` requested pieces are not read yet. `None`: it may request none now.
    fn next_length(&self, coming: usize) -> Option<u64> {
        let Portions { piece, depth } = self.portions;
        let left = MEMORY.saturating_sub(self.reserved.load(Ordering::Relaxed));
        match coming {
            0 => Some(piece.min(left).max(LEAST_PIECE)),
            _ => (coming < depth && left >= piece).then_some(piece),
        }
    }

    fn take_leads(&self, at: usize) -> Vec<Arc<PendingPiece>> {
        let object = &self.objects[at];
        let leads = std::mem::take(&mut object.state().leads);
        if !leads.is_empty() {
            self.kept
                .fetch_sub(object.pieces.lead_bytes(), Ordering::Relaxed);
        }
        leads
    }
}

fn changed(object: &Object, has: u64) -> FetchError {
    FetchError::Changed {
        has,
        had: object.bytes,
    }
}

/// Place of an object among those of its sensor that are being read.
struct OpenObject {
    fetcher: Arc<Fetcher>,
    sensor: usize,
}

impl OpenObject {
    fn new(fetcher: &Arc<Fetcher>, object: usize) -> Result<Self, FetchError> {
        let sensor = fetcher.objects[object].sensor;
        let it = Self {
            fetcher: Arc::clone(fetcher),
            sensor,
        };
        match fetcher.open[sensor].fetch_add(1, Ordering::Relaxed) {
            ..MOST_OPEN => Ok(it),
            _ => Err(FetchError::Overlapping),
        }
    }
}

impl Drop for OpenObject {
    fn drop(&mut self) {
        self.fetcher.open[self.sensor].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Share of [`MEMORY`] for a piece that was requested and is not read yet.
struct Reservation {
    fetcher: Arc<Fetcher>,
    bytes: u64,
}

impl Reservation {
    fn new(fetcher: &Arc<Fetcher>, bytes: u64) -> Self {
        fetcher.reserved.fetch_add(bytes, Ordering::Relaxed);
        let fetcher = Arc::clone(fetcher);
        Self { fetcher, bytes }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.fetcher
            .reserved
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Piece of an object that has been requested from the store.
struct PendingPiece {
    piece: Piece,
    state: Mutex<PendingState>,
}

enum PendingState {
    Coming(Receiver<Result<Bytes, FetchError>>),
    Came(Result<Bytes, FetchError>),
}

impl PendingPiece {
    /// Waits until the store has sent the requested piece, or until `stop` is set.
    fn wait(&self, stop: &AtomicBool) -> Result<Bytes, FetchError> {
        let mut answer = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let came = match &*answer {
                PendingState::Came(it) => return it.clone(),
                PendingState::Coming(receiver) => match receiver.recv_timeout(TICK) {
                    Ok(it) => it,
                    Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                        return Err(FetchError::Stopped);
                    }
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => {
                        let lost = "a store request ended without an answer";
                        Err(FetchError::Store(StoreError::Failed(lost.into())))
                    }
                },
            };
            *answer = PendingState::Came(came);
        }
    }
}

/// Object of the store as an input of the merge by time stamp.
#[derive(Debug)]
struct ObjectContent {
    fetcher: Arc<Fetcher>,
    object: usize,
}

impl RemoteContent for ObjectContent {
    fn name(&self) -> String {
        self.fetcher.objects[self.object].key.clone()
    }

    fn read(&self, beginning: bool) -> io::Result<Box<dyn Read + Send>> {
        let fetcher = Arc::clone(&self.fetcher);
        fetcher.read_ahead(self.object, beginning);
        let (leads, open) = if beginning {
            (fetcher.objects[self.object].state().leads.clone(), None)
        } else {
            let leads = fetcher.take_leads(self.object);
            fetcher.objects[self.object].state().opened = true;
            let open = OpenObject::new(&fetcher, self.object).map_err(io::Error::other)?;
            (leads, Some(open))
        };
        let leads = leads.into_iter().map(|it| (it, None));
        Ok(Box::new(ObjectReader {
            next: PieceCursor::default(),
            has_leads: leads.len() > 0,
            coming: leads.collect(),
            held: Bytes::new(),
            reserved: None,
            parts: Vec::new().into_iter(),
            now: Bytes::new(),
            open,
            object: self.object,
            fetcher,
        }))
    }
}

/// Reader of an object in the store, which returns only the wanted ranges.
struct ObjectReader {
    fetcher: Arc<Fetcher>,
    object: usize,
    /// Place of the stored object among those that are read. `None`: only its first packet record
    /// is read.
    open: Option<OpenObject>,
    /// Position of the next piece to request, after the leading ones.
    next: PieceCursor,
    /// Set when the leading pieces have been requested.
    has_leads: bool,
    /// Requested pieces of the stored object that the reader has not used yet, with their shares of
    /// the memory; the object's beginning has none.
    coming: VecDeque<(Arc<PendingPiece>, Option<Reservation>)>,
    /// Fetched bytes of the piece of the object that is being read.
    held: Bytes,
    /// Share of the memory for `held`.
    reserved: Option<Reservation>,
    /// Wanted ranges of the stored object's current piece that have not been read.
    parts: vec::IntoIter<Range<usize>>,
    /// Unread bytes of the current wanted range of a stored object.
    now: Bytes,
}

impl ObjectReader {
    /// Returns the maximum length of the next piece to request. `None`: none is requested now.
    fn next_length(&self) -> Option<u64> {
        let coming = self.coming.len();
        match &self.open {
            None => (coming == 0).then_some(LEAST_PIECE),
            Some(_) => self.fetcher.next_length(coming),
        }
    }

    /// Moves the reader to the stored object's next piece. Returns `false` if all pieces have been
    /// read.
    fn next_piece(&mut self) -> io::Result<bool> {
        let fetcher = Arc::clone(&self.fetcher);
        let pieces = &fetcher.objects[self.object].pieces;
        // The memory of the current piece is freed before the next one is received.
        (self.held, self.now) = (Bytes::new(), Bytes::new());
        self.reserved = None;
        if !std::mem::replace(&mut self.has_leads, true) {
            let leads = pieces.leads.iter().cloned();
            self.coming
                .extend(leads.map(|it| (fetcher.request(self.object, it), None)));
        }
        while let Some(most) = self.next_length()
            && let Some(piece) = pieces.next(&mut self.next, most)
        {
            let reserved = Reservation::new(&fetcher, piece.bytes());
            let pending = fetcher.request(self.object, piece);
            self.coming.push_back((pending, Some(reserved)));
        }
        let Some((pending, reserved)) = self.coming.pop_front() else {
            return Ok(false);
        };
        self.reserved = reserved;
        self.held = pending.wait(&fetcher.stop).map_err(io::Error::other)?;
        self.parts = parts(&pending.piece).into_iter();
        Ok(true)
    }
}

/// Returns the wanted ranges of an object's piece, relative to the start of the piece. The piece is
/// so short that they fit `usize`.
fn parts(piece: &Piece) -> Vec<Range<usize>> {
    let at = |offset: u64| (offset - piece.span.start) as usize;
    let wanted = piece.wanted.iter();
    wanted.map(|it| at(it.start)..at(it.end)).collect()
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            if let Some(part) = self.parts.next() {
                self.now = self.held.slice(part);
            } else if !self.next_piece()? {
                return Ok(0);
            }
        }
        let n = into.len().min(self.now.len());
        self.now.copy_to_slice(&mut into[..n]);
        Ok(n)
    }
}

impl Drop for ObjectReader {
    fn drop(&mut self) {
        match &self.open {
            None => self.fetcher.release_leads(self.object),
            Some(_) => {
                self.fetcher.read.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_shorter_for_more_streams_up_to_the_limit_of_a_sensor() {
        let of = |queues: u16| Portions::for_streams((0..queues).map(|it| ("x", Some(it))));
        let mut before = of(0);
        for queues in [1, 2, 16, 100, 256] {
            let it = of(queues);
            let bytes = it.piece * it.depth as u64 * u64::from(queues);
            assert!(bytes <= MEMORY, "{queues}: {it:?}");
            assert!(it.depth >= 2 && it.piece >= LEAST_PIECE, "{it:?}");
            assert!(it.piece <= before.piece, "{queues}: {it:?}");
            before = it;
        }
        assert_eq!(of(60_000), before);
    }
}
