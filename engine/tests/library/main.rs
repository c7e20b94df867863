//! Tests of the engine as a library, on the software NIC and on stored inputs.

mod corpus;
mod fanout;
mod filter;
mod keys;
mod running;
