//! Traffic control of the kernel's links: a port's queues and policer as tc(8) shows them, where operators look.
//!
//! ```text
//! root ─ 1:  htb or hfsc                       ingress ─ ffff:
//!        └─ 1:fffe  the port's rate                      └─ matchall, priority 49 ─ police
//!           ├─ 1:1  queue 0, also the rest's
//!           └─ 1:n+1  queue n
//! ```
//! What the switch sends is limited by the switch itself (`ports/qos`), on devices of all kinds. These queues have the
//! same rates, and count by class what goes by a link. A kernel that lacks a kind therefore costs nothing but the view.
//!
//! Structures and numbers are those of linux/pkt_sched.h, linux/pkt_cls.h and linux/rtnetlink.h.

use super::netlink::KernelTables;
use crate::config::qos::{Class, LEAST_BURST, Plan, Rate, class_of_queue};
use futures::StreamExt;
use nix::errno::Errno;
use rtnetlink::Error;
use rtnetlink::packet_core::{
    DefaultNla, Emitable, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_ECHO, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkMessage, NetlinkPayload,
};
use rtnetlink::packet_route::RouteNetlinkMessage as Message;
use rtnetlink::packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use std::collections::BTreeSet;

/// What the kernel is to do with packets that leave by a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queues {
    /// Whatever an operator has set (`linux-noop`).
    Operators,
    /// Nothing of ours.
    None,
    /// These queues.
    Plan(Plan),
}

/// What one link was given, and what its kernel was found to lack.
#[derive(Debug, Default)]
pub struct TrafficControl {
    queues: Option<Queues>,
    ingress: Option<Rate>,
    lacking: BTreeSet<&'static str>,
    /// The link has a class for each queue.
    classes: bool,
}

/// Why a link has not what it was to have.
#[derive(Debug)]
enum Refusal {
    /// The kernel has no such queue, filter or action.
    Lacks(&'static str),
    /// Something else.
    Other(Error),
}

impl From<Error> for Refusal {
    fn from(e: Error) -> Refusal {
        Refusal::Other(e)
    }
}

/// The root queue, and the class of it that holds all others.
const ROOT: TcHandle = TcHandle { major: 1, minor: 0 };
const TRUNK: TcHandle = TcHandle { major: 1, minor: 0xfffe };
/// Where the policer is, and its filter's parent, which is the same in an `ingress` and in a `clsact`.
const INGRESS: TcHandle = TcHandle { major: 0xffff, minor: 0 };
const INGRESS_FILTERS: TcHandle = TcHandle { major: 0xffff, minor: TcHandle::MIN_INGRESS };
/// The priority of the policer's filter, by which it is known again.
const PRIORITY: u16 = 49;
/// `ETH_P_ALL`: packets of all protocols.
const ALL_PROTOCOLS: u16 = 3;
/// The filters that take every packet; of the second kind where the kernel has none of the first, with the attribute that
/// holds their actions.
const FILTERS: [(&str, u16); 2] = [("matchall", 2), ("basic", 3)];

/// Attributes of any message, and of htb, hfsc and police.
const OPTIONS: u16 = 2;
const HTB_PARAMETERS: u16 = 1;
const HTB_INIT: u16 = 2;
const HTB_RATE64: u16 = 6;
const HTB_CEIL64: u16 = 7;
/// Real-time, link-sharing and upper-limit service curve.
const HFSC_CURVES: [u16; 3] = [1, 2, 3];
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const POLICE_PARAMETERS: u16 = 1;
const POLICE_RATE_TABLE: u16 = 2;
const POLICE_RESULT: u16 = 5;
const POLICE_RATE64: u16 = 8;
const POLICE_PACKET_RATE64: u16 = 10;
const POLICE_PACKET_BURST64: u16 = 11;

/// What is done with a packet: the next action, the next filter, dropped (`TC_ACT_…`).
const PIPE: u32 = 3;
const UNSPECIFIED: u32 = u32::MAX;
const SHOT: u32 = 2;
/// The longest packet that a policer lets pass, in bytes, and the logarithm of the width of its table's cells.
const LONGEST: u32 = 65_535;
const CELL_LOG: u8 = 8;
/// `TC_LINKLAYER_ETHERNET`: a packet counts with its bytes, and htb needs no table.
const ETHERNET: u8 = 1;

impl TrafficControl {
    /// Has the kernel do what is wanted of a link, where that differs from what was wanted before; true if the link has a
    /// class for each queue.
    pub async fn follow(
        &mut self,
        kernel: &KernelTables,
        name: &str,
        index: u32,
        queues: Queues,
        ingress: Rate,
    ) -> bool {
        let link = index.cast_signed();
        if self.queues.as_ref() != Some(&queues) {
            // What is left to the operator is left without our queues.
            let wanted = match (&self.queues, &queues) {
                (Some(Queues::Plan(_)), Queues::Operators) => &Queues::None,
                _ => &queues,
            };
            let done = kernel.set_queues(link, wanted).await;
            self.classes = done.is_ok() && matches!(queues, Queues::Plan(_));
            self.tell(name, done);
            self.queues = Some(queues);
        }
        if self.ingress != Some(ingress) {
            let done = kernel.set_policer(link, &ingress).await;
            self.tell(name, done);
            self.ingress = Some(ingress);
        }
        self.classes
    }

