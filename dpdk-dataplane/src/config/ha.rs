//! Gateways that know each other's connections: `Open_vSwitch:external_ids:isthmus-ha-listen`,
//! `Bridge:other_config:ha-peers` and `ha-zones` (docs/ha.md).

use super::get;
use ovn_schema::{Map, Str, ovs};
use ovsdb_rs::stream::Remote;
use ovsdb_rs::tls::TlsFiles;
use std::collections::{BTreeMap, HashMap};
use wildmatch::WildMatch;

/// The prefix of keys of `Bridge:external_ids` that name zones.
const ZONE_KEY: &str = "ct-zone-";
/// The zones that gateways share unless `ha-zones` says otherwise: those in which OVN's routers translate addresses.
const ZONES: &str = "*_dnat,*_snat";

/// What this chassis tells, to whom, and whom it hears.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HaSpec {
    /// This chassis' name.
    pub name: String,
    /// Where peers connect to.
    pub listen: Option<Remote>,
    /// Peers by name.
    pub peers: BTreeMap<String, Remote>,
    /// Zones whose connections are told, by name.
    pub zones: BTreeMap<String, u16>,
    /// All zones of bridges that have a name.
    pub named: HashMap<String, u16>,
    /// Key and certificates.
    pub tls: Option<TlsFiles>,
    /// What is wrong with the configuration, one sentence each.
    pub errors: Vec<String>,
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ' ']).filter(|w| !w.is_empty())
}

/// The zones that a bridge's external_ids name.
pub fn zone_names(external_ids: &Map<Str, Str>) -> impl Iterator<Item = (&str, u16)> {
    external_ids.iter().filter_map(|(k, v)| Some((k.strip_prefix(ZONE_KEY)?, v.trim().parse().ok()?)))
}

/// What the database says.
pub fn ha(db: &ovs::Database) -> HaSpec {
    let mut spec = HaSpec::default();
    let Some(root) = db.open_vswitch.values().next() else { return spec };
    spec.name = get(&root.external_ids, "system-id").unwrap_or_default().to_owned();
    if let Some(text) = get(&root.external_ids, "isthmus-ha-listen").filter(|t| !t.is_empty()) {
        match Remote::parse(text) {
            Ok(r @ (Remote::PassiveTcp(_) | Remote::PassiveTls(_))) => spec.listen = Some(r),
            _ => spec.errors.push(format!(
                "Open_vSwitch external_ids:isthmus-ha-listen={text}: not a passive connection method, such as pssl:6655"
            )),
        }
    }
    for b in root.bridges.iter().filter_map(|id| db.bridge.get(id)) {
        let named: Vec<(&str, u16)> = zone_names(&b.external_ids).collect();
        spec.named.extend(named.iter().map(|(n, z)| ((*n).to_owned(), *z)));
        let Some(peers) = get(&b.other_config, "ha-peers") else { continue };
        for entry in list(peers) {
            let remote = entry.split_once('=').map(|(name, r)| (name, Remote::parse(r)));
            match remote {
                Some((name, Ok(r @ (Remote::Tcp(..) | Remote::Tls(..))))) => {
                    if name != spec.name {
                        spec.peers.insert(name.to_owned(), r);
                    }
                }
                _ => spec.errors.push(format!(
                    "Bridge {} other_config:ha-peers: \"{entry}\" is not CHASSIS=ssl:ADDRESS:PORT",
                    b.name
                )),
            }
        }
        let globs: Vec<WildMatch> =
            list(get(&b.other_config, "ha-zones").unwrap_or(ZONES)).map(WildMatch::new).collect();
        let chosen = named.into_iter().filter(|(n, _)| globs.iter().any(|g| g.matches(n)));
        spec.zones.extend(chosen.map(|(n, z)| (n.to_owned(), z)));
    }
    let needs_tls = matches!(spec.listen, Some(Remote::PassiveTls(_)));
    spec.tls = root.ssl.and_then(|id| db.ssl.get(&id)).map(|s| super::controller::tls_files(s));
    if spec.tls.is_none() && (needs_tls || spec.peers.values().any(|p| matches!(p, Remote::Tls(..)))) {
        spec.errors.push("pssl and ssl need key and certificates: ovs-vsctl set-ssl PRIVKEY CERT CACERT".into());
    }
    if spec.name.is_empty() && (spec.listen.is_some() || !spec.peers.is_empty()) {
        spec.errors.push("Open_vSwitch external_ids:system-id is missing: peers know a chassis by this name".into());
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;
    use ovn_schema::Uuid;

    fn map(pairs: &[(&str, &str)]) -> Map<Str, Str> {
        pairs.iter().map(|(k, v)| (Str::from(*k), Str::from(*v))).collect()
    }

    fn database(root: &[(&str, &str)], other_config: &[(&str, &str)], zones: &[(&str, &str)]) -> ovs::Database {
        let (mut db, id) = (ovs::Database::default(), Uuid::from_u128(7));
        let bridge = ovs::Bridge {
            name: "br-int".into(),
            other_config: map(other_config),
            external_ids: map(zones),
            ..Default::default()
        };
        db.bridge.insert(id, bridge.into());
        let root =
            ovs::OpenVswitch { external_ids: map(root), bridges: [id].into_iter().collect(), ..Default::default() };
        db.open_vswitch.insert(Uuid::from_u128(1), root.into());
        db
    }

    #[test]
    fn peers_and_zones_are_read() {
        let db = database(
            &[("system-id", "gw1"), ("isthmus-ha-listen", "ptcp:6655:10.0.0.1")],
            &[("ha-peers", "gw1=tcp:10.0.0.1:6655,gw2=tcp:10.0.0.2:6655 gw3=tcp:[fd00::3]:6655")],
            &[("ct-zone-lr0_snat", "3"), ("ct-zone-lr0_dnat", "4"), ("ct-zone-vm1", "5"), ("ct-zone-bad_snat", "x")],
        );
        let s = ha(&db);
        assert_eq!(s.errors, Vec::<String>::new());
        assert_eq!(s.peers.keys().collect::<Vec<_>>(), ["gw2", "gw3"], "a chassis is not its own peer");
        assert_eq!(
            s.zones.iter().map(|(n, z)| (n.as_str(), *z)).collect::<Vec<_>>(),
            [("lr0_dnat", 4), ("lr0_snat", 3)]
        );
        assert_eq!(s.named.len(), 3);
        assert!(s.listen.is_some());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let db = database(
            &[("isthmus-ha-listen", "tcp:1.2.3.4:5")],
            &[("ha-peers", "gw2,gw3=ssl:10.0.0.3:6655"), ("ha-zones", "lr1_*")],
            &[("ct-zone-lr1_snat", "3"), ("ct-zone-lr2_snat", "4")],
        );
        let s = ha(&db);
        let all = s.errors.join("\n");
        for part in ["isthmus-ha-listen=tcp:1.2.3.4:5", "br-int other_config:ha-peers: \"gw2\"", "set-ssl", "system-id"]
        {
            assert!(all.contains(part), "{part}: {all}");
        }
        assert_eq!(s.zones.keys().collect::<Vec<_>>(), ["lr1_snat"]);
    }
}
