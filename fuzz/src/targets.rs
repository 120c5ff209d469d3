//! The decoders. Each target says in a word what came of an input; an error is a find.

use crate::seeds;
use controller::pinctrl::{Monitors, Report, Services, Snapshot, Told};
use logical_flow::written;
use openflow_rs::message::{Message, PacketIn};
use openflow_rs::{Version, text, wire};
use ovsdb_rs::engine::{Context, Database, Outcome};
use ovsdb_rs::json::Framer;
use ovsdb_rs::{DatabaseSchema, file, storage};
use representors::Which;
use representors::devargs::Devargs;
use serde_json::Value;
use std::collections::BTreeMap;

/// What came of an input.
pub type Outcome_ = Result<String, String>;

/// A decoder.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Runs it.
    pub run: fn(&[u8]) -> Outcome_,
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "ovsdb-json", run: ovsdb_json, seeds: seeds::ovsdb_json },
    Target { name: "ovsdb-schema", run: ovsdb_schema, seeds: seeds::ovsdb_schema },
    Target { name: "ovsdb-file", run: ovsdb_file, seeds: seeds::ovsdb_file },
    Target { name: "expression", run: expression, seeds: seeds::expressions },
    Target { name: "action", run: action, seeds: seeds::actions },
    Target { name: "openflow", run: openflow, seeds: seeds::openflow },
    Target { name: "flow-text", run: flow_text, seeds: seeds::flow_text },
    Target { name: "packet", run: packet, seeds: seeds::packets },
    Target { name: "pipeline", run: crate::pipeline::run, seeds: crate::pipeline::seeds },
    Target { name: "bfd", run: bfd, seeds: seeds::bfd },
    Target { name: "ha-records", run: ha_records, seeds: seeds::ha_records },
    Target { name: "lacp", run: lacp, seeds: seeds::lacp },
    Target { name: "bpdu", run: bpdu, seeds: seeds::bpdu },
    Target { name: "ccm", run: ccm, seeds: seeds::ccm },
    Target { name: "lldp", run: lldp, seeds: seeds::lldp },
    Target { name: "devargs", run: devargs, seeds: seeds::devargs },
    Target { name: "dhcp", run: packet_in, seeds: seeds::dhcp },
    Target { name: "dhcpv6", run: packet_in, seeds: seeds::dhcpv6 },
    Target { name: "dns", run: packet_in, seeds: seeds::dns },
    Target { name: "packet-in", run: packet_in, seeds: seeds::packet_ins },
];

/// What is read of a PDU is what comes of it when it is made again.
fn lacp(input: &[u8]) -> Outcome_ {
    let Some((actor, partner)) = packet::lacp::parse(input) else { return refused("no PDU") };
    match packet::lacp::parse(&packet::lacp::compose(actor, partner)) {
        Some(again) if again == (actor, partner) => Ok(format!("state {:#x}", actor.state)),
        other => Err(format!("{other:?} is not {actor:?} {partner:?}")),
    }
}

/// The same of a BPDU.
fn bpdu(input: &[u8]) -> Outcome_ {
    let Some(b) = packet::bpdu::parse(input) else { return refused("no BPDU") };
    match packet::bpdu::parse(&packet::bpdu::compose(packet::Mac::ZERO, &b)) {
        Some(again) if again == b => Ok("a BPDU".into()),
        other => Err(format!("{other:?} is not {b:?}")),
    }
}

/// The same of a continuity check.
fn ccm(input: &[u8]) -> Outcome_ {
    let m = match packet::ccm::parse(input) {
        Ok(m) => m,
        Err(e) => return refused(e),
    };
    match packet::ccm::parse(&packet::ccm::compose(packet::ccm::ADDRESS, packet::Mac::ZERO, None, &m)) {
        Ok(again) if again == m => Ok("a continuity check".into()),
        other => Err(format!("{other:?} is not {m:?}")),
    }
}

