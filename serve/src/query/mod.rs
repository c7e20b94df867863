//! Languages and values of requests and answers.
//!
//! | module | purpose |
//! |---|---|
//! | `times` | points in time of requests |
//! | `steno` | stenographer's query language |
//! | `digits` | numbers of 64 bits in JSON |

pub(crate) mod digits;
pub(crate) mod steno;
pub(crate) mod times;
