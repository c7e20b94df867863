//! Metrics of shipping for Prometheus. A test compares them with the list in `docs/fleet.md`.

use super::{families::Families, older::encoded};
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, registry::Registry};
use std::{
    fmt::Result,
    sync::{Arc, Mutex, PoisonError},
};
use wqcap_ship::shipper::ShipStatus;

/// Source of the metrics of shipping, which come from the last published status.
#[derive(Clone)]
pub struct DeliverySource {
    /// Name of the sensor, which is a label of every metric of shipping.
    sensor: String,
    /// Status of shipping that was published last.
    status: Arc<Mutex<ShipStatus>>,
}

impl DeliverySource {
    /// Creates the source of the metrics of shipping for a sensor whose status was not published
    /// yet.
    pub fn new(sensor: &str) -> Self {
        Self {
            sensor: sensor.to_owned(),
            status: Arc::default(),
        }
    }

    /// Stores the status of shipping, which the following scrapes of metrics report.
    pub fn publish(&self, status: &ShipStatus) {
        let mut last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        last.clone_from(status);
    }

    /// Returns all current metrics of shipping, in the older Prometheus text format or in that of
    /// OpenMetrics.
    pub fn text(&self, in_older: bool) -> String {
        let last = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        let scrape = ShippingScrape(last.clone());
        drop(last);
        let label = ("sensor".into(), self.sensor.clone().into());
        let mut registry = Registry::with_prefix_and_labels("wqcap_ship", [label].into_iter());
        registry.register_collector(Box::new(scrape));
        encoded(&registry, in_older)
    }
}

/// Status of shipping at the time of one scrape of the metrics.
#[derive(Debug)]
struct ShippingScrape(ShipStatus);

impl Collector for ShippingScrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result {
        let mut families = Families(encoder);
        let it = &self.0;
        let lines = it.ledger.lines();
        families.gauges(
            "frames",
            "Frames by line of the delivery ledger",
            lines.map(|(line, frames)| ([("line", line)], frames as f64)),
        )?;
        for (name, help, value) in [
            (
                "pending_files",
                "Files that wait to be shipped",
                it.pending_files,
            ),
            (
                "pending_bytes",
                "Bytes of the files that wait to be shipped",
                it.pending_bytes,
            ),
            (
                "uncounted_files",
                "Capture files whose frames have not been counted",
                it.uncounted_files,
            ),
            (
                "expired_uncounted_files",
                "Capture files deleted before their frames were counted",
                it.expired_uncounted_files,
            ),
            (
                "expired_files",
                "Files deleted before they were shipped",
                it.expired_files + it.expired_flow_files,
            ),
        ] {
            families.gauge(name, help, value as f64)?;
        }
        families.gauge(
            "lag_seconds",
            "Time since the oldest file that waits to be shipped was finished",
            it.lag_s,
        )?;
        for (name, help, value) in [
            ("objects", "Objects that the store accepted", it.objects),
            ("bytes", "Bytes that the store accepted", it.bytes),
            (
                "changed_files",
                "Files that changed after shipping and were sent again",
                it.changed_files,
            ),
            (
                "failures",
                "Shipping passes that an error of the store or of a directory ended",
                it.failures,
            ),
            (
                "retries",
                "Requests to the store that were sent again",
                it.retries,
            ),
        ] {
            families.counter(name, help, value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use wqcap_ship::ledger::FrameState;

    #[test]
    fn samples_are_those_of_the_published_status() {
        let source = DeliverySource::new("tap-1");
        let mut status = ShipStatus {
            lag_s: 2.5,
            bytes: 4096,
            ..ShipStatus::default()
        };
        status.ledger.add_frames(FrameState::Pending, 7);
        source.publish(&status);
        let text = source.text(false);
        for (name, labels, value) in [
            ("frames", ",line=\"captured\"", "7.0"),
            ("frames", ",line=\"pending\"", "7.0"),
            ("frames", ",line=\"shipped\"", "0.0"),
            ("lag_seconds", "", "2.5"),
            ("bytes_total", "", "4096"),
        ] {
            let line = format!("wqcap_ship_{name}{{sensor=\"tap-1\"{labels}}} {value}");
            assert!(
                text.lines().any(|it| it == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn the_documentation_lists_exactly_these_metrics() {
        let text = DeliverySource::new("x").text(true);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let made: BTreeSet<_> = types.filter_map(|it| it.split_once(' ')).collect();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/fleet.md");
        let documentation = std::fs::read_to_string(path).expect("docs/fleet.md is readable");
        let rows = documentation.lines().filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|');
            let name = cells.next()?.trim().trim_end_matches('`');
            let kind = cells.next()?.trim();
            name.starts_with("wqcap_ship_").then_some((name, kind))
        });
        assert_eq!(made, rows.collect());
    }
}
