//! Choices: groups and bundles, by liveness and hash (OpenFlow 1.5 section 5.10, ovs-actions(7)).

use crate::bridge::GroupState;
use crate::buf::PacketBuf;
use crate::drops::DropReason;
use crate::flowcache::depend::Need;
use crate::trace::Kind;
use crate::xlate::output::ordered_action_set;
use crate::xlate::{MAX_DEPTH, Within, Xlate, mix, prereq_ok};
use openflow_rs::action::{BundleAction, BundleAlgorithm};
use openflow_rs::mods::SelectionMethod;
use openflow_rs::{Bucket, FieldId as F, Group, GroupType, PortNo};
use std::sync::Arc;
use std::time::Duration;

/// Groups that watch groups, at most.
const MAX_WATCHED: u32 = 8;

impl GroupState {
    /// A group of which nothing is counted yet.
    pub(crate) fn new(group: Group, created: Duration) -> GroupState {
        // A bucket is an action set.
        let sets = group.buckets.iter().map(|b| ordered_action_set(b.actions.clone())).collect();
        GroupState { buckets: vec![(0, 0); group.buckets.len()], group: Arc::new(group), sets, created }
    }
}

impl<P: PacketBuf> Xlate<'_, P> {
    pub(crate) fn bundle(&mut self, b: &BundleAction) {
        b.members.iter().for_each(|p| self.needs(Need::Live(self.bridge, *p)));
        let live: Vec<PortNo> = b.members.iter().copied().filter(|p| self.sw.port_live(self.bridge, *p)).collect();
        let chosen = match b.algorithm {
            BundleAlgorithm::ActiveBackup => live.first().copied(),
            BundleAlgorithm::Hrw => {
                let h = self.flow_hash(&[], u64::from(b.basis));
                live.into_iter().max_by_key(|p| mix(h ^ u64::from(p.0)))
            }
        };
        match (&b.dst, chosen) {
            (Some(d), p) => self.set_sub(d, p.unwrap_or(PortNo::ANY).0.into()),
            (None, Some(p)) => self.output(p, 0),
            (None, None) => self.because(DropReason::NoLiveBucket),
        }
    }

    /// A hash of some fields, or of addresses, protocol and ports.
    pub(crate) fn flow_hash(&self, fields: &[(F, u128)], basis: u64) -> u64 {
        let mut h = mix(basis ^ 0x5bd1_e995);
        let mut add = |v: u128| h = mix(mix(h ^ v as u64) ^ (v >> 64) as u64);
        if fields.is_empty() {
            for f in [F::IpSrc, F::IpDst, F::Ipv6Src, F::Ipv6Dst, F::IpProto, F::TcpSrc, F::TcpDst] {
                add(self.key.get(f));
            }
        } else {
            fields
                .iter()
                .filter(|(f, _)| prereq_ok(&self.key, f.def().prereq))
                .for_each(|(f, m)| add(self.key.get(*f) & m));
        }
        h
    }

    /// The walk depends on a group, and on the ports and groups that its buckets watch.
    fn needs_group(&mut self, id: u32, depth: u32) {
        self.needs(Need::Group(self.bridge, id));
        let group = self.sw.bridges.get(self.bridge).and_then(|b| b.groups.get(&id)).map(|s| s.group.clone());
        for b in group.iter().flat_map(|g| &g.buckets) {
            if b.watch_port != PortNo::ANY {
                self.needs(Need::Live(self.bridge, b.watch_port));
            }
            if b.watch_group != openflow_rs::mods::GROUP_ANY && depth < MAX_WATCHED {
                self.needs_group(b.watch_group, depth + 1);
            }
        }
    }

    pub(crate) fn group(&mut self, id: u32) {
        if self.rec.is_some() {
            self.needs_group(id, 0);
        }
        let state = self.sw.bridges.get(self.bridge).and_then(|b| b.groups.get(&id));
        let Some((g, sets)) = state.map(|s| (s.group.clone(), s.sets.clone())) else {
            return self.because(DropReason::NoSuchGroup);
        };
        if self.depth >= MAX_DEPTH {
            return self.because(DropReason::TooDeep);
        }
        let live: Vec<usize> = g
            .buckets
            .iter()
            .enumerate()
            .filter(|(_, b)| self.bucket_live(b, g.group_type, 0))
            .map(|(i, _)| i)
            .collect();
        for (f, _) in &g.selection.fields {
            self.reads(*f);
        }
        let picked: Vec<usize> = match g.group_type {
            GroupType::All => (0..g.buckets.len()).collect(),
            GroupType::Indirect => vec![0],
            GroupType::FastFailover => live.into_iter().take(1).collect(),
            GroupType::Select => self.select_bucket(&g.buckets, &live, &g.selection).into_iter().collect(),
        };
        if picked.is_empty() {
            for b in &g.buckets {
                self.detail(|| format!("bucket {}: not live due to port {}", b.id, b.watch_port));
            }
            self.detail(|| "no live bucket".into());
            return self.because(DropReason::NoLiveBucket);
        }
        let dry = self.dry();
        for i in picked {
            let (Some(b), Some(set)) = (g.buckets.get(i), sets.get(i)) else { continue };
            if !matches!(g.group_type, GroupType::All | GroupType::Indirect) {
                self.detail(|| format!("using bucket {}", b.id));
            }
            let n = self.pkt.data().len() as u64;
            if !dry
                && let Some(c) = self
                    .sw
                    .bridges
                    .get_mut(self.bridge)
                    .and_then(|b| b.groups.get_mut(&id))
                    .and_then(|s| s.buckets.get_mut(i))
            {
                c.0 += 1;
                c.1 += n;
            }
            if let Some(r) = &mut self.rec {
                r.bucket(self.bridge, id, i, n as usize);
            }
            let saved = self.key.clone();
            self.depth += 1;
            self.tell_down(Kind::Bucket, || format!("bucket {}", b.id));
            let of_set = matches!(self.within, Within::ActionSet | Within::Bucket { of_set: true });
            let within = std::mem::replace(&mut self.within, Within::Bucket { of_set });
            self.actions(set);
            self.within = within;
            self.tell_up();
            self.depth -= 1;
            // What ends the bucket, or has it wait, is no matter of what follows.
            self.thaw();
            self.exit = self.metered;
            self.key = saved;
            self.stretch_ends();
        }
    }

    fn bucket_live(&self, b: &Bucket, t: GroupType, depth: u32) -> bool {
        if b.watch_port == PortNo::ANY && b.watch_group == openflow_rs::mods::GROUP_ANY {
            return t != GroupType::FastFailover;
        }
        let group_live =
            |id: u32| {
                depth < MAX_WATCHED
                    && self.sw.bridges.get(self.bridge).and_then(|x| x.groups.get(&id)).is_some_and(|s| {
                        s.group.buckets.iter().any(|c| self.bucket_live(c, s.group.group_type, depth + 1))
                    })
            };
        self.sw.port_live(self.bridge, b.watch_port) || group_live(b.watch_group)
    }

    fn select_bucket(&self, buckets: &[Bucket], live: &[usize], sel: &SelectionMethod) -> Option<usize> {
        let total: u64 = live.iter().filter_map(|i| buckets.get(*i)).map(|b| u64::from(b.weight)).sum();
        if total == 0 {
            return None;
        }
        let fields: &[(F, u128)] = if sel.name == "hash" { &sel.fields } else { &[] };
        let mut at = self.flow_hash(fields, sel.param) % total;
        for i in live {
            let w = buckets.get(*i).map_or(0, |b| u64::from(b.weight));
            if at < w {
                return Some(*i);
            }
            at -= w;
        }
        None
    }
}
