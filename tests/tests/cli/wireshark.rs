//! wqcap as a capture program (extcap) of Wireshark, tested with tshark.

use std::fs;
use wqcap_tests::{
    Dir, Program, binaries, files, machine::privileges::copy_program, process::is_root, skip,
};

/// Returns the directory in which tshark searches for capture programs. The home directory is
/// inside `dir`, so that no user's settings are read.
fn extcap_directory(dir: &Dir) -> String {
    let done = Program::new("tshark")
        .args(["-G", "folders"])
        .env("HOME", dir.folder("home"))
        .run()
        .expect(0);
    let line = done.stdout.lines().rfind(|it| it.contains("xtcap path"));
    let path = line.and_then(|it| it.split_once(':'));
    path.unwrap_or_else(|| panic!("{done}")).1.trim().to_owned()
}

/// Returns the command `program` (tshark or dumpcap) in a separate mount namespace, in which wqcap
/// is the only capture program.
fn with_wqcap(program: &str, dir: &Dir) -> Program {
    let script = dir.folder("extcap").join("wqcap");
    if !script.exists() {
        copy_program(&binaries::root().join("configs/wireshark/wqcap"), &script);
    }
    let mount = format!(
        "mount --bind '{}' '{}' && exec \"$@\"",
        dir.folder("extcap").display(),
        extcap_directory(dir)
    );
    let binary = binaries::wqcap();
    let here = binary.parent().expect("wqcap is in a directory").display();
    let path = std::env::var("PATH").expect("PATH is set");
    Program::new(program)
        .wrapped(["unshare", "--mount", "sh", "-c", &mount, "sh"])
        .env("HOME", dir.folder("home"))
        .env("PATH", format!("{here}:{path}"))
}

fn tshark(dir: &Dir) -> Program {
    with_wqcap("tshark", dir)
}

#[test]
fn tshark_lists_the_interfaces() {
    if !is_root() {
        skip!("only root can mount a directory over tshark's");
    }
    let dir = Dir::new();
    let done = tshark(&dir).arg("-D").run().expect(0);
    assert!(
        done.stdout.contains("wqcap-model (wqcap: software NIC)"),
        "{done}"
    );
    // docs/wireshark.md: dumpcap alone does not list them.
    let done = with_wqcap("dumpcap", &dir).arg("-D").run().expect(0);
    assert!(!done.stdout.contains("wqcap"), "{done}");
}

#[test]
fn tshark_captures_frames_with_and_without_a_filter() {
    if !is_root() {
        skip!("only root can mount a directory over tshark's");
    }
    let dir = Dir::new();
    let run = |name: &str, filter: Option<&str>| {
        let file = dir.join(name);
        let program = tshark(&dir)
            .args(["-i", "wqcap-model", "-q", "-n"])
            .args([
                "-o",
                "extcap.wqcap_model.wire:synth:count=600,size=90,flows=20,proto=mix",
            ])
            .args(["-o", "extcap.wqcap_model.queues:2"])
            .args([
                "-o",
                "extcap.wqcap_model.set:capture.ring=64 model.caps=all",
            ])
            .args(filter.into_iter().flat_map(|it| ["-f", it]))
            .arg("-w")
            .arg(&file);
        let done = program.run().expect(0);
        assert!(!done.stderr.contains("error"), "{done}");
        files::read(&file)
    };
    let all = run("all.pcapng", None);
    assert_eq!(all.len(), 600);
    assert!(
        all.is_sorted_by_key(|it| it.ts),
        "records are in order of time"
    );
    assert!(
        all.iter().any(|it| it.ts % 1000 != 0),
        "time stamps have nanoseconds"
    );
    assert!(all.iter().all(|it| it.len == 90 && it.bytes.len() == 90));
    let udp = run("udp.pcapng", Some("udp"));
    assert_eq!(udp.len(), 300);
    assert!(udp.iter().all(|it| it.bytes[23] == 17));
}

#[test]
fn filters_are_checked_before_they_are_used() {
    let ask = |filter: &str| {
        let args = [
            "extcap",
            "--extcap-interface",
            "wqcap-model",
            "--extcap-capture-filter",
            filter,
        ];
        Program::new(binaries::wqcap())
            .args(args)
            .run()
            .expect(0)
            .stdout
    };
    assert_eq!(ask("tcp port 80"), "");
    assert!(ask("tcp prot 80").contains("syntax error"));
}

#[test]
fn calls_without_wiresharks_arguments_are_refused() {
    for (args, error) in [
        (&["extcap"][..], "--extcap-interfaces"),
        (&["extcap", "--extcap-interface", "eth0"], "wqcap-model"),
        (
            &["extcap", "--extcap-interface", "wqcap-model", "--capture"],
            "--fifo",
        ),
    ] {
        let done = Program::new(binaries::wqcap())
            .args(args.iter().copied())
            .run()
            .expect(2);
        assert!(done.stderr.contains(error), "{done}");
    }
}

#[test]
fn a_file_in_the_place_of_the_fifo_stays_as_it_is() {
    let dir = Dir::new();
    let file = dir.path().join("notes.txt");
    fs::write(&file, "notes").expect("written");
    let args = ["extcap", "--extcap-interface", "wqcap-model", "--capture"];
    let capture = Program::new(binaries::wqcap()).args(args).arg("--fifo");
    capture.arg(&file).run().expect(2).says(&["is not a FIFO"]);
    assert_eq!(fs::read(&file).expect("reads"), b"notes");
}
