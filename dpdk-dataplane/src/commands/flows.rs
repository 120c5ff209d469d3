//! `dpctl/dump-flows` and `dpif/dump-flows`: the cached flows of the worker and of all lanes (ovs-dpctl(8)).

use crate::worker::{Handle, Worker};
use daemon::Daemon;
use switch::{BridgeId, Shown};

/// Which flows are wanted.
#[derive(Clone, Debug, Default)]
struct Wanted {
    /// Of a bridge's devices.
    bridge: Option<BridgeId>,
    /// Of the thread on this processor.
    processor: Option<usize>,
    /// With these words.
    filter: Vec<String>,
}

/// Adds the commands.
pub(super) fn register(d: &Daemon, worker: &Handle) {
    let w = worker.clone();
    let usage = "[-m] [--names] [netdev] [filter=..] [type=..] [pmd=..]";
    d.commands().register_async("dpctl/dump-flows", usage, 0, 8, move |args| {
        let w = w.clone();
        async move { dump(&w, wanted(&args)?).await }
    });
    let w = worker.clone();
    d.commands().register_async("dpif/dump-flows", "[-m] [--names | --no-names] bridge", 1, 3, move |args| {
        let w = w.clone();
        async move {
            let name = args.into_iter().rfind(|a| !a.starts_with('-')).unwrap_or_default();
            let bridge = w.run(move |w| super::bridge(w, &[name])).await.ok_or("the worker has ended")??;
            dump(&w, Wanted { bridge: Some(bridge), ..Wanted::default() }).await
        }
    });
}

/// Flows here are of one kind, so `-m` adds nothing, and of types there is one.
fn wanted(args: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted::default();
    for a in args {
        match a.split_once('=') {
            Some(("filter", f)) => wanted.filter = f.split(',').map(|w| w.trim().to_string()).collect(),
            Some(("pmd", "-1")) => {}
            Some(("pmd", n)) => {
                wanted.processor = Some(n.parse().map_err(|_| format!("pmd={n}: expected a processor"))?)
            }
            Some(("type", t)) if t.split(',').any(|t| matches!(t, "all" | "ovs" | "non-offloaded")) => {}
            Some(("type", _)) => wanted.filter = vec!["no flow is of this type".into()],
            Some((key, _)) => return Err(format!("{key}: unknown option")),
            None => {}
        }
    }
    Ok(wanted)
}

async fn dump(w: &Handle, wanted: Wanted) -> Result<String, String> {
    let asked = w.run(|w| {
        let flows: Vec<Shown> = w.switch.cached_flows().collect();
        (flows, w.lanes.ask_flows())
    });
    let (own, lanes) = asked.await.ok_or("the worker has ended")?;
    let mut threads = vec![(None, own)];
    for (processor, flows) in lanes {
        // A lane that ends has no flows.
        threads.push((Some(processor), flows.await.unwrap_or_default()));
    }
    let text = w.run(move |w| tell(w, &wanted, threads)).await;
    text.ok_or_else(|| "the worker has ended".into())
}

fn tell(w: &Worker, wanted: &Wanted, threads: Vec<(Option<usize>, Vec<Shown>)>) -> String {
    let now = w.now();
    let many = threads.len() > 1;
    let mut out = String::new();
    for (processor, flows) in threads {
        if wanted.processor.is_some() && wanted.processor != processor {
            continue;
        }
        match processor {
            _ if !many => {}
            None => out += "flow-dump from the worker thread:\n",
            Some(n) => out += &format!("flow-dump from the worker thread of processor {n}:\n"),
        }
        let of_bridge =
            |f: &Shown| wanted.bridge.is_none() || w.switch.port_of_device(f.device).map(|p| p.0) == wanted.bridge;
        let fits = |f: &Shown| of_bridge(f) && wanted.filter.iter().all(|x| f.packets.contains(x.as_str()));
        let mut lines: Vec<String> = flows.iter().filter(|f| fits(f)).map(|f| w.switch.tell_flow(f, now)).collect();
        lines.sort();
        out.extend(lines.into_iter().map(|l| l + "\n"));
    }
    out
}
