//! Commands of operators that the control plane carries out.

use super::Reconciler;
use super::underlay::OwnRoute;
use std::net::IpAddr;
use switch::RouteRule;
use tokio::sync::oneshot;

/// A command.
#[derive(Debug)]
pub enum Request {
    /// Connect a bridge's controllers anew, or those of all bridges.
    Reconnect(Option<String>),
    /// Add a route for tunnels.
    AddRoute(OwnRoute),
    /// Delete such a route: prefix, its length, mark, table.
    DeleteRoute((IpAddr, u8, u32, u32)),
    /// Add a rule that names a table of routes, of this priority if there is one; that of the rule does not count.
    AddRule(Option<u32>, RouteRule),
    /// Delete such a rule.
    DeleteRule(Option<u32>, RouteRule),
    /// Give a dummy an address, in a network with this length of its prefix.
    AddAddress(String, IpAddr, u8),
    /// Do what is due by the time, and answer when that is done.
    Tick,
    /// Take a dummy up or down, or all of them.
    SetAdminState(Option<String>, bool),
}

/// A command, and where its answer goes.
pub type OperatorRequest = (Request, oneshot::Sender<Result<String, String>>);

impl Reconciler {
    /// Carries a command out; true if the routes of tunnels or links have changed. The second is its answer.
    pub(super) fn serve_request(&mut self, ask: Request) -> (bool, Result<String, String>) {
        let routes = !matches!(ask, Request::Reconnect(_) | Request::Tick);
        let done = match ask {
            Request::Reconnect(bridge) => self.reconnect(bridge.as_deref()),
            Request::AddRoute(r) => self.add_route(r),
            Request::DeleteRoute(key) => self.delete_route(key),
            Request::AddRule(priority, rule) => self.add_rule(priority, rule),
            Request::DeleteRule(priority, rule) => self.delete_rule(priority, &rule),
            Request::AddAddress(name, address, len) => self.add_address(&name, address, len),
            // The loop does it.
            Request::Tick => Ok(String::new()),
            Request::SetAdminState(name, up) => self.set_admin_state(name.as_deref(), up),
        };
        (routes, done)
    }

    fn add_address(&self, name: &str, address: IpAddr, len: u8) -> Result<String, String> {
        self.test_bed.dummies.get(name).ok_or("Unknown Dummy Interface")?.add_address(address, len);
        Ok("OK".into())
    }

    fn set_admin_state(&self, name: Option<&str>, up: bool) -> Result<String, String> {
        let dummies = &self.test_bed.dummies;
        match name {
            Some(name) => dummies.get(name).ok_or("Unknown Dummy Interface")?.set_up(up),
            None => dummies.all().iter().for_each(|(_, d)| d.set_up(up)),
        }
        Ok("OK".into())
    }

    fn reconnect(&mut self, bridge: Option<&str>) -> Result<String, String> {
        if bridge.is_some_and(|name| !self.bridges.contains_key(name)) {
            return Err("Unknown bridge".into());
        }
        let names: Vec<String> = self.bridges.keys().filter(|n| bridge.is_none_or(|b| b == *n)).cloned().collect();
        for name in names {
            let Some(session) = self.bridges.get(&name).map(|b| self.session(b)) else { continue };
            if let Some(b) = self.bridges.get_mut(&name) {
                b.controllers.reconnect(&session);
            }
        }
        Ok(String::new())
    }
}
