//! Metrics endpoint of captures on the software NIC: sums of a scrape, its format as checked by
//! promtool and Prometheus, and the effects of clients that misbehave.
//!
//! | test | shows |
//! |---|---|
//! | `scrapes_under_load_add_up_to_the_summary` | every line of the ledger grows, and the last scrape equals the summary |
//! | `promtool_accepts_metrics_and_rules` | the format of metrics and alert rules |
//! | `alerts_fire_at_the_default_interval` | promtool's times at which alerts fire; with windows of 1 minute they would not |
//! | `alerts_name_existing_pages` | pages and headings that the alert rules name |
//! | `dashboard_and_rules_name_existing_metrics` | every name is documented, and a scrape has it |
//! | `every_query_of_the_dashboard_has_data` | in a Prometheus that scrapes a capture |
//! | `bad_clients_do_not_block_the_endpoint` | garbage, clients that stall, too many clients |

use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{Read, Write},
    net::TcpStream,
};
use wqcap_tests::{
    Dir, Running, Wqcap, binaries,
    ctl::Ctl,
    need,
    oracles::prometheus::{Prometheus, Promtool},
    process::HANG,
};

/// Running capture with a metrics endpoint and a control socket.
struct Measured<'d> {
    command: Wqcap<'d>,
    run: Running,
    endpoint: Endpoint,
    ctl: Ctl,
}

/// Address of a capture's metrics endpoint, as `IP:PORT`.
struct Endpoint(String);

const QUEUES: usize = 3;
/// Labels that every sample has.
const PORT: &str = "device=\"mlx5_0\",port=\"1\",interface=\"mlx5_0p1\"";
/// Number of WRs per queue. The counters of received frames and of the ledger's other lines may
/// differ by this many frames while frames are being processed.
const RING: u64 = 256;

fn start<'d>(dir: &'d Dir, name: &str, wire: &str, sets: &[&str]) -> Measured<'d> {
    let mut command = Wqcap::run(dir, name)
        .model(wire)
        .queues(QUEUES)
        .set(&format!("capture.ring={RING}"))
        .set("metrics.listen=127.0.0.1:0")
        .control();
    for set in sets {
        command = command.set(set);
    }
    let mut run = command.start();
    run.until("the capture prints the address of its metrics", |run| {
        run.stderr().contains("/metrics") && run.stderr().contains("capturing")
    });
    let log = run.stderr();
    let url = log.split("http://").nth(1);
    let url = url.expect("the log has the endpoint's URL");
    let address = url.split("/metrics").next();
    let address = address.expect("the URL has an address").to_owned();
    Measured {
        ctl: command.ctl(),
        command,
        run,
        endpoint: Endpoint(address),
    }
}

impl Endpoint {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.0).expect("the endpoint accepts connections");
        let timed = stream.set_read_timeout(Some(HANG));
        timed.expect("the read timeout is set");
        stream
    }

    /// Sends `request` unchanged and returns the whole answer.
    fn ask(&self, request: &[u8]) -> String {
        let mut stream = self.connect();
        let mut answer = String::new();
        // If the endpoint closes the connection before it has read the whole request, writes and
        // reads may fail with a reset.
        let _ = stream.write_all(request);
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    /// Scrapes the endpoint with the additional header lines `headers`, and returns the body.
    fn text(&self, headers: &str) -> String {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{headers}\r\n");
        let answer = self.ask(request.as_bytes());
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .expect("an empty line ends the head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let length = format!("Content-Length: {}\r\n", body.len());
        assert!(head.contains(&length), "{head}");
        body.to_owned()
    }

    fn scrape(&self) -> BTreeMap<String, f64> {
        samples(&self.text(""))
    }
}

impl Measured<'_> {
    #[track_caller]
    fn shutdown(self) -> wqcap_tests::Finished {
        let _ = self.ctl.run(&["shutdown"]).expect(0);
        self.command.finished(self.run.wait(), 0)
    }
}

/// Parses a scrape into values by name and labels.
fn samples(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a sample has a value");
            let value = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
            (name.to_owned(), value)
        })
        .collect()
}

