//! The writer's thread: takes full blocks and writes them, those of several queues beside each other.
//!
//! A disk without room is waited for, with every block where it is; what breaks a file is any other error. Then the file
//! ends at its last whole record on disk, and the queue goes on in a new one.

use crate::{
    Requests,
    block::{ALIGN, Block, Full, Ledger},
    post::retention::RetentionTrigger,
    write::{
        closer::CloserTask,
        disk::{DEPTH, Disk, Done, Write, is_transient},
        disk_full::{DiskFull, ShutdownDeadline, is_no_space},
        finished::Finished,
        named::Named,
        naming::Naming,
        open::Open,
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

/// How often open files are synced: what a power cut may cost of what was written.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// How long the thread sleeps at most while it waits for room: it must see the run's end.
const NAP: Duration = Duration::from_millis(50);

/// The thread's work.
pub(super) struct WriterThread {
    naming: Arc<Naming>,
    /// Blocks come from packers: out of order, and without a place in their file.
    pub(super) packed: bool,
    pub(super) channels: WriterChannels,
    pub(super) queues: Vec<WriterQueue>,
    disk: Disk,
    /// Blocks whose turn it is.
    ready: VecDeque<Full>,
    /// Blocks on their way to the disk, by token.
    flying: Vec<Option<Flying>>,
    disk_full: Option<DiskFull>,
    next_sync: Instant,
    finished: Finished,
}

/// A block on its way.
struct Flying {
    queue: usize,
    link: u64,
    /// Bytes the write must write.
    want: usize,
    block: Block,
    /// There was no room for it: it waits for another try.
    stuck: bool,
}

/// A queue as the writer sees it.
pub(super) struct WriterQueue {
    /// As in the files' names.
    queue: Option<u16>,
    pub(super) empty: Sender<Block>,
    broken: Arc<AtomicBool>,
    ledger: Ledger,
    /// Open files, oldest first: the one being written, and before it those whose last blocks are still flying.
    files: VecDeque<Open>,
    /// The number of the block whose turn it is.
    next: u64,
    /// Blocks that came before their turn.
    early: BTreeMap<u64, Block>,
    /// All blocks before this number are written or given up.
    settled: u64,
    /// Those among the later ones that are, too.
    settled_early: BTreeSet<u64>,
}

impl WriterQueue {
    pub(super) fn new(
        queue: Option<u16>,
        empty: Sender<Block>,
        broken: Arc<AtomicBool>,
        ledger: Ledger,
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

    fn file(&mut self, number: u64) -> Option<&mut Open> {
        self.files.iter_mut().find(|it| it.number == number)
    }

    /// What was in a block is lost; its memory is not.
    fn lose(&mut self, block: Block) {
        self.ledger.lost(&block.tally);
        self.give_back(block);
    }

    fn give_back(&mut self, block: Block) {
        self.settled_early.insert(block.number);
        while self.settled_early.remove(&self.settled) {
            self.settled += 1;
        }
        // The sink may be gone already, and with it the need for blocks.
        let _ = self.empty.send(block);
    }
}

/// What a writer has from those that made it.
pub(super) struct WriterChannels {
    pub(super) full: Receiver<Full>,
    pub(super) closer: Sender<CloserTask>,
    pub(super) deadline: Arc<ShutdownDeadline>,
    pub(super) failed: Arc<Alarm>,
    /// Where it publishes how far it has come.
    pub(super) requests: Arc<Requests>,
    /// Asks for old files to be deleted, where that is wanted.
    pub(super) trigger: Option<RetentionTrigger>,
    pub(super) ahead: Preopen,
}

impl WriterThread {
    /// Files of such names.
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
            finished: Finished::default(),
        }
    }

    /// Works until every sink is gone and everything is written. Files end with what is on disk of them, even if this
    /// thread ends in a panic.
    pub(super) fn run(mut self, disk: Disk) -> Finished {
        self.disk = disk;
        if catch_unwind(AssertUnwindSafe(|| self.work())).is_err() {
            self.fail(
                "the thread that writes files ended in a panic; files end before what it had not written: this is a fault in wqcap: please report it"
                    .into(),
            );
            // Nothing of a block may be written behind the end of its file, or from memory that is another's.
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
            // Those whose turn never came, since the one before them was lost with its packer.
            for block in std::mem::take(&mut self.queues[queue].early).into_values() {
                self.queues[queue].lose(block);
            }
            while let Some(mut file) = self.queues[queue].files.pop_front() {
                for block in file.waiting.drain(..) {
                    self.queues[queue].lose(block);
                }
                self.leave(queue, file);
            }
        }
        self.disk.close();
        self.finished
    }

    fn work(&mut self) {
        let mut open = true;
        while open || self.in_flight() > 0 || !self.ready.is_empty() {
            let now = Instant::now();
            self.try_again(now);
            self.sync_files(now);
            open = self.take_blocks(open);
            if self.flying.iter().flatten().any(|it| !it.stuck) {
                self.reap();
            } else if let Some(disk_full) = &self.disk_full {
                std::thread::sleep(disk_full.rest(Instant::now()).min(NAP));
            }
            for (index, queue) in self.queues.iter().enumerate() {
                self.channels.requests.publish_written(index, queue.settled);
            }
        }
    }

    fn in_flight(&self) -> usize {
        self.flying.iter().flatten().count()
    }

    /// Takes all blocks that there are, and begins as many as the disk takes; `false`: no more will come.
    fn take_blocks(&mut self, mut open: bool) -> bool {
        // With nothing under way there is nothing else to wait for.
        let mut waits = self.in_flight() == 0 && self.ready.is_empty();
        while open && !self.pauses() {
            let next = match std::mem::take(&mut waits) {
                true => self.wait(),
                false => self.channels.full.try_recv(),
            };
            match next {
                Ok(full) => self.line_up(full),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => open = false,
            }
        }
        while let Some(next) = self.ready.front()
            && !self.pauses()
            && self.takes(usize::from(next.queue))
            && let Some(full) = self.ready.pop_front()
        {
            self.place(full);
        }
        open
    }

    /// Whether the disk takes another of a queue's blocks now.
    fn takes(&self, queue: usize) -> bool {
        self.in_flight() < self.disk.at_once(self.is_only(queue))
    }

    /// Whether all other blocks that are under way, or could be, are of this queue. Its blocks make one file longer, one write
    /// at a time: ext4 does so with the inode to itself (`ext4_dio_write_checks`), and XFS has a write beyond the file's end
    /// wait for all others (`xfs_file_write_checks`). Only another queue's gain from being written beside them.
    fn is_only(&self, queue: usize) -> bool {
        let under_way = self.flying.iter().flatten().map(|it| it.queue);
        let ready = self.ready.iter().map(|it| usize::from(it.queue));
        let waiting = |it: &WriterQueue| it.files.iter().any(|file| !file.waiting.is_empty());
        let queues = self.queues.iter().enumerate();
        let waiting = queues.filter_map(|(index, it)| waiting(it).then_some(index));
        under_way.chain(ready).chain(waiting).all(|it| it == queue)
    }

    /// Waits for a block, as long as no file waits to be synced.
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

    /// Has what was written since the last time synced, by another thread.
    fn sync_files(&mut self, now: Instant) {
        if now < self.next_sync {
            return;
        }
        self.next_sync = now + SYNC_EVERY;
        for file in self.queues.iter_mut().flat_map(|queue| &mut queue.files) {
            if let Some(order) = file.take_sync() {
                // The closer outlives this thread.
                let _ = self.channels.closer.send(CloserTask::Sync(order));
            }
        }
    }

    /// Puts a block, and those that waited for it, among those whose turn it is.
    fn line_up(&mut self, full: Full) {
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

    /// Puts a block into its file's chain, and on its way if nothing stands in it.
    fn place(&mut self, mut full: Full) {
        let index = usize::from(full.queue);
        if self.channels.deadline.has_given_up() {
            return self.give_up(index, full.block);
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
                "a block could not be compressed; what stands before it in its file stays readable"
                    .into(),
            );
        }
        self.sweep(index);
    }

    /// Loses a block that nobody waits for any more: its file ends before it.
    fn give_up(&mut self, index: usize, block: Block) {
        let queue = &mut self.queues[index];
        queue.lose(block);
        let number = queue.files.back_mut().map(|file| {
            file.broke = true;
            file.number
        });
        if let Some(number) = number {
            self.go_on(index, number);
        }
    }

    /// Opens the file that a queue's block is the first of; `false`: there is no room for it now.
    fn begin(&mut self, index: usize, block: &Block) -> bool {
        // A file whose end the sink did not tell broke under it.
        if let Some(last) = self.queues[index].files.back_mut() {
            last.ended = true;
        }
        self.sweep(index);
        let (queue, opened) = (&self.queues[index], self.channels.ahead.take(index));
        let named = match Named::create(&self.naming, queue.queue, block.first_ns, opened) {
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
        let open = files.push_back_mut(Open::new(block.file, named));
        if let Some(named) = &open.named {
            open.place = self.disk.meet(&named.file);
        }
        true
    }

    /// Starts a block's write.
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
            // SAFETY: the block's memory is a mapping that does not move with the block, the one it joined the pool with;
            // the block stays in `flying`, untouched, until `reap` is told of the write's end, or `drain` has waited for
            // it. The file stays in `queues` as long as its chain holds this link.
            return unsafe { self.disk.submit(write) };
        }
        let result = Err(io::ErrorKind::NotFound.into());
        self.done(Done { token, result });
    }

    /// Takes the writes that have ended.
    fn reap(&mut self) {
        let mut ended = Vec::with_capacity(DEPTH as usize);
        self.disk.reap(|done| ended.push(done));
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
        let Some(mut flying) = self.flying.get_mut(done.token).and_then(Option::take) else {
            return;
        };
        let (index, want, number) = (flying.queue, flying.want, flying.block.file);
        let result = match done.result {
            Ok(n) if n == want => Ok(()),
            Ok(n) => self.again(&flying, n, false),
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => self.again(&flying, 0, true),
            Err(e) if is_transient(&e) => self.again(&flying, 0, false),
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
                "cannot write {want} bytes to {name}: {e}; the whole records before them stay readable"
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
        self.go_on(index, number);
        self.sweep(index);
    }

    /// A write that the disk cut short, refused for a moment, or refused as direct I/O (`buffered`): once more, the plain
    /// way, for the rest of it.
    fn again(&mut self, flying: &Flying, from: usize, buffered: bool) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let block = &flying.block;
        let file = self.queues[flying.queue].file(block.file);
        let Some(named) = file.and_then(|f| f.named.as_mut()) else {
            return Ok(());
        };
        if buffered && named.direct {
            named.go_through_page_cache()?;
        }
        // Direct I/O goes on at a sector's start.
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

    /// What waited for a partial block, or for room on the way to the disk, goes.
    fn go_on(&mut self, index: usize, number: u64) {
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
            file.show();
        }
        while self.takes(index)
            && let Some(file) = self.queues[index].file(number)
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

    fn leave(&mut self, index: usize, file: Open) {
        self.disk.part(file.place);
        if let Some(leaving) = file.leave(self.queues[index].ledger.clone()) {
            // The closer outlives this thread.
            let _ = self.channels.closer.send(CloserTask::Leave(leaving));
        }
    }
}

/// A disk without room.
impl WriterThread {
    /// Nothing is begun while there is no room, until it is time for another try.
    fn pauses(&self) -> bool {
        self.disk_full.as_ref().is_some_and(DiskFull::waits)
    }

    fn waits_for_room(&self) -> bool {
        !self.channels.deadline.has_passed(Instant::now())
    }

    /// There is no room, again or for the first time.
    fn disk_is_full(&mut self, what: &str) {
        let now = Instant::now();
        match &mut self.disk_full {
            Some(disk_full) => disk_full.goes_on(now),
            None => {
                tracing::error!(
                    "{what}: waiting for room; frames fill the write buffers meanwhile, then output.on_full holds"
                );
                self.disk_full = Some(DiskFull::begin(now));
            }
        }
    }

    /// Tries again what found no room, when it is time for that.
    fn try_again(&mut self, now: Instant) {
        let out_of_patience = !self.waits_for_room();
        let Some(disk_full) = &mut self.disk_full else {
            return;
        };
        if !disk_full.waits() || (!disk_full.rest(now).is_zero() && !out_of_patience) {
            return;
        }
        disk_full.try_again();
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

    /// Something was written again, or the run has ended.
    fn disk_has_room(&mut self, now: Instant) {
        if let Some(disk_full) = self.disk_full.take() {
            let note = format!(
                "output.dir: there was no room for {:.1} s; frames that found no write buffer meanwhile are in dropped_storage",
                disk_full.lasted(now).as_secs_f64()
            );
            tracing::warn!("{note}");
            self.finished.note(note);
        }
    }
}
