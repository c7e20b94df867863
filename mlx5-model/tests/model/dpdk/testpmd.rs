//! Driver of an interactive `dpdk-testpmd`: sends commands and parses its report of each packet.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use wqcap_testkit::machine::netns::IFACE;
use wqcap_testkit::process::HANG;
use wqcap_testkit::{Dir, Done, Pair, Program, Running, model};

/// Options of the driver, of testpmd, and of the model.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// Number of receive and transmit queues.
    pub queues: usize,
    /// Arguments of the device, such as `rx_vec_en=0`.
    pub device: &'a str,
    /// Command-line options of testpmd.
    pub options: &'a [&'a str],
    /// Settings of the model.
    pub settings: &'a [&'a str],
    /// Commands typed before forwarding starts.
    pub before: &'a [&'a str],
    /// Pcap file for received packets. If `None`, testpmd prints a line for each packet.
    pub out: Option<&'a Path>,
    /// Suppresses the line for each packet.
    pub quiet: bool,
    /// Pcap file with the packets to send; used only with `out`.
    pub input: Option<&'a Path>,
    /// Wrapper program in front of the model.
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

/// Packet as reported by testpmd.
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

/// Receive counters of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Packets received.
    pub received: usize,
    /// Packets longer than the buffers.
    pub errors: usize,
    /// Packets that found no buffer.
    pub missed: usize,
}

/// Device on the model, with the arguments that restrict the driver to plain verbs.
pub const DEVICE: &str = "15b3:01:00.0,dv_flow_en=0,rxq_cqe_comp_en=0";

/// Complaint of a DPDK that imports a context for each port, as Debian 13's 24.11.8 does.
const NO_IMPORT: &str = "Failed to import IB device";

/// Running testpmd in forwarding mode, on a wire that waits for a gate.
pub struct Testpmd {
    running: Running,
    gate: std::path::PathBuf,
    /// Veth pair whose far end is the port's netdev, from which DPDK reads address, MTU and flags.
    pub pair: Pair,
    /// Number of bytes of the output that have been processed.
    seen: usize,
}

impl Testpmd {
    /// Starts testpmd and waits until it forwards. The wire sends nothing before
    /// [`open_wire`](Self::open_wire).
    ///
    /// # Errors
    /// Returns a reason to skip if a requirement is missing.
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
        // The hosts must not send IPv6 packets themselves.
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
            // Line-buffered output, although it is not a terminal.
            "stdbuf".to_owned(),
            "-oL".into(),
            "dpdk-testpmd".into(),
            // Two threads, on any allowed CPU.
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
            wqcap_testkit::files::write(&nothing, 0, &[]);
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
            .enter(model::model(&[wire], &settings, &eal))
            // DPDK leaves megabytes there for each prefix; they are deleted with the test's folder.
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
        let started = "Checking link statuses...";
        testpmd.running.until(started, |it| {
            it.stdout().contains(started) || it.stderr().contains(NO_IMPORT)
        });
        if testpmd.running.stderr().contains(NO_IMPORT) {
            return Err(
                "this DPDK imports the device's context (ibv_import_device), which the model cannot \
                 (UVERBS_METHOD_QUERY_CONTEXT, MLX5_IB_OBJECT_UAR)"
                    .into(),
            );
        }
        testpmd.until(started);
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

    /// Starts forwarding and waits until it has begun.
    pub fn forward(&mut self) {
        self.command("start");
        self.until("packet forwarding - ports=");
    }

    /// Types a command and returns the text after `label` in its answer, up to the end of the line.
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

    /// Returns the packets and bytes that a rule has counted. `rule` is its number in the order of
    /// creation.
    pub fn hits(&mut self, rule: usize) -> (usize, usize) {
        let packets = self.answer(&format!("flow query 0 {rule} count"), " hits: ");
        let number = |text: &str| text.trim().parse().expect("a number");
        let (packets, from) = (number(&packets), self.seen);
        self.until(" bytes: ");
        self.until("\n");
        let stdout = self.running.stdout();
        let (_, bytes) = stdout[from..self.seen]
            .split_once(": ")
            .expect("the text was found");
        (packets, number(bytes))
    }

