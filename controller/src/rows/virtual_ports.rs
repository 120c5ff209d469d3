//! Ports of type `virtual` (ovn-nb(5)): an address that moves between parents. The parent that speaks for the address has it,
//! and with it the chassis where that parent is.
//!
//! Northd's flows send a parent's ARP or ND for the address here (`bind_vport`). Several parents that speak at once would take
//! the port from each other at the speed of packets, so each claim that comes too soon after another makes the next one wait
//! longer; when that was and how long is kept in the port's row, where all chassis see it.

use crate::input::model::{Input, Local};
use crate::plan::Plan;
use ovn_schema::sb::PortBinding;
use ovn_schema::{Cell, DatapathKey, PortKey, Write};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// When a virtual port was claimed last, in milliseconds since 1970, and how long it is to stay where it is, in milliseconds.
const LAST_CLAIM: &str = "vport-last-claim";
const BACKOFF: &str = "vport-backoff";
const STEP: i64 = 1000;
const LONGEST: i64 = 10_000;

/// Claims that wait at most, and how long: their packets come again.
const MOST: usize = 1000;
const FORGET: Duration = Duration::from_secs(10);

/// What a row says of the claims before.
type Before = (i64, i64);

#[derive(Debug)]
struct Attempt {
    parent: PortKey,
    since: Instant,
    /// What the row said when the attempt was decided: when it says something else, that is done, or another chassis was faster.
    decided: Option<(Before, i64)>,
}

/// Parents that spoke for a virtual port, by the keys of datapath and port.
#[derive(Debug, Default)]
pub struct Claims(HashMap<(DatapathKey, PortKey), Attempt>);

fn before(p: &PortBinding) -> Before {
    let number = |key: &str| p.options.get(key).and_then(|v| v.parse().ok()).unwrap_or(0);
    (number(LAST_CLAIM), number(BACKOFF))
}

/// Whether the parent that a virtual port has is bound here, so that the port is this chassis', too.
pub fn has_parent(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let parent = p.virtual_parent.as_ref().filter(|n| !n.is_empty()).and_then(|n| input.port(n));
    parent.is_some_and(|(_, parent)| {
        parent.chassis.is_some()
            && parent.chassis == local.chassis
            && crate::rows::claims::wanted_role(parent, input, local) == crate::rows::claims::Role::Main
    })
}

