//! Groups, `bundle` and `multipath`: the choice of buckets and ports by liveness and hash (OpenFlow 1.5 section 5.10,
//! ovs-actions(7)).

use crate::buf::PacketBuf;
use crate::classifier::mix;
use crate::dependency::Dependency;
use crate::drops::DropReason;
use crate::xlate::selection::Selection;
use crate::xlate::{Counted, Kind, MAX_DEPTH, Observer, Within, Xlate};
use openflow_rs::action::{BundleAction, BundleAlgorithm, HashFields, MultipathAction, MultipathAlgorithm};
use openflow_rs::{Bucket, FieldId as F, Group, GroupId, GroupType, PortNo};
use packet::ipproto;

/// Most nested groups that watch groups.
const MAX_WATCHED: u32 = 8;

/// Source and destination of the network, and with those of Ethernet.
const ADDRESSES: [(F, F); 2] = [(F::IpSrc, F::IpDst), (F::Ipv6Src, F::Ipv6Dst)];
const ALL_ADDRESSES: [(F, F); 3] = [(F::EthSrc, F::EthDst), (F::IpSrc, F::IpDst), (F::Ipv6Src, F::Ipv6Dst)];

/// Hashes again until the remainder is below `n`; `modulo` is at most twice that.
fn again(h: u64, n: u64, modulo: u64) -> u64 {
    let mut links = (0..256).map(|i: u64| mix(h ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) % modulo.max(1));
    links.find(|link| *link < n).unwrap_or(0)
}

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    pub(crate) fn bundle(&mut self, b: &BundleAction) {
        b.members.iter().for_each(|p| self.observer.depends(Dependency::Live(self.pipeline.bridge, *p)));
        let live: Vec<PortNo> =
            b.members.iter().copied().filter(|p| self.backer.port_live(self.pipeline.bridge, *p)).collect();
        let chosen = match b.algorithm {
            BundleAlgorithm::ActiveBackup => live.first().copied(),
            BundleAlgorithm::Hrw => {
                let h = self.hash_of(b.fields, b.basis);
                live.into_iter().max_by_key(|p| mix(h ^ u64::from(p.0)))
            }
        };
        match (&b.dst, chosen) {
            (Some(d), p) => self.set_sub(d, p.unwrap_or(PortNo::ANY).0.into()),
            (None, Some(p)) => self.output(p, 0),
            (None, None) => self.because(DropReason::NoLiveBucket),
        }
    }

    /// Puts the number of a link that the packet's hash chooses into a field (ovs-actions(7), "The multipath action").
    pub(crate) fn multipath(&mut self, m: &MultipathAction) {
        let (h, n) = (self.hash_of(m.fields, m.basis), u64::from(m.links.max(1)));
        let link = match m.algorithm {
            MultipathAlgorithm::ModuloN => h % n,
            MultipathAlgorithm::HashThreshold => ((u128::from(h) * u128::from(n)) >> 64) as u64,
            MultipathAlgorithm::Hrw if n <= 64 => (0..n).max_by_key(|link| mix(h ^ link)).unwrap_or(0),
            MultipathAlgorithm::Hrw => again(h, n, n.next_power_of_two()),
            MultipathAlgorithm::IterHash => {
                let asked = u64::from(m.arg);
                again(h, n, if asked < n || asked / 2 > n { n.next_power_of_two() } else { asked })
            }
        };
        self.set_sub(&m.dst, link.into());
    }

    /// A hash of the fields that an action names; those of both directions give the same in either.
    fn hash_of(&mut self, what: HashFields, basis: u16) -> u64 {
        use HashFields as H;
        let (pairs, alone) = match what {
            H::EthSrc => (&[][..], &[F::EthSrc][..]),
            H::NwSrc => (&[][..], &[F::IpSrc, F::Ipv6Src][..]),
            H::NwDst => (&[][..], &[F::IpDst, F::Ipv6Dst][..]),
            H::SymmetricL3 => (&ADDRESSES[..], &[][..]),
            H::SymmetricL3L4 | H::SymmetricL3L4Udp => (&ADDRESSES[..], &[F::IpProto][..]),
            H::SymmetricL4 => (&ALL_ADDRESSES[..], &[F::EthType, F::VlanTci, F::IpProto][..]),
        };
        // Ports of UDP count where they are asked for, as fragments of a datagram have none.
        let ports = match self.packet.key.get(F::IpProto) as u8 {
            ipproto::TCP | ipproto::SCTP => matches!(what, H::SymmetricL4 | H::SymmetricL3L4 | H::SymmetricL3L4Udp),
            ipproto::UDP => what == H::SymmetricL3L4Udp,
            _ => false,
        };
        let pairs = pairs.iter().copied().chain(ports.then_some((F::TcpSrc, F::TcpDst)));
        let mut h = mix(u64::from(basis) ^ 0x5bd1_e995);
        let mut add = |v: u128| h = mix(mix(h ^ v as u64) ^ (v >> 64) as u64);
        for (a, b) in pairs {
            [a, b].into_iter().for_each(|f| self.observer.decides(f));
            let (a, b) = (self.packet.key.get(a), self.packet.key.get(b));
            add(a.min(b));
            add(a.max(b));
        }
        for f in alone.iter().copied() {
            self.observer.decides(f);
            add(self.packet.key.get(f));
        }
        h
    }

    /// The walk depends on a group, and on the ports and groups that its buckets watch.
    fn needs_group(&mut self, id: GroupId, depth: u32) {
        self.observer.depends(Dependency::Group(self.pipeline.bridge, id));
        let group =
            self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.groups.get(&id)).map(|s| s.group.clone());
        for b in group.iter().flat_map(|g| &g.buckets) {
            if b.watch_port != PortNo::ANY {
                self.observer.depends(Dependency::Live(self.pipeline.bridge, b.watch_port));
            }
            if b.watch_group != GroupId::ANY && depth < MAX_WATCHED {
                self.needs_group(b.watch_group, depth + 1);
            }
        }
    }

    pub(crate) fn group(&mut self, id: GroupId) {
        if self.observer.notes_dependencies() {
            self.needs_group(id, 0);
        }
        let state = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.groups.get(&id));
        let Some((g, sets)) = state.map(|s| (s.group.clone(), s.sets.clone())) else {
            return self.because(DropReason::NoSuchGroup);
        };
        if self.pipeline.depth >= MAX_DEPTH {
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
            self.observer.reads(*f);
        }
        let picked: Vec<usize> = match g.group_type {
            GroupType::All => (0..g.buckets.len()).collect(),
            GroupType::Indirect => vec![0],
            GroupType::FastFailover => live.into_iter().take(1).collect(),
            GroupType::Select => self.select(&g, &live).into_iter().collect(),
        };
        if picked.is_empty() {
            for b in &g.buckets {
                self.observer.tell(Kind::Detail, || format!("bucket {}: not live due to port {}", b.id, b.watch_port));
            }
            self.observer.tell(Kind::Detail, || "no live bucket".into());
            return self.because(DropReason::NoLiveBucket);
        }
        let dry = self.is_uncounted();
        let (last, n_picked) = (self.pipeline.last, picked.len());
        let translations = self.observer.translations();
        for (nth, i) in picked.into_iter().enumerate() {
            // Behind the last bucket nothing is done with the packet where nothing is behind the group.
            self.pipeline.last = last && nth + 1 == n_picked;
            let (Some(b), Some(set)) = (g.buckets.get(i), sets.get(i)) else { continue };
            if !matches!(g.group_type, GroupType::All | GroupType::Indirect) {
                self.observer.tell(Kind::Detail, || format!("using bucket {}", b.id));
            }
            let n = self.packet.buf.data().len() as u64;
            if !dry && let Some(s) = self.backer.bridges.get(self.pipeline.bridge).and_then(|b| b.groups.get(&id)) {
                s.count(i, 1, n);
            }
            self.observer.counts(Counted::Bucket { bridge: self.pipeline.bridge, group: id.0, index: i }, n as usize);
            let saved = self.packet.key.clone();
            self.pipeline.depth += 1;
            self.observer.open(Kind::Bucket, || format!("bucket {}", b.id));
            let of_set = matches!(self.pipeline.within, Within::ActionSet | Within::Bucket { of_set: true });
            let within = std::mem::replace(&mut self.pipeline.within, Within::Bucket { of_set });
            let ends = self.is_last();
            self.in_bucket(|x| {
                x.last_actions(set);
                x.pipeline.within = within;
                x.observer.close();
                x.pipeline.depth -= 1;
                // An exit or pause ends the bucket only.
                x.thaw();
            });
            self.pipeline.exit = self.pipeline.metered;
            self.packet.key = saved;
            if !ends {
                self.observer.restores(translations);
            }
            self.segment_ends();
        }
        self.pipeline.last = last;
    }

    /// The bucket of a `select` group that the packet takes.
    fn select(&mut self, g: &Group, live: &[usize]) -> Option<usize> {
        let selection = Selection::new(g, live);
        let bucket = selection.bucket(&self.packet.key);
        let hashed = selection.is_of_the_datapath();
        if let Some(bucket) = bucket.filter(|_| selection.differs()) {
            self.observer.chooses((g.id, bucket), selection, &self.packet.key);
        }
        if let Some(bucket) = bucket.filter(|_| hashed && self.observer.tells_hashes())
            && self.commit()
        {
            let at = (self.pipeline.bridge, self.pipeline.table);
            // A parameter of `dp_hash` has the algorithm above the basis (ovs-ofctl(8)).
            let basis = g.selection.param as u32;
            let name = match (g.selection.name.as_str(), g.selection.param >> 32) {
                ("dp_hash", 0) => "l4",
                _ => "sym_l4",
            };
            let hash = format!("hash({name}({basis}))");
            self.observer.hashed(&self.packet.key, at, (bucket, g.buckets.len()), hash, self.backer);
        }
        bucket
    }

    fn bucket_live(&self, b: &Bucket, t: GroupType, depth: u32) -> bool {
        if b.watch_port == PortNo::ANY && b.watch_group == GroupId::ANY {
            return t != GroupType::FastFailover;
        }
        let group_live = |id: GroupId| {
            let group = self.backer.bridges.get(self.pipeline.bridge).and_then(|x| x.groups.get(&id));
            depth < MAX_WATCHED
                && group
                    .is_some_and(|s| s.group.buckets.iter().any(|c| self.bucket_live(c, s.group.group_type, depth + 1)))
        };
        self.backer.port_live(self.pipeline.bridge, b.watch_port) || group_live(b.watch_group)
    }
}
