//! The verbs test suite that Debian ships with rdma-core, unmodified, on the model.
//!
//! Each test of the modules below passes, or is listed in [`CANNOT`] with the reason. This test
//! fails if an unlisted test fails, and also if a listed test passes, so that the table stays
//! current.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use wqcap_testkit::{Dir, Done, Program, Running, model::model, need, process, skip};

/// Modules of the suite that apply to a raw-Ethernet NIC.
const MODULES: [&str; 13] = [
    "test_addr",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_device",
    "test_flow",
    "test_mlx5_cq",
    "test_mlx5_timestamp",
    "test_mr",
    "test_pd",
    "test_qp",
    "test_rss_traffic",
    "test_srq",
];

/// Outcome of a test of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Skipped,
    Failed,
}
use Outcome::{Failed, Skipped};

/// Tests of one class that cannot pass on the model. The model refuses their requests, and they
/// skip or fail.
struct Cannot {
    reason: &'static str,
    class: &'static str,
    tests: &'static [&'static str],
}

const CONNECTED: &str =
    "needs an RC or UC QP; the model is a raw-Ethernet NIC and has RAW_PACKET QPs only";
const DATAGRAM: &str = "needs a UD QP; the model is a raw-Ethernet NIC and has RAW_PACKET QPs only";
const SHARED: &str =
    "needs an XRC or DC QP; the model is a raw-Ethernet NIC and has RAW_PACKET QPs only";
const DEVICE_MEMORY: &str =
    "needs memory on the device (ibv_alloc_dm), which the model does not have";
const DMABUF: &str = "needs a GPU's buffers (dmabuf), which the model does not map";
const COMPRESSION: &str =
    "needs 128-byte CQEs that are compressed or padded, which the model does not offer";

