//! What operators ask of the control plane by commands.

use super::Control;
use super::underlay::OwnRoute;
use std::net::IpAddr;
use tokio::sync::oneshot;

/// Something asked for.
#[derive(Debug)]
pub enum Ask {
    /// A bridge's controllers, or those of all, are connected anew.
    Reconnect(Option<String>),
    /// A route for tunnels.
    AddRoute(OwnRoute),
    /// It goes.
    DeleteRoute(IpAddr, u8),
}

/// What is asked for, and where the answer goes.
pub type Asked = (Ask, oneshot::Sender<Result<String, String>>);

impl Control {
    /// Does what is asked for; true where tunnels may leave by another way.
    pub(super) fn asked(&mut self, (ask, answer): Asked) -> bool {
        let routes = !matches!(ask, Ask::Reconnect(_));
        let done = match ask {
            Ask::Reconnect(bridge) => self.reconnect(bridge.as_deref()),
            Ask::AddRoute(r) => self.add_route(r),
            Ask::DeleteRoute(prefix, len) => self.delete_route(prefix, len),
        };
        // Nobody may wait any more.
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
