//! The plan that `wqcap check` prints, compared with the objects that a run creates on the NIC.

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use wqcap_tests::{
    Dir, Program, Wqcap, binaries,
    ledger::number,
    need,
    wqcap::{receive_setting, wqcap},
};

/// Number of objects by kind and sizes.
type Objects = BTreeMap<String, usize>;

fn add(objects: &mut Objects, object: String) {
    *objects.entry(object).or_default() += 1;
}

fn list(value: &Value) -> &Vec<Value> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is not a list"))
}

/// Returns the fields that a profile hashes (`rx_hash_fields_mask` in `rdma/mlx5-abi.h`).
fn fields(profile: &str) -> u32 {
    match profile {
        "ipv4" => 0x3,
        "ipv6" => 0xc,
        "ipv4-tcp" => 0x33,
        "ipv4-udp" => 0xc3,
        "ipv6-tcp" => 0x3c,
        "ipv6-udp" => 0xcc,
        "catch-all" => 0,
        other => panic!("unknown profile {other}"),
    }
}

/// Returns the objects of a plan.
fn planned(plan: &Value) -> Objects {
    let mut objects = Objects::new();
    add(&mut objects, "PD".into());
    let queues = list(&plan["queues"]);
    let memory = number(&plan["memory"]) / queues.len() as u64;
    for _ in queues {
        add(&mut objects, format!("MR bytes={memory}"));
        // The engine requests one CQE less than there are WRs, or their strides. libmlx5 rounds up
        // to the next power of two and reports one less.
        let strides = plan["striding"]["strides"].as_u64().unwrap_or(1);
        let cqes = (number(&plan["ring"]) * strides).next_power_of_two() - 1;
        add(&mut objects, format!("CQ cqes={cqes}"));
        add(
            &mut objects,
            format!(
                "WQ wrs={} sges={} flags={:#x}",
                plan["ring"],
                plan["max_sge"],
                number(&plan["wq_flags"])
            ),
        );
    }
    // QPs over the same queues share a table.
    let mut tables = BTreeMap::new();
    for qp in list(&plan["steering"]["qps"]) {
        let entries = if qp["spread"] == "table" {
            list(&plan["table"]).len()
        } else {
            1
        };
        tables.insert(qp["spread"].to_string(), entries);
        let inner = if qp["inner"] == true { 1 << 31 } else { 0 };
        let fields = fields(qp["profile"].as_str().expect("a QP has a profile")) | inner;
        add(&mut objects, format!("QP fields={fields:#x}"));
    }
    for entries in tables.values() {
        add(&mut objects, format!("RWQ_IND_TBL entries={entries}"));
    }
    for rule in list(&plan["steering"]["rules"]) {
        add(&mut objects, format!("FLOW priority={}", rule["priority"]));
    }
    objects
}

/// Returns the objects that are created before the plan, to find the largest size of a WQ.
fn probed() -> Objects {
    let objects = [
        "PD",
        "MR bytes=4096",
        "CQ cqes=1",
        "WQ wrs=32768 sges=1 flags=0x0",
    ];
    objects.map(|it| (it.to_owned(), 1)).into()
}

/// Returns the objects that were created, from the model's debug log.
fn created(stderr: &str) -> Objects {
    let mut objects = Objects::new();
    for line in stderr.lines().filter(|line| line.ends_with("-> ok")) {
        let word = line.split_whitespace().find(|word| word.contains("_CMD_"));
        let Some((_, command)) = word.and_then(|word| word.split_once("_CMD_")) else {
            continue;
        };
        let object = match command {
            "ALLOC_PD" => "PD",
            "REG_MR" => "MR",
            other => match other.strip_prefix("CREATE_") {
                // A completion channel is part of its CQ.
                Some("COMP_CHANNEL") | None => continue,
                Some(object) => object,
            },
        };
        let sizes = line
            .split_whitespace()
            .filter(|word| word.contains('='))
            // The plan has neither: all of its rules have one type, and a match is a text.
            .filter(|word| !word.starts_with("type=") && !word.starts_with("specs="));
        let sizes: String = sizes.map(|word| format!(" {word}")).collect();
        add(&mut objects, format!("{object}{sizes}"));
    }
    objects
}

#[test]
fn the_plan_lists_all_created_objects() {
    let dir = Dir::new();
    let rules = r#"
        [[rule]]
        proto = "udp"
        [[rule]]
        vlan = 7
        queue = 1
        priority = 1
        [[rule]]
        src = "10.0.0.0/8"
        action = "drop"
        priority = 2
    "#;
    for (name, rules, settings) in [
        ("steal", "", &["capture.queues=3"][..]),
        (
            "l3",
            "",
            &["capture.queues=2", "rss.hash=l3", "rss.table_size=512"],
        ),
        ("inner", "", &["capture.queues=2", "rss.inner=true"]),
        (
            "flags",
            "",
            &[
                "capture.queues=2",
                "wq.scatter_fcs=true",
                "wq.cvlan_stripping=true",
                "capture.max_sge=3",
                "capture.idle=spin",
            ],
        ),
        ("sniffer", "", &["capture.queues=1", "capture.mode=sniffer"]),
        (
            "filtered",
            rules,
            &["capture.queues=2", "capture.mode=filtered"],
        ),
        ("verbs", "", &["capture.queues=5", "capture.access=verbs"]),
    ] {
        let wire = "synth:count=100";
        let run = Wqcap::run(&dir, name).config(rules).model(wire);
        let run = run.sets(settings);
        let run = run.set("model.debug=true");
        let finished = run.finish(0);

        // `wqcap check` gets the run's configuration and the settings that the test kit adds to
        // every run.
        let out = format!("output.dir={}", run.out_path().display());
        let config = dir.join(format!("{name}.toml"));
        let mut check = wqcap(["check"])
            .arg(config)
            .args(["--json", "--model", wire]);
        let receive = receive_setting();
        let kit = ["capture.ring=256", "output.buffer=4MiB", &out];
        let all = receive.iter().map(String::as_str).chain(kit);
        for setting in all.chain(settings.iter().copied()) {
            check = check.args(["--set", setting]);
        }
        let done = check.run().expect(0);
        let json: Value = serde_json::from_str(&done.stdout).expect("the plan is JSON");
        let mut expected = probed();
        for (object, count) in planned(&json["plan"]) {
            *expected.entry(object).or_default() += count;
        }
        assert_eq!(expected, created(&finished.done.stderr), "{name}");
    }
}

/// A control group of version 1 with a memory limit, removed at the end.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    fn new(limit: &str) -> Result<Self, String> {
        let hierarchy = Path::new("/sys/fs/cgroup/memory");
        let group = hierarchy.join(format!("wqcap-test-{}", std::process::id()));
        fs::create_dir(&group).map_err(|e| format!("no control groups of version 1: {e}"))?;
        let it = Self(group);
        fs::write(it.0.join("memory.limit_in_bytes"), limit)
            .map_err(|e| format!("no memory limit of version 1: {e}"))?;
        Ok(it)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_memory_limit_of_cgroup_version_1_is_read() {
    let group = need!(MemoryGroup::new("300M"));
    let enter = format!(
        "echo $$ > '{}/cgroup.procs' && exec '{}' check --model synth --set capture.queues=2 --set output.dir=/tmp",
        group.0.display(),
        binaries::wqcap().display()
    );
    let done = Program::new("sh").args(["-c", &enter]).run().expect(2);
    done.says(&["output.buffer = ", "300 MiB are available"]);
}