    fn tell(&mut self, name: &str, done: Result<(), Refusal>) {
        match done {
            Ok(()) => {}
            Err(Refusal::Lacks(kind)) => {
                if self.lacking.insert(kind) {
                    tracing::info!(target: "netdev", "{name}: the kernel has no {kind}: tc shows nothing of it; the switch limits the port by itself");
                }
            }
            // The link has gone.
            Err(Refusal::Other(e)) if errno(&e) == Some(Errno::ENODEV) => {}
            Err(Refusal::Other(e)) => tracing::warn!(target: "netdev", "{name}: traffic control: {e}"),
        }
    }
}

impl KernelTables {
    async fn set_queues(&self, link: i32, wanted: &Queues) -> Result<(), Refusal> {
        if *wanted == Queues::Operators {
            return Ok(());
        }
        let root = self.discipline(link, TcHandle::ROOT).await?;
        let numbered = root.as_ref().filter(|m| m.header.handle == ROOT);
        let like_ours = numbered.and_then(kind).filter(|k| ["htb", "hfsc"].contains(k));
        let classes = match like_ours {
            Some(_) => self.list(Message::GetTrafficClass(TcMessage::with_index(link)), NLM_F_DUMP).await?,
            None => Vec::new(),
        };
        let of_root = classes.iter().filter(|m| m.header.handle.major == ROOT.major);
        let classes: BTreeSet<u16> = of_root.map(|m| m.header.handle.minor).collect();
        let ours = like_ours.filter(|_| classes.contains(&TRUNK.minor));
        let delete = || Message::DelQueueDiscipline(message(link, ROOT, TcHandle::ROOT));
        let Queues::Plan(plan) = wanted else {
            return match ours {
                Some(_) => Ok(self.change(delete(), 0).await?),
                None => Ok(()),
            };
        };
        let kind = if plan.kind == "linux-hfsc" { "hfsc" } else { "htb" };
        let kept = ours == Some(kind);
        if !kept {
            // One with our number cannot be exchanged; any other can, at once.
            if numbered.is_some() {
                self.change(delete(), 0).await?;
            }
            let mut m = message(link, ROOT, TcHandle::ROOT);
            m.attributes = discipline(kind);
            let made = self.change(Message::NewQueueDiscipline(m), NLM_F_CREATE | NLM_F_REPLACE).await;
            made.map_err(|e| if is_lacking(&e) { Refusal::Lacks(kind) } else { e.into() })?;
        }
        let class = |minor, parent, c: &Class| {
            let mut m = message(link, TcHandle { major: ROOT.major, minor }, parent);
            m.attributes = if kind == "hfsc" { hfsc_class(c) } else { htb_class(c) };
            Message::NewTrafficClass(m)
        };
        let burst = plan.queues.values().map(|c| c.burst).max().unwrap_or(LEAST_BURST);
        let trunk = Class { min: plan.rate, max: plan.rate, burst, priority: 0 };
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.change(class(TRUNK.minor, ROOT, &trunk), flags).await?;
        let queues = plan.queues.iter().filter_map(|(n, c)| Some((class_of_queue(*n)?, c)));
        let mut stay = BTreeSet::from([TRUNK.minor]);
        for (minor, c) in queues {
            self.change(class(minor, TRUNK, c), flags).await?;
            stay.insert(minor);
        }
        for minor in classes.into_iter().filter(|n| kept && !stay.contains(n)) {
            let gone = message(link, TcHandle { major: ROOT.major, minor }, TcHandle::UNSPEC);
            self.change(Message::DelTrafficClass(gone), 0).await?;
        }
        Ok(())
    }

