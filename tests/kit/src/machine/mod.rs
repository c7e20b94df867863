//! Environment of a test: folders, networks, users.

pub mod dir;
pub mod netns;
pub mod privileges;
