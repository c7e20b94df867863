//! Sources of a queue's consumers, for both pipeline modes.

use super::{Consumer, ConsumerPlace};
use crate::sink::Count;

/// Factory of the frame consumers of one queue.
pub(crate) trait ConsumerSource {
    /// Consumer of the frames, called on the receive loop's core in inline mode.
    type Inline: Consumer + 'static;
    /// Consumer of the frames, called on a parser's core in fan-out mode.
    type Parser: Consumer + 'static;
    /// Sink of the frames that the parsers keep, after the resequencer.
    type Sink: Consumer + 'static;

    /// `true` if the queue's frames must reach the sink in the order of their reception.
    const ORDERED: bool;

    /// Creates the single frame consumer of an inline queue.
    fn inline(self) -> Self::Inline;
    /// Creates the frame consumers of `parsers` parsers, and the sink after their resequencer.
    fn fanout(self, parsers: u16) -> (Vec<Self::Parser>, Self::Sink);
}

/// Consumer source with one sink per queue, such as a file. Parsers only decide on frames for it.
pub(crate) struct ToSink<C>(pub(crate) C);

impl<C: Consumer + 'static> ConsumerSource for ToSink<C> {
    type Inline = C;
    type Parser = Count;
    type Sink = C;

    const ORDERED: bool = true;

    fn inline(self) -> C {
        self.0
    }

    fn fanout(self, parsers: u16) -> (Vec<Count>, C) {
        ((0..parsers).map(|_| Count).collect(), self.0)
    }
}

/// Consumer source that creates a consumer for each receive loop or parser.
pub(crate) struct PerThread<'a, F> {
    /// Index of the receive queue.
    pub(crate) queue: u16,
    /// Function that creates the consumer of frames for a loop or parser.
    pub(crate) make: &'a F,
}

impl<C: Consumer + 'static, F: Fn(ConsumerPlace) -> C> ConsumerSource for PerThread<'_, F> {
    type Inline = C;
    type Parser = C;
    type Sink = Count;

    const ORDERED: bool = false;

    fn inline(self) -> C {
        (self.make)(ConsumerPlace {
            queue: self.queue,
            parser: 0,
        })
    }

    fn fanout(self, parsers: u16) -> (Vec<C>, Count) {
        let queue = self.queue;
        let made = (0..parsers).map(|parser| (self.make)(ConsumerPlace { queue, parser }));
        (made.collect(), Count)
    }
}
