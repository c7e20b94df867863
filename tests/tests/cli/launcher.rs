//! `wqcap model`, which runs another program on the software NIC.

use wqcap_tests::wqcap::model;

#[test]
fn the_launcher_exits_with_the_status_of_its_program() {
    let run = |wires: &[&str], sets: &[&str], program: &[&str]| model(wires, sets, program).run();
    let _ = run(&["loopback"], &[], &["true"]).expect(0);
    let _ = run(&["loopback"], &[], &["sh", "-c", "exit 7"]).expect(7);
    assert_eq!(
        run(&["loopback"], &[], &["sh", "-c", "kill -TERM $$"]).signal(),
        Some(15)
    );
    let done = run(&["loopback"], &[], &["/nonexistent/program"]).expect(127);
    done.says(&["/nonexistent/program"]);
    let done = run(&["loopback"], &[], &["/etc/passwd"]).expect(126);
    done.says(&["/etc/passwd"]);
    let done = run(&["no-such-wire:x"], &[], &["true"]).expect(2);
    done.says(&["no-such-wire:x"]);
    let done = run(&["loopback"], &["no_such_key=1"], &["true"]).expect(2);
    done.says(&["no_such_key"]);
    let done = run(&["loopback"], &["rate=fast"], &["true"]).expect(2);
    done.says(&["rate", "fast"]);
    let done = run(&["loopback"], &[], &[]).expect(2);
    done.says(&["PROGRAM"]);
    let done = run(&[], &[], &["true"]).expect(2);
    done.says(&["--wire"]);
    // If a wire cannot be opened, the port is down and the reason is printed.
    let done = run(&["pcap:/nonexistent/file.pcap"], &[], &["ibv_devinfo"]).expect(0);
    done.says(&["/nonexistent/file.pcap"]);
    assert!(done.stdout.contains("PORT_DOWN"), "{done}");
}
