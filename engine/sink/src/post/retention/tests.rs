//! Tests of retention: the files that are deleted, the files that stay, and the order of deletion.

use super::*;
use crate::{Encoder, PcapngEncoder};
use wqcap_files::{
    folder::{
        FileStamp,
        delivery::{ContentKind, DeliveryRecord, DeliveryState, VERSION},
        expired::{self, ListPosition},
    },
    format::pcap::{encode_header, encode_record_header},
    pin::{Pin, PinFolder},
};

fn folder(files: &[(&str, usize)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("dir");
    for (name, len) in files {
        fs::write(dir.path().join(name), vec![0; *len]).expect("written");
    }
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir)
        .expect("lists")
        .map(|e| e.expect("entry").file_name().into_string().expect("text"));
    let mut names: Vec<_> = names.filter(|it| !it.starts_with('.')).collect();
    names.sort();
    names
}

fn output(retention: Retention, buffer: u64) -> OutputPlan {
    OutputPlan {
        retention,
        buffer,
        ..OutputPlan::default()
    }
}

/// Returns the state of a retention thread for files with default names, or for the files of `own`.
fn keeper(dir: &Path, keep: Retention, own: Option<&Arc<OwnFiles>>) -> RetentionThread {
    RetentionThread {
        dir: dir.to_owned(),
        keep,
        own: own.cloned(),
        pinned: Pinned::default(),
        delivery: None,
        times: FinishTimes::default(),
        // The clock has been steady for longer than required.
        clock: StepWatch::new(before(Moment::now(), 2 * STEADY)),
        was_set: false,
    }
}

fn before(now: Moment, span: Duration) -> Moment {
    Moment {
        wall: now.wall - span,
        boot: now.boot - span,
    }
}

fn after(now: Moment, seconds: u64) -> Moment {
    let span = Duration::from_secs(seconds);
    Moment {
        wall: now.wall + span,
        boot: now.boot + span,
    }
}

fn tidy(keeper: &mut RetentionThread, deleted: &mut DeletedFiles) {
    keeper.tidy(0, Moment::now(), deleted).expect("tidies");
}

/// Returns retention limits that limit only the number of files.
fn most(files: u64) -> Retention {
    Retention {
        files,
        ..Retention::default()
    }
}

/// Returns the names of the files left after retention.
fn left(files: &[(&str, usize)], keep: Retention) -> Vec<String> {
    let dir = folder(files);
    tidy(
        &mut keeper(dir.path(), keep, None),
        &mut DeletedFiles::default(),
    );
    names(dir.path())
}

const FILES: [(&str, usize); 4] = [
    ("wqcap-q01-10.pcap", 100),
    ("wqcap-q00-9.pcap", 100),
    ("wqcap-q00-100.pcapng.zst", 100),
    ("wqcap-q00-20.pcap", 100),
];

#[test]
fn the_oldest_files_are_deleted_first_by_size_and_by_number() {
    let keep = |keep, files| Retention {
        keep,
        files,
        ..Retention::default()
    };
    let newest = ["wqcap-q00-100.pcapng.zst", "wqcap-q00-20.pcap"];
    assert_eq!(left(&FILES, keep(Keep::Size(Size(250)), 0)), newest);
    assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 0)), newest);
    assert_eq!(left(&FILES, keep(Keep::default(), 2)), newest);
    assert_eq!(left(&FILES, keep(Keep::Size(Size(200)), 3)), newest);
    assert_eq!(left(&FILES, keep(Keep::Size(Size(400)), 4)).len(), 4);
    // The newest file stays.
    let newest = [newest[0]];
    assert_eq!(left(&FILES, keep(Keep::Size(Size(99)), 0)), newest);
    // One percent of the disk is much more than these files.
    assert_eq!(left(&FILES, keep(Keep::Percent(1), 0)).len(), 4);
}

