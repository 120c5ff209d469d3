//! What stands between the controller and the switch: messages pass as they are, packets that no port received go to the controller, and
//! its answers to these come here.

use anyhow::Result;
use openflow_rs::message::PacketIn;
use openflow_rs::{Message, Version};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

/// Packets that wait for the controller at most; what comes more is dropped, as ovs-vswitchd does (ofproto/connmgr.c: 100 a connection).
const WAITING: usize = 100;

/// Open vSwitch's experimenter number, and its message that says how packets are to come.
const NICIRA: [u8; 4] = 0x2320_u32.to_be_bytes();
const SET_PACKET_IN_FORMAT: u32 = 16;
const RESUME: u32 = 28;

/// Octets of an answer in which a mark is looked for: its packet comes first.
const AHEAD: usize = 128;

/// What marks an answer that is waited for, and when it came.
type Awaited = ([u8; 4], Option<Instant>);

/// Packets for the controller.
#[derive(Clone)]
pub struct Wire {
    packets: mpsc::Sender<Vec<u8>>,
    taken: Arc<AtomicU64>,
    awaited: Arc<Mutex<Awaited>>,
}

/// The first message of a buffer, which it leaves.
fn message(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let len = usize::from(u16::from_be_bytes([*buffer.get(2)?, *buffer.get(3)?]));
    if len < 8 || buffer.len() < len {
        return None;
    }
    let rest = buffer.split_off(len);
    Some(std::mem::replace(buffer, rest))
}

/// The number of an experimenter message of Open vSwitch.
fn nicira(m: &[u8]) -> Option<u32> {
    let is = m.get(1) == Some(&4) && m.get(8..12) == Some(&NICIRA);
    m.get(12..16).filter(|_| is).map(|s| u32::from_be_bytes(s.try_into().unwrap_or_default()))
}

impl Wire {
    /// Listens where the controller looks for the switch, which is at `switch`.
    pub fn start(at: &Path, switch: &Path) -> Result<Wire> {
        let listener = UnixListener::bind(at)?;
        let (packets, rx) = mpsc::channel(WAITING);
        let wire = Wire { packets, taken: Arc::default(), awaited: Arc::default() };
        let (w, switch) = (wire.clone(), switch.to_path_buf());
        let rx = Arc::new(tokio::sync::Mutex::new(rx));
        tokio::spawn(async move {
            while let Ok((controller, _)) = listener.accept().await {
                let Ok(switch) = UnixStream::connect(&switch).await else { continue };
                tokio::spawn(w.clone().connection(controller, switch, rx.clone()));
            }
        });
        Ok(wire)
    }

    async fn connection(
        self,
        controller: UnixStream,
        switch: UnixStream,
        packets: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    ) {
        let (from_controller, to_controller) = controller.into_split();
        let (from_switch, to_switch) = switch.into_split();
        let (takes_packets, told) = tokio::sync::watch::channel(false);
        let taken = self.taken.clone();
        let down = tokio::spawn(down(from_switch, to_controller, packets, told, taken));
        // Either end of the connection is the end of both.
        let _ = self.up(from_controller, to_switch, takes_packets).await;
        down.abort();
    }

    async fn up(
        &self,
        mut from: tokio::net::unix::OwnedReadHalf,
        mut to: tokio::net::unix::OwnedWriteHalf,
        takes_packets: tokio::sync::watch::Sender<bool>,
    ) -> std::io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            if from.read_buf(&mut buffer).await? == 0 {
                return Ok(());
            }
            let mut out = Vec::new();
            while let Some(m) = message(&mut buffer) {
                match nicira(&m) {
                    Some(SET_PACKET_IN_FORMAT) => drop(takes_packets.send(true)),
                    Some(RESUME) if !self.packets.is_closed() => {
                        let mut awaited = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
                        let ahead = m.get(..AHEAD).unwrap_or(&m);
                        if awaited.1.is_none() && ahead.windows(4).any(|w| w == awaited.0) {
                            awaited.1 = Some(Instant::now());
                        }
                        continue;
                    }
                    _ => {}
                }
                out.extend(m);
            }
            to.write_all(&out).await?;
        }
    }

    /// Gives the controller a packet, unless too many wait. Says whether it was.
    pub fn offer(&self, packet: &[u8]) -> bool {
        self.packets.try_send(packet.to_vec()).is_ok()
    }

    /// Gives the controller a packet, behind those that wait.
    pub async fn give(&self, packet: Vec<u8>) {
        // The wire lives as long as the program.
        let _ = self.packets.send(packet).await;
    }

    /// Packets that the controller's connection took.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// From now on an answer with this mark is waited for, and no other.
    pub fn await_answer(&self, mark: [u8; 4]) {
        *self.awaited.lock().unwrap_or_else(PoisonError::into_inner) = (mark, None);
    }

    /// When it came.
    pub fn answered(&self) -> Option<Instant> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).1
    }
}

async fn down(
    mut from: tokio::net::unix::OwnedReadHalf,
    mut to: tokio::net::unix::OwnedWriteHalf,
    packets: Arc<tokio::sync::Mutex<mpsc::Receiver<Vec<u8>>>>,
    mut told: tokio::sync::watch::Receiver<bool>,
    taken: Arc<AtomicU64>,
) -> std::io::Result<()> {
    let mut buffer = Vec::new();
    // Those that do not take packets only copy.
    loop {
        tokio::select! {
            n = from.read_buf(&mut buffer) => {
                if n? == 0 { return Ok(()) }
                to.write_all(&buffer).await?;
                buffer.clear();
            }
            _ = told.changed() => break,
        }
    }
    let mut packets = packets.lock().await;
    loop {
        tokio::select! {
            biased;
            n = from.read_buf(&mut buffer) => {
                if n? == 0 { return Ok(()) }
                // Packets go between whole messages.
                let mut out = Vec::new();
                while let Some(m) = message(&mut buffer) { out.extend(m) }
                to.write_all(&out).await?;
            }
            Some(p) = packets.recv() => {
                to.write_all(&p).await?;
                taken.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A packet as the switch sends it.
pub fn encode(p: PacketIn) -> Vec<u8> {
    Message::PacketIn2(p).encode(Version::Of15, 0)
}
