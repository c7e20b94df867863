//! Tests of the aliases: options of other programs, and the keys and limits that they set.

use super::*;
use crate::{args::Args, cmd::devices::tests::device};
use clap::Parser;

/// Translates the tcpdump and dumpcap options of `wqcap run` with these arguments, without devices.
fn settled(args: &[&str]) -> Result<Settled, String> {
    let args = Args::try_parse_from([&["wqcap", "run"], args].concat()).unwrap();
    let crate::args::CliCommand::Run(run) = args.command else {
        panic!("not parsed as wqcap run")
    };
    settle(&run.aliases, &run.config, &run.limits).map_err(|e| e.messages.join("; "))
}

#[test]
fn keys_and_limits_set_by_name_override_aliases() {
    let it = settled(&["-s", "96", "--set", "capture.snaplen=128"]).unwrap();
    assert_eq!(it.config.load().unwrap().capture.snaplen, Size(128));
    let it = settled(&["-a", "packets:7", "--count", "9"]).unwrap();
    assert_eq!(it.limits.count, Some(9));
}

#[test]
fn sizes_have_the_units_of_the_original_program() {
    for (text, bytes) in [
        ("1", Some(1_000_000)),
        ("2k", Some(2048)),
        ("4G", Some(4 << 30)),
        ("0", None),
        ("1.5", None),
        ("1MB", None),
    ] {
        assert_eq!(million_bytes(text), bytes, "{text}");
    }
    let bytes = |text| read(text).map(|(word, value)| (word, value.bytes()));
    assert_eq!(bytes("filesize:10"), Some(("filesize", 10_000)));
    assert_eq!(bytes("filesize:10MiB"), Some(("filesize", 10 << 20)));
    assert_eq!(bytes("filesize"), None);
}

#[test]
fn with_a_ring_of_files_a_size_ends_a_file_and_not_the_run() {
    let alone = settled(&["-a", "filesize:100"]).unwrap();
    assert_eq!(alone.limits.bytes, Some(Size(100_000)));
    let ring = settled(&["-a", "filesize:100", "-b", "files:3"]).unwrap();
    assert_eq!(ring.limits.bytes, None);
    let output = ring.config.load().unwrap().output;
    assert_eq!((output.rotate_size, output.keep_files), (Size(100_000), 3));
}

#[test]
fn invalid_conditions_are_refused() {
    for args in [
        &["-a", "duration:0"][..],
        &["-a", "days:3"],
        &["-b", "files"],
        &["-C", "many"],
        &["1000"],
    ] {
        let message = settled(args).expect_err("refused");
        assert!(message.contains(args[args.len() - 1]), "{message}");
    }
}

#[test]
fn a_name_is_a_device_or_its_interface() {
    let devices = [device("mlx5_0", &[])];
    let key = |name, required| key(name, &devices, required).map_err(|e| e.messages.join("; "));
    assert_eq!(key("mlx5_0", true), Ok("device.name"));
    assert_eq!(key("ens1f0np0", true), Ok("device.netdev"));
    assert_eq!(key("lo", true), Ok("device.netdev"));
    assert!(key("eth9", false).unwrap_err().contains("no such device"));
}

#[test]
fn folders_of_a_template_belong_to_the_name() {
    for (path, folder, name) in [
        ("out.pcap", ".", "out.pcap"),
        ("cap/out.pcap", "cap", "out.pcap"),
        ("/out.pcap", "/", "out.pcap"),
        (
            "/data/cap/%Y%m%d/%H/q{queue}.pcap",
            "/data/cap",
            "%Y%m%d/%H/q{queue}.pcap",
        ),
        ("cap/{host}-%H.pcap", "cap", "{host}-%H.pcap"),
        ("{host}/a.pcap", ".", "{host}/a.pcap"),
    ] {
        assert_eq!(folder_and_name(path), (folder, name), "{path}");
    }
    let it = settled(&["-w", "cap/%Y%m%d/%H.pcapng", "-G", "3600"]).unwrap();
    let output = it.config.load().unwrap().output;
    assert_eq!((output.dir, &output.name[..]), ("cap".into(), "%Y%m%d/%H"));
}

#[test]
fn files_in_the_working_directory_do_not_change_the_meaning_of_words() {
    // Paths that exist in the folder of the crate, where tests run.
    for (words, file, filter) in [
        (&["src"][..], None, "src"),
        (&["Cargo.toml", "tcp"], Some("Cargo.toml"), "tcp"),
        (&["./src", "tcp"], Some("./src"), "tcp"),
        (&["tcp", "Cargo.toml"], None, "tcp Cargo.toml"),
    ] {
        let it = settled(words).unwrap();
        let shown = it.config.file.as_ref().and_then(|it| it.to_str());
        assert_eq!(shown, file, "{words:?}");
        let set = it.config.set.first().map(|it| it.value.as_str());
        assert_eq!(set, Some(filter), "{words:?}");
    }
    let it = settled(&["-c", "7"]).unwrap();
    assert_eq!((it.config.file, it.limits.count), (None, Some(7)));
    assert!(it.notes[0].contains("-c ./7"), "{:?}", it.notes);
}
