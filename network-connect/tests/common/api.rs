//! As much of a Kubernetes API server as the daemon needs: list, watch with resource versions, bookmarks and an end (410),
//! create, replace with conflicts, server-side apply with field managers, the status subresource, objects held against the
//! schema of their definition; and its bad days.

#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part of it, and fails by panicking")]

#[path = "schema.rs"]
mod schema;

use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A path of fields to a value; elements of `conditions` by their type.
type Field = Vec<String>;

#[derive(Default)]
struct Store {
    version: u64,
    /// By collection (`/api/v1/nodes`), then by `namespace/name`.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    /// What happened: version, collection, type, object.
    log: Vec<(u64, String, &'static str, Value)>,
    /// Who owns which fields of which object.
    owners: BTreeMap<(String, String), BTreeMap<String, BTreeSet<Field>>>,
    /// Requests, as `METHOD path`, of lists and watches with `list ` or `watch ` in front.
    requests: Vec<String>,
    /// What changed before this version is forgotten.
    oldest: u64,
    /// The schema of objects of a collection.
    schemas: BTreeMap<String, Value>,
    /// Requests that are refused: the method, how often yet, and with which code.
    refused: Vec<(String, usize, u64)>,
    /// Whether connections are refused.
    down: bool,
    /// Counts how often connections were cut.
    cuts: u64,
}

/// The server; clones are the same one.
#[derive(Clone)]
pub struct Api {
    store: Arc<Mutex<Store>>,
    changed: Arc<watch::Sender<u64>>,
    pub port: u16,
}

fn fields(value: &Value, at: &mut Field, out: &mut BTreeMap<Field, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, value) in map {
                at.push(key.clone());
                fields(value, at, out);
                at.pop();
            }
        }
        Value::Array(list) if at.last().is_some_and(|k| k == "conditions") => {
            for element in list {
                at.push(element["type"].as_str().unwrap().into());
                fields(element, at, out);
                at.pop();
            }
        }
        other => drop(out.insert(at.clone(), other.clone())),
    }
}

fn set(object: &mut Value, field: &[String], value: Option<Value>) {
    let [key, rest @ ..] = field else { return };
    if let Value::Array(list) = object {
        let at = list.iter().position(|e| e["type"] == json!(key)).unwrap_or_else(|| {
            list.push(json!({"type": key}));
            list.len() - 1
        });
        return set(&mut list[at], rest, value);
    }
    if !object.is_object() {
        *object = json!({});
    }
    let map: &mut Map<String, Value> = object.as_object_mut().unwrap();
    match (rest, value) {
        ([], Some(value)) => drop(map.insert(key.clone(), value)),
        ([], None) => drop(map.remove(key)),
        (_, value) => {
            let empty = if key == "conditions" { json!([]) } else { json!({}) };
            set(map.entry(key.clone()).or_insert(empty), rest, value);
        }
    }
}

