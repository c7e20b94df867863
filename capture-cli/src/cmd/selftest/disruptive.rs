//! Tests that disturb a port in use: promiscuous mode, `ethtool -K`, the link, the device's driver.
//!
//! Invariant: each setting is restored when its [`PutBack`] is dropped, however the test ends.

use super::{
    frames::MAC,
    report::Outcome,
    rig::{Sender, is_connected},
    run::{HasErrno, SelftestRun},
};
use crate::term::{message::MessageKind, terminal};
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};
use wqcap_engine::{
    capture::Membership,
    device::{DeviceFacts, PortFacts, interface::NetInterface, management},
    verbs::{AsyncEvent, AsyncEvents, Context},
};

/// ID of the finding on the restart of the device's driver.
pub const RESTART: &str = "driver/restart";
/// ID of the finding on whether the folder of device files is the same after a restart of the
/// driver.
pub const FOLDER: &str = "driver/device folder is kept";
/// Folder of the device files of RDMA devices.
const DEVICES: &str = "/dev/infiniband";
/// Time limit for the device's event that reports a lost link or device.
const GONE: Duration = Duration::from_secs(2);
/// Time limit for the negotiation of the port's link.
const LINKED: Duration = Duration::from_secs(30);
/// Time limit for the driver to start the device.
const STARTED: Duration = Duration::from_secs(60);
/// Interval at which the selftest checks for an event of the device.
const TICK: Duration = Duration::from_millis(2);
/// Port state `IBV_PORT_ACTIVE`: the link is up.
const ACTIVE: u32 = 4;
/// Interface flag `IFF_PROMISC` of linux/if.h: promiscuous mode.
const PROMISCUOUS: u32 = 0x100;

/// Guard that restores a setting of the port when it is dropped, unless [`PutBack::now`] has
/// restored it.
/// so.
struct PutBack<F: FnMut() -> io::Result<()>> {
    /// Name of the action that restores the setting, for error messages.
    what: &'static str,
    /// Function that restores the setting of the port.
    how: F,
    /// Set when the setting of the port has been restored.
    is_done: bool,
}

impl<F: FnMut() -> io::Result<()>> PutBack<F> {
    fn new(what: &'static str, how: F) -> Self {
        let is_done = false;
        Self { what, how, is_done }
    }

    /// Restores the setting now, instead of when the guard is dropped.
    fn now(mut self) -> io::Result<()> {
        self.is_done = true;
        (self.how)()
    }
}

impl<F: FnMut() -> io::Result<()>> Drop for PutBack<F> {
    fn drop(&mut self) {
        if !self.is_done
            && let Err(e) = (self.how)()
        {
            terminal::print(
                MessageKind::Error,
                format_args!("cannot {}: {e}", self.what),
            );
        }
    }
}

/// Runs all tests of the selftest that disturb other traffic of the port.
pub fn disruptive(run: &mut SelftestRun, sender: Option<&Sender>, device: &DeviceFacts) {
    let all = [
        ("promiscuous", "interface/promiscuous"),
        ("rx_all", "interface/rx-all"),
        ("rx_fcs", "interface/rx-fcs"),
        ("link", "link/down"),
        ("driver", RESTART),
    ];
    let port = device.ports.iter().find(|it| it.number == run.port);
    let netdev = port.and_then(|it| it.netdev.as_deref());
    let reason = match netdev {
        _ if !run.report.disruptive => Some("requires --disruptive"),
        None => Some("the network interface of the port is unknown"),
        // The report must not contain details of the user's machine.
        Some(netdev) if !device.software && management::reason_against_steal(netdev).is_some() => {
            Some("the machine is managed through this port")
        }
        Some(_) => None,
    };
    let (Some(port), Some(netdev), None) = (port, netdev, reason) else {
        for (subject, id) in all {
            run.record_not_asked(subject, id, reason.unwrap_or("the device has no such port"));
        }
        return;
    };
    let [promiscuity, rx_all, rx_fcs, down, restart] = all;
    promiscuous(run, promiscuity, netdev);
    let Some(interface) = run.request("interface", "interface", |_| NetInterface::open(netdev))
    else {
        return;
    };
    feature(run, rx_all, &interface, "rx-all");
    feature(run, rx_fcs, &interface, "rx-fcs");
    link(run, down, &interface);
    let sender = sender.filter(|_| device.access.caps().in_memory);
    if let Some(sender) = sender.filter(|_| !run.is_over()) {
        is_connected(run, sender, "link");
    }
    if driver(run, restart, &interface, port) {
        after_restart(run, sender, netdev);
    }
}

