//! What the switch can do, as `Chassis:other_config` tells northd: it is asked by what it refuses.

use super::attempts::Attempts;
use super::{Event, FLAGS, Halves, Life, Target, control};
use openflow_rs::action::{SampleAction, SampleDirection, SampleId};
use openflow_rs::connection::{ConnectionError, Sender};
use openflow_rs::message::{BundleAdd, BundleCommand, CtFlush, CtTuple};
use openflow_rs::{Action, FieldId, FlowMod, FlowModCommand, Message, PortNo, Subfield};
use ovsdb_rs::stream::BoxStream;
use tokio::sync::mpsc;

/// What Open vSwitch can do from some version on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Features {
    /// `sample(...)` takes its observation domain and point from registers (3.4).
    pub sample_with_registers: bool,
    /// Connections are forgotten by their label (3.2).
    pub ct_label_flush: bool,
}

/// Starts asking a switch, and again whenever it is connected to anew: it may be another version by then.
pub fn start(target: Target, events: mpsc::Sender<Event>) {
    tokio::spawn(run(Attempts::new("features", target, false), events));
}

async fn run(mut attempts: Attempts, events: mpsc::Sender<Event>) {
    let Target { remote, probe, .. } = attempts.target().clone();
    let mut known = None;
    while !events.is_closed() {
        if let Some(halves) = attempts.connect().await {
            tracing::debug!(target: "features", "{remote}: connected, for its features");
            tokio::select! {
                end = serve(halves, Life::new(probe), &mut known, &events) => {
                    let Err(e) = end else { return };
                    tracing::debug!(target: "features", "{remote}: connection dropped ({e})");
                }
                () = events.closed() => return,
            }
            attempts.lost();
        }
        tokio::select! {
            () = attempts.due() => {}
            () = events.closed() => return,
        }
    }
}

/// The questions of one connection: their transaction ids.
struct Questions {
    sample: u32,
    flush: u32,
    barrier: u32,
}

/// A flow that is in no table for a moment: its bundle is discarded.
fn sampling_flow() -> FlowMod {
    let reg = SampleId::Field(Subfield::full(FieldId::Reg0));
    let sample = SampleAction {
        probability: u16::MAX,
        collector_set_id: 0,
        obs_domain_id: reg,
        obs_point_id: reg,
        sampling_port: PortNo::ANY,
        direction: SampleDirection::Default,
    };
    FlowMod { command: FlowModCommand::Add, actions: vec![Action::Sample(Box::new(sample))], ..FlowMod::default() }
}

/// Connections that there are none of: of ICMP's type 1, which nobody assigned, with the highest bit of the label, which OVN does
/// not use.
fn nobody() -> CtFlush {
    let label = 1 << 127;
    let original = CtTuple { icmp_type: Some(1), ..CtTuple::default() };
    CtFlush { proto: 1, original, label: Some((label, label)), ..CtFlush::default() }
}

fn ask(sender: &mut Sender<BoxStream>) -> Questions {
    let mut put = |m: &Message| {
        let xid = sender.xid();
        sender.queue(xid, m);
        xid
    };
    put(&control(1, BundleCommand::OpenRequest));
    let message = Box::new(Message::FlowMod(sampling_flow()));
    let sample = put(&Message::BundleAdd(BundleAdd { id: 1, flags: FLAGS, message }));
    put(&control(1, BundleCommand::DiscardRequest));
    let flush = put(&Message::CtFlush(nobody()));
    let barrier = put(&Message::BarrierRequest);
    Questions { sample, flush, barrier }
}

async fn serve(
    (mut sender, mut receiver): Halves,
    mut life: Life,
    known: &mut Option<Features>,
    events: &mpsc::Sender<Event>,
) -> Result<(), ConnectionError> {
    let asked = ask(&mut sender);
    let mut found = Features { sample_with_registers: true, ct_label_flush: true };
    loop {
        tokio::select! {
            () = life.silence() => {
                let xid = sender.xid();
                sender.queue(xid, &life.ask()?);
            }
            received = receiver.recv() => {
                let received = received?;
                life = life.heard();
                let xid = received.header.xid;
                match received.message {
                    Ok(Message::EchoRequest(data)) => sender.queue(xid, &Message::EchoReply(data)),
                    Ok(Message::Error { .. }) if xid == asked.sample => found.sample_with_registers = false,
                    Ok(Message::Error { .. }) if xid == asked.flush => found.ct_label_flush = false,
                    Ok(Message::BarrierReply) if xid == asked.barrier => {
                        let before = known.replace(found);
                        if before != Some(found) {
                            tell(found);
                            let _ = events.send(Event::Features(found)).await;
                        }
                    }
                    _ => {}
                }
            }
            flushed = sender.flush(), if sender.backlog() > 0 => flushed?,
        }
    }
}

fn tell(f: Features) {
    for (name, is) in [("sample_action_with_registers", f.sample_with_registers), ("ct_label_flush", f.ct_label_flush)]
    {
        let state = if is { "supported" } else { "not supported" };
        tracing::info!(target: "features", "OVS Feature: {name}, state: {state}");
    }
}
