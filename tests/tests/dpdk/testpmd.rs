//! `dpdk-testpmd` at its prompt: commands in, and what it reports of each packet out.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use wqcap_tests::machine::netns::IFACE;
use wqcap_tests::process::HANG;
use wqcap_tests::{Dir, Done, Pair, Program, Running, wqcap};

/// How the driver and testpmd are set up.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    pub queues: usize,
    /// Arguments of the device, as `rx_vec_en=0`.
    pub device: &'a str,
    /// Options of testpmd.
    pub options: &'a [&'a str],
    /// Settings of the model.
    pub settings: &'a [&'a str],
    /// Commands before forwarding starts.
    pub before: &'a [&'a str],
    /// Where what is received goes, as pcap: else testpmd says of each packet what it is.
    pub out: Option<&'a Path>,
    /// Nothing is said of packets.
    pub quiet: bool,
    /// What is sent, as pcap, where there is an `out`.
    pub input: Option<&'a Path>,
    /// What runs the model in turn.
    pub wrapper: &'a [&'a str],
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            queues: 1,
            device: "rx_vec_en=1",
            options: &[],
            settings: &[],
            before: &[],
            out: None,
            quiet: false,
            input: None,
            wrapper: &[],
        }
    }
}

/// What testpmd says of one packet.
#[derive(Clone, Debug, Default)]
pub struct Packet {
    pub queue: usize,
    pub source: String,
    pub destination: String,
    pub length: usize,
    pub segments: usize,
    pub hash: u32,
    pub timestamp: u64,
    pub vlan_tci: Option<u16>,
    pub mark: Option<u32>,
}

/// What a port has counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub received: usize,
    /// Longer than the buffers.
    pub errors: usize,
    /// No buffer was there.
    pub missed: usize,
}

/// The device on the model, with the arguments that leave the driver plain verbs.
pub const DEVICE: &str = "15b3:01:00.0,dv_flow_en=0,rxq_cqe_comp_en=0";

/// A testpmd that forwards, on a wire that waits.
pub struct Testpmd {
    running: Running,
    gate: std::path::PathBuf,
    /// The veth pair, one end of which is the port's netdev: DPDK asks it for its address, MTU and flags.
    pub pair: Pair,
    /// Bytes of the output that have been dealt with.
    seen: usize,
}

impl Testpmd {
    /// Starts it; it is at work, and the wire still quiet, when this returns.
    ///
    /// # Errors
    /// What is missing here: a reason to skip.
    pub fn start(dir: &Dir, wire: &str, setup: &Setup<'_>) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for wanted in ["dpdk-testpmd", "stdbuf"] {
            if !Program::new("sh")
                .args(["-c", &format!("command -v {wanted}")])
                .run()
                .status
                .success()
            {
                return Err(format!("{wanted} is not installed (package dpdk-dev)"));
            }
        }
        let pair = Pair::new()?;
        // No word of their own from the hosts.
        for namespace in [&pair.near, &pair.far] {
            let key = format!("net.ipv6.conf.{IFACE}.disable_ipv6=1");
            let _ = namespace.program("sysctl", &["-qw", &key]).run().expect(0);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("wqcap-t{}-{number}", std::process::id());
        let gate = dir.join(format!("gate-{number}"));
        let mut settings = vec![
            format!("netdev={}", IFACE),
            format!("gate={}", gate.display()),
        ];
        settings.extend(setup.settings.iter().map(|it| (*it).to_owned()));
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();

        let device = format!("{DEVICE},{}", setup.device);
        let mut eal = vec![
            // Line by line, though it is no terminal.
            "stdbuf".to_owned(),
            "-oL".into(),
            "dpdk-testpmd".into(),
            // Two threads, on whichever CPUs there are.
            format!("--lcores=0@({0}),1@({0})", allowed_cpus()),
            "--no-huge".into(),
            "--no-telemetry".into(),
            "-m".into(),
            "400".into(),
            format!("--file-prefix={prefix}"),
            "-a".into(),
            device,
        ];
        if let Some(out) = setup.out {
            let nothing = dir.join(format!("nothing-{number}.pcap"));
            wqcap_tests::files::write(&nothing, 0, &[]);
            let input = setup.input.unwrap_or(&nothing);
            eal.push(format!(
                "--vdev=net_pcap1,rx_pcap={},tx_pcap={}",
                input.display(),
                out.display()
            ));
        }
        let queues = setup.queues;
        eal.extend([
            "--".into(),
            "-i".into(),
            "--no-flush-rx".into(),
            "--total-num-mbufs=20000".into(),
        ]);
        eal.extend([
            format!("--rxq={queues}"),
            format!("--txq={queues}"),
            "--rxd=512".into(),
            "--txd=512".into(),
        ]);
        eal.extend(setup.options.iter().map(|it| (*it).to_owned()));

        let mut program = pair
            .far
            .enter(wqcap::model(&[wire], &settings, &eal))
            // DPDK leaves megabytes there for each prefix: they go with the test's folder.
            .env("RUNTIME_DIRECTORY", dir.path())
            .told();
        if !setup.wrapper.is_empty() {
            program = program.wrapped(setup.wrapper);
        }
        let mut testpmd = Self {
            running: program.start(),
            gate,
            pair,
            seen: 0,
        };
        testpmd.until("Checking link statuses...");
        for command in setup.before {
            testpmd.command(command);
        }
        if setup.out.is_some() {
            testpmd.command("set fwd io");
        } else {
            testpmd.command("set fwd rxonly");
            if !setup.quiet {
                testpmd.command("set verbose 1");
            }
        }
        testpmd.forward();
        Ok(testpmd)
    }

