//! Which logical ports this chassis claims and releases, and which it reports up.

use crate::input::model::{Input, Local, Vif};
use crate::plan::Plan;
use crate::units::binding;
use crate::units::presence::Presence;
use ovn_schema::sb::{self, PortBinding};
use ovn_schema::{Set, Str, Uuid, Write};
use ovsdb_rs::client::Transaction;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// As what a chassis may bind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The port's main chassis.
    Main,
    /// One of the others, while the port migrates or is mirrored.
    Additional,
    /// Nothing: the port is asked for elsewhere.
    None,
}

/// As what the port is asked for here (ovn-nb(5), `options:requested-chassis`). A name that no chassis has asks for nobody.
pub fn role(p: &PortBinding, local: &Local) -> Role {
    let Some(me) = local.chassis else { return Role::None };
    if p.requested_chassis == Some(me) {
        return Role::Main;
    }
    if p.requested_additional_chassis.contains(&me) {
        return Role::Additional;
    }
    let Some(names) = p.options.get("requested-chassis").filter(|n| !n.is_empty()) else { return Role::Main };
    let own = |n: &str| n == &*local.chassis_name || n == &*local.hostname;
    match names.split(',').position(own) {
        Some(0) => Role::Main,
        Some(_) => Role::Additional,
        None => Role::None,
    }
}

/// Whether northd names this chassis as one that is to have the port, or the parent of a container's port.
pub fn is_asked(p: &PortBinding, input: &Input, local: &Local) -> bool {
    let name = interface_name(p);
    let owner = if *name == p.logical_port { Some(p) } else { input.port(name).map(|(_, p)| p) };
    owner.is_some_and(|o| {
        let named = o.options.get("requested-chassis").is_some_and(|n| !n.is_empty());
        let requested = o.requested_chassis.is_some() || !o.requested_additional_chassis.is_empty();
        (named || requested) && role(o, local) != Role::None
    })
}

/// The name of the port whose interface a port has: its own, of a container the parent's, of a mirror's exit the sink's.
pub fn interface_name(p: &PortBinding) -> &Str {
    if &*p.r#type == "mirror" {
        return p.mirror_port.as_ref().unwrap_or(&p.logical_port);
    }
    p.parent_port.as_ref().filter(|n| !n.is_empty()).unwrap_or(&p.logical_port)
}

/// The interface of a virtual machine's or container's port, where it is plugged in here and is of the port's version
/// (`options:iface-id-ver`).
pub fn plugged<'a>(p: &PortBinding, input: &Input, local: &'a Local) -> Option<&'a Vif> {
    let name = interface_name(p);
    let vif = local.interface(name)?;
    let owner = if *name == p.logical_port { p } else { input.port(name)?.1 };
    let version = owner.options.get("iface-id-ver");
    // A container's parent is no container.
    let whole = owner.parent_port.as_ref().is_none_or(|n| n.is_empty());
    (owner.r#type.is_empty() && whole && version.is_none_or(|v| Some(v) == vif.version.as_ref())).then_some(vif)
}

/// The interface that says it is a port, but of another version than northd wants.
pub fn other_version<'a>(p: &PortBinding, local: &'a Local) -> Option<&'a Vif> {
    let version = p.options.get("iface-id-ver")?;
    local.vifs.get(&p.logical_port).filter(|v| v.version.as_ref() != Some(version))
}

/// As what this chassis is to bind a port of type "" whose interface is plugged in here. A container's port follows its parent.
pub fn wanted_role(p: &PortBinding, input: &Input, local: &Local) -> Role {
    if plugged(p, input, local).is_none() {
        return Role::None;
    }
    let name = interface_name(p);
    match input.port(name) {
        Some((_, parent)) if *name != p.logical_port => {
            if role(p, local) == Role::None {
                Role::None
            } else {
                role(parent, local)
            }
        }
        _ => role(p, local),
    }
}

/// What is to be done with a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// It becomes this chassis'.
    Claim,
    /// This chassis becomes one of its additional ones.
    Join,
    /// This chassis is none of its additional ones any more.
    Leave,
    /// It is not this chassis' any more.
    Release,
    /// It is reported up.
    Up,
}

