//! Who looks on while a packet is translated.
//!
//! Translation says to its observer what it looks up, reads, depends on, counts and sends. The flow cache notes it to
//! repeat the walk ([`crate::flowcache`]), a trace tells of it (`ofproto/trace`). Calls are static: a trace costs
//! nothing where none is made.
//!
//! No method has a default, and observers match actions without a wildcard: the compiler asks, of every new action and
//! effect, what each observer makes of it.

use crate::bridge::Bridge;
use crate::bridge::meter::SharedMeter;
use crate::buf::PacketBuf;
use crate::classifier::{Classifier, Rule};
use crate::conntrack::reassembly::Suspended;
use crate::conntrack::{ConnSnapshot, Conntrack, Packet, Request, Verdict, Zone};
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::ids::{BridgeId, Target};
use crate::netflow::NetflowFlow;
use crate::tunnel::{Egress, Shim, TunnelConfig};
use crate::xlate::controller::SoFar;
use crate::xlate::ct::{Joint, Unfit};
use crate::xlate::sample::Sampler;
use crate::xlate::segment::Segment;
use crate::xlate::selection::Selection;
use crate::xlate::{Backer, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId, FlowKey, GroupId, PortNo, TableId};
use packet::VlanId;
use std::net::IpAddr;
use std::sync::Arc;

/// What a line of a trace is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    /// An action.
    #[default]
    Action,
    /// A bridge's name, over what happens there.
    Bridge,
    /// A flow, over its actions.
    Table,
    /// A bucket of a group, over its actions.
    Bucket,
    /// What the action before does.
    Detail,
    /// What the action before does not do.
    Warning,
}

/// A lookup in a table.
pub(crate) struct Lookup<'a> {
    pub(crate) bridge: BridgeId,
    pub(crate) table: TableId,
    pub(crate) classifier: &'a Classifier,
    pub(crate) key: &'a FlowKey,
    pub(crate) in_port: PortNo,
    /// Nested resubmits to the same or an earlier table, this one included.
    pub(crate) depth: u32,
    /// Nested lookups of any kind.
    pub(crate) levels: u32,
    /// The packet's length.
    pub(crate) len: usize,
}

/// The first lookup of a segment.
pub(crate) struct SegmentStart<'a> {
    pub(crate) bridge: BridgeId,
    pub(crate) table: TableId,
    pub(crate) in_port: PortNo,
    pub(crate) key: &'a FlowKey,
}

/// A pass through connection tracking.
pub(crate) struct CtPass<'a> {
    pub(crate) packet: &'a Packet,
    pub(crate) request: &'a Request<'a>,
    pub(crate) verdict: &'a Verdict,
    /// The connection that the packet's tuple had before the pass, and has behind it.
    pub(crate) before: Option<ConnSnapshot>,
    pub(crate) after: Option<ConnSnapshot>,
    pub(crate) conntrack: &'a Conntrack,
    /// What the packet's bytes say.
    pub(crate) base: &'a FlowKey,
}

/// A counter that a packet moves, beside those of flows and tables.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counted {
    /// Packets and bytes that a port sent or received.
    Port { bridge: BridgeId, no: PortNo, sent: bool },
    /// Packets and bytes of a group's bucket.
    Bucket { bridge: BridgeId, group: u32, index: usize },
    /// Bytes that a bond sent by one of its hashes.
    Bond { bridge: BridgeId, bond: usize, bucket: usize },
    /// Packets that `sample` actions saw.
    Sample,
}

/// Outer headers, ready but for lengths and checksums.
pub(crate) struct Encapsulation {
    pub(crate) headers: Box<[u8]>,
    pub(crate) v6: bool,
    /// What stands behind the IP header.
    pub(crate) shim: Shim,
    /// Where it leaves; `None` goes on in a bridge, as a packet of its own.
    pub(crate) target: Option<Target>,
}

/// Why each packet of a kind goes to the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SlowPath {
    /// It is for a maintenance point.
    Cfm,
    /// It is for a BFD session.
    Bfd,
    /// It is for a bond.
    Lacp,
    /// It is for a spanning tree.
    Stp,
    /// It is for an LLDP agent.
    Lldp,
    /// What is done with it is not the datapath's.
    Action,
}

impl SlowPath {
    /// In the words of Open vSwitch's traces.
    pub(crate) fn words(self) -> &'static str {
        match self {
            SlowPath::Cfm => "Consists of CFM packets.",
            SlowPath::Bfd => "Consists of BFD packets.",
            SlowPath::Lacp => "Consists of LACP packets.",
            SlowPath::Stp => "Consists of STP packets.",
            SlowPath::Lldp => "Consists of LLDP packets.",
            SlowPath::Action => "Uses action(s) not supported by datapath.",
        }
    }
}

/// See the module.
pub(crate) trait Observer: Sized {
    /// Every action is carried out by itself, and told of: neither compiled steps nor known segments take its place,
    /// and the packet is not moved where a copy would be made.
    const TRACES: bool;

    // Lookups and segments.

