//! Actions with arguments.

use super::{Error, PORT_SECURITY, Site, controller, learn, look_up, operand, options, resubmit, with_arguments};
use crate::encode::of::{self, flag};
use crate::encode::tables;
use logical_flow::action::{Argument, Call, Function, Value};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::{Action, Bucket, FieldId, Group, GroupType, PortNo, Subfield};

/// The codes by which the controller knows what a packet was sent to it for: the first four bytes of the
/// user data of `controller` actions, as in OVN 26.03.
pub mod opcode {
    #![allow(missing_docs, reason = "the codes carry the actions' names")]
    pub const ARP: u8 = 0x00;
    pub const PUT_ARP: u8 = 0x01;
    pub const PUT_DHCP_OPTS: u8 = 0x02;
    pub const ND_NA: u8 = 0x03;
    pub const PUT_ND: u8 = 0x04;
    pub const PUT_DHCPV6_OPTS: u8 = 0x05;
    pub const DNS_LOOKUP: u8 = 0x06;
    pub const LOG: u8 = 0x07;
    pub const PUT_ND_RA_OPTS: u8 = 0x08;
    pub const ND_NS: u8 = 0x09;
    pub const ICMP: u8 = 0x0a;
    pub const TCP_RESET: u8 = 0x0b;
    pub const ND_NA_ROUTER: u8 = 0x0c;
    pub const ICMP4_ERROR: u8 = 0x0e;
    pub const EVENT: u8 = 0x0f;
    pub const IGMP: u8 = 0x10;
    pub const BIND_VPORT: u8 = 0x11;
    pub const HANDLE_SVC_CHECK: u8 = 0x12;
    pub const HANDLE_DHCPV6_REPLY: u8 = 0x13;
    pub const ICMP6_ERROR: u8 = 0x14;
    pub const REJECT: u8 = 0x16;
    pub const HANDLE_BFD_MSG: u8 = 0x17;
    pub const SCTP_ABORT: u8 = 0x18;
    pub const PUT_FDB: u8 = 0x19;
    pub const ACTIVATION_STRATEGY: u8 = 0x1a;
    pub const DHCP_RELAY_REQ_CHK: u8 = 0x1c;
    pub const DHCP_RELAY_RESP_CHK: u8 = 0x1d;
    pub const PUT_ICMP4_INNER_SRC: u8 = 0x1e;
    pub const PUT_ICMP4_INNER_DST: u8 = 0x1f;
    /// Isthmus' own, far from OVN's: a next hop that the controller asked has answered.
    pub const NEXT_HOP_ANSWERED: u8 = 0x80;

    /// The name of a code, as ovn-controller logs it.
    pub fn name(code: u8) -> Option<&'static str> {
        Some(match code {
            ARP => "ARP",
            PUT_ARP => "PUT_ARP",
            PUT_DHCP_OPTS => "PUT_DHCP_OPTS",
            ND_NA => "ND_NA",
            PUT_ND => "PUT_ND",
            PUT_DHCPV6_OPTS => "PUT_DHCPV6_OPTS",
            DNS_LOOKUP => "DNS_LOOKUP",
            LOG => "LOG",
            PUT_ND_RA_OPTS => "PUT_ND_RA_OPTS",
            ND_NS => "ND_NS",
            ICMP => "ICMP",
            TCP_RESET => "TCP_RESET",
            ND_NA_ROUTER => "ND_NA_ROUTER",
            ICMP4_ERROR => "ICMP4_ERROR",
            EVENT => "EVENT",
            IGMP => "IGMP",
            BIND_VPORT => "BIND_VPORT",
            HANDLE_SVC_CHECK => "HANDLE_SVC_CHECK",
            HANDLE_DHCPV6_REPLY => "DHCP6_SERVER",
            ICMP6_ERROR => "ICMP6_ERROR",
            REJECT => "REJECT",
            HANDLE_BFD_MSG => "BFD_MSG",
            SCTP_ABORT => "SCTP_ABORT",
            PUT_FDB => "PUT_FDB",
            ACTIVATION_STRATEGY => "ACTIVATION_STRATEGY",
            DHCP_RELAY_REQ_CHK => "DHCP_RELAY_REQ_CHK",
            DHCP_RELAY_RESP_CHK => "DHCP_RELAY_RESP_CHK",
            PUT_ICMP4_INNER_SRC => "PUT_ICMP4_INNER_IP4_SRC",
            NEXT_HOP_ANSWERED => "NEXT_HOP_ANSWERED",
            _ => return None,
        })
    }
}

