//! The dataplane daemon: switch on DPDK, configured by Open_vSwitch, driven by OpenFlow
