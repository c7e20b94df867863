//! Sensor statuses for tests.

use super::{Instance, SensorStatus, VERSION};
use crate::ledger::DeliveryLedger;
use jiff::Timestamp;

/// Returns the status of a sensor that has just begun to ship.
pub(crate) fn status(sensor: &str) -> SensorStatus {
    SensorStatus {
        version: VERSION,
        sensor: sensor.into(),
        by: Instance {
            instance: "first".into(),
            host: "here".into(),
            time: Timestamp::now(),
        },
        run: "1".into(),
        wqcap: "0".into(),
        ledger: DeliveryLedger::default(),
        uncounted_files: 0,
        expired_files: 0,
        expired_flow_files: 0,
        expired_uncounted_files: 0,
        pending_files: 0,
        pending_bytes: 0,
        lag_s: 2.5,
        last_object: None,
        problems: Vec::new(),
        taken_over: None,
        refused_by: None,
    }
}