/// Returns the value of a ledger line of a queue in a scrape.
fn line(scrape: &BTreeMap<String, f64>, queue: usize, line: &str) -> u64 {
    let name = match line {
        "received" => format!("wqcap_frames_received_total{{{PORT},queue=\"{queue}\"}}"),
        "bytes" => format!("wqcap_captured_bytes_total{{{PORT},queue=\"{queue}\"}}"),
        line => format!("wqcap_frames_total{{{PORT},queue=\"{queue}\",line=\"{line}\"}}"),
    };
    scrape[&name] as u64
}

/// Lines of the ledger that add up to `received`.
const LINES: [&str; 9] = [
    "captured",
    "filtered",
    "sampled_out",
    "deduplicated",
    "cut_off",
    "dropped_pipeline",
    "dropped_storage",
    "late",
    "errors",
];

#[test]
fn scrapes_under_load_add_up_to_the_summary() {
    let dir = Dir::new();
    let wire = "synth:size=200,flows=256,proto=mix,ip=mix,pps=200000";
    let sets = ["capture.filter=udp", "capture.sample=2"];
    let mut capture = start(&dir, "load", wire, &sets);
    let ended = |of: &BTreeMap<String, f64>, queue| -> u64 {
        LINES.iter().map(|it| line(of, queue, it)).sum()
    };
    let (endpoint, mut scrapes) = (&capture.endpoint, 0);
    let mut before = endpoint.scrape();
    capture.run.until("many scrapes of many frames", |_| {
        let now = endpoint.scrape();
        for (name, value) in &before {
            let grows = name.contains("_total") || name.contains("_bucket");
            assert!(!grows || now[name] >= *value, "{name} fell from {value}");
        }
        let mut least = u64::MAX;
        for queue in 0..QUEUES {
            // A scrape reads the counters one after the other while frames arrive. So counters of
            // two scrapes are compared.
            let received = |of| line(of, queue, "received");
            assert!(received(&before) <= ended(&now, queue) + RING);
            assert!(ended(&before, queue) <= received(&now) + RING);
            least = least.min(received(&now));
        }
        before = now;
        scrapes += 1;
        scrapes >= 100 && least >= 5_000
    });
    let _ = capture.ctl.run(&["stop"]).expect(0);
    let last = capture.endpoint.scrape();
    assert_eq!(
        last[&format!("wqcap_capture_state{{{PORT},state=\"stopped\"}}")],
        1.0
    );
    let finished = capture.shutdown();
    let queues = finished.summary.json["ledger"]["queues"]
        .as_array()
        .expect("the ledger has queues");
    for (queue, ledger) in queues.iter().enumerate() {
        for name in LINES.into_iter().chain(["received", "bytes"]) {
            let scraped = line(&last, queue, name);
            assert_eq!(
                ledger[name].as_u64(),
                Some(scraped),
                "queue {queue}: {name}"
            );
        }
        assert_eq!(ended(&last, queue), line(&last, queue, "received"));
    }
    let nic = finished.summary.json["nic"].as_object();
    let nic = nic.expect("the summary has NIC counters");
    for (name, value) in nic {
        let name = format!("wqcap_nic_frames_total{{{PORT},counter=\"{name}\"}}");
        assert_eq!(last.get(&name).copied(), value.as_f64(), "{name}");
    }
    // The statistics count one protocol for each kept frame.
    let protocols = last
        .iter()
        .filter(|(name, _)| name.starts_with("wqcap_protocol_frames_total"));
    let protocols: f64 = protocols.map(|(_, n)| n).sum();
    assert_eq!(
        protocols,
        last[&format!("wqcap_frame_size_bytes_count{{{PORT}}}")]
    );
}

#[test]
fn promtool_accepts_metrics_and_rules() {
    let promtool = need!(Promtool::find());
    let dir = Dir::new();
    let capture = start(&dir, "form", "synth:size=64,pps=20000", &[]);
    let file = dir.write("scrape.txt", capture.endpoint.text(""));
    let done = promtool.metrics(&file).expect(0);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""));
    capture.shutdown();
    let rules = binaries::root().join("configs/monitoring/alerts.yml");
    let done = promtool.rules(&rules).expect(0);
    assert!(done.stdout.contains("19 rules found"), "{done}");
    let broken = dir.write(
        "broken.yml",
        fs::read_to_string(rules)
            .expect("the rules are readable")
            .replace("rate(", "rat("),
    );
    let _ = promtool.rules(&broken).expect(1);
}

