//! Hairpin of load balancers: a client that is one of the backends of the service that it calls.

use super::{Backend, Connections, Key, Seen, Value, cookie, emit, is_local, local_datapaths, row, templated};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use openflow_rs::action::{CtAction, LearnAction, LearnDst, LearnSpec, LearnSrc, ZoneSpec};
use openflow_rs::{Action, FieldId, Match, NatRange, NatSpec, Subfield};
use ovn_schema::sb::{self, TableId};
use ovn_schema::{DatapathKey, Uuid};
use std::net::{IpAddr, SocketAddr};

/// `IP` or `IP:PORT`, IPv6 in brackets.
fn endpoint(text: &str) -> Option<(IpAddr, Option<u16>)> {
    if let Ok(s) = text.parse::<SocketAddr>() {
        return Some((s.ip(), Some(s.port())));
    }
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().map(|ip| (ip, None))
}

/// Where a load balancer's packets keep the address and port that they were sent to.
const ORIGINAL_IP4: FieldId = FieldId::Reg4;
const ORIGINAL_IP6: FieldId = FieldId::XxReg1;
const ORIGINAL_PORT: FieldId = FieldId::Reg2;

struct Fields {
    ether: u128,
    src: FieldId,
    dst: FieldId,
    original: FieldId,
}

fn fields(ip: IpAddr) -> (Fields, u128) {
    match ip {
        IpAddr::V4(a) => (
            Fields { ether: 0x0800, src: FieldId::IpSrc, dst: FieldId::IpDst, original: ORIGINAL_IP4 },
            u128::from(u32::from(a)),
        ),
        IpAddr::V6(a) => (
            Fields { ether: 0x86dd, src: FieldId::Ipv6Src, dst: FieldId::Ipv6Dst, original: ORIGINAL_IP6 },
            u128::from(a),
        ),
    }
}

fn transport(protocol: &str) -> (u128, FieldId, FieldId) {
    match protocol {
        "udp" => (17, FieldId::UdpSrc, FieldId::UdpDst),
        "sctp" => (132, FieldId::SctpSrc, FieldId::SctpDst),
        _ => (6, FieldId::TcpSrc, FieldId::TcpDst),
    }
}

pub(super) fn run(id: Uuid, view: &mut Seen<'_>) {
    let Some(lb) = row::<sb::LoadBalancer>(view, TableId::LoadBalancer, id) else { return };
    let mut datapaths: Vec<Uuid> = lb.datapaths.iter().copied().filter(|d| is_local(view, *d)).collect();
    for g in [lb.datapath_group, lb.ls_datapath_group, lb.lr_datapath_group].into_iter().flatten() {
        datapaths.extend(local_datapaths(view, g));
    }
    if datapaths.is_empty() {
        return;
    }
    // Routers have no hairpins.
    let bindings = datapaths.iter().filter_map(|d| row::<sb::DatapathBinding>(view, TableId::DatapathBinding, *d));
    let switches = bindings.filter(|d| crate::input::model::is_switch(d));
    let keys: Vec<DatapathKey> = switches.map(|d| d.key()).collect();
    let protocol = lb.protocol.as_deref().unwrap_or("tcp");
    let flushes = ovn_schema::options::flag(&lb.options, "ct_flush");
    for (vip, backends) in &lb.vips {
        let (vip, backends) = (templated(view, vip), templated(view, backends));
        let Some((vip_ip, vip_port)) = endpoint(&vip) else { continue };
        let source = lb.options.get("hairpin_snat_ip").and_then(|list| {
            list.split_whitespace().filter_map(|w| w.parse::<IpAddr>().ok()).find(|ip| ip.is_ipv4() == vip_ip.is_ipv4())
        });
        for b in backends.split(',').filter_map(|b| endpoint(b.trim())) {
            if b.0.is_ipv4() == vip_ip.is_ipv4() {
                backend(id, (vip_ip, vip_port), b, source.unwrap_or(vip_ip), protocol, view);
                if flushes {
                    let connections = Backend {
                        vip: (vip_ip, vip_port.unwrap_or(0)),
                        backend: (b.0, b.1.unwrap_or(0)),
                        protocol: vip_port.map_or(0, |_| transport(protocol).0 as u8),
                    };
                    view.emit(Key::Connections(Box::new(Connections::Backend(connections))), Value::Connections);
                }
            }
        }
        translate(id, (vip_ip, vip_port), source, protocol, &keys, view);
    }
}

