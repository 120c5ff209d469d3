//! Flows with groups, meters and conjunctions come and go; what they took is given back. A round has 60; `make churn` has 10,200.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use controller::input::model::{Input, Local};
use controller::openflow::install::Tables;
use controller::units::flows::{ChassisFlows, Ids};
use incremental::Engine;
use openflow_rs::MeterId;
use ovn_schema::sb::{self, AnyChange};
use ovn_schema::{Change, Uuid};
use std::sync::Arc;

/// How many times the usual size a round has: `make churn` sets it, for 10,000 a round.
fn times() -> u32 {
    std::env::var("ISTHMUS_CHURN").map_or(1, |n| n.parse().expect("ISTHMUS_CHURN is a number"))
}

fn uuid(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// A logical flow of a kind that takes numbers.
fn flow(n: u32) -> sb::LogicalFlow {
    let (r#match, actions) = match n % 3 {
        0 => ("ip4".to_string(), format!("ct_lb_mark(backends=10.0.{}.{}:80,10.1.0.1:80);", n / 250, n % 250)),
        1 => (format!("ip4.src == 10.0.0.{}", n % 250), "set_meter(1000); next;".to_string()),
        _ => {
            let (a, b) = ("ip4.src == {10.0.0.1, 10.0.0.2, 10.0.0.5}", "tcp.dst == {80, 443, 8080}");
            (format!("{a} && {b}"), "next;".to_string())
        }
    };
    sb::LogicalFlow {
        logical_datapath: Some(uuid(1)),
        pipeline: "ingress".into(),
        table_id: 5,
        priority: i64::from(n) + 1,
        r#match: r#match.into(),
        actions: actions.into(),
        ..Default::default()
    }
}

struct Chassis {
    input: Input,
    engine: Engine<ChassisFlows>,
    tables: Tables,
    ids: Arc<Ids>,
}

impl Chassis {
    fn change(&mut self, n: u32, new: Option<sb::LogicalFlow>) {
        let id = uuid(u128::from(n) << 64 | 7);
        let old = self.input.sb.logical_flow.get(&id).cloned();
        let new = new.map(Arc::new);
        match &new {
            Some(row) => drop(self.input.sb.logical_flow.insert(id, row.clone())),
            None => {
                self.input.sb.logical_flow.remove(&id);
                self.engine.derivation().forget(id);
            }
        }
        let reads = self.input.changed(&AnyChange::LogicalFlow(Change { uuid: id, old, new }));
        let (tables, ids) = (&mut self.tables, &self.ids);
        self.engine.update(&self.input, reads, |c| drop(tables.apply(c, ids)));
    }
}

#[test]
fn ten_rounds_end_where_they_began() {
    let flows = 60 * times();
    let mut db = sb::Database::default();
    let datapath = sb::DatapathBinding { tunnel_key: 1, r#type: Some("logical-switch".into()), ..Default::default() };
    db.datapath_binding.insert(uuid(1), Arc::new(datapath));
    let local = Local { datapaths: [uuid(1)].into(), ..Local::default() };
    let ids: Arc<Ids> = Arc::default();
    let engine = Engine::new(ChassisFlows::new(ids.clone()));
    let mut c = Chassis { input: Input::new(db, local), engine, tables: Tables::default(), ids };
    let (tables, ids) = (&mut c.tables, &c.ids);
    c.engine.update(&c.input, [], |changes| drop(tables.apply(changes, ids)));
    let began = (c.tables.len(), c.ids.counts());
    let mut full = None;
    for round in 0..10 {
        (0..flows).for_each(|n| c.change(n, Some(flow(n))));
        let now = (c.tables.len(), c.ids.counts());
        assert!(c.ids.counts().0 > 1 && c.ids.counts().1 > 1 && c.ids.counts().2 > 1, "{now:?}");
        assert_eq!(*full.get_or_insert(now), now, "round {round}");
        assert!(c.ids.meters().values().all(|id| *id <= MeterId(flows)), "numbers are given again");
        // A flow that does not parse leaves a word about it, as long as it is there.
        c.change(flows, Some(sb::LogicalFlow { r#match: "ip4.src ==".into(), ..flow(1) }));
        assert_eq!(c.tables.problems().len(), 1);
        (0..=flows).for_each(|n| c.change(n, None));
        assert!(c.tables.problems().is_empty());
        assert_eq!((c.tables.len(), c.ids.counts()), began, "round {round}");
    }
}
