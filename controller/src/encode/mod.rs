//! Logical actions to OpenFlow actions.

mod calls;
mod ct;
mod learn;
pub mod of;
mod options;
pub mod tables;

pub use calls::opcode;
pub(crate) use calls::{note, noted};
use logical_flow::action::{Action as Logical, Made, Pipeline};
use logical_flow::expr::Operand;
use logical_flow::field::ones;
use of::flag;
use openflow_rs::action::ControllerAction;
use openflow_rs::{Action, Group, GroupId, MeterId, PortNo, Subfield, TableId};
pub(crate) use options::{route_information, search_list};
use ovn_schema::{DatapathKey, PortKey};

/// Looks up a DHCP option of IPv4 (false) or IPv6 (true) by name.
pub type OptionLookup<'a> = &'a dyn Fn(&str, bool) -> Option<(u16, String)>;

/// Where a logical flow stands and what its actions refer to.
pub struct Site<'a> {
    /// Whether it is in the egress pipeline.
    pub egress: bool,
    /// Its stage.
    pub stage: u8,
    /// The datapath's key.
    pub datapath: DatapathKey,
    /// Whether the datapath is a logical switch.
    pub is_switch: bool,
    /// Whether the router's zone for source translation is given (`snat-ct-zone`).
    pub snat_zone_given: bool,
    /// The key of a logical port or multicast group of the flow's datapath.
    pub port: &'a dyn Fn(&str) -> Option<PortKey>,
    /// Whether a logical port resides on this chassis.
    pub resident: &'a dyn Fn(&str) -> bool,
    /// The OpenFlow port of the tunnel to the chassis of a logical port on another chassis.
    pub tunnel: &'a dyn Fn(&str) -> Option<u16>,
    /// The OpenFlow group of this content; the same content has the same number.
    pub group: &'a dyn Fn(Group) -> GroupId,
    /// The OpenFlow meter of this name.
    pub meter: &'a dyn Fn(&str) -> Option<MeterId>,
    /// Whether this chassis has a set of sample collectors.
    pub collects: &'a dyn Fn(u32) -> bool,
    /// A DHCP option by name: its code and type (tables DHCP_Options and DHCPv6_Options).
    pub dhcp_option: OptionLookup<'a>,
    /// The meter for what goes to the controller.
    pub controller_meter: Option<MeterId>,
    /// The flow's cookie.
    pub cookie: u32,
    /// The logical flow.
    pub flow: ovn_schema::Uuid,
}

/// Why an action cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A DHCP option that no table names.
    #[error(
        "unknown DHCP option \"{0}\"; the options known are in the southbound tables DHCP_Options and DHCPv6_Options"
    )]
    UnknownOption(String),
    /// Something that this controller does not do.
    #[error("{0}")]
    Unsupported(String),
}

/// Encodes actions; none: drop.
///
/// # Errors
/// [`Error`], naming what is unknown.
pub fn actions(list: &[Logical], site: &Site<'_>) -> Result<Vec<Action>, Error> {
    let mut out = Vec::new();
    for a in list {
        one(a, site, &mut out)?;
    }
    Ok(out)
}

impl Site<'_> {
    /// The table after this one.
    fn next_table(&self) -> TableId {
        self.table(None, None)
    }

    fn table(&self, pipeline: Option<Pipeline>, table: Option<u8>) -> TableId {
        let egress = pipeline.map_or(self.egress, |p| p == Pipeline::Egress);
        tables::in_pipeline(egress, table.unwrap_or(self.stage + 1))
    }

    /// Where `output` leads.
    fn output_table(&self) -> TableId {
        if self.egress { tables::SAVE_INPORT } else { tables::LARGE_PACKET_DETECT }
    }

    /// A port's key; 0, which is no port, for one that the datapath does not have.
    fn port_key(&self, name: &str) -> PortKey {
        (self.port)(name).unwrap_or_default()
    }
}

fn operand(o: &Operand) -> Result<Subfield, Error> {
    of::subfield(o).ok_or_else(|| Error::Unsupported(format!("{o} cannot be used here")))
}

