//! Both servers, and what the compiler has not been told yet.

use northd::{Changes, Compiler, Op};
use ovn_schema::{Uuid, nb, sb};
use ovsdb_rs::DatabaseSchema;
use ovsdb_rs::client::Transaction;
use ovsdb_rs::engine::{Change, Context, Database, Outcome};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

pub struct Server {
    pub db: Database,
    pub schema: Arc<DatabaseSchema>,
    news: Vec<Change>,
}

impl Server {
    fn new(schema: DatabaseSchema) -> Server {
        Server { db: Database::new(schema.clone()), schema: Arc::new(schema), news: Vec::new() }
    }

    /// Carries out a transaction; the error where it is refused.
    pub fn transact(&mut self, operations: &[Value]) -> Result<(), String> {
        match self.db.transact(operations, &Context::unrestricted()) {
            Outcome::Executed(x) if !x.failed => {
                self.news.extend(x.changes);
                Ok(())
            }
            Outcome::Executed(x) => Err(x.results.to_json()),
            Outcome::Waiting { .. } => Err("waits".into()),
        }
    }

    fn index(&self, table: &str) -> usize {
        self.db.table_index(table).unwrap()
    }

    pub fn count(&self, table: &str) -> usize {
        self.db.row_count(self.index(table))
    }

    /// The names of a table's rows, in order.
    pub fn rows(&self, table: &str) -> Vec<Uuid> {
        let mut all: Vec<Uuid> = self.db.rows(self.index(table)).map(|r| r.uuid).collect();
        all.sort_unstable();
        all
    }
}

pub struct Servers {
    pub nb: Server,
    pub sb: Server,
    /// Southbound tables that others than the compiler wrote in.
    pub touched: BTreeSet<String>,
}

fn name(schema: &DatabaseSchema, table: usize) -> String {
    schema.tables.keys().nth(table).unwrap().clone()
}

fn operations<T: Copy>(schema: &Arc<DatabaseSchema>, ops: &[Op<T>], name: impl Fn(T) -> &'static str) -> Vec<Value> {
    let mut t = Transaction::new(schema.clone());
    for op in ops {
        match op {
            Op::Insert(table, u, c) => t.insert_as(*u, name(*table), c.clone()),
            Op::Update(table, u, c) => t.update(name(*table), *u, c.clone()),
            Op::Delete(table, u) => t.delete(name(*table), *u),
        }
    }
    t.into_operations()
}

impl Servers {
    /// Two servers with a small network: enough that random changes meet.
    pub fn new() -> Servers {
        let mut servers = Servers {
            nb: Server::new(nb::Database::schema()),
            sb: Server::new(sb::Database::schema()),
            touched: BTreeSet::new(),
        };
        servers.sb.transact(&[json!({"op": "insert", "table": "SB_Global", "row": {}})]).unwrap();
        let options = json!([
            "map",
            [
                ["mac_prefix", "0a:00:00"],
                ["svc_monitor_mac", "0a:00:00:00:00:fe"],
                ["svc_monitor_mac_dst", "0a:00:00:00:00:fd"]
            ]
        ]);
        let mut ops = vec![json!({"op": "insert", "table": "NB_Global", "row": {"options": options}})];
        for r in 0..2 {
            let mut ports = Vec::new();
            for s in 0..2 {
                let id = format!("r{}", r * 2 + s);
                ops.push(json!({"op": "insert", "table": "Logical_Router_Port", "uuid-name": id, "row": {"name": id,
                    "mac": format!("0a:00:00:01:0{r}:0{s}"), "networks": format!("10.{s}.{r}.1/24")}}));
                ports.push(json!(["named-uuid", id]));
            }
            ops.push(json!({"op": "insert", "table": "Logical_Router", "row": {"name": format!("lr{r}"), "ports": ["set", ports]}}));
        }
        for s in 0..2 {
            let mut ports = Vec::new();
            for p in 0..4 {
                let id = format!("p{}", s * 4 + p);
                let mut row = json!({"name": id, "addresses": format!("0a:00:00:00:0{s}:0{p} 10.{s}.0.1{p}")});
                if p == 0 {
                    row = json!({"name": id, "type": "router", "addresses": "router", "options": ["map", [["router-port", format!("r{s}")]]]});
                }
                ops.push(json!({"op": "insert", "table": "Logical_Switch_Port", "uuid-name": id, "row": row}));
                ports.push(json!(["named-uuid", id]));
            }
            ops.push(json!({"op": "insert", "table": "Logical_Switch", "row": {"name": format!("ls{s}"), "ports": ["set", ports]}}));
        }
        servers.nb.transact(&ops).unwrap();
        servers
    }

    /// Both databases as they are; the compiler starts with these.
    pub fn databases(&mut self) -> (nb::Database, sb::Database) {
        let (mut n, mut s) = (nb::Database::default(), sb::Database::default());
        for c in self.nb.news.drain(..) {
            let table = name(&self.nb.schema, c.table);
            n.apply(&table, self.nb.schema.table(&table).unwrap(), c.uuid, c.new.as_deref()).unwrap();
        }
        for c in self.sb.news.drain(..) {
            let table = name(&self.sb.schema, c.table);
            s.apply(&table, self.sb.schema.table(&table).unwrap(), c.uuid, c.new.as_deref()).unwrap();
        }
        (n, s)
    }

    /// Tells the compiler what happened.
    pub fn tell(&mut self, compiler: &mut Compiler) {
        for c in self.nb.news.drain(..) {
            let table = name(&self.nb.schema, c.table);
            let ts = self.nb.schema.table(&table).unwrap();
            compiler.change_nb(|db| db.apply(&table, ts, c.uuid, c.new.as_deref()).unwrap().into_iter().collect());
        }
        for c in self.sb.news.drain(..) {
            let table = name(&self.sb.schema, c.table);
            let ts = self.sb.schema.table(&table).unwrap();
            compiler.change_sb(|db| db.apply(&table, ts, c.uuid, c.new.as_deref()).unwrap().into_iter().collect());
        }
    }

    /// Writes what the compiler wants written; the servers must take it.
    pub fn write(&mut self, compiler: &mut Compiler, changes: &Changes, what: &str) {
        let ops = operations(&self.sb.schema, &changes.sb, sb::TableId::name);
        if let Err(e) = self.sb.transact(&ops) {
            let start = e.find("\"error\"").unwrap_or(0);
            panic!("{what}: the southbound server refuses: {}", &e[start..e.len().min(start + 600)]);
        }
        let ops = operations(&self.nb.schema, &changes.nb, nb::TableId::name);
        if let Err(e) = self.nb.transact(&ops) {
            panic!("{what}: the northbound server refuses: {e}");
        }
        self.tell(compiler);
    }
}
