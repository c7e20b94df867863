//! HTTP side of the service.
//!
//! | module | purpose |
//! |---|---|
//! | `listener` | connections, TLS, their limits |
//! | `net_threads` | threads that handle connections |
//! | `routes` | the HTTP interface |
//! | `openapi` | its description |

mod listener;
mod net_threads;
mod openapi;
mod routes;

pub use listener::{ServeReload, Server, ServerError};
