//! Two machines that begin under one name in the same moment, with stores that put on condition, and with others.

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

/// Two that ship under one name.
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
            bucket: Bucket::of(s3),
            sensors,
        }
    }

    /// Both begin before either has put a status. `put` says what becomes of a put on condition; with `together`, neither
    /// looks a second time before both have put theirs.
    fn ship(&self, put: Fate, together: bool) -> [Done; 2] {
        let mut looks = 0;
        self.bucket.proxy.decide(move |it: &Request| {
            if !it.target.ends_with("twin.json") {
                return Fate::Pass;
            }
            looks += usize::from(it.method == "GET");
            match (it.method.as_str(), looks) {
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
            running[0].until("both look again", |_| self.bucket.proxy.waiting() == 2);
            self.bucket.proxy.let_go();
        }
        running.map(|it| it.wait())
    }

    /// Which of them is refused; the other one is not.
    #[track_caller]
    fn refused(done: [Done; 2]) -> usize {
        let codes = done.each_ref().map(|it| it.status.code());
        let refused = match codes {
            [Some(1), Some(0)] => 0,
            [Some(0), Some(1)] => 1,
            _ => panic!("{done:?}"),
        };
        done[refused].says(&["ship.sensor = \"twin\"", "another ship.journal"]);
        refused
    }

    /// How many of a sensor's files are whole in the store, and of how many there is a table; nothing is there by halves.
    #[track_caller]
    fn there(&self, sensor: &Sensor<'_>) -> [usize; 2] {
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
fn of_two_that_begin_at_once_a_store_with_conditions_lets_one_through() {
    let dir = Dir::new();
    let twins = Twins::new(&dir, need!(S3::moto()));
    let refused = Twins::refused(twins.ship(Fate::Pass, false));
    assert_eq!(twins.there(&twins.sensors[refused]), [0, 0]);
    assert_eq!(twins.there(&twins.sensors[1 - refused]), [1, 1]);
}

#[test]
fn of_two_that_begin_at_once_a_store_without_conditions_has_all_and_one_is_refused_then() {
    // One says that it does not know them, and one does not.
    let refuses = Fate::Answer(501, "<Error><Code>NotImplemented</Code></Error>");
    for put in [refuses, Fate::Unconditional] {
        let dir = Dir::new();
        let twins = Twins::new(&dir, need!(S3::moto()));
        Twins::refused(twins.ship(put, true));
        for sensor in &twins.sensors {
            assert_eq!(twins.there(sensor), [1, 1], "{put:?}");
        }
    }
}
