//! Folders below `output.dir`, as created by `output.name`: writing, indexing, reading as one
//! capture, recovery and retention.

use serde_json::Value;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Done, Program, Wqcap,
    compare::assert_same,
    files, frames,
    machine::privileges::{self, ForAll, as_nobody},
    process::is_root,
    skip,
    wqcap::wqcap,
};

const FRAMES: u64 = 6000;

/// Returns all files below a folder, sorted by path.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder can be listed") {
        let path = entry.expect("the folder can be listed").path();
        match path.is_dir() {
            true => all.extend(below(&path)),
            false => all.push(path),
        }
    }
    all.sort();
    all
}

fn capture<'d>(dir: &'d Dir, name: &str, out: &Path, more: &[&str]) -> Wqcap<'d> {
    Wqcap::run(dir, name)
        .out(out)
        .model(&format!("synth:size=1000,flows=64,count={FRAMES}"))
        .queues(2)
        .sets(&[
            "output.format=pcapng",
            "output.rotate_size=1MiB",
            "output.name=%Y/%m%d/q{queue}-{start_ns}",
        ])
        .sets(more)
}

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[track_caller]
fn summary(run: &Wqcap<'_>, done: Done) -> Value {
    let done = done.expect(0);
    let text = fs::read_to_string(run.summary_path());
    json(&text.unwrap_or_else(|e| panic!("{e}: {done}")))
}

/// Returns the day of a file's first record in the form `%Y/%m%d`.
fn day(path: &Path) -> String {
    let stamp = files::read(path)[0].ts;
    let done = Program::new("date")
        .args(["-d", &format!("@{}", stamp / 1_000_000_000), "+%Y/%m%d"])
        .run()
        .expect(0);
    done.stdout.trim().to_owned()
}

/// Names of files with the same start time sort in the order of writing, as `ls` in the C locale
/// lists them.
#[test]
fn names_of_one_moment_sort_in_the_order_of_writing() {
    let dir = Dir::new();
    let cap = dir.folder("cap");
    let run = Wqcap::run(&dir, "run")
        .out(&cap)
        .model("synth:size=1000,flows=64,count=15000")
        .queues(1)
        .sets(&[
            "output.format=pcap",
            "output.order=time",
            "output.rotate_size=1MiB",
            "output.name=tap",
        ]);
    let _ = summary(&run, run.done());
    let written = below(&cap);
    assert!(written.len() > 12, "rotated: {written:?}");
    assert_eq!(written[0], cap.join("tap.pcap"));
    assert_eq!(written[10], cap.join("tap_010.pcap"));
    let starts: Vec<_> = written.iter().map(|it| files::read(it)[0].ts).collect();
    assert!(starts.is_sorted(), "{written:?} begin at {starts:?}");
}

#[test]
fn daily_folders_are_written_indexed_and_read_as_one() {
    let dir = Dir::new();
    let (cap, index) = (dir.folder("cap"), dir.folder("idx"));
    let set = format!("output.index_dir={}", index.display());
    let run = capture(&dir, "run", &cap, &[&set]);
    let facts = summary(&run, run.done());
    assert_eq!(facts["ledger"]["total"]["captured"], FRAMES);
    let written = below(&cap);
    assert!(written.len() >= 5, "rotated: {written:?}");
    let mut listed: Vec<_> = facts["files"].as_array().expect("files").iter().collect();
    listed.sort_by_key(|it| it.as_str());
    let listed: Vec<_> = listed
        .iter()
        .filter_map(|it| it.as_str())
        .map(PathBuf::from)
        .collect();
    assert_same("files in the summary and in the folders", &listed, &written);
    for path in &written {
        let folder = path.parent().expect("inside");
        assert_eq!(folder, cap.join(day(path)));
    }

    let out = dir.join("out.pcapng");
    let merged = wqcap(["merge", "--json", "-o"])
        .arg(&out)
        .arg(&cap)
        .run()
        .expect(0);
    let merged = json(&merged.stdout);
    assert_eq!(
        (&merged["frames"], &merged["streams"]),
        (&FRAMES.into(), &2.into())
    );
    assert_eq!(merged["interfaces"].as_array().map(Vec::len), Some(1));
    assert_eq!(merged["late"]["frames"], 0);

    let extract = |more: &[&str]| {
        let found = wqcap(["extract", "--json", "-o"])
            .arg(&out)
            .arg(&cap)
            .args(more);
        json(&found.run().expect(0).stdout)
    };
    let indexed = ["--index", index.to_str().expect("text")];
    let all = extract(&indexed);
    assert_eq!(all["frames"], FRAMES);
    assert_eq!(all["index"]["files"], written.len());
    let place = |path: &Path, from: &Path| {
        path.strip_prefix(from)
            .expect("a path below the folder")
            .to_owned()
    };
    let indexes: Vec<_> = below(&index).iter().map(|it| place(it, &index)).collect();
    let want = written.iter().map(|it| {
        let mut path = place(it, &cap).into_os_string();
        path.push(".cbor");
        PathBuf::from(path)
    });
    assert_same(
        "an index for each file",
        &indexes,
        &want.collect::<Vec<_>>(),
    );
    // Only frames from the start of the last file on.
    let last = written
        .iter()
        .map(|it| files::read(it)[0].ts)
        .max()
        .expect("files");
    let from = format!("{}.{:09}", last / 1_000_000_000, last % 1_000_000_000);
    let late = extract(&["--from", &from]);
    let want = files::read(&out).iter().all(|it| it.ts >= last);
    assert!(want && late["frames"].as_u64() > Some(0), "{late}");

    // A merged file in the folder does not count frames a second time.
    let into = cap.join("all.pcapng");
    for _ in 0..2 {
        let merged = wqcap(["merge", "--json", "-o"]).arg(&into).arg(&cap);
        assert_eq!(json(&merged.run().expect(0).stdout)["frames"], FRAMES);
        assert_eq!(extract(&[])["frames"], FRAMES);
        let spread = wqcap(["rss", "--json"]).arg(&cap).run().expect(0);
        spread.says(&["files that wqcap merge or extract has written are left out"]);
        assert_eq!(json(&spread.stdout)["frames"], FRAMES, "{spread}");
    }
}

