//! Writer handle: starts the threads that write files, controls them, and collects their result at
//! shutdown.

mod backlog;
mod closer;
mod disk;
mod disk_policy;
mod finished;
mod named;
mod naming;
mod open;
mod preopen;
mod stream;
mod unclosed;
mod writer_thread;

#[cfg(test)]
mod tests;

pub use backlog::Backlog;
pub use disk::PreparedRing;
pub use finished::{Deleted, WriterReport};
pub use unclosed::MOST_UNCLOSED;

use crate::{
    BlockSink, Encoder, FinishTimes, HookProcess, LEAST_BLOCKS, OutputLimits, OutputPlan,
    PortsSink, RetentionGauge, Rotation, SinkRequests, WriteLimit,
    block::{ALIGN, Block, Cut, Exchange, FileLedger, Full, LoopLosses, SinkSettings},
    compress::{Compressors, PackerChannels},
    least_block,
    post::PostClose,
    reorder::{Flushes, HELD_NS, InOrder, QueueLine, Relay, Reorderer},
    write::{
        closer::close,
        disk::{Disk, Pool},
        disk_policy::ShutdownDeadline,
        naming::Naming,
        preopen::Preopen,
        stream::{PatientOutput, StreamEncoder, StreamEnd},
        unclosed::Unclosed,
        writer_thread::{WriterChannels, WriterQueue, WriterThread},
    },
};
use crossbeam_channel::{Receiver, Sender};
use std::{
    convert::Infallible,
    fs::File,
    io,
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

/// Size of a write block in bytes if a queue's share of the buffer holds enough blocks. Each write
/// has a fixed cost for its start and its completion, and the writes of a file are sequential, so
/// large blocks are faster.
pub const BLOCK: usize = 4 << 20;
/// Minimum size in bytes of a write block if a queue's share of the buffer holds several, and
/// maximum size of a block that is compressed.
const SMALL_BLOCK: usize = 1 << 20;
/// Number of write blocks per queue above which blocks are made larger instead.
const ENOUGH_BLOCKS: usize = 16;
/// Size of a relay block in bytes. With smaller blocks the ordering thread gets each queue's next
/// record earlier.
const RELAY_BLOCK: usize = 64 << 10;
/// Number of idle calls of a sink, at most five per second, before its partial block is compressed
/// and written.
const PATIENCE: u32 = 2;
/// Span of frame time stamps in nanoseconds after which a partial block is written. An idle queue
/// sends its block after 0.2 s. Both together, and the time of a batch and a write, stay below one
/// second.
const SHOWN_NS: u64 = 250_000_000;

/// Settings of a writer: capture files and write buffers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WriterConfig {
    /// Output settings of the run.
    pub output: OutputPlan,
    /// Maximum bytes of a frame that its record holds; 0: whole frames.
    pub snaplen: usize,
    /// Length of the longest received frame in bytes.
    pub longest: usize,
    /// Process that runs the hook of finished files; `None`: the calling process.
    pub hook_process: Option<Arc<HookProcess>>,
    /// Key that encrypts finished capture files and opens encrypted ones; `None`: no encryption.
    pub at_rest: Option<SecretKey>,
    /// Finish times of the run's capture files, including those of earlier captures of the run.
    pub finish_times: FinishTimes,
    /// io_uring instance for writing files; `None`: the writer creates one.
    pub ring: Option<Arc<PreparedRing>>,
    /// Limit on the bytes and number of all files of the run; `None`: no limit.
    pub limit: Option<Arc<WriteLimit>>,
    /// Wakeup of the capture's owner, used when files can no longer be written.
    pub owner: Wakeup,
}

impl WriterConfig {
    /// Creates settings for the files of `output` and for frames of at most `longest` bytes: whole
    /// frames, no encryption, no limit, and an io_uring instance and a hook of the writer's own.
    #[must_use]
    pub fn new(output: OutputPlan, longest: usize) -> Self {
        Self {
            output,
            snaplen: 0,
            longest,
            hook_process: None,
            at_rest: None,
            finish_times: FinishTimes::default(),
            ring: None,
            limit: None,
            owner: Wakeup::default(),
        }
    }

