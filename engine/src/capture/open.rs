//! Opens the source of a port: the objects of an RDMA device, or the sockets of a network interface.

use super::{
    clock::{CaptureClock, ClockWatch},
    packet_port::PacketPort,
    port::Port,
    source::{Rings, Source, VerbsSource},
    xdp_port::XdpPort,
};
use crate::{
    Error, config::Backend, device::counters::NicReader, plan::PortPlan, verbs::AsyncEvents,
};
use std::{sync::Arc, time::Instant};

/// Opens the source of a captured port, which receives into the queues with the numbers `queues`.
/// Sets `ready` when the first ring is ready.
pub(super) fn open_port(
    plan: &PortPlan,
    queues: &[u16],
    watch: ClockWatch,
    ready: &mut Option<Instant>,
) -> Result<(Source, NicReader, Rings), Error> {
    match plan.device.kernel {
        None => verbs_source(plan, queues, watch, ready),
        Some(_) if plan.backend == Backend::AfXdp => xdp_source(plan, ready),
        Some(_) => packet_source(plan, ready),
    }
}

/// Creates the verbs objects of a captured port, which receives into the queues with the numbers
/// `queues`. Sets `ready` when the first WQ is ready.
fn verbs_source(
    plan: &PortPlan,
    queues: &[u16],
    watch: ClockWatch,
    ready: &mut Option<Instant>,
) -> Result<(Source, NicReader, Rings), Error> {
    let mut port = Port::open(plan)?;
    let events = AsyncEvents::open(port.context())?;
    let nic = NicReader::start(
        &plan.device.name,
        plan.number,
        plan.netdev.as_deref(),
        plan.delays_drop(),
    );
    let mut rings = Vec::with_capacity(queues.len());
    for queue in queues {
        rings.push(port.ring(plan, *queue)?);
        ready.get_or_insert_with(Instant::now);
    }
    port.create_qps(&rings)?;
    let clock = CaptureClock::start(plan, &port, watch)?;
    let fatal = rings
        .iter()
        .map(|ring| (ring.handle().id(), Arc::default()))
        .collect();
    let source = VerbsSource {
        port,
        events,
        fatal,
        clock,
    };
    Ok((Source::Verbs(Box::new(source)), nic, Rings::Device(rings)))
}

/// Opens the packet sockets of a network interface. Sets `ready` to the time when the sockets have
/// their rings.
fn packet_source(
    plan: &PortPlan,
    ready: &mut Option<Instant>,
) -> Result<(Source, NicReader, Rings), Error> {
    let (port, rings) = PacketPort::open(plan)?;
    ready.get_or_insert_with(Instant::now);
    let nic = NicReader::start_interface(&plan.device.name, port.drops());
    Ok((Source::Packet(port), nic, Rings::Packet(rings)))
}

/// Opens the AF_XDP sockets of a network interface. Sets `ready` to the time when the sockets have
/// their rings.
fn xdp_source(
    plan: &PortPlan,
    ready: &mut Option<Instant>,
) -> Result<(Source, NicReader, Rings), Error> {
    let (port, rings) = XdpPort::open(plan)?;
    tracing::info!("{}", port.describe());
    ready.get_or_insert_with(Instant::now);
    let nic = NicReader::start_interface(&plan.device.name, port.drops());
    Ok((Source::Xdp(port), nic, Rings::Xdp(rings)))
}
