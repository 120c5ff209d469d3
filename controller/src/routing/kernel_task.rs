//! The task behind a part of the kernel that is held to a wish: routes and VRFs, or what EVPN puts into devices. It
//! looks at that part when the wish changes, when the kernel says that something changed, and after a failure; never
//! by the clock alone.

use futures::{FutureExt, StreamExt};
use rtnetlink::packet_core::{NetlinkMessage, NetlinkPayload};
use rtnetlink::packet_route::RouteNetlinkMessage;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

/// How long changes are gathered before the kernel is read.
const GATHER: Duration = Duration::from_millis(20);
/// The first and the longest pause after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(8));
/// How long the end may take.
pub const END: Duration = Duration::from_secs(5);

/// What the kernel says of changes.
pub type Messages =
    futures::channel::mpsc::UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, rtnetlink::sys::SocketAddr)>;

/// A part of the kernel.
pub trait Part: Send + 'static {
    /// What it is to hold; by default nothing.
    type Wish: Default + Send + 'static;

    /// Says what it is to hold.
    fn set_wish(&mut self, wish: Self::Wish);

    /// Brings it into line with the wish, and tells what else is in it. Whether all went well.
    fn sync(&mut self) -> impl Future<Output = bool> + Send;

    /// Whether what the kernel says may be of this part.
    fn concerns(&self, m: &NetlinkPayload<RouteNetlinkMessage>) -> bool;

    /// Waits for a change that no message tells of.
    fn changed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }
}

enum Command<W> {
    Wish(W),
    /// All that was put there is to go.
    End,
}

/// A handle on the task; it ends with it, and leaves everything as it is.
pub struct KernelTask<W, T> {
    commands: mpsc::UnboundedSender<Command<W>>,
    tables: watch::Receiver<T>,
    task: JoinHandle<()>,
}

impl<W: Default + Send + 'static, T: Clone> KernelTask<W, T> {
    /// Starts the task, which tells in `tables` what the part holds of others. It looks at the part at once, or when
    /// it gets a wish.
    pub fn spawn(
        part: impl Part<Wish = W>,
        tables: watch::Receiver<T>,
        messages: Messages,
        at_once: bool,
    ) -> KernelTask<W, T> {
        let (commands, received) = mpsc::unbounded_channel();
        KernelTask { commands, tables, task: tokio::spawn(run(part, received, messages, at_once)) }
    }

    /// Says what the part is to hold.
    pub fn wish(&self, wish: W) {
        // The task ends with the handle only.
        let _ = self.commands.send(Command::Wish(wish));
    }

    /// What the part holds of others.
    pub fn tables(&self) -> T {
        self.tables.borrow().clone()
    }

    /// Waits until that is something else.
    pub async fn changed(&mut self) {
        if self.tables.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Takes away what was put there; false if that took longer than [`END`].
    pub async fn end(self) -> bool {
        // The task is there as long as this is.
        let _ = self.commands.send(Command::End);
        tokio::time::timeout(END, self.task).await.is_ok()
    }
}

async fn run<P: Part>(
    mut part: P,
    mut commands: mpsc::UnboundedReceiver<Command<P::Wish>>,
    mut messages: Messages,
    mut due: bool,
) {
    let mut pause = None;
    loop {
        if due {
            pause = match part.sync().await {
                true => None,
                false => Some(pause.map_or(RETRY.0, |p: Duration| (p * 2).min(RETRY.1))),
            };
        }
        let retry = async {
            match pause {
                Some(p) => tokio::time::sleep(p).await,
                None => std::future::pending().await,
            }
        };
        due = true;
        tokio::select! {
            c = commands.recv() => match c {
                Some(Command::Wish(w)) => part.set_wish(w),
                Some(Command::End) => {
                    part.set_wish(P::Wish::default());
                    // What cannot be taken away was said.
                    let _ = part.sync().await;
                    return;
                }
                None => return,
            },
            Some((m, _)) = messages.next() => {
                due = part.concerns(&m.payload);
                if due {
                    tokio::time::sleep(GATHER).await;
                    while let Some(Some(_)) = messages.next().now_or_never() {}
                }
            }
            () = part.changed() => tokio::time::sleep(GATHER).await,
            () = retry => {}
        }
    }
}
