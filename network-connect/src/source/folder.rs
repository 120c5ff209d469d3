//! A folder of YAML files, watched for changes.
//!
//! Every file whose name ends in `.yaml`, `.yml` or `.json` holds resources, several after each other where it likes. What is
//! written about a `ClusterNetworkConnect` stands in `status/NAME.yaml` beside them, which belongs to this program: its
//! annotations count as if they were the resource's own. A file that does not parse counts as it was before.

use super::{Event, Feed, Request, Source};
use crate::resource::{Condition, Kind, Name, meta};
use anyhow::Context;
use notify::{RecursiveMode, Watcher};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
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
}

struct State {
    path: PathBuf,
    /// What each file held when it parsed last.
    files: BTreeMap<PathBuf, BTreeMap<Name, Json>>,
    /// What was told.
    told: BTreeMap<Name, Json>,
    beside: BTreeMap<String, Beside>,
    /// What was said about files.
    said: BTreeMap<PathBuf, String>,
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
            if !event.is_ok_and(|e| e.kind.is_access()) {
                // Nobody listens at the end of the program.
                let _ = changed.send(());
            }
        })?;
        watcher.watch(&self.path, RecursiveMode::NonRecursive).with_context(|| format!("{}", self.path.display()))?;
        let mut state = State {
            path: self.path,
            files: BTreeMap::new(),
            told: BTreeMap::new(),
            beside: BTreeMap::new(),
            said: BTreeMap::new(),
            tell,
        };
        tokio::spawn(async move {
            let _watcher = watcher;
            state.read_status();
            state.scan();
            state.send(Event::Leader(true));
            state.send(Event::Synced);
            loop {
                tokio::select! {
                    Some(()) = changes.recv() => {
                        tokio::time::sleep(GATHER).await;
                        while changes.try_recv().is_ok() {}
                        state.scan();
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

fn is_resource_file(path: &Path) -> bool {
    let hidden = path.file_name().and_then(|n| n.to_str()).is_none_or(|n| n.starts_with('.'));
    !hidden && path.extension().and_then(|e| e.to_str()).is_some_and(|e| ["yaml", "yml", "json"].contains(&e))
}

/// The resources in a text.
fn resources(text: &str) -> Result<BTreeMap<Name, Json>, String> {
    let documents: Vec<Json> = serde_saphyr::from_multiple(text).map_err(|e| e.to_string())?;
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
        let namespace = match (kind.is_namespaced(), m.namespace.as_str()) {
            (false, _) => String::new(),
            (true, "") => "default".to_string(),
            (true, namespace) => namespace.to_string(),
        };
        let name = Name { kind, namespace, name: m.name };
        if out.insert(name.clone(), object).is_some() {
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

    /// Reads files that there are, and tells what is new.
    fn scan(&mut self) {
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
        for path in present {
            let text = std::fs::read_to_string(&path).map_err(|e| e.to_string());
            match text.and_then(|text| resources(&text)) {
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
        let mut now: BTreeMap<Name, Json> = BTreeMap::new();
        for (path, objects) in &self.files {
            for (name, object) in objects {
                if now.contains_key(name) {
                    tracing::warn!("{}: {name} is in an earlier file already, which counts", path.display());
                } else {
                    now.insert(name.clone(), self.merged(name, object));
                }
            }
        }
        let gone: Vec<Name> = self.told.keys().filter(|name| !now.contains_key(name)).cloned().collect();
        for name in gone {
            if name.kind == Kind::Connect {
                self.beside.remove(&name.name);
                // There may be none.
                let _ = std::fs::remove_file(self.status_file(&name.name));
            }
            self.send(Event::Object(name, None));
        }
        for (name, object) in &now {
            if self.told.get(name) != Some(object) {
                self.send(Event::Object(name.clone(), Some(object.clone())));
            }
        }
        self.told = now;
    }

    /// A resource with what is written beside it.
    fn merged(&self, name: &Name, object: &Json) -> Json {
        let mut object = object.clone();
        if name.kind != Kind::Connect {
            return object;
        }
        let Some(beside) = self.beside.get(&name.name) else { return object };
        if let Some(metadata) = object.get_mut("metadata").and_then(Json::as_object_mut) {
            let annotations = metadata.entry("annotations").or_insert_with(|| Json::Object(Map::new()));
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.extend(beside.annotations.iter().map(|(k, v)| (k.clone(), json!(v))));
            }
        }
        if let Some(object) = object.as_object_mut() {
            object.insert("status".into(), beside.status.clone());
        }
        object
    }

    fn write(&mut self, request: Request) {
        let beside = self.beside.entry(request.connect().to_string()).or_default();
        match request {
            Request::Annotate { annotation, text, .. } => drop(beside.annotations.insert(annotation.into(), text)),
            Request::Condition { condition, word, .. } => set_condition(&mut beside.status, &condition, word),
            Request::Event { warning, reason, message, .. } => {
                let time = crate::time::rfc3339(SystemTime::now());
                let kind = if warning { "Warning" } else { "Normal" };
                beside.events.push(json!({"time": time, "type": kind, "reason": reason, "message": message}));
                let surplus = beside.events.len().saturating_sub(EVENTS);
                beside.events.drain(..surplus);
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
        let names: Vec<String> = resources(text).expect("YAML").keys().map(Name::to_string).collect();
        assert_eq!(names, ["Namespace x", "Node a"]);
        assert!(resources("apiVersion: v1\nkind: Node\nmetadata: {}\n").is_err());
        assert!(resources("a: [").is_err());
    }
}
