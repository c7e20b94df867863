//! Ordered stream to stdout (`output.stdout`), for `tcpdump -r -` or Wireshark.
//!
//! Invariant: a frame counts as captured only if its bytes have been written. If the reader closes its
//! end, the run ends in order, and frames that were not written count as lost. A reader that has
//! stopped does not keep the run from ending.

use crate::{
    Encoder, Note, Record, Totals, WriteLimit, reorder::OrderedOutput,
    write::disk_policy::ShutdownDeadline,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    fs::File,
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};
use wqcap_core::{
    stats::QueueCounters,
    sync::wakeup::{Alarm, Wakeup},
};

/// Number of buffered stream bytes at which the buffer is written without waiting for a pause.
const CHUNK: usize = 256 << 10;

/// Bytes that a pipe accepts without blocking once it reports room (`PIPE_BUF`, pipe(7)).
const PIPE_BUF: usize = 4096;
/// Interval at which a stream whose reader does not read checks whether the run ends.
const CHECK: Duration = Duration::from_millis(100);
/// Longest time for which the reader of a stream may read nothing after the end of the run began.
const READER: Duration = Duration::from_secs(10);

/// Output of the frame stream. While the run ends, it does not wait endlessly for its reader.
pub(super) struct PatientOutput {
    out: File,
    /// `true` if a write may block because nothing reads: a pipe or a socket, and not a file.
    has_reader: bool,
    /// Time of the last write, or of the last wait for the reader that was not too long.
    active: Instant,
    deadline: Arc<ShutdownDeadline>,
}

impl PatientOutput {
    /// Creates the output of a run that ends by `deadline`.
    pub(super) fn new(out: File, deadline: Arc<ShutdownDeadline>) -> Self {
        let has_reader = out.metadata().is_ok_and(|it| !it.is_file());
        Self {
            out,
            has_reader,
            active: Instant::now(),
            deadline,
        }
    }

