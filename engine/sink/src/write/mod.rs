//! The disk's half as those see it who start and end it: what becomes files, the threads for that, and what they leave.

mod backlog;
mod closer;
mod disk;
mod disk_full;
mod finished;
mod named;
mod naming;
mod open;
mod preopen;
mod stream;
mod writer_thread;

#[cfg(test)]
mod tests;

pub use backlog::Backlog;
pub use disk::KeptRing;
pub use finished::{Deleted, Finished};

use crate::{
    BlockSink, Encoder, FinishTimes, HookProcess, LEAST_BLOCKS, OutputPlan, Requests,
    RetentionGauge, Rotation, WriteLimit,
    block::{ALIGN, Block, Cut, Exchange, Full, Ledger, Shape},
    compress::{Channels, Compressors},
    least_block,
    post::PostClose,
    reorder::{Flushes, HELD_NS, InOrder, Line, Relay, Reorderer},
    write::{
        closer::close,
        disk::{Disk, Pool},
        disk_full::ShutdownDeadline,
        naming::Naming,
        preopen::Preopen,
        stream::{StreamEncoder, StreamEnd},
        writer_thread::{WriterChannels, WriterQueue, WriterThread},
    },
};
use crossbeam_channel::{Receiver, Sender};
use std::{
    convert::Infallible,
    io::Write,
    ops::RangeInclusive,
    panic::resume_unwind,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
    time::Instant,
};
use wqcap_core::{
    error::ResourceError,
    settings::{Compress, OnFull},
    stats::QueueCounters,
    sync::{
        thread::spawn,
        wakeup::{Alarm, Wakeup},
    },
};
use wqcap_memory::{Region, Untouched};

use wqcap_files::sealed::SecretKey;

/// Bytes of a block, where a queue's share of the buffer holds enough of them. A write takes as long to begin and to be told
/// of whatever its size, and those of a file come one after the other.
pub const BLOCK: usize = 4 << 20;
/// What a block is not smaller than, where the share is several of them; a block that is compressed is not larger.
const SMALL_BLOCK: usize = 1 << 20;
/// So many blocks are enough of a queue: where there would be more, blocks are larger.
const ENOUGH_BLOCKS: usize = 16;
/// Bytes of a block on its way to the orderer: it knows what is next the earlier the smaller they are.
const RELAY_BLOCK: usize = 64 << 10;
/// Idle moments, five a second at most, before a compressed file gets a frame that is not full.
const PATIENCE: u32 = 2;
/// Nanoseconds of stamps after which a block is written though it is not full and its queue is never idle. A queue that
/// is idle is so for 0.2 s: the two together, and what a batch and a write take, stay below a second.
const SHOWN_NS: u64 = 250_000_000;

/// Where files go and how much may wait for the disk.
#[derive(Clone, Debug)]
pub struct Files {
    /// As planned.
    pub output: OutputPlan,
    /// The longest record's frame bytes; 0: as long as `longest`.
    pub snaplen: usize,
    /// The longest frame, in bytes.
    pub longest: usize,
    /// The process that runs the hook; `None`: this one.
    pub hook_process: Option<Arc<HookProcess>>,
    /// The key that finished files are encrypted with; `None`: they are not.
    pub at_rest: Option<Arc<SecretKey>>,
    /// When files of the run were finished, those of earlier captures of the run as well.
    pub finish_times: FinishTimes,
    /// The writer's ring; `None`: it makes one of its own.
    pub ring: Option<Arc<KeptRing>>,
    /// What all files may come to; `None`: anything.
    pub limit: Option<Arc<WriteLimit>>,
    /// Woken when nothing can be written any more.
    pub owner: Wakeup,
}

impl Files {
    /// Opens the way to the disk of so many queues, in the thread that writes.
    fn disk(&self, queues: usize) -> impl FnOnce(&Pool) -> Disk + Send + 'static {
        let ring = self.ring.clone();
        move |pool| match queues {
            // Nothing is ever written beside its blocks.
            1 => Disk::plain(),
            _ => Disk::open(pool, ring.as_ref()),
        }
    }

    /// [`Files::snaplen`] as a bound.
    fn longest_record(&self) -> usize {
        match self.snaplen {
            0 => usize::MAX,
            snaplen => snaplen,
        }
    }

    /// The folder.
    pub(super) fn dir(&self) -> &Path {
        self.output.dir.as_deref().unwrap_or(Path::new(""))
    }
}

