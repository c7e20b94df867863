//! Environment of a test: folders, disks, networks, users.

pub mod bucket;
pub mod certificate;
pub mod dir;
pub mod disks;
pub mod live;
pub mod netns;
pub mod privileges;
pub mod proxy;
