//! `--config-file` (ovsdb-server(1); Open vSwitch 3.3): remotes and databases in one JSON file. What the file says is parsed here;
//! `databases.rs` and `config.rs` bring the server in line with it, at the start and at `ovsdb-server/reload`.

use crate::databases::{DatabaseConfig, Model};
use anyhow::{Context, bail, ensure};
use ovsdb_rs::json::canonical;
use ovsdb_rs::server::{RemoteOptions, SourceOptions};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// What a file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileConfig {
    pub remotes: BTreeMap<String, RemoteOptions>,
    /// By the name of a file, or of a relay's database.
    pub databases: BTreeMap<String, DatabaseConfig>,
}

/// Reads a file.
///
/// # Errors
/// Where it cannot be read, or does not say what ovsdb-server(1) allows.
pub fn read(path: &Path) -> anyhow::Result<FileConfig> {
    let text = std::fs::read_to_string(path)?;
    parse(&serde_json::from_str(&text).context("config: reading JSON failed")?)
}

fn parse(json: &Value) -> anyhow::Result<FileConfig> {
    let Value::Object(all) = json else { bail!("config: expected an object with \"remotes\" and \"databases\"") };
    if let Some(key) = all.keys().find(|k| !["remotes", "databases"].contains(&k.as_str())) {
        bail!("config: \"{key}\" is neither \"remotes\" nor \"databases\"");
    }
    let mut config = FileConfig::default();
    for (remote, options) in section(all, "remotes")? {
        config.remotes.insert(remote.clone(), remote_options(options, true));
    }
    for (name, settings) in section(all, "databases")? {
        let settings = database(name, settings).context("config: failed to parse 'databases'")?;
        config.databases.insert(name.clone(), settings);
    }
    Ok(config)
}

fn section<'a>(all: &'a Map<String, Value>, name: &str) -> anyhow::Result<&'a Map<String, Value>> {
    match all.get(name) {
        Some(Value::Object(o)) => Ok(o),
        _ => bail!("config: no object '{name}'"),
    }
}

/// The members of an object, each to be taken once. What is left over is an error.
struct Members<'a> {
    json: &'a Value,
    what: String,
    left: Map<String, Value>,
}

impl<'a> Members<'a> {
    fn of(json: &'a Value, what: String) -> Members<'a> {
        Members { json, what, left: json.as_object().cloned().unwrap_or_default() }
    }

    /// A member that `read` understands, if there is one.
    fn take<T>(&mut self, name: &str, read: impl FnOnce(&Value) -> Option<T>) -> anyhow::Result<Option<T>> {
        let Some(value) = self.left.shift_remove(name) else { return Ok(None) };
        let value = read(&value).with_context(|| self.error(&format!("Type mismatch for member '{name}'.")));
        value.map(Some)
    }

    fn error(&self, text: &str) -> String {
        format!("syntax \"{}\": syntax error: Parsing {} failed: {text}", canonical(self.json), self.what)
    }

    fn end(self) -> anyhow::Result<()> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => bail!(self.error(&format!("Member '{name}' is present but not allowed here."))),
        }
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(String::from)
}

/// The options of a remote, or of a source, whose clients have no rights of their own (`is_remote` false). What is wrong with them
/// is said, and has no effect.
fn remote_options(json: &Value, is_remote: bool) -> RemoteOptions {
    let mut options = RemoteOptions::default();
    if !json.is_null()
        && let Err(e) = read_options(json, is_remote, &mut options)
    {
        tracing::warn!(target: "ovsdb_jsonrpc_server", "{e:#}");
    }
    options
}

fn read_options(json: &Value, is_remote: bool, options: &mut RemoteOptions) -> anyhow::Result<()> {
    let mut members = Members::of(json, "JSON-RPC options".into());
    ensure!(json.is_object(), members.error("Expected an object."));
    let milliseconds = |v: &Value| v.as_u64().map(Duration::from_millis);
    options.max_backoff = members.take("max-backoff", milliseconds)?;
    options.inactivity_probe = members.take("inactivity-probe", milliseconds)?;
    options.dscp = members.take("dscp", |v| u8::try_from(v.as_u64()?).ok().filter(|d| *d < 64))?;
    if is_remote {
        options.read_only = members.take("read-only", Value::as_bool)?.unwrap_or_default();
        options.role = members.take("role", text)?.unwrap_or_default().into();
    }
    members.end()
}

