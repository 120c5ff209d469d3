//! Multipart requests and replies.

use super::{
    FlowMonitor, FlowUpdate, IpfixStats, PortDesc, PortStats, QueueStats, TableFeatures, Version, ipfix, monitor, port,
    queue,
};
use crate::OfError;
use crate::flow_match::Match;
use crate::ids::{GroupId, MeterId, TableId};
use crate::mods::{FlowMod, Group, MeterConfig};
use crate::port::PortNo;
use crate::wire::{DecodeError, NX_VENDOR, ONF_VENDOR, Put, Reader, Result, flow, group};

/// Which flows to report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowStatsRequest {
    /// Table, [`TableId::ALL`] for all.
    pub table: TableId,
    /// Only flows that output here.
    pub out_port: PortNo,
    /// Only flows that use this group.
    pub out_group: GroupId,
    /// Cookie to look for.
    pub cookie: u64,
    /// Which of its bits count.
    pub cookie_mask: u64,
    /// Only flows within this match.
    pub matches: Match,
}

impl Default for FlowStatsRequest {
    fn default() -> Self {
        FlowStatsRequest {
            table: TableId::ALL,
            out_port: PortNo::ANY,
            out_group: GroupId::ANY,
            cookie: 0,
            cookie_mask: 0,
            matches: Match::new(),
        }
    }
}

/// A flow and its counters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FlowStats {
    /// The flow (command and filters have no meaning here).
    pub flow: FlowMod,
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
    /// Seconds since the last packet.
    pub idle_age: u32,
    /// Seconds since the flow was last modified (OpenFlow 1.0 with Nicira's extensions).
    pub hard_age: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Who the switch is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DescStats {
    /// Manufacturer.
    pub mfr: String,
    /// Hardware.
    pub hw: String,
    /// Software.
    pub sw: String,
    /// Serial number.
    pub serial: String,
    /// Datapath.
    pub dp: String,
}

/// Counters of a table; before 1.3 with its description.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TableStats {
    /// Table.
    pub table: TableId,
    /// Name; empty: it has none.
    pub name: String,
    /// The most flows that it takes.
    pub most: u32,
    /// No flow of it goes on in another table.
    pub last: bool,
    /// Flows in it.
    pub active: u32,
    /// Packets looked up.
    pub lookups: u64,
    /// Packets that hit.
    pub matched: u64,
}

/// Counters of a group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupStats {
    /// Group.
    pub id: GroupId,
    /// Flows and groups that refer to it.
    pub ref_count: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
    /// (packets, bytes) of each bucket.
    pub buckets: Vec<(u64, u64)>,
}

/// What groups the switch can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupFeatures {
    /// Bit per type.
    pub types: u32,
    /// Capability bits.
    pub capabilities: u32,
    /// Most groups of each type.
    pub max_groups: [u32; 4],
    /// Action bits of each type.
    pub actions: [u32; 4],
}

/// Counters of a meter.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MeterStats {
    /// Meter.
    pub id: MeterId,
    /// Flows that use it.
    pub flow_count: u32,
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Age, seconds.
    pub duration_sec: u32,
    /// Age, nanoseconds beyond.
    pub duration_nsec: u32,
    /// (packets, bytes) of each band.
    pub bands: Vec<(u64, u64)>,
}

/// What meters the switch can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MeterFeatures {
    /// Most meters.
    pub max_meters: u32,
    /// Bit per band type.
    pub band_types: u32,
    /// Capability bits.
    pub capabilities: u32,
    /// Most bands a meter.
    pub max_bands: u8,
}