    /// Searches a table; observers differ in what they want to know of the search.
    fn lookup(&mut self, l: &Lookup<'_>) -> Option<Arc<Rule>>;
    /// Whether the next lookup begins a segment.
    fn may_begin_segment(&self) -> bool;
    /// The segment that begins with a lookup, if it is known and `fits` the limits of the walk.
    fn segment(
        &mut self,
        backer: &Backer,
        start: &SegmentStart<'_>,
        fits: impl FnOnce(&Segment) -> bool,
    ) -> Option<Arc<Segment>>;
    /// A packet with this key, of so many bytes, is carried through a segment.
    fn segment_carries(&mut self, s: &Arc<Segment>, key: &FlowKey, len: usize);
    /// What comes does not follow from the key that the segment began with.
    fn segment_ends(&mut self, backer: &Backer);
    /// Nothing can be known of this segment.
    fn segment_is_lost(&mut self);
    /// An action that is a lookup begins; the list goes on at `step` afterwards.
    fn resubmits(&mut self, step: usize, depth: u32, levels: u32);
    /// The walk has come back from it.
    fn resubmitted(&mut self);
    /// Another action of a flow begins, and is done.
    fn action_begins(&mut self, step: usize, depth: u32, levels: u32);
    fn action_done(&mut self);
    /// Flows write constants to the key: word, mask, value.
    fn writes(&mut self, words: &[(u8, u64, u64)]);
    /// An action is to be carried out with this key. True if the segment ends with it.
    fn action(&mut self, a: &Action, key: &FlowKey, backer: &Backer, bridge: BridgeId) -> bool;
    /// Puts observation of effects aside while something is tried out, and goes on with it.
    type Muted;
    fn mute(&mut self) -> Self::Muted;
    fn unmute(&mut self, m: Self::Muted);

    // What the walk reads and depends on.

    /// An action reads a field of the key.
    fn reads(&mut self, f: FieldId);
    /// The value of a field of the packet decides where it goes, other than by a lookup.
    fn decides(&mut self, f: FieldId);
    /// The same, and the field belongs to the megaflow that a trace tells.
    fn examines(&mut self, f: FieldId);
    /// Whether a field has a value decides.
    fn decides_whether(&mut self, f: FieldId, has: u128, value: u128);
    /// The frame's length was compared with a limit.
    fn compares_length(&mut self, len: usize, limit: usize);
    /// The walk asked for something beside the tables.
    fn depends(&mut self, d: Dependency);
    /// A meter, if there is one, let the packet pass that has so many bytes. Where it drops one, the walk goes on behind the
    /// innermost scope.
    fn meters(&mut self, meter: Option<&SharedMeter>, len: usize);
    /// The packet's flow learned once more, in a bridge, what is there already.
    fn learns(&mut self, bridge: BridgeId, rule: &Arc<Rule>);
    /// What drops a packet from here on lets the walk go on where this ends.
    fn scope_begins(&mut self);
    fn scope_ends(&mut self);
    /// The packet, of so many bytes, is counted as one of this flow of NetFlow's.
    fn netflow(&mut self, flow: &Arc<NetflowFlow>, len: usize);
    /// Some packets like this one, which says `base`, are sampled.
    fn samples(&mut self, base: &FlowKey, s: &Sampler);
    /// A `select` group chose a bucket, by its place, for a packet with this key; another one may get another bucket.
    fn chooses(&mut self, bucket: (GroupId, usize), selection: Selection, key: &FlowKey);
    /// Whether what is behind the choice of a `select` group is told of apart, as Open vSwitch's datapath hashes packets there
    /// ([`Observer::hashed`]).
    fn tells_hashes(&self) -> bool;
    /// All that was done with the packet has been told; the bucket at this place, of so many, was chosen by a hash, which
    /// the datapath has by this name.
    fn hashed(
        &mut self,
        key: &FlowKey,
        at: (BridgeId, TableId),
        bucket: (usize, usize),
        hash: String,
        backer: &mut Backer,
    );
    /// Whether [`Observer::depends`] is of use: some dependencies take time to list.
    fn notes_dependencies(&self) -> bool;
    /// A source address was learned at a port, or is there already.
    fn learns_mac(&mut self, bridge: BridgeId, vlan: VlanId, mac: u64, port: PortNo);
    /// An address was looked up among those that were learned.
    fn looks_up_mac(&mut self, bridge: BridgeId, vlan: VlanId, mac: u64, port: Option<PortNo>);

    // What it does.

    /// Something is counted for a packet of so many bytes.
    fn counts(&mut self, c: Counted, len: usize);
    /// What is done must be done for each packet anew, by a walk.
    fn side_effect(&mut self);
    /// Open vSwitch's datapath has each such packet translated: a trace says so, and why.
    fn slow_path(&mut self, why: SlowPath);
    /// Flows of a table are about to be changed by the walk itself (`learn`).
    fn flows_change(&mut self, backer: &mut Backer);
    /// The changes from `base` to `key` are about to be written to the packet.
    fn commits(&mut self, base: &FlowKey, key: &FlowKey);
    /// The packet, which says `base` and is to say `key`, goes to another bridge.
    fn crosses(&mut self, base: &FlowKey, key: &FlowKey);
    /// The packet, which says `base`, leaves.
    fn sends(&mut self, base: &FlowKey, target: Target);
    /// The packet, which says `base`, goes to the BFD session of a port.
    fn ends_at_session(&mut self, base: &FlowKey, bridge: BridgeId, port: PortNo);
    /// The packet is cut to so many bytes before it is sent; `offered`: the datapath can do so.
    fn cuts(&mut self, len: usize, offered: bool);
    /// An ICMP identifier is written, of which no field tells.
    fn writes_icmp_id(&mut self, id: u16);
    /// The packet is put into a tunnel; it had so many bytes.
    fn encapsulates(&mut self, base: &FlowKey, e: Encapsulation, len: usize);
    /// A packet for this switch has the UDP port of a tunnel, or is of GRE: the tunnel's header is read.
    fn reads_tunnel_header(&mut self);
    /// A packet that has left its tunnel arrives with this key at a port; and all that becomes of it is done.
    fn arrives_by_tunnel(&mut self, key: &FlowKey, port: (BridgeId, PortNo), backer: &Backer);
    fn arrived_by_tunnel(&mut self, key: &FlowKey);
    /// The inner frame, `len` bytes from `offset` behind the IP header's start on, leaves its tunnel.
    fn decapsulates(&mut self, base: &FlowKey, offset: usize, len: usize);
    /// The walk goes on with another packet, which says `base`, and comes back.
    fn enters_packet(&mut self, base: &FlowKey);
    /// The same with the first bytes of the packet; how many they are, and how many the datapath is told.
    fn enters_cut(&mut self, base: &FlowKey, bytes: (usize, usize));
    fn leaves_packet(&mut self);

    // Connection tracking.

    /// A pass through connection tracking was made.
    fn ct(&mut self, pass: &CtPass<'_>);
    /// The packet, which has this key, was invalid by itself in a zone: why, and whether it was the packet, or the datagram
    /// that it is a fragment of.
    fn ct_invalid(&mut self, zone: Zone, key: &FlowKey, why: (Unfit, bool));
    /// The packet's connection was told from its fields alone.
    fn ct_from_fields(&mut self);
    /// The packet passed the zone of its connection once more. Neither `before` nor `after` is known.
    fn ct_again(&mut self, pass: &CtPass<'_>);
    /// The actions that make a connection's mark and label begin, and are done.
    fn ct_exec_begins(&mut self);
    fn ct_exec_done(&mut self);
    /// The packet's connection in a zone gets a mark and a label.
    fn ct_marks(&mut self, zone: Zone, mark: u32, label: u128);
    /// The walk of a fragment waits with this left to do. So far the walk has done what `so_far` says, if that is all that
    /// there is to it, and the packet would be dropped for the reason `why`.
    fn holds(&mut self, base: &FlowKey, rest: &Arc<Suspended>, so_far: Option<SoFar>, why: Option<DropReason>);
    /// A fragment begins to go on.
    type Begun;
    fn resumes<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, rest: &Arc<Suspended>, joint: &Joint) -> Self::Begun;
    /// It is done, or waits once more.
    fn resumed<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, begun: Self::Begun);
    /// The packet goes on in a table behind a `ct`, with this key, and comes back.
    fn goes_on(&mut self, at: (BridgeId, TableId), key: &FlowKey);
    fn came_back(&mut self);
    /// How often the packet was translated so far.
    fn translations(&self) -> usize;
    /// The packet is restored to what it was when it had been translated so often.
    fn restores(&mut self, translations: usize);

    // What a trace tells.

    /// Nothing is to be changed: neither counters nor tables.
    fn dry(&self) -> bool;
    /// Adds a line.
    fn tell(&mut self, kind: Kind, text: impl FnOnce() -> String);
    /// Adds a line; what follows is within it, until [`Observer::close`].
    fn open(&mut self, kind: Kind, text: impl FnOnce() -> String);
    /// See [`Observer::open`].
    fn close(&mut self);
    /// The action set is carried out, as a part of the walk's first flow. To be closed twice.
    fn open_action_set(&mut self);
    /// A text with names of a bridge's ports in place of their numbers, if these are wanted.
    fn named(&self, text: String, bridge: Option<&Bridge>) -> String;
    /// Adds an action of the datapath.
    fn datapath(&mut self, text: impl FnOnce() -> String);
    /// A copy of the packet is sent into a tunnel, until [`Observer::copy_ends`] gets what this gives.
    fn copy_begins(&mut self) -> usize;
    /// See [`Observer::copy_begins`].
    fn copy_ends(&mut self, begun: usize, sent: bool);
    /// A tunnel's headers were made.
    fn tunnels(&mut self, cfg: &TunnelConfig, headers: &[u8], egress: &Egress, backer: &Backer);
    /// A tunnel's next hop is not resolved.
    fn lacks_neighbour(&mut self, cfg: &TunnelConfig, key: &FlowKey, hop: IpAddr, backer: &Backer);

    /// Carries out a list of actions: [`Xlate::each`], unless each is told of.
    fn list<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, list: &[Action]);
    /// Carries out an action: [`Xlate::act`], unless it is to have no effect. False ends the list.
    fn act<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, a: &Action) -> bool;
}
