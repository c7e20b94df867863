//! `wqcap extcap`: capture device for Wireshark, tshark and dumpcap.
//!
//! Wireshark runs this program once for each request (extcap(4)): list the interfaces, their link
//! types and the options of their dialog, or validate a capture filter. To capture, it runs the
//! program with a FIFO, reads pcapng from it until the end, and ends the program with SIGTERM. The
//! values of the dialog arrive as arguments and become configuration keys. From then on the run is
//! like any other.

use crate::{
    args::{ConfigArgs, ExtcapArgs, RunArgs, Setting},
    cmd::{check::enter, run},
    failure::Failure,
    term::output,
};
use std::{
    fmt::{Display, Write},
    fs::File,
    os::unix::fs::FileTypeExt,
    path::Path,
};
use wqcap_engine::{config::Config, device, filter::Filter};

/// Prefix of the capture interface names for Wireshark; the device and its port follow.
const PREFIX: &str = "wqcap-";
/// Name of the software NIC's capture interface for Wireshark.
const MODEL: &str = "wqcap-model";
/// Number of the link type `LINKTYPE_ETHERNET`, which all capture interfaces have.
const ETHERNET: u32 = 1;

/// Answers a request that Wireshark sends over extcap: interfaces, dialogs, filters, or a capture.
pub fn extcap(args: &ExtcapArgs) -> Result<(), Failure> {
    if args.extcap_interfaces {
        return output::print(&interfaces()?);
    }
    let Some(interface) = &args.extcap_interface else {
        return Err(Failure::refused(
            "no interface is given: Wireshark runs this command; to try it, run `wqcap extcap --extcap-interfaces`",
        ));
    };
    let interface = ExtcapInterface::named(interface)?;
    match (&args.fifo, &args.extcap_capture_filter) {
        (Some(fifo), _) if args.capture => capture(&interface, args, fifo),
        _ if args.capture => Err(Failure::refused("--capture requires --fifo FILE")),
        _ if args.extcap_dlts => output::print(&format!(
            "dlt {{number={ETHERNET}}}{{name=EN10MB}}{{display=Ethernet}}\n"
        )),
        _ if args.extcap_config => output::print(&dialog(&interface)),
        // No output means that the filter is valid.
        (_, Some(filter)) => match Filter::compile(filter) {
            Ok(_) => Ok(()),
            Err(e) => output::print(&format!("{e}\n")),
        },
        _ => Err(Failure::refused(
            "no action is given; write --extcap-dlts, --extcap-config or --capture",
        )),
    }
}

/// Capture interface that Wireshark selects for a request.
enum ExtcapInterface {
    Port { device: String, port: u8 },
    Model,
}

impl ExtcapInterface {
    /// Parses the name of a capture interface for Wireshark.
    fn named(name: &str) -> Result<Self, Failure> {
        if name == MODEL {
            return Ok(Self::Model);
        }
        let parts = name
            .strip_prefix(PREFIX)
            .and_then(|it| it.rsplit_once('-'))
            .and_then(|(device, port)| Some((device.to_owned(), port.parse().ok()?)));
        match parts {
            Some((device, port)) => Ok(Self::Port { device, port }),
            None => Err(Failure::refused(format!(
                "--extcap-interface {name}: there is no such capture interface; write {MODEL} or {PREFIX}DEVICE-PORT"
            ))),
        }
    }
}

/// Returns the list of capture interfaces for Wireshark: every port of an RDMA device, and the
/// software NIC.
fn interfaces() -> Result<String, Failure> {
    let mut text = format!(
        "extcap {{version={}}}{{display=wqcap}}\n",
        env!("CARGO_PKG_VERSION")
    );
    for device in device::list()? {
        for port in &device.ports {
            let netdev = port.netdev.as_deref();
            let netdev = netdev.map(|it| format!(", {it}")).unwrap_or_default();
            let display = format!("wqcap: {} port {}{netdev}", device.name, port.number);
            line(
                &mut text,
                format_args!("{PREFIX}{}-{}", device.name, port.number),
                &display,
            );
        }
    }
    line(&mut text, MODEL, "wqcap: software NIC");
    Ok(text)
}

/// Writes the line of a capture interface in the format of extcap.
fn line(text: &mut String, value: impl Display, display: &str) {
    let _ = writeln!(
        text,
        "interface {{value={value}}}{{display={}}}",
        escaped(display)
    );
}

/// Replaces braces and line ends in a text, because the format of extcap reserves them.
fn escaped(text: &str) -> String {
    text.replace(['{', '}', '\n'], " ")
}

