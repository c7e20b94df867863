//! Requests every object, size, flag, hash and rule that a capture can use, one at a time.
//!
//! Invariant: unless the test is disruptive, every rule matches the destination address [`MAC`],
//! which no interface has.

use super::{
    frames::{MAC, VNI},
    report::Outcome,
    run::SelftestRun,
};
use wqcap_engine::{
    device::DeviceFacts,
    memory::Region,
    verbs::{
        AsyncEvents, CVLAN_STRIPPING, Channel, CompletionStamps, Cq, CqAttr, DELAY_DROP, DirectCq,
        DirectWq, Flow, FlowSpec, Inner, Masked, MiniFormat, Moderation, Mr, PCI_WRITE_END_PADDING,
        Pd, PlainCq, RawQp, RawQpAttr, RssQp, RwqTable, SCATTER_FCS, Striding, VerbsError, Wq,
        WqAttr, WqState,
    },
};
use wqcap_rss::{HashFields, RssKey};

/// Number of WRs of a WQ whose size is not under test.
const WRS: u32 = 256;
/// Number of entries of a CQ whose memory would be 64 MiB.
const COSTLY: u32 = 1 << 20;
/// Creation flags of a WQ, each with its name, the name of its capability, and its bit.
pub const FLAGS: [(&str, &str, u32); 4] = [
    ("cvlan_stripping", "cvlan_stripping", CVLAN_STRIPPING),
    ("scatter_fcs", "scatter_fcs", SCATTER_FCS),
    ("delay_drop", "delay_drop", DELAY_DROP),
    (
        "pci_write_end_padding",
        "end_padding",
        PCI_WRITE_END_PADDING,
    ),
];
/// Formats of compressed completions (mini CQEs), each with its name in findings.
const MINI_CQES: [(&str, MiniFormat); 2] = [
    ("hash", MiniFormat::Hash),
    ("csum_stridx", MiniFormat::ChecksumStride),
];
/// Number of flow rules with one match that the selftest installs at the same time.
const MANY: u16 = 256;

/// Verbs objects with which the selftest creates WQs, tables and rules.
struct Base {
    /// Protection domain of the objects that the selftest creates.
    pd: Pd,
    /// CQ of the WQs that the selftest creates.
    cq: Cq,
    /// Registered memory of the WQs that the selftest creates.
    memory: Mr,
}

/// Records the capabilities that the device reports, and requests every kind of verbs object.
pub fn probe(run: &mut SelftestRun, device: &DeviceFacts) {
    facts(run, device);
    run.announce("requesting objects and rules");
    let Some(pd) = run.request("pd", "pd", |run| Pd::alloc(&run.context)) else {
        return run.end_without("a PD");
    };
    let Some(memory) = memory(run, &pd) else {
        return run.end_without("memory");
    };
    let Some(cq) = completion_queues(run, device) else {
        return run.end_without("a CQ");
    };
    run.request("events", "events", |run| AsyncEvents::open(&run.context));
    let base = Base { pd, cq, memory };
    if device.raw_qp_only {
        raw_qp(run, &base);
    }
    work_queues(run, device, &base);
    let Some(table) = tables(run, device, &base) else {
        return run.end_without("an RWQ indirection table with 2 entries");
    };
    hashes(run, &base, &table);
    rules(run, &base);
    clock(run);
}

