//! OVSDB (RFC 7047): values, schema, wire protocol, client replica, transactions, server