/// Returns the option dialog of a capture interface for Wireshark: the most important configuration
/// keys, and a field for any other key.
fn dialog(interface: &ExtcapInterface) -> String {
    let defaults = Config::default();
    let mut text = String::new();
    if let ExtcapInterface::Model = interface {
        text += "arg {number=0}{call=--wire}{display=Wire}{type=string}{default=synth:pps=1000}{required=true}\
                 {tooltip=Wire of the software NIC: af_packet:IFACE, pcap:FILE, synth:size=64}\n";
    }
    text += "arg {number=1}{call=--queues}{display=Queues}{type=integer}{range=1,64}{default=1}\
             {tooltip=capture.queues: number of queues, each on a separate core}\n\
             arg {number=2}{call=--mode}{display=Mode}{type=selector}\
             {tooltip=capture.mode: selects whether the host also receives the captured frames}\n\
             value {arg=2}{value=steal}{display=steal: only the capture receives}{default=true}\n\
             value {arg=2}{value=sniffer}{display=sniffer: the host also receives}{default=false}\n";
    let _ = writeln!(
        text,
        "arg {{number=3}}{{call=--snaplen}}{{display=Snapshot length}}{{type=integer}}{{range=0,262144}}{{default={}}}\
         {{tooltip=capture.snaplen, 0: the whole frame}}",
        defaults.capture.snaplen
    );
    text += "arg {number=4}{call=--set}{display=More keys}{type=string}\
             {tooltip=KEY=VALUE, separated by blanks: capture.verify_fcs=true rss.hash=l3}\n";
    text
}

/// Captures frames as pcapng into the FIFO of Wireshark.
#[expect(clippy::disallowed_methods, reason = "a pipe of Wireshark")]
fn capture(interface: &ExtcapInterface, args: &ExtcapArgs, fifo: &Path) -> Result<(), Failure> {
    let mut set = Vec::new();
    let mut put = |key: &str, value: String| {
        set.push(Setting {
            key: key.into(),
            value,
        });
    };
    put("output.stdout", "true".into());
    put("output.format", "pcapng".into());
    let model = match interface {
        ExtcapInterface::Port { device, port } => {
            put("device.name", device.clone());
            put("device.port", port.to_string());
            Vec::new()
        }
        ExtcapInterface::Model => vec![args.wire.clone()],
    };
    let given = [
        ("capture.queues", args.queues.map(|it| it.to_string())),
        ("capture.mode", args.mode.clone()),
        ("capture.snaplen", args.snaplen.map(|it| it.to_string())),
        ("capture.filter", args.extcap_capture_filter.clone()),
    ];
    for (key, value) in given {
        if let Some(value) = value {
            put(key, value);
        }
    }
    for more in args.set.split_whitespace() {
        set.push(
            more.parse()
                .map_err(|e| Failure::refused(format!("more keys: {more}: {e}")))?,
        );
    }
    let run = RunArgs {
        config: ConfigArgs { file: None, set },
        model,
        ..RunArgs::default()
    };
    enter(&run.config, &run.model)?;
    let failed = |what: &str, e: std::io::Error| {
        Failure::failed(format!("cannot {what} {}: {e}", fifo.display()))
    };
    // Opening the FIFO waits until Wireshark opens its end.
    let fifo_end = File::options()
        .write(true)
        .open(fifo)
        .map_err(|e| failed("open", e))?;
    let metadata = fifo_end.metadata().map_err(|e| failed("open", e))?;
    if !metadata.file_type().is_fifo() {
        let shown = fifo.display();
        return Err(Failure::refused(format!(
            "--fifo {shown}: the file is not a FIFO; make one with mkfifo, or capture to a file with wqcap run -w"
        )));
    }
    rustix::stdio::dup2_stdout(&fifo_end).map_err(|e| failed("write to", e.into()))?;
    drop(fifo_end);
    run::run(&run, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_ports_or_the_model() {
        assert!(matches!(
            ExtcapInterface::named(MODEL),
            Ok(ExtcapInterface::Model)
        ));
        match ExtcapInterface::named("wqcap-rocep3s0f0-2") {
            Ok(ExtcapInterface::Port { device, port }) => {
                assert_eq!((&device[..], port), ("rocep3s0f0", 2))
            }
            _ => panic!("not parsed as a port"),
        }
        for wrong in ["eth0", "wqcap-", "wqcap-mlx5_0", "wqcap-mlx5_0-300"] {
            assert!(ExtcapInterface::named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_text_breaks_the_format() {
        assert_eq!(escaped("a{b}\nc"), "a b  c");
        for text in [
            dialog(&ExtcapInterface::Model),
            dialog(&ExtcapInterface::named("wqcap-a-1").unwrap()),
        ] {
            for line in text.lines() {
                assert_eq!(
                    line.matches('{').count(),
                    line.matches('}').count(),
                    "{line}"
                );
                assert!(
                    line.starts_with("arg {") || line.starts_with("value {"),
                    "{line}"
                );
            }
        }
    }
}
