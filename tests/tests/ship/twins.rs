//! Tests of two machines that start to ship under one sensor name at the same time: into a store
//! with conditional puts, and into stores without them.

use super::Sensor;
use std::collections::BTreeMap;
use wqcap_tests::{
    Dir, Done,
    machine::{
        bucket::Bucket,
        proxy::{Fate, Request},
    },
    need,
    oracles::s3::{BUCKET, S3},
};

/// Two sensors that ship under one name into one bucket.
struct Twins<'d> {
    bucket: Bucket,
    sensors: [Sensor<'d>; 2],
}

impl<'d> Twins<'d> {
    fn new(dir: &'d Dir, s3: S3) -> Self {
        let sensors = ["first", "second"].map(|it| Sensor::new(dir, it));
        for sensor in &sensors {
            sensor.capture(3000, 1, &[]);
        }
        Self {
            bucket: Bucket::new(s3),
            sensors,
        }
    }

    /// Ships from both sensors; each one starts before the other has put a status.
    ///
    /// `put` is the fate of conditional puts. With `together`, the proxy delays the second read of
    /// the status until both sensors have put their own.
    fn ship(&self, put: Fate, together: bool) -> [Done; 2] {
        let mut reads = 0;
        self.bucket.proxy.decide(move |it: &Request| {
            if !it.target.ends_with("twin.json") {
                return Fate::Pass;
            }
            reads += usize::from(it.method == "GET");
            match (it.method.as_str(), reads) {
                ("GET", 1 | 2) => Fate::Answer(404, "<Error><Code>NoSuchKey</Code></Error>"),
                ("GET", 3 | 4) if together => Fate::Wait,
                ("PUT", _) if it.conditional => put,
                _ => Fate::Pass,
            }
        });
        let url = format!("s3://{BUCKET}/twins");
        let more = ["--once", "--json", "--set", "ship.sensor=twin"];
        let mut running = self
            .sensors
            .each_ref()
            .map(|it| self.bucket.reached_by(it.ship(&url, &more)).start());
        if together {
            running[0].until("both read the status again", |_| {
                self.bucket.proxy.waiting() == 2
            });
            self.bucket.proxy.let_go();
        }
        running.map(|it| it.wait())
    }

    /// Asserts that exactly one of the two was refused, and returns its index.
    #[track_caller]
    fn refused_index(done: [Done; 2]) -> usize {
        let codes = done.each_ref().map(|it| it.status.code());
        let refused = match codes {
            [Some(1), Some(0)] => 0,
            [Some(0), Some(1)] => 1,
            _ => panic!("{done:?}"),
        };
        done[refused].says(&["ship.sensor = \"twin\"", "another ship.journal"]);
        refused
    }

    /// Returns how many files and how many block tables of the sensor are in the store, and asserts
    /// that no file is incomplete.
    #[track_caller]
    fn stored(&self, sensor: &Sensor<'_>) -> [usize; 2] {
        let objects = self.bucket.s3.objects("twins/");
        let of = |kind: &str| -> BTreeMap<_, _> {
            let of_kind = objects.iter().filter(|(key, _)| key.starts_with(kind));
            of_kind
                .map(|(key, bytes)| (key.rsplit('/').next().expect("a name"), bytes))
                .collect()
        };
        let (packets, blocks) = (of("packets/"), of("blocks/"));
        let captured = sensor.captured();
        let whole = captured.iter().filter(|(name, bytes)| {
            let object = packets.get(name.as_str());
            assert!(object.is_none_or(|it| it == bytes), "{name}");
            object.is_some()
        });
        let tables = captured
            .keys()
            .filter(|it| blocks.contains_key(format!("{it}.parquet").as_str()));
        [whole.count(), tables.count()]
    }
}

#[test]
fn a_store_with_conditional_puts_admits_one_of_two_concurrent_sensors() {
    let dir = Dir::new();
    let twins = Twins::new(&dir, need!(S3::moto()));
    let refused = Twins::refused_index(twins.ship(Fate::Pass, false));
    assert_eq!(twins.stored(&twins.sensors[refused]), [0, 0]);
    assert_eq!(twins.stored(&twins.sensors[1 - refused]), [1, 1]);
}

#[test]
fn without_conditional_puts_both_concurrent_sensors_ship_and_one_is_refused_afterwards() {
    // One store refuses conditional puts, the other one ignores the condition.
    let refuses = Fate::Answer(501, "<Error><Code>NotImplemented</Code></Error>");
    for put in [refuses, Fate::Unconditional] {
        let dir = Dir::new();
        let twins = Twins::new(&dir, need!(S3::moto()));
        Twins::refused_index(twins.ship(put, true));
        for sensor in &twins.sensors {
            assert_eq!(twins.stored(sensor), [1, 1], "{put:?}");
        }
    }
}
