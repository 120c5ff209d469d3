//! The variables of a port (IEEE 802.1D-2004 sections 17.17 and 17.19).

use super::{Role, Times, Vector};
use packet::bpdu::Bpdu;
use std::time::Duration;

/// Where a port's information is from (17.19.10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InfoIs {
    /// Its link is down.
    Disabled,
    /// It was too old.
    Aged,
    /// It is this bridge's own.
    Mine,
    /// A message.
    Received,
}

/// What the machine of port protocol migration does (17.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Migration {
    CheckingRstp,
    SelectingStp,
    Sensing,
}

/// What the machine of topology changes does (17.31).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Topology {
    Inactive,
    Learning,
    Active,
}

/// A port.
#[derive(Clone, Debug)]
pub struct RapidPort {
    /// Priority, then the number.
    pub id: u16,
    /// What the way through it costs.
    pub path_cost: u32,
    /// Its role.
    pub role: Role,
    /// Packets' addresses are learned.
    pub learning: bool,
    /// Packets are forwarded.
    pub forwarding: bool,
    /// Messages sent, received, and received in error.
    pub counts: [u64; 3],
    /// When counting began.
    pub since: Duration,
    /// What it tells others.
    pub designated: Vector,
    /// What is known of the way to the root there.
    pub priority: Vector,
    /// Its link is up.
    pub enabled: bool,
    pub(super) admin_edge: bool,
    pub(super) auto_edge: bool,
    pub(super) oper_edge: bool,
    pub(super) designated_times: Times,
    pub(super) times: Times,
    pub(super) info_is: InfoIs,
    pub(super) migration: Migration,
    pub(super) topology: Topology,
    /// What was received and not yet taken (rcvdMsg).
    pub(super) message: Option<Bpdu>,
    pub(super) selected_role: Role,
    pub(super) selected: bool,
    pub(super) reselect: bool,
    pub(super) updt_info: bool,
    pub(super) agree: bool,
    pub(super) agreed: bool,
    pub(super) proposed: bool,
    pub(super) proposing: bool,
    pub(super) disputed: bool,
    pub(super) sync: bool,
    pub(super) synced: bool,
    pub(super) re_root: bool,
    pub(super) learn: bool,
    pub(super) forward: bool,
    pub(super) new_info: bool,
    pub(super) send_rstp: bool,
    pub(super) rcvd_rstp: bool,
    pub(super) rcvd_stp: bool,
    pub(super) mcheck: bool,
    pub(super) rcvd_tc: bool,
    pub(super) rcvd_tcn: bool,
    pub(super) rcvd_tc_ack: bool,
    pub(super) tc_ack: bool,
    pub(super) tc_prop: bool,
    pub(super) tx_count: u32,
    pub(super) edge_delay_while: u32,
    pub(super) fd_while: u32,
    pub(super) hello_when: u32,
    pub(super) mdelay_while: u32,
    pub(super) rb_while: u32,
    pub(super) rcvd_info_while: u32,
    pub(super) rr_while: u32,
    pub(super) tc_while: u32,
}

impl RapidPort {
    /// A port whose link is down. `edge`: it leads to no bridge, and whether that may be found out.
    pub(super) fn new(id: u16, cost: u32, edge: (bool, bool), rapid: bool, times: Times, now: Duration) -> RapidPort {
        RapidPort {
            id,
            path_cost: cost,
            role: Role::Disabled,
            learning: false,
            forwarding: false,
            counts: [0; 3],
            since: now,
            designated: Vector::default(),
            priority: Vector::default(),
            enabled: false,
            admin_edge: edge.0,
            auto_edge: edge.1,
            oper_edge: edge.0,
            designated_times: times,
            times,
            info_is: InfoIs::Disabled,
            migration: Migration::CheckingRstp,
            topology: Topology::Inactive,
            message: None,
            selected_role: Role::Disabled,
            selected: false,
            reselect: true,
            updt_info: false,
            agree: false,
            agreed: false,
            proposed: false,
            proposing: false,
            disputed: false,
            sync: false,
            synced: true,
            re_root: false,
            learn: false,
            forward: false,
            new_info: true,
            send_rstp: rapid,
            rcvd_rstp: false,
            rcvd_stp: false,
            mcheck: false,
            rcvd_tc: false,
            rcvd_tcn: false,
            rcvd_tc_ack: false,
            tc_ack: false,
            tc_prop: false,
            tx_count: 0,
            edge_delay_while: super::MIGRATE_TIME,
            fd_while: times.max_age,
            hello_when: super::HELLO_TIME,
            mdelay_while: super::MIGRATE_TIME,
            rb_while: 0,
            rcvd_info_while: 0,
            rr_while: 0,
            tc_while: 0,
        }
    }

    /// A second has passed (17.22).
    pub(super) fn tick(&mut self) {
        for t in [
            &mut self.tx_count,
            &mut self.edge_delay_while,
            &mut self.fd_while,
            &mut self.hello_when,
            &mut self.mdelay_while,
            &mut self.rb_while,
            &mut self.rcvd_info_while,
            &mut self.rr_while,
            &mut self.tc_while,
        ] {
            *t = t.saturating_sub(1);
        }
    }

    /// How long it stays in a state: where others speak the rapid protocol, no longer than a hello (17.20.6).
    pub(super) fn forward_delay(&self) -> u32 {
        if self.send_rstp { self.designated_times.hello } else { self.designated_times.forward_delay }
    }

    /// Whether it is in the part that was chosen for it.
    pub(super) fn settled(&self) -> bool {
        self.selected && !self.updt_info
    }

    /// Starts to tell of a change of the topology, unless that is done already (17.21.7).
    pub(super) fn new_tc_while(&mut self) {
        if self.tc_while == 0 {
            let t = &self.designated_times;
            self.tc_while = if self.send_rstp { t.hello + 1 } else { t.max_age + t.forward_delay };
            self.new_info |= self.send_rstp;
        }
    }
}
