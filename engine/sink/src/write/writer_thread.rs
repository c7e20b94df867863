//! Writer thread: takes full blocks and writes them, blocks of several queues concurrently.
//!
//! While the disk is full, the thread waits and keeps every block. Any other write error ends the
//! file at its last whole record on disk, and the queue continues in a new file.

use crate::{
    SinkRequests,
    block::{ALIGN, Block, FileLedger, Full},
    post::retention::RetentionTrigger,
    write::{
        closer::CloserTask,
        disk::{CompletedWrite, DEPTH, Disk, Write, is_transient},
        disk_full::{DiskFull, ShutdownDeadline, is_no_space},
        finished::WriterReport,
        named::NamedFile,
        naming::Naming,
        open::ChainedFile,
        preopen::Preopen,
    },
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
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
/// Longest sleep of the writer thread while the disk is full, so that it notices the run's end.
const NAP: Duration = Duration::from_millis(50);

/// State of the writer thread.
pub(super) struct WriterThread {
    naming: Arc<Naming>,
    /// `true` if blocks come from packer threads: out of order, and without an offset in their
    /// file.
    pub(super) packed: bool,
    pub(super) channels: WriterChannels,
    pub(super) queues: Vec<WriterQueue>,
    disk: Disk,
    /// Write blocks to write next, in order for each queue.
    ready: VecDeque<Full>,
    /// Write blocks being written, by token.
    flying: Vec<Option<Flying>>,
    /// State of the writer thread's wait while the disk is full.
    disk_full: Option<DiskFull>,
    next_sync: Instant,
    finished: WriterReport,
}

/// Write block being written to disk.
struct Flying {
    queue: usize,
    /// Number of the block's link in the chain of its file.
    link: u64,
    /// Number of the block's bytes to write.
    want: usize,
    block: Block,
    /// Set if the disk was full: the write block waits for another attempt.
    stuck: bool,
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
    /// Number of the queue's next write block in order.
    next: u64,
    /// Write blocks of the queue that arrived before an earlier block, by number.
    early: BTreeMap<u64, Block>,
    /// Number of the queue's first write block that is neither written nor given up.
    settled: u64,
    /// Numbers of later blocks of the queue that are written or given up.
    settled_early: BTreeSet<u64>,
}

impl WriterQueue {
    pub(super) fn new(
        queue: Option<u16>,
        empty: Sender<Block>,
        broken: Arc<AtomicBool>,
        ledger: FileLedger,
    ) -> Self {
        Self {
            queue,
            empty,
            broken,
            ledger,
            files: VecDeque::new(),
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
        }
        // The sink may have ended already, and then needs no blocks.
        let _ = self.empty.send(block);
    }
}

/// Channels and flags that connect the writer thread to the other threads.
pub(super) struct WriterChannels {
    pub(super) full: Receiver<Full>,
    pub(super) closer: Sender<CloserTask>,
    pub(super) deadline: Arc<ShutdownDeadline>,
    pub(super) failed: Arc<Alarm>,
    /// Requests to the sinks, in which the writer thread publishes the progress of flushes.
    pub(super) requests: Arc<SinkRequests>,
    /// Trigger of the retention thread, which deletes old files; `None`: files are never deleted.
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
    ) -> Self {
        Self {
            naming: Arc::new(naming),
            packed,
            channels,
            queues,
            disk: Disk::plain(),
            ready: VecDeque::new(),
            flying: (0..DEPTH).map(|_| None).collect(),
            disk_full: None,
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
                 this is a fault in wqcap: please report it"
                    .into(),
            );
            // No block may be written behind the end of its file, or from memory that has another use by then.
            self.disk.drain();
        }
        self.disk_has_room(Instant::now());
        for flying in self.flying.drain(..).flatten() {
            let queue = &mut self.queues[flying.queue];
            let ledger = queue.ledger.clone();
            if let Some(file) = queue.file(flying.block.file) {
                file.settle(flying.link, false, &ledger);
            }
        }
        for full in self.ready.drain(..) {
            self.queues[usize::from(full.queue)].lose(full.block);
        }
        for queue in 0..self.queues.len() {
            // Blocks that wait for an earlier block, which was lost with its packer.
            for block in std::mem::take(&mut self.queues[queue].early).into_values() {
                self.queues[queue].lose(block);
            }
            while let Some(mut file) = self.queues[queue].files.pop_front() {
                for block in file.waiting.drain(..) {
                    self.queues[queue].lose(block);
                }
                self.hand_to_closer(queue, file);
            }
        }
        self.disk.close();
        self.finished
    }

    fn write_blocks(&mut self) {
        let mut open = true;
        while open || self.in_flight() > 0 || !self.ready.is_empty() {
            let now = Instant::now();
            self.retry_stuck(now);
            self.sync_files(now);
            open = self.take_blocks(open);
            if self.flying.iter().flatten().any(|it| !it.stuck) {
                self.reap();
            } else if let Some(disk_full) = &self.disk_full {
                std::thread::sleep(disk_full.remaining(Instant::now()).min(NAP));
            }
            for (index, queue) in self.queues.iter().enumerate() {
                self.channels.requests.publish_written(index, queue.settled);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.flying.iter().flatten().count()
    }

    /// Takes all write blocks from the channel and starts as many writes as the disk accepts.
    /// Returns `false` if all sinks have ended.
    fn take_blocks(&mut self, mut open: bool) -> bool {
        // Without a write in progress, a new block is the only event to wait for.
        let mut waits = self.in_flight() == 0 && self.ready.is_empty();
        while open && !self.pauses() {
            let next = match std::mem::take(&mut waits) {
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
            && !self.pauses()
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
        let under_way = self.flying.iter().flatten().map(|it| it.queue);
        let ready = self.ready.iter().map(|it| usize::from(it.queue));
        let waiting = |it: &WriterQueue| it.files.iter().any(|file| !file.waiting.is_empty());
        let queues = self.queues.iter().enumerate();
        let waiting = queues.filter_map(|(index, it)| waiting(it).then_some(index));
        under_way.chain(ready).chain(waiting).all(|it| it == queue)
    }

    /// Waits for a write block from the sinks. If a file must be synced, waits at most until the
    /// next sync is due.
    fn wait(&self) -> Result<Full, TryRecvError> {
        let files = || self.queues.iter().flat_map(|queue| &queue.files);
        if !files().any(|file| file.unsynced) {
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
                // The closer thread outlives this thread.
                let _ = self.channels.closer.send(CloserTask::Sync(order));
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

    fn fail(&mut self, failure: String) {
        self.channels.failed.raise();
        self.finished.fail(failure);
    }

    /// Assigns a write block to its file, opening the file if needed, and starts its write unless
    /// the block must wait.
    fn place(&mut self, mut full: Full) {
        let index = usize::from(full.queue);
        if self.channels.deadline.has_given_up() {
            return self.give_up_block(index, full.block);
        }
        let number = full.block.file;
        let last = self.queues[index].files.back();
        if last.is_none_or(|f| f.number != number) && !self.begin(index, &full.block) {
            return self.ready.push_front(full);
        }
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.back_mut() else {
            return;
        };
        file.ended |= full.block.end;
        if self.packed {
            full.block.offset = file.end;
            file.end += full.block.len as u64;
        }
        let spoils = full.block.spoilt && !file.broke;
        file.broke |= spoils;
        if file.broke {
            queue.broken.fetch_or(spoils, Ordering::Relaxed);
            queue.lose(full.block);
        } else if file.partial || !file.waiting.is_empty() {
            file.waiting.push_back(full.block);
        } else {
            self.write(index, full.block);
        }
        if spoils {
            self.fail(
                "cannot compress a write block: its frames are lost; the records before it in its file stay readable"
                    .into(),
            );
        }
        self.sweep(index);
    }

    /// Discards a write block after writing was given up: its file ends before the block.
    fn give_up_block(&mut self, index: usize, block: Block) {
        let queue = &mut self.queues[index];
        queue.lose(block);
        let number = queue.files.back_mut().map(|file| {
            file.broke = true;
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
            last.ended = true;
        }
        self.sweep(index);
        let (queue, opened) = (&self.queues[index], self.channels.ahead.take(index));
        let named = match NamedFile::create(&self.naming, queue.queue, block.first_ns, opened) {
            Ok(named) => Some(named),
            Err(refusal) if refusal.is_no_space && self.waits_for_room() => {
                self.disk_is_full(&refusal.text);
                return false;
            }
            Err(refusal) => {
                queue.broken.store(true, Ordering::Relaxed);
                self.fail(refusal.text);
                None
            }
        };
        let files = &mut self.queues[index].files;
        let open = files.push_back_mut(ChainedFile::new(block.file, named));
        if let Some(named) = &open.named {
            open.place = self.disk.register_file(&named.file);
        }
        true
    }

    /// Starts the write of a block to its file.
    fn write(&mut self, index: usize, mut block: Block) {
        let Some(file) = self.queues[index].file(block.file) else {
            return;
        };
        if let Some(cut) = file.is_cut() {
            self.queues[index].broken.store(true, Ordering::Relaxed);
            self.fail(cut);
        }
        let Some(file) = self.queues[index].file(block.file) else {
            return;
        };
        let Some(named) = &file.named else { return };
        // The caller has checked that a token is free.
        let Some(token) = self.flying.iter().position(Option::is_none) else {
            file.waiting.push_front(block);
            return;
        };
        let mut want = block.len;
        if !want.is_multiple_of(ALIGN) {
            file.partial = true;
            if named.direct {
                // Direct I/O writes whole sectors. The file is truncated to its true length afterwards.
                want = want.next_multiple_of(ALIGN);
                let len = block.len;
                block.memory.as_mut_slice()[len..want].fill(0);
            }
        }
        let flying = Flying {
            queue: index,
            link: file.chain(&block),
            want,
            block,
            stuck: false,
        };
        self.submit(token, flying);
    }

    fn submit(&mut self, token: usize, flying: Flying) {
        let alone = self.in_flight() == 0 && self.is_only(flying.queue);
        let flying = self.flying[token].insert(flying);
        let block = &flying.block;
        let file = self.queues[flying.queue].file(block.file);
        if let Some((place, Some(named))) = file.map(|it| (it.place, &it.named)) {
            let write = Write {
                token,
                file: &named.file,
                place,
                offset: block.offset,
                bytes: block.memory.as_slice(flying.want),
                extent: block.extent,
                alone,
            };
            #[allow(unsafe_code)]
            // SAFETY: the block's memory is the mapping with which it joined the pool, and does not move with the
            // block. The block stays in `flying`, unmodified, until `reap` returns the write's completion or `drain`
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
            let waiting = |f: &&ChainedFile| !f.waiting.is_empty();
            if let Some(number) = self.queues[index]
                .files
                .iter()
                .find(waiting)
                .map(|f| f.number)
            {
                self.write_waiting(index, number);
                self.sweep(index);
            }
        }
    }

    /// Processes the completion of one block write.
    fn complete_write(&mut self, done: CompletedWrite) {
        let Some(mut flying) = self.flying.get_mut(done.token).and_then(Option::take) else {
            return;
        };
        let (index, want, number) = (flying.queue, flying.want, flying.block.file);
        let result = match done.result {
            Ok(n) if n == want => Ok(()),
            Ok(n) => self.write_rest(&flying, n, false),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.write_rest(&flying, 0, true),
            Err(e) if is_transient(&e) => self.write_rest(&flying, 0, false),
            Err(e) => Err(e),
        };
        let name = self.queues[index].file(number).map(|it| it.name());
        let name = name.unwrap_or_default();
        match &result {
            Err(e) if is_no_space(e) && self.waits_for_room() => {
                flying.stuck = true;
                self.flying[done.token] = Some(flying);
                return self.disk_is_full(&format!("{name}: {e}"));
            }
            Err(e) => self.fail(format!(
                "cannot write {want} bytes to {name}: {e}; the whole records before these bytes stay readable"
            )),
            Ok(()) if self.disk_full.as_ref().is_some_and(|it| !it.waits()) => {
                self.disk_has_room(Instant::now());
            }
            Ok(()) => {}
        }
        let queue = &mut self.queues[index];
        queue.broken.fetch_or(result.is_err(), Ordering::Relaxed);
        let ledger = queue.ledger.clone();
        if let Some(file) = queue.file(number) {
            file.settle(flying.link, result.is_ok(), &ledger);
        }
        queue.give_back(flying.block);
        self.write_waiting(index, number);
        self.sweep(index);
    }

    /// Repeats a block write with plain writes from byte `from`, after it was short, failed
    /// transiently, or was refused as direct I/O. In the last case `buffered` is set, and the file
    /// leaves direct I/O.
    fn write_rest(&mut self, flying: &Flying, from: usize, buffered: bool) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let block = &flying.block;
        let file = self.queues[flying.queue].file(block.file);
        let Some(named) = file.and_then(|f| f.named.as_mut()) else {
            return Ok(());
        };
        if buffered && named.direct {
            named.go_through_page_cache()?;
        }
        // Direct I/O continues at the start of a sector.
        let (from, want) = if named.direct {
            (from - from % ALIGN, flying.want)
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
        if file.broke {
            for block in std::mem::take(&mut file.waiting) {
                queue.lose(block);
            }
            return;
        }
        if file.partial {
            if !file.chain.is_empty() {
                return;
            }
            file.finish_partial();
        }
        while self.can_submit(index)
            && let Some(file) = self.queues[index].file(number)
            && !file.partial
            && let Some(block) = file.waiting.pop_front()
        {
            self.write(index, block);
        }
    }

    /// Passes a queue's complete capture files to the closer.
    fn sweep(&mut self, index: usize) {
        while let Some(file) = self.queues[index].files.front()
            && file.ended
            && file.flying == 0
            && file.waiting.is_empty()
            && let Some(file) = self.queues[index].files.pop_front()
        {
            self.hand_to_closer(index, file);
        }
    }

    fn hand_to_closer(&mut self, index: usize, file: ChainedFile) {
        self.disk.unregister_file(file.place);
        if let Some(closing) = file.into_closing(self.queues[index].ledger.clone()) {
            // The closer thread outlives this thread.
            let _ = self.channels.closer.send(CloserTask::Close(closing));
        }
    }
}

/// Handling of a full disk by the writer thread.
impl WriterThread {
    /// Returns `true` while the disk is full and the next attempt to write is not due. No write is
    /// started then.
    fn pauses(&self) -> bool {
        self.disk_full.as_ref().is_some_and(DiskFull::waits)
    }

    /// Returns `true` if the writer waits for a full disk: neither the run's end nor the request to
    /// give up has ended the wait.
    fn waits_for_room(&self) -> bool {
        !self.channels.deadline.has_passed(Instant::now())
    }

    /// Records a write that failed because the disk is full, and begins the wait if it is the first
    /// such write.
    fn disk_is_full(&mut self, what: &str) {
        let now = Instant::now();
        match &mut self.disk_full {
            Some(disk_full) => disk_full.record_failure(now),
            None => {
                tracing::error!(
                    "{what}: the writer is waiting for room; frames fill the write buffers meanwhile, then output.on_full \
                     applies"
                );
                self.disk_full = Some(DiskFull::begin(now));
            }
        }
    }

    /// Repeats the block writes that failed because the disk was full, when the next attempt is
    /// due.
    fn retry_stuck(&mut self, now: Instant) {
        let out_of_patience = !self.waits_for_room();
        let Some(disk_full) = &mut self.disk_full else {
            return;
        };
        if !disk_full.waits() || (!disk_full.remaining(now).is_zero() && !out_of_patience) {
            return;
        }
        disk_full.begin_attempt();
        if let Some(trigger) = &self.channels.trigger {
            trigger.ask_for_room();
        }
        for token in 0..self.flying.len() {
            if let Some(flying) = self.flying[token].take_if(|it| it.stuck) {
                let stuck = false;
                self.submit(token, Flying { stuck, ..flying });
            }
        }
    }

    /// Ends the writer's wait for a full disk, because a write succeeded or the run has ended.
    fn disk_has_room(&mut self, now: Instant) {
        if let Some(disk_full) = self.disk_full.take() {
            let note = format!(
                "output.dir: there was no room for {:.1} s on the disk; frames without a free write buffer were counted as \
                 dropped_storage",
                disk_full.lasted(now).as_secs_f64()
            );
            tracing::warn!("{note}");
            self.finished.note(note);
        }
    }
}
