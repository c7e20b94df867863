//! Recipes of docs/recipes.md: the configurations and commands of the page are run, and the results
//! are compared with those of other tools.

use rustix::process::Signal;
use std::fs;
use wqcap_tests::{
    Dir, Program, Wqcap, binaries,
    compare::assert_same,
    files,
    frames::{self, Ends, Frame, IPV4},
    ledger::number,
    oracles::tshark,
    skip,
    wqcap::wqcap,
};

/// Returns the first code block of language `kind` below a heading of the page.
fn block(heading: &str, kind: &str) -> String {
    let page = fs::read_to_string(binaries::root().join("docs/recipes.md"));
    let page = page.expect("the page is readable");
    let (_, section) = page
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("the page has no heading {heading}"));
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let (_, block) = section
        .split_once(&format!("```{kind}\n"))
        .unwrap_or_else(|| panic!("the section {heading} has no {kind} block"));
    let (block, _) = block.split_once("```").expect("a block ends");
    block.to_owned()
}

/// Returns typical frames of a site: few large flows, many small flows, and DNS.
fn traffic_mix() -> Vec<Vec<u8>> {
    let frame = |ends: Ends, protocol: u8, size: usize| {
        let frame = Frame::ethernet(&[], IPV4).ipv4(ends, protocol, 0);
        let frame = if protocol == 6 {
            frame.tcp(ends)
        } else {
            frame.udp(ends)
        };
        frame.payload(size).done()
    };
    let mut all = Vec::new();
    for round in 0..2000_u16 {
        // Three downloads, each with an empty segment back every fourth frame.
        for flow in 0..3 {
            let down = Ends {
                from: 900 + flow,
                to: 1,
                sport: 443,
                dport: 5000 + flow,
            };
            all.push(frame(down, 6, 1400));
            if round % 4 == 0 {
                all.push(frame(down.back(), 6, 0));
            }
        }
        // A small connection every tenth round, and a question with its answer every fifth.
        if round % 10 < 4 {
            let few = Ends {
                from: 2,
                to: 800,
                sport: 10_000 + round / 10,
                dport: 80,
            };
            all.push(frame(few, 6, 300));
        }
        if round % 5 == 0 {
            let ask = Ends {
                from: 3,
                to: 53,
                sport: 4000,
                dport: 53,
            };
            all.push(frame(ask, 17, 40));
            all.push(frame(ask.back(), 17, 120));
        }
    }
    all
}

#[test]
fn a_month_on_one_disk_keeps_all_of_dns_and_a_small_part_of_the_bytes() {
    // At most 1/FLOOR of the frames' bytes is kept. The compressed files are smaller still.
    const FLOOR: u64 = 15;
    let dir = Dir::new();
    let [out, index, flows] = ["run.out", "index", "flows"].map(|it| dir.folder(it));
    let mut config = block("A month on one disk", "toml");
    // Longer paths first, because `/var/lib/wqcap` is a prefix of the others.
    for (there, here) in [
        ("/var/lib/wqcap-index", &index),
        ("/var/lib/wqcap-flows", &flows),
        ("/var/lib/wqcap\"", &out),
    ] {
        assert!(config.contains(there), "{there}: {config}");
        let end = if there.ends_with('"') { "\"" } else { "" };
        config = config.replace(there, &format!("{}{end}", here.display()));
    }
    let file = dir.write("recipe.toml", &config);
    let check = wqcap(["check", "--model", "synth:count=1", "-c"]).arg(file);
    let check = check.run().expect(0);
    let plan: toml::Value = toml::from_str(&check.stdout).expect("TOML");
    assert_eq!(plan["cutoff"][0]["filter"].as_str(), Some("port 53"));
    assert_eq!(plan["cutoff"][1]["bytes"].as_integer(), Some(20 << 10));
    assert_eq!(plan["output"]["keep"].as_str(), Some("80%"), "{plan}");

    let sent = traffic_mix();
    let wire = dir.join("mix.pcap");
    files::write(&wire, 1_600_000_000, &sent);
    let finished = Wqcap::run(&dir, "run")
        .config(&config)
        .replay(&wire)
        .queues(2)
        .finish(0);
    let total = finished.summary.ledger.total;
    assert_eq!(total.captured + total.cut_off, sent.len() as u64);
    let kept: Vec<_> = finished.records().into_iter().flatten().collect();
    let bytes_kept: u64 = kept.iter().map(|it| u64::from(it.len)).sum();
    let bytes: u64 = sent.iter().map(|it| it.len() as u64).sum();
    assert_eq!(number(&finished.summary.json["flows"]["bytes"]), bytes);
    let is_dns = |it: &&[u8]| it[23] == 17;
    let dns = |all: Vec<&[u8]>| {
        let mut dns: Vec<_> = all.into_iter().filter(is_dns).map(<[u8]>::to_vec).collect();
        dns.sort();
        dns
    };
    assert_same(
        "messages of DNS",
        &dns(kept.iter().map(|it| &it.bytes[..]).collect()),
        &dns(sent.iter().map(|it| &it[..]).collect()),
    );
    let on_disk = finished.files().into_iter();
    let on_disk: u64 = on_disk
        .map(|(_, path)| fs::metadata(path).expect("the file exists").len())
        .sum();
    skip::say(&format!(
        "a month on one disk: {bytes_kept} of {bytes} bytes are kept, 1 of {:.1}, in files of {on_disk} bytes",
        bytes as f64 / bytes_kept as f64
    ));
    assert!(bytes_kept * FLOOR < bytes, "{bytes_kept} of {bytes}");
    assert!(on_disk < bytes_kept, "{on_disk}");
    // Each download keeps its frames up to the limit, including the frame that reaches it.
    let large = kept.iter().filter(|it| it.len > 1400).count();
    assert_eq!(large, 3 * (20 * 1024_usize).div_ceil(1454));
}