/// A multipart request.
#[derive(Clone, PartialEq, Debug)]
pub enum MultipartRequest {
    /// Who are you.
    Desc,
    /// Flows.
    Flow(FlowStatsRequest),
    /// Sum over flows.
    Aggregate(FlowStatsRequest),
    /// Flows, in OpenFlow 1.0's own form.
    FlowOf10(FlowStatsRequest),
    /// Sum over flows, in OpenFlow 1.0's own form.
    AggregateOf10(FlowStatsRequest),
    /// Tables.
    Table,
    /// Port counters; [`PortNo::ANY`] for all.
    PortStats(PortNo),
    /// Queue counters: port and queue.
    Queue(PortNo, u32),
    /// Queues: port and queue (OpenFlow 1.4).
    QueueDesc(PortNo, u32),
    /// Group counters.
    GroupStats(GroupId),
    /// Groups.
    GroupDesc(GroupId),
    /// Group features.
    GroupFeatures,
    /// Meter counters.
    MeterStats(MeterId),
    /// Meters.
    MeterConfig(MeterId),
    /// Meter features.
    MeterFeatures,
    /// Table features, uninterpreted.
    TableFeatures(Vec<u8>),
    /// Ports; [`PortNo::ANY`] for all.
    PortDesc(PortNo),
    /// Flow monitors.
    FlowMonitor(Vec<FlowMonitor>),
    /// Counters of the bridge's IPFIX exporter.
    IpfixBridge,
    /// Counters of the IPFIX exporters of `sample` actions.
    IpfixFlow,
    /// Anything else: type and body.
    Other(u16, Vec<u8>),
}

/// A multipart reply.
#[derive(Clone, PartialEq, Debug)]
pub enum MultipartReply {
    /// Who we are.
    Desc(DescStats),
    /// Flows.
    Flow(Vec<FlowStats>),
    /// Sum over flows: packets, bytes, flows.
    Aggregate(u64, u64, u32),
    /// Flows, in OpenFlow 1.0's own form.
    FlowOf10(Vec<FlowStats>),
    /// Sum over flows, in OpenFlow 1.0's own form.
    AggregateOf10(u64, u64, u32),
    /// Tables.
    Table(Vec<TableStats>),
    /// Port counters.
    PortStats(Vec<PortStats>),
    /// Queue counters.
    Queue(Vec<QueueStats>),
    /// Queues, each with its port (OpenFlow 1.4).
    QueueDesc(Vec<(PortNo, u32)>),
    /// Groups counters.
    GroupStats(Vec<GroupStats>),
    /// Groups.
    GroupDesc(Vec<Group>),
    /// Group features.
    GroupFeatures(GroupFeatures),
    /// Meter counters.
    MeterStats(Vec<MeterStats>),
    /// Meters.
    MeterConfig(Vec<MeterConfig>),
    /// Meter features.
    MeterFeatures(MeterFeatures),
    /// What tables' flows can match and do.
    TableFeatures(Vec<TableFeatures>),
    /// Ports.
    PortDesc(Vec<PortDesc>),
    /// What happened to flows.
    FlowMonitor(Vec<FlowUpdate>),
    /// Counters of the bridge's IPFIX exporter.
    IpfixBridge(IpfixStats),
    /// Counters of the IPFIX exporters of `sample` actions.
    IpfixFlow(Vec<IpfixStats>),
    /// Anything else: type and body.
    Other(u16, Vec<u8>),
}

