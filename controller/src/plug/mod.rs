//! VIF plugging (ovn-nb(5), `options:vif-plug-type`): devices of this machine that the controller itself puts into the integration
//! bridge as interfaces of logical ports.
//!
//! What is plugged in is brought into line with what ports ask for; nothing is remembered between runs. An interface is the
//! controller's where `external_ids:ovn-plugged` names the provider of its device. All others are left alone.

mod dummy;
mod representor;
#[cfg(test)]
mod tests;

pub use dummy::Dummy;
pub use representor::{Representors, Source};

use crate::input::interfaces::{Interfaces, PLUGGED_ID};
use crate::input::model::Local;
use crate::plan::Plan;
use crate::rows::claims::{Role, role};
use crate::rows::plumbing::change_ports;
use ovn_schema::sb::PortBinding;
use ovn_schema::{Map, Set, Str, Uuid, Write, ovs};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{Debug, Write as _};

/// Says on an interface what is wrong with what its port asks for.
const ERROR: &str = "ovn-plug-error";
/// The options that are for the provider.
const OPTIONS: &str = "vif-plug:";

/// What a provider gives a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its name, which the interface gets.
    pub name: Str,
    /// The interface's type.
    pub kind: Str,
    /// The interface's options; of those that the provider maintains, all.
    pub options: Map<Str, Str>,
}

/// Why a port gets no device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Which devices there are is not known yet: all stays as it is.
    Unknown,
    /// The reason, and what would mend it.
    Because(String),
}

impl From<String> for Refusal {
    fn from(text: String) -> Refusal {
        Refusal::Because(text)
    }
}

/// Knows the devices of a kind.
pub trait Provider: Debug + Send {
    /// The device that a port with these options (`vif-plug:…`) is to have.
    ///
    /// # Errors
    /// Why there is none.
    fn device(&self, port: &str, options: &Map<Str, Str>) -> Result<Device, Refusal>;

    /// The options of interfaces that are the provider's; others are left as they are.
    fn maintains(&self) -> &'static [&'static str];

    /// Another number whenever other devices may be given.
    fn version(&self) -> u64 {
        0
    }
}

/// What a port asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// `vif-plug-type`.
    provider: Str,
    /// The port is to be plugged in here; otherwise what is plugged in may stay.
    here: bool,
    /// `vif-plug-mtu-request`.
    mtu: Option<Str>,
    /// `iface-id-ver`.
    version: Option<Str>,
    /// What is for the provider.
    options: Map<Str, Str>,
}

impl Wish {
    /// What a port asks of this chassis, if anything.
    pub fn of(p: &PortBinding, local: &Local) -> Option<Wish> {
        let provider = p.options.get("vif-plug-type")?.clone();
        let whole = p.r#type.is_empty() && p.parent_port.as_ref().is_none_or(|n| n.is_empty());
        if !whole || role(p, local) == Role::None {
            return None;
        }
        let here = p.requested_chassis.is_some() && p.requested_chassis == local.chassis;
        let own = p.options.iter().filter(|(k, _)| k.starts_with(OPTIONS));
        Some(Wish {
            provider,
            here,
            mtu: p.options.get("vif-plug-mtu-request").cloned(),
            version: p.options.get("iface-id-ver").cloned(),
            options: own.map(|(k, v)| (k.clone(), v.clone())).collect(),
        })
    }

    /// The largest packet that the device is to take; none: as it likes.
    fn mtu(&self) -> Result<Option<i64>, String> {
        let Some(text) = self.mtu.as_deref().filter(|t| *t != "0") else { return Ok(None) };
        match text.parse() {
            Ok(n @ 68..=65535) => Ok(Some(n)),
            _ => Err(format!(
                "options:vif-plug-mtu-request {text:?} is no number from 68 to 65535: the MTU is left as it is"
            )),
        }
    }
}

/// An interface that this controller plugged in.
#[derive(Clone, Copy)]
struct Own<'a> {
    port: Uuid,
    row: Uuid,
    interface: &'a ovs::Interface,
    name: &'a Str,
    lport: &'a Str,
}

/// The interfaces that controllers plugged in, in an order that stays.
fn owned<'a>(db: &'a ovs::Database, plugged: &Interfaces) -> Vec<Own<'a>> {
    let one = |row: &Uuid| {
        let (port, interface) = (plugged.port_of(row)?, db.interface.get(row)?);
        let lport = interface.external_ids.get("iface-id")?;
        Some(Own { port, row: *row, interface, name: &interface.name, lport })
    };
    plugged.plugged().iter().filter_map(one).collect()
}

