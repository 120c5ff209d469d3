//! The control socket: JSON-RPC 1.0 over a Unix socket, as ovs-appctl and ovn-appctl speak it.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// A command's answer: text to print, or an error text.
pub type Reply = Result<String, String>;

type Answering<T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send>>;
type Handler<T> = Arc<dyn Fn(Vec<String>) -> Answering<T> + Send + Sync>;

struct Command {
    usage: String,
    min: usize,
    max: usize,
    handler: Handler<String>,
    /// Answers a client that has asked for JSON, if the command has more than text for it.
    json: Option<Handler<Value>>,
}

/// What a connection has asked its answers to be (`set-options --format text|json`, ovs-appctl(8)).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Format {
    #[default]
    Text,
    Json,
}

impl Format {
    /// The format that the words of `set-options` name.
    fn parse(args: &[String]) -> Result<Format, String> {
        let value = match args {
            [option, value] if option == "--format" => value,
            [option] => option.strip_prefix("--format=").ok_or_else(|| format!("{option}: unknown option"))?,
            _ => return Err("expected --format text|json".into()),
        };
        match value.to_ascii_lowercase().as_str() {
            "text" => Ok(Format::Text),
            "json" => Ok(Format::Json),
            _ => Err(format!("option format has invalid value {value}")),
        }
    }

    /// Text, as such an answer holds it.
    fn wrap(self, text: String) -> Value {
        match self {
            Format::Text => Value::String(text),
            Format::Json => json!({"reply-format": "plain", "reply": text}),
        }
    }
}

/// The commands of a control socket; clones share them.
#[derive(Clone, Default)]
pub struct Commands {
    table: Arc<RwLock<BTreeMap<String, Command>>>,
    busy: Arc<AtomicUsize>,
}

/// A request longer than this is no command: 16 MiB.
const LONGEST_REQUEST: usize = 16 << 20;

impl Commands {
    /// Adds a command (or replaces the one of that name) whose answer takes awaiting.
    /// `usage` names its arguments, of which there may be `min` to `max`.
    pub fn register_async<F, Fut>(&self, name: &str, usage: &str, min: usize, max: usize, handler: F)
    where
        F: Fn(Vec<String>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let handler: Handler<String> = Arc::new(move |args| Box::pin(handler(args)));
        let command = Command { usage: usage.to_string(), min, max, handler, json: None };
        self.table.write().unwrap_or_else(PoisonError::into_inner).insert(name.to_string(), command);
    }

    /// Adds a command (or replaces the one of that name) that answers at once.
    pub fn register<F>(&self, name: &str, usage: &str, min: usize, max: usize, handler: F)
    where
        F: Fn(Vec<String>) -> Reply + Send + Sync + 'static,
    {
        self.register_async(name, usage, min, max, move |args| std::future::ready(handler(args)));
    }

    /// Has a command that was added before answer clients that want JSON with a value instead of text.
    pub fn answer_json<F, Fut>(&self, name: &str, handler: F)
    where
        F: Fn(Vec<String>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Value, String>> + Send + 'static,
    {
        if let Some(c) = self.table.write().unwrap_or_else(PoisonError::into_inner).get_mut(name) {
            c.json = Some(Arc::new(move |args| Box::pin(handler(args))));
        }
    }

    /// The text of `list-commands`.
    pub fn list(&self) -> String {
        let mut s = String::from("The available commands are:\n");
        for (name, c) in self.table.read().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(s, "  {name:<23} {}", c.usage);
        }
        s
    }

    /// Runs one command.
    ///
    /// # Errors
    /// The command's own error text, or that of an unknown command or a wrong number of arguments.
    pub async fn run(&self, name: &str, args: Vec<String>) -> Reply {
        let handler = self.find(name, args.len(), |c| c.handler.clone())?;
        handler(args).await
    }

