//! Example: counts the frames of each flow in a capture file, after a packet filter.
//!
//!     cargo run -p wqcap-frame --example flows -- trace.pcap "tcp port 443 or udp port 53"

use std::{collections::HashMap, env, error::Error};
use wqcap_frame::{FlowKey, Headers, Malformed, filter::Filter};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let file = args.next().ok_or("usage: flows FILE [FILTER]")?;
    let filter = Filter::compile(&args.next().unwrap_or_default())?;
    let mut flows: HashMap<FlowKey, u64> = HashMap::new();
    let mut malformed: HashMap<Malformed, u64> = HashMap::new();
    let mut capture = pcap::Capture::from_file(file)?;
    loop {
        let packet = match capture.next_packet() {
            Ok(packet) => packet,
            Err(pcap::Error::NoMorePackets) => break,
            Err(e) => return Err(e.into()),
        };
        if !filter.accepts(packet.data, packet.header.len) {
            continue;
        }
        let headers = Headers::parse(packet.data);
        if let Some(fault) = headers.malformed {
            *malformed.entry(fault).or_default() += 1;
        }
        *flows
            .entry(FlowKey::from_headers(packet.data, &headers))
            .or_default() += 1;
    }
    let mut flows: Vec<_> = flows.into_iter().collect();
    flows.sort_by_key(|(_, frames)| std::cmp::Reverse(*frames));
    for (flow, frames) in flows {
        println!("{frames} {:?}", flow.ends);
    }
    for (fault, frames) in malformed {
        println!("{frames} malformed: {fault:?}");
    }
    Ok(())
}