/// Names from the future: the clock was ahead in an earlier run.
#[test]
fn files_of_a_clock_that_was_ahead_are_deleted_before_newer_ones() {
    let now = Moment::now();
    let name = |ahead: i64| {
        let ns = i128::from(nanoseconds(now.wall)) + i128::from(ahead) * 1_000_000_000;
        format!("wqcap-q00-{ns}.pcap")
    };
    let [earlier, old, tai] = [name(86_400), name(-7200), name(37)];
    // The last of this run's files was named after its clock was set back by ten years.
    let ours = [name(-60), name(-315_360_000)];
    let all = [&earlier, &old, &ours[0], &ours[1], &tai];
    let files: Vec<_> = all.iter().map(|it| (it.as_str(), 100)).collect();
    let dir = folder(&files);
    let mut keeper = keeper(dir.path(), most(5), None);
    for (name, age) in ours.iter().zip([50, 1]) {
        let ended = now.boot - Duration::from_secs(age);
        keeper.times.insert(&dir.path().join(name), ended);
    }
    let mut left = all.to_vec();
    for gone in [&earlier, &old, &ours[0], &ours[1]] {
        left.retain(|it| *it != gone);
        keeper.keep = most(left.len() as u64);
        tidy(&mut keeper, &mut DeletedFiles::default());
        let mut expected: Vec<_> = left.iter().map(|it| (*it).clone()).collect();
        expected.sort();
        assert_eq!(names(dir.path()), expected);
    }
}

#[test]
fn open_files_links_and_foreign_files_stay() {
    let dir = folder(&[
        ("wqcap-q00-1.pcap.part", 100),
        ("wqcap-q00-1.pcap.gz", 100),
        ("holiday.pcap", 100),
        ("wqcap-q00-2.pcap", 100),
        ("wqcap-q00-5.pcap", 100),
    ]);
    let outside = folder(&[("wqcap-q00-3.pcap", 100)]);
    let target = outside.path().join("wqcap-q00-3.pcap");
    std::os::unix::fs::symlink(&target, dir.path().join("wqcap-q00-3.pcap")).expect("link");
    fs::create_dir(dir.path().join("wqcap-q00-4.pcap")).expect("folder");
    let mut deleted = DeletedFiles::default();
    let keep = Retention {
        keep: Keep::Size(Size(1)),
        files: 1,
        ..Retention::default()
    };
    tidy(&mut keeper(dir.path(), keep, None), &mut deleted);
    assert_eq!(
        names(dir.path()),
        [
            "holiday.pcap",
            "wqcap-q00-1.pcap.gz",
            "wqcap-q00-1.pcap.part",
            "wqcap-q00-3.pcap",
            "wqcap-q00-4.pcap",
            "wqcap-q00-5.pcap"
        ]
    );
    assert!(target.exists());
    assert_eq!((deleted.files, deleted.bytes), (1, 100));
}

#[test]
fn a_full_disk_deletes_the_oldest_files_only_if_their_size_is_limited() {
    for (keep, want) in [(Keep::Size(Size(1 << 20)), 2), (Keep::default(), 4)] {
        let dir = folder(&FILES);
        let keep = Retention {
            keep,
            files: 9,
            ..Retention::default()
        };
        let (keeper, trigger, _) = start(
            dir.path(),
            &output(keep, 150),
            &FinishTimes::default(),
            None,
        )
        .expect("starts");
        trigger.ask_for_room();
        drop(trigger);
        let deleted = keeper.join().expect("ends").expect("limits are set");
        assert_eq!(names(dir.path()).len(), want);
        assert_eq!(deleted.files as usize, 4 - want);
    }
}

/// Sets the time of a test file's last write.
fn aged(path: &Path, written: SystemTime) {
    let file = fs::File::options().append(true).open(path);
    file.and_then(|it| it.set_modified(written)).expect("aged");
}

fn an_hour() -> Retention {
    Retention {
        age_ns: 3_600_000_000_000,
        ..Retention::default()
    }
}

#[test]
fn files_that_are_too_old_are_deleted_including_the_newest() {
    let dir = folder(&FILES);
    let now = Moment::now();
    for (name, seconds) in [
        ("wqcap-q00-9.pcap", 3000),
        ("wqcap-q01-10.pcap", 3601),
        ("wqcap-q00-20.pcap", 5000),
        ("wqcap-q00-100.pcapng.zst", 3599),
    ] {
        let written = now.wall - Duration::from_secs(seconds);
        aged(&dir.path().join(name), written);
    }
    let mut keeper = keeper(dir.path(), an_hour(), None);
    let mut deleted = DeletedFiles::default();
    keeper.tidy(0, now, &mut deleted).expect("tidies");
    let young = ["wqcap-q00-100.pcapng.zst", "wqcap-q00-9.pcap"];
    assert_eq!(names(dir.path()), young);
    keeper
        .tidy(0, after(now, 9999), &mut deleted)
        .expect("tidies");
    assert_eq!(names(dir.path()).len(), 0);
    assert_eq!((deleted.files, deleted.bytes), (4, 400));
}

