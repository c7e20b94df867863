//! The model refuses the same calls as the kernel and the mlx5 driver. Each row of the client's
//! tables is a verb. It is called by root, without capabilities, and with CAP_NET_RAW only.

use crate::c_client;
use std::path::Path;
use wqcap_testkit::{
    Dir, binaries,
    machine::privileges::{self, as_nobody},
    model::preloaded,
    process::clients::Build,
    process::is_root,
    skip,
};

/// Model settings of a device without optional capabilities and with small tables and CQs.
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

/// Runs the client's rows for `device` as `user`, and asserts that each has the result that the
/// client expects. Returns the number of rows.
fn check_rows(model: &Path, client: &Path, device: &str, user: &str) -> usize {
    let sets = if device == "bare" { BARE } else { &[] };
    let program = preloaded(model, &["loopback"], sets)
        .arg(client)
        .args([device, user]);
    let program = match user {
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
        "{device} device, {user}:\n{}",
        wrong.join("\n")
    );
    done.expect(0).stdout.lines().count()
}

fn check_all_rows(user: &str) {
    if !is_root() {
        skip!("only root can set capabilities");
    }
    let place = Dir::for_all();
    let model = place.bring(binaries::model());
    let client = place.bring(&c_client("refusals", Build::Plain));
    let full = check_rows(&model, &client, "full", user);
    let bare = check_rows(&model, &client, "bare", user);
    assert!(full > 90 && bare > 15, "only {full} and {bare} rows");
}

#[test]
fn the_model_refuses_the_same_calls_as_the_kernel_for_root() {
    check_all_rows("root");
}

#[test]
fn the_model_refuses_the_same_calls_as_the_kernel_for_an_ordinary_user() {
    check_all_rows("user");
}

#[test]
fn the_model_refuses_the_same_calls_as_the_kernel_with_net_raw_only() {
    check_all_rows("net_raw");
}
