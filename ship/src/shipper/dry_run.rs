//! Dry run: list of the files that would be shipped now.

use super::{
    FolderProblem, ShipError, UnshippedReason,
    copies::object_name,
    load_index,
    source::{self, FoundCapture, FoundFiles},
};
use crate::{
    ShipPlan, ShipSelection,
    journal::{ContentKind, DeliveryState, Journal},
    key,
};
use serde::Serialize;
use std::path::PathBuf;

/// File that is not shipped yet, as `wqcap ship --dry-run` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Planned {
    /// Path of the capture file, or file of flow records, that is not in the store yet.
    pub path: PathBuf,
    /// Length in bytes of the file that is not in the store yet.
    pub bytes: u64,
    /// Key of the object to which the file is shipped; `None`: only the table of its blocks is
    /// sent. If flows select the files, a file without an index is listed as sent.
    pub object: Option<String>,
    /// Key of the object with the table of the capture file's blocks; `None` for flow records,
    /// which have no such table.
    pub blocks: Option<String>,
}

/// Result of a dry run of shipping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DryRun {
    /// Files that are not shipped yet, in the order of the folders' listings.
    pub files: Vec<Planned>,
    /// Files that cannot be shipped, and problems of the delivery journal such as damaged records, a
    /// line each.
    pub problems: Vec<String>,
}

/// Lists the files that `wqcap ship` would ship now. Neither the store nor the journal is changed.
///
/// # Errors
/// A folder of the capture or the journal cannot be read.
pub fn dry_run(plan: &ShipPlan) -> Result<DryRun, ShipError> {
    let journal = Journal::read(&plan.journal, &plan.sensor, &plan.store)?;
    let mut found = FoundFiles::default();
    if let Some(dir) = &plan.flows_dir {
        let tables = source::tables(dir);
        found.append(tables.map_err(|e| FolderProblem::Io(e).of("flows.dir", dir))?);
    }
    let dir = &plan.dir;
    let packets = source::packets(dir);
    found.append(packets.map_err(|e| FolderProblem::Io(e).of("output.dir", dir))?);
    let unread = found.unread.into_iter();
    let unread = unread.map(|it| UnshippedReason::Io(it.error).of(&it.path).to_string());
    let is_open = |file: &FoundCapture| {
        let record = journal.get(&file.id());
        !record.is_some_and(|it| it.state == DeliveryState::Shipped && it.stamp == file.stamp)
    };
    let open = found.files.into_iter().filter(is_open);
    Ok(DryRun {
        files: open.filter_map(|file| planned(plan, file)).collect(),
        problems: unread.chain(journal.problems()).collect(),
    })
}

fn planned(plan: &ShipPlan, file: FoundCapture) -> Option<Planned> {
    let (object, blocks) = match file.kind {
        ContentKind::Flows | ContentKind::Dns | ContentKind::Dhcp => {
            (Some(key::table(file.kind, file.ns, &plan.sensor)), None)
        }
        ContentKind::Packets => {
            let name = object_name(plan, &file.path)?;
            let object = key::packets(&name, &plan.sensor);
            let blocks = key::blocks(&name, &plan.sensor);
            // Without an index the content of the file is unknown.
            let index = load_index(plan, &file);
            let selected = index.map_or(plan.packets != ShipSelection::None, |it| {
                plan.packets.takes(&it)
            });
            (selected.then_some(object), Some(blocks))
        }
    };
    Some(Planned {
        bytes: file.stamp.len,
        path: file.path,
        object,
        blocks,
    })
}
