//! DPDK: FFI and a safe layer