#[test]
fn no_file_is_deleted_by_a_clock_that_was_just_set() {
    let now = Moment::now();
    let since_1970 = now.wall.duration_since(SystemTime::UNIX_EPOCH);
    let since_1970 = since_1970.expect("later").as_nanos();
    let fresh = format!("wqcap-q00-{since_1970}.pcap");
    let dir = folder(&[(fresh.as_str(), 100), ("wqcap-q00-1.pcap", 100)]);
    let (ours, earlier) = (dir.path().join(&fresh), dir.path().join("wqcap-q00-1.pcap"));
    aged(&earlier, now.wall);
    let mut keeper = keeper(dir.path(), an_hour(), None);
    keeper.times.insert(&ours, now.boot);
    let mut deleted = DeletedFiles::default();
    let mut left = |now: Moment| {
        keeper.tidy(0, now, &mut deleted).expect("tidies");
        (ours.exists(), earlier.exists())
    };
    let set = |now: Moment, by: u64| Moment {
        wall: now.wall + Duration::from_secs(by),
        ..now
    };
    assert_eq!(left(now), (true, true));
    // The clock is set forward by an hour and a minute, and back, repeatedly.
    for second in 1..30 {
        let by = if second % 2 == 1 { 3660 } else { 0 };
        assert_eq!(left(set(after(now, second), by)), (true, true));
    }
    // A wrong time that stays steady is used in the end, but not for files whose age is known.
    let forward = |second| set(after(now, second), 3660);
    assert_eq!(left(forward(30)), (true, true));
    assert_eq!(left(forward(88)), (true, true));
    assert_eq!(left(forward(90)), (true, false));
    // The clock is set back by ten years: a file of this run is deleted by its known age once the clock is steady.
    let back = |second| Moment {
        wall: now.wall - Duration::from_secs(10 * 365 * 86_400 - second),
        ..after(now, second)
    };
    assert_eq!(left(back(3590)), (true, false));
    assert_eq!(left(back(3630)), (true, false));
    assert_eq!(left(back(3651)), (false, false));
}

#[test]
fn files_of_earlier_runs_stay_until_the_clock_has_been_steady() {
    let now = Moment::now();
    let dir = folder(&[("wqcap-q00-1.pcap", 100), ("wqcap-q00-2.pcap", 100)]);
    let at = |name: &str| dir.path().join(name);
    aged(
        &at("wqcap-q00-1.pcap"),
        now.wall - Duration::from_secs(7200),
    );
    // The time of the last write is in the future, so the time in the name is used.
    aged(
        &at("wqcap-q00-2.pcap"),
        now.wall + Duration::from_secs(7200),
    );
    let mut keeper = RetentionThread {
        clock: StepWatch::new(now),
        ..keeper(dir.path(), an_hour(), None)
    };
    let mut left = |now| {
        let mut deleted = DeletedFiles::default();
        keeper.tidy(0, now, &mut deleted).expect("tidies");
        names(dir.path()).len()
    };
    assert_eq!(left(after(now, 59)), 2);
    assert_eq!(left(after(now, 60)), 0);
}

#[test]
fn finish_times_of_deleted_files_are_removed() {
    let dir = folder(&[("wqcap-q00-1.pcap", 1)]);
    let mut keeper = keeper(dir.path(), an_hour(), None);
    let now = Moment::now();
    keeper
        .times
        .insert(&dir.path().join("wqcap-q00-1.pcap"), now.boot);
    for gone in 0..5000 {
        keeper
            .times
            .insert(&dir.path().join(gone.to_string()), now.boot);
    }
    keeper
        .tidy(0, after(now, 1), &mut DeletedFiles::default())
        .expect("tidies");
    assert_eq!(keeper.times.lock().len(), 1);
    assert!(dir.path().join("wqcap-q00-1.pcap").exists());
}

