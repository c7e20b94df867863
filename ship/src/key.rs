//! Keys of objects: `packets/dt=YYYY-MM-DD/hour=HH/sensor=NAME/<start_ns>-q<QQ>.pcapng` and so on,
//! in Hive partitions; and `status/sensor=NAME.json`.
//!
//! Days and hours are in UTC. They are those of a capture file's first frame, or of the time when
//! flow records were written.

use jiff::{Timestamp, civil::Date, tz::TimeZone};
use std::path::Path;
use wqcap_files::{folder::delivery::ContentKind, name::FileName};

/// Folder of the store that holds the objects with the statuses of all sensors.
pub(crate) const STATUS: &str = "status";
/// Folder of the store that holds the tables of the capture files' parts.
pub(crate) const BLOCKS: &str = "blocks";

/// Folder of the store that holds the capture files.
pub(crate) const PACKETS: &str = "packets";

/// Returns the object key of a capture file in the store.
pub fn packets(name: &FileName<'_>, sensor: &str) -> String {
    format!(
        "{PACKETS}/{}/{}.{}",
        partition(name.start_ns, sensor),
        stem(name),
        name.ending
    )
}

/// Returns the object key of the table that describes a capture file's parts.
pub fn blocks(name: &FileName<'_>, sensor: &str) -> String {
    format!(
        "{BLOCKS}/{}/{}.{}.parquet",
        partition(name.start_ns, sensor),
        stem(name),
        name.ending
    )
}

/// Returns the object key of a file of flow records, DNS messages or DHCP messages that was written
/// at `ns`, in nanoseconds since 1970.
pub fn table(kind: ContentKind, ns: u64, sensor: &str) -> String {
    format!("{}/{}/{ns}.parquet", kind.folder(), partition(ns, sensor))
}

/// Returns the object key of the status of the sensor `sensor`.
pub fn status(sensor: &str) -> String {
    format!("{STATUS}/sensor={sensor}.json")
}

/// Returns the object key of the status of an instance that may not ship, because another instance
/// ships under its sensor name.
pub fn refused(sensor: &str, instance: &str) -> String {
    format!("{STATUS}/sensor={sensor}.{instance}.json")
}

/// Parsed object key of a capture file, or of the table of its parts. Keys are ordered by sensor,
/// then by file name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaptureKey {
    /// Name of the sensor that captured the file.
    pub sensor: String,
    /// Name of the capture file that was sent.
    pub file: String,
    /// Receive queue whose frames the capture file holds; `None`: all queues.
    pub queue: Option<u16>,
    /// Time stamp of the capture file's first packet record, or slightly later, in nanoseconds
    /// since 1970.
    pub start_ns: u64,
    /// Object key of the capture file without the prefix `packets/`.
    place: String,
}

impl CaptureKey {
    /// Parses the object key of a capture file or of its table. `None`: the key has another form.
    pub fn parse(key: &str) -> Option<Self> {
        let place = match key.split_once('/')? {
            ("packets", place) => place,
            ("blocks", table) => table.strip_suffix(".parquet")?,
            _ => return None,
        };
        let (partition, name) = place.rsplit_once('/')?;
        let (_, sensor) = partition.split_once("/sensor=")?;
        let (start, rest) = name.split_once('-')?;
        let (queue, ending) = rest.split_once('.')?;
        let file = format!("wqcap-{queue}-{start}.{ending}");
        let name = FileName::parse(Path::new(&file)).filter(|it| !it.sealed)?;
        let is_plain = !sensor.is_empty() && !sensor.contains('/');
        // A key counts only if it is exactly the one made for its file.
        let is_ours = is_plain && packets(&name, sensor).strip_prefix("packets/") == Some(place);
        let (queue, start_ns) = (name.queue, name.start_ns);
        is_ours.then(|| Self {
            sensor: sensor.to_owned(),
            place: place.to_owned(),
            queue,
            start_ns,
            file,
        })
    }

    /// Returns the object key under which the store has the capture file.
    pub fn packets(&self) -> String {
        format!("packets/{}", self.place)
    }

    /// Returns the object key of the table of the capture file's parts in `blocks/`.
    pub fn blocks(&self) -> String {
        format!("blocks/{}.parquet", self.place)
    }

    /// Returns the extension of the capture file's name without the first dot.
    pub fn ending(&self) -> &str {
        self.file.split_once('.').map_or("", |(_, ending)| ending)
    }
}

/// Returns the time in the name of a finished file of flow records, DNS or DHCP, in nanoseconds
/// since 1970. `None`: the file is of another kind, or is not finished.
pub fn table_ns(kind: ContentKind, path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let rest = name.strip_prefix("wqcap-")?.strip_prefix(kind.folder())?;
    let ns = rest.strip_prefix('-')?.strip_suffix(".parquet")?;
    let digits = ns.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| ns.parse().ok()).flatten()
}

fn stem(name: &FileName<'_>) -> String {
    let queue = name.queue.map(|queue| format!("q{queue:02}"));
    format!("{}-{}", name.start_ns, queue.as_deref().unwrap_or("all"))
}

fn partition(ns: u64, sensor: &str) -> String {
    // Every 64-bit number of nanoseconds is a valid time.
    let time = Timestamp::from_nanosecond(ns.into()).unwrap_or_default();
    format!("{}/sensor={sensor}", hour(time))
}

