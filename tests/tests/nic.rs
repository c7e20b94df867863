//! What an mlx5 does besides spreading frames: C clients that send frames of their own and drive one kind of object
//! each, with and without gcc's address sanitizer; and how several devices, ports and processes live side by side.

use std::time::Duration;
use wqcap_tests::{
    Dir, Done, process,
    process::clients::{self, Build},
    skip,
    wqcap::model,
};

const BUILDS: [Build; 2] = [Build::Plain, Build::Sanitized];

/// Runs a client of ours in both builds; it checks everything itself.
fn client(name: &str, args: &[&str], wires: &[&str], sets: &[&str]) {
    for build in BUILDS {
        let program = clients::ours(name, build);
        let program = [program.to_str().expect("a plain path")];
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

/// PCIe is slow for a while, and what comes back meanwhile finds the port's buffer full.
#[test]
fn a_port_without_room_counts_its_discards() {
    let dir = Dir::new();
    let file = dir.join("fast");
    let file = file.to_str().expect("a plain path");
    let fault = format!("fault=slow_pci:ns=100000000@frames=1;slow_pci:ns=1@file={file}");
    client("discards", &[file], &["loopback"], &[&fault]);
}

#[test]
fn thread_domains_have_doorbells_of_their_own() {
    client("domain", &[], &["loopback"], &[]);
}

#[test]
fn completion_queues_of_64_byte_cqes() {
    client("cq", &["64"], &["loopback"], &[]);
}

#[test]
fn completion_queues_of_128_byte_cqes() {
    client("cq", &["128"], &["loopback"], &[]);
}

/// The environment asks libmlx5 for large CQEs, and the program knows nothing of it.
#[test]
fn rss_with_128_byte_cqes() {
    for mode in ["poll", "ex", "event"] {
        let program = clients::ours("rss", Build::Plain);
        let program = [program.to_str().expect("a plain path"), mode, "4", "50000"];
        let wire = "synth:count=50000,size=94/594,flows=200,proto=mix,ip=mix";
        let _ = model(&[wire], &[], program)
            .env("MLX5_CQE_SIZE", "128")
            .run()
            .expect(0);
    }
}

#[test]
fn a_wq_and_what_can_happen_to_it() {
    // Delay drop takes a right that an ordinary user's model grants.
    let mut sets = vec!["delay_drop_timeout=50000", "caps=all", "max_wq=8"];
    let folder = "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop";
    client("wq", &[folder], &["loopback"], &sets);
    sets.push("refuse_stale_state=true");
    client("wq", &[folder, "stale"], &["loopback"], &sets);
}

#[test]
fn shared_receive_queues_as_objects() {
    client("srq", &[], &["loopback"], &[]);
}

#[test]
fn rss_on_the_headers_in_a_tunnel() {
    client("tunnel", &[], &["loopback"], &[]);
}

#[test]
fn two_devices_joined_by_a_cable() {
    let dir = Dir::new();
    let wire = format!("peer:{}", dir.join("cable").display());
    let ends = ["mlx5_0", "1", "mlx5_1", "1"];
    client("joined", &ends, &[&wire, &wire], &[]);
}

#[test]
fn two_ports_of_a_device_joined_by_a_cable() {
    let dir = Dir::new();
    let wire = format!("peer:{}", dir.join("cable").display());
    let sets = ["mlx5_0.ports=2", &format!("mlx5_0.port2.wire={wire}")];
    let ends = ["mlx5_0", "2", "mlx5_0", "1"];
    client("joined", &ends, &[&wire], &sets);
}

#[test]
fn children_have_a_device_of_their_own() {
    client("family", &[], &["loopback"], &[]);
}

/// Each of two programs has the whole wire to itself, and the port's counters tell of both.
#[test]
fn two_programs_at_once() {
    const FRAMES: u64 = 100_000;
    let rss = clients::ours("rss", Build::Plain);
    let script = format!(
        "{rss} poll 2 {FRAMES} & first=$!; {rss} ex 3 {FRAMES} & second=$!
        wait $first && wait $second && cat /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets",
        rss = rss.display()
    );
    let wire = format!("synth:count={FRAMES},size=94,flows=64,proto=mix,ip=mix");
    let done = model(&[&wire], &[], ["sh", "-c", &script]).run().expect(0);
    let counted: u64 = last_line(&done).parse().expect("a counter");
    assert_eq!(counted, 2 * FRAMES, "{done}");
}

fn last_line(done: &Done) -> &str {
    done.stdout.lines().last().unwrap_or_default()
}

/// The device tells what it was told to be, and refuses beyond it.
#[test]
fn a_device_is_what_it_is_set_to_be() {
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
        assert!(has, "no {line} in {done}");
    };
    says("max_cqe:1023");
    says("max_rwq_indirection_table_size:16");
    says("max_wq_type_rq:77");
    says("hca_core_clock:156250kHZ");
    says("active_width:1X(1)");
    says("active_speed:25.0Gbps(32)");
    for gone in ["SCATTER_FCS", "CVLAN", "DELAY_DROP", "END_PADDING"] {
        assert!(!done.stdout.contains(gone), "{gone} in {done}");
    }
}

/// Without the right, delay drop is refused; with all granted, the same program has it.
#[test]
fn delay_drop_takes_a_right() {
    if !process::is_root() {
        skip!("only root has a right to give up");
    }
    let client = clients::ours("wq", Build::Plain);
    let folder = "/sys/kernel/debug/mlx5/15b3:01:00.0/delay_drop";
    let program = [
        "setpriv",
        "--bounding-set=-sys_rawio",
        "--inh-caps=-sys_rawio",
        client.to_str().expect("a plain path"),
        folder,
    ];
    let sets = ["delay_drop_timeout=50000"];
    let done = model(&["loopback"], &sets, program).run().expect(1);
    done.says(&["q.wq", "Operation not permitted"]);
}

#[test]
fn the_spikes_pcap_client_is_left_out() {
    skip!(
        "t_pcap opens the spike's own device, mlx5_emu0, by libpcap's RDMA sniffer, which distributions build without"
    );
}
