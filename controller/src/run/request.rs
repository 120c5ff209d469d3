//! What the control socket asks the loop.

use daemon::{Daemon, Reply};
use tokio::sync::{mpsc, oneshot};

/// A question, or an order.
#[derive(Debug)]
pub enum Ask {
    /// Do nothing but answer here, until [`Ask::Resume`].
    Pause,
    /// Go on.
    Resume,
    /// Whether it goes on.
    Status,
    /// Derive everything anew, and bring the switch to that.
    Recompute,
    /// Hold the report of `nb_cfg` back by so many seconds.
    Delay(String),
    /// Take the southbound server for one that starts anew.
    ResetSouthbound,
    /// Send a packet as if a local port had sent it.
    Inject(String),
    /// Groups and their numbers.
    Groups,
    /// Meters and their numbers.
    Meters,
    /// Ports with an interface here.
    Bindings,
    /// Local datapaths.
    Datapaths,
    /// Ports that matter on this chassis.
    RelatedPorts,
    /// Ports that join local datapaths.
    PeerPorts,
    /// Conjunction numbers of logical flows.
    Conjunctions,
    /// This chassis' template variables.
    Variables,
    /// Neighbours of local datapaths.
    Neighbours,
    /// Ports for which devices are plugged in.
    Plugs,
    /// What is known of the fabric that EVPN extends switches into.
    Evpn(Shown),
}

/// What of the fabric.
#[derive(Clone, Copy, Debug)]
pub enum Shown {
    /// VTEPs, as the kernel's devices have them.
    Remotes,
    /// VTEPs with their keys and tunnels.
    Vteps,
    /// Who gets broadcasts.
    Floods,
    /// Ethernet addresses behind VTEPs.
    Macs,
    /// Neighbours behind VTEPs.
    Neighbours,
}

/// A question and where the answer goes.
#[derive(Debug)]
pub struct Request {
    /// The question.
    pub ask: Ask,
    /// The answer.
    pub reply: oneshot::Sender<Reply>,
}

type Make = fn(&[String]) -> Ask;

/// The commands that the loop answers: name, argument, question.
const COMMANDS: [(&str, &str, Make); 25] = [
    ("debug/pause", "", |_| Ask::Pause),
    ("debug/resume", "", |_| Ask::Resume),
    ("debug/status", "", |_| Ask::Status),
    ("recompute", "", |_| Ask::Recompute),
    ("inc-engine/recompute", "", |_| Ask::Recompute),
    ("debug/delay-nb-cfg-report", "SECONDS", |a| Ask::Delay(a.first().cloned().unwrap_or_default())),
    ("sb-cluster-state-reset", "", |_| Ask::ResetSouthbound),
    ("inject-pkt", "MICROFLOW", |a| Ask::Inject(a.first().cloned().unwrap_or_default())),
    ("group-table-list", "", |_| Ask::Groups),
    ("meter-table-list", "", |_| Ask::Meters),
    ("debug/dump-local-bindings", "", |_| Ask::Bindings),
    ("debug/dump-local-datapaths", "", |_| Ask::Datapaths),
    ("debug/dump-related-ports", "", |_| Ask::RelatedPorts),
    ("debug/dump-peer-ports", "", |_| Ask::PeerPorts),
    ("debug/dump-lflow-conj-ids", "", |_| Ask::Conjunctions),
    ("debug/dump-local-template-vars", "", |_| Ask::Variables),
    ("debug/dump-mac-bindings", "", |_| Ask::Neighbours),
    ("plug/show", "", |_| Ask::Plugs),
    ("evpn/remote-vtep-list", "", |_| Ask::Evpn(Shown::Remotes)),
    ("evpn/vtep-binding-list", "", |_| Ask::Evpn(Shown::Vteps)),
    ("evpn/vtep-multicast-group-list", "", |_| Ask::Evpn(Shown::Floods)),
    ("evpn/vtep-fdb-list", "", |_| Ask::Evpn(Shown::Macs)),
    ("evpn/vtep-arp-list", "", |_| Ask::Evpn(Shown::Neighbours)),
    // There is no cache of logical flows to flush; what is derived is derived anew.
    ("lflow-cache/flush", "", |_| Ask::Recompute),
    ("flush-lflow-cache", "", |_| Ask::Recompute),
];

/// Registers the commands; what they ask comes out of the queue.
pub fn register(d: &Daemon) -> mpsc::UnboundedReceiver<Request> {
    let (tx, rx) = mpsc::unbounded_channel();
    for (name, usage, make) in COMMANDS {
        let n = usize::from(!usage.is_empty());
        let tx = tx.clone();
        d.commands().register_async(name, usage, n, n, move |args| {
            let (reply, answer) = oneshot::channel();
            let sent = tx.send(Request { ask: make(&args), reply });
            async move {
                sent.map_err(|_| "the controller is about to exit".to_string())?;
                answer.await.unwrap_or_else(|_| Err("the controller is about to exit".into()))
            }
        });
    }
    rx
}