/// Returns the folders of a time's day and hour in a table: `dt=YYYY-MM-DD/hour=HH`, in UTC.
pub fn hour(time: Timestamp) -> String {
    let time = time.to_zoned(TimeZone::UTC);
    time.strftime("dt=%Y-%m-%d/hour=%H").to_string()
}

/// Returns `true` if a folder of a table has the name of a day, `dt=YYYY-MM-DD`.
pub fn is_day(name: &str) -> bool {
    date_of(name).is_some_and(|date| format!("dt={date}") == name)
}

/// Returns the date in the name of a folder of a table, `dt=YYYY-MM-DD`.
pub fn date_of(name: &str) -> Option<Date> {
    name.strip_prefix("dt=")?.parse().ok()
}

/// Returns `true` if a folder of a day has the name of an hour, `hour=HH`.
pub fn is_hour(name: &str) -> bool {
    (0..24).any(|hour| format!("hour={hour:02}") == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_days_and_hours_are_recognised() {
        let (day, hour) = partition(u64::MAX, "x")
            .split_once('/')
            .map(|(day, rest)| (day.to_owned(), rest[..7].to_owned()))
            .expect("two folders");
        assert!(is_day(&day) && is_hour(&hour), "{day} {hour}");
        for other in ["dt=2026-13-45", "dt=20261129", "dt=2026-11-29x", "tmp", ""] {
            assert!(!is_day(other), "{other}");
        }
        for other in ["hour=24", "hour=3", "hour=03x", "hour=zz", ""] {
            assert!(!is_hour(other), "{other}");
        }
    }

    #[test]
    fn objects_are_in_partitions_of_day_hour_and_sensor() {
        let of = |name| FileName::parse(Path::new(name)).expect("a capture's");
        let one = of("/cap/wqcap-q03-1795233110453271320.pcapng.zst");
        let place = "dt=2026-11-21/hour=03/sensor=dc1-tap3";
        assert_eq!(
            packets(&one, "dc1-tap3"),
            format!("packets/{place}/1795233110453271320-q03.pcapng.zst")
        );
        assert_eq!(
            blocks(&one, "dc1-tap3"),
            format!("blocks/{place}/1795233110453271320-q03.pcapng.zst.parquet")
        );
        let all = of("wqcap-all-5.pcap");
        assert_eq!(
            packets(&all, "x"),
            "packets/dt=1970-01-01/hour=00/sensor=x/5-all.pcap"
        );
        assert_eq!(
            table(ContentKind::Flows, 3_600_000_000_000, "x"),
            "flows/dt=1970-01-01/hour=01/sensor=x/3600000000000.parquet"
        );
        assert!(partition(u64::MAX, "x").starts_with("dt=2554-07-21/"));
    }

    #[test]
    fn keys_are_parsed_to_their_parts() {
        for file in [
            "wqcap-q03-1795233110453271320.pcapng.zst",
            "wqcap-all-5.pcap",
        ] {
            let name = FileName::parse(Path::new(file)).expect("a capture's");
            for sensor in ["dc1-tap3", "a.b"] {
                let [of_packets, of_blocks] = [packets(&name, sensor), blocks(&name, sensor)];
                let key = CaptureKey::parse(&of_packets).expect("ours");
                assert_eq!(CaptureKey::parse(&of_blocks).as_ref(), Some(&key));
                assert_eq!((&*key.sensor, &*key.file), (sensor, file));
                assert_eq!((key.queue, key.start_ns), (name.queue, name.start_ns));
                assert_eq!(key.ending(), name.ending);
                assert_eq!((key.packets(), key.blocks()), (of_packets, of_blocks));
            }
        }
        let place = "dt=1970-01-01/hour=00/sensor=x";
        assert!(CaptureKey::parse(&format!("packets/{place}/5-q00.pcap")).is_some());
        for other in [
            format!("packets/{place}/5-q00.pcap.enc"),
            format!("packets/{place}/5-q0.pcap"),
            format!("packets/{place}/05-q00.pcap"),
            format!("packets/{place}/5-q00.pcap.parquet"),
            format!("packets/{place}/../5-q00.pcap"),
            format!("packets/{place}/y/5-q00.pcap"),
            "packets/dt=1970-01-01/hour=01/sensor=x/5-q00.pcap".into(),
            "packets/dt=1970-01-01/hour=00/sensor=/5-q00.pcap".into(),
            format!("blocks/{place}/5-q00.pcap"),
            format!("blocks/{place}/.5-q00.pcap.parquet.part"),
            format!("flows/{place}/5.parquet"),
            "/etc/passwd".into(),
            String::new(),
        ] {
            assert_eq!(CaptureKey::parse(&other), None, "{other}");
        }
    }

    #[test]
    fn only_finished_tables_have_a_time() {
        let ns = |name| table_ns(ContentKind::Flows, Path::new(name));
        assert_eq!(ns("/flows/wqcap-flows-17.parquet"), Some(17));
        for other in [
            "wqcap-flows-17.parquet.part",
            "wqcap-flows-.parquet",
            "wqcap-flows-1x.parquet",
            "flows-17.parquet",
            "wqcap-dns-17.parquet",
        ] {
            assert_eq!(ns(other), None, "{other}");
        }
        let dns = Path::new("/flows/dns/wqcap-dns-17.parquet");
        assert_eq!(table_ns(ContentKind::Dns, dns), Some(17));
    }
}