    /// Returns a function that opens the disk for the files of `queues` queues. The writer thread
    /// calls it.
    fn disk(&self, queues: usize) -> impl FnOnce(&Pool) -> Disk + Send + 'static {
        let ring = self.ring.clone();
        move |pool| match queues {
            // The blocks of one queue are never written concurrently.
            1 => Disk::plain(),
            _ => Disk::open(pool, ring.as_ref()),
        }
    }

    /// Returns [`WriterConfig::snaplen`] as an upper bound, `usize::MAX` for 0.
    fn longest_record(&self) -> usize {
        match self.snaplen {
            0 => usize::MAX,
            snaplen => snaplen,
        }
    }

    /// Returns the output directory of the capture files.
    pub(super) fn dir(&self) -> &Path {
        self.output.dir.as_deref().unwrap_or(Path::new(""))
    }
}

/// Writer: the running threads that write capture files or a stream.
pub struct Writer {
    /// Counters of the queues whose frames are in the capture files; empty if a stream is written.
    counters: Vec<Arc<QueueCounters>>,
    /// Ordering thread of the writer. It returns the error if its stream failed.
    reorderer: Option<JoinHandle<Option<io::Error>>>,
    compressors: Option<Compressors>,
    /// Writer, preopen and closer threads, in the order in which they end; empty for a stream.
    threads: Vec<JoinHandle<WriterReport>>,
    /// Threads that process finished capture files.
    post_close: Option<PostClose>,
    /// Alarm raised when capture files cannot be written.
    failed: Arc<Alarm>,
    deadline: Arc<ShutdownDeadline>,
    requests: Arc<SinkRequests>,
    /// Requests to the queues' sinks if an ordering thread is behind them; `None`: the queues' sinks
    /// use `requests`.
    relayed: Option<Arc<SinkRequests>>,
    backlog: Option<Backlog>,
    stream: Arc<StreamEnd>,
    touching: Vec<PrefaultThread>,
}

/// Thread that makes write blocks resident in memory and then ends.
type PrefaultThread = JoinHandle<Result<(), ResourceError>>;

/// Write blocks, channels and sinks of a writer, before its threads are started.
struct Prepared<E: Encoder> {
    requests: Arc<SinkRequests>,
    full: Receiver<Full>,
    states: Vec<WriterQueue>,
    sinks: Vec<BlockSink<E>>,
    pool: Pool,
    untouched: Vec<Untouched>,
    /// Channels that return emptied write blocks to the sinks, by queue.
    empties: Vec<Sender<Block>>,
    backlog: Backlog,
    /// Size of a write block in bytes.
    block: usize,
}

