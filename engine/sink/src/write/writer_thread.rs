//! Writer thread: takes full blocks and writes them, blocks of several queues concurrently.
//!
//! [`super::disk_policy`] decides what follows from an error, and [`super::open`] has the states of a
//! file. This thread carries out the decisions.

use crate::{
    SinkRequests,
    block::{ALIGN, Block, FileLedger, Full, SentBlocks},
    post::retention::RetentionTrigger,
    write::{
        closer::CloserTask,
        disk::{CompletedWrite, DEPTH, Disk, Write},
        disk_policy::{
            CreateDecision, DiskNotice, DiskPolicy, ShutdownDeadline, WriteDecision, WriteEnd,
        },
        finished::WriterReport,
        named::NamedFile,
        naming::Naming,
        open::{BlockFate, ChainedFile},
        preopen::Preopen,
        unclosed::Unclosed,
    },
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Display,
    io, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use wqcap_core::sync::wakeup::Alarm;

/// Interval at which open capture files are synced. A power failure loses at most the data written
/// since.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// State of the writer thread: its queues, its disk, and the blocks to write.
pub(super) struct WriterThread {
    naming: Arc<Naming>,
    /// `true` if write blocks come from compression threads (packers). They then arrive out of order,
    /// and their offset in the file is not known yet.
    pub(super) packed: bool,
    pub(super) channels: WriterChannels,
    pub(super) queues: Vec<WriterQueue>,
    disk: Disk,
    /// Write blocks to write next, in order for each queue.
    ready: VecDeque<Full>,
    /// Write blocks being written, by token.
    slots: Vec<WriteSlot>,
    policy: DiskPolicy,
    next_sync: Instant,
    finished: WriterReport,
}

/// Slot for the write of a block. The index of the slot is the token of the write.
#[derive(Default)]
enum WriteSlot {
    #[default]
    Free,
    /// The block is being written.
    Flying(BlockWrite),
    /// The disk was full: the block is kept until the next attempt.
    Kept(BlockWrite),
}

impl WriteSlot {
    /// Returns the write in the slot, if there is one.
    fn write(&self) -> Option<&BlockWrite> {
        match self {
            Self::Free => None,
            Self::Flying(write) | Self::Kept(write) => Some(write),
        }
    }

    /// Frees the slot and returns the block write that was in it.
    fn take(&mut self) -> Option<BlockWrite> {
        match mem::take(self) {
            Self::Free => None,
            Self::Flying(write) | Self::Kept(write) => Some(write),
        }
    }
}

/// Write of a block to its capture file.
struct BlockWrite {
    queue: usize,
    /// Number of the block's link in the chain of its file.
    link: u64,
    /// Number of bytes of the write block that the write must store in the capture file.
    want: usize,
    block: Block,
}

/// State of a queue in the writer thread.
pub(super) struct WriterQueue {
    /// Queue number in the names of the capture files; `None`: files of all queues.
    queue: Option<u16>,
    /// Channel that returns emptied write blocks to the queue's sink.
    pub(super) empty: Sender<Block>,
    /// Flag that makes the queue's sink begin a new file.
    broken: Arc<AtomicBool>,
    ledger: FileLedger,
    /// Open files of the queue, oldest first: earlier files whose last blocks are still being
    /// written, then the current file.
    files: VecDeque<ChainedFile>,
    /// Number of the queue's latest file that could not be created. Its blocks are lost.
    not_created: Option<u64>,
    /// Number of the queue's next write block in order.
    next: u64,
    /// Write blocks of the queue that arrived before an earlier block, by number.
    early: BTreeMap<u64, Block>,
    /// Number of the queue's first write block that is neither written nor given up.
    settled: u64,
    /// Numbers of later blocks of the queue that are written or given up.
    settled_early: BTreeSet<u64>,
    /// Times at which the queue's blocks that are not settled were sent.
    sent: Arc<SentBlocks>,
}

impl WriterQueue {
    pub(super) fn new(
        queue: Option<u16>,
        empty: Sender<Block>,
        broken: Arc<AtomicBool>,
        ledger: FileLedger,
        sent: Arc<SentBlocks>,
    ) -> Self {
        Self {
            queue,
            sent,
            empty,
            broken,
            ledger,
            files: VecDeque::new(),
            not_created: None,
            next: 0,
            early: BTreeMap::new(),
            settled: 0,
            settled_early: BTreeSet::new(),
        }
    }

    fn file(&mut self, number: u64) -> Option<&mut ChainedFile> {
        self.files.iter_mut().find(|it| it.number == number)
    }

    /// Counts a write block's frames as lost and returns its memory to the sink.
    fn lose(&mut self, block: Block) {
        self.ledger.count_lost(&block.tally);
        self.give_back(block);
    }

    /// Marks a write block as written or given up, and returns its memory to the sink.
    fn give_back(&mut self, block: Block) {
        self.settled_early.insert(block.number);
        while self.settled_early.remove(&self.settled) {
            self.settled += 1;
            self.sent.remove_oldest();
        }
        // The sink may have ended already, and then needs no blocks.
        let _ = self.empty.send(block);
    }
}

/// Channels and flags that connect the writer thread to the other threads.
pub(super) struct WriterChannels {
    pub(super) full: Receiver<Full>,
    pub(super) unclosed: Unclosed,
    pub(super) failed: Arc<Alarm>,
    /// Requests of the capture to its sinks. The writer thread records there which flushes have
    /// reached the disk.
    pub(super) requests: Arc<SinkRequests>,
    /// Trigger of the retention thread, which deletes old files; `None`: there is no such thread.
    pub(super) trigger: Option<RetentionTrigger>,
    /// Handle of the thread that opens capture files in advance.
    pub(super) ahead: Preopen,
}

impl WriterThread {
    /// Creates the state of a writer thread whose files are named by `naming`.
    pub(super) fn new(
        naming: Naming,
        packed: bool,
        queues: Vec<WriterQueue>,
        channels: WriterChannels,
        deadline: Arc<ShutdownDeadline>,
    ) -> Self {
        let policy = DiskPolicy::new(deadline);
        Self {
            naming: Arc::new(naming),
            packed,
            channels,
            queues,
            disk: Disk::plain(),
            ready: VecDeque::new(),
            slots: (0..DEPTH).map(|_| WriteSlot::Free).collect(),
            policy,
            next_sync: Instant::now(),
            finished: WriterReport::default(),
        }
    }

    /// Runs the writer thread until every sink has ended and all blocks are written. Files end with
    /// their data on disk, even if this thread panics.
    pub(super) fn run(mut self, disk: Disk) -> WriterReport {
        self.disk = disk;
        if catch_unwind(AssertUnwindSafe(|| self.write_blocks())).is_err() {
            self.fail(
                "the thread that writes files ended in a panic; files end before the blocks that it had not written: \
                 this is a fault in wqcap: please report it",
            );
            // No block may be written behind the end of its file, or from memory that has another use by then.
            self.disk.drain();
        }
        let notice = self.policy.end_wait(Instant::now());
        self.note(notice);
        for write in self.slots.iter_mut().filter_map(WriteSlot::take) {
            let queue = &mut self.queues[write.queue];
            let ledger = queue.ledger.clone();
            if let Some(file) = queue.file(write.block.file) {
                file.settle(write.link, false, &ledger);
            }
        }
        for full in self.ready.drain(..) {
            self.queues[usize::from(full.queue)].lose(full.block);
        }
        for queue in 0..self.queues.len() {
            // Blocks that wait for an earlier block, which was lost with its packer.
            for block in mem::take(&mut self.queues[queue].early).into_values() {
                self.queues[queue].lose(block);
            }
            while let Some(file) = self.queues[queue].files.pop_front() {
                self.hand_to_closer(queue, file);
            }
        }
        self.disk.close();
        if let Some(note) = self.channels.unclosed.note() {
            self.finished.note(note);
        }
        self.finished
    }

    fn write_blocks(&mut self) {
        let mut open = true;
        while open || self.in_flight() > 0 || !self.ready.is_empty() {
            let now = Instant::now();
            self.retry_kept(now);
            self.sync_files(now);
            open = self.take_blocks(open);
            if (self.slots.iter()).any(|it| matches!(it, WriteSlot::Flying(_))) {
                self.reap();
            } else if let Some(nap) = self.policy.nap(Instant::now()) {
                std::thread::sleep(nap);
            }
            for (index, queue) in self.queues.iter().enumerate() {
                self.channels.requests.publish_written(index, queue.settled);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.slots.iter().filter_map(WriteSlot::write).count()
    }

    /// Takes all write blocks from the channel and starts as many writes as the disk accepts.
    /// Returns `false` if all sinks have ended.
    fn take_blocks(&mut self, mut open: bool) -> bool {
        // Without a write in progress, a new block is the only event to wait for.
        let mut waits = self.in_flight() == 0 && self.ready.is_empty();
        while open && !self.policy.pauses() {
            let next = match mem::take(&mut waits) {
                true => self.wait(),
                false => self.channels.full.try_recv(),
            };
            match next {
                Ok(full) => self.put_in_order(full),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => open = false,
            }
        }
        while let Some(next) = self.ready.front()
            && !self.policy.pauses()
            && self.can_submit(usize::from(next.queue))
            && let Some(full) = self.ready.pop_front()
        {
            self.place(full);
        }
        open
    }

    /// Returns `true` if the disk accepts another write block of a queue now.
    fn can_submit(&self, queue: usize) -> bool {
        self.in_flight() < self.disk.at_once(self.is_only(queue))
    }

    /// Returns `true` if all write blocks that are being written or waiting belong to this queue.
    /// The blocks of one queue extend one file, and the kernel serializes such writes: ext4 takes
    /// the inode lock exclusively (`ext4_dio_write_checks`), and XFS waits for all other writes
    /// before one beyond the file's end (`xfs_file_write_checks`). Only blocks of another queue
    /// gain from concurrent writes.
    fn is_only(&self, queue: usize) -> bool {
        let under_way = self.slots.iter().filter_map(WriteSlot::write);
        let under_way = under_way.map(|it| it.queue);
        let ready = self.ready.iter().map(|it| usize::from(it.queue));
        let waiting = |it: &WriterQueue| it.files.iter().any(ChainedFile::has_waiting);
        let queues = self.queues.iter().enumerate();
        let waiting = queues.filter_map(|(index, it)| waiting(it).then_some(index));
        under_way.chain(ready).chain(waiting).all(|it| it == queue)
    }

    /// Waits for a write block from the sinks. If a file must be synced, waits at most until the
    /// next sync is due.
    fn wait(&self) -> Result<Full, TryRecvError> {
        let files = || self.queues.iter().flat_map(|queue| &queue.files);
        if !files().any(ChainedFile::is_unsynced) {
            return self
                .channels
                .full
                .recv()
                .map_err(|_| TryRecvError::Disconnected);
        }
        let waited = self.channels.full.recv_deadline(self.next_sync);
        waited.map_err(|e| match e {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// Requests that the closer syncs the open capture files, once per [`SYNC_EVERY`].
    fn sync_files(&mut self, now: Instant) {
        if now < self.next_sync {
            return;
        }
        self.next_sync = now + SYNC_EVERY;
        for file in self.queues.iter_mut().flat_map(|queue| &mut queue.files) {
            if let Some(order) = file.take_sync() {
                self.channels.unclosed.push(CloserTask::Sync(order));
            }
        }
    }

    /// Moves a write block that is next in its queue's order to `ready`, with the blocks that
    /// waited for it. Keeps any other block until then.
    fn put_in_order(&mut self, full: Full) {
        let queue = &mut self.queues[usize::from(full.queue)];
        queue.early.insert(full.number, full.block);
        while let Some(mut block) = queue.early.remove(&queue.next) {
            block.number = queue.next;
            self.ready.push_back(Full {
                queue: full.queue,
                number: queue.next,
                block,
            });
            queue.next += 1;
        }
    }

    fn fail(&mut self, failure: impl Display) {
        self.channels.failed.raise();
        self.finished.fail(failure);
    }

    /// Adds a notice about the disk to the report of the run.
    fn note(&mut self, notice: Option<DiskNotice>) {
        if let Some(notice) = notice {
            tracing::warn!("{notice}");
            self.finished.note(notice.to_string());
        }
    }

    /// Passes a write block to its file, opening the file if needed, and starts its write unless the
    /// block must wait.
    fn place(&mut self, mut full: Full) {
        let index = usize::from(full.queue);
        if self.policy.has_given_up() {
            return self.give_up_block(index, full.block);
        }
        let (queue, number) = (&mut self.queues[index], full.block.file);
        let is_open = queue.files.back().is_some_and(|it| it.number == number);
        if !is_open && queue.not_created != Some(number) && !self.begin(index, &full.block) {
            return self.ready.push_front(full);
        }
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.back_mut().filter(|it| it.number == number) else {
            return queue.lose(full.block);
        };
        if self.packed {
            file.place_packed(&mut full.block);
        }
        match file.accept(full.block) {
            BlockFate::Write(block) => self.write(index, block),
            BlockFate::Waits => {}
            BlockFate::Lost(block) => queue.lose(block),
            BlockFate::Breaks(block) => {
                queue.broken.store(true, Ordering::Relaxed);
                queue.lose(block);
                self.fail(
                    "cannot compress a write block: its frames are lost; the records before it in its file stay readable",
                );
            }
        }
        self.sweep(index);
    }

    /// Discards a write block after writing was given up: its file ends before the block.
    fn give_up_block(&mut self, index: usize, block: Block) {
        let queue = &mut self.queues[index];
        queue.lose(block);
        let number = queue.files.back_mut().map(|file| {
            file.give_up();
            file.number
        });
        if let Some(number) = number {
            self.write_waiting(index, number);
        }
    }

    /// Opens the capture file whose first block is `block`. Returns `false` if the disk is full.
    fn begin(&mut self, index: usize, block: &Block) -> bool {
        // A previous file without a last block could not be continued.
        if let Some(last) = self.queues[index].files.back_mut() {
            last.complete();
        }
        self.sweep(index);
        let (queue, opened) = (&mut self.queues[index], self.channels.ahead.take(index));
        match NamedFile::create(&self.naming, queue.queue, block.first_ns, opened) {
            Ok(named) => {
                let file = queue
                    .files
                    .push_back_mut(ChainedFile::new(block.file, named));
                file.place = self.disk.register_file(&file.named.file);
            }
            Err(failure) => match self.policy.after_create(failure.class(), Instant::now()) {
                CreateDecision::Keep(notice) => {
                    log(failure, notice);
                    return false;
                }
                CreateDecision::Lose => {
                    queue.not_created = Some(block.file);
                    queue.broken.store(true, Ordering::Relaxed);
                    self.fail(failure);
                }
            },
        }
        true
    }

    /// Starts the write of a block to its file.
    fn write(&mut self, index: usize, mut block: Block) {
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.iter_mut().find(|it| it.number == block.file) else {
            return;
        };
        let cut = file.is_cut();
        if cut.is_some() {
            queue.broken.store(true, Ordering::Relaxed);
        }
        // The caller has checked that a token is free.
        let free = |it: &WriteSlot| matches!(it, WriteSlot::Free);
        if let Some(token) = self.slots.iter().position(free) {
            let mut want = block.len;
            if file.named.direct && !want.is_multiple_of(ALIGN) {
                // Direct I/O writes whole sectors. The file is truncated to its true length afterwards.
                want = want.next_multiple_of(ALIGN);
                let len = block.len;
                block.memory.as_mut_slice()[len..want].fill(0);
            }
            let write = BlockWrite {
                queue: index,
                link: file.chain(&block),
                want,
                block,
            };
            self.submit(token, write);
        } else {
            file.keep(block);
        }
        if let Some(cut) = cut {
            self.fail(cut);
        }
    }

    fn submit(&mut self, token: usize, write: BlockWrite) {
        let alone = self.in_flight() == 0 && self.is_only(write.queue);
        let slot = &mut self.slots[token];
        *slot = WriteSlot::Flying(write);
        if let WriteSlot::Flying(BlockWrite {
            queue, want, block, ..
        }) = slot
            && let Some(file) = self.queues[*queue].file(block.file)
        {
            let write = Write {
                token,
                file: &file.named.file,
                place: file.place,
                offset: block.offset,
                bytes: block.memory.as_slice(*want),
                extent: block.extent,
                alone,
            };
            #[allow(unsafe_code)]
            // SAFETY: the block's memory is the mapping with which it joined the pool, and does not move with the
            // block. The block stays in `slots`, unmodified, until `reap` returns the write's completion or `drain`
            // has waited for it. The file stays in `queues` as long as its chain holds this link.
            return unsafe { self.disk.submit(write) };
        }
        let result = Err(io::ErrorKind::NotFound.into());
        self.complete_write(CompletedWrite { token, result });
    }

    /// Processes the completed block writes and starts the blocks that waited for them.
    fn reap(&mut self) {
        let mut ended = Vec::with_capacity(DEPTH as usize);
        self.disk.reap(|done| ended.push(done));
        for done in ended {
            self.complete_write(done);
        }
        // Blocks of any queue that waited for a free token.
        for index in 0..self.queues.len() {
            let mut files = self.queues[index].files.iter();
            if let Some(number) = files.find(|it| it.has_waiting()).map(|it| it.number) {
                self.write_waiting(index, number);
                self.sweep(index);
            }
        }
    }

    /// Processes the completion of one block write.
    fn complete_write(&mut self, done: CompletedWrite) {
        let Some(write) = self.slots.get_mut(done.token).and_then(WriteSlot::take) else {
            return;
        };
        let (index, want, number) = (write.queue, write.want, write.block.file);
        let end = match self.policy.after_write(done.result, want, Instant::now()) {
            WriteDecision::End(end) => end,
            WriteDecision::Repeat {
                from,
                leaves_direct,
            } => {
                let repeated = self.repeat_write(&write, from, leaves_direct);
                self.policy.after_repeat(repeated, Instant::now())
            }
        };
        let queue = &mut self.queues[index];
        let name = || {
            let file = queue.files.iter().find(|it| it.number == number);
            file.map_or_else(String::new, |it| it.named.part.display().to_string())
        };
        let written = match end {
            WriteEnd::Keep(e, notice) => {
                log(format_args!("{}: {e}", name()), notice);
                self.slots[done.token] = WriteSlot::Kept(write);
                return;
            }
            WriteEnd::Lose(e) => {
                queue.broken.store(true, Ordering::Relaxed);
                let name = name();
                self.fail(format_args!(
                    "cannot write {want} bytes to {name}: {e}; the whole records before these bytes stay readable"
                ));
                false
            }
            WriteEnd::Done(notice) => {
                self.note(notice);
                true
            }
        };
        let queue = &mut self.queues[index];
        let ledger = queue.ledger.clone();
        if let Some(file) = queue.file(number) {
            file.settle(write.link, written, &ledger);
        }
        queue.give_back(write.block);
        self.write_waiting(index, number);
        self.sweep(index);
    }

    /// Repeats the write of a block with plain writes from byte `from`. With `leaves_direct`, the
    /// file leaves direct I/O before.
    fn repeat_write(
        &mut self,
        write: &BlockWrite,
        from: usize,
        leaves_direct: bool,
    ) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let block = &write.block;
        let Some(file) = self.queues[write.queue].file(block.file) else {
            return Ok(());
        };
        let named = &mut file.named;
        if leaves_direct && named.direct {
            named.go_through_page_cache()?;
        }
        // Direct I/O continues at the start of a sector.
        let (from, want) = if named.direct {
            (from - from % ALIGN, write.want)
        } else {
            (from, block.len)
        };
        named.file.write_all_at(
            &block.memory.as_slice(want)[from..],
            block.offset + from as u64,
        )
    }

    /// Starts the waiting blocks of a file if they need not wait any longer: for a partial block before
    /// them, or for the disk to accept another write.
    fn write_waiting(&mut self, index: usize, number: u64) {
        let queue = &mut self.queues[index];
        let Some(file) = queue.file(number) else {
            return;
        };
        file.end_tail();
        for block in file.take_lost() {
            queue.lose(block);
        }
        while self.can_submit(index)
            && let Some(file) = self.queues[index].file(number)
            && let Some(block) = file.next_waiting()
        {
            self.write(index, block);
        }
    }

    /// Passes a queue's complete capture files to the closer.
    fn sweep(&mut self, index: usize) {
        while let Some(file) = self.queues[index].files.pop_front_if(|it| it.is_done()) {
            self.hand_to_closer(index, file);
        }
    }

    fn hand_to_closer(&mut self, index: usize, file: ChainedFile) {
        self.disk.unregister_file(file.place);
        let queue = &mut self.queues[index];
        let (closing, waiting) = file.into_closing(queue.ledger.clone());
        waiting.into_iter().for_each(|block| queue.lose(block));
        (self.channels.unclosed).push(CloserTask::Close(closing));
    }

    /// Repeats the block writes that failed because the disk was full, when the next attempt is
    /// due.
    fn retry_kept(&mut self, now: Instant) {
        if !self.policy.begin_attempt(now) {
            return;
        }
        if let Some(trigger) = &self.channels.trigger {
            trigger.ask_for_room();
        }
        for token in 0..self.slots.len() {
            let slot = &mut self.slots[token];
            if matches!(slot, WriteSlot::Kept(_))
                && let Some(write) = slot.take()
            {
                self.submit(token, write);
            }
        }
    }
}

/// Logs a failure after which a block is kept, with the notice that the disk has become full.
fn log(failure: impl Display, notice: Option<DiskNotice>) {
    if let Some(notice) = notice {
        tracing::error!("{failure}: {notice}");
    }
}
