//! wqcap as a capture device of Wireshark, with tshark in its place.

use wqcap_tests::{
    Dir, Program, binaries, files, machine::privileges::copy_program, process::is_root, skip,
};

/// Where tshark looks for capture programs. Its home is in `dir`: nobody's settings meddle.
fn folder(dir: &Dir) -> String {
    let done = Program::new("tshark")
        .args(["-G", "folders"])
        .env("HOME", dir.folder("home"))
        .run()
        .expect(0);
    let line = done.stdout.lines().rfind(|it| it.contains("xtcap path"));
    let path = line.and_then(|it| it.split_once(':'));
    path.unwrap_or_else(|| panic!("{done}")).1.trim().to_owned()
}

/// tshark, or dumpcap, that finds wqcap and no other capture program, in a mount namespace of its own.
fn finds_wqcap(program: &str, dir: &Dir) -> Program {
    let script = dir.folder("extcap").join("wqcap");
    if !script.exists() {
        copy_program(&binaries::root().join("configs/wireshark/wqcap"), &script);
    }
    let mount = format!(
        "mount --bind '{}' '{}' && exec \"$@\"",
        dir.folder("extcap").display(),
        folder(dir)
    );
    let binary = binaries::wqcap();
    let here = binary.parent().expect("a folder").display();
    let path = std::env::var("PATH").expect("a PATH");
    Program::new(program)
        .wrapped(["unshare", "--mount", "sh", "-c", &mount, "sh"])
        .env("HOME", dir.folder("home"))
        .env("PATH", format!("{here}:{path}"))
}

fn tshark(dir: &Dir) -> Program {
    finds_wqcap("tshark", dir)
}

#[test]
fn tshark_lists_the_interfaces() {
    if !is_root() {
        skip!("only root can mount a folder over tshark's");
    }
    let dir = Dir::new();
    let done = tshark(&dir).arg("-D").run().expect(0);
    assert!(
        done.stdout.contains("wqcap-model (wqcap: software NIC)"),
        "{done}"
    );
    // docs/wireshark.md: dumpcap alone does not know them.
    let done = finds_wqcap("dumpcap", &dir).arg("-D").run().expect(0);
    assert!(!done.stdout.contains("wqcap"), "{done}");
}

#[test]
fn tshark_captures() {
    if !is_root() {
        skip!("only root can mount a folder over tshark's");
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
    assert!(all.is_sorted_by_key(|it| it.ts), "in the order of time");
    assert!(all.iter().any(|it| it.ts % 1000 != 0), "nanoseconds");
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
fn what_is_not_asked_as_wireshark_does_is_refused() {
    for (args, says) in [
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
        assert!(done.stderr.contains(says), "{done}");
    }
}
