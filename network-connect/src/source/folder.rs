//! A folder of YAML files, watched for changes.
//!
//! Every file whose name ends in `.yaml`, `.yml` or `.json` holds resources, several after each other where it likes. What is
//! written about a `ClusterNetworkConnect` stands in `status/NAME.yaml` beside them, which belongs to this program: its
//! annotations count as if they were the resource's own. A file that does not parse counts as it was before. So do
//! `connectSubnets`, which an API server would not let anyone change, from when subnets were given out of them.

use super::{Event, Feed, Request, Source};
use crate::resource::connect::SUBNETS;
use crate::resource::{Condition, Kind, Name, meta};
use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc;

/// How many events are kept with a resource.
const EVENTS: usize = 20;

/// How long changes are gathered: an editor writes a file in steps.
const GATHER: Duration = Duration::from_millis(20);

/// The folder.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
}

/// What is written beside a resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Beside {
    annotations: BTreeMap<String, String>,
    status: Json,
    events: Vec<Json>,
    /// `spec.connectSubnets` of which subnets were given out.
    #[serde(rename = "connectSubnets", skip_serializing_if = "Json::is_null")]
    connect_subnets: Json,
}

struct State {
    path: PathBuf,
    /// What each file held when it parsed last.
    files: BTreeMap<PathBuf, BTreeMap<Name, Arc<Json>>>,
    /// What was told.
    told: BTreeMap<Name, Arc<Json>>,
    beside: BTreeMap<String, Beside>,
    /// What was said about files.
    said: BTreeMap<PathBuf, String>,
    /// `connectSubnets` that do not count, by resource.
    refused: BTreeMap<String, Json>,
    tell: mpsc::UnboundedSender<Event>,
}

impl Source for Folder {
    fn start(self) -> anyhow::Result<Feed> {
        let status = self.path.join("status");
        std::fs::create_dir_all(&status).with_context(|| format!("{}", status.display()))?;
        let (tell, events) = mpsc::unbounded_channel();
        let (requests, mut asked) = mpsc::unbounded_channel::<Request>();
        let (changed, mut changes) = mpsc::unbounded_channel();
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Where events were lost, any file may have changed.
            let paths = match event {
                Ok(e) if e.kind.is_access() => return,
                Ok(e) if !e.need_rescan() && !e.paths.is_empty() => Some(e.paths),
                _ => None,
            };
            // Nobody listens at the end of the program.
            let _ = changed.send(paths);
        })?;
        watcher.watch(&self.path, RecursiveMode::NonRecursive).with_context(|| format!("{}", self.path.display()))?;
        let mut state = State {
            path: self.path,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            beside: BTreeMap::new(),
            said: BTreeMap::new(),
            refused: BTreeMap::new(),
            tell,
        };
        tokio::spawn(async move {
            let _watcher = watcher;
            state.read_status();
            state.scan(None);
            state.send(Event::Leader(true));
            state.send(Event::Synced);
            loop {
                tokio::select! {
                    Some(paths) = changes.recv() => {
                        tokio::time::sleep(GATHER).await;
                        let mut all: Option<BTreeSet<PathBuf>> = paths.map(|p| p.into_iter().collect());
                        while let Ok(more) = changes.try_recv() {
                            all = all.zip(more).map(|(mut all, more)| {
                                all.extend(more);
                                all
                            });
                        }
                        state.scan(all.as_ref());
                    }
                    request = asked.recv() => {
                        let Some(request) = request else { return };
                        let mut of = BTreeSet::from([request.connect().to_string()]);
                        state.write(request);
                        while let Ok(request) = asked.try_recv() {
                            of.insert(request.connect().to_string());
                            state.write(request);
                        }
                        of.iter().for_each(|name| state.save(name));
                        state.tell_all();
                    }
                }
            }
        });
        Ok(Feed { events, requests })
    }
}

impl Beside {
    fn event(&mut self, warning: bool, reason: &str, message: &str) {
        let time = crate::time::rfc3339(SystemTime::now());
        let kind = if warning { "Warning" } else { "Normal" };
        self.events.push(json!({"time": time, "type": kind, "reason": reason, "message": message}));
        let surplus = self.events.len().saturating_sub(EVENTS);
        self.events.drain(..surplus);
    }
}

fn is_resource_file(path: &Path) -> bool {
    let hidden = path.file_name().and_then(|n| n.to_str()).is_none_or(|n| n.starts_with('.'));
    !hidden && path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["yaml", "yml", "json"].contains(&e))
}

