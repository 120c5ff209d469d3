//! The OVN, Open_vSwitch and hardware_vtep databases as Rust structs
