//! What waits to be sent to one client. A client that does not read is dropped once
//! too much waits, so it costs bounded memory.

use bytes::Bytes;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Notify, mpsc};

/// A message in parts, of which some are shared between clients.
pub(crate) type Message = Vec<Bytes>;

/// The sending end; clones are the same queue.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    queue: mpsc::UnboundedSender<Message>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    overflow: Arc<Notify>,
}

/// The end that the connection's writer holds.
#[derive(Debug)]
pub(crate) struct Drain {
    queue: mpsc::UnboundedReceiver<Message>,
    waiting: Arc<AtomicUsize>,
}

pub(crate) fn outbox(limit: usize) -> (Outbox, Drain) {
    let (tx, rx) = mpsc::unbounded_channel();
    let waiting = Arc::new(AtomicUsize::new(0));
    let drain = Drain { queue: rx, waiting: waiting.clone() };
    (Outbox { queue: tx, waiting, limit, overflow: Arc::default() }, drain)
}

impl Outbox {
    /// Queues a message. Where more than the limit waits already, the client is given up instead.
    pub(crate) fn push(&self, message: Message) {
        let size: usize = message.iter().map(Bytes::len).sum();
        if self.waiting.fetch_add(size, Ordering::AcqRel) > self.limit {
            self.close();
            return;
        }
        // Where the connection is gone there is nobody to tell.
        let _ = self.queue.send(message);
    }

    pub(crate) fn send(&self, v: &Value) {
        self.push(vec![Bytes::from(v.to_string())]);
    }

    /// Ends the connection.
    pub(crate) fn close(&self) {
        self.overflow.notify_one();
    }

    /// Returns once the connection is to be ended.
    pub(crate) async fn closed(&self) {
        self.overflow.notified().await;
    }
}

impl Drain {
    pub(crate) async fn next(&mut self) -> Option<Message> {
        self.queue.recv().await
    }

    /// A further message, if one waits.
    pub(crate) fn more(&mut self) -> Option<Message> {
        self.queue.try_recv().ok()
    }

    /// Counts a message as sent.
    pub(crate) fn sent(&self, message: &Message) {
        self.waiting.fetch_sub(message.iter().map(Bytes::len).sum(), Ordering::AcqRel);
    }
}