/// The running threads.
pub struct Writer {
    /// Whose frames are in its files; none: there are no files.
    counters: Vec<Arc<QueueCounters>>,
    /// Gives the reason if its stream failed.
    reorderer: Option<JoinHandle<Option<String>>>,
    compressors: Option<Compressors>,
    /// The writer, who works ahead of it, and the closer, in the order in which they end; none: there are no files.
    threads: Vec<JoinHandle<Finished>>,
    aftercare: Option<PostClose>,
    failed: Arc<Alarm>,
    deadline: Arc<ShutdownDeadline>,
    requests: Arc<Requests>,
    /// Requests to the queues' own sinks, where an orderer is behind them; `None`: they are those of `requests`.
    relayed: Option<Arc<Requests>>,
    backlog: Option<Backlog>,
    stream: Arc<StreamEnd>,
    touching: Vec<Touching>,
}

/// Blocks become resident, in a thread that ends with that.
type Touching = JoinHandle<Result<(), ResourceError>>;

/// Everything that files take but the threads.
struct Prepared<E: Encoder> {
    requests: Arc<Requests>,
    full: Receiver<Full>,
    states: Vec<WriterQueue>,
    sinks: Vec<BlockSink<E>>,
    pool: Pool,
    untouched: Vec<Untouched>,
    /// By queue: where emptied blocks go back to.
    empties: Vec<Sender<Block>>,
    backlog: Backlog,
    /// Bytes of a block.
    block: usize,
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
    ) -> Result<(Self, Vec<BlockSink<E>>), ResourceError> {
        Self::start_on(files, encoder, counters, files.disk(counters.len()))
    }

    fn start_on<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        disk: impl FnOnce(&Pool) -> Disk + Send + 'static,
    ) -> Result<(Self, Vec<BlockSink<E>>), ResourceError> {
        let owners: Vec<_> = (0u16..)
            .zip(counters)
            .map(|(queue, counters)| (Some(queue), Ledger::Queue(Arc::clone(counters))))
            .collect();
        Self::to_files(files, encoder, counters, owners, disk)
    }

    /// Starts the writer of files that hold the frames of all queues, in the order of time. `in_order` makes, on the thread
    /// that orders, the steps that frames pass before they are written; queues then relay whole frames.
    ///
    /// # Errors
    /// As [`Writer::start`].
    pub fn start_ordered<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        in_order: Option<impl FnOnce() -> InOrder + Send + 'static>,
    ) -> Result<(Self, Vec<BlockSink<Relay>>), ResourceError> {
        // What is full here waits, and the queues' own blocks run out.
        let half = Files {
            output: OutputPlan {
                buffer: files.output.buffer / 2,
                on_full: OnFull::Hold,
                ..files.output.clone()
            },
            snaplen: 0,
            ..files.clone()
        };
        let owner = (None, Ledger::All(counters.to_vec()));
        let (mut writer, mut outs) =
            Self::to_files(&half, encoder, counters, vec![owner], files.disk(1))?;
        let relays = Relays::new(files, files.output.buffer / 2, counters, in_order.is_some())?;
        if let Some(out) = outs.pop() {
            let on_full = files.output.on_full;
            let flushes = Flushes::new(&relays.requests, &writer.requests);
            let reorderer =
                Reorderer::new(relays.full, relays.lines, on_full, out).with_flushes(flushes);
            writer.relayed = Some(relays.requests);
            writer.touching.push(touch(relays.untouched, None)?);
            writer.reorderer = Some(spawn("wqcap-order", move || {
                // The last block goes to the writer here.
                drop(reorderer.with_steps(in_order.map(|make| make())).run());
                None
            })?);
        }
        Ok((writer, relays.sinks))
    }

    /// Starts the writer of one stream in the order of time, to `out` instead of files; `in_order` as in
    /// [`Writer::start_ordered`].
    ///
    /// # Errors
    /// As [`Writer::start`].
    pub fn start_stream<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        in_order: Option<impl FnOnce() -> InOrder + Send + 'static>,
        out: impl Write + Send + 'static,
    ) -> Result<(Self, Vec<BlockSink<Relay>>), ResourceError> {
        let relays = Relays::new(files, files.output.buffer, counters, in_order.is_some())?;
        // The stream has no sink: each round of the orderer writes it out.
        let requests = Arc::<Requests>::default();
        let flushes = Flushes::new(&relays.requests, &requests);
        let stream = Arc::new(StreamEnd::of(&files.owner));
        let end = Arc::clone(&stream);
        let (encoder, counters) = (encoder.clone(), counters.to_vec());
        let (on_full, limit) = (files.output.on_full, files.limit.clone());
        let reorderer = spawn("wqcap-order", move || {
            let out = StreamEncoder::begin(encoder, out, &counters, end).within(limit);
            Reorderer::new(relays.full, relays.lines, on_full, out)
                .with_steps(in_order.map(|make| make()))
                .with_flushes(flushes)
                .run()
                .finish()
        })?;
        let writer = Self {
            counters: Vec::new(),
            reorderer: Some(reorderer),
            compressors: None,
            threads: Vec::new(),
            aftercare: None,
            failed: Arc::default(),
            deadline: Arc::default(),
            requests,
            relayed: Some(relays.requests),
            backlog: None,
            stream,
            touching: vec![touch(relays.untouched, None)?],
        };
        Ok((writer, relays.sinks))
    }

    /// Everything but the threads.
    fn prepare<E: Encoder>(
        files: &Files,
        encoder: &E,
        owners: Vec<(Option<u16>, Ledger)>,
    ) -> Result<Prepared<E>, ResourceError> {
        let cut = match files.output.compress {
            Compress::None => Cut::Anywhere,
            _ => Cut::Records { patience: PATIENCE },
        };
        let shape = Shape {
            queue: 0,
            all: false,
            snaplen: files.longest_record(),
            on_full: files.output.on_full,
            rotation: files.output.rotation,
            cut,
            held_ns: SHOWN_NS,
        };
        let requests = Arc::new(Requests::with_sinks(owners.len()));
        let plain = files.output.compress == Compress::None;
        let usual = SMALL_BLOCK..=if plain { BLOCK } else { SMALL_BLOCK };
        let sizes = Sizes::new(&usual, files, files.output.buffer, owners.len());
        let (full_in, full) = crossbeam_channel::bounded(owners.len() * sizes.per_queue);
        let mut sinks = Vec::with_capacity(owners.len());
        let mut empties = Vec::with_capacity(owners.len());
        let mut states = Vec::with_capacity(owners.len());
        let mut idle = Vec::with_capacity(owners.len());
        // With compression, what is written is the packers'.
        let mut pool = Pool::default();
        let mut untouched = Vec::with_capacity(owners.len());
        for (index, (queue, ledger)) in (0u16..).zip(owners) {
            let (exchange, empty, blocks) = exchange(&sizes, &full_in, plain.then_some(&mut pool))?;
            untouched.push(blocks);
            let broken = Arc::clone(&exchange.broken);
            idle.push(exchange.empty.clone());
            states.push(WriterQueue::new(queue, empty.clone(), broken, ledger));
            empties.push(empty);
            let shape = Shape {
                queue: index,
                all: queue.is_none(),
                ..shape
            };
            sinks.push(BlockSink::limited(
                shape,
                encoder.clone(),
                Arc::clone(&requests),
                exchange,
                files.limit.clone(),
            ));
        }
        drop(full_in);
        Ok(Prepared {
            requests,
            full,
            states,
            sinks,
            pool,
            untouched,
            empties,
            backlog: Backlog {
                idle,
                per_queue: sizes.per_queue,
                block: sizes.block,
            },
            block: sizes.block,
        })
    }

    fn to_files<E: Encoder>(
        files: &Files,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        owners: Vec<(Option<u16>, Ledger)>,
        disk: impl FnOnce(&Pool) -> Disk + Send + 'static,
    ) -> Result<(Self, Vec<BlockSink<E>>), ResourceError> {
        let mut it = Self::prepare(files, encoder, owners)?;
        let (compressors, full) = match files.output.compress {
            Compress::None => (None, it.full),
            _ => {
                let (compressors, packed) = pack(
                    files,
                    it.block,
                    it.full,
                    it.empties,
                    &mut it.states,
                    &mut it.pool,
                )?;
                (Some(compressors), packed)
            }
        };
        let failed = Arc::new(Alarm::of(&files.owner));
        let deadline = Arc::<ShutdownDeadline>::default();
        let (tasks_in, tasks) = crossbeam_channel::unbounded();
        let (aftercare, notifier) = PostClose::start(files)?;
        let (ahead, preparing) = Preopen::start(files.dir(), it.states.len())?;
        let channels = WriterChannels {
            full,
            closer: tasks_in,
            deadline: Arc::clone(&deadline),
            failed: Arc::clone(&failed),
            requests: Arc::clone(&it.requests),
            trigger: notifier.trigger(),
            ahead,
        };
        let naming = Naming::new(
            files.dir().to_owned(),
            files.output.name.clone(),
            format!("{}{}", encoder.extension(), files.output.compress.ending()),
        );
        let work = WriterThread::new(naming, compressors.is_some(), it.states, channels);
        let (flag, pool) = (Arc::clone(&failed), it.pool);
        let listed = crate::post::list(files);
        let closer = spawn("wqcap-closer", move || {
            close(&tasks, &flag, &notifier, listed)
        })?;
        let (touched_in, touched) = crossbeam_channel::bounded(0);
        let touching = touch(it.untouched, Some(touched_in))?;
        // The disk in its thread: the kernel lets only the ring's maker submit to it.
        let writer = spawn("wqcap-writer", move || {
            // The ring pins the blocks, and would touch them all here. Nobody sends: the other end goes.
            let _ = touched.recv();
            work.run(disk(&pool))
        })?;
        Ok((
            Self {
                counters: counters.to_vec(),
                reorderer: None,
                compressors,
                threads: vec![writer, preparing, closer],
                aftercare: Some(aftercare),
                failed,
                deadline,
                requests: it.requests,
                relayed: None,
                backlog: Some(it.backlog),
                stream: Arc::default(),
                touching: vec![touching],
            },
            it.sinks,
        ))
    }

    /// Waits until every block is resident: from then on frames may come.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn wait_for_memory(&mut self) -> Result<(), ResourceError> {
        for thread in self.touching.drain(..) {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(())
    }

    /// For those who want to know how much waits to be written.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        self.backlog.clone()
    }

    /// For those who want to know what retention finds; `None`: nothing is ever deleted.
    #[must_use]
    pub fn retention(&self) -> Option<RetentionGauge> {
        self.aftercare.as_ref().and_then(PostClose::gauge)
    }

    /// Whether something could not be written.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_raised() || self.stream.failed.is_raised()
    }

    /// Whether the stream's reader has left, and nobody is there to write for.
    #[must_use]
    pub fn reader_has_left(&self) -> bool {
        self.stream.left.is_raised()
    }

    /// Asks every sink to go on to its next file, which it does with its next batch, or when it is idle.
    pub fn rotate(&self) {
        self.requests.rotate();
    }

    /// Asks every sink to send what it holds. [`Writer::has_flushed`] says when that is written.
    pub fn flush(&self) -> u64 {
        self.relayed.as_ref().unwrap_or(&self.requests).flush()
    }

    /// Whether all that sinks held at a flush is written.
    #[must_use]
    pub fn has_flushed(&self, flush: u64) -> bool {
        self.requests.is_written(flush)
    }

    /// For those who ask something of the files' sinks.
    #[must_use]
    pub fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// The run is at its end: a disk without room is waited for no more than another second. Then sinks that wait for it
    /// go on, and what cannot be written is lost.
    pub fn hurry(&self) {
        self.deadline.begin();
    }

    /// From when `flag` is set, what is not being written yet is lost, and files end before it.
    pub fn give_up_on(&self, flag: Arc<AtomicBool>) {
        self.deadline.give_up_on(flag);
    }

    /// Waits until everything is written, synced and named. Every sink must be gone.
    #[must_use]
    pub fn finish(self) -> Finished {
        self.hurry();
        // In the order of the frames' way: each ends when the one before it has.
        let ordered = self.reorderer.map(JoinHandle::join);
        let packed = self.compressors.is_none_or(Compressors::finish);
        let mut finished = Finished::default();
        for thread in self.threads {
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
        // Whatever a thread that ended too early had in its hands.
        for counters in &self.counters {
            counters.lose_unkept();
        }
        finished.synced = Some(Instant::now());
        let followed = self.aftercare.map(PostClose::finish).unwrap_or_default();
        if let Some(sealed) = followed.sealed {
            finished.files.absorb(sealed.listed);
            sealed.failures.into_iter().for_each(|it| finished.fail(it));
            finished.encryption = Some(sealed.report);
        }
        if let Some(deleted) = followed.deleted {
            if deleted.files > 0 {
                finished.files.keep_existing();
            }
            finished.pinned = Some(deleted.pinned);
            finished.deleted = Some(Deleted {
                files: deleted.files,
                bytes: deleted.bytes,
                unshipped: deleted.unshipped,
                unshipped_frames: deleted.unshipped_frames,
            });
        }
        finished.hooks = followed.hooks;
        finished
    }
}

