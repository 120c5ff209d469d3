//! Dynamic routing: what rows ask for goes to the kernel, what the kernel's tables hold into rows.

use super::Controller;
use crate::input::model::Input;
use crate::input::settings::Settings;
use crate::plan::Plan;
use crate::routing::kernel::Kernel;
use crate::routing::rows::Port;
use crate::routing::{Filter, Learner, Wish, learned, wish};
use crate::units::binding;
use ovn_schema::{Str, sb};
use ovsdb_rs::client::Transaction;
use std::collections::BTreeSet;

/// Dynamic routing's part of the controller's state.
#[derive(Default)]
pub(super) struct Routing {
    /// None while no router exchanges routes.
    kernel: Option<Kernel>,
    /// What the kernel's tables are to hold, as that was said last.
    wish: Wish,
    /// The ports that learn here.
    learners: Vec<Learner>,
    /// What was said in the log and still holds.
    said: BTreeSet<String>,
    /// How often learners or tables changed.
    version: u64,
}

impl Routing {
    /// Waits until the kernel's tables hold something else.
    pub(super) async fn changed(&mut self) {
        match &mut self.kernel {
            Some(k) => k.changed().await,
            None => std::future::pending().await,
        }
        self.version += 1;
    }

    /// Takes what was learned here out of the southbound database.
    pub(super) fn forget(&self, input: &Input, txn: &mut Transaction) {
        let here =
            |r: &sb::LearnedRoute| self.learners.iter().any(|l| (l.datapath, l.port) == (r.datapath, r.logical_port));
        for (id, _) in input.sb.learned_route.iter().filter(|(_, r)| here(r)) {
            txn.delete("Learned_Route", *id);
        }
    }

    /// Takes away what was put into the kernel.
    pub(super) async fn clean_up(&mut self) {
        if let Some(k) = self.kernel.take() {
            k.clean_up().await;
        }
    }

    fn say(&mut self, problems: Vec<String>) {
        for text in problems.iter().filter(|t| !self.said.contains(*t)) {
            tracing::warn!(target: "route_exchange", kind = daemon::kind(text), "{text}");
        }
        self.said = problems.into_iter().collect();
    }
}

impl Controller {
    /// Says to the kernel's side what its tables are to hold now.
    pub(super) fn exchange_routes(&mut self, s: &Settings) {
        let state = Some((self.presence.versions.routes, self.local_updates));
        if self.in_line.routes == state {
            return;
        }
        let wanted = wish::wanted(&self.presence.exchanges, &self.presence.advertised, |p| self.filter(p, s));
        let routing = &mut self.routing;
        if routing.kernel.is_none() && !wanted.wish.is_empty() {
            match Kernel::start() {
                Ok(k) => routing.kernel = Some(k),
                // The next look tries again.
                Err(e) => return routing.say(vec![format!("no netlink socket for dynamic routing: {e}")]),
            }
        }
        if routing.learners != wanted.learners {
            routing.learners = wanted.learners;
            routing.version += 1;
        }
        routing.say(wanted.problems);
        if let Some(k) = routing.kernel.as_ref().filter(|_| routing.wish != wanted.wish) {
            k.wish(wanted.wish.clone());
            routing.wish = wanted.wish;
        }
        self.in_line.routes = state;
    }

    /// By which interfaces a port learns: by that of a named port, as the operator maps it or as it is plugged in here; by the other end
    /// of the link to where routing protocols are redirected, if that is on this machine; or by all.
    fn filter(&self, p: &Port, s: &Settings) -> Filter {
        if let Some(name) = &p.by {
            let mapped = s.route_interfaces.get(name).cloned();
            let plugged = || self.plugged(name).map(|i| i.name.clone());
            return mapped.or_else(plugged).map_or(Filter::Absent, Filter::Only);
        }
        let far = p.redirect.as_ref().and_then(|name| self.plugged(name)).and_then(|i| i.status.get("peer_ifindex"));
        let far = far.and_then(|index| nix::net::if_::if_indextoname(index.parse().ok()?).ok());
        far.and_then(|name| name.to_str().ok().map(Str::from)).map_or(Filter::Any, Filter::Only)
    }

    /// The interface of a port that is bound here.
    fn plugged(&self, port: &Str) -> Option<&ovn_schema::ovs::Interface> {
        let (_, p) = self.input.port(port).filter(|(_, p)| binding::is_bound(p, self.input.local.chassis))?;
        let vif = self.input.local.interface(&p.logical_port)?;
        self.ovs.db.interface.get(&vif.row).map(|i| &**i)
    }

    /// Puts into the plan what was learned.
    pub(super) fn write_learned_routes(&mut self, plan: &mut Plan) {
        let Some(k) = &self.routing.kernel else { return };
        let version = self.input.version(ovn_schema::sb::TableId::LearnedRoute);
        let (input, routing) = (&self.input, &self.routing);
        self.in_line.learned_routes.unless((routing.version, version), plan, |plan| {
            learned::write(input, &routing.learners, &k.tables(), plan);
        });
    }
}