    /// Types a command.
    pub fn command(&mut self, command: &str) {
        self.running.tell(command);
    }

    /// Starts forwarding, and waits until it has begun.
    pub fn forward(&mut self) {
        self.command("start");
        self.until("packet forwarding - ports=");
    }

    /// Types a command; what follows `label` in its answer, to the end of that line.
    pub fn answer(&mut self, command: &str, label: &str) -> String {
        self.command(command);
        self.until(label);
        let from = self.seen;
        self.until("\n");
        self.running.stdout()[from..]
            .lines()
            .next()
            .expect("a line")
            .to_owned()
    }

    /// Creates a rule on port 0.
    pub fn rule(&mut self, rule: &str) {
        if let Some(complaint) = self.complaint(rule) {
            panic!("{rule}: {complaint}");
        }
    }

    /// Packets and bytes that a rule has counted, by its number in the order of creation.
    pub fn hits(&mut self, rule: usize) -> (usize, usize) {
        let packets = self.answer(&format!("flow query 0 {rule} count"), " hits: ");
        let number = |text: &str| text.trim().parse().expect("a number");
        let (packets, from) = (number(&packets), self.seen);
        self.until(" bytes: ");
        self.until("\n");
        let stdout = self.running.stdout();
        let (_, bytes) = stdout[from..self.seen].split_once(": ").expect("seen");
        (packets, number(bytes))
    }

    /// A rule that is not created: what is said of it.
    pub fn refused(&mut self, rule: &str) -> String {
        let complaint = self.complaint(rule);
        complaint.unwrap_or_else(|| panic!("{rule} is created"))
    }

    /// Rules that bring each queue its marker.
    pub fn marker_rules(&mut self, queues: usize) {
        for queue in 0..queues {
            self.rule(&format!(
                "pattern eth dst is {} / end actions queue index {queue} / end",
                marker_address(queue)
            ));
        }
    }

    /// What is said of a rule that is not created. It comes on standard error.
    fn complaint(&mut self, rule: &str) -> Option<String> {
        let (from, complaints) = (self.seen, self.running.stderr().len());
        self.command(&format!("flow create 0 ingress {rule}"));
        let complaint = |it: &Running| {
            let stderr = it.stderr();
            let (said, _) = stderr[complaints..]
                .split_once("Caught ")?
                .1
                .split_once('\n')?;
            Some(said.to_owned())
        };
        self.running.until("a rule", |it| {
            let stdout = it.stdout();
            assert!(!stdout[from..].contains("Bad arg"), "{rule}");
            stdout[from..].contains("created\n") || complaint(it).is_some()
        });
        let complaint = complaint(&self.running);
        if complaint.is_none() {
            self.until("created\n");
        }
        complaint
    }

    /// Lets the frames come.
    pub fn open_wire(&self) {
        std::fs::write(&self.gate, "").unwrap_or_else(|e| panic!("{}: {e}", self.gate.display()));
    }

    /// Waits until the output has this, behind what was waited for before.
    pub fn until(&mut self, what: &str) {
        let from = self.seen;
        self.running
            .until(what, |it| it.stdout()[from..].contains(what));
        let stdout = self.running.stdout();
        self.seen = from + stdout[from..].find(what).expect("seen") + what.len();
    }

