//! Where a southbound row came from, and what became of a northbound one: `isthmusctl why`.
//!
//! A row is a cause of an output if the output would not be without it. That is tried: the units that looked at the row
//! run as if it were not there, and nothing of it is kept ([`incremental::Engine::without`]).

use crate::compiler::Compiler;
use crate::input::Read;
use crate::model::{Flow, Key, Unit, Value};
use ovn_schema::{Uuid, nb, sb};
use ovsdb_rs::Datum;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The most units whose causes are searched: a flow of all datapaths comes from one unit of each.
const UNITS: usize = 20;

/// The most rows that are left out by way of trial.
const CANDIDATES: usize = 2000;

/// The fewest hexadecimal digits that count as the beginning of a UUID.
const SHORTEST: usize = 4;

type Columns = Vec<(&'static str, Datum)>;

/// A table of either database.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Table {
    Sb(sb::TableId),
    Nb(nb::TableId),
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Table::Sb(t) => t.name(),
            Table::Nb(t) => t.name(),
        }
    }

    fn all(name: Option<&str>) -> Vec<Table> {
        let southbound = sb::TableId::ALL.iter().map(|t| Table::Sb(*t));
        let all = southbound.chain(nb::TableId::ALL.iter().map(|t| Table::Nb(*t)));
        // As ovn-nbctl and ovn-sbctl take table names: any case, dashes for underlines.
        let plain = |n: &str| n.to_ascii_lowercase().replace('-', "_");
        all.filter(|t| name.is_none_or(|n| plain(n) == plain(t.name()))).collect()
    }
}

impl Compiler {
    /// Tells where a southbound row came from, or what became of a northbound one. A row is named by its UUID, by the
    /// beginning of that, or by its name; a table narrows the search.
    ///
    /// # Errors
    /// Where there is no such row or several.
    pub fn why(&self, table: Option<&str>, row: &str) -> Result<String, String> {
        let tables = Table::all(table);
        if tables.is_empty() {
            return Err(format!("there is no table {}", table.unwrap_or_default()));
        }
        let found = self.named(&tables, row);
        match found[..] {
            [] => {
                Err(format!("no row is called \"{row}\"; give a UUID, the first {SHORTEST} digits of one, or a name"))
            }
            [(Table::Nb(t), u)] => Ok(self.became(t, u)),
            [(Table::Sb(t), u)] => Ok(self.origin(t, u)),
            // Rows of both databases may have the same name, and some the same UUID.
            [(Table::Sb(s), of), (Table::Nb(n), to)] => Ok(format!("{}\n{}", self.origin(s, of), self.became(n, to))),
            _ => {
                let lines = found.iter().map(|(t, u)| format!("  {}\n", self.line(*t, *u)));
                Err(format!("several rows are called \"{row}\":\n{}", lines.collect::<String>().trim_end()))
            }
        }
    }

    fn columns(&self, table: Table, uuid: Uuid) -> Columns {
        match table {
            Table::Sb(sb::TableId::LogicalFlow) => self.flow(uuid).map(|key| flow_columns(&key)),
            Table::Sb(t) => self.input().sb.columns(t, uuid),
            Table::Nb(t) => self.input().nb.columns(t, uuid),
        }
        .unwrap_or_default()
    }

    /// The output that a flow's row stands for.
    fn flow(&self, row: Uuid) -> Option<Key> {
        self.sync().flows().output(row).and_then(|o| self.engine().outputs().key(o)).cloned()
    }