#[test]
fn the_oldest_files_are_deleted_until_enough_is_free_and_the_newest_stays() {
    let dir = folder(&FILES);
    let mut deleted = DeletedFiles::default();
    let mut tidied = |free| {
        let keep = Retention {
            free,
            ..Retention::default()
        };
        tidy(&mut keeper(dir.path(), keep, None), &mut deleted);
        names(dir.path()).len()
    };
    assert_eq!(tidied(Keep::Size(Size(1))), 4);
    // More than the disk can have free.
    assert_eq!(tidied(Keep::Percent(100)), 1);
    assert_eq!(names(dir.path()), ["wqcap-q00-100.pcapng.zst"]);
    assert_eq!(tidied(Keep::Size(Size(u64::MAX))), 1);
    assert_eq!(deleted.files, 3);
}

#[test]
fn pinned_files_stay_and_count_towards_the_limits() {
    let dir = folder(&FILES);
    let at = |name: &str| dir.path().join(name);
    // Writes a readable file: a file that cannot be read is held by any pin.
    let write = |name: &str, second: u64| {
        let mut file = encode_header(65_535, 1, None).to_vec();
        file.extend(encode_record_header(second * 1_000_000_000, 0, 60));
        file.resize(100, 0);
        fs::write(at(name), file).expect("written");
    };
    for (i, (name, _)) in FILES.iter().enumerate() {
        write(name, 100 * (i as u64 + 1));
    }
    let pins = PinFolder { dir: dir.path() };
    let pin = |from: u64, to: u64| {
        let pin = Pin {
            from_ns: from * 1_000_000_000,
            to_ns: to * 1_000_000_000,
            filter: String::new(),
            reason: "x".into(),
            made_ns: 0,
        };
        pins.add(&pin).expect("written")
    };
    let tidied = |keep| {
        let mut deleted = DeletedFiles::default();
        let mut keeper = keeper(dir.path(), keep, None);
        let later = after(Moment::now(), 9999);
        keeper.tidy(0, later, &mut deleted).expect("tidies");
        let left = names(dir.path());
        let left = left.into_iter().filter(|it| it.starts_with("wqcap-"));
        (
            left.collect::<Vec<_>>(),
            keeper.pinned.gauge().pinned().files,
        )
    };
    let files = |files| Retention {
        files,
        ..Retention::default()
    };
    // Pins the only file of its queue, which is the second oldest file.
    let id = pin(100, 101);
    let (left, held) = tidied(files(2));
    assert_eq!(
        left,
        ["wqcap-q00-100.pcapng.zst", "wqcap-q01-10.pcap"],
        "a pinned file counts towards the limit"
    );
    assert_eq!(held, 1);
    let age = Retention {
        age_ns: 1,
        ..Retention::default()
    };
    let free = Retention {
        free: Keep::Size(Size(u64::MAX)),
        ..Retention::default()
    };
    for keep in [files(1), free, age] {
        assert_eq!(tidied(keep).0.last().expect("held"), "wqcap-q01-10.pcap");
    }
    pins.release(&id).expect("there");
    assert_eq!(tidied(files(1)).1, 0);
    assert_eq!(tidied(age).0.len(), 0);
}

#[test]
fn an_invalid_pin_holds_all_files() {
    let dir = folder(&FILES);
    let pins = dir.path().join(".wqcap-pins");
    fs::create_dir(&pins).expect("made");
    fs::write(pins.join("a.json"), "{\"from_ns\": 5,").expect("written");
    let keep = Retention {
        files: 1,
        age_ns: 1,
        ..Retention::default()
    };
    let (keeper, trigger, gauge) = start(
        dir.path(),
        &output(keep, 150),
        &FinishTimes::default(),
        None,
    )
    .expect("starts");
    drop(trigger);
    let deleted = keeper.join().expect("ends").expect("limits are set");
    let found = PinnedFiles {
        files: 4,
        bytes: 400,
    };
    assert_eq!((deleted.files, deleted.pinned), (0, found));
    assert_eq!(gauge.pinned(), found);
}

#[test]
fn limits_can_be_set_and_lifted_while_the_thread_runs() {
    let dir = folder(&FILES);
    let begin = |keep| {
        let times = FinishTimes::default();
        start(dir.path(), &output(keep, 150), &times, None).expect("starts")
    };
    // Without limits nothing is deleted, and the gauge has no numbers.
    let (keeper, trigger, gauge) = begin(Retention::default());
    trigger.ask_for_room();
    assert!(!gauge.is_on());
    drop(trigger);
    assert!(keeper.join().expect("ends").is_none());
    assert_eq!(names(dir.path()).len(), 4);

    let (keeper, trigger, gauge) = begin(Retention::default());
    trigger.set_limits(most(3));
    assert_eq!(trigger.limits(), most(3));
    drop(trigger);
    let deleted = keeper.join().expect("ends").expect("limits are set");
    assert!(gauge.is_on());
    assert_eq!((deleted.files, names(dir.path()).len()), (1, 3));

    let (keeper, trigger, gauge) = begin(most(3));
    trigger.set_limits(Retention::default());
    drop(trigger);
    let _ = keeper.join().expect("ends");
    assert!(!gauge.is_on());
    assert_eq!(names(dir.path()).len(), 3);
}

