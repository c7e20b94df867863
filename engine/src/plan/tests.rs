//! Tests of plans: tables of configurations and device facts, without a real device.

use super::*;
use crate::verbs::RingAccess;
use crate::{
    device::{DeviceCaps, PortFacts, port_topology::PortTopology},
    sink::Retention,
    verbs::{MiniFormat, Striding, StridingCaps},
};

/// Returns the facts of a device with all capabilities and one port that the machine does not use
/// otherwise.
fn device() -> DeviceFacts {
    DeviceFacts {
        name: "mlx5_0".into(),
        node_guid: "0000:0000:0000:0001".into(),
        firmware: "16.35.2000".into(),
        vendor_part: (0x15b3, 0x1017),
        numa_node: None,
        caps: DeviceCaps {
            max_wq: 64,
            max_wq_wr: Some(32_768),
            // The value that Linux since 2025 reports for such a device.
            max_qp_wr: 8192,
            max_sge: 16,
            max_table: 256,
            max_cqe: 1 << 22,
            striding: Some(StridingCaps {
                stride_log: 6..=13,
                strides_log: 9..=16,
            }),
            real_time: false,
            ..any_device::caps()
        },
        delay_drop: None,
        ports: vec![PortFacts {
            number: 1,
            state: "ACTIVE".into(),
            ethernet: true,
            rate_gbps: 100.0,
            netdev: Some("ens1f0np0".into()),
            mtu: Some(1500),
            roce: None,
            place: PortTopology::default(),
        }],
        access: RingAccess::Mlx5,
        software: false,
        missing: Vec::new(),
        raw_qp_only: false,
        kernel: None,
    }
}

/// Parses the text of a configuration.
fn config(text: &str) -> Config {
    Config::with_overrides(text, &[]).expect("a configuration")
}