/// Records the capabilities that the device reports as findings.
fn facts(run: &mut SelftestRun, device: &DeviceFacts) {
    let caps = &device.caps;
    run.value("ports", "device/ports", device.ports.len());
    run.value("direct", "device/direct", device.access.caps().in_memory);
    run.value("max_wq", "limit/wqs", caps.max_wq);
    run.value("max_recv_wr", "limit/wrs", caps.max_wq_wr);
    run.value("max_qp_wr", "limit/qp_wrs", caps.max_qp_wr);
    run.value("max_sge", "limit/sges", caps.max_sge);
    run.value("max_ind_table_log", "limit/table", caps.max_table);
    run.value("max_cqe", "limit/cqes", caps.max_cqe);
    run.value("cq_moderation", "limit/cq_period_us", caps.max_cq_period);
    run.value("rss", "offers/toeplitz", caps.rss_toeplitz);
    for (name, offered) in [
        ("cvlan_stripping", caps.cvlan_stripping),
        ("scatter_fcs", caps.scatter_fcs),
        ("delay_drop", caps.delay_drop),
        ("end_padding", caps.end_padding),
    ] {
        run.value(name, &format!("offers/{name}"), offered);
    }
    let striding = caps.striding.as_ref();
    let logs = striding.map(|it| (it.stride_log.clone(), it.strides_log.clone()));
    let logs = logs.map(|(stride, strides)| format!("2^{stride:?} bytes, 2^{strides:?} strides"));
    run.value("striding_rq", "offers/striding", logs);
    for (name, format) in MINI_CQES {
        let id = format!("offers/mini_cqes/{name}");
        run.value("cqe_compression", &id, caps.mini_cqes.contains(&format));
    }
    run.value("tunnel_offloads", "offers/vxlan", caps.tunnels.vxlan);
    run.value("tunnel_offloads", "offers/gre", caps.tunnels.gre);
    run.value("clock_khz", "clock/khz", caps.clock_khz);
    let mask = format!("{:#x}", caps.timestamp_mask);
    run.value("timestamp_mask", "clock/mask", mask);
    run.value("realtime_clock", "clock/real_time", caps.real_time);
    for (name, field) in HashFields::all().iter_names() {
        let subject = match field {
            HashFields::INNER => "tunnel_offloads",
            HashFields::IPSEC_SPI => "esp",
            _ => "rss",
        };
        let id = format!("offers/hash/{}", name.to_ascii_lowercase());
        run.value(subject, &id, caps.rss_fields & field.bits() != 0);
    }
    let port = device.ports.iter().find(|it| it.number == run.port);
    if let Some(port) = port {
        run.value("link_up", "port/state", port.state.clone());
        run.value("ports", "port/ethernet", port.ethernet);
        run.value("rate", "port/gbps", port.rate_gbps);
        run.value("mtu", "port/mtu", port.mtu);
    }
}

/// Requests memory regions of several sizes. Returns the last one, which the tested WQs use.
fn memory(run: &mut SelftestRun, pd: &Pd) -> Option<Mr> {
    let mut kept = None;
    for kib in [4, 2048, 64 << 10, 64] {
        let id = format!("memory/{kib}KiB");
        kept = run.request("memory", id, |_| {
            Mr::register(pd, Region::allocate(kib << 10, None)?)
        });
    }
    kept
}

/// Requests CQs of several sizes and kinds, and returns one for the tested WQs.
fn completion_queues(run: &mut SelftestRun, device: &DeviceFacts) -> Option<Cq> {
    let attr = |entries, stamps| CqAttr {
        entries,
        vector: 0,
        stamps,
        compression: None,
    };
    let cq = |run: &SelftestRun, entries, stamps, channel| {
        Cq::create(&run.context, attr(entries, stamps), channel)
    };
    let plain = CompletionStamps::None;
    for entries in [1, 255, 4095, 65535] {
        run.request("max_cqe", format!("cq/{entries}"), |run| {
            cq(run, entries, plain, None)
        });
    }
    let (limit, id) = (device.caps.max_cqe, "cq/more than the limit");
    if limit < COSTLY {
        run.request("max_cqe", id, |run| cq(run, limit + 1, plain, None));
    } else {
        run.record_not_asked("max_cqe", id, "libmlx5 would allocate the ring first");
    }
    for (subject, name, stamps) in [
        ("timestamp_mask", "ticks", CompletionStamps::Ticks),
        ("realtime_clock", "real_time", CompletionStamps::RealTime),
    ] {
        run.request(subject, format!("cq/stamps/{name}"), |run| {
            cq(run, WRS, stamps, None)
        });
    }
    for (name, format) in MINI_CQES {
        let id = format!("cq/mini_cqes/{name}");
        run.request("cqe_compression", id, |run| {
            let compression = Some(format);
            let attr = CqAttr {
                compression,
                ..attr(WRS, plain)
            };
            Cq::create(&run.context, attr, None)
        });
    }
    let woken = run.request("cq", "cq/channel", |run| {
        let channel = Channel::create(&run.context)?;
        cq(run, WRS, plain, Some(channel))
    });
    if let Some(mut woken) = woken {
        run.request("cq", "cq/arm", |_| woken.arm());
        let by = Moderation {
            count: 64,
            period_us: 16,
        };
        run.request("cq_moderation", "cq/moderation", |_| woken.moderate(by));
        if device.access.caps().in_memory {
            run.request("direct", "cq/direct", |_| DirectCq::from_cq(woken));
        }
    }
    run.request("cq", "cq", |run| cq(run, 4 * WRS, plain, None))
}

