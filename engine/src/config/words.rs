//! The words that keys take: enums, each with its default.

use serde::{Deserialize, Serialize};

/// Declares enums whose variants are TOML words.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            /// The word in the configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )+};
}

words! {
    /// How a ring is reached.
    Access {
        /// In its own memory (libmlx5's direct verbs) where the device allows it, else by the verbs.
        #[default]
        Auto = "auto",
        /// By the verbs alone.
        Verbs = "verbs",
    }
    /// What to do when the device goes away.
    OnLoss {
        /// End the run.
        #[default]
        Stop = "stop",
        /// Wait for it to come back.
        Retry = "retry",
    }
    /// How much a capture may still do to its machine once it has begun.
    Sandbox {
        /// What its configuration takes, as far as the kernel can see to that.
        #[default]
        On = "on",
        /// The same, or no capture at all.
        Require = "require",
        /// The same for files; other system calls are allowed, and the kernel logs them.
        Log = "log",
        /// All that its user may do.
        Off = "off",
    }
    /// Which frames are taken, and from whom.
    Mode {
        /// All of the port's, away from the kernel.
        #[default]
        Steal = "steal",
        /// Copies of what is received and sent.
        Sniffer = "sniffer",
        /// What `[[rule]]` names; the kernel keeps the rest.
        Filtered = "filtered",
    }
    /// Where timestamps come from.
    Timestamps {
        /// The NIC's completion timestamps.
        #[default]
        Hardware = "hardware",
        /// The host's clock, read once a batch.
        Software = "software",
    }
    /// Which clock the files speak.
    Clock {
        /// The host's.
        #[default]
        System = "system",
        /// The NIC's own.
        Nic = "nic",
    }
    /// What a loop does when its queue is empty.
    Idle {
        /// Polls on: least latency, a whole core.
        #[default]
        Spin = "spin",
        /// Sleeps until the queue's completion event.
        Sleep = "sleep",
    }
    /// What to do when the port goes down.
    OnPortDown {
        /// Wait for it to come up again.
        #[default]
        Wait = "wait",
        /// End the run in order.
        Stop = "stop",
    }
    /// What one in N is counted by.
    SampleBy {
        /// Frames.
        #[default]
        Frame = "frame",
        /// Flows: all frames of a flow, or none.
        Flow = "flow",
    }
    /// How deep the RSS hash looks.
    HashDepth {
        /// Addresses and ports.
        #[default]
        L4 = "l4",
        /// Addresses alone, so that fragments stay with their flow.
        L3 = "l3",
    }
    /// Who parses.
    PipelineMode {
        /// The queue's own core, run to completion.
        #[default]
        Inline = "inline",
        /// Parser threads behind a bounded channel.
        Fanout = "fanout",
    }
    /// What to do when there is no room.
    OnFull {
        /// Count the frame as dropped and go on.
        #[default]
        Drop = "drop",
        /// Stop polling until there is room.
        Hold = "hold",
    }
    /// File format.
    Format {
        /// pcap with the nanosecond magic.
        Pcap = "pcap",
        /// pcapng with statistics.
        #[default]
        Pcapng = "pcapng",
        /// No files: frames are counted.
        None = "none",
    }
    /// Order of frames in the output.
    Order {
        /// As each queue received them, a file per queue.
        #[default]
        Queue = "queue",
        /// By time, over all queues.
        Time = "time",
    }
    /// What a file says about tags the NIC stripped.
    Vlan {
        /// Tags are put back.
        #[default]
        Restore = "restore",
        /// The file says that tags are gone.
        Lost = "lost",
    }
}