/// A packet of a backend to itself is a hairpin; its reply is learned from it.
fn backend(
    id: Uuid,
    vip: (IpAddr, Option<u16>),
    backend: (IpAddr, Option<u16>),
    source: IpAddr,
    protocol: &str,
    view: &mut Seen<'_>,
) {
    let (f, address) = fields(backend.0);
    let (_, vip_address) = fields(vip.0);
    let (proto, tp_src, tp_dst) = transport(protocol);
    let mut m = Match::new().with_masked(FieldId::CtMark, 2, 2).with(FieldId::EthType, f.ether);
    m.set(f.src, address).set(f.dst, address).set(f.original, vip_address);
    let imm = |v: u128, bits: u32| LearnSrc::Imm(v, bits);
    let same = |field: FieldId| LearnSpec {
        src: LearnSrc::Field(Subfield::full(field)),
        dst: LearnDst::Match(Subfield::full(field)),
    };
    let want = |field: FieldId, v: u128| {
        let s = Subfield::full(field);
        LearnSpec { src: imm(v, s.n_bits), dst: LearnDst::Match(s) }
    };
    let (_, source_address) = fields(source);
    let mut specs =
        vec![same(FieldId::Metadata), want(FieldId::EthType, f.ether), same(f.src), want(f.dst, source_address)];
    if let (Some(port), Some(vip_port)) = (backend.1, vip.1) {
        m.set(FieldId::IpProto, proto).set(tp_dst, u128::from(port));
        m.set_masked(ORIGINAL_PORT, u128::from(vip_port), 0xffff);
        specs.push(want(FieldId::IpProto, proto));
        specs.push(LearnSpec {
            src: LearnSrc::Field(Subfield::full(tp_dst)),
            dst: LearnDst::Match(Subfield::full(tp_src)),
        });
    } else {
        specs.push(same(FieldId::IpProto));
    }
    let bit = flag::LOOKUP_LB_HAIRPIN.trailing_zeros();
    specs.push(LearnSpec { src: imm(1, 1), dst: LearnDst::Load(of::bits(of::FLAGS, bit, bit)) });
    let learn = LearnAction {
        table: t::CHK_LB_HAIRPIN_REPLY,
        cookie: cookie(id).into(),
        delete_learned: true,
        specs,
        ..LearnAction::default()
    };
    let actions = vec![of::set_flags(flag::LOOKUP_LB_HAIRPIN), Action::Learn(Box::new(learn))];
    emit(view, t::CHK_LB_HAIRPIN, 100, m, cookie(id), actions);
}

/// The source of a hairpin becomes the service's address, so that the reply comes back through the load balancer.
fn translate(
    id: Uuid,
    vip: (IpAddr, Option<u16>),
    source: Option<IpAddr>,
    protocol: &str,
    datapaths: &[DatapathKey],
    view: &mut Seen<'_>,
) {
    let (f, vip_address) = fields(vip.0);
    let to = source.unwrap_or(vip.0);
    let snat = |commit| {
        let range = NatRange { addr: Some((to, to)), port: None };
        Action::Ct(Box::new(CtAction {
            commit,
            zone: ZoneSpec::Field(of::bits(of::SNAT_ZONE, 0, 15)),
            nat: Some(NatSpec { src: true, range, ..NatSpec::default() }),
            ..CtAction::default()
        }))
    };
    let mut m = Match::new().with(FieldId::EthType, f.ether).with(f.original, vip_address);
    let mut priority = 90;
    if let Some(port) = vip.1 {
        let (proto, _, _) = transport(protocol);
        m.set(FieldId::IpProto, proto).set_masked(ORIGINAL_PORT, u128::from(port), 0xffff);
        priority = 100;
    }
    if source.is_none() {
        emit(view, t::CT_SNAT_HAIRPIN, priority, m, cookie(id), vec![snat(true)]);
        return;
    }
    // An address of its own: in the load balancer's datapaths only, since another one may have the same service.
    for dp in datapaths {
        let m = m.clone().with(of::DATAPATH, (*dp).into());
        emit(view, t::CT_SNAT_HAIRPIN, 200, m, cookie(id), vec![snat(true)]);
    }
}