#[test]
fn the_directory_is_checked_after_each_wake_and_at_the_end() {
    let dir = folder(&FILES);
    let keep = Retention {
        files: 1,
        ..Retention::default()
    };
    let (keeper, trigger, _) = start(
        dir.path(),
        &output(keep, 150),
        &FinishTimes::default(),
        None,
    )
    .expect("starts");
    for i in 200..220 {
        fs::write(dir.path().join(format!("wqcap-q00-{i}.pcap")), b"x").expect("written");
        trigger.wake();
    }
    drop(trigger);
    let deleted = keeper.join().expect("ends").expect("limits are set");
    assert_eq!(names(dir.path()), ["wqcap-q00-219.pcap"]);
    assert_eq!(deleted.files, 23);
}

#[test]
fn subdirectories_are_searched_and_deleted_when_empty() {
    let dir = tempfile::tempdir().expect("dir");
    let at = |name: &str| dir.path().join(name);
    let own = Arc::new(OwnFiles::new(
        "%Y%m%d/%H/q{queue}".parse().expect("reads"),
        None,
    ));
    let capture = PcapngEncoder::default().header(Some(0), 0);
    for folder in ["20261121/09", "20261121/10", "20261122/00/deep", "notes"] {
        fs::create_dir_all(at(folder)).expect("made");
    }
    let ours = ["20261121/09/q00", "20261121/10/q00", "20261122/00/q00"];
    let others = ["q00", "20261122/q00", "20261122/00/deep/q00", "notes/q00"];
    for name in ours.into_iter().chain(others) {
        let path = at(&format!("{name}.pcapng"));
        fs::write(&path, &capture).expect("written");
        if ours.contains(&name) {
            own.add(&path);
        }
    }
    fs::write(at("20261121/09/notes.txt"), "mine").expect("written");
    let mut deleted = DeletedFiles::default();
    tidy(&mut keeper(dir.path(), most(1), Some(&own)), &mut deleted);
    assert_eq!(deleted.files, 2);
    assert!(
        !at("20261121/10").exists(),
        "an empty subdirectory was left"
    );
    assert_eq!(names(&at("20261121/09")), ["notes.txt"], "a foreign file");
    assert!(at("20261122/00/q00.pcapng").exists());
    assert!(
        others
            .iter()
            .all(|name| at(&format!("{name}.pcapng")).exists())
    );
}

#[test]
fn with_a_custom_name_only_captures_are_deleted_those_of_earlier_runs_first() {
    let dir = folder(&[
        ("tap-3.pcap", 10),
        ("tap-1.pcap", 10),
        ("tap-2.pcap", 10),
        ("tap-4.pcap", 10),
        ("tap-5.pcapng", 10),
        ("tap-5.pcapng.part", 10),
        ("tap-copy.pcapng", 0),
        ("wqcap-q00-1.pcap", 10),
    ]);
    let at = |name| dir.path().join(name);
    // A file of an earlier run, under a name of the template and under another name.
    let mut earlier = PcapngEncoder::default().header(Some(0), 0);
    fs::write(at("tap-9.pcapng"), &earlier).expect("written");
    fs::write(at("tap-copy.pcapng"), &earlier).expect("written");
    // A merged file is not a capture.
    let program = earlier.windows(6).position(|it| it == b"wqcap ");
    earlier[program.expect("there")] = b'W';
    fs::write(at("tap-8.pcapng"), &earlier).expect("written");

    let own = Arc::new(OwnFiles::new("tap-%j".parse().expect("reads"), None));
    let (wakes, _woken) = crossbeam_channel::bounded(1);
    let trigger = RetentionTrigger {
        wakes,
        room: Arc::default(),
        own: Some(Arc::clone(&own)),
        counts: None,
        times: FinishTimes::default(),
        limits: RetentionLimits(Arc::new(Mutex::new(most(3)))),
    };
    for name in ["tap-4.pcap", "tap-3.pcap", "tap-2.pcap", "tap-1.pcap"] {
        trigger.record_finished(&at(name), FinishedBy::ThisRun { frames: None });
    }
    // This run has encrypted a file of an earlier run, which stays the oldest.
    trigger.record_finished(&at("tap-9.pcapng"), FinishedBy::AnEarlierRun);
    fs::write(at("new"), "foreign").expect("written");
    fs::rename(at("new"), at("tap-4.pcap")).expect("renamed");
    let tidied = |files| {
        let mut deleted = DeletedFiles::default();
        tidy(
            &mut keeper(dir.path(), most(files), Some(&own)),
            &mut deleted,
        );
        deleted.files
    };
    assert_eq!(tidied(3), 1);
    assert!(!at("tap-9.pcapng").exists() && at("tap-3.pcap").exists());
    assert_eq!(tidied(2), 1);
    assert!(!at("tap-3.pcap").exists());
    assert_eq!(tidied(2), 0);
    let left = [
        "tap-1.pcap",
        "tap-2.pcap",
        "tap-4.pcap",
        "tap-5.pcapng",
        "tap-5.pcapng.part",
        "tap-8.pcapng",
        "tap-copy.pcapng",
        "wqcap-q00-1.pcap",
    ];
    assert_eq!(names(dir.path()), left);
}