/// Claims a port from another chassis no sooner than this after the last time: two chassis with the same interface would
/// otherwise take it from each other at the speed of the database.
const PAUSE: Duration = Duration::from_millis(500);

/// `Chassis:other_config`: the external ports that a chassis asks another one for (UUIDs of Port_Binding, separated by
/// commas). Two that serve a port at once would both answer its machine: so the one that has it stops, says so by a
/// release, and only then the other one claims it.
pub const ASKED: &str = "isthmus-asks-for";
/// `Chassis:other_config`: this chassis claims a gateway port when its flows are in, and serves it on for a moment after
/// another one's claim. Of ovn-controller neither is so.
pub const ORDERLY: &str = "isthmus-orderly";

/// Whether a chassis changes gateways so.
pub fn is_orderly(c: &sb::Chassis) -> bool {
    ovn_schema::options::flag(&c.other_config, ORDERLY)
}

/// How long one that lives is waited for. ovn-controller lets go by itself.
const RELIEF: Duration = Duration::from_secs(1);
/// How long one that is taken for dead is: it may only be cut off, and sees that by its own sessions a packet later.
const LOSS: Duration = Duration::from_millis(200);

/// What has to be remembered about claims.
#[derive(Debug, Default)]
pub struct Claims {
    /// External ports that another chassis is asked for, and since when.
    asked: BTreeMap<Uuid, Instant>,
    claimed: HashMap<Str, Instant>,
    /// What was said of ports that are not claimed.
    said: HashMap<Str, Str>,
    next: Option<Instant>,
    waits_for_switch: bool,
}

/// What is known of the switch when ports are claimed.
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    /// It has the flows of what was claimed before, so that ports can be reported up.
    pub installed: bool,
    /// It has shown a moment ago that it lives.
    pub answers: bool,
}

impl Claims {
    /// When a claim that had to wait is due.
    pub fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Whether a port was claimed too short a time ago to be claimed again.
    fn waits(&mut self, name: &Str, now: Instant) -> bool {
        let until = self.claimed.get(name).map(|t| *t + PAUSE).filter(|u| now < *u);
        self.next = until.into_iter().chain(self.next).min();
        until.is_some()
    }

    /// The external ports that others are asked for.
    pub fn asked(&self) -> BTreeSet<Uuid> {
        self.asked.keys().copied().collect()
    }

    /// Asks the chassis that has an external port to let go of it; true as long as it is waited for.
    fn asks(&mut self, id: Uuid, p: &PortBinding, input: &Input, now: Instant) -> bool {
        let Some(holder) = p.chassis.filter(|_| &*p.r#type == "external").and_then(|c| input.sb.chassis.get(&c)) else {
            return false;
        };
        let lives = input.local.gateways.alive.contains(&holder.name);
        let until = *self.asked.entry(id).or_insert(now) + if lives { RELIEF } else { LOSS };
        if now < until {
            self.next = self.next.into_iter().chain([until]).min();
        }
        now < until
    }

    /// The ports that were claimed at a moment.
    pub fn claimed_at(&self, now: Instant) -> impl Iterator<Item = &Str> {
        self.claimed.iter().filter(move |(_, t)| **t == now).map(|(name, _)| name)
    }

    /// Whether a gateway port is claimed as soon as the switch has shown that it lives.
    pub fn waits_for_switch(&self) -> bool {
        self.waits_for_switch
    }

