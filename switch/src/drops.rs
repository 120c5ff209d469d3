//! Why packets are dropped.

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Every reason for a drop.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DropReason { $($(#[$doc])* $name,)* }
        impl DropReason {
            /// All of them.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$name,)*];
            /// A name for metrics.
            pub fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Shorter than an Ethernet header.
    Short = "short",
    /// The device belongs to no port.
    UnknownPort = "unknown_port",
    /// Received from the output port of a mirror.
    MirrorPort = "mirror_port",
    /// A controller has the port down, or forbids it to receive or to send (`ovs-ofctl mod-port`).
    PortConfig = "port_config",
    /// A checksum outside a tunnel is wrong.
    TunnelChecksum = "tunnel_checksum",
    /// Flows are being restored (`other_config:flow-restore-wait`).
    Restoring = "flow_restore_wait",
    /// The spanning tree does not let the port carry packets.
    StpState = "stp_state",
    /// No flow matched.
    TableMiss = "table_miss",
    /// The flows drop it, or send it only to the port that it came from.
    Action = "action",
    /// Nothing of it leaves but samples, which is no drop (`other_config:explicit-sampled-drops`).
    Sampled = "sampled",
    /// More nested resubmits than allowed.
    TooDeep = "too_deep",
    /// More resubmits than allowed.
    TooManyResubmits = "too_many_resubmits",
    /// More values pushed than allowed.
    StackTooDeep = "stack_too_deep",
    /// More labels of MPLS than are parsed.
    TooManyLabels = "too_many_mpls_labels",
    /// It cannot be put into a header that `encap` names, or taken out of its own.
    PacketType = "packet_type",
    /// It has no Ethernet header, and the port wants one.
    NotEthernet = "not_ethernet",
    /// Popped from an empty stack.
    StackEmpty = "stack_empty",
    /// An action names a port that is not there.
    NoSuchPort = "no_such_port",
    /// An action names a group that is not there.
    NoSuchGroup = "no_such_group",
    /// No bucket of the group is live.
    NoLiveBucket = "no_live_bucket",
    /// A meter's rate was exceeded.
    Meter = "meter",
    /// The time to live ran out.
    TtlExceeded = "ttl_exceeded",
    /// No route to a tunnel's peer.
    TunnelNoRoute = "tunnel_no_route",
    /// A tunnel's next hop is not resolved yet.
    TunnelNoNeighbour = "tunnel_no_neighbour",
    /// A tunnel has no destination.
    TunnelNoDestination = "tunnel_no_destination",
    /// Flows ask for a tunnel header that the encapsulation has not.
    TunnelNoHeader = "tunnel_no_header",
    /// A tunnelled packet for no tunnel port.
    TunnelUnknown = "tunnel_unknown",
    /// A malformed tunnel header.
    TunnelMalformed = "tunnel_malformed",
    /// There was congestion in the tunnel, and the packet's sender takes no notice of it.
    TunnelCongestion = "tunnel_congestion",
    /// The VLAN is not allowed on the port.
    Vlan = "vlan",
    /// No room for headers, or no memory.
    NoBuffer = "no_buffer",
    /// Fragments are not wanted.
    Fragment = "fragment",
    /// Fragments that overlap.
    FragmentOverlap = "fragment_overlap",
    /// Too many fragments wait for the rest of their datagrams.
    FragmentsFull = "fragments_full",
    /// Fragments of a datagram whose frame would be longer than 65,535 bytes.
    FragmentsBig = "fragments_big",
    /// The rest of a datagram did not come in time.
    FragmentTimeout = "fragment_timeout",
    /// The connection table is full.
    ConntrackFull = "conntrack_full",
    /// The zone holds as many connections as it may.
    ZoneLimit = "zone_limit",
    /// No address or port is left to translate to.
    NatExhausted = "nat_exhausted",
    /// The queue of upcalls from PMD threads was full.
    WalkersBusy = "walkers_busy",
    /// Its bond does not admit it from this member: another member is active, or it is a reflection.
    BondMember = "bond_member",
    /// No member of the bond that it was to leave by is up.
    NoBondMember = "no_bond_member",
    /// A queue of the port it was to leave by was full.
    QueueFull = "queue_full",
    /// Waiting for the controller.
    Paused = "paused",
}

/// Packets by reason.
#[derive(Clone, Debug)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts a packet.
    pub fn add(&mut self, r: DropReason) {
        self.add_many(r, 1);
    }

    /// Counts packets.
    pub fn add_many(&mut self, r: DropReason, n: u64) {
        if let Some(c) = self.0.get_mut(r as usize) {
            *c += n;
        }
    }

    /// Moves another set of counters into these.
    pub(crate) fn take(&mut self, from: &mut DropCounters) {
        self.0.iter_mut().zip(&mut from.0).for_each(|(a, b)| *a += std::mem::take(b));
    }

    /// The packets dropped for a reason.
    pub fn get(&self, r: DropReason) -> u64 {
        self.0.get(r as usize).copied().unwrap_or(0)
    }
}