#[test]
fn alerts_fire_at_the_default_interval() {
    let promtool = need!(Promtool::find());
    let root = binaries::root();
    let _ = promtool.tests(&root.join("tests/alerts.yml")).expect(0);

    let read = |path: &str| fs::read_to_string(root.join(path)).expect(path);
    let dir = Dir::new();
    let rules = read("configs/monitoring/alerts.yml");
    dir.write("alerts.yml", rules.replace("[5m]", "[1m]"));
    let tests = read("tests/alerts.yml").replace("../configs/monitoring/", "");
    let _ = promtool.tests(&dir.write("tests.yml", tests)).expect(1);
}

#[test]
fn alerts_name_existing_pages() {
    let rules = fs::read_to_string(binaries::root().join("configs/monitoring/alerts.yml"));
    let rules = rules.expect("the rules are readable");
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/.#-".contains(c);
    let pages: BTreeSet<_> = rules
        .split(|c| !is_part(c))
        .filter(|it| it.starts_with("docs/"))
        .map(|it| it.trim_end_matches('.'))
        .collect();
    assert!(pages.len() > 8, "{pages:?}");
    for page in pages {
        let (path, heading) = page.split_once('#').unwrap_or((page, ""));
        let text = fs::read_to_string(binaries::root().join(path));
        let text = text.unwrap_or_else(|e| panic!("{page}: {e}"));
        let slug = |line: &str| {
            line.trim_start_matches('#')
                .trim()
                .to_lowercase()
                .replace(' ', "-")
        };
        let exists = text
            .lines()
            .any(|line| line.starts_with('#') && slug(line) == heading);
        assert!(heading.is_empty() || exists, "{page}: no such heading");
    }
}

#[test]
fn every_query_of_the_dashboard_has_data() {
    let dir = Dir::new();
    let capture = start(&dir, "queries", "synth:size=64,pps=20000", &[]);
    let mut prometheus = need!(Prometheus::start(&dir, &capture.endpoint.0));
    let dashboard = binaries::root().join("configs/monitoring/grafana.json");
    let dashboard = fs::read_to_string(dashboard).expect("the dashboard is readable");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array();
    let panels = panels.expect("the dashboard has panels").iter();
    let targets = panels.flat_map(|it| it["targets"].as_array().expect("a panel has targets"));
    let mut asked = 0;
    for target in targets {
        let query = target["expr"].as_str().expect("a target has a query");
        let of_rates = query.contains("$__rate_interval");
        assert_eq!(target["interval"] == "1m", of_rates, "{query}");
        // Windows are shorter because this Prometheus scrapes every second, not every minute.
        let query = [
            ("$instance", ".*"),
            ("$device", "mlx5_.*"),
            ("$__rate_interval", "5s"),
            ("$__range", "10s"),
        ]
        .iter()
        .fold(query.to_owned(), |text, (from, to)| text.replace(from, to));
        let of_others = ["wqcap_srq_", "wqcap_ship_", "wqcap_serve_"];
        if of_others.iter().any(|it| query.contains(it)) {
            // This capture does not serve control over RDMA, and neither ships nor serves its files, so
            // only the query's syntax is checked.
            let _ = prometheus.query(&query);
            continue;
        }
        let has_data = |it: &Prometheus| {
            it.query(&query).iter().any(|row| {
                let value = row["value"][1].as_str().expect("a row has a value");
                value.parse::<f64>().is_ok_and(|it| !it.is_nan())
            })
        };
        prometheus.until(&format!("data for {query}"), has_data);
        asked += 1;
    }
    assert!(asked > 15, "only {asked} queries");
    let labels = prometheus.query("wqcap_build_info");
    assert_eq!(labels[0]["metric"]["interface"], "mlx5_0p1");
    drop(prometheus);
    capture.shutdown();
}