/// What is to be done about a port.
enum Act<'a> {
    Plug(Device),
    Replace(Own<'a>, Device),
    Tune(Own<'a>, Option<Device>),
    Unplug(Own<'a>),
}

/// What plugs devices in.
#[derive(Debug, Default)]
pub struct Plugs {
    providers: BTreeMap<&'static str, Box<dyn Provider>>,
    /// What is wrong with ports, by name.
    problems: BTreeMap<Str, String>,
}

impl Plugs {
    /// Adds a provider.
    pub fn provide(&mut self, kind: &'static str, provider: Box<dyn Provider>) {
        self.providers.insert(kind, provider);
    }

    /// Another number whenever other devices may be given.
    pub fn version(&self) -> u64 {
        self.providers.values().map(|p| p.version()).sum::<u64>() + self.providers.len() as u64
    }

    /// Brings what is plugged into a bridge into line with what ports ask for.
    pub fn reconcile(
        &mut self,
        db: &ovs::Database,
        br: (Uuid, &ovs::Bridge),
        (plugged, wishes): (&Interfaces, &BTreeMap<Str, Wish>),
        plan: &mut Plan,
    ) {
        let own = owned(db, plugged);
        let mut problems = BTreeMap::new();
        if !own.is_empty() || !wishes.is_empty() {
            for (lport, act) in self.decide(db, &own, (plugged, wishes), &mut problems) {
                let wish = wishes.get(&lport);
                let mtu = wish.map_or(Ok(None), Wish::mtu).unwrap_or_else(|text| {
                    problems.entry(lport.clone()).or_insert(text);
                    None
                });
                let says = Says { lport: &lport, wish, mtu, error: problems.get(&lport) };
                if says.is_said(&act) {
                    continue;
                }
                self.carry_out(db, br, act, &says, plan);
            }
        }
        for (lport, text) in problems.iter().filter(|(lport, text)| self.problems.get(*lport) != Some(*text)) {
            tracing::warn!(target: "vif_plug", kind = daemon::kind(text), "{lport}: {text}");
        }
        self.problems = problems;
    }

    /// What each port gets, or why it gets nothing.
    fn device(&self, lport: &str, wish: &Wish) -> Result<Device, Refusal> {
        let Some(provider) = self.providers.get(&*wish.provider) else {
            let known = self.providers.keys().copied().collect::<Vec<_>>().join(", ");
            let known = if known.is_empty() { "there is none".to_string() } else { format!("there are {known}") };
            let text = format!(
                "Unable to open VIF plug provider for vif-plug-type: '{}' lport {lport}; {known}",
                wish.provider
            );
            return Err(text.into());
        };
        provider.device(lport, &wish.options)
    }

    fn decide<'a>(
        &self,
        db: &'a ovs::Database,
        own: &[Own<'a>],
        (plugged, wishes): (&Interfaces, &BTreeMap<Str, Wish>),
        problems: &mut BTreeMap<Str, String>,
    ) -> Vec<(Str, Act<'a>)> {
        let devices: BTreeMap<&Str, Result<Device, Refusal>> =
            wishes.iter().map(|(lport, w)| (lport, self.device(lport, w))).collect();
        let device = |lport: &Str| devices.get(lport).and_then(|d| d.as_ref().ok());
        // Of several interfaces of a port that one counts that has the right device.
        let mut of_port: BTreeMap<&Str, Own<'_>> = BTreeMap::new();
        for o in own {
            let right = device(o.lport).is_some_and(|d| d.name == *o.name);
            if right || !of_port.contains_key(o.lport) {
                of_port.insert(o.lport, *o);
            }
        }
        // A port that somebody else plugged in, or that is asked for elsewhere, wants no device.
        let stranger = |lport: &Str| plugged.claimants(lport).find(|c| !plugged.plugged().contains(c));
        let may = |lport: &Str| of_port.contains_key(lport) || wishes[lport].here && stranger(lport).is_none();
        let mut holders: BTreeMap<&Str, &Str> = BTreeMap::new();
        // Who has the device keeps it, then who has had one, be it by another name; the first by name otherwise.
        let rank = |lport: &Str, name: &Str| of_port.get(lport).map_or(2, |o| usize::from(o.name != name));
        for now in 0..=2 {
            for (lport, d) in &devices {
                if let Ok(d) = d
                    && may(lport)
                    && rank(lport, &d.name) == now
                {
                    holders.entry(&d.name).or_insert(lport);
                }
            }
        }
        let names = names(db, devices.values().flatten().map(|d| &d.name));
        let mut out = Vec::new();
        for o in own {
            let known = o.interface.external_ids.get(PLUGGED_ID).is_some_and(|k| self.providers.contains_key(&**k));
            let second = of_port.get(o.lport).is_some_and(|first| first.row != o.row);
            if second || !wishes.contains_key(o.lport) && known {
                out.push((o.lport.clone(), Act::Unplug(*o)));
            }
        }
        for (lport, d) in &devices {
            let have = of_port.get(lport).copied();
            if have.is_none() && !wishes[*lport].here {
                continue;
            }
            if let Some(other) = stranger(lport).filter(|_| have.is_none()) {
                problems.insert((*lport).clone(), already(db, lport, other));
                continue;
            }
            let result = d.clone().and_then(|d| match holders.get(&d.name) {
                Some(holder) if holder != lport => Err(taken(&d.name, holder).into()),
                _ => Ok(d),
            });
            match result.and_then(|d| self.place(d, have, own, &names)) {
                Ok(Some(act)) => out.push(((*lport).clone(), act)),
                Ok(None) | Err(Refusal::Unknown) => {}
                Err(Refusal::Because(text)) => {
                    problems.insert((*lport).clone(), text);
                    // What it has stays, unless it is another port's by right.
                    let act = |o: Own<'a>| match holders.get(o.name) {
                        Some(holder) if holder != lport => Act::Unplug(o),
                        _ => Act::Tune(o, None),
                    };
                    out.extend(have.map(|o| ((*lport).clone(), act(o))));
                }
            }
        }
        out
    }

    /// How a port comes to its device. A name that another port is about to give up is waited for.
    fn place<'a>(
        &self,
        d: Device,
        have: Option<Own<'a>>,
        own: &[Own<'a>],
        names: &HashMap<Str, Option<Uuid>>,
    ) -> Result<Option<Act<'a>>, Refusal> {
        if let Some(o) = have.filter(|o| *o.name == d.name) {
            return Ok(Some(Act::Tune(o, Some(d))));
        }
        match (names.get(&d.name), have) {
            (None, None) => Ok(Some(Act::Plug(d))),
            (None, Some(o)) => Ok(Some(Act::Replace(o, d))),
            (Some(Some(row)), have) if own.iter().any(|o| o.row == *row) => Ok(have.map(Act::Unplug)),
            _ => Err(Refusal::Because(format!(
                "its device {0} is a port already that this controller did not plug in: take it out with ovs-vsctl del-port {0}",
                d.name
            ))),
        }
    }

    fn carry_out(
        &self,
        db: &ovs::Database,
        (bid, br): (Uuid, &ovs::Bridge),
        act: Act<'_>,
        says: &Says<'_>,
        plan: &mut Plan,
    ) {
        let part = plan.part(format!("VIF plugging of {}", says.lport), says.digest(&act));
        let out = |o: &Own<'_>| {
            format!("Unplugging port {} from {} for iface-id {} on this chassis.", o.name, br.name, says.lport)
        };
        let into =
            |d: &Device| format!("Plugging port {} into {} for lport {} on this chassis.", d.name, br.name, says.lport);
        let none = BTreeSet::new();
        match act {
            Act::Unplug(o) => {
                part.log.push(out(&o));
                change_ports(db, bid, &none, &BTreeSet::from([o.port]), &mut part.txn);
            }
            Act::Plug(d) => {
                part.log.push(into(&d));
                let port = says.insert(&d, &mut part.txn);
                change_ports(db, bid, &BTreeSet::from([port]), &none, &mut part.txn);
            }
            Act::Replace(o, d) => {
                part.log.extend([out(&o), into(&d)]);
                let port = says.insert(&d, &mut part.txn);
                change_ports(db, bid, &BTreeSet::from([port]), &BTreeSet::from([o.port]), &mut part.txn);
            }
            Act::Tune(o, device) => {
                let maintained = says.wish.and_then(|w| self.providers.get(&*w.provider)).map(|p| p.maintains());
                if let Some(d) = device {
                    says.tune(&o, &d, maintained.unwrap_or_default(), part);
                }
                says.mark(&o, part);
            }
        }
    }

    /// What is plugged in for whom, and why not.
    pub fn show(&self, db: &ovs::Database, plugged: &Interfaces, wishes: &BTreeMap<Str, Wish>) -> String {
        let own = owned(db, plugged);
        let mut out = String::new();
        let all: BTreeSet<&Str> = wishes.keys().chain(own.iter().map(|o| o.lport)).collect();
        for lport in all {
            let provider = wishes.get(lport).map_or("none", |w| &*w.provider);
            let has = own.iter().filter(|o| o.lport == lport).map(|o| &**o.name).collect::<Vec<_>>();
            let has = if has.is_empty() { "-".to_string() } else { has.join(" ") };
            let _ = write!(out, "{lport}: type {provider}, plugged {has}");
            if let Some(text) = self.problems.get(lport) {
                let _ = write!(out, ", error: {text}");
            }
            out.push('\n');
        }
        out
    }
}

