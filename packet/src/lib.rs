//! Packet headers and builders
