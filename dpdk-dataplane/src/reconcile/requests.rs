//! Commands of operators that the control plane carries out.

use super::Reconciler;
use super::underlay::OwnRoute;
use std::net::IpAddr;
use tokio::sync::oneshot;

/// A command.
#[derive(Debug)]
pub enum Request {
    /// Connect a bridge's controllers anew, or those of all bridges.
    Reconnect(Option<String>),
    /// Add a route for tunnels.
    AddRoute(OwnRoute),
    /// Delete such a route.
    DeleteRoute(IpAddr, u8),
}

/// A command, and where its answer goes.
pub type OperatorRequest = (Request, oneshot::Sender<Result<String, String>>);

impl Reconciler {
    /// Carries a command out; true if the routes of tunnels have changed.
    pub(super) fn serve_request(&mut self, (ask, answer): OperatorRequest) -> bool {
        let routes = !matches!(ask, Request::Reconnect(_));
        let done = match ask {
            Request::Reconnect(bridge) => self.reconnect(bridge.as_deref()),
            Request::AddRoute(r) => self.add_route(r),
            Request::DeleteRoute(prefix, len) => self.delete_route(prefix, len),
        };
        // The one who asked may have gone.
        let _ = answer.send(done);
        routes
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
