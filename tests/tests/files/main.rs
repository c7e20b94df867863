//! Tests of files: writing, rotation, retention, damage, tools that read files, flow records.

mod anonymize;
mod cases_files;
mod cases_flows;
mod cases_names;
mod community;
mod cutoff;
mod encryption;
mod extract;
mod failing_tools;
mod flows;
mod folders;
mod full_disk;
mod marks;
mod merge;
mod names;
mod pins;
mod readers;
mod recover;
mod secrets;
mod storage;
mod summary;
mod survival;
