//! Enumerated values of configuration keys, each with its default.

use serde::{Deserialize, Serialize};

/// Declares enums whose variants, in lower case, are TOML strings.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString, strum::IntoStaticStr)]
        #[serde(rename_all = "lowercase")]
        #[strum(serialize_all = "lowercase")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }
    )+};
}

words! {
    /// Access to the memory of a ring.
    Access {
        /// Directly in memory (libmlx5's direct verbs) if the device allows it, otherwise through
        /// libibverbs.
        #[default]
        Auto,
        /// Access through libibverbs only.
        Verbs,
    }
    /// Layout of frames in a ring's memory.
    Receive {
        /// Many frames per buffer, if the device and the rest of the configuration allow it.
        #[default]
        Auto,
        /// Many frames per buffer (striding WQs).
        Striding,
        /// One frame per buffer of the ring.
        Frame,
    }
    /// Compression by the device of completions that differ in few fields.
    CqeCompression {
        /// Compress if the device supports it and hardware time stamps, which compressed
        /// completions lack, are not used.
        #[default]
        Auto,
        /// Compress, or fail if the device does not support it.
        On,
        /// Never compress completions.
        Off,
    }
    /// Action when the device is lost.
    OnLoss {
        /// End the run when the device is lost.
        #[default]
        Stop,
        /// Wait until the lost device is back, then continue.
        Retry,
    }
    /// Restriction of the process once the capture has started (sandbox).
    Sandbox {
        /// Restrict to what the configuration needs, as far as the kernel supports it.
        #[default]
        On,
        /// Restrict like `on`, or fail if the kernel does not support it.
        Require,
        /// Restrict file access; allow and log other system calls.
        Log,
        /// No restriction beyond the user's permissions.
        Off,
    }
    /// Selection of captured frames, and whether the kernel receives them too.
    Mode {
        /// All received frames of the port; the kernel receives none.
        #[default]
        Steal,
        /// Copies of all received and sent frames.
        Sniffer,
        /// Frames that match a `[[rule]]`; the kernel receives the others.
        Filtered,
    }
    /// Source of time stamps.
    Timestamps {
        /// Completion time stamps of the NIC.
        #[default]
        Hardware,
        /// Clock of the host, read once per batch.
        Software,
    }
    /// Clock of the time stamps in files.
    Clock {
        /// Time stamps of the host's clock.
        #[default]
        System,
        /// Time stamps of the NIC's clock.
        Nic,
    }
    /// Behaviour of a loop whose queue is empty.
    Idle {
        /// Keep polling: lowest latency, uses a whole core.
        #[default]
        Spin,
        /// Sleep until the queue's completion event.
        Sleep,
    }
    /// Action when the port goes down.
    OnPortDown {
        /// Wait until the port is up again.
        #[default]
        Wait,
        /// End the run in order when the port goes down.
        Stop,
    }
    /// Unit of sampling: of N units, one is kept.
    SampleBy {
        /// Sample single frames.
        #[default]
        Frame,
        /// Sample whole flows: all frames of a flow are kept, or none.
        Flow,
    }
    /// Header fields that the RSS hash covers.
    HashDepth {
        /// Hash addresses and ports.
        #[default]
        L4,
        /// Hash addresses only, so that fragments stay with their flow.
        L3,
    }
    /// Thread that runs the consumer for received frames.
    PipelineMode {
        /// The queue's loop, on its own core, runs the consumer to completion.
        #[default]
        Inline,
        /// Parser threads behind a bounded channel.
        Fanout,
    }
    /// Action when a channel or a write buffer is full.
    OnFull {
        /// Count the frame as dropped and continue.
        #[default]
        Drop,
        /// Stop polling until there is room, so that no frame is dropped here.
        Hold,
    }
    /// Format of capture files.
    Format {
        /// pcap format with nanosecond time stamps.
        Pcap,
        /// pcapng format with statistics.
        #[default]
        Pcapng,
        /// No files: frames are only counted.
        None,
    }
    /// Order of frames in the output.
    Order {
        /// Order of reception of each queue, one file per queue.
        #[default]
        Queue,
        /// Order of time over all queues, in one file.
        Time,
    }
    /// Treatment of VLAN tags that the NIC stripped.
    Vlan {
        /// Insert stripped VLAN tags again.
        #[default]
        Restore,
        /// Leave stripped VLAN tags out; the file states that they were stripped.
        Lost,
    }
}
