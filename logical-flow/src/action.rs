//! Actions (ovn-sb(5), column `actions`): parse to a tree, which prints as it was written.

use crate::Error;
pub use crate::action_call::{Argument, Call, Function, Value};
use crate::action_parse::Parser;
use crate::constant::Integer;
use crate::expr::Operand;
use std::net::IpAddr;

/// A pipeline of a logical datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pipeline {
    /// From the input port to the choice of the output port.
    Ingress,
    /// To one output port.
    Egress,
}

impl Pipeline {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Pipeline::Ingress => "ingress",
            Pipeline::Egress => "egress",
        }
    }
}

/// Which of a router's connection tracking zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// For destination translation.
    Dnat,
    /// For source translation.
    Snat,
}

impl Zone {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Zone::Dnat => "dnat",
            Zone::Snat => "snat",
        }
    }
}

/// Packets that are made from the one at hand, for nested actions to work on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the actions' own names")]
pub enum Made {
    Arp,
    Icmp4,
    Icmp4Error,
    Icmp6,
    Icmp6Error,
    TcpReset,
    SctpAbort,
    Reject,
    NdNa,
    NdNaRouter,
    NdNs,
}

impl Made {
    const ALL: [(Made, &str, &str); 11] = [
        (Made::Arp, "arp", "ip"),
        (Made::Icmp4, "icmp4", "ip4"),
        (Made::Icmp4Error, "icmp4_error", "ip4"),
        (Made::Icmp6, "icmp6", "ip6"),
        (Made::Icmp6Error, "icmp6_error", "ip6"),
        (Made::TcpReset, "tcp_reset", "tcp"),
        (Made::SctpAbort, "sctp_abort", "sctp"),
        (Made::Reject, "reject", ""),
        (Made::NdNa, "nd_na", "nd_ns"),
        (Made::NdNaRouter, "nd_na_router", "nd_ns"),
        (Made::NdNs, "nd_ns", "ip"),
    ];

    pub(crate) fn from_name(name: &str) -> Option<Made> {
        Made::ALL.iter().find(|m| m.1 == name).map(|m| m.0)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Made::ALL.iter().find(|m| m.0 == self).map_or("", |m| m.1)
    }

    /// What it asks of the packet at hand.
    pub(crate) fn prerequisite(self) -> &'static str {
        Made::ALL.iter().find(|m| m.0 == self).map_or("", |m| m.2)
    }
}

/// How `next` is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextForm {
    /// `next`, `next(pipeline=P)`, `next(table=T)`, `next(pipeline=P, table=T)`
    Named,
    /// `next(table=T, pipeline=P)`
    TableFirst,
    /// `next(T)`
    Positional,
}

/// A load balancer's destinations.
#[derive(Clone, Debug, PartialEq)]
pub enum Backends {
    /// These.
    List(Vec<Backend>),
    /// `^NAME`, to which no chassis' value was put.
    Template(String),
}

/// A load balancer's destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// The logical port that it is behind, where the load balancer is a distributed one.
    pub port_name: Option<String>,
    /// Its address.
    pub ip: IpAddr,
    /// Whether the address stands in brackets.
    pub brackets: bool,
    /// Its transport port.
    pub port: Option<u16>,
}

/// How `ct_lb` and its kin are written and what they do.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    /// Keep the flags in ct_mark rather than ct_label.
    pub mark: bool,
    /// Choose among the backends of this chassis only.
    pub local: bool,
    /// Choose among these; none: pass through connection tracking.
    pub backends: Option<Backends>,
    /// Names of fields to hash, separated by commas; none: the datapath's choice.
    pub hash_fields: Option<String>,
    /// How the source is translated.
    pub flag: Option<BalanceFlag>,
    /// Whether there are parentheses though they hold nothing.
    pub parentheses: bool,
}

/// How a load balancer has the source translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BalanceFlag {
    /// `skip_snat`
    SkipSnat,
    /// `force_snat`
    ForceSnat,
}

/// The target of a translation: an address and a range of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub ip: IpAddr,
    /// First and last port.
    pub ports: Option<(u16, u16)>,
}

/// One action.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// `drop;`, which stands alone: nothing.
    Drop,
    /// `output;`
    Output,
    /// `next;` `next(TABLE);` `next(pipeline=P, table=TABLE);`
    Next {
        /// The pipeline; none: the flow's own.
        pipeline: Option<Pipeline>,
        /// The table; none: the one after the flow's.
        table: Option<u8>,
        /// How it is written.
        form: NextForm,
    },
    /// `FIELD = CONSTANT;`
    Load(Operand, Integer),
    /// `FIELD = ^NAME;`, to which no chassis' value was put.
    LoadTemplate(Operand, String),
    /// `PORT_FIELD = "NAME";`
    LoadPort(Operand, String),
    /// `FIELD = FIELD;`: to, from.
    Move(Operand, Operand),
    /// `FIELD <-> FIELD;`
    Exchange(Operand, Operand),
    /// `push(FIELD);`
    Push(Operand),
    /// `pop(FIELD);`
    Pop(Operand),
    /// `ip.ttl--;`
    DecTtl,
    /// `ct_next;` `ct_next(dnat);`
    CtNext(Option<Zone>),
    /// `ct_commit;` `ct_commit { … };`: assignments to ct_mark and ct_label.
    CtCommit(Option<Vec<Action>>),
    /// `ct_commit_to_zone(dnat);`
    CtCommitToZone(Zone),
    /// `ct_commit_nat;` `ct_commit_nat(snat);`
    CtCommitNat(Option<Zone>),
    /// `ct_dnat;` `ct_dnat(IP);` and in the common zone.
    CtDnat {
        /// Translate to this; none: undo a source's translation.
        target: Option<Target>,
        /// In the zone that both directions share.
        common: bool,
    },
    /// `ct_snat;` `ct_snat(IP);` and in the common zone.
    CtSnat {
        /// Translate to this; none: undo a destination's translation.
        target: Option<Target>,
        /// In the zone that both directions share.
        common: bool,
    },
    /// `ct_snat_to_vip;`
    CtSnatToVip,
    /// `ct_clear;`
    CtClear,
    /// `ct_lb;` `ct_lb_mark;` `ct_lb_mark(backends=…);`
    CtLb(Box<Balance>),
    /// `clone { … };`
    Clone(Vec<Action>),
    /// `icmp4 { … };` and its kin.
    Make(Made, Vec<Action>),
    /// Everything with arguments, `RESULT = FUNCTION(…);` or `FUNCTION(…);`.
    Call(Call),
}

/// Parsed actions with the conditions that they imply for the match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Actions {
    /// The actions in order; none: drop.
    pub list: Vec<Action>,
    /// Expressions that the fields used ask for, without duplicates.
    pub prerequisites: Vec<&'static str>,
}

/// Parses actions. `drop;` and an empty text do nothing.
///
/// # Errors
/// Syntax errors with place and expectation.
pub fn parse(text: &str) -> Result<Actions, Error> {
    let mut p = Parser::new(text);
    let list = p.list(None)?;
    Ok(Actions { list, prerequisites: p.prerequisites })
}