    async fn set_policer(&self, link: i32, wanted: &Rate) -> Result<(), Refusal> {
        let there = self.discipline(link, TcHandle::INGRESS).await?;
        let mut others = false;
        if there.is_some() {
            let filters = message(link, TcHandle::UNSPEC, INGRESS_FILTERS);
            let filters = self.list(Message::GetTrafficFilter(filters), NLM_F_DUMP).await?;
            let priority = |m: &TcMessage| (m.header.info >> 16) as u16;
            let ours = |m: &TcMessage| {
                priority(m) == PRIORITY && kind(m).is_some_and(|k| FILTERS.iter().any(|(known, _)| *known == k))
            };
            others = filters.iter().any(|m| !ours(m));
            if filters.iter().any(ours) {
                self.change(Message::DelTrafficFilter(filter(link)), 0).await?;
            } else if wanted.is_unlimited() {
                return Ok(());
            }
        }
        // An operator may have filters there, or a `clsact`, which has another side as well.
        let delete = Message::DelQueueDiscipline(message(link, INGRESS, TcHandle::INGRESS));
        if wanted.is_unlimited() {
            return match there {
                Some(m) if kind(&m) == Some("ingress") && !others => Ok(self.change(delete, 0).await?),
                _ => Ok(()),
            };
        }
        if there.is_none() {
            let mut m = message(link, INGRESS, TcHandle::INGRESS);
            m.attributes = vec![TcAttribute::Kind("ingress".into())];
            let made = self.change(Message::NewQueueDiscipline(m), NLM_F_CREATE | NLM_F_EXCL).await;
            made.map_err(|e| if is_lacking(&e) { Refusal::Lacks("ingress queue") } else { e.into() })?;
        }
        let actions = policer(wanted);
        for (kind, attribute) in FILTERS {
            let mut m = filter(link);
            let options = nest(OPTIONS, &[nest(attribute, &actions)]);
            m.attributes = vec![TcAttribute::Kind(kind.into()), TcAttribute::Other(options)];
            match self.change(Message::NewTrafficFilter(m), NLM_F_CREATE | NLM_F_EXCL).await {
                Err(e) if is_lacking(&e) => {}
                done => return Ok(done?),
            }
        }
        if there.is_none() {
            self.change(delete, 0).await?;
        }
        Err(Refusal::Lacks("filter matchall or basic with action police"))
    }

    /// Asks the kernel for a change.
    async fn change(&self, message: Message, flags: u16) -> Result<(), Error> {
        let mut m = NetlinkMessage::from(message);
        m.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        let mut answers = self.control.clone().request(m)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(e) = answer.payload
                && e.code.is_some()
            {
                return Err(Error::NetlinkError(e));
            }
        }
        Ok(())
    }

    /// What is at a place of a link. Of its own default the kernel says nothing, and without ECHO nothing to who asked.
    async fn discipline(&self, link: i32, place: TcHandle) -> Result<Option<TcMessage>, Error> {
        let asked = Message::GetQueueDiscipline(message(link, TcHandle::UNSPEC, place));
        match self.list(asked, NLM_F_ACK | NLM_F_ECHO).await {
            Err(e) if matches!(errno(&e), Some(Errno::ENOENT | Errno::EINVAL)) => Ok(None),
            found => Ok(found?.pop()),
        }
    }

    /// Asks the kernel for what there is.
    async fn list(&self, message: Message, flags: u16) -> Result<Vec<TcMessage>, Error> {
        let mut m = NetlinkMessage::from(message);
        m.header.flags = NLM_F_REQUEST | flags;
        let mut answers = self.control.clone().request(m)?;
        let mut all = Vec::new();
        while let Some(answer) = answers.next().await {
            match answer.payload {
                NetlinkPayload::InnerMessage(
                    Message::NewQueueDiscipline(m) | Message::NewTrafficClass(m) | Message::NewTrafficFilter(m),
                ) => all.push(m),
                NetlinkPayload::Error(e) if e.code.is_some() => return Err(Error::NetlinkError(e)),
                _ => {}
            }
        }
        Ok(all)
    }
}

fn message(link: i32, handle: TcHandle, parent: TcHandle) -> TcMessage {
    let mut m = TcMessage::with_index(link);
    (m.header.handle, m.header.parent) = (handle, parent);
    m
}

/// The policer's filter, whose protocol is in network byte order.
fn filter(link: i32) -> TcMessage {
    let mut m = message(link, TcHandle::UNSPEC, INGRESS_FILTERS);
    m.header.info = u32::from(PRIORITY) << 16 | u32::from(ALL_PROTOCOLS.to_be());
    m
}