    /// The packets, once there are `count`.
    pub fn received(&mut self, count: usize) -> Vec<Packet> {
        self.running.until(&format!("{count} packets"), |it| {
            packets(&it.stdout()).len() >= count
        });
        packets(&self.running.stdout())
    }

    /// The packets, once each of the queues has its marker; without the markers.
    pub fn until_markers(&mut self, queues: usize) -> Vec<Packet> {
        let is_marker =
            |it: &Packet| (0..queues).any(|queue| it.destination == marker_address(queue));
        self.running.until("a marker on each queue", |it| {
            packets(&it.stdout())
                .iter()
                .filter(|it| is_marker(it))
                .count()
                >= queues
        });
        packets(&self.running.stdout())
            .into_iter()
            .filter(|it| !is_marker(it))
            .collect()
    }

    /// What the port has counted, once that is `count` packets in all.
    pub fn counted(&mut self, count: usize) -> Counted {
        let started = Instant::now();
        loop {
            assert!(
                started.elapsed() < HANG,
                "of {count} packets: {}",
                self.running.stdout()
            );
            let mut counter = |name: &str| -> usize {
                let value = self.answer("show port xstats 0", &format!("{name}: "));
                value
                    .trim()
                    .parse()
                    .unwrap_or_else(|e| panic!("{name} {value:?}: {e}"))
            };
            let counted = Counted {
                received: counter("rx_good_packets"),
                errors: counter("rx_errors"),
                missed: counter("rx_missed_errors"),
            };
            if counted.received + counted.errors + counted.missed >= count {
                return counted;
            }
        }
    }

    /// Stops forwarding and ends it.
    pub fn quit(mut self) -> Done {
        self.command("stop");
        self.command("quit");
        self.running.wait().expect(0)
    }
}

/// The CPUs this process may run on, as `0-3`.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status
        .lines()
        .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
    line.expect("a status has its CPUs").trim().to_owned()
}

/// The destination of a queue's marker.
pub fn marker_address(queue: usize) -> String {
    format!("02:AA:00:00:00:{queue:02X}")
}

/// A frame to be the last one of a queue.
pub fn marker(queue: usize) -> Vec<u8> {
    let mut frame = vec![2, 0xaa, 0, 0, 0, u8::try_from(queue).expect("few queues")];
    frame.extend([0; 6]);
    frame.extend([0x88, 0xb5]);
    frame.extend([0; 46]);
    frame
}

/// What the output says of packets so far: `port 0/queue 3: received 2 packets`, and behind it a line for each.
fn packets(stdout: &str) -> Vec<Packet> {
    let mut queue = 0;
    let mut all = Vec::new();
    // The last line may not be whole.
    let whole = &stdout[..stdout.rfind('\n').map_or(0, |it| it + 1)];
    for line in whole.lines() {
        if let Some((_, rest)) = line.split_once("port 0/queue ") {
            if let Some((number, _)) = rest.split_once(": received ") {
                queue = number.parse().expect("a queue's number");
            }
            continue;
        }
        let Some((_, rest)) = line.split_once("src=") else {
            continue;
        };
        let mut packet = Packet {
            queue,
            ..Packet::default()
        };
        for field in format!("src={rest}").split(" - ") {
            packet.take(field.trim());
        }
        all.push(packet);
    }
    all
}

impl Packet {
    fn take(&mut self, field: &str) {
        let hexadecimal = |digits: &str| {
            u32::from_str_radix(digits, 16).unwrap_or_else(|e| panic!("{field}: {e}"))
        };
        let decimal = |digits: &str| {
            digits
                .parse::<u64>()
                .unwrap_or_else(|e| panic!("{field}: {e}"))
        };
        if let Some(it) = field.strip_prefix("src=") {
            self.source = it.to_owned();
        } else if let Some(it) = field.strip_prefix("dst=") {
            self.destination = it.to_owned();
        } else if let Some(it) = field.strip_prefix("length=") {
            self.length = decimal(it) as usize;
        } else if let Some(it) = field.strip_prefix("nb_segs=") {
            self.segments = decimal(it) as usize;
        } else if let Some(it) = field.strip_prefix("RSS hash=0x") {
            self.hash = hexadecimal(it);
        } else if let Some(it) = field.strip_prefix("timestamp ") {
            self.timestamp = decimal(it);
        } else if let Some(it) = field.strip_prefix("VLAN tci=0x") {
            self.vlan_tci = Some(hexadecimal(it) as u16);
        } else if let Some(it) = field.strip_prefix("FDIR matched ID=0x") {
            self.mark = Some(hexadecimal(it));
        }
    }
}