/// The start of the user data: the code and four bytes of zero.
pub(super) fn header(code: u8) -> Vec<u8> {
    vec![0, 0, 0, code, 0, 0, 0, 0]
}

/// The user data of an action whose result the controller writes into a bit of a field.
fn result_header(code: u8, result: Subfield) -> Vec<u8> {
    let mut data = header(code);
    data.extend(of::field_header(result.field));
    data.extend(result.ofs.to_be_bytes());
    data
}

fn whole(f: FieldId) -> Subfield {
    Subfield::full(f)
}

/// Where `get_nd` looks: the register's bits that hold a look-up's IPv4 address and connection tuple.
const SCRATCH: FieldId = FieldId::XxReg1;

pub(super) fn encode(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    use Function as F;
    match call.function {
        F::GetArp
        | F::GetNd
        | F::PutArp
        | F::PutNd
        | F::PutFdb
        | F::LookupArp
        | F::LookupArpIp
        | F::LookupNd
        | F::LookupNdIp
        | F::LookupFdb
        | F::GetFdb
        | F::GetRemoteFdb
        | F::ChkEvpnArp => neighbour(call, site, out),
        F::CheckInPortSec
        | F::CheckOutPortSec
        | F::ChkLbHairpin
        | F::ChkLbHairpinReply
        | F::ChkLbAff
        | F::ChkEcmpNh
        | F::ChkEcmpNhMac => check(call, out),
        F::CtNwDst | F::CtIp6Dst | F::CtTpDst | F::CtProto | F::CtStateSave => original(call, out),
        F::PutDhcpOpts
        | F::PutDhcpv6Opts
        | F::PutNdRaOpts
        | F::DnsLookup
        | F::DhcpRelayReqChk
        | F::DhcpRelayRespChk => service(call, site, out),
        F::CommitEcmpNh => learn::next_hop(call, out),
        F::CommitLbAff => learn::affinity(call, site, out),
        F::Select => select(call, site, out),
        F::FwdGroup => forwarding_group(call, site, out),
        _ => simple(call, site, out),
    }
}

