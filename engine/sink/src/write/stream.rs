//! `output.stdout`: one ordered stream, for `tcpdump -r -` or Wireshark.
//!
//! Invariant: a frame counts as captured when its bytes have been written. A reader that leaves ends the run in order:
//! what it did not take is lost, and counted.

use crate::{Encoder, Note, Record, Totals, WriteLimit, reorder::Ordered};
use std::{
    io::{self, Write},
    sync::Arc,
};
use wqcap_core::{
    stats::QueueCounters,
    sync::wakeup::{Alarm, Wakeup},
};

/// Bytes that are written at once, unless there is a pause.
const CHUNK: usize = 256 << 10;

/// What others may know of the stream's end.
#[derive(Debug, Default)]
pub(super) struct StreamEnd {
    /// The reader has closed its end.
    pub(super) left: Alarm,
    /// The stream cannot be written to for another reason.
    pub(super) failed: Alarm,
}

impl StreamEnd {
    /// Of a stream that ends the run of `owner`.
    pub(super) fn of(owner: &Wakeup) -> Self {
        Self {
            left: Alarm::of(owner),
            failed: Alarm::of(owner),
        }
    }
}

/// Encodes into a buffer and writes it out.
pub(super) struct StreamEncoder<E, W> {
    encoder: E,
    out: W,
    buffer: Vec<u8>,
    /// The records in the buffer: where each ends there, its queue, and its bytes on the wire.
    waiting: Vec<(usize, u16, u32)>,
    counters: Vec<Arc<QueueCounters>>,
    totals: Totals,
    end: Arc<StreamEnd>,
    limit: Option<Arc<WriteLimit>>,
    /// Why it failed.
    failure: Option<String>,
}

impl<E: Encoder, W: Write + Send> StreamEncoder<E, W> {
    /// Writes what a file begins with: a reader wants to know what it reads before the first frame comes.
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

    /// The same within what the run may write.
    pub(super) fn within(self, limit: Option<Arc<WriteLimit>>) -> Self {
        Self { limit, ..self }
    }

    /// Writes what a file ends with; the reason, if the stream could not be written.
    pub(super) fn finish(mut self) -> Option<String> {
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
                    limit.wrote(self.buffer.len() as u64);
                }
                self.buffer.clear();
                self.waiting.clear();
            }
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.end.left.raise();
                self.give_up(written);
            }
            Err(e) => {
                self.failure = Some(format!("cannot write to stdout: {e}"));
                self.end.failed.raise();
                self.give_up(written);
            }
        }
    }

    /// Writes the buffer, and tells how far that went even if it fails.
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

    /// What is in the buffer behind `written` counted as captured a moment ago.
    fn give_up(&mut self, written: usize) {
        self.buffer.clear();
        for (end, queue, len) in self.waiting.drain(..) {
            if end > written
                && let Some(counters) = self.counters.get(usize::from(queue))
            {
                counters.lost(1, u64::from(len));
            }
        }
    }
}

impl<E: Encoder, W: Write + Send> Ordered for StreamEncoder<E, W> {
    fn put(&mut self, queue: u16, record: &Record<'_>, filter: Option<&str>) -> bool {
        if self.is_over() {
            return false;
        }
        let told = filter.filter(|filter| self.encoder.filtered(filter));
        let told = told.map(|filter| Note::Filter(filter.into()));
        if self.totals.first_ns == 0 {
            self.totals.first_ns = record.ns;
        }
        self.totals.last_ns = record.ns;
        self.totals.received += 1;
        if let Some(note) = told {
            let bytes = self.encoder.annotated(queue, record, &[note]);
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

    fn lost(&mut self, n: u64) {
        self.totals.received += n;
        self.totals.dropped += n;
    }

    fn rest(&mut self, _quiet: bool) {
        if !self.buffer.is_empty() {
            self.write_out();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PcapEncoder;

    /// Takes so many bytes and leaves.
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
    fn what_a_reader_that_leaves_did_not_take_is_lost() {
        let counters: Vec<_> = (0..2).map(|_| Arc::new(QueueCounters::default())).collect();
        let end = Arc::new(StreamEnd::default());
        let reader = Reader(24 + 3 * 76 + 70, Vec::new());
        let mut stream =
            StreamEncoder::begin(PcapEncoder::default(), reader, &counters, Arc::clone(&end));
        assert_eq!(stream.out.1.len(), 24, "the header at once");
        let record = Record {
            ns: 5,
            bytes: &[7; 60],
            len: 100,
            fcs: &[],
            fcs_len: 0,
            bad_fcs: false,
            lost_before: 0,
        };
        assert!(stream.put(1, &record, None));
        stream.rest(false);
        assert_eq!(stream.out.1.len(), 24 + 76);
        for queue in [0, 1, 1, 0] {
            assert!(stream.put(queue, &record, None));
        }
        assert!(!end.left.is_raised());
        stream.rest(false);
        assert!(end.left.is_raised());
        assert!(!stream.put(0, &record, None));
        // Two of the four were taken whole.
        for (queue, lost) in [(0, 1), (1, 1)] {
            assert_eq!(counters[queue].ledger(0).dropped_storage, lost);
        }
        assert_eq!(stream.finish(), None, "no failure");
    }
}
