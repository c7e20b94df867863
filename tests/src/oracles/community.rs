//! Community IDs from the reference implementation: `communityid` from PyPI, by the author of the
//! specification.

use super::pypi;
use crate::{Dir, Program};

/// Pinned version of the package.
const VERSION: &str = "1.5.0";

/// Python program that prints the ID of each line `protocol|source|destination|port|port`, and an
/// empty line if the reference implementation refuses the flow.
const IDS: &str = "
import sys
from communityid import CommunityID, FlowTuple, FlowTupleError
maker = CommunityID()
for line in open(sys.argv[1]):
    protocol, source, destination, *ports = line.rstrip('\\n').split('|')
    ports = [int(it) for it in ports] if all(ports) else [None, None]
    try:
        print(maker.calc(FlowTuple(int(protocol), source, destination, *ports)))
    except FlowTupleError:
        print()
";

/// Identity of a flow: protocol, addresses of both endpoints, and their ports or the type and code
/// of an ICMP message.
pub type Tuple = (u64, [String; 2], Option<[u64; 2]>);

/// Returns the ID of each flow; `None` if the reference implementation refuses it.
///
/// # Errors
/// Returns a reason to skip if pip is missing or PyPI cannot be reached.
///
/// # Panics
/// Panics if the reference implementation fails.
pub fn ids<'a>(tuples: impl Iterator<Item = &'a Tuple>) -> Result<Vec<Option<String>>, String> {
    let packages = pypi::installed("communityid", "", VERSION)?;
    let lines = tuples.map(|(protocol, [src, dst], ports)| {
        let [one, other] = ports.map_or_else(Default::default, |it| it.map(|it| it.to_string()));
        format!("{protocol}|{src}|{dst}|{one}|{other}\n")
    });
    let dir = Dir::new();
    let file = dir.write("tuples", lines.collect::<String>());
    let done = Program::new("python3")
        .args(["-c", IDS])
        .arg(file)
        .env("PYTHONPATH", packages)
        .run()
        .expect(0);
    let ids = done.stdout.lines().map(str::to_owned);
    Ok(ids.map(|it| Some(it).filter(|it| !it.is_empty())).collect())
}