pub(super) fn put_request(o: &mut Vec<u8>, q: &MultipartRequest, v: Version) {
    use MultipartRequest as Q;
    let kind = match q {
        Q::Desc => 0,
        Q::Flow(_) | Q::FlowOf10(_) => 1,
        Q::Aggregate(_) | Q::AggregateOf10(_) => 2,
        Q::Table => 3,
        Q::PortStats(_) => 4,
        Q::Queue(..) => 5,
        Q::QueueDesc(..) => 15,
        Q::GroupStats(_) => 6,
        Q::GroupDesc(_) => 7,
        Q::GroupFeatures => 8,
        Q::MeterStats(_) => 9,
        Q::MeterConfig(_) => 10,
        Q::MeterFeatures => 11,
        Q::TableFeatures(_) => 12,
        Q::PortDesc(_) => 13,
        Q::FlowMonitor(_) if monitor::experimenter(v).is_some() => 0xffff,
        Q::IpfixBridge | Q::IpfixFlow => 0xffff,
        Q::FlowMonitor(_) => 16,
        Q::Other(k, _) => *k,
    };
    o.p16(kind);
    o.zeros(6);
    match q {
        Q::Flow(f) | Q::Aggregate(f) | Q::FlowOf10(f) | Q::AggregateOf10(f) => flow::put_stats_request(o, f, v),
        Q::PortStats(p) => {
            o.p32(p.to_u32());
            o.zeros(4);
        }
        Q::PortDesc(p) if v >= Version::Of15 => {
            o.p32(p.to_u32());
            o.zeros(4);
        }
        Q::Queue(p, n) | Q::QueueDesc(p, n) => {
            o.p32(p.to_u32());
            o.p32(*n);
        }
        Q::MeterStats(m) | Q::MeterConfig(m) => {
            o.p32(m.0);
            o.zeros(4);
        }
        Q::GroupStats(g) => {
            o.p32(g.0);
            o.zeros(4);
        }
        Q::GroupDesc(g) if v >= Version::Of15 => {
            o.p32(g.0);
            o.zeros(4);
        }
        Q::FlowMonitor(l) => {
            put_experimenter(o, monitor::experimenter(v));
            l.iter().for_each(|m| monitor::put_request(o, m, v));
        }
        Q::IpfixBridge => put_experimenter(o, Some((NX_VENDOR, ipfix::BRIDGE))),
        Q::IpfixFlow => put_experimenter(o, Some((NX_VENDOR, ipfix::FLOW))),
        Q::TableFeatures(b) | Q::Other(_, b) => o.extend_from_slice(b),
        _ => {}
    }
}

fn request_port(r: &mut Reader<'_>) -> Result<PortNo> {
    PortNo::from_u32(r.u32()?).ok_or_else(|| DecodeError::new(OfError::RequestBadPort, "port out of range"))
}

pub(super) fn pull_request(mut r: Reader<'_>, v: Version) -> Result<MultipartRequest> {
    use MultipartRequest as Q;
    let kind = r.u16()?;
    r.skip(6)?;
    Ok(match kind {
        0 => Q::Desc,
        1 => Q::Flow(flow::pull_stats_request(r, v)?),
        2 => Q::Aggregate(flow::pull_stats_request(r, v)?),
        3 => Q::Table,
        4 => Q::PortStats(request_port(&mut r)?),
        5 => Q::Queue(request_port(&mut r)?, r.u32()?),
        6 => Q::GroupStats(GroupId(r.u32()?)),
        7 if v >= Version::Of15 => Q::GroupDesc(GroupId(r.u32()?)),
        7 => Q::GroupDesc(GroupId::ALL),
        8 if v >= Version::Of12 => Q::GroupFeatures,
        9 if v >= Version::Of13 => Q::MeterStats(MeterId(r.u32()?)),
        10 if v >= Version::Of13 => Q::MeterConfig(MeterId(r.u32()?)),
        11 if v >= Version::Of13 => Q::MeterFeatures,
        12 if v >= Version::Of13 => Q::TableFeatures(r.buf.to_vec()),
        13 if v >= Version::Of15 => Q::PortDesc(request_port(&mut r)?),
        13 => Q::PortDesc(PortNo::ANY),
        15 if v >= Version::Of14 => Q::QueueDesc(request_port(&mut r)?, r.u32()?),
        16 if v >= Version::Of14 => Q::FlowMonitor(all(r, |r| monitor::pull_request(r, v))?),
        0xffff if is_monitor(r, v) => {
            r.skip(8)?;
            Q::FlowMonitor(all(r, |r| monitor::pull_request(r, v))?)
        }
        0xffff => match ipfix::subtype(r) {
            Some(ipfix::BRIDGE) => Q::IpfixBridge,
            Some(_) => Q::IpfixFlow,
            None => return Err(experimenter(r)),
        },
        k => Q::Other(k, r.buf.to_vec()),
    })
}