/// Returns all words of a text that begin with `wqcap_`: the names of metrics.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_part(c))
        .filter(|word| word.starts_with("wqcap_"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn dashboard_and_rules_name_existing_metrics() {
    let dir = Dir::new();
    let mut capture = start(&dir, "names", "synth:size=64,pps=20000", &[]);
    let (endpoint, mut text) = (&capture.endpoint, String::new());
    // Metrics of times appear with the first frames, NIC counters after they were first read.
    capture.run.until("all metrics are in a scrape", |_| {
        text = endpoint.text("");
        [
            "wqcap_hold_seconds_",
            "wqcap_gap_seconds_",
            "wqcap_nic_frames_total{",
        ]
        .iter()
        .all(|it| text.contains(it))
    });
    capture.shutdown();
    let scraped = names(&text);
    let read = |path: &str| {
        fs::read_to_string(binaries::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    };
    let dashboard = read("configs/monitoring/grafana.json");
    let json: Value = serde_json::from_str(&dashboard).expect("the dashboard is JSON");
    let panels = json["panels"].as_array();
    let panels = panels.expect("the dashboard has panels");
    assert!(panels.len() > 10);
    for panel in panels {
        assert!(panel["targets"][0]["expr"].is_string(), "{panel}");
    }
    // Metrics of the SRQ exist only with control over RDMA, which the software NIC does not do.
    // Unit tests compare the metrics of `wqcap ship` and `wqcap serve` with their pages.
    let pages = ["docs/metrics.md", "docs/fleet.md", "docs/serve.md"];
    let documented: BTreeSet<_> = pages.iter().flat_map(|it| names(&read(it))).collect();
    let elsewhere = ["wqcap_srq_", "wqcap_ship_", "wqcap_serve_"];
    let named = |text: &str| {
        for name in names(text) {
            let base = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|it| name.strip_suffix(it))
                .unwrap_or(&name);
            let is_elsewhere = elsewhere.iter().any(|it| base.starts_with(it));
            assert!(documented.contains(base), "{name} is not documented");
            assert!(
                is_elsewhere || scraped.contains(&name),
                "{name} is in no scrape"
            );
        }
    };
    named(&dashboard);
    named(&read("configs/monitoring/alerts.yml"));
}

#[test]
fn bad_clients_do_not_block_the_endpoint() {
    let dir = Dir::new();
    let mut capture = start(
        &dir,
        "bad",
        "synth:size=64,pps=20000",
        &["output.format=none"],
    );
    let endpoint = &capture.endpoint;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\x16\x03\x01 nonsense\r\n\r\n", "400"),
    ] {
        let answer = endpoint.ask(request.as_bytes());
        let wanted = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&wanted), "{request:?}: {answer}");
    }
    let long = format!(
        "GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n",
        "x".repeat(100_000)
    );
    let answer = endpoint.ask(long.as_bytes());
    assert!(!answer.contains("200 OK"), "{answer}");
    let head = endpoint.ask(b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(
        head.ends_with("\r\n\r\n") && head.contains("200 OK"),
        "{head}"
    );
    let open = endpoint.text("Accept: application/openmetrics-text;version=1.0.0\r\n");
    assert!(open.ends_with("# EOF\n"), "{open}");

    // More clients than the endpoint serves at once connect and stall. A further client is refused
    // with status 503 or a closed connection, and is served a little later.
    let mut stalling: Vec<_> = (0..20).map(|_| endpoint.connect()).collect();
    for stream in &mut stalling {
        let _ = stream.write_all(b"GET /metr");
    }
    capture.run.until("the endpoint serves again", |_| {
        let answer = endpoint.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
        let served = answer.starts_with("HTTP/1.1 200 ");
        assert!(
            served || answer.is_empty() || answer.starts_with("HTTP/1.1 503 "),
            "{answer}"
        );
        served
    });
    drop(stalling);
    let taken = Wqcap::run(&dir, "taken")
        .model("synth:size=64")
        .set("output.format=none")
        .set(&format!("metrics.listen={}", endpoint.0))
        .done()
        .expect(1);
    taken.says(&["metrics.listen", &endpoint.0]);
    capture.shutdown();
}
