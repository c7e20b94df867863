//! Prints the contents of capture files: interfaces, number of frames, time span, and how each file
//! ends.
//!
//! ```text
//! cargo run -p wqcap-files --example contents -- FILE...
//! ```

use std::{env, error::Error, path::Path};
use wqcap_files::read;

fn main() -> Result<(), Box<dyn Error>> {
    for path in env::args_os().skip(1) {
        let mut reader = read::open(Path::new(&path))?;
        let mut span = None;
        while let Some(packet) = reader.next()? {
            let (first, _) = span.unwrap_or((packet.ns, 0));
            span = Some((first, packet.ns));
        }
        println!("{}: {}", path.display(), reader.format().name());
        for interface in reader.interfaces() {
            let name = interface.name.as_deref().unwrap_or("interface");
            println!("  {name}: link type {}", interface.link_type);
        }
        println!("  {} frames", reader.packets());
        if let Some((first, last)) = span {
            let seconds = last.saturating_sub(first) as f64 / 1e9;
            println!("  {seconds} seconds from the first to the last");
        }
        if let Some(end) = reader.end() {
            println!("  end: {end}");
        }
    }
    Ok(())
}
