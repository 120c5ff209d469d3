//! The state machines of a port (IEEE 802.1D-2004 sections 17.24 to 17.31). Each looks at its conditions, does what is due
//! and says whether anything was; [`Rapid802::settle`] runs them until nothing is.

use super::port::{InfoIs, Migration, RapidPort, Topology};
use super::{HELLO_TIME, MIGRATE_TIME, Rapid802, RapidOutput, Role, Times, Vector};
use packet::bpdu::{Bpdu, Config, Rapid, Role as Told};
use std::time::Duration;

/// What a message says beside the port's own information (17.21.8).
enum Heard {
    SuperiorDesignated(Vector, Times),
    RepeatedDesignated,
    InferiorDesignated,
    InferiorRootAlternate,
    Other,
}

impl Rapid802 {
    /// One step of each machine of a port.
    pub(super) fn step(&mut self, i: usize) -> bool {
        let rapid = self.settings.rapid();
        let Some(p) = self.ports.get_mut(i) else { return false };
        let mut changed = migrate(p, rapid);
        changed |= detect_bridge(p);
        changed |= self.take_information(i);
        changed |= self.change_role(i);
        changed |= self.ports.get_mut(i).is_some_and(change_state);
        changed |= self.follow_topology(i);
        changed | self.transmit(i)
    }

    /// Port information (17.27).
    fn take_information(&mut self, i: usize) -> bool {
        let rapid = self.settings.rapid();
        let Some(p) = self.ports.get_mut(i) else { return false };
        if !p.enabled && p.info_is != InfoIs::Disabled {
            (p.proposing, p.proposed, p.agree, p.agreed, p.message) = (false, false, false, false, None);
            (p.rcvd_info_while, p.info_is, p.reselect, p.selected) = (0, InfoIs::Disabled, true, false);
            return true;
        }
        if p.info_is == InfoIs::Disabled {
            p.message = None;
            if p.enabled {
                (p.info_is, p.reselect, p.selected) = (InfoIs::Aged, true, false);
            }
            return p.enabled;
        }
        if p.selected && p.updt_info {
            (p.proposing, p.proposed) = (false, false);
            // Information of this bridge's own is as good as what the neighbour has agreed to, or better.
            p.agreed &= p.info_is == InfoIs::Mine && p.designated <= p.priority;
            p.synced &= p.agreed;
            (p.priority, p.times) = (p.designated, p.designated_times);
            (p.updt_info, p.info_is, p.new_info) = (false, InfoIs::Mine, true);
            return true;
        }
        if p.updt_info {
            return false;
        }
        let Some(m) = p.message.take() else {
            let aged = p.info_is == InfoIs::Received && p.rcvd_info_while == 0;
            if aged {
                (p.info_is, p.reselect, p.selected) = (InfoIs::Aged, true, false);
            }
            return aged;
        };
        receive(p, &m, rapid);
        true
    }

    /// Port role transitions (17.29).
    fn change_role(&mut self, i: usize) -> bool {
        let others = |f: &dyn Fn(&RapidPort) -> bool| self.ports.iter().enumerate().all(|(j, p)| j == i || f(p));
        let re_rooted = others(&|p| p.rr_while == 0);
        let synced = |p: &RapidPort| p.selected && p.role == p.selected_role && (p.role == Role::Root || p.synced);
        let all_synced = self.ports.iter().all(synced);
        let rapid = self.settings.rapid();
        let Some(p) = self.ports.get_mut(i).filter(|p| p.settled()) else { return false };
        if p.role != p.selected_role {
            p.role = p.selected_role;
            match p.role {
                Role::Root => p.rr_while = p.designated_times.forward_delay,
                Role::Designated => {}
                Role::Disabled | Role::Alternate | Role::Backup => (p.learn, p.forward) = (false, false),
            }
            return true;
        }
        match p.role {
            Role::Disabled => block(p, p.designated_times.max_age),
            Role::Alternate | Role::Backup => {
                if block(p, p.forward_delay()) {
                    return true;
                }
                if p.role == Role::Backup && p.rb_while != 2 * p.designated_times.hello {
                    p.rb_while = 2 * p.designated_times.hello;
                    return true;
                }
                if p.learning || p.forwarding {
                    return false;
                }
                self.agree(i, all_synced)
            }
            Role::Root => {
                if self.agree(i, all_synced) {
                    return true;
                }
                let Some(p) = self.ports.get_mut(i) else { return false };
                // The time does not pass while the port leads to the root.
                p.rr_while = p.designated_times.forward_delay;
                let at_once = re_rooted && p.rb_while == 0 && rapid;
                if !p.forward && !p.re_root {
                    self.ports.iter_mut().for_each(|p| p.re_root = true);
                } else if p.re_root && p.forward {
                    p.re_root = false;
                } else if (p.fd_while == 0 || at_once) && !p.learn {
                    (p.fd_while, p.learn) = (p.forward_delay(), true);
                } else if (p.fd_while == 0 || at_once) && p.learn && !p.forward {
                    (p.fd_while, p.forward) = (0, true);
                } else {
                    return false;
                }
                true
            }
            Role::Designated => designate(p),
        }
    }

