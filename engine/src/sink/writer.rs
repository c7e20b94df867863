//! The disk's half: one thread that takes full blocks and writes them, several at once.

use super::{
    BlockSink, Encoder, HookReport, Keep, OnFull, Record, Rotation,
    aftercare::{Aftercare, News},
    block::{ALIGN, Block, Cut, Exchange, Full, Ledger, Shape},
    closer::{Leaving, Named},
    disk::{DEPTH, Disk, Done},
    order::{HELD_NS, Line, Orderer, Relay},
    pack::{Channels, Packers},
    stream::{Stream, StreamEnd},
};
use crate::{Error, config::Compress, memory::Region, stats::QueueCounters};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use serde::Serialize;
use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Bytes of a block, where the buffer is large enough for several of them.
const BLOCK: usize = 1 << 20;
/// The same for blocks on their way to the orderer: it knows what is next the earlier the smaller they are.
const RELAY_BLOCK: usize = 64 << 10;
/// Blocks a queue has at least: one being filled, one being written, one to go on in.
const LEAST_BLOCKS: usize = 3;
/// Failures told in full; more are counted.
const MOST_FAILURES: usize = 16;
/// Idle moments, five a second at most, before a compressed file gets a frame that is not full.
const PATIENCE: u32 = 5;
/// Bytes that a queue's name and another filter add to a file's header at most, or a note to a record.
const NOTE_ROOM: usize = 2048;

/// Where files go and how much may wait for the disk.
#[derive(Clone, Debug)]
pub struct Files {
    /// The folder.
    pub dir: PathBuf,
    /// Bytes of blocks, all queues together.
    pub buffer: u64,
    /// When all blocks of a queue are waiting.
    pub on_full: OnFull,
    /// When a queue goes on to its next file.
    pub rotation: Rotation,
    /// The longest record's frame bytes; 0: as long as `longest`.
    pub snaplen: usize,
    /// The longest frame, in bytes.
    pub longest: usize,
    /// How they are compressed.
    pub compress: Compress,
    /// Cores for that, which no queue has; none: one thread, wherever there is time.
    pub spare_cores: Vec<usize>,
    /// What stays of finished files.
    pub keep: Keep,
    /// The program to run after each finished file.
    pub hook: Option<PathBuf>,
    /// The folder of their indexes; `None`: they get none.
    pub index_dir: Option<PathBuf>,
}

/// What the writer leaves behind.
#[derive(Debug, Default)]
pub struct Finished {
    /// Complete files that are still there, in name order.
    pub files: Vec<PathBuf>,
    /// Old files deleted, and their bytes; `None`: nothing is ever deleted.
    pub deleted: Option<Deleted>,
    /// How the hooks went; `None`: there are none.
    pub hooks: Option<HookReport>,
    /// What could not be written, a line each.
    pub failures: Vec<String>,
}

/// How much was deleted to keep within limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Deleted {
    /// Files, of this run or earlier ones.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Finished {
    fn absorb(&mut self, other: Self) {
        self.files.extend(other.files);
        self.failures.extend(other.failures);
    }

    fn fail(&mut self, failure: String) {
        tracing::error!("{failure}");
        if self.failures.len() < MOST_FAILURES {
            self.failures.push(failure);
        } else if self.failures.len() == MOST_FAILURES {
            self.failures
                .push("further failures to write are in the log".into());
        }
    }
}

/// The running threads.
pub struct Writer {
    /// Gives the reason if its stream failed.
    orderer: Option<JoinHandle<Option<String>>>,
    packers: Option<Packers>,
    /// The writer and the closer; `None`: there are no files.
    threads: Option<(JoinHandle<Finished>, JoinHandle<Finished>)>,
    aftercare: Option<Aftercare>,
    failed: Arc<AtomicBool>,
    rotations: Arc<AtomicU64>,
    stream: Arc<StreamEnd>,
}

