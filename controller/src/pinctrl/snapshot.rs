//! What the services look at of the databases. The loop publishes it when it changes; the services never wait for the loop.

use crate::model::Input;
use ovn_schema::sb;
use std::collections::HashMap;
use std::sync::Arc;

/// A part of the southbound database, by the keys that packets carry.
#[derive(Debug, Default, PartialEq)]
pub struct Snapshot {
    /// Names, by the key of the datapath that asks.
    dns: HashMap<u64, Vec<Arc<sb::Dns>>>,
    /// The key of the port behind which answers come, by the keys of datapath and redirect port.
    distributed: HashMap<(u64, u32), u32>,
}

impl Snapshot {
    /// What there is now.
    pub fn of(input: &Input) -> Snapshot {
        let mut out = Snapshot::default();
        let key = |dp: &ovn_schema::Uuid| Some(input.sb.datapath_binding.get(dp)?.tunnel_key as u64);
        for row in input.sb.dns.values() {
            for dp in row.datapaths.iter().filter_map(key) {
                out.dns.entry(dp).or_default().push(row.clone());
            }
        }
        for (_, p) in input.redirects() {
            let port = p.options.get("distributed-port").and_then(|n| input.port(n));
            if let (Some(dp), Some((_, port))) = (key(&p.datapath), port) {
                out.distributed.insert((dp, p.tunnel_key as u32), port.tunnel_key as u32);
            }
        }
        out
    }

    /// Whether a change of the southbound database may change it.
    pub fn depends_on(change: &sb::AnyChange) -> bool {
        match change {
            sb::AnyChange::Dns(_) => true,
            sb::AnyChange::DatapathBinding(c) => {
                c.old.as_ref().map(|d| d.tunnel_key) != c.new.as_ref().map(|d| d.tunnel_key)
            }
            sb::AnyChange::PortBinding(c) => {
                let of = |p: &Option<Arc<sb::PortBinding>>| {
                    let p = p.as_ref()?;
                    Some((p.logical_port.clone(), p.datapath, p.tunnel_key, p.options.get("distributed-port").cloned()))
                };
                of(&c.old) != of(&c.new)
            }
            _ => false,
        }
    }

    /// The names that a datapath knows.
    pub fn dns(&self, datapath: u64) -> &[Arc<sb::Dns>] {
        self.dns.get(&datapath).map_or(&[], Vec::as_slice)
    }

    /// The key of the port behind which answers come: of a redirect port, its distributed port's.
    pub fn distributed(&self, datapath: u64, port: u32) -> u32 {
        self.distributed.get(&(datapath, port)).copied().unwrap_or(port)
    }
}
