//! Hidden flows stand before the first table ([`crate::bridge::hidden`]); answers of DHCP servers with in-band control.

use crate::bridge::hidden::{DHCP_CLIENT, DHCP_SERVER};
use crate::buf::PacketBuf;
use crate::classifier::Rule;
use crate::xlate::{Kind, Lookup, Observer, Xlate};
use openflow_rs::{FieldId as F, PortNo, TableId};
use packet::{ethertype, ipproto};
use std::sync::Arc;

impl<P: PacketBuf, O: Observer> Xlate<'_, P, O> {
    /// Whether the bridge has in-band control.
    fn has_in_band(&self) -> bool {
        self.backer.bridges.get(self.pipeline.bridge).is_some_and(|b| !b.controlled.remotes.is_empty())
    }

    /// The hidden flow that the packet fits, for which it counts.
    pub(super) fn hidden_flow(&mut self, in_port: PortNo) -> Option<Arc<Rule>> {
        if self.backer.bridges.get(self.pipeline.bridge).is_none_or(|b| b.hidden.is_empty()) {
            return None;
        }
        // A segment does not know of hidden flows.
        self.segment_ends();
        let ports = self.hide_ports(self.pipeline.bridge)?;
        let real = self.packet.key.get(F::InPort);
        self.packet.key.set(F::InPort, in_port.0.into());
        let (fits, len) = (self.fits_hidden_flow(), self.wire_len());
        let mut rule = None;
        if let Some(b) = self.backer.bridges.get_mut(self.pipeline.bridge).filter(|_| fits) {
            self.observer.segment_is_lost();
            rule = self.observer.lookup(&Lookup {
                bridge: self.pipeline.bridge,
                table: TableId::FIRST,
                classifier: &b.hidden,
                key: &self.packet.key,
                in_port,
                depth: self.pipeline.depth,
                levels: self.pipeline.levels,
                len,
            });
        }
        self.packet.key.set(F::InPort, real);
        self.show_ports(ports);
        if let Some(r) = rule.as_ref().filter(|_| !self.is_uncounted()) {
            r.hits(1, len as u64, self.backer.now);
        }
        rule
    }

    /// Whether the packet fits any hidden flow. What tells it apart decides, and no more: a lookup would have all packets
    /// of the bridge cached by their ports.
    fn fits_hidden_flow(&mut self) -> bool {
        let Some(b) = self.backer.bridges.get(self.pipeline.bridge) else { return false };
        for r in b.hidden.iter() {
            let differs = r.matches.fields().into_iter().any(|(f, value, mask)| {
                let has = self.packet.key.get(f) & mask;
                self.observer.decides_whether(f, has, value);
                has != value
            });
            if !differs {
                return true;
            }
        }
        false
    }

    /// Walks the first table; an answer of a DHCP server then goes to the host too, if the bridge has in-band control and
    /// the tables have not sent it there.
    pub(super) fn run_first_table(&mut self) {
        if !self.has_in_band() || !self.is_dhcp_answer() {
            return self.run_table(TableId::FIRST);
        }
        let before = std::mem::take(&mut self.pipeline.reached_host);
        self.not_last(|x| x.run_table(TableId::FIRST));
        if !self.pipeline.reached_host && self.own_port() != PortNo::LOCAL {
            self.observer.tell(Kind::Detail, || "outputting DHCP packet to local port for in-band control".into());
            self.emit(PortNo::LOCAL);
        }
        self.pipeline.reached_host |= before;
    }

    fn is_dhcp_answer(&mut self) -> bool {
        let wanted = [
            (F::EthType, ethertype::IPV4.into()),
            (F::IpProto, ipproto::UDP.into()),
            (F::UdpSrc, DHCP_SERVER.into()),
            (F::UdpDst, DHCP_CLIENT.into()),
        ];
        wanted.into_iter().all(|(f, value)| {
            let has = self.packet.key.get(f);
            self.observer.decides_whether(f, has, value);
            has == value
        })
    }
}