    fn named(&self, tables: &[Table], row: &str) -> Vec<(Table, Uuid)> {
        let prefix = row.strip_prefix("0x").unwrap_or(row).to_ascii_lowercase();
        let hex = prefix.len() >= SHORTEST && prefix.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        let mut found = Vec::new();
        for table in tables {
            let uuids = match table {
                Table::Sb(sb::TableId::LogicalFlow) => self.sync().flows().rows().collect(),
                Table::Sb(t) => self.input().sb.uuids(*t),
                Table::Nb(t) => self.input().nb.uuids(*t),
            };
            let many = matches!(table, Table::Sb(sb::TableId::LogicalFlow));
            for uuid in uuids {
                let hit = hex && uuid.to_string().starts_with(&prefix);
                if hit || !many && self.columns(*table, uuid).iter().any(|(n, d)| names(n) && text(d) == row) {
                    found.push((*table, uuid));
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// One line about a row: table, the beginning of the UUID, what tells it apart.
    fn line(&self, table: Table, uuid: Uuid) -> String {
        format!("{} {} {}", table.name(), short(uuid), summary(&self.columns(table, uuid))).trim_end().to_string()
    }

    fn line_nb(&self, uuid: Uuid) -> Option<String> {
        let table = nb::TableId::ALL.iter().find(|t| self.input().nb.columns(**t, uuid).is_some())?;
        Some(self.line(Table::Nb(*table), uuid))
    }

    fn origin(&self, table: sb::TableId, uuid: Uuid) -> String {
        let mut out = format!("{}\n", self.line(Table::Sb(table), uuid));
        let key = match table {
            sb::TableId::LogicalFlow => self.flow(uuid),
            _ => self.sync().name_of(uuid).cloned().map(Key::Row),
        };
        let Some(key) = key else {
            out.push_str(match table {
                sb::TableId::LogicalDpGroup => "shared by rows that name these datapaths\n",
                _ => "not made by northd, or not compiled yet\n",
            });
            return out;
        };
        if let Key::Flow(flow) = &key {
            let _ = writeln!(out, "  {}\n  actions: {}", flow_line(flow), flow.actions);
        }
        let origins = self.engine().why(&key);
        let units: BTreeSet<&Unit> = origins.iter().map(|o| o.unit).collect();
        let mut causes = BTreeSet::new();
        for unit in units.iter().take(UNITS) {
            for candidate in self.candidates(unit) {
                let lost = self.engine().without(self.input(), &Read::Nb(candidate));
                // A flow stays the same flow in fewer datapaths.
                let gone = |l: &incremental::Lost<'_, crate::model::Northd>| {
                    *l.key == key && !(l.changed && matches!(l.value, Value::Flow(_)))
                };
                if lost.iter().any(gone) {
                    causes.extend(self.line_nb(candidate));
                }
            }
        }
        for unit in &units {
            let _ = writeln!(out, "made by {}", self.unit(unit));
        }
        match causes.is_empty() {
            true => out.push_str("from no northbound row: it is always there\n"),
            false => out.push_str("from\n"),
        }
        for cause in causes {
            let _ = writeln!(out, "  {cause}");
        }
        if units.len() > UNITS {
            let _ = writeln!(out, "  and the same of {} more", units.len() - UNITS);
        }
        out
    }

    /// A unit's name with that of its row.
    fn unit(&self, unit: &Unit) -> String {
        let kind = format!("{unit:?}");
        let kind = kind.split('(').next().unwrap_or_default().to_string();
        match unit.subject().and_then(|u| self.line_nb(u)) {
            Some(row) => format!("{kind} of {row}"),
            None => kind,
        }
    }

    /// The northbound rows that a unit looked at, and those that the units did whose facts it looked at.
    fn candidates(&self, unit: &Unit) -> BTreeSet<Uuid> {
        let mut rows = BTreeSet::new();
        let mut seen = BTreeSet::from([unit]);
        let mut todo = vec![unit];
        while let Some(unit) = todo.pop() {
            rows.extend(unit.subject());
            let (reads, facts) = self.engine().looked_at(unit);
            for read in reads {
                if let Read::Nb(u) = read
                    && rows.len() < CANDIDATES
                {
                    rows.insert(*u);
                }
            }
            todo.extend(facts.into_iter().filter(|f| f.subject().is_some() && seen.insert(f)));
        }
        rows
    }

    fn became(&self, table: nb::TableId, uuid: Uuid) -> String {
        let mut out = format!("{}\n", self.line(Table::Nb(table), uuid));
        let mut lines: BTreeMap<u8, BTreeSet<String>> = BTreeMap::new();
        for lost in self.engine().without(self.input(), &Read::Nb(uuid)) {
            let (kind, mut line) = self.output(lost.key);
            if lost.changed {
                line.push_str(" (in part)");
            }
            lines.entry(kind).or_default().insert(line);
        }
        if lines.is_empty() {
            out.push_str("nothing came of it: no unit's output depends on it\n");
        }
        for line in lines.into_values().flatten() {
            let _ = writeln!(out, "  {line}");
        }
        out
    }

    /// One line about an output, and the place of its kind among others.
    fn output(&self, key: &Key) -> (u8, String) {
        match key {
            Key::Row(name) => match self.sync().row_of(name) {
                Some(u) => (0, self.line(Table::Sb(name.table), u)),
                None => (0, format!("{} {} (not written)", name.table.name(), name.name)),
            },
            Key::Flow(flow) => {
                let output = self.engine().outputs().id(key);
                let row = output.and_then(|o| self.sync().flows().row(o));
                (1, format!("Logical_Flow {} {}", row.map_or_else(|| "-".into(), short), flow_line(flow)))
            }
            Key::Nb(table, u) => (2, format!("columns of {}", self.line(Table::Nb(*table), *u))),
            Key::Stale(table, u) => (3, format!("deleted: {} {}", table.name(), short(*u))),
            Key::Diagnostic(text) => (4, format!("reported: {text}")),
        }
    }
}

fn short(uuid: Uuid) -> String {
    uuid.to_string().chars().take(8).collect()
}

fn flow_line(f: &Flow) -> String {
    format!("{}, priority {}, match ({})", f.stage.name(), f.priority, f.matches)
}

/// Whether a column holds a row's name.
fn names(column: &str) -> bool {
    matches!(column, "name" | "logical_port" | "chassis_name")
}

fn text(datum: &Datum) -> String {
    match datum {
        Datum::Scalar(ovsdb_rs::Atom::String(s)) => s.to_string(),
        Datum::Scalar(a) => a.to_plain(),
        _ => String::new(),
    }
}

/// What tells a row apart for people.
/// What tells flows apart.
fn flow_columns(key: &Key) -> Columns {
    use ovn_schema::ColumnValue;
    let Key::Flow(flow) = key else { return Columns::new() };
    vec![
        ("priority", i64::from(flow.priority).to_datum()),
        ("match", flow.matches.to_datum()),
        ("actions", flow.actions.to_datum()),
    ]
}

fn summary(columns: &Columns) -> String {
    const SHOWN: [&str; 17] = [
        "name",
        "logical_port",
        "direction",
        "priority",
        "match",
        "action",
        "type",
        "external_ip",
        "logical_ip",
        "ip_prefix",
        "nexthop",
        "vip",
        "cidr",
        "ip",
        "mac",
        "chassis_name",
        "tunnel_key",
    ];
    let value = |n: &str| columns.iter().find(|(c, _)| *c == n).map(|(_, d)| text(d)).filter(|t| !t.is_empty());
    if let Some(name) = value("name").or_else(|| value("logical_port")) {
        return name;
    }
    SHOWN.iter().filter_map(|n| value(n)).collect::<Vec<_>>().join(" ")
}