#[expect(clippy::disallowed_methods, reason = "files of sysfs")]
/// Tests promiscuous mode of the network interface.
fn promiscuous(run: &mut SelftestRun, (subject, id): (&str, &str), netdev: &str) {
    let flags = || {
        let text = fs::read_to_string(format!("/sys/class/net/{netdev}/flags")).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    let is_on = || flags().map(|it| it & PROMISCUOUS != 0);
    let before = is_on();
    let joined = run.request(subject, id, |_| Membership::join(netdev));
    match joined {
        None => {}
        Some(None) => run.record_not_asked(
            subject,
            "interface/is promiscuous",
            "the port's network interface is simulated",
        ),
        Some(Some(joined)) => {
            let on = is_on();
            run.expect(subject, "interface/is promiscuous", true, on, None);
            drop(joined);
            let after = is_on();
            let id = "interface/promiscuous no longer";
            run.expect(subject, id, before, after, None);
        }
    }
}

/// Tests a feature of the network interface: switches it as `ethtool -K` does, and back.
fn feature(
    run: &mut SelftestRun,
    (subject, id): (&str, &str),
    interface: &NetInterface,
    name: &str,
) {
    if run.is_over() {
        return;
    }
    let was = match interface.feature(name) {
        Ok(Some(it)) if it.changeable => it.on,
        Ok(Some(_)) => {
            return run.record_not_asked(subject, id, "the interface cannot change this feature");
        }
        Ok(None) | Err(_) => {
            return run.record_not_asked(subject, id, "the interface does not have this feature");
        }
    };
    run.value(subject, id, was);
    run.announce(&format!("switching {name}"));
    let set = |on| interface.set_feature(name, on);
    let put_back = PutBack::new("switch a feature back", || set(was));
    if run
        .request(subject, format!("{id} switched"), |_| set(!was))
        .is_none()
    {
        // The setting is unchanged.
        let _ = put_back.now();
        return;
    }
    let is = |it: io::Result<Option<_>>| {
        it.ok()
            .flatten()
            .map(|it: wqcap_engine::device::interface::Feature| it.on)
    };
    let found = is(interface.feature(name));
    let switched = format!("{id} is switched");
    run.expect(subject, &switched, !was, found, None);
    run.request(subject, format!("{id} switched back"), |_| put_back.now());
}

/// Tests the link of the port: takes the link down and up together with the interface.
fn link(run: &mut SelftestRun, (subject, id): (&str, &str), interface: &NetInterface) {
    match interface.is_up() {
        _ if run.is_over() => return,
        Ok(true) => {}
        Ok(false) => return run.record_not_asked(subject, id, "the interface is down"),
        Err(e) => return run.note(subject, id, 0, Outcome::refused(e.errno())),
    }
    let context = run.context.clone();
    let events = run.request(subject, "link/events", |_| AsyncEvents::open(&context));
    let Some(mut events) = events else { return };
    // Discards events of the tests before.
    while events.take().is_some() {}
    run.announce("taking the port down");
    let put_back = PutBack::new("bring the interface up", || interface.set_up(true));
    if run
        .request(subject, id, |_| interface.set_up(false))
        .is_none()
    {
        let _ = put_back.now();
        return;
    }
    let port = run.port;
    let Some(went) = run.until_event(&mut events, AsyncEvent::PortError(port), GONE) else {
        return;
    };
    // Another function of the device may keep the link up.
    run.value(subject, "link/goes down with the interface", went);
    run.announce("bringing the port up");
    let began = Instant::now();
    if run
        .request(subject, "link/up", |_| put_back.now())
        .is_none()
    {
        return;
    }
    if went {
        let Some(came) = run.until_event(&mut events, AsyncEvent::PortActive(port), LINKED) else {
            return;
        };
        run.expect(subject, "link/event of the port", true, came, None);
        let ms = began.elapsed().as_secs_f64() * 1e3;
        run.measured(subject, "link/comes back", ms, "ms", None);
    }
    let state = run.context.query_port(port).map(|it| it.state);
    run.expect(subject, "link/state", ACTIVE, state.ok(), None);
}

/// Tests the removal of the device: unbinds the device from its driver, and binds it again. Returns
/// `true` if the device was restarted.
#[expect(clippy::disallowed_methods, reason = "files of sysfs")]
fn driver(
    run: &mut SelftestRun,
    (subject, id): (&str, &str),
    interface: &NetInterface,
    port: &PortFacts,
) -> bool {
    let function = format!("/sys/class/infiniband/{}/device", run.context.name());
    let driver = Path::new(&function).join("driver");
    let address = fs::read_link(&function).ok();
    let address = address.as_deref().and_then(Path::file_name);
    let place = &port.place;
    let obstacle = if place.vfs > 0 || place.is_lag || place.switchdev || place.bond.is_some() {
        Some("other functions or interfaces depend on the device")
    } else if !driver.join("unbind").exists() || !driver.join("bind").exists() {
        Some("the driver cannot release the device")
    } else {
        None
    };
    let (Some(address), None) = (address, obstacle) else {
        let reason = obstacle.unwrap_or("the device is not on a PCI bus");
        run.record_not_asked(subject, id, reason);
        return false;
    };
    if run.is_over() {
        return false;
    }
    let context = run.context.clone();
    let Some(mut events) = run.request(subject, "driver/events", |_| AsyncEvents::open(&context))
    else {
        return false;
    };
    let folder = || fs::metadata(DEVICES).map(|it| (it.dev(), it.ino())).ok();
    let before = folder();
    let was_up = interface.is_up().unwrap_or(false);
    let address = address.to_string_lossy().into_owned();
    // Links below the device disappear with it.
    let driver = driver.canonicalize().unwrap_or(driver);
    let name = run.context.name().to_owned();
    run.announce("restarting the device's driver");
    let put_back = PutBack::new("give the device back to its driver", || {
        give_back(&driver, &address)?;
        let began = Instant::now();
        while Context::open(&name).is_err() || interface.is_up().is_err() {
            if began.elapsed() > STARTED {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(TICK);
        }
        interface.set_up(was_up)
    });
    let taken = run.request(subject, id, |_| fs::write(driver.join("unbind"), &address));
    if taken.is_none() {
        let _ = put_back.now();
        return false;
    }
    let fatal = run.until_event(&mut events, AsyncEvent::DeviceFatal, GONE);
    if let Some(fatal) = fatal {
        run.expect(subject, "driver/event of the device", true, fatal, None);
    }
    let began = Instant::now();
    let started = run.request(subject, "driver/starts the device again", |_| {
        put_back.now()
    });
    let ms = began.elapsed().as_secs_f64() * 1e3;
    run.measured(subject, "driver/comes back", ms, "ms", None);
    if started.is_some() {
        run.value(subject, FOLDER, folder() == before);
    }
    started.is_some()
}

/// Tests that frames arrive after a restart of the device's driver, with newly opened objects,
/// because all objects opened before are lost.
fn after_restart(run: &mut SelftestRun, sender: Option<&Sender>, netdev: &str) {
    let name = run.context.name().to_owned();
    let opened = run.request("driver", "driver/opened again", |_| Context::open(&name));
    let Some(context) = opened else { return };
    run.context = context;
    let Some(sender) = sender else { return };
    let reopened = run.request("driver", "driver/sender", |_| {
        Context::open(sender.context.name())
    });
    let Some(context) = reopened else { return };
    let port = sender.port;
    let sender = Sender { context, port };
    let began = Instant::now();
    let is_up = |run: &SelftestRun| {
        let state = run.context.query_port(run.port).map(|it| it.state);
        state.is_ok_and(|it| it == ACTIVE)
    };
    while !is_up(run) && began.elapsed() < LINKED && !run.is_over() {
        thread::sleep(TICK);
    }
    // The interface is a new one, with its own addresses only.
    let _accepted = Membership::accept(netdev, MAC).ok().flatten();
    if !run.is_over() {
        is_connected(run, &sender, "driver");
    }
}

/// Binds the device with the PCI address `address` to its driver, if it is not bound.
#[expect(clippy::disallowed_methods, reason = "files of sysfs")]
fn give_back(driver: &Path, address: &str) -> io::Result<()> {
    match driver.join(address).exists() {
        true => Ok(()),
        false => fs::write(driver.join("bind"), address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_restored_once_on_drop_or_before() {
        let mut done = 0;
        drop(PutBack::new("count", || {
            done += 1;
            Ok(())
        }));
        assert_eq!(done, 1);
        let put_back = PutBack::new("count", || {
            done += 1;
            Ok(())
        });
        put_back.now().unwrap();
        assert_eq!(done, 2);
    }

    #[test]
    fn a_device_is_bound_to_its_driver_unless_it_is_bound() {
        let dir = tempfile::tempdir().unwrap();
        give_back(dir.path(), "0000:01:00.0").unwrap();
        let bound = fs::read_to_string(dir.path().join("bind")).unwrap();
        assert_eq!(bound, "0000:01:00.0");
        fs::remove_file(dir.path().join("bind")).unwrap();
        fs::write(dir.path().join("0000:01:00.0"), "").unwrap();
        give_back(dir.path(), "0000:01:00.0").unwrap();
        assert!(!dir.path().join("bind").exists());
    }
}
