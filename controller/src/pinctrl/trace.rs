//! The last exchanges of DHCP, for `dhcp/trace`: what a machine asked, what it was answered, or why not.

use ovn_schema::{DatapathKey, PortKey};
use packet::Mac;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// Exchanges of one machine that are kept, and machines.
const OF_ONE: usize = 32;
const MACHINES: usize = 512;

/// One exchange.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// When it was.
    pub at: SystemTime,
    /// The keys of the datapath and the port that the request came in by.
    pub port: (DatapathKey, PortKey),
    /// What was asked, with the transaction's number and what the machine says of itself.
    pub asked: String,
    /// What was answered, or why not.
    pub said: String,
}

#[derive(Debug, Default)]
struct Machines {
    of: HashMap<Mac, VecDeque<Exchange>>,
}

/// The exchanges, which the thread that serves packets writes and the control socket reads.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Mutex<Machines>>);

impl Trace {
    /// Keeps an exchange, instead of the oldest of the machine, or of the machine that was quiet for longest.
    pub fn add(&self, mac: Mac, exchange: Exchange) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.of.contains_key(&mac) && all.of.len() >= MACHINES {
            let last = |list: &VecDeque<Exchange>| list.back().map(|e| e.at);
            let quiet = all.of.iter().min_by_key(|(_, list)| last(list)).map(|(mac, _)| *mac);
            if let Some(quiet) = quiet {
                all.of.remove(&quiet);
            }
        }
        let list = all.of.entry(mac).or_default();
        if list.len() >= OF_ONE {
            list.pop_front();
        }
        list.push_back(exchange);
    }

    /// The exchanges of a machine, or of all, the oldest first: one a line.
    pub fn show(&self, of: Option<Mac>) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<(Mac, &Exchange)> = all
            .of
            .iter()
            .filter(|(m, _)| of.is_none_or(|o| o == **m))
            .flat_map(|(m, l)| l.iter().map(|e| (*m, e)))
            .collect();
        list.sort_by_key(|(_, e)| e.at);
        list.iter().map(|(mac, e)| format!("{} {mac} {e}\n", clock(e.at))).collect()
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (datapath, port) = self.port;
        write!(f, "datapath {datapath} port {port}: {} -> {}", self.asked, self.said)
    }
}

/// A time of day (UTC), with milliseconds.
fn clock(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let s = since.as_secs();
    format!("{:02}:{:02}:{:02}.{:03}Z", s / 3600 % 24, s / 60 % 60, s % 60, since.subsec_millis())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn exchange(n: u64) -> Exchange {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(n);
        Exchange {
            at,
            port: (DatapathKey(1), PortKey(2)),
            asked: format!("DISCOVER {n}"),
            said: "OFFER 10.0.0.4".into(),
        }
    }

    #[test]
    fn what_is_kept_has_bounds() {
        let trace = Trace::default();
        let mac = |n: u64| Mac::from_u64(n);
        (0..100_000).for_each(|n| trace.add(mac(1), exchange(n)));
        (1..=MACHINES as u64).for_each(|n| trace.add(mac(n), exchange(200_000 + n)));
        let one = trace.show(Some(mac(1)));
        assert_eq!(one.lines().count(), OF_ONE);
        assert!(one.lines().last().unwrap().contains("DISCOVER 200001 -> OFFER 10.0.0.4"), "{one}");
        // Machine 1 was quiet for longest.
        trace.add(mac(9999), exchange(300_000));
        assert_eq!(trace.show(Some(mac(1))), "");
        assert_eq!(trace.show(None).lines().count(), MACHINES);
        assert!(trace.show(Some(mac(9999))).starts_with("00:05:00.000Z 00:00:00:00:27:0f datapath 1 port 2: "));
    }
}