/// The resources in a text.
fn resources(text: &str, json: bool) -> Result<BTreeMap<Name, Arc<Json>>, String> {
    let documents: Vec<Json> = match json {
        true => vec![serde_json::from_str(text).map_err(|e| e.to_string())?],
        false => serde_saphyr::from_multiple(text).map_err(|e| e.to_string())?,
    };
    let mut out = BTreeMap::new();
    let lists = documents.into_iter().flat_map(|d| match d.get("items").and_then(Json::as_array) {
        Some(items) => items.clone(),
        None => vec![d],
    });
    for object in lists.filter(|o| !o.is_null()) {
        let Some(kind) = Kind::of(&object) else {
            let of = |key: &str| object.get(key).and_then(Json::as_str).unwrap_or_default().to_string();
            tracing::debug!("{} {} is not read", of("apiVersion"), of("kind"));
            continue;
        };
        let m = meta(&object);
        if m.name.is_empty() {
            return Err(format!("a {} has no metadata.name", kind.api().2));
        }
        // It names a file.
        if m.name.contains('/') {
            return Err(format!("metadata.name {:?} of a {} has a slash", m.name, kind.api().2));
        }
        let namespace = match (kind.is_namespaced(), m.namespace.as_str()) {
            (false, _) => String::new(),
            (true, "") => "default".to_string(),
            (true, namespace) => namespace.to_string(),
        };
        let name = Name { kind, namespace, name: m.name };
        if out.insert(name.clone(), Arc::new(object)).is_some() {
            return Err(format!("{name} is there twice"));
        }
    }
    Ok(out)
}

impl State {
    fn send(&self, event: Event) {
        // Nobody listens at the end of the program.
        let _ = self.tell.send(event);
    }

    fn status_file(&self, name: &str) -> PathBuf {
        self.path.join("status").join(format!("{name}.yaml"))
    }

    /// What this program wrote before.
    fn read_status(&mut self) {
        let Ok(entries) = std::fs::read_dir(self.path.join("status")) else { return };
        for path in entries.flatten().map(|e| e.path()).filter(|p| is_resource_file(p)) {
            let Some(name) = path.file_stem().and_then(|n| n.to_str()) else { continue };
            let read = std::fs::read_to_string(&path).map_err(|e| e.to_string());
            match read.and_then(|text| serde_saphyr::from_str(&text).map_err(|e| e.to_string())) {
                Ok(beside) => drop(self.beside.insert(name.to_string(), beside)),
                Err(e) => tracing::warn!("{}: {e}; what it gave out is given out anew", path.display()),
            }
        }
    }

