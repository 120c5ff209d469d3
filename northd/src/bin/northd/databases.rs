//! Where both databases are, and clients of them.

use crate::Args;
use ovn_schema::{nb, sb};
use ovsdb_rs::Server;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use ovsdb_rs::tls::Tls;
use tokio::sync::mpsc::UnboundedReceiver;

/// The lock that the active instance holds on the southbound database.
pub const LOCK: &str = "ovn_northd";

/// Both clients, and the server where the databases are embedded.
pub struct Databases {
    pub nb: Client,
    pub nb_events: UnboundedReceiver<Event>,
    pub sb: Client,
    pub sb_events: UnboundedReceiver<Event>,
    pub server: Option<Server>,
}

/// Southbound tables that the compiler neither reads nor writes.
const SB_OTHERS: [sb::TableId; 3] = [sb::TableId::Connection, sb::TableId::Ssl, sb::TableId::ControllerEvent];

/// Opens or connects to both databases.
pub async fn open(args: &Args) -> anyhow::Result<Databases> {
    let tls = Tls::from_options(&args.daemon.tls)?;
    let databases = [("ovnnb_db", nb::Database::schema()), ("ovnsb_db", sb::Database::schema())];
    let server = match &args.embed {
        Some(dir) => Some(Server::embedded(dir, &databases, &args.listen, tls.clone()).await?),
        None => None,
    };
    let config = |remote: Option<&String>, default: String, name: &str| match &server {
        Some(server) => Ok(Config::in_process(server, name)),
        None => Config::new(remote.unwrap_or(&default), name),
    };
    let mut nb = config(args.ovnnb_db.as_ref(), daemon::dirs::default_nb_db(), nb::Database::NAME)?.tls(tls.clone());
    for table in nb::TableId::ALL {
        nb = nb.table(table.name(), TableRequest::all());
    }
    let mut sb = config(args.ovnsb_db.as_ref(), daemon::dirs::default_sb_db(), sb::Database::NAME)?.tls(tls);
    for table in sb::TableId::ALL.iter().filter(|t| !SB_OTHERS.contains(t)) {
        let request = if *table == sb::TableId::LogicalFlow { TableRequest::names() } else { TableRequest::all() };
        sb = sb.table(table.name(), request);
    }
    let (nb, nb_events) = Client::start(nb.known(nb::Database::schema()));
    let (sb, sb_events) = Client::start(sb.known(sb::Database::schema()));
    Ok(Databases { nb, nb_events, sb, sb_events, server })
}