    /// Answers a proposal: other ports discard first, then this bridge agrees (17.29.2, 17.29.4).
    fn agree(&mut self, i: usize, all_synced: bool) -> bool {
        let Some(p) = self.ports.get_mut(i) else { return false };
        if p.proposed && !p.agree {
            p.proposed = false;
            self.ports.iter_mut().for_each(|p| p.sync = true);
            return true;
        }
        if all_synced && !p.agree || p.proposed && p.agree {
            (p.proposed, p.sync, p.agree, p.new_info) = (false, false, true, true);
            return true;
        }
        false
    }

    /// Topology changes (17.31).
    fn follow_topology(&mut self, i: usize) -> bool {
        let Some(p) = self.ports.get_mut(i) else { return false };
        let active = matches!(p.role, Role::Root | Role::Designated);
        match p.topology {
            Topology::Inactive => {
                let learns = p.learn;
                if learns {
                    p.topology = Topology::Learning;
                    (p.rcvd_tc, p.rcvd_tcn, p.rcvd_tc_ack, p.tc_prop) = (false, false, false, false);
                }
                learns
            }
            Topology::Learning => {
                if active && p.forward && !p.oper_edge {
                    p.topology = Topology::Active;
                    p.new_tc_while();
                    p.new_info = true;
                    self.propagate(i);
                    return true;
                }
                if p.rcvd_tc || p.rcvd_tcn || p.rcvd_tc_ack || p.tc_prop {
                    (p.rcvd_tc, p.rcvd_tcn, p.rcvd_tc_ack, p.tc_prop) = (false, false, false, false);
                    return true;
                }
                let ends = !active && !p.learn && !p.learning;
                if ends {
                    p.topology = Topology::Inactive;
                    (p.tc_while, p.tc_ack) = (0, false);
                    self.out.push(RapidOutput::Flush(i));
                }
                ends
            }
            Topology::Active => {
                if !active || p.oper_edge {
                    p.topology = Topology::Learning;
                    (p.rcvd_tc, p.rcvd_tcn, p.rcvd_tc_ack, p.tc_prop) = (false, false, false, false);
                } else if p.rcvd_tcn || p.rcvd_tc {
                    if p.rcvd_tcn {
                        p.new_tc_while();
                        p.tc_ack |= p.role == Role::Designated;
                    }
                    (p.rcvd_tcn, p.rcvd_tc) = (false, false);
                    self.propagate(i);
                } else if p.tc_prop {
                    p.new_tc_while();
                    p.tc_prop = false;
                    self.out.push(RapidOutput::Flush(i));
                } else if p.rcvd_tc_ack {
                    (p.tc_while, p.rcvd_tc_ack) = (0, false);
                } else {
                    return false;
                }
                true
            }
        }
    }

    /// All other ports tell of the change (17.21.18).
    fn propagate(&mut self, i: usize) {
        let others = self.ports.iter_mut().enumerate().filter(|(j, _)| *j != i);
        others.for_each(|(_, p)| p.tc_prop = true);
    }

