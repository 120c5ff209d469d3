//! A Kubernetes API server.
//!
//! Resources are watched; annotations and conditions are written by server-side apply, each with the field manager that
//! OVN-Kubernetes has for it, so that neither takes fields of the other away. Which process decides is said by a `Lease`.

use super::{Event, Feed, Request, Source};
use crate::resource::connect::{ROUTER_KEY, SUBNETS};
use crate::resource::{Kind, Name};
use crate::time::rfc3339;
use anyhow::Context;
use futures::{Stream, StreamExt};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{WatchStreamExt, watcher::Event as Watched};
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc::{self, UnboundedSender};

/// The kinds that are watched. Networks are those of their attachments.
const KINDS: [Kind; 4] = [Kind::Connect, Kind::Attachment, Kind::Namespace, Kind::Node];

/// The field manager of the annotation with subnets.
const SUBNETS_MANAGER: &str = "ovn-kubernetes-network-connect-controller-subnet-annotation";
/// The field manager of the annotation with the router's key.
const KEY_MANAGER: &str = "ovn-kubernetes-network-connect-controller-tunnel-key-annotation";
/// The field manager of `Accepted`.
const ACCEPTED_MANAGER: &str = "clustermanager-networkconnect-controller";

/// The name of the `Lease`.
const LEASE: &str = "network-connect";
/// How long a leader leads that is not heard of.
const LEASE_TIME: Duration = Duration::from_secs(15);
/// How often a leader lets itself be heard.
const RENEW: Duration = Duration::from_secs(5);

/// The API server that the environment, the kubeconfig file or the pod's account says.
#[derive(Clone, Debug)]
pub struct Kubernetes {
    /// The namespace of the `Lease`; none: this process never decides.
    pub lease: Option<String>,
    /// The name under which conditions of a zone are written.
    pub zone: String,
}

fn api_resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    ApiResource { group: group.into(), version: version.into(), api_version, kind: kind.into(), plural: plural.into() }
}

fn resource_of(kind: Kind) -> ApiResource {
    let (group, version, name) = kind.api();
    api_resource(group, version, name, kind.plural())
}

impl Source for Kubernetes {
    fn start(self) -> anyhow::Result<Feed> {
        let (tell, events) = mpsc::unbounded_channel();
        let (requests, mut asked) = mpsc::unbounded_channel::<Request>();
        tokio::spawn(async move {
            let client = loop {
                match Client::try_default().await.context("no API server is configured") {
                    Ok(client) => break client,
                    Err(e) => {
                        tracing::warn!("Kubernetes: {e:#}; it will be tried again");
                        tokio::time::sleep(RENEW).await;
                    }
                }
            };
            let (synced, mut ready) = mpsc::unbounded_channel();
            for kind in KINDS {
                tokio::spawn(watch(client.clone(), kind, tell.clone(), synced.clone()));
            }
            if let Some(namespace) = self.lease {
                tokio::spawn(lead(client.clone(), namespace, tell.clone()));
            }
            let mut missing: BTreeSet<Kind> = KINDS.into_iter().collect();
            while !missing.is_empty() {
                if let Some(kind) = ready.recv().await {
                    missing.remove(&kind);
                }
            }
            // Nobody listens at the end of the program.
            let _ = tell.send(Event::Synced);
            while let Some(request) = asked.recv().await {
                if let Err(e) = write(&client, &self.zone, &request).await {
                    let connect = request.connect();
                    tracing::warn!("ClusterNetworkConnect {connect}: the API server refuses what is written: {e}");
                }
            }
        });
        Ok(Feed { events, requests })
    }
}

/// Tells all objects of a kind, and what becomes of them.
async fn watch(client: Client, kind: Kind, tell: UnboundedSender<Event>, synced: UnboundedSender<Kind>) {
    let config = watcher::Config::default();
    let resource = resource_of(kind);
    // Nodes change with every heartbeat; of them and of namespaces only metadata counts.
    match kind {
        Kind::Node | Kind::Namespace => {
            let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
            follow(watcher(api, config), kind, &tell, &synced).await;
        }
        _ => {
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            follow(watcher(api, config), kind, &tell, &synced).await;
        }
    }
}