/// Tests that cannot pass on the model.
const CANNOT: &[Cannot] = &[
    Cannot {
        reason: DATAGRAM,
        class: "test_cq.CQTest",
        tests: &["test_resize_cq"],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_cq_events.CqEventsTestCase",
        tests: &["test_cq_events_rc"],
    },
    Cannot {
        reason: DATAGRAM,
        class: "test_cq_events.CqEventsTestCase",
        tests: &["test_cq_events_ud"],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_cqex.CqExTestCase",
        tests: &["test_rc_traffic_cq_ex"],
    },
    Cannot {
        reason: DATAGRAM,
        class: "test_cqex.CqExTestCase",
        tests: &["test_ud_traffic_cq_ex"],
    },
    Cannot {
        reason: SHARED,
        class: "test_cqex.CqExTestCase",
        tests: &["test_xrc_traffic_cq_ex"],
    },
    Cannot {
        reason: DEVICE_MEMORY,
        class: "test_device.DMTest",
        tests: &[
            "test_create_dm",
            "test_create_dm_bad_flow",
            "test_destroy_dm",
            "test_destroy_dm_bad_flow",
            "test_dm_read",
            "test_dm_write",
            "test_dm_write_bad_flow",
            "test_multi_process_alloc_dm",
        ],
    },
    Cannot {
        reason: DEVICE_MEMORY,
        class: "test_device.SharedDMTest",
        tests: &["test_import_dm"],
    },
    Cannot {
        reason: COMPRESSION,
        class: "test_mlx5_cq.DvCqTest",
        tests: &[
            "test_dv_cq_compression_flags",
            "test_dv_cq_padding",
            "test_dv_cq_padding_not_aligned_cqe_size",
        ],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_mlx5_cq.DvCqTest",
        tests: &[
            "test_dv_cq_cqe_size_128",
            "test_dv_cq_cqe_size_64",
            "test_dv_cq_cqe_size_environment_var",
            "test_dv_cq_traffic",
        ],
    },
    Cannot {
        reason: SHARED,
        class: "test_mlx5_cq.DvCqTest",
        tests: &["test_scatter_to_cqe_control_by_qp"],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_mlx5_timestamp.TimeStampTest",
        tests: &[
            "test_timestamp_free_running_rc_traffic",
            "test_timestamp_real_time_rc_traffic",
        ],
    },
    Cannot {
        reason: DEVICE_MEMORY,
        class: "test_mr.DeviceMemoryAPITest",
        tests: &[
            "test_create_dm_mr",
            "test_dm_bad_access",
            "test_dm_bad_registration",
        ],
    },
    Cannot {
        reason: DEVICE_MEMORY,
        class: "test_mr.DeviceMemoryTest",
        tests: &[
            "test_dm_atomic_cmp_swp",
            "test_dm_atomic_fetch_add",
            "test_dm_remote_read_traffic",
            "test_dm_remote_traffic",
            "test_dm_remote_write_traffic_imm",
            "test_dm_traffic",
        ],
    },
    Cannot {
        reason: DMABUF,
        class: "test_mr.DmaBufMRTest",
        tests: &[
            "test_dmabuf_dereg_mr",
            "test_dmabuf_dereg_mr_twice",
            "test_dmabuf_lkey",
            "test_dmabuf_read",
            "test_dmabuf_reg_mr",
            "test_dmabuf_reg_mr_bad_flags",
            "test_dmabuf_rkey",
            "test_dmabuf_write",
        ],
    },
    Cannot {
        reason: DMABUF,
        class: "test_mr.DmaBufTestCase",
        tests: &["test_dmabuf_rc_traffic", "test_dmabuf_rdma_traffic"],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_mr.MRTest",
        tests: &[
            "test_mr_rereg_access",
            "test_mr_rereg_access_bad_flow",
            "test_mr_rereg_addr",
            "test_mr_rereg_atomic",
            "test_mr_rereg_pd",
        ],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_mr.MWTest",
        tests: &[
            "test_invalidate_mw_type1",
            "test_mw_type1",
            "test_mw_type2",
            "test_mw_type2_invalidate_dealloc",
            "test_mw_type2_invalidate_local",
            "test_mw_type2_invalidate_remote",
        ],
    },
    Cannot {
        reason: CONNECTED,
        class: "test_qp.QPTest",
        tests: &[
            "test_create_rc_qp_ex_no_attr",
            "test_create_rc_qp_ex_with_attr",
            "test_create_rc_qp_no_attr",
            "test_create_rc_qp_with_attr",
            "test_create_uc_qp_ex_no_attr",
            "test_create_uc_qp_ex_with_attr",
            "test_create_uc_qp_no_attr",
            "test_create_uc_qp_with_attr",
            "test_query_rc_qp",
            "test_query_uc_qp",
        ],
    },
    Cannot {
        reason: DATAGRAM,
        class: "test_qp.QPTest",
        tests: &[
            "test_create_ud_qp_ex_no_attr",
            "test_create_ud_qp_ex_with_attr",
            "test_create_ud_qp_no_attr",
            "test_create_ud_qp_with_attr",
            "test_modify_ud_qp",
            "test_query_data_in_order",
            "test_query_ud_qp",
        ],
    },
    // Every test of this class sends over RC. The client `srq` tests SRQs instead.
    Cannot {
        reason: CONNECTED,
        class: "test_srq.SrqTestCase",
        tests: &[
            "test_modify_srq_limit",
            "test_rc_srq_traffic",
            "test_resize_srq",
        ],
    },
];

#[test]
fn debians_verbs_tests_pass_on_the_model() {
    let suite = need!(find_suite());
    let python = need!(find_python());
    if !process::is_root() {
        skip!("for users other than root, the suite skips tests of RAW_PACKET QPs");
    }
    let dir = Dir::new();
    let (tests, tools) = (unpack(&suite, &dir), tools(&dir));
    let mut running = Vec::new();
    for module in MODULES {
        if !tests.join(format!("{module}.py")).is_file() {
            skip::note(
                &format!("pyverbs::{module}"),
                "this version of rdma-core has no such module",
            );
            continue;
        }
        running.push((module, start_module(&python, &tests, &tools, module)));
    }
    let mut outcomes = BTreeMap::new();
    for (module, running) in running {
        let ran = outcomes_of(module, &running.wait());
        assert!(!ran.is_empty(), "no test of {module} was run");
        outcomes.extend(ran);
    }
    assert_expected(&outcomes);
}