    /// Port transmit (17.26).
    fn transmit(&mut self, i: usize) -> bool {
        let hold = self.settings.hold_count;
        let Some(p) = self.ports.get_mut(i).filter(|p| p.enabled && p.settled()) else { return false };
        if p.hello_when == 0 {
            p.new_info |= p.role == Role::Designated || p.role == Role::Root && p.tc_while != 0;
            p.hello_when = HELLO_TIME;
            return true;
        }
        let speaks = p.send_rstp || matches!(p.role, Role::Root | Role::Designated);
        if !p.new_info || p.tx_count >= hold || !speaks || p.role == Role::Disabled {
            return false;
        }
        p.tx_count += 1;
        p.counts[0] += 1;
        let p = p.clone();
        self.out.push(RapidOutput::Send(i, self.message(&p)));
        if let Some(p) = self.ports.get_mut(i) {
            (p.new_info, p.hello_when) = (false, HELLO_TIME);
            p.tc_ack &= !p.send_rstp && p.role == Role::Root;
        }
        true
    }
}

/// Port protocol migration (17.24).
fn migrate(p: &mut RapidPort, rapid: bool) -> bool {
    match p.migration {
        Migration::CheckingRstp => {
            let waits = p.mdelay_while != MIGRATE_TIME && !p.enabled;
            if p.mdelay_while == 0 && p.enabled {
                p.migration = Migration::Sensing;
                (p.rcvd_rstp, p.rcvd_stp) = (false, false);
                return true;
            }
            if waits || p.mcheck {
                p.mcheck = false;
                (p.send_rstp, p.mdelay_while) = (rapid, MIGRATE_TIME);
            }
            false
        }
        Migration::SelectingStp => {
            let ends = p.mdelay_while == 0 || !p.enabled || p.mcheck;
            if ends {
                p.migration = Migration::Sensing;
                (p.rcvd_rstp, p.rcvd_stp) = (false, false);
            }
            ends
        }
        Migration::Sensing => {
            if !p.enabled || p.mcheck || rapid && !p.send_rstp && p.rcvd_rstp {
                p.migration = Migration::CheckingRstp;
                (p.mcheck, p.send_rstp, p.mdelay_while) = (false, rapid, MIGRATE_TIME);
                return true;
            }
            let older = p.send_rstp && p.rcvd_stp;
            if older {
                p.migration = Migration::SelectingStp;
                (p.send_rstp, p.mdelay_while) = (false, MIGRATE_TIME);
            }
            older
        }
    }
}

/// Bridge detection (17.25).
fn detect_bridge(p: &mut RapidPort) -> bool {
    let edge = match p.oper_edge {
        true => p.enabled || p.admin_edge,
        false => {
            let alone = p.edge_delay_while == 0 && p.auto_edge && p.send_rstp && p.proposing;
            !p.enabled && p.admin_edge || alone
        }
    };
    std::mem::replace(&mut p.oper_edge, edge) != edge
}

/// Port state transitions (17.30).
fn change_state(p: &mut RapidPort) -> bool {
    let wanted = (p.learn, p.learn && p.forward);
    let changed = (p.learning, p.forwarding) != wanted;
    (p.learning, p.forwarding) = wanted;
    changed
}

/// A port that discards (17.29.1, 17.29.4), with what its timer is kept at.
fn block(p: &mut RapidPort, delay: u32) -> bool {
    if p.learning || p.forwarding {
        return false;
    }
    p.fd_while = delay;
    let changed = !p.synced || p.sync || p.re_root || p.rr_while != 0;
    (p.synced, p.sync, p.re_root, p.rr_while) = (true, false, false, 0);
    changed
}