/// What is read of an LLDP data unit can be told again; texts may be cut.
fn lldp(input: &[u8]) -> Outcome_ {
    let unit = match packet::lldp::parse(input) {
        Ok(unit) => unit,
        Err(e) => return refused(e),
    };
    match packet::lldp::parse(&packet::lldp::compose(packet::Mac::ZERO, &unit)) {
        Ok(again) if (&again.chassis, &again.port, again.ttl) == (&unit.chassis, &unit.port, unit.ttl) => {
            Ok("a data unit".into())
        }
        other => Err(format!("{other:?} is not {unit:?}")),
    }
}

/// A device as DPDK names it stays the same device, with its function written out in full.
fn devargs(input: &[u8]) -> Outcome_ {
    let Some(text) = text_of(input) else { return refused("no text") };
    let read = match Devargs::parse(text) {
        Ok(d) => d,
        Err(e) => return refused(e),
    };
    if read.to_string() != text || !read.is_same_device(&read) {
        return Err(format!("{text:?} is not itself"));
    }
    let (Some(pci), Some(w)) = (read.pci(), read.wanted()) else { return Ok(format!("{:?}", read.pci().is_some())) };
    let part = |word: &str, n: Option<u32>| n.map(|n| format!("{word}{n}")).unwrap_or_default();
    let (vf, sf) = match w.which {
        Which::Vf(n) => (Some(n), None),
        Which::Sf(n) => (None, Some(n)),
        Which::Pf => (None, None),
    };
    let function = [part("c", w.controller), part("pf", w.pf), part("vf", vf), part("sf", sf)].concat();
    match Devargs::parse(&format!("{pci},representor={function}")) {
        Ok(again) if again.is_same_device(&read) && again.wanted() == read.wanted() => Ok(format!("{:?}", w.which)),
        other => Err(format!("{other:?} is not {read:?}")),
    }
}

fn refused(e: impl std::fmt::Display) -> Outcome_ {
    Ok(format!("refused {e}"))
}

