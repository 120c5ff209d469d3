//! What a packet costs that opens a connection, in nanoseconds of the thread's processor time, through the tables of the
//! gateway that `make bench-switch` measures: out of a Geneve tunnel, through a router that translates its source, into a VLAN.
//! `cargo bench -p switch --bench fresh`; with `lanes`, by one fast path and by two at a time.
//!
//! `data/gateway.flows` is what our controller puts into that gateway's integration bridge. Callgrind counts the instructions:
//! `valgrind --tool=callgrind --toggle-collect='*Rig*open*' fresh-… CONNECTIONS`.

#[path = "common/openings.rs"]
mod openings;
#[path = "common/prefetch.rs"]
mod prefetch;

use prefetch::prefetch;

fn main() {
    openings::main();
}