    /// Waits until the stream's reader takes bytes.
    fn wait(&mut self) -> io::Result<()> {
        let timeout = Timespec::try_from(CHECK).map_err(io::Error::other)?;
        loop {
            let mut fds = [PollFd::new(&self.out, PollFlags::OUT)];
            if poll(&mut fds, Some(&timeout))? > 0 {
                return Ok(());
            }
            let now = Instant::now();
            let since = self.deadline.begun().map(|it| it.max(self.active));
            let is_too_long = since.is_some_and(|it| now.saturating_duration_since(it) >= READER);
            if is_too_long || self.deadline.has_given_up() {
                let why = "its reader did not read while the run ended";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
}

impl Write for PatientOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.has_reader {
            return self.out.write(bytes);
        }
        self.wait()?;
        let written = self.out.write(&bytes[..bytes.len().min(PIPE_BUF)])?;
        if self.deadline.begun().is_some() {
            self.active = Instant::now();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Alarms for the end of the frame stream, shared with the writer handle.
#[derive(Debug, Default)]
pub(super) struct StreamEnd {
    /// Raised when the reader of the stream has closed its end.
    pub(super) left: Alarm,
    /// Raised when a write to the stream failed, except because the reader closed its end.
    pub(super) failed: Alarm,
}

impl StreamEnd {
    /// Creates alarms for the end of the stream that wake `owner`.
    pub(super) fn new(owner: &Wakeup) -> Self {
        Self {
            left: Alarm::new(owner),
            failed: Alarm::new(owner),
        }
    }
}

/// Encoder of frame records into a buffer that is written to a stream.
pub(super) struct StreamEncoder<E, W> {
    encoder: E,
    out: W,
    buffer: Vec<u8>,
    /// Frame records in the stream buffer: the offset of each record's end, its queue, and its
    /// bytes on the wire.
    waiting: Vec<(usize, u16, u32)>,
    counters: Vec<Arc<QueueCounters>>,
    totals: Totals,
    end: Arc<StreamEnd>,
    limit: Option<Arc<WriteLimit>>,
    /// Write error that ended the stream.
    failure: Option<io::Error>,
}

impl<E: Encoder, W: Write + Send> StreamEncoder<E, W> {
    /// Creates the stream encoder and writes the file header at once, so that a reader detects the
    /// format before the first frame arrives.
    pub(super) fn begin(
        mut encoder: E,
        out: W,
        counters: &[Arc<QueueCounters>],
        end: Arc<StreamEnd>,
    ) -> Self {
        let buffer = encoder.header(None, u64::MAX);
        let mut stream = Self {
            encoder,
            out,
            buffer,
            waiting: Vec::new(),
            counters: counters.to_vec(),
            totals: Totals::default(),
            end,
            limit: None,
            failure: None,
        };
        stream.write_out();
        stream
    }

    /// Sets the write limit to which the stream's bytes count.
    pub(super) fn with_limit(self, limit: Option<Arc<WriteLimit>>) -> Self {
        Self { limit, ..self }
    }

    /// Writes the trailer of the stream. Returns the error if a write to the stream failed.
    pub(super) fn finish(mut self) -> Option<io::Error> {
        self.buffer.extend(self.encoder.trailer(&self.totals));
        self.write_out();
        self.failure
    }

    fn is_over(&self) -> bool {
        self.end.left.is_raised() || self.failure.is_some()
    }

    fn write_out(&mut self) {
        let mut written = 0;
        if self.is_over() {
            return self.give_up(written);
        }
        match self.write_all(&mut written) {
            Ok(()) => {
                if let Some(limit) = &self.limit {
                    limit.add_bytes(self.buffer.len() as u64);
                }
                self.buffer.clear();
                self.waiting.clear();
            }
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.end.left.raise();
                self.give_up(written);
            }
            Err(e) => {
                self.failure = Some(e);
                self.end.failed.raise();
                self.give_up(written);
            }
        }
    }

    /// Writes the stream buffer. `written` is set to the number of bytes written, also on failure.
    fn write_all(&mut self, written: &mut usize) -> io::Result<()> {
        while *written < self.buffer.len() {
            match self.out.write(&self.buffer[*written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => *written += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.flush()
    }

    /// Discards the stream buffer and counts the records that end behind byte `written` as lost.
    /// They were counted as captured before.
    fn give_up(&mut self, written: usize) {
        self.buffer.clear();
        for (end, queue, len) in self.waiting.drain(..) {
            if end > written
                && let Some(counters) = self.counters.get(usize::from(queue))
            {
                counters.add_lost(1, u64::from(len));
            }
        }
    }
}

impl<E: Encoder, W: Write + Send> OrderedOutput for StreamEncoder<E, W> {
    fn write(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
        if self.is_over() {
            return false;
        }
        let note = filter.filter(|filter| self.encoder.set_filter(filter));
        let note = note.map(|filter| Note::Filter(filter.into()));
        if self.totals.first_ns == 0 {
            self.totals.first_ns = record.ns;
        }
        self.totals.last_ns = record.ns;
        self.totals.received += 1;
        let interface = self.encoder.interface(queue);
        self.totals.count_of(interface, 1, 0);
        let record = &Record {
            interface,
            ..*record
        };
        if let Some(note) = note {
            let bytes = self.encoder.record_with_notes(queue, record, &[note]);
            self.buffer.extend(bytes);
        } else {
            let at = self.buffer.len();
            self.buffer.resize(at + self.encoder.record_len(record), 0);
            self.encoder.record(&mut self.buffer[at..], queue, record);
        }
        self.waiting.push((self.buffer.len(), queue, record.len));
        if self.buffer.len() >= CHUNK {
            self.write_out();
        }
        true
    }

    fn count_lost(&mut self, queue: u16, n: u64) {
        self.totals.count_of(self.encoder.interface(queue), n, n);
        self.totals.received += n;
        self.totals.dropped += n;
    }

    fn end_round(&mut self, _quiet: bool) {
        if !self.buffer.is_empty() {
            self.write_out();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PcapEncoder;

    #[test]
    fn a_reader_that_has_stopped_does_not_keep_the_run_from_ending() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let deadline = Arc::<ShutdownDeadline>::default();
        let mut out = PatientOutput::new(
            File::from(std::os::fd::OwnedFd::from(writer)),
            Arc::clone(&deadline),
        );
        // The reader takes all of this.
        let reading = std::thread::spawn(move || {
            let mut all = vec![0; 1 << 20];
            io::Read::read_exact(&mut reader, &mut all).map(|()| (reader, all))
        });
        out.write_all(&[7; 1 << 20]).expect("written");
        let (_reader, all) = reading.join().expect("ends").expect("read");
        assert_eq!(all, [7; 1 << 20]);
        // From here on it takes nothing.
        let flag = Arc::default();
        deadline.give_up_on(Arc::clone(&flag));
        let writing = std::thread::spawn(move || out.write_all(&[7; 1 << 20]));
        std::thread::sleep(CHECK * 3);
        assert!(!writing.is_finished(), "it waits while the run goes on");
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
        let failure = writing.join().expect("ends").expect_err("not all");
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
    }

    /// Reader that accepts a number of bytes and then closes its end; with the accepted bytes.
    struct Reader(usize, Vec<u8>);

    impl Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let n = bytes.len().min(self.0 - self.1.len());
            if n == 0 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.1.extend(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn frames_not_written_when_the_reader_closes_its_end_are_lost() {
        let counters: Vec<_> = (0..2).map(|_| Arc::new(QueueCounters::default())).collect();
        let end = Arc::new(StreamEnd::default());
        let reader = Reader(24 + 3 * 76 + 70, Vec::new());
        let mut stream =
            StreamEncoder::begin(PcapEncoder::default(), reader, &counters, Arc::clone(&end));
        assert_eq!(stream.out.1.len(), 24, "the header is written at once");
        let record = Record {
            ns: 5,
            bytes: &[7; 60],
            len: 100,
            fcs: &[],
            fcs_len: 0,
            interface: 0,
            bad_fcs: false,
            lost_before: 0,
        };
        assert!(stream.write(1, &record, None));
        stream.end_round(false);
        assert_eq!(stream.out.1.len(), 24 + 76);
        for queue in [0, 1, 1, 0] {
            assert!(stream.write(queue, &record, None));
        }
        assert!(!end.left.is_raised());
        stream.end_round(false);
        assert!(end.left.is_raised());
        assert!(!stream.write(0, &record, None));
        // Two of the four records were written whole.
        for (queue, lost) in [(0, 1), (1, 1)] {
            assert_eq!(counters[queue].ledger(0).dropped_storage, lost);
        }
        assert!(stream.finish().is_none(), "no failure");
    }
}