async fn follow<K, S>(stream: S, kind: Kind, tell: &UnboundedSender<Event>, synced: &UnboundedSender<Kind>)
where
    K: Serialize + Send + 'static,
    S: Stream<Item = Result<Watched<K>, watcher::Error>> + Send,
{
    let mut stream = std::pin::pin!(stream.default_backoff());
    let (mut known, mut listed) = (BTreeSet::<Name>::new(), BTreeSet::<Name>::new());
    let mut said = String::new();
    while let Some(event) = stream.next().await {
        // Nobody listens at the end of the program.
        let put = |object: &K, known: &mut BTreeSet<Name>| {
            let (name, object) = named(kind, object)?;
            known.insert(name.clone());
            let _ = tell.send(Event::Object(name.clone(), Some(object)));
            Some(name)
        };
        match event {
            Ok(Watched::Init) => listed.clear(),
            Ok(Watched::InitApply(object)) => listed.extend(put(&object, &mut known)),
            Ok(Watched::InitDone) => {
                for name in known.difference(&listed) {
                    let _ = tell.send(Event::Object(name.clone(), None));
                }
                known = std::mem::take(&mut listed);
                said.clear();
                let _ = synced.send(kind);
            }
            Ok(Watched::Apply(object)) => drop(put(&object, &mut known)),
            Ok(Watched::Delete(object)) => {
                if let Some((name, _)) = named(kind, &object) {
                    known.remove(&name);
                    let _ = tell.send(Event::Object(name, None));
                }
            }
            Err(e) => {
                let text = e.to_string();
                if text != said {
                    tracing::warn!("Kubernetes: {}: {text}; it will be tried again", kind.plural());
                    said = text;
                }
            }
        }
    }
}

/// An object as JSON, with its name.
fn named<K: Serialize>(kind: Kind, object: &K) -> Option<(Name, Json)> {
    let mut json = serde_json::to_value(object).ok()?;
    if let Some(metadata) = json.get_mut("metadata").and_then(Json::as_object_mut) {
        // It is as large as the object, and says nothing that is read.
        metadata.remove("managedFields");
    }
    let meta = crate::resource::meta(&json);
    Some((Name { kind, namespace: meta.namespace, name: meta.name }, json))
}

async fn write(client: &Client, zone: &str, request: &Request) -> Result<(), kube::Error> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource_of(Kind::Connect));
    let of = |body: Json| {
        let mut object = json!({"apiVersion": "k8s.ovn.org/v1", "kind": "ClusterNetworkConnect"});
        if let (Some(object), Json::Object(body)) = (object.as_object_mut(), body) {
            object.extend(body);
        }
        object
    };
    match request {
        Request::Annotate { connect, annotation, text } => {
            let manager = match *annotation {
                SUBNETS => SUBNETS_MANAGER,
                ROUTER_KEY => KEY_MANAGER,
                other => other,
            };
            let body = of(json!({"metadata": {"name": connect, "annotations": {*annotation: text}}}));
            api.patch(connect, &PatchParams::apply(manager).force(), &Patch::Apply(&body)).await?;
        }
        Request::Condition { connect, condition, word } => {
            let manager = match word {
                Some(_) => ACCEPTED_MANAGER.to_string(),
                None => format!("network-connect-zone-{zone}"),
            };
            let mut status = json!({"conditions": [condition.json()]});
            if let Some(word) = word {
                status["status"] = json!(word);
            }
            let body = of(json!({"metadata": {"name": connect}, "status": status}));
            api.patch_status(connect, &PatchParams::apply(&manager).force(), &Patch::Apply(&body)).await?;
        }
        Request::Event { connect, warning, reason, message } => {
            let resource = api_resource("", "v1", "Event", "events");
            let events: Api<DynamicObject> = Api::namespaced_with(client.clone(), "default", &resource);
            let now = SystemTime::now();
            let nanos = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_nanos());
            let event: DynamicObject = serde_json::from_value(json!({
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": format!("{connect}.{nanos:x}"), "namespace": "default"},
                "involvedObject": of(json!({"name": connect})),
                "type": if *warning { "Warning" } else { "Normal" },
                "reason": reason,
                "message": message.chars().take(1024).collect::<String>(),
                "firstTimestamp": rfc3339(now),
                "lastTimestamp": rfc3339(now),
                "count": 1,
                "source": {"component": "network-connect"},
            }))
            .map_err(kube::Error::SerdeError)?;
            events.create(&PostParams::default(), &event).await?;
        }
    }
    Ok(())
}