/// Case of a refused setting: configuration text, change to the device, and parts of the error
/// message.
type Refusal = (&'static str, fn(&mut DeviceFacts), &'static [&'static str]);

/// Plans the queues of one port on a machine with the CPUs `allowed`, `near` of which are near the
/// device.
fn planned(
    config: &Config,
    allowed: &[usize],
    near: &[usize],
    notes: &mut Vec<String>,
) -> Result<Vec<QueuePlan>, Error> {
    let cores = queues::cores(config, allowed, near)?;
    let count = queues::count(config, &device(), cores.len())?;
    Ok(queues::queues(config, &[count], &cores, near, notes))
}

#[test]
fn unsupported_settings_are_refused_with_key_value_and_limit() {
    let all: &[Refusal] = &[
        (
            "[device]\nport = 2",
            |_| {},
            &["device.port", "2", "port 1 only"],
        ),
        (
            "",
            |it| it.ports[0].ethernet = false,
            &["device.port", "Ethernet"],
        ),
        (
            "[device]\nname = \"mlx5_9\"",
            |_| {},
            &["device.name", "mlx5_9", "mlx5_0"],
        ),
        (
            "",
            |it| it.missing = vec!["ibv_create_wq".into()],
            &["mlx5_0", "ibv_create_wq"],
        ),
        (
            "[capture]\nqueues = 65",
            |_| {},
            &["capture.queues", "65", "1 to 64"],
        ),
        (
            "[capture]\nring = 1000",
            |_| {},
            &["capture.ring", "1000", "1024"],
        ),
        (
            "[capture]\nring = 65536",
            |_| {},
            &["capture.ring", "65536", "32768"],
        ),
        (
            "[capture]\nreceive = \"frame\"\nring = 16384",
            |it| it.caps.max_wq_wr = Some(8192),
            &[
                "capture.ring",
                "16384",
                "mlx5_0 has at most 8192 WRs",
                "8192 or less",
            ],
        ),
        (
            "[capture]\nring = 16384",
            |it| it.caps.max_wq_wr = Some(64),
            &["capture.ring", "16384", "512 WRs of 1024 strides", "64 WRs"],
        ),
        (
            "[capture]\nmax_sge = 17",
            |_| {},
            &["capture.max_sge", "17", "1 to 16"],
        ),
        (
            "[capture]\nbuffer = 32",
            |_| {},
            &["capture.buffer", "32", "64"],
        ),
        (
            "[capture]\nreceive = \"striding\"",
            |it| it.caps.striding = None,
            &["capture.receive", "striding", "mlx5_0 lacks", "\"auto\""],
        ),
        (
            "[capture]\nreceive = \"striding\"",
            |it| it.access = RingAccess::Verbs,
            &["capture.receive", "capture.access"],
        ),
        (
            "[capture]\nreceive = \"striding\"\n[wq]\ncvlan_stripping = true",
            |_| {},
            &["capture.receive", "wq.cvlan_stripping", "output.vlan"],
        ),
        (
            "[capture]\ncqe_compression = \"on\"",
            |_| {},
            &["capture.cqe_compression", "on", "capture.timestamps"],
        ),
        (
            "[capture]\ncqe_compression = \"on\"\ntimestamps = \"software\"",
            |it| it.caps.mini_cqes = vec![MiniFormat::Hash],
            &[
                "capture.cqe_compression",
                "mlx5_0 lacks",
                "CSUM_STRIDX",
                "\"auto\"",
            ],
        ),
        (
            "[capture]\ncqe_compression = \"on\"\ntimestamps = \"software\"\naccess = \"verbs\"",
            |_| {},
            &["capture.cqe_compression", "capture.access"],
        ),
        (
            "[capture]\nstride = 96",
            |_| {},
            &["capture.stride", "96", "64 to 8192"],
        ),
        (
            "[capture]\nstrides = 256",
            |_| {},
            &["capture.strides", "256", "512 to 65536"],
        ),
        (
            "[capture]\nreceive = \"striding\"\nbuffer = \"64KiB\"",
            |_| {},
            &["capture.receive", "capture.buffer", "65535"],
        ),
        (
            "[capture]\nbuffer = \"48KiB\"\nstrides = 512",
            |_| {},
            &["capture.strides", "512", "49152 bytes", "strides = 1024"],
        ),
        (
            "[capture]\nqueues = 1\nring = 32768\nbuffer = \"16KiB\"",
            |_| {},
            &[
                "capture.ring",
                "32768",
                "8388608 CQEs",
                "4194304",
                "capture.ring = 16384",
            ],
        ),
        (
            "[rss]\ntable_size = 512",
            |_| {},
            &["rss.table_size", "512", "256"],
        ),
        (
            "[rss]\ninner = true",
            |it| it.caps.tunnels.gre = false,
            &["rss.inner", "GRE"],
        ),
        (
            "[rss]\nrespread = true\n[capture]\nqueues = 1",
            |_| {},
            &["rss.respread", "one queue"],
        ),
        (
            "[wq]\nscatter_fcs = true",
            |it| it.caps.scatter_fcs = false,
            &["wq.scatter_fcs", "SCATTER_FCS"],
        ),
        (
            "[wq]\ndelay_drop = true",
            |it| it.caps.delay_drop = false,
            &["wq.delay_drop", "DELAY_DROP"],
        ),
        (
            "[wq]\ncvlan_stripping = true",
            |it| it.access = RingAccess::Verbs,
            &["wq.cvlan_stripping", "output.vlan"],
        ),
        (
            "[capture]\nverify_fcs = true",
            |_| {},
            &["capture.verify_fcs", "wq.scatter_fcs"],
        ),
    ];
    let mut wrong = Vec::new();
    for (text, change, words) in all {
        let mut device = device();
        change(&mut device);
        // Settings that no device supports are refused before a device is looked up.
        let error = match Config::with_overrides(text, &[]) {
            Ok(config) => Plan::new(&config, &[device]).expect_err(text).to_string(),
            Err(e) => e.to_string(),
        };
        let missing: Vec<_> = words.iter().filter(|it| !error.contains(**it)).collect();
        if !missing.is_empty() {
            wrong.push(format!("{text:?}: {missing:?} not in {error:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A port whose interface is unknown may be the port that the machine is reached by.
#[test]
fn a_port_of_an_unknown_interface_is_stolen_only_with_permission() {
    let mut real = device();
    (real.ports[0].netdev, real.ports[0].mtu) = (None, None);
    let plan = |device: &DeviceFacts, text: &str| {
        let config = config(&format!("[capture]\nqueues = 1\n{text}"));
        Plan::new(&config, std::slice::from_ref(device)).map_err(|e| e.to_string())
    };
    let error = plan(&real, "").expect_err("not permitted");
    for part in [
        "capture.mode = \"steal\"",
        "network interface of port 1 of mlx5_0 is unknown",
        "login session",
        "capture.steal_management = true",
    ] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    let permitted = plan(&real, "steal_management = true").expect("permitted");
    let notes = permitted.notes.join("\n");
    for part in [
        "capture.steal_management: the network interface of port 1",
        "capture.promiscuous has no effect",
    ] {
        assert!(notes.contains(part), "{part:?} is not in {notes:?}");
    }
    for mode in ["sniffer", "filtered\"\nfilter = \"udp"] {
        plan(&real, &format!("mode = \"{mode}\"")).expect(mode);
    }
    // The software NIC copies the frames of its wire, and a replayed wire has no interface.
    let model = DeviceFacts {
        software: true,
        ..real.clone()
    };
    plan(&model, "").expect("software NIC");
}

/// The NIC's transport takes RoCE frames before rules that are not sniffer rules.
#[test]
fn a_port_with_roce_and_a_virtual_function_have_notes() {
    let plan = |roce, is_vf, text: &str| {
        let mut device = device();
        device.ports[0].roce = roce;
        device.ports[0].place.is_vf = is_vf;
        let config = config(&format!("[capture]\nqueues = 1\n{text}"));
        Plan::new(&config, &[device])
            .expect("a plan")
            .notes
            .join("\n")
    };
    let sniffer = "mode = \"sniffer\"";
    for (roce, text, is_told) in [
        (Some(true), "", true),
        (Some(true), "mode = \"filtered\"\nfilter = \"udp\"", true),
        (Some(true), sniffer, false),
        (Some(false), "", false),
        (None, "", false),
    ] {
        let notes = plan(roce, false, text);
        assert_eq!(
            notes.contains("go to its transport"),
            is_told,
            "{text}: {notes}"
        );
    }
    assert!(plan(None, true, sniffer).contains("which has no sniffer rules"));
    assert!(!plan(None, false, sniffer).contains("which has no sniffer rules"));
}

#[test]
fn striding_rings_have_as_much_memory_for_frames() {
    // Configuration, change to the device; WRs, stride and strides.
    type Case = (
        &'static str,
        fn(&mut DeviceFacts),
        (u32, Option<(u32, u32)>),
    );
    let all: &[Case] = &[
        ("", |_| {}, (256, Some((64, 1024)))),
        ("ring = 64", |_| {}, (4, Some((64, 512)))),
        ("stride = 256", |_| {}, (128, Some((256, 512)))),
        ("strides = 4096", |_| {}, (64, Some((64, 4096)))),
        ("buffer = \"9KiB\"", |_| {}, (128, Some((64, 8192)))),
        ("buffer = \"64KiB\"", |_| {}, (8192, None)),
        ("receive = \"frame\"", |_| {}, (8192, None)),
        ("access = \"verbs\"", |_| {}, (8192, None)),
        ("", |it| it.caps.striding = None, (8192, None)),
        ("\n[wq]\ncvlan_stripping = true", |_| {}, (8192, None)),
        (
            "\n[wq]\ncvlan_stripping = true\n[output]\nvlan = \"lost\"",
            |_| {},
            (256, Some((64, 1024))),
        ),
    ];
    for (text, change, (wrs, shape)) in all {
        let mut device = device();
        change(&mut device);
        let plan = Plan::new(&config(&format!("[capture]\n{text}")), &[device]).expect(text);
        let ring = plan.port.ring;
        let striding = shape.map(|(stride, strides)| Striding { stride, strides });
        assert_eq!((ring.wrs, ring.striding), (*wrs, striding), "{text}");
        assert_eq!(ring.headroom == 64, plan.port.restore_vlan, "{text}");
        assert!(!plan.port.restore_vlan || striding.is_none(), "{text}");
    }
    let held = |text: &str| {
        let plan = Plan::new(&config(&format!("[capture]\n{text}")), &[device()]).expect(text);
        [60, 1500].map(|len| plan.port.ring.frames(len))
    };
    assert_eq!(held("receive = \"frame\""), [8192, 8192]);
    // A frame of 1500 bytes takes 24 strides, and the rest of a buffer stays unused.
    assert_eq!(held(""), [262_144, 256 * (1024 / 24)]);
}

/// The limit of a WQ may be larger than `max_qp_wr`; an unknown limit refuses no ring.
#[test]
fn a_ring_may_be_as_large_as_a_wq_and_larger_than_max_qp_wr() {
    for limit in [Some(32_768), None] {
        for (receive, wrs) in [("frame", 32_768), ("striding", 1024)] {
            let mut device = device();
            device.caps.max_wq_wr = limit;
            let text = format!("[capture]\nqueues = 1\nring = 32768\nreceive = \"{receive}\"");
            let plan = Plan::new(&config(&text), &[device]).expect(&text);
            assert_eq!(plan.port.ring.wrs, wrs, "{limit:?}, {text}");
        }
    }
    // A striding WQ has fewer WRs than `capture.ring`, by which its memory is sized.
    let mut small = device();
    small.caps.max_wq_wr = Some(256);
    let plan = Plan::new(&config("[capture]\nqueues = 1"), &[small]).expect("256 WRs");
    assert_eq!(plan.port.ring.wrs, 256);
}

#[test]
fn too_much_memory_is_refused_with_a_size_that_fits() {
    // Configuration, available memory; key and value, available memory, remedy.
    for (text, there, words) in [
        (
            "[output]\nbuffer = \"1MiB\"",
            40 << 20,
            ["capture.ring = 8192", "40 MiB", "capture.ring = 4096"],
        ),
        (
            "",
            300 << 20,
            [
                "output.buffer = \"256MiB\"",
                "300 MiB",
                "set at most \"236MiB\"",
            ],
        ),
        (
            "",
            60 << 20,
            ["output.buffer = \"256MiB\"", "60 MiB", "no value fits"],
        ),
        (
            "[flows]\nmemory = \"1GiB\"\nnames = true",
            1 << 30,
            [
                "272 MiB for flows.names",
                "flows.memory = \"1GiB\"",
                "set at most \"432MiB\"",
            ],
        ),
        (
            "[flows]\nmemory = \"1GiB\"",
            1 << 30,
            [
                "flows.memory = \"1GiB\"",
                "1.0 GiB",
                "set at most \"704MiB\"",
            ],
        ),
    ] {
        let config = config(&format!("capture.queues = 2\n{text}"));
        let plan = Plan::new(&config, &[device()]).expect("a plan");
        let buffer = config::Size(plan.output.buffer);
        let rings = (plan.port.ring.registered() + plan.port.ring.cq()) * plan.queues.len() as u64;
        let fits = |there| memory::fits(&config, rings, &plan.queues, buffer, there);
        assert!(fits(4 << 30).is_ok());
        let error = fits(there).expect_err("too much").to_string();
        for word in words {
            assert!(error.contains(word), "{word:?} not in {error:?}");
        }
    }
}

#[test]
fn a_quota_of_cpu_time_below_the_loops_is_noted() {
    let all = [0, 1, 2, 3];
    let config = config("capture.queues = 4");
    for (cores, cpus, is_noted) in [
        (&all[..], 2, true),
        (&all[..2], 2, false),
        (&all[..], 4, false),
    ] {
        let queues = queues::queues(&config, &[4], cores, cores, &mut Vec::new());
        let note = queues::quota_note(&queues, 4, cpus);
        assert_eq!(note.is_some(), is_noted, "{note:?}");
        if let Some(note) = note {
            assert!(
                note.contains("2 CPUs") && note.contains("4 cores"),
                "{note}"
            );
        }
    }
}

#[test]
fn one_of_several_devices_must_be_named() {
    let mut other = device();
    other.name = "mlx5_1".into();
    let devices = [device(), other];
    let error = Plan::new(&config(""), &devices)
        .expect_err("two devices")
        .to_string();
    assert!(error.contains("mlx5_0, mlx5_1"), "{error}");
    let plan = Plan::new(&config("[device]\nname = \"mlx5_1\""), &devices).expect("a plan");
    assert_eq!(plan.port.device.name, "mlx5_1");
}

#[test]
fn queues_take_near_cores_in_turn_and_share_them_if_there_are_too_few() {
    // Configuration, allowed cores, near cores; cores of the loops, cores of the parsers, `true` if
    // there is a note.
    type Case = (
        &'static str,
        &'static [usize],
        &'static [usize],
        &'static [usize],
        &'static [usize],
        bool,
    );
    let all: &[Case] = &[
        ("queues = 2", &[0, 1, 2, 3], &[2, 3], &[2, 3], &[], false),
        ("queues = 3", &[0, 1], &[0, 1], &[0, 1, 0], &[], true),
        ("cores = [3, 1]", &[0, 1, 2, 3], &[0], &[3, 1], &[], false),
        (
            "mode = \"sniffer\"",
            &[0, 1, 2],
            &[0, 1, 2],
            &[0],
            &[],
            false,
        ),
        (
            "queues = 2\n[pipeline]\nmode = \"fanout\"",
            &[0, 1, 2, 3],
            &[0, 1, 2, 3],
            &[0, 1],
            &[2, 3],
            false,
        ),
        (
            "queues = 2\n[pipeline]\nmode = \"fanout\"",
            &[0, 1],
            &[0, 1],
            &[0, 1],
            &[0, 1],
            true,
        ),
    ];
    for (text, allowed, near, loops, parsers, noted) in all {
        let mut notes = Vec::new();
        let config = config(&format!("[capture]\n{text}"));
        let queues = planned(&config, allowed, near, &mut notes).expect(text);
        let cores: Vec<_> = queues.iter().map(|it| it.core).collect();
        assert_eq!(cores, *loops, "{text}");
        let seats: Vec<_> = queues
            .iter()
            .flat_map(|it| &it.parsers)
            .map(|it| it.core)
            .collect();
        assert_eq!(seats, *parsers, "{text}");
        assert_eq!(!notes.is_empty(), *noted, "{text}: {notes:?}");
        let all: Vec<_> = cores.iter().chain(&seats).collect();
        for queue in &queues {
            let users = all.iter().filter(|it| ***it == queue.core).count();
            assert_eq!(queue.shared_core, users > 1, "{text}");
        }
    }
    let mut notes = Vec::new();
    let config = config("[capture]\ncores = [7]");
    let error = planned(&config, &[0, 1], &[0], &mut notes).expect_err("not allowed");
    assert!(
        error.to_string().contains("capture.cores") && error.to_string().contains("[0, 1]"),
        "{error}"
    );
}

#[test]
fn rules_that_may_leave_fragments_to_the_kernel_are_named() {
    let filter = |it: &str| format!("[capture]\nmode = \"filtered\"\nfilter = \"{it}\"");
    let rules = |them: &[&str]| {
        let them = them.iter().map(|it| format!("\n[[rule]]\n{it}"));
        format!("[capture]\nmode = \"filtered\"{}", them.collect::<String>())
    };
    let all_ipv4 = "ethertype = 0x0800\npriority = 1";
    for (text, named) in [
        (filter("udp"), Some("ipv4 protocol 17 names")),
        (filter("udp port 53"), Some("ipv4 protocol 17 names")),
        (filter("tcp or icmp"), Some("and 1 more name")),
        (filter("tcp and src 10.0.0.1 or ip"), None),
        (filter("udp and ip[6:2] & 0x3fff = 0"), None),
        (filter("ip6 proto 17"), None),
        (filter("ip or arp"), None),
        (rules(&["proto = \"udp\""]), Some("rule 1 names")),
        (
            rules(&["proto = \"icmp\"\nqueue = 0"]),
            Some("rule 1 names"),
        ),
        (rules(&["proto = \"udp\"\nvlan = 7", all_ipv4]), None),
        (
            rules(&[
                "proto = \"udp\"",
                "ethertype = 0x0800\nvlan = 7\npriority = 1",
            ]),
            Some("rule 1 names"),
        ),
        (
            rules(&["proto = \"tcp\"\ndst_port = 443", "proto = \"udp\""]),
            Some("rule 2 names"),
        ),
        (rules(&["proto = \"udp\"\nsrc = \"2001:db8::/32\""]), None),
        (rules(&["dst = \"10.0.0.0/8\""]), None),
        (String::new(), None),
        ("[capture]\nfilter = \"udp\"".into(), None),
    ] {
        let plan = Plan::new(&config(&text), &[device()]).expect(&text);
        let mut notes = plan
            .notes
            .iter()
            .filter(|it| it.contains("fragments of IPv4"));
        let note = notes.next();
        assert_eq!(note.is_some(), named.is_some(), "{text}: {note:?}");
        let says = note.is_none_or(|it| it.contains(named.unwrap_or_default()));
        assert!(says, "{text}: {note:?}");
    }
}

#[test]
fn completions_are_compressed_where_their_stamps_are_not_used() {
    let soft = "[capture]\ntimestamps = \"software\"\n";
    for (text, formats, expected) in [
        (
            "",
            &[MiniFormat::Hash, MiniFormat::ChecksumStride][..],
            None,
        ),
        (
            soft,
            &[MiniFormat::ChecksumStride],
            Some(MiniFormat::ChecksumStride),
        ),
        (
            &format!("{soft}receive = \"frame\""),
            &[MiniFormat::Hash],
            Some(MiniFormat::Hash),
        ),
        (soft, &[MiniFormat::Hash], None),
        (
            &format!("{soft}access = \"verbs\""),
            &[MiniFormat::Hash],
            None,
        ),
        (
            &format!("{soft}cqe_compression = \"off\""),
            &[MiniFormat::ChecksumStride],
            None,
        ),
    ] {
        let mut device = device();
        device.caps.mini_cqes = formats.to_vec();
        let plan = Plan::new(&config(text), &[device]).expect("a plan");
        assert_eq!(plan.port.compression, expected, "{text}");
    }
}

#[test]
fn stamps_follow_the_configuration_and_the_device() {
    for (text, clock_khz, expected) in [
        ("", 1000, Stamps::HardwareSystem),
        ("clock = \"nic\"", 1000, Stamps::HardwareNic),
        ("timestamps = \"software\"", 1000, Stamps::Software),
        ("", 0, Stamps::Software),
    ] {
        let mut device = device();
        device.caps.clock_khz = clock_khz;
        let plan = Plan::new(&config(&format!("[capture]\n{text}")), &[device]).expect(text);
        assert_eq!(plan.port.stamps, expected, "{text}");
        let noted = plan
            .notes
            .iter()
            .any(|it| it.contains("capture.timestamps"));
        assert_eq!(noted, clock_khz == 0, "{text}");
    }
}

#[test]
fn the_kernel_s_cpu_lists_are_read() {
    assert_eq!(queues::cpus("0-3,8"), [0, 1, 2, 3, 8]);
    assert_eq!(queues::cpus("5"), [5]);
    assert_eq!(queues::cpus(""), [] as [usize; 0]);
}

#[test]
fn output_settings_are_copied_to_the_plan() {
    let text = "[output]\nformat = \"pcap\"\norder = \"time\"\non_full = \"hold\"\nkeep = \"80%\"\nkeep_files = 9\nkeep_age = \"2m\"\nkeep_free = \"1GiB\"\nrotate_size = \"1MiB\"";
    let output = Plan::new(&config(text), &[device()])
        .expect("a plan")
        .output;
    assert_eq!(
        (output.order, output.on_full),
        (config::Order::Time, config::OnFull::Hold)
    );
    assert_eq!(
        output.retention,
        Retention {
            keep: config::Keep::Percent(80),
            files: 9,
            age_ns: 120_000_000_000,
            free: config::Keep::Size(config::Size(1 << 30)),
        }
    );
    assert_eq!(output.rotation.size, 1 << 20);
    let none = Plan::new(&config("[output]\nformat = \"none\""), &[device()]).expect("a plan");
    assert_eq!(none.output.dir, None);
}

#[test]
fn time_order_needs_buffers_for_each_queue() {
    let allowed = core_affinity::get_core_ids().expect("a process has CPUs");
    let cores = [allowed[0].id; 4];
    let plan = |buffer: u64, more: &str| {
        let text = format!(
            "[capture]\nqueues = 4\ncores = {cores:?}\n[output]\nbuffer = {buffer}\n{more}"
        );
        Plan::new(&config(&text), &[device()])
    };
    // Frames of 64 KiB: three buffers of 80 KiB for each queue.
    let queues = 4 * 3 * (80 << 10);
    for (more, least) in [("order = \"time\"", 2 * queues), ("stdout = true", queues)] {
        let refusal = plan(least - 1, more).expect_err("too small").to_string();
        for part in [
            "output.buffer",
            &(least - 1).to_string(),
            "4 queues",
            &config::Size(least).to_string(),
        ] {
            assert!(refusal.contains(part), "{refusal}");
        }
        plan(least, more).expect("enough");
    }
    plan(64 << 10, "").expect("one file per queue needs no merge buffers");
}

/// A configuration for an ordinary interface is checked on machines that do not have it.
#[test]
fn an_interface_of_another_machine_is_checked_as_an_interface() {
    for backend in ["af_packet", "af_xdp"] {
        let check = |more: &str| {
            let text =
                format!("[device]\nnetdev = \"wqcap-none\"\nbackend = \"{backend}\"\n{more}");
            let config = config(&text);
            Plan::check_without_device(&config, &FilterCompiler::default())
        };
        check("[capture]\nqueues = 16\n").expect("no refusal");
        let refused = check("[capture]\nmode = \"sniffer\"\n").expect_err("a refusal");
        assert!(refused.to_string().contains("does not apply"), "{refused}");
    }
    let two = "[[port]]\ninterface = \"none0\"\n[[port]]\ninterface = \"none1\"\n";
    let checked = Plan::check_without_device(&config(two), &FilterCompiler::default());
    checked.expect("the interfaces differ");
}

/// Returns the facts of a device such as bnxt_re: no WQs, no tables, and QPs with their own receive
/// queue.
fn plain() -> DeviceFacts {
    let mut plain = device();
    plain.missing = vec!["ibv_create_wq".into()];
    plain.raw_qp_only = true;
    plain.access = RingAccess::Verbs;
    plain.caps = DeviceCaps {
        max_wq: 0,
        max_table: 0,
        max_wq_wr: None,
        max_qp_wr: 8192,
        max_cq_period: u16::MAX,
        ..any_device::caps()
    };
    plain
}

#[test]
fn a_device_without_wqs_has_one_queue_in_mode_sniffer() {
    let text = "[device]\nnetdev = \"ens1f0np0\"\n[capture]\nmode = \"sniffer\"\nidle = \"sleep\"";
    let plan = Plan::new(&config(text), &[plain()]).expect("a plan");
    assert_eq!((plan.port.queues, &plan.port.table[..]), (1, &[0][..]));
    assert_eq!(plan.port.backend, crate::config::Backend::Verbs);
    assert_eq!(plan.port.stamps, Stamps::Software);
    assert_eq!(plan.port.ring.striding, None);
    assert_eq!((plan.port.moderation, plan.port.compression), (None, None));
    let notes = plan.notes.join("; ");
    assert!(notes.contains("mirrors RoCE frames only"), "{notes}");
    for mode in ["steal", "filtered"] {
        let text = format!("[capture]\nmode = \"{mode}\"\nfilter = \"tcp\"");
        let error = Plan::new(&config(&text), &[plain()]).expect_err("refused");
        let error = error.to_string();
        assert!(error.contains("it lacks ibv_create_wq"), "{error}");
        assert!(error.contains("capture.mode = \"sniffer\""), "{error}");
    }
}

/// Returns the facts of an ordinary network interface.
fn interface(name: &str) -> DeviceFacts {
    let mut facts = device();
    facts.name = name.into();
    facts.ports[0].netdev = Some(name.into());
    facts.kernel = Some(crate::device::kernel::KernelFacts {
        driver: None,
        mac: None,
        hardware_type: 1,
        rx_queues: 1,
        lower: Vec::new(),
    });
    facts
}

/// The size of an indirection table does not limit the queues of an ordinary interface.
#[test]
fn an_ordinary_interface_has_up_to_256_queues() {
    let facts = interface("eth0");
    for queues in [1, 128, 130, 256] {
        let table = queues::table(&Config::default(), queues, &facts).expect("fits");
        let used: std::collections::BTreeSet<_> = table.into_iter().collect();
        assert_eq!(used.len(), queues);
    }
    let refused = queues::table(&Config::default(), 130, &device());
    assert!(refused.is_err_and(|e| e.to_string().contains("rss.table_size")));
}

/// Ports with one queue each are paired, unless something needs separate loops; a note names it.
#[test]
fn ports_are_paired_or_a_note_says_why_not() {
    let mut other = device();
    other.name = "mlx5_1".into();
    other.ports[0].netdev = Some("ens2f0np0".into());
    let devices = [device(), other, interface("eth0"), interface("eth1")];
    let rdma = "[[port]]\ndevice = \"mlx5_0\"\n[[port]]\ndevice = \"mlx5_1\"\n";
    let sockets = "[[port]]\ninterface = \"eth0\"\n[[port]]\ninterface = \"eth1\"\n";
    let mixed = "[[port]]\ndevice = \"mlx5_0\"\n[[port]]\ninterface = \"eth0\"\n";
    let note = |why: &str| {
        Some(format!(
            "capture.loops: each port gets its own receive loops {why}"
        ))
    };
    let none = "[output]\nformat = \"none\"\n";
    for (ports, settings, paired, expected) in [
        (rdma, "capture.queues = 1", true, None),
        (sockets, "", true, None),
        (sockets, none, true, None),
        (sockets, "capture.loops = \"separate\"", false, None),
        (
            rdma,
            "capture.queues = 2",
            false,
            note("with several queues per port"),
        ),
        (
            sockets,
            "pipeline.mode = \"fanout\"",
            false,
            note("with pipeline.mode = \"fanout\""),
        ),
        (
            mixed,
            "capture.queues = 1",
            false,
            note("with af_packet next to another backend"),
        ),
        (
            sockets,
            "output.order = \"queue\"",
            false,
            note("without one file in time order"),
        ),
        (
            sockets,
            "output.stdout = true",
            false,
            note("with a stream to stdout"),
        ),
    ] {
        let text = match settings.starts_with('[') {
            true => format!("{ports}{settings}"),
            false => format!("{settings}\n{ports}"),
        };
        let plan = Plan::new(&config(&text), &devices).expect("a plan");
        assert_eq!(plan.is_paired(), paired, "{text}");
        let mut notes = plan.notes.iter();
        let found = notes.find(|it| it.starts_with("capture.loops"));
        assert_eq!(found, expected.as_ref(), "{text}");
        let cores: Vec<_> = plan.queues.iter().map(|it| it.core).collect();
        if paired {
            assert_eq!(cores[0], cores[1], "{text}");
            assert!(plan.queues.iter().all(|it| !it.shared_core));
            assert_eq!((plan.stages(), plan.observers()), (1, 1));
        }
    }
}