fn text_of(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// A stream of requests: framing, JSON, transactions on a database.
fn ovsdb_json(input: &[u8]) -> Outcome_ {
    let mut framer = Framer::default();
    framer.buffer().extend_from_slice(input);
    let schema = DatabaseSchema::from_json(&seeds::schema()).map_err(|e| e.to_string())?;
    let mut db = Database::new(schema);
    let mut word = String::from("empty");
    loop {
        let text = match framer.next_text() {
            Ok(Some(t)) => t,
            Ok(None) => break,
            Err(e) => return refused(e),
        };
        let v: Value = match serde_json::from_slice(&text) {
            Ok(v) => v,
            Err(e) => return refused(e),
        };
        let Some(operations) = v.get("params").and_then(Value::as_array) else { return Ok("no params".into()) };
        match db.transact(operations.get(1..).unwrap_or_default(), &Context::unrestricted()) {
            Outcome::Executed(x) => {
                let results = x.results.to_values();
                let errors = results.iter().filter_map(|r| r.get("details")?.as_str());
                word = format!("{} {}", x.failed, errors.collect::<Vec<_>>().join(" "));
            }
            Outcome::Waiting { .. } => word = "waits".into(),
        }
    }
    let again = file::parse(&storage::whole(&db)).map_err(|e| format!("what was written cannot be read: {e}"))?;
    let again = Database::load(again).map_err(|e| format!("what was written cannot be loaded: {e}"))?;
    same(&db, &again)?;
    Ok(word)
}

fn rows(db: &Database) -> BTreeMap<String, Vec<Value>> {
    let mut out = BTreeMap::new();
    for t in 0..db.tables() {
        let Some(schema) = db.table_schema(t) else { continue };
        for r in db.rows(t) {
            let kept = schema.columns.iter().zip(&r.row.0).filter(|(c, _)| !c.ephemeral);
            out.insert(format!("{} {}", schema.name, r.uuid), kept.map(|(_, d)| d.to_json()).collect());
        }
    }
    out
}

fn same(a: &Database, b: &Database) -> Result<(), String> {
    if rows(a) == rows(b) { Ok(()) } else { Err("another database after it was written and read".into()) }
}

fn ovsdb_schema(input: &[u8]) -> Outcome_ {
    let v: Value = match serde_json::from_slice(input) {
        Ok(v) => v,
        Err(e) => return refused(e),
    };
    match DatabaseSchema::from_json(&v) {
        Err(e) => refused(e),
        Ok(s) => match DatabaseSchema::from_json(&s.to_json()) {
            Ok(again) if again == s => Ok("accepted".into()),
            Ok(_) => Err("another schema after it was written and read".into()),
            Err(e) => Err(format!("what was written cannot be read: {e}")),
        },
    }
}

fn ovsdb_file(input: &[u8]) -> Outcome_ {
    // Checksums are mended, or nothing behind them would ever be reached.
    let content = match file::parse(&seeds::with_checksums(input)) {
        Ok(c) => c,
        Err(e) => return refused(e),
    };
    match Database::load(content) {
        Err(e) => refused(e),
        Ok(db) => {
            let again = file::parse(&storage::whole(&db)).map_err(|e| format!("cannot be read again: {e}"))?;
            let again = Database::load(again).map_err(|e| format!("cannot be loaded again: {e}"))?;
            same(&db, &again)?;
            Ok("accepted".into())
        }
    }
}

/// Whether a text prints back as it was.
fn prints(text: &str, written: Result<impl ToString, logical_flow::Error>) -> Result<(), String> {
    match written.map(|w| w.to_string()) {
        Ok(again) if again == text => Ok(()),
        other => Err(format!("printed back as {other:?}")),
    }
}

fn expression(input: &[u8]) -> Outcome_ {
    let Some(text) = text_of(input) else { return Ok("no text".into()) };
    match logical_flow::expr::parse(text) {
        Err(e) => refused(e),
        Ok(tree) => {
            prints(text, written::expression(text))?;
            let again = logical_flow::expr::parse(&tree.to_string());
            if again == Ok(tree) { Ok("accepted".into()) } else { Err(format!("printed, it is {again:?}")) }
        }
    }
}

fn action(input: &[u8]) -> Outcome_ {
    let Some(text) = text_of(input) else { return Ok("no text".into()) };
    match logical_flow::action::parse(text) {
        Err(e) => refused(e),
        Ok(tree) => {
            prints(text, written::actions(text))?;
            let again = logical_flow::action::parse(&tree.to_string());
            if again.as_ref() == Ok(&tree) { Ok("accepted".into()) } else { Err(format!("printed, it is {again:?}")) }
        }
    }
}

fn openflow(input: &[u8]) -> Outcome_ {
    // The length is mended, or nothing behind it would ever be reached.
    let mut message = input.to_vec();
    if let (Some(field), Ok(n)) = (message.get_mut(2..4), u16::try_from(input.len())) {
        field.copy_from_slice(&n.to_be_bytes());
    }
    let word = match Message::decode(&message) {
        Ok(_) => "accepted".to_string(),
        Err(e) => format!("refused {e:?}"),
    };
    for v in [Version::Of13, Version::Of14, Version::Of15] {
        // The errors are those of the message as well.
        let _ = wire::decode_actions(input, v);
    }
    let _ = wire::oxm::decode_fields(input, true);
    let _ = wire::oxm::decode_fields(input, false);
    Ok(word)
}

fn flow_text(input: &[u8]) -> Outcome_ {
    let Some(text) = text_of(input) else { return Ok("no text".into()) };
    let _ = text::parse_filter(text);
    let _ = text::parse_group(text);
    let _ = text::parse_meter(text);
    let _ = text::parse_match(text);
    match text::parse_actions(text) {
        Ok(_) => Ok("actions".into()),
        Err(_) => match text::parse_flow(text) {
            Ok(_) => Ok("flow".into()),
            Err(e) => refused(e),
        },
    }
}

fn packet(input: &[u8]) -> Outcome_ {
    let _ = packet::tunnel::Geneve::parse(input);
    let _ = packet::tunnel::vxlan_vni(input);
    let _ = packet::srv6::parse(input);
    if let Some(v) = packet::tunnel::Vxlan::parse(input) {
        let mut again = Vec::new();
        if !v.put(&mut again) || packet::tunnel::Vxlan::parse(&again) != Some(v) {
            return Err(format!("{v:?} is another one when it is written"));
        }
    }
    if let Some(n) = packet::nsh::Nsh::parse(input) {
        // What is read of a header is what is read of it when it is written.
        let mut again = input.to_vec();
        n.write(&mut again);
        if packet::nsh::Nsh::parse(&again) != Some(n) {
            return Err(format!("{n:?} is another one when it is written"));
        }
    }
    let Some(h) = packet::Headers::parse(input) else { return Ok("refused".into()) };
    let addresses = h.addresses(input).is_some();
    let ports = h.ports(input).is_some();
    let nd = packet::nd_options(input, &h).is_some();
    let good = packet::checksum::l4_ok(input, &h);
    packet::checksum::set_l4(&mut input.to_vec(), &h);
    Ok(format!("{addresses} {ports} {nd} {good}"))
}

fn bfd(input: &[u8]) -> Outcome_ {
    match bfd_rs::Packet::parse(input) {
        Ok(_) => Ok("accepted".into()),
        Err(e) => refused(e),
    }
}

/// A stream of another gateway. What is read of it is the same when it is written and read again.
fn ha_records(input: &[u8]) -> Outcome_ {
    use gateway_ha::sync::{Decoder, Incoming, Record};
    let read = |bytes: &[u8]| {
        let mut d = Decoder::default();
        d.push(bytes);
        std::iter::from_fn(|| d.record().transpose()).collect::<Result<Vec<Record>, _>>()
    };
    let records = match read(input) {
        Ok(all) => all,
        Err(e) => return refused(e),
    };
    let mut bytes = Vec::new();
    records.iter().for_each(|r| r.encode(&mut bytes));
    if read(&bytes).as_ref() != Ok(&records) {
        return Err(format!("{records:?} is another one when it is written and read again"));
    }
    let mut stream = Incoming::new("gw1", None, [("lr_snat".to_string(), 3)].into());
    for (n, r) in records.into_iter().enumerate() {
        if let Err(e) = stream.take(r) {
            return refused(format!("{e} after {}", n.min(3)));
        }
    }
    Ok("accepted".into())
}

/// A packet that a flow sent to the controller: an opcode, the length of its data, the data, the packet. Answers that
/// the controller makes up have to be packets with right checksums.
fn packet_in(input: &[u8]) -> Outcome_ {
    let Some(([opcode, length], rest)) = input.split_first_chunk() else { return Ok("too short".into()) };
    let (data, frame) = rest.split_at(usize::from(*length).min(rest.len()));
    let mut userdata = vec![0, 0, 0, *opcode, 0, 0, 0, 0];
    userdata.extend_from_slice(data);
    let mut p = PacketIn { packet: frame.to_vec(), userdata, continuation: Some(vec![1]), ..PacketIn::default() };
    p.metadata.set(controller::encode::of::DATAPATH, seeds::DATAPATH.into());
    let (southbound, now) = (seeds::southbound(), std::time::Instant::now());
    let mut known = Snapshot::default();
    for (id, names) in &southbound.sb.dns {
        known.take(Told::Names(ovn_schema::DatapathKey(seeds::DATAPATH.into()), *id, Some(names.clone())));
    }
    let mut outcome = Services::default().handle(p, &known, now);
    if let Some(Report::Packet(p)) = &outcome.report {
        outcome.send.extend(Monitors::default().packet(p, &southbound, now));
    }
    let mut word = format!("{opcode} {}", if outcome.report.is_some() { "reported" } else { "nothing" });
    for message in &outcome.send {
        let packet = match message {
            Message::Resume(p) if p.packet == frame => continue,
            Message::PacketOut(p) if p.packet == frame => continue,
            Message::Resume(p) => &p.packet,
            Message::PacketOut(p) => &p.packet,
            other => return Err(format!("an answer of another kind: {other:?}")),
        };
        let h = packet::Headers::parse(packet).ok_or("an answer that is no packet")?;
        if !packet::checksum::l4_ok(packet, &h) {
            return Err(format!("an answer with a wrong checksum: {packet:02x?}"));
        }
        word += &format!(" answered {}", h.proto);
    }
    Ok(word)
}
