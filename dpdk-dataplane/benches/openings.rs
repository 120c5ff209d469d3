//! What `cargo bench -p switch --bench fresh` measures, with packets that prefetch, as those of devices do:
//! `cargo bench -p dpdk-dataplane --bench openings -- lanes`.

#[path = "../../switch/benches/common/openings.rs"]
mod openings;

use dpdk_rs::prefetch;

fn main() {
    openings::main();
}