impl Writer {
    /// Makes the blocks and the threads, and a sink for each queue.
    ///
    /// # Errors
    /// Memory or a thread cannot be had.
    pub fn start<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
    ) -> Result<(Self, Vec<BlockSink<E>>), Error> {
        let owners: Vec<_> = (0u16..)
            .zip(counters)
            .map(|(queue, counters)| (Some(queue), Ledger::Queue(Arc::clone(counters))))
            .collect();
        Self::to_files(files, encoder, owners)
    }

    /// The same for files that hold the frames of all queues, in the order of time.
    ///
    /// # Errors
    /// As [`Writer::start`].
    pub fn start_ordered<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
    ) -> Result<(Self, Vec<BlockSink<Relay>>), Error> {
        // What is full here waits, and the queues' own blocks run out.
        let half = Files {
            buffer: files.buffer / 2,
            on_full: OnFull::Hold,
            snaplen: 0,
            ..files.clone()
        };
        let owner = (None, Ledger::All(counters.to_vec()));
        let (mut writer, mut outs) = Self::to_files(&half, encoder, vec![owner])?;
        let relays = Relays::new(files, files.buffer / 2, counters)?;
        if let Some(out) = outs.pop() {
            let orderer = Orderer::new(relays.full, relays.lines, out);
            writer.orderer = Some(spawn("wqcap-order", move || {
                // The last block goes to the writer here.
                drop(orderer.run());
                None
            })?);
        }
        Ok((writer, relays.sinks))
    }

    /// One stream in the order of time, to `out`, in place of files.
    ///
    /// # Errors
    /// As [`Writer::start`].
    pub fn start_stream<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        out: impl Write + Send + 'static,
    ) -> Result<(Self, Vec<BlockSink<Relay>>), Error> {
        let relays = Relays::new(files, files.buffer, counters)?;
        let stream = Arc::new(StreamEnd::default());
        let end = Arc::clone(&stream);
        let (encoder, counters) = (encoder.clone(), counters.to_vec());
        let orderer = spawn("wqcap-order", move || {
            let out = Stream::begin(encoder, out, &counters, end);
            Orderer::new(relays.full, relays.lines, out).run().finish()
        })?;
        let writer = Self {
            orderer: Some(orderer),
            packers: None,
            threads: None,
            aftercare: None,
            failed: Arc::default(),
            rotations: Arc::default(),
            stream,
        };
        Ok((writer, relays.sinks))
    }

    fn to_files<E: Encoder>(
        files: &Files,
        encoder: &E,
        owners: Vec<(Option<u16>, Ledger)>,
    ) -> Result<(Self, Vec<BlockSink<E>>), Error> {
        let cut = match files.compress {
            Compress::None => Cut::Anywhere,
            _ => Cut::Records { patience: PATIENCE },
        };
        let shape = Shape {
            queue: 0,
            all: false,
            snaplen: files.snaplen,
            on_full: files.on_full,
            rotation: files.rotation,
            cut,
            held_ns: u64::MAX,
        };
        let rotations = Arc::<AtomicU64>::default();
        let sizes = Sizes::new(encoder, BLOCK, files.longest, files.buffer, owners.len());
        let (full_in, full) = crossbeam_channel::bounded(owners.len() * sizes.per_queue);
        let mut sinks = Vec::with_capacity(owners.len());
        let mut empties = Vec::with_capacity(owners.len());
        let mut states = Vec::with_capacity(owners.len());
        for (index, (queue, ledger)) in (0u16..).zip(owners) {
            let (exchange, empty) = exchange(&sizes, &full_in)?;
            states.push(Queue {
                queue,
                empty: empty.clone(),
                broken: Arc::clone(&exchange.broken),
                ledger,
                files: VecDeque::new(),
                next: 0,
                early: BTreeMap::new(),
            });
            empties.push(empty);
            let shape = Shape {
                queue: index,
                all: queue.is_none(),
                ..shape
            };
            sinks.push(BlockSink::new(
                shape,
                encoder.clone(),
                Arc::clone(&rotations),
                exchange,
            ));
        }
        drop(full_in);
        let (packers, full) = match files.compress {
            Compress::None => (None, full),
            _ => {
                let (packers, packed) = pack(files, sizes.block, full, empties, &mut states)?;
                (Some(packers), packed)
            }
        };
        let failed = Arc::new(AtomicBool::new(false));
        let (leaving_in, leaving) = crossbeam_channel::unbounded();
        let work = Work {
            dir: files.dir.clone(),
            extension: format!("{}{}", encoder.extension(), files.compress.ending()),
            packed: packers.is_some(),
            full,
            ready: VecDeque::new(),
            leaving: leaving_in,
            disk: Disk::Plain(Vec::new()),
            flying: (0..DEPTH).map(|_| None).collect(),
            queues: states,
            failed: Arc::clone(&failed),
            finished: Finished::default(),
        };
        let flag = Arc::clone(&failed);
        let (aftercare, news) = Aftercare::start(files)?;
        let closer = spawn("wqcap-closer", move || close(&leaving, &flag, &news))?;
        let writer = spawn("wqcap-writer", move || work.run())?;
        Ok((
            Self {
                orderer: None,
                packers,
                threads: Some((writer, closer)),
                aftercare: Some(aftercare),
                failed,
                rotations,
                stream: Arc::default(),
            },
            sinks,
        ))
    }

    /// Whether something could not be written.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) || self.stream.failed.load(Ordering::Acquire)
    }

    /// Whether the stream's reader has left, and nobody is there to write for.
    #[must_use]
    pub fn reader_has_left(&self) -> bool {
        self.stream.left.load(Ordering::Acquire)
    }

    /// Asks every sink to go on to its next file, which it does with its next batch, or when it is idle.
    pub fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until everything is written, synced and named. Every sink must be gone.
    #[must_use]
    pub fn finish(self) -> Finished {
        // In the order of the frames' way: each ends when the one before it has.
        let ordered = self.orderer.map(JoinHandle::join);
        let packed = self.packers.is_none_or(Packers::finish);
        let mut finished = Finished::default();
        for thread in self.threads.into_iter().flat_map(<[_; 2]>::from) {
            match thread.join() {
                Ok(more) => finished.absorb(more),
                Err(_) => finished.fail(
                    "a thread that writes files ended in a panic; open files keep their .part name"
                        .into(),
                ),
            }
        }
        match ordered {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(failure))) => finished.fail(failure),
            Some(Err(_)) => finished.fail("the thread that orders frames ended in a panic".into()),
        }
        if !packed {
            finished.fail("a thread that compresses ended in a panic".into());
        }
        finished.files.sort();
        let (deleted, hooks) = self.aftercare.map(Aftercare::finish).unwrap_or_default();
        if let Some(deleted) = deleted {
            finished.files.retain(|file| !deleted.files.contains(file));
            finished.deleted = Some(Deleted {
                files: deleted.files.len() as u64,
                bytes: deleted.bytes,
            });
        }
        finished.hooks = hooks;
        finished
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(run)
        .map_err(|source| Error::System {
            what: format!("the thread {name}"),
            source,
        })
}