/// How large blocks are, and how many a queue has.
struct Sizes {
    block: usize,
    per_queue: usize,
}

impl Sizes {
    /// Of a `buffer` for so many queues, in blocks of `usual` bytes where it is large enough for several of them. Both bounds
    /// are powers of two, and so are blocks between them. A file that ends sooner does not fill large ones.
    fn new(usual: &RangeInclusive<usize>, files: &Files, buffer: u64, queues: usize) -> Self {
        let share = usize::try_from(buffer).unwrap_or(usize::MAX) / queues.max(1);
        let file = match files.output.rotation.size {
            0 => usize::MAX,
            size => usize::try_from(size).unwrap_or(usize::MAX),
        };
        let most = (share / ENOUGH_BLOCKS).min(file / 4).max(1);
        let block = (1 << most.ilog2())
            .clamp(*usual.start(), *usual.end())
            .min(share / LEAST_BLOCKS)
            .max(least_block(files.longest))
            .next_multiple_of(ALIGN);
        Self {
            block,
            per_queue: (share / block).max(LEAST_BLOCKS),
        }
    }
}

/// Makes blocks resident while others prepare the rest; `end` goes when that is done.
fn touch(
    blocks: Vec<Untouched>,
    end: Option<Sender<Infallible>>,
) -> Result<Touching, ResourceError> {
    spawn("wqcap-touch", move || {
        let _end = end;
        blocks.into_iter().try_for_each(Untouched::touch)
    })
}