impl Base {
    fn attr(max_wr: u32, max_sge: u32, flags: u32) -> WqAttr {
        WqAttr {
            max_wr,
            max_sge,
            flags,
            striding: None,
        }
    }

    /// Creates a WQ with the given number of WRs, number of scatter entries, and flags.
    fn wq(&self, max_wr: u32, max_sge: u32, flags: u32) -> Result<Wq, VerbsError> {
        let attr = Self::attr(max_wr, max_sge, flags);
        Wq::create(&self.pd, &self.cq, &self.memory, attr)
    }

    /// Creates a WQ in the ready state, which an RSS indirection table requires of its WQs.
    fn ready(&self) -> Result<Wq, VerbsError> {
        let mut wq = self.wq(WRS, 1, 0)?;
        wq.set_state(None, WqState::Ready)?;
        Ok(wq)
    }
}

/// Requests a RAW_PACKET QP with its own receive queue, with which a device without WQs captures,
/// and moves it between states.
fn raw_qp(run: &mut SelftestRun, base: &Base) {
    use WqState::{Error, Ready, Reset};
    let attr = RawQpAttr {
        max_wr: WRS,
        max_sge: 1,
        port: run.port,
    };
    let made = run.request("rwq", "qp/raw", |run| {
        let cq = PlainCq::create(&run.context, WRS, 0, None)?;
        RawQp::create(&base.pd, &cq, &base.memory, attr)
    });
    let Some(mut qp) = made else {
        return;
    };
    for (id, state) in [
        ("qp/raw/reset to ready", Ready),
        ("qp/raw/ready to error", Error),
        ("qp/raw/error to reset", Reset),
        ("qp/raw/reset to ready again", Ready),
    ] {
        run.request("rwq", id, |_| qp.set_state(state));
    }
}

/// Requests WQs of several sizes and with each creation flag, and moves a WQ between states.
fn work_queues(run: &mut SelftestRun, device: &DeviceFacts, base: &Base) {
    let caps = &device.caps;
    for wrs in [1, 16, 256, 1024, 8192, 32768] {
        run.request("max_recv_wr", format!("wq/wrs/{wrs}"), |_| {
            base.wq(wrs, 1, 0)
        });
    }
    let (subject, id) = ("max_recv_wr", "wq/wrs/more than the limit");
    match caps.max_wq_wr {
        Some(limit) => drop(run.request(subject, id, |_| base.wq(limit + 1, 1, 0))),
        None => run.record_not_asked(subject, id, "the device does not report the limit"),
    }
    for sges in [2, 4, 16, 31, 32] {
        run.request("max_sge", format!("wq/sges/{sges}"), |_| {
            base.wq(WRS, sges, 0)
        });
    }
    let mut together = 0;
    for (name, subject, flag) in FLAGS {
        let made = run.request(subject, format!("wq/flag/{name}"), |_| {
            base.wq(WRS, 1, flag)
        });
        together |= made.map_or(0, |_| flag);
    }
    run.request("wq", "wq/flag/all that were accepted", |_| {
        base.wq(WRS, 1, together)
    });
    for (stride, strides) in [(64, 512), (64, 1024), (64, 65536), (256, 512), (2048, 512)] {
        let id = format!("wq/striding/{strides} strides of {stride} bytes");
        run.request("striding_rq", id, |_| {
            let striding = Some(Striding { stride, strides });
            let attr = WqAttr {
                striding,
                ..Base::attr(16, 1, 0)
            };
            Wq::create(&base.pd, &base.cq, &base.memory, attr)
        });
    }
    let Some(mut wq) = run.request("wq", "wq", |_| base.wq(WRS, 1, 0)) else {
        return;
    };
    use WqState::{Error, Ready, Reset};
    for (id, state) in [
        ("wq/state/reset to ready", Ready),
        ("wq/state/ready to error", Error),
        ("wq/state/error to reset", Reset),
        ("wq/state/reset to ready again", Ready),
        ("wq/state/ready to reset", Reset),
        ("wq/state/reset to error", Error),
        ("wq/state/error to ready", Ready),
    ] {
        run.request("wq", id, |_| wq.set_state(None, state));
    }
    if let Some(mut wq) = run.request("wq", "wq/ready", |_| base.ready()) {
        for (name, on) in [("on", true), ("off", false)] {
            run.request("cvlan_stripping", format!("wq/stripping/{name}"), |_| {
                wq.set_cvlan_stripping(on)
            });
        }
    }
    if device.access.caps().in_memory
        && let Some(wq) = run.request("wq", "wq/for direct access", |_| base.wq(WRS, 1, 0))
    {
        run.request("direct", "wq/direct", |_| DirectWq::from_wq(wq));
    }
    run.request("max_wq", "wq/64 at a time", |_| {
        let many = (0..64).map(|_| base.wq(WRS, 1, 0));
        many.collect::<Result<Vec<_>, _>>()
    });
}