fn neighbour(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    use Function as F;
    let arguments = call.fields().into_iter().map(operand).collect::<Result<Vec<_>, _>>()?;
    let v6 = matches!(call.function, F::GetNd | F::PutNd | F::LookupNd | F::LookupNdIp);
    let by_ip = matches!(call.function, F::LookupArpIp | F::LookupNdIp);
    // These look where `get_arp` and `get_nd` look.
    let get = by_ip || matches!(call.function, F::GetArp | F::GetNd);
    let port = whole(if get { of::OUTPORT } else { of::INPORT });
    let address = whole(match (v6, get) {
        (false, _) => FieldId::Reg0,
        (true, true) => FieldId::XxReg1,
        (true, false) => FieldId::XxReg0,
    });
    let evpn = whole(if arguments.first().is_some_and(|a| a.n_bits > 32) { FieldId::XxReg0 } else { FieldId::Reg0 });
    let targets: &[Subfield] = match call.function {
        F::ChkEvpnArp => &[evpn],
        F::GetFdb | F::GetRemoteFdb => &[whole(FieldId::EthDst)],
        F::PutFdb | F::LookupFdb => &[port, whole(FieldId::EthSrc)],
        F::PutArp | F::PutNd | F::LookupArp | F::LookupNd => &[port, address, whole(FieldId::EthSrc)],
        _ => &[port, address],
    };
    let pairs: Vec<(Subfield, Subfield)> = arguments.into_iter().zip(targets.iter().copied()).collect();
    let result = call.result.as_ref().map(operand).transpose()?;
    with_arguments(&pairs, out, |out| match (call.function, result) {
        (F::GetArp | F::GetNd, _) => {
            out.push(of::set(FieldId::EthDst, 0));
            out.push(Action::resubmit(tables::MAC_BINDING));
        }
        (F::PutArp, _) => out.push(controller(header(opcode::PUT_ARP), false, site)),
        (F::PutNd, _) => out.push(controller(header(opcode::PUT_ND), false, site)),
        (F::PutFdb, _) => out.push(controller(header(opcode::PUT_FDB), false, site)),
        (F::GetFdb, _) => out.extend([of::set(of::OUTPORT, 0), Action::resubmit(tables::GET_FDB)]),
        (F::GetRemoteFdb, _) => out.extend([of::set(FieldId::Reg1, 0), Action::resubmit(tables::GET_REMOTE_FDB)]),
        (F::ChkEvpnArp, Some(r)) => look_up(flag::EVPN_LOOKUP, tables::EVPN_ARP_LOOKUP, r, out),
        (F::LookupFdb, Some(r)) => look_up(flag::LOOKUP_FDB, tables::LOOKUP_FDB, r, out),
        (F::LookupArp | F::LookupNd, Some(r)) => look_up(flag::LOOKUP_MAC, tables::MAC_LOOKUP, r, out),
        (F::LookupArpIp | F::LookupNdIp, Some(r)) => {
            // The look-up sets the destination, which is not what was asked for.
            let destination = whole(FieldId::EthDst);
            out.push(Action::Push(destination));
            look_up(flag::LOOKUP_MAC, tables::MAC_BINDING, r, out);
            out.push(Action::Pop(destination));
        }
        _ => {}
    });
    Ok(())
}

fn check(call: &Call, out: &mut Vec<Action>) -> Result<(), Error> {
    use Function as F;
    let Some(result) = call.result.as_ref().map(operand).transpose()? else { return Ok(()) };
    let (bit, table) = match call.function {
        F::CheckInPortSec => (PORT_SECURITY, tables::CHK_IN_PORT_SEC),
        F::CheckOutPortSec => (PORT_SECURITY, tables::CHK_OUT_PORT_SEC),
        F::ChkLbHairpin => (flag::LOOKUP_LB_HAIRPIN, tables::CHK_LB_HAIRPIN),
        F::ChkLbHairpinReply => (flag::LOOKUP_LB_HAIRPIN, tables::CHK_LB_HAIRPIN_REPLY),
        F::ChkLbAff => (flag::USE_LB_AFF_SESSION, tables::CHK_LB_AFFINITY),
        F::ChkEcmpNh => (flag::LOOKUP_COMMIT_ECMP_NH, tables::ECMP_NH),
        _ => (flag::LOOKUP_COMMIT_ECMP_NH, tables::ECMP_NH_MAC),
    };
    look_up(bit, table, result, out);
    Ok(())
}

/// Parts of the connection's original direction, which tables of their own put into a scratch register.
fn original(call: &Call, out: &mut Vec<Action>) -> Result<(), Error> {
    let Some(result) = call.result.as_ref().map(operand).transpose()? else { return Ok(()) };
    let (scratch, table) = match call.function {
        Function::CtNwDst => (of::bits(SCRATCH, 0, 31), tables::CT_ORIG_NW_DST),
        Function::CtIp6Dst => (whole(SCRATCH), tables::CT_ORIG_IP6_DST),
        Function::CtTpDst => (of::bits(SCRATCH, 0, 15), tables::CT_ORIG_TP_DST),
        Function::CtProto => (of::bits(SCRATCH, 0, 7), tables::CT_ORIG_PROTO),
        _ => (of::bits(FieldId::Reg4, 0, 7), tables::CT_STATE_SAVE),
    };
    // The connection's state is kept where the result goes anyway.
    let save = result != scratch && call.function != Function::CtStateSave;
    if save {
        out.push(Action::Push(scratch));
    }
    if scratch.n_bits == 128 {
        out.push(Action::set_masked(SCRATCH, 0, u128::from(u64::MAX)));
        out.push(Action::set_masked(SCRATCH, 0, u128::from(u64::MAX) << 64));
    } else {
        out.push(of::set_sub(scratch, 0));
    }
    out.push(Action::resubmit(table));
    out.push(of::copy(scratch, result));
    if save {
        out.push(Action::Pop(scratch));
    }
    Ok(())
}