    /// Puts claims and releases into the plan: what is to be done, where it may be done now.
    pub fn reconcile(&mut self, input: &Input, here: &Presence, switch: Switch, now: Instant, plan: &mut Plan) {
        self.waits_for_switch = false;
        let Some(me) = input.local.chassis else { return };
        self.next = None;
        self.claimed.retain(|_, t| now.duration_since(*t) < PAUSE);
        self.asked.retain(|id, _| here.steps.get(id) == Some(&Step::Claim));
        self.explain(here);
        let row = |id: &Uuid| input.sb.port_binding.get(id);
        for (id, p) in here.encapsulations.iter().filter_map(|id| Some((id, row(id)?))) {
            encapsulate(*id, p, me, input, plan);
        }
        for (id, p, step) in here.steps.iter().filter_map(|(id, step)| Some((id, row(id)?, *step))) {
            if !may(step, p, input, switch.installed) {
                continue;
            }
            if step == Step::Claim && is_gateway(p) && !switch.answers {
                self.waits_for_switch = true;
                continue;
            }
            if step == Step::Claim && self.asks(*id, p, input, now) {
                continue;
            }
            let name = &p.logical_port;
            if step == Step::Claim && p.r#type.is_empty() && p.chassis.is_some() {
                let parent = interface_name(p).clone();
                if self.waits(name, now) || parent != *name && self.waits(&parent, now) {
                    continue;
                }
            }
            if step == Step::Claim {
                self.claimed.insert(name.clone(), now);
            }
            let part = plan.part(format!("Port_Binding of {name}"), (step, p.chassis));
            part.log = lines(step, p, input);
            write(step, *id, p, me, &mut part.txn);
        }
    }

    /// Says once why ports whose interfaces are plugged in here are not claimed.
    fn explain(&mut self, here: &Presence) {
        self.said.retain(|name, _| here.unclaimed.contains_key(name));
        for (name, text) in &here.unclaimed {
            if self.said.get(name) != Some(text) {
                tracing::info!(target: "binding", kind = daemon::kind(text), "{text}");
                self.said.insert(name.clone(), text.clone());
            }
        }
    }
}

/// Whether a port is with one chassis of a group, which others may take over.
fn is_gateway(p: &PortBinding) -> bool {
    matches!(&*p.r#type, "chassisredirect" | "external") && p.ha_chassis_group.is_some()
}

/// Whether an external port is left to another chassis, which has asked for it.
pub fn yields(p: &PortBinding, local: &Local) -> bool {
    &*p.r#type == "external" && local.gateways.yielding.contains(&p.logical_port)
}

/// The external ports of this chassis that another one begins to ask for, by its row before and now, and may have as a
/// member of their group.
pub fn asked(chassis: Uuid, (before, now): (&sb::Chassis, &sb::Chassis), input: &Input) -> Vec<Str> {
    let list = |c: &sb::Chassis| -> BTreeSet<Uuid> {
        c.other_config.get(ASKED).into_iter().flat_map(|l| l.split(',')).filter_map(|id| id.parse().ok()).collect()
    };
    let group = |p: &PortBinding| input.sb.ha_chassis_group.get(&p.ha_chassis_group?);
    let has = |p: &PortBinding| {
        let mut members = group(p).into_iter().flat_map(|g| &g.ha_chassis).filter_map(|h| input.sb.ha_chassis.get(h));
        members.any(|h| h.chassis == Some(chassis))
    };
    let own = |p: &&std::sync::Arc<PortBinding>| p.chassis.is_some() && p.chassis == input.local.chassis;
    let (now, before) = (list(now), list(before));
    let ports = now.difference(&before).filter_map(|id| input.sb.port_binding.get(id));
    ports.filter(own).filter(|p| has(p)).map(|p| p.logical_port.clone()).collect()
}

/// Whether a step may be taken now. Others let go of a gateway port when it is claimed, so that is done when everything is in place.
fn may(step: Step, p: &PortBinding, input: &Input, installed: bool) -> bool {
    match step {
        Step::Claim if is_gateway(p) => {
            !input.local.gateways.starting && installed && binding::may_claim(p, input, &input.local)
        }
        // Another one will answer at once: nothing of this one's is to be left.
        Step::Release if yields(p, &input.local) => installed && !input.local.gateways.starting,
        Step::Release if is_gateway(p) => !input.local.gateways.starting,
        Step::Up => installed,
        _ => true,
    }
}

/// What is to be done with a port.
pub fn step(p: &PortBinding, me: Uuid, input: &Input) -> Option<Step> {
    let have = p.chassis == Some(me);
    let (wanted, joined) = wanted(p, me, input)?;
    match wanted {
        Role::Main if !have => Some(Step::Claim),
        Role::Main if joined => Some(Step::Leave),
        // Where northd does not say that a port is down, it does not want to be told that it is up.
        Role::Main => (p.up == Some(false)).then_some(Step::Up),
        Role::Additional => (!joined).then_some(Step::Join),
        Role::None if have => Some(Step::Release),
        Role::None => joined.then_some(Step::Leave),
    }
}

/// As what this chassis is to have a port, and whether the database says that it is one of the additional ones; nothing for ports that
/// others bind.
fn wanted(p: &PortBinding, me: Uuid, input: &Input) -> Option<(Role, bool)> {
    let local = &input.local;
    let main = |is: bool| if is { Role::Main } else { Role::None };
    let joined = p.additional_chassis.contains(&me);
    Some(match &*p.r#type {
        "" | "mirror" => (wanted_role(p, input, local), joined),
        // One that has no group any more is nobody's.
        "chassisredirect" | "external" => {
            let active = || binding::active(p, input, local) == Some(me);
            (main(p.ha_chassis_group.is_some() && !yields(p, local) && active()), false)
        }
        "l3gateway" | "l2gateway" => {
            let key = if &*p.r#type == "l3gateway" { "l3gateway-chassis" } else { "l2gateway-chassis" };
            (main(p.options.get(key).is_some_and(|c| *c == local.chassis_name)), false)
        }
        "virtual" => (main(crate::rows::virtual_ports::has_parent(p, input, local)), joined),
        // One between switches of several zones is told to the others with its chassis (`requested-chassis`).
        "patch" => (main(p.requested_chassis == Some(me)), joined),
        // Nobody claims these; what a port was before its type changed does not count any more.
        "localnet" | "localport" | "remote" => (Role::None, joined),
        _ => return None,
    })
}