/// Returns the directory of the suite. `scripts/test` sets `WQCAP_VERBS_SUITE` on systems without
/// installed documentation.
fn find_suite() -> Result<PathBuf, String> {
    let folder = std::env::var_os("WQCAP_VERBS_SUITE")
        .unwrap_or_else(|| "/usr/share/doc/rdma-core/tests".into());
    let folder = PathBuf::from(folder);
    if folder.join("run_tests.py").is_file() {
        return Ok(folder);
    }
    Err(format!(
        "no verbs test suite in {} (package rdma-core)",
        folder.display()
    ))
}

/// Returns the system's Python, for which pyverbs is packaged. The first Python on the path may be
/// another one.
fn find_python() -> Result<PathBuf, String> {
    let python = Path::new("/usr/bin/python3");
    if python.is_file()
        && Program::new(python)
            .args(["-c", "import pyverbs"])
            .run()
            .status
            .success()
    {
        return Ok(python.to_owned());
    }
    Err("/usr/bin/python3 has no pyverbs (package python3-pyverbs)".to_owned())
}

/// Copies the suite into `dir` and decompresses the files that Debian has compressed.
fn unpack(suite: &Path, dir: &Dir) -> PathBuf {
    let tests = dir.folder("tests");
    for entry in fs::read_dir(suite).expect("the directory is readable") {
        let from = entry.expect("the directory is readable").path();
        let name = from
            .file_name()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        match name.strip_suffix(".gz") {
            Some(name) => {
                let script = r#"gzip --decompress --stdout "$0" > "$1""#;
                let to = tests.join(name);
                let _ = Program::new("sh")
                    .args(["-c", script])
                    .arg(&from)
                    .arg(&to)
                    .run()
                    .expect(0);
            }
            None if from.is_file() => {
                fs::copy(&from, tests.join(name)).expect("the file is copied");
            }
            None => {}
        }
    }
    tests
}

/// Python program that runs `run_tests.py` unmodified with a patched unittest: rdma-core 50 calls
/// unittest in a way that Python 3.12, as in Ubuntu 24.04, no longer accepts.
const RUN: &str = "
import runpy, sys, unittest
load = unittest.TestLoader.loadTestsFromModule
unittest.TestLoader.loadTestsFromModule = lambda self, module, pattern=None: load(self, module, pattern=pattern)
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition('/')[0])
runpy.run_path(sys.argv[0], run_name='__main__')
";

/// Shell script that replaces iproute2's `rdma` and reports no device. Newer suites ask `rdma` for
/// the network interface of a port. The real program uses netlink and cannot see the model. If
/// `rdma` reports no device, the suites read sysfs, as older suites always do.
const RDMA: &str = "echo '[]'";

/// Creates a directory with the replacement of `rdma`, which must be first on the path.
fn tools(dir: &Dir) -> PathBuf {
    let folder = dir.folder("tools");
    dir.script("tools/rdma", RDMA);
    folder
}

/// Runs one module in a separate process, so that a hang or crash does not affect other modules.
fn start_module(python: &Path, tests: &Path, tools: &Path, module: &str) -> Running {
    let path = format!(
        "{}:{}",
        tools.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    model(&["loopback"], &[], [python])
        .args(["-c", RUN])
        .arg(tests.join("run_tests.py"))
        .args(["--dev", "mlx5_0", "-v", "-k", &format!("tests.{module}.")])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PATH", path)
        .start()
}

/// Returns the outcome of each test of a module, and the text of its line.
fn outcomes_of(module: &str, done: &Done) -> BTreeMap<String, (Outcome, String)> {
    let outcomes = parse(&done.stderr);
    let ran = done
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("Ran ")?.split_once(' ')?.0.parse().ok());
    assert_eq!(
        ran,
        Some(outcomes.len()),
        "the report of {module} is parsed completely: {done}"
    );
    if outcomes.values().any(|(outcome, _)| *outcome == Failed) {
        // The test harness prints this only if the test fails.
        println!("{module}:\n{}", done.stderr);
    }
    outcomes
}