fn put_experimenter(o: &mut Vec<u8>, of: Option<(u32, u32)>) {
    if let Some((vendor, subtype)) = of {
        o.p32(vendor);
        o.p32(subtype);
    }
}

/// Whether an experimenter's body, as this version has it since 1.1, is one of flow monitors.
fn is_monitor(mut r: Reader<'_>, v: Version) -> bool {
    let of = r.u32().and_then(|vendor| Ok((vendor, r.u32()?)));
    v > Version::Of10 && of.ok().is_some_and(|of| monitor::experimenter(v) == Some(of))
}

/// Why another experimenter's request is refused.
fn experimenter(mut r: Reader<'_>) -> DecodeError {
    match r.u32() {
        Ok(vendor @ (NX_VENDOR | ONF_VENDOR)) => DecodeError::new(
            OfError::RequestBadSubtype,
            format!("there is no multipart request of experimenter {vendor:#x}"),
        ),
        Ok(vendor) => {
            DecodeError::new(OfError::RequestBadExperimenter, format!("experimenter {vendor:#x} is not supported"))
        }
        Err(e) => e,
    }
}

pub(super) fn put_text(o: &mut Vec<u8>, s: &str, n: usize) {
    let mut b: Vec<u8> = s.bytes().take(n - 1).collect();
    b.resize(n, 0);
    o.extend_from_slice(&b);
}

impl MultipartReply {
    pub(super) fn kind(&self) -> u16 {
        match self {
            Self::Desc(_) => 0,
            Self::Flow(_) | Self::FlowOf10(_) => 1,
            Self::Aggregate(..) | Self::AggregateOf10(..) => 2,
            Self::Table(_) => 3,
            Self::PortStats(_) => 4,
            Self::Queue(_) => 5,
            Self::QueueDesc(_) => 15,
            Self::GroupStats(_) => 6,
            Self::GroupDesc(_) => 7,
            Self::GroupFeatures(_) => 8,
            Self::MeterStats(_) => 9,
            Self::MeterConfig(_) => 10,
            Self::MeterFeatures(_) => 11,
            Self::TableFeatures(_) => 12,
            Self::PortDesc(_) => 13,
            Self::FlowMonitor(_) => 16,
            Self::IpfixBridge(_) | Self::IpfixFlow(_) => 0xffff,
            Self::Other(k, _) => *k,
        }
    }