/// How large blocks are, and how many a queue has.
struct Sizes {
    block: usize,
    per_queue: usize,
}

impl Sizes {
    fn new<E: Encoder>(
        encoder: &E,
        most: usize,
        longest: usize,
        buffer: u64,
        queues: usize,
    ) -> Self {
        let share = usize::try_from(buffer).unwrap_or(usize::MAX) / queues.max(1);
        // A record must fit a block with its header, or it could reach over three.
        let longest = vec![0; longest];
        let record = Record {
            ns: 0,
            bytes: &longest,
            len: 0,
            fcs: &[],
            fcs_len: 0,
            bad_fcs: false,
            lost_before: 1,
        };
        let least = encoder.record_len(&record) + encoder.header(None).len() + NOTE_ROOM;
        let block = most
            .min(share / LEAST_BLOCKS)
            .max(least)
            .next_multiple_of(ALIGN);
        Self {
            block,
            per_queue: (share / block).max(LEAST_BLOCKS),
        }
    }
}

/// A queue's blocks, with the way back for emptied ones.
fn exchange(sizes: &Sizes, full: &Sender<Full>) -> Result<(Exchange, Sender<Block>), Error> {
    let (empty_in, empty) = crossbeam_channel::bounded(sizes.per_queue);
    for _ in 0..sizes.per_queue {
        // Bounded by the very number of blocks: there is room.
        let _ = empty_in.send(Block::new(Region::allocate(sizes.block, None)?));
    }
    let exchange = Exchange {
        empty,
        full: full.clone(),
        broken: Arc::default(),
    };
    Ok((exchange, empty_in))
}

/// The queues' ends of an orderer.
struct Relays {
    full: Receiver<Full>,
    lines: Vec<Line>,
    sinks: Vec<BlockSink<Relay>>,
}

impl Relays {
    fn new(files: &Files, buffer: u64, counters: &[Arc<QueueCounters>]) -> Result<Self, Error> {
        let sizes = Sizes::new(&Relay, RELAY_BLOCK, files.longest, buffer, counters.len());
        let (full_in, full) = crossbeam_channel::bounded(counters.len() * sizes.per_queue);
        let mut relays = Self {
            full,
            lines: Vec::with_capacity(counters.len()),
            sinks: Vec::with_capacity(counters.len()),
        };
        for (queue, counters) in (0u16..).zip(counters) {
            let (exchange, empty) = exchange(&sizes, &full_in)?;
            let shape = Shape {
                queue,
                all: false,
                snaplen: files.snaplen,
                on_full: files.on_full,
                rotation: Rotation::default(),
                cut: Cut::Records { patience: 1 },
                held_ns: HELD_NS,
            };
            relays.lines.push(Line::new(Arc::clone(counters), empty));
            // Files are the orderer's: nobody asks for another one here.
            let sink = BlockSink::new(shape, Relay, Arc::default(), exchange);
            relays.sinks.push(sink);
        }
        Ok(relays)
    }
}

/// Puts packers between the sinks and the writer, whose `states` then give emptied blocks to them.
fn pack(
    files: &Files,
    size: usize,
    full: Receiver<Full>,
    empty: Vec<Sender<Block>>,
    states: &mut [Queue],
) -> Result<(Packers, Receiver<Full>), Error> {
    let threads = files.spare_cores.len().max(1);
    let spares = Packers::spares(threads);
    let (spare_in, spare) = crossbeam_channel::bounded(spares);
    for _ in 0..spares {
        // Bounded by the very number of blocks: there is room.
        let _ = spare_in.send(Packers::spare(size)?);
    }
    for state in states {
        state.empty = spare_in.clone();
    }
    let (packed_in, packed) = crossbeam_channel::bounded(spares);
    let channels = Channels {
        full,
        empty,
        packed: packed_in,
        spare,
    };
    let packers = Packers::start(files.compress, &files.spare_cores, threads, channels)?;
    Ok((packers, packed))
}

/// The closer's thread.
fn close(leaving: &Receiver<Leaving>, failed: &AtomicBool, news: &News) -> Finished {
    let mut finished = Finished::default();
    for file in leaving {
        match file.finish() {
            Ok(None) => {}
            Ok(Some(path)) => {
                news.tell(&path);
                finished.files.push(path);
            }
            Err(failure) => {
                finished.fail(failure);
                failed.store(true, Ordering::Release);
            }
        }
    }
    finished
}

/// The writer's thread.
struct Work {
    dir: PathBuf,
    extension: String,
    /// Blocks come from packers: out of order, and without a place in their file.
    packed: bool,
    full: Receiver<Full>,
    /// Blocks whose turn it is.
    ready: VecDeque<Full>,
    leaving: Sender<Leaving>,
    disk: Disk,
    /// Blocks on their way to the disk, by token.
    flying: Vec<Option<Flying>>,
    queues: Vec<Queue>,
    failed: Arc<AtomicBool>,
    finished: Finished,
}