/// A queue's blocks, with the way back for emptied ones. They join the pool of what is written, if they are.
fn exchange(
    sizes: &Sizes,
    full: &Sender<Full>,
    mut pool: Option<&mut Pool>,
) -> Result<(Exchange, Sender<Block>, Untouched), ResourceError> {
    let (empty_in, empty) = crossbeam_channel::bounded(sizes.per_queue);
    let (blocks, untouched) = Region::several_untouched(sizes.per_queue, sizes.block)?;
    for memory in blocks {
        let mut block = Block::new(memory);
        if let Some(pool) = &mut pool {
            pool.join(&mut block);
        }
        // Bounded by the very number of blocks: there is room.
        let _ = empty_in.send(block);
    }
    let exchange = Exchange {
        blocks: sizes.per_queue,
        empty,
        full: full.clone(),
        broken: Arc::default(),
    };
    Ok((exchange, empty_in, untouched))
}

/// The queues' ends of an orderer.
struct Relays {
    full: Receiver<Full>,
    lines: Vec<Line>,
    sinks: Vec<BlockSink<Relay>>,
    untouched: Vec<Untouched>,
    requests: Arc<Requests>,
}

impl Relays {
    /// Makes a relay for each queue. Frames are cut to the snaplen here unless `whole`.
    fn new(
        files: &Files,
        buffer: u64,
        counters: &[Arc<QueueCounters>],
        whole: bool,
    ) -> Result<Self, ResourceError> {
        let usual = RELAY_BLOCK..=RELAY_BLOCK;
        let sizes = Sizes::new(&usual, files, buffer, counters.len());
        let (full_in, full) = crossbeam_channel::bounded(counters.len() * sizes.per_queue);
        let mut relays = Self {
            full,
            lines: Vec::with_capacity(counters.len()),
            sinks: Vec::with_capacity(counters.len()),
            untouched: Vec::with_capacity(counters.len()),
            // Files are the orderer's: only flushes are requested of these sinks.
            requests: Arc::new(Requests::with_sinks(counters.len())),
        };
        for (queue, counters) in (0u16..).zip(counters) {
            let (exchange, empty, blocks) = exchange(&sizes, &full_in, None)?;
            relays.untouched.push(blocks);
            let shape = Shape {
                queue,
                all: false,
                snaplen: if whole {
                    usize::MAX
                } else {
                    files.longest_record()
                },
                on_full: files.output.on_full,
                rotation: Rotation::default(),
                cut: Cut::Records { patience: 1 },
                held_ns: HELD_NS,
            };
            relays.lines.push(Line::new(Arc::clone(counters), empty));
            let sink = BlockSink::new(shape, Relay, Arc::clone(&relays.requests), exchange);
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
    states: &mut [WriterQueue],
    pool: &mut Pool,
) -> Result<(Compressors, Receiver<Full>), ResourceError> {
    let threads = files.output.spare_cores.len().max(1);
    let spares = Compressors::spares(threads);
    let (spare_in, spare) = crossbeam_channel::bounded(spares);
    for _ in 0..spares {
        let mut block = Compressors::spare(size)?;
        pool.join(&mut block);
        // Bounded by the very number of blocks: there is room.
        let _ = spare_in.send(block);
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
    let compressors = Compressors::start(
        files.output.compress,
        &files.output.spare_cores,
        threads,
        channels,
    )?;
    Ok((compressors, packed))
}
