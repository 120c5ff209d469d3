//! What the tracer notes of each event of a walk.

use super::{Tracer, WRITTEN};
use crate::bridge::Bridge;
use crate::bridge::meter::SharedMeter;
use crate::buf::PacketBuf;
use crate::classifier::Rule;
use crate::conntrack::Zone;
use crate::conntrack::reassembly::Suspended;
use crate::dependency::Dependency;
use crate::dpctl::{changes, names, tunnel};
use crate::drops::DropReason;
use crate::flowcache::dump::Met;
use crate::ids::{BridgeId, Target};
use crate::netflow::NetflowFlow;
use crate::tunnel::{Egress, TunnelConfig};
use crate::xlate::controller::SoFar;
use crate::xlate::ct::{Joint, Unfit};
use crate::xlate::encap::pushed_eth;
use crate::xlate::sample::Sampler;
use crate::xlate::segment::Segment;
use crate::xlate::selection::Selection;
use crate::xlate::{Backer, Counted, CtPass, Encapsulation, Kind, Lookup, Observer, SegmentStart, SlowPath, Xlate};
use openflow_rs::action::Action;
use openflow_rs::{FieldId as F, FlowKey, GroupId, PortNo, TableId};
use packet::VlanId;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

impl Observer for Tracer {
    fn meters(&mut self, _: Option<&SharedMeter>, _: usize) {}

    fn learns(&mut self, _: BridgeId, _: &Arc<Rule>) {}

    fn scope_begins(&mut self) {}

    fn scope_ends(&mut self) {}

    const TRACES: bool = true;

    fn lookup(&mut self, l: &Lookup<'_>) -> Option<Arc<Rule>> {
        let rule = l.classifier.lookup(l.key, &mut self.wildcards).cloned();
        if let Some(a) = &mut self.again {
            a.met(match &rule {
                Some(r) => Met::Rule(l.bridge, r.clone()),
                None => Met::Miss(l.bridge, l.table),
            });
        }
        rule
    }

    fn may_begin_segment(&self) -> bool {
        false
    }

    fn segment(&mut self, _: &Backer, _: &SegmentStart<'_>, _: impl FnOnce(&Segment) -> bool) -> Option<Arc<Segment>> {
        None
    }

    fn segment_carries(&mut self, _: &Arc<Segment>, _: &FlowKey, _: usize) {}

    fn segment_ends(&mut self, _: &Backer) {}

    fn segment_is_lost(&mut self) {}

    fn resubmits(&mut self, _: usize, _: u32, _: u32) {}

    fn resubmitted(&mut self) {}

    fn action_begins(&mut self, _: usize, _: u32, _: u32) {}

    fn action_done(&mut self) {}

    fn writes(&mut self, _: &[(u8, u64, u64)]) {}

    fn action(&mut self, _: &Action, _: &FlowKey, _: &Backer, _: BridgeId) -> bool {
        false
    }

    type Muted = ();

    fn mute(&mut self) {}

    fn unmute(&mut self, (): ()) {}

    fn reads(&mut self, _: F) {}

    fn decides(&mut self, f: F) {
        // A cached flow's mask has it.
        if self.again.is_some() {
            self.examined(f);
        }
    }

    fn examines(&mut self, f: F) {
        self.examined(f);
    }

    fn decides_whether(&mut self, _: F, _: u128, _: u128) {}

    fn compares_length(&mut self, _: usize, _: usize) {}

    fn depends(&mut self, _: Dependency) {}

    fn chooses(&mut self, _: (GroupId, usize), _: Selection, _: &FlowKey) {}

    fn tells_hashes(&self) -> bool {
        self.again.as_ref().is_some_and(|a| !a.hashed())
    }

    fn hashed(
        &mut self,
        key: &FlowKey,
        at: (BridgeId, TableId),
        bucket: (usize, usize),
        hash: String,
        backer: &mut Backer,
    ) {
        self.hashes(key, at, bucket, (hash, backer));
    }

    fn notes_dependencies(&self) -> bool {
        false
    }

    fn learns_mac(&mut self, _: BridgeId, _: VlanId, _: u64, _: PortNo) {}