/// Splits a line of the page into words by a shell.
fn words(line: &str) -> Vec<String> {
    let script = r#"printf '%s\n' "$@""#;
    let line = format!("set -- {line}; {script}");
    let done = Program::new("sh").args(["-c", &line]).run().expect(0);
    done.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn the_packets_of_an_alert_are_those_that_tshark_finds() {
    const SENT: u16 = 3200;
    let dir = Dir::new();
    let wire = dir.join("in.pcap");
    // 10.0.0.2 is one of 16 hosts, so 1/16 of the frames is its own.
    files::write(&wire, 1_600_000_000, &frames::udp_flows(SENT, 300));
    let run = Wqcap::run(&dir, "run")
        .replay(&wire)
        .queues(2)
        .control()
        .set("capture.on_port_down=wait")
        .set("output.format=pcapng");
    let (mut running, ctl) = (run.start(), run.ctl());
    ctl.until_counted(&mut running, "captured", SENT.into());
    let commands = block("From an alert to its packets", "sh");
    let mut commands = commands.lines().map(words);
    let mark = commands.next().expect("the first command is a mark");
    assert_eq!(mark[..2], ["wqcap", "ctl"]);
    let mark: Vec<_> = mark[2..].iter().map(String::as_str).collect();
    let _ = ctl.run(&mark).expect(0);
    running.signal(Signal::TERM);
    let _ = running.wait().expect(0);

    let extract = commands
        .next()
        .expect("the second command is an extraction");
    assert_eq!(extract[0], "wqcap");
    let out = run.out_path().display().to_string();
    let extract = extract[1..].iter().map(|it| match it.as_str() {
        "/var/lib/wqcap" => out.clone(),
        _ => it.clone(),
    });
    let _ = wqcap(extract).cwd(dir.path()).run().expect(0);
    let all = dir.join("all.pcapng");
    let files = fs::read_dir(run.out_path());
    let files = files.expect("the directory is readable").flatten();
    let files = files.map(|it| it.path()).filter(|it| it.is_file());
    let _ = wqcap(["merge", "-o"]).arg(&all).args(files).run().expect(0);
    let wanted = tshark::frames("ip.id", &all, "ip.addr == 10.0.0.2");
    assert_eq!(wanted.len(), usize::from(SENT) / 16);
    let found = tshark::frames("ip.id", &dir.join("alert.pcapng"), "frame");
    assert_same("the alert's packets", &found, &wanted);
}
