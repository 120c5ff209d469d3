//! The log of JSON-RPC messages, of clients and of the server.

use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Whether messages are logged (`vlog/set jsonrpc:dbg`).
pub(crate) fn is_logged() -> bool {
    tracing::event_enabled!(target: "jsonrpc", tracing::Level::DEBUG)
}

/// Logs a message in the form that ovsdb's programs give it. `verb` says which way it went.
pub(crate) fn log(name: &str, verb: &str, text: &[u8]) {
    if let Some(said) = is_logged().then(|| describe(text)).flatten() {
        tracing::debug!(target: "jsonrpc", "{name}: {verb} {said}");
    }
}

/// What a message is, and what it says.
fn describe(text: &[u8]) -> Option<String> {
    let m = serde_json::from_slice::<BTreeMap<String, &RawValue>>(text).ok()?;
    let part = |key: &str| m.get(key).map(|v| v.get()).filter(|v| *v != "null");
    let id = part("id").map(|id| format!(", id={id}")).unwrap_or_default();
    Some(match (part("method"), part("params"), part("error")) {
        (Some(method), params, _) => {
            let kind = if id.is_empty() { "notification" } else { "request" };
            format!("{kind}, method={method}, params={}{id}", params.unwrap_or("[]"))
        }
        (None, _, Some(error)) => format!("error, error={error}{id}"),
        (None, _, None) => format!("reply, result={}{id}", part("result").unwrap_or("null")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_described_in_ovsdbs_words() {
        let said = |text: &str| describe(text.as_bytes()).unwrap();
        assert_eq!(
            said(r#"{"id":3,"method":"transact","params":["db",{"op":"comment"}]}"#),
            r#"request, method="transact", params=["db",{"op":"comment"}], id=3"#
        );
        assert_eq!(
            said(r#"{"id":null,"method":"update3","params":[1]}"#),
            r#"notification, method="update3", params=[1]"#
        );
        assert_eq!(said(r#"{"id":3,"error":null,"result":[{}]}"#), "reply, result=[{}], id=3");
        assert_eq!(said(r#"{"id":3,"error":"no","result":null}"#), r#"error, error="no", id=3"#);
        assert_eq!(describe(b"[1]"), None);
    }
}
