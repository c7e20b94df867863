//! Tests of the command line, the pages and the package.

mod bench;
mod broken_configs;
mod commands;
mod commands_of_pages;
mod dependencies;
mod documents;
mod kubernetes;
mod launcher;
mod logs;
mod manual;
mod own_crate;
mod package;
mod plan;
mod recipes;
mod selftest;
mod top;
mod wireshark;
