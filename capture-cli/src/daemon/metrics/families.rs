//! Metrics of a capture and their sources. A test compares them with the list in `docs/metrics.md`.

use super::older::encoded;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet},
    metrics::MetricType,
    registry::Registry,
};
use std::{fmt::Result, path::PathBuf, sync::Arc};
use wqcap_control::protocol::{CaptureState, ControlStatus, RdmaStatus, TransportStatus};
use wqcap_engine::{
    analysis::live,
    stats::{self, FOUND, LINES, QueueLedger, RingState, outage::Outages},
};
use wqcap_supervisor::{CaptureBackend, StatusSnapshot};

/// Source of the metrics of a capture, which its control backend and its disk provide.
pub struct MetricsSource {
    /// Backend of the capture, whose snapshots become metrics.
    backend: Arc<CaptureBackend>,
    /// Function that returns the state of the control service; `None`: the service is not running.
    control: Option<Box<dyn Fn() -> ControlStatus + Send + Sync>>,
    /// Directory of the capture files; `None`: the capture writes none.
    dir: Option<PathBuf>,
}

impl MetricsSource {
    /// Creates the source of this process's capture metrics. `control` returns the state of the
    /// control service.
    pub fn new(
        backend: Arc<CaptureBackend>,
        control: Option<impl Fn() -> ControlStatus + Send + Sync + 'static>,
        dir: Option<PathBuf>,
    ) -> Self {
        Self {
            backend,
            control: control.map(|it| Box::new(it) as _),
            dir,
        }
    }

    /// Returns all current metrics of the capture, in the older Prometheus text format or in that
    /// of OpenMetrics.
    pub fn text(&self, in_older: bool) -> String {
        Scrape {
            status: self.backend.snapshot(),
            control: self
                .control
                .as_ref()
                .map(|status| status())
                .unwrap_or_default(),
            disk: self.dir.as_ref().and_then(|dir| {
                let disk = rustix::fs::statvfs(dir).ok()?;
                Some((disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize))
            }),
        }
        .text(in_older)
    }
}

/// Values that one scrape of the metrics reports.
#[derive(Debug)]
struct Scrape {
    status: StatusSnapshot,
    control: ControlStatus,
    /// Free and total bytes of the disk with the capture files; `None`: unknown.
    disk: Option<(u64, u64)>,
}

impl Scrape {
    /// Encodes the values of a scrape as metrics, in the older text format or in that of
    /// OpenMetrics.
    fn text(self, in_older: bool) -> String {
        let snapshot = self.status.snapshot.as_ref();
        // With several ports, no metric is of one of them; `queue_info` names them.
        let labels = match snapshot.is_none_or(|it| it.ports.is_empty()) {
            true => [
                ("device", Some(self.status.device.clone())),
                ("port", Some(self.status.port.to_string())),
                ("interface", self.status.interface.clone()),
            ],
            false => [
                ("device", Some(self.status.device.clone())),
                ("port", None),
                ("interface", None),
            ],
        };
        let labels = labels
            .into_iter()
            .filter_map(|(name, value)| Some((name.into(), value?.into())));
        let mut registry = Registry::with_prefix_and_labels("wqcap", labels);
        registry.register_collector(Box::new(self));
        encoded(&registry, in_older)
    }
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let mut families = Families(encoder);
        self.process_families(&mut families)?;
        if let Some(snapshot) = &self.status.snapshot {
            families.ledger(&snapshot.queues)?;
            families.ports(&snapshot.queues, &snapshot.ports)?;
            families.rings(&snapshot.rings, &snapshot.queues, self.status.ring)?;
            families.nic(&snapshot.nic)?;
        }
        if let Some(traffic) = &self.status.traffic {
            families.traffic(traffic)?;
        }
        self.storage_families(&mut families)?;
        families.transports(&self.control)?;
        match &self.control.rdma {
            Some(rdma) => families.srq(rdma),
            None => Ok(()),
        }
    }
}

impl Scrape {
    /// Writes the metrics of the process and of its capture as a whole.
    fn process_families(&self, families: &mut Families<'_>) -> Result {
        families.gauges(
            "build_info",
            "Always 1; the label is the version of the program",
            [([("version", env!("CARGO_PKG_VERSION"))], 1.0)],
        )?;
        let states = [
            ("running", CaptureState::Running),
            ("drained", CaptureState::Drained),
            ("stopped", CaptureState::Stopped),
            ("lost", CaptureState::Lost),
        ];
        let is = |state| f64::from(u8::from(self.status.state == state));
        families.gauges(
            "capture_state",
            "1 for the current state, 0 for the others",
            states.map(|(name, state)| ([("state", name)], is(state))),
        )?;
        if let Some(snapshot) = &self.status.snapshot {
            let seconds = snapshot.elapsed.as_secs_f64();
            families.gauge(
                "capture_seconds",
                "Time since the first WQ of this capture was ready",
                seconds,
            )?;
            families.outages(&snapshot.outages)?;
        }
        Ok(())
    }