/// Why a port whose interface is plugged in here is not claimed.
pub fn unclaimed(p: &PortBinding, input: &Input) -> Option<Str> {
    let name = &p.logical_port;
    let vif = input.local.interface(interface_name(p)).filter(|_| p.r#type.is_empty())?;
    if wanted_role(p, input, &input.local) != Role::None {
        return None;
    }
    let text = match p.options.get("iface-id-ver") {
        Some(version) if vif.version.as_ref() != Some(version) => format!(
            "Mismatch iface-id-ver for lport {name}, expected {version}, found {}",
            vif.version.as_deref().unwrap_or("<empty>")
        ),
        _ => format!(
            "Not claiming lport {name}, chassis {} requested-chassis {} pb->chassis {}",
            input.local.chassis_name,
            p.options.get("requested-chassis").map_or("[]", |v| v),
            p.chassis.and_then(|c| input.sb.chassis.get(&c)).map_or("", |c| &c.name)
        ),
    };
    Some(text.into())
}

/// By which of this chassis' encapsulations a port is to be reached, where the database says otherwise.
struct Reached {
    /// For the main chassis: the encapsulation, if any.
    main: Option<Option<Uuid>>,
    /// For an additional one: those that it has, and those that it is to have.
    additional: Option<(Set<Uuid>, Set<Uuid>)>,
}

/// Whether a port is reached by another of this chassis' addresses than the database says.
pub fn is_reached_otherwise(p: &PortBinding, me: Uuid, input: &Input) -> bool {
    reached(p, me, input).is_some_and(|r| r.main.is_some() || r.additional.is_some())
}

/// By which of this chassis' addresses a port is reached, where its interface says so (`external_ids:encap-ip`) and northd does not
/// (`requested-encap-ip`).
fn reached(p: &PortBinding, me: Uuid, input: &Input) -> Option<Reached> {
    let kind = matches!(&*p.r#type, "" | "chassisredirect" | "external" | "l2gateway" | "l3gateway");
    if !kind || p.options.contains_key("requested-encap-ip") {
        return None;
    }
    let (main, other) = (p.chassis == Some(me), p.additional_chassis.contains(&me));
    if !main && !other && p.encap.is_none() && p.additional_encap.is_empty() {
        return None;
    }
    let none = Set::new();
    let mine = input.sb.chassis.get(&me).map_or(&none, |c| &c.encaps);
    let interface = plugged(p, input, &input.local).filter(|_| p.r#type.is_empty());
    let asked = interface.and_then(|v| v.encap_ip.as_ref());
    let meant = |e: &sb::Encap| match asked {
        Some(ip) => e.ip == *ip,
        None => ovn_schema::options::flag(&e.options, "is_default"),
    };
    let rows = mine.iter().filter_map(|e| Some((*e, input.sb.encap.get(e)?))).filter(|(_, e)| meant(e));
    // Geneve comes before VXLAN.
    let wanted =
        rows.min_by_key(|(_, e)| e.r#type.clone()).map(|(e, _)| e).filter(|_| (main || other) && mine.len() > 1);
    let differs = main && p.encap != wanted || !main && p.encap.is_some_and(|e| mine.contains(&e));
    let have: Set<Uuid> = p.additional_encap.iter().copied().filter(|e| mine.contains(e)).collect();
    let want: Set<Uuid> = wanted.filter(|_| other).into_iter().collect();
    Some(Reached { main: differs.then(|| wanted.filter(|_| main)), additional: (have != want).then_some((have, want)) })
}

/// Writes by which of this chassis' addresses a port is reached.
fn encapsulate(id: Uuid, p: &PortBinding, me: Uuid, input: &Input, plan: &mut Plan) {
    let Some(r) = reached(p, me, input) else { return };
    let name = &p.logical_port;
    if let Some(encap) = r.main {
        let part = plan.part(format!("Port_Binding of {name}:encap"), encap);
        part.txn.update_row(id, [sb::PortBinding::encap(&encap)]);
    }
    if let Some((have, want)) = r.additional {
        let part = plan.part(format!("Port_Binding of {name}:additional_encap"), &want);
        let (gone, added) = (sb::PortBinding::additional_encap(&have), sb::PortBinding::additional_encap(&want));
        part.txn.exchange_in_row(id, gone, added);
    }
}

/// What is logged of a step, in the words that OVN's operators know.
fn lines(step: Step, p: &PortBinding, input: &Input) -> Vec<String> {
    let name = &p.logical_port;
    let mut log = vec![match step {
        Step::Claim => match p.chassis.and_then(|c| input.sb.chassis.get(&c)) {
            Some(other) => {
                format!("Changing chassis for lport {name} from {} to {}.", other.name, input.local.chassis_name)
            }
            None => format!("Claiming lport {name} for this chassis."),
        },
        Step::Join => format!("Claiming lport {name} for this additional chassis."),
        Step::Leave => format!("Releasing lport {name} from this additional chassis."),
        Step::Release => format!("Releasing lport {name} from this chassis (sb_readonly=0)"),
        Step::Up => format!("Setting lport {name} up in Southbound"),
    }];
    if matches!(step, Step::Claim | Step::Join) {
        log.extend(p.mac.iter().map(|mac| format!("{name}: Claiming {mac}")));
    }
    log
}

fn write(step: Step, id: Uuid, p: &PortBinding, me: Uuid, txn: &mut Transaction) {
    let mine = || sb::PortBinding::additional_chassis(&Set::from([me]));
    let bind = |txn: &mut Transaction, chassis: Option<Uuid>| {
        let mut columns = vec![sb::PortBinding::chassis(&chassis)];
        if p.up.is_some() {
            columns.push(sb::PortBinding::up(&Some(false)));
        }
        txn.update_row(id, columns);
    };
    match step {
        Step::Claim => {
            bind(txn, Some(me));
            if p.additional_chassis.contains(&me) {
                txn.remove_from_row(id, mine());
            }
        }
        Step::Join => txn.add_to_row(id, mine()),
        Step::Leave => txn.remove_from_row(id, mine()),
        Step::Release => {
            bind(txn, None);
            if let Some(column) = crate::rows::virtual_ports::orphaned(p) {
                txn.update_row(id, [column]);
            }
            if p.additional_chassis.contains(&me) {
                txn.remove_from_row(id, mine());
            }
        }
        Step::Up => txn.update_row(id, [sb::PortBinding::up(&Some(true))]),
    }
}

/// Releases every port that this chassis has, and takes away what it heard of multicast, at `exit`.
pub fn release_all(sb: &sb::Database, chassis: Uuid, txn: &mut Transaction) {
    for (id, _) in sb.igmp_group.iter().filter(|(_, g)| g.chassis == Some(chassis)) {
        txn.delete("IGMP_Group", *id);
    }
    let me = Set::from([chassis]);
    for (id, _) in sb.port_binding.iter().filter(|(_, p)| p.additional_chassis.contains(&chassis)) {
        txn.remove_from_row(*id, sb::PortBinding::additional_chassis(&me));
    }
    for (id, _) in sb.port_binding.iter().filter(|(_, p)| p.chassis == Some(chassis)) {
        txn.update_row(*id, [sb::PortBinding::chassis(&None), sb::PortBinding::up(&Some(false))]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const ME: u128 = 1;
    const OTHER: u128 = 2;

    fn uuid(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn port(name: &str, f: impl FnOnce(&mut PortBinding)) -> PortBinding {
        let mut p = PortBinding { logical_port: name.into(), up: Some(false), ..PortBinding::default() };
        f(&mut p);
        p
    }

    fn world(ports: Vec<PortBinding>) -> Input {
        let mut db = sb::Database::default();
        for (id, name) in [(ME, "hv1"), (OTHER, "hv2")] {
            let c = sb::Chassis { name: name.into(), hostname: format!("{name}.example").into(), ..Default::default() };
            db.chassis.insert(uuid(id), Arc::new(c));
        }
        let vif = |n| Vif { ofport: Some(n), version: None, encap_ip: None, mtu: None, row: uuid(100 + u128::from(n)) };
        let vifs: BTreeMap<Str, Vif> = [("lp".into(), vif(1)), ("parent".into(), vif(2))].into();
        let local = Local {
            chassis_name: "hv1".into(),
            hostname: "hv1.example".into(),
            chassis: Some(uuid(ME)),
            vifs,
            ..Local::default()
        };
        for (n, p) in (10..).zip(ports) {
            db.port_binding.insert(uuid(n), Arc::new(p));
        }
        Input::new(db, local)
    }

    /// What a controller that begins with these ports does with them.
    fn steps(input: &mut Input, claims: &mut Claims, now: Instant) -> Vec<String> {
        let mut plan = Plan::new(Arc::new(sb::Database::schema()));
        let mut here = Presence::default();
        here.settle(input, &[]);
        let switch = Switch { installed: true, answers: true };
        claims.reconcile(input, &here, switch, now, &mut plan);
        plan.into_log()
    }

    fn one(p: PortBinding) -> Vec<String> {
        steps(&mut world(vec![p]), &mut Claims::default(), Instant::now())
    }

    #[test]
    fn a_port_goes_where_it_is_asked_for() {
        let asked = |to: &str| {
            let to: Str = to.into();
            one(port("lp", |p| drop(p.options.insert("requested-chassis".into(), to))))
        };
        assert_eq!(asked(""), ["Claiming lport lp for this chassis."]);
        assert_eq!(asked("hv1.example"), ["Claiming lport lp for this chassis."]);
        assert_eq!(asked("hv2,hv1"), ["Claiming lport lp for this additional chassis."]);
        assert!(asked("nobody").is_empty(), "an unknown name asks for nobody");
        let gone = one(port("lp", |p| {
            p.chassis = Some(uuid(ME));
            p.options.insert("requested-chassis".into(), "nobody".into());
        }));
        assert_eq!(gone, ["Releasing lport lp from this chassis (sb_readonly=0)"]);
    }

    /// A world with an external port, which a chassis has, in a group in which this one is preferred.
    fn external(holder: Option<u128>) -> Input {
        let mut input = world(vec![port("bm", |p| {
            (p.r#type, p.chassis) = ("external".into(), holder.map(uuid));
            p.ha_chassis_group = Some(uuid(50));
        })]);
        let member = |chassis, priority| sb::HaChassis { chassis: Some(uuid(chassis)), priority, ..Default::default() };
        for (n, m) in [(51, member(ME, 20)), (52, member(OTHER, 10))] {
            input.sb.ha_chassis.insert(uuid(n), Arc::new(m));
        }
        let group = sb::HaChassisGroup { ha_chassis: [uuid(51), uuid(52)].into(), ..Default::default() };
        input.sb.ha_chassis_group.insert(uuid(50), Arc::new(group));
        input.local.gateways.alive.insert("hv2".into());
        input
    }

    #[test]
    fn an_external_port_is_asked_for_before_it_is_claimed() {
        let (mut claims, start) = (Claims::default(), Instant::now());
        let mut held = external(Some(OTHER));
        assert!(steps(&mut held, &mut claims, start).is_empty());
        assert_eq!(claims.asked(), [uuid(10)].into());
        assert_eq!(claims.next(), Some(start + RELIEF));
        assert!(steps(&mut held, &mut claims, start + RELIEF / 2).is_empty());
        let claimed = |from: &str| [format!("Changing chassis for lport bm from {from} to hv1.")];
        assert_eq!(steps(&mut held, &mut claims, start + RELIEF)[..1], claimed("hv2"), "it does not answer");
        held.local.gateways.alive.clear();
        let mut other = Claims::default();
        assert!(steps(&mut held, &mut other, start).is_empty());
        assert_eq!(steps(&mut held, &mut other, start + LOSS)[..1], claimed("hv2"), "it is dead");
        let mut claims = Claims::default();
        steps(&mut held, &mut claims, start);
        let free = steps(&mut external(None), &mut claims, start);
        assert_eq!(free[..1], ["Claiming lport bm for this chassis."], "it has let go");
        steps(&mut external(Some(ME)), &mut claims, start);
        assert!(claims.asked().is_empty());
    }

    #[test]
    fn an_external_port_that_another_asks_for_is_let_go_once_nothing_serves_it() {
        let mut held = external(Some(ME));
        let row = |asks: &str| sb::Chassis {
            name: "hv2".into(),
            other_config: [(ASKED.into(), asks.into())].into_iter().collect(),
            ..Default::default()
        };
        let (id, nobody) = (uuid(10).to_string(), uuid(99).to_string());
        let ask = |from: &str, to: &str, input: &Input| asked(uuid(OTHER), (&row(from), &row(to)), input);
        assert_eq!(ask("", &format!("{nobody},{id},no UUID"), &held), ["bm".into()]);
        assert!(ask(&id, &id, &held).is_empty(), "it was known");
        assert!(ask("", &id, &external(Some(OTHER))).is_empty(), "it is not this chassis'");
        assert!(asked(uuid(77), (&row(""), &row(&id)), &held).is_empty(), "it is in no group of the port");
        assert!(steps(&mut held, &mut Claims::default(), Instant::now()).iter().all(|l| !l.contains("Releasing")));
        held.local.gateways.yielding.insert("bm".into());
        let mut here = Presence::default();
        here.settle(&mut held, &[]);
        for installed in [false, true] {
            let mut plan = Plan::new(Arc::new(sb::Database::schema()));
            Claims::default().reconcile(&held, &here, Switch { installed, answers: true }, Instant::now(), &mut plan);
            assert_eq!(!plan.into_log().is_empty(), installed, "the flows go first");
        }
        let mut free = external(None);
        free.local.gateways.yielding.insert("bm".into());
        assert!(steps(&mut free, &mut Claims::default(), Instant::now()).is_empty(), "it is left to the other one");
    }

    #[test]
    fn what_is_here_does_not_wait_for_the_database() {
        use crate::units::binding::role as have;
        let as_what = |p: PortBinding| {
            let input = world(vec![p.clone()]);
            have(&p, &input, &input.local)
        };
        let requested = |to: &str, chassis: Option<u128>| {
            let to: Str = to.into();
            port("lp", |p| {
                p.chassis = chassis.map(uuid);
                p.options.insert("requested-chassis".into(), to);
            })
        };
        assert_eq!(as_what(port("lp", |_| {})), Role::Main, "nobody has it yet");
        assert_eq!(as_what(port("other", |p| p.chassis = Some(uuid(ME)))), Role::None, "its interface is gone");
        assert_eq!(as_what(port("lp", |p| p.chassis = Some(uuid(OTHER)))), Role::None, "the other one has it");
        assert_eq!(as_what(requested("hv1", Some(OTHER))), Role::Main, "it is asked for here");
        assert_eq!(as_what(requested("hv2,hv1", Some(OTHER))), Role::Additional);
        assert_eq!(as_what(requested("hv2", Some(ME))), Role::None, "it moves");
        let joined = |p: &mut PortBinding| (p.chassis, p.additional_chassis) = (Some(uuid(OTHER)), [uuid(ME)].into());
        assert_eq!(as_what(port("lp", joined)), Role::Additional);
        let gateway = |to: &str, chassis| {
            let to: Str = to.into();
            port("rp", |p| {
                (p.r#type, p.chassis) = ("l3gateway".into(), chassis);
                p.options.insert("l3gateway-chassis".into(), to);
            })
        };
        assert_eq!(as_what(gateway("hv1", None)), Role::Main);
        assert_eq!(as_what(gateway("hv2", Some(uuid(ME)))), Role::None);
        // A mirror's exit is where its sink is.
        let exit = |sink: &str| {
            let sink: Str = sink.into();
            port("exit", |p| (p.r#type, p.mirror_port) = ("mirror".into(), Some(sink)))
        };
        let input = world(vec![port("lp", |_| {}), exit("lp"), exit("away")]);
        let [here, away] = [exit("lp"), exit("away")].map(|p| have(&p, &input, &input.local));
        assert_eq!((here, away), (Role::Main, Role::None));
    }

    #[test]
    fn containers_follow_their_parents() {
        let child = || port("child", |p| p.parent_port = Some("parent".into()));
        let parent =
            |to: &'static str| port("parent", |p| drop(p.options.insert("requested-chassis".into(), to.into())));
        let now = Instant::now();
        let all = steps(&mut world(vec![child(), parent("hv1")]), &mut Claims::default(), now);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(steps(&mut world(vec![child(), parent("hv2")]), &mut Claims::default(), now).is_empty());
        // A container of a container is nobody's.
        let nested = port("parent", |p| p.parent_port = Some("lp".into()));
        let all = steps(&mut world(vec![child(), nested]), &mut Claims::default(), now);
        assert!(!all.iter().any(|l| l.contains("child")), "{all:?}");
    }

    #[test]
    fn two_chassis_do_not_take_a_port_from_each_other_all_the_time() {
        let mut input = world(vec![port("lp", |p| p.chassis = Some(uuid(OTHER)))]);
        let (mut c, start) = (Claims::default(), Instant::now());
        let mut n = 0;
        for ms in (0..3000).step_by(10) {
            n += steps(&mut input, &mut c, start + Duration::from_millis(ms)).len();
        }
        assert!((5..=7).contains(&n), "{n} claims in 3 s");
        assert!(c.next().is_some());
    }

    #[test]
    fn a_role_or_type_that_ends_is_given_up() {
        let main = one(port("lp", |p| {
            p.chassis = Some(uuid(ME));
            p.additional_chassis.insert(uuid(ME));
            p.up = Some(true);
        }));
        assert_eq!(main, ["Releasing lport lp from this additional chassis."]);
        for kind in ["patch", "localnet", "localport", "remote", "external"] {
            let log = one(port("lp", |p| (p.chassis, p.r#type) = (Some(uuid(ME)), kind.into())));
            assert_eq!(log, ["Releasing lport lp from this chassis (sb_readonly=0)"], "{kind}");
        }
    }

    #[test]
    fn interfaces_of_another_version_are_not_it() {
        let p = port("lp", |p| drop(p.options.insert("iface-id-ver".into(), "2".into())));
        assert!(one(p.clone()).is_empty());
        let mut local = world(vec![]).local;
        assert!(other_version(&p, &local).is_some());
        local.vifs.get_mut("lp").unwrap().version = Some("2".into());
        assert!(other_version(&p, &local).is_none());
    }
}