/// Who holds the lease, as far as it was seen.
struct Seen {
    holder: String,
    renewed: String,
    since: Instant,
}

/// Takes the lease when nobody holds it or its holder is not heard of any more, and says whether this process has it.
async fn lead(client: Client, namespace: String, tell: UnboundedSender<Event>) {
    let resource = api_resource("coordination.k8s.io", "v1", "Lease", "leases");
    let api: Api<DynamicObject> = Api::namespaced_with(client, &namespace, &resource);
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let me = format!("{}_{}", host.trim(), std::process::id());
    let mut seen: Option<Seen> = None;
    let mut until: Option<Instant> = None;
    let mut leading = false;
    loop {
        let began = Instant::now();
        // Whoever cannot be heard for so long has lost the lease to another.
        let renewed = tokio::time::timeout(RENEW, renew(&api, &me, &mut seen)).await;
        match renewed {
            Ok(Ok(true)) => until = Some(began + LEASE_TIME),
            Ok(Ok(false)) => until = None,
            Ok(Err(e)) => tracing::info!("Kubernetes: lease {namespace}/{LEASE}: {e}; it will be tried again"),
            Err(_) => tracing::info!("Kubernetes: lease {namespace}/{LEASE}: no answer; it will be tried again"),
        }
        let leads = until.is_some_and(|until| Instant::now() + RENEW < until);
        if leads != std::mem::replace(&mut leading, leads) {
            tracing::info!(
                "this process {} for the cluster",
                if leads { "decides" } else { "does not decide any more" }
            );
            // Nobody listens at the end of the program.
            let _ = tell.send(Event::Leader(leads));
        }
        tokio::time::sleep(if leads { RENEW } else { Duration::from_secs(1) }).await;
    }
}

async fn renew(api: &Api<DynamicObject>, me: &str, seen: &mut Option<Seen>) -> Result<bool, kube::Error> {
    let now = rfc3339(SystemTime::now()).replace('Z', ".000000Z");
    let spec = json!({"holderIdentity": me, "leaseDurationSeconds": LEASE_TIME.as_secs(), "renewTime": now});
    let Some(mut lease) = api.get_opt(LEASE).await? else {
        let lease =
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec});
        let lease = serde_json::from_value(lease).map_err(kube::Error::SerdeError)?;
        return taken(api.create(&PostParams::default(), &lease).await);
    };
    let text = |key: &str| {
        let value = lease.data.get("spec").and_then(|s| s.get(key)).and_then(Json::as_str);
        value.unwrap_or_default().to_string()
    };
    let (holder, renewed) = (text("holderIdentity"), text("renewTime"));
    if holder != me && !holder.is_empty() {
        // Clocks differ: what counts is how long the lease has stayed as it is.
        let same = seen.as_ref().filter(|s| s.holder == holder && s.renewed == renewed);
        let since = same.map_or_else(Instant::now, |s| s.since);
        *seen = Some(Seen { holder, renewed, since });
        if since.elapsed() < LEASE_TIME {
            return Ok(false);
        }
    }
    lease.data["spec"] = spec;
    taken(api.replace(LEASE, &PostParams::default(), &lease).await)
}

/// Another process may have been faster.
fn taken(result: Result<DynamicObject, kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(e) => Err(e),
    }
}