struct Flying {
    queue: usize,
    link: u64,
    /// Bytes the write must write.
    want: usize,
    block: Block,
}

struct Queue {
    /// As in the files' names.
    queue: Option<u16>,
    empty: Sender<Block>,
    broken: Arc<AtomicBool>,
    ledger: Ledger,
    /// Open files, oldest first: the one being written, and before it those whose last blocks are still flying.
    files: VecDeque<Open>,
    /// The number of the block whose turn it is.
    next: u64,
    /// Blocks that came before their turn.
    early: BTreeMap<u64, Block>,
}

/// An open file and the chain of its blocks from the first one not yet on disk.
struct Open {
    number: u64,
    /// `None`: it could not be created, or it broke; its blocks are lost.
    named: Option<Named>,
    chain: VecDeque<Link>,
    /// Link number of the chain's first.
    first: u64,
    /// Bytes of the unbroken run of blocks on disk, up to their last record's end.
    whole: u64,
    /// Frames in that run, and their bytes.
    frames: u64,
    frame_bytes: u64,
    /// The same by queue, in a file of all queues; else empty.
    by_queue: Vec<(u64, u64)>,
    /// Blocks that wait for a partial one before them, which shares a sector with the next.
    waiting: VecDeque<Block>,
    partial: bool,
    /// A block of it could not be written; those behind it are lost.
    broke: bool,
    /// No more blocks will come.
    ended: bool,
    /// Writes under way.
    flying: usize,
    /// Where the next packed block belongs.
    end: u64,
}

/// A block of a file, in the file's order.
struct Link {
    frames: u64,
    frame_bytes: u64,
    by_queue: Vec<(u64, u64)>,
    whole_end: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Flying,
    Written,
    Failed,
}

