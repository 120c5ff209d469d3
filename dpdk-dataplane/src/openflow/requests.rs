//! What OpenFlow connections ask of the main PMD thread.

use super::changes::apply;
use super::connections::{Connections, Origin};
use super::reply::{self, EVICTION, VACANCY_EVENTS};
use crate::pmd::{Handle, Jobs, PmdEnded};
use openflow_rs::message::{
    FlowMonitor, FlowUpdate, MultipartReply, MultipartRequest, PortDesc, QUEUE_ALL, TableMod, TlvMap, Version,
};
use openflow_rs::wire::DecodeError;
use openflow_rs::{Message, PortNo, TableId};
use switch::{BridgeId, Fragments, PacketOutThen, TableMiss};

/// A message that changes tables, with its transaction and its bytes, which an error has to quote.
pub(super) struct Change {
    pub xid: u32,
    pub message: Message,
    pub raw: Vec<u8>,
}

/// The answer of a request that may be refused; `PmdEnded` where nobody answers.
type Answer<T> = Result<Result<T, DecodeError>, PmdEnded>;

impl Handle {
    /// Applies changes one after the other; flow monitors are told of each. Gives those that failed, and why.
    pub(super) async fn apply_changes(
        &self,
        all: &Connections,
        bridge: BridgeId,
        connection: u64,
        changes: Vec<Change>,
    ) -> Vec<(Change, DecodeError)> {
        let all = all.clone();
        let failed = self.run(move |w| {
            let mut failed = Vec::new();
            all.send_flow_updates(w, bridge, None);
            for c in changes {
                let xid = c.xid;
                match apply(w, bridge, &c.message) {
                    Ok(()) => all.forward(bridge, connection, &c.message),
                    Err(e) => failed.push((c, e)),
                }
                all.send_flow_updates(w, bridge, Some(Origin { connection, xid }));
            }
            failed
        });
        failed.await.unwrap_or_default()
    }

    /// Applies one change.
    pub(super) async fn apply_change(&self, bridge: BridgeId, m: Message) -> Answer<()> {
        self.run(move |w| apply(w, bridge, &m)).await
    }

    /// Tells flow monitors what has changed since they were last told; `origin` is who made these changes.
    pub(super) async fn send_flow_updates(&self, all: &Connections, bridge: BridgeId, origin: Option<Origin>) {
        let all = all.clone();
        // A thread that has ended changes nothing.
        let _ = self.run(move |w| all.send_flow_updates(w, bridge, origin)).await;
    }

    /// How many flows a bridge has.
    pub(super) async fn flow_count(&self, bridge: BridgeId) -> usize {
        let count = self.run(move |w| w.switch.bridge(bridge).map_or(0, |b| b.flow_count()));
        count.await.unwrap_or(0)
    }

    /// Sends the packets of a bundle whose changes are in place, tells flow monitors of these, and lets BFD sessions
    /// come up.
    pub(super) async fn finish_bundle(
        &self,
        all: &Connections,
        bridge: BridgeId,
        origin: Origin,
        packets: Vec<PacketOutThen>,
    ) -> Result<(), PmdEnded> {
        let all = all.clone();
        let done = self.run(move |w| {
            all.send_flow_updates(w, bridge, Some(origin));
            let now = w.now();
            for PacketOutThen { message, mut tables } in packets {
                tables.as_mut().into_iter().for_each(|t| w.switch.swap_tables(bridge, t));
                // A packet that is buffered nowhere cannot be sent, which does not undo the bundle.
                if message.buffer_id == u32::MAX {
                    w.packet_out(bridge, &message, now);
                }
                tables.as_mut().into_iter().for_each(|t| w.switch.swap_tables(bridge, t));
            }
            w.bfd.tables_ready(bridge, now);
        });
        done.await
    }

    /// Lets a bridge's BFD sessions come up, as its tables are in place.
    pub(super) async fn tables_ready(&self, bridge: BridgeId) {
        let done = self.run(move |w| {
            let now = w.now();
            w.bfd.tables_ready(bridge, now);
        });
        // A thread that has ended has no sessions.
        let _ = done.await;
    }

