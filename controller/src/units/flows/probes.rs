//! Answers of next hops that this chassis asks go to the controller, before OVN's pipeline.

use super::physical::{Bound, entry};
use super::{Seen, cookie, emit};
use crate::encode::tables as t;
use crate::input::model::Read;
use crate::pinctrl::probes;
use openflow_rs::action::ControllerAction;
use openflow_rs::{Action, FieldId};
use std::net::IpAddr;

/// The flows of a localnet port's next hops. The Ethernet address is this chassis' alone, so nothing else is to have them.
pub(super) fn localnet(b: &Bound<'_>, ofport: u16, tag: Option<u16>, view: &mut Seen<'_>) {
    let (hops, _) = probes::next_hops(b.row);
    if hops.is_empty() {
        return;
    }
    let Some(chassis) = view.read(Read::Chassis).local.chassis else { return };
    let to = entry(ofport, tag).with(FieldId::EthDst, u128::from(probes::asking_address(chassis).to_u64()));
    for ip in hops {
        let m = match ip {
            IpAddr::V4(ip) => {
                let arp = to.clone().with(FieldId::EthType, 0x0806).with(FieldId::ArpOp, 2);
                arp.with(FieldId::ArpSpa, u128::from(ip.to_bits()))
            }
            IpAddr::V6(ip) => {
                let icmp = to.clone().with(FieldId::EthType, 0x86dd).with(FieldId::IpProto, 58);
                let advertisement = icmp.with(FieldId::Icmpv6Type, 136).with(FieldId::Icmpv6Code, 0);
                advertisement.with(FieldId::NdTarget, ip.to_bits())
            }
        };
        let tell = ControllerAction { userdata: probes::userdata((b.id, ip)), ..ControllerAction::default() };
        emit(view, t::PHY_TO_LOG, 190, m, cookie(b.id), vec![Action::Controller(Box::new(tell))]);
    }
}
