//! Tests of a capture that runs as a service: control, metrics, signals, sandbox.

mod control;
mod failing_calls;
mod image;
mod manager;
mod metrics;
mod sandbox;
mod serve;
mod signals;
mod standard_error;
