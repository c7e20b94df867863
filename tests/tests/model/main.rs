//! Tests of the model: programs of others and C clients on the software NIC.

mod clients;
mod dpdk;
mod faults;
mod nic;
mod pyverbs;
mod refusals;
mod speed;
mod wq_flags;