    /// Reads files that there are (these, or all of them), and tells what is new.
    fn scan(&mut self, changed: Option<&BTreeSet<PathBuf>>) {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) => {
                tracing::warn!("{}: {e}; resources stay as they are", self.path.display());
                return;
            }
        };
        let present: BTreeSet<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| is_resource_file(p)).collect();
        self.files.retain(|path, _| present.contains(path));
        self.said.retain(|path, _| present.contains(path));
        for path in present.into_iter().filter(|path| changed.is_none_or(|changed| changed.contains(path))) {
            let json = path.extension().is_some_and(|e| e == "json");
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string());
            match text.and_then(|text| resources(&text, json)) {
                Ok(objects) => {
                    self.said.remove(&path);
                    self.files.insert(path, objects);
                }
                Err(e) => {
                    if self.said.insert(path.clone(), e.clone()).as_ref() != Some(&e) {
                        tracing::warn!("{}: {e}; its resources stay as they were", path.display());
                    }
                }
            }
        }
        self.tell_all();
    }

    /// Tells what differs from what was told.
    fn tell_all(&mut self) {
        let mut now: BTreeMap<Name, Arc<Json>> = BTreeMap::new();
        for (path, objects) in &self.files {
            for (name, object) in objects {
                if now.contains_key(name) {
                    tracing::warn!("{}: {name} is in an earlier file already, which counts", path.display());
                } else {
                    now.insert(name.clone(), object.clone());
                }
            }
        }
        self.note_refused(&now);
        for (name, object) in &mut now {
            *object = self.merged(name, object);
        }
        let gone: Vec<Name> = self.told.keys().filter(|name| !now.contains_key(name)).cloned().collect();
        gone.into_iter().for_each(|name| self.send(Event::Object(name, None)));
        self.forget(&now);
        for (name, object) in &now {
            if !self.told.get(name).is_some_and(|told| Arc::ptr_eq(told, object) || told == object) {
                self.send(Event::Object(name.clone(), Some((**object).clone())));
            }
        }
        self.told = now;
    }

    /// Removes what is written of resources that are gone, also since before this program started. A file that does not parse may
    /// hold any.
    fn forget(&mut self, now: &BTreeMap<Name, Arc<Json>>) {
        if !self.said.is_empty() {
            return;
        }
        let there = |name: &str| now.keys().any(|n| n.kind == Kind::Connect && n.name == name);
        let gone: Vec<String> = self.beside.keys().filter(|name| !there(name)).cloned().collect();
        for name in gone {
            self.beside.remove(&name);
            // There may be none.
            let _ = std::fs::remove_file(self.status_file(&name));
        }
    }

    /// Says by an event which resources have other `connectSubnets` than those that subnets were given out of.
    fn note_refused(&mut self, now: &BTreeMap<Name, Arc<Json>>) {
        let mut refused = BTreeMap::new();
        for (name, object) in now.iter().filter(|(name, _)| name.kind == Kind::Connect) {
            let Some(held) = self.beside.get(&name.name).map(|b| &b.connect_subnets) else { continue };
            let wanted = &object["spec"]["connectSubnets"];
            if !held.is_null() && held != wanted {
                refused.insert(name.name.clone(), wanted.clone());
            }
        }
        let before = std::mem::replace(&mut self.refused, refused.clone());
        for (name, _) in refused.into_iter().filter(|(name, wanted)| before.get(name) != Some(wanted)) {
            let message = "spec.connectSubnets is immutable: it counts as it was; to change it, remove the resource and \
                           put it there again";
            tracing::warn!("ClusterNetworkConnect {name}: {message}");
            if let Some(beside) = self.beside.get_mut(&name) {
                beside.event(true, "InvalidSpec", message);
            }
            self.save(&name);
        }
    }

    /// A resource with what is written beside it.
    fn merged(&self, name: &Name, object: &Arc<Json>) -> Arc<Json> {
        let beside = self.beside.get(&name.name).filter(|_| name.kind == Kind::Connect);
        let Some(beside) = beside else { return object.clone() };
        let mut object = (**object).clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Json::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert_with(|| Json::Object(Map::new()));
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.extend(beside.annotations.iter().map(|(k, v)| (k.clone(), json!(v))));
            }
        }
        if let Some(spec) =
            object.get_mut("spec").and_then(Json::as_object_mut).filter(|_| !beside.connect_subnets.is_null())
        {
            spec.insert("connectSubnets".into(), beside.connect_subnets.clone());
        }
        if let Some(object) = object.as_object_mut() {
            object.insert("status".into(), beside.status.clone());
        }
        Arc::new(object)
    }

    fn write(&mut self, request: Request) {
        let of = request.connect().to_string();
        match request {
            Request::Annotate { annotation, text, .. } => {
                let name = Name { kind: Kind::Connect, namespace: String::new(), name: of.clone() };
                let beside = self.beside.entry(of).or_default();
                if annotation == SUBNETS {
                    let told = self.told.get(&name).filter(|_| text != "{}");
                    beside.connect_subnets = told.map_or(Json::Null, |o| o["spec"]["connectSubnets"].clone());
                }
                beside.annotations.insert(annotation.into(), text);
            }
            Request::Condition { condition, word, .. } => {
                set_condition(&mut self.beside.entry(of).or_default().status, &condition, word);
            }
            Request::Event { warning, reason, message, .. } => {
                self.beside.entry(of).or_default().event(warning, &reason, &message);
            }
        }
    }

    /// Writes a file anew, at once as a whole.
    fn save(&self, name: &str) {
        let Some(beside) = self.beside.get(name) else { return };
        let path = self.status_file(name);
        let write = || -> anyhow::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(path.parent().unwrap_or(&self.path))?;
            file.write_all(serde_saphyr::to_string(beside)?.as_bytes())?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            Ok(())
        };
        if let Err(e) = write() {
            tracing::warn!("{}: {e}; a restart may give out other subnets", path.display());
        }
    }
}

fn set_condition(status: &mut Json, condition: &Condition, word: Option<&str>) {
    if !status.is_object() {
        *status = json!({});
    }
    let Some(status) = status.as_object_mut() else { return };
    if let Some(word) = word {
        status.insert("status".into(), json!(word));
    }
    let conditions = status.entry("conditions").or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else { return };
    conditions.retain(|c| c.get("type").and_then(Json::as_str) != Some(&condition.kind));
    conditions.push(condition.json());
    conditions.sort_by_key(|c| c.get("type").and_then(Json::as_str).unwrap_or_default().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_documents_lists_and_what_is_none_of_ours() {
        let text = "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace, metadata: {name: x}}\n- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n";
        let names: Vec<String> = resources(text, false).expect("YAML").keys().map(Name::to_string).collect();
        assert_eq!(names, ["Namespace x", "Node a"]);
        assert!(resources("apiVersion: v1\nkind: Node\nmetadata: {}\n", false).is_err());
        assert!(resources("apiVersion: v1\nkind: Node\nmetadata: {name: ../a}\n", false).is_err());
        assert!(resources("a: [", false).is_err());
    }
}