    /// A bridge's datapath id, and, if they are wanted, its ports.
    pub(super) async fn features(&self, bridge: BridgeId, with_ports: bool) -> Option<(u64, Vec<PortDesc>)> {
        let features = self.run(move |w| {
            let b = w.switch.bridge(bridge)?;
            let ports = if with_ports { b.ports.values().map(reply::port_desc).collect() } else { Vec::new() };
            Some((b.datapath_id, ports))
        });
        features.await.ok()?
    }

    /// What a bridge does with IP fragments.
    pub(super) async fn fragments(&self, bridge: BridgeId) -> Option<Fragments> {
        self.run(move |w| w.switch.bridge(bridge).map(|b| b.fragments)).await.ok()?
    }

    /// Sets what a bridge does with IP fragments.
    pub(super) fn set_fragments(&self, bridge: BridgeId, fragments: Fragments) {
        self.post(move |w| {
            // `bridge_mut` makes all cached flows stale: not without need.
            if w.switch.bridge(bridge).is_some_and(|b| b.fragments != fragments)
                && let Some(b) = w.switch.bridge_mut(bridge)
            {
                b.fragments = fragments;
            }
        });
    }

    /// Has a table evict flows when it is full, or not, and tell of its room, or not (OFPTC14_*).
    pub(super) fn configure_table(&self, bridge: BridgeId, t: TableMod) {
        let evicts = t.config & u32::from(EVICTION) != 0;
        let vacancy = t.vacancy.filter(|_| t.config & u32::from(VACANCY_EVENTS) != 0);
        self.post(move |w| {
            w.switch.with_tables(bridge, |b| {
                b.let_evict(t.table, evicts);
                b.watch_vacancy(t.table, vacancy);
            });
        });
    }

    /// Sets what a table does with packets that no flow matches.
    pub(super) fn set_table_miss(&self, bridge: BridgeId, table: TableId, miss: TableMiss) {
        self.post(move |w| w.switch.with_tables(bridge, |b| b.set_table_miss(table, miss)));
    }

    /// Has a bridge send packets that no flow matches to controllers while one is connected that gets such packets.
    pub(super) fn heed_misses(&self, all: &Connections, bridge: BridgeId) {
        let all = all.clone();
        self.post(move |w| all.heed_misses(w, bridge));
    }

    /// The fields that stand for a bridge's tunnel options.
    pub(super) async fn tlv_maps(&self, bridge: BridgeId) -> Option<Vec<TlvMap>> {
        self.run(move |w| w.switch.bridge(bridge).map(|b| b.tlv.clone())).await.ok()?
    }

    /// The queues of a port.
    pub(super) async fn queues_of(&self, bridge: BridgeId, port: PortNo) -> Answer<Vec<u32>> {
        let queues = self.run(move |w| reply::queues(w, bridge, port, QUEUE_ALL));
        Ok(queues.await?.map(|list| list.into_iter().map(|(_, queue)| queue).collect()))
    }

    /// Answers a multipart request.
    pub(super) async fn multipart(
        &self,
        bridge: BridgeId,
        request: MultipartRequest,
        version: Version,
    ) -> Answer<MultipartReply> {
        self.run(move |w| reply::multipart(w, bridge, &request, version)).await
    }

    /// Changes a connection's flow monitors; gives the flows that the new ones want to hear of at once.
    pub(super) async fn change_flow_monitors(
        &self,
        all: &Connections,
        bridge: BridgeId,
        connection: u64,
        list: Vec<FlowMonitor>,
    ) -> Answer<Vec<FlowUpdate>> {
        let all = all.clone();
        self.run(move |w| all.monitor(w, bridge, connection, &list)).await
    }

    /// Has a bridge record changes of its flows while there are flow monitors for it, and only then.
    pub(super) fn record_flow_updates(&self, all: &Connections, bridge: BridgeId) {
        let all = all.clone();
        self.post(move |w| all.watch(w, bridge));
    }
}