fn service(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    use Function as F;
    let Some(result) = call.result.as_ref().map(operand).transpose()? else { return Ok(()) };
    let data = match call.function {
        F::PutDhcpOpts => {
            let mut d = result_header(opcode::PUT_DHCP_OPTS, result);
            d.extend(options::dhcpv4(call, site)?);
            d
        }
        F::PutDhcpv6Opts => {
            let mut d = result_header(opcode::PUT_DHCPV6_OPTS, result);
            d.extend(options::dhcpv6(call, site)?);
            d
        }
        F::PutNdRaOpts => {
            let mut d = result_header(opcode::PUT_ND_RA_OPTS, result);
            d.extend(options::router_advertisement(call)?);
            d
        }
        F::DnsLookup => result_header(opcode::DNS_LOOKUP, result),
        f => {
            let code = if f == F::DhcpRelayReqChk { opcode::DHCP_RELAY_REQ_CHK } else { opcode::DHCP_RELAY_RESP_CHK };
            let mut d = result_header(code, result);
            for a in &call.arguments {
                if let Argument::Value(Value::Integer(i)) = a {
                    d.extend((i.value as u32).to_be_bytes());
                }
            }
            d
        }
    };
    out.push(controller(data, true, site));
    Ok(())
}

fn integers(call: &Call) -> Vec<u128> {
    call.arguments
        .iter()
        .filter_map(|a| if let Argument::Value(Value::Integer(i)) = a { Some(i.value) } else { None })
        .collect()
}

fn string(call: &Call, n: usize) -> Result<&str, Error> {
    match call.arguments.get(n) {
        Some(Argument::Value(Value::String(s))) => Ok(s),
        _ => Err(Error::Unsupported(format!("{} lacks its port name", call.function.name()))),
    }
}

fn simple(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    use Function as F;
    out.push(match call.function {
        F::MacCacheUse => Action::resubmit(tables::MAC_CACHE_USE),
        F::FloodRemote => Action::resubmit(tables::FLOOD_REMOTE_CHASSIS),
        F::Igmp => controller(header(opcode::IGMP), false, site),
        F::HandleSvcCheck => controller(header(opcode::HANDLE_SVC_CHECK), false, site),
        F::HandleBfdMsg => controller(header(opcode::HANDLE_BFD_MSG), false, site),
        F::HandleDhcpv6Reply => controller(header(opcode::HANDLE_DHCPV6_REPLY), false, site),
        F::SetQueue => Action::SetQueue(integers(call).first().copied().unwrap_or(0) as u32),
        F::SetMeter => {
            let n = integers(call);
            let rate = n.first().copied().unwrap_or(0);
            let burst = n.get(1).copied().unwrap_or(0);
            // Each logical flow has a bandwidth of its own.
            let (flow, size) = (site.flow, if burst > 0 { format!(",burst_size={burst}") } else { String::new() });
            let kind = if burst > 0 { "kbps burst stats" } else { "kbps stats" };
            let name = format!("__string: uuid {flow} {kind} bands=type=drop rate={rate}{size}");
            let id = (site.meter)(&name).ok_or_else(|| Error::Unsupported(format!("no meter for rate {rate}")))?;
            Action::Meter(id)
        }
        F::CheckPktLarger => {
            let Some(dst) = call.result.as_ref().map(operand).transpose()? else { return Ok(()) };
            let len = integers(call).first().copied().unwrap_or(0) as u16;
            Action::CheckPktLarger { len, dst }
        }
        F::BindVport => {
            let key = site.port_key(string(call, 0)?);
            let mut d = header(opcode::BIND_VPORT);
            d.extend(u32::from(key).to_be_bytes());
            controller(d, false, site)
        }
        F::Mirror => {
            let key = site.port_key(string(call, 0)?);
            Action::Clone(vec![
                of::set(FieldId::InPort, u64::from(PortNo::ANY.0)),
                of::set(of::OUTPORT, key.into()),
                Action::resubmit(tables::REMOTE_OUTPUT),
            ])
        }
        F::Log => return log(call, site, out),
        // What nobody collects is not sampled.
        F::Sample => match sample(call, site)? {
            Action::Sample(s) if !(site.collects)(s.collector_set_id) => return Ok(()),
            sample => sample,
        },
        F::TriggerEvent => event(call, site),
        f => return Err(Error::Unsupported(format!("action {} is not implemented on this chassis", f.name()))),
    });
    Ok(())
}

