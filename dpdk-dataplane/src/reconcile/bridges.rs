//! Makes the running bridges and ports those that the database asks for.

use super::devices::{AT_ONCE, DeviceError, Made, OpenedAhead};
use super::{Reconciler, RunningBridge, RunningPort};
use crate::config::BridgeSpec;
use crate::config::bond::{BondMember, BondSpec};
use crate::config::mirror::MirrorTarget;
use crate::config::port::{Kind, PortError, PortSpec};
use crate::config::qos::{Egress, Rate};
use crate::config::stp::StpPortSpec;
use crate::kernel::netlink::{KernelSnapshot, KernelTables};
use crate::kernel::sysfs;
use crate::kernel::tc::Queues;
use crate::openflow::{self, Controllers, Socket};
use crate::pmd::{self, Handle, Jobs, MainPmd};
use crate::ports::bond::MemberSpec;
use crate::ports::bond::lacp::LacpPort;
use crate::ports::rstp::bridges::RstpPort;
use crate::ports::stp::bridges::StpPort;
use futures::{StreamExt, stream};
use openflow_rs::action::Action;
use openflow_rs::{
    FlowMod, Group, GroupId, GroupMod, GroupModCommand, Match, Message, MeterConfig, MeterId, MeterMod,
    MeterModCommand, PortNo, TableId,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use switch::{BridgeId, Mirror, MirrorOutput, Port, PortKind};

/// How often controllers of a bridge that fails open get a packet that they may answer.
const BOGUS_INTERVAL: Duration = Duration::from_secs(2);

impl Reconciler {
    /// Whether network devices that ports need have come, gone or been replaced.
    pub(super) fn links_changed(&self) -> bool {
        let host = self.kernel.snapshot();
        self.bridges.values().flat_map(|b| b.ports.values()).any(|p| link_changed(p, &host))
    }

    pub(super) async fn apply_bridges(&mut self, wanted: Vec<BridgeSpec>) {
        let gone: Vec<String> =
            self.bridges.keys().filter(|n| !wanted.iter().any(|w| w.name == **n)).cloned().collect();
        for name in gone {
            if let Some(b) = self.bridges.remove(&name) {
                self.remove_bridge(b).await;
            }
        }
        // Ports are removed before others are added: a device may move from one bridge to another.
        for spec in &wanted {
            if let Some(mut b) = self.bridges.remove(&spec.name) {
                self.remove_ports(&mut b, spec).await;
                self.bridges.insert(spec.name.clone(), b);
            }
        }
        let mut ahead = self.open_ahead(&wanted).await;
        for spec in wanted {
            let mut b = match self.bridges.remove(&spec.name) {
                Some(b) => b,
                None => self.add_bridge(&spec).await,
            };
            if b.configured && b.spec.mac != spec.mac {
                self.change_address(&mut b, spec.mac).await;
            }
            self.configure_bridge(&mut b, &spec);
            for p in &spec.ports {
                self.apply_port(&mut b, p, &mut ahead).await;
            }
            if !b.configured {
                tracing::info!(target: "bridge", "bridge {}: using datapath ID {:016x}", spec.name, spec.datapath_id);
            }
            (b.spec, b.configured) = (spec, true);
            self.apply_mirrors(&b);
            self.apply_queue_marks(&b);
            self.apply_bonds(&b);
            self.apply_stp(&b);
            self.apply_snooping(&b);
            self.bridges.insert(b.spec.name.clone(), b);
        }
        self.fail_over();
    }

    /// Removes all bridges and their taps.
    pub async fn clean_up(&mut self) {
        self.apply_bridges(Vec::new()).await;
    }

    async fn add_bridge(&mut self, spec: &BridgeSpec) -> RunningBridge {
        if !std::mem::replace(&mut self.probed, true) {
            let tags = self.pmd.run(|w| w.switch.underlay.tags()).await.unwrap_or_default();
            let datapath = self.test_bed.mode.datapath().unwrap_or("netdev@ovs-netdev");
            for line in super::datapath_features::probed(tags) {
                tracing::info!(target: "ofproto_dpif", "{datapath}: {line}");
            }
        }
        let standalone = !spec.secure && !has_primary(spec);
        let (name, dpid, spare) = (spec.name.clone(), spec.datapath_id, self.spare.pop());
        let added = self.pmd.run(move |w| {
            let id = match spare.and_then(|id| w.switch.bridge_mut(id).map(|b| (id, b))) {
                Some((id, b)) => {
                    (b.name, b.datapath_id) = (name, dpid);
                    id
                }
                None => w.switch.add_bridge(&name, dpid),
            };
            set_standalone(w, id, standalone);
            id
        });
        let id = added.await.unwrap_or(BridgeId::NONE);
        let mut b = RunningBridge {
            id,
            spec: spec.clone(),
            sockets: Vec::new(),
            controllers: Controllers::default(),
            standalone,
            fails_open: false,
            next_bogus: self.pmd.clock.instant(),
            ports: BTreeMap::new(),
            next: 1,
            configured: false,
            least_mtu: None,
            bonds: BTreeMap::new(),
            stp: None,
            rstp: None,
        };
        self.open_sockets(&mut b);
        b
    }

    pub(super) fn session(&self, b: &RunningBridge) -> openflow::Session {
        openflow::session(&b.spec.name, b.id, &self.pmd, &self.connections, b.spec.versions)
    }

    /// Opens a bridge's OpenFlow sockets, in place of those it had.
    fn open_sockets(&self, b: &mut RunningBridge) {
        b.sockets.clear();
        let session = self.session(b);
        let path = |kind| self.rundir.join(format!("{}.{kind}", b.spec.name));
        let (management, snoop) = (path("mgmt"), path("snoop"));
        let opened =
            [(Socket::management(&management, session.clone()), &management), (Socket::snoop(&snoop, session), &snoop)];
        for (socket, path) in opened {
            match socket {
                Ok(s) => b.sockets.push(s),
                Err(e) => {
                    let name = &b.spec.name;
                    tracing::error!(target: "bridge", "{}: {e}; bridge {name} has no such socket", path.display());
                }
            }
        }
    }

    /// Has bridges with `fail_mode` standalone switch by themselves: those without controllers, and those that no
    /// controller has controlled for three probe intervals. These fail open: what flows there were is gone, and a hidden
    /// one has all packets switched until a controller controls the bridge again (ovs-vswitchd.conf.db(5)).
    pub(super) fn fail_over(&mut self) {
        let now = self.pmd.clock.instant();
        for b in self.bridges.values_mut() {
            let (id, name, primary) = (b.id, &b.spec.name, has_primary(&b.spec));
            let standalone = !b.spec.secure && !primary;
            if std::mem::replace(&mut b.standalone, standalone) != standalone {
                self.pmd.post(move |w| set_standalone(w, id, standalone));
            }
            let alone = b.controllers.alone(now).filter(|_| primary && !b.spec.secure);
            // Whole seconds, as without probes none is enough.
            let open = alone.is_some_and(|t| b.fails_open || t.as_secs() > 0 && t >= b.controllers.patience());
            if std::mem::replace(&mut b.fails_open, open) != open {
                match alone {
                    Some(t) => tracing::warn!(
                        target: "fail_open",
                        "bridge {name}: could not connect to a controller (or it did not begin to control the switch) for {} seconds, failing open",
                        t.as_secs()
                    ),
                    None => tracing::warn!(target: "fail_open", "bridge {name}: no longer in fail-open mode"),
                }
                self.pmd.post(move |w| {
                    let now = w.now();
                    if open {
                        delete_flows(w, id);
                        w.bfd.tables_ready(id, now);
                    }
                    w.switch.bridge_mut(id).into_iter().for_each(|b| b.set_fails_open(open, now));
                });
            }
            if open && b.controllers.any_connected() && now >= b.next_bogus {
                b.next_bogus = now + BOGUS_INTERVAL;
                self.connections.send_bogus(id);
            }
        }
    }

    /// Changes the settings of a bridge, where they differ: each change makes cached flows stale.
    fn configure_bridge(&self, b: &mut RunningBridge, spec: &BridgeSpec) {
        if b.spec.versions != spec.versions {
            b.spec.versions = spec.versions;
            self.open_sockets(b);
            b.controllers = Controllers::default();
        }
        if !b.configured && !spec.tables.is_empty() || b.configured && b.spec.tables != spec.tables {
            let (id, tables) = (b.id, spec.tables.clone());
            self.pmd.post(move |w| {
                let now = w.now();
                w.switch.with_tables(id, |b| b.set_table_config(tables, now));
            });
        }
        let session = self.session(b);
        b.controllers.apply(&spec.controllers, &session);
        if b.configured && has_primary(&b.spec) != has_primary(spec) {
            // What the one who decided before has left is not for the next one, as in Open vSwitch.
            b.standalone = !spec.secure && !has_primary(spec);
            let (id, standalone) = (b.id, b.standalone);
            self.pmd.post(move |w| {
                delete_flows(w, id);
                set_standalone(w, id, standalone);
            });
        }
        let settings = |s: &BridgeSpec| {
            let collectors = s.collectors.keys().copied().collect::<Vec<u32>>();
            let named = (s.datapath_id, s.description.clone());
            (named, s.mac_age, s.mac_limit, s.flood_vlans.clone(), s.forward_bpdu, collectors)
        };
        if b.configured && settings(&b.spec) == settings(spec) {
            return;
        }
        let renumbered = b.configured && b.spec.datapath_id != spec.datapath_id;
        let (id, (named, age, limit, floods, forward_bpdu, collectors)) = (b.id, settings(spec));
        self.pmd.post(move |w| {
            if let Some(b) = w.switch.bridge_mut(id) {
                (b.datapath_id, b.description) = named;
                b.macs.set_limits(age, limit);
                let forwards = std::mem::replace(&mut b.forward_bpdu, forward_bpdu) != forward_bpdu;
                if b.macs.set_flood_vlans(floods) || forwards {
                    b.epoch += 1;
                }
                b.collectors = collectors;
            }
        });
        if renumbered {
            // No message tells a controller that the bridge has another number.
            b.controllers.reconnect(&session);
        }
    }

    /// Gives the bridge's own port the bridge's new address, unless the port's row asks for one.
    async fn change_address(&self, b: &mut RunningBridge, mac: packet::Mac) {
        let id = b.id;
        if let Some(p) = b.ports.get_mut(&b.spec.name).filter(|p| p.spec.mac.is_none()) {
            self.set_address(id, p, mac).await;
        }
    }

    /// Gives an internal port, or a dummy, another address, and tells controllers. Its addresses of IP stay.
    async fn set_address(&self, id: BridgeId, p: &mut RunningPort, mac: packet::Mac) {
        let Some(no) = p.no else { return };
        if let Some(dummy) = self.test_bed.dummies.get(&p.spec.name) {
            dummy.set_mac(mac);
        } else if let Err(e) = self.kernel.set_address(&p.spec.name, mac).await {
            tracing::warn!(target: "netdev", "{}: its address cannot be changed: {e}", p.spec.name);
            return;
        }
        p.mac = mac;
        self.tell_address(id, no, mac).await;
    }

    /// A port's device has another address: tells the switch and controllers.
    pub(super) async fn tell_address(&self, id: BridgeId, no: PortNo, mac: packet::Mac) {
        let changed = self.pmd.run(move |w| {
            w.lldp.change_address(id, no, mac);
            let b = w.switch.bridge_mut(id)?;
            let p = b.ports.get_mut(&no)?;
            p.hw_addr = mac;
            let p = p.clone();
            b.epoch += 1;
            Some(p)
        });
        if let Ok(Some(port)) = changed.await {
            self.connections.port_status(id, 2, &port);
        }
    }

    /// Sets a bridge's bonds; members that do not run are left out.
    fn apply_bonds(&self, b: &RunningBridge) {
        let members = |s: &BondSpec| {
            let of = |m: &BondMember| {
                let p = b.ports.get(&m.name)?;
                let port = p.no?;
                let id =
                    LacpPort { number: m.lacp_id.unwrap_or(port.0), priority: m.lacp_priority.unwrap_or(u16::MAX) };
                Some(MemberSpec { port, name: m.name.clone(), mac: p.mac, id })
            };
            s.members.iter().filter_map(of).collect::<Vec<_>>()
        };
        let wanted: Vec<_> = b.spec.bonds.iter().map(|s| (s.clone(), members(s))).collect();
        let id = b.id;
        self.pmd.post(move |w| {
            let now = w.now();
            w.bonds.configure(id, wanted, &mut w.switch, now);
        });
    }

    /// Sets what packets of queues are marked with, once ports have numbers.
    fn apply_queue_marks(&self, b: &RunningBridge) {
        let ports = b.ports.values().filter_map(|p| Some((p.no?, &p.spec.queue_marks)));
        let marks = ports.flat_map(|(no, m)| m.iter().map(move |(queue, dscp)| ((no, *queue), *dscp)));
        let (id, marks) = (b.id, marks.collect::<switch::QueueMarks>());
        self.pmd.post(move |w| {
            if w.switch.bridge(id).is_some_and(|b| *b.queue_marks() != marks)
                && let Some(b) = w.switch.bridge_mut(id)
            {
                b.set_queue_marks(marks);
            }
        });
    }

    /// Sets a bridge's mirrors, once its ports have numbers.
    fn apply_mirrors(&self, b: &RunningBridge) {
        let number = |name: &String| b.ports.get(name).and_then(|p| p.no);
        let mirrors = b.spec.mirrors.iter().filter_map(|m| {
            let output = match m.output.as_ref()? {
                MirrorTarget::Port(name) => MirrorOutput::Port(number(name)?),
                MirrorTarget::Vlan(vlan) => MirrorOutput::Vlan(*vlan),
            };
            Some(Mirror {
                name: m.name.clone(),
                all: m.all,
                sources: m.sources.iter().filter_map(number).collect(),
                destinations: m.destinations.iter().filter_map(number).collect(),
                vlans: m.vlans.iter().copied().collect(),
                filter: m.filter.clone(),
                output,
                snaplen: m.snaplen,
            })
        });
        let (id, mirrors) = (b.id, mirrors.collect::<Vec<_>>());
        self.pmd.post(move |w| {
            // `bridge_mut` makes all cached flows stale: not without need.
            if w.switch.bridge(id).is_some_and(|b| b.mirrors() != mirrors)
                && let Some(b) = w.switch.bridge_mut(id)
            {
                b.set_mirrors(mirrors);
            }
        });
    }

    /// Sets a bridge's spanning tree, once its ports have numbers.
    fn apply_stp(&self, b: &RunningBridge) {
        let mirrored = |p: &PortSpec| {
            b.spec.mirrors.iter().any(|m| matches!(&m.output, Some(MirrorTarget::Port(name)) if *name == p.name))
        };
        let with = b.ports.values().filter(|p| !mirrored(&p.spec));
        let mut ports: Vec<_> = with.filter_map(|p| Some((p.no?, p.spec.stp?, p))).collect();
        ports.sort_by_key(|(no, ..)| *no);
        let (numbered, all) = (ports.iter().filter(|(_, s, _)| s.number.is_some()).count(), ports.len());
        let mut settings = b.spec.stp;
        if settings.is_some() && ![0, all].contains(&numbered) {
            tracing::error!(
                target: "bridge",
                "bridge {}: must manually configure all STP port IDs or none, disabling",
                b.spec.name
            );
            settings = None;
        }
        let of = |(i, (port, s, p)): (usize, &(PortNo, StpPortSpec, &RunningPort))| {
            let number = s.number.or_else(|| u8::try_from(i + 1).ok())?;
            let (name, id) = (p.spec.name.clone(), u16::from(s.priority) << 8 | u16::from(number));
            Some(StpPort { port: *port, name, mac: p.mac, id, cost: s.cost })
        };
        let ports = ports.iter().enumerate().filter_map(of).collect();
        let (id, wanted) = (b.id, settings.map(|s| (s, ports)));
        let rapid = b.spec.rstp.map(|s| (s, rapid_ports(b, mirrored)));
        self.pmd.post(move |w| {
            let now = w.now();
            // The one that ends leaves its ports to the other.
            match rapid.is_some() {
                true => {
                    w.trees.configure(id, wanted, &mut w.switch, now);
                    w.rapid.configure(id, rapid, &mut w.switch, now);
                }
                false => {
                    w.rapid.configure(id, rapid, &mut w.switch, now);
                    w.trees.configure(id, wanted, &mut w.switch, now);
                }
            }
            w.run_trees(now);
        });
    }

    /// Sets how a bridge snoops multicast, once its ports have numbers. Ports that run with none are left out.
    fn apply_snooping(&self, b: &RunningBridge) {
        let ports = |wants: fn(&PortSpec) -> bool| {
            b.ports.values().filter(|p| wants(&p.spec)).filter_map(|p| p.no).collect::<Vec<_>>()
        };
        let (flood, reports) = (ports(|p| p.mcast_flood), ports(|p| p.mcast_flood_reports));
        let (id, wanted) = (b.id, b.spec.snooping);
        self.pmd.post(move |w| {
            // Of a bond the port counts that stands for it.
            let faces = |list: &[PortNo], b: &switch::Bridge| list.iter().map(|p| b.face(*p)).collect::<Vec<_>>();
            w.switch.with_tables(id, |b| {
                let (flood, reports) = (faces(&flood, b), faces(&reports, b));
                b.set_snooping(wanted, &flood, &reports);
            });
        });
    }

    async fn remove_bridge(&mut self, mut b: RunningBridge) {
        b.sockets.clear();
        b.controllers = Controllers::default();
        let ports = std::mem::take(&mut b.ports);
        self.close_ports(&b, ports.into_values()).await;
        let id = b.id;
        let groups = GroupMod::new(GroupModCommand::Delete, Group { id: GroupId::ALL, ..Default::default() });
        let meters = MeterMod {
            command: MeterModCommand::Delete,
            meter: MeterConfig { id: MeterId::ALL, ..Default::default() },
        };
        // Of many flows another thread empties the tables. A deletion of everything is never refused.
        let all = [Message::FlowMod(FlowMod::delete_all()), Message::GroupMod(groups), Message::MeterMod(meters)];
        let _ = self.pmd.apply_bundle(id, Arc::new(all.into())).await;
        let cleared = self.pmd.run(move |w| {
            let now = w.now();
            w.bfd.forget_bridge(id);
            w.cfm.forget_bridge(id);
            w.lldp.forget_bridge(id);
            let Some(b) = w.switch.bridge_mut(id) else { return };
            b.name = String::new();
            b.tlv_mod(2, &[]);
            b.set_mirrors(Vec::new());
            w.bonds.configure(id, Vec::new(), &mut w.switch, now);
            let Some(b) = w.switch.bridge_mut(id) else { return };
            b.collectors.clear();
            b.let_evict(TableId::ALL, false);
            b.set_table_config(BTreeMap::new(), now);
            b.macs.clear();
            b.forget();
        });
        let _ = cleared.await;
        self.connections.forget(id);
        self.spare.push(id);
        tracing::info!(target: "bridge", "bridge {}: deleted", b.spec.name);
    }

    async fn remove_ports(&mut self, b: &mut RunningBridge, spec: &BridgeSpec) {
        let (host, renumbered) = (self.kernel.snapshot(), renumbered(b, spec));
        let keep = |p: &RunningPort| {
            spec.ports.iter().any(|w| {
                w.name == p.spec.name
                    && same_device(&w.kind, &p.spec.kind)
                    && !renumbered.contains(&p.spec.name)
                    && !link_changed(p, &host)
            })
        };
        let (stay, gone) = std::mem::take(&mut b.ports).into_iter().partition(|(_, p)| keep(p));
        b.ports = stay;
        self.close_ports(b, gone.into_values()).await;
    }

    /// Closes ports; those with devices of the kernel together.
    async fn close_ports(&self, b: &RunningBridge, ports: impl Iterator<Item = RunningPort>) {
        let (of_kernel, others): (Vec<_>, Vec<_>) = ports.partition(|p| p.spec.kind == Ok(Kind::System));
        stream::iter(of_kernel).for_each_concurrent(AT_ONCE, |p| self.close_port(b, p)).await;
        for p in others {
            self.close_port(b, p).await;
        }
    }

    pub(super) async fn close_port(&self, b: &RunningBridge, mut p: RunningPort) {
        let (Some(no), id, device) = (p.no, b.id, p.device) else { return };
        if let Some(index) = p.ifindex {
            let operators = p.spec.egress == Ok(Egress::Operators);
            let queues = if operators { Queues::Operators } else { Queues::None };
            p.traffic_control.follow(&self.kernel, &p.spec.name, index, queues, Rate::default()).await;
        }
        let taken = self.pmd.run(move |w| {
            let now = w.now();
            w.bfd.set(id, no, None, now);
            w.cfm.set(id, no, None, 0, now);
            w.lldp.forget_port(id, no);
            let port = w.switch.remove_port(id, no);
            (port, device.and_then(|d| w.remove_device(d)))
        });
        let Ok((port, device)) = taken.await else { return };
        if let Some(port) = port {
            self.connections.port_status(b.id, 1, &port);
        }
        if let Some(device) = device {
            pmd::released(&device.port).await;
            // Closing may take long.
            let _ = tokio::task::spawn_blocking(move || drop(device)).await;
        }
        if matches!(p.spec.kind, Ok(Kind::Dummy { .. })) {
            self.test_bed.dummies.remove(&p.spec.name);
        }
        // A tap that another program made stays, as in Open vSwitch.
        let ours = || !p.spec.tap || self.kernel.snapshot().links.get(&p.spec.name).is_some_and(|l| l.made_here);
        if matches!(p.spec.kind, Ok(Kind::Internal))
            && ours()
            && let Err(e) = self.kernel.delete(&p.spec.name).await
        {
            tracing::warn!(target: "netdev", "{}: the tap cannot be deleted: {e}", p.spec.name);
        }
        tracing::info!(target: "bridge", "bridge {}: deleted interface {} on port {no}", b.spec.name, p.spec.name);
    }

    /// Adds a port, or changes one that runs.
    async fn apply_port(&mut self, b: &mut RunningBridge, spec: &PortSpec, ahead: &mut OpenedAhead) {
        self.reconfigure_port(b, spec).await;
        if let Some(c) = spec.complaint.as_ref().filter(|_| b.ports.get(&spec.name).is_none_or(|p| p.spec != *spec)) {
            tracing::warn!(target: "bridge", "bridge {}: {c}", b.spec.name);
        }
        if let Some(p) = b.ports.get_mut(&spec.name) {
            if matches!(spec.kind, Ok(Kind::Dummy { .. })) && p.no.is_some() {
                // Also where nothing has changed: capture files that were deleted are made again.
                p.error = self.change_dummy(spec, p.device).await;
            }
            if p.spec == *spec {
                return;
            }
            let (id, no) = (b.id, p.no);
            let old = std::mem::replace(&mut p.spec, spec.clone());
            let new = spec.clone();
            if let Some(no) = no {
                // Of other ports `mac` changes nothing, and one that is taken back leaves the address.
                let own = matches!(new.kind, Ok(Kind::Internal | Kind::Dummy { .. }));
                if let Some(mac) = new.mac.filter(|m| own && *m != p.mac) {
                    self.set_address(id, p, mac).await;
                }
                if let (Some(_), true) = (p.ifindex, new.mtu != old.mtu) {
                    p.error = match new.mtu {
                        Some(m) => self.set_mtu(&new.name, m).await,
                        None => None,
                    };
                }
                let again = old.setup != new.setup;
                let limits = |s: &PortSpec| (s.ingress, s.egress.clone(), s.affinity.clone());
                if again || limits(&old) != limits(&new) {
                    police(&self.pmd, &self.kernel, p).await;
                }
                // Nothing of this is in a port's description; of a change of liveness controllers are told where it is
                // found.
                let _ = self.pmd.run(move |w| change_port(w, id, no, &old, &new)).await;
            }
            return;
        }
        let mut p = RunningPort {
            spec: spec.clone(),
            no: None,
            device: None,
            mac: packet::Mac::ZERO,
            seen_mac: None,
            ifindex: None,
            error: None,
            wait_for_link: false,
            presence: Default::default(),
            room: 0,
            bfd: None,
            cfm: None,
            statistics: Default::default(),
            link: Default::default(),
            peer: None,
            link_resets: 0,
            driver: None,
            egress: None,
            info: None,
            lacp_current: None,
            traffic_control: Default::default(),
        };
        match self.make(&b.spec, spec, ahead).await {
            Ok(made) => match free_number(b, spec) {
                Some(no) => self.start_port(b, &mut p, no, made).await,
                None => p.error = Some(format!("bridge {}: no port number is free", b.spec.name)),
            },
            Err(e) => {
                tracing::warn!(target: "bridge", "bridge {}: {e}", b.spec.name);
                p.error = Some(e.to_string());
                p.wait_for_link = matches!(e, DeviceError::NoSuchDevice(_));
                p.presence.wait(spec, &e, &self.kernel.snapshot());
            }
        }
        b.ports.insert(spec.name.clone(), p);
    }

    async fn start_port(&mut self, b: &RunningBridge, p: &mut RunningPort, no: PortNo, made: Made) {
        p.presence.opened(&p.spec, &self.kernel.snapshot());
        p.seen_mac = None;
        (p.device, p.mac, p.ifindex, p.room) = (made.device, made.mac, made.ifindex, made.room);
        p.driver = p.ifindex.and_then(|_| dpdk_rs::driver(&p.spec.name).ok());
        let mut port = Port::new(no, &p.spec.name, made.kind);
        port.hw_addr = made.mac;
        (port.vlan, port.priority_tags) = (p.spec.vlan.clone(), p.spec.priority_tags);
        port.protected = p.spec.protected;
        // A session begins down.
        (port.bfd_packets, port.bfd) = (p.spec.bfd.map(|b| b.packets()), p.spec.bfd.map(|_| false));
        (port.ccm_packets, port.lldp) = (p.spec.cfm.map(|c| c.packets()), p.spec.lldp.is_some());
        // So does LACP, until the bond has its members.
        let negotiates = p.spec.negotiates;
        port.lacp = negotiates.then_some(false);
        let (id, bfd, cfm, lldp, device) = (b.id, p.spec.bfd, p.spec.cfm, p.spec.lldp.clone(), p.device);
        let added = self.pmd.run(move |w| {
            let now = w.now();
            port.created = now;
            w.switch.add_port(id, port).map(|()| {
                w.bfd.set(id, no, bfd, now);
                w.cfm.set(id, no, cfm, 0, now);
                w.lldp.set(id, no, lldp, made.mac, now);
                if !negotiates {
                    w.update_liveness();
                }
                device.into_iter().for_each(|d| w.poll_device(d));
                w.switch.bridge(id).and_then(|b| b.ports.get(&no)).cloned()
            })
        });
        match added.await {
            Ok(Ok(told)) => {
                (p.no, p.error) = (Some(no), made.complaint);
                police(&self.pmd, &self.kernel, p).await;
                let number = if no == PortNo::LOCAL { 65534 } else { no.0 };
                tracing::info!(target: "bridge", "bridge {}: added interface {} on port {number}", b.spec.name, p.spec.name);
                told.into_iter().for_each(|p| self.connections.port_added(b.id, &p));
            }
            Ok(Err(e)) => p.error = Some(e.to_string()),
            Err(e) => p.error = Some(e.to_string()),
        }
    }
}

/// Sets a port's QoS, in the switch and in the kernel, and which processors poll its queues.
pub(super) async fn police(pmd: &Handle, kernel: &KernelTables, p: &mut RunningPort) {
    let Some(device) = p.device else { return };
    let egress = p.spec.egress.clone().unwrap_or_else(|e| {
        tracing::warn!(target: "bridge", "{e}");
        Egress::Free
    });
    let name = &p.spec.name;
    let shaped = p.ifindex.filter(|_| matches!(egress, Egress::Shape(_)));
    let mbps = shaped.and_then(|i| sysfs::speed(name, i)).map(|(mbps, _)| mbps);
    let operators = egress == Egress::Operators;
    let (ingress, affinity) = (p.spec.ingress, p.spec.affinity.clone());
    let plan = pmd.run(move |w| {
        let plan = w.police(device, ingress, &egress, mbps);
        w.set_affinity(device, affinity);
        plan
    });
    let (Ok(plan), Some(index)) = (plan.await, p.ifindex) else { return };
    let queues = match plan {
        Some(plan) => Queues::Plan(plan),
        None if operators => Queues::Operators,
        None => Queues::None,
    };
    let classes = p.traffic_control.follow(kernel, name, index, queues, ingress).await;
    pmd.post(move |w| w.set_classes(device, classes));
}

fn delete_flows(w: &mut MainPmd, id: BridgeId) {
    let now = w.now();
    w.switch.with_tables(id, |b| {
        if let Err(e) = b.flow_mod(&FlowMod::delete_all(), now) {
            tracing::error!(target: "bridge", "{}: flows are not deleted: {e}", b.name);
        }
    });
}

/// Adds the flow `priority=0 actions=NORMAL` of a bridge that switches by itself, or removes it. A bridge with other
/// flows keeps them and gets none.
fn set_standalone(w: &mut MainPmd, id: BridgeId, standalone: bool) {
    let now = w.now();
    let Some(b) = w.switch.bridge_mut(id) else { return };
    let normal = vec![Action::Output { port: PortNo::NORMAL, max_len: 0 }];
    let is_default = |r: &std::sync::Arc<switch::classifier::Rule>| {
        (r.table, r.priority, r.cookie) == (TableId::FIRST, 0, 0) && *r.actions == *normal && r.matches == Match::new()
    };
    let change = if standalone && b.flows().next().is_none() {
        FlowMod::add(TableId::FIRST, 0, 0, Match::new(), normal)
    } else if !standalone && b.flows().any(is_default) {
        FlowMod::delete_strict(TableId::FIRST, 0, Match::new())
    } else {
        return;
    };
    if let Err(e) = b.flow_mod(&change, now) {
        tracing::error!(target: "bridge", "{}: the default flow: {e}", b.name);
    }
    if standalone {
        w.bfd.tables_ready(id, now);
    }
}

/// Whether a port whose kind changes from `a` to `b` can go on with the same device and number.
fn same_device(a: &Result<Kind, PortError>, b: &Result<Kind, PortError>) -> bool {
    match (a, b) {
        (Ok(Kind::Tunnel(_)), Ok(Kind::Tunnel(_))) | (Ok(Kind::Patch(_)), Ok(Kind::Patch(_))) => true,
        (a, b) => a == b,
    }
}

/// The ports that have to be made anew to change numbers: a port whose requested number is free, or is held by a port
/// that did not request it, and that other port. A gateway has a port for each chassis, so each is looked at once.
fn renumbered(b: &RunningBridge, spec: &BridgeSpec) -> BTreeSet<String> {
    let requests = spec.ports.iter().filter_map(|w| Some((w.name.as_str(), PortNo(w.request?))));
    let asked: BTreeMap<&str, PortNo> = requests.collect();
    let holders: BTreeMap<PortNo, &str> = b.ports.iter().filter_map(|(name, p)| Some((p.no?, name.as_str()))).collect();
    let mut out = BTreeSet::new();
    for (name, p) in &b.ports {
        let (Some(number), Some(wanted)) = (p.no.filter(|n| *n != PortNo::LOCAL), asked.get(name.as_str())) else {
            continue;
        };
        let holder = holders.get(wanted);
        if number != *wanted && holder.is_none_or(|h| asked.get(h) != Some(wanted)) {
            out.insert(name.clone());
            out.extend(holder.map(|h| (*h).to_owned()));
        }
    }
    out
}

fn link_changed(p: &RunningPort, host: &KernelSnapshot) -> bool {
    let link = host.links.get(&p.spec.name).map(|l| l.index);
    match p.spec.kind {
        Ok(Kind::System) if p.no.is_some() => p.ifindex.is_some() && link != p.ifindex,
        _ => p.wait_for_link && link.is_some() || p.presence.is_due(host),
    }
}

/// The ports of a rapid spanning tree, by their numbers.
fn rapid_ports(b: &RunningBridge, mirrored: impl Fn(&PortSpec) -> bool) -> Vec<RstpPort> {
    let with = b.ports.values().filter(|p| !mirrored(&p.spec));
    let of = |p: &RunningPort| {
        let s = p.spec.rstp?;
        Some(RstpPort {
            port: p.no?,
            name: p.spec.name.clone(),
            mac: p.mac,
            number: s.number,
            priority: s.priority,
            cost: s.cost,
            edge: (s.admin_edge, s.auto_edge),
            check: s.check,
        })
    };
    let mut ports: Vec<RstpPort> = with.filter_map(of).collect();
    ports.sort_by_key(|p| p.port);
    ports
}

/// Changes a running port in place.
fn change_port(w: &mut MainPmd, id: BridgeId, no: PortNo, old: &PortSpec, new: &PortSpec) {
    let now = w.now();
    if new.bfd != old.bfd {
        w.bfd.set(id, no, new.bfd, now);
        w.update_liveness();
    }
    if new.cfm != old.cfm {
        let received = w.switch.bridge(id).and_then(|b| b.ports.get(&no)).map_or(0, |p| p.stats[0]);
        w.cfm.set(id, no, new.cfm, received, now);
        w.update_liveness();
    }
    if new.lldp != old.lldp {
        let mac = w.switch.bridge(id).and_then(|b| b.ports.get(&no)).map_or(packet::Mac::ZERO, |p| p.hw_addr);
        w.lldp.set(id, no, new.lldp.clone(), mac, now);
    }
    let Some(b) = w.switch.bridge_mut(id) else { return };
    if new.vlan != old.vlan {
        b.forget_port(no);
    }
    let Some(p) = b.ports.get_mut(&no) else { return };
    (p.vlan, p.priority_tags, p.protected) = (new.vlan.clone(), new.priority_tags, new.protected);
    (p.bfd_packets, p.ccm_packets) = (new.bfd.map(|b| b.packets()), new.cfm.map(|c| c.packets()));
    p.lldp = new.lldp.is_some();
    match &new.kind {
        Ok(Kind::Tunnel(t)) => p.kind = PortKind::Tunnel(t.clone()),
        Ok(Kind::Patch(peer)) => p.kind = PortKind::Patch(peer.clone()),
        _ => {}
    }
    b.epoch += 1;
    if new.kind != old.kind {
        w.switch.number_tunnels();
    }
}

/// The number for a new port: the requested one, the one that its row holds, or the next free one.
fn free_number(b: &mut RunningBridge, spec: &PortSpec) -> Option<PortNo> {
    if spec.name == b.spec.name {
        return Some(PortNo::LOCAL);
    }
    let taken = |n: u16| b.ports.values().any(|p| p.no == Some(PortNo(n)));
    if let Some(number) = [spec.request, spec.last].into_iter().flatten().find(|n| !taken(*n)) {
        return Some(PortNo(number));
    }
    let number = (b.next..0xff00).chain(1..b.next).find(|n| !taken(*n))?;
    b.next = number.saturating_add(1).min(0xfeff);
    Some(PortNo(number))
}

/// Whether it has a controller that is to tell it what to do.
fn has_primary(spec: &BridgeSpec) -> bool {
    spec.controllers.iter().any(|c| !c.service)
}