impl Writer {
    /// Starts a writer: allocates the write blocks, starts the threads, and creates a sink for each
    /// queue.
    ///
    /// # Errors
    /// Memory cannot be allocated, or a thread cannot be started.
    pub fn start<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
    ) -> Result<(Self, Vec<BlockSink<E>>), ResourceError> {
        Self::start_on(files, encoder, counters, files.disk(counters.len()))
    }

    fn start_on<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        disk: impl FnOnce(&Pool) -> Disk + Send + 'static,
    ) -> Result<(Self, Vec<BlockSink<E>>), ResourceError> {
        let owners: Vec<_> = (0u16..)
            .zip(counters)
            .map(|(queue, counters)| (Some(queue), FileLedger::Queue(Arc::clone(counters))))
            .collect();
        Self::to_files(files, encoder, counters, owners, disk)
    }

    /// Starts a writer of files that hold the frames of several ports, with one queue each. Its sink
    /// takes the frames in the order of time.
    ///
    /// # Errors
    /// The errors of [`Writer::start`].
    pub fn start_of_ports<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
    ) -> Result<(Self, Vec<PortsSink<E>>), ResourceError> {
        let owner = (None, FileLedger::All(counters.to_vec()));
        let (writer, sinks) = Self::to_files(files, encoder, counters, vec![owner], files.disk(1))?;
        let sinks = sinks.into_iter();
        let sinks = sinks.map(|it| PortsSink::new(it, counters.len()));
        Ok((writer, sinks.collect()))
    }

    /// Starts a writer of files that hold the frames of all queues in the order of time. `in_order`
    /// is called on the ordering thread and creates the reduction steps for frames in order; queues
    /// then relay whole frames.
    ///
    /// # Errors
    /// The errors of [`Writer::start`].
    pub fn start_ordered<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        in_order: Option<impl FnOnce() -> InOrder + Send + 'static>,
    ) -> Result<(Self, Vec<BlockSink<Relay>>), ResourceError> {
        // A full buffer of the output sink blocks the ordering thread, and then the relay blocks run out.
        let half = WriterConfig {
            output: OutputPlan {
                buffer: files.output.buffer / 2,
                on_full: OnFull::Hold,
                ..files.output.clone()
            },
            snaplen: 0,
            ..files.clone()
        };
        let owner = (None, FileLedger::All(counters.to_vec()));
        let (mut writer, mut outs) =
            Self::to_files(&half, encoder, counters, vec![owner], files.disk(1))?;
        let relays = Relays::new(files, files.output.buffer / 2, counters, in_order.is_some())?;
        if let Some(backlog) = &mut writer.backlog {
            let sent = relays.lines.iter().map(|it| Arc::clone(&it.sent));
            backlog.relayed.extend(sent);
        }
        if let Some(out) = outs.pop() {
            let on_full = files.output.on_full;
            let flushes = Flushes::new(&relays.requests, &writer.requests);
            let reorderer =
                Reorderer::new(relays.full, relays.lines, on_full, out).with_flushes(flushes);
            writer.relayed = Some(relays.requests);
            writer.touching.push(prefault(relays.untouched, None)?);
            writer.reorderer = Some(spawn("wqcap-order", move || {
                // Dropping the output sink sends its last block to the writer.
                drop(reorderer.with_steps(in_order.map(|make| make())).run());
                None
            })?);
        }
        Ok((writer, relays.sinks))
    }

    /// Starts a writer of one frame stream in the order of time, to `out` instead of files.
    /// `in_order` is used as in [`Writer::start_ordered`].
    ///
    /// # Errors
    /// The errors of [`Writer::start`].
    pub fn start_stream<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        in_order: Option<impl FnOnce() -> InOrder + Send + 'static>,
        out: File,
    ) -> Result<(Self, Vec<BlockSink<Relay>>), ResourceError> {
        let relays = Relays::new(files, files.output.buffer, counters, in_order.is_some())?;
        let deadline = Arc::<ShutdownDeadline>::default();
        let out = PatientOutput::new(out, Arc::clone(&deadline));
        // The stream has no block sink: each round of the ordering thread writes its buffer.
        let requests = Arc::<SinkRequests>::default();
        let flushes = Flushes::new(&relays.requests, &requests);
        let stream = Arc::new(StreamEnd::new(&files.owner));
        let end = Arc::clone(&stream);
        let (encoder, counters) = (encoder.clone(), counters.to_vec());
        let (on_full, limit) = (files.output.on_full, files.limit.clone());
        let reorderer = spawn("wqcap-order", move || {
            let out = StreamEncoder::begin(encoder, out, &counters, end).with_limit(limit);
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
            post_close: None,
            failed: Arc::default(),
            deadline,
            requests,
            relayed: Some(relays.requests),
            backlog: None,
            stream,
            touching: vec![prefault(relays.untouched, None)?],
        };
        Ok((writer, relays.sinks))
    }

    /// Creates the write blocks, channels and sinks of a writer, but no threads.
    fn prepare<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        owners: Vec<(Option<u16>, FileLedger)>,
    ) -> Result<Prepared<E>, ResourceError> {
        let cut = match files.output.compress {
            Compress::None => Cut::Anywhere,
            _ => Cut::Records { patience: PATIENCE },
        };
        let shape = SinkSettings {
            queue: 0,
            all: false,
            snaplen: files.longest_record(),
            on_full: files.output.on_full,
            cut,
            held_ns: SHOWN_NS,
        };
        let requests = Arc::new(SinkRequests::with_sinks(
            owners.len(),
            files.output.rotation,
        ));
        let plain = files.output.compress == Compress::None;
        let usual = SMALL_BLOCK..=if plain { BLOCK } else { SMALL_BLOCK };
        let sizes = BlockSizes::new(&usual, files, files.output.buffer, owners.len());
        let (full_in, full) = crossbeam_channel::bounded(owners.len() * sizes.per_queue);
        let mut sinks = Vec::with_capacity(owners.len());
        let mut empties = Vec::with_capacity(owners.len());
        let mut states = Vec::with_capacity(owners.len());
        let mut idle = Vec::with_capacity(owners.len());
        let mut sent = Vec::with_capacity(owners.len());
        // With compression, the pool holds the packers' blocks instead.
        let mut pool = Pool::default();
        let mut untouched = Vec::with_capacity(owners.len());
        for (index, (queue, ledger)) in (0u16..).zip(owners) {
            let (exchange, empty, blocks) = exchange(&sizes, &full_in, plain.then_some(&mut pool))?;
            untouched.push(blocks);
            let broken = Arc::clone(&exchange.broken);
            idle.push(exchange.empty.clone());
            let loop_losses = match &ledger {
                FileLedger::Queue(counters) => Some(LoopLosses::new(Arc::clone(counters))),
                FileLedger::All(_) => None,
            };
            sent.push(Arc::clone(&exchange.sent));
            states.push(WriterQueue::new(
                queue,
                empty.clone(),
                broken,
                ledger,
                Arc::clone(&exchange.sent),
            ));
            empties.push(empty);
            let shape = SinkSettings {
                queue: index,
                all: queue.is_none(),
                ..shape
            };
            sinks.push(BlockSink::new(
                shape,
                encoder.clone(),
                Arc::clone(&requests),
                exchange,
                files.limit.clone(),
                loop_losses,
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
                sent,
                relayed: Vec::new(),
                per_queue: sizes.per_queue,
                block: sizes.block,
            },
            block: sizes.block,
        })
    }

    fn to_files<E: Encoder>(
        files: &WriterConfig,
        encoder: &E,
        counters: &[Arc<QueueCounters>],
        owners: Vec<(Option<u16>, FileLedger)>,
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
        let failed = Arc::new(Alarm::new(&files.owner));
        let deadline = Arc::<ShutdownDeadline>::default();
        let (unclosed, tasks) = Unclosed::new();
        let (post_close, notifier) = PostClose::start(files)?;
        let (ahead, preparing) = Preopen::start(files.dir(), it.states.len())?;
        let channels = WriterChannels {
            full,
            unclosed,
            failed: Arc::clone(&failed),
            requests: Arc::clone(&it.requests),
            trigger: Some(notifier.trigger()),
            ahead,
        };
        let naming = Naming::new(
            files.dir().to_owned(),
            files.output.name.clone(),
            format!("{}{}", encoder.extension(), files.output.compress.ending()),
        );
        let packed = compressors.is_some();
        let work = WriterThread::new(naming, packed, it.states, channels, Arc::clone(&deadline));
        let (flag, pool) = (Arc::clone(&failed), it.pool);
        let listed = crate::post::list(files);
        let until = Arc::clone(&deadline);
        let closer = spawn("wqcap-closer", move || {
            close(&tasks, &flag, &notifier, listed, &until)
        })?;
        let (touched_in, touched) = crossbeam_channel::bounded(0);
        let touching = prefault(it.untouched, Some(touched_in))?;
        // The disk is opened in the writer thread: only the thread that creates the ring may submit to it.
        let writer = spawn("wqcap-writer", move || {
            // Registering the blocks with the ring pins them, which would make them resident in this thread. Nothing is
            // sent on this channel: the receive returns when the touching thread drops its end.
            let _ = touched.recv();
            work.run(disk(&pool))
        })?;
        Ok((
            Self {
                counters: counters.to_vec(),
                reorderer: None,
                compressors,
                threads: vec![writer, preparing, closer],
                post_close: Some(post_close),
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

    /// Waits until every write block is resident in memory. Afterwards the capture may receive
    /// frames.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn wait_for_memory(&mut self) -> Result<(), ResourceError> {
        for thread in self.touching.drain(..) {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(())
    }

    /// Returns the meter of the write blocks that wait to be written; `None` for a stream.
    #[must_use]
    pub fn backlog(&self) -> Option<Backlog> {
        self.backlog.clone()
    }

    /// Returns the gauge of the capture files that retention finds; `None` for a stream.
    #[must_use]
    pub fn retention(&self) -> Option<RetentionGauge> {
        self.post_close.as_ref().map(PostClose::gauge)
    }

    /// Returns `true` if capture files or the stream could not be written.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.is_raised() || self.stream.failed.is_raised()
    }

    /// Returns `true` if the reader of the frame stream has closed its end.
    #[must_use]
    pub fn reader_has_left(&self) -> bool {
        self.stream.left.is_raised()
    }

    /// Returns the present limits of the capture files; those of a stream have no effect.
    #[must_use]
    pub fn limits(&self) -> OutputLimits {
        let retention = self.post_close.as_ref().map(PostClose::retention);
        OutputLimits::new(self.requests.rotation(), retention.unwrap_or_default())
    }

    /// Replaces the limits of the capture files. If the conditions for starting files differ, every
    /// sink begins its next file; retention checks the files at once. Without effect on a stream.
    pub fn set_limits(&self, limits: OutputLimits) {
        self.requests.set_rotation(limits.rotation);
        if let Some(post_close) = &self.post_close {
            post_close.set_retention(limits.retention);
        }
    }

    /// Requests that every sink begins its next capture file. A sink does so with its next batch,
    /// or when its queue is idle.
    pub fn rotate(&self) {
        self.requests.rotate();
    }

    /// Requests that every sink sends its open write block. Returns the flush's number for
    /// [`Writer::has_flushed`].
    pub fn flush(&self) -> u64 {
        self.relayed.as_ref().unwrap_or(&self.requests).flush()
    }

    /// Returns `true` if all frame records that the sinks held when `flush` was requested are
    /// written.
    #[must_use]
    pub fn has_flushed(&self, flush: u64) -> bool {
        self.requests.is_written(flush)
    }

    /// Returns the requests to the sinks that write the capture files.
    #[must_use]
    pub fn requests(&self) -> Arc<SinkRequests> {
        Arc::clone(&self.requests)
    }

    /// Limits the writer's wait for a full disk to one more second, because the run ends. After
    /// that, sinks that wait for blocks continue, and blocks that cannot be written are lost.
    pub fn begin_shutdown(&self) {
        self.deadline.begin(Instant::now());
    }

    /// Registers a flag that ends writing: once it is set, write blocks that are not being written
    /// yet are lost, and capture files end before them.
    pub fn give_up_on(&self, flag: Arc<AtomicBool>) {
        self.deadline.give_up_on(flag);
    }

    /// Waits until all capture files are written, synced and renamed. Every sink must be dropped
    /// before.
    #[must_use]
    pub fn finish(self) -> WriterReport {
        self.begin_shutdown();
        // The threads are joined in the order of the data flow: each ends after the one before it.
        let ordered = self.reorderer.map(JoinHandle::join);
        let packed = self.compressors.is_none_or(Compressors::finish);
        let mut finished = WriterReport::default();
        for thread in self.threads {
            match thread.join() {
                Ok(more) => finished.absorb(more),
                Err(_) => finished.fail(
                    "a thread that writes files ended in a panic; open capture files keep their .part name",
                ),
            }
        }
        match ordered {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(e))) => finished.fail(format_args!("cannot write to stdout: {e}")),
            Some(Err(_)) => finished.fail(
                "the thread that orders frames ended in a panic: this is a fault in wqcap: please report it",
            ),
        }
        if !packed {
            finished.fail(
                "a thread that compresses capture files ended in a panic: this is a fault in wqcap: please report it",
            );
        }
        // Frames that were in a thread which ended too early count as lost.
        for counters in &self.counters {
            counters.count_unkept_as_lost();
        }
        finished.synced = Some(Instant::now());
        let followed = self.post_close.map(PostClose::finish).unwrap_or_default();
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

/// Size and number of a queue's write blocks.
struct BlockSizes {
    /// Size of a write block in bytes.
    block: usize,
    /// Number of write blocks per queue.
    per_queue: usize,
}

impl BlockSizes {
    /// Divides write buffers of `buffer` bytes among `queues` queues. Blocks have `usual` bytes if
    /// the buffer is large enough for several of them. The bounds of `usual` are powers of two, and
    /// so are block sizes between them. Blocks are smaller if the maximum size of a file is small.
    fn new(
        usual: &RangeInclusive<usize>,
        files: &WriterConfig,
        buffer: u64,
        queues: usize,
    ) -> Self {
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

/// Starts a thread that makes write blocks resident in memory. It drops `end` when it is done.
fn prefault(
    blocks: Vec<Untouched>,
    end: Option<Sender<Infallible>>,
) -> Result<PrefaultThread, ResourceError> {
    spawn("wqcap-touch", move || {
        let _end = end;
        blocks.into_iter().try_for_each(Untouched::touch)
    })
}

/// Allocates a queue's write blocks and creates the channel for emptied ones. If the blocks
/// themselves are written, they join `pool`.
fn exchange(
    sizes: &BlockSizes,
    full: &Sender<Full>,
    mut pool: Option<&mut Pool>,
) -> Result<(Exchange, Sender<Block>, Untouched), ResourceError> {
    let (empty_in, empty) = crossbeam_channel::bounded(sizes.per_queue);
    let (blocks, untouched) = Region::map_many(sizes.per_queue, sizes.block)?;
    for memory in blocks {
        let mut block = Block::new(memory);
        if let Some(pool) = &mut pool {
            pool.join(&mut block);
        }
        // The channel's capacity is the number of blocks.
        let _ = empty_in.send(block);
    }
    let exchange = Exchange {
        blocks: sizes.per_queue,
        empty,
        full: full.clone(),
        sent: Arc::default(),
        broken: Arc::default(),
    };
    Ok((exchange, empty_in, untouched))
}

/// Queue side of an ordering thread: a relay sink for each queue, and their channels.
struct Relays {
    full: Receiver<Full>,
    lines: Vec<QueueLine>,
    sinks: Vec<BlockSink<Relay>>,
    untouched: Vec<Untouched>,
    requests: Arc<SinkRequests>,
}

impl Relays {
    /// Creates a relay sink for each queue. The sink cuts frames to the snaplen unless `whole` is
    /// set.
    fn new(
        files: &WriterConfig,
        buffer: u64,
        counters: &[Arc<QueueCounters>],
        whole: bool,
    ) -> Result<Self, ResourceError> {
        let usual = RELAY_BLOCK..=RELAY_BLOCK;
        let sizes = BlockSizes::new(&usual, files, buffer, counters.len());
        let (full_in, full) = crossbeam_channel::bounded(counters.len() * sizes.per_queue);
        let mut relays = Self {
            full,
            lines: Vec::with_capacity(counters.len()),
            sinks: Vec::with_capacity(counters.len()),
            untouched: Vec::with_capacity(counters.len()),
            // Files belong to the output sink: only flushes are requested of these sinks.
            requests: Arc::new(SinkRequests::with_sinks(
                counters.len(),
                Rotation::default(),
            )),
        };
        for (queue, counters) in (0u16..).zip(counters) {
            let (exchange, empty, blocks) = exchange(&sizes, &full_in, None)?;
            relays.untouched.push(blocks);
            let shape = SinkSettings {
                queue,
                all: false,
                snaplen: if whole {
                    usize::MAX
                } else {
                    files.longest_record()
                },
                on_full: files.output.on_full,
                cut: Cut::Records { patience: 1 },
                held_ns: HELD_NS,
            };
            let sent = Arc::clone(&exchange.sent);
            relays
                .lines
                .push(QueueLine::new(queue, Arc::clone(counters), empty, sent));
            relays.sinks.push(BlockSink::new(
                shape,
                Relay,
                Arc::clone(&relays.requests),
                exchange,
                None,
                Some(LoopLosses::new(Arc::clone(counters))),
            ));
        }
        Ok(relays)
    }
}

/// Starts packer threads between the sinks and the writer. Emptied blocks of the writer's `states`
/// then go to the packers.
fn pack(
    files: &WriterConfig,
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
        // The channel's capacity is the number of blocks.
        let _ = spare_in.send(block);
    }
    for state in states {
        state.empty = spare_in.clone();
    }
    let (packed_in, packed) = crossbeam_channel::bounded(spares);
    let channels = PackerChannels {
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
