//! A message as `vconn`'s debug log tells it.

use super::{actions_to_string, flow_to_string, group_to_string, meter_to_string};
use crate::Message;
use crate::message::{BundleCommand, CtFlush, CtTuple, MultipartReply, MultipartRequest, PacketIn, Version};
use crate::mods::{FlowModCommand, GroupModCommand, MeterModCommand};
use std::fmt::Write as _;

/// A message in a line: its name as `ovs-ofctl` has it, version and transaction id, and of changes what they change.
pub fn message_to_string(version: u8, xid: u32, m: &Message) -> String {
    let version = match Version::from_u8(version) {
        Some(Version::Of10) | None => String::new(),
        Some(v) => format!(" (OF1.{})", v as u8 - 1),
    };
    let mut out = format!("{}{version} (xid={xid:#x}):", name(m));
    let detail = detail(m);
    if !detail.is_empty() {
        let _ = write!(out, " {detail}");
    }
    out
}

fn name(m: &Message) -> String {
    use Message as M;
    let plain = match m {
        M::Hello(_) => "OFPT_HELLO",
        M::Error { .. } => "OFPT_ERROR",
        M::EchoRequest(_) => "OFPT_ECHO_REQUEST",
        M::EchoReply(_) => "OFPT_ECHO_REPLY",
        M::FeaturesRequest => "OFPT_FEATURES_REQUEST",
        M::FeaturesReply(_) => "OFPT_FEATURES_REPLY",
        M::GetConfigRequest => "OFPT_GET_CONFIG_REQUEST",
        M::GetConfigReply(_) => "OFPT_GET_CONFIG_REPLY",
        M::SetConfig(_) => "OFPT_SET_CONFIG",
        M::PacketIn(_) => "OFPT_PACKET_IN",
        M::NxPacketIn(_) => "NXT_PACKET_IN",
        M::PacketIn2(_) => "NXT_PACKET_IN2",
        M::Resume(_) => "NXT_RESUME",
        M::PacketOut(_) => "OFPT_PACKET_OUT",
        M::FlowRemoved(_) | M::FlowRemovedOf10(_) => "OFPT_FLOW_REMOVED",
        M::PortStatus(_) => "OFPT_PORT_STATUS",
        M::FlowMod(_) => "OFPT_FLOW_MOD",
        M::GroupMod(_) => "OFPT_GROUP_MOD",
        M::MeterMod(_) => "OFPT_METER_MOD",
        M::PortMod(_) => "OFPT_PORT_MOD",
        M::TableMod(_) => "OFPT_TABLE_MOD",
        M::TableStatus(_) => "OFPT_TABLE_STATUS",
        M::FlowMonitorCancel(_) => "NXT_FLOW_MONITOR_CANCEL",
        M::MultipartRequest(q) => return format!("{} request", question(q)),
        M::MultipartReply { body, .. } => return format!("{} reply", answer(body)),
        M::BarrierRequest => "OFPT_BARRIER_REQUEST",
        M::BarrierReply => "OFPT_BARRIER_REPLY",
        M::QueueGetConfigRequest(_) => "OFPT_QUEUE_GET_CONFIG_REQUEST",
        M::QueueGetConfigReply(..) => "OFPT_QUEUE_GET_CONFIG_REPLY",
        M::RoleRequest(_) => "OFPT_ROLE_REQUEST",
        M::RoleReply(_) => "OFPT_ROLE_REPLY",
        M::RoleStatus(..) => "OFPT_ROLE_STATUS",
        M::GetAsyncRequest => "OFPT_GET_ASYNC_REQUEST",
        M::GetAsyncReply(_) => "OFPT_GET_ASYNC_REPLY",
        M::SetAsync(_) => "OFPT_SET_ASYNC",
        M::SetAsync2(_) => "NXT_SET_ASYNC_CONFIG2",
        M::RequestForward(_) => "OFPT_REQUESTFORWARD",
        M::BundleControl(_) => "OFPT_BUNDLE_CONTROL",
        M::BundleAdd(_) => "OFPT_BUNDLE_ADD_MESSAGE",
        M::SetFlowFormat(_) => "NXT_SET_FLOW_FORMAT",
        M::SetPacketInFormat(_) => "NXT_SET_PACKET_IN_FORMAT",
        M::FlowModTableId(_) => "NXT_FLOW_MOD_TABLE_ID",
        M::SetControllerId(_) => "NXT_SET_CONTROLLER_ID",
        M::TlvTableMod(_) => "NXT_TLV_TABLE_MOD",
        M::TlvTableRequest => "NXT_TLV_TABLE_REQUEST",
        M::TlvTableReply(_) => "NXT_TLV_TABLE_REPLY",
        M::CtFlushZone(_) => "NXT_CT_FLUSH_ZONE",
        M::CtFlush(_) => "NXT_CT_FLUSH",
    };
    plain.into()
}

