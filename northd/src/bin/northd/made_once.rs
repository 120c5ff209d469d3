//! What northd makes up itself, once, where a database lacks it.

use northd::Op;
use northd::addresses::Mac;
use northd::facts::ipam;
use northd::input::Input;
use ovn_schema::{ColumnValue, Map, Str, Uuid, nb, sb};

/// A random unicast Ethernet address, administered locally.
fn random() -> Mac {
    let [a, b, c, d, e, ..] = *Uuid::new_v4().as_bytes();
    Mac([a & 0xfc | 2, b, c, d, e, 1])
}

/// What has to be written before anything can be compiled.
pub struct Missing {
    /// New rows.
    pub nb: Vec<Op<nb::TableId>>,
    /// New rows.
    pub sb: Vec<Op<sb::TableId>>,
    /// What becomes of the options of `NB_Global`.
    pub options: Option<Exchange>,
}

/// Pairs of a row's options that go, and those that come. What an operator writes at the same moment stays.
pub struct Exchange {
    pub row: Uuid,
    pub gone: Map<Str, Str>,
    pub new: Map<Str, Str>,
}

impl Missing {
    /// What the databases lack: their one row, a prefix and addresses that nobody gave, or gave so that they are none.
    pub fn of(input: &Input) -> Missing {
        let mut out = Missing { nb: Vec::new(), sb: Vec::new(), options: None };
        match input.nb.nb_global.iter().next() {
            None => {
                let options = completed(&Map::new());
                let columns = vec![("options", options.to_datum())];
                out.nb.push(Op::Insert(nb::TableId::NbGlobal, Uuid::new_v4(), columns));
            }
            Some((row, global)) => {
                let (before, after) = (&global.options, completed(&global.options));
                let only_in = |a: &Map<Str, Str>, b: &Map<Str, Str>| -> Map<Str, Str> {
                    a.iter().filter(|(k, v)| b.get(*k) != Some(v)).map(|(k, v)| (k.clone(), v.clone())).collect()
                };
                if *before != after {
                    let (gone, new) = (only_in(before, &after), only_in(&after, before));
                    out.options = Some(Exchange { row: *row, gone, new });
                }
            }
        }
        if input.sb.sb_global.is_empty() {
            out.sb.push(Op::Insert(sb::TableId::SbGlobal, Uuid::new_v4(), Vec::new()));
        }
        out
    }

    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.nb.is_empty() && self.sb.is_empty() && self.options.is_none()
    }
}

/// `NB_Global:options` with a prefix of three octets and two addresses.
fn completed(before: &Map<Str, Str>) -> Map<Str, Str> {
    let mut options = before.clone();
    let given = before.get("mac_prefix").and_then(|text| ipam::prefix(text));
    let prefix = given.unwrap_or_else(|| random().to_string().chars().take(8).collect());
    options.insert("mac_prefix".into(), prefix.into());
    for key in ["svc_monitor_mac", "svc_monitor_mac_dst"] {
        if before.get(key).is_none_or(|text| text.parse::<Mac>().is_err()) {
            options.insert(key.into(), random().to_string().into());
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_prefix_is_made_up_once() {
        let with = |prefix: &str| {
            let address = || Str::from("0a:00:00:00:00:01");
            let pairs = ["svc_monitor_mac", "svc_monitor_mac_dst"].map(|k| (Str::from(k), address()));
            Map::from_iter(pairs.into_iter().chain([("mac_prefix".into(), prefix.into())]))
        };
        for (given, kept) in [("0a:bc:de", "0a:bc:de"), ("00:11:22:33:44:55", "00:11:22"), (" 0:1:2 ", "00:01:02")] {
            assert_eq!(completed(&with(given)), with(kept), "{given}");
        }
        for given in ["", "00:00:00", "00:00:00:00:00:00", "00:00:00:01:02:03", "nothing"] {
            let once = completed(&with(given));
            assert_ne!(once["mac_prefix"], "00:00:00".into());
            assert_eq!((once["mac_prefix"].len(), &completed(&once)), (8, &once), "{given}: kept from then on");
        }
        let mut bad = with("0a:bc:de");
        bad.insert("svc_monitor_mac".into(), "an address".into());
        assert!(completed(&bad)["svc_monitor_mac"].parse::<Mac>().is_ok());
    }
}
