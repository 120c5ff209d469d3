//! Port role selection (IEEE 802.1D-2004 sections 17.21.25 and 17.28).

use super::port::InfoIs;
use super::{Rapid802, Role, Times, Vector, own_times};

/// The part of a bridge's number that is its address.
const ADDRESS: u64 = 0xffff_ffff_ffff;

impl Rapid802 {
    /// Chooses roles, if something has changed; whether it has.
    pub(super) fn select_roles(&mut self) -> bool {
        if !self.ports.iter().any(|p| p.reselect) {
            return false;
        }
        self.ports.iter_mut().for_each(|p| p.reselect = false);
        self.update_roles();
        self.ports.iter_mut().for_each(|p| p.selected = true);
        true
    }

    /// The best of this bridge's own vector and those that ports have received.
    fn update_roles(&mut self) {
        let own = self.settings.id;
        let mut best = ((Vector { root: own, cost: 0, bridge: own, port: 0 }, 0), own_times(&self.settings), None);
        for (i, p) in self.ports.iter().enumerate() {
            // A vector of this bridge's own leads nowhere.
            if p.info_is != InfoIs::Received || p.priority.bridge & ADDRESS == own & ADDRESS {
                continue;
            }
            let by = (Vector { cost: p.priority.cost.saturating_add(p.path_cost), ..p.priority }, p.id);
            if by < best.0 {
                best = (by, Times { age: p.times.age + 1, ..p.times }, Some(i));
            }
        }
        let ((root, _), times, root_port) = best;
        (self.root, self.root_times, self.root_port) = (root, times, root_port);
        for (i, p) in self.ports.iter_mut().enumerate() {
            p.designated = Vector { root: root.root, cost: root.cost, bridge: own, port: p.id };
            p.designated_times = Times { hello: super::HELLO_TIME, ..times };
            (p.selected_role, p.updt_info) = match p.info_is {
                InfoIs::Disabled => (Role::Disabled, false),
                InfoIs::Aged => (Role::Designated, true),
                InfoIs::Mine => {
                    let same = (p.priority, p.times) == (p.designated, p.designated_times);
                    (Role::Designated, !same)
                }
                InfoIs::Received if root_port == Some(i) => (Role::Root, false),
                InfoIs::Received if p.designated < p.priority => (Role::Designated, true),
                InfoIs::Received if p.priority.bridge & ADDRESS == own & ADDRESS => (Role::Backup, false),
                InfoIs::Received => (Role::Alternate, false),
            };
        }
    }
}
