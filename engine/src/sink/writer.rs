//! The disk's half: one thread that takes full blocks and writes them, several at once.

use super::{
    BlockSink, Encoder, HookReport, Keep, OnFull, Record, Rotation,
    aftercare::{Aftercare, News},
    block::{ALIGN, Block, Exchange, Full},
    closer::{Leaving, Named},
    disk::{DEPTH, Disk, Done},
};
use crate::{Error, memory::Region, stats::QueueCounters};
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use serde::Serialize;
use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

/// Bytes of a block, where the buffer is large enough for several of them.
const BLOCK: usize = 1 << 20;
/// Blocks a queue has at least: one being filled, one being written, one to go on in.
const LEAST_BLOCKS: usize = 3;
/// Failures told in full; more are counted.
const MOST_FAILURES: usize = 16;

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
    writer: JoinHandle<Finished>,
    closer: JoinHandle<Finished>,
    aftercare: Aftercare,
    failed: Arc<AtomicBool>,
    rotations: Arc<AtomicU64>,
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
        let queues = counters.len().max(1);
        let share = usize::try_from(files.buffer).unwrap_or(usize::MAX) / queues;
        // A record must fit a block with its header, or it could reach over three.
        let longest = vec![0; files.longest];
        let record = Record {
            ns: 0,
            bytes: &longest,
            len: 0,
            fcs: &[],
            fcs_len: 0,
            bad_fcs: false,
            lost_before: 1,
        };
        let least = encoder.record_len(&record) + encoder.header(0).len();
        let size = BLOCK
            .min(share / LEAST_BLOCKS)
            .max(least)
            .next_multiple_of(ALIGN);
        let per_queue = (share / size).max(LEAST_BLOCKS);

        let failed = Arc::new(AtomicBool::new(false));
        let rotations = Arc::<AtomicU64>::default();
        let (full_in, full) = crossbeam_channel::bounded(queues * per_queue);
        let mut sinks = Vec::with_capacity(queues);
        let mut states = Vec::with_capacity(queues);
        for (queue, counters) in (0u16..).zip(counters) {
            let (empty_in, empty) = crossbeam_channel::bounded(per_queue);
            for _ in 0..per_queue {
                // Bounded by the very number of blocks: there is room.
                let _ = empty_in.send(Block::new(Region::allocate(size, None)?));
            }
            let broken = Arc::new(AtomicBool::new(false));
            let exchange = Exchange {
                empty,
                full: full_in.clone(),
                broken: Arc::clone(&broken),
            };
            sinks.push(BlockSink::new(
                queue,
                encoder.clone(),
                files.snaplen,
                files.on_full,
                files.rotation,
                Arc::clone(&rotations),
                exchange,
            ));
            states.push(Queue {
                queue,
                empty: empty_in,
                broken,
                counters: Arc::clone(counters),
                files: VecDeque::new(),
            });
        }
        let (leaving_in, leaving) = crossbeam_channel::unbounded();
        let work = Work {
            dir: files.dir.clone(),
            extension: encoder.extension(),
            full,
            leaving: leaving_in,
            disk: Disk::Plain(Vec::new()),
            flying: (0..DEPTH).map(|_| None).collect(),
            queues: states,
            failed: Arc::clone(&failed),
            finished: Finished::default(),
        };
        let spawn = |name: &str, run: Box<dyn FnOnce() -> Finished + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(run)
                .map_err(|source| Error::System {
                    what: format!("the thread {name}"),
                    source,
                })
        };
        let flag = Arc::clone(&failed);
        let (aftercare, news) = Aftercare::start(files)?;
        let closer = spawn(
            "wqcap-closer",
            Box::new(move || close(&leaving, &flag, &news)),
        )?;
        let writer = spawn("wqcap-writer", Box::new(move || work.run()))?;
        Ok((
            Self {
                writer,
                closer,
                aftercare,
                failed,
                rotations,
            },
            sinks,
        ))
    }

    /// Whether something could not be written.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Asks every sink to go on to its next file, which it does with its next batch, or when it is idle.
    pub fn rotate(&self) {
        self.rotations.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until everything is written, synced and named. Every sink must be gone.
    #[must_use]
    pub fn finish(self) -> Finished {
        let panicked = |_| Finished {
            failures: vec![
                "a thread that writes files ended in a panic; open files keep their .part name"
                    .into(),
            ],
            ..Finished::default()
        };
        let mut finished = self.writer.join().unwrap_or_else(panicked);
        let closed = self.closer.join().unwrap_or_else(panicked);
        finished.files = closed.files;
        finished.failures.extend(closed.failures);
        finished.files.sort();
        let (deleted, hooks) = self.aftercare.finish();
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
    extension: &'static str,
    full: Receiver<Full>,
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
    queue: u16,
    empty: Sender<Block>,
    broken: Arc<AtomicBool>,
    counters: Arc<QueueCounters>,
    /// Open files, oldest first: the one being written, and before it those whose last blocks are still flying.
    files: VecDeque<Open>,
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
    /// Blocks that wait for a partial one before them, which shares a sector with the next.
    waiting: VecDeque<Block>,
    partial: bool,
    /// A block of it could not be written; those behind it are lost.
    broke: bool,
    /// No more blocks will come.
    ended: bool,
    /// Writes under way.
    flying: usize,
}

/// A block of a file, in the file's order.
struct Link {
    frames: u64,
    frame_bytes: u64,
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
            while open && self.in_flight() < DEPTH as usize {
                // With nothing under way there is nothing else to wait for.
                let next = if self.in_flight() == 0 && idle {
                    self.full.recv().map_err(|_| TryRecvError::Disconnected)
                } else {
                    self.full.try_recv()
                };
                match next {
                    Ok(full) => {
                        idle = false;
                        self.place(full);
                    }
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => open = false,
                }
            }
            if self.in_flight() > 0 {
                self.reap();
            }
        }
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
        if file.broke {
            queue.counters.lost(block.frames, block.frame_bytes);
            block.frames = 0;
            let _ = queue.empty.send(block);
        } else if file.partial {
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
        let named = Named::create(&self.dir, queue.queue, block.first_ns, self.extension);
        let mut file = Open {
            number: block.file,
            named: None,
            chain: VecDeque::new(),
            first: 0,
            whole: 0,
            frames: 0,
            frame_bytes: 0,
            waiting: VecDeque::new(),
            partial: false,
            broke: false,
            ended: false,
            flying: 0,
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
            whole_end: block.offset + block.whole as u64,
            state: State::Flying,
        });
        file.flying += 1;
        let token = self.flying.iter().position(Option::is_none).unwrap_or(0);
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
            file.settle(link, result.is_ok(), &queue.counters);
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

    /// After a partial block is on disk, what waited for it goes.
    fn go_on(&mut self, index: usize, number: u64) {
        let queue = &mut self.queues[index];
        let Some(file) = queue.files.iter_mut().find(|f| f.number == number) else {
            return;
        };
        if file.broke {
            for block in file.waiting.drain(..) {
                queue.counters.lost(block.frames, block.frame_bytes);
                let _ = queue.empty.send(block);
            }
            return;
        }
        if !file.partial || !file.chain.is_empty() {
            return;
        }
        file.partial = false;
        // Direct I/O wrote a whole sector: whoever reads the open file must not see the padding.
        if let Some(named) = file.named.as_ref().filter(|n| n.direct)
            && let Err(e) = named.file.set_len(file.whole)
        {
            tracing::warn!(
                "cannot cut {} to its records while it is open: {e}",
                named.part.display()
            );
        }
        while let Some(file) = self.queues[index]
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
                counters: Arc::clone(&self.queues[index].counters),
            });
        }
    }
}

impl Open {
    /// A block's write has ended. The unbroken run grows as far as it can; where it meets a block that failed, that
    /// block and all behind it are lost.
    fn settle(&mut self, link: u64, written: bool, counters: &QueueCounters) {
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
        }
        if self.chain.front().is_some_and(|l| l.state == State::Failed) {
            self.broke = true;
            for link in self.chain.drain(..) {
                self.first += 1;
                counters.lost(link.frames, link.frame_bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pipeline::{Consumer, Frame, Verdict},
        sink::{PcapEncoder, PcapngEncoder},
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
        assert!(writer.has_failed() || !writer.writer.is_finished());
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
