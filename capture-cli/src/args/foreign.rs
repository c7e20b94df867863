//! What to write in place of options of tcpdump, dumpcap and n2disk that wqcap does not have.

use clap::{
    Error,
    error::{ContextKind, ContextValue, ErrorKind},
};

const PRINTING: &str =
    "wqcap prints no frames: write a stream with -w - and pipe it into tcpdump -r - or tshark -r -";
const ETHERNET: &str = "a NIC captures Ethernet frames, of no other link type";

/// The options, and what they are here.
const HINTS: &[(&[&str], &str)] = &[
    (
        &[
            "-A", "-X", "-x", "-e", "-l", "-t", "-S", "-K", "-N", "-V", "-T", "-H",
        ],
        PRINTING,
    ),
    (&["-r"], "to replay a file: --model pcap:FILE"),
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
        "received frames are captured, with --set capture.mode=sniffer also those that the host sends",
    ),
    (&["-d", "--dump"], "wqcap check prints the plan"),
    (
        &["-z"],
        "--set output.hook=PROGRAM runs a program after each finished file",
    ),
    (
        &["-k", "-g", "-m", "-R", "-E", "-M", "-O"],
        "docs/tcpdump.md has what options are here",
    ),
    (
        &["--disk-limit", "--max-num-files"],
        "--set output.keep=80%, or a size, deletes the oldest files; --set output.keep_files=N keeps N",
    ),
];

/// The error, with the way there is where an option is another program's.
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