fn question(q: &MultipartRequest) -> String {
    use MultipartRequest as Q;
    let plain = match q {
        Q::Desc => "OFPST_DESC",
        Q::Flow(_) | Q::FlowOf10(_) => "OFPST_FLOW",
        Q::Aggregate(_) | Q::AggregateOf10(_) => "OFPST_AGGREGATE",
        Q::Table => "OFPST_TABLE",
        Q::PortStats(_) => "OFPST_PORT",
        Q::Queue(..) => "OFPST_QUEUE",
        Q::QueueDesc(..) => "OFPST_QUEUE_DESC",
        Q::GroupStats(_) => "OFPST_GROUP",
        Q::GroupDesc(_) => "OFPST_GROUP_DESC",
        Q::GroupFeatures => "OFPST_GROUP_FEATURES",
        Q::MeterStats(_) => "OFPST_METER",
        Q::MeterConfig(_) => "OFPST_METER_CONFIG",
        Q::MeterFeatures => "OFPST_METER_FEATURES",
        Q::TableFeatures(_) => "OFPST_TABLE_FEATURES",
        Q::PortDesc(_) => "OFPST_PORT_DESC",
        Q::FlowMonitor(_) => "OFPST_FLOW_MONITOR",
        Q::IpfixBridge => "NXST_IPFIX_BRIDGE",
        Q::IpfixFlow => "NXST_IPFIX_FLOW",
        Q::Other(kind, _) => return format!("OFPST {kind}"),
    };
    plain.into()
}

fn answer(a: &MultipartReply) -> String {
    use MultipartReply as A;
    let plain = match a {
        A::Desc(_) => "OFPST_DESC",
        A::Flow(_) | A::FlowOf10(_) => "OFPST_FLOW",
        A::Aggregate(..) | A::AggregateOf10(..) => "OFPST_AGGREGATE",
        A::Table(_) => "OFPST_TABLE",
        A::PortStats(_) => "OFPST_PORT",
        A::Queue(_) => "OFPST_QUEUE",
        A::QueueDesc(_) => "OFPST_QUEUE_DESC",
        A::GroupStats(_) => "OFPST_GROUP",
        A::GroupDesc(_) => "OFPST_GROUP_DESC",
        A::GroupFeatures(_) => "OFPST_GROUP_FEATURES",
        A::MeterStats(_) => "OFPST_METER",
        A::MeterConfig(_) => "OFPST_METER_CONFIG",
        A::MeterFeatures(_) => "OFPST_METER_FEATURES",
        A::TableFeatures(_) => "OFPST_TABLE_FEATURES",
        A::PortDesc(_) => "OFPST_PORT_DESC",
        A::FlowMonitor(_) => "OFPST_FLOW_MONITOR",
        A::IpfixBridge(_) => "NXST_IPFIX_BRIDGE",
        A::IpfixFlow(_) => "NXST_IPFIX_FLOW",
        A::Other(kind, _) => return format!("OFPST {kind}"),
    };
    plain.into()
}

