//! The connection for statistics of flows.

use super::attempts::Attempts;
use super::{Event, Halves, Life, Target};
use openflow_rs::Message;
use openflow_rs::connection::ConnectionError;
use openflow_rs::message::MultipartReply;
use tokio::sync::mpsc;

/// How many events have to fit beside statistics: these come again.
const ROOM: usize = 64;

/// A handle on the connection's task.
#[derive(Clone, Debug)]
pub struct Statistics(mpsc::UnboundedSender<Message>);

impl Statistics {
    /// Starts connecting to where a bridge is managed, and again whenever the connection is lost.
    pub fn start(target: Target, events: mpsc::Sender<Event>) -> Statistics {
        let (tx, rx) = mpsc::unbounded_channel();
        tokio::spawn(run(Attempts::new("statctrl", target, false), rx, events));
        Statistics(tx)
    }

    /// Asks the switch. A question while there is no connection is lost: it comes again.
    pub fn ask(&self, question: Message) {
        // The task lives as long as the events are read.
        let _ = self.0.send(question);
    }
}

async fn run(mut attempts: Attempts, mut questions: mpsc::UnboundedReceiver<Message>, events: mpsc::Sender<Event>) {
    let Target { remote, probe, .. } = attempts.target().clone();
    while !events.is_closed() {
        if let Some(halves) = attempts.connect().await {
            tracing::info!(target: "statctrl", "{remote}: connected, for statistics");
            while questions.try_recv().is_ok() {}
            match serve(halves, Life::new(probe), &mut questions, &events).await {
                Ok(()) => return,
                Err(e) => tracing::info!(target: "statctrl", "{remote}: connection dropped ({e})"),
            }
            attempts.lost();
        }
        tokio::select! {
            () = attempts.due() => {}
            () = events.closed() => return,
        }
    }
}

async fn serve(
    (mut sender, mut receiver): Halves,
    mut life: Life,
    questions: &mut mpsc::UnboundedReceiver<Message>,
    events: &mpsc::Sender<Event>,
) -> Result<(), ConnectionError> {
    loop {
        tokio::select! {
            () = life.silence() => {
                let xid = sender.xid();
                sender.queue(xid, &life.ask()?);
            }
            question = questions.recv() => {
                let Some(question) = question else { return Ok(()) };
                let xid = sender.xid();
                sender.queue(xid, &question);
            }
            received = receiver.recv() => {
                let received = received?;
                life = life.heard();
                match received.message {
                    Ok(Message::EchoRequest(data)) => sender.queue(received.header.xid, &Message::EchoReply(data)),
                    Ok(Message::MultipartReply { body: MultipartReply::Flow(flows), .. }) => {
                        if events.capacity() > ROOM {
                            let _ = events.send(Event::Statistics(flows)).await;
                        }
                    }
                    Ok(Message::Error { error_type, code, .. }) => {
                        tracing::warn!(target: "statctrl", "the switch gives no statistics: OpenFlow error type {error_type} code {code}");
                    }
                    Ok(_) => {}
                    Err(e) => tracing::warn!(target: "statctrl", "undecodable OpenFlow message: {e}"),
                }
            }
            flushed = sender.flush(), if sender.backlog() > 0 => flushed?,
        }
    }
}