impl Work {
    fn run(mut self) -> Finished {
        // Here, not where the thread was made: the kernel lets only the ring's maker submit to it.
        self.disk = Disk::open();
        let mut open = true;
        while open || self.in_flight() > 0 {
            let mut idle = true;
            while self.in_flight() < DEPTH as usize {
                if let Some(full) = self.ready.pop_front() {
                    idle = false;
                    self.place(full);
                    continue;
                }
                if !open {
                    break;
                }
                // With nothing under way there is nothing else to wait for.
                let next = if self.in_flight() == 0 && idle {
                    self.full.recv().map_err(|_| TryRecvError::Disconnected)
                } else {
                    self.full.try_recv()
                };
                match next {
                    Ok(full) => {
                        idle = false;
                        self.line_up(full);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => open = false,
                }
            }
            if self.in_flight() > 0 {
                self.reap();
            }
        }
        self.give_up_early();
        for queue in 0..self.queues.len() {
            while let Some(file) = self.queues[queue].files.pop_front() {
                self.leave(queue, file);
            }
        }
        self.finished
    }

    fn in_flight(&self) -> usize {
        self.flying.iter().flatten().count()
    }

    /// Puts a block, and those that waited for it, among those whose turn it is.
    fn line_up(&mut self, full: Full) {
        let queue = &mut self.queues[usize::from(full.queue)];
        queue.early.insert(full.number, full.block);
        while let Some(block) = queue.early.remove(&queue.next) {
            self.ready.push_back(Full {
                queue: full.queue,
                number: queue.next,
                block,
            });
            queue.next += 1;
        }
    }

    /// Blocks whose turn never came, since the one before them was lost with its packer.
    fn give_up_early(&mut self) {
        for queue in &mut self.queues {
            for block in std::mem::take(&mut queue.early).into_values() {
                queue
                    .ledger
                    .lost(block.frames, block.frame_bytes, &block.by_queue);
            }
        }
    }

    /// Puts a block into its file's chain, and on its way if nothing stands in it.
    fn place(&mut self, full: Full) {
        let index = usize::from(full.queue);
        let mut block = full.block;
        if self.queues[index]
            .files
            .back()
            .is_none_or(|f| f.number != block.file)
        {
            self.begin(index, &block);
        }
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.back_mut() else {
            return;
        };
        file.ended |= block.end;
        if self.packed {
            block.offset = file.end;
            file.end += block.len as u64;
        }
        if block.spoilt && !file.broke {
            file.broke = true;
            queue.broken.store(true, Ordering::Relaxed);
            self.failed.store(true, Ordering::Release);
            self.finished.fail(
                "a block could not be compressed; what stands before it in its file stays readable"
                    .into(),
            );
        }
        if file.broke {
            queue
                .ledger
                .lost(block.frames, block.frame_bytes, &block.by_queue);
            block.frames = 0;
            let _ = queue.empty.send(block);
        } else if file.partial || !file.waiting.is_empty() {
            file.waiting.push_back(block);
        } else {
            self.write(index, block);
        }
        self.sweep(index);
    }

    /// Opens the file that a queue's block is the first of.
    fn begin(&mut self, index: usize, block: &Block) {
        // A file whose end the sink did not tell broke under it.
        if let Some(last) = self.queues[index].files.back_mut() {
            last.ended = true;
        }
        self.sweep(index);
        let queue = &mut self.queues[index];
        let named = Named::create(&self.dir, queue.queue, block.first_ns, &self.extension);
        let mut file = Open {
            number: block.file,
            named: None,
            chain: VecDeque::new(),
            first: 0,
            whole: 0,
            frames: 0,
            frame_bytes: 0,
            by_queue: Vec::new(),
            waiting: VecDeque::new(),
            partial: false,
            broke: false,
            ended: false,
            flying: 0,
            end: 0,
        };
        match named {
            Ok(named) => file.named = Some(named),
            Err(failure) => {
                file.broke = true;
                queue.broken.store(true, Ordering::Relaxed);
                self.failed.store(true, Ordering::Release);
                self.finished.fail(failure);
            }
        }
        queue.files.push_back(file);
    }

    /// Starts a block's write.
    fn write(&mut self, index: usize, mut block: Block) {
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.iter_mut().find(|f| f.number == block.file) else {
            return;
        };
        let Some(named) = &file.named else { return };
        // Whoever calls has seen that there is room.
        let Some(token) = self.flying.iter().position(Option::is_none) else {
            file.waiting.push_front(block);
            return;
        };
        let mut want = block.len;
        if !want.is_multiple_of(ALIGN) {
            file.partial = true;
            if named.direct {
                // Direct I/O writes whole sectors; the file is cut to its true length afterwards.
                want = want.next_multiple_of(ALIGN);
                let len = block.len;
                block.memory.as_mut_slice()[len..want].fill(0);
            }
        }
        let link = file.first + file.chain.len() as u64;
        file.chain.push_back(Link {
            frames: block.frames,
            frame_bytes: block.frame_bytes,
            by_queue: block.by_queue.clone(),
            whole_end: block.offset + block.whole as u64,
            state: State::Flying,
        });
        file.flying += 1;
        let (offset, bytes) = (block.offset, block.memory.as_slice(want));
        #[allow(unsafe_code)]
        // SAFETY: the block's memory is a mapping that does not move with the block; the block stays in `flying`,
        // untouched, until `reap` is told of the write's end. The file stays in `queues` as long as its chain holds
        // this link.
        let submitted = unsafe { self.disk.submit(token, &named.file, offset, bytes) };
        self.flying[token] = Some(Flying {
            queue: index,
            link,
            want,
            block,
        });
        if let Err(e) = submitted {
            self.done(Done {
                token,
                result: Err(e),
            });
        }
    }

    /// Takes the writes that have ended.
    fn reap(&mut self) {
        let mut ended = Vec::with_capacity(DEPTH as usize);
        if let Err(e) = self.disk.reap(true, |done| ended.push(done)) {
            self.finished.fail(format!("io_uring: {e}"));
            self.failed.store(true, Ordering::Release);
        }
        for done in ended {
            self.done(done);
        }
        // Those that waited for room, of whichever queue.
        for index in 0..self.queues.len() {
            let waiting = |f: &&Open| !f.waiting.is_empty();
            if let Some(number) = self.queues[index]
                .files
                .iter()
                .find(waiting)
                .map(|f| f.number)
            {
                self.go_on(index, number);
                self.sweep(index);
            }
        }
    }

    /// One write's end.
    fn done(&mut self, done: Done) {
        let Some(Flying {
            queue: index,
            link,
            want,
            block,
        }) = self.flying.get_mut(done.token).and_then(Option::take)
        else {
            return;
        };
        let number = block.file;
        let result = match done.result {
            Ok(n) if n == want => Ok(()),
            Ok(n) => self.again(index, &block, n, want),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.again(index, &block, 0, want),
            Err(e) => Err(e),
        };
        let queue = &mut self.queues[index];
        if let Some(file) = queue.files.iter_mut().find(|f| f.number == number) {
            file.flying -= 1;
            file.settle(link, result.is_ok(), &queue.ledger);
            if let Err(e) = result {
                let name = file
                    .named
                    .as_ref()
                    .map(|n| n.part.display().to_string())
                    .unwrap_or_default();
                queue.broken.store(true, Ordering::Relaxed);
                self.failed.store(true, Ordering::Release);
                self.finished.fail(format!("cannot write {want} bytes to {name}: {e}; the whole records before them stay readable"));
            }
        }
        // The sink may be gone already, and with it the need for blocks.
        let _ = self.queues[index].empty.send(block);
        self.go_on(index, number);
        self.sweep(index);
    }

    /// A write that the disk cut short, or refused as direct I/O: once more, the plain way, for the rest of it.
    fn again(&mut self, index: usize, block: &Block, from: usize, want: usize) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let file = self.queues[index]
            .files
            .iter_mut()
            .find(|f| f.number == block.file);
        let Some(named) = file.and_then(|f| f.named.as_mut()) else {
            return Ok(());
        };
        if from == 0 && named.direct {
            named.go_through_page_cache()?;
        }
        // Direct I/O goes on at a sector's start.
        let (from, want) = if named.direct {
            (from - from % ALIGN, want)
        } else {
            (from, block.len)
        };
        named.file.write_all_at(
            &block.memory.as_slice(want)[from..],
            block.offset + from as u64,
        )
    }