/// Parses unittest's verbose report. An entry is `test_x (tests.module.Class.test_x)`, an optional
/// line of documentation, ` ... `, optional output of the test, and the outcome.
fn parse(report: &str) -> BTreeMap<String, (Outcome, String)> {
    let mut outcomes = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in report.lines() {
        if line.starts_with("======") {
            // The rest of the report repeats the failures with their traces.
            break;
        }
        if let Some(id) = id_of(line) {
            current = Some(id);
        }
        let Some((outcome, text)) = outcome_of(line) else {
            continue;
        };
        if let Some(id) = current.take() {
            outcomes.insert(id, (outcome, text.to_owned()));
        }
    }
    outcomes
}

/// Returns the outcome at the end of a line, after ` ... ` or alone. The reason of a skip may also
/// contain dots.
fn outcome_of(line: &str) -> Option<(Outcome, &str)> {
    let after_dots = line
        .match_indices(" ... ")
        .map(|(at, dots)| &line[at + dots.len()..]);
    std::iter::once(line)
        .chain(after_dots)
        .find_map(|text| match text.split(' ').next()? {
            "ok" => Some((Outcome::Ok, text)),
            "skipped" => Some((Skipped, text)),
            "FAIL" | "ERROR" => Some((Failed, text)),
            _ => None,
        })
}

/// Returns `module.Class.test` for a line that begins a test's entry. Before Python 3.11 the test's
/// name is not repeated in the brackets.
fn id_of(line: &str) -> Option<String> {
    let (test, rest) = line.split_once(" (tests.")?;
    let (path, _) = rest.split_once(')')?;
    if test.contains(' ') {
        return None;
    }
    Some(if path.ends_with(&format!(".{test}")) {
        path.to_owned()
    } else {
        format!("{path}.{test}")
    })
}

/// Asserts that exactly the tests of [`CANNOT`] skip or fail.
fn assert_expected(outcomes: &BTreeMap<String, (Outcome, String)>) {
    let listed = |id: &str| {
        let (class, test) = id.rsplit_once('.').expect("module.Class.test");
        CANNOT
            .iter()
            .any(|row| row.class == class && row.tests.contains(&test))
    };
    let mut wrong = Vec::new();
    for (id, (outcome, text)) in outcomes {
        match (listed(id), outcome) {
            (false, Outcome::Ok) | (true, Skipped | Failed) => {}
            (false, _) => wrong.push(format!("{id}: {text}")),
            (true, Outcome::Ok) => wrong.push(format!("{id} passes, but it is listed in CANNOT")),
        }
    }
    let count = |wanted| {
        outcomes
            .values()
            .filter(|(outcome, _)| *outcome == wanted)
            .count()
    };
    skip::say(&format!(
        "verbs suite: {} tests, {} pass, {} skip, {} fail",
        outcomes.len(),
        count(Outcome::Ok),
        count(Skipped),
        count(Failed)
    ));
    for Cannot {
        reason,
        class,
        tests,
    } in CANNOT
    {
        let ran: Vec<_> = tests
            .iter()
            .filter(|test| outcomes.contains_key(&format!("{class}.{test}")))
            .copied()
            .collect();
        if !ran.is_empty() {
            skip::note(
                &format!("pyverbs::{class}"),
                &format!("{reason} ({})", ran.join(", ")),
            );
        }
    }
    assert!(
        wrong.is_empty(),
        "{} outcomes are not as expected:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        count(Outcome::Ok) >= 42,
        "at least 42 tests of the suite pass"
    );
}

#[test]
fn reports_are_parsed() {
    let report = "\
test_a (tests.test_x.C.test_a)
What a does ... ok
test_b (tests.test_x.C.test_b) ... skipped 'no ... such thing'
test_c (tests.test_x.C.test_c)
What c does ... some output
of several lines
FAIL
test_d (tests.test_x.C) ... ERROR

======================================================================
ERROR: test_d (tests.test_x.C)
ok
";
    let outcomes = parse(report);
    let of = |id: &str| outcomes[id].0;
    assert_eq!(outcomes.len(), 4);
    assert_eq!(of("test_x.C.test_a"), Outcome::Ok);
    assert_eq!(of("test_x.C.test_c"), Failed);
    assert_eq!(of("test_x.C.test_d"), Failed);
    assert_eq!(of("test_x.C.test_b"), Skipped);
}