/// Requests RSS indirection tables of each size, and returns one with 2 entries.
fn tables(run: &mut SelftestRun, device: &DeviceFacts, base: &Base) -> Option<RwqTable> {
    let wq = run.request("wq", "wq/for tables", |_| base.ready())?;
    let of = |run: &SelftestRun, entries: u32| {
        RwqTable::create(&run.context, (0..entries).map(|_| wq.handle()))
    };
    for log in 1..=13 {
        let id = format!("table/{}", 1 << log);
        run.request("max_ind_table_log", id, |run| of(run, 1 << log));
    }
    run.value("max_ind_table_log", "table/limit", device.caps.max_table);
    run.request("max_ind_table_log", "table/2 for hashes", |run| of(run, 2))
}

/// Requests RSS QPs with each hash that a capture's profiles use, on outer and on inner headers.
fn hashes(run: &mut SelftestRun, base: &Base, table: &RwqTable) {
    use HashFields as F;
    let l4 = [
        ("", F::NONE),
        ("+tcp", F::TCP_PORTS),
        ("+udp", F::UDP_PORTS),
    ];
    let mut ask = |subject, name: &str, key: &RssKey, fields| {
        run.request(subject, format!("hash/{name}"), |_| {
            RssQp::create(&base.pd, table, key, fields)
        });
    };
    let symmetric = &RssKey::SYMMETRIC;
    for (l3_name, l3) in [("ipv4", F::IPV4), ("ipv6", F::IPV6)] {
        for (l4_name, l4) in l4 {
            let (name, fields) = (&format!("{l3_name}{l4_name}"), l3 | l4);
            ask("rss", name, symmetric, fields);
            let name = &format!("inner {name}");
            ask("tunnel_offloads", name, symmetric, fields | F::INNER);
        }
    }
    for (name, fields) in [
        ("source ipv4", F::SRC_IPV4),
        ("destination ipv4", F::DST_IPV4),
        ("ipv4+ipv6", F::IPV4 | F::IPV6),
        ("ipv4+tcp+udp", F::IPV4 | F::TCP_PORTS | F::UDP_PORTS),
        ("nothing, over 2 entries", F::NONE),
    ] {
        ask("rss", name, symmetric, fields);
    }
    ask("esp", "ipv4+spi", symmetric, F::IPV4 | F::IPSEC_SPI);
    let microsoft = &RssKey::MICROSOFT;
    ask("rss", "key/microsoft", microsoft, F::IPV4 | F::TCP_PORTS);
}

/// Returns the flow spec that matches frames to the test's MAC address [`MAC`].
pub const fn own() -> FlowSpec {
    own_with(0, 0)
}

/// Returns the flow spec that matches frames to the MAC address `address`.
pub fn to_mac(address: [u8; 6]) -> FlowSpec {
    FlowSpec::Ethernet {
        dst: Masked {
            value: address,
            mask: [0xff; 6],
        },
        ethertype: Masked::default(),
        vlan: Masked::default(),
    }
}

