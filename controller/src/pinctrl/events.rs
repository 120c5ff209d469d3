//! `Controller_Event` (ovn-sb(5)): what happened that the cloud's manager wants to know. The one kind is a connection to a load
//! balancer without backends. The manager takes the rows out.

use crate::input::model::Input;
use crate::plan::Plan;
use ovn_schema::{Map, Str, Uuid, Write, sb};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The only kind (`event_type`), as in user data and in the database.
const EMPTY_BACKENDS: (u32, &str) = (0, "empty_lb_backends");
/// Options of the user data, by number.
const KEYS: [(u16, &str); 3] = [(1, "vip"), (2, "protocol"), (3, "load_balancer")];
/// Events that wait to be written at most, and how long: the next packet tells them again.
const MOST: usize = 1000;
const FORGET: Duration = Duration::from_secs(10);

type Info = BTreeMap<Str, Str>;

/// Events that the database does not have yet.
#[derive(Debug, Default)]
pub struct Events {
    waiting: BTreeMap<Info, (i64, Instant)>,
    last: i64,
}

fn parse(data: &[u8]) -> Option<Info> {
    if packet::be32(data, 0)? != EMPTY_BACKENDS.0 {
        return None;
    }
    let (mut out, mut at) = (Info::new(), 4);
    while let (Some(code), Some(len)) = (packet::be16(data, at), packet::be16(data, at + 2)) {
        let value = std::str::from_utf8(data.get(at + 4..at + 4 + usize::from(len))?).ok()?;
        if let Some((_, key)) = KEYS.iter().find(|(c, _)| *c == code) {
            out.insert((*key).into(), value.into());
        }
        at += 4 + usize::from(len);
    }
    Some(out)
}

impl Events {
    /// Takes note of an event. `data` is the user data behind its header.
    pub fn happened(&mut self, data: &[u8], now: Instant) {
        let Some(info) = parse(data) else {
            tracing::debug!(target: "pinctrl", "an event that is malformed or of an unknown kind is left out");
            return;
        };
        if self.waiting.len() < MOST && !self.waiting.contains_key(&info) {
            self.waiting.insert(info, (0, now));
        }
    }

    /// Whether none waits to be written.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Puts rows into the plan. What has a row of this chassis is done with.
    pub fn write(&mut self, input: &Input, now: Instant, plan: &mut Plan) {
        let Some(me) = input.local.chassis else { return };
        self.waiting.retain(|_, (_, since)| now.duration_since(*since) < FORGET);
        if self.waiting.is_empty() {
            return;
        }
        let mine: Vec<_> = input.sb.controller_event.values().filter(|e| e.chassis == Some(me)).collect();
        self.waiting.retain(|info, _| !mine.iter().any(|e| e.event_info.iter().eq(info.iter())));
        self.last = mine.iter().map(|e| e.seq_num).fold(self.last, i64::max);
        for (info, (number, _)) in &mut self.waiting {
            if *number == 0 {
                self.last += 1;
                *number = self.last;
            }
            let event_info: Map<Str, Str> = info.clone().into_iter().collect();
            let columns = [
                sb::ControllerEvent::event_type(&Str::from(EMPTY_BACKENDS.1)),
                sb::ControllerEvent::event_info(&event_info),
                sb::ControllerEvent::seq_num(number),
                sb::ControllerEvent::chassis(&Some::<Uuid>(me)),
            ];
            plan.part(format!("Controller_Event {info:?}"), *number).txn.insert_row(columns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::model::Local;
    use ovn_schema::sb;
    use std::sync::Arc;

    fn data(vip: &str) -> Vec<u8> {
        let mut d = vec![0, 0, 0, 0];
        for (code, value) in [(1u16, vip), (2, "tcp"), (3, "lb")] {
            d.extend(code.to_be_bytes());
            d.extend((value.len() as u16).to_be_bytes());
            d.extend(value.bytes());
        }
        d
    }

    fn world(rows: &[(&str, u128, i64)]) -> Input {
        let mut db = sb::Database::default();
        for (n, (vip, chassis, seq_num)) in (30..).zip(rows) {
            let info = [("vip", *vip), ("protocol", "tcp"), ("load_balancer", "lb")];
            let e = sb::ControllerEvent {
                chassis: Some(Uuid::from_u128(*chassis)),
                event_info: info.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
                event_type: EMPTY_BACKENDS.1.into(),
                seq_num: *seq_num,
            };
            db.controller_event.insert(Uuid::from_u128(n), Arc::new(e));
        }
        Input::new(db, Local { chassis: Some(Uuid::from_u128(1)), ..Local::default() })
    }

    fn written(e: &mut Events, input: &Input, now: Instant) -> Vec<i64> {
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        e.write(input, now, &mut plan);
        let out = crate::plan::Attempts::default().choose(plan, now);
        out.iter().map(|o| o["row"]["seq_num"].as_i64().unwrap()).collect()
    }

    #[test]
    fn an_event_is_written_until_it_is_there() {
        let (mut e, now) = (Events::default(), Instant::now());
        e.happened(&data("10.0.0.1:80"), now);
        e.happened(&data("10.0.0.1:80"), now);
        // Another chassis' row says nothing of this one's.
        let none = world(&[("10.0.0.1:80", 2, 9)]);
        assert_eq!((written(&mut e, &none, now), written(&mut e, &none, now)), (vec![1], vec![1]));
        let there = world(&[("10.0.0.1:80", 1, 1)]);
        assert!(written(&mut e, &there, now).is_empty());
        assert!(written(&mut e, &none, now).is_empty(), "taken out by the manager, it does not come back");
        e.happened(&data("[fd00::1]:80"), now);
        assert_eq!(written(&mut e, &there, now), [2]);
        assert!(written(&mut e, &there, now + FORGET).is_empty());
        e.happened(&[0, 0, 0, 9], now);
        e.happened(&[0, 0, 0, 0, 0, 1, 0, 200], now);
        assert!(written(&mut e, &there, now).is_empty(), "malformed ones");
    }
}
