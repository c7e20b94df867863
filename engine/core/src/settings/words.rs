//! The words that keys take: enums, each with its default.

use serde::{Deserialize, Serialize};

/// Declares enums whose variants, in lower case, are TOML words.
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
    /// How a ring is reached.
    Access {
        /// In its own memory (libmlx5's direct verbs) where the device allows it, else by the verbs.
        #[default]
        Auto,
        /// By the verbs alone.
        Verbs,
    }
    /// How frames lie in a ring's memory.
    Receive {
        /// Many to a buffer, where the device and the rest of the configuration allow it.
        #[default]
        Auto,
        /// Many to a buffer (striding WQs).
        Striding,
        /// Each in a buffer of its own.
        Frame,
    }
    /// Whether the device may compress completions that differ in little.
    CqeCompression {
        /// Where it can, and nobody needs the time stamps that it leaves out.
        #[default]
        Auto,
        /// It must be able to.
        On,
        /// No.
        Off,
    }
    /// What to do when the device goes away.
    OnLoss {
        /// End the run.
        #[default]
        Stop,
        /// Wait for it to come back.
        Retry,
    }
    /// How much a capture may still do to its machine once it has begun.
    Sandbox {
        /// What its configuration takes, as far as the kernel can see to that.
        #[default]
        On,
        /// The same, or no capture at all.
        Require,
        /// The same for files; other system calls are allowed, and the kernel logs them.
        Log,
        /// All that its user may do.
        Off,
    }
    /// Which frames are taken, and from whom.
    Mode {
        /// All of the port's, away from the kernel.
        #[default]
        Steal,
        /// Copies of what is received and sent.
        Sniffer,
        /// What `[[rule]]` names; the kernel keeps the rest.
        Filtered,
    }
    /// Where timestamps come from.
    Timestamps {
        /// The NIC's completion timestamps.
        #[default]
        Hardware,
        /// The host's clock, read once a batch.
        Software,
    }
    /// Which clock the files speak.
    Clock {
        /// The host's.
        #[default]
        System,
        /// The NIC's own.
        Nic,
    }
    /// What a loop does when its queue is empty.
    Idle {
        /// Polls on: least latency, a whole core.
        #[default]
        Spin,
        /// Sleeps until the queue's completion event.
        Sleep,
    }
    /// What to do when the port goes down.
    OnPortDown {
        /// Wait for it to come up again.
        #[default]
        Wait,
        /// End the run in order.
        Stop,
    }
    /// What one in N is counted by.
    SampleBy {
        /// Frames.
        #[default]
        Frame,
        /// Flows: all frames of a flow, or none.
        Flow,
    }
    /// How deep the RSS hash looks.
    HashDepth {
        /// Addresses and ports.
        #[default]
        L4,
        /// Addresses alone, so that fragments stay with their flow.
        L3,
    }
    /// Who parses.
    PipelineMode {
        /// The queue's own core, run to completion.
        #[default]
        Inline,
        /// Parser threads behind a bounded channel.
        Fanout,
    }
    /// What to do when there is no room.
    OnFull {
        /// Count the frame as dropped and go on.
        #[default]
        Drop,
        /// Stop polling until there is room.
        Hold,
    }
    /// File format.
    Format {
        /// pcap with the nanosecond magic.
        Pcap,
        /// pcapng with statistics.
        #[default]
        Pcapng,
        /// No files: frames are counted.
        None,
    }
    /// Order of frames in the output.
    Order {
        /// As each queue received them, a file per queue.
        #[default]
        Queue,
        /// By time, over all queues.
        Time,
    }
    /// What a file says about tags the NIC stripped.
    Vlan {
        /// Tags are put back.
        #[default]
        Restore,
        /// The file says that tags are gone.
        Lost,
    }
}
