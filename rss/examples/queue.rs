//! Prints the queues of the two directions of a TCP connection.
//!
//!     cargo run -p wqcap-rss --example queue -- 10.0.0.1:40000 10.0.0.2:443 8

use std::{env, error::Error, net::SocketAddrV4};
use wqcap_rss::{HashDepth, IndirectionTable, RssKey, Toeplitz, queue_of};

/// Builds an Ethernet frame with an IPv4 and a TCP header, the bytes that a NIC hashes.
fn frame(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0]);
    frame.extend(from.ip().octets());
    frame.extend(to.ip().octets());
    frame.extend(from.port().to_be_bytes());
    frame.extend(to.port().to_be_bytes());
    frame.resize(54, 0);
    frame
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<_> = env::args().skip(1).collect();
    let [from, to, queues] = &args[..] else {
        return Err("usage: queue ADDRESS:PORT ADDRESS:PORT QUEUES".into());
    };
    let (from, to) = (from.parse()?, to.parse()?);
    // No weights (as ethtool's `weight` takes them): the queues have equal shares.
    let table = IndirectionTable::new(512, queues.parse()?, &[])?;
    for (name, key) in [
        ("symmetric", RssKey::SYMMETRIC),
        ("microsoft", RssKey::MICROSOFT),
    ] {
        let toeplitz = Toeplitz::new(&key);
        for (from, to) in [(from, to), (to, from)] {
            let (_, hash, queue) = queue_of(&frame(from, to), HashDepth::L4, &toeplitz, &table);
            let hash = hash.unwrap_or_default();
            println!("{name}: {from} > {to}: hash {hash:08x}, queue {queue}");
        }
    }
    Ok(())
}