/// Returns the flow spec that matches frames to [`MAC`] with an ethertype and a VLAN identifier; 0
/// matches any.
const fn own_with(ethertype: u16, vlan: u16) -> FlowSpec {
    FlowSpec::Ethernet {
        dst: Masked {
            value: MAC,
            mask: [0xff; 6],
        },
        ethertype: Masked {
            value: ethertype,
            mask: if ethertype == 0 { 0 } else { 0xffff },
        },
        vlan: Masked {
            value: vlan,
            mask: if vlan == 0 { 0 } else { 0x0fff },
        },
    }
}

/// Returns the flow spec that matches IPv4 packets of the protocol `proto`; `None`: of any
/// protocol.
pub fn ipv4(proto: Option<u8>) -> FlowSpec {
    FlowSpec::Ipv4 {
        src: Masked::default(),
        dst: Masked::default(),
        proto: proto.map(Masked::exact).unwrap_or_default(),
    }
}

/// Returns the flow spec that matches IPv6 packets of the protocol `proto`; `None`: of any
/// protocol.
pub fn ipv6(proto: Option<u8>) -> FlowSpec {
    FlowSpec::Ipv6 {
        src: Masked::default(),
        dst: Masked::default(),
        proto: proto.map(Masked::exact).unwrap_or_default(),
    }
}

/// Returns the flow spec that matches TCP to the destination port `dst`; 0 matches any port.
pub fn tcp(dst: u16) -> FlowSpec {
    let (src, dst) = (Masked::default(), port(dst));
    FlowSpec::Tcp { src, dst }
}

/// Returns the flow spec that matches UDP to the destination port `dst`; 0 matches any port.
pub fn udp(dst: u16) -> FlowSpec {
    let (src, dst) = (Masked::default(), port(dst));
    FlowSpec::Udp { src, dst }
}

/// Returns the masked match of the TCP or UDP port `number`; 0 matches any port.
fn port(number: u16) -> Masked<u16> {
    match number {
        0 => Masked::default(),
        number => Masked::exact(number),
    }
}

/// Returns the flow specs that match the VXLAN test frames.
pub fn vxlan() -> [FlowSpec; 4] {
    let vni = FlowSpec::Vxlan {
        vni: Masked {
            value: VNI,
            mask: 0x00ff_ffff,
        },
    };
    [own(), ipv4(None), udp(4789), vni]
}

/// Returns the flow specs `outer`, followed by those of the inner headers `l3` and `l4`.
pub fn inner(outer: &[FlowSpec], l3: Inner, l4: Inner) -> Vec<FlowSpec> {
    let both = [FlowSpec::Inner(l3), FlowSpec::Inner(l4)];
    [outer, &both].concat()
}