pub(super) fn word<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    match call.named(name)?.first()? {
        Value::Word(s) | Value::String(s) => Some(s),
        _ => None,
    }
}

pub(super) fn number(call: &Call, name: &str) -> Option<u32> {
    match call.named(name)?.first()? {
        Value::Integer(i) => u32::try_from(i.value).ok(),
        _ => None,
    }
}

fn log(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let verdict = match word(call, "verdict") {
        Some("allow") => 0,
        Some("drop") => 1,
        Some("reject") => 2,
        Some("pass") => 3,
        _ => 255,
    };
    // RFC 5424 severities.
    let severity = match word(call, "severity") {
        Some("alert") => 1,
        Some("warning") => 4,
        Some("notice") => 5,
        Some("debug") => 7,
        _ => 6,
    };
    let mut data = header(opcode::LOG);
    data.extend([verdict, severity]);
    data.extend(word(call, "name").unwrap_or_default().bytes());
    let mut site_meter = site.controller_meter;
    if let Some(name) = word(call, "meter") {
        site_meter = (site.meter)(name);
    }
    let Action::Controller(mut c) = controller(data, false, site) else { return Ok(()) };
    c.meter_id = site_meter;
    out.push(Action::Controller(c));
    Ok(())
}

fn sample(call: &Call, site: &Site<'_>) -> Result<Action, Error> {
    let id = |name: &str| match call.named(name).and_then(<[Value]>::first) {
        Some(Value::Variable(w)) if w == "cookie" => Ok(SampleId::Imm(site.cookie)),
        Some(Value::Field(o)) => operand(o).map(SampleId::Field),
        Some(Value::Integer(i)) => Ok(SampleId::Imm(i.value as u32)),
        _ => Ok(SampleId::Imm(0)),
    };
    Ok(Action::Sample(Box::new(SampleAction {
        probability: number(call, "probability").unwrap_or(65535) as u16,
        collector_set_id: number(call, "collector_set").unwrap_or(0),
        // The upper octet is the action's, the rest tells datapaths apart.
        obs_domain_id: SampleId::Imm(
            number(call, "obs_domain").unwrap_or(0) << 24 | (u64::from(site.datapath) & 0xff_ffff) as u32,
        ),
        obs_point_id: id("obs_point")?,
        sampling_port: PortNo::ANY,
        direction: SampleDirection::Default,
    })))
}

fn event(call: &Call, site: &Site<'_>) -> Action {
    let mut data = header(opcode::EVENT);
    data.extend([0, 0, 0, 0]);
    for (code, name) in [(1u16, "vip"), (2, "protocol"), (3, "load_balancer")] {
        if let Some(s) = word(call, name) {
            data.extend(code.to_be_bytes());
            data.extend((s.len() as u16).to_be_bytes());
            data.extend(s.bytes());
        }
    }
    controller(data, false, site)
}