    /// Something of a command that takes so many arguments.
    fn find<T>(&self, name: &str, args: usize, f: impl FnOnce(&Command) -> T) -> Result<T, String> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let c = table.get(name).ok_or_else(|| {
            format!("\"{name}\" is not a valid command (use \"list-commands\" to see a list of valid commands)")
        })?;
        if args < c.min {
            return Err(format!("\"{name}\" command requires at least {} arguments", c.min));
        }
        if args > c.max {
            return Err(format!("\"{name}\" command takes at most {} arguments", c.max));
        }
        Ok(f(c))
    }

    /// Runs one command for a client with answers in this format.
    async fn run_for(&self, format: Format, name: &str, args: Vec<String>) -> Result<Value, String> {
        let json = self.find(name, args.len(), |c| c.json.clone())?;
        if let Some(handler) = json.filter(|_| format == Format::Json) {
            return handler(args).await;
        }
        let mut text = self.run(name, args).await?;
        if format == Format::Text {
            end_line(&mut text);
        }
        Ok(format.wrap(text))
    }

    /// How many commands are being run or answered.
    pub(crate) fn busy(&self) -> usize {
        self.busy.load(Ordering::Acquire)
    }

    async fn answer(&self, request: &Value, format: &mut Format) -> Value {
        let id = request.get("id").cloned().unwrap_or(Value::Null);
        let method = request.get("method").and_then(Value::as_str);
        let args: Option<Vec<String>> = request
            .get("params")
            .and_then(Value::as_array)
            .and_then(|a| a.iter().map(|v| v.as_str().map(String::from)).collect());
        let reply = match (method, args) {
            (Some("set-options"), Some(args)) => Format::parse(&args).map(|f| {
                *format = f;
                f.wrap(String::new())
            }),
            (Some(m), Some(args)) => {
                tracing::debug!(target: "unixctl", "received request {m}{}, id={id}", json!(args));
                self.run_for(*format, m, args).await
            }
            (Some(m), None) => Err(format!("\"{m}\" command has non-string argument")),
            (None, _) => Err("request without a method".to_string()),
        };
        match reply {
            Ok(result) => {
                tracing::debug!(target: "unixctl", "replying with success, id={id}: {result}");
                json!({"id": id, "result": result, "error": null})
            }
            Err(mut text) => {
                tracing::debug!(target: "unixctl", "replying with error, id={id}: \"{text}\"");
                end_line(&mut text);
                json!({"id": id, "error": text})
            }
        }
    }

    async fn serve(self, mut stream: UnixStream) -> std::io::Result<()> {
        let (mut buffer, mut format) = (Vec::new(), Format::default());
        loop {
            if stream.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            let mut used = 0;
            let mut requests = Vec::new();
            {
                let mut values = serde_json::Deserializer::from_slice(&buffer).into_iter::<Value>();
                loop {
                    match values.next() {
                        Some(Ok(v)) => requests.push(v),
                        Some(Err(e)) if !e.is_eof() => return Ok(()),
                        Some(Err(_)) | None => break,
                    }
                    used = values.byte_offset();
                }
            }
            buffer.drain(..used);
            if buffer.len() > LONGEST_REQUEST {
                return Ok(());
            }
            for request in requests {
                let busy = Busy::new(&self.busy);
                let reply = self.answer(&request, &mut format).await;
                stream.write_all(reply.to_string().as_bytes()).await?;
                drop(busy);
            }
        }
    }
}

/// Ends a text that is not empty with a line feed.
fn end_line(s: &mut String) {
    if !s.is_empty() && !s.ends_with('\n') {
        s.push('\n');
    }
}

struct Busy(Arc<AtomicUsize>);

impl Busy {
    fn new(count: &Arc<AtomicUsize>) -> Busy {
        count.fetch_add(1, Ordering::AcqRel);
        Busy(count.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A bound control socket; it is removed when dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
}

impl Socket {
    /// Binds the socket and serves commands on it, as long as the runtime lives.
    pub(crate) fn open(path: &Path, commands: Commands) -> std::io::Result<Socket> {
        if let Some(dir) = path.parent().filter(|d| !d.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir)?;
        }
        let _ = std::fs::remove_file(path);
        let listener = UnixListener::bind(path)?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o750);
        std::fs::set_permissions(path, mode)?;
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => {
                        tokio::spawn(commands.clone().serve(stream));
                    }
                    Err(e) => {
                        tracing::warn!(target: "unixctl", "accept failed: {e}");
                        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                    }
                }
            }
        });
        Ok(Socket { path: path.to_path_buf() })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}
