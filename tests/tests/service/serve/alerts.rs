//! From an alert to its packets: traffic and alert in one namespace, the sensor in another.

use super::{
    Service,
    callers::{Authority, token},
    serve,
};
use serde_json::Value;
use std::{fs, thread, time::Duration};
use wqcap_tests::{Dir, Pair, Program, machine::netns::IFACE, need, wqcap::wqcap};

/// Python program that sends 50 datagrams to the sensor's address, and prints the event that Suricata
/// writes to eve.json for an alert on them (fields of "EVE JSON Format" in Suricata's manual).
const ATTACK: &str = "
import datetime, json, socket
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.bind(('10.9.0.1', 4444))
for n in range(50):
    out.sendto(b'attack %d' % n, ('10.9.0.2', 5555))
now = datetime.datetime.now(datetime.timezone.utc)
print(json.dumps({'timestamp': now.strftime('%Y-%m-%dT%H:%M:%S.%f%z'), 'event_type': 'alert', 'src_ip': '10.9.0.1',
    'src_port': 4444, 'dest_ip': '10.9.0.2', 'dest_port': 5555, 'proto': 'UDP',
    'alert': {'signature': 'attack', 'severity': 1}}))
";

#[test]
fn the_frames_of_an_alert_are_there_two_seconds_later() {
    let pair = need!(Pair::new());
    for (end, address) in [(&pair.near, "10.9.0.1/24"), (&pair.far, "10.9.0.2/24")] {
        let _ = end
            .program("ip", &["addr", "add", address, "dev", IFACE])
            .run()
            .expect(0);
    }
    let dir = Dir::new();
    let cap = dir.folder("cap");
    let authority = Authority::new();
    let tokens = dir.join("tokens").display().to_string();
    let alice = token(&tokens, "alice", "read");
    let capture = wqcap(["run", "-i", IFACE, "--set", "output.format=pcapng", "--set"])
        .arg(format!("output.dir={}", cap.display()));
    let mut capture = pair.far.enter(capture).start();
    capture.until("it captures", |it| it.stderr().contains("capturing "));
    let mut sets = authority.sets();
    sets.extend([
        format!("serve.tokens={tokens}"),
        "serve.listen=10.9.0.2:0".into(),
    ]);
    let service = Service::start(&pair.far.enter(serve(&cap, sets)));
    let done = pair
        .near
        .program("python3", &["-c", ATTACK])
        .run()
        .expect(0);
    let alert: Value = serde_json::from_str(&done.stdout).expect("an event");
    thread::sleep(Duration::from_secs(2));
    // One URL, made of the fields of the event.
    let field = |name: &str| alert[name].as_str().expect("a text").to_owned();
    let url = format!(
        "{}/api/v1/packets?from=-1m&to={}&filter=host%20{}%20and%20host%20{}%20and%20udp%20port%20{}",
        service.url,
        field("timestamp").replace('+', "%2B"),
        field("src_ip"),
        field("dest_ip"),
        alert["dest_port"]
    );
    let out = dir.join("alert.pcapng");
    let out_text = out.to_str().expect("plain");
    let bearer = format!("Authorization: Bearer {alice}");
    // The certificate is not for this address.
    let args = [
        "--silent",
        "--fail-with-body",
        "--insecure",
        "-H",
        &bearer,
        "-o",
        out_text,
        &url,
    ];
    let done = pair.near.program("curl", &args).run();
    assert!(
        done.status.success(),
        "{done}: {}",
        fs::read_to_string(&out).unwrap_or_default()
    );
    let shown = Program::new("tcpdump")
        .args(["-nr", out_text, "-A"])
        .run()
        .expect(0);
    for n in 0..50 {
        assert!(
            shown.stdout.contains(&format!("attack {n}")),
            "{n}: {shown}"
        );
    }
    let _ = service.stop();
    capture.signal(rustix::process::Signal::INT);
    let _ = capture.wait().expect(0);
}
