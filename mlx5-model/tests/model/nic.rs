//! Functions of an mlx5 other than RSS. C clients send frames and use one kind of object each, with
//! and without gcc's address sanitizer. Other tests run several devices, ports and processes at
//! once.

use crate::c_client;
use std::time::Duration;
use wqcap_testkit::{Dir, Done, model::model, process, process::clients::Build, skip};

const BUILDS: [Build; 2] = [Build::Plain, Build::Sanitized];

/// Runs a client of `mlx5-model/tests/clients` in both builds. The client checks all results and prints `ok`.
fn client(name: &str, args: &[&str], wires: &[&str], sets: &[&str]) {
    for build in BUILDS {
        let program = c_client(name, build);
        let program = [program.to_str().expect("the path is UTF-8")];
        let done = model(wires, sets, program.iter().chain(args))
            .timeout(Duration::from_secs(120))
            .run()
            .expect(0);
        assert_eq!(done.stdout, "ok\n", "{done}");
    }
}

#[test]
fn a_raw_qp_sends_and_receives() {
    client("raw", &[], &["loopback"], &[]);
}

/// PCIe is slow for a while, and frames that arrive then find the port's buffer full.
#[test]
fn a_port_with_a_full_buffer_counts_discards() {
    let dir = Dir::new();
    let file = dir.join("fast");
    let file = file.to_str().expect("the path is UTF-8");
    let fault = format!("fault=slow_pci:ns=100000000@frames=1;slow_pci:ns=1@file={file}");
    client("discards", &[file], &["loopback"], &[&fault]);
}

#[test]
fn each_thread_domain_has_its_own_doorbell() {
    client("domain", &[], &["loopback"], &[]);
}

#[test]
fn completion_queues_work_with_64_byte_cqes() {
    client("cq", &["64"], &["loopback"], &[]);
}

#[test]
fn completion_queues_work_with_128_byte_cqes() {
    client("cq", &["128"], &["loopback"], &[]);
}

/// An environment variable selects 128-byte CQEs in libmlx5; the program is unchanged.
#[test]
fn rss_works_with_128_byte_cqes() {
    for mode in ["poll", "ex", "event"] {
        let program = c_client("rss", Build::Plain);
        let program = [
            program.to_str().expect("the path is UTF-8"),
            mode,
            "4",
            "50000",
        ];
        let wire = "synth:count=50000,size=94/594,flows=200,proto=mix,ip=mix";
        let _ = model(&[wire], &[], program)
            .env("MLX5_CQE_SIZE", "128")
            .run()
            .expect(0);
    }
}

#[test]
fn a_wq_handles_errors_overruns_and_flag_changes() {
    // Delay drop needs CAP_SYS_RAWIO; `caps=all` makes the model grant it to every user.
    let mut sets = vec!["delay_drop_timeout=50000", "caps=all", "max_wq=8"];
    let folder = "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop";
    client("wq", &[folder], &["loopback"], &sets);
    sets.push("refuse_stale_state=true");
    client("wq", &[folder, "stale"], &["loopback"], &sets);
}

#[test]
fn a_shared_receive_queue_is_filled_and_reports_its_limit() {
    client("srq", &[], &["loopback"], &[]);
}

#[test]
fn rss_hashes_the_headers_in_a_tunnel() {
    client("tunnel", &[], &["loopback"], &[]);
}

#[test]
fn a_cable_joins_two_devices() {
    let dir = Dir::new();
    let wire = format!("peer:{}", dir.join("cable").display());
    let ends = ["mlx5_0", "1", "mlx5_1", "1"];
    client("joined", &ends, &[&wire, &wire], &[]);
}

#[test]
fn a_cable_joins_two_ports_of_a_device() {
    let dir = Dir::new();
    let wire = format!("peer:{}", dir.join("cable").display());
    let sets = ["mlx5_0.ports=2", &format!("mlx5_0.port2.wire={wire}")];
    let ends = ["mlx5_0", "2", "mlx5_0", "1"];
    client("joined", &ends, &[&wire], &sets);
}

#[test]
fn child_processes_have_their_own_device() {
    client("family", &[], &["loopback"], &[]);
}

/// Each program receives all frames of the wire, and the port's counters count the frames of both.
#[test]
fn two_programs_receive_at_once() {
    const FRAMES: u64 = 100_000;
    let rss = c_client("rss", Build::Plain);
    let script = format!(
        "{rss} poll 2 {FRAMES} & first=$!; {rss} ex 3 {FRAMES} & second=$!
        wait $first && wait $second && cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets",
        rss = rss.display()
    );
    let wire = format!("synth:count={FRAMES},size=94,flows=64,proto=mix,ip=mix");
    let done = model(&[&wire], &[], ["sh", "-c", &script]).run().expect(0);
    let counted: u64 = last_line(&done)
        .parse()
        .expect("the last line is a counter");
    assert_eq!(counted, 2 * FRAMES, "{done}");
}

fn last_line(done: &Done) -> &str {
    done.stdout.lines().last().unwrap_or_default()
}

/// The device reports the capabilities and limits of the model's settings.
#[test]
fn a_device_has_the_configured_capabilities() {
    let sets = [
        "max_qp_wr=256",
        "max_ind_table_log=4",
        "max_cqe=1023",
        "max_wq=77",
        "clock_khz=156250",
        "rate=25",
        "mtu=9000",
        "scatter_fcs=false",
        "cvlan_stripping=false",
        "delay_drop=false",
        "end_padding=false",
    ];
    let program = ["ibv_devinfo", "-v"];
    let done = model(&["loopback"], &sets, program).run().expect(0);
    let says = |line: &str| {
        let has = done
            .stdout
            .lines()
            .any(|text| text.split_whitespace().collect::<String>() == line);
        assert!(has, "{line} is missing: {done}");
    };
    says("max_cqe:1023");
    says("max_rwq_indirection_table_size:16");
    says("max_wq_type_rq:77");
    says("hca_core_clock:156250kHZ");
    says("active_width:1X(1)");
    says("active_speed:25.0Gbps(32)");
    for gone in ["SCATTER_FCS", "CVLAN", "DELAY_DROP", "END_PADDING"] {
        assert!(!done.stdout.contains(gone), "{gone} is not offered: {done}");
    }
}

/// Without CAP_SYS_RAWIO, creating a WQ with delay drop is refused.
#[test]
fn delay_drop_needs_cap_sys_rawio() {
    if !process::is_root() {
        skip!("only root has CAP_SYS_RAWIO and can drop it");
    }
    let client = c_client("wq", Build::Plain);
    let folder = "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop";
    let program = [
        "setpriv",
        "--bounding-set=-sys_rawio",
        "--inh-caps=-sys_rawio",
        client.to_str().expect("the path is UTF-8"),
        folder,
    ];
    let sets = ["delay_drop_timeout=50000"];
    let done = model(&["loopback"], &sets, program).run().expect(1);
    done.says(&["q.wq", "Operation not permitted"]);
}

#[test]
fn the_spikes_pcap_client_is_skipped() {
    skip!(
        "t_pcap opens the spike's own device, mlx5_emu0, by libpcap's RDMA sniffer; distributions build libpcap without it"
    );
}