/// Writes a file's delivery state into the journal of `wqcap ship`.
fn note(journal: &Path, file: &Path, state: DeliveryState) {
    let name = file.file_name().and_then(|it| it.to_str()).expect("plain");
    let record = DeliveryRecord {
        version: VERSION,
        kind: ContentKind::Packets,
        file: name.into(),
        stamp: FileStamp::read(file).expect("there"),
        ns: 0,
        key: name.into(),
        blocks_key: None,
        frames: 1,
        selected: true,
        copy: None,
        copy_params: None,
        state,
    };
    let text = serde_json::to_vec(&record).expect("JSON");
    fs::write(ContentKind::Packets.record(journal, name), text).expect("written");
}

#[test]
fn shipped_files_are_deleted_first_and_unshipped_ones_are_counted() {
    let dir = folder(&FILES);
    let journal = tempfile::tempdir().expect("dir");
    fs::create_dir(journal.path().join("packets")).expect("made");
    let at = |name: &str| dir.path().join(name);
    note(journal.path(), &at("wqcap-q00-9.pcap"), DeliveryState::Seen);
    for name in ["wqcap-q00-20.pcap", "wqcap-q00-100.pcapng.zst"] {
        note(journal.path(), &at(name), DeliveryState::Shipped);
    }
    let mut deleted = DeletedFiles::default();
    let counts = FrameCounts::default();
    counts.insert(&at("wqcap-q00-9.pcap"), 20);
    let mut left = |files| {
        let mut keeper = RetentionThread {
            delivery: Some(ShippingState {
                journal: journal.path().to_owned(),
                index_dir: None,
                counts: counts.clone(),
                list: None,
            }),
            ..keeper(dir.path(), most(files), None)
        };
        tidy(&mut keeper, &mut deleted);
        (names(dir.path()), deleted.unshipped)
    };
    let [oldest, old] = ["wqcap-q00-9.pcap", "wqcap-q01-10.pcap"].map(str::to_owned);
    let newest = "wqcap-q00-100.pcapng.zst".to_owned();
    let three = vec![newest, oldest.clone(), old.clone()];
    assert_eq!(left(3), (three, 0), "the oldest shipped file is deleted");
    assert_eq!(left(2), (vec![oldest.clone(), old.clone()], 0));
    // The other file has no journal record, so it is not shipped either.
    assert_eq!(left(1), (vec![old], 1));
    let noted = || {
        let lines = expired::read(dir.path(), ListPosition::default());
        let lines = lines.expect("reads").into_iter();
        lines
            .filter_map(|(it, _)| it.map(|it| (it.file, it.frames)))
            .collect::<Vec<_>>()
    };
    assert_eq!(noted(), [(oldest, Some(20))]);
    // A file with an unknown number of frames.
    fs::write(at("wqcap-q00-8.pcap"), "frames").expect("written");
    left(1);
    assert_eq!(noted()[1], ("wqcap-q00-8.pcap".to_owned(), None));
    assert_eq!((deleted.unshipped, deleted.unshipped_frames), (2, 20));
}