    fn looks_up_mac(&mut self, _: BridgeId, _: VlanId, _: u64, _: Option<PortNo>) {}

    fn counts(&mut self, c: Counted, _: usize) {
        if let (Some(a), Counted::Bucket { bridge, group, index }) = (&mut self.again, c) {
            a.met(Met::Bucket(bridge, GroupId(group), index));
        }
    }

    fn side_effect(&mut self) {}

    fn slow_path(&mut self, why: SlowPath) {
        self.slow.insert(why);
    }

    fn flows_change(&mut self, _: &mut Backer) {}

    fn commits(&mut self, base: &FlowKey, key: &FlowKey) {
        // What is written counts as examined.
        for f in WRITTEN {
            let (was, is) = (base.get(f), key.get(f));
            if f == F::NwTos {
                let parts = [(F::IpDscp, !u128::from(crate::tunnel::CE)), (F::IpEcn, crate::tunnel::CE.into())];
                for (part, bits) in parts {
                    if (was ^ is) & bits != 0 {
                        self.examined(part);
                    }
                }
            } else if was != is {
                self.examined(f);
            }
        }
        self.examines_protocol(base, key);
        if std::mem::take(&mut self.lacks_ethernet) {
            self.datapath.push(pushed_eth(base));
        }
        changes(base, key, &mut self.datapath);
    }

    fn crosses(&mut self, base: &FlowKey, key: &FlowKey) {
        self.examines_protocol(base, key);
    }

    fn sends(&mut self, _: &FlowKey, target: Target) {
        self.sent(target);
    }

    fn ends_at_session(&mut self, _: &FlowKey, _: BridgeId, _: PortNo) {}

    fn cuts(&mut self, len: usize, offered: bool) {
        self.datapath.push(format!("trunc({len})"));
        if !offered {
            self.slow.insert(SlowPath::Action);
        }
    }

    fn writes_icmp_id(&mut self, _: u16) {}

    fn samples(&mut self, _: &FlowKey, _: &Sampler) {}

    fn netflow(&mut self, flow: &Arc<NetflowFlow>, _: usize) {
        crate::netflow::fields(flow.key.proto).for_each(|f| self.examined(f));
    }

    fn enters_cut(&mut self, _: &FlowKey, _: (usize, usize)) {}

    fn encapsulates(&mut self, _: &FlowKey, e: Encapsulation, _: usize) {
        if let Some(target) = e.target {
            self.sent(target);
        }
    }

    fn reads_tunnel_header(&mut self) {}

    fn arrives_by_tunnel(&mut self, key: &FlowKey, port: (BridgeId, PortNo), backer: &Backer) {
        if self.again.is_some() {
            self.enters_tunnel(key, port, backer);
        }
    }

    fn arrived_by_tunnel(&mut self, key: &FlowKey) {
        if self.again.is_some() {
            self.leaves_tunnel(key);
        }
    }

    fn decapsulates(&mut self, _: &FlowKey, _: usize, _: usize) {}

    fn enters_packet(&mut self, _: &FlowKey) {}

    fn leaves_packet(&mut self) {}

