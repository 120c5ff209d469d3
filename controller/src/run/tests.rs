//! The loop without databases and switch.

use super::*;
use crate::input::settings::Identity;
use crate::pinctrl::announce::Address;
use crate::run::request::Request;
use ovn_schema::{Uuid, sb};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A loop whose databases do not answer, and what has to be there as long as the loop.
fn alone() -> (Controller, (mpsc::UnboundedSender<Request>, tempfile::TempDir)) {
    let (tx, requests) = mpsc::unbounded_channel();
    let folder = tempfile::tempdir().unwrap();
    let remote = format!("unix:{}", folder.path().join("db.sock").display());
    let rest = (Shared::default(), requests);
    let c = Controller::start(&remote, folder.path().into(), Default::default(), Identity::default(), rest).unwrap();
    (c, (tx, folder))
}

#[tokio::test]
async fn a_recompute_waits_for_the_right_northd() {
    let (mut c, _rest) = alone();
    (c.derived, c.known, c.version_complaint) = (true, true, Some("mismatch".into()));
    c.recompute();
    assert_eq!(c.tables.len(), (0, 0), "nothing is derived");
    c.version_complaint = None;
    c.recompute();
    assert!(c.tables.len().0 > 0);
}

#[tokio::test]
async fn a_recompute_waits_until_it_is_known_what_is_here() {
    let (mut c, _rest) = alone();
    c.derived = true;
    c.recompute();
    assert_eq!((c.tables.len(), c.recompute_later), ((0, 0), true), "what was before stays");
    c.known = true;
    c.recompute();
    assert!(c.tables.len().0 > 0 && !c.recompute_later);
}

#[tokio::test]
async fn a_configuration_that_changes_nothing_needs_no_switch() {
    let (mut c, _rest) = alone();
    let configure = |c: &mut Controller, nb_cfg| {
        let row = sb::SbGlobal { nb_cfg, ..Default::default() };
        c.input.sb.sb_global.insert(Uuid::from_u128(1), Arc::new(row));
        c.derive();
        c.realise(Instant::now());
        c.realised_cfg.map(|(n, _)| n)
    };
    assert_eq!(configure(&mut c, 1), None, "the first flows wait for a switch");
    // It was there, took them, and went.
    c.switch_up = true;
    c.install_all();
    (c.installed, c.switch_up) = (c.sequence, false);
    assert_eq!(configure(&mut c, 2), Some(2));
}

#[tokio::test]
async fn an_announcement_that_cannot_be_sent_wakes_nobody() {
    let (mut c, _rest) = alone();
    let start = Instant::now();
    c.announcer.update(&[Address::default()].into(), None, start);
    // Long overdue, and there is no switch: nothing to do before the next look.
    let now = start + Duration::from_secs(100);
    assert!(c.announcer.next().is_some_and(|t| t < now));
    assert_eq!(c.next_timer(now), now + Duration::from_secs(1));
    (c.switch_up, c.derived) = (true, true);
    assert!(c.next_timer(now) <= now + Duration::from_millis(1), "with a switch it goes");
}