fn kind(m: &TcMessage) -> Option<&str> {
    m.attributes.iter().find_map(|a| match a {
        TcAttribute::Kind(k) => Some(k.as_str()),
        _ => None,
    })
}

fn errno(e: &Error) -> Option<Errno> {
    match e {
        Error::NetlinkError(e) => Some(Errno::from_raw(-e.raw_code())),
        _ => None,
    }
}

/// The kernel has no such kind of thing.
fn is_lacking(e: &Error) -> bool {
    matches!(errno(e), Some(Errno::ENOENT | Errno::EOPNOTSUPP))
}

fn nest(kind: u16, list: &[DefaultNla]) -> DefaultNla {
    let mut bytes = vec![0; list.buffer_len()];
    list.emit(&mut bytes);
    DefaultNla::new(kind, bytes)
}

/// Numbers in the machine's byte order.
fn words(kind: u16, list: &[u32]) -> DefaultNla {
    DefaultNla::new(kind, list.iter().flat_map(|n| n.to_ne_bytes()).collect())
}

fn long(kind: u16, n: u64) -> DefaultNla {
    DefaultNla::new(kind, n.to_ne_bytes().to_vec())
}

/// A rate as a field of 32 bits holds it, in bytes a second.
fn short(rate: u64) -> u32 {
    u32::try_from(rate).unwrap_or(u32::MAX)
}

/// `struct tc_ratespec`: the width of cells of a table, the kind of link, and the rate in bytes a second.
fn rate_spec(rate: u64, cell_log: u8) -> [u32; 3] {
    [u32::from_ne_bytes([cell_log, ETHERNET, 0, 0]), 0, short(rate)]
}