    fn ct(&mut self, _: &CtPass<'_>) {}

    fn ct_invalid(&mut self, _: Zone, _: &FlowKey, _: (Unfit, bool)) {}

    fn ct_from_fields(&mut self) {}

    fn ct_again(&mut self, _: &CtPass<'_>) {}

    fn ct_exec_begins(&mut self) {}

    fn ct_exec_done(&mut self) {}

    fn ct_marks(&mut self, _: Zone, _: u32, _: u128) {}

    fn holds(&mut self, _: &FlowKey, _: &Arc<Suspended>, _: Option<SoFar>, _: Option<DropReason>) {}

    type Begun = ();

    fn resumes<P: PacketBuf>(_: &mut Xlate<'_, P, Self>, _: &Arc<Suspended>, _: &Joint) {}

    fn resumed<P: PacketBuf>(_: &mut Xlate<'_, P, Self>, (): ()) {}

    fn goes_on(&mut self, _: (BridgeId, TableId), _: &FlowKey) {}

    fn came_back(&mut self) {}

    fn translations(&self) -> usize {
        0
    }

    fn restores(&mut self, _: usize) {}

    fn dry(&self) -> bool {
        !self.effects
    }

    fn tell(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        self.leaf(kind, text());
    }

    fn open(&mut self, kind: Kind, text: impl FnOnce() -> String) {
        self.down(kind, text());
    }

    fn close(&mut self) {
        self.up();
    }

    fn open_action_set(&mut self) {
        self.reopen();
        self.down(Kind::Table, "--. Executing action set:".into());
    }

    fn named(&self, text: String, bridge: Option<&Bridge>) -> String {
        match bridge.filter(|_| self.names) {
            Some(b) => names::of_bridge(&text, b),
            None => text,
        }
    }

    fn datapath(&mut self, text: impl FnOnce() -> String) {
        self.datapath.push(text());
    }

    fn copy_begins(&mut self) -> usize {
        self.datapath.len()
    }

    fn copy_ends(&mut self, begun: usize, sent: bool) {
        let mut done = self.datapath.split_off(begun.min(self.datapath.len()));
        match done.as_slice() {
            _ if !sent => done = vec!["drop".into()],
            // Nothing was done with it in the tunnel.
            [_] => return,
            _ => {}
        }
        self.datapath.push(format!("clone({})", done.join(",")));
    }

    fn tunnels(&mut self, cfg: &TunnelConfig, headers: &[u8], egress: &Egress, backer: &Backer) {
        let v6 = headers.get(12) == Some(&0x86);
        let (at, n) = if v6 { (22, 16) } else { (26, 4) };
        let address = |at: usize| {
            let v = headers.get(at..at + n).unwrap_or_default().iter().fold(0, |v, b| v << 8 | u128::from(*b));
            if v6 { Ipv6Addr::from(v).to_string() } else { Ipv4Addr::from(v as u32).to_string() }
        };
        let (src, dst) = (address(at), address(at + n));
        let mac = |at: usize| {
            let hex: Vec<String> =
                headers.get(at..at + 6).unwrap_or_default().iter().map(|b| format!("{b:02x}")).collect();
            hex.join(":")
        };
        let via = egress.to_string();
        self.leaf(Kind::Detail, format!("tunneling to {dst} via {via}"));
        self.leaf(Kind::Detail, format!("tunneling from {} {src} to {} {dst}", mac(6), mac(0)));
        let port = backer.tunnel_number(cfg);
        self.datapath.push(tunnel::pushed(cfg, headers, port, &tunnel::out_port(backer, egress)));
    }

    fn lacks_neighbour(&mut self, cfg: &TunnelConfig, key: &FlowKey, hop: IpAddr, backer: &Backer) {
        let bridge = backer.underlay.route(hop).map(|r| r.egress.to_string()).unwrap_or_default();
        let to = match (cfg.remote, key.get(F::TunDst)) {
            (Some(r), _) => r.to_string(),
            (None, 0) => Ipv6Addr::from(key.get(F::TunIpv6Dst)).to_string(),
            (None, a) => Ipv4Addr::from(a as u32).to_string(),
        };
        let what = if hop.is_ipv4() { "ARP" } else { "ND" };
        self.leaf(Kind::Detail, format!("tunneling to {to} via {bridge}"));
        self.leaf(Kind::Detail, format!("neighbor cache miss for {hop} on bridge {bridge}, sending {what} request"));
    }

    fn list<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, list: &[Action]) {
        x.told_list(list);
    }

    fn act<P: PacketBuf>(x: &mut Xlate<'_, P, Self>, a: &Action) -> bool {
        match a {
            Action::Clone(list) => x.clone_told(list),
            Action::Ct(c) => {
                if x.commit() {
                    x.ct_told(c);
                }
            }
            Action::CtClear => {
                if x.packet.key.get(F::CtState) != 0 && x.commit() {
                    x.observer.datapath(|| "ct_clear".into());
                }
                return x.act(a);
            }
            Action::Output { port: PortNo::NORMAL, .. } => {
                // Addresses are learned and looked up.
                [F::EthSrc, F::EthDst].into_iter().for_each(|f| x.observer.examined(f));
                return x.act(a);
            }
            Action::Sample(s) => {
                x.sample_told(s);
                return x.act(a);
            }
            a => return x.act(a),
        }
        true
    }
}
