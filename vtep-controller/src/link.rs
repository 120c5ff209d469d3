//! Connections to databases.

use crate::output::Key;
use ovsdb_rs::client::writer::Writer;
use ovsdb_rs::client::{Client, Config, Event, TableRequest};
use ovsdb_rs::tls::Tls;
use serde_json::json;
use tokio::sync::mpsc;

/// The most rows of one transaction. A switch's server has other things to do too.
pub const ROWS: usize = 2000;

/// What is read of the southbound database.
pub const SB_TABLES: [(&str, &[&str]); 9] = [
    ("SB_Global", &["options"]),
    ("Chassis", &["name", "hostname", "encaps", "other_config", "external_ids", "vtep_logical_switches"]),
    ("Encap", &["type", "ip", "options", "chassis_name"]),
    ("Datapath_Binding", &["tunnel_key"]),
    (
        "Port_Binding",
        &[
            "logical_port",
            "type",
            "options",
            "datapath",
            "tunnel_key",
            "mac",
            "chassis",
            "additional_chassis",
            "encap",
            "up",
        ],
    ),
    ("FDB", &["mac", "dp_key", "port_key"]),
    ("MAC_Binding", &["logical_port", "ip", "mac"]),
    ("IGMP_Group", &["address", "datapath", "chassis"]),
    ("Multicast_Group", &["name", "datapath", "ports"]),
];

/// What is read of a switch's database.
pub const TOR_TABLES: [(&str, &[&str]); 11] = [
    ("Global", &["other_config"]),
    ("Physical_Switch", &["name", "tunnel_ips", "ports", "tunnels", "other_config", "switch_fault_status"]),
    ("Physical_Port", &["name", "vlan_bindings", "vlan_stats", "port_fault_status"]),
    ("Logical_Binding_Stats", &["packets_from_local", "packets_to_local", "bytes_from_local", "bytes_to_local"]),
    ("Tunnel", &["local", "remote", "bfd_params", "bfd_config_remote", "bfd_status"]),
    ("Logical_Switch", &["name", "tunnel_key", "replication_mode"]),
    ("Ucast_Macs_Local", &["MAC", "logical_switch", "locator", "ipaddr"]),
    ("Ucast_Macs_Remote", &["MAC", "logical_switch", "locator", "ipaddr"]),
    ("Mcast_Macs_Remote", &["MAC", "logical_switch", "locator_set"]),
    ("Physical_Locator", &["dst_ip", "encapsulation_type", "tunnel_key"]),
    ("Physical_Locator_Set", &["locators"]),
];

/// A connection to a database.
pub struct Link {
    /// The client.
    pub client: Client,
    /// What it tells of.
    pub events: mpsc::UnboundedReceiver<Event>,
    /// The copy is complete.
    pub ready: bool,
    /// What is written to it.
    pub writer: Writer<Key>,
}

impl Link {
    /// Connects.
    ///
    /// # Errors
    /// Where the remote does not parse.
    pub fn start(
        remote: &str,
        database: &str,
        tables: &[(&str, &[&str])],
        tls: Option<Tls>,
    ) -> Result<Link, ovsdb_rs::Error> {
        let config = Config::new(remote, database)?.tls(tls).leader_only(false);
        let config = tables.iter().fold(config, |c, (table, columns)| {
            let mut request = TableRequest::columns(columns.iter().copied());
            if *table == "Multicast_Group" {
                request =
                    request.when(vec![json!(["name", "==", "_MC_mrouter_flood"]), json!(["name", "==", "_MC_static"])]);
            }
            c.table(table, request)
        });
        let (client, events) = Client::start(config);
        Ok(Link { client, events, ready: false, writer: Writer::new(ROWS) })
    }

    /// Whether a transaction can be sent now.
    pub fn can_write(&self) -> bool {
        self.ready && self.writer.is_free() && self.client.is_connected()
    }
}