    /// What waited for a partial block, or for room on the way to the disk, goes.
    fn go_on(&mut self, index: usize, number: u64) {
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.iter_mut().find(|f| f.number == number) else {
            return;
        };
        if file.broke {
            for block in file.waiting.drain(..) {
                queue
                    .ledger
                    .lost(block.frames, block.frame_bytes, &block.by_queue);
                let _ = queue.empty.send(block);
            }
            return;
        }
        if file.partial {
            if !file.chain.is_empty() {
                return;
            }
            file.show();
        }
        while self.in_flight() < DEPTH as usize
            && let Some(file) = self.queues[index]
                .files
                .iter_mut()
                .find(|f| f.number == number)
            && !file.partial
            && let Some(block) = file.waiting.pop_front()
        {
            self.write(index, block);
        }
    }

    /// Lets go of files that are complete.
    fn sweep(&mut self, index: usize) {
        while let Some(file) = self.queues[index].files.front()
            && file.ended
            && file.flying == 0
            && file.waiting.is_empty()
            && let Some(file) = self.queues[index].files.pop_front()
        {
            self.leave(index, file);
        }
    }

    fn leave(&self, index: usize, file: Open) {
        if let Some(named) = file.named {
            // The closer outlives this thread.
            let _ = self.leaving.send(Leaving {
                named,
                len: file.whole,
                frames: file.frames,
                frame_bytes: file.frame_bytes,
                by_queue: file.by_queue,
                ledger: self.queues[index].ledger.clone(),
            });
        }
    }
}

impl Open {
    /// The partial block is on disk.
    fn show(&mut self) {
        self.partial = false;
        // Direct I/O wrote a whole sector: whoever reads the open file must not see the padding.
        if let Some(named) = self.named.as_ref().filter(|n| n.direct)
            && let Err(e) = named.file.set_len(self.whole)
        {
            tracing::warn!(
                "cannot cut {} to its records while it is open: {e}",
                named.part.display()
            );
        }
    }

    /// A block's write has ended. The unbroken run grows as far as it can; where it meets a block that failed, that
    /// block and all behind it are lost.
    fn settle(&mut self, link: u64, written: bool, ledger: &Ledger) {
        let index = link
            .checked_sub(self.first)
            .and_then(|i| usize::try_from(i).ok());
        // A link that is not in the chain any more was lost with a block before it.
        let Some(link) = index.and_then(|i| self.chain.get_mut(i)) else {
            return;
        };
        link.state = if written {
            State::Written
        } else {
            State::Failed
        };
        while let Some(link) = self.chain.pop_front_if(|l| l.state == State::Written) {
            self.first += 1;
            self.whole = link.whole_end;
            self.frames += link.frames;
            self.frame_bytes += link.frame_bytes;
            if self.by_queue.len() < link.by_queue.len() {
                self.by_queue.resize(link.by_queue.len(), (0, 0));
            }
            for (sum, (frames, bytes)) in self.by_queue.iter_mut().zip(link.by_queue) {
                *sum = (sum.0 + frames, sum.1 + bytes);
            }
        }
        if self.chain.front().is_some_and(|l| l.state == State::Failed) {
            self.broke = true;
            for link in self.chain.drain(..) {
                self.first += 1;
                ledger.lost(link.frames, link.frame_bytes, &link.by_queue);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pipeline::{Consumer, Frame, Verdict},
        sink::{Origin, PcapEncoder, PcapngEncoder},
        stats::{Ends, Received},
    };
    use std::{fs::File, path::Path};

    const QUIET: Rotation = Rotation {
        size: 0,
        period_ns: 0,
    };

    fn files(dir: &Path, buffer: u64, rotation: Rotation) -> Files {
        Files {
            dir: dir.to_owned(),
            buffer,
            on_full: OnFull::Hold,
            rotation,
            snaplen: 0,
            longest: 2048,
            compress: Compress::None,
            spare_cores: Vec::new(),
            keep: Keep::default(),
            hook: None,
            index_dir: None,
        }
    }

    /// The frames of a file, as (stamp, bytes).
    fn frames_of(path: &Path) -> Vec<(u64, Vec<u8>)> {
        let mut reader =
            pcap_file::pcap::PcapReader::new(File::open(path).expect("file")).expect("header");
        let mut frames = Vec::new();
        while let Some(packet) = reader.next_packet() {
            let packet = packet.expect("sound");
            frames.push((
                u64::try_from(packet.timestamp.as_nanos()).expect("fits"),
                packet.data.into_owned(),
            ));
        }
        frames
    }

    /// Frames of many lengths, so that records end everywhere in a block, each told apart by its stamp.
    fn frame(i: u64) -> Vec<u8> {
        let len = usize::try_from(i * 37 % 1987).expect("small") + 14;
        vec![u8::try_from(i % 251).expect("a byte"); len]
    }

    fn feed<E: Encoder>(sink: &mut BlockSink<E>, range: std::ops::Range<u64>) -> u64 {
        range
            .map(|i| {
                u64::from(
                    sink.frame(Frame {
                        bytes: &frame(i),
                        len: u32::try_from(frame(i).len()).expect("short"),
                        fcs: None,
                        ns: i,
                    }) == Verdict::Captured,
                )
            })
            .sum()
    }

    #[test]
    fn what_goes_in_comes_out_in_a_file_for_each_queue_that_had_frames() {
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::default(), Arc::default(), Arc::default()];
        let (writer, mut sinks) = Writer::start(
            &files(dir.path(), 1 << 16, QUIET),
            &PcapEncoder::new(0),
            &counters,
        )
        .expect("start");
        assert_eq!(feed(&mut sinks[0], 5..20_005), 20_000);
        assert_eq!(feed(&mut sinks[2], 9..10), 1);
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        assert_eq!(
            finished.files,
            [
                dir.path().join("wqcap-q00-5.pcap"),
                dir.path().join("wqcap-q02-9.pcap")
            ]
        );
        let want: Vec<_> = (5..20_005).map(|i| (i, frame(i))).collect();
        assert_eq!(frames_of(&finished.files[0]), want);
        assert_eq!(frames_of(&finished.files[1]), [(9, frame(9))]);
    }

    #[test]
    fn an_idle_queue_shows_what_it_has_and_goes_on_without_a_seam() {
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::default()];
        let (writer, mut sinks) = Writer::start(
            &files(dir.path(), 1 << 20, QUIET),
            &PcapEncoder::new(0),
            &counters,
        )
        .expect("start");
        let part = dir.path().join("wqcap-q00-0.pcap.part");
        for round in 0..50u64 {
            feed(&mut sinks[0], round * 10..round * 10 + 10);
            sinks[0].idle();
            if round % 10 == 0 {
                let seen = (0..500).any(|_| {
                    // With every block on its way, a call does nothing; the loop calls again and again.
                    sinks[0].idle();
                    std::thread::sleep(std::time::Duration::from_millis(2));
                    part.exists()
                        && std::fs::metadata(&part).is_ok_and(|m| m.len() % 4096 != 0)
                        && frames_of(&part).len() as u64 == round * 10 + 10
                });
                assert!(
                    seen,
                    "round {round}: the open file holds every frame so far and no padding"
                );
            }
        }
        drop(sinks);
        let finished = writer.finish();
        assert_eq!(finished.failures, Vec::<String>::new());
        assert_eq!(
            frames_of(&finished.files[0]),
            (0..500).map(|i| (i, frame(i))).collect::<Vec<_>>()
        );
    }

