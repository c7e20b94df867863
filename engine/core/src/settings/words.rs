//! Enumerated values of configuration keys, each with its default.

use serde::{Deserialize, Serialize};

/// Declares enums of configuration values, whose variants in snake case are TOML strings.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString, strum::IntoStaticStr)]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case")]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }
    )+};
}

impl Backend {
    /// Returns `true` if the kernel's own sockets receive the frames, and no RDMA device is needed.
    #[must_use]
    pub const fn is_of_kernel(self) -> bool {
        matches!(self, Self::AfPacket | Self::AfXdp)
    }
}

words! {
    /// Way in which a port's frames are received.
    Backend {
        /// Receive by the RDMA device of the interface if it has raw packet WQs, otherwise by a
        /// packet socket.
        #[default]
        Auto,
        /// Receive by `ibv_wq`s whose rings are accessed in their own memory (libmlx5's direct
        /// verbs).
        Mlx5,
        /// Receive by `ibv_wq`s through libibverbs only.
        Verbs,
        /// Receive by packet sockets of the kernel, one for each queue. The kernel still processes
        /// the frames.
        AfPacket,
        /// Receive by AF_XDP sockets, one for each receive queue of the NIC. The kernel does not get
        /// the frames.
        AfXdp,
    }
    /// Direction of the frames that a packet socket receives, as seen from the host.
    Direction {
        /// Receive frames that arrive and frames that the host sends.
        #[default]
        Both,
        /// Receive frames that arrive on the interface, but none that the host sends.
        In,
        /// Receive frames that the host sends, but none that arrive.
        Out,
    }
    /// Access to the memory of a queue's ring (CQ and WQ).
    Access {
        /// Access a ring directly in its memory (libmlx5's direct verbs) if the device allows it,
        /// otherwise through libibverbs.
        #[default]
        Auto,
        /// Access a ring through libibverbs only.
        Verbs,
    }
    /// Layout of received frames in the buffers of a WQ.
    Receive {
        /// Many frames per buffer of a WQ, if the device and the rest of the configuration allow
        /// it.
        #[default]
        Auto,
        /// Many frames per buffer of a WQ (striding WQs).
        Striding,
        /// One frame per buffer of a WQ.
        Frame,
    }
    /// Compression by the device of completions (CQEs) that differ in few fields.
    CqeCompression {
        /// Compress completions if the device supports it and hardware time stamps, which
        /// compressed completions lack, are not used.
        #[default]
        Auto,
        /// Compress completions, or fail if the device does not support it.
        On,
        /// Never compress completions, so that each has its own CQE.
        Off,
    }
    /// Action of the capture when its RDMA device is lost.
    OnLoss {
        /// End the capture when its device is lost.
        #[default]
        Stop,
        /// Wait until the lost device is back, then continue the capture.
        Retry,
    }
    /// Sandbox: restriction of the process once the capture has started.
    Sandbox {
        /// Restrict the process to what the configuration needs, as far as the kernel supports it.
        #[default]
        On,
        /// Restrict the process like `on`, or fail if the kernel does not support it.
        Require,
        /// Restrict the file access of the process; allow and log other system calls.
        Log,
        /// Do not restrict the process beyond the user's permissions.
        Off,
    }
    /// Selection of the frames to capture, and whether the kernel receives them too.
    Mode {
        /// Capture all received frames of the port; the kernel receives none.
        #[default]
        Steal,
        /// Capture copies of all received and sent frames of the port.
        Sniffer,
        /// Capture frames that match a `[[rule]]`; the kernel receives the others.
        Filtered,
    }
    /// Source of the frames' time stamps.
    Timestamps {
        /// Stamp frames with the completion time stamps of the NIC.
        #[default]
        Hardware,
        /// Stamp frames with the host's clock, read once per batch.
        Software,
    }
    /// Clock of the time stamps in capture files.
    Clock {
        /// Write time stamps of the host's clock.
        #[default]
        System,
        /// Write time stamps of the NIC's clock.
        Nic,
    }
    /// Behaviour of a receive loop whose queue is empty.
    Idle {
        /// Keep polling an empty queue: lowest latency, uses a whole core.
        #[default]
        Spin,
        /// Sleep on an empty queue until its completion event.
        Sleep,
    }
    /// Action of the capture when the port goes down.
    OnPortDown {
        /// Wait until the port is up again, then continue the capture.
        #[default]
        Wait,
        /// End the capture in order when the port goes down.
        Stop,
    }
    /// Way in which receive loops poll the queues of several ports.
    Loops {
        /// Poll the queues of all ports with the same index in one receive loop, if the ports can be
        /// paired.
        #[default]
        Paired,
        /// Poll each queue of each port in a receive loop of its own.
        Separate,
    }
    /// Unit of sampling, a frame or a flow: of N units, one is kept.
    SampleBy {
        /// Sample single frames, whatever their flow.
        #[default]
        Frame,
        /// Sample whole flows: all frames of a flow are kept, or none.
        Flow,
    }
    /// Header fields that the RSS hash covers.
    HashDepth {
        /// Compute the RSS hash from addresses and ports.
        #[default]
        L4,
        /// Compute the RSS hash from addresses only, so that fragments stay with their flow.
        L3,
    }
    /// Thread that runs the consumer of received frames.
    PipelineMode {
        /// Run the consumer in the receive loop of the queue, on the loop's core.
        #[default]
        Inline,
        /// Run the consumer in parser threads, which receive frames through a bounded channel.
        Fanout,
    }
    /// Action of a receive loop when a parser's channel or a write buffer is full.
    OnFull {
        /// Count a frame for which there is no room as dropped, and continue.
        #[default]
        Drop,
        /// Stop polling the queue until there is room, so that the receive loop drops no frame.
        Hold,
    }
    /// Format of capture files.
    Format {
        /// Write capture files in pcap format with nanosecond time stamps.
        Pcap,
        /// Write capture files in pcapng format with statistics.
        #[default]
        Pcapng,
        /// No capture files: frames are only counted.
        None,
    }
    /// Order of frames in capture files.
    Order {
        /// Order of reception within each queue, in one file per queue.
        #[default]
        Queue,
        /// Order of time over all queues, in one file.
        Time,
    }
    /// Treatment of VLAN tags that the NIC stripped, in capture files.
    Vlan {
        /// Insert stripped VLAN tags into their frames again.
        #[default]
        Restore,
        /// Leave stripped VLAN tags out of their frames; the capture file states that they were
        /// stripped.
        Lost,
    }
}