#[test]
fn files_of_a_crash_are_finished_and_emptied_folders_are_deleted() {
    let dir = Dir::new();
    let cap = dir.folder("cap");
    let run = capture(&dir, "first", &cap, &[]);
    let _ = summary(&run, run.done());
    // An incomplete file of a crash, in the folder of an old day.
    let some = below(&cap).remove(0);
    let sound = fs::read(&some).expect("reads");
    let old = cap.join("2001/0101");
    fs::create_dir_all(&old).expect("made");
    let [part, path] = ["q00-5.pcapng.part", "q00-5.pcapng"].map(|name| old.join(name));
    let torn = [&sound[..], &[0; 4096]].concat();
    fs::write(&part, &torn).expect("written");
    let done = wqcap(["recover", "--json"]).arg(&cap).run().expect(0);
    assert_eq!(
        json(&done.stdout)["files"][0]["outcome"],
        "finished",
        "{done}"
    );
    assert_eq!(fs::read(&path).expect("the finished file"), sound);

    fs::remove_file(&path).expect("the file exists");
    fs::write(&part, &torn).expect("written");
    let run = capture(&dir, "second", &cap, &[]);
    let facts = summary(&run, run.done());
    assert_eq!(facts["recovered"][0]["outcome"], "finished", "{facts}");
    assert_eq!(fs::read(&path).expect("the finished file"), sound);

    let before = below(&cap).len();
    let run = capture(&dir, "third", &cap, &["output.keep_files=2"]);
    let facts = summary(&run, run.done());
    let left = below(&cap);
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        facts["deleted"]["files"].as_u64() >= Some(before as u64),
        "{facts}"
    );
    assert!(!cap.join("2001").exists(), "the emptied folder is deleted");
}

/// A subfolder that cannot be read may have capture files: the others are read, and the status is 1.
#[test]
fn an_unreadable_folder_is_an_error() {
    if !is_root() {
        skip!("changing the user requires root");
    }
    let place = ForAll::new();
    let rights = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("rights");
    };
    let cap = place.dir().folder("cap");
    files::write(&cap.join("a.pcap"), 1_600_000_000, &frames::assortment());
    let [own, hidden] = ["cap/lost+found", "cap/hidden"].map(|it| place.dir().folder(it));
    files::write(&hidden.join("b.pcap"), 1_600_000_000, &frames::assortment());
    rights(&own, 0);
    // Neither the content of a folder without rights is known, nor that of a file in one that may only
    // be listed.
    for (mode, status) in [(0o755, 0), (0o744, 1), (0, 1)] {
        rights(&hidden, mode);
        for (command, out) in [("merge", "m.pcap"), ("extract", "e.pcap"), ("flows", "f")] {
            let out = place.dir().join(format!("{mode}-{out}"));
            let program = Program::new(place.wqcap()).args([command, "-o"]);
            let done = as_nobody(program.arg(&out).arg(&cap), privileges::NONE)
                .run()
                .expect(status);
            let problem = "this path is left out, because it cannot be read";
            let mut lines = done.stderr.lines().filter(|it| it.contains("hidden"));
            assert_eq!(lines.any(|it| it.contains(problem)), status == 1, "{done}");
            assert!(out.exists(), "{done}");
        }
    }
}