/// Requests flow rules of each form that a plan uses, and with each priority.
fn rules(run: &mut SelftestRun, base: &Base) {
    let Some((qp, other)) = rule_targets(run, base) else {
        let refused = Outcome::refused(libc::EPERM);
        if run
            .report
            .findings
            .last()
            .is_some_and(|it| it.outcome == refused)
        {
            run.end("creating a QP requires CAP_NET_RAW; run as root, or run `setcap cap_net_raw+ep` on a copy of the binary");
        }
        return run.end_without("the QPs that rules point to");
    };
    let vxlan = vxlan();
    let gre = [own(), ipv4(Some(47)), FlowSpec::Gre];
    let addresses = FlowSpec::Ipv4 {
        // 192.0.2.1 and 192.0.2.0/24 (RFC 5737).
        src: Masked::exact(0xc000_0201),
        dst: Masked {
            value: 0xc000_0200,
            mask: 0xffff_ff00,
        },
        proto: Masked::default(),
    };
    let network = Masked {
        // 2001:db8::/32 (RFC 3849).
        value: 0x2001_0db8 << 96,
        mask: 0xffff_ffff << 96,
    };
    let networks = FlowSpec::Ipv6 {
        src: network,
        dst: network,
        proto: Masked::default(),
    };
    for (name, specs) in [
        ("mac", vec![own()]),
        ("mac, vlan", vec![own_with(0, 100)]),
        ("mac, ethertype", vec![own_with(0x88b5, 0)]),
        ("ipv4", vec![own(), ipv4(None)]),
        ("ipv6", vec![own(), ipv6(None)]),
        ("ipv4, tcp", vec![own(), ipv4(None), tcp(0)]),
        ("ipv4, udp", vec![own(), ipv4(None), udp(0)]),
        ("ipv6, tcp", vec![own(), ipv6(None), tcp(0)]),
        ("ipv6, udp", vec![own(), ipv6(None), udp(0)]),
        ("ipv4, protocol", vec![own(), ipv4(Some(132))]),
        ("ipv6, protocol", vec![own(), ipv6(Some(132))]),
        ("ipv4 addresses", vec![own(), addresses]),
        ("ipv6 networks", vec![own(), networks]),
        ("tcp port", vec![own(), ipv4(None), tcp(443)]),
        ("udp port", vec![own(), ipv6(None), udp(53)]),
        ("drop", vec![own(), ipv4(None), FlowSpec::Drop]),
    ] {
        run.rule("rules", name, &qp, 0, specs);
    }
    use Inner::{Ipv4, Ipv6, Tcp, Udp};
    for (name, specs) in [
        ("vxlan", vxlan.to_vec()),
        ("gre", gre.to_vec()),
        ("vxlan, inner ipv4 tcp", inner(&vxlan, Ipv4, Tcp)),
        ("vxlan, inner ipv6 udp", inner(&vxlan, Ipv6, Udp)),
        ("gre, inner ipv4 udp", inner(&gre, Ipv4, Udp)),
    ] {
        run.rule("tunnel_offloads", name, &qp, 0, specs);
    }
    for priority in 0..=16 {
        let name = format!("priority/{priority}");
        run.rule("rules", &name, &qp, priority, vec![own()]);
    }
    if let Some(_first) = run.rule("rules", "twice, first", &qp, 0, vec![own()]) {
        run.rule("rules", "twice, to the same QP", &qp, 0, vec![own()]);
        run.rule("rules", "twice, to another QP", &other, 0, vec![own()]);
        let drop = vec![own(), FlowSpec::Drop];
        run.rule("rules", "twice, then drop", &qp, 0, drop);
    }
    run.request("rules", format!("rule/{MANY} at a time"), |run| {
        let specs = |port| vec![own(), ipv4(None), udp(port)];
        let rules = (1..=MANY).map(|port| run.install(&qp, 0, specs(port)));
        rules.collect::<Result<Vec<_>, _>>()
    });
    if run.report.disruptive {
        run.rule("rules", "steal", &qp, 15, vec![FlowSpec::ETHERNET]);
        let drop = vec![FlowSpec::ETHERNET, FlowSpec::Drop];
        run.rule("rules", "drop all", &qp, 15, drop);
        run.sniffer("rule/sniffer", &qp);
    } else {
        for (subject, id) in [
            ("rules", "rule/steal"),
            ("rules", "rule/drop all"),
            ("sniffer", "rule/sniffer"),
        ] {
            run.record_not_asked(subject, id, "requires --disruptive");
        }
    }
}

/// Creates two RSS QPs without a hash, over indirection tables of one entry, as destinations of
/// flow rules.
fn rule_targets(run: &mut SelftestRun, base: &Base) -> Option<(RssQp, RssQp)> {
    let wq = run.request("wq", "wq/for rules", |_| base.ready())?;
    let table = run.request("max_ind_table_log", "table/1 for rules", |run| {
        RwqTable::create(&run.context, [wq.handle()])
    })?;
    let mut qp = |id| {
        run.request("rss", id, |_| {
            RssQp::create(&base.pd, &table, &RssKey::SYMMETRIC, HashFields::NONE)
        })
    };
    Some((
        qp("hash/nothing, over 1 entry")?,
        qp("hash/nothing, a second QP")?,
    ))
}

impl SelftestRun {
    /// Requests a flow rule from the device, and records the outcome as a finding.
    pub fn rule(
        &mut self,
        subject: &str,
        name: &str,
        qp: &RssQp,
        priority: u16,
        specs: Vec<FlowSpec>,
    ) -> Option<Flow> {
        self.request(subject, format!("rule/{name}"), |run| {
            run.install(qp, priority, specs)
        })
    }
}

/// Reads the device's clock in both ways: its counter, and the parameters for converting the
/// counter.
fn clock(run: &mut SelftestRun) {
    run.request("timestamp_mask", "clock/counter", |run| {
        run.context.query_clock()
    });
    run.request("clock", "clock/info", |run| run.context.clock_info());
}
