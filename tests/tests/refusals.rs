//! What the kernel and the mlx5 driver refuse, the model refuses: each row of the client's tables is a verb, called
//! with every right, without any, and with CAP_NET_RAW alone.

use std::path::Path;
use wqcap_tests::{
    Program,
    machine::privileges::{self, ForAll, as_nobody},
    process::clients::{self, Build},
    process::is_root,
    skip,
};

/// A device without its optional capabilities, with short tables and CQs.
const BARE: &[&str] = &[
    "cvlan_stripping=false",
    "scatter_fcs=false",
    "delay_drop=false",
    "end_padding=false",
    "sniffer=false",
    "tunnel_offloads=false",
    "mpls=false",
    "esp=false",
    "max_ind_table_log=3",
    "max_cqe=1023",
    "cq_moderation=false",
    "striding_rq=false",
    "cqe_compression=false",
];

/// Runs the rows for `device` as `who`; gives how many there were. The client knows what is right.
fn rows(place: &ForAll, client: &Path, device: &str, who: &str) -> usize {
    let sets = if device == "bare" { BARE } else { &[] };
    let program = Program::new(place.wqcap())
        .args(["model", "--wire", "loopback"])
        .args(sets.iter().flat_map(|set| ["--set", set]))
        .arg("--")
        .arg(client)
        .args([device, who]);
    let program = match who {
        "root" => program,
        "user" => as_nobody(program, privileges::NONE),
        _ => as_nobody(program, privileges::NET_RAW),
    };
    let done = program.run();
    let wrong: Vec<_> = done
        .stdout
        .lines()
        .filter(|row| row.contains("but should be"))
        .collect();
    assert!(
        wrong.is_empty(),
        "{device} device, {who}:\n{}",
        wrong.join("\n")
    );
    done.expect(0).stdout.lines().count()
}

fn all_rows(who: &str) {
    if !is_root() {
        skip!("only root can give and take capabilities");
    }
    let place = ForAll::new();
    let client = place.bring(&clients::ours("refusals", Build::Plain));
    let full = rows(&place, &client, "full", who);
    let bare = rows(&place, &client, "bare", who);
    assert!(full > 90 && bare > 15, "{full} and {bare} rows");
}

#[test]
fn with_every_right() {
    all_rows("root");
}

#[test]
fn as_an_ordinary_user() {
    all_rows("user");
}

#[test]
fn with_net_raw_alone() {
    all_rows("net_raw");
}