fn detail(m: &Message) -> String {
    use Message as M;
    match m {
        M::Error { error_type, code, .. } => format!("type={error_type} code={code}"),
        M::FlowMod(f) => {
            let command = match f.command {
                FlowModCommand::Add => "ADD",
                FlowModCommand::Modify => "MOD",
                FlowModCommand::ModifyStrict => "MOD_STRICT",
                FlowModCommand::Delete => "DEL",
                FlowModCommand::DeleteStrict => "DEL_STRICT",
            };
            format!("{command} {}", flow_to_string(f).trim())
        }
        M::GroupMod(g) => {
            let command = match g.command {
                GroupModCommand::Add => "ADD",
                GroupModCommand::Modify => "MOD",
                GroupModCommand::Delete => "DEL",
                GroupModCommand::InsertBucket => "INSERT_BUCKET",
                GroupModCommand::RemoveBucket => "REMOVE_BUCKET",
                GroupModCommand::AddOrModify => "ADD_OR_MOD",
            };
            format!("{command} {}", group_to_string(&g.group).trim())
        }
        M::MeterMod(m) => {
            let command = match m.command {
                MeterModCommand::Add => "ADD",
                MeterModCommand::Modify => "MOD",
                MeterModCommand::Delete => "DEL",
            };
            format!("{command} {}", meter_to_string(&m.meter).replace('\n', " "))
        }
        M::PacketIn(p) | M::NxPacketIn(p) | M::PacketIn2(p) | M::Resume(p) => packet_in(p),
        M::PacketOut(p) => {
            let actions = actions_to_string(&p.actions);
            format!("in_port={} actions={actions} data_len={}", p.in_port(), p.packet.len())
        }
        M::BundleControl(c) => {
            let step = match c.command {
                BundleCommand::OpenRequest => "OPEN_REQUEST",
                BundleCommand::OpenReply => "OPEN_REPLY",
                BundleCommand::CloseRequest => "CLOSE_REQUEST",
                BundleCommand::CloseReply => "CLOSE_REPLY",
                BundleCommand::CommitRequest => "COMMIT_REQUEST",
                BundleCommand::CommitReply => "COMMIT_REPLY",
                BundleCommand::DiscardRequest => "DISCARD_REQUEST",
                BundleCommand::DiscardReply => "DISCARD_REPLY",
            };
            format!("bundle_id={:#x} type={step} flags={:#x}", c.id, c.flags)
        }
        M::BundleAdd(a) => {
            format!("bundle_id={:#x} flags={:#x} {} {}", a.id, a.flags, name(&a.message), detail(&a.message))
        }
        M::CtFlushZone(zone) => format!("zone_id={zone}"),
        M::CtFlush(f) => flush(f),
        _ => String::new(),
    }
}

fn packet_in(p: &PacketIn) -> String {
    format!("table_id={} cookie={:#x} total_len={}", p.table, p.cookie, p.total_len)
}

fn flush(f: &CtFlush) -> String {
    let mut out = Vec::new();
    out.extend(f.zone.map(|z| format!("zone={z}")));
    out.extend(f.mark.map(|(v, m)| format!("mark={v:#x}/{m:#x}")));
    out.extend(f.label.map(|(v, m)| format!("labels={v:#x}/{m:#x}")));
    let tuple = |t: &CtTuple| {
        let mut parts = Vec::new();
        parts.extend(t.src.map(|a| format!("ct_src={a}")));
        parts.extend(t.dst.map(|a| format!("ct_dst={a}")));
        parts.extend(t.src_port.map(|p| format!("ct_tp_src={p}")));
        parts.extend(t.dst_port.map(|p| format!("ct_tp_dst={p}")));
        parts.join(",")
    };
    out.push(format!("'{},ct_nw_proto={}' '{}'", tuple(&f.original), f.proto, tuple(&f.reply)));
    out.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PortNo;
    use crate::message::BundleAdd;
    use crate::text::parse_flow;

    #[test]
    fn messages_are_told_by_the_names_that_operators_know() {
        let flow = parse_flow("table=8,priority=50,ip,nw_dst=10.0.0.1 actions=drop").expect("a flow");
        let add = Message::BundleAdd(BundleAdd { id: 1, flags: 3, message: Box::new(Message::FlowMod(flow)) });
        for (version, xid, message, text) in [
            (6, 16, Message::CtFlushZone(5), "NXT_CT_FLUSH_ZONE (OF1.5) (xid=0x10): zone_id=5"),
            (1, 2, Message::BarrierRequest, "OFPT_BARRIER_REQUEST (xid=0x2):"),
            (
                4,
                3,
                Message::MultipartRequest(MultipartRequest::PortDesc(PortNo::ANY)),
                "OFPST_PORT_DESC request (OF1.3) (xid=0x3):",
            ),
            (
                6,
                4,
                add,
                "OFPT_BUNDLE_ADD_MESSAGE (OF1.5) (xid=0x4): bundle_id=0x1 flags=0x3 OFPT_FLOW_MOD ADD table=8, priority=50,ip,nw_dst=10.0.0.1 actions=drop",
            ),
        ] {
            assert_eq!(message_to_string(version, xid, &message), text);
        }
    }
}