fn select(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let Some(result) = call.result.as_ref().map(operand).transpose()? else { return Ok(()) };
    let mut group = Group { group_type: GroupType::Select, ..Group::default() };
    match word(call, "hash_fields") {
        None => {
            group.selection.name = "dp_hash".into();
            // Hash with the symmetric function over layers 3 and 4, so that a flow keeps its path.
            group.selection.param = 1 << 32;
        }
        Some(list) => select_by(list, &mut group)?,
    }
    let members = call.arguments.iter().filter_map(|a| match a {
        Argument::Weighted(id, weight) => Some((*id, weight.unwrap_or(100))),
        _ => None,
    });
    for (n, (id, weight)) in (0u32..).zip(members) {
        let actions = vec![of::set_sub(result, u128::from(id)), resubmit(site.next_table())];
        group.buckets.push(Bucket::new(n, weight, actions));
    }
    out.push(Action::Group((site.group)(group)));
    Ok(())
}

/// Has a group choose by these fields, whose names are separated by commas.
pub(super) fn select_by(hash_fields: &str, group: &mut Group) -> Result<(), Error> {
    group.selection.name = "hash".into();
    for name in hash_fields.split(',').map(str::trim) {
        let f =
            FieldId::by_name(name).ok_or_else(|| Error::Unsupported(format!("hash_fields: unknown field {name}")))?;
        group.selection.fields.push((f, f.full_mask()));
    }
    group.selection.fields.sort_by_key(|(f, _)| *f);
    Ok(())
}

fn forwarding_group(call: &Call, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let mut group = Group { group_type: GroupType::Select, ..Group::default() };
    group.selection.name = "dp_hash".into();
    for (n, v) in (0u32..).zip(call.named("childports").unwrap_or_default()) {
        let Value::String(name) = v else { continue };
        let key = site.port_key(name);
        let actions =
            vec![of::set_sub(of::bits(of::OUTPORT, 0, 15), key.into()), resubmit(tables::LARGE_PACKET_DETECT)];
        let mut bucket = Bucket::new(n, 1, actions);
        // A member behind a tunnel counts only while the tunnel is up.
        if word(call, "liveness") == Some("true")
            && let Some(ofport) = (site.tunnel)(name)
        {
            bucket.watch_port = PortNo(ofport);
        }
        group.buckets.push(bucket);
    }
    out.push(Action::Group((site.group)(group)));
    Ok(())
}

/// What the controller is to write into the packet that it makes: a note, which a switch passes over.
pub(crate) fn note(field: u16, value: &[u8]) -> Action {
    let mut data = NOTE.to_vec();
    data.extend(field.to_be_bytes());
    data.extend([0, 0]);
    data.extend(value);
    // Notes fill whole words of eight bytes, their header of ten included.
    data.resize((data.len() + 10).next_multiple_of(8) - 10, 0);
    Action::Note(data)
}

/// How such notes begin.
const NOTE: [u8; 4] = *b"ovn\0";

/// The field and the value's place of such a note.
pub(crate) fn noted(note: &[u8]) -> Option<(u16, &[u8])> {
    let rest = note.strip_prefix(&NOTE)?;
    let field = u16::from_be_bytes([*rest.first()?, *rest.get(1)?]);
    Some((field, rest.get(4..)?))
}

/// Fields that only the controller can set.
pub(super) fn action_only(name: &str, value: u128, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let mut data;
    match name {
        "icmp4.frag_mtu" => {
            out.push(note(0, &(value as u16).to_be_bytes()));
            return Ok(());
        }
        "icmp6.frag_mtu" => {
            out.push(note(1, &(value as u32).to_be_bytes()));
            return Ok(());
        }
        "icmp4.inner_ip4.src" | "icmp4.inner_ip4.dst" => {
            data =
                header(if name.ends_with("src") { opcode::PUT_ICMP4_INNER_SRC } else { opcode::PUT_ICMP4_INNER_DST });
            data.extend((value as u32).to_be_bytes());
        }
        other => return Err(Error::Unsupported(format!("setting {other} is not implemented on this chassis"))),
    }
    out.push(controller(data, true, site));
    Ok(())
}
