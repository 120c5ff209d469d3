//! Limits of ports: `QoS` and `Queue` rows, and `ingress_policing_*` of Interface (ovs-vswitchd.conf.db(5)).

use super::number;
use ovn_schema::{Map, Str, ovs};
use std::collections::BTreeMap;

/// The supported types of QoS.
pub const TYPES: &[&str] = &["egress-policer", "linux-hfsc", "linux-htb", "linux-noop", "trtcm-policer"];

/// The greatest queue of a port that the kernel has a class for, as in Open vSwitch.
const LAST_CLASSED: u32 = 0xefff;
/// The least burst in bytes: an Ethernet frame of the usual size, with some room for headers before it.
pub const LEAST_BURST: u64 = 1564;
/// The least rate of a queue of `linux-htb`, in bytes a second.
const LEAST_RATE: u64 = 1500;

/// The rate of a policer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Bytes a second; 0 is no limit.
    pub bytes: u64,
    /// Burst in bytes.
    pub byte_burst: u64,
    /// Packets a second; 0 is no limit.
    pub packets: u64,
    /// Burst in packets.
    pub packet_burst: u64,
    /// Excess information rate and burst (RFC 4115): bytes a second, and bytes.
    pub excess: Option<(u64, u64)>,
}

impl Rate {
    /// Whether everything passes.
    pub fn is_unlimited(&self) -> bool {
        self.bytes == 0 && self.packets == 0
    }
}

/// The rates of a queue, in bytes and bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The guaranteed rate.
    pub min: u64,
    /// The greatest rate.
    pub max: u64,
    /// Burst.
    pub burst: u64,
    /// A lower number goes first.
    pub priority: u32,
}

impl Class {
    /// Bytes that a queue sends in its turn: a tenth of its guaranteed rate, as the kernel's default of `r2q` has it, and at
    /// least a frame of the usual size.
    pub fn quantum(&self) -> u64 {
        (self.min / 10).clamp(1514, 60_000)
    }
}

/// The number of the kernel's class for a queue.
pub fn class_of_queue(queue: u32) -> Option<u16> {
    u16::try_from(queue).ok().filter(|_| queue <= LAST_CLASSED).map(|n| n + 1)
}

/// The queues of a port whose speed is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The type of QoS.
    pub kind: &'static str,
    /// Bytes a second of all queues together.
    pub rate: u64,
    /// Queues by number. Queue 0 takes packets without a queue, or with one that does not exist.
    pub queues: BTreeMap<u32, Class>,
}

/// Why a port's QoS row cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QosError {
    /// There is no such type.
    #[error("{port}: QoS type {kind} is not supported; {} are", TYPES.join(", "))]
    Type {
        /// The port.
        port: String,
        /// The type.
        kind: String,
    },
    /// A rate or a burst of a policer is missing, or no number.
    #[error("{port}: QoS {kind}: other_config:{key}: expected a number of bytes")]
    Bytes {
        /// The port.
        port: String,
        /// The type of QoS.
        kind: String,
        /// The key.
        key: &'static str,
    },
}

/// The limits of what a port sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Egress {
    /// None.
    Free,
    /// None of ours: an operator sets the kernel's queues (`linux-noop`).
    Operators,
    /// A policer: packets beyond the rate are dropped.
    Police(Rate),
    /// A shaper: packets wait in queues.
    Shape(QosRequest),
}

/// A QoS row with queues, in bytes and bytes a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QosRequest {
    kind: &'static str,
    /// `max-rate` of the QoS.
    rate: Option<u64>,
    queues: BTreeMap<u32, QueueRequest>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct QueueRequest {
    min: Option<u64>,
    max: Option<u64>,
    burst: Option<u64>,
    priority: u32,
}

impl QosRequest {
    /// The queues on a device with this speed in bytes a second, which is the rate where the row gives none.
    pub fn plan(&self, speed: u64) -> Plan {
        let rate = self.rate.unwrap_or(speed);
        let htb = self.kind == "linux-htb";
        let class = |w: &QueueRequest| {
            let min = w.min.unwrap_or(0).max(if htb { LEAST_RATE } else { 1 }).min(rate);
            Class {
                min,
                max: w.max.unwrap_or(rate).max(min).min(rate),
                burst: w.burst.unwrap_or(0).max(LEAST_BURST),
                priority: w.priority,
            }
        };
        Plan { kind: self.kind, rate, queues: self.queues.iter().map(|(n, w)| (*n, class(w))).collect() }
    }
}

/// `ingress_policing_*`: kilobits, and thousands of packets. A burst of 0 stands for 8,000 and 16 of them.
pub(super) fn ingress(i: &ovs::Interface) -> Rate {
    let scaled = |v: i64, unit: u64, default: u64| match u64::try_from(v).unwrap_or(0) {
        0 => default * unit,
        v => v.saturating_mul(unit),
    };
    Rate {
        bytes: scaled(i.ingress_policing_rate, 125, 0),
        byte_burst: scaled(i.ingress_policing_burst, 125, 8000),
        packets: scaled(i.ingress_policing_kpkts_rate, 1000, 0),
        packet_burst: scaled(i.ingress_policing_kpkts_burst, 1000, 16),
        excess: None,
    }
}

