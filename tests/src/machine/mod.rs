//! Environment of a test: folders, disks, networks, users.

pub mod bucket;
pub mod certificate;
pub mod disks;
pub mod live;
pub mod privileges;
pub mod proxy;

pub use wqcap_testkit::machine::{dir, netns};