/// How long so many bytes take at so many a second, in the kernel's ticks of 64 ns (/proc/net/psched, the same since
/// 2.6.31).
fn ticks(bytes: u64, rate: u64) -> u64 {
    const A_SECOND: u128 = 1_000_000_000 / 64;
    u64::try_from(u128::from(bytes) * A_SECOND / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}

/// The same of a burst, in bytes or packets: rounded up to whole microseconds, by which tc(8) goes, so that it shows no
/// less than what was asked for.
fn burst_ticks(burst: u64, rate: u64) -> u64 {
    let micros = (u128::from(burst) * 1_000_000).div_ceil(u128::from(rate.max(1)));
    u64::try_from((micros * 1000).div_ceil(64)).unwrap_or(u64::MAX)
}

/// A queueing discipline in which packets without a class, or with one that is not there, go to queue 0.
fn discipline(kind: &str) -> Vec<TcAttribute> {
    let default = class_of_queue(0).unwrap_or(1);
    let options = match kind {
        // `struct tc_hfsc_qopt`.
        "hfsc" => DefaultNla::new(OPTIONS, default.to_ne_bytes().to_vec()),
        // `struct tc_htb_glob`: version, the usual share of a rate that makes a turn, the default, and what is only read.
        _ => nest(OPTIONS, &[words(HTB_INIT, &[3, 10, default.into(), 0, 0])]),
    };
    vec![TcAttribute::Kind(kind.into()), TcAttribute::Other(options)]
}

fn htb_class(c: &Class) -> Vec<TcAttribute> {
    let burst = |rate| short(burst_ticks(c.burst, rate));
    // `struct tc_htb_opt`: both rates, the bursts at each, bytes of a turn, a level that the kernel finds, the priority.
    let [rate, ceil] = [c.min, c.max].map(|r| rate_spec(r, 0));
    let rest = [burst(c.min), burst(c.max), short(c.quantum()), 0, c.priority];
    let mut options = vec![words(HTB_PARAMETERS, &[&rate[..], &ceil, &rest].concat())];
    for (kind, rate) in [(HTB_RATE64, c.min), (HTB_CEIL64, c.max)] {
        options.extend((rate > u32::MAX.into()).then(|| long(kind, rate)));
    }
    vec![TcAttribute::Kind("htb".into()), TcAttribute::Other(nest(OPTIONS, &options))]
}

/// `min` is guaranteed and shares what is left, `max` limits. A curve is a rate of its beginning, how long that is, and
/// the rate from then on, in bytes a second.
fn hfsc_class(c: &Class) -> Vec<TcAttribute> {
    let [real_time, link_sharing, upper] = HFSC_CURVES;
    let of = [(real_time, c.min), (link_sharing, c.min), (upper, c.max)];
    let curves = of.map(|(kind, rate)| words(kind, &[0, 0, short(rate)]));
    vec![TcAttribute::Kind("hfsc".into()), TcAttribute::Other(nest(OPTIONS, &curves))]
}

/// Actions in their order: the kernel limits bytes and packets by one each.
fn policer(r: &Rate) -> Vec<DefaultNla> {
    let mut all = Vec::new();
    if r.bytes > 0 {
        let result = if r.packets > 0 { PIPE } else { UNSPECIFIED };
        // Open vSwitch counts 1,024 bits of burst in a kilobit, at the rate that a field of 32 bits holds: operators' tools
        // expect its figures.
        let burst = ticks(r.byte_burst / 125 * 128, short(r.bytes).into());
        let cells: Vec<u32> = (1..=256).map(|n| short(ticks(n << CELL_LOG, r.bytes))).collect();
        let mut options = vec![
            police_parameters(short(burst), rate_spec(r.bytes, CELL_LOG)),
            words(POLICE_RATE_TABLE, &cells),
            words(POLICE_RESULT, &[result]),
        ];
        options.extend((r.bytes > u32::MAX.into()).then(|| long(POLICE_RATE64, r.bytes)));
        all.push(options);
    }
    if r.packets > 0 {
        all.push(vec![
            police_parameters(0, [0; 3]),
            words(POLICE_RESULT, &[UNSPECIFIED]),
            long(POLICE_PACKET_RATE64, r.packets),
            long(POLICE_PACKET_BURST64, burst_ticks(r.packet_burst, r.packets)),
        ]);
    }
    let police = DefaultNla::new(ACTION_KIND, b"police\0".to_vec());
    (1..).zip(all).map(|(order, o)| nest(order, &[police.clone(), nest(ACTION_OPTIONS, &o)])).collect()
}

/// `struct tc_police`: number, what becomes of what exceeds the rate, and an unused limit; burst, longest packet, rate,
/// peak rate; counters and capabilities, which are only read.
fn police_parameters(burst: u32, rate: [u32; 3]) -> DefaultNla {
    words(POLICE_PARAMETERS, &[&[0, SHOT, 0, burst, LONGEST][..], &rate, &[0; 6]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What tc(8) shows for so many ticks at a rate.
    fn shown(ticks: u64, rate: u64) -> u64 {
        let micros = (ticks as f64 / 15.625) as u32;
        (rate as f64 * f64::from(micros) / 1e6) as u64
    }

    #[test]
    fn bursts_are_shown_with_no_less_than_was_asked_for() {
        let rates = [12_500u64, 250_000, 375_000, 500_000, 625_000_000, 750_000_000, 5_000_000_000, 6_250_000_000];
        for rate in rates {
            for burst in [1564, 125_000, 375_000, 500_000, 625_000, 750_000] {
                let n = shown(burst_ticks(burst, rate), rate);
                // A microsecond more at most.
                assert!((burst..=burst + rate / 1_000_000 + 1).contains(&n), "{burst} at {rate}: {n}");
            }
        }
    }

    #[test]
    fn figures_of_open_vswitch() {
        let r = Rate { bytes: 6_250_000_000, byte_burst: 50_000_000, ..Rate::default() };
        let burst = ticks(r.byte_burst / 125 * 128, short(r.bytes).into());
        assert_eq!(shown(burst, r.bytes), 74_500_000);
        assert_eq!(shown(ticks(1250 / 125 * 128, 12_500), 12_500), 1280);
    }

    #[test]
    fn structures_have_the_kernels_sizes() {
        let c = Class { min: 5_000_000_000, max: 6_250_000_000, burst: 625_000, priority: 3 };
        let TcAttribute::Other(options) = &htb_class(&c)[1] else { panic!("no options") };
        // Three headers, 44 bytes of `struct tc_htb_opt`, and both rates of 64 bits.
        assert_eq!(options.buffer_len(), 4 + (4 + 44) + (4 + 8) + (4 + 8));
        let narrow = Class { min: 1500, max: u32::MAX.into(), ..c };
        let TcAttribute::Other(options) = &htb_class(&narrow)[1] else { panic!("no options") };
        assert_eq!(options.buffer_len(), 4 + (4 + 44));
        let both = Rate { bytes: 1000, byte_burst: 1000, packets: 5, packet_burst: 5, excess: None };
        let sizes: Vec<usize> = policer(&both).iter().map(Emitable::buffer_len).collect();
        let (kind, parameters, result) = (12, 4 + 56, 8);
        assert_eq!(sizes, [8 + kind + parameters + result + 4 + 1024, 8 + kind + parameters + result + 24]);
        assert_eq!(policer(&Rate { packets: 0, ..both }).len(), 1);
    }
}