    /// Tries to create a rule and returns the error message.
    pub fn refused(&mut self, rule: &str) -> String {
        let complaint = self.complaint(rule);
        complaint.unwrap_or_else(|| panic!("the rule was created: {rule}"))
    }

    /// Creates a rule for the marker of each queue.
    pub fn marker_rules(&mut self, queues: usize) {
        for queue in 0..queues {
            self.rule(&format!(
                "pattern eth dst is {} / end actions queue index {queue} / end",
                marker_address(queue)
            ));
        }
    }

    /// Tries to create a rule and returns the error message from standard error; `None` if the rule
    /// was created.
    fn complaint(&mut self, rule: &str) -> Option<String> {
        let (from, complaints) = (self.seen, self.running.stderr().len());
        self.command(&format!("flow create 0 ingress {rule}"));
        let complaint = |it: &Running| {
            let stderr = it.stderr();
            let (message, _) = stderr[complaints..]
                .split_once("Caught ")?
                .1
                .split_once('\n')?;
            Some(message.to_owned())
        };
        self.running.until("the rule is created or refused", |it| {
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

    /// Opens the gate of the wire.
    pub fn open_wire(&self) {
        std::fs::write(&self.gate, "").unwrap_or_else(|e| panic!("{}: {e}", self.gate.display()));
    }

    /// Waits until `what` appears in the output after the text found by the previous wait.
    pub fn until(&mut self, what: &str) {
        let from = self.seen;
        self.running
            .until(what, |it| it.stdout()[from..].contains(what));
        let stdout = self.running.stdout();
        self.seen = from + stdout[from..].find(what).expect("the text was found") + what.len();
    }

    /// Waits for at least `count` packets and returns all packets.
    pub fn received(&mut self, count: usize) -> Vec<Packet> {
        self.running.until(&format!("{count} packets"), |it| {
            packets(&it.stdout()).len() >= count
        });
        packets(&self.running.stdout())
    }

    /// Waits until each queue has its marker, and returns all other packets.
    pub fn until_markers(&mut self, queues: usize) -> Vec<Packet> {
        let is_marker =
            |it: &Packet| (0..queues).any(|queue| it.destination == marker_address(queue));
        self.running.until("each queue has its marker", |it| {
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

    /// Waits until the counters of the port sum up to at least `count` packets, and returns them.
    pub fn counted(&mut self, count: usize) -> Counted {
        let started = Instant::now();
        loop {
            assert!(
                started.elapsed() < HANG,
                "deadline reached before {count} packets: {}",
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

    /// Stops forwarding and ends testpmd.
    pub fn quit(mut self) -> Done {
        self.command("stop");
        self.command("quit");
        self.running.wait().expect(0)
    }
}

/// Returns the CPUs that this process may run on, in the form `0-3`.
fn allowed_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").expect("a process has a status");
    let line = status
        .lines()
        .find_map(|it| it.strip_prefix("Cpus_allowed_list:"));
    line.expect("the status lists the allowed CPUs")
        .trim()
        .to_owned()
}

/// Returns the destination address of a queue's marker.
pub fn marker_address(queue: usize) -> String {
    format!("02:AA:00:00:00:{queue:02X}")
}

/// Returns the frame that marks the end of a queue's frames.
pub fn marker(queue: usize) -> Vec<u8> {
    let mut frame = vec![2, 0xaa, 0, 0, 0, u8::try_from(queue).expect("few queues")];
    frame.extend([0; 6]);
    frame.extend([0x88, 0xb5]);
    frame.extend([0; 46]);
    frame
}

/// Parses the packets in the output: `port 0/queue 3: received 2 packets`, followed by a line per
/// packet.
fn packets(stdout: &str) -> Vec<Packet> {
    let mut queue = 0;
    let mut all = Vec::new();
    // The last line may be incomplete.
    let complete = &stdout[..stdout.rfind('\n').map_or(0, |it| it + 1)];
    for line in complete.lines() {
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