/// A designated port (17.29.3).
fn designate(p: &mut RapidPort) -> bool {
    let may = (p.fd_while == 0 || p.agreed || p.oper_edge) && (p.rr_while == 0 || !p.re_root) && !p.sync;
    let stops = p.sync && !p.synced || p.re_root && p.rr_while != 0 || p.disputed;
    if !p.forward && !p.agreed && !p.proposing && !p.oper_edge {
        (p.proposing, p.new_info) = (true, true);
        // All links are taken for point-to-point ones.
        p.edge_delay_while = MIGRATE_TIME;
    } else if !p.synced && (!p.learning && !p.forwarding || p.agreed || p.oper_edge) || p.sync && p.synced {
        (p.rr_while, p.synced, p.sync) = (0, true, false);
    } else if p.rr_while == 0 && p.re_root {
        p.re_root = false;
    } else if stops && !p.oper_edge && (p.learn || p.forward) {
        (p.learn, p.forward, p.disputed) = (false, false, false);
        p.fd_while = p.designated_times.forward_delay;
    } else if may && !p.learn {
        (p.learn, p.fd_while) = (true, p.forward_delay());
    } else if may && p.learn && !p.forward {
        (p.forward, p.fd_while, p.agreed) = (true, 0, p.send_rstp);
    } else {
        return false;
    }
    true
}

/// What a message says of the way to the root, and of its sender's port.
fn read(m: &Bpdu) -> Option<(&Config, Told, Option<&Rapid>)> {
    match m {
        Bpdu::Notification => None,
        // A configuration message is a designated port's (17.21.8).
        Bpdu::Config(c) => Some((c, Told::Designated, None)),
        Bpdu::Rapid(r) => Some((&r.config, r.role, Some(r))),
    }
}

/// Compares a message with what the port knows (17.21.8).
fn compare(p: &RapidPort, c: &Config, role: Told) -> Heard {
    let seconds = |d: Duration| u32::try_from(d.as_secs()).unwrap_or(u32::MAX);
    let v = Vector { root: c.root, cost: c.cost, bridge: c.bridge, port: c.port };
    let t = Times {
        age: seconds(c.age),
        max_age: seconds(c.max_age),
        forward_delay: seconds(c.forward_delay),
        hello: seconds(c.hello).max(1),
    };
    match role {
        Told::Designated => {
            let same = (v.bridge, v.port) == (p.priority.bridge, p.priority.port);
            if v < p.priority || same && (v, t) != (p.priority, p.times) {
                Heard::SuperiorDesignated(v, t)
            } else if v == p.priority && p.info_is == InfoIs::Received {
                Heard::RepeatedDesignated
            } else if v > p.priority {
                Heard::InferiorDesignated
            } else {
                Heard::Other
            }
        }
        Told::Root | Told::Alternate if v >= p.priority => Heard::InferiorRootAlternate,
        Told::Root | Told::Alternate | Told::Unknown => Heard::Other,
    }
}

/// Takes a message (17.27).
fn receive(p: &mut RapidPort, m: &Bpdu, rapid: bool) {
    let Some((c, role, r)) = read(m) else {
        p.rcvd_tcn = true;
        return;
    };
    let changes = |p: &mut RapidPort| {
        p.rcvd_tc |= c.change;
        p.rcvd_tc_ack |= c.acknowledged;
    };
    let lives = |p: &mut RapidPort| {
        p.rcvd_info_while = if p.times.age < p.times.max_age { 3 * p.times.hello } else { 0 };
    };
    match compare(p, c, role) {
        Heard::SuperiorDesignated(v, t) => {
            (p.agreed, p.proposing) = (false, false);
            p.proposed |= r.is_some_and(|r| r.proposal);
            changes(p);
            // What was agreed to is as good as this, or better.
            p.agree &= p.info_is == InfoIs::Received && p.priority >= v;
            (p.priority, p.times) = (v, t);
            lives(p);
            (p.info_is, p.reselect, p.selected) = (InfoIs::Received, true, false);
        }
        Heard::RepeatedDesignated => {
            p.proposed |= r.is_some_and(|r| r.proposal);
            changes(p);
            lives(p);
        }
        Heard::InferiorDesignated => {
            if r.is_some_and(|r| r.learning) {
                (p.disputed, p.agreed) = (true, false);
            }
        }
        Heard::InferiorRootAlternate => {
            p.agreed = rapid && r.is_some_and(|r| r.agreement);
            p.proposing &= !p.agreed;
            changes(p);
        }
        Heard::Other => {}
    }
}
