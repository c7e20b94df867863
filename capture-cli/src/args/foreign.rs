//! Hints for options of tcpdump, dumpcap and n2disk that wqcap does not have.

use clap::{
    Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

/// Hint for options of other capture programs that print frames.
const PRINTING: &str =
    "wqcap prints no frames: write a stream with -w - and pipe it into tcpdump -r - or tshark -r -";
/// Hint for options of other capture programs that select a link type.
const ETHERNET: &str = "the only link type is Ethernet";

/// Options of other capture programs, with the hint for each.
const HINTS: &[(&[&str], &str)] = &[
    (
        &[
            "-A", "-X", "-x", "-e", "-l", "-t", "-S", "-K", "-N", "-V", "-T", "-H",
        ],
        PRINTING,
    ),
    (
        &["-r"],
        "wqcap extract FILE -o OUT --filter FILTER reads a file, and wqcap flows FILE -o DIR makes flow records of it; --model pcap:FILE replays it",
    ),
    (
        &["-B", "--buffer-size"],
        "buffers: --set output.buffer=SIZE for the disk, --set capture.ring=FRAMES for the NIC",
    ),
    (
        &["-y", "-L", "-I", "--linktype", "--monitor-mode"],
        ETHERNET,
    ),
    (
        &[
            "-j",
            "-J",
            "--time-stamp-type",
            "--time-stamp-precision",
            "--nano",
            "--micro",
        ],
        "stamps are in nanoseconds: --set capture.timestamps=hardware or software, --set capture.clock=system or nic",
    ),
    (
        &["-Q", "--direction"],
        "--set capture.direction=in, out or both on an ordinary interface; on an RDMA NIC, --set capture.mode=sniffer also captures the frames that the host sends",
    ),
    (&["-d", "--dump"], "write wqcap check to print the plan"),
    (
        &["-z"],
        "--set output.hook=PROGRAM runs a program after each finished file",
    ),
    (
        &["-k", "-g", "-m", "-R", "-E", "-M", "-O"],
        "docs/tcpdump.md lists the options that wqcap has",
    ),
    (
        &["--disk-limit", "--max-num-files"],
        "--set output.keep=80%, or a size, deletes the oldest files; --set output.keep_files=N keeps N",
    ),
];

/// Adds a hint to a command-line error if the unknown option belongs to another capture program.
pub fn hint(mut error: Error) -> Error {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let known = |(options, _): &&(&[&str], &str)| options.contains(&option.as_str());
    if error.kind() == ErrorKind::UnknownArgument
        && let Some((_, hint)) = HINTS.iter().find(known)
    {
        let hints = vec![(*hint).into()];
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(hints));
    }
    error
}