    /// The reply's entries as bytes, one each, so that a long reply can be split between entries.
    pub(super) fn entries(&self, v: Version) -> (u16, Vec<Vec<u8>>) {
        fn each<T>(list: &[T], put: impl Fn(&mut Vec<u8>, &T)) -> Vec<Vec<u8>> {
            list.iter()
                .map(|x| {
                    let mut o = Vec::new();
                    put(&mut o, x);
                    o
                })
                .collect()
        }
        let parts = match self {
            Self::Desc(d) => each(std::slice::from_ref(d), |o, d| {
                for (s, n) in [(&d.mfr, 256), (&d.hw, 256), (&d.sw, 256), (&d.serial, 32), (&d.dp, 256)] {
                    put_text(o, s, n);
                }
            }),
            Self::Flow(l) | Self::FlowOf10(l) => each(l, |o, s| flow::put_flow_stats(o, s, v)),
            Self::Aggregate(p, b, f) | Self::AggregateOf10(p, b, f) => {
                each(&[(*p, *b, *f)], |o, a| flow::put_aggregate(o, *a, v))
            }
            Self::Table(l) => each(l, |o, t| put_table(o, t, v)),
            Self::PortStats(l) => each(l, |o, s| port::put_stats(o, s, v)),
            Self::Queue(l) => each(l, |o, s| queue::put_stats(o, s, v)),
            Self::QueueDesc(l) => each(l, |o, (port, n)| queue::put_queue(o, *port, *n, v)),
            Self::GroupStats(l) => each(l, |o, s| put_group_stats(o, s, v)),
            Self::GroupDesc(l) => each(l, |o, g| group::put_group_desc(o, g, v)),
            Self::GroupFeatures(f) => each(&[*f], |o, f| {
                o.p32(f.types);
                o.p32(f.capabilities);
                f.max_groups.iter().chain(&f.actions).for_each(|x| o.p32(*x));
            }),
            Self::MeterStats(l) => each(l, put_meter_stats),
            Self::MeterConfig(l) => each(l, group::put_meter_config),
            Self::MeterFeatures(f) => each(&[*f], |o, f| {
                o.p32(f.max_meters);
                o.p32(f.band_types);
                o.p32(f.capabilities);
                o.p8(f.max_bands);
                // The features that 1.5 adds are left out, as Open vSwitch neither sends nor takes them.
                o.zeros(3);
            }),
            Self::PortDesc(l) => each(l, |o, p| port::put_desc(o, p, v)),
            Self::FlowMonitor(l) => each(l, |o, u| monitor::put_update(o, u, v)),
            Self::IpfixBridge(s) => each(std::slice::from_ref(s), |o, s| s.put(o)),
            Self::IpfixFlow(l) => each(l, |o, s| s.put(o)),
            Self::TableFeatures(l) => each(l, |o, t| t.put(o, v)),
            Self::Other(_, b) => vec![b.clone()],
        };
        (self.kind(), parts)
    }
}

fn put_pairs(o: &mut Vec<u8>, l: &[(u64, u64)]) {
    for (p, b) in l {
        o.p64(*p);
        o.p64(*b);
    }
}

/// Bytes of a table's entry before the count of its flows: 1.1 and 1.2 describe it there (sections A.3.5.3).
fn table_description(v: Version) -> usize {
    match v {
        Version::Of11 => 68,
        Version::Of12 => 108,
        _ => 4,
    }
}

/// Appends a table's name: 32 bytes, filled with zeros, the last of which is always zero.
pub(crate) fn put_table_name(o: &mut Vec<u8>, name: &str) {
    let at = o.len();
    o.extend_from_slice(name.as_bytes().get(..31).unwrap_or(name.as_bytes()));
    o.resize(at + 32, 0);
}

/// Fields of OpenFlow 1.2 (its section A.2.3.7) that can be matched: all from the ingress port to the class of MPLS,
/// but for the physical port.
const FIELDS_OF_12: u64 = 0xf_ffff_fffd;
/// Of these, those that can be written: not the EtherType and the IP protocol.
const WRITABLE_OF_12: u64 = FIELDS_OF_12 & !(1 << 5 | 1 << 10);
/// Actions of OpenFlow 1.2 (its section A.2.5): output, times to live, tags and labels, queue, group, fields.
const ACTIONS_OF_12: u32 = 0x03ff_8001;
/// Instructions of OpenFlow 1.2 (its section A.2.4): metadata, and write, apply and clear actions; and going on.
const INSTRUCTIONS_OF_12: u32 = 0x3c;
const GOTO: u32 = 2;

fn put_table(o: &mut Vec<u8>, t: &TableStats, v: Version) {
    let start = o.len();
    o.p8(t.table.0);
    if v < Version::Of13 {
        o.zeros(7);
        put_table_name(o, &t.name);
        if v == Version::Of12 {
            [FIELDS_OF_12, FIELDS_OF_12].into_iter().for_each(|bits| o.p64(bits));
            [ACTIONS_OF_12, ACTIONS_OF_12].into_iter().for_each(|bits| o.p32(bits));
            [WRITABLE_OF_12, WRITABLE_OF_12, u64::MAX, u64::MAX].into_iter().for_each(|bits| o.p64(bits));
            o.p32(INSTRUCTIONS_OF_12 | if t.last { 0 } else { GOTO });
        }
        o.zeros(table_description(v) - 4 - (o.len() - start));
        o.p32(t.most);
    }
    o.zeros(table_description(v) - (o.len() - start));
    o.p32(t.active);
    o.p64(t.lookups);
    o.p64(t.matched);
}

