//! `--config-file` (ovsdb-server(1), "Configuration File"; Open vSwitch 3.3): remotes and databases in one JSON file, which
//! says what the options `--remote`, `--sync-from`, `--sync-exclude-tables`, `--active` and the arguments say otherwise.

use anyhow::{Context, bail, ensure};
use serde_json::{Map, Value};
use std::path::Path;

/// What a file says, as options.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub remotes: Vec<String>,
    pub databases: Vec<String>,
    pub sync_from: Option<String>,
    /// Files of databases, and the tables of each that replication leaves alone.
    pub excluded: Vec<(String, Vec<String>)>,
    pub active: bool,
}

/// Reads a file.
///
/// # Errors
/// Where it cannot be read, or says what is not supported.
pub fn read(path: &Path) -> anyhow::Result<Config> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let json: Value = serde_json::from_str(&text).with_context(|| path.display().to_string())?;
    parse(&json).with_context(|| path.display().to_string())
}

fn object<'a>(value: Option<&'a Value>, what: &str) -> anyhow::Result<Option<&'a Map<String, Value>>> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(o)) => Ok(Some(o)),
        Some(other) => bail!("{what}: {other} is no object"),
    }
}

fn parse(json: &Value) -> anyhow::Result<Config> {
    let all = object(Some(json), "the file")?.context("it is empty")?;
    if let Some(key) = all.keys().find(|k| !["remotes", "databases"].contains(&k.as_str())) {
        bail!("\"{key}\" is neither \"remotes\" nor \"databases\"");
    }
    let mut config = Config::default();
    for (remote, options) in object(all.get("remotes"), "remotes")?.into_iter().flatten() {
        let options = object(Some(options), remote)?;
        if let Some(key) = options.and_then(|o| o.keys().next()) {
            bail!(
                "remote {remote}: option \"{key}\" is not supported in a file; take the remote from a database (db:…)"
            );
        }
        config.remotes.push(remote.clone());
    }
    for (name, settings) in object(all.get("databases"), "databases")?.into_iter().flatten() {
        let empty = Map::new();
        let settings = object(Some(settings), name)?.unwrap_or(&empty);
        database(&mut config, name, settings).with_context(|| format!("database {name}"))?;
    }
    Ok(config)
}

fn database(config: &mut Config, name: &str, settings: &Map<String, Value>) -> anyhow::Result<()> {
    let sources = || -> anyhow::Result<Vec<String>> {
        Ok(object(settings.get("source"), "source")?.into_iter().flatten().map(|(s, _)| s.clone()).collect())
    };
    match settings.get("service-model").map(|m| m.as_str().unwrap_or_default()) {
        None | Some("standalone") => config.databases.push(name.to_string()),
        Some("relay") => {
            let sources = sources()?;
            ensure!(!sources.is_empty(), "a relay needs a \"source\"");
            config.databases.push(format!("relay:{name}:{}", sources.join(",")));
        }
        Some("active-backup") => {
            let active = settings.get("backup").and_then(Value::as_bool) == Some(false);
            let sources = sources()?;
            ensure!(
                sources.len() == 1 || active && sources.is_empty(),
                "a backup needs one \"source\", not {}",
                sources.len()
            );
            let source = sources.into_iter().next();
            ensure!(
                config.sync_from.is_none() || (&config.sync_from, config.active) == (&source, active),
                "all databases of a server have one source and are backups of it, or none is"
            );
            (config.sync_from, config.active) = (source, active);
            let tables = settings.get("exclude-tables").and_then(Value::as_array).into_iter().flatten();
            let tables: Vec<String> = tables.filter_map(Value::as_str).map(str::to_string).collect();
            config.databases.push(name.to_string());
            config.excluded.push((name.to_string(), tables));
        }
        Some("clustered") => bail!("clustered databases are not supported; serve a relay of the cluster"),
        Some(other) => bail!("\"{other}\" is no service model: use standalone, relay or active-backup"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_file_says_what_options_say() {
        let mut config = parse(&json!({
            "remotes": {"punix:db.sock": {}, "db:D,T,C": null},
            "databases": {
                "a.db": {},
                "R": {"service-model": "relay", "source": {"tcp:1.2.3.4:1": {}, "tcp:1.2.3.5:1": null}},
                "b.db": {"service-model": "active-backup", "backup": true, "source": {"unix:x": {}}, "exclude-tables": ["t"]}
            }
        }))
        .unwrap();
        // JSON objects have no order; serde_json's depends on its features, which other crates of a build may set.
        config.remotes.sort();
        config.databases.sort();
        assert_eq!(config.remotes, ["db:D,T,C", "punix:db.sock"]);
        assert_eq!(config.databases, ["a.db", "b.db", "relay:R:tcp:1.2.3.4:1,tcp:1.2.3.5:1"]);
        assert_eq!((config.sync_from.as_deref(), config.active), (Some("unix:x"), false));
        assert_eq!(config.excluded, [("b.db".to_string(), vec!["t".to_string()])]);
    }

    #[test]
    fn what_is_not_supported_is_named() {
        for (json, word) in [
            (json!([]), "no object"),
            (json!({"other": {}}), "\"other\""),
            (json!({"remotes": {"ptcp:1": {"role": "x"}}}), "\"role\""),
            (json!({"databases": {"d": {"service-model": "nosuch"}}}), "nosuch"),
            (json!({"databases": {"d": {"service-model": "relay"}}}), "source"),
            (json!({"databases": {"d": {"service-model": "clustered"}}}), "relay of the cluster"),
            (json!({"databases": {"d": {"service-model": "active-backup"}}}), "not 0"),
        ] {
            let error = format!("{:#}", parse(&json).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
    }
}
