//! What waits to be sent to one client. A client that does not read is dropped once
//! too much waits, so it costs bounded memory.

use super::session::Session;
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

/// The receiving end, which the connection's writer holds.
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

    /// Ends the connection once all that waits has been sent.
    pub(crate) fn finish(&self) {
        // A message without parts is none; where the connection is gone it has ended.
        let _ = self.queue.send(Message::new());
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

    /// The next message, if one waits.
    pub(crate) fn more(&mut self) -> Option<Message> {
        self.queue.try_recv().ok()
    }

    /// Counts a message as sent.
    pub(crate) fn sent(&self, message: &Message) {
        self.waiting.fetch_sub(message.iter().map(Bytes::len).sum(), Ordering::AcqRel);
    }
}

type Batch = Vec<(Arc<Session>, Message)>;

/// As many messages are queued at once without the help of a worker thread.
const FEW: usize = 16;

/// Spreads messages to clients, in order. Many at a time are queued by a task of the runtime: from
/// there, waking the clients' tasks costs a fraction of what it does from the database's own thread.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    batches: mpsc::UnboundedSender<Batch>,
    waiting: Arc<AtomicUsize>,
}

impl Dispatcher {
    /// Starts the task, which ends with the dispatcher.
    pub(crate) fn start() -> Dispatcher {
        let (batches, mut rx) = mpsc::unbounded_channel::<Batch>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = waiting.clone();
        tokio::spawn(async move {
            while let Some(batch) = rx.recv().await {
                for (session, message) in batch {
                    session.out.push(message);
                }
                count.fetch_sub(1, Ordering::AcqRel);
            }
        });
        Dispatcher { batches, waiting }
    }

    /// Sends all messages.
    pub(crate) fn send(&self, messages: &mut Batch) {
        if messages.len() <= FEW && self.waiting.load(Ordering::Acquire) == 0 {
            for (session, message) in messages.drain(..) {
                session.out.push(message);
            }
            return;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // The task lives as long as the runtime.
        let _ = self.batches.send(std::mem::take(messages));
    }
}
