//! Who takes a queue's frames, in either shape.

use super::{Consumer, ConsumerPlace};
use crate::sink::Count;

/// What a queue's consumers are made of.
pub(crate) trait Source {
    /// On the loop's core, inline.
    type Inline: Consumer + 'static;
    /// On a parser's core.
    type Parser: Consumer + 'static;
    /// Behind the resequencer.
    type Sink: Consumer + 'static;

    /// Frames must reach the sink in the order of their reception.
    const ORDERED: bool;

    /// The one consumer of an inline queue.
    fn inline(self) -> Self::Inline;
    /// The consumers of so many parsers, and the sink behind their resequencer.
    fn fanout(self, parsers: u16) -> (Vec<Self::Parser>, Self::Sink);
}

/// A sink that a queue has one of, as a file has: parsers only judge for it.
pub(crate) struct ToSink<C>(pub(crate) C);

impl<C: Consumer + 'static> Source for ToSink<C> {
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

/// Consumers made for each place.
pub(crate) struct Made<'a, F> {
    pub(crate) queue: u16,
    pub(crate) make: &'a F,
}

impl<C: Consumer + 'static, F: Fn(ConsumerPlace) -> C> Source for Made<'_, F> {
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
