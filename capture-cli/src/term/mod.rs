//! Output of the program: stdout, stderr, tables, progress lines, points in time.

pub mod message;
pub mod output;
mod painter;
pub mod progress;
pub mod stderr;
pub mod table;
pub mod terminal;
pub mod text;
pub mod time;