/// The limits of a port's QoS row.
pub(super) fn egress(db: &ovs::Database, p: &ovs::Port) -> Result<Egress, QosError> {
    let Some(q) = p.qos.and_then(|id| db.qos.get(&id)) else { return Ok(Egress::Free) };
    match &*q.r#type {
        "" => Ok(Egress::Free),
        "linux-noop" => Ok(Egress::Operators),
        kind @ ("egress-policer" | "trtcm-policer") => policer(kind, &p.name, q).map(Egress::Police),
        "linux-htb" => Ok(Egress::Shape(queues("linux-htb", db, p, q))),
        "linux-hfsc" => Ok(Egress::Shape(queues("linux-hfsc", db, p, q))),
        other => Err(QosError::Type { port: p.name.to_string(), kind: other.into() }),
    }
}

/// `Queue:dscp` of the queues of a port, by their numbers.
pub(super) fn marks(db: &ovs::Database, p: &ovs::Port) -> BTreeMap<u16, u8> {
    let queues = p.qos.and_then(|id| db.qos.get(&id)).into_iter().flat_map(|q| &q.queues);
    queues.filter_map(|(n, id)| Some((u16::try_from(*n).ok()?, u8::try_from(db.queue.get(id)?.dscp?).ok()?))).collect()
}

/// The rate of an `egress-policer`: `cir` bytes a second, with bursts of `cbs` bytes; a `trtcm-policer` has `eir` and
/// `ebs` as well.
fn policer(kind: &str, port: &str, q: &ovs::Qos) -> Result<Rate, QosError> {
    let value = |key: &'static str| match number::<u64>(&q.other_config, key) {
        Ok(Some(v)) if v > 0 => Ok(v),
        _ => Err(QosError::Bytes { port: port.into(), kind: kind.into(), key }),
    };
    let rate = Rate { bytes: value("cir")?, byte_burst: value("cbs")?, ..Rate::default() };
    if kind == "egress-policer" {
        return Ok(rate);
    }
    if !q.queues.is_empty() {
        tracing::warn!(target: "bridge", "{port}: QoS {kind}: queues are not supported; all packets use one");
    }
    let excess = |key| number::<u64>(&q.other_config, key).ok().flatten().unwrap_or(0);
    Ok(Rate { excess: Some((excess("eir"), excess("ebs"))), ..rate })
}

/// Bits, or bits a second, as bytes. A value that is no number is left out, with a warning.
fn bits(m: &Map<Str, Str>, key: &str, of: &str) -> Option<u64> {
    let v = number::<u64>(m, key).unwrap_or_else(|e| {
        tracing::warn!(target: "bridge", "{of}: {e}; it is left out");
        None
    });
    v.map(|v| v / 8)
}

fn queues(kind: &'static str, db: &ovs::Database, p: &ovs::Port, q: &ovs::Qos) -> QosRequest {
    let request = |n: u32, m: &Map<Str, Str>| {
        let of = format!("{}: queue {n}", p.name);
        let htb = kind == "linux-htb";
        QueueRequest {
            min: bits(m, "min-rate", &of),
            // 0 is no limit, as without a value.
            max: bits(m, "max-rate", &of).filter(|r| *r > 0),
            burst: bits(m, "burst", &of).filter(|_| htb),
            priority: number(m, "priority").ok().flatten().filter(|_| htb).unwrap_or(0),
        }
    };
    let rows = q.queues.iter().filter_map(|(n, id)| Some((u32::try_from(*n).ok()?, db.queue.get(id)?)));
    let mut queues: BTreeMap<u32, QueueRequest> = rows.map(|(n, row)| (n, request(n, &row.other_config))).collect();
    // Packets without a queue need one.
    queues.entry(0).or_default();
    QosRequest { kind, rate: bits(&q.other_config, "max-rate", &p.name).filter(|r| *r > 0), queues }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_have_classes_as_far_as_numbers_go() {
        let of = [0, 7, LAST_CLASSED, LAST_CLASSED + 1, u32::MAX].map(class_of_queue);
        assert_eq!(of, [Some(1), Some(8), Some(0xf000), None, None]);
    }

    #[test]
    fn rates_stay_within_the_ports() {
        let request = |min, max| QueueRequest { min, max, ..QueueRequest::default() };
        let queues = [
            (0, QueueRequest::default()),
            (1, request(Some(99_000_000), Some(5))),
            (2, request(Some(10), Some(500_000))),
        ];
        let mut a = QosRequest { kind: "linux-htb", rate: Some(1_000_000), queues: queues.into_iter().collect() };
        let of = |a: &QosRequest, n: u32| {
            let p = a.plan(12_500_000);
            p.queues.get(&n).map(|c| (c.min, c.max, c.burst))
        };
        assert_eq!(of(&a, 0), Some((1500, 1_000_000, 1564)));
        assert_eq!(of(&a, 1), Some((1_000_000, 1_000_000, 1564)));
        assert_eq!(of(&a, 2), Some((1500, 500_000, 1564)));
        (a.kind, a.rate) = ("linux-hfsc", None);
        assert_eq!((of(&a, 0), a.plan(12_500_000).rate), (Some((1, 12_500_000, 1564)), 12_500_000));
    }
}
