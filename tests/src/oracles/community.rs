//! Community IDs by the reference implementation, `communityid` from PyPI, which the specification's author wrote.

use super::pypi;
use crate::{Dir, Program};

/// What is installed; a newer one is taken on purpose, not by chance.
const VERSION: &str = "1.5.0";

/// An ID for each line of `protocol|source|destination|port|port`, and an empty line where it refuses to make one.
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

/// What names a flow: its protocol, its two ends' addresses, and their ports or an ICMP message's type and code.
pub type Tuple = (u64, [String; 2], Option<[u64; 2]>);

/// The ID of each; `None`: the reference implementation makes none.
///
/// # Errors
/// There is no pip, or no way to PyPI: a reason to skip.
///
/// # Panics
/// It fails.
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