/// Groups tell their age since 1.3, and in Nicira's form for 1.0.
fn groups_have_ages(v: Version) -> bool {
    !matches!(v, Version::Of11 | Version::Of12)
}

fn put_group_stats(o: &mut Vec<u8>, s: &GroupStats, v: Version) {
    let start = o.len();
    o.p16(0);
    o.zeros(2);
    o.p32(s.id.0);
    o.p32(s.ref_count);
    o.zeros(4);
    o.p64(s.packets);
    o.p64(s.bytes);
    if groups_have_ages(v) {
        o.p32(s.duration_sec);
        o.p32(s.duration_nsec);
    }
    put_pairs(o, &s.buckets);
    o.patch_len(start, start);
}

fn put_meter_stats(o: &mut Vec<u8>, s: &MeterStats) {
    o.p32(s.id.0);
    o.p16(40 + 16 * s.bands.len() as u16);
    o.zeros(6);
    o.p32(s.flow_count);
    o.p64(s.packets);
    o.p64(s.bytes);
    o.p32(s.duration_sec);
    o.p32(s.duration_nsec);
    put_pairs(o, &s.bands);
}

fn pull_pairs(mut r: Reader<'_>) -> Result<Vec<(u64, u64)>> {
    let mut v = Vec::new();
    while !r.is_empty() {
        v.push((r.u64()?, r.u64()?));
    }
    Ok(v)
}

pub(super) fn all<'a, T>(mut r: Reader<'a>, mut one: impl FnMut(&mut Reader<'a>) -> Result<T>) -> Result<Vec<T>> {
    let mut v = Vec::new();
    while !r.is_empty() {
        v.push(one(&mut r)?);
    }
    Ok(v)
}

pub(super) fn entry<'a>(r: &mut Reader<'a>, len: usize, read: usize, what: &str) -> Result<Reader<'a>> {
    r.sub(len.checked_sub(read).ok_or_else(|| DecodeError::len(what))?)
}

pub(super) fn pull_text(r: &mut Reader<'_>, n: usize) -> Result<String> {
    Ok(String::from_utf8_lossy(r.take(n)?).trim_end_matches('\0').to_string())
}

impl DescStats {
    pub(super) fn pull(mut r: Reader<'_>) -> Result<DescStats> {
        Ok(DescStats {
            mfr: pull_text(&mut r, 256)?,
            hw: pull_text(&mut r, 256)?,
            sw: pull_text(&mut r, 256)?,
            serial: pull_text(&mut r, 32)?,
            dp: pull_text(&mut r, 256)?,
        })
    }
}

/// Decodes a reply's body; returns (more, body).
pub(super) fn pull_reply(mut r: Reader<'_>, v: Version) -> Result<(bool, MultipartReply)> {
    let kind = r.u16()?;
    let more = r.u16()? & 1 != 0;
    r.skip(4)?;
    Ok((more, MultipartReply::pull(kind, r, v)?))
}

impl MultipartReply {
    /// Reads counters of IPFIX exporters, of a bridge's ([`ipfix::BRIDGE`]) or of those of flows.
    pub(super) fn pull_ipfix(subtype: u32, mut r: Reader<'_>) -> Result<MultipartReply> {
        Ok(match subtype {
            ipfix::BRIDGE => Self::IpfixBridge(IpfixStats::pull(&mut r)?),
            _ => Self::IpfixFlow(all(r, IpfixStats::pull)?),
        })
    }

