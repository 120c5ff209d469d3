//! OVN chassis controller: southbound and local OVSDB to OpenFlow
