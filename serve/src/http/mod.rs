//! HTTP side of the service.
//!
//! | module | purpose |
//! |---|---|
//! | `listener` | connections, TLS, limits of time |
//! | `places` | limits of open connections, and which of them are closed |
//! | `net_threads` | threads that handle connections |
//! | `routes` | the HTTP interface |
//! | `openapi` | its description |

mod listener;
mod net_threads;
mod openapi;
mod places;
mod routes;

pub use listener::{ServeReload, Server, ServerError};
