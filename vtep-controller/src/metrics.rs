//! What monitoring sees of the switches: connections, faults, traffic by VLAN, tunnels, MACs.

use crate::model::Tor;
use crate::units::bfd_is_up;
use daemon::Metric;
use ovn_schema::{Str, vtep};

/// How a hardware_vtep database is served.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// It is connected.
    pub connected: bool,
    /// This controller is the active one there.
    pub active: bool,
}

/// All figures of the switches.
pub fn switches<'a>(tors: impl Iterator<Item = (&'a Tor, Service)>) -> Vec<Metric> {
    let mut out = Figures::new();
    for (tor, service) in tors {
        out.database(tor, service);
    }
    out.list()
}

struct Figures {
    connected: Metric,
    active: Metric,
    macs: Metric,
    switch_fault: Metric,
    port_fault: Metric,
    tunnel: Metric,
    packets: Metric,
    bytes: Metric,
}

impl Figures {
    fn new() -> Figures {
        Figures {
            connected: Metric::gauge(
                "isthmus_vtep_connected",
                "Whether a hardware_vtep database is connected (0 or 1).",
            ),
            active: Metric::gauge(
                "isthmus_vtep_active",
                "Whether this controller is the active one of a hardware_vtep database (0 or 1).",
            ),
            macs: Metric::gauge("isthmus_vtep_macs", "Rows of Ucast_Macs_Local and of Ucast_Macs_Remote."),
            switch_fault: Metric::gauge(
                "isthmus_vtep_switch_fault",
                "Faults that a physical switch reports (switch_fault_status); 1 while it does.",
            ),
            port_fault: Metric::gauge(
                "isthmus_vtep_port_fault",
                "Faults that a physical switch reports of a port (port_fault_status); 1 while it does.",
            ),
            tunnel: Metric::gauge(
                "isthmus_vtep_tunnel_up",
                "Whether BFD on a tunnel says that it is up (0 or 1); absent where the switch says nothing.",
            ),
            packets: Metric::counter(
                "isthmus_vtep_binding_packets_total",
                "Packets of a VLAN of a port (Logical_Binding_Stats): from and to the machines there.",
            ),
            bytes: Metric::counter("isthmus_vtep_binding_bytes_total", "Bytes of the same."),
        }
    }

    fn list(self) -> Vec<Metric> {
        vec![
            self.connected,
            self.active,
            self.macs,
            self.switch_fault,
            self.port_fault,
            self.tunnel,
            self.packets,
            self.bytes,
        ]
    }

    fn database(&mut self, tor: &Tor, service: Service) {
        let database = [("database", &*tor.name)];
        self.connected.add(&database, service.connected.into());
        self.active.add(&database, service.active.into());
        for (kind, rows) in [("local", tor.db.ucast_macs_local.len()), ("remote", tor.db.ucast_macs_remote.len())] {
            self.macs.add(&[database[0], ("kind", kind)], rows as u64);
        }
        let mut switches: Vec<_> = tor.db.physical_switch.values().collect();
        switches.sort_by(|a, b| a.name.cmp(&b.name));
        for switch in switches {
            self.switch(tor, switch);
        }
    }

    fn switch(&mut self, tor: &Tor, switch: &vtep::PhysicalSwitch) {
        let labels = [("database", &*tor.name), ("switch", &*switch.name)];
        for fault in &switch.switch_fault_status {
            self.switch_fault.add(&[&labels[..], &[("fault", fault)]].concat(), 1);
        }
        let mut ports: Vec<_> = switch.ports.iter().filter_map(|p| tor.db.physical_port.get(p)).collect();
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        for port in ports {
            self.port(tor, &labels, port);
        }
        for t in switch.tunnels.iter().filter_map(|t| tor.db.tunnel.get(t)) {
            let ip = |id| tor.locator_ip(id).cloned().unwrap_or_default();
            let (local, remote): (Str, Str) = (ip(t.local), ip(t.remote));
            if let Some(up) = bfd_is_up(t) {
                self.tunnel.add(&[&labels[..], &[("local", &*local), ("remote", &*remote)]].concat(), up.into());
            }
        }
    }

    fn port(&mut self, tor: &Tor, switch: &[(&'static str, &str)], port: &vtep::PhysicalPort) {
        let labels = [switch, &[("port", &*port.name)]].concat();
        for fault in &port.port_fault_status {
            self.port_fault.add(&[&labels[..], &[("fault", fault)]].concat(), 1);
        }
        for (vlan, stats) in &port.vlan_stats {
            let Some(stats) = tor.db.logical_binding_stats.get(stats) else { continue };
            let logical = port.vlan_bindings.get(vlan).and_then(|ls| tor.db.logical_switch.get(ls));
            let (vlan, logical) = (vlan.to_string(), logical.map(|l| l.name.clone()).unwrap_or_default());
            for (direction, packets, bytes) in [
                ("from", stats.packets_from_local, stats.bytes_from_local),
                ("to", stats.packets_to_local, stats.bytes_to_local),
            ] {
                let own = [("vlan", &*vlan), ("logical_switch", &*logical), ("direction", direction)];
                let labels = [&labels[..], &own].concat();
                self.packets.add(&labels, packets.max(0) as u64);
                self.bytes.add(&labels, bytes.max(0) as u64);
            }
        }
    }
}