fn one(a: &Logical, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    match a {
        Logical::Drop => {}
        Logical::Output => out.push(Action::resubmit(site.output_table())),
        Logical::Next { pipeline, table, .. } => out.push(Action::resubmit(site.table(*pipeline, *table))),
        Logical::Load(to, value) => return load(to, value.value, value.mask, site, out),
        Logical::LoadPort(to, name) => {
            let key = site.port_key(name);
            out.push(of::set_sub(operand(to)?, key.into()));
        }
        Logical::Move(to, from) => out.push(of::copy(operand(from)?, operand(to)?)),
        Logical::Exchange(a, b) => exchange(operand(a)?, operand(b)?, out),
        Logical::Push(o) => out.push(Action::Push(operand(o)?)),
        Logical::Pop(o) => out.push(Action::Pop(operand(o)?)),
        Logical::DecTtl => out.push(Action::DecTtl(Some(Vec::new()))),
        Logical::Clone(list) => out.push(Action::Clone(actions(list, site)?)),
        Logical::Make(made, list) => return make(*made, list, site, out),
        Logical::Call(call) => return calls::encode(call, site, out),
        Logical::CtClear => out.push(Action::CtClear),
        Logical::CtSnatToVip => out.push(Action::resubmit(tables::CT_SNAT_HAIRPIN)),
        _ => return ct::encode(a, site, out),
    }
    Ok(())
}

fn load(to: &Operand, value: u128, mask: Option<u128>, site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    // As with upstream, what the field has no bits for goes.
    let value = value & ones(to.width);
    if to.field().is_none() {
        return calls::action_only(to.symbol.name, value, site, out);
    }
    let s = operand(to)?;
    out.push(match mask {
        Some(m) => Action::set_masked(s.field, value << s.ofs, m << s.ofs),
        None => of::set_sub(s, value),
    });
    Ok(())
}

fn exchange(a: Subfield, b: Subfield, out: &mut Vec<Action>) {
    // Both go on the stack and come off the other way round.
    let (first, second) = (b, a);
    out.extend([Action::Push(first), Action::Push(second), Action::Pop(first), Action::Pop(second)]);
}

/// A packet made by the controller from the one at hand, with the nested actions as its continuation.
fn make(made: Made, list: &[Logical], site: &Site<'_>, out: &mut Vec<Action>) -> Result<(), Error> {
    let code = match made {
        Made::Arp => opcode::ARP,
        Made::NdNa => opcode::ND_NA,
        Made::NdNaRouter => opcode::ND_NA_ROUTER,
        Made::NdNs => opcode::ND_NS,
        Made::Icmp4 | Made::Icmp6 => opcode::ICMP,
        Made::Icmp4Error => opcode::ICMP4_ERROR,
        Made::Icmp6Error => opcode::ICMP6_ERROR,
        Made::TcpReset => opcode::TCP_RESET,
        Made::SctpAbort => opcode::SCTP_ABORT,
        Made::Reject => opcode::REJECT,
    };
    let nested = actions(list, site)?;
    let mut data = calls::header(code);
    data.extend(of::bytes(&nested));
    // What waits for an address goes on when it is known; the others leave the packet at hand as it is.
    let pause = matches!(made, Made::NdNs | Made::Arp);
    out.push(controller(data, pause, site));
    Ok(())
}

/// A packet to the controller.
fn controller(userdata: Vec<u8>, pause: bool, site: &Site<'_>) -> Action {
    Action::Controller(Box::new(ControllerAction {
        userdata,
        pause,
        meter_id: site.controller_meter,
        ..ControllerAction::default()
    }))
}

/// A look-up in a table of its own: clears the flag, looks up, copies the flag to the result.
fn look_up(bit: u32, table: TableId, result: Subfield, out: &mut Vec<Action>) {
    out.push(of::clear_flags(bit));
    out.push(Action::resubmit(table));
    let n = bit.trailing_zeros();
    out.push(of::copy(of::bits(of::FLAGS, n, n), result));
}

/// The flags of results, by the function that gives them.
pub(crate) const PORT_SECURITY: u32 = flag::CHECK_PORT_SEC;

/// Puts arguments where the look-up tables expect them, saving what was there, and takes them off again afterwards.
fn with_arguments(pairs: &[(Subfield, Subfield)], out: &mut Vec<Action>, body: impl FnOnce(&mut Vec<Action>)) {
    let moves: Vec<&(Subfield, Subfield)> = pairs.iter().filter(|(from, to)| from != to).collect();
    out.extend(moves.iter().map(|(_, to)| Action::Push(*to)));
    out.extend(moves.iter().rev().map(|(from, _)| Action::Push(*from)));
    out.extend(moves.iter().map(|(_, to)| Action::Pop(*to)));
    body(out);
    out.extend(moves.iter().rev().map(|(_, to)| Action::Pop(*to)));
}

/// A bucket's continuation in the ingress table `stage`.
fn resubmit(table: TableId) -> Action {
    Action::Resubmit { port: PortNo::IN_PORT, table, ct: false }
}
