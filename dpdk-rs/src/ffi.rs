//! Generated bindings.
#![allow(missing_docs, non_camel_case_types, non_upper_case_globals, non_snake_case, dead_code, reason = "generated")]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, unsafe_op_in_unsafe_fn, reason = "generated")]
include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