impl Claims {
    /// A parent, by key, spoke for a port.
    pub fn spoke(&mut self, datapath: DatapathKey, port: PortKey, parent: PortKey, now: Instant) {
        if self.0.len() < MOST || self.0.contains_key(&(datapath, port)) {
            self.0.insert((datapath, port), Attempt { parent, since: now, decided: None });
        }
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts claims, or their postponement, into the plan. `time` is in milliseconds since 1970.
    pub fn write(&mut self, input: &Input, now: Instant, time: i64, plan: &mut Plan) {
        self.0.retain(|(datapath, port), attempt| {
            now.duration_since(attempt.since) < FORGET && attempt.write(*datapath, *port, input, time, plan).is_some()
        });
    }
}

impl Attempt {
    /// Puts it into the plan; none where nothing is left to do.
    fn write(&mut self, datapath: DatapathKey, port: PortKey, input: &Input, time: i64, plan: &mut Plan) -> Option<()> {
        let me = input.local.chassis?;
        let dp = input.datapath(datapath)?;
        let keyed = |key: PortKey| input.ports_of(dp).find(|(_, p)| p.key() == key);
        let (id, p) = keyed(port).filter(|(_, p)| &*p.r#type == "virtual")?;
        let (_, parent) = keyed(self.parent)?;
        if p.chassis == Some(me) && p.virtual_parent.as_ref() == Some(&parent.logical_port) {
            return None;
        }
        let old @ (last, backoff) = before(p);
        let (seen, time) = *self.decided.get_or_insert((old, time));
        if seen != old {
            return None;
        }
        let (name, parent) = (&p.logical_port, &parent.logical_port);
        let claims = time >= last.saturating_add(backoff);
        let next = if claims { STEP } else { backoff.saturating_add(STEP).min(LONGEST) };
        let mut options = p.options.clone();
        options.insert(BACKOFF.into(), next.to_string().into());
        let mut columns = Vec::new();
        let part = plan.part(format!("Port_Binding of {name}:virtual_parent"), (parent, claims, old));
        if claims {
            options.insert(LAST_CLAIM.into(), time.to_string().into());
            columns.extend([PortBinding::chassis(&Some(me)), PortBinding::virtual_parent(&Some(parent.clone()))]);
            part.log.push(format!("Claiming virtual lport {name} for this chassis with the virtual parent {parent}"));
        } else {
            part.log.push(format!("Postponing virtual lport {name} claim by {next} ms"));
        }
        columns.push(PortBinding::options(&options));
        part.txn.update_row(id, columns);
        Some(())
    }
}

/// The columns by which a port that is released loses its parent.
pub fn orphaned(p: &PortBinding) -> Option<Cell<PortBinding>> {
    p.virtual_parent.is_some().then(|| PortBinding::virtual_parent(&None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Vif;
    use ovn_schema::{Map, Str, Uuid, sb};
    use std::sync::Arc;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    /// A switch (key 7) with a virtual port (key 1) and two parents here (keys 2 and 3).
    fn world(change: impl FnOnce(&mut PortBinding)) -> Input {
        let mut db = sb::Database::default();
        let chassis = sb::Chassis { name: "hv1".into(), ..Default::default() };
        db.chassis.insert(uuid(1), Arc::new(chassis));
        db.datapath_binding.insert(uuid(7), Arc::new(sb::DatapathBinding { tunnel_key: 7, ..Default::default() }));
        let port = |name: &str, key| PortBinding {
            logical_port: name.into(),
            datapath: uuid(7),
            tunnel_key: key,
            ..PortBinding::default()
        };
        let mut vport = PortBinding { r#type: "virtual".into(), ..port("vip", 1) };
        change(&mut vport);
        db.port_binding.insert(uuid(10), Arc::new(vport));
        for (name, key) in [("a", 2), ("b", 3)] {
            let p = PortBinding { chassis: Some(uuid(1)), ..port(name, key) };
            db.port_binding.insert(uuid(10 + key as u128), Arc::new(p));
        }
        let vif = || Vif { ofport: Some(1), version: None, encap_ip: None, mtu: None, row: uuid(100) };
        let local = Local {
            chassis: Some(uuid(1)),
            chassis_name: "hv1".into(),
            vifs: [("a".into(), vif()), ("b".into(), vif())].into(),
            ..Local::default()
        };
        Input::new(db, local)
    }

    /// What becomes of a parent's word, at a time.
    fn spoken(input: &Input, parent: i64, time: i64) -> (Vec<String>, bool) {
        let (mut claims, now) = (Claims::default(), Instant::now());
        claims.spoke(DatapathKey(7), PortKey(1), PortKey(parent), now);
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        claims.write(input, now, time, &mut plan);
        (plan.into_log(), claims.0.is_empty())
    }

    fn options(last: i64, backoff: i64) -> Map<Str, Str> {
        [(LAST_CLAIM.into(), last.to_string().into()), (BACKOFF.into(), backoff.to_string().into())].into()
    }

    #[test]
    fn who_speaks_for_the_address_has_it() {
        let (said, _) = spoken(&world(|_| ()), 3, 5000);
        assert_eq!(said, ["Claiming virtual lport vip for this chassis with the virtual parent b"]);
        let held = world(|p| (p.chassis, p.virtual_parent) = (Some(uuid(1)), Some("b".into())));
        assert_eq!(spoken(&held, 3, 5000), (Vec::new(), true), "it has it already");
        assert_eq!(spoken(&held, 2, 5000).0.len(), 1, "the other parent");
        assert_eq!(spoken(&world(|p| p.r#type = "".into()), 3, 5000), (Vec::new(), true), "no virtual port");
        assert_eq!(spoken(&world(|_| ()), 9, 5000), (Vec::new(), true), "no such parent");
    }

    #[test]
    fn claims_that_come_too_soon_wait_ever_longer() {
        for (backoff, next) in [(1000, 2000), (9000, 10_000), (10_000, 10_000)] {
            let input = world(|p| p.options = options(5000, backoff));
            let (said, _) = spoken(&input, 3, 5000 + backoff - 1);
            assert_eq!(said, [format!("Postponing virtual lport vip claim by {next} ms")]);
            assert!(spoken(&input, 3, 5000 + backoff).0[0].starts_with("Claiming"));
        }
    }

    #[test]
    fn an_attempt_is_decided_once() {
        let (mut claims, now) = (Claims::default(), Instant::now());
        claims.spoke(DatapathKey(7), PortKey(1), PortKey(3), now);
        let mut log = |options: Map<Str, Str>, time| {
            let mut plan = Plan::new(Arc::new(sb::Database::schema()));
            claims.write(&world(|p| p.options = options), now, time, &mut plan);
            plan.into_log()
        };
        // Until it is written, it stays what it was, whatever the time.
        for time in [5500, 7000] {
            assert_eq!(log(options(5000, 1000), time), ["Postponing virtual lport vip claim by 2000 ms"]);
        }
        assert!(log(options(5000, 2000), 9000).is_empty(), "written, by this chassis or another");
        assert!(log(options(5000, 1000), 9000).is_empty(), "and forgotten");
    }

    #[test]
    fn a_virtual_port_goes_with_its_parent() {
        let mut input = world(|p| (p.chassis, p.virtual_parent) = (Some(uuid(1)), Some("b".into())));
        let has = |input: &Input| has_parent(input.port("vip").unwrap().1, input, &input.local);
        assert!(has(&input));
        input.local.vifs.remove("b");
        assert!(!has(&input));
        assert!(!has(&world(|p| p.chassis = Some(uuid(1)))), "no parent");
    }

    #[test]
    fn there_is_room_for_so_many() {
        let (mut claims, now) = (Claims::default(), Instant::now());
        (0..2000).for_each(|port| claims.spoke(DatapathKey(7), PortKey(port), PortKey(3), now));
        assert_eq!(claims.0.len(), MOST);
    }
}
