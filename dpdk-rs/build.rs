//! Finds libdpdk, generates bindings for what this crate uses, and compiles wrappers for DPDK's inline functions.

use std::path::PathBuf;

/// What of DPDK is used; each is a type, a function or a constant of its headers.
const FUNCTIONS: &str = "rte_eal_(init|cleanup|hotplug_add|hotplug_remove)|rte_pktmbuf_pool_create|rte_mempool_avail_count|\
    rte_eth_iterator_(init|next|cleanup)|rte_eth_dev_(configure|start|stop|close|info_get|set_mtu|get_mtu|socket_id|set_link_up|count_avail)|\
    rte_eth_dev_adjust_nb_rx_tx_desc|rte_eth_(rx|tx)_queue_setup|rte_eth_promiscuous_enable|rte_eth_link_get_nowait|\
    rte_eth_stats_get|rte_eth_xstats_get(_names)?|rte_eth_macaddr_get|rte_strerror|rte_thread_(un)?register|rte_log_set_global_level|rte_eth_dev_callback_register|rte_dev_event_callback_register|rte_vlan_insert|isthmus_.*";
const TYPES: &str = "rte_mbuf|rte_mempool|rte_dev_iterator|rte_eth_(conf|dev_info|link|stats|xstat|xstat_name|rxconf|txconf)|rte_ether_addr";
const CONSTANTS: &str = "RTE_(MBUF_F_.*|PKTMBUF_HEADROOM|ETH_LINK_UP|MBUF_DEFAULT_BUF_SIZE|MAX_ETHPORTS)|ISTHMUS_.*";

/// The processor that libdpdk was built for, as its .pc file says (Debian: `-march=corei7`). Its headers want no less, and what is
/// shipped must not want more: DPDK itself chooses better code where it runs.
fn machine() -> Vec<String> {
    let asked = std::process::Command::new("pkg-config").args(["--cflags-only-other", "libdpdk"]).output();
    let text = asked.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.split_whitespace().filter(|f| f.starts_with("-m")).map(String::from).collect()
}

fn main() {
    println!("cargo:rerun-if-changed=src/wrapper.h");
    println!("cargo:rerun-if-changed=src/wrapper.c");
    println!("cargo:rerun-if-changed=build.rs");
    let dpdk = match pkg_config::Config::new().atleast_version("22.11").probe("libdpdk") {
        Ok(d) => d,
        Err(e) => {
            eprintln!("libdpdk 22.11 or newer is needed (Debian: apt-get install libdpdk-dev): {e}");
            std::process::exit(1);
        }
    };
    let machine = machine();
    let mut c = cc::Build::new();
    c.file("src/wrapper.c").includes(&dpdk.include_paths).flag("-include").flag("rte_config.h");
    for f in &machine {
        c.flag(f);
    }
    c.warnings(false).opt_level(3).compile("isthmus_dpdk");
    let bindings = bindgen::Builder::default()
        .header("src/wrapper.h")
        .clang_args(dpdk.include_paths.iter().map(|p| format!("-I{}", p.display())))
        .clang_args(["-include", "rte_config.h"])
        .clang_args(&machine)
        .allowlist_function(FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var(CONSTANTS)
        // Structures of the driver interface, whose layout no bindings can express and nobody here looks into.
        .opaque_type("rte_(arp|ipv4|ipv6|vxlan|gtp|geneve|higig).*|rte_l2tpv2.*")
        .derive_default(true)
        .layout_tests(false)
        .generate_comments(false)
        .generate();
    let out = std::env::var_os("OUT_DIR").map(PathBuf::from).unwrap_or_default().join("bindings.rs");
    match bindings.map_err(|e| e.to_string()).and_then(|b| b.write_to_file(&out).map_err(|e| e.to_string())) {
        Ok(()) => {}
        Err(e) => {
            eprintln!("bindings for libdpdk cannot be made (Debian: apt-get install libclang-dev): {e}");
            std::process::exit(1);
        }
    }
}
