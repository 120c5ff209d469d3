//! Network functions (ovn-nb(5), `Network_Function`): machines that packets are led through on their way, which may be on another
//! chassis than the sender. Packets that come out of one go back by the tunnel by which they came.
//!
//! The ingress pipeline keeps the tunnel's OpenFlow port in the upper half of `reg5`, and the egress pipeline commits it to the
//! connection's label, in the zone of the port by which the packet entered the function. What comes out of the linked port is
//! looked up in that zone.

use super::physical::Bound;
use super::{Seen, cookie, emit, port, zone};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use crate::input::model::{Read, Tunnel};
use openflow_rs::action::{CtAction, ZoneSpec};
use openflow_rs::{Action, FieldId, Match};
use ovn_schema::sb::PortBinding;

/// Where the label of a connection holds the tunnel's OpenFlow port.
const TUNNEL: u32 = 80;
const CT_INVALID: u128 = 0x10;

/// Whether the port is one of a network function.
pub(super) fn is_one(p: &PortBinding) -> bool {
    ovn_schema::options::flag(&p.options, "is-nf")
}

/// Whether it only gets copies, in which case they are as they were sent.
pub(super) fn is_tap(p: &PortBinding) -> bool {
    is_one(p) && !p.options.contains_key("nf-linked-port")
}

/// The flows of a function's port on this chassis.
pub(super) fn local(b: &Bound<'_>, provider: bool, view: &mut Seen<'_>) {
    if !is_one(b.row) {
        return;
    }
    // As for others, but that the tunnel by which the packet came is kept for the egress pipeline.
    let half = Action::set_masked(FieldId::Reg5, 0, 0xffff);
    let clear = (0..10).filter(|n| *n != 5).map(|n| of::set(of::register(n), 0));
    let actions = clear.chain([half, Action::resubmit(t::EGRESS)]).collect();
    let m = Match::new().with(of::DATAPATH, b.dp.into());
    emit(view, t::CHECK_LOOPBACK, 1, m, cookie(b.row.datapath), actions);
    let linked = b.row.options.get("nf-linked-port").filter(|_| provider).and_then(|n| port(view, n));
    let Some((_, l)) = linked else { return };
    let back = l.options.get("nf-linked-port") == Some(&b.row.logical_port) && l.r#type == b.row.r#type;
    let (own, other) = (zone(view, &b.row.logical_port), zone(view, &l.logical_port));
    if back && own != 0 && other != 0 {
        to_source(b, other, view);
    }
}

/// What comes out of the port goes back to where it came from, by tunnel: a provider network would not lead it there.
fn to_source(b: &Bound<'_>, linked: u16, view: &mut Seen<'_>) {
    let from = |recirculated: u32| {
        let m = Match::new().with(of::DATAPATH, b.dp.into()).with(of::INPORT, b.key.into());
        m.with_masked(of::FLAGS, u128::from(recirculated), u128::from(flag::RECIRCULATED))
    };
    let look_up = vec![
        of::set_flags(flag::RECIRCULATED),
        Action::set_masked(of::PORT_ZONE, u128::from(linked), 0xffff),
        Action::Ct(Box::new(CtAction {
            zone: ZoneSpec::Field(of::bits(of::PORT_ZONE, 0, 15)),
            table: Some(t::LOCAL_OUTPUT),
            ..CtAction::default()
        })),
    ];
    emit(view, t::LOCAL_OUTPUT, 110, from(0).with(FieldId::EthType, 0x0800), cookie(b.id), look_up);
    let tunnels: Vec<Tunnel> = view.read(Read::Tunnels).local.tunnels.iter().cloned().collect();
    for tunnel in tunnels.iter().filter(|t| &*t.kind == "geneve") {
        let ofport = u128::from(tunnel.ofport);
        let actions = || {
            vec![
                Action::set_masked(FieldId::TunId, u128::from(b.dp), 0xff_ffff),
                of::copy(of::bits(of::OUTPORT, 0, 31), of::bits(FieldId::TunMetadata0, 0, 31)),
                of::set_sub(of::bits(FieldId::TunMetadata0, 16, 30), u128::from(b.key)),
                of::output(tunnel.ofport),
            ]
        };
        // A function that answers by itself does so on the port by which it got the packet: its own zone had told.
        let refused = from(flag::RECIRCULATED).with_masked(FieldId::CtState, CT_INVALID, CT_INVALID);
        let refused = refused.with_masked(FieldId::Reg5, ofport << 16, 0xffff_0000);
        emit(view, t::LOCAL_OUTPUT, 110, refused, cookie(b.id), actions());
        let known = from(flag::RECIRCULATED).with_masked(FieldId::CtLabel, ofport << TUNNEL, 0xffff << TUNNEL);
        emit(view, t::LOCAL_OUTPUT, 109, known, cookie(b.id), actions());
    }
}