    /// Writes the metrics of write buffers, pins and the disk.
    fn storage_families(&self, families: &mut Families<'_>) -> Result {
        let (used, buffers) = self.status.backlog.unzip();
        let (free, size) = self.disk.unzip();
        let used_help = "Bytes of write buffers that are being filled or wait to be written";
        let pinned_help = "Bytes of finished files that pins protect from deletion";
        for (name, help, value) in [
            ("write_buffer_used_bytes", used_help, used),
            ("write_buffer_bytes", "Bytes of all write buffers", buffers),
            (
                "pinned_bytes",
                pinned_help,
                self.status.pinned.map(|it| it.bytes),
            ),
            (
                "disk_free_bytes",
                "Free space on the disk of output.dir",
                free,
            ),
            ("disk_size_bytes", "Size of the disk of output.dir", size),
        ] {
            if let Some(value) = value {
                families.gauge(name, help, value as f64)?;
            }
        }
        Ok(())
    }
}

/// Metric label set with one label: name and value.
type Label<'a> = [(&'a str, &'a str); 1];

/// Encoder of metric families, to which the metrics are written.
pub(super) struct Families<'a>(pub(super) DescriptorEncoder<'a>);

impl Families<'_> {
    /// Writes a metric family of counters, one for each label set.
    fn counters<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (S, u64)>,
    ) -> Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in rows {
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, f64>(&value, None)?;
        }
        Ok(())
    }

    /// Writes a counter metric without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    /// Writes the metrics of the capture's outages: their number and duration.
    fn outages(&mut self, outages: &Outages) -> Result {
        self.counter(
            "outages",
            "Outages of the capture: the device was lost, or its port was down",
            outages.count(),
        )?;
        let help = "Total duration of the capture's outages, up to now";
        self.0
            .encode_descriptor("outage_seconds", help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, f64>(&outages.seconds(), None)
    }

    /// Writes a metric family of gauges, one for each label set.
    pub(super) fn gauges<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (S, f64)>,
    ) -> Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in rows {
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
        Ok(())
    }

    /// Writes a gauge metric without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) -> Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Gauge)?
            .encode_gauge(&value)
    }

    /// Writes a metric family of histograms, one for each label set.
    fn histograms<S: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl IntoIterator<Item = (S, Bins)>,
    ) -> Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        for (labels, it) in rows {
            family
                .encode_family(&labels)?
                .encode_histogram::<NoLabelSet>(it.sum, it.count(), &it.bins, None)?;
        }
        Ok(())
    }

    /// Writes a histogram metric without labels.
    fn histogram(&mut self, name: &str, help: &str, it: &Bins) -> Result {
        self.0
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(it.sum, it.count(), &it.bins, None)
    }

    /// Writes the metrics of the frame ledger: the number of frames in each line, by queue.
    fn ledger(&mut self, queues: &[QueueLedger]) -> Result {
        let by_queue = |of: fn(&QueueLedger) -> u64| {
            queues
                .iter()
                .map(move |it| ([("queue", it.queue.to_string())], of(it)))
        };
        self.counters(
            "frames_received",
            "Frames that the NIC delivered",
            by_queue(|it| it.received),
        )?;
        self.counters(
            "frames",
            "Received frames by line of the ledger; the lines of a queue add up to the frames it received",
            queues.iter().flat_map(|it| {
                let queue = it.queue.to_string();
                LINES.iter().map(move |(name, of)| {
                    let labels = [("queue", queue.clone()), ("line", (*name).to_owned())];
                    (labels, of(it))
                })
            }),
        )?;
        self.counters(
            "captured_bytes",
            "Bytes of captured frames",
            by_queue(|it| it.bytes),
        )
    }

    /// Writes the metric that names the port of each queue, if there are several `ports`.
    fn ports(&mut self, queues: &[QueueLedger], ports: &[String]) -> Result {
        if ports.is_empty() {
            return Ok(());
        }
        let labels = queues.iter().filter_map(|it| {
            let port = ports.get(usize::from(it.port))?;
            Some((
                [("queue", it.queue.to_string()), ("label", port.clone())],
                1.0,
            ))
        });
        let help = "Always 1; the labels are a queue and the name of its port, with several ports";
        self.gauges("queue_info", help, labels)
    }

    /// Writes the metrics of receive rings and their receive loops, by queue.
    fn rings(&mut self, rings: &[RingState], ledger: &[QueueLedger], wrs: u32) -> Result {
        let by_queue = |of: fn(&RingState) -> u64| {
            let named = rings.iter().enumerate();
            named.map(move |(queue, it)| ([("queue", queue.to_string())], of(it)))
        };
        let gauges =
            |of: fn(&RingState) -> u64| by_queue(of).map(|(labels, value)| (labels, value as f64));
        self.gauge("ring_wrs", "WRs of each queue's ring", wrs.into())?;
        self.gauges(
            "ring_posted_wrs",
            "WRs posted to the NIC; the others are in the pipeline",
            gauges(|it| it.posted),
        )?;
        self.histograms(
            "ring_depth",
            "Frames that waited when the loop polled, at most 64 at once; one observation per poll",
            rings.iter().zip(ledger).map(|(ring, queue)| {
                let bounds = FOUND.iter().map(|bound| *bound as f64);
                let bins = Bins {
                    sum: queue.received as f64,
                    bins: bounds
                        .chain([f64::INFINITY])
                        .zip(ring.found.into_iter().chain([0]))
                        .collect(),
                };
                ([("queue", queue.queue.to_string())], bins)
            }),
        )?;
        self.counters(
            "loop_rounds",
            "Rounds of a queue's loop; a loop without progress for seconds is stuck",
            by_queue(|it| it.beats),
        )?;
        self.counters(
            "wq_recoveries",
            "Recoveries of a WQ from an error",
            by_queue(|it| it.recoveries),
        )
    }

    /// Writes the metrics of frames that the NIC lost before delivery, by the names of the NIC's
    /// counters. An unreadable counter has no value.
    fn nic(&mut self, nic: &stats::NicCounters) -> Result {
        let label = |name| [("counter", name)];
        self.counters(
            "nic_frames",
            "Growth of the NIC's counters, by their own names, since the start of this capture",
            nic.iter()
                .filter_map(|(name, it)| Some((label(name.as_str()), it.value()?))),
        )?;
        self.gauges(
            "nic_unreadable",
            "1 if a counter of the NIC cannot be read",
            nic.iter().map(|(name, it)| {
                let unreadable = it.value().is_none();
                (label(name.as_str()), f64::from(u8::from(unreadable)))
            }),
        )
    }

    /// Writes the metrics of live statistics of the traffic.
    fn traffic(&mut self, it: &live::TrafficSnapshot) -> Result {
        for (name, help, of) in [
            (
                "protocol_frames",
                "Kept frames by the protocol of the innermost packet",
                (|it| it.frames) as fn(&live::Volume) -> u64,
            ),
            (
                "protocol_bytes",
                "Bytes on the wire of kept frames by the protocol of the innermost packet",
                |it| it.bytes,
            ),
        ] {
            let rows = it.protocols.iter();
            let rows = rows.map(|(name, it)| ([("protocol", name.as_str())], of(it)));
            self.counters(name, help, rows)?;
        }
        let rows = it.traits.iter();
        self.counters(
            "trait_frames",
            "Kept frames by other properties",
            rows.map(|(name, it)| ([("trait", name.as_str())], it.frames)),
        )?;
        let sizes = it.sizes.iter();
        let sizes = Bins {
            sum: it.bytes as f64,
            bins: sizes
                .map(|bin| (bin.up_to.map_or(f64::INFINITY, f64::from), bin.frames))
                .collect(),
        };
        self.histogram(
            "frame_size_bytes",
            "Sizes of kept frames on the wire, without FCS",
            &sizes,
        )?;
        for (name, help, times) in [
            (
                "gap_seconds",
                "Time between successive frames of a queue",
                &it.inter_arrival,
            ),
            (
                "hold_seconds",
                "Time that the oldest frame of each batch occupied its buffer",
                &it.hold,
            ),
        ] {
            if let Some(times) = times {
                self.histogram(name, help, &Bins::from_distribution(times))?;
            }
        }
        Ok(())
    }

    /// Writes the metrics of the clients of the control service, by transport.
    fn transports(&mut self, control: &ControlStatus) -> Result {
        let of_rdma = control.rdma.as_ref().map(|it| &it.transport);
        let both: Vec<_> = [("unix", control.unix.as_ref()), ("rdma", of_rdma)]
            .into_iter()
            .filter_map(|(name, it)| Some(([("transport", name)], it?)))
            .collect();
        if both.is_empty() {
            return Ok(());
        }
        let rows = |of: fn(&TransportStatus) -> u64| {
            both.iter().map(move |(labels, it)| (*labels, of(it)))
        };
        self.gauges(
            "control_clients",
            "Clients of the control service",
            rows(|it| it.clients).map(|(labels, n): (Label<'_>, _)| (labels, n as f64)),
        )?;
        self.counters(
            "control_accepted",
            "Connections that the control service accepted",
            rows(|it| it.accepted),
        )?;
        self.counters(
            "control_refused",
            "Connections that the control service refused: too many, without permission, or without the key",
            rows(|it| it.refused),
        )?;
        self.counters(
            "control_expelled",
            "Clients that the control service disconnected: malformed or oversize messages, stalled, flooding",
            rows(|it| it.expelled),
        )?;
        self.counters(
            "control_requests",
            "Requests of control service clients",
            rows(|it| it.requests),
        )
    }

    /// Writes the metrics of the shared receive queue (SRQ) of the control service's RDMA clients.
    fn srq(&mut self, RdmaStatus { srq: it, .. }: &RdmaStatus) -> Result {
        for (name, help, value) in [
            ("srq_max_wrs", "Current size of the SRQ in WRs", it.max_wr),
            (
                "srq_posted_wrs",
                "WRs currently posted to the SRQ",
                it.posted,
            ),
            (
                "srq_limit_wrs",
                "Armed SRQ limit (low watermark) in WRs",
                it.limit,
            ),
            ("srq_cap_wrs", "Largest size of the SRQ in WRs", it.cap),
        ] {
            self.gauge(name, help, value.into())?;
        }
        self.gauge("srq_qps", "QPs attached to the SRQ", it.qps as f64)?;
        for (name, help, value) in [
            (
                "srq_limit_events",
                "IBV_EVENT_SRQ_LIMIT_REACHED events",
                it.limit_events,
            ),
            ("srq_armed", "Times that the SRQ limit was armed", it.armed),
            ("srq_grown", "Times that the SRQ grew", it.grown),
            ("srq_shrunk", "Times that the SRQ shrank", it.shrunk),
            (
                "srq_resize_refused",
                "Resizes of the SRQ that the device refused",
                it.resize_refused,
            ),
        ] {
            self.counter(name, help, value)?;
        }
        if let Some(n) = it.receiver_not_ready {
            let help = "Receiver-not-ready NAKs: messages that found no posted receive";
            self.counter("srq_receiver_not_ready", help, n)?;
        }
        Ok(())
    }
}

/// Metric histogram in encodable form: each bin counts only the values above the previous bound.
struct Bins {
    /// Sum of all values that the metric histogram counts.
    sum: f64,
    /// Upper bound and number of values of each histogram bin.
    bins: Vec<(f64, u64)>,
}

impl Bins {
    /// Converts a distribution of live statistics, whose counts are cumulative, to histogram bins.
    fn from_distribution(times: &live::Distribution) -> Self {
        let mut before = 0;
        let mut bins: Vec<_> = times
            .up_to
            .iter()
            .map(|it| {
                let new = it.count.saturating_sub(before);
                before = it.count;
                (it.ns as f64 / 1e9, new)
            })
            .collect();
        bins.push((f64::INFINITY, times.count.saturating_sub(before)));
        Self {
            sum: times.mean_ns * times.count as f64 / 1e9,
            bins,
        }
    }

    /// Returns the number of values in the metric histogram.
    fn count(&self) -> u64 {
        self.bins.iter().map(|(_, n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, time::Duration};
    use wqcap_control::protocol::SrqStatus;
    use wqcap_engine::{
        capture::Snapshot,
        sink::PinnedFiles,
        stats::{Counter, Unreadable},
    };

    /// Returns a scrape with a value for every metric.
    fn full() -> Scrape {
        let queue = |queue| QueueLedger {
            queue,
            received: 10,
            captured: 7,
            filtered: 2,
            errors: 1,
            bytes: 700,
            ..QueueLedger::default()
        };
        let ring = RingState {
            posted: 60,
            beats: 5,
            recoveries: 1,
            found: [1, 0, 2, 0, 0, 0, 3],
        };
        let distribution = live::Distribution {
            count: 4,
            min_ns: 1,
            mean_ns: 250.0,
            p50_ns: 1,
            p90_ns: 1,
            p99_ns: 1,
            p999_ns: 1,
            max_ns: 1,
            up_to: vec![
                live::Bound { ns: 100, count: 1 },
                live::Bound { ns: 1000, count: 3 },
            ],
        };
        let traffic = live::TrafficSnapshot {
            bytes: 900,
            protocols: [("tcp".to_owned(), live::Volume::default())].into(),
            traits: [("vlan".to_owned(), live::Volume::default())].into(),
            sizes: vec![
                live::SizeBin {
                    up_to: Some(64),
                    frames: 2,
                },
                live::SizeBin {
                    up_to: None,
                    frames: 1,
                },
            ],
            inter_arrival: Some(distribution.clone()),
            hold: Some(distribution),
            ..live::TrafficSnapshot::default()
        };
        Scrape {
            status: StatusSnapshot {
                state: CaptureState::Running,
                device: "mlx5_0".into(),
                port: 1,
                interface: Some("eth2".into()),
                snapshot: Some(Snapshot {
                    ports: Vec::new(),
                    elapsed: Duration::from_millis(1500),
                    queues: vec![queue(0), queue(1)],
                    rings: vec![ring, ring],
                    nic: [
                        ("out_of_buffer".to_owned(), Counter::Value(3)),
                        (
                            "rx_discards_phy".to_owned(),
                            Counter::Unreadable(Unreadable::Unreadable),
                        ),
                    ]
                    .into(),
                    outages: Outages::default(),
                }),
                backlog: Some((1 << 20, 4 << 20)),
                pinned: Some(PinnedFiles {
                    files: 2,
                    bytes: 4096,
                }),
                traffic: Some(traffic),
                ring: 64,
            },
            control: ControlStatus {
                unix: Some(TransportStatus::default()),
                rdma: Some(RdmaStatus {
                    srq: SrqStatus {
                        receiver_not_ready: Some(1),
                        ..SrqStatus::default()
                    },
                    ..RdmaStatus::default()
                }),
            },
            disk: Some((5, 10)),
        }
    }

    #[test]
    fn samples_are_the_counted_values() {
        let text = full().text(false);
        let port = "device=\"mlx5_0\",port=\"1\",interface=\"eth2\"";
        for (name, labels, value) in [
            ("capture_state", ",state=\"running\"", "1.0"),
            ("capture_seconds", "", "1.5"),
            ("frames_received_total", ",queue=\"1\"", "10"),
            ("frames_total", ",queue=\"0\",line=\"captured\"", "7"),
            ("frames_total", ",queue=\"0\",line=\"late\"", "0"),
            ("captured_bytes_total", ",queue=\"0\"", "700"),
            ("ring_depth_bucket", ",le=\"4.0\",queue=\"0\"", "3"),
            ("ring_depth_count", ",queue=\"0\"", "6"),
            ("nic_frames_total", ",counter=\"out_of_buffer\"", "3"),
            ("nic_unreadable", ",counter=\"rx_discards_phy\"", "1.0"),
            ("frame_size_bytes_bucket", ",le=\"+Inf\"", "3"),
            ("hold_seconds_bucket", ",le=\"0.000001\"", "3"),
            ("hold_seconds_bucket", ",le=\"+Inf\"", "4"),
            ("hold_seconds_sum", "", "0.000001"),
            ("write_buffer_used_bytes", "", "1048576.0"),
            ("pinned_bytes", "", "4096.0"),
            ("srq_receiver_not_ready_total", "", "1"),
        ] {
            let line = format!("wqcap_{name}{{{port}{labels}}} {value}");
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        for line in samples {
            assert!(line.contains(port), "{line}");
        }
        let mut without = full();
        without.status.interface = None;
        assert!(!without.text(false).contains("interface"));
        // An unreadable counter has no sample.
        assert!(!text.contains("interface=\"eth2\",counter=\"rx_discards_phy\"} 0"));
        assert_eq!(text.matches("rx_discards_phy").count(), 1);
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn the_documentation_lists_exactly_these_metrics() {
        let text = full().text(true);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let made: BTreeSet<_> = types
            .filter_map(|it| it.split_once(' '))
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let documentation = std::fs::read_to_string(path).unwrap();
        let documented: BTreeSet<_> = documentation
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split('|');
                let name = cells.next()?.trim().trim_end_matches('`');
                Some((name.to_owned(), cells.next()?.trim().to_owned()))
            })
            .collect();
        assert_eq!(made, documented);
    }
}
