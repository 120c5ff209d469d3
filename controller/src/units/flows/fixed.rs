//! Flows that every chassis has.

use super::{Seen, emit};
use crate::encode::of::{self, flag};
use crate::encode::tables as t;
use openflow_rs::{Action, FieldId, Match, Subfield, TableId};

fn to(table: TableId) -> Vec<Action> {
    vec![Action::resubmit(table)]
}

/// Clears the registers that logical flows use.
pub(super) fn clear_registers() -> impl Iterator<Item = Action> {
    (0..10).map(|n| of::set(of::register(n), 0))
}

const CT_NEW: u128 = 0x01;
const CT_EST: u128 = 0x02;
const CT_TRK: u128 = 0x20;

pub(super) fn run(view: &mut Seen<'_>) {
    let any = Match::new;
    let flags = |value: u32, mask: u32| Match::new().with_masked(of::FLAGS, u128::from(value), u128::from(mask));
    let mut put = |table, priority, m, actions| emit(view, table, priority, m, 0, actions);
    put(t::PHY_TO_LOG, 0, any(), Vec::new());
    put(t::LARGE_PACKET_DETECT, 0, any(), to(t::REMOTE_OUTPUT));
    put(t::LARGE_PACKET_PROCESS, 10, flags(flag::LOOPBACK, flag::LOOPBACK), to(t::LOCAL_OUTPUT));
    put(t::LARGE_PACKET_PROCESS, 0, any(), to(t::REMOTE_OUTPUT));
    // What a VTEP sent was replicated there; what is for this chassis only goes nowhere else.
    let ramp = flags(flag::RCV_FROM_RAMP, flag::RCV_FROM_RAMP | flag::LOOPBACK);
    put(t::REMOTE_OUTPUT, 150, ramp, to(t::LOCAL_OUTPUT));
    put(t::REMOTE_OUTPUT, 150, flags(flag::LOCAL_ONLY, flag::LOCAL_ONLY), to(t::LOCAL_OUTPUT));
    put(t::REMOTE_OUTPUT, 0, any(), to(t::REMOTE_VTEP_OUTPUT));
    put(t::REMOTE_VTEP_OUTPUT, 0, any(), to(t::LOCAL_OUTPUT));
    put(t::LOCAL_OUTPUT, 0, any(), Vec::new());
    put(t::CHECK_LOOPBACK, 0, any(), clear_registers().chain(to(t::EGRESS)).collect());
    put(t::SAVE_INPORT, 0, any(), to(t::LOG_TO_PHY));
    put(t::LOG_TO_PHY, 0, any(), Vec::new());
    put(t::GET_FDB, 0, any(), vec![of::set(of::OUTPORT, 0)]);
    put(t::CT_ZONE_LOOKUP, 0, any(), to(t::INGRESS));
    put(t::GET_REMOTE_FDB, 0, any(), vec![of::set(FieldId::Reg1, 0)]);
    original_tuple(&mut put);
    let untracked = any().with_masked(FieldId::CtState, 0, CT_TRK);
    let state = of::bits(FieldId::Reg4, 0, 7);
    put(t::CT_STATE_SAVE, 65535, untracked, vec![of::set_sub(state, 0)]);
    put(t::CT_STATE_SAVE, 65534, any(), vec![of::copy(of::bits(FieldId::CtState, 0, 7), state)]);
}

/// The original direction's tuple of a tracked connection, into a scratch register.
fn original_tuple(put: &mut impl FnMut(TableId, u16, Match, Vec<Action>)) {
    const IPV4: u128 = 0x0800;
    const IPV6: u128 = 0x86dd;
    let scratch = FieldId::XxReg1;
    let kinds = [
        (t::CT_ORIG_NW_DST, FieldId::CtNwDst, of::bits(scratch, 0, 31), Some(IPV4)),
        (t::CT_ORIG_IP6_DST, FieldId::CtIpv6Dst, Subfield::full(scratch), Some(IPV6)),
        (t::CT_ORIG_TP_DST, FieldId::CtTpDst, of::bits(scratch, 0, 15), None),
        (t::CT_ORIG_PROTO, FieldId::CtNwProto, of::bits(scratch, 0, 7), None),
    ];
    for (table, from, into, ether) in kinds {
        for (state, times) in [(CT_NEW, 2), (CT_EST, 1)] {
            let mut m = Match::new().with_masked(FieldId::CtState, state | CT_TRK, state | CT_TRK);
            if let Some(e) = ether {
                m.set(FieldId::EthType, e);
            }
            put(table, 100, m, vec![of::copy(Subfield::full(from), into); times]);
        }
    }
}