impl Store {
    fn put(&mut self, collection: &str, key: &str, mut object: Value) -> Value {
        self.version += 1;
        let before = self.objects.get(collection).and_then(|all| all.get(key));
        let generation = before.map_or(0, |b| b["metadata"]["generation"].as_u64().unwrap_or(0));
        let same = before.is_some_and(|b| b["spec"] == object["spec"]);
        let metadata = &mut object["metadata"];
        metadata["resourceVersion"] = json!(self.version.to_string());
        metadata["generation"] = json!(generation + u64::from(!same));
        if before.is_none() {
            metadata["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.version));
        }
        let all = self.objects.entry(collection.into()).or_default();
        let kind = if all.insert(key.into(), object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.log.push((self.version, collection.into(), kind, object.clone()));
        object
    }

    fn remove(&mut self, collection: &str, key: &str) {
        if let Some(object) = self.objects.get_mut(collection).and_then(|all| all.remove(key)) {
            self.version += 1;
            self.log.push((self.version, collection.into(), "DELETED", object));
        }
    }

    /// What is wrong with an object, or with what became of it.
    fn invalid(&self, collection: &str, old: Option<&Value>, new: &Value) -> Option<Value> {
        let wrong = schema::check(self.schemas.get(collection)?, old, new);
        (!wrong.is_empty()).then(|| failure(422, "Invalid", &wrong.join("; ")))
    }

    /// Server-side apply. Fields that the manager had and does not name any more go.
    fn apply(
        &mut self,
        collection: &str,
        key: &str,
        manager: &str,
        force: bool,
        status: bool,
        body: &Value,
    ) -> Result<Value, Value> {
        let there = self.objects.get(collection).and_then(|all| all.get(key)).cloned();
        if there.is_none() && status {
            return Err(failure(404, "NotFound", "there is no such object"));
        }
        // What is applied and is not there is made.
        let mut object = there.clone().unwrap_or_else(|| {
            json!({"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": {"name": body["metadata"]["name"]}})
        });
        let mut wanted = BTreeMap::new();
        fields(body, &mut Vec::new(), &mut wanted);
        let part = |f: &Field| match f.first().map(String::as_str) {
            Some("status") => status,
            Some("metadata") => !status && !matches!(f.get(1).map(String::as_str), Some("name" | "namespace")),
            Some("apiVersion" | "kind") => false,
            _ => !status,
        };
        wanted.retain(|field, _| part(field));
        let owners = self.owners.entry((collection.into(), key.into())).or_default();
        let mut present = BTreeMap::new();
        fields(&object, &mut Vec::new(), &mut present);
        for (other, owned) in owners.iter_mut().filter(|(other, _)| *other != manager) {
            let conflicts: Vec<Field> =
                owned.iter().filter(|f| wanted.get(*f).is_some_and(|v| present.get(*f) != Some(v))).cloned().collect();
            if !conflicts.is_empty() && !force {
                return Err(failure(409, "Conflict", &format!("{conflicts:?} belong to {other}")));
            }
            owned.retain(|f| !conflicts.contains(f));
        }
        // A manager's fields of the other part are kept apart, as of a subresource.
        let entry = owners.entry(format!("{manager}{}", if status { "/status" } else { "" })).or_default();
        let left: Vec<Field> = entry.iter().filter(|f| !wanted.contains_key(*f)).cloned().collect();
        *entry = wanted.keys().cloned().collect();
        left.iter().for_each(|f| set(&mut object, f, None));
        for (field, value) in wanted {
            set(&mut object, &field, Some(value));
        }
        if let Some(failure) = self.invalid(collection, there.as_ref(), &object) {
            return Err(failure);
        }
        if there.as_ref() == Some(&object) { Ok(object) } else { Ok(self.put(collection, key, object)) }
    }
}

fn failure(code: u64, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": message})
}

/// The collection, the namespace, the name and whether it is the status, of a path.
fn parts(path: &str) -> (String, String, String, bool) {
    let mut words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let head = if words[0] == "api" { 2 } else { 3 };
    let mut namespace = String::new();
    if words.get(head) == Some(&"namespaces") && words.len() > head + 2 {
        namespace = words[head + 1].into();
        words.drain(head..head + 2);
    }
    let collection = format!("/{}", words[..=head].join("/"));
    let name = words.get(head + 1).map(|n| (*n).to_string()).unwrap_or_default();
    (collection, namespace, name, words.get(head + 2) == Some(&"status"))
}

impl Api {
    pub async fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let api = Api { store: Arc::default(), changed: Arc::new(watch::channel(0).0), port };
        let server = api.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move { server.serve(stream).await });
            }
        });
        api
    }

    /// A kubeconfig file's text.
    pub fn kubeconfig(&self) -> String {
        let cluster = format!("http://127.0.0.1:{}", self.port);
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": cluster}}], "users": [{"name": "u", "user": {}}]})
        .to_string()
    }

    fn tell(&self) {
        let store = self.store.lock().unwrap();
        self.changed.send_replace(store.version + (store.cuts << 32));
    }

    /// Holds objects of a collection against the schema in their definition.
    pub fn check(&self, collection: &str, definition: &Value) {
        let schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        self.store.lock().unwrap().schemas.insert(collection.into(), schema);
    }

    /// Puts an object as people do, who are told what is wrong with it.
    pub fn try_put(&self, collection: &str, object: Value) -> Result<(), String> {
        {
            let store = self.store.lock().unwrap();
            let old = store.objects.get(collection).and_then(|all| all.get(&key_of(&object)));
            if let Some(failure) = store.invalid(collection, old, &object) {
                return Err(failure["message"].as_str().unwrap().to_string());
            }
        }
        self.put(collection, object);
        Ok(())
    }

    /// Cuts all connections; while the server is down there are no new ones.
    pub fn cut(&self, down: bool) {
        let mut store = self.store.lock().unwrap();
        store.cuts += 1;
        store.down = down;
        drop(store);
        self.tell();
    }

    /// Forgets what changed so far: who watches from an earlier version has to list anew.
    pub fn forget(&self) {
        let mut store = self.store.lock().unwrap();
        store.oldest = store.version;
        store.log.clear();
    }

    /// Refuses the next requests of a method.
    pub fn refuse(&self, method: &str, times: usize, code: u64) {
        self.store.lock().unwrap().refused.push((method.into(), times, code));
    }

    /// How many of the refusals are left.
    pub fn refusals(&self) -> usize {
        self.store.lock().unwrap().refused.iter().map(|r| r.1).sum()
    }

    /// How many requests begin so.
    pub fn requests(&self, begin: &str) -> usize {
        self.store.lock().unwrap().requests.iter().filter(|r| r.starts_with(begin)).count()
    }

    pub fn put(&self, collection: &str, object: Value) {
        let key = key_of(&object);
        self.store.lock().unwrap().put(collection, &key, object);
        self.tell();
    }

    pub fn remove(&self, collection: &str, key: &str) {
        self.store.lock().unwrap().remove(collection, key);
        self.tell();
    }

    pub fn get(&self, collection: &str, key: &str) -> Value {
        self.store.lock().unwrap().objects.get(collection).and_then(|all| all.get(key)).cloned().unwrap_or_default()
    }

    pub fn list(&self, collection: &str) -> Vec<Value> {
        self.store.lock().unwrap().objects.get(collection).into_iter().flat_map(|all| all.values().cloned()).collect()
    }

    /// The managers of an object's fields.
    pub fn managers(&self, collection: &str, key: &str) -> Vec<String> {
        let store = self.store.lock().unwrap();
        store.owners.get(&(collection.into(), key.into())).into_iter().flat_map(|o| o.keys().cloned()).collect()
    }

    /// How many requests wrote something.
    pub fn writes(&self) -> usize {
        let store = self.store.lock().unwrap();
        let writes = |r: &&String| ["POST", "PUT", "PATCH"].iter().any(|m| r.starts_with(m)) && !r.contains("/leases");
        store.requests.iter().filter(writes).count()
    }

    /// Serves a connection until the next cut.
    async fn serve(&self, stream: TcpStream) -> Option<()> {
        let (cuts, mut changed) = (self.store.lock().unwrap().cuts, self.changed.subscribe());
        if self.store.lock().unwrap().down {
            return None;
        }
        // The cut is looked at first: what changes behind it is not told any more.
        tokio::select! {
            biased;
            _ = changed.wait_for(|now| now >> 32 != cuts) => None,
            ended = self.converse(stream) => ended,
        }
    }

    async fn converse(&self, mut stream: TcpStream) -> Option<()> {
        loop {
            let (head, body) = request(&mut stream).await?;
            let line = head.lines().next()?.to_string();
            let mut words = line.split(' ');
            let (method, target) = (words.next()?, words.next()?);
            let (path, query) = target.split_once('?').unwrap_or((target, ""));
            let query: BTreeMap<&str, &str> = query.split('&').filter_map(|p| p.split_once('=')).collect();
            let watches = method == "GET" && query.contains_key("watch");
            let what = match (method, watches, parts(path).2.is_empty()) {
                (_, true, _) => "watch ",
                ("GET", _, true) => "list ",
                _ => "",
            };
            let refusal = {
                let mut store = self.store.lock().unwrap();
                let word = if what.is_empty() { format!("{method} ") } else { what.to_string() };
                store.requests.push(format!("{word}{path}"));
                let word = word.trim_end();
                store.refused.iter_mut().find(|r| r.0 == word && r.1 > 0).map(|r| {
                    r.1 -= 1;
                    failure(r.2, if r.2 == 409 { "Conflict" } else { "InternalError" }, "a bad day")
                })
            };
            if watches && refusal.is_none() {
                let from = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
                let bookmarks = query.get("allowWatchBookmarks") == Some(&"true");
                return self.watch(&mut stream, &parts(path).0, from, bookmarks).await;
            }
            let answer = refusal.map_or_else(|| self.answer(method, path, &query, &body), Err);
            let (code, answer) = match answer {
                Ok(answer) => (200, answer),
                Err(failure) => (failure["code"].as_u64()?, failure),
            };
            self.tell();
            let text = answer.to_string();
            let head = format!(
                "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                text.len()
            );
            stream.write_all(format!("{head}{text}").as_bytes()).await.ok()?;
        }
    }

    fn answer(&self, method: &str, path: &str, query: &BTreeMap<&str, &str>, body: &[u8]) -> Result<Value, Value> {
        let (collection, namespace, name, status) = parts(path);
        let key = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
        let mut store = self.store.lock().unwrap();
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        let there = store.objects.get(&collection).and_then(|all| all.get(&key)).cloned();
        match method {
            "GET" if name.is_empty() => {
                let items: Vec<Value> =
                    store.objects.get(&collection).into_iter().flat_map(|a| a.values().cloned()).collect();
                let version = store.version.to_string();
                Ok(
                    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items}),
                )
            }
            "GET" => there.ok_or_else(|| failure(404, "NotFound", "there is no such object")),
            "POST" => {
                let mut body = body;
                if !namespace.is_empty() {
                    body["metadata"]["namespace"] = json!(namespace);
                }
                let key = key_of(&body);
                match store.objects.get(&collection).is_some_and(|all| all.contains_key(&key)) {
                    true => Err(failure(409, "AlreadyExists", "it is there")),
                    false => match store.invalid(&collection, None, &body) {
                        Some(failure) => Err(failure),
                        None => Ok(store.put(&collection, &key, body)),
                    },
                }
            }
            "PUT" => match there {
                Some(now) if now["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"] => {
                    Ok(store.put(&collection, &key, body))
                }
                _ => Err(failure(409, "Conflict", "the object has been modified")),
            },
            "PATCH" => {
                let manager = query.get("fieldManager").copied().unwrap_or_default();
                let force = query.get("force") == Some(&"true");
                store.apply(&collection, &key, manager, force, status, &body)
            }
            _ => Err(failure(405, "MethodNotAllowed", method)),
        }
    }

    async fn watch(&self, stream: &mut TcpStream, collection: &str, mut from: u64, bookmarks: bool) -> Option<()> {
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
        stream.write_all(head.as_bytes()).await.ok()?;
        let mut changed = self.changed.subscribe();
        loop {
            let mut text = String::new();
            let gone = {
                let store = self.store.lock().unwrap();
                let gone = from < store.oldest;
                for (_, _, kind, object) in store.log.iter().filter(|l| !gone && l.0 > from && l.1 == collection) {
                    text.push_str(&format!("{}\n", json!({"type": kind, "object": object})));
                }
                if gone {
                    let object = failure(410, "Expired", "too old resource version");
                    text.push_str(&format!("{}\n", json!({"type": "ERROR", "object": object})));
                } else if bookmarks && store.version > from && text.is_empty() {
                    let version = store.version.to_string();
                    let object =
                        json!({"apiVersion": "v1", "kind": "Bookmark", "metadata": {"resourceVersion": version}});
                    text.push_str(&format!("{}\n", json!({"type": "BOOKMARK", "object": object})));
                }
                from = store.version;
                gone
            };
            stream.write_all(text.as_bytes()).await.ok()?;
            if gone {
                return None;
            }
            changed.changed().await.ok()?;
        }
    }
}

fn key_of(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_string(),
    }
}

/// Reads a request: its head, and its body of the length that the head says.
async fn request(stream: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let length = head.lines().find_map(|l| {
        let (name, value) = l.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, body))
}