    /// Reads a body of a kind.
    pub(super) fn pull(kind: u16, mut r: Reader<'_>, v: Version) -> Result<MultipartReply> {
        use MultipartReply as P;
        Ok(match kind {
            0 => P::Desc(DescStats::pull(r)?),
            1 => P::Flow(all(r, |r| {
                let len = usize::from(r.u16()?);
                flow::pull_flow_stats(entry(r, len, 2, "flow statistics")?, v)
            })?),
            2 => {
                let (p, b, f) = flow::pull_aggregate(r, v)?;
                P::Aggregate(p, b, f)
            }
            3 => P::Table(all(r, |r| {
                let table = TableId(r.u8()?);
                r.skip(table_description(v) - 1)?;
                let (active, lookups, matched) = (r.u32()?, r.u64()?, r.u64()?);
                Ok(TableStats { table, active, lookups, matched, ..TableStats::default() })
            })?),
            4 => P::PortStats(all(r, |r| port::pull_stats(r, v))?),
            5 => P::Queue(all(r, |r| queue::pull_stats(r, v))?),
            15 if v >= Version::Of14 => P::QueueDesc(all(r, queue::pull_desc)?),
            6 => P::GroupStats(all(r, |r| {
                let len = usize::from(r.u16()?);
                let mut b = entry(r, len, 2, "group statistics")?;
                b.skip(2)?;
                let (id, ref_count) = (b.u32()?, b.u32()?);
                b.skip(4)?;
                let (packets, bytes) = (b.u64()?, b.u64()?);
                let ages = groups_have_ages(v);
                let (duration_sec, duration_nsec) = if ages { (b.u32()?, b.u32()?) } else { (0, 0) };
                Ok(GroupStats {
                    id: GroupId(id),
                    ref_count,
                    packets,
                    bytes,
                    duration_sec,
                    duration_nsec,
                    buckets: pull_pairs(b)?,
                })
            })?),
            7 => P::GroupDesc(all(r, |r| group::pull_group_desc(r, v))?),
            8 => {
                let mut f = GroupFeatures { types: r.u32()?, capabilities: r.u32()?, ..Default::default() };
                for x in f.max_groups.iter_mut().chain(&mut f.actions) {
                    *x = r.u32()?;
                }
                P::GroupFeatures(f)
            }
            9 => P::MeterStats(all(r, |r| {
                let id = r.u32()?;
                let len = usize::from(r.u16()?);
                let mut b = entry(r, len, 6, "meter statistics")?;
                b.skip(6)?;
                let flow_count = b.u32()?;
                let (packets, bytes) = (b.u64()?, b.u64()?);
                let (duration_sec, duration_nsec) = (b.u32()?, b.u32()?);
                Ok(MeterStats {
                    id: MeterId(id),
                    flow_count,
                    packets,
                    bytes,
                    duration_sec,
                    duration_nsec,
                    bands: pull_pairs(b)?,
                })
            })?),
            10 => P::MeterConfig(all(r, group::pull_meter_config)?),
            11 => P::MeterFeatures(MeterFeatures {
                max_meters: r.u32()?,
                band_types: r.u32()?,
                capabilities: r.u32()?,
                max_bands: r.u8()?,
            }),
            12 => P::TableFeatures(TableFeatures::pull_all(r.buf)?),
            13 => P::PortDesc(all(r, |r| port::pull_desc(r, v))?),
            0xffff if is_monitor(r, v) => {
                r.skip(8)?;
                Self::pull(16, r, v)?
            }
            0xffff if let Some(subtype) = ipfix::subtype(r) => {
                r.skip(8)?;
                Self::pull_ipfix(subtype, r)?
            }
            16 => P::FlowMonitor(all(r, |r| {
                let len = usize::from(r.u16()?);
                monitor::pull_update(entry(r, len, 2, "flow update")?, v)
            })?),
            k => P::Other(k, r.buf.to_vec()),
        })
    }
}