fn database(name: &str, json: &Value) -> anyhow::Result<DatabaseConfig> {
    if json.is_null() {
        return Ok(DatabaseConfig::default());
    }
    let mut members = Members::of(json, format!("database {name}"));
    ensure!(json.is_object(), members.error("Expected an object."));
    let model = match members.take("service-model", text)? {
        None => Model::Inferred,
        Some(model) => Model::parse(&model).with_context(|| {
            tracing::warn!(target: "ovsdb_server", "Unrecognized database service model: '{model}'");
            members.error(&format!("'{model}' is not a valid service model"))
        })?,
    };
    let mut config = DatabaseConfig { model, ..DatabaseConfig::default() };
    if model == Model::ActiveBackup {
        config.backup = members
            .take("backup", Value::as_bool)?
            .with_context(|| members.error("Required 'backup' member is missing."))?;
        let tables = |v: &Value| v.as_array()?.iter().map(text).collect::<Option<BTreeSet<String>>>();
        config.exclude = members.take("exclude-tables", tables)?.unwrap_or_default();
    }
    if matches!(model, Model::ActiveBackup | Model::Relay) {
        let source = members.take("source", |v| v.as_object().cloned())?;
        let is_needed = model == Model::Relay || config.backup;
        ensure!(source.is_some() || !is_needed, members.error("Required 'source' member is missing."));
        if let Some(source) = source {
            let mut all = source.into_iter();
            let (Some((remote, options)), None) = (all.next(), all.next()) else {
                bail!(members.error("'source' should be an object with exactly one element"));
            };
            let RemoteOptions { inactivity_probe, max_backoff, dscp, .. } = remote_options(&options, false);
            config.source = Some((remote, SourceOptions { inactivity_probe, max_backoff, dscp }));
        }
    }
    members.end()?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn remotes_and_databases_of_each_model() {
        let config = parse(&json!({
            "remotes": {"punix:db.sock": {"inactivity-probe": 0, "read-only": true, "role": "r", "dscp": 7}, "db:D,T,C": null},
            "databases": {
                "a.db": {},
                "R": {"service-model": "relay", "source": {"tcp:192.0.2.4:1": {"max-backoff": 3000}}},
                "b.db": {"service-model": "active-backup", "backup": true, "source": {"unix:x": {}}, "exclude-tables": ["t"]},
                "c.db": {"service-model": "active-backup", "backup": false}
            }
        }))
        .unwrap();
        let options = &config.remotes["punix:db.sock"];
        assert_eq!((options.inactivity_probe, options.dscp), (Some(Duration::ZERO), Some(7)));
        assert_eq!((options.read_only, &*options.role), (true, "r"));
        assert_eq!(config.remotes["db:D,T,C"], RemoteOptions::default());
        assert_eq!(config.databases["a.db"], DatabaseConfig::default());
        let (remote, options) = config.databases["R"].source.clone().unwrap();
        assert_eq!((remote.as_str(), options.max_backoff), ("tcp:192.0.2.4:1", Some(Duration::from_secs(3))));
        let b = &config.databases["b.db"];
        assert!(b.backup && b.exclude.contains("t"));
        assert!(!config.databases["c.db"].backup);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (json, word) in [
            (json!([]), "object"),
            (json!({"remotes": {}}), "'databases'"),
            (json!({"remotes": {}, "databases": {}, "other": {}}), "\"other\""),
            (json!({"remotes": {}, "databases": {"d": 5}}), "database d"),
            (json!({"remotes": {}, "databases": {"d": {"service-model": "nosuch"}}}), "nosuch"),
            (json!({"remotes": {}, "databases": {"d": {"service-model": "relay"}}}), "'source' member is missing"),
            (json!({"remotes": {}, "databases": {"d": {"service-model": "relay", "source": {}}}}), "exactly one"),
            (json!({"remotes": {}, "databases": {"d": {"service-model": "active-backup"}}}), "'backup'"),
            (json!({"remotes": {}, "databases": {"d": {"service-model": "active-backup", "backup": 1}}}), "'backup'"),
            (json!({"remotes": {}, "databases": {"d": {"unknown": 1}}}), "'unknown' is present but not allowed"),
        ] {
            let error = format!("{:#}", parse(&json).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_wrong_option_of_a_remote_leaves_the_others() {
        let options = remote_options(&json!({"dscp": 42, "role": "r"}), false);
        assert_eq!((options.dscp, &*options.role), (Some(42), ""));
    }
}
