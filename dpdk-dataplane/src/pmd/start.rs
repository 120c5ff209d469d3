//! The start of DPDK and of the main PMD thread, and its end.

use super::main::{CollectorInput, ControllerEvent, MainPmd, PathChange};
use super::{Handle, Jobs, PmdEnded, sleep_exactly};
use crate::clock::Clock;
use crate::pmd::ipfix_statistics::IpfixStatistics;
use crate::ports::frame::set_memory;
use dpdk_rs::{Eal, Memory};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use switch::Event;
use tokio::sync::{mpsc, oneshot};

/// The most samples that wait for the exporters; further ones are dropped and counted.
const SAMPLES: usize = 16_384;
/// The most packet-ins of ports above their limit that wait for the task of OpenFlow connections. Further ones are
/// dropped here, so that they do not delay those of other ports.
const FLOODS: usize = 64;

/// Why the main PMD thread did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The system made no thread.
    #[error("the main PMD thread: {0}")]
    Thread(#[from] std::io::Error),
    /// DPDK did not start, or there is not enough memory for packets.
    #[error(transparent)]
    Dpdk(#[from] dpdk_rs::Error),
    /// The thread ended before DPDK had started.
    #[error(transparent)]
    Ended(#[from] PmdEnded),
}

/// A main PMD thread that has started.
pub struct Running {
    /// Gives it requests.
    pub handle: Handle,
    /// What it tells the database.
    pub paths: mpsc::UnboundedReceiver<PathChange>,
    /// What it tells OpenFlow connections.
    pub events: mpsc::UnboundedReceiver<ControllerEvent>,
    /// Packet-ins of ports that send too many.
    pub floods: mpsc::Receiver<Event>,
    /// Packets for collectors.
    pub samples: mpsc::Receiver<CollectorInput>,
    /// The thread; [`stop`] waits for its end.
    pub thread: JoinHandle<()>,
}

/// Stops the main PMD thread and closes its devices.
pub async fn stop(handle: &Handle, thread: JoinHandle<()>) {
    // The thread may have ended already.
    let _ = handle.run(|w| w.stop = true).await;
    let _ = tokio::task::spawn_blocking(move || thread.join()).await;
}

/// Starts DPDK with these arguments, and the main PMD thread.
///
/// # Errors
/// DPDK does not start, or there is not enough memory for packets.
pub async fn start(arguments: Vec<String>) -> Result<Running, StartError> {
    let (tx, rx) = oneshot::channel();
    let (job_tx, jobs) = channel();
    let (path_tx, paths) = mpsc::unbounded_channel();
    let (event_tx, events) = mpsc::unbounded_channel();
    let (flood_tx, floods) = mpsc::channel(FLOODS);
    let (sample_tx, samples) = mpsc::channel(SAMPLES);
    let clock = Clock::default();
    let time = clock.clone();
    // The thread that initialises DPDK becomes its main thread, the only one with a cache of free buffers by itself.
    let thread = std::thread::Builder::new().name("pmd-main".into()).spawn(move || {
        let eal = match set_up(&arguments) {
            Ok(eal) => eal,
            Err(e) => return drop(tx.send(Err(StartError::from(e)))),
        };
        let mut pmd = MainPmd::new(eal.clone(), jobs, (path_tx, event_tx, flood_tx), sample_tx, time);
        if tx.send(Ok(eal)).is_ok() {
            // Without a thread that wakes this one, it polls.
            pmd.wakes = dpdk_rs::wake(std::thread::current()).is_ok();
            pmd.run();
        }
        pmd.fast.stop();
    })?;
    let eal = rx.await.map_err(|_| PmdEnded)??;
    let handle =
        Handle { jobs: job_tx, thread: thread.thread().clone(), eal, clock, ipfix: IpfixStatistics::default() };
    Ok(Running { handle, paths, events, floods, samples, thread })
}

fn set_up(arguments: &[String]) -> Result<Eal, dpdk_rs::Error> {
    let eal = Eal::init(arguments)?;
    let (packets, share) = crate::config::dpdk::packets(arguments);
    let m = Memory::new(&eal, packets, share)?;
    // A process has one DPDK environment, so memory that is there already is as good.
    let _ = set_memory(m);
    sleep_exactly();
    Ok(eal)
}