    #[test]
    fn rotation_by_size_and_time_loses_and_repeats_nothing() {
        for (rotation, most) in [
            (
                Rotation {
                    size: 50_000,
                    period_ns: 0,
                },
                50_000,
            ),
            (
                Rotation {
                    size: 0,
                    period_ns: 100,
                },
                u64::MAX,
            ),
            (
                Rotation {
                    size: 30_000,
                    period_ns: 64,
                },
                30_000,
            ),
        ] {
            let dir = tempfile::tempdir().expect("dir");
            let counters = [Arc::default()];
            let (writer, mut sinks) = Writer::start(
                &files(dir.path(), 1 << 18, rotation),
                &PcapEncoder::new(0),
                &counters,
            )
            .expect("start");
            assert_eq!(feed(&mut sinks[0], 0..3_000), 3_000);
            drop(sinks);
            let finished = writer.finish();
            assert_eq!(finished.failures, Vec::<String>::new());
            assert!(finished.files.len() >= 30, "{}", finished.files.len());
            let mut all = Vec::new();
            for file in &finished.files {
                assert!(std::fs::metadata(file).expect("there").len() <= most);
                let frames = frames_of(file);
                assert!(!frames.is_empty());
                if rotation.period_ns != 0 {
                    let period = |(ns, _): &(u64, Vec<u8>)| ns / rotation.period_ns;
                    assert_eq!(
                        period(&frames[0]),
                        period(&frames[frames.len() - 1]),
                        "aligned to the clock"
                    );
                }
                all.extend(frames);
            }
            all.sort();
            assert_eq!(all, (0..3_000).map(|i| (i, frame(i))).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_pcapng_file_ends_with_its_totals() {
        use pcap_file::pcapng::{
            Block, PcapNgReader, blocks::interface_statistics::InterfaceStatisticsOption as Isb,
        };
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::default()];
        let encoder = PcapngEncoder::new(0, "port".into());
        let (writer, mut sinks) =
            Writer::start(&files(dir.path(), 1 << 16, QUIET), &encoder, &counters).expect("start");
        assert_eq!(feed(&mut sinks[0], 0..1_000), 1_000);
        drop(sinks);
        let finished = writer.finish();
        let mut reader =
            PcapNgReader::new(File::open(&finished.files[0]).expect("file")).expect("section");
        let (mut packets, mut received) = (0, None);
        while let Some(block) = reader.next_block() {
            match block.expect("sound") {
                Block::EnhancedPacket(_) => packets += 1,
                Block::InterfaceStatistics(i) => {
                    received = i.options.iter().find_map(|o| {
                        if let Isb::IsbIfRecv(n) = o {
                            Some(*n)
                        } else {
                            None
                        }
                    });
                }
                _ => {}
            }
        }
        assert_eq!((packets, received), (1_000, Some(1_000)));
    }

    #[test]
    fn another_filter_is_told_where_it_begins_to_hold() {
        use pcap_file::pcapng::{
            Block, PcapNgReader,
            blocks::{
                enhanced_packet::EnhancedPacketOption as Epb,
                interface_description::InterfaceDescriptionOption as Idb,
            },
        };
        let dir = tempfile::tempdir().expect("dir");
        let encoder = PcapngEncoder::new(0, "port".into()).from_origin(Origin {
            filter: "ip".into(),
            comment: "a run".into(),
            ..Origin::here()
        });
        // A period for each thousand frames.
        let rotation = Rotation {
            size: 0,
            period_ns: 1_000,
        };
        for compress in [Compress::None, Compress::Lz4] {
            let files = Files {
                compress,
                ..files(dir.path(), 1 << 16, rotation)
            };
            let (writer, mut sinks) =
                Writer::start(&files, &encoder, &[Arc::default()]).expect("start");
            let sink = &mut sinks[0];
            assert_eq!(feed(sink, 0..500), 500);
            sink.changed("arp");
            // Nothing is lost meanwhile, whatever else happens.
            sink.idle();
            assert_eq!(feed(sink, 500..1_000), 500);
            sink.changed("udp");
            assert_eq!(feed(sink, 1_000..1_500), 500, "a note at a rotation");
            sink.changed("");
            drop(sinks);
            let finished = writer.finish();
            assert_eq!(finished.failures, Vec::<String>::new());
            let (mut filters, mut notes, mut frames) = (Vec::new(), Vec::new(), 0);
            for path in &finished.files {
                let mut bytes = Vec::new();
                let source = crate::reader::unpacked(File::open(path).expect("file"));
                std::io::Read::read_to_end(&mut source.expect("opens"), &mut bytes).expect("reads");
                let mut reader = PcapNgReader::new(&bytes[..]).expect("section");
                while let Some(block) = reader.next_block() {
                    match block.expect("sound") {
                        Block::InterfaceDescription(i) => {
                            filters.extend(i.options.iter().filter_map(|o| match o {
                                Idb::IfFilter(bytes) => Some(bytes.to_vec()),
                                _ => None,
                            }));
                        }
                        Block::EnhancedPacket(p) => {
                            notes.extend(p.options.iter().filter_map(|o| match o {
                                Epb::Comment(text) => Some((frames, text.to_string())),
                                _ => None,
                            }));
                            assert_eq!(p.data[..], frame(frames));
                            frames += 1;
                        }
                        _ => {}
                    }
                }
                std::fs::remove_file(path).expect("there");
            }
            assert_eq!(frames, 1_500);
            assert_eq!(filters, [b"\0ip".to_vec(), b"\0udp".to_vec()]);
            let told = |filter| format!("filter from here on: {filter}");
            assert_eq!(notes, [(500, told("arp")), (1_000, told("udp"))]);
        }
    }

    /// Runs in a process of its own, since the limit it sets is the process's.
    #[test]
    fn a_disk_that_takes_no_more_costs_what_was_not_written_and_leaves_readable_files() {
        const ALONE: &str = "WQCAP_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "sink::writer::tests::a_disk_that_takes_no_more_costs_what_was_not_written_and_leaves_readable_files";
            let out = std::process::Command::new(std::env::current_exe().expect("this test"))
                .args([name, "--exact"])
                .env(ALONE, "1")
                .output()
                .expect("runs");
            let text = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        let dir = tempfile::tempdir().expect("dir");
        let counters = [Arc::new(QueueCounters::default())];
        let (writer, mut sinks) = Writer::start(
            &files(dir.path(), 1 << 16, QUIET),
            &PcapEncoder::new(0),
            &counters,
        )
        .expect("start");
        // A limit to a file's size stands for a full disk; with SIGXFSZ ignored, write answers EFBIG.
        let limit = libc::rlimit {
            rlim_cur: 100_000,
            rlim_max: libc::RLIM_INFINITY,
        };
        #[allow(unsafe_code)]
        // SAFETY: plain system calls with a limit that outlives them.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit);
        }
        let taken = feed(&mut sinks[0], 0..2_000);
        let bytes: u64 = (0..2_000).map(|i| frame(i).len() as u64).sum();
        assert_eq!(taken, 2_000, "hold: the sink refuses nothing");
        counters[0].publish_received(&Received {
            frames: 2_000,
            ..Received::default()
        });
        counters[0].publish_ends(&Ends {
            captured: taken,
            bytes,
            ..Ends::default()
        });
        drop(sinks);
        let writing = |(writer, _): &(JoinHandle<_>, _)| !writer.is_finished();
        assert!(writer.has_failed() || writer.threads.as_ref().is_some_and(writing));
        let finished = writer.finish();
        assert!(
            !finished.failures.is_empty() && finished.failures[0].contains("stay readable"),
            "{:?}",
            finished.failures
        );
        let ledger = counters[0].ledger(0);
        let kept: Vec<_> = finished.files.iter().flat_map(|f| frames_of(f)).collect();
        assert_eq!(ledger.captured, kept.len() as u64);
        assert_eq!(
            ledger.bytes,
            kept.iter().map(|(_, b)| b.len() as u64).sum::<u64>()
        );
        assert!(
            finished.files.len() > 1,
            "after a file that broke, a new one is begun"
        );
        assert!(kept.iter().all(|(ns, bytes)| *bytes == frame(*ns)));
        assert!(
            ledger.dropped_storage > 0 && ledger.captured + ledger.dropped_storage == 2_000,
            "{ledger:?}"
        );
    }
}