/// What an interface says of its port.
struct Says<'a> {
    lport: &'a Str,
    wish: Option<&'a Wish>,
    mtu: Option<i64>,
    error: Option<&'a String>,
}

impl Says<'_> {
    /// Whether an interface is as it is to be, as most are each time that one changes.
    fn is_said(&self, act: &Act<'_>) -> bool {
        let Act::Tune(o, device) = act else { return false };
        let (i, ids) = (o.interface, self.ids());
        let readable = self.wish.is_some_and(|w| w.mtu().is_ok());
        let right = device
            .as_ref()
            .is_none_or(|d| i.r#type == d.kind && i.options == d.options && (!readable || i.mtu_request == self.mtu));
        right
            && ids.iter().all(|(k, v)| i.external_ids.get(k) == Some(v))
            && (self.error.is_some() || !i.external_ids.contains_key(ERROR))
    }

    /// What is wanted, in short.
    fn digest(&self, act: &Act<'_>) -> String {
        let what = match act {
            Act::Plug(d) | Act::Tune(_, Some(d)) | Act::Replace(_, d) => format!("{d:?}"),
            Act::Tune(_, None) | Act::Unplug(_) => String::new(),
        };
        format!("{what} {:?} {:?} {:?}", self.wish, self.mtu, self.error)
    }

    fn ids(&self) -> Map<Str, Str> {
        let mut ids = Map::<Str, Str>::from([("iface-id".into(), self.lport.clone())]);
        if let Some(w) = self.wish {
            ids.insert(PLUGGED_ID.into(), w.provider.clone());
            ids.extend(w.version.clone().map(|v| ("iface-id-ver".into(), v)));
        }
        ids.extend(self.error.map(|e| (ERROR.into(), e.as_str().into())));
        ids
    }

    fn insert(&self, d: &Device, txn: &mut ovsdb_rs::client::Transaction) -> Uuid {
        let ids = self.ids();
        let columns = [
            ovs::Interface::name(&d.name),
            ovs::Interface::r#type(&d.kind),
            ovs::Interface::options(&d.options),
            ovs::Interface::mtu_request(&self.mtu),
            ovs::Interface::external_ids(&ids),
        ];
        let row = txn.insert_row(columns);
        txn.insert_row([ovs::Port::name(&d.name), ovs::Port::interfaces(&Set::from([row]))])
    }

    /// Brings type, options and MTU of an interface into line.
    fn tune(&self, o: &Own<'_>, d: &Device, maintained: &[&str], part: &mut crate::plan::Part) {
        let i = o.interface;
        if i.r#type != d.kind {
            part.txn.update_row(o.row, [ovs::Interface::r#type(&d.kind)]);
        }
        // Where the request cannot be read, the MTU is left as it is.
        let readable = self.wish.is_some_and(|w| w.mtu().is_ok());
        if readable && i.mtu_request != self.mtu {
            part.txn.update_row(o.row, [ovs::Interface::mtu_request(&self.mtu)]);
        }
        let mut options = i.options.clone();
        options.retain(|k, _| !maintained.contains(&&**k));
        options.extend(d.options.clone());
        if options != i.options {
            part.exchange_pairs(("Interface", o.row), "options", &i.options, &options);
        }
    }

    /// Brings what an interface says of its port into line.
    fn mark(&self, o: &Own<'_>, part: &mut crate::plan::Part) {
        let have = &o.interface.external_ids;
        let mut ids = have.clone();
        ids.remove(ERROR);
        ids.extend(self.ids());
        if ids != *have {
            part.exchange_pairs(("Interface", o.row), "external_ids", have, &ids);
        }
    }
}

/// Of some names those that interfaces or ports have, and the interface.
fn names<'a>(db: &ovs::Database, wanted: impl Iterator<Item = &'a Str>) -> HashMap<Str, Option<Uuid>> {
    let wanted: BTreeSet<&Str> = wanted.collect();
    if wanted.is_empty() {
        return HashMap::new();
    }
    let ports = db.port.values().filter(|p| wanted.contains(&p.name)).map(|p| (p.name.clone(), None));
    let mut out: HashMap<_, _> = ports.collect();
    let interfaces = db.interface.iter().filter(|(_, i)| wanted.contains(&i.name));
    out.extend(interfaces.map(|(id, i)| (i.name.clone(), Some(*id))));
    out
}

fn already(db: &ovs::Database, lport: &str, other: Uuid) -> String {
    let name = db.interface.get(&other).map_or("", |i| &*i.name);
    format!(
        "CMS requested plugging of lport {lport}, but interface {name} ({other}), which is not maintained by OVN, has this \
         iface-id already: take it out with ovs-vsctl del-port {name}, or vif-plug-type out of the port's options"
    )
}

fn taken(device: &str, holder: &str) -> String {
    format!("its device {device} is plugged in for lport {holder}: give one of the two another device")
}
